"""Raise an error at the user's line for features that the target lacks. LLVM would end the process instead."""

from __future__ import annotations

from kernel_dsl.errors import GridLimit, TargetFeature
from kernel_dsl.ir import KernelIR, Op
from kernel_dsl.target import TARGETS, Feature, Target

__all__ = ["run"]


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Raise `TargetFeature` or `GridLimit`; the kernel itself is unchanged."""
    for op in ir.walk():
        needed = op.needs()
        if needed and not target.supports(needed):
            raise missing(op, needed, target)
    if ir.cluster and not target.supports(Feature.CLUSTER):
        names = ", ".join(t.name for t in TARGETS.values() if t.supports(Feature.CLUSTER))
        what = f"{target} has no clusters"
        raise GridLimit(loc=ir.loc, what=what, hint=f"targets that have them: {names}")
    return ir


def missing(op: Op, needed: Feature, target: Target) -> TargetFeature:
    """The error for an op that needs features the target lacks."""
    absent = needed & ~target.features
    have = ", ".join(t.name for t in TARGETS.values() if t.supports(needed)) or "none"
    return TargetFeature(
        loc=op.loc, op=op.spoken(), target=target, feature=f"{absent.name}".lower().replace("|", ", "), targets=have
    )
