"""The starts of copies: coordinates in tensors, addresses in SMEM and GMEM."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.ir import RefType, Value
from kernel_dsl.refs import View
from kernel_dsl.storage import storage_of
from kernel_dsl.tma import COORDINATE_END, MARGIN

from ..context import Context
from ..value import V
from .boxes import Refuse, far_start

MAX_INT64 = 2**63 - 1
Window = dict[int, tuple[int, int]]  # the part of the array that a tensor covers, (low, high) by axis


def starts(ctx: Context, view: View, offsets: Sequence[Value]) -> list[V]:
    """The start of a view along each axis of its root, i32."""
    dynamic = view.moving(offsets)
    return [
        ctx.index(dynamic[axis]) + static if axis in dynamic else ctx.e.i32(static)
        for axis, static in enumerate(view.start)
    ]


def corner(
    ctx: Context, array: RefType, view: View, offsets: Sequence[Value], window: Window, refuse: Refuse
) -> list[V]:
    """The start of a view along each axis of the tensor that covers `window` of an array, i32."""
    dynamic = view.moving(offsets)
    out: list[V] = []
    for axis, static in enumerate(view.start):
        part = window.get(axis, (0, array.shape[axis]))
        value = dynamic.get(axis)
        if value is None:
            out.append(ctx.e.i32(static - part[0]))
            continue
        facts = value.facts
        bounds = (-MAX_INT64, MAX_INT64) if facts is None else (facts.lo + static, facts.hi + static)
        narrow = value.type.dtype.bits <= 32 and not static and not part[0]
        if narrow or not far_start(array, axis, part, bounds, refuse):
            out.append(ctx.index(value) + (static - part[0]))
        else:  # a start outside the tensor stays outside
            near = COORDINATE_END - MARGIN
            out.append(ctx.index(value, "i64").plus(static - part[0]).clamp(-near, near).trunc("i32"))
    return out


def smem_start(ctx: Context, ref: Value, view: View, offsets: Sequence[Value]) -> V:
    """The SMEM address of a view's start; rows and panels only (see `boxes.check_alignment`)."""
    type: RefType = ref.type
    storage, item = storage_of(type), type.dtype.itemsize
    address, constant = ctx.buffers[ref].address, 0
    for axis, start in enumerate(starts(ctx, view, offsets)):
        step = storage.strides[axis] * item
        if axis == len(view.start) - 1 and storage.paneled:
            step = storage.panel_stride * item
            start = start // storage.panel
        if start.constant is not None:
            constant += start.constant * step
        else:
            address += start.times(step)
    return address + constant


def gmem_address(ctx: Context, ref: Value, view: View, offsets: Sequence[Value]) -> V:
    """The GMEM address of the start of a view of a contiguous array, i64."""
    type: RefType = ref.type
    address = ctx.buffers[ref].address
    dynamic = view.moving(offsets)
    for axis, stride in enumerate(ctx.buffers[ref].strides):
        if not isinstance(stride, int):
            start = (
                ctx.index(dynamic[axis], "i64") + view.start[axis] if axis in dynamic else ctx.e.i64(view.start[axis])
            )
            if start != "0":
                address += start.times(type.dtype.itemsize) * stride
            continue
        step = stride * type.dtype.itemsize
        address += view.start[axis] * step
        if axis in dynamic:
            address += ctx.index(dynamic[axis], "i64").times(step)
    return address
