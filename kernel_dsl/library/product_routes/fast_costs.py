"""The cost model of Hopper's fast product: what a configuration takes, in clocks. It measures nothing."""

from __future__ import annotations

from math import prod

from kernel_dsl.dataclass import changed

from ..blocks import clusters_at_once, steps_of
from ..product_kernels.consumer_product import from_registers
from ..product_kernels.fed_scales import feeds
from ..product_kernels.fed_scales import in_pairs as by_twos
from ..product_kernels.promoted_product import RUN
from ..product_kernels.whole_lines import stores_lines, word_bytes
from ..products.matmul_config import MatmulConfig
from ..products.operands import LINE
from ..products.problem import Problem
from .fast_sizes import MOSTLY_STORED, in_pairs, is_mixed, stage_bytes

# one multiprocessor, a clock: multiply-adds of 16-bit operands (8-bit: twice, tf32: half), bytes from L2, bytes to SMEM, of which
# a cluster loads some for its other blocks
MADS, L2_BYTES, SMEM_BYTES = 2048, 56, 64
WIDENED = 10  # elements a clock of a left side that is widened in registers: 128 x 64 of them took 900 clocks
WIDENED_PAIRS = 20  # the same for 4 bits, two at a time: 3.9 instructions for each element, not 6.8
# extra clocks of a step if registers transpose a left side of 32 bits: beside another warpgroup's wide product, otherwise.
# 4096^3 in tf32 takes 340 us so, and 354 with both sides along K
TURNED_BESIDE_WIDE, TURNED = 60, 200
# the factor of the time of an operand's loads if its rows are 16 bytes from a multiple of 32 apart, so that half of them begin
# within a sector: 4.8 to 5.1 clocks for 128 bytes
BROKEN = 2.0
# bytes across K: broken rows of fewer take as long. 8 x 6648 x 5512 TT took 36.5 us, and 30.7 with a copied
NARROW = 64
# bytes from DRAM that count beside each part of a row in a stage, where rows are so and are read once: of parts along K, across,
# and where rows are as with UNEVEN_PITCH. Parts of more than MOST_PART bytes count as several. If the other side is so, which
# each tile reads again: bytes for each k of a tile, and for each byte along K. Fitted to 1,800 ways to compute 220 thin products
# on one NVIDIA H200.
CUT, CUT_ACROSS, CUT_LINES, MOST_PART, THIN_ACROSS, THIN_ALONG = 40, 60, 24, 256, 28, 0.6
# the same if they are 32 bytes from a multiple of 64 apart, or 64 bytes from a multiple of 128: parts of rows lie in two lines.
# 18848 x 1664 x 7984 NN took 755 us in tiles of 128 x 128, 684 in 128 x 256; 1824 x 2080 x 1344 TN 26.0, 22.7 in 192 x 192
UNEVEN_PITCH, HALF_LINES = 1.3, 1.2
# the part of the smaller side's loads that remains then if two blocks share only them: 5000^3 took 495 us instead of 490
SHARED = 0.9
Reads = tuple[float, float]  # such factors of a and b
EVEN: Reads = (1.0, 1.0)
LONELY = 0.6  # the part of that rate for a single warpgroup, because nothing hides its waits
DRAM_BYTES = 2300  # bytes a clock of the whole GPU (4 of the 4.8 TB/s, at 1.75 GHz)
# the time of a byte of the result, divided by that of a byte of an operand: in general; if TMA stores rows that cut sectors of 32
# bytes; for parts of sums, which stay in L2, it is 1
WRITTEN, RAGGED = 1.1, 2.1
# the same if lanes store whole lines of parts of rows of so many bytes, and what is added for parts of half as many
LINE_PART, LINES, SHORTER = 1024, 1.0, 0.2
KEPT = 1.07  # the factor of DRAM traffic if weights can't be marked as read once: they evict data that must be written
# clocks to fill a pipeline at the start of a block, and to drain it: of any kernel, of the fast one
START, FAST_START = 1410, 2360
# clocks that a tile costs beside its products: barriers, first loads; and more if few steps hide them
EDGE, EDGE_ALONE = 250, 215
TIED = 1.04  # what blocks of a cluster lose by waiting for each other
SINGLE = 1.25  # the factor of a step's time if consumers take turns and blocks have one tile: one consumer has none
TOGETHER = 4000  # extra clocks until a cluster's blocks have started and met: 2 to 3 us of a product of 12 us
SHOWS = 0.05  # the part of the lesser of two times that remains if two activities overlap
EXPONENTIAL = 1 / 12  # clocks for each element in a sum of a softmax
# clocks for each byte that lanes store, where TMA can't: of short parts of rows; of whole lines, by the bytes of a word
LANE_STORE = 0.1
LINE_STORE = {1: 0.14, 2: 0.062, 4: 0.06, 8: 0.058}
PIECE = 4  # clocks more for each 128 bytes that TMA stores if rows begin within lines: 216 x 6856 x 56 took 8.1 us, by lanes 6.6
LANE_TILE = 1300  # clocks more for each next tile of one warpgroup whose lanes store, if few steps hide its start
# clocks more of the last tile if a consumer has 128 rows, and TMA stores rows that cut sectors: for up to WIDE columns, for more.
# 1736 x 4888 x 568 TT took 31.2 us in 256 x 144, 26.3 in 192 x 192; 5464 x 1752 x 1528 TT 60.1 in 256 x 176, 52.4 in 256 x 160
HIGH_STORE, HIGH_STORE_WIDE, WIDE = 1500, 3500, 160
# columns, and the part that such a tile of half of them takes more, because it stores shorter pieces of rows
WIDEST_TILE, PIECES = 256, 0.12
# steps of a tile up to which turns take longer, and the factor; so they do where lanes store
BRIEF, BRIEF_TURNS = 4, 1.4
# the factor of turns where rows of a side lie in two lines or begin within sectors, as each consumer has its own loads, or where
# rows of the result do: 5288 x 2760 x 1384 TT with copied sides took 82 us in turns of 128 x 192, 71 in 256 x 160
CUT_TURNS = 1.06
CUT_ALONE = 1.08  # that of one consumer where rows of both sides begin within sectors: nothing hides its waits
# clocks more of a product by TMA for each step that it has less than FEW, where these do not hide its store; and of each wave of
# up to SOME steps where rows of both sides lie in two lines
FEW, FEWER, SOME, BOTH_CUT = 7, 500, 12, 1000
SPARSE = 1.7  # the speed-up of a sparse side: SMEM can't deliver the other side in half of the time
SLIVER = 32  # columns: a product of fewer takes as long, because it still reads its other operand from SMEM
# widths between those, for shapes whose tiles just exceed a whole number of waves, or fill three quarters of one
BETWEEN = (96, 112, 144, 160, 176, 208, 224, 240)
# the least predicted gain for such a width if loads are even and parts of K have LONG steps: sizes then share kernels.
# In 14 of 15 shorter products it cost 1 to 14 %: 896 x 512 x 6336 NT took 20.7 us with it, 18.1 without
UNEVEN, LONG = 1.02, 32
TALLER = 1.04  # the same for tiles that three consumers share
LOWERED = 1.01  # the same for low tiles, beside which a consumer idles
CHUNK = 100  # clocks for each part of a tile in its store; narrow tiles have many parts
# clocks of a step in which neither warpgroup multiplies: with two products in flight, with one
IDLE_IN_PAIRS, IDLE_BY_ONE = 265, 390
# where factors come with the stages: the part of the products' clocks, and clocks with two consumers and three, that a step takes
# more; the same for columns that aren't a multiple of 64, and for each column that has a factor
FED_SHARE, IDLE_FED, IDLE_FED_BY_THREE, IDLE_UNEVEN, IDLE_COLUMN = 0.31, 80, 30, 30, 2.2
PROMOTION = 60  # clocks of a promotion beside its multiply-adds: waits, factors
THIN = (16, 32)  # columns of products with a thin side


def overlapped(one: float, other: float) -> float:
    """The time of two activities that overlap."""
    return max(one, other) + SHOWS * min(one, other)


def clocks(problem: Problem, config: MatmulConfig, blocks: int, reads: Reads = EVEN) -> float:
    """An estimate of the kernel's time in clocks. `reads`: factors of the time of loads, such as `BROKEN`."""
    p, t = problem.swapped if config.swapped else problem, config
    width = t.tile_n if p.gate is None else t.tile_n // 2
    tiles = -(-p.M // (t.tile_m * t.cluster)) * -(-p.N // (width * t.cluster_n)) * p.parts * prod(p.batch)
    together = t.cluster * t.cluster_n
    waves = -(-tiles // clusters_at_once(blocks, together))
    steps, lines = steps_of(p, t.tile_k), bool(p.lanes) and stores_lines(p, t)
    sides = (reads[1], reads[0]) if t.swapped else reads
    step, store = _step_clocks(p, t, sides), _store_clocks(p, t, steps, lines)
    # TMA stores a tile beside the next one's products, unless there are few
    pieces = 0.0 if p.lanes or p.softmax else _piece_clocks(problem, t, width)
    store += pieces if steps <= MOSTLY_STORED else 0.0
    if t.ping_pong and waves == 1:
        step *= SINGLE
    # with turns, a consumer's stores overlap with the other's products, except the last; if lanes store, none overlap
    apart = t.ping_pong and not p.lanes
    work = waves * max(steps * step, store / t.consumers) + store if apart else waves * (steps * step + store)
    work = _low_work(p, t, blocks, sides) if t.low_tiles else work
    # all of A and B once, and again for each band of tiles that exceeds L2
    ragged = not p.lanes and problem.N * p.out_dtype.itemsize % 32 > 0
    shorter = LINE_PART / (t.epilogue_n * p.out_dtype.itemsize) - 1
    bytes_ = total_bytes(p, LINES + SHORTER * shorter if lines else RAGGED if ragged else WRITTEN)
    bytes_ += 0.0 if reads == EVEN else _cut_bytes(p, t, sides)
    bytes_ *= 1.0 if t.tile_m * t.cluster >= p.M or t.tile_n * t.cluster_n >= p.N else KEPT
    work += (TOGETHER if together > 1 else 0.0) + (pieces if steps > MOSTLY_STORED else 0.0)
    if ragged and t.rows > 64 and t.tile_n in BETWEEN:
        work += HIGH_STORE if t.tile_n <= WIDE else HIGH_STORE_WIDE
    work += (waves - 1) * LANE_TILE if p.lanes and not lines and t.consumers == 1 and steps <= MOSTLY_STORED else 0
    if MOSTLY_STORED < steps < FEW and p.parts == 1 and not p.lanes:
        work += (FEW - steps) * FEWER
    work += min(waves, 2) * BOTH_CUT if steps <= SOME and min(reads) > 1 else 0
    made = (overlapped(work, bytes_ / DRAM_BYTES) + FAST_START) * (TIED if together > 1 else 1.0)
    if steps <= MOSTLY_STORED and not p.lanes and not p.softmax:
        made *= 1 + PIECES * (WIDEST_TILE / max(t.tile_m if t.swapped else width, WIDEST_TILE // 2) - 1)
    made *= LOWERED if t.low_tiles else 1.0
    made *= CUT_ALONE if t.consumers == 1 and min(reads) >= BROKEN else 1.0
    made *= UNEVEN if reads == EVEN and t.tile_n in BETWEEN and steps >= LONG and not p.scaled else 1.0
    made *= TALLER if t.consumers > 2 and not p.scaled and not p.promoted else 1.0
    made *= BRIEF_TURNS if t.ping_pong and (steps <= BRIEF or p.lanes) else 1.0
    return made * (CUT_TURNS if t.ping_pong and (ragged or reads != EVEN) else 1.0)


def _cut_bytes(p: Problem, t: MatmulConfig, reads: Reads) -> float:
    """Bytes from DRAM that count beside those of an operand that is read once, where tiles cut its sectors and lines. `reads`: of
    the left side and of the right one.
    """
    made, across, down = 0.0, -(-p.N // (t.tile_n * t.cluster_n)), -(-p.M // (t.tile_m * t.cluster))
    sides = (
        (p.M, t.tile_m, p.dtype.itemsize, p.a_transposed, p.a_batch, across, down),
        (p.N, t.tile_n, p.b_dtype.itemsize, not p.b_transposed, p.b_batch, down, across),
    )
    # how many tiles read a row of this side, and of the other one
    for read, (rows, tile, item, turned, batch, times, others) in zip(reads, sides, strict=True):
        if times == 1:
            part = min((tile if turned else t.tile_k) * item, MOST_PART)
            cut = (CUT_ACROSS if turned else CUT) if read >= BROKEN else CUT_LINES if read >= UNEVEN_PITCH else 0
            made += prod(batch) * rows * p.K * item * cut / part
        elif others == 1 and read >= BROKEN:
            made += prod(p.batch) * times * p.K * (THIN_ACROSS if turned else THIN_ALONG * rows * item)
    return made


def _step_clocks(p: Problem, t: MatmulConfig, reads: Reads) -> float:
    """An estimate for a step of a tile. `reads`: as of `clocks`, but of the left side and of the right one."""
    (read_a, read_b), pairs = reads, p.int4 > 0 and in_pairs(p)
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
    if t.cluster > 1 or t.cluster_n > 1:
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
    return overlapped(products, loads)


def _store_clocks(p: Problem, t: MatmulConfig, steps: int, lines: bool) -> float:
    """An estimate for a tile beside its `steps`: its store, and what waits. `lines`: lanes store whole lines."""
    by_lanes = LINE_STORE[word_bytes(p)] if lines else LANE_STORE
    each = 0.0 if p.softmax and not p.exponentials else p.out_dtype.itemsize * (by_lanes if p.lanes else 1 / 64)
    each += EXPONENTIAL if p.softmax else 0.0
    store = t.tile_m * t.tile_n * each * (3 if p.keeps else 1) + EDGE + (EDGE_ALONE if steps <= MOSTLY_STORED else 0)
    if t.tile_n in BETWEEN and not p.scaled:
        store += t.tile_n // t.epilogue_n * CHUNK
    return store


def _piece_clocks(problem: Problem, t: MatmulConfig, width: int) -> float:
    """Clocks more of a tile of `width` columns that TMA stores, where the rows of the result begin within lines."""
    item = problem.out_dtype.itemsize
    if problem.N * item % LINE == 0:
        return 0.0
    rows, columns = (width, t.tile_m) if t.swapped else (t.tile_m, width)
    rows, columns = min(rows, problem.M), min(columns, problem.N)
    return rows * columns * item / LINE * PIECE


def _low_work(p: Problem, t: MatmulConfig, blocks: int, reads: Reads) -> float:
    """An estimate for the block with the most work, of tiles of two heights: all high ones come first."""
    across, steps = -(-p.N // t.tile_n), steps_of(p, t.tile_k)
    high, total = t.high_tiles(p.M) * across, (t.high_tiles(p.M) + t.low_tiles) * across
    lower = changed(t, tile_m=t.low_rows, consumers=t.consumers - 1, low_tiles=0)

    def tile(x: MatmulConfig) -> float:
        return steps * _step_clocks(p, x, reads) + _store_clocks(p, x, steps, bool(p.lanes) and stores_lines(p, x))

    one, other = tile(t), tile(lower)

    def work(block: int) -> float:
        tall = max(-(-(high - block) // blocks), 0)
        return tall * one + (-(-(total - block) // blocks) - tall) * other

    # the first block, and the first that has a high tile less
    return max(work(block) for block in {0, high % blocks} if block < total)


def least_products(p: Problem, t: MatmulConfig, blocks: int) -> float:
    """A lower bound of `clocks` of a configuration, in one call: of its products alone."""
    if t.low_tiles:
        return 0.0
    M, N = (p.N, p.M) if t.swapped else (p.M, p.N)
    width = t.tile_n if p.gate is None else t.tile_n // 2
    together = t.cluster * t.cluster_n
    tiles = -(-M // (t.tile_m * t.cluster)) * -(-N // (width * t.cluster_n)) * p.parts * prod(p.batch)
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize) * (SPARSE if p.sparse else 1)
    return -(-tiles // (blocks // together)) * (p.K // p.parts) * t.tile_m * t.tile_n / rate


def least_clocks(p: Problem, blocks: int) -> float:
    """A lower bound of the clocks of any kernel of tensor cores, with any number of parts of K."""
    rate = MADS * 2 / max(p.dtype.itemsize, p.b_dtype.itemsize) * (SPARSE if p.sparse else 1)
    products = prod(p.batch) * p.M * p.N * (3 * p.depth if p.thrice else p.K) / rate / blocks
    return max(products, total_bytes(p, LINES) / DRAM_BYTES) + START


def total_bytes(p: Problem, written: float = WRITTEN) -> float:
    """Bytes of both operands and the result; those of the result have the factor `written` for the speed of its stores."""
    right = prod(p.b_batch) * p.N * p.K * p.b_dtype.itemsize * (1 if p.gate is None else 2)
    read = prod(p.a_batch) * p.M * p.K * p.dtype.itemsize / (2 if p.sparse or p.int4 else 1) + right
    result = prod(p.batch) * p.parts * p.M * p.N * p.out_dtype.itemsize * (3 if p.keeps else 1)
    return read + result * (1.0 if p.parts > 1 else written)
