"""Accumulators that may be touched before their wait, along any path: around a loop, past a branch that waits alone."""

from __future__ import annotations

from .errors_hopper import UnreadAccumulator
from .ir import KernelIR, Op, Region, Value

__all__ = ["check_accumulators"]

# wgmma_wait leaves at most 7 groups in flight (`kd.wgmma_wait`): older ones need not be told apart
OLDEST = 8

_TOUCHES = {
    "acc_read": "an accumulator load",
    "acc_write": "a store to an accumulator",
    "acc_scale": "scaling an accumulator",
}

Groups = tuple[frozenset[Value], ...]  # which accumulators the newest group may be of, then the one before it, ...


def check_accumulators(ir: KernelIR) -> None:
    """Raise `UnreadAccumulator` at the op that touches an accumulator while a wgmma on it may be in flight."""
    if any(op.op_name == "wgmma" for op in ir.walk()):
        _after(ir.body, ())


def _after(region: Region, groups: Groups) -> Groups:
    """What may be in flight behind a region, given what may be before it."""
    for op in region.ops:
        name = op.op_name
        if name == "wgmma":
            groups = _merged((frozenset((op.acc,)), *groups), ())  # type: ignore[attr-defined]
        elif name == "wgmma_wait":
            groups = groups[: op.pending]  # type: ignore[attr-defined]
        elif name in _TOUCHES:
            if any(op.acc in group for group in groups):  # type: ignore[attr-defined]
                why = "a wgmma on it may still be in flight here, along some way through loops and branches"
                hint = "wait first: `kd.wgmma_wait(0)`, or read it with `acc[...]`"
                raise UnreadAccumulator(loc=op.loc, what=f"{_TOUCHES[name]} before a wait", why=why, hint=hint)
        elif name in ("if", "switch"):
            ends = [_after(inner, groups) for inner in op.region_list()]
            groups = ends[0]
            for end in ends[1:]:
                groups = _merged(groups, end)
        elif name in ("for", "while"):
            groups = _after_loop(op, groups)
    return groups


def _after_loop(op: Op, groups: Groups) -> Groups:
    """Turns are added until they bring nothing new: each may find what the one before left in flight."""
    start = groups
    while True:
        end = start
        for inner in op.region_list():
            end = _after(inner, end)
        merged = _merged(start, end)
        if merged == start:
            break
        start = merged
    if op.op_name == "while":
        return _after(op.before, start)  # type: ignore[attr-defined]
    return end if _runs(op) else start


def _runs(op: Op) -> bool:
    """Whether a loop surely has a first turn."""
    if op.op_name != "for":
        return False
    low, high = op.lo.facts, op.hi.facts  # type: ignore[attr-defined]
    return low is not None and high is not None and op.step > 0 and low.hi < high.lo  # type: ignore[attr-defined]


def _merged(a: Groups, b: Groups) -> Groups:
    """What may be in flight on either way; groups from `OLDEST` on are one."""
    length = max(len(a), len(b))
    none: frozenset[Value] = frozenset()
    both = [(a[i] if i < len(a) else none) | (b[i] if i < len(b) else none) for i in range(length)]
    if length > OLDEST:
        both = [*both[: OLDEST - 1], frozenset[Value]().union(*both[OLDEST - 1 :])]
    return tuple(both)
