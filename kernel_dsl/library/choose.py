"""A small cost model chooses the sizes of Hopper's fast product. It measures nothing, so its answer is always the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from ..dataclass import changed
from ..layouts import meta_step
from .blocks import clusters_at_once, steps_of
from .consumer_product import from_registers
from .families import is_mixed as mixes
from .fed_scales import FedScales, feeds
from .fed_scales import in_pairs as by_twos
from .matmul_config import MatmulConfig
from .problem import Problem
from .promoted_product import RUN

SMEM = 232448  # bytes a block has on Hopper
BARRIERS = 1024  # bytes that suffice for barriers and alignment
STEP_BYTES = 128  # bytes of K in one stage: the widest swizzle
DEEPEST = 12  # the most stages
LEAST_RING = 4  # stages that suffice beside scales by blocks: 4096 x 7168 x 2048 took 103 us with 4, and 112 with 5
WIDE_STAGES = 4  # this many stages are better than half as many of twice the depth
# one multiprocessor, a clock: multiply-adds of 16-bit operands (8-bit: twice, tf32: half), bytes from L2, bytes to SMEM, of which
# a cluster loads some for its other blocks
MADS, L2_BYTES, SMEM_BYTES = 2048, 56, 64
WIDENED = 10  # elements a clock of a left side that is widened in registers: 128 x 64 of them took 900 clocks
WIDENED_PAIRS = 20  # the same for 4 bits, two at a time: 3.9 instructions for each element, not 6.8
# extra clocks of a step if registers transpose a left side of 32 bits: beside another warpgroup's wide product,
# otherwise
TURNED_BESIDE_WIDE, TURNED = 275, 500
# the factor of the time of an operand's loads if its rows are 16 bytes from a multiple of 32 apart, so that half of them begin
# within a sector: 4.8 to 5.1 clocks for 128 bytes
BROKEN = 2.0
# bytes across K: broken rows of fewer take as long. 8 x 6648 x 5512 TT took 36.5 us, and 30.7 with a copied
NARROW = 64
UNEVEN_PITCH = 1.25  # the same if they are 32 bytes from a multiple of 64 apart
# the part of the smaller side's loads that remains then if two blocks share only them: 5000^3 took 495 us instead of 490
SHARED = 0.9
Reads = tuple[float, float]  # such factors of a and b
EVEN: Reads = (1.0, 1.0)
LONELY = 0.6  # the part of that rate for a single warpgroup, because nothing hides its waits
DRAM_BYTES = 2300  # bytes a clock of the whole GPU (4 of the 4.8 TB/s, at 1.75 GHz)
# the time of a byte of the result, divided by that of a byte of an operand: in general; if TMA stores rows that cut
# sectors of 32 bytes; for parts of sums, which stay in L2
WRITTEN, RAGGED = 1.3, 2.1
KEPT = 1.07  # the factor of DRAM traffic if weights can't be marked as read once: they evict data that must be written
# clocks to fill a pipeline at the start of a block, and to drain it: of any kernel, of the fast one
START, FAST_START = 1660, 2340
# clocks that a tile costs beside its products: barriers, first loads; and more if few steps hide them
EDGE, EDGE_ALONE = 250, 215
TIED = 1.04  # what blocks of a cluster lose by waiting for each other
SINGLE = 1.25  # the factor of a step's time if consumers take turns and blocks have one tile: one consumer has none
TOGETHER = 4000  # extra clocks until a cluster's blocks have started and met: 2 to 3 us of a product of 12 us
SHOWS = 0.05  # the part of the lesser of two times that remains if two activities overlap
EXPONENTIAL = 1 / 12  # clocks for each element in a sum of a softmax
# clocks for each byte that lanes store, where TMA can't, of any alignment: 1.6 TB/s; with one warpgroup of them, 3.3
LANE_STORE, LANE_STORE_ALONE = 0.14, 0.07
LANE_TILE = 1300  # clocks more for each next tile of one warpgroup whose lanes store, if few steps hide its start
LINES = 256  # bytes of a row that lanes store together: half of that took 1.1 to 1.3 of the time
WIDEST = 128  # columns of these: of more bytes they spill
MOSTLY_STORED = 2  # steps of a tile up to which it waits for its store, and has buffers for all of it
# columns, and the part that such a tile of half of them takes more, because it stores shorter pieces of rows
WIDEST_TILE, PIECES = 256, 0.12
# steps of a tile up to which turns take longer, and the factor; so they do where lanes store
BRIEF, BRIEF_TURNS = 4, 1.1
SPARSE = 1.7  # the speed-up of a sparse side: SMEM can't deliver the other side in half of the time
SLIVER = 32  # columns: a product of fewer takes as long, because it still reads its other operand from SMEM

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
# widths between those, for shapes whose tiles just exceed a whole number of waves, or fill three quarters of one
BETWEEN = (96, 112, 144, 160, 176, 208, 224, 240)
UNEVEN = 1.04  # the least predicted gain for such a width, because its constants were not measured
CHUNK = 100  # clocks for each part of a tile in its store; narrow tiles have many parts
# clocks of a step in which neither warpgroup multiplies: with two products in flight, with one
IDLE_IN_PAIRS, IDLE_BY_ONE = 265, 390
# where factors come with the stages: the part of the products' clocks, and clocks with two consumers and three, that a step takes
# more; the same for columns that aren't a multiple of 64, and for each column that has a factor
FED_SHARE, IDLE_FED, IDLE_FED_BY_THREE, IDLE_UNEVEN, IDLE_COLUMN = 0.31, 80, 30, 30, 2.2
PROMOTION = 60  # clocks of a promotion beside its multiply-adds: waits, factors
THIN = (16, 32)  # columns of products with a thin side
# 32-bit registers a lane that a consumer may accumulate in: the rest is for addresses, or for an epilogue of few or many steps
ACCUMULATORS, ACCUMULATORS_BESIDE_MORE, ACCUMULATORS_BESIDE_MANY = 192, 128, 96
CLUSTERS = ((1, 1), (2, 1), (1, 2))  # along M, along N
SQUARE = (2, 2)  # where loads take longer


def stage_bytes(problem: Problem, tile_m: int, tile_n: int, tile_k: int) -> int:
    """The bytes of SMEM of one stage."""
    if problem.sparse:
        marks = 2 * tile_m * 4 * (tile_k // meta_step(problem.dtype))
        return (tile_m * problem.dtype.itemsize // 2 + tile_n * problem.b_dtype.itemsize) * tile_k + marks
    if in_pairs(problem):
        factors = 2 * tile_m if problem.mxfp4 else 4 * tile_m * (1 + problem.int4_zeros)
        return tile_m * tile_k // 2 + tile_n * problem.b_dtype.itemsize * tile_k + factors
    factors = 4 * FedScales(problem, tile_m, tile_n).length if feeds(problem, tile_m) else 0
    return (tile_m * problem.dtype.itemsize + tile_n * problem.b_dtype.itemsize) * tile_k + factors


def configure(
    problem: Problem, tile_m: int, tile_n: int, consumers: int, ping_pong: bool = False
) -> MatmulConfig | None:
    """A configuration that fills SMEM with stages for a tile; None if not even two fit, or the kernel has no such form.
    A left side that goes through registers excludes turns, because `register_product` waits for all stages. It also
    excludes products of an odd width, because only wide products overlap with the whole conversion.
    """
    if from_registers(problem) and (ping_pong or (tile_n % 64 and not in_pairs(problem))):
        return None
    if ping_pong and problem.lanes and problem.out_dtype.itemsize == 1:
        return None  # bytes that lanes store would spill beside 192 sums
    tile_k = STEP_BYTES // max(problem.dtype.itemsize, problem.b_dtype.itemsize)
    item = problem.out_dtype.itemsize
    # whole rows of a swizzle; with turns half a row leaves room for another stage; a gate has half as many columns
    halved = ping_pong or (item == 1 and problem.gate is not None)
    epilogue_n = min(32 if item >= 4 or problem.busy else (64 if halved else 128) // item, tile_n)
    by_lanes = bool(problem.lanes) and problem.plain and not ping_pong and tile_m == 64 * consumers
    if by_lanes:
        epilogue_n = min(LINES // item, WIDEST, tile_n)
    while tile_n % epilogue_n:
        epilogue_n //= 2
    ring = 1 if ping_pong or tile_n == epilogue_n or by_lanes else 2
    if ring > 1 and not problem.lanes and steps_of(problem, tile_k) <= MOSTLY_STORED:
        ring = tile_n // epilogue_n
    held = tile_m * (consumers if ping_pong else 1)
    rest = SMEM - BARRIERS - (0 if problem.softmax and not problem.exponentials else held * epilogue_n * item * ring)
    deeper = 2 * stage_bytes(problem, tile_m, tile_n, tile_k)
    if in_pairs(problem) and problem.int4 % (2 * tile_k) == 0 and rest >= WIDE_STAGES * deeper:
        tile_k *= 2  # rows of 64 bytes for TMA, and half as many factors and waits
    stages = min(rest // stage_bytes(problem, tile_m, tile_n, tile_k), DEEPEST)
    if stages < 2:
        return None
    if feeds(problem, tile_m):  # whole rings of stages are faster, so no steps should be left
        steps = steps_of(problem, tile_k)
        stages = next((n for n in range(stages, LEAST_RING - 1, -1) if steps % n == 0), stages)
    return MatmulConfig(
        tile_m, tile_n, tile_k, stages, consumers, epilogue_n=epilogue_n, epilogue_stages=ring, ping_pong=ping_pong
    )


def in_pairs(problem: Problem) -> bool:
    """Whether the left side has 4-bit elements, which are widened two at a time."""
    return bool(problem.int4) and problem.dtype.is_integer


def is_mixed(problem: Problem) -> bool:
    """Whether the left side is widened in registers."""
    return problem.dtype.is_integer and mixes(problem.dtype, problem.b_dtype)


def overlapped(one: float, other: float) -> float:
    """The time of two activities that overlap."""
    return max(one, other) + SHOWS * min(one, other)


def clocks(problem: Problem, config: MatmulConfig, blocks: int, reads: Reads = EVEN) -> float:
    """An estimate of the kernel's time in clocks. `reads`: factors of the time of loads, such as `BROKEN`."""
    read_a, read_b = reads[::-1] if config.swapped else reads
    p, t = problem.swapped if config.swapped else problem, config
    width = t.tile_n if p.gate is None else t.tile_n // 2
    tiles = -(-p.M // (t.tile_m * t.cluster)) * -(-p.N // (width * t.cluster_n)) * p.parts * prod(p.batch)
    together, pairs = t.cluster * t.cluster_n, in_pairs(p)
    waves = -(-tiles // clusters_at_once(blocks, together))
    steps = steps_of(p, t.tile_k)
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize) * (SPARSE if p.sparse else 1)
    # a narrow B leaves the tensor cores waiting for SMEM
    narrow = max(1.0, 128 / t.tile_n) if t.consumers == 2 else max(1.0, 64 / t.tile_n)
    narrow = max(1.0, SLIVER / t.tile_n) if t.tile_n in THIN else 1.0 if pairs else narrow
    products = t.tile_m * t.tile_n * t.tile_k / rate * narrow
    if is_mixed(p):
        if pairs:
            rate = WIDENED_PAIRS * (1.0 if t.consumers > 1 else LONELY)
            products = overlapped(products, t.tile_m * t.tile_k / rate)
        else:
            products = max(products, t.tile_m * t.tile_k / WIDENED)
    elif from_registers(p):
        products += TURNED_BESIDE_WIDE if t.consumers > 1 and t.tile_n >= 256 else TURNED
    # rows past the end count, too; a cluster loads shared data once
    rows_a, rows_b = t.tile_m / t.cluster_n, t.tile_n / t.cluster
    if reads != EVEN and t.cluster_n > t.cluster and t.tile_m < t.tile_n:
        rows_a = t.tile_m * SHARED
    if reads != EVEN and t.cluster > t.cluster_n and t.tile_n < t.tile_m:
        rows_b = t.tile_n * SHARED
    if read_b >= BROKEN and not p.b_transposed:
        rows_b = max(rows_b, NARROW / p.b_dtype.itemsize)
    rows_a = rows_a / 2 if p.sparse else rows_a
    rows_a = rows_a / 2 if p.int4 else rows_a
    loads = (rows_a * p.dtype.itemsize * read_a + rows_b * p.b_dtype.itemsize * read_b) * t.tile_k / L2_BYTES
    if together > 1:
        loads = max(loads, stage_bytes(p, t.tile_m, t.tile_n, t.tile_k) / SMEM_BYTES)
    if p.scaled:  # a warpgroup's products, and then its multiply-adds, which other warpgroups' products may hide
        products = max(products, products / t.consumers + t.tile_m * t.tile_n / 128 / t.consumers + PROMOTION)
        if feeds(p, t.tile_m):
            products += FED_SHARE * products + (IDLE_FED if t.consumers < 3 else IDLE_FED_BY_THREE)
            products += IDLE_UNEVEN if t.tile_n % 64 else 0
            products += IDLE_COLUMN * t.tile_n if p.b_scaled == "columns" else 0
        else:
            products += IDLE_IN_PAIRS if by_twos(p, t.tile_m, t.tile_n) else IDLE_BY_ONE
    if p.promoted:
        run = max(RUN // t.tile_k, 1)
        alone = run * products / t.consumers + t.tile_m * t.tile_n / 128 / t.consumers + PROMOTION
        products = max(products, alone / run)
    step = overlapped(products, loads)
    if t.ping_pong and waves == 1:
        step *= SINGLE
    by_lanes = LANE_STORE if t.consumers > 1 else LANE_STORE_ALONE
    each = 0.0 if p.softmax and not p.exponentials else p.out_dtype.itemsize * (by_lanes if p.lanes else 1 / 64)
    each += EXPONENTIAL if p.softmax else 0.0
    store = t.tile_m * t.tile_n * each * (3 if p.keeps else 1) + EDGE + (EDGE_ALONE if steps <= MOSTLY_STORED else 0)
    if t.tile_n in BETWEEN and not p.scaled:
        store += t.tile_n // t.epilogue_n * CHUNK
    # with turns, a consumer's stores overlap with the other's products, except the last; if lanes store, none overlap
    apart = t.ping_pong and not p.lanes
    work = waves * max(steps * step, store / t.consumers) + store if apart else waves * (steps * step + store)
    # all of A and B once, and again for each band of tiles that exceeds L2
    bytes_ = total_bytes(p, not p.lanes and problem.N * p.out_dtype.itemsize % 32 > 0)
    bytes_ *= 1.0 if t.tile_m * t.cluster >= p.M or t.tile_n * t.cluster_n >= p.N else KEPT
    work += TOGETHER if together > 1 else 0.0
    work += (waves - 1) * LANE_TILE if p.lanes and t.consumers == 1 and steps <= MOSTLY_STORED else 0
    made = (overlapped(work, bytes_ / DRAM_BYTES) + FAST_START) * (TIED if together > 1 else 1.0)
    if steps <= MOSTLY_STORED and not p.lanes and not p.softmax:
        made *= 1 + PIECES * (WIDEST_TILE / max(t.tile_m if t.swapped else width, WIDEST_TILE // 2) - 1)
    made *= BRIEF_TURNS if t.ping_pong and (steps <= BRIEF or p.lanes) else 1.0
    return made * (UNEVEN if t.tile_n in BETWEEN and not p.scaled else 1.0)


def least_clocks(p: Problem, blocks: int) -> float:
    """A lower bound of the clocks of any kernel of tensor cores, with any number of parts of K."""
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize) * (SPARSE if p.sparse else 1)
    products = prod(p.batch) * p.M * p.N * (3 * p.depth if p.thrice else p.K) / rate / blocks
    return max(products, total_bytes(p) / DRAM_BYTES) + START


def total_bytes(p: Problem, ragged: bool = False) -> float:
    """Bytes of both operands and the result; those of the result have a factor for the speed of its stores."""
    right = prod(p.b_batch) * p.N * p.K * p.b_dtype.itemsize * (1 if p.gate is None else 2)
    read = prod(p.a_batch) * p.M * p.K * p.dtype.itemsize / (2 if p.sparse or p.int4 else 1) + right
    written = prod(p.batch) * p.parts * p.M * p.N * p.out_dtype.itemsize * (3 if p.keeps else 1)
    return read + written * (1.0 if p.parts > 1 else RAGGED if ragged else WRITTEN)


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
            made += [c and changed(c, swapped=swapped) for c in tiles]
    return [c for c in made if c is not None]


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


def band(problem: Problem, config: MatmulConfig, blocks: int) -> int:
    """The number of tiles of M in a band that shares L2, as measured.

    Times differ by 2 % at most. 2048 rows are never worse, except for short products, for B along N if all tiles run at
    once, and for scales by blocks of K: 8192^3 took 834 us with them, 841 with 1024 and 825 with 1536.
    """
    at_once = -(-problem.M // config.tile_m) * -(-problem.N // config.tile_n) <= blocks
    if problem.scaled:
        return 1536 // config.tile_m
    short = problem.K * problem.dtype.itemsize <= 16 * STEP_BYTES
    if problem.K * problem.dtype.itemsize <= STEP_BYTES:
        return 1  # neighbours along N store neighbouring parts of rows
    return (1024 if short or (at_once and not problem.b_transposed) else 2048) // config.tile_m


def needs_swap(problem: Problem) -> bool:
    """Whether only the transposed product is possible, because the side that goes through registers must be the left one."""
    return (
        not problem.sparse
        and from_registers(problem.swapped)
        and (is_mixed(problem.swapped) or not from_registers(problem))
    )


def gates(p: Problem, t: MatmulConfig) -> bool:
    """Whether a configuration can do a gate's two products: halves of a tile are whole panels of B."""
    if p.gate is None:
        return True
    half = t.tile_n // 2
    panels = p.b_transposed or half * p.b_dtype.itemsize % 128 == 0
    return panels and half % t.epilogue_n == 0 and half % 8 == 0 and t.blocks == 1 and not t.swapped


def scaled_tiles(problem: Problem) -> Sequence[tuple[int, int, int, bool]]:
    """Those of `SCALED_TILES` that a problem whose sums are promoted may have."""
    narrow = problem.b_scaled == "columns"
    return [t for t in SCALED_TILES if feeds(problem, t[0]) or (t[2] < 3 and (t[1] < 192 or not narrow))]


def _options(problem: Problem, blocks: int, plain: bool, reads: Reads = EVEN) -> list[MatmulConfig]:
    """The possible configurations of the fast kernel, without hints for L2.

    No side of the problem needs to be exchanged.
    """
    room = ACCUMULATORS if plain and problem.plain else ACCUMULATORS_BESIDE_MORE
    room = ACCUMULATORS_BESIDE_MANY if problem.busy else room
    tiles = scaled_tiles(problem) if problem.scaled or problem.promoted else TILES
    # blocks of a cluster whose lanes store wait for each other: 1.7 to 4 times as long as one block each where K is deep
    clusters = CLUSTERS[:1] if problem.lanes else CLUSTERS if reads == EVEN else (*CLUSTERS, SQUARE)
    if problem.softmax:
        # No TMA store overlaps with the next tile's products: on one NVIDIA H200 turns took 1.25 of the time, clusters
        # 1.2, both together 2.1.
        tiles, clusters = [t for t in tiles if not t[3]], CLUSTERS[:1]
    made = [c for c in (configure(problem, *tile) for tile in tiles) if c is not None]
    made += tiles_between(problem)
    made = [c for c in made if c.rows * c.tile_n <= room * 128 and gates(problem, c)]
    options = [
        changed(c, cluster=m, cluster_n=n) if m * n > 1 else c for c in made for m, n in clusters if m * n <= blocks
    ]
    options = [c for c in options if gates(problem, c)]
    return options + thin_tiles(problem)


def _finished(problem: Problem, config: MatmulConfig, blocks: int) -> MatmulConfig:
    """The configuration with hints for L2: data that is read once makes room for data that is read again."""
    p = problem.swapped if config.swapped else problem
    tiles_m, tiles_n = -(-p.M // config.tile_m), -(-p.N // config.tile_n)
    return changed(
        config,
        group=max(min(band(p, config, blocks), tiles_m) // config.cluster, 1),
        a_hint="evict_first" if tiles_n <= config.cluster_n else None,
        b_hint="evict_first" if tiles_m <= config.cluster else None,
    )


@cache
def choose(problem: Problem, blocks: int, plain: bool = True, reads: Reads = EVEN) -> MatmulConfig:
    """The configuration of the fast kernel with the best estimate. `plain`: products are stored without an epilogue.
    `reads`: as of `clocks`.
    """
    if needs_swap(problem):
        return changed(choose(problem.swapped, blocks, plain, (reads[1], reads[0])), swapped=True)
    best = min(_options(problem, blocks, plain, reads), key=lambda c: clocks(problem, c, blocks, reads))
    return _finished(problem, best, blocks)


VARIED = 1.01  # the factor that puts a variant with an equal estimate behind the first


def space(problem: Problem, blocks: int, plain: bool = True, reads: Reads = EVEN) -> list[tuple[float, MatmulConfig]]:
    """(clocks, configuration) of the fast kernel, all that are worth a trial; the result of `choose` is first.

    Each configuration that `choose` compares also has variants: other bands of tiles in L2, and one more stage in place
    of the results' second buffer.
    """
    if needs_swap(problem):
        return [
            (time, changed(c, swapped=True)) for time, c in space(problem.swapped, blocks, plain, (reads[1], reads[0]))
        ]
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
