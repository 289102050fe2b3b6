"""Index arrays and rearrangement of values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, Value, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.ops.shape import Concatenate, Iota, Pick, Squeeze, Transpose
from kernel_dsl.refs import View, strides_of

from ..context import Buffer, Context
from ..emit import Regs, literal, llvm_type
from .access import Place, emit_load, emit_store, inside


def lower_iota(ctx: Context, op: Iota) -> None:
    layout = layout_of(op.result)
    e = ctx.e
    lane = ctx.lane_coord(layout, op.dim)
    t = llvm_type(op.dtype)
    out: Regs = []
    made: dict[int, str] = {}
    for coord in layout.register_coords:
        share = coord[op.dim]
        if share not in made:
            index = e.pre(f"add i32 {lane}, {share}") if share else lane
            made[share] = _as_dtype(ctx, index, op.dtype, t)
        out.append(made[share])
    ctx.values[op.result] = out


def _as_dtype(ctx: Context, index: str, dtype: DType, t: str) -> str:
    e = ctx.e
    if dtype.is_float:
        if index.isdigit():
            return literal(int(index), dtype)
        if dtype.bits < 32:
            from kernel_dsl import dtypes as dt

            from .cast import convert

            return convert(ctx, e.v(f"sitofp i32 {index} to float"), dt.float32, dtype)
        return e.v(f"sitofp i32 {index} to {t}")
    if index.isdigit():
        return literal(int(index) & ((1 << dtype.bits) - 1), dtype)
    if dtype.bits == 32:
        return index
    return e.v(f"zext i32 {index} to i64" if dtype.bits == 64 else f"trunc i32 {index} to {t}")


def lower_same_registers(ctx: Context, op: Squeeze) -> None:
    ctx.values[op.result] = ctx.regs(op.x)


def lower_transpose(ctx: Context, op: Transpose) -> None:
    source = layout_of(op.x)
    names = ctx.regs(op.x)
    back = [op.permutation.index(d) for d in range(source.rank)]
    ctx.values[op.result] = [
        names[source.register_of[tuple(coord[b] for b in back)]] for coord in layout_of(op.result).register_coords
    ]


# --- through SMEM --------------------------------------------------------------------------------


def write_rows(ctx: Context, base: str, names: Regs, value: Value, strides: Sequence[int], offset: int = 0) -> None:
    """Every element of a value once, at `base + offset + sum of index * stride` (bytes) in SMEM."""
    layout = layout_of(value)
    dtype: DType = value.type.dtype
    shape: tuple[int, ...] = value.type.shape
    terms = [(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None]
    lane = ctx.lane_sum(terms)
    where = base if lane == "0" else ctx.e.v(f"add i32 {base}, {lane}")
    owner = ctx.owner(layout)
    for name, coord in zip(names, layout.register_coords, strict=True):
        predicate = owner
        for dim, size in enumerate(shape):
            predicate = ctx.e.both(predicate, inside(ctx, layout, dim, size, coord[dim]))
        if predicate != "false":
            constant = offset + sum(c * s for c, s in zip(coord, strides, strict=True))
            emit_store(ctx, "shared", (where, constant), dtype, [name], predicate)


def read_view(
    ctx: Context, base: str, dtype: DType, root: tuple[int, ...], view: View, offsets: Sequence[Value],
    layout: Layout, fill: Regs | None,
) -> Regs:
    """The elements of a view of what lies row-major at `base`."""
    type = RefType(MemorySpace.SMEM, root, dtype)
    place = Place(ctx, type, Buffer(base, strides_of(root)), view, layout, offsets)
    t = llvm_type(dtype)
    out: Regs = []
    for index, coord in enumerate(layout.register_coords):
        predicate = ctx.e.both(place.padding(coord), place.bounds(coord))
        other = fill[index] if fill is not None else literal(0, dtype)
        if predicate == "false":
            out.append(other)
            continue
        (name,) = emit_load(ctx, "shared", place.address(coord), dtype, 1, predicate, pure=False)
        if fill is not None and predicate is not None:
            name = ctx.e.v(f"select i1 {predicate}, {t} {name}, {t} {other}")
        out.append(name)
    return out


def lower_pick(ctx: Context, op: Pick) -> None:
    names = ctx.regs(op.x)
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.result)
    direct = _in_registers(op, layout_of(op.x), layout)
    if direct is not None:
        ctx.values[op.result] = [names[i] for i in direct]
        return
    base = ctx.exchange(prod(shape) * dtype.itemsize)
    write_rows(ctx, base, names, op.x, [s * dtype.itemsize for s in strides_of(shape)])
    ctx.sync()
    fill = ctx.regs(op.fill) if op.fill is not None else None
    ctx.values[op.result] = read_view(ctx, base, dtype, op.root, op.view, op.offsets, layout, fill)


def _in_registers(op: Pick, old: Layout, new: Layout) -> list[int] | None:
    """The source register of each result register, where all elements stay in their lanes."""
    if op.offsets or op.view.masked or op.root != op.x.type.shape or old.rank != new.rank:
        return None
    if any(d.axis != i or d.step != 1 for i, d in enumerate(op.view.dims)) or old.bits != new.bits:
        return None
    out: list[int] = []
    for coord in new.register_coords:
        found = old.register_of.get(tuple(c + s for c, s in zip(coord, op.view.start, strict=True)))
        if found is None:
            return None
        out.append(found)
    return out


def lower_concatenate(ctx: Context, op: Concatenate) -> None:
    shape: tuple[int, ...] = op.result.type.shape
    dtype: DType = op.result.type.dtype
    item = dtype.itemsize
    strides = [s * item for s in strides_of(shape)]
    base = ctx.exchange(prod(shape) * item)
    start = 0
    for part in op.parts:
        write_rows(ctx, base, ctx.regs(part), part, strides, start * strides[op.axis])
        start += part.type.shape[op.axis]
    ctx.sync()
    from kernel_dsl.refs import ViewDim

    view = View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))
    ctx.values[op.result] = read_view(ctx, base, dtype, shape, view, (), layout_of(op.result), None)


RULES = {
    Iota: lower_iota,
    Transpose: lower_transpose,
    Squeeze: lower_same_registers,
    Pick: lower_pick,
    Concatenate: lower_concatenate,
}
