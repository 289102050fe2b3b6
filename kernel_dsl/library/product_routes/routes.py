"""The kernels of a product: copies of operands if necessary, the product itself, and the sum of parts of K."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.target import TMA_WGMMA, Feature, Target

from ..blocks import steps_of
from ..product_kernels.combine import combine_kernel
from ..product_kernels.lane_product import lane_kernel
from ..product_kernels.pack import SECTOR, pack_kernel
from ..product_kernels.persistent_matmul import matmul_kernel
from ..product_kernels.tile_product import tile_kernel
from ..product_kernels.vector_product import MOST, vector_kernel, vector_options
from ..product_kernels.whole_lines import stores_lines
from ..products.checks import has_blocks
from ..products.int4 import PackedInt4
from ..products.matmul_config import MatmulConfig
from ..products.operands import LINE, MAX_RANK, UNIT, Operand
from ..products.problem import Problem
from ..products.sparse import SparseMatrix
from . import fast_costs as costs
from . import other_costs as others
from .any_rows import serving
from .choose import choose, needs_swap, space, thinness
from .families import Family, family
from .fast_sizes import MOSTLY_STORED, gates
from .packings import SHALLOW, Packings, fast_packings, laid, packed_clocks, packing, tile_packings, whole_packings

SURE = 1.02  # the factor of the estimates of copies along K of 16 bits: a lesser gain is not sure


@dataclass(frozen=True)
class Route:
    """How a product is computed: `kernel` is "fast", "tile", "lane" or "vector", and multiplies `problem`.

    `packings`: the packings of a and b, None for an operand that is not packed. `whole`: the problem whose result
    `combine_kernel` computes, if K has parts, or if the two products of a gated one are computed `apart`. `early`: a
    kernel may start while the one before it ends, and waits for that one's end before it reads. `reads`: as of
    `costs.clocks`.
    """

    kernel: str
    problem: Problem
    config: Any
    packings: Packings = (None, None)
    whole: Problem | None = None
    early: bool = False
    reads: costs.Reads = costs.EVEN

    @property
    def gated(self) -> bool:
        """Whether there are two right sides."""
        return self.apart or self.problem.gate is not None

    @property
    def apart(self) -> bool:
        """Whether two right sides are multiplied by a launch each."""
        return self.whole is not None and self.whole.gate is not None

    def pack(self) -> Any:
        """The kernel that packs operands, or None."""
        left, right = self.packings
        found = tuple(p for p in (left, right, *((right,) if self.gated else ())) if p is not None)
        return pack_kernel(found, self.kernel == "fast") if found else None

    def serving(self, blocks: int, flipped: bool = False) -> Route:
        """The route with kernels for any M and batch, or itself. `flipped`: the rows of a call are those of b."""
        if self.kernel == "fast" and self.config.low_tiles:  # which only given sizes have
            p = self.problem
            even = changed(self, config=choose(p, blocks, p.plain, self.reads, even=True))
            made = even.serving(blocks, flipped)
            return self if made is even else made

        def cost(made: Route) -> float:
            p, q, t = made.problem, made.whole, made.config
            if self.kernel == "fast" and thinness(t) != thinness(self.config):
                return math.inf
            time = clocks[self.kernel](p, t, blocks)
            if q is None:
                return time
            others_too = others.part_options(changed(q, parts=1), t.tile_k)
            return _times(q, time, p.parts) if p.parts in (self.problem.parts, *others_too) else math.inf

        clocks: dict[str, Any] = {
            "lane": others.lane_clocks,
            "vector": others.vector_clocks,
            "tile": others.tile_clocks,
            "fast": lambda p, t, blocks: costs.clocks(p, t, blocks, self.reads),
        }
        return serving(self, cost, flipped and self.kernel != "vector", blocks)

    def cut_in(self, parts: int, config: Any) -> Route:
        """The route with another number of parts of K, and another configuration of the kernel that multiplies."""
        if parts == self.problem.parts:
            return changed(self, config=config)
        q = changed(self.whole or self.problem, parts=1)
        whole = changed(q, parts=parts) if parts > 1 or q.gate is not None else None
        return changed(self, problem=others.split(q, parts), config=config, whole=whole)

    def multiply(self, blocks: int) -> Any:
        """The kernel that multiplies."""
        p, t = self.problem, self.config
        if self.kernel == "lane":
            return lane_kernel(p, t)
        if self.kernel == "vector":
            return vector_kernel(p, t)
        return tile_kernel(p, t) if self.kernel == "tile" else matmul_kernel(p, t, blocks, early=any(self.packings))

    def combine(self) -> Any:
        """The kernel that adds up parts of K, or None."""
        return None if self.whole is None else combine_kernel(self.whole, self.early)


@dataclass
class _Best:
    """The route that took the fewest clocks so far."""

    time: float = math.inf
    route: Route | None = None


def goes_fast(a: Any, b: PackedInt4, target: Target) -> bool:
    """Whether numbers of 4 bits are widened in registers; otherwise b is unpacked first."""
    found = target.supports(TMA_WGMMA) and b.fast and 0 not in a.shape
    return found and len(a.shape) <= MAX_RANK


def sparse_goes_fast(a: SparseMatrix, b: Any, o: Any, target: Target) -> bool:
    """Whether tensor cores skip the zeros of a sparse a; otherwise it is made dense first. Raises `BadCallValue`."""
    rights = o.rights(b)
    shapes = [tuple(x.shape) for x in rights]
    if not target.supports(TMA_WGMMA) or not a.fast or any(0 in s or not 2 <= len(s) <= MAX_RANK for s in shapes):
        return False
    scales = o.b_scale if isinstance(o.b_scale, (tuple, list)) else [o.b_scale] * len(rights)
    given = [("a_scale", o.a_scale, shapes[0]), *(("b_scale", *pair) for pair in zip(scales, shapes, strict=False))]
    if any(has_blocks(name, scale, a.shape, b) for name, scale, b in given):
        return False
    how = family(a.dtype, as_dtype(rights[0].dtype), o.precision)
    return how.tensor and not how.thrice and not how.promoted and how.a == a.dtype and how.b.itemsize == how.a.itemsize


@cache
def route(p: Problem, a: Operand, b: Operand, how: Family, config: MatmulConfig | None, target: Target) -> Route:
    """The fastest route by the cost model. `p`: the problem in the dtypes of `how`, without layouts."""
    blocks = target.limits.multiprocessors
    if not (p.M and p.N and p.K and 0 not in p.batch):
        nothing = changed(laid(p, (None, None), a, b), K=0, thrice=False)
        apart = None if p.gate is None else nothing
        return Route("lane", others.split(nothing, 1), others.lane_options(p)[0], whole=apart)
    best = _Best()
    for time, made in _options(p, a, b, how, config, target, blocks, best):
        if time < best.time:
            best.time, best.route = time, made
    assert best.route is not None
    return _dependent(best.route, target)


def routes(p: Problem, a: Operand, b: Operand, how: Family, target: Target) -> list[tuple[float, Route]]:
    """(clocks, route) of all routes that are worth a trial, for a product that is not empty."""
    found = _options(p, a, b, how, None, target, target.limits.multiprocessors)
    return [(time, _dependent(made, target)) for time, made in found]


def _dependent(found: Route, target: Target) -> Route:
    """The route with kernels that start early, if the target allows it."""
    return changed(found, early=target.supports(Feature.GRIDDEPCONTROL))


def _options(
    p: Problem,
    a: Operand,
    b: Operand,
    how: Family,
    config: MatmulConfig | None,
    target: Target,
    blocks: int,
    best: _Best | None = None,
) -> Iterator[tuple[float, Route]]:
    """(clocks, route) of each possible route. With `best`, only the choice of `choose` and routes that could be better
    than the best so far.
    """
    if not how.tensor:
        # lanes read rows along M and N. Copies to SMEM transpose operands along K; a packing before pays if it
        # transposes both. Packed rows show their M to kernels for any M if M is a multiple of whole units
        both = a.along_k and b.along_k and p.M * how.a.itemsize % UNIT == 0
        for turned in (False, True) if both else (False,):
            found: Packings = tuple(
                packing(o, to, o.along_k and not turned) if turned or o.dtype != to else None
                for o, to in ((a, how.a), (b, how.b))
            )  # type: ignore[assignment]
            yield from _cut(
                p, laid(p, found, a, b), found, "lane", others.lane_options(p), others.lane_clocks, blocks, None
            )
        return
    fast = target.supports(TMA_WGMMA) and how.a != kd.float64 and len(p.batch) + 2 <= MAX_RANK
    if fast:
        yield from _fast(p, a, b, how, config, blocks, best)
        if config is not None or p.int4 or p.sparse or p.exponentials:
            return
    if takes_vector(p, a, b):
        q = changed(laid(p, (None, None), a, b), dtype=a.dtype, b_dtype=b.dtype, thrice=False, promoted=False)
        matrix = a if p.N <= p.M else b
        sizes = vector_options(q, matrix.along_k, max(matrix.piece // matrix.dtype.itemsize, 1))
        yield from _cut(p, q, (None, None), "vector", sizes, others.vector_clocks, blocks, best)
        if 1 in (p.M, p.N) and p.K * matrix.dtype.itemsize > SHALLOW:
            return  # mma.sync took 1.4 of the time, and up to 2 where rows are copied in small pieces
    for found in tile_packings(a, b, how, target, fast, p.K):
        pieces = tuple(o.piece if pack is None else UNIT for o, pack in zip((a, b), found, strict=True))
        late = others.AFTER_PACKING if any(found) else 0

        def clocks(q: Problem, t: Any, blocks: int, pieces: tuple[int, ...] = pieces, late: int = late) -> float:
            return others.tile_clocks(q, t, blocks, pieces) + late

        q = laid(p, found, a, b)
        if any(pack is not None for pack in found):
            q = changed(q, dtype=found[0].to if found[0] else a.dtype, b_dtype=found[1].to if found[1] else b.dtype)
        yield from _cut(p, q, found, "tile", others.tile_options(q), clocks, blocks, best)


def takes_vector(p: Problem, a: Operand, b: Operand) -> bool:
    """Whether `vector_kernel` can compute a product."""
    other = p.gate is not None or p.scaled or p.softmax or a.scaled or b.scaled
    return min(p.M, p.N) <= MOST and not other


def _cut(
    p: Problem, q: Problem, found: Packings, kernel: str, sizes: Any, clocks: Any, blocks: int, best: _Best | None
) -> Iterator[tuple[float, Route]]:
    """K in one part and in several, for each size."""
    before, least = packed_clocks(found), costs.least_clocks(q, blocks)
    for t in sizes:
        for parts in others.part_options(q, t.tile_k):
            if best is not None and before + _times(q, least, parts) >= best.time:
                continue
            cut = others.split(q, parts)
            time = before + _times(q, clocks(cut, t, blocks), parts)
            yield time, Route(kernel, cut, t, found, changed(q, parts=parts) if parts > 1 or q.gate else None)


def _times(q: Problem, clocks: float, parts: int) -> float:
    """Clocks of kernels whose sums are added up, or of two products, one after the other."""
    if q.gate is None:
        return clocks + others.combine_clocks(q, parts)
    return 2 * clocks + others.LAUNCH + others.combine_clocks(q, parts)


def _fast(
    p: Problem, a: Operand, b: Operand, how: Family, config: MatmulConfig | None, blocks: int, best: _Best | None
) -> Iterator[tuple[float, Route]]:
    packed = whole_packings(fast_packings(a, b, how, p.sparse), a, b, p.gate is None)
    for found, reads in islice(packed, 1 if config is not None or p.softmax else None):
        unsure = SURE if any(x is not None and x.turned and x.to.itemsize == 2 for x in found) else 1.0
        for time, made in _fast_as(p, a, b, found, reads, config, blocks, best):
            yield time * unsure, made


def _fast_as(
    p: Problem, a: Operand, b: Operand, found: Packings, reads: costs.Reads, config: MatmulConfig | None,
    blocks: int, best: _Best | None,
) -> Iterator[tuple[float, Route]]:  # fmt: skip
    def picked(problem: Problem, plain: bool) -> list[tuple[float, MatmulConfig]]:
        if config is None and best is None:
            return space(problem, blocks, plain, reads)
        t = config or choose(problem, blocks, plain, reads)
        return [(costs.clocks(problem, t, blocks, reads), t)]

    q = laid(p, found, a, b)
    before = packed_clocks(found)
    if q.gate is not None and not q.scaled and not needs_swap(q):
        for time, t in picked(q, False):
            if gates(q, t):
                yield before + time, Route("fast", q, t, found, reads=reads)
    depth = 128 // max(q.dtype.itemsize, q.b_dtype.itemsize) if config is None else config.tile_k
    least = costs.least_clocks(q, blocks)
    for parts in others.part_options(q, depth) if config is None else (1,):
        if best is not None and before + _times(q, least, parts) >= best.time:
            continue
        cut = others.split(q, parts)
        whole = changed(q, parts=parts) if parts > 1 or q.gate is not None else None
        for time, t in picked(cut, cut.plain):
            if config is not None and needs_swap(cut):
                # the side that goes through registers is the left one
                t = replace(config, swapped=True)
                time = costs.clocks(cut, t, blocks, reads)
            yield before + _times(q, time, parts), Route("fast", cut, t, found, whole, reads=reads)
    item = q.out_dtype.itemsize
    if config is None and q.plain and not q.lanes and q.N * item % LINE and steps_of(q, depth) <= MOSTLY_STORED:
        # TMA stores rows that begin within lines more slowly: 9000 x 9000 x 64 took 72 us, by lanes 50; with K of 256 82 and 92
        by_lanes, cut = changed(q, lanes=UNIT // item), q.N * item % SECTOR
        for time, t in picked(by_lanes, True):
            if cut or stores_lines(by_lanes, t):
                yield before + time, Route("fast", by_lanes, t, found, reads=reads)
