"""Stores of a traced body to SMEM through the generic proxy, and the fences that they need before an async copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf, prod

from .ir import MemorySpace, Op, RefType, Region, Value, buffer_of, walk_region
from .ops.barrier import BarrierArrive
from .ops.cluster import AsyncStoreSmem
from .ops.control import For, While
from .ops.copy import CopyGmemToSmem
from .ops.copy_waits import CommitSmem
from .ops.ref import AllocSmem
from .ops.threads import AliasSmem, WarpMap

__all__ = [
    "ARRIVALS",
    "arrives",
    "clash",
    "fence_before_arrivals",
    "member_of",
    "span_of",
    "stored_to",
    "stores_to",
    "turns",
]

ARRIVALS = (BarrierArrive, AsyncStoreSmem, CopyGmemToSmem)  # on their field `barrier`


def member_of(ref: Value) -> Value:
    """The buffer of a Ref's root, or the member of a union that it is or is another shape or dtype of."""
    while ref.op is not None and not isinstance(ref.op, (AllocSmem, AliasSmem)) and "ref" in ref.op.fields:
        ref = ref.op.ref  # type: ignore[attr-defined]
    return ref


def span_of(member: Value) -> tuple[int, int]:
    """(first byte, past the last) of a buffer or member within the buffer."""
    start = member.op.offset if isinstance(member.op, AliasSmem) else 0
    type: RefType = member.type
    return start, start + type.dtype.itemsize * prod(type.shape)


def clash(a: Value, b: Value) -> bool:
    """Whether two members of one union overlap."""
    if a is b or buffer_of(a) is not buffer_of(b):
        return False
    (low_a, high_a), (low_b, high_b) = span_of(a), span_of(b)
    return low_a < high_b and low_b < high_a


def stored_to(op: Op) -> Value | None:
    """The buffer or member in SMEM that an op writes through the generic proxy."""
    if isinstance(op, CopyGmemToSmem):
        return member_of(op.dst) if op.barrier is None else None  # cp.async
    ref = getattr(op, "ref", None) if op.writes else None
    if isinstance(ref, Value) and isinstance(ref.type, RefType) and ref.type.space is MemorySpace.SMEM:
        return member_of(ref)
    return None


def stores_to(ops: Iterable[Op], buffers: Collection[Value]) -> bool:
    """Whether ops, or any inside them, write to one of these buffers."""
    inside = (o for op in ops for o in (op, *(o for r in op.region_list() for o in walk_region(r))))
    return any(member is not None and buffer_of(member) in buffers for member in map(stored_to, inside))


def fence_before_arrivals(ops: list[Op], buffers: Collection[Value], barriers: Collection[Value]) -> None:
    """Put a fence before each arrival on these barriers that may follow a store to these buffers. Changes `ops`."""
    _fence(ops, buffers, barriers, False)


def _fence(ops: list[Op], buffers: Collection[Value], barriers: Collection[Value], stored: bool) -> bool:
    """Whether stores may lack a fence after `ops`; `stored`: whether they may lack one before `ops`."""
    out: list[Op] = []
    for op in ops:
        inner = op.region_list()
        # inside a warp_map only one warp would execute the fence
        if stored and arrives(op, barriers) and (not inner or isinstance(op, WarpMap)):
            fence = CommitSmem()
            fence.loc = op.loc
            out.append(fence)
            stored = False
        out.append(op)
        stored = _nested(op, inner, buffers, barriers, stored) if inner else stored or stores_to([op], buffers)
    ops[:] = out
    return stored


def _nested(
    op: Op, inner: Sequence[Region], buffers: Collection[Value], barriers: Collection[Value], stored: bool
) -> bool:
    if isinstance(op, (For, While)):  # an iteration may follow the stores of another
        state = stored or stores_to([op], buffers)
        left: list[bool] = []  # after each region: `while` ends after its test, the first
        for region in inner:
            state = _fence(region.ops, buffers, barriers, state)
            left.append(state)
        return left[0] or (stored and isinstance(op, For) and not turns(op)[0])
    ends = [_fence(region.ops, buffers, barriers, stored) for region in inner]
    return any(ends)


def arrives(op: Op, barriers: Collection[Value]) -> bool:
    """Whether an op, or any inside it, arrives on one of these barriers."""
    inside = (op, *(o for r in op.region_list() for o in walk_region(r)))
    return any(isinstance(o, ARRIVALS) and o.barrier is not None and o.barrier in barriers for o in inside)


def turns(op: Op) -> tuple[bool, float]:
    """Whether a loop surely has an iteration, and the greatest number that it can have."""
    if not isinstance(op, For) or op.step < 1:
        return False, inf
    low, high = op.lo.facts, op.hi.facts
    if low is None or high is None:
        return False, inf
    return low.hi < high.lo, (high.hi - low.lo) / op.step
