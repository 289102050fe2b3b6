"""The matrix product by multiply-adds of lanes: exact float32, and integers that tensor cores don't take.

A block is one warpgroup with a tile of sums in registers. cp.async copies slices of K to SMEM, several stages ahead. In
SMEM, M lies along the rows of A and N along those of B, for every order in GMEM, because lanes read their parts of rows
as vectors. A lane of the large tile holds 8 x 16 sums: it loads 16 bytes six times for 128 multiply-adds, and no value
changes its layout.

Two such blocks share a multiprocessor: while one waits at its barrier, the other multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..blocks import TilePlace, own, steps_of, walk
from ..product_routes.any_rows import at_launch, declared, grid_for, open_sizes
from ..products.problem import Problem
from ..stage_product import following_slot
from .epilogue import Tile, finish_and_store, outputs

# Of a lane of a long tile: more than the assembler takes by itself, so that a row of K is loaded while the one before is
# multiplied. The addresses of copies one by one, of a long side that lies along K, take more: with 128, 160 and 184 some spilled.
REGISTERS, ALONG_K = 96, 255
PAD = 16  # bytes after each row in SMEM, so that transposed stores use different banks


@dataclass(frozen=True)
class LaneConfig:
    """A tile of sums, `tile_k` of K a stage. `group`: tiles of M in a band that shares L2."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 16
    stages: int = 3
    group: int = 8

    @property
    def layout(self) -> Any:
        """The layout of the sums."""
        regs, lanes, warps = _SPREAD[self.tile_m, self.tile_n]
        return kd.Layout(2, regs, lanes, warps)


_ALONG_ROWS = (((1, 4), (1, 8), (1, 16), (0, 4), (0, 8)), ((0, 16), (0, 32)))
# (registers, lanes, warps). A lane holds rows and columns by fours, so that it reads operands 16 bytes at a time
_SPREAD: dict[tuple[int, int], Any] = {
    (128, 128): (((0, 4, 1), (0, 2, 64), (1, 4, 1), (1, 4, 32)), *_ALONG_ROWS),
    (64, 64): (((0, 4, 1), (1, 4, 1), (1, 2, 32)), *_ALONG_ROWS),
    (32, 32): (((0, 2, 1), (1, 4, 1)), ((1, 4), (1, 8), (1, 16), (0, 2), (0, 4)), ((0, 8), (0, 16))),
    (8, 128): (((0, 8, 1),), ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16)), ((1, 32), (1, 64))),
    (128, 8): (((1, 8, 1),), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16)), ((0, 32), (0, 64))),
}
TILES = tuple(_SPREAD)


@cache
def lane_kernel(problem: Problem, config: LaneConfig) -> Any:
    """The kernel `(a, b, *operands of the steps) -> out`; a and b have the dtype of the sums.

    Each call gives the extents of the problem that are Dims.
    """
    p, t = problem, config
    wide = p.wide

    def body(a: Any, b: Any, *refs: Any, a_smem: Any, b_smem: Any, **tables: Any) -> None:
        if open_sizes(p) or 0 not in (*p.batch, p.M, p.N):
            here = at_launch(p, a, b)
            walk(here, t, refs, tables, lambda place, rest: _multiply(here, t, place, a, b, rest, a_smem, b_smem))

    pad = PAD // wide.itemsize
    leading = (p.parts,) if p.parts > 1 else ()
    made = kd.kernel(
        body,
        out_type=p.results(*leading, tiles=kd.cdiv(p.N, t.tile_n)),
        shapes=declared(p, grouped=p.groups is not None),
        scratch_types={
            "a_smem": kd.SMEM((t.stages, t.tile_k, t.tile_m + pad), wide),
            "b_smem": kd.SMEM((t.stages, t.tile_k, t.tile_n + pad), wide),
            **(p.groups.scratch if p.groups else {}),
        },
        grid=grid_for(p, t),
        compiler_params=kd.CompilerParams(max_registers=_registers(p, t)),
        name="matmul_general",
    )
    return identified(made, problem, config) if p.named else made


def _registers(p: Problem, t: LaneConfig) -> int | None:
    """The registers of a lane of a tile that is long and low, or high and narrow."""
    if 8 not in (t.tile_m, t.tile_n):
        return None
    along_k = p.b_transposed if t.tile_m == 8 else not p.a_transposed
    return ALONG_K if along_k else REGISTERS


def _copy(source: Any, target: Any, extent: Any, start: Any) -> None:
    """Start copying a slice of a stage. If it has rows of an `extent` from `start` on, slices of whole tiles have code of their
    own.

    There LLVM drops the masks, because it compares their rows with the same rest. Masks of a large tile take registers, and with
    few left the assembler gives many multiply-adds three operands of one bank.
    """
    width = target.shape[-1]

    def copy() -> None:
        kd.copy_gmem_to_smem(source, target)

    if extent is None or (isinstance(extent, int) and extent % width == 0):
        copy()
    else:
        kd.cond(extent - start >= width, copy, copy)


def _multiply(p: Problem, t: LaneConfig, place: TilePlace, a: Any, b: Any, refs: Any, a_smem: Any, b_smem: Any) -> None:
    """Compute and store the tile at `place`."""
    wide, layout = p.wide, t.layout
    row, column = (layout.reduce((axis,), keepdims=False) for axis in (1, 0))
    _, rest = p.scales_of(refs)  # this kernel takes no scales
    extra, out, peak = outputs(p, rest)
    part, batch = place.part, place.batch
    # sizes of the launch take registers that a large tile lacks; smaller ones took up to 1.1 of the time by the same means
    tight = t.tile_m * t.tile_n > 64 * 64 and p.groups is None and place.again is not None
    steps: Any = steps_of(p, t.tile_k)
    rows, columns = kd.ds(place.m, t.tile_m), kd.ds(place.n, t.tile_n)
    a, b = a.at[own(batch, p.a_batch)], b.at[own(batch, p.b_batch)]
    a, b = a if p.a_transposed else a.T, b.T if p.b_transposed else b  # K first

    def fetch(step: Any, slot: Any) -> None:
        k = kd.ds((part * steps + step) * t.tile_k, t.tile_k)
        _copy(a.at[k, rows], a_smem.at[slot, :, : t.tile_m], p.M if tight else None, place.m)
        _copy(b.at[k, columns], b_smem.at[slot, :, : t.tile_n], p.N if tight else None, place.n)

    zero = kd.layout_cast(kd.zeros((t.tile_m, t.tile_n), wide), layout)

    def loaded(slot: Any, k: int) -> tuple[Any, Any]:
        """Row k of both slices, spread as the sums are."""
        x = kd.load(a_smem.at[slot, k, : t.tile_m], layout=row)[:, None]
        return x, kd.load(b_smem.at[slot, k, : t.tile_n], layout=column)[None, :]

    def plus(acc: Any, x: Any, y: Any) -> Any:
        # a row times a column has an open layout; adding it to zeros, which is free, fixes the layout
        return kd.fma(x, y, acc) if wide.is_float else (zero + x) * y + acc

    def begin_loads() -> None:
        """Keep earlier loads in front of this: ptxas would put each five instructions before its use, where a lane waits."""
        kd.inline_ptx("bar.warp.sync 0xffffffff;")

    def product(start: Any) -> Any:
        """The next stage's first rows are loaded before the last ones of this stage are multiplied."""
        for step in range(t.stages):
            fetch(step, step)
        kd.wait_gmem_to_smem(2 * (t.stages - 1))

        # ptxas unrolls some ten steps, and spills
        @kd.loop(0, steps, unroll=False, init_carry=(start, 0, *loaded(0, 0)))
        def end(step: Any, carry: Any) -> Any:
            acc, slot, x, y = carry
            acc = kd.layout_cast(acc, layout)
            for k in range(1, t.tile_k):
                ahead = loaded(slot, k)
                begin_loads()
                acc, (x, y) = plus(acc, x, y), ahead
            kd.wait_gmem_to_smem(2 * (t.stages - 2))
            fetch(step + t.stages, slot)
            after = following_slot(slot, t.stages)
            ahead = loaded(after, 0)
            begin_loads()
            return plus(acc, x, y), after, *ahead

        return end[0]

    total = product(zero) if not isinstance(steps, int) or steps else zero
    if place.again is not None and (tight or p.groups):  # where a tile lies takes no registers beside the sums
        place = place.again()
        rows, columns = kd.ds(place.m, t.tile_m), kd.ds(place.n, t.tile_n)
    tile = Tile(rows, columns, (*p.batch, p.M, p.N), batch, peak=peak, end=place.end)
    unit = 32 if t.tile_n % 32 == 0 and t.tile_m > 8 else t.tile_n
    finish_and_store(total, p, extra, tile, out, place.leading(p), unit)
