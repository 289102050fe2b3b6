"""The kinds of hazard. The language defines them, because its `InterpretParams(ignore=)` names them."""

from __future__ import annotations

from kernel_dsl.hazard_kinds import ALWAYS, HazardKind

__all__ = ["ALWAYS", "HazardKind"]
