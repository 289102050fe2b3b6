"""A small cost model: which sizes the matmul kernel should have for a problem. No measuring, the same answer always."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from .persistent_matmul import MatmulConfig, Problem

SMEM = 232448  # bytes a block has on Hopper
BARRIERS = 1024  # what barriers and alignment may take
STEP_BYTES = 128  # of K in one stage: the widest swizzle
# one multiprocessor, a clock: multiply-adds of 16-bit operands (8-bit: twice, tf32: half), bytes from L2
MADS, L2_BYTES = 2048, 40
DRAM_BYTES = 2600  # bytes a clock of the whole GPU (4.8 TB/s at 1.83 GHz)
START = 1800  # clocks to fill the pipeline at the start of a block, and to drain it
EDGE = 250  # clocks that a tile costs beside its products: barriers, first loads

# (tile_m, tile_n, consumers)
TILES = (
    (128, 256, 2),
    (256, 128, 2),
    (128, 192, 2),
    (128, 128, 2),
    (128, 64, 2),
    (64, 256, 1),
    (64, 128, 1),
    (64, 64, 1),
)


def stage_bytes(problem: Problem, tile_m: int, tile_n: int, tile_k: int) -> int:
    """SMEM of one stage."""
    return (tile_m * problem.dtype.itemsize + tile_n * problem.b_dtype.itemsize) * tile_k


def configure(problem: Problem, tile_m: int, tile_n: int, consumers: int) -> MatmulConfig | None:
    """Fill SMEM with stages for a tile; None where not even two fit."""
    tile_k = STEP_BYTES // max(problem.dtype.itemsize, problem.b_dtype.itemsize)
    item = problem.out_dtype.itemsize
    epilogue_n = min(128 // item if item < 4 else 32, tile_n)
    while tile_n % epilogue_n:
        epilogue_n //= 2
    ring = 2 if tile_n // epilogue_n % 2 == 0 else 1
    rest = SMEM - BARRIERS - tile_m * epilogue_n * item * ring
    stages = min(rest // stage_bytes(problem, tile_m, tile_n, tile_k), 8)
    if stages < 2:
        return None
    return MatmulConfig(tile_m, tile_n, tile_k, stages, consumers, epilogue_n=epilogue_n, epilogue_stages=ring)


def clocks(problem: Problem, config: MatmulConfig, blocks: int) -> float:
    """An estimate of how long the kernel takes."""
    p, t = problem, config
    tiles = -(-p.M // t.tile_m) * -(-p.N // t.tile_n)
    waves = -(-tiles // blocks)
    steps = -(-p.K // t.tile_k)
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize)
    # a narrow B leaves the tensor cores waiting for SMEM
    narrow = max(1.0, 128 / t.tile_n) if t.consumers == 2 else max(1.0, 64 / t.tile_n)
    products = t.tile_m * t.tile_n * t.tile_k / rate * narrow
    loads = stage_bytes(p, t.tile_m, t.tile_n, t.tile_k) / L2_BYTES
    store = t.tile_m * t.tile_n * p.out_dtype.itemsize / 64
    tile = steps * max(products, loads) + store + EDGE
    # all of A and B once, and again as often as a band of tiles walks past L2
    bytes_ = p.M * p.K * p.dtype.itemsize + p.N * p.K * p.b_dtype.itemsize + p.M * p.N * p.out_dtype.itemsize
    return max(waves * tile, bytes_ / DRAM_BYTES) + START


@cache
def choose(problem: Problem, blocks: int) -> MatmulConfig:
    """The configuration that the estimate likes best."""
    options = [c for c in (configure(problem, *tile) for tile in TILES) if c is not None]
    best = min(options, key=lambda c: clocks(problem, c, blocks))
    tiles_m = -(-problem.M // best.tile_m)
    return replace(best, group=min(8 if best.tile_m >= 128 else 16, tiles_m))
