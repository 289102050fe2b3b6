"""A small cost model chooses the sizes of Hopper's fast product. It measures nothing, so its answer is always the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf, prod

from kernel_dsl.dataclass import changed

from ..blocks import steps_of
from ..product_kernels.consumer_product import from_registers
from ..product_kernels.fed_scales import feeds
from ..product_kernels.low_tiles import takes_low_tiles
from ..product_kernels.whole_lines import stores_lines
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from .fast_costs import BETWEEN, EVEN, THIN, Reads, clocks, least_products
from .fast_sizes import (
    BARRIERS,
    DEEPEST,
    MOSTLY_STORED,
    SMEM,
    STEP_BYTES,
    configure,
    gates,
    in_pairs,
    is_mixed,
    stage_bytes,
)

# (tile_m, tile_n, consumers, whether they alternate)
TILES = (
    (128, 256, 2, False),
    (256, 128, 2, False),
    (128, 192, 2, True),
    (128, 192, 2, False),
    (128, 128, 2, True),
    (128, 128, 2, False),
    (128, 64, 2, False),
    (64, 256, 1, False),
    (64, 128, 1, False),
    (64, 64, 1, False),
)
# where sums are promoted every 128 of K: two accumulators a lane; the first two only where factors come with the stages
SCALED_TILES = tuple((*tile, False) for tile in (
    (192, 128, 3), (128, 192, 2), (128, 160, 2), (128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1)
))  # fmt: skip
# 32-bit registers a lane that a consumer may accumulate in: the rest is for addresses, or for an epilogue of few or many steps
ACCUMULATORS, ACCUMULATORS_BESIDE_MORE, ACCUMULATORS_BESIDE_MANY = 192, 128, 96
# rows of tiles that three consumers share and that two share, and their columns, beside 128; where neighbours lie along columns,
# these are whole rows of a swizzle
TALL, TALL_WIDTHS, PANEL = 192, (96, 112, 128, 144, 160, 176, 192), 64
HIGH, HIGH_WIDTHS = 256, (96, 112, 144, 160, 176)
HIGH_WAVES = 6  # the most waves of such tiles: the last one is a small part of more
CLUSTERS = ((1, 1), (2, 1), (1, 2))  # along M, along N
LOW_WAVES = 4  # the most waves of low tiles
LOW_STEPS = 8  # the fewest steps: 4096 x 32768 x 512 took 132 us with low tiles, 130 without
SQUARE = (2, 2)  # where loads take longer


def thin_tiles(problem: Problem) -> list[MatmulConfig]:
    """Tiles for a thin side. All its rows are the columns of one product: of the product itself if b is thin, of the
    transposed one if a is.
    """
    made: list[MatmulConfig | None] = []
    if problem.gate is not None or problem.scaled or problem.softmax:
        return []
    sides = ((problem, False), (problem.swapped, True))
    for p, swapped in sides[:1] if problem.sparse else sides:
        tile_n = next((n for n in THIN if n >= p.N), 0)
        # wgmma reads its right side along K unless elements have 16 bits
        if tile_n and (in_pairs(p) or not from_registers(p)) and (p.b_dtype.itemsize == 2 or p.b_transposed):
            tiles = [configure(p, tile_m, tile_n, tile_m // 64) for tile_m in (128, 64)]
            made += [c and _deeper(p, changed(c, swapped=swapped)) for c in tiles]
    return [c for c in made if c is not None]


def _deeper(p: Problem, t: MatmulConfig) -> MatmulConfig:
    """The same stages as half as many of twice the depth, if K fills the ring: GMEM is read 256 neighbouring bytes at a time.
    16 x 16384 x 8192 NT took 75.6 us and 73.1, 8 x 8192 x 8192 42.8 and 40.8.
    """
    fills = steps_of(p, t.tile_k) >= t.stages
    plain = p.dtype.itemsize == p.b_dtype.itemsize == 2 and not (p.sparse or p.promoted)
    return changed(t, tile_k=2 * t.tile_k, stages=t.stages // 2) if fills and plain else t


def thinness(config: MatmulConfig) -> int:
    """The columns of a tile of `thin_tiles`, 0 for others. On other problems than theirs, and beside them, estimates are
    off: 40x4096x4096 took 1.45 of the time with two tiles of 32, 24x1024x4096 1.27 with 64x64.
    """
    return config.tile_n if config.tile_n in THIN else 0


def tiles_between(problem: Problem) -> list[MatmulConfig]:
    """Tiles of `BETWEEN` columns, if the side with the columns is stored along K: b, or a in the transposed product."""
    p = problem
    if p.gate is not None or p.scaled or p.promoted or p.softmax or p.sparse or p.int4:
        return []
    made = [
        (configure(q, 128, n, 2), swapped)
        for q, swapped in ((p, False), (p.swapped, True))
        if q.b_transposed and not from_registers(q)
        for n in BETWEEN
    ]
    return [changed(c, swapped=swapped) for c, swapped in made if c is not None]


def high_tiles(problem: Problem, blocks: int) -> list[MatmulConfig]:
    """Tiles of 192 rows, shared by three consumers, and of 256, of the product or of the transposed one.

    512 lanes have registers for 96 sums each, and for no steps beside them. Lanes that store them do so by whole lines.
    Where they would leave half of the multiprocessors idle, tiles of half the size take less time.
    """
    p = problem
    if (
        not p.plain
        or p.scaled
        or p.promoted
        or p.sparse
        or p.int4
        or p.K * p.dtype.itemsize <= MOSTLY_STORED * STEP_BYTES
    ):
        return []
    sizes = [(TALL, n, 3) for n in TALL_WIDTHS] + [(HIGH, n, 2) for n in HIGH_WIDTHS]
    made = [
        (configure(q, *size), swapped)
        for q, swapped in ((p, False), (p.swapped, True))[: 1 if p.lanes else 2]
        if not from_registers(q)
        for size in sizes
        if q.b_transposed or (q.b_dtype.itemsize == 2 and size[1] % PANEL == 0)
        if blocks / 2 <= -(-q.M // size[0]) * -(-q.N // size[1]) * q.parts * prod(q.batch) <= HIGH_WAVES * blocks
    ]
    found = [changed(c, swapped=swapped) for c, swapped in made if c is not None]
    return [c for c in found if not p.lanes or (stores_lines(p, c) and p.out_dtype.itemsize > 1)]


def band(problem: Problem, config: MatmulConfig, blocks: int) -> int:
    """The number of tiles of M in a band that shares L2, as measured.

    Times differ by 2 % at most. 2048 rows are never worse, except for short products, if all tiles run at once, and for scales
    by blocks of K: 4096 x 7168 x 16384 took 697 us with 1152, 715 with 1536 and 722 with 2304. In four runs 2048^3 with B along
    K had 1.04, 1.03, 1.01 and 0.98 of cuBLAS' speed with 2048 rows, and 1.04, 1.01, 1.02 and 1.02 with 1024.
    """
    at_once = -(-problem.M // config.tile_m) * -(-problem.N // config.tile_n) <= blocks
    if problem.scaled:
        return 1152 // config.tile_m
    short = problem.K * problem.dtype.itemsize <= 16 * STEP_BYTES
    if problem.K * problem.dtype.itemsize <= STEP_BYTES:
        return 1  # neighbours along N store neighbouring parts of rows
    return (1024 if short or at_once else 2048) // config.tile_m


def needs_swap(problem: Problem) -> bool:
    """Whether only the transposed product is possible, because the side that goes through registers must be the left one."""
    return (
        not problem.sparse
        and from_registers(problem.swapped)
        and (is_mixed(problem.swapped) or not from_registers(problem))
    )


def scaled_tiles(problem: Problem) -> Sequence[tuple[int, int, int, bool]]:
    """Those of `SCALED_TILES` that a problem whose sums are promoted may have."""
    narrow = problem.b_scaled == "columns"
    return [t for t in SCALED_TILES if feeds(problem, t[0]) or (t[2] < 3 and (t[1] < 192 or not narrow))]


def _options(problem: Problem, blocks: int, plain: bool, reads: Reads = EVEN) -> list[MatmulConfig]:
    """The possible configurations of the fast kernel, without hints for L2."""
    if needs_swap(problem):
        return [changed(c, swapped=True) for c in _options(problem.swapped, blocks, plain, (reads[1], reads[0]))]
    room = ACCUMULATORS if plain and problem.plain else ACCUMULATORS_BESIDE_MORE
    room = ACCUMULATORS_BESIDE_MANY if problem.busy else room
    tiles = scaled_tiles(problem) if problem.scaled or problem.promoted else TILES
    # blocks of a cluster whose lanes store wait for each other: 1.7 to 4 times as long as one block each where K is deep
    alone = problem.lanes or problem.gate is not None  # a gate's products have no clusters
    clusters = CLUSTERS[:1] if alone else CLUSTERS if reads == EVEN else (*CLUSTERS, SQUARE)
    if problem.softmax:
        # No TMA store overlaps with the next tile's products: on one NVIDIA H200 turns took 1.25 of the time, clusters
        # 1.2, both together 2.1.
        tiles, clusters = [t for t in tiles if not t[3]], CLUSTERS[:1]
    made = [c for c in (configure(problem, *tile) for tile in tiles) if c is not None]
    made += tiles_between(problem) + (high_tiles(problem, blocks) if plain else [])
    made = [c for c in made if c.rows * c.tile_n <= room * 128 and gates(problem, c)]
    options = [
        changed(c, cluster=m, cluster_n=n) if m * n > 1 else c for c in made for m, n in clusters if m * n <= blocks
    ]
    return options + lowered(problem, options, blocks) + thin_tiles(problem)


def lowered(problem: Problem, options: Sequence[MatmulConfig], blocks: int) -> list[MatmulConfig]:
    """Those options whose last waves can have lower tiles, with as many of these as the waves before leave rows."""
    found: list[MatmulConfig] = []
    for c in options if problem.scaled else ():
        if c.consumers < 3 or not takes_low_tiles(problem, c) or steps_of(problem, c.tile_k) < LOW_STEPS:
            continue
        across = -(-problem.N // c.tile_n)
        waves = -(-problem.M // c.tile_m) * across // blocks
        for high in {n * blocks // across for n in range(max(waves - LOW_WAVES, 1), waves + 1)}:
            low = -(-(problem.M - high * c.tile_m) // c.low_rows)
            if high and low > 0:
                found.append(changed(c, low_tiles=low))
    return found


def _finished(problem: Problem, config: MatmulConfig, blocks: int) -> MatmulConfig:
    """The configuration with hints for L2: data that is read once makes room for data that is read again. It has no more stages
    than a block fills.
    """
    p = problem.swapped if config.swapped else problem
    tiles_m, tiles_n = -(-p.M // config.tile_m), -(-p.N // config.tile_n)
    return changed(
        config,
        stages=_filled_stages(p, config, tiles_m * tiles_n * p.parts * prod(p.batch), blocks),
        group=max(min(band(p, config, blocks), tiles_m) // config.cluster, 1),
        a_hint="evict_first" if tiles_n <= config.cluster_n else None,
        b_hint="evict_first" if tiles_m <= config.cluster else None,
    )


def _filled_stages(p: Problem, t: MatmulConfig, tiles: int, blocks: int) -> int:
    """The stages of a configuration without those that no block fills, if each block has one of the `tiles`: with less SMEM
    72 products of 5 to 15 us took 0.946 of the time, and no more than 1.03.
    """
    other = p.scaled or p.promoted or p.softmax or p.sparse or p.int4 or is_mixed(p) or p.gate is not None
    return t.stages if other or t.ping_pong or tiles > blocks else min(t.stages, max(steps_of(p, t.tile_k), 2))


@cache
def choose(problem: Problem, blocks: int, plain: bool = True, reads: Reads = EVEN, even: bool = False) -> MatmulConfig:
    """The configuration of the fast kernel with the best estimate. `plain`: products are stored without an epilogue.
    `reads`: as of `clocks`; `even`: it has no low tiles.
    """
    options = [c for c in _options(problem, blocks, plain, reads) if not (even and c.low_tiles)]
    return _finished(problem, options[fastest(problem, options, blocks, reads)], blocks)


def fastest(problem: Problem, options: Sequence[MatmulConfig], blocks: int, reads: Reads = EVEN) -> int:
    """The number of the option with the best estimate, the first of equal ones.

    Those whose products alone take longer are not estimated: an estimate is twenty calls, and a first launch waits for all.
    """
    bounds = [(least_products(problem, c, blocks), number) for number, c in enumerate(options)]
    best = inf, -1
    for bound, number in sorted(bounds):
        if bound > best[0]:
            break
        best = min(best, (clocks(problem, options[number], blocks, reads), number))
    return best[1]


VARIED = 1.01  # the factor that puts a variant with an equal estimate behind the first


def space(problem: Problem, blocks: int, plain: bool = True, reads: Reads = EVEN) -> list[tuple[float, MatmulConfig]]:
    """(clocks, configuration) of the fast kernel, all that are worth a trial; the result of `choose` is first.

    Each configuration that `choose` compares also has variants: other bands of tiles in L2, and one more stage in place
    of the results' second buffer.
    """
    found: list[tuple[float, MatmulConfig]] = []
    for option in _options(problem, blocks, plain, reads):
        time, made = clocks(problem, option, blocks, reads), _finished(problem, option, blocks)
        found += [(time * VARIED**i, c) for i, c in enumerate([made, *_variants(problem, made)])]
    return found


def _variants(problem: Problem, config: MatmulConfig) -> list[MatmulConfig]:
    p = problem.swapped if config.swapped else problem
    found: list[MatmulConfig] = []
    if config.epilogue_stages > 1 and not problem.softmax:
        freed = config.rows * config.consumers * config.epilogue_n * problem.out_dtype.itemsize
        more = freed // stage_bytes(p, config.tile_m, config.tile_n, config.tile_k)
        taken = config.stages * stage_bytes(p, config.tile_m, config.tile_n, config.tile_k) + freed
        more = max(more, (SMEM - BARRIERS - taken) // stage_bytes(p, config.tile_m, config.tile_n, config.tile_k))
        if more and config.stages + more <= DEEPEST:
            found.append(changed(config, stages=config.stages + more, epilogue_stages=1))
    tiles = max(-(-p.M // config.tile_m) // config.cluster, 1)
    groups = {min(group, tiles) for group in (8, 16)} - {config.group}
    return found + [changed(config, group=group) for group in sorted(groups)]
