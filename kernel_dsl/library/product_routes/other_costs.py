"""Cost models and possible sizes of the products other than Hopper's fast one, and the costs of packing and combining."""

from __future__ import annotations

from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.refs import strides_of

from ..blocks import steps_of
from ..product_kernels.combine import height_for, in_flight, partial_problem
from ..product_kernels.lane_product import TILES as LANE_TILES
from ..product_kernels.lane_product import LaneConfig
from ..product_kernels.pack import SECTOR, Packing
from ..product_kernels.tile_product import TileConfig, stores_sectors
from ..product_kernels.vector_product import LANES, VectorConfig
from ..product_kernels.whole_lines import LEAST, word_bytes
from ..products.operands import LINE, why_not_tma
from ..products.problem import Problem
from .families import FP8
from .fast_costs import DRAM_BYTES, MADS, START, overlapped, total_bytes

# Fitted to 7,000 measured routes of 776 products on one NVIDIA H200.
LAUNCH = 2650  # clocks from the end of one kernel to full speed of the next
# more of these for tiles by mma.sync after a packing: the fast kernel starts while the packing ends. Where 800 chose tiles, 17
# shallow products of bytes took 0.79 to 1.0 of their time with the fast kernel: 2583 x 7200 x 3 TN 28.1 us and 35.5
AFTER_PACKING = 2600
FMAS, LANE_SHARE = 128, 0.9  # multiply-adds of lanes in a multiprocessor's clock, and the part reached
LANE_TURNS = (1.0, 1.04, 1.125)  # the factors if copies transpose no side, one side, both sides, by 4 bytes
ALONE, TILE_ALONE = 1.3, 1.2  # the factor for a block that is alone on its multiprocessor: by lanes, by mma.sync
# the time of a tile divided by that of its multiply-adds, if loads from SMEM are the limit
LANE_LOADS = {(128, 128): 1.0, (64, 64): 1.5, (32, 32): 3.0, (8, 128): 2.0, (128, 8): 2.0}
# the part of wgmma's rate that mma.sync reaches, by the tile: small ones load more fragments for each product
MMA_SHARE = {
    (128, 128): 0.34,
    (64, 128): 0.28,
    (64, 64): 0.21,
    (32, 128): 0.2,
    (128, 32): 0.2,
    (16, 128): 0.145,
    (128, 16): 0.145,
}
SLIVER_TF32 = 0.6  # the part of that for tiles of 16 rows or columns of 4-byte elements: 6163 x 32 x 2826 took 52 us
MMA_F64 = 115  # multiply-adds of float64 a clock
# clocks of a step that overlap with nothing: a barrier; with mma.sync and late stages, by bytes that a lane copies at once
STEP_LATENCY, TILE_LATENCY = 250, {16: 790, 8: 300, 4: 300, 2: 780, 1: 780}
REFILLED = 1600  # more of these if stages are filled again: loads to registers wait for GMEM in each step
# pieces that a multiprocessor copies in a clock, by their bytes: along K, across; those of less than 4 bytes by registers
COPIES = {8: (3.3, 3.3), 4: (3.8, 5.3), 2: (2.8, 4.9), 1: (4.3, 4.3)}
# the part of copies by bytes that stores don't hide in a single step: s8 22788 x 12313 x 27 took 507 us
HIDDEN_COPIES = 0.55
# clocks for each byte of a tile's store: if it is most of the work, by whole sectors, or by whole lines; otherwise; and
# for each tile
STORED_SECTORS, STORED_LINES, STORED, TILE = 0.061, 0.076, 0.13, 250
STORED_LINES_SMALL = 0.0535  # of tiles of at most 64 x 64, four of which are on a multiprocessor
# where rows begin within sectors: of tiles of at most 64 x 64, 64 x 128 and more; and the factor for words of 2 bytes
STORED_WHOLE, STORED_WHOLE_HALVES = (0.05, 0.045, 0.062), 1.2
# the part by which bytes from DRAM count more: if a step reads half a line of a row, 2328 x 8 x 8392 NT took 30 us; for tiles of
# 16 rows or columns
SHORT_ROWS, SLIM = 0.7, 0.1
HIGH = 1.2  # the factor for tiles that are stored by lines in several turns
# Products with vectors, of matrices across K and along K: bytes and pieces that a block loads in a clock, clocks of a step's
# latency and of a block beside its steps. Along K fitted to 170 ways to compute 43 products: the chosen ways take 1.01 of the
# fastest way's time, 1.05 before.
VECTOR_BYTES, VECTOR_PIECES, VECTOR_LATENCY, VECTOR_START = (7.1, 2.0), (2.8, 1.6), (1000, 480), (980, 1360)
# pieces that a multiprocessor loads in a clock, the time of a byte divided by that of TMA's; clocks for each sum that is added up
# across lanes; the part of a load that counts if all lanes of a warp load one number
LANES_LOAD, VECTOR_SHARE, VECTOR_SUM, SAME = 9.5, 1.1, 27, 0.7
# of lanes of a warp with rows along K of their own: clocks of a step's latency, of a load and of a multiply-add of the block's
# lanes, of a step of a sum across lanes, and of a block. Rounded from a fit to 19 ways to compute 12 products
APART_CLOCKS, APART_SHOWS = (1000, 2.0, 0.2, 8.0, 900), 0.3  # the part of the lesser of latencies and work that remains
# registers of a lane beside those for numbers, and the blocks that a multiprocessor has at most
VECTOR_REGISTERS, REGISTERS, MOST_BLOCKS = 40, 512, 16
L2_LATENCY = 3000  # clocks of exposed loads of sums
# clocks of each part above so many: 64 x 64 x 32768 took 12.9 us with 64 parts, 11.8 with 32
SWIFT_PARTS, LATE_PART = 16, 100
L2_KEEPS = 30e6  # bytes that are still in L2 when the next kernel reads them
L2_TOTAL = 3900  # bytes a clock of the whole GPU from and to L2
PACK_READS, PACK_KEEPS = 2650, 2300  # bytes a clock of packing: from and to DRAM, to L2
BROKEN_READS = (
    1.45  # the factor of the time of reads if rows begin within a sector: 54 us for both sides of 5000^3, 22 of 3000^3
)
ONE_BY_ONE, ONE_BY_ONE_BYTES = 1.5, 2.8  # the factors for an operand that is read one element at a time
TURNED_HALVES = 2.1  # the factor where lanes transpose elements of 16 bits: 85 MB took 21 us more than across
PARTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
SLENDER = 32  # rows or columns of a side that has a tile of its own if it has more than half of them
TILE_SIZES = ((128, 128), (64, 128), (64, 64), (16, 128), (128, 16))


def pack_clocks(packing: Packing | None) -> float:
    """The clocks for packing an operand, without the launch."""
    if packing is None:
        return 0.0
    count = prod(packing.batch) * packing.rows
    item = packing.dtype.itemsize
    slower = 1.0 if packing.aligned else ONE_BY_ONE_BYTES if item == 1 else ONE_BY_ONE
    if packing.aligned and not packing.turned and packing.columns * item % SECTOR:
        slower = BROKEN_READS
    if packing.turned and packing.dtype.itemsize == 2:
        slower = TURNED_HALVES
    read, written = count * packing.columns * item * slower, count * packing.out.shape[-1] * packing.to.itemsize
    return read / PACK_READS + written / (PACK_KEEPS if written < L2_KEEPS else PACK_READS)


def combine_clocks(p: Problem, parts: int) -> float:
    """The clocks for adding up the parts of K, or for joining two products, with the launch."""
    if parts == 1 and p.gate is None:
        return 0.0
    products = prod(p.batch)
    sums = products * p.M * p.N
    bytes_ = sums * p.wide.itemsize * parts * (1 if p.gate is None else 2)
    rounds = parts // in_flight(parts, height_for(products, p.M, p.N)) * L2_LATENCY
    read = rounds + max(parts - SWIFT_PARTS, 0) * LATE_PART + bytes_ / (L2_TOTAL if bytes_ < L2_KEEPS else DRAM_BYTES)
    return LAUNCH + read + sums * p.out_dtype.itemsize * (3 if p.keeps else 1) / DRAM_BYTES


def _tile_clocks(
    p: Problem,
    t: Any,
    blocks: int,
    rate: float,
    latency: float,
    share: int,
    alone: float,
    store: float = 0.0,
    far: float = 0.0,
) -> float:
    """Clocks of a kernel with one warpgroup a block. `share`: blocks on a multiprocessor at once; `alone`: the factor for a
    block without others; `store`: clocks of a tile's store; `far`: bytes from DRAM that count beside those of the operands.
    """
    tiles = -(-p.M // t.tile_m) * -(-p.N // t.tile_n) * p.parts * prod(p.batch)
    each = -(-tiles // blocks)  # tiles of a multiprocessor
    at_once = min(each, share)
    work = t.tile_m * t.tile_n * t.tile_k / rate
    turns = -(-each // at_once)
    step = max(at_once * work * (alone if at_once == 1 else 1.0), latency + work)
    return overlapped(turns * steps_of(p, t.tile_k) * step + each * store, (total_bytes(p) + far) / DRAM_BYTES) + START


def lane_clocks(p: Problem, t: LaneConfig, blocks: int) -> float:
    """An estimate for `lane_kernel`."""
    rate = FMAS * LANE_SHARE / LANE_LOADS[t.tile_m, t.tile_n] / (1 if p.wide.itemsize == 4 else 8)
    rate /= LANE_TURNS[(not p.a_transposed) + p.b_transposed]
    return _tile_clocks(p, t, blocks, rate, STEP_LATENCY, 2 if t.tile_m * t.tile_n > 64 * 64 else 6, ALONE)


def tile_clocks(p: Problem, t: TileConfig, blocks: int, pieces: tuple[int, ...] = (16, 16)) -> float:
    """An estimate for `tile_kernel`. `pieces`: bytes that one copy of a lane moves, of a and of b."""
    share, area = MMA_SHARE[t.tile_m, t.tile_n] if p.wide.itemsize < 8 else 0.0, t.tile_m * t.tile_n
    rate = MADS * share * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize) if share else MMA_F64
    rate *= SLIVER_TF32 if share and p.dtype.itemsize == 4 and min(t.tile_m, t.tile_n) == 16 else 1.0
    copies, depth = 0.0, min(t.tile_k, p.K)  # clocks of a step's small pieces; no piece is copied beyond the end
    sides = ((t.tile_m, p.dtype.itemsize, p.a_transposed), (t.tile_n, p.b_dtype.itemsize, not p.b_transposed))
    for (rows, item, across), piece in zip(sides, pieces, strict=True):
        if piece < 16:
            copies += rows * depth * item / piece / COPIES[piece][across]
    if steps_of(p, t.tile_k) == 1 and min(pieces) == 1:
        copies *= HIDDEN_COPIES
    rate = min(rate, area * t.tile_k / copies) if copies else rate
    each, at_once = STORED, 4 if area <= 64 * 64 else 2
    if steps_of(p, t.tile_k) <= t.stages:
        many = area * p.out_dtype.itemsize > 64 * 128 * 4 or area > 64 * 128
        lines = STORED_LINES_SMALL if area <= 64 * 64 else STORED_LINES * (HIGH if many else 1.0)
        if p.lanes and t.tile_n * p.out_dtype.itemsize >= LEAST:
            lines = STORED_WHOLE[(area > 64 * 64) + (area > 64 * 128)] * (
                STORED_WHOLE_HALVES if word_bytes(p) < 4 else 1.0
            )
        each = STORED_SECTORS if stores_sectors(p) else lines
        at_once = 4 if area <= 64 * 128 else 2
    store = TILE + area * p.out_dtype.itemsize * each
    latency, refills = TILE_LATENCY[min(pieces)], steps_of(p, t.tile_k) > t.stages
    latency += REFILLED if refills and min(pieces) < 4 else 0
    far = _waited_bytes(p, t) if refills else 0.0
    return _tile_clocks(p, t, blocks, rate, latency, at_once, TILE_ALONE, store, far)


def _waited_bytes(p: Problem, t: TileConfig) -> float:
    """Bytes from DRAM that count beside those of the operands: the loads of a block with few sums wait for each other."""
    made, slim = 0.0, SLIM if min(t.tile_m, t.tile_n) == 16 else 0.0
    sides = ((p.M, p.dtype, p.a_transposed, p.a_batch), (p.N, p.b_dtype, not p.b_transposed, p.b_batch))
    for rows, dtype, across, batch in sides:
        short = not across and t.tile_k * dtype.itemsize < LINE
        made += prod(batch) * rows * p.K * dtype.itemsize * (SHORT_ROWS if short else slim)
    return made


def _vector_blocks(held: float) -> int:
    """The blocks of `vector_kernel` that a multiprocessor has at once, if a lane holds so many registers of numbers."""
    return max(min(int(REGISTERS / (VECTOR_REGISTERS + held)), MOST_BLOCKS), 1)


def _apart_clocks(p: Problem, t: VectorConfig, blocks: int) -> float:
    """An estimate for `vector_kernel` where lanes of a warp have rows along K of their own."""
    latency, load, product, sum_step, start = APART_CLOCKS
    item, other = (p.dtype, p.b_dtype) if t.of_a else (p.b_dtype, p.dtype)
    tiles, steps = -(-(p.M if t.of_a else p.N) // t.rows) * p.parts * prod(p.batch), steps_of(p, t.tile_k)
    across = not p.b_transposed if t.of_a else p.a_transposed  # whether the vectors' numbers are loaded one by one
    loads = t.deep / t.vector + t.count * t.deep / (1 if across else t.vector)
    issue = load * loads + product * t.count * t.deep + sum_step * t.count * (t.apart.bit_length() - 1)
    held = t.deep * item.itemsize / 4 + t.count * t.deep * (other.itemsize / 4 + 1) + t.count
    at_once = _vector_blocks(held)
    alone = max(tiles / (blocks * at_once), 1.0) * (steps * latency + start)
    together = max(tiles / blocks, 1.0) * steps * issue
    made = max(alone, together) + APART_SHOWS * min(alone, together)
    return overlapped(made, total_bytes(p) * VECTOR_SHARE / DRAM_BYTES) + START


def vector_clocks(p: Problem, t: VectorConfig, blocks: int) -> float:
    """An estimate for `vector_kernel`."""
    if t.apart:
        return _apart_clocks(p, t, blocks)
    tiles = -(-p.M // t.tile_m) * -(-p.N // t.tile_n) * p.parts * prod(p.batch)
    item, steps = (p.dtype if t.of_a else p.b_dtype).itemsize, steps_of(p, t.tile_k)
    numbers = t.rows * t.tile_k
    lanes = 1 if t.along_k else t.beside  # those that have a row of their own, or a run of them
    pieces = numbers / t.vector + t.count * t.tile_k * (1 if t.along_k else lanes * SAME)
    adding = VECTOR_SUM * t.count * t.rows / lanes
    # this step's numbers of the matrix and the next one's, those of the vectors as they are and widened, sums
    held = numbers / LANES * item / 2 + t.count * t.deep * (item / 4 + 1) + t.count * t.rows / lanes
    at_once = _vector_blocks(1.1 * held)
    bytes_, copies, latency, start = (x[t.along_k] for x in (VECTOR_BYTES, VECTOR_PIECES, VECTOR_LATENCY, VECTOR_START))
    step = max(numbers * item / bytes_, pieces / copies, latency)
    # a block starts where another ends, before the others of its wave do
    alone = max(tiles / (blocks * at_once), 1.0) * (steps * step + start + adding)
    together = -(-tiles // blocks) * (steps * max(pieces / LANES_LOAD, t.count * numbers / LANES) + adding)
    made = overlapped(max(alone, together), total_bytes(p) * VECTOR_SHARE / DRAM_BYTES)
    run = lanes * item  # neighbouring bytes that a warp reads; where lanes share rows, these may be a part of a sector
    return made + (total_bytes(p) * SECTOR / run / L2_TOTAL if t.share > 1 and run < SECTOR else 0.0)


def lane_options(p: Problem) -> list[LaneConfig]:
    """The possible sizes of a product by lanes.

    A single step is no loop, and takes more registers: larger tiles spill. So does the largest beside many steps of an epilogue.
    """
    if LaneConfig.tile_k >= p.K:
        return [LaneConfig(32, 32)]
    tiles = [tile for tile in LANE_TILES if p.wide.itemsize == 4 or tile == (64, 64)]
    return [LaneConfig(*tile) for tile in tiles if tile != (128, 128) or not p.busy]


def tile_options(p: Problem) -> list[TileConfig]:
    """The possible sizes of a product by mma.sync: 64 bytes of K a stage (128 for float64), or as many elements as share a scale.

    If sums are promoted after each stage, a lane has two accumulators.
    """
    if p.scaled:
        return [TileConfig(64, n, 128, 3) for n in (128, 64) if n == 64 or p.dtype.itemsize == 1]
    if p.thrice:
        return [TileConfig(64, 64, 32, 3)]
    if p.wide.itemsize == 8:
        sizes = ((64, 64), (32, 128)) if p.a_transposed or p.b_transposed else ((32, 128), (64, 64))  # as measured
        return [TileConfig(m, n, 16, 3) for m, n in sizes]
    depth = 64 // p.dtype.itemsize
    stages = min(TileConfig.stages, kd.cdiv(p.K, depth))
    tiles = TILE_SIZES[1:] if p.dtype in FP8 else TILE_SIZES  # the largest would spill
    if SLENDER // 2 < min(p.M, p.N) <= SLENDER and p.dtype.itemsize == 2:
        tiles = (*tiles, (SLENDER, 128) if p.M <= p.N else (128, SLENDER))
    return [TileConfig(*tile, depth, stages) for tile in tiles]


def part_options(p: Problem, tile_k: int) -> list[int]:
    """The possible numbers of parts of K: each part has a few steps, and with `thrice` none beyond the end."""
    steps = steps_of(p, tile_k)
    room = 64e6 / max(prod(p.batch) * p.M * p.N * p.wide.itemsize, 1)  # bytes of partial sums
    return [n for n in PARTS if n == 1 or (n * 4 <= steps and n <= room and not p.softmax)]


def split(p: Problem, parts: int) -> Problem:
    """The problem of the multiplying kernel if K is cut into parts."""
    whole = parts == 1 and p.gate is None
    if whole:
        return p
    made = partial_problem(p, parts)
    shape = (parts, *p.batch, p.M, p.N) if parts > 1 else (*p.batch, p.M, p.N)
    return changed(made, lanes=1) if why_not_tma(shape, strides_of(shape), made.out_dtype.itemsize, 0) else made
