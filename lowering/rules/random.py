"""Philox-4x32-10: a counter's four words by ten rounds of two products, once for all that a lane holds of them.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from math import prod

from kernel_dsl.ir import layout_of
from kernel_dsl.ops.random import NEIGHBOURS, Philox
from kernel_dsl.refs import strides_of

from ..context import Context, Rules
from ..value import Regs, V

ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # added to the key in each round: the golden ratio, and the square root of 3 minus 1


def lower_philox(ctx: Context, op: Philox) -> None:
    layout = layout_of(op.results[0])
    strides = strides_of(op.shape)
    sharing = NEIGHBOURS // op.words  # elements of a counter
    weights = [(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None]
    philox = _Philox(ctx, op)
    out: list[Regs] = [[] for _ in op.results]
    aligned = all(weight % sharing == 0 for _, weight in weights)
    # if lanes start at a counter's first word, each register's word number is a constant
    lane = ctx.lane_sum([(bit, weight // sharing if aligned else weight) for bit, weight in weights])
    for coord in layout.register_coords:
        constant = sum(c * s for c, s in zip(coord, strides, strict=True)) if prod(op.shape) else 0
        if aligned:
            counter, element = divmod(constant, sharing)
            words = philox.words(lane, counter)
            own = words[element * op.words : (element + 1) * op.words]
        else:
            index = lane.plus(constant)
            words = philox.words(index >> sharing.bit_length() - 1, 0)
            place = index & sharing - 1
            own = [_pick(place, words[first :: op.words]) for first in range(op.words)]
        for column, name in zip(out, own, strict=True):
            column.append(name)
    for result, column in zip(op.results, out, strict=True):
        ctx.values[result] = column


def _pick(place: V, names: Regs) -> V:
    """The value at a place that is known only at run time."""
    found = names[-1]
    for number in reversed(range(len(names) - 1)):
        found = place.equal(number).where(names[number], found)
    return found


class _Philox:
    """The rounds' keys, and the words of the counters so far."""

    def __init__(self, ctx: Context, op: Philox) -> None:
        self.e = ctx.e
        seed, self.offset = ctx.scalar(op.seed), ctx.scalar(op.offset)
        key = seed.trunc("i32"), (seed >> 32).trunc("i32")
        self.keys = [
            tuple(k.plus(step * n % 2**32) for k, step in zip(key, _STEPS, strict=True)) for n in range(ROUNDS)
        ]
        self.known: dict[tuple[V, int], Regs] = {}

    def words(self, lane: V, counter: int) -> Regs:
        """The four words of counter number `offset + lane + counter`."""
        found = self.known.get((lane, counter))
        if found is None:
            found = self.known[lane, counter] = self._rounds(self.offset.plus(lane.zext("i64").plus(counter)))
        return found

    def _rounds(self, counter: V) -> Regs:
        zero = self.e.i32(0)
        words = [counter.trunc("i32"), (counter >> 32).trunc("i32"), zero, zero]
        for keys in self.keys:
            (upper0, lower0), (upper1, lower1) = (self._product(words[2 * i], f) for i, f in enumerate(_FACTORS))
            words = [upper1 ^ words[1] ^ keys[0], lower1, upper0 ^ words[3] ^ keys[1], lower0]
        return words

    def _product(self, word: V, factor: int) -> tuple[V, V]:
        """The upper and the lower half.

        It is inline PTX because LLVM would join the halves and compute with 64 bits.
        """
        if word == "0":
            return word, word
        text = "{ .reg .b64 %whole; mul.wide.u32 %whole, $2, $3; mov.b64 {$1, $0}, %whole; }"
        args = [word, self.e.i32(factor)]
        upper, lower = self.e.inline(text, "=r,=r,r,n", args, ["i32", "i32"], pure=True)
        return upper, lower


RULES: Rules = {Philox: lower_philox}
