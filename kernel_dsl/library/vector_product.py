"""The product of a matrix and a vector, in one launch, for operands that TMA can't read, or that are small.

The kernels of tiles need copies of such a matrix, which take longer than the product. Here lanes load numbers where they lie,
neighbouring lanes neighbouring numbers, and multiply and add them in the dtype of the sums. A block has one warpgroup and a few
rows of the matrix; several blocks share a multiprocessor, so that many loads are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .any_rows import at_launch, declared
from .blocks import TilePlace, own, steps_of, tiles_of, walk
from .epilogue import Tile, finish_and_store, outputs
from .problem import Problem

LANES, WARP, WARPS = 128, 32, 4
HELD = 32  # the numbers of a step that a lane holds


@dataclass(frozen=True)
class VectorConfig:
    """`tile_m` rows of a, or `tile_n` columns of b, the other one is 1; `tile_k` of K in a step.

    `along_k`: neighbours in the matrix lie along K. `vector`: numbers that a lane loads at once. `of_a`: a is the matrix.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    along_k: bool
    vector: int
    of_a: bool
    group: int = 8
    stages: int = 1

    @property
    def rows(self) -> int:
        """The number of rows of the matrix: outer extents, whichever operand it is."""
        return max(self.tile_m, self.tile_n)

    @property
    def layout(self) -> Any:
        """The layout of a step's numbers, (rows, tile_k)."""
        near, far = (1, 0) if self.along_k else (0, 1)
        v = self.vector
        lanes = tuple((near, v << i) for i in range(5))
        if self.along_k:
            regs = ((1, v, 1), (0, self.rows, 1), (1, self.tile_k // (LANES * v), LANES * v))
            warps = ((1, WARP * v), (1, 2 * WARP * v))
        else:
            regs = ((0, v, 1), (1, self.tile_k // WARPS, 1))
            warps = ((far, self.tile_k // WARPS), (far, self.tile_k // 2))
        return kd.Layout(2, tuple(reg for reg in regs if reg[1] > 1), lanes, warps)


def vector_options(p: Problem, along_k: bool, vector: int) -> list[VectorConfig]:
    """The possible sizes of a product with a vector on one side. `vector`: numbers of the matrix that a lane can load at once."""
    of_a = p.N == 1
    if along_k:
        kinds = [(rows, LANES * max(vector, 4)) for rows in (4, 1) if rows * max(vector, 4) <= 2 * HELD]
    else:
        kinds = [(WARP * vector, WARPS * max(HELD // vector // 2, 2))]
    extent = p.M if of_a else p.N
    kinds = [kind for kind in kinds[:-1] if kind[0] <= extent] + kinds[-1:]
    return [VectorConfig(*((rows, 1) if of_a else (1, rows)), depth, along_k, vector, of_a) for rows, depth in kinds]


@cache
def vector_kernel(problem: Problem, config: VectorConfig) -> Any:
    """The kernel `(a, b, *operands of the steps) -> out`. Each call gives the extents of the problem that are Dims."""
    p, t = problem, config
    layout, wide = t.layout, p.wide
    along = layout.reduce((0,), keepdims=False)

    def multiply(p: Problem, place: TilePlace, a: Any, b: Any, refs: Any) -> None:
        extra, out, peak = outputs(p, refs)
        part, batch = place.part, place.batch
        steps: Any = steps_of(p, t.tile_k)
        a, b = a.at[own(batch, p.a_batch)], b.at[own(batch, p.b_batch)]
        a, b = a.T if p.a_transposed else a, b if p.b_transposed else b.T  # outer axis, K
        outer = kd.ds(place.m if t.of_a else place.n, t.rows)
        matrix, vector = (a, b) if t.of_a else (b, a)

        def load(step: Any) -> tuple[Any, Any]:
            k = kd.ds((part * steps + step) * t.tile_k, t.tile_k)
            return kd.load(matrix.at[outer, k], layout=layout), kd.load(vector.at[0, k], layout=along)

        def add(step: Any, state: Any) -> Any:
            total, x, y = state
            # the next step's loads come first: an assembler that saves registers would wait for each one at its use
            ahead = load(kd.minimum(step + 1, steps - 1))
            x, y, total = x.astype(wide), y.astype(wide)[None, :], kd.layout_cast(total, layout)
            return (kd.fma(x, y, total) if wide.is_float else x * y + total, *ahead)

        zero = kd.layout_cast(kd.zeros((t.rows, t.tile_k), wide), layout)
        sums = kd.sum(kd.fori_loop(0, steps, add, (zero, *load(0)))[0], axis=1)
        total = sums[:, None] if t.of_a else sums[None, :]
        rows, columns = kd.ds(place.m, t.tile_m), kd.ds(place.n, t.tile_n)
        tile = Tile(rows, columns, (*p.batch, p.M, p.N), batch, peak=peak)
        finish_and_store(total, p, extra, tile, out, place.leading(p), t.tile_n)

    def body(a: Any, b: Any, *refs: Any) -> None:
        here = at_launch(p, a, b)
        walk(here, t, refs, {}, lambda place, rest: multiply(here, place, a, b, rest))

    leading = (p.parts,) if p.parts > 1 else ()
    made = kd.kernel(
        body,
        out_type=p.results(*leading),
        shapes=declared(p),
        grid=(tiles_of(p, t),),
        name="matmul_vector",
    )
    return identified(made, problem, config) if p.named else made
