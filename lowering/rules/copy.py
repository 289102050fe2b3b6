"""Asynchronous copies and prefetches: TMA boxes, bulk copies and cp.async."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from kernel_dsl import dtypes as dt
from kernel_dsl.compiled import OobFill, ScratchMapParam, Swizzle, TensorMapParam
from kernel_dsl.errors_hopper import TmaRule
from kernel_dsl.extents import factor_of, is_fixed
from kernel_dsl.ir import Op, RefType, Value
from kernel_dsl.layout import LANE_BITS
from kernel_dsl.ops.copy import (
    CopyGmemToSmem,
    CopySmemToGmem,
    OOBFillMode,
    Prefetch,
)
from kernel_dsl.refs import View, strides_of
from kernel_dsl.storage import storage_of
from kernel_dsl.target import Feature
from kernel_dsl.tma import Start, Way, innermost_start, period

from ..context import Context, Rules
from ..value import Regs, V
from . import boxes
from .boxes import Cut, Refuse
from .copy_waits import commit_group
from .cp_async import copy_by_lanes, store_by_lanes
from .starts import Window, corner, gmem_address, smem_start
from .sync import barrier_address

# CUTLASS and the PTX ISA (createpolicy) agree on these encodings of fractional policies with fraction 1.0
_POLICIES = {
    "evict_first": 0x12F0000000000000,
    "evict_normal": 0x1000000000000000,
    "evict_last": 0x14F0000000000000,
}


Ways = tuple[Callable[[], None], Callable[[], None]]  # the code of a copy by TMA, and of one by the lanes


def _hint(ctx: Context, hint: str, place: int) -> tuple[str, str, Regs]:
    """(modifier, operand text, argument) of a cache policy."""
    if not hint:
        return "", "", []
    return ".L2::cache_hint", f", ${place}", [ctx.e.i64(_POLICIES[hint])]


def _elected(ctx: Context, predicate: Value | None, body: Callable[[], None], loaded: bool = False) -> None:
    """Run `body` in one lane of the warpgroup's first warp if the predicate holds: in the first lane, or the one that the
    warp elects.

    ptxas does not know that the first lane is alone, and issues a copy in a loop over lanes whose operands it takes to
    differ. It knows that of an elected lane. `loaded`: the copy waits for a number from memory. Such copies follow one
    another, each with a number of its own, and the loops would take longer than the copies.
    """
    given = None if predicate is None else ctx.scalar(predicate)
    if not loaded or ctx.warp_level:
        ctx.e.only_where(ctx.e.all(ctx.first_lane(), given), body)
        return

    def elect() -> None:
        (alone,) = ctx.e.ptx("elect.sync _|$0, -1;", results=["i1"])
        ctx.e.only_where(alone, body)

    warp = ctx.first_lanes(ctx.local_thread().once >> LANE_BITS)
    ctx.e.only_where(ctx.e.all(warp.once.equal(0), given), elect)


def _coordinates(ctx: Context, ref: Value, start: Regs, pieces: Cut, box: boxes.CopyBox) -> Regs:
    """A box's coordinates, innermost first. Scratch of each block has one more: the block."""
    made = [start[axis] + box.start[axis] for axis in reversed(pieces.order)]
    descriptor = ctx.descriptors.get(ref)
    if descriptor is not None and descriptor.shift is not None:
        made[-1] += descriptor.shift
    own = ctx.scratch.get(ref)
    return [*made, own.number] if own is not None and own.copies > 1 else made


def _map_of(
    ctx: Context, ref: Value, pieces: Cut, box: boxes.CopyBox, swizzle: Swizzle, fill: OobFill, window: Window
) -> TensorMapParam:
    """The descriptor's recipe for a box of a Ref.

    For scratch it includes the shape, whose outermost axis may be the blocks.
    """
    array: RefType = ref.type
    made = boxes.tensor_map(ctx.array_number(ref), array, pieces, box, swizzle, fill, window)
    own = ctx.scratch.get(ref)
    if own is None:
        return made
    sizes = tuple(zip(array.shape, strides_of(array.shape), strict=True))
    if own.copies == 1:
        return ScratchMapParam(**vars(made), sizes=sizes)
    window = {axis + 1: ends for axis, ends in window.items()}
    whole = replace(made, box=(1, *made.box), axes=(0, *(axis + 1 for axis in pieces.order)))
    whole = replace(whole, window=tuple((axis, *ends) for axis, ends in sorted(window.items())))
    return ScratchMapParam(**vars(whole), sizes=((own.copies, own.bytes // array.dtype.itemsize), *sizes))


# --- GMEM to SMEM --------------------------------------------------------------------------------


def _nothing(array: RefType, view: View) -> bool:
    """Whether a copy moves no elements of the array, so that it needs no descriptor."""
    ends = boxes.window_ends(array, view)
    nothing = any(is_fixed(high) and low >= high for low, high in ends.values())
    return nothing or 0 in view.shape or 0 in array.shape


def _either_way(ctx: Context, start: Start | None, view: View, offsets: Sequence[Value], ways: Ways) -> None:
    """Copy by a tensor copy, by the lanes, or by the one that a test at run time picks."""
    tensor, lanes = ways
    way = Way.TENSOR if start is None else start.way
    if way is not Way.TEST or start is None:
        (tensor if way is Way.TENSOR else lanes)()
        return
    e = ctx.e
    value = view.moving(offsets)[start.axis]
    good: V | None = None
    if not start.aligned:
        good = (ctx.index(value) + start.static & start.unit - 1).equal(0)
    if start.least is not None:
        good = e.both(good, ctx.index(value, "i64").ge(start.least - start.static))
    if start.most is not None:
        good = e.both(good, ctx.index(value, "i64").le(start.most - start.static))
    yes, no, end = e.label(), e.label(), e.label()
    e.branch(e.all(good), yes, no)
    for label, way_ in ((yes, tensor), (no, lanes)):
        e.begin(label)
        way_()
        e.jump(end)
    e.begin(end)


def lower_gmem_to_smem(ctx: Context, op: CopyGmemToSmem) -> None:
    if not ctx.target.supports(Feature.TMA) or op.barrier is None:
        copy_by_lanes(ctx, op)
        return
    fenced = ctx.seen_by_async(op.dst)
    if _nothing(op.src.type, op.src_view):
        copy_by_lanes(ctx, op, fenced)
        return
    ways = (lambda: _load(ctx, op)), (lambda: copy_by_lanes(ctx, op, fenced))
    _either_way(ctx, op.start, op.src_view, op.src_offsets, ways)


def _load(ctx: Context, op: CopyGmemToSmem) -> None:
    """Load by tensor copies or a bulk copy."""
    refuse = Refuse("copy_gmem_to_smem", op.loc)
    array, type = op.src.type, op.dst.type
    boxes.check_alignment(type, op.dst_view, op.dst_offsets, refuse)
    assert op.index is not None and op.barrier is not None
    barrier = barrier_address(ctx, op.barrier, op.index)
    total = prod(d.size for d in op.src_view.dims) * array.dtype.itemsize
    if op.meets:
        ctx.sync_warp()
    # every warp arrives, the first one with the bytes, so the phase can't end before all lanes have arrived
    predicate = ctx.e.all(ctx.warp_leader(), None if op.predicate is None else ctx.scalar(op.predicate))
    bytes_ = ctx.first_lane().once.where(total, 0, "i32")
    if ctx.warp_level:  # this warp arrives for all four
        ctx.e.ptx("{ .reg .b64 state; @$1 mbarrier.arrive.shared::cta.b64 state, [$0], 3; }", barrier, predicate)
    text = "{ .reg .b64 state; @$2 mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }"
    ctx.e.ptx(text, barrier, bytes_, predicate)
    if op.src not in ctx.descriptors and _bulk(op, not op.src_view.masked, refuse):
        _elected(ctx, op.predicate, lambda: _bulk_load(ctx, op, barrier, total))
        return
    part, pieces, window = _load_plan(ctx, op, refuse)

    def issue() -> None:
        start = corner(ctx, array, op.src_view, op.src_offsets, window, refuse)
        address = smem_start(ctx, op.dst, op.dst_view, op.dst_offsets)
        if part.mask is not None:
            start[part.axis] = start[part.axis].plus(part.array_offset)
            address = address.plus(part.smem_offset)
        for box in pieces.boxes:
            param = _map_of(ctx, op.src, pieces, box, type.swizzle, _fill(op), window)
            _tensor_load(
                ctx, op, param, _coordinates(ctx, op.src, start, pieces, box), address + box.smem, barrier, part
            )

    _elected(ctx, op.predicate, issue, ctx.just_loaded(op.src_offsets))


def _load_plan(ctx: Context, op: CopyGmemToSmem, refuse: Refuse) -> tuple[_Part, Cut, Window]:
    """This block's part of a load, its boxes, and the part of the array that the tensor covers."""
    array: RefType = op.src.type
    boxes.check_array(array, refuse)
    _check_launched(ctx, op.src, refuse)
    part = _part(ctx, op, boxes.pair_dims(op.src_view, op.dst_view, refuse), refuse)
    pieces = boxes.cut(array, op.dst.type, part.dims, refuse)
    # elements beyond a view are undefined too where those beyond the array are
    undefined = op.oob is OOBFillMode.UNDEFINED
    return part, pieces, {} if undefined else _window(ctx, op.src, op.src_view, pieces, refuse)


def _window(ctx: Context, ref: Value, view: View, pieces: Cut, refuse: Refuse) -> Window:
    """The part of the array that the tensor covers. Raises `TmaRule` for a slice of a descriptor with an end of its own."""
    window = boxes.window(ref.type, view, pieces.order[-1], refuse)
    if window and ref in ctx.descriptors:
        why = "its descriptor ends where `kd.make_tensor_descriptor` says, and nowhere before"
        raise refuse(
            "a slice of a slice that may end before", why, "give `kd.make_tensor_descriptor` the smaller shape"
        )
    return window


def _fill(op: CopyGmemToSmem) -> OobFill:
    return OobFill.NAN if op.oob is OOBFillMode.NANS else OobFill.ZEROS


def recipes(ctx: Context, op: Op, ref: Value) -> list[TensorMapParam]:
    """The descriptors that an op copies through, where it is a tensor copy of this Ref."""
    if isinstance(op, CopyGmemToSmem) and op.src is ref and not _nothing(ref.type, op.src_view):
        _, pieces, window = _load_plan(ctx, op, Refuse("copy_gmem_to_smem", op.loc))
        return [_map_of(ctx, ref, pieces, box, op.dst.type.swizzle, _fill(op), window) for box in pieces.boxes]
    if isinstance(op, CopySmemToGmem) and op.dst is ref and not _nothing(ref.type, op.dst_view):
        pieces, window = _store_plan(ctx, op, Refuse("copy_smem_to_gmem", op.loc))
        swizzle = op.src.type.swizzle
        maps = [_map_of(ctx, ref, pieces, box, swizzle, OobFill.ZEROS, window) for box in pieces.boxes]
        return [_as_reduced(op, param) for param in maps]
    if isinstance(op, Prefetch) and op.src is ref and 0 not in (*op.src_view.shape, *ref.type.shape):
        _, pieces = _prefetch_plan(ctx, op)
        return [_map_of(ctx, ref, pieces, pieces.boxes[0], Swizzle.NONE, OobFill.ZEROS, {})]
    return []


@dataclass
class _Part:
    """The part of a multicast copy that this block loads; all of it for other copies.

    `mask`: the blocks that get it.
    """

    dims: list[boxes.CopyDim]
    axis: int
    array_offset: V
    smem_offset: V
    mask: V | None = None


def _part(ctx: Context, op: CopyGmemToSmem, dims: list[boxes.CopyDim], refuse: Refuse) -> _Part:
    """Split a multicast copy along the outermost dimension that divides evenly among the blocks."""
    part = _Part(dims, 0, ctx.e.i32(0), ctx.e.i32(0))
    count = prod(ctx.ir.cluster[p].size for p in op.multicast)
    if count == 1:
        return part
    type: RefType = op.dst.type
    storage = storage_of(type)
    unit = max(period(type.swizzle), boxes.SMEM_UNIT)
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
        part.dims = [boxes.CopyDim(d.array, d.buffer, share) if i == number else x for i, x in enumerate(dims)]
        part.axis = d.array
        part.array_offset = rank.once.times(share)
        part.smem_offset = rank.once.times(share * stride * op.src.type.dtype.itemsize)
        part.mask = ctx.cluster_mask(op.multicast)
        return part
    why = f"each of the {count} blocks loads a part, and no dimension splits into {count} parts of whole tiles"
    raise refuse("a multicast copy that can't be shared out", why, "use a larger block or fewer blocks")


def _check_launched(ctx: Context, ref: Value, refuse: Refuse) -> None:
    """Raise `TmaRule` for a Ref that is no argument: a descriptor describes an array that the launch passes."""
    if not ctx.is_launched(ref):
        why = "the descriptor of a tensor copy is made from the array as it is launched"
        raise refuse("a Ref of another shape or dtype than its array", why, "give the launch an array of that shape")


def _tensor_load(
    ctx: Context, op: CopyGmemToSmem, param: TensorMapParam, coords: Regs, address: V, barrier: V, part: _Part
) -> None:
    rank = len(coords)
    names = ", ".join(f"${i + 3}" for i in range(rank))
    args = [address, ctx.tensor_map(param, op.src), barrier, *coords]
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    tail = ""
    if part.mask is not None:
        text += ".multicast::cluster"
        tail = f", ${len(args)}"
        args.append(part.mask)
    modifier, operand, extra = _hint(ctx, op.hint, len(args))
    ctx.e.ptx(f"{text}{modifier} [$0], [$1, {{{names}}}], [$2]{tail}{operand};", *args, *extra)


def _bulk(op: CopyGmemToSmem, in_bounds: bool, refuse: Refuse) -> bool:
    """Whether one bulk copy is enough: both sides are one run of bytes, all inside the array."""
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
    strides = boxes.strides_of([factor_of(n) for n in array.shape])
    dynamic = view.moving(offsets)
    for axis, static in enumerate(view.start):
        facts = dynamic[axis].facts if axis in dynamic else None
        moving = 0 if axis not in dynamic else (facts.divisor if facts is not None else 1)
        if static * strides[axis] * item % boxes.UNIT or moving * strides[axis] * item % boxes.UNIT:
            return False
    return True


def _bulk_load(ctx: Context, op: CopyGmemToSmem, barrier: V, total: int) -> None:
    source = gmem_address(ctx, op.src, op.src_view, op.src_offsets)
    target = smem_start(ctx, op.dst, op.dst_view, op.dst_offsets)
    modifier, operand, extra = _hint(ctx, op.hint, 4)
    text = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{modifier} [$0], [$1], $2, [$3]{operand};"
    ctx.e.ptx(text, target, source, ctx.e.i32(total), barrier, *extra)


# --- SMEM to GMEM --------------------------------------------------------------------------------


def lower_smem_to_gmem(ctx: Context, op: CopySmemToGmem) -> None:
    if _nothing(op.dst.type, op.dst_view):  # every element is dropped
        if op.commit:
            commit_group(ctx)
        return
    ways = (lambda: _store(ctx, op)), (lambda: store_by_lanes(ctx, op))
    _either_way(ctx, op.start, op.dst_view, op.dst_offsets, ways)


def _store(ctx: Context, op: CopySmemToGmem) -> None:
    """Store by tensor copies or a bulk copy."""
    refuse = Refuse("copy_smem_to_gmem", op.loc)
    array, type = op.dst.type, op.src.type
    boxes.check_alignment(type, op.src_view, op.src_offsets, refuse)
    bulk = (
        op.dst not in ctx.descriptors
        and not op.dst_view.masked
        and not op.reduction
        and boxes.contiguous_run(array, type, op.dst_view, op.src_view)
        and _aligned_run(array, op.dst_view, op.dst_offsets)
    )
    pieces, window = Cut((), (), 0), Window()
    if not bulk:
        pieces, window = _store_plan(ctx, op, refuse)

    def issue() -> None:
        source = smem_start(ctx, op.src, op.src_view, op.src_offsets)
        if bulk:
            _bulk_store(ctx, op, source)
        else:
            start = corner(ctx, array, op.dst_view, op.dst_offsets, window, refuse)
            for box in pieces.boxes:
                param = _map_of(ctx, op.dst, pieces, box, type.swizzle, OobFill.ZEROS, window)
                _tensor_store(ctx, op, param, _coordinates(ctx, op.dst, start, pieces, box), source + box.smem)
        if op.commit:
            ctx.e.ptx("cp.async.bulk.commit_group;")

    _elected(ctx, op.predicate, issue)


def _store_plan(ctx: Context, op: CopySmemToGmem, refuse: Refuse) -> tuple[Cut, Window]:
    """The boxes of a store, and the part of the array that the tensor covers."""
    array: RefType = op.dst.type
    boxes.check_array(array, refuse)
    _check_launched(ctx, op.dst, refuse)
    pieces = boxes.cut(array, op.src.type, boxes.pair_dims(op.dst_view, op.src_view, refuse), refuse)
    return pieces, _window(ctx, op.dst, op.dst_view, pieces, refuse)


def _as_reduced(op: CopySmemToGmem, param: TensorMapParam) -> TensorMapParam:
    """PTX ISA 9.7.9.27.3: sums are of .u64 only, and the bits are the same."""
    return replace(param, dtype=dt.uint64) if op.reduction == "add" and param.dtype == dt.int64 else param


def _tensor_store(ctx: Context, op: CopySmemToGmem, param: TensorMapParam, coords: Regs, address: V) -> None:
    param = _as_reduced(op, param)
    rank = len(coords)
    names = ", ".join(f"${i + 2}" for i in range(rank))
    modifier, operand, extra = _hint(ctx, op.hint, 2 + rank)
    word = "cp.reduce.async.bulk" if op.reduction else "cp.async.bulk"
    how = f".{op.reduction}" if op.reduction else ""
    text = f"{word}.tensor.{rank}d.global.shared::cta{how}.tile.bulk_group{modifier} [$1, {{{names}}}], [$0]{operand};"
    ctx.e.ptx(text, address, ctx.tensor_map(param, op.dst), *coords, *extra)


def _bulk_store(ctx: Context, op: CopySmemToGmem, source: V) -> None:
    target = gmem_address(ctx, op.dst, op.dst_view, op.dst_offsets)
    total = prod(d.size for d in op.dst_view.dims) * op.dst.type.dtype.itemsize
    modifier, operand, extra = _hint(ctx, op.hint, 3)
    text = f"cp.async.bulk.global.shared::cta.bulk_group{modifier} [$0], [$1], $2{operand};"
    ctx.e.ptx(text, target, source, ctx.e.i32(total), *extra)


# --- GMEM to L2 ----------------------------------------------------------------------------------


def _prefetch_plan(ctx: Context, op: Prefetch) -> tuple[dict[int, int], Cut]:
    """The extent to fetch along each axis, and the box that holds it."""
    refuse = Refuse("async_prefetch", op.loc)
    array: RefType = op.src.type
    boxes.check_array(array, refuse)
    _check_launched(ctx, op.src, refuse)
    rank = len(array.shape)
    if not 1 <= rank <= boxes.MAX_RANK:
        raise refuse(f"an array of rank {rank}", f"TMA takes 1 to {boxes.MAX_RANK} dimensions", "slice fewer axes")
    if any(d.step != 1 for d in op.src_view.dims):
        raise refuse("a strided slice", "TMA copies neighbours", "slice with stride 1")
    order = tuple(range(rank))
    sizes = {d.axis: d.size for d in op.src_view.dims}
    first = innermost_start(array, op.src_view, op.src_offsets, rank - 1)
    # rows are rounded to whole units of 16 bytes; fetching bytes beside the view is harmless
    row = sizes.get(rank - 1, 1) + (0 if first.aligned else first.unit - 1)
    sizes[rank - 1] = -(-row // first.unit) * first.unit
    extents = tuple(min(sizes.get(a, 1), boxes.MAX_BOX) for a in order)
    return sizes, Cut(order, (boxes.CopyBox(extents, tuple(0 for _ in order), 0),), 0)


def lower_prefetch(ctx: Context, op: Prefetch) -> None:
    refuse = Refuse("async_prefetch", op.loc)
    array: RefType = op.src.type
    if 0 in op.src_view.shape or 0 in array.shape:
        return
    sizes, pieces = _prefetch_plan(ctx, op)
    order, box = pieces.order, pieces.boxes[0]
    first = innermost_start(array, op.src_view, op.src_offsets, len(order) - 1)

    def issue() -> None:
        start = corner(ctx, array, op.src_view, op.src_offsets, {}, refuse)
        if not first.aligned:
            start[-1] = start[-1] & -first.unit
        param = _map_of(ctx, op.src, pieces, box, Swizzle.NONE, OobFill.ZEROS, {})
        for part in itertools.product(*(range(0, sizes.get(a, 1), n) for a, n in zip(order, box.extents, strict=True))):
            coords = _coordinates(ctx, op.src, start, pieces, boxes.CopyBox(box.extents, part, 0))
            names = ", ".join(f"${i + 1}" for i in range(len(coords)))
            text = f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global.tile [$0, {{{names}}}];"
            ctx.e.ptx(text, ctx.tensor_map(param, op.src), *coords)

    _elected(ctx, op.predicate, issue)


RULES: Rules = {
    CopyGmemToSmem: lower_gmem_to_smem,
    CopySmemToGmem: lower_smem_to_gmem,
    Prefetch: lower_prefetch,
}
