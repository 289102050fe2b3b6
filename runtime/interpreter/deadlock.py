"""What to say when nothing can run: a table of who waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .kinds import HazardKind

if TYPE_CHECKING:
    from .machine import Run


def stuck(run: Run) -> bool:
    """Report a deadlock."""
    run.reporter.hazard(HazardKind.DEADLOCK, "nothing can run", None)
    return False
