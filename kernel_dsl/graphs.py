"""`kd.Graph`, whose replays host code launches. Like kernel.py it joins the layers."""

from __future__ import annotations

from kernel_dsl.runtime.graph import Graph, fast

from . import hosting

fast.host_code = hosting.replay_code

__all__ = ["Graph"]
