"""A small cost model: which sizes the matmul kernel should have for a problem. No measuring, the same answer always."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .persistent_matmul import MatmulConfig, Problem

SMEM = 232448  # bytes a block has on Hopper
BARRIERS = 1024  # what barriers and alignment may take
STEP_BYTES = 128  # of K in one stage: the widest swizzle
# one multiprocessor, a clock: multiply-adds of 16-bit operands (8-bit: twice, tf32: half), bytes from L2
MADS, L2_BYTES = 2048, 44
DRAM_BYTES = 2600  # bytes a clock of the whole GPU (4.8 TB/s at 1.83 GHz)
START = 1800  # clocks to fill the pipeline at the start of a block, and to drain it
EDGE = 250  # clocks that a tile costs beside its products: barriers, first loads
TIED = 1.02  # what blocks of a cluster lose by waiting for each other
TURNS = 1.03  # what consumers lose that take turns: for a moment both multiply
SHOWS = 0.05  # how much of the lesser of two times shows, where one hides behind the other

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
# 32-bit registers a lane that a consumer may accumulate in: the rest is for addresses, or for an epilogue's arithmetic
ACCUMULATORS, ACCUMULATORS_BESIDE_MORE = 192, 128
CLUSTERS = ((1, 1), (2, 1), (1, 2))  # along M, along N


def stage_bytes(problem: Problem, tile_m: int, tile_n: int, tile_k: int) -> int:
    """SMEM of one stage."""
    return (tile_m * problem.dtype.itemsize + tile_n * problem.b_dtype.itemsize) * tile_k


def configure(
    problem: Problem, tile_m: int, tile_n: int, consumers: int, ping_pong: bool = False
) -> MatmulConfig | None:
    """Fill SMEM with stages for a tile; None where not even two fit."""
    tile_k = STEP_BYTES // max(problem.dtype.itemsize, problem.b_dtype.itemsize)
    item = problem.out_dtype.itemsize
    # whole rows of a swizzle; with two tiles of the result in SMEM, half of that leaves room for another stage
    epilogue_n = min((64 if ping_pong else 128) // item if item < 4 else 32, tile_n)
    while tile_n % epilogue_n:
        epilogue_n //= 2
    ring = 2 if tile_n // epilogue_n % 2 == 0 else 1
    held = tile_m * (consumers if ping_pong else 1)
    rest = SMEM - BARRIERS - held * epilogue_n * item * ring
    stages = min(rest // stage_bytes(problem, tile_m, tile_n, tile_k), 8)
    if stages < 2:
        return None
    return MatmulConfig(
        tile_m, tile_n, tile_k, stages, consumers, epilogue_n=epilogue_n, epilogue_stages=ring, ping_pong=ping_pong
    )


def overlapped(one: float, other: float) -> float:
    """How long two things take that run at the same time."""
    return max(one, other) + SHOWS * min(one, other)


def clocks(problem: Problem, config: MatmulConfig, blocks: int) -> float:
    """An estimate of how long the kernel takes."""
    p, t = problem, config
    tiles = -(-p.M // (t.tile_m * t.cluster)) * -(-p.N // (t.tile_n * t.cluster_n))
    places = max(blocks // t.blocks, 1)
    # multiprocessors without a tile in the last wave leave their share of power and of L2 to the others
    waves = (-(-tiles // places) + tiles / places) / 2 if tiles > places else 1.0
    steps = -(-p.K // t.tile_k)
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize)
    # a narrow B leaves the tensor cores waiting for SMEM
    narrow = max(1.0, 128 / t.tile_n) if t.consumers == 2 else max(1.0, 64 / t.tile_n)
    products = t.tile_m * t.tile_n * t.tile_k / rate * narrow
    # rows that are not there are not loaded, and what a cluster shares is loaded once
    rows_a, rows_b = min(t.tile_m, p.M) / t.cluster_n, min(t.tile_n, p.N) / t.cluster
    loads = (rows_a * p.dtype.itemsize + rows_b * p.b_dtype.itemsize) * t.tile_k / L2_BYTES
    step = overlapped(products, loads) * (TURNS if t.ping_pong else 1.0)
    store = t.tile_m * t.tile_n * p.out_dtype.itemsize / 64 + EDGE
    # in turns, one consumer's store hides behind the other's products; the last one's shows
    work = waves * max(steps * step, store / t.consumers) + store if t.ping_pong else waves * (steps * step + store)
    # all of A and B once, and again as often as a band of tiles walks past L2
    bytes_ = p.M * p.K * p.dtype.itemsize + p.N * p.K * p.b_dtype.itemsize + p.M * p.N * p.out_dtype.itemsize
    return (overlapped(work, bytes_ / DRAM_BYTES) + START) * (TIED if t.blocks > 1 else 1.0)


@cache
def choose(problem: Problem, blocks: int, plain: bool = True) -> MatmulConfig:
    """The configuration that the estimate likes best. `plain`: products are stored as they are."""
    room = ACCUMULATORS if plain and not problem.bias and not problem.accumulate else ACCUMULATORS_BESIDE_MORE
    made = [c for c in (configure(problem, *tile) for tile in TILES) if c is not None]
    made = [c for c in made if c.rows * c.tile_n <= room * 128]
    options = [replace(c, cluster=m, cluster_n=n) for c in made for m, n in CLUSTERS if m * n <= blocks]
    best = min(options, key=lambda c: clocks(problem, c, blocks))
    tiles_m, tiles_n = -(-problem.M // best.tile_m), -(-problem.N // best.tile_n)
    group = max(min(8 if best.tile_m >= 128 else 16, tiles_m) // best.cluster, 1)
    # what is read once makes room in L2 for what is read again
    return replace(
        best,
        group=group,
        a_hint="evict_first" if tiles_n <= best.cluster_n else None,
        b_hint="evict_first" if tiles_m <= best.cluster else None,
    )
