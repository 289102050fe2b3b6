"""The kinds of hazard: they stand with the language, whose `InterpretParams(ignore=)` names them."""

from __future__ import annotations

from kernel_dsl.hazard_kinds import ALWAYS, HazardKind

__all__ = ["ALWAYS", "HazardKind"]
