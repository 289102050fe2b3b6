"""The checker: launches of PTX, images and traced kernels under many schedules, and a report of every hazard.

Nothing here needs a GPU. `check` and `sequence` are what `kd.check` calls; `command` and `gallery` are of the command line.
"""

from __future__ import annotations

from .launches import Call
from .report import Hazard, Report, Side
from .run import check_calls

__all__ = ["Call", "Hazard", "Report", "Side", "check_calls"]
