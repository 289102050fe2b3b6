"""Columns of pixels, which tensor copies of im2col mode access (PTX ISA 5.5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..im2col import Im2colMap, column
from ..tensor_map import fill_bits
from .tensor_tiles import TensorTile, unit_of
from .transfers import Issuer

Array = npt.NDArray[Any]


class ColumnTile(TensorTile):
    """A column of pixels of an im2col map, found in a buffer."""

    def __init__(self, i: Issuer, m: Im2colMap, coords: Sequence[int], offsets: Sequence[int]) -> None:
        super().__init__(i, m)
        self.m: Im2colMap = m
        at = column(m, tuple(coords[1:])).copy()
        at[:, : len(offsets)] += np.array(offsets, np.int64).reshape(1, -1) if len(offsets) else 0
        extents = np.array(m.shape[1:], np.int64)
        self.rows: Array = np.asarray(((at >= 0) & (at < extents)).all(axis=1))
        self.first: int = max(-coords[0], 0)
        self.count: int = max(min(m.channels, m.shape[0] - coords[0]) - self.first, 0)
        start = self.origin + (coords[0] + self.first) * m.dtype.itemsize
        # For each pixel inside the tensor, the byte of the buffer where its channels inside begin.
        self.bytes: Array = start + (at[self.rows] * np.array(m.strides[1:], np.int64)).sum(axis=1)

    @property
    def empty(self) -> bool:
        return not len(self.bytes) or not self.count

    def _words(self) -> tuple[Array, Array]:
        """Return the buffer's elements, and the numbers of those inside: (pixels inside, channels inside)."""
        assert self.buffer is not None
        size = self.m.dtype.itemsize
        return self.buffer.view(size), (self.bytes // size)[:, None] + np.arange(self.count)

    def _inside(self, tile: Array) -> Array:
        return tile[self.rows, self.first : self.first + self.count]

    def load(self) -> Array:
        """Return the tile (pixels, channels), with elements outside filled."""
        m = self.m
        out = np.full((m.pixels, m.channels), fill_bits(m), f"u{m.dtype.itemsize}")
        if self.buffer is not None and not self.empty:
            words, at = self._words()
            out[self.rows, self.first : self.first + self.count] = words[at]
        return out

    def store(self, tile: Array, operation: str) -> None:
        if self.buffer is None or self.empty:
            return
        words, at = self._words()
        value = self._inside(tile)
        words[at] = self.combined(words[at], value, operation) if operation else value

    def unchanged(self, tile: Array, unit: int) -> Array:
        words, at = self._words()
        equal = (words[at] == self._inside(tile)).reshape(-1)
        return np.all(np.repeat(equal, self.m.dtype.itemsize).reshape(1, -1, unit), axis=2)

    def granules(self, shadow: Any) -> Array:
        run = self.count * self.m.dtype.itemsize
        unit = unit_of(int(self.bytes[0]), run, self.m.strides[1:], shadow)
        return (self.bytes[:, None] // unit + np.arange(run // unit)).reshape(1, -1)
