"""The product of a matrix and a few vectors, in one launch, for operands that TMA can't read, or that are small.

The kernels of tiles need copies of such a matrix, which take longer than the product. Here lanes load numbers where they lie,
neighbouring lanes neighbouring numbers, and multiply and add them in the dtype of the sums. A block has one warpgroup and a few
rows of the matrix; several blocks share a multiprocessor, so that many loads are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..blocks import TilePlace, own, steps_of, walk
from ..first_sizes import is_open
from ..product_routes.any_rows import at_launch, declared, grid_for
from ..products.problem import Problem
from .epilogue import Tile, finish_and_store, outputs

LANES, WARP, WARPS = 128, 32, 4
HELD = 16  # the numbers of the matrix in a step that a lane holds
ROOM = 128  # bytes of the vectors' numbers in a step that a lane holds, in the dtype of the sums
# Where rows of the matrix are odd, and K is short, the latency of loads is the time: more lanes of a warp that share a row
# have all of K in flight. Measured on one NVIDIA H200, us: 1 x 99 x 551 in float16 10.0 with one lane a row, 7.0 with 4 in
# three steps, 5.9 in one step (torch 7.3).
SHARES = (4, 8)
SHARED_HELD = 36  # the numbers that such a lane holds
SHARED_COUNT = 2  # the most vectors beside them
# Where neighbours lie along K and K is short, so many lanes that share a row of the matrix have all of it in one step, and
# other lanes have other rows. Measured on one NVIDIA H200, us: 22045 x 3 x 156 NN in bfloat16 7.7, by the fast kernel 12.3
# (torch 13.3); 4 x 4801 x 102 NT in float16 5.1, with rows that all lanes share 6.4 (torch 6.2).
APART = (2, 4, 8)
APART_BYTES = 4  # the least bytes of the matrix that such a lane loads at once
# The least limit of a lane's registers with one vector, those beside its numbers, and the limit with several vectors, of which
# a lane holds much. ptxas alone takes 32, to fit more blocks on a multiprocessor, and a step's loads of single numbers then wait
# for each other: 1 x 1095 x 10749 in float16 at odd addresses took 23.1 us instead of 18.2.
LEAST_REGISTERS, BESIDE, MOST_REGISTERS = 64, 24, 255
MOST = 8  # vectors: of more, their loads and registers take longer than copies of the matrix


@dataclass(frozen=True)
class VectorConfig:
    """Rows of the matrix and the number of vectors, `tile_m` and `tile_n` if a is the matrix (`of_a`), else the reverse.

    `tile_k` of K in a step. `along_k`: neighbours in the matrix lie along K. `vector`: numbers that a lane loads at once.
    `share`: lanes of a warp that share a row, where neighbours lie along the rows: each has its own part of a step.
    `apart`: the same where neighbours lie along K; 0 if all lanes of the block share each row.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    along_k: bool
    vector: int
    of_a: bool
    group: int = 8
    stages: int = 1
    share: int = 1
    apart: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of the matrix: outer extents, whichever operand it is."""
        return self.tile_m if self.of_a else self.tile_n

    @property
    def count(self) -> int:
        """The number of vectors."""
        return self.tile_n if self.of_a else self.tile_m

    @property
    def runs(self) -> int:
        """The runs of `vector` numbers that a lane holds of a step: along K, or along the rows."""
        if self.along_k:
            return self.tile_k // (self.shares * self.vector)
        return self.rows // (self.beside * self.vector)

    @property
    def beside(self) -> int:
        """The lanes of a warp with rows of their own, where not all lanes of the block share a row."""
        return WARP // (self.apart or self.share)

    @property
    def shares(self) -> int:
        """The lanes of a block that share a row."""
        return self.apart or (LANES if self.along_k else WARPS * self.share)

    @property
    def deep(self) -> int:
        """The numbers of a step along K that a lane holds."""
        return self.tile_k // self.shares

    def most_registers(self, item: int) -> int:
        """The limit of a lane's registers for numbers of `item` bytes: those of this step and of the next one, and their sums."""
        sums = self.count * self.rows // (self.rows if self.apart else 1 if self.along_k else self.beside)
        held = (
            (self.rows * self.tile_k // LANES + self.count * self.deep) * max(self.vector * item // 4, 1) // self.vector
        )
        beside = BESIDE * (2 if item == 1 else 1)  # bytes are also there apart, before they are widened
        return min(max(2 * held + sums + beside, LEAST_REGISTERS), MOST_REGISTERS)

    @property
    def matrix(self) -> Any:
        """The layout of a step's numbers of the matrix, (rows, tile_k)."""
        v = self.vector
        if self.apart:
            regs = _factors((1, v, 1), (1, self.runs, self.apart * v))
            return kd.Layout(2, regs, _lanes(self.apart, 1, v, 0, 1), ((0, self.beside), (0, 2 * self.beside)))
        if self.along_k:
            lanes = tuple((1, v << i) for i in range(5))
            regs = _factors((1, v, 1), (0, self.rows, 1), (1, self.runs, LANES * v))
            return kd.Layout(2, regs, lanes, ((1, WARP * v), (1, 2 * WARP * v)))
        deep, share = self.deep, self.share
        regs = _factors((0, v, 1), (0, self.runs, self.beside * v), (1, deep, 1))
        return kd.Layout(2, regs, _lanes(self.beside, 0, v, 1, deep), ((1, share * deep), (1, 2 * share * deep)))

    @property
    def vectors(self) -> Any:
        """The layout of a step's numbers of the vectors, (count, tile_k)."""
        one = self.matrix.reduce((0,))
        return kd.Layout(2, _factors((0, self.count, 1), *one.regs), one.lanes, one.warps)

    @property
    def sums(self) -> Any:
        """The layout of sums, (count, rows, those that lanes or warps have of a row)."""
        v, counts = self.vector, (0, self.count, 1)
        if self.apart:
            return kd.Layout(
                3, _factors(counts), _lanes(self.apart, 2, 1, 1, 1), ((1, self.beside), (1, 2 * self.beside))
            )
        if self.along_k:
            lanes, warps = tuple((2, 1 << i) for i in range(5)), ((2, WARP), (2, 2 * WARP))
            return kd.Layout(3, _factors(counts, (1, self.rows, 1)), lanes, warps)
        regs = _factors(counts, (1, v, 1), (1, self.runs, self.beside * v))
        return kd.Layout(3, regs, _lanes(self.beside, 1, v, 2, 1), ((2, self.share), (2, 2 * self.share)))

    def slices(self, x: Any) -> list[Any]:
        """The numbers of a step, (n, tile_k), as several (n, those that lanes or warps have of a row at a time)."""
        if self.along_k:
            x = x.reshape(x.shape[0], self.runs, self.shares, self.vector)
            return [x[:, run, :, i] for run in range(self.runs) for i in range(self.vector)]
        x = x.reshape(x.shape[0], self.shares, self.deep)
        return [x[:, :, i] for i in range(self.deep)]


def _factors(*given: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
    return tuple(factor for factor in given if factor[1] > 1)


def _power(n: int) -> int:
    """The greatest power of two up to n."""
    return 1 << n.bit_length() - 1


def _lanes(count: int, near: int, step: int, far: int, part: int) -> tuple[tuple[int, int], ...]:
    """Bits of a lane's number: `count` lanes along axis `near` by `step`, the others along axis `far` by `part`."""
    own = count.bit_length() - 1
    return (*((near, step << i) for i in range(own)), *((far, part << i) for i in range(5 - own)))


def vector_options(p: Problem, along_k: bool, vector: int) -> list[VectorConfig]:
    """The possible sizes of a product with at most `MOST` rows or columns. `vector`: numbers of the matrix that a lane can load
    at once.
    """
    of_a = p.N <= p.M
    extent, count = (p.M, p.N) if of_a else (p.N, p.M)
    room = ROOM // p.wide.itemsize // count  # numbers along K that a lane may hold of each vector, and half of its sums
    given = vector
    if along_k:
        each = min(max(vector, 4), _power(room))
        if not is_open(p.K):  # a step of more than all of K would load nothing
            each = min(each, max(vector, _power(2 * -(-p.K // LANES) - 1)))
        vector = min(vector, each)
        kinds = [(rows, LANES * each) for rows in (max(HELD // each, 4), 1) if rows * each <= 4 * HELD]
    else:
        vector = min(vector, _power(2 * room))
        most = next(runs for runs in (4, 2, 1) if runs == 1 or vector * runs <= min(2 * room, HELD // 2))
        kinds = list[tuple[int, int]]()
        for runs in dict.fromkeys((most, 1)):
            deep = max(min(HELD // (vector * runs), _power(room)), 2)
            if runs == most or vector * deep > HELD // 2:
                kinds.append((WARP * vector * runs, WARPS * deep))
    kinds = [(*kind, 1) for kind in kinds[:-1] if kind[0] <= extent] + [(*kind, 1) for kind in kinds[-1:]]
    shares = not along_k and (vector == 1 or extent < WARP) and count <= SHARED_COUNT and not is_open(p.K)
    if shares:
        kinds += [(WARP // share, _shared_depth(p, share), share) for share in SHARES if WARP // share <= extent]
    sizes = [((rows, count) if of_a else (count, rows), depth, share) for rows, depth, share in kinds]
    made = [
        VectorConfig(*outer, depth, along_k, vector if share == 1 else 1, of_a, share=share)
        for outer, depth, share in sizes
    ]
    if along_k and not is_open(p.K) and given * (p.dtype if of_a else p.b_dtype).itemsize >= APART_BYTES:
        for rows, depth, own, lanes in _apart(p, given, count):
            outer = (rows, count) if of_a else (count, rows)
            made.append(VectorConfig(*outer, depth, along_k, own, of_a, apart=lanes))
    return made


def _apart(p: Problem, vector: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """(rows, depth of a step, numbers that a lane loads at once, lanes that share a row) where a step has all of K."""
    room = 2 * ROOM // p.wide.itemsize // count
    vector = min(vector, _power(room))
    for lanes in APART:
        runs = -(-p.K // (lanes * vector))
        if runs * vector <= room and (runs > 1 or lanes == APART[0] or lanes * vector < 2 * p.K):
            yield LANES // lanes, lanes * vector * runs, vector, lanes


def _shared_depth(p: Problem, share: int) -> int:
    """The depth of a step in which a lane holds as many numbers as possible, the same number in each step."""
    each = -(-p.K // (WARPS * share))
    return WARPS * share * -(-each // -(-each // SHARED_HELD))


@cache
def vector_kernel(problem: Problem, config: VectorConfig) -> Any:
    """The kernel `(a, b, *operands of the steps) -> out`. Each call gives the extents of the problem that are Dims."""
    p, t = problem, config
    wide, item = p.wide, (p.dtype if t.of_a else p.b_dtype).itemsize
    alone = not is_open(p.K) and steps_of(p, t.tile_k) == 1  # whether a part has a single step

    def multiply(p: Problem, place: TilePlace, a: Any, b: Any, refs: Any) -> None:
        extra, out, peak = outputs(p, refs)
        part, batch = place.part, place.batch
        steps: Any = steps_of(p, t.tile_k)
        a, b = a.at[own(batch, p.a_batch)], b.at[own(batch, p.b_batch)]
        a, b = a.T if p.a_transposed else a, b if p.b_transposed else b.T  # outer axis, K
        places = (place.m, place.n) if t.of_a else (place.n, place.m)
        outer, across = kd.ds(places[0], t.rows), kd.ds(places[1], t.count)
        matrix, vectors = (a, b) if t.of_a else (b, a)

        def load(step: Any) -> tuple[Any, Any]:
            k = kd.ds((part * steps + step) * t.tile_k, t.tile_k)
            x = kd.load(matrix.at[outer, k], layout=t.matrix)
            return x, kd.load(vectors.at[across, k], layout=t.vectors)

        def plus(total: Any, x: Any, y: Any) -> Any:
            total = kd.layout_cast(total, t.sums)
            for own_x, own_y in zip(t.slices(x), t.slices(y), strict=True):
                left, right = own_x.astype(wide)[None], own_y.astype(wide)[:, None]
                total = kd.fma(left, right, total) if wide.is_float else left * right + total
            return total

        def add(step: Any, state: Any) -> Any:
            # the next step's loads come first: an assembler that saves registers would wait for each one at its use
            ahead = load(kd.minimum(step + 1, steps - 1))
            return (plus(*state), *ahead)

        zero = kd.layout_cast(kd.zeros((t.count, t.rows, t.shares), wide), t.sums)
        first = (zero, *load(0))
        sums = kd.sum(plus(*first) if alone else kd.fori_loop(0, steps, add, first)[0], axis=2)
        total = sums.T if t.of_a else sums
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
        grid=grid_for(p, t),
        compiler_params=kd.CompilerParams(
            max_registers=MOST_REGISTERS if t.count > 1 or alone else t.most_registers(item)
        ),
        name="matmul_vector",
    )
    return identified(made, problem, config) if p.named else made
