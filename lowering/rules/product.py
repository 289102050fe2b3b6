"""mma.sync: fragments packed into 32-bit registers, tile by tile (PTX ISA 9.7.14.5)."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import Value, layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.ops.product import Mma
from kernel_dsl.target import Feature

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..value import Regs, V
from .access import inside, pack
from .matrix import PTX_TYPES
from .reduce import choose


def _clean(ctx: Context, value: Value, k_dim: int) -> Regs:
    """The registers, with zeros beyond the end of K, so that padding adds nothing."""
    layout = layout_of(value)
    dtype: DType = value.type.dtype
    depth: int = value.type.shape[k_dim]
    zero = ctx.e.literal(0, dtype)
    return [
        choose(inside(ctx, layout, k_dim, depth, coord[k_dim]), name, zero)
        for name, coord in zip(ctx.regs(value), layout.register_coords, strict=True)
    ]


def _tiles(layout: Layout, dim: int, unit: int) -> list[int]:
    """Register shares, along a dimension, of the tiles' first elements."""
    shares = sorted({coord[dim] for coord in layout.register_coords})
    return [s for s in shares if s % unit == 0]


def _lower_f64(ctx: Context, op: Mma) -> None:
    """m16n8k16 if the target has it, and m8n8k4, for 8 of 16 rows each, for the rest of K or all of it."""
    a_layout, b_layout, d_layout = layout_of(op.a), layout_of(op.b), layout_of(op.acc)
    a, b = _clean(ctx, op.a, 1), _clean(ctx, op.b, 0)
    total = list(ctx.regs(op.acc))
    quads = _tiles(a_layout, 1, 4)
    while quads:
        deep = len(quads) >= 4 and ctx.target.supports(Feature.MMA_F64_16)
        height, count = (16, 4) if deep else (8, 1)
        depths, quads = quads[:count], quads[count:]
        for m in _tiles(d_layout, 0, height):
            rows = range(m, m + height, 8)
            left = [a[a_layout.register_of[r, k]] for k in depths for r in rows]
            for n in _tiles(d_layout, 1, 8):
                right = [b[b_layout.register_of[k, n]] for k in depths]
                places = [d_layout.register_of[r, n + i] for r in rows for i in range(2)]
                got = _mma_f64(ctx, f"m{height}n8k{4 * count}", left, right, [total[p] for p in places])
                for place, name in zip(places, got, strict=True):
                    total[place] = name
    ctx.values[op.result] = total


def _mma_f64(ctx: Context, shape: str, left: Regs, right: Regs, total: Regs) -> Regs:
    """One instruction (PTX ISA 9.7.14.5.2 and 9.7.14.5.13)."""
    groups: list[str] = []
    place = 0
    for part in (total, left, right, total):
        groups.append("{" + ", ".join(f"${place + i}" for i in range(len(part))) + "}")
        place += len(part)
    text = f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {', '.join(groups)};"
    return ctx.e.ptx(text, *left, *right, *total, results=["double"] * len(total), memory=False)


def lower_mma(ctx: Context, op: Mma) -> None:
    if op.a.type.dtype.itemsize == 8:
        _lower_f64(ctx, op)
        return
    a_layout, b_layout, d_layout = layout_of(op.a), layout_of(op.b), layout_of(op.acc)
    a_dtype: DType = op.a.type.dtype
    b_dtype: DType = op.b.type.dtype
    d_dtype: DType = op.acc.type.dtype
    side = 4 // a_dtype.itemsize
    step = 8 * side
    a, b = _clean(ctx, op.a, 1), _clean(ctx, op.b, 0)
    total = list(ctx.regs(op.acc))
    t = llvm_type(d_dtype)

    kinds = f"{'f32' if t == 'float' else 's32'}.{PTX_TYPES[a_dtype.name]}.{PTX_TYPES[b_dtype.name]}"
    shape = f"m16n8k{step}"
    text = (
        f"mma.sync.aligned.{shape}.row.col.{kinds}.{kinds.split('.')[0]} "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )

    def word(names: Regs, layout: Layout, coords: list[tuple[int, int]], dtype: DType) -> V:
        return pack(ctx, [names[layout.register_of[c]] for c in coords], dtype, 4)

    rows, columns, depths = _tiles(d_layout, 0, 16), _tiles(d_layout, 1, 8), _tiles(a_layout, 1, step)
    left: dict[tuple[int, int], Regs] = {}
    right: dict[tuple[int, int], Regs] = {}
    for k in depths:
        for m in rows:
            left[m, k] = [
                word(a, a_layout, [(m + r, k + h * step // 2 + i) for i in range(side)], a_dtype)
                for h in range(2)
                for r in (0, 8)
            ]
        for n in columns:
            right[n, k] = [
                word(b, b_layout, [(k + h * step // 2 + i, n) for i in range(side)], b_dtype) for h in range(2)
            ]
        for m in rows:
            for n in columns:
                places = [d_layout.register_of[m + r, n + i] for r in (0, 8) for i in range(2)]
                args = (*left[m, k], *right[n, k], *(total[p] for p in places))
                got = ctx.e.ptx(text, *args, results=[t] * 4, memory=False)
                for p, name in zip(places, got, strict=True):
                    total[p] = name
    ctx.values[op.result] = total


RULES: Rules = {Mma: lower_mma}
