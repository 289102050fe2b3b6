"""Tensor maps of im2col mode: columns of pixels, as convolutions read them (PTX ISA 5.5.4; cuTensorMapEncodeIm2col).

A tensor has axes C, W, H, D, N, innermost first, of which H and D may be missing. Along W, H and D, its bounding box has the
coordinates from `lower` up to, but not including, the extent + `upper`. A copy starts at one of these pixels and walks by the
element strides: along W to the end of the box, then on to the next H, D and N. It copies `channels` elements of each of
`pixels` pixels, and adds the instruction's offsets to their W, H and D. Elements outside of the tensor are filled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import OobFill, Swizzle
from kernel_dsl.dtypes import ALL, DType, as_dtype
from kernel_dsl.lazy import lazy
from kernel_dsl.tma import Tiled, map_rule_broken

from .tensor_map import MAP_BYTES, TensorMapError

Array = npt.NDArray[Any]
_FORMAT = "<4s6BHQ5Q4Q3h3h2H5B"
_MAGIC = b"KDIC"
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
MAX_PIXELS = 1024
MAX_CHANNELS = 256
_CORNER_BITS = {3: 16, 4: 8, 5: 5}  # bits of signed corners, by rank; unsigned offsets have as many


@dataclass(frozen=True)
class Im2colMap:
    """A decoded map. Dimensions innermost first; `strides` in bytes, `strides[0]` the element size; `lower`, `upper` and
    `element_strides` of W, H and D."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    element_strides: tuple[int, ...]
    swizzle: Swizzle
    oob_fill: OobFill

    @property
    def tile(self) -> tuple[int, int]:
        return self.channels, self.pixels

    @lazy
    def bytes(self) -> int:
        return self.channels * self.pixels * self.dtype.itemsize

    @property
    def spatial(self) -> int:
        """Return how many of the axes W, H and D the map has."""
        return len(self.shape) - 2

    def broken(self) -> str | None:
        """Return what a driver would refuse (cuTensorMapEncodeIm2col), or None."""
        rank = len(self.shape)
        if rank not in _CORNER_BITS:
            return f"it would have {rank} dimensions, and im2col maps have 3 to 5"
        if not 1 <= self.channels <= MAX_CHANNELS or not 1 <= self.pixels <= MAX_PIXELS:
            return (
                f"{self.pixels} pixels of {self.channels} channels: there are 1 to {MAX_PIXELS} of 1 to {MAX_CHANNELS}"
            )
        limit = 1 << (_CORNER_BITS[rank] - 1)
        for name, corner in (("lower", self.lower), ("upper", self.upper)):
            if any(not -limit <= n < limit for n in corner):
                return f"its {name} corner {tuple(reversed(corner))} has an offset outside of {-limit} to {limit - 1}"
        if any(n + u <= low for n, low, u in zip(self.shape[1:-1], self.lower, self.upper, strict=True)):
            return "its bounding box is empty"
        box = (self.channels, *(1,) * (rank - 1))
        steps = (1, *self.element_strides, 1)
        return map_rule_broken(
            Tiled(self.address, self.dtype, self.shape, self.strides[1:], box, steps, self.swizzle, self.oob_fill, 0)
        )


def encode_im2col_map(
    address: int,
    dtype: Any,
    global_shape: Sequence[int],
    global_strides_bytes: Sequence[int],
    lower: Sequence[int],
    upper: Sequence[int],
    channels: int,
    pixels: int,
    element_strides: Sequence[int] | None = None,
    swizzle: Swizzle | int = Swizzle.NONE,
    oob_fill: OobFill | str = OobFill.ZEROS,
) -> bytes:
    """Return the 128 bytes of an im2col map, for the interpreter.

    The arguments are cuTensorMapEncodeIm2col's: dimensions innermost first, `global_strides_bytes` of all but the
    innermost, corners and `element_strides` of W, H and D. Raises TensorMapError for what the driver refuses.
    """
    kind, rank = as_dtype(dtype), len(global_shape)
    steps = tuple(element_strides or (1,) * max(rank - 2, 0))
    if {len(lower), len(upper), len(steps)} != {rank - 2} or len(global_strides_bytes) != rank - 1:
        raise TensorMapError(f"rank {rank} wants corners and element strides of {rank - 2} dimensions")
    m = Im2colMap(
        address, kind, tuple(global_shape), (kind.itemsize, *global_strides_bytes), tuple(lower), tuple(upper), channels,
        pixels, steps, Swizzle(swizzle), OobFill(oob_fill),
    )  # fmt: skip
    wrong = m.broken()
    if wrong is not None:
        raise TensorMapError(wrong)
    data = struct.pack(
        _FORMAT, _MAGIC, rank, ALL.index(kind), _SWIZZLES.index(m.swizzle), m.oob_fill is OobFill.NAN, 0, 0, 0, address,
        *_pad(m.shape, 5, 1), *_pad(m.strides[1:], 4, 0), *_pad(m.lower, 3, 0), *_pad(m.upper, 3, 0), channels, pixels,
        *_pad(steps, 5, 1),
    )  # fmt: skip
    return data.ljust(MAP_BYTES, b"\0")


def _pad(values: tuple[int, ...], count: int, fill: int) -> tuple[int, ...]:
    return values + (fill,) * (count - len(values))


def decode_im2col_map(data: bytes) -> Im2colMap | None:
    """Return the map that `encode_im2col_map` made, or None if it did not make these bytes."""
    if len(data) < struct.calcsize(_FORMAT) or data[:4] != _MAGIC:
        return None
    f: tuple[Any, ...] = struct.unpack(_FORMAT, data[: struct.calcsize(_FORMAT)])
    rank: int = f[1]
    if rank not in _CORNER_BITS:
        return None
    dtype: DType = ALL[int(f[2])]
    n = rank - 2
    return Im2colMap(
        f[8], dtype, f[9 : 9 + rank], (dtype.itemsize, *f[14 : 14 + rank - 1]), f[18 : 18 + n], f[21 : 21 + n], f[24], f[25],
        f[26 : 26 + n], _SWIZZLES[int(f[3])], OobFill.NAN if f[4] else OobFill.ZEROS,
    )  # fmt: skip


@lru_cache(256)
def column(m: Im2colMap, start: tuple[int, ...]) -> Array:
    """Return W, H, D and N of each pixel, (pixels, rank - 1), without offsets. The first pixel is `start`."""
    at, found = list(start), np.zeros((m.pixels, len(start)), np.int64)
    ends = [n + u for n, u in zip(m.shape[1:-1], m.upper, strict=True)]
    for pixel in range(m.pixels):
        found[pixel] = at
        for axis in range(m.spatial):
            at[axis] += m.element_strides[axis]
            if at[axis] < ends[axis]:
                break
            at[axis] = m.lower[axis]
        else:
            at[-1] += 1
    return found


def wrong_copy(m: Im2colMap, coords: Sequence[int], offsets: Sequence[int]) -> str | None:
    """Return what is wrong with a copy, or None.

    A copy must begin in the bounding box, and its offsets have as many bits as the map's corners.
    """
    spatial = coords[1:-1]
    for n, at, low, up in zip(m.shape[1:-1], spatial, m.lower, m.upper, strict=True):
        if not low <= at < n + up:
            box = ", ".join(f"{b} to {e + u - 1}" for b, e, u in zip(m.lower, m.shape[1:-1], m.upper, strict=True))
            return f"a copy of im2col mode that begins at {tuple(spatial)}, outside of the map's bounding box: {box}"
    limit = 1 << _CORNER_BITS[len(m.shape)]
    if any(o >= limit for o in offsets):
        return (
            f"offsets {tuple(offsets)} of a copy of im2col mode: with {len(m.shape)} dimensions they are below {limit}"
        )
    return None
