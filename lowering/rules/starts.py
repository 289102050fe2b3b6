"""Where copies start: coordinates in tensors, addresses in SMEM and GMEM."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.ir import RefType, Value
from kernel_dsl.refs import View, strides_of
from kernel_dsl.tma import COORDINATE_END
from kernel_dsl.transforms import storage_of

from ..context import Context
from .access import index64
from .boxes import MARGIN, Refuse, far_start

MAX_INT64 = 2**63 - 1
Window = dict[int, tuple[int, int]]  # what of the array a tensor is, (low, high) by axis


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
    dynamic = view.moving(offsets)
    return [
        plus(ctx, index32(ctx, dynamic[axis]), static) if axis in dynamic else str(static)
        for axis, static in enumerate(view.start)
    ]


def corner(
    ctx: Context, array: RefType, view: View, offsets: Sequence[Value], window: Window, refuse: Refuse
) -> list[str]:
    """Where a view starts along each axis of the tensor that `window` makes of an array, i32."""
    e, dynamic = ctx.e, view.moving(offsets)
    out: list[str] = []
    for axis, static in enumerate(view.start):
        part = window.get(axis, (0, array.shape[axis]))
        value = dynamic.get(axis)
        if value is None:
            out.append(str(static - part[0]))
            continue
        facts = value.facts
        bounds = (-MAX_INT64, MAX_INT64) if facts is None else (facts.lo + static, facts.hi + static)
        if value.type.dtype.bits <= 32 and not static and not part[0]:
            out.append(index32(ctx, value))
        elif not far_start(array, axis, part, bounds, refuse):
            out.append(plus(ctx, index32(ctx, value), static - part[0]))
        else:  # what lies out of sight stays so
            wide = e.v(f"add i64 {index64(ctx, value)}, {static - part[0]}")
            near = COORDINATE_END - MARGIN
            wide = e.v(f"call i64 @llvm.smax.i64(i64 {wide}, i64 {-near})")
            wide = e.v(f"call i64 @llvm.smin.i64(i64 {wide}, i64 {near})")
            out.append(e.v(f"trunc i64 {wide} to i32"))
    return out


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


def gmem_address(ctx: Context, ref: Value, view: View, offsets: Sequence[Value]) -> str:
    """The GMEM address where a view of a contiguous array starts, i64."""
    e = ctx.e
    type: RefType = ref.type
    address = ctx.buffers[ref].address
    dynamic = view.moving(offsets)
    for axis, stride in enumerate(strides_of(type.shape)):
        step = stride * type.dtype.itemsize
        if view.start[axis]:
            address = e.v(f"add i64 {address}, {view.start[axis] * step}")
        if axis in dynamic:
            address = e.v(f"add i64 {address}, {e.v(f'mul i64 {index64(ctx, dynamic[axis])}, {step}')}")
    return address
