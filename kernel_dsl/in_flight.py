"""Finds uses of wgmma's registers before their wait, along any path: around a loop, or past a branch that waits on one side only.

The registers are those of accumulators and of operands that are values.
"""

from __future__ import annotations

from math import inf
from typing import TypeVar

from .errors_hopper import UnreadAccumulator
from .ir import KernelIR, Op, Region, Value
from .ops.control import For, If, Switch, While
from .ops.matrix import AccRead, AccScale, AccWrite, SparseWgmma, Wgmma, WgmmaWait
from .ops.scope import EnterScope

__all__ = ["check_accumulators", "leaves_in_flight", "merged", "turns"]

# wgmma_wait leaves at most 7 groups in flight (`kd.wgmma_wait`): older ones need no separate numbers
OLDEST = 8

_TOUCHES: dict[type[Op], str] = {
    AccRead: "an accumulator load",
    AccWrite: "a store to an accumulator",
    AccScale: "scaling an accumulator",
}

_T = TypeVar("_T")
Groups = tuple[frozenset[Value], ...]  # registers that the newest group may use, then those of the one before, ...


def check_accumulators(ir: KernelIR) -> None:
    """Raise `UnreadAccumulator` at an op that uses an accumulator, or makes an operand again, while a wgmma may use it.

    Scopes that may start while one reads the data of an earlier scope are marked: `EnterScope.in_flight`.
    """
    if any(isinstance(op, Wgmma) for op in ir.walk()):
        _after(ir.body, ())


def leaves_in_flight(region: Region) -> bool:
    """Whether a wgmma of a region may be in flight at its end. Raises as `check_accumulators` does."""
    return any(_after(region, ()))


def _after(region: Region, groups: Groups) -> Groups:
    """The groups that may be in flight after a region, if `groups` may be in flight before it."""
    for op in region.ops:
        if groups and any(value in group for value in op.results for group in groups):
            why = "the loop returns here while a wgmma of the previous iteration may still read the registers of this operand"
            hint = "wait for it first, `kd.wgmma_wait(0)`, or give wgmma the operand in SMEM"
            raise UnreadAccumulator(
                loc=op.loc, what="an operand that is computed again before a wait", why=why, hint=hint
            )
        if isinstance(op, Wgmma):
            held = (op.acc,) if op.a_view is not None else (op.acc, op.a)
            held = (*held, op.meta) if isinstance(op, SparseWgmma) else held
            groups = merged((frozenset(held), *groups), ())
        elif isinstance(op, WgmmaWait):
            groups = groups[: op.pending]
        elif isinstance(op, EnterScope):
            op.in_flight |= bool(groups)
        elif isinstance(op, (AccRead, AccWrite, AccScale)):
            if any(op.acc in group for group in groups):
                why = "on some path through loops and branches, a wgmma on it may still be in flight here"
                hint = "wait first: `kd.wgmma_wait(0)`, or read it with `acc[...]`"
                raise UnreadAccumulator(loc=op.loc, what=f"{_TOUCHES[type(op)]} before a wait", why=why, hint=hint)
        elif isinstance(op, (If, Switch)):
            ends = [_after(inner, groups) for inner in op.region_list()]
            groups = ends[0]
            for end in ends[1:]:
                groups = merged(groups, end)
        elif isinstance(op, (For, While)):
            groups = _after_loop(op, groups)
    return groups


def _after_loop(op: For | While, groups: Groups) -> Groups:
    """Adds iterations until the result is stable: each may start with groups that the iteration before left in flight."""
    least, most = turns(op)
    start = groups
    while True:
        end = start
        for inner in op.region_list():
            end = _after(inner, end)
        both = merged(start, end)
        if both == start or most <= 1:
            break
        start = both
    if isinstance(op, While):
        return _after(op.before, start)
    return end if least else merged(start, end)


def turns(op: Op) -> tuple[bool, float]:
    """Whether a loop surely has an iteration, and the greatest number that it can have."""
    if not isinstance(op, For) or op.step < 1:
        return False, inf
    low, high = op.lo.facts, op.hi.facts
    if low is None or high is None:
        return False, inf
    return low.hi < high.lo, (high.hi - low.lo) / op.step


def merged(a: tuple[frozenset[_T], ...], b: tuple[frozenset[_T], ...]) -> tuple[frozenset[_T], ...]:
    """The groups that may be in flight on either path, newest first; groups from `OLDEST` on are one."""
    length = max(len(a), len(b))
    none: frozenset[_T] = frozenset()
    both = [(a[i] if i < len(a) else none) | (b[i] if i < len(b) else none) for i in range(length)]
    if length > OLDEST:
        both = [*both[: OLDEST - 1], none.union(*both[OLDEST - 1 :])]
    return tuple(both)
