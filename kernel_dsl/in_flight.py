"""Finds uses of what a wgmma in flight uses, along any path: around a loop, or past a branch that waits on one side only.

A use of its registers, those of accumulators and of operands that are values, is an error. Its operands in SMEM are their
author's to wait for, but where a scope is opened again, or a member of a union overwrites another, a wait is put in.
"""

from __future__ import annotations

from typing import TypeVar

from .errors_hopper import UnreadAccumulator
from .in_place import clash, member_of, stored_to, turns
from .ir import KernelIR, Op, RefType, Region, Value, buffer_of
from .ops.control import For, If, Switch, While
from .ops.copy import CopyGmemToSmem
from .ops.matrix import AccRead, AccScale, AccWrite, SparseWgmma, Wgmma, WgmmaWait
from .ops.ref import AllocSmem
from .ops.scope import EnterScope

__all__ = ["check_accumulators", "leaves_in_flight", "merged"]

# wgmma_wait leaves at most 7 groups in flight (`kd.wgmma_wait`): older ones need no separate numbers
OLDEST = 8

_TOUCHES: dict[type[Op], str] = {
    AccRead: "an accumulator load",
    AccWrite: "a store to an accumulator",
    AccScale: "scaling an accumulator",
}

_T = TypeVar("_T")
# registers, and buffers or members of unions, that the newest group may use, then those of the one before, ...
Groups = tuple[frozenset[Value], ...]


def check_accumulators(ir: KernelIR) -> None:
    """Raise `UnreadAccumulator` at an op that uses an accumulator, or makes an operand again, while a wgmma may use it.

    Scopes that may start while one reads the data of an earlier scope are marked: `EnterScope.in_flight`.
    """
    if any(isinstance(op, Wgmma) for op in ir.walk()):
        _after(ir.body, (), insert=True)


def leaves_in_flight(region: Region) -> bool:
    """Whether a wgmma of a region may be in flight at its end. Raises as `check_accumulators` does."""
    return any(_after(region, (), insert=False))


def _after(region: Region, groups: Groups, insert: bool) -> Groups:
    """The groups that may be in flight after a region, if `groups` may be in flight before it.

    With `insert`, waits are put in. The groups of a later visit include those of an earlier one, so a wait is never needless.
    """
    waits: list[tuple[int, Op]] = []
    for number, op in enumerate(region.ops):
        if groups and _reuses(op, groups):
            waits.append((number, op))
            groups = ()
        _check_made(_made(op), groups, op)
        if isinstance(op, Wgmma):
            held = (op.acc, member_of(op.b), member_of(op.a) if op.a_view is not None else op.a)
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
            ends = [_after(inner, groups, insert) for inner in op.region_list()]
            groups = ends[0]
            for end in ends[1:]:
                groups = merged(groups, end)
        elif isinstance(op, (For, While)):
            groups = _after_loop(op, groups, insert)
    for number, op in reversed(waits if insert else []):
        wait = WgmmaWait((), 0)
        wait.loc = op.loc
        region.ops.insert(number, wait)
    return groups


def _check_made(values: tuple[Value, ...], groups: Groups, at: Op) -> None:
    """Raise `UnreadAccumulator` if an op makes operands of a wgmma that may be in flight."""
    if groups and any(value in group for value in values for group in groups):
        why = (
            "the loop returns here while a wgmma of the previous iteration may still read the registers of this operand"
        )
        hint = "wait for it first, `kd.wgmma_wait(0)`, or give wgmma the operand in SMEM"
        raise UnreadAccumulator(loc=at.loc, what="an operand that is computed again before a wait", why=why, hint=hint)


def _made(op: Op) -> tuple[Value, ...]:
    """The values of an op in registers."""
    return tuple(value for value in op.results if not isinstance(value.type, RefType))


def _reuses(op: Op, groups: Groups) -> bool:
    """Whether an op opens a scope's buffer that an earlier turn's wgmma may read, or writes over it by another member."""
    read = [value for group in groups for value in group if isinstance(value.type, RefType)]
    if isinstance(op, AllocSmem):
        return any(buffer_of(value) is op.result for value in read)
    member = member_of(op.dst) if isinstance(op, CopyGmemToSmem) else stored_to(op)
    return member is not None and any(clash(member, other) for other in read)


def _after_loop(op: For | While, groups: Groups, insert: bool) -> Groups:
    """Adds iterations until the result is stable: each may start with groups that the iteration before left in flight."""
    least, most = turns(op)
    start = groups
    while True:
        end = start
        for inner in op.region_list():
            _check_made(inner.args, end, op)
            end = _after(inner, end, insert)
        both = merged(start, end)
        if both == start or most <= 1:
            break
        start = both
    if isinstance(op, While):
        return _after(op.before, start, insert)
    return end if least else merged(start, end)


def merged(a: tuple[frozenset[_T], ...], b: tuple[frozenset[_T], ...]) -> tuple[frozenset[_T], ...]:
    """The groups that may be in flight on either path, newest first; groups from `OLDEST` on are one."""
    length = max(len(a), len(b))
    none: frozenset[_T] = frozenset()
    both = [(a[i] if i < len(a) else none) | (b[i] if i < len(b) else none) for i in range(length)]
    if length > OLDEST:
        both = [*both[: OLDEST - 1], none.union(*both[OLDEST - 1 :])]
    return tuple(both)
