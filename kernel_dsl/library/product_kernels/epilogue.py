"""The steps on sums between the product and the store. All kernels of the library use these functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, inf, prod
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.trace import resolve

from ..activations import LOG2E, Function, called_on, gate_function
from ..grouped.tiles import put
from ..products.problem import Axes, EpilogueStep, Problem
from .whole_lines import LEAST, store_parts

PARTED = 32  # columns of a part, if a tile is finished in parts
LINE = 128  # bytes of a line
# for a row's columns in a tile: the greatest, the sum of exp(x - greatest), the sum
TOP, TOTAL, PLAIN = range(3)


@dataclass(frozen=True)
class Kept:
    """Bit i of `bits` (rows, unit): whether the element i units further along the tile's columns stays."""

    bits: Any
    unit: int
    first: int = 0


@dataclass(frozen=True)
class Tile:
    """The place of a tile of sums in the result: `m`, `n` are slices, `shape` is the whole result, batch first.
    `batch`: the indices along the result's leading axes. `swapped`: the tile's rows run along n. `peak`: the Ref of the
    greatest magnitude, if it is a result. `end`: rows from `end` on are not stored. `kept`: (the elements of the
    block's tile that dropout keeps, the start of this part in the tile).
    """

    m: Any
    n: Any
    shape: tuple[Any, ...]
    batch: tuple[Any, ...] = ()
    swapped: bool = False
    peak: Any = None
    kept: Kept | None = None
    end: Any = None

    def part(self, first: int, count: int) -> Tile:
        """`count` of the tile's own columns from `first` on."""
        side = self.m if self.swapped else self.n
        moved = kd.ds(side.start + first, count)
        kept = self.kept and replace(self.kept, first=self.kept.first + first)
        return replace(self, **{"m" if self.swapped else "n": moved}, kept=kept)

    def read(self, ref: Any, axes: Axes | None) -> Any:
        """The part of an operand that belongs to the tile, in a shape that broadcasts to it."""
        if axes is None or not axes:
            return ref if axes is None else ref[...]
        place = {"m": self.m, "n": self.n, "-": 0}
        index = tuple(place[a] if a in place else self.batch[int(a)] for a in axes)
        kept = [a for a in axes if a in ("m", "n")]
        order = ["n", "m"] if self.swapped else ["m", "n"]
        part = ref.at[index]
        if not kept:
            return part[...]
        if len(kept) == 2:
            return kd.load(part.T if kept != order else part)
        return kd.load(part, (None, slice(None)) if kept[0] == order[1] else (slice(None), None))

    def coordinates(self, count: int) -> tuple[Any, Any]:
        """Indices along m and n of the first `count` columns of the tile, in any layout."""
        sides = (self.n, self.m) if self.swapped else (self.m, self.n)
        down, along = (kd.broadcasted_iota(kd.int32, (sides[0].size, count), axis) for axis in (0, 1))
        both = (down + sides[0].start, along + sides[1].start)
        return both[::-1] if self.swapped else both


def outputs(p: Problem, refs: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    """(operands of the steps, result, greatest magnitude or None) of a kernel's arguments after its operands."""
    if p.peaks:
        *extra, out, peak = refs
        return extra, out, peak
    *extra, out = refs
    return extra, out, None


def finish_and_store(
    x: Any,
    p: Problem,
    refs: Sequence[Any],
    tile: Tile,
    out: Any,
    leading: tuple[Any, ...],
    unit: int,
    lines: bool = False,
) -> None:
    """Apply the steps to a block's sums and store them. If a lane holds many sums and the steps are long, a few columns
    are finished at a time.

    `unit`: lanes hold the same elements of each group of `unit` columns. With `lines` sums go through SMEM, and a warp
    stores whole lines instead of parts of eight lines. Fewer blocks then share a multiprocessor, but products with
    little other work take half of the time.
    """
    if p.softmax:
        store_sums(x, p, refs, tile, out)
        return
    tile = drawn(x, p, refs, tile, unit)
    item = p.out_dtype.itemsize
    lines = lines and tile.end is None
    apart = p.lanes == 1 or lines
    columns = x.shape[1]
    if lines and p.lanes and columns * item >= LEAST:
        step = PARTED if x.size > 64 * 128 else columns
        parts = (finish(x[:, i : i + step], p.all_steps, refs, tile.part(i, step)) for i in range(0, columns, step))
        store_parts(parts, x.shape, out, leading, tile.m.start, tile.n.start, p)
        return
    if (p.all_steps or apart) and x.size > 64 * 128:
        columns = min(LINE // item if lines else PARTED, columns)
    elif apart and not lines:  # parts go through SMEM, whose size decides how many blocks share a multiprocessor
        columns = min(max(PARTED * 64 // x.shape[0], unit), columns)
    vector = min(p.lanes or 16 // item, columns) if lines else 1
    for first in range(0, x.shape[1], columns):
        part = tile.part(first, columns)
        done = finish(x if columns == x.shape[1] else x[:, first : first + columns], p.all_steps, refs, part)
        if tile.end is not None:
            put(out, part.m.start, part.n, tile.end, done.astype(p.out_dtype))
            continue
        done = done.astype(p.out_dtype)
        out[(*leading, part.m, part.n)] = (
            kd.layout_cast(done, kd.Layout.WG_STRIDED(done.shape, vector)) if apart else done
        )


def finite_or_zero(top: Any) -> Any:
    """The number to subtract from exponents: the greatest, or 0 if that is infinite, because -inf - -inf is NaN."""
    return kd.where(top == -inf, 0.0, top)


def store_sums(x: Any, p: Problem, refs: Sequence[Any], tile: Tile, out: Any) -> None:
    """The sums of a tile (rows, columns) into `out` (p.softmax, tiles along n, M), float32; columns from p.N on are
    left out.

    If the steps are long, it takes a few columns at a time: a lane with all operands would spill.
    """
    width = x.shape[1]
    masked = bool(p.N % width)
    columns = gcd(width, PARTED) if p.all_steps or masked else width
    top: Any = None
    total: Any = None
    plain: Any = None
    for first in range(0, width, columns):
        part = tile.part(first, columns)
        value = finish(x if columns == width else x[:, first : first + columns], p.all_steps, refs, part)
        value = value.astype(kd.float32)
        here = part.coordinates(columns)[1] < p.N if masked else None
        if p.softmax > PLAIN:
            more = kd.sum(value if here is None else kd.where(here, value, 0.0), axis=1)
            plain = more if plain is None else plain + more
        value = value if here is None else kd.where(here, value, -inf)
        highest = kd.max(value, axis=1) if top is None else kd.maximum(top, kd.max(value, axis=1))
        base = finite_or_zero(highest) * -LOG2E
        more = kd.sum(kd.exp2(kd.fma(value, LOG2E, base[:, None])), axis=1)
        total = more if top is None else kd.fma(total, kd.exp2(kd.fma(top, LOG2E, base)), more)
        top = highest
    number = kd.div(tile.n.start, width)
    out[TOP, number, tile.m] = top
    out[TOTAL, number, tile.m] = total
    if p.softmax > PLAIN:
        out[PLAIN, number, tile.m] = plain


class Exponentials:
    """The exponentials of a tile, some columns at a time, with each row's greatest element and the sum of its exponentials."""

    def __init__(self, p: Problem, tile: Tile, width: int, shift: Any) -> None:
        self.p: Problem = p
        self.tile: Tile = tile
        self.width: int = width
        self.base: Any = tile.read(shift, ("m",)) * -LOG2E
        self.top: Any = None
        self.total: Any = None

    def of(self, x: Any, part: Tile) -> Any:
        """exp(x - shift) of one part, float32; 0 for columns beyond the result."""
        x = x.astype(kd.float32)
        if self.p.N % self.width:
            x = kd.where(part.coordinates(x.shape[1])[1] < self.p.N, x, -inf)
        made = kd.exp2(kd.fma(x, LOG2E, self.base))
        top, total = kd.max(x, axis=1), kd.sum(made, axis=1)
        self.top = top if self.top is None else kd.maximum(self.top, top)
        self.total = total if self.total is None else self.total + total
        return made

    def store(self, out: Any) -> None:
        """Store the sums to their place in `out`, as `store_sums` does."""
        number = kd.div(self.tile.n.start, self.width)
        out[TOP, number, self.tile.m] = self.top
        out[TOTAL, number, self.tile.m] = self.total


def _most(extent: Any) -> int:
    """The greatest value of an extent."""
    return extent if isinstance(extent, int) else extent.facts.hi


def drawn(x: Any, p: Problem, refs: Sequence[Any], tile: Tile, unit: int) -> Tile:
    """The tile of sums `x` after dropout, if there is any.

    It loops over words, because a word takes 100 instructions. Word i (`random_words`) decides element i of the result,
    for any layout of the result in memory.
    """
    place = 0
    steps = (*p.gated[0], *p.gated[1], *p.all_steps)
    for step in steps:
        if step.kind == "dropout":
            break
        place += len(step.operands)
    else:
        return tile
    rate, _, low, high = refs[place : place + 4]
    kind = kd.uint64 if prod(_most(extent) for extent in tile.shape) > 1 << 31 else kd.uint32
    height, width = (kd.astype(n, kind) if not isinstance(n, int) else n for n in tile.shape[-2:])
    outer: Any = 0
    for index, extent in zip(tile.batch, tile.shape, strict=False):
        outer = outer * extent + index
    layout = resolve(x[:, :unit].type.layout)

    def draw(turn: Any, bits: Any) -> Any:
        m, n = tile.part(turn * unit, unit).coordinates(unit)
        far, near, length = (n, m, height) if step.word else (m, n, width)
        number = far.astype(kind) * length + near.astype(kind)
        if not isinstance(outer, int) or outer:
            number = number + kd.astype(outer, kind) * (width * height)
        uniform = (random_words(number, low, high) >> 8).astype(kd.float32) * 2.0**-24
        bit = kd.astype(1, kd.uint32) << turn.astype(kd.uint32)
        return kd.layout_cast(bits, layout) | kd.where(uniform >= rate, bit, kd.uint32(0))

    start = kd.layout_cast(kd.zeros((x.shape[0], unit), kd.uint32), layout)
    return replace(tile, kept=Kept(kd.fori_loop(0, x.shape[1] // unit, draw, start), unit))


def finish(x: Any, steps: Sequence[EpilogueStep], refs: Sequence[Any] | Iterator[Any], tile: Tile) -> Any:
    """The steps on a tile of sums, in order."""
    rest = iter(refs)
    for step in steps:
        x = _KINDS[step.kind](x, step, rest, tile)
    return x


def join(gate: Any, value: Any, p: Problem, refs: Sequence[Any], tile: Tile) -> Any:
    """Apply each product's own steps, join the two by the gate, then apply the steps of the result."""
    return joined(gate, value, p, refs, tile)[0]


def joined(gate: Any, value: Any, p: Problem, refs: Sequence[Any], tile: Tile) -> tuple[Any, Any, Any]:
    """(the first product as the gate takes it, the second, the result of `join`)."""
    assert p.gate is not None
    rest = iter(refs)
    gate, value = (finish(x, steps, rest, tile) for x, steps in zip((gate, value), p.gated, strict=True))
    gate, value = (x if x.dtype.is_float else x.astype(kd.float32) for x in (gate, value))
    if p.gate.function is not None:
        x = called_on("the gate", p.gate.function, gate, value)
    else:
        scaled = all(step.kind in ("multiply", "absmax", "dropout") for step in p.steps)
        rough = scaled and p.out_dtype.itemsize <= 2 and gate.dtype == kd.float32
        x = gate_function(p.gate.word, rough)(gate, value)
    return finish(x, p.steps, rest, tile), gate, value


def _add(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    return plus(x, tile.read(next(refs), step.operands[0]))


def _multiply(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    factor = tile.read(next(refs), step.operands[0])
    x = x if x.dtype.is_float else x.astype(kd.float32)
    return x * factor.astype(x.dtype)


def _activate(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    assert step.function is not None
    return called_on("the activation", step.function, x)


def _call(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    assert step.function is not None
    parts = [tile.read(next(refs), axes) for axes in step.operands]
    return called_on("the epilogue", step.function, x, *parts)


def _drop(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    _, factor, _, _ = (next(refs) for _ in step.operands)
    assert tile.kept is not None
    bits, unit, begin = tile.kept.bits, tile.kept.unit, tile.kept.first
    x = x if x.dtype.is_float else x.astype(kd.float32)
    grown = x * factor.astype(x.dtype)
    parts: list[Any] = []
    for first in range(0, x.shape[1], unit):
        keep = (bits >> ((begin + first) // unit)) & 1
        parts.append(kd.where(keep != 0, grown[:, first : first + unit], 0.0))
    return parts[0] if len(parts) == 1 else kd.concatenate(parts, axis=1)


def _peak(x: Any, step: EpilogueStep, refs: Iterator[Any], tile: Tile) -> Any:
    """Update the greatest magnitude; NaN is the greatest. The order of non-negative floats is the order of
    their bits.
    """
    m, n = tile.coordinates(x.shape[1])
    size = kd.abs(x.astype(kd.float32))
    for index, extent, side in ((m, tile.shape[-2], tile.m), (n, tile.shape[-1], tile.n)):
        if not isinstance(extent, int) or extent % side.size:
            size = kd.where(index < extent, size, 0.0)
    kd.atomic_max(tile.peak.bitcast(kd.int32), kd.bitcast_convert_type(kd.max(size), kd.int32))
    return x


_KINDS: dict[str, Function] = {
    "add": _add,
    "multiply": _multiply,
    "activation": _activate,
    "function": _call,
    "dropout": _drop,
    "absmax": _peak,
}


def plus(x: Any, y: Any) -> Any:
    """Sums `x` plus a bias or addend.

    The result is in the dtype of the sums, unless that would turn a float into an integer, or 64 bits into 32.
    """
    if not x.dtype.is_float and (y.dtype.is_float or y.dtype.itemsize == 8):
        large = 8 in (x.dtype.itemsize, y.dtype.itemsize)
        x = x.astype((kd.float64 if large else kd.float32) if y.dtype.is_float else y.dtype)
    return x + y.astype(x.dtype)


# Philox-4x32-10 (Salmon et al. 2011): multipliers, and the increments of the key in each round
_MULTIPLIERS, _WEYL, _ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10


def random_words(number: Any, low: Any, high: Any) -> Any:
    """Word `number` % 4 of Philox at counter `number` // 4, uint32; the key is (low, high)."""
    counter = number >> 2
    low_word = counter.astype(kd.uint32)
    zero = low_word & 0
    c = [low_word, (counter >> 32).astype(kd.uint32) if number.dtype == kd.uint64 else zero, zero, zero]
    keys = [low, high]
    for _ in range(_ROUNDS):
        products = [c[i].astype(kd.uint64) * np.uint64(m) for i, m in zip((0, 2), _MULTIPLIERS, strict=True)]
        tops, bottoms = [(p >> 32).astype(kd.uint32) for p in products], [p.astype(kd.uint32) for p in products]
        c = [tops[1] ^ c[1] ^ keys[0], bottoms[1], tops[0] ^ c[3] ^ keys[1], bottoms[0]]
        keys = [key + np.uint32(w) for key, w in zip(keys, _WEYL, strict=True)]
    which = (number & 3).astype(kd.uint32)
    return kd.where(which < 2, kd.where(which == 0, c[0], c[1]), kd.where(which == 2, c[2], c[3]))
