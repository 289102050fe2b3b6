"""The matrix product by mma.sync: float64, and everything on GPUs without wgmma.

A block is one warpgroup with a tile of sums in registers. cp.async copies slices of K to SMEM, in three or more stages,
in the order of GMEM. ldmatrix loads their fragments one step of the instruction ahead of the products, across stages
too. Rows in SMEM are padded so that neither access has bank conflicts. If K has few slices, each has its own stage,
there is no loop, and whole lines are stored, because the store then takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..blocks import TilePlace, own, start_of, steps_of, walk
from ..first_sizes import is_open
from ..product_routes.any_rows import at_launch, declared, grid_for
from ..products.problem import Problem
from ..stage_product import following_slot
from .epilogue import Tile, finish_and_store, outputs
from .scaled_product import Scales, promoted


@dataclass(frozen=True)
class TileConfig:
    """A tile of sums, `tile_k` of K a stage. `group`: tiles of M in a band that shares L2."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 32
    stages: int = 4
    group: int = 8

    def smem(self, item: int, rows: int, along_k: bool) -> tuple[int, int, int]:
        """The shape of the stages of an operand with `rows` rows or columns."""
        if along_k:
            return (self.stages, rows, self.tile_k + _PAD[item] // item)
        return (self.stages, self.tile_k, rows + _PAD_ACROSS[item] // item)


# Bytes after each row, by bytes of an element. ldmatrix reads 8 rows of 16 bytes: 16 more bytes spread them over the
# banks. Other operands are read element by element: four of K for each of eight rows, of 8 bytes in two halves of four
# rows.
_PAD = {1: 16, 2: 16, 4: 16, 8: 32}
_PAD_ACROSS = {2: 16, 4: 32, 8: 32}
CARRIED = 64 * 64 * 8  # bytes of sums
DEPTH = {1: 32, 2: 16, 4: 8, 8: 16}  # of K in one step of products


def stores_sectors(p: Problem) -> bool:
    """Whether four lanes store whole sectors of 32 bytes; they hold eight neighbours of a row of sums."""
    return not is_open(p.N) and p.lanes == 0 and p.out_dtype.itemsize >= 4 and p.N * p.out_dtype.itemsize % 32 == 0


@cache
def tile_kernel(problem: Problem, config: TileConfig) -> Any:
    """The kernel `(a, b, *operands of the steps) -> out`; operands of 8 bits are contiguous along K.

    Each call gives the extents of the problem that are Dims.
    """
    p, t = problem, config

    def body(a: Any, b: Any, *refs: Any, a_smem: Any, b_smem: Any, **tables: Any) -> None:
        here = at_launch(p, a, b)
        walk(here, t, refs, tables, lambda place, rest: _multiply(here, t, place, a, b, rest, a_smem, b_smem))

    leading = (p.parts,) if p.parts > 1 else ()
    made = kd.kernel(
        body,
        out_type=p.results(*leading, tiles=kd.cdiv(p.N, t.tile_n)),
        shapes=declared(p, grouped=p.groups is not None),
        scratch_types={
            "a_smem": kd.SMEM(t.smem(p.dtype.itemsize, t.tile_m, not p.a_transposed), p.dtype),
            "b_smem": kd.SMEM(t.smem(p.b_dtype.itemsize, t.tile_n, p.b_transposed), p.b_dtype),
            **(p.groups.scratch if p.groups else {}),
        },
        grid=grid_for(p, t),
        # otherwise ptxas spills a register or two to fit another block on a multiprocessor
        compiler_params=kd.CompilerParams(max_registers=255 if p.thrice or p.promoted or p.busy or p.lanes else None),
        name="matmul_general",
    )
    return identified(made, problem, config) if p.named else made


def _multiply(p: Problem, t: TileConfig, place: TilePlace, a: Any, b: Any, refs: Any, a_smem: Any, b_smem: Any) -> None:
    """Compute and store the tile at `place`."""
    scales, rest = p.scales_of(refs)
    extra, out, peak = outputs(p, rest)
    batch = place.batch
    rows, columns = kd.ds(place.m, t.tile_m), kd.ds(place.n, t.tile_n)
    sides = a.at[own(batch, p.a_batch)], b.at[own(batch, p.b_batch)]
    stages = (
        a_smem.at[:, :, : t.tile_m] if p.a_transposed else a_smem.at[:, :, : t.tile_k],
        b_smem.at[:, :, : t.tile_k] if p.b_transposed else b_smem.at[:, :, : t.tile_n],
    )
    scaled = Scales(p, scales[0], scales[1], place.m, place.n, t.tile_m, batch)
    sums = _TileSums(p, t, place.part, steps_of(p, t.tile_k), sides, (rows, columns), stages, scaled)
    few = isinstance(sums.steps, int) and sums.steps <= t.stages
    for step in range(sums.steps if few else t.stages):
        sums.fetch(step, step)
    total = (sums.in_place if few else sums.in_turn)(kd.zeros((t.tile_m, t.tile_n), p.wide))
    tile = Tile(rows, columns, (*p.batch, p.M, p.N), batch, peak=peak, end=place.end)
    unit = 16 if t.tile_m >= 32 else t.tile_n  # columns of two warps side by side, or of four
    finish_and_store(total, p, extra, tile, out, place.leading(p), unit, few and not stores_sectors(p))


@dataclass(frozen=True)
class _TileSums:
    """The sums of a tile over `steps` of part `part` of K: of both `sides` at the slices `across`, by way of `stages` in SMEM."""

    p: Problem
    t: TileConfig
    part: Any
    steps: Any
    sides: tuple[Any, Any]
    across: tuple[Any, Any]
    stages: tuple[Any, Any]
    scales: Scales

    def fetch(self, step: Any, slot: Any) -> None:
        """Start the copies of a step to a stage."""
        p, t = self.p, self.t
        k_firsts = p.a_transposed, not p.b_transposed
        both = zip(self.sides, self.stages, self.across, k_firsts, strict=True)
        for side, (operand, smem, across, k_first) in enumerate(both):
            k = kd.ds(start_of(p, self.part * self.steps + step, t.tile_k, side), t.tile_k)
            kd.copy_gmem_to_smem(operand.at[(k, across) if k_first else (across, k)], smem.at[slot])

    def in_place(self, total: Any) -> Any:
        """The sums if each step has its own stage."""
        for step in range(self.steps):
            kd.wait_gmem_to_smem(2 * (self.steps - 1 - step))

            def multiply(acc: Any, step: int = step) -> Any:
                return kd.mma(*self._all_but_last(acc, step, *self._fragments(step, 0)))

            total = self._added(total, step, multiply)
        return total

    def in_turn(self, total: Any) -> Any:
        """The sums if stages are filled again. The next stage's first fragments are loaded before this stage's last
        products.
        """
        p, t = self.p, self.t
        kd.wait_gmem_to_smem(2 * (t.stages - 1))
        # fragments of 8 bits, which ldmatrix does not load, would spill, and so would fragments beside 128 registers of sums
        carried = p.dtype.itemsize > 1 and t.tile_m * t.tile_n * p.wide.itemsize <= CARRIED

        # ptxas unrolls some ten steps, and spills
        @kd.loop(0, self.steps, unroll=False, init_carry=(total, 0, *(self._fragments(0, 0) if carried else ())))
        def end(step: Any, carry: Any) -> Any:
            total, slot, *first = carry
            after, ahead = following_slot(slot, t.stages), list[Any]()

            def multiply(acc: Any) -> Any:
                acc, x, y = self._all_but_last(acc, slot, *(first or self._fragments(slot, 0)))
                acc = acc if carried else kd.mma(acc, x, y)
                kd.wait_gmem_to_smem(2 * (t.stages - 2))
                self.fetch(step + t.stages, slot)
                if not carried:
                    return acc
                ahead[:] = self._fragments(after, 0)
                return kd.mma(acc, x, y)

            return self._added(total, step, multiply), after, *ahead

        return end[0]

    def _fragments(self, slot: Any, number: int) -> tuple[Any, Any]:
        """Both sides of a stage's products `number`."""
        p, (a_smem, b_smem), depth = self.p, self.stages, DEPTH[self.p.dtype.itemsize]
        k = slice(number * depth, (number + 1) * depth)
        x = a_smem.at[slot, k].T if p.a_transposed else a_smem.at[slot, :, k]
        y = b_smem.at[slot, :, k].T if p.b_transposed else b_smem.at[slot, k]
        return x[...], y[...]

    def _all_but_last(self, acc: Any, slot: Any, x: Any, y: Any) -> Any:
        """The products of a stage, except those of the last fragments, which are only loaded."""
        for number in range(1, self.t.tile_k // DEPTH[self.p.dtype.itemsize]):
            ahead = self._fragments(slot, number)
            acc, (x, y) = kd.mma(acc, x, y), ahead
        return acc, x, y

    def _added(self, total: Any, step: Any, multiply: Callable[[Any], Any]) -> Any:
        """The sums plus those of a step, `multiply(sums)`."""
        p, t = self.p, self.t
        # load the factors before the products
        row = self.scales.row(self.part * self.steps + step, None)
        column = self.scales.column(self.part * self.steps + step, 0, t.tile_n, None)
        if not (p.scaled or p.thrice):  # a step has no sums of its own
            return multiply(total)
        return promoted(total, multiply(kd.zeros((t.tile_m, t.tile_n), p.accumulator)), row, column)
