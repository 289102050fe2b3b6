"""Packs an operand into a workspace: contiguous rows at multiples of whole sectors or lines, in the dtype of the product.

The fast kernels need this for odd strides and addresses, and for operands of 8 or 32 bits that are not contiguous along K,
and for dtypes that are widened first. TMA also is slow where rows begin within a sector. The time of a packing is that of
reading the operand once and writing it once.

A lane holds 16 bytes of each of a few rows of the result. If the source is contiguous along these rows, too, a warp copies up
to 512 neighbouring bytes at once, because a part of a row that begins within a sector costs one sector more. Otherwise eight
lanes write 128 neighbouring bytes and four read 32 of the source. So reads and writes move whole sectors, and lanes transpose
elements in their registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..blocks import spread
from ..first_sizes import is_open
from .scaled_product import DEPTH

VECTOR, SECTOR, LINE = 16, 32, 128  # bytes
LONG = 1024  # bytes of a row: so many are a multiple of a line
HELD, HELD_ONE_BY_ONE = 128, 64  # bytes of the result that a lane holds: fewer if elements are loaded one by one
LANE_BITS = 5
SPLIT = 32  # elements: each part of a split operand is a multiple of it
TF32_BITS = 13  # bits of a float32's mantissa that tf32 lacks


@dataclass(frozen=True)
class Packing:
    """An operand (*batch, rows, columns) whose columns become neighbours; `turned`: the argument is (*batch, columns,
    rows).

    `split`: the result holds each number as a sum of two of tf32's precision: first all high parts of a row, then all
    low parts. `aligned`: the operand is contiguous, and its rows are multiples of a vector. `scaled`: numbers are
    multiplied by float32 scales, one for each 128 of K, which is the axis of columns, or of rows if `across`. Their form is
    "rows" (outer axis, blocks of K), "columns" (blocks of K, outer axis) or "blocks" (blocks of K, blocks of 128 of the outer
    axis). `scaled_batch`: for each leading axis of the scales, whether it follows the operand's.
    """

    rows: int
    columns: int
    dtype: Any
    to: Any
    batch: tuple[int, ...] = ()
    turned: bool = False
    split: bool = False
    aligned: bool = True
    scaled: str = ""
    scaled_batch: tuple[bool, ...] = ()
    across: bool = False

    @property
    def width(self) -> int:
        """The number of columns of one part of the result: the operand's columns, then zeros."""
        if is_open(self.columns):
            return self.columns  # a Dim is a multiple of whole vectors
        if self.split:
            return -(-self.columns // SPLIT) * SPLIT
        item = self.to.itemsize
        unit = (LINE if self.columns * item >= LONG else SECTOR) // item
        return -(-self.columns // unit) * unit

    @property
    def out(self) -> Any:
        """The result's shape and dtype."""
        return kd.ShapeDtypeStruct((*self.batch, self.rows, 2 * self.width if self.split else self.width), self.to)

    @property
    def open(self) -> bool:
        """Whether extents are Dims, whose values each call gives."""
        return is_open(*self.batch, self.rows, self.columns)

    @property
    def source(self) -> tuple[Any, ...]:
        """The declared shape of the operand."""
        return (*self.batch, *((self.columns, self.rows) if self.turned else (self.rows, self.columns)))

    @property
    def scales(self) -> tuple[Any, ...]:
        """The declared shape of the scales."""
        mine = self.batch[len(self.batch) - len(self.scaled_batch) :]
        leading = tuple(n if follows else 1 for n, follows in zip(mine, self.scaled_batch, strict=True))
        outer = self.columns if self.across else self.rows
        if self.scaled == "blocks" or not is_open(outer):
            return (*leading, None, None)
        return (*leading, outer, None) if self.scaled == "rows" else (*leading, None, outer)

    def of(self, source: Any) -> Packing:
        """The packing with the extents of the launch."""
        if not self.open:
            return self
        rows, columns = source.shape[-2:] if not self.turned else (source.shape[-1], source.shape[-2])
        sizes = {"columns": columns} if is_open(self.columns) else {"rows": rows}
        return replace(self, batch=tuple(source.shape[:-2]), **sizes)

    @property
    def layout(self) -> Any:
        """The layout of a tile of the result. A tile with scales lies in one block of 128, and one of a split operand in one
        part.
        """
        vector = VECTOR // self.to.itemsize
        held = (HELD if self.aligned else HELD_ONE_BY_ONE) // VECTOR
        if not (self.turned or self.split or self.scaled):
            bits = LANE_BITS if is_open(self.columns) else min(LANE_BITS, (self.width // vector - 1).bit_length())
            lanes = [(1, vector << i) for i in range(bits)] + [(0, 1 << i) for i in range(LANE_BITS - bits)]
            down = 1 << LANE_BITS - bits  # rows of a warp
            return kd.Layout(2, ((1, vector, 1), (0, held, 4 * down)), tuple(lanes), ((0, down), (0, 2 * down)))
        run = min(max(SECTOR // 4 // self.dtype.itemsize, 1), held) if self.turned else 1
        regs = ((1, vector, 1), (0, run, 1), (0, held // run, 16 * run))
        lanes = ((1, vector), (1, 2 * vector), (1, 4 * vector), (0, run), (0, 2 * run))
        return kd.Layout(2, regs, lanes, ((0, 4 * run), (0, 8 * run)))

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tiles along each axis."""
        rows, columns = self.layout.padded
        return (*self.batch, kd.cdiv(self.rows, rows), kd.cdiv(self.width, columns))


@cache
def pack_kernel(packings: tuple[Packing, ...], early: bool = False) -> Any:
    """The kernel `(*operands, *scales of those that are scaled) -> results`, one for each; a tuple where there are several.

    `early`: the next kernel starts while this one ends.
    """

    def body(*refs: Any) -> None:
        if early:
            kd.griddepcontrol_launch_dependents()
        block, first = kd.program_id(0), 0
        sources, scales, outs = refs[: len(packings)], iter(refs[len(packings) :]), refs[-len(packings) :]
        for packing, source, out in zip(packings, sources, outs, strict=True):
            p = packing.of(source)
            count, factors = prod(p.tiles), next(scales) if p.scaled else None

            @kd.when((block >= first) & (block < first + count))
            def _(
                p: Packing = p, source: Any = source, factors: Any = factors, out: Any = out, first: Any = first
            ) -> None:
                _pack(p, source, factors, out, block - first)

            first += count

    declared = {i: p.source for i, p in enumerate(packings) if p.open}
    scaled = [p for p in packings if p.scaled]
    declared |= {i: p.scales for i, p in enumerate(scaled, len(packings)) if p.open}
    made = kd.kernel(
        body,
        out_type=packings[0].out if len(packings) == 1 else tuple(p.out for p in packings),
        shapes=declared or None,
        grid=(sum(prod(p.tiles) for p in packings),),
        name="matmul_pack",
    )
    return identified(made, packings, early)


def _pack(p: Packing, source: Any, factors: Any, out: Any, number: Any) -> None:
    *batch, row, column = spread(number, p.tiles)
    layout = p.layout
    height, width = layout.padded
    rows, columns = kd.ds(row * height, height), kd.ds(column * width, width)
    part = source.at[(*batch, columns, rows)].T if p.turned else source.at[(*batch, rows, columns)]
    x = kd.load(part, layout=layout)
    if p.scaled:
        x = x.astype(kd.float32) * _factor(p, factors, batch, rows, columns)
    x = x.astype(p.to)
    if not p.split:
        out[(*batch, rows, columns)] = x
        return
    high = rounded(x)
    # an infinite or NaN high part has the low part 0
    low = kd.where(kd.isfinite(high), rounded(x - high), 0.0)
    out[(*batch, rows, columns)] = high
    out[(*batch, rows, kd.ds(column * width + p.width, width))] = low


def _factor(p: Packing, factors: Any, batch: Sequence[Any], rows: Any, columns: Any) -> Any:
    """The scales of a tile, in a shape that broadcasts to it. A tile lies in one block of 128 along both axes."""
    mine = batch[len(batch) - len(p.scaled_batch) :]
    at = tuple(index if follows else 0 for index, follows in zip(mine, p.scaled_batch, strict=True))
    outer, depth = (columns, rows) if p.across else (rows, columns)
    block = kd.div(depth.start, DEPTH)
    if p.scaled == "blocks":
        return factors[(*at, block, kd.div(outer.start, DEPTH))]
    found = factors[(*at, outer, block) if p.scaled == "rows" else (*at, block, outer)]
    return found[None, :] if p.across else found[:, None]


def rounded(x: Any) -> Any:
    """float32 to the nearest number of tf32's precision; ties to even."""
    bits = kd.bitcast_convert_type(x, kd.uint32)
    even = (bits >> TF32_BITS) & 1
    bits = (bits + even + ((1 << TF32_BITS - 1) - 1)) >> TF32_BITS << TF32_BITS
    return kd.where(kd.isfinite(x), kd.bitcast_convert_type(bits, kd.float32), x)
