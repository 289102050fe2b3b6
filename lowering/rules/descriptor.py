"""Descriptors of TMA that the kernel makes: `tensormap.replace` in a copy of one that the launch passes.

PTX ISA 9.7.9.28 (tensormap.replace), 9.7.13.16 (tensormap.cp_fenceproxy), 9.7.13.4 (fence.proxy.tensormap).
"""

from __future__ import annotations

from kernel_dsl.ops.copy import CopySmemToGmem
from kernel_dsl.ops.descriptor import MAP_BYTES, MAPS, MakeTensorDescriptor
from kernel_dsl.tma import MARGIN, UNIT

from ..context import Context, Rules
from ..lowered import MadeDescriptor
from ..value import V
from . import copy
from .boxes import Refuse

_LANES = 8  # that copy a map, 16 bytes each


def lower_descriptor(ctx: Context, op: MakeTensorDescriptor) -> None:
    ctx.buffers[op.result] = ctx.buffers[op.ref]
    made = ctx.descriptors[op.result] = MadeDescriptor(op.ref)
    recipes = dict.fromkeys(p for use in ctx.ops for p in copy.recipes(ctx, use, op.result))
    if not recipes:
        return
    refuse = Refuse("make_tensor_descriptor", op.loc)
    if len(recipes) > MAPS:
        why = f"they have boxes of {len(recipes)} kinds, and a descriptor has room for {MAPS}"
        raise refuse("copies of too many kinds go through it", why, "copy blocks of one shape, or make two descriptors")
    for param in recipes:
        assert param.axes is not None
        _check_units(ctx, op, param.axes[-1], refuse)
    sizes = [ctx.index(size, "i64") for size in op.sizes]
    empty = _empty(op, sizes)
    if empty is not None:  # a tensor without elements gets one element, and `shift` moves all coordinates past it
        made.shift = empty.where(MARGIN, 0, "i32")
    base = ctx.buffers[op.ref].address
    for start, stride in zip(op.starts, ctx.buffers[op.ref].strides, strict=True):
        base += ctx.index(start, "i64").times(op.type.dtype.itemsize) * stride
    space = _space(ctx, op)
    for number, param in enumerate(recipes):
        assert param.axes is not None
        place = space + number * MAP_BYTES
        changes = [("global_address", "b64", base)]
        for dim, axis in enumerate(reversed(param.axes)):
            size = sizes[axis]
            if empty is not None:
                size = (empty if axis == param.axes[0] else size.equal(0)).where(1, size)
            changes.append((f"global_dim {dim}", "b32", size.trunc("i32")))
        _write(ctx, ctx.tensor_map(param), place, changes)
        made.places[param] = place


def _check_units(ctx: Context, op: MakeTensorDescriptor, axis: int, refuse: Refuse) -> None:
    """Raise `TmaRule` where a tensor could begin, or a store could end, between units of 16 bytes."""
    unit = max(UNIT // op.type.dtype.itemsize, 1)
    stored = any(isinstance(use, CopySmemToGmem) and use.dst is op.result for use in ctx.ops)
    for number, what in ((op.starts[axis], "start"), *([(op.sizes[axis], "extent")] if stored else [])):
        facts = number.facts
        divisor = 1 if facts is None else facts.divisor if facts.constant is None else facts.constant
        if divisor % unit:
            raise refuse(
                f"its {what} along axis {axis} of the array is not known to be a multiple of {unit} elements ({UNIT} bytes)",
                "a tensor begins, and stores to it end, at such a multiple",
                f"state it by `kd.multiple_of({what}, {unit})`",
            )


def _empty(op: MakeTensorDescriptor, sizes: list[V]) -> V | None:
    """Whether it has no elements; None where it is known to have some."""
    found: V | None = None
    for size, value in zip(sizes, op.sizes, strict=True):
        if value.facts is None or value.facts.lo <= 0:
            none = size.equal(0)
            found = none if found is None else found | none
    return found


def _space(ctx: Context, op: MakeTensorDescriptor) -> V:
    """The GMEM address of this descriptor's maps, i64. Each warpgroup has `slots` places, and uses them in turn."""
    e = ctx.e
    size = MAPS * MAP_BYTES
    space = ctx.buffers[op.space].address.plus(ctx.warpgroup().once.zext("i64").once.times(size * op.slots))
    if op.slots == 1:
        return space
    turn = e.variable("i32", "0")
    now = e.load("i32", turn)
    following = now + 1
    e.store(following.equal(op.slots).where(0, following), turn)
    return space + now.zext("i64").times(size)


def _write(ctx: Context, recipe: V, place: V, changes: list[tuple[str, str, V]]) -> None:
    """Copy a map to `place` with changes, and let tensor copies of this warpgroup see it."""
    e = ctx.e
    smem = ctx.exchange(MAP_BYTES)
    lane = ctx.local_thread()
    offset = (lane.once & _LANES - 1).once * 16
    copied = "{ .reg .b64 low, high; @$2 ld.v2.b64 {low, high}, [$0]; @$2 st.shared.v2.b64 [$1], {low, high}; }"
    e.ptx(copied, recipe + offset.once.zext("i64"), smem + offset, lane.once.below(_LANES))
    ctx.sync_warp()
    for field, kind, value in changes:
        name, *dim = field.split()
        to = "".join(f"{d}, " for d in dim)
        e.ptx(
            f"tensormap.replace.tile.{name}.shared::cta.b1024.{kind} [$0], {to}$1;", smem, value, when=ctx.first_lane()
        )
    ctx.sync_warp()
    released = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    e.ptx(f"{released} [$0], [$1], {MAP_BYTES};", place, smem, when=ctx.bit_field(5, 2).once.equal(0))
    ctx.sync()
    e.ptx(f"fence.proxy.tensormap::generic.acquire.gpu [$0], {MAP_BYTES};", place)


RULES: Rules = {MakeTensorDescriptor: lower_descriptor}
