"""Operands of wgmma in shared memory, and accumulators that stay matrices between products (PTX ISA 9.7.15.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.semantics.descriptor import operand_addresses
from ..isa.semantics.fragments import accumulator_matrix, accumulator_registers

if TYPE_CHECKING:
    from .wgmma import InFlight

Array = npt.NDArray[Any]
CHUNK = 16  # bytes: a swizzle moves whole chunks


@dataclass(frozen=True, slots=True)
class TileShape:
    """The facts that a descriptor lacks: rows, bytes an element, the order, bytes of k; `tensor`: it is one of tcgen05."""

    rows: int
    size: int
    transposed: bool
    depth: int
    tensor: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """The chunks (m,) of one descriptor's tile, counted from the start of shared memory, and the bytes they lie between."""

    chunks: Array
    low: int
    high: int


@cache
def pattern(word: int, shape: TileShape) -> Pattern:
    """Return the chunks of a tile, row by row. For a transposed tile, groups of rows share chunks: return them group by
    group, k by k.
    """
    at = operand_addresses(word, shape.rows, shape.size, shape.transposed, shape.depth, shape.tensor)
    per = CHUNK // shape.size
    first = at[::per] if shape.transposed else at[:, ::per]
    chunks = np.ascontiguousarray(first).reshape(-1) // CHUNK
    chunks.setflags(write=False)
    return Pattern(chunks, int(at.min()), int(at.max()) + shape.size)


@cache
def _granules(word: int, shape: TileShape, granule: int, limit: int) -> Array:
    """Return the granules of a tile, each once, in ascending order."""
    chunks = np.unique(np.minimum(pattern(word, shape).chunks, limit))
    per = CHUNK // granule
    return chunks if per == 1 else (chunks[:, None] * per + np.arange(per)).reshape(-1)


class TileOperand:
    """A tile of each of some warpgroups: by descriptors `words` (groups,), in blocks `cta` (groups,)."""

    def __init__(self, words: Array, shape: TileShape, cta: Array, stride: int) -> None:
        self.shape = shape
        self.base: Array = cta * (stride // CHUNK)
        self.last: int = stride // CHUNK - 1  # accesses beyond it have been reported
        self.words: list[int]
        self.which: Array | None = None
        if (words == words[0]).all():
            self.words = [int(words[0])]
        else:
            found, self.which = np.unique(words, return_inverse=True)
            self.words = found.tolist()

    def bounds(self) -> tuple[Array, Array]:
        """Return the (low, high) bytes of each warpgroup's tile within its block."""
        found = [pattern(w, self.shape) for w in self.words]
        which = np.zeros(len(self.base), np.int64) if self.which is None else self.which
        return np.array([p.low for p in found])[which], np.array([p.high for p in found])[which]

    def gather(self, data: Array, element: type[np.generic]) -> Array:
        """Return codes (groups, rows, k) from the bytes of the batch's shared memory."""
        parts = [np.minimum(pattern(w, self.shape).chunks, self.last) for w in self.words]
        chunks = parts[0] if self.which is None else np.stack(parts)[self.which]
        held = data.view(np.complex128)[self.base[:, None] + chunks]  # 16 bytes at once
        s, groups = self.shape, len(self.base)
        codes = held.view(element)
        if not s.transposed:
            return codes.reshape(groups, s.rows, -1)
        per = CHUNK // s.size
        blocks = codes.reshape(groups, s.rows // per, -1, per)
        return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2)).reshape(groups, s.rows, -1)

    def granules(self, granule: int) -> Array:
        """Return granules (groups, n) of the batch's shadow memory."""
        parts = [_granules(w, self.shape, granule, self.last) for w in self.words]
        base = (self.base * (CHUNK // granule))[:, None]
        if self.which is None:
            return base + parts[0]
        most = max(map(len, parts))  # descriptors may let rows share chunks
        return base + np.stack([np.pad(p, (0, most - len(p)), "edge") for p in parts])[self.which]


class Accumulators:
    """Results of products that only wgmma has used so far: matrices, which are not in registers yet.

    A chain of products on the same accumulators skips the registers. Any other instruction that uses them calls `settle`
    first.
    """

    def __init__(self) -> None:
        self.held: list[tuple[InFlight, Array]] = []

    def take(self, r: InFlight) -> Array | None:
        """Return the matrices (groups, 64, n) that a product adds to, if they are held. Write held values that it reads to
        registers.
        """
        found: Array | None = None
        kept: list[tuple[InFlight, Array]] = []
        for other, acc in self.held:
            if found is None and _same_accumulator(other, r):
                found = acc
            elif _overlap(other, r):
                write(other, acc)
            else:
                kept.append((other, acc))
        self.held = kept
        return found

    def keep(self, r: InFlight, acc: Array) -> None:
        self.held.append((r, acc))

    def settle(self, frame: Any, registers: int) -> None:
        """Write held values to these registers (a bit set) of a frame, which are about to be read or written."""
        kept: list[tuple[InFlight, Array]] = []
        for r, acc in self.held:
            if r.frame is frame and r.product.acc_mask & registers:
                write(r, acc)
            else:
                kept.append((r, acc))
        self.held = kept

    def settle_all(self) -> None:
        for r, acc in self.held:
            write(r, acc)
        self.held = []


def read(r: InFlight) -> Array:
    """Return the accumulators of a product as matrices (groups, 64, n)."""
    form = r.product.form
    return accumulator_matrix(form.accumulator_values(_registers(r.frame, r.product.acc, r.rows)), form.n)


def write(r: InFlight, acc: Array) -> None:
    """Write matrices (groups, 64, n) to the accumulators of a product."""
    p = r.product
    bits = p.form.accumulator_bits(accumulator_registers(acc))
    block = _block(r.frame, p.acc)
    if block is not None:
        block[:, r.rows] = bits
    else:
        for slot, value in zip(p.acc, bits, strict=True):
            r.frame.base(slot)[r.rows] = value


def _same_accumulator(a: InFlight, b: InFlight) -> bool:
    return (
        a.product.acc == b.product.acc
        and a.frame is b.frame
        and a.product.form.d_type == b.product.form.d_type
        and np.array_equal(a.rows, b.rows)
    )


def _overlap(held: InFlight, r: InFlight) -> bool:
    """Return whether a product reads or writes registers whose values are held."""
    if held.frame is not r.frame or not held.product.acc_mask & (r.product.acc_mask | r.product.a_mask):
        return False
    return bool(np.isin(r.rows, held.rows).any())


def _block(frame: Any, slots: tuple[int, ...]) -> Array | None:
    """Return the accumulator as one array (registers, warps, 32); None if its registers have no common array."""
    place = frame.code.block_of.get(slots[0])
    if place is None:
        return None
    first, count = place
    start = slots[0] - first
    if slots[-1] - first >= count or slots[-1] - slots[0] != len(slots) - 1:
        return None
    return frame.block(first, count)[start : start + len(slots)]


def _registers(frame: Any, slots: tuple[int, ...], rows: Array) -> Array:
    block = _block(frame, slots)
    if block is not None:
        return block[:, rows]
    return np.stack([frame.base(s)[rows] for s in slots])
