"""Asynchronous copies: TMA boxes, bulk copies and cp.async, with the fences and waits around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernel_dsl import dtypes as dt
from kernel_dsl.compiled import OobFill, Swizzle
from kernel_dsl.errors_hopper import TmaRule
from kernel_dsl.ir import RefType, Value
from kernel_dsl.ops.copy import (
    CommitGroup,
    CommitSmem,
    CopyGmemToSmem,
    CopySmemToGmem,
    OOBFillMode,
    Prefetch,
    WaitGmemToSmem,
    WaitSmemToGmem,
)
from kernel_dsl.refs import View
from kernel_dsl.target import Feature
from kernel_dsl.transforms import storage_of

from ..context import Context
from . import boxes
from .boxes import Cut, Refuse
from .cp_async import copy_by_lanes, wait_lanes
from .sync import barrier_address

# CUTLASS and the PTX ISA (createpolicy) agree on these encodings of fractional policies with fraction 1.0
_POLICIES = {
    "evict_first": 0x12F0000000000000,
    "evict_normal": 0x1000000000000000,
    "evict_last": 0x14F0000000000000,
}


def index32(ctx: Context, value: Value) -> str:
    """A rank-0 integer as i32."""
    name, bits = ctx.scalar(value), value.type.dtype.bits
    if bits == 32:
        return name
    word = "trunc" if bits > 32 else ("sext" if value.type.dtype.is_signed else "zext")
    return ctx.e.v(f"{word} i{bits} {name} to i32")


def plus(ctx: Context, name: str, constant: int) -> str:
    """name + constant, i32."""
    if name.lstrip("-").isdigit():
        return str(int(name) + constant)
    return ctx.e.v(f"add i32 {name}, {constant}") if constant else name


def starts(ctx: Context, view: View, offsets: Sequence[Value]) -> list[str]:
    """Where a view starts along each axis of its root, i32."""
    dynamic = dict(zip(view.dynamic, offsets, strict=True))
    return [
        plus(ctx, index32(ctx, dynamic[axis]), static) if axis in dynamic else str(static)
        for axis, static in enumerate(view.start)
    ]


def smem_start(ctx: Context, ref: Value, view: View, offsets: Sequence[Value]) -> str:
    """The SMEM address where a view starts; rows and panels only (see `boxes.check_alignment`)."""
    e = ctx.e
    type: RefType = ref.type
    storage, item = storage_of(type), type.dtype.itemsize
    address, constant = ctx.buffers[ref].address, 0
    for axis, start in enumerate(starts(ctx, view, offsets)):
        step = storage.strides[axis] * item
        if axis == len(view.start) - 1 and storage.paneled:
            step = storage.panel_stride * item
            if not start.lstrip("-").isdigit():
                start = e.v(f"udiv i32 {start}, {storage.panel}")
            else:
                start = str(int(start) // storage.panel)
        if start.lstrip("-").isdigit():
            constant += int(start) * step
        else:
            address = e.v(f"add i32 {address}, {e.v(f'mul i32 {start}, {step}')}")
    return plus(ctx, address, constant)


def _elected_block(ctx: Context, predicate: Value | None, body: object) -> None:
    """Run `body` in the warpgroup's first lane, where the predicate holds."""
    e = ctx.e
    go = e.both(ctx.first_lane(), None if predicate is None else ctx.scalar(predicate))
    yes, end = e.label(), e.label()
    e.branch(go or "true", yes, end)
    e.begin(yes)
    body()  # type: ignore[operator]
    e.jump(end)
    e.begin(end)


def _hint(hint: str, place: int) -> tuple[str, str, str, list[tuple[str, str]]]:
    """(modifier, operand text, constraint, argument) of a cache policy."""
    if not hint:
        return "", "", "", []
    return ".L2::cache_hint", f", ${place}", ",l", [("i64", str(_POLICIES[hint]))]


def _coordinates(ctx: Context, start: list[str], pieces: Cut, box: boxes.Box) -> list[str]:
    """A box's coordinates, innermost first."""
    return [plus(ctx, start[axis], box.start[axis]) for axis in reversed(pieces.order)]


# --- GMEM to SMEM --------------------------------------------------------------------------------


def lower_gmem_to_smem(ctx: Context, op: CopyGmemToSmem) -> None:
    if not ctx.target.supports(Feature.TMA) or op.barrier is None or 0 in op.src_view.shape or 0 in op.src.type.shape:
        copy_by_lanes(ctx, op)  # and what moves no bytes, for which there is no descriptor
        return
    refuse = Refuse("copy_gmem_to_smem", op.loc)
    array, type = op.src.type, op.dst.type
    boxes.check_alignment(type, op.dst_view, op.dst_offsets, refuse)
    assert op.index is not None
    barrier = barrier_address(ctx, op.barrier, op.index)
    total = prod(d.size for d in op.src_view.dims) * array.dtype.itemsize
    # every warp arrives, the first one with the bytes: the phase can't end before all its lanes are here
    first = ctx.warp_leader()
    predicate = first if op.predicate is None else ctx.e.v(f"and i1 {first}, {ctx.scalar(op.predicate)}")
    bytes_ = ctx.e.pre(f"select i1 {ctx.first_lane()}, i32 {total}, i32 0")
    if ctx.warp_level:  # the one warp arrives for all four
        args = [("i32", barrier), ("i1", predicate)]
        others = "{ .reg .b64 state; @$1 mbarrier.arrive.shared::cta.b64 state, [$0], 3; }"
        ctx.e.asm(others, "r,b,~{memory}", args)
    text = "{ .reg .b64 state; @$2 mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }"
    ctx.e.asm(text, "r,r,b,~{memory}", [("i32", barrier), ("i32", bytes_), ("i1", predicate)])
    in_bounds = not op.src_view.masked or op.oob is OOBFillMode.PROMISE_IN_BOUNDS
    if _bulk(op, in_bounds, refuse):
        _elected_block(ctx, op.predicate, lambda: _bulk_load(ctx, op, barrier, total))
        return
    boxes.check_array(array, refuse)
    _check_launched(ctx, op.src, refuse)
    dims = boxes.pair_dims(op.src_view, op.dst_view, refuse)
    part = _part(ctx, op, dims, refuse)
    pieces = boxes.cut(array, type, part.dims, refuse)

    def issue() -> None:
        start = starts(ctx, op.src_view, op.src_offsets)
        address = smem_start(ctx, op.dst, op.dst_view, op.dst_offsets)
        if part.mask:
            start[part.axis] = ctx.e.v(f"add i32 {start[part.axis]}, {part.array_offset}")
            address = ctx.e.v(f"add i32 {address}, {part.smem_offset}")
        for box in pieces.boxes:
            _tensor_load(ctx, op, pieces, box, start, address, barrier, part.mask)

    _elected_block(ctx, op.predicate, issue)


class _Part:
    """What this block loads of a multicast copy: all of it without one."""

    def __init__(self, dims: list[boxes.Dim]) -> None:
        self.dims = dims
        self.mask = ""
        self.axis = 0
        self.array_offset = ""
        self.smem_offset = ""


def _part(ctx: Context, op: CopyGmemToSmem, dims: list[boxes.Dim], refuse: Refuse) -> _Part:
    """Split a multicast along its outermost dimension that the blocks can share evenly."""
    part = _Part(dims)
    count = prod(ctx.ir.cluster[p].size for p in op.multicast)
    if count == 1:
        return part
    type: RefType = op.dst.type
    storage = storage_of(type)
    unit = max(type.swizzle.value * 8, boxes.TMA_ALIGNMENT)
    last = len(type.shape) - 1
    for number, d in enumerate(dims):
        share = d.size // count
        stride = storage.strides[d.buffer]
        if d.buffer == last and (storage.paneled or type.swizzle is not Swizzle.NONE):
            if not storage.paneled or share % storage.panel:
                continue
            stride = storage.panel_stride // storage.panel
        if d.size % count or not share or share * stride * op.src.type.dtype.itemsize % unit:
            continue
        rank = ctx.cluster_linear(op.multicast)
        part.dims = [boxes.Dim(d.array, d.buffer, share) if i == number else x for i, x in enumerate(dims)]
        part.axis = d.array
        part.array_offset = ctx.e.pre(f"mul i32 {rank}, {share}")
        part.smem_offset = ctx.e.pre(f"mul i32 {rank}, {share * stride * op.src.type.dtype.itemsize}")
        part.mask = ctx.cluster_mask(op.multicast)
        return part
    why = f"each of the {count} blocks loads a part, and no dimension splits into {count} parts of whole tiles"
    raise refuse("a multicast copy that can't be shared out", why, "use a larger block or fewer blocks")


def _check_launched(ctx: Context, ref: Value, refuse: Refuse) -> None:
    """Refuse what is no argument of the launch: a descriptor is made of the array that the launch is given."""
    if ref not in ctx.arrays:
        why = "the descriptor of a tensor copy is made from the array as it is launched"
        raise refuse("a Ref of another shape or dtype than its array", why, "give the launch an array of that shape")


def _tensor_load(
    ctx: Context, op: CopyGmemToSmem, pieces: Cut, box: boxes.Box, start: list[str], base: str, barrier: str, mask: str
) -> None:
    fill = OobFill.NAN if op.oob is OOBFillMode.NANS else OobFill.ZEROS
    param = boxes.tensor_map(ctx.array_number(op.src), op.src.type, pieces, box, op.dst.type.swizzle, fill)
    coords = _coordinates(ctx, start, pieces, box)
    rank = len(coords)
    names = ", ".join(f"${i + 3}" for i in range(rank))
    args = [("i32", plus(ctx, base, box.smem)), ("i64", ctx.tensor_map(param)), ("i32", barrier)]
    args += [("i32", c) for c in coords]
    constraints = "r,l,r" + ",r" * rank
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    tail = ""
    if mask:
        text += ".multicast::cluster"
        tail = f", ${len(args)}"
        args.append(("i16", mask))
        constraints += ",h"
    modifier, operand, constraint, extra = _hint(op.hint, len(args))
    text += f"{modifier} [$0], [$1, {{{names}}}], [$2]{tail}{operand};"
    ctx.e.asm(text, constraints + constraint + ",~{memory}", args + extra)


def _bulk(op: CopyGmemToSmem, in_bounds: bool, refuse: Refuse) -> bool:
    """Whether one bulk copy does it: both sides one run of bytes, all of it in the array."""
    array, type = op.src.type, op.dst.type
    if op.multicast or not in_bounds or not boxes.contiguous_run(array, type, op.src_view, op.dst_view):
        return False
    if not _aligned_run(array, op.src_view, op.src_offsets):
        return False
    if op.oob in (OOBFillMode.UNDEFINED, OOBFillMode.PROMISE_IN_BOUNDS):
        return True
    try:
        dims = boxes.pair_dims(op.src_view, op.dst_view, refuse)
        return len(boxes.cut(array, type, dims, refuse).boxes) > boxes.MANY
    except TmaRule:
        return True


def _aligned_run(array: RefType, view: View, offsets: Sequence[Value]) -> bool:
    """Whether a run of GMEM provably starts and ends at multiples of 16 bytes."""
    item = array.dtype.itemsize
    if array.alignment % boxes.UNIT or prod(d.size for d in view.dims) * item % boxes.UNIT:
        return False
    strides = boxes.strides_of(array.shape)
    dynamic = dict(zip(view.dynamic, offsets, strict=True))
    for axis, static in enumerate(view.start):
        facts = dynamic[axis].facts if axis in dynamic else None
        moving = 0 if axis not in dynamic else (facts.divisor if facts is not None else 1)
        if static * strides[axis] * item % boxes.UNIT or moving * strides[axis] * item % boxes.UNIT:
            return False
    return True


def gmem_address(ctx: Context, ref: Value, view: View, offsets: Sequence[Value]) -> str:
    """The GMEM address where a view of a contiguous array starts, i64."""
    e = ctx.e
    type: RefType = ref.type
    address = ctx.buffers[ref].address
    dynamic = dict(zip(view.dynamic, offsets, strict=True))
    for axis, stride in enumerate(boxes.strides_of(type.shape)):
        step = stride * type.dtype.itemsize
        if view.start[axis]:
            address = e.v(f"add i64 {address}, {view.start[axis] * step}")
        if axis in dynamic:
            from .access import index64

            address = e.v(f"add i64 {address}, {e.v(f'mul i64 {index64(ctx, dynamic[axis])}, {step}')}")
    return address


def _bulk_load(ctx: Context, op: CopyGmemToSmem, barrier: str, total: int) -> None:
    source = gmem_address(ctx, op.src, op.src_view, op.src_offsets)
    target = smem_start(ctx, op.dst, op.dst_view, op.dst_offsets)
    modifier, operand, constraint, extra = _hint(op.hint, 4)
    text = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{modifier} [$0], [$1], $2, [$3]{operand};"
    args = [("i32", target), ("i64", source), ("i32", str(total)), ("i32", barrier)]
    ctx.e.asm(text, f"r,l,r,r{constraint},~{{memory}}", args + extra)


# --- SMEM to GMEM --------------------------------------------------------------------------------


def lower_smem_to_gmem(ctx: Context, op: CopySmemToGmem) -> None:
    refuse = Refuse("copy_smem_to_gmem", op.loc)
    array, type = op.dst.type, op.src.type
    if 0 in op.dst_view.shape or 0 in array.shape:  # every element is dropped
        if op.commit:
            lower_commit_group(ctx, op)
        return
    boxes.check_alignment(type, op.src_view, op.src_offsets, refuse)
    bulk = (
        not op.dst_view.masked
        and not op.reduction
        and boxes.contiguous_run(array, type, op.dst_view, op.src_view)
        and _aligned_run(array, op.dst_view, op.dst_offsets)
    )
    pieces = Cut((), (), 0)
    if not bulk:
        boxes.check_array(array, refuse)
        _check_launched(ctx, op.dst, refuse)
        pieces = boxes.cut(array, type, boxes.pair_dims(op.dst_view, op.src_view, refuse), refuse)

    def issue() -> None:
        source = smem_start(ctx, op.src, op.src_view, op.src_offsets)
        if bulk:
            _bulk_store(ctx, op, source)
        else:
            start = starts(ctx, op.dst_view, op.dst_offsets)
            for box in pieces.boxes:
                _tensor_store(ctx, op, pieces, box, start, source)
        if op.commit:
            ctx.e.asm("cp.async.bulk.commit_group;", "~{memory}")

    _elected_block(ctx, op.predicate, issue)


def _tensor_store(ctx: Context, op: CopySmemToGmem, pieces: Cut, box: boxes.Box, start: list[str], base: str) -> None:
    number = ctx.array_number(op.dst)
    param = boxes.tensor_map(number, op.dst.type, pieces, box, op.src.type.swizzle, OobFill.ZEROS)
    if op.reduction == "add" and param.dtype == dt.int64:
        param = replace(param, dtype=dt.uint64)  # PTX ISA 9.7.9.27.3: sums are of .u64 only, and the bits are the same
    coords = _coordinates(ctx, start, pieces, box)
    rank = len(coords)
    names = ", ".join(f"${i + 2}" for i in range(rank))
    args = [("i32", plus(ctx, base, box.smem)), ("i64", ctx.tensor_map(param)), *[("i32", c) for c in coords]]
    modifier, operand, constraint, extra = _hint(op.hint, len(args))
    word = "cp.reduce.async.bulk" if op.reduction else "cp.async.bulk"
    how = f".{op.reduction}" if op.reduction else ""
    text = f"{word}.tensor.{rank}d.global.shared::cta{how}.tile.bulk_group{modifier} [$1, {{{names}}}], [$0]{operand};"
    ctx.e.asm(text, "r,l" + ",r" * rank + constraint + ",~{memory}", args + extra)


def _bulk_store(ctx: Context, op: CopySmemToGmem, source: str) -> None:
    target = gmem_address(ctx, op.dst, op.dst_view, op.dst_offsets)
    total = prod(d.size for d in op.dst_view.dims) * op.dst.type.dtype.itemsize
    modifier, operand, constraint, extra = _hint(op.hint, 3)
    text = f"cp.async.bulk.global.shared::cta.bulk_group{modifier} [$0], [$1], $2{operand};"
    ctx.e.asm(text, f"l,r,r{constraint},~{{memory}}", [("i64", target), ("i32", source), ("i32", str(total)), *extra])


# --- fences, groups, waits -----------------------------------------------------------------------


def lower_prefetch(ctx: Context, op: Prefetch) -> None:
    refuse = Refuse("async_prefetch", op.loc)
    array: RefType = op.src.type
    if 0 in op.src_view.shape or 0 in array.shape:
        return
    boxes.check_array(array, refuse)
    _check_launched(ctx, op.src, refuse)
    order = tuple(range(len(array.shape)))
    sizes = {d.axis: d.size for d in op.src_view.dims}
    if any(d.step != 1 for d in op.src_view.dims):
        raise refuse("a strided slice", "TMA copies neighbours", "slice with stride 1")
    extents = tuple(min(sizes.get(a, 1), boxes.MAX_BOX) for a in order)
    if extents[-1] * array.dtype.itemsize % boxes.UNIT:
        hint = "prefetch a longer row"
        raise refuse("a row that is no multiple of 16 bytes", "TMA moves 16 bytes at a time", hint)
    box = boxes.Box(extents, tuple(0 for _ in order), 0)
    pieces = Cut(order, (box,), 0)

    def issue() -> None:
        import itertools

        start = starts(ctx, op.src_view, op.src_offsets)
        param = boxes.tensor_map(ctx.array_number(op.src), array, pieces, box, Swizzle.NONE, OobFill.ZEROS)
        for corner in itertools.product(*(range(0, sizes.get(a, 1), n) for a, n in zip(order, extents, strict=True))):
            coords = _coordinates(ctx, start, pieces, boxes.Box(extents, corner, 0))
            names = ", ".join(f"${i + 1}" for i in range(len(coords)))
            text = f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global.tile [$0, {{{names}}}];"
            args = [("i64", ctx.tensor_map(param)), *[("i32", c) for c in coords]]
            ctx.e.asm(text, "l" + ",r" * len(coords) + ",~{memory}", args)

    _elected_block(ctx, op.predicate, issue)


def lower_commit_smem(ctx: Context, op: CommitSmem) -> None:
    ctx.e.asm("fence.proxy.async.shared::cta;", "~{memory}")
    ctx.sync()


def lower_commit_group(ctx: Context, op: CommitGroup | CopySmemToGmem) -> None:
    text = "@$0 cp.async.bulk.commit_group;"
    ctx.e.asm(text, "b,~{memory}", [("i1", ctx.first_lane())])


def lower_wait_smem_to_gmem(ctx: Context, op: WaitSmemToGmem) -> None:
    # groups belong to the lane that issued the copies; the others have none and learn of it at the barrier
    ctx.e.asm(f"cp.async.bulk.wait_group{'.read' if op.read_only else ''} {op.pending};", "~{memory}")
    ctx.sync()


def lower_wait_gmem_to_smem(ctx: Context, op: WaitGmemToSmem) -> None:
    wait_lanes(ctx, op.pending)


RULES = {
    CopyGmemToSmem: lower_gmem_to_smem,
    CopySmemToGmem: lower_smem_to_gmem,
    Prefetch: lower_prefetch,
    CommitSmem: lower_commit_smem,
    CommitGroup: lower_commit_group,
    WaitSmemToGmem: lower_wait_smem_to_gmem,
    WaitGmemToSmem: lower_wait_gmem_to_smem,
}
