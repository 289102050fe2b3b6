"""The numbers of entries that granules of shadow memory have: 16 bits a granule, and as many more as entries need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SHORT = 1 << 16  # up to so many entries, numbers take 2 bytes
SHARE = 8  # granules that share a byte of a plane
_CHUNK = 1 << 16  # granules that are read at a time


class Whole:
    """Memory for the low bits of all granules of a buffer. Its parts take slices. Pages that nobody uses take no memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._low: Array | None = None

    def slice(self, start: int, size: int) -> Array:
        if self._low is None:
            self._low = np.zeros(self.size, np.uint16)
        return self._low[start : start + size]


class Numbers:
    """One number for each of `size` granules, the first of which is number `start` of `whole`, if that is given.

    `low` has the low 16 bits of each. Each plane has one further bit of each granule, eight granules a byte.
    """

    def __init__(self, size: int, whole: Whole | None = None, start: int = 0) -> None:
        self.size = size
        self.whole = whole
        self.start = start
        self.low: Array = blank(size, np.uint16)
        self.planes: list[Array] = []

    @property
    def blank(self) -> bool:
        """Return whether no granule has got a number yet."""
        return not self.low.flags.writeable

    @property
    def most(self) -> int:
        """Return how many numbers there may be."""
        return SHORT << len(self.planes)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the numbers take."""
        return (0 if self.blank else self.low.nbytes) + sum(plane.nbytes for plane in self.planes)

    def make(self, room: Callable[[int], None]) -> None:
        """Take memory for numbers, which are 0."""
        if self.blank:
            room(2 * self.size)
            whole = self.whole
            self.low = np.zeros(self.size, np.uint16) if whole is None else whole.slice(self.start, self.size)

    def fit(self, count: int, room: Callable[[int], None]) -> None:
        """Make sure that `count` numbers fit."""
        while self.most < count:
            room(-(-self.size // SHARE))
            self.planes.append(np.zeros(-(-self.size // SHARE), np.uint8))

    def drop(self) -> None:
        """Give up the memory, without changing what it holds: other numbers may have it now."""
        self.low, self.planes = blank(self.size, np.uint16), []

    def get(self, g: Array) -> Array:
        found: Array = self.low[g]
        if self.planes:
            found = found.astype(np.int32)
            byte, shift = g >> 3, (g & 7).astype(np.uint8)
            for number, plane in enumerate(self.planes):
                found |= ((plane[byte] >> shift) & 1).astype(np.int32) << (16 + number)
        return found

    def put(self, g: Array, numbers: Any) -> None:
        if not self.planes:
            self.low[g] = numbers
            return
        given = np.broadcast_to(np.asarray(numbers, np.int64), g.shape)
        self.low[g] = given & (SHORT - 1)
        place = (g & 7).astype(np.uint8).reshape(-1)
        order = np.argsort(place, kind="stable")  # of several numbers for one granule, the last one stays
        byte, high = (g.reshape(-1) >> 3)[order], (given.reshape(-1) >> 16)[order]
        ends = np.cumsum(np.bincount(place, minlength=SHARE)).tolist()
        for bit, (first, last) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            at = byte[first:last]
            for number, plane in enumerate(self.planes) if len(at) else ():
                of = (high[first:last] >> number & 1).astype(np.uint8)
                plane[at] = (plane[at] & (255 ^ 1 << bit)) | of << bit

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Yield stretches of granules, and their numbers; nothing if no granule has a number."""
        for at in range(0, 0 if self.blank else self.size, _CHUNK):
            span = slice(at, min(at + _CHUNK, self.size))
            yield span, self._span(span)

    def _span(self, span: slice) -> Array:
        found: Array = self.low[span]
        if self.planes:
            found = found.astype(np.int32)
        for number, plane in enumerate(self.planes):
            held = plane[span.start >> 3 : -(-span.stop // SHARE)]
            of = np.unpackbits(held, count=len(found), bitorder="little")
            found |= of.astype(np.int32) << (16 + number)
        return found

    def fill(self, start: int, numbers: Array) -> None:
        """Set the numbers of the granules from `start` on, a multiple of 8; so is the end, unless it is the very last."""
        self.low[start : start + len(numbers)] = numbers & (SHORT - 1)
        for number, plane in enumerate(self.planes):
            of = np.packbits((numbers.astype(np.int64) >> (16 + number) & 1).astype(np.uint8), bitorder="little")
            plane[start >> 3 : (start >> 3) + len(of)] = of

    def refined(self, times: int, size: int, whole: Whole | None, room: Callable[[int], None]) -> Numbers:
        """Return the numbers of granules that are split into `times`, of which the first `size` are kept."""
        made = Numbers(size, whole, self.start * times)
        if not self.blank:
            made.make(room)
            made.fit(self.most, room)
            for span, numbers in self.chunks():
                at = span.start * times
                made.fill(at, np.repeat(numbers, times)[: size - at])
        return made


def blank(size: int, dtype: Any) -> Array:
    """Return zeros that take no memory and can only be read."""
    return np.broadcast_to(np.zeros(1, dtype), (size,))
