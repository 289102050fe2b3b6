"""The sizes that Hopper's fast product may have: stages that fill SMEM, and the form of a tile's store."""

from __future__ import annotations

from kernel_dsl.layouts import meta_step

from ..blocks import steps_of
from ..product_kernels.consumer_product import from_registers
from ..product_kernels.fed_scales import FedScales, feeds
from ..product_kernels.whole_lines import pitch, short_part
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from .families import is_mixed as mixes

SMEM = 232448  # bytes a block has on Hopper
BARRIERS = 1024  # bytes that suffice for barriers and alignment
STEP_BYTES = 128  # bytes of K in one stage: the widest swizzle
DEEPEST = 12  # the most stages
LEAST_RING = 4  # stages that suffice beside scales by blocks: 4096 x 7168 x 2048 took 103 us with 4, and 112 with 5
WIDE_STAGES = 4  # this many stages are better than half as many of twice the depth
LONG_PART = 512  # bytes of a row that lanes store at a time where more would leave fewer stages
MOSTLY_STORED = 2  # steps of a tile up to which it waits for its store, and has buffers for all of it


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
    by_lanes = bool(problem.lanes) and problem.plain and not ping_pong
    if by_lanes:
        limit = tile_n if steps_of(problem, tile_k) <= MOSTLY_STORED else LONG_PART // item
        epilogue_n = tile_n // next(n for n in range(1, tile_n) if tile_n % (8 * n) == 0 and tile_n // n <= limit)
    while tile_n % epilogue_n:
        epilogue_n //= 2
    ring = 1 if ping_pong or tile_n == epilogue_n or by_lanes else 2
    if ring > 1 and not problem.lanes and steps_of(problem, tile_k) <= MOSTLY_STORED:
        ring = tile_n // epilogue_n
    held = tile_m * (consumers if ping_pong else 1) * epilogue_n * ring
    if by_lanes:
        held = max(
            tile_m // 2 * pitch(epilogue_n, problem.out_dtype),
            tile_m * short_part(epilogue_n, tile_m // consumers, problem),
        )
    rest = SMEM - BARRIERS - (0 if problem.softmax and not problem.exponentials else held * item)
    if in_pairs(problem) and problem.int4 % (2 * tile_k) == 0:
        deeper = 2 * stage_bytes(problem, tile_m, tile_n, tile_k)
        # rows of 64 bytes for TMA, and half as many factors and waits
        tile_k *= 2 if rest >= WIDE_STAGES * deeper else 1
    stages = min(rest // stage_bytes(problem, tile_m, tile_n, tile_k), DEEPEST)
    freed = (rest + held // 2 * item) // stage_bytes(problem, tile_m, tile_n, tile_k)
    if ring == 2 and not problem.softmax and stages < WIDE_STAGES <= freed:
        # 256 x 128 took 1.05 to 1.14 of the time with three stages
        stages, ring = WIDE_STAGES, 1
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


def gates(p: Problem, t: MatmulConfig) -> bool:
    """Whether a configuration can do a gate's two products: halves of a tile are whole panels of B."""
    if p.gate is None:
        return True
    half = t.tile_n // 2
    panels = p.b_transposed or half * p.b_dtype.itemsize % 128 == 0
    return panels and half % t.epilogue_n == 0 and half % 8 == 0 and t.blocks == 1 and not t.swapped
