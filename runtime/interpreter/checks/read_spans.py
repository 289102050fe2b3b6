"""Which bytes of a memory warps have read, as spans. A whole array that a warp has read takes few bytes.

A warp is any number of 63 bits that is its own in this memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_APART = 1 << 37  # more than the bytes of a memory


class ReadSpans:
    """Spans of bytes by warp: ascending, with gaps between those of a warp.

    `warps`: (n,) ascending. `begin`, `end`: (spans,) a byte plus `_APART` times the index of its warp.
    """

    __slots__ = ("begin", "end", "warps")

    def __init__(self, spans: Sequence[Array]) -> None:
        """`spans`: arrays (3, n) of warps, first bytes and ends, in any order."""
        warps, begin, end = np.concatenate(spans, axis=1)
        self.warps, of = np.unique(warps, return_inverse=True)
        order = np.lexsort((begin, of))
        apart = of[order] * _APART
        begin, end = begin[order] + apart, np.maximum.accumulate(end[order] + apart)
        first = np.append(np.True_, begin[1:] > end[:-1])
        self.begin: Array = begin[first]
        self.end: Array = end[_lasts(first)]

    @property
    def spans(self) -> Array:
        """Return the spans as (3, n), as they are given."""
        of = self.begin // _APART
        return np.stack([self.warps[of], self.begin % _APART, self.end - of * _APART])

    def without(self, warps: Sequence[int]) -> ReadSpans | None:
        """Return the spans of other warps; None if there are none."""
        spans = self.spans
        kept = spans[:, ~np.isin(spans[0], warps)]
        return ReadSpans([kept]) if kept.size else None

    def find(self, warps: Array, begin: Array, size: int) -> tuple[Array, Array]:
        """Return (index, held) of accesses of `size` bytes: the place in `warps`, and whether a byte is in a span of the warp."""
        at = np.minimum(np.searchsorted(self.warps, warps), len(self.warps) - 1)
        first = at * _APART + begin
        ended = np.searchsorted(self.end, first, side="right")
        return at, (self.warps[at] == warps) & (ended < np.searchsorted(self.begin, first + size))


def spans_of(warps: Array, granules: Array, size: int) -> Array:
    """Return (3, n), the spans of granules of `size` bytes; `warps` and `granules` are (k,), k > 0."""
    order = np.lexsort((granules, warps))
    warps, granules = warps[order], granules[order]
    first = np.append(np.True_, (warps[1:] != warps[:-1]) | (granules[1:] > granules[:-1] + 1))
    return np.stack([warps[first], granules[first] * size, (granules[_lasts(first)] + 1) * size])


def _lasts(first: Array) -> Array:
    """Return where runs end that begin where `first` is True."""
    return np.append(np.flatnonzero(first)[1:], len(first)) - 1
