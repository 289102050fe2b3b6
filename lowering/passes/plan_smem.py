"""Offsets of all scratch in the block's dynamic SMEM, and the refusal of more than a block has."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from kernel_dsl.compiled import SmemRegion, Swizzle
from kernel_dsl.errors import SmemExceeded
from kernel_dsl.ir import Op
from kernel_dsl.ops.ref import AllocBarrier, AllocSmem
from kernel_dsl.source import Loc
from kernel_dsl.target import Target

from ..context import source_line
from ..lowered import SmemPlan

BARRIER_BYTES = 8
EXCHANGE_ALIGNMENT = 128


Scope = tuple[int, ...]


def plan(ops: Iterable[Op]) -> tuple[SmemPlan, dict[Op, int], frozenset[Scope]]:
    """Give every allocation its place: barriers first, then buffers, each at its alignment.

    A scope's buffers come after those of the scopes around it, so scopes beside each other share memory: the plan, the
    offsets, and the scopes that share.
    """
    result = SmemPlan()
    offsets: dict[Op, int] = {}
    allocs = [op for op in ops if isinstance(op, (AllocSmem, AllocBarrier))]
    ends: dict[Scope, int] = {}
    # barriers of all scopes last as long as the kernel: they are initialised once
    for number, op in enumerate(sorted(allocs, key=_order)):
        scope: Scope = op.scope if isinstance(op, AllocSmem) else ()
        if isinstance(op, AllocBarrier):
            size, alignment = prod(op.type.shape) * BARRIER_BYTES, BARRIER_BYTES
        else:
            size, alignment = prod(op.type.shape) * op.type.dtype.itemsize, op.type.alignment
        end = max((ends.get(scope[:n], 0) for n in range(len(scope) + 1)), default=0)
        offset = _after(end, alignment)
        offsets[op] = offset
        ends[scope] = offset + size
        result.add(
            SmemRegion(
                name=op.type.name or f"scratch {number}",
                offset=offset,
                bytes=size,
                shape=op.type.shape,
                dtype=op.type.dtype if isinstance(op, AllocSmem) else None,
                tiling=op.type.tiling if isinstance(op, AllocSmem) else (),
                swizzle=op.type.swizzle if isinstance(op, AllocSmem) else Swizzle.NONE,
                kind="ref" if isinstance(op, AllocSmem) else "barrier",
                line=source_line(op.loc),
            )
        )
    return result, offsets, sharing(allocs)


def sharing(ops: Iterable[Op]) -> frozenset[Scope]:
    """The scopes that share memory with others."""
    scopes = {op.scope for op in ops if isinstance(op, AllocSmem)}
    return frozenset(a for a in scopes if any(_beside(a, b) for b in scopes))


def _order(op: AllocSmem | AllocBarrier) -> tuple[int, int]:
    """The order of allocations: barriers, then buffers, outer scopes first."""
    return (1, len(op.scope)) if isinstance(op, AllocSmem) else (0, 0)


def _beside(a: Scope, b: Scope) -> bool:
    """Whether neither of two scopes is inside the other."""
    shorter = min(len(a), len(b))
    return a[:shorter] != b[:shorter]


def add_exchange(plan: SmemPlan, threads: int, limit: int) -> tuple[int, int]:
    """Add the warpgroups' exchange space: (offset, bytes of a half); two halves a warpgroup.

    It comes after all else, or where that would exceed `limit` bytes, into a gap that the alignment of a buffer left.
    """
    size = 2 * plan.scratch * threads
    offset = _after(plan.size)
    if size and offset + size > limit:
        offset = _gap(plan, size, offset)
    if size:
        plan.add(SmemRegion("exchange", offset, size, (size,), None, kind="internal"))
    return offset, plan.scratch


def _gap(plan: SmemPlan, size: int, otherwise: int) -> int:
    end = 0
    for region in sorted(plan.regions, key=lambda r: r.offset):
        if region.offset - _after(end) >= size:
            return _after(end)
        end = max(end, region.offset + region.bytes)
    return otherwise


def _after(end: int, alignment: int = EXCHANGE_ALIGNMENT) -> int:
    return -(-end // alignment) * alignment


def check(plan: SmemPlan, target: Target, loc: Loc) -> None:
    """Raise `SmemExceeded` with a table of all allocations."""
    limit = target.limits.smem_per_block
    if plan.size <= limit:
        return
    rows = [
        f"{r.bytes:>9}  {r.name} {r.shape}" + (f"  ({r.line})" if r.line is not None else "")
        for r in sorted(plan.regions, key=lambda r: -r.bytes)
    ]
    raise SmemExceeded(loc=loc, bytes=plan.size, target=target, limit=limit, table="\n".join(["bytes, buffer", *rows]))
