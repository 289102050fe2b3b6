"""A radix sort of uint32, 8 bits a pass; each pass reads and writes every key once ("onesweep").

A pass sorts keys by one digit and keeps the order of equal digits. The passes go from the lowest digit to the highest.
A key's place is the sum of four numbers:

1. The number of keys with smaller digits: before the first pass, one launch counts the digits of all four passes.
2. The number of equal digits in earlier tiles: each tile publishes its 256 counts. Then, for each digit, it looks back
   over the tiles before it. A published word holds a count and a flag: the count of that tile alone, or of all tiles up
   to it, where the look back ends. A tile's number is a ticket, so all earlier tiles are running or done.
3. The number of equal digits in earlier warps of the tile: each warp has counters in SMEM.
4. The number of equal digits before it in its warp: for 32 keys at a time, eight ballots tell each lane which lanes
   hold the same digit. The first of these lanes adds their number to the warp's counter, and a shuffle gives all of
   them the count before.

Keys first go to SMEM in their order within the tile, so that neighbours are then stored side by side.

Run it: `python -m examples.27_radix_sort`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

DIGITS, PASSES, WARPS, LANES = 256, 4, 4, 32
BACK = 4  # the number of tiles whose words are read together
ALONE, ALL, COUNT = 1 << 30, 2 << 30, (1 << 30) - 1  # flags of a published word, and the bits of its count
EMPTY = np.uint32(0xFFFFFFFF)  # beyond the end: the last of all keys

_BALLOT = "and.b32 b, $1, {bit}; setp.ne.u32 p, b, 0; vote.sync.ballot.b32 b, p, 0xffffffff; @!p not.b32 b, b; and.b32 m, m, b;"
_SAME = (
    "{ .reg .pred p; .reg .b32 b, m; mov.b32 m, 0xffffffff; "
    + " ".join(_BALLOT.format(bit=1 << bit) for bit in range(8))
    + " mov.b32 $0, m; }"
)


def same_digit(digit: Any) -> Any:
    """For each element, one bit for each lane of its warp that holds an equal digit; its own lane is one of them."""
    return kd.inline_ptx(_SAME, digit, out_type=kd.uint32)


def from_lane(value: Any, lane: Any) -> Any:
    """Each lane's value of another lane of its warp."""
    return kd.inline_ptx("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", value, lane, out_type=kd.uint32)


def published(words: Any, tile: Any, digit: Any, wanted: Any) -> Any:
    """The words of tiles, which other blocks write at the same time; 0 where not `wanted`."""
    load = "{ .reg .b64 a; mad.wide.s32 a, $2, 4, $1; mov.b32 $0, 0; @$3 ld.relaxed.gpu.global.u32 $0, [a]; }"
    return kd.inline_ptx(load, words, tile * DIGITS + digit, wanted, out_type=kd.uint32)


def digit_of(key: Any, shift: Any) -> Any:
    """Eight bits of a key."""
    return (key >> shift) & kd.uint32(DIGITS - 1)


@functools.cache
def count_kernel(piece: int = 2048, pieces: int = 16, copies: int = 8) -> Any:
    """The counts of all digits of all passes. A block has `copies` of each counter, so lanes seldom wait."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((PASSES, DIGITS), kd.uint32, init=0),
        grid=lambda x: (kd.cdiv(x.shape[0], piece * pieces),),
        grid_names=("block",),
        scratch_types={"counts": kd.SMEM((PASSES, DIGITS, copies), kd.uint32)},
        name="count_digits",
    )
    def count(x: Any, out: Any, *, counts: Any) -> None:
        counts[...] = kd.zeros((PASSES, DIGITS, copies), kd.uint32)
        place, size = kd.arange(piece), kd.specialise(x.shape[0])

        @kd.loop(0, pieces)
        def _(step: Any) -> None:
            first = (kd.axis_index("block") * pieces + step) * piece
            key = x[kd.ds(first, piece)]
            for number in range(PASSES):
                digit = digit_of(key, kd.uint32(8 * number)).astype(kd.int32)
                at = counts.at[number].at[digit, place % copies]
                kd.atomic_add(at, kd.uint32(1), mask=place < size - first, scope="cta")

        kd.atomic_add(out, kd.sum(counts[...], axis=-1))

    return count


def _rows_of_warps(each: int) -> Any:
    """A tile: each warp a quarter in one piece, `each` rows of 32 neighbours, one in every lane."""
    rows = LANES * each
    return kd.Layout(1, ((0, each, LANES),), tuple((0, 1 << bit) for bit in range(5)), ((0, rows), (0, 2 * rows)))


_DIGITS_OF_WARPS = kd.Layout(
    2, ((0, WARPS, 1), (1, 2, 1)), tuple((1, 2 << bit) for bit in range(5)), ((1, 64), (1, 128))
)


def _ranks(key: Any, shift: Any, counters: Any, each: int) -> Any:
    """For each key, the number of earlier keys of its warp with the same digit. `counters` start at 0."""
    warp, lane = (kd.broadcasted_iota(kd.int32, (WARPS, LANES), axis) for axis in range(2))
    lower = (kd.uint32(1) << lane.astype(kd.uint32)) - kd.uint32(1)
    ranks: list[Any] = []
    for row in range(each):
        one = digit_of(key[:, row], shift)
        same = same_digit(one)
        before = kd.bitwise_count(same & lower).astype(kd.uint32)
        number = kd.bitwise_count(same).astype(kd.uint32)
        at = counters.at[warp, one.astype(kd.int32)]
        earlier = kd.atomic_add(at, number, mask=before == 0, scope="cta")
        first = 31 - kd.clz(same & (~same + kd.uint32(1))).astype(kd.int32)
        ranks.append(from_lane(earlier, first) + before)
    return kd.stack(ranks, axis=1)


def _look_back(words: Any, tile: Any) -> Any:
    """For each digit, the number of keys in the tiles before `tile`. Several words are in flight at a time."""
    digits = kd.arange(DIGITS)

    def look(state: Any) -> Any:
        nearest, total, going = state
        found = [published(words, nearest - n, digits, going & (nearest >= n)) for n in range(BACK)]
        counted = going
        for word in found:
            counted = counted & (word != 0)
            total = total + kd.where(counted, word & kd.uint32(COUNT), kd.uint32(0))
            nearest = kd.where(counted, nearest - 1, nearest)
            going = going & ~(counted & (word >= kd.uint32(ALL)))
            counted = counted & going
        return nearest, total, going

    start = (kd.zeros((DIGITS,), kd.int32) + (tile - 1), kd.zeros((DIGITS,), kd.uint32), (digits >= 0) & (tile != 0))
    return kd.while_loop(lambda state: kd.any(state[2]), look, start)[1]


@functools.cache
def pass_kernel(each: int = 36) -> Any:
    """One pass: (keys, counts, shift) to keys in the order of (key >> shift) & 255, by tiles of 128 * `each`."""
    size = WARPS * LANES * each

    @kd.kernel(
        out_type=lambda x, counts, shift: (
            x,
            kd.ShapeDtypeStruct((kd.cdiv(x.shape[0], size), DIGITS), kd.uint32, init=0),
        ),
        grid=lambda x, counts, shift: (kd.cdiv(x.shape[0], size),),
        grid_names=("block",),
        scratch_types={
            "counters": kd.SMEM((WARPS, DIGITS), kd.uint32),
            "shifts": kd.SMEM((DIGITS,), kd.uint32),
            "ordered": kd.SMEM((size,), kd.uint32),
        },
        compiler_params=kd.CompilerParams(max_registers=128),  # 4 blocks a multiprocessor
        name=f"radix_pass_{size}",
    )
    def sort(
        x: Any, counts: Any, shift: Any, out: Any, words: Any, *, counters: Any, shifts: Any, ordered: Any
    ) -> None:
        tile = kd.atomic_add(kd.get_global(kd.SemaphoreType.REGULAR), 1)
        counters[...] = kd.zeros((WARPS, DIGITS), kd.uint32)
        key = kd.load(x, kd.ds(tile * size, size), layout=_rows_of_warps(each), fill=EMPTY).reshape(WARPS, each, LANES)
        ranks = _ranks(key, shift, counters, each)

        of_warps = kd.load(counters, layout=_DIGITS_OF_WARPS)
        own = kd.sum(of_warps, axis=0)
        last = kd.where(tile == 0, kd.uint32(ALL), kd.uint32(ALONE))
        kd.atomic_xchg(words.at[tile], own | last)
        starts = kd.cumsum(own, exclusive=True)  # of digits within the tile
        counters[...] = kd.cumsum(of_warps, axis=0, exclusive=True) + starts
        key = kd.optimization_barrier(key)  # digits are computed again, not kept in registers
        digit = digit_of(key, shift).astype(kd.int32)
        warp = kd.broadcasted_iota(kd.int32, key.shape, 0)
        place = counters[warp, digit] + ranks
        ordered[place.astype(kd.int32)] = key

        before = _look_back(words, tile)
        kd.atomic_xchg(words.at[tile], (before + own) | kd.uint32(ALL))
        smaller = kd.cumsum(counts[(shift >> kd.uint32(3)).astype(kd.int32)], exclusive=True)
        shifts[...] = smaller + before - starts
        sorted_keys = ordered[...]
        place = shifts[digit_of(sorted_keys, shift).astype(kd.int32)] + kd.arange(size).astype(kd.uint32)
        out[place.astype(kd.int32)] = sorted_keys

    return sort


def radix_sort(x: Any, each: int = 36) -> Any:
    """A 1-D array of up to 2^30 - 1 uint32, in order."""
    counts = count_kernel()(x)
    for number in range(PASSES):
        x, _ = pass_kernel(each)(x, counts, np.uint32(8 * number))
    return x


def main() -> None:
    """Check lengths around a tile's, and few different keys, against NumPy."""
    rng = np.random.default_rng(0)
    for length, high in ((1500, 2**32), (1500, 5)):
        x = rng.integers(0, high, length, dtype=np.uint32)
        assert np.array_equal(radix_sort(x, each=4), np.sort(x))
        print(f"radix sort of {length} keys below {high}: exact")


if __name__ == "__main__":
    main()
