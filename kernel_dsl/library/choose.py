"""A small cost model: which sizes the matmul kernel should have for a problem. No measuring, the same answer always."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .persistent_matmul import MatmulConfig, Problem

SMEM = 232448  # bytes a block has on Hopper
BARRIERS = 1024  # what barriers and alignment may take
STEP_BYTES = 128  # of K in one stage: the widest swizzle
DEEPEST = 12  # stages
# one multiprocessor, a clock: multiply-adds of 16-bit operands (8-bit: twice, tf32: half), bytes from L2
MADS, L2_BYTES = 2048, 60
WIDENED = 10  # elements of a left side that is widened in registers: 128 x 64 of them took 900 clocks
DRAM_BYTES = 2300  # bytes a clock of the whole GPU (4 of the 4.8 TB/s, at 1.75 GHz)
KEPT = 1.07  # what DRAM has to do more where weights can't be marked as read once: they drive out what must be written
START = 1800  # clocks to fill the pipeline at the start of a block, and to drain it
EDGE = 250  # clocks that a tile costs beside its products: barriers, first loads
TIED = 1.04  # what blocks of a cluster lose by waiting for each other
SHOWS = 0.05  # how much of the lesser of two times shows, where one hides behind the other
SLIVER = 32  # columns: a product of fewer takes as long, for its other operand is read from SMEM all the same

# (tile_m, tile_n, consumers, whether they take turns)
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
THIN = (16, 32)  # columns of products, where one side has no more
# 32-bit registers a lane that a consumer may accumulate in: the rest is for addresses, or for an epilogue's arithmetic
ACCUMULATORS, ACCUMULATORS_BESIDE_MORE = 192, 128
CLUSTERS = ((1, 1), (2, 1), (1, 2))  # along M, along N


def stage_bytes(problem: Problem, tile_m: int, tile_n: int, tile_k: int) -> int:
    """SMEM of one stage."""
    return (tile_m * problem.dtype.itemsize + tile_n * problem.b_dtype.itemsize) * tile_k


def configure(
    problem: Problem, tile_m: int, tile_n: int, consumers: int, ping_pong: bool = False
) -> MatmulConfig | None:
    """Fill SMEM with stages for a tile; None where not even two fit, or the kernel has no such form.

    A left side that is widened in registers is never multiplied in turns: `widened_product` waits for stages without
    regard to whose turn they are. Nor by products of an odd width: the widening hides behind wide ones.
    """
    if is_mixed(problem) and (ping_pong or tile_n % 64):
        return None
    tile_k = STEP_BYTES // max(problem.dtype.itemsize, problem.b_dtype.itemsize)
    item = problem.out_dtype.itemsize
    # whole rows of a swizzle; in turns, half of that leaves room for another stage
    epilogue_n = min((64 if ping_pong else 128) // item if item < 4 else 32, tile_n)
    while tile_n % epilogue_n:
        epilogue_n //= 2
    ring = 1 if ping_pong or tile_n == epilogue_n else 2
    held = tile_m * (consumers if ping_pong else 1)
    rest = SMEM - BARRIERS - held * epilogue_n * item * ring
    stages = min(rest // stage_bytes(problem, tile_m, tile_n, tile_k), DEEPEST)
    if stages < 2:
        return None
    return MatmulConfig(
        tile_m, tile_n, tile_k, stages, consumers, epilogue_n=epilogue_n, epilogue_stages=ring, ping_pong=ping_pong
    )


def is_mixed(problem: Problem) -> bool:
    """Whether the left side is widened in registers."""
    return problem.dtype.is_integer and problem.b_dtype.is_float


def overlapped(one: float, other: float) -> float:
    """How long two things take that run at the same time."""
    return max(one, other) + SHOWS * min(one, other)


def clocks(problem: Problem, config: MatmulConfig, blocks: int) -> float:
    """An estimate of how long the kernel takes."""
    p, t = problem.swapped if config.swapped else problem, config
    tiles = -(-p.M // (t.tile_m * t.cluster)) * -(-p.N // (t.tile_n * t.cluster_n))
    waves = -(-tiles // max(blocks // t.blocks, 1))
    steps = -(-p.K // t.tile_k)
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize)
    # a narrow B leaves the tensor cores waiting for SMEM
    narrow = max(1.0, 128 / t.tile_n) if t.consumers == 2 else max(1.0, 64 / t.tile_n)
    narrow = max(1.0, SLIVER / t.tile_n) if t.tile_n in THIN else narrow
    products = t.tile_m * t.tile_n * t.tile_k / rate * narrow
    if is_mixed(p):
        products = max(products, t.tile_m * t.tile_k / WIDENED)
    # rows that are not there are filled all the same; what a cluster shares is loaded once
    rows_a, rows_b = t.tile_m / t.cluster_n, t.tile_n / t.cluster
    loads = (rows_a * p.dtype.itemsize + rows_b * p.b_dtype.itemsize) * t.tile_k / L2_BYTES
    step = overlapped(products, loads)
    store = t.tile_m * t.tile_n * p.out_dtype.itemsize / 64 + EDGE
    # in turns, one consumer's store hides behind the other's products; the last one's shows
    work = waves * max(steps * step, store / t.consumers) + store if t.ping_pong else waves * (steps * step + store)
    # all of A and B once, and again as often as a band of tiles walks past L2
    bytes_ = p.M * p.K * p.dtype.itemsize + p.N * p.K * p.b_dtype.itemsize + p.M * p.N * p.out_dtype.itemsize
    bytes_ *= 1.0 if t.tile_m * t.cluster >= p.M or t.tile_n * t.cluster_n >= p.N else KEPT
    return (overlapped(work, bytes_ / DRAM_BYTES) + START) * (TIED if t.blocks > 1 else 1.0)


def thin_tiles(problem: Problem) -> list[MatmulConfig]:
    """Tiles for a side so thin that its rows are the columns of one product: those of b, or of a in the transposed one."""
    made: list[MatmulConfig | None] = []
    for p, swapped in ((problem, False), (problem.swapped, True)):
        tile_n = next((n for n in THIN if n >= p.N), 0)
        if tile_n and not is_mixed(problem):
            tiles = [configure(p, tile_m, tile_n, tile_m // 64) for tile_m in (128, 64)]
            made += [c and replace(c, swapped=swapped) for c in tiles]
    return [c for c in made if c is not None]


def band(problem: Problem, config: MatmulConfig, blocks: int) -> int:
    """How many tiles of M go together in L2: as measured, for the times differ by 2 % at most.

    2048 rows are never worse, but for short products, and for B along N where all tiles run at once.
    """
    at_once = -(-problem.M // config.tile_m) * -(-problem.N // config.tile_n) <= blocks
    short = problem.K * problem.dtype.itemsize <= 16 * STEP_BYTES
    return (1024 if short or (at_once and not problem.b_transposed) else 2048) // config.tile_m


@cache
def choose(problem: Problem, blocks: int, plain: bool = True) -> MatmulConfig:
    """The configuration that the estimate likes best. `plain`: products are stored as they are."""
    if is_mixed(problem.swapped):
        return replace(choose(problem.swapped, blocks, plain), swapped=True)
    room = ACCUMULATORS if plain and not problem.bias and not problem.accumulate else ACCUMULATORS_BESIDE_MORE
    made = [c for c in (configure(problem, *tile) for tile in TILES) if c is not None]
    made = [c for c in made if c.rows * c.tile_n <= room * 128]
    options = [replace(c, cluster=m, cluster_n=n) for c in made for m, n in CLUSTERS if m * n <= blocks]
    best = min(options + thin_tiles(problem), key=lambda c: clocks(problem, c, blocks))
    p = problem.swapped if best.swapped else problem
    tiles_m, tiles_n = -(-p.M // best.tile_m), -(-p.N // best.tile_n)
    # what is read once makes room in L2 for what is read again
    return replace(
        best,
        group=max(min(band(p, best, blocks), tiles_m) // best.cluster, 1),
        a_hint="evict_first" if tiles_n <= best.cluster_n else None,
        b_hint="evict_first" if tiles_m <= best.cluster else None,
    )
