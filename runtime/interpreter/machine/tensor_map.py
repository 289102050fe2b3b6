"""Tensor maps: the interpreter's own encoding of a `CUtensorMap`, with cuTensorMapEncodeTiled's rules."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import OobFill, Swizzle
from kernel_dsl.diagnostics import Error
from kernel_dsl.dtypes import ALL, DType, as_dtype
from kernel_dsl.lazy import lazy
from kernel_dsl.tma import MAX_RANK, Tiled, end_of_stores, map_rule_broken

from ..isa.semantics.halves import OOB_NAN

Array = npt.NDArray[Any]
_FORMAT = "<4s6BHQ5Q4Q5H5B"
_MAGIC = b"KDTM"
MAP_BYTES = 128
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)


class TensorMapError(Error, ValueError):
    """A tensor map that cuTensorMapEncodeTiled would refuse."""

    code = "tensor-map"

    def __init__(self, message: str) -> None:
        super().__init__(message=message)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorMapError, (self.fields["message"],)


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map. Dimensions innermost first; `strides` in bytes, `strides[0]` the element size.

    `element_strides[0]` is 1: the driver ignores what it is given for the innermost dimension.
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle
    oob_fill: OobFill

    @lazy
    def tile(self) -> tuple[int, ...]:
        """Return the elements of each dimension in shared memory, innermost first."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))

    @lazy
    def whole(self) -> tuple[tuple[int, int], ...]:
        """Return `Box.inside` of a box that lies in the tensor."""
        return tuple((0, n) for n in self.tile)

    @lazy
    def bytes(self) -> int:
        return prod(self.tile) * self.dtype.itemsize


def encode_tensor_map(
    address: int,
    dtype: Any,
    global_shape: Sequence[int],
    global_strides_bytes: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    swizzle: Swizzle | int = Swizzle.NONE,
    oob_fill: OobFill | str = OobFill.ZEROS,
    interleave: int = 0,
) -> bytes:
    """Return the 128 bytes of a tiled tensor map, for the interpreter.

    The arguments are cuTensorMapEncodeTiled's: dimensions innermost first, `global_strides_bytes` of all dimensions but the
    innermost, `box` in elements. Raises TensorMapError for what the driver refuses.
    """
    kind = as_dtype(dtype)
    rank = len(global_shape)
    steps = tuple(int(s) for s in (element_strides or (1,) * rank))
    swizzle = Swizzle(swizzle) if isinstance(swizzle, int) else swizzle
    oob_fill = OobFill(oob_fill) if isinstance(oob_fill, str) else oob_fill
    shape, boxes = tuple(int(n) for n in global_shape), tuple(int(n) for n in box)
    strides = tuple(int(s) for s in global_strides_bytes)
    if 1 <= rank <= MAX_RANK and (not len(boxes) == len(steps) == rank or len(strides) != rank - 1):
        raise TensorMapError(
            f"rank {rank} wants {rank} box sizes and element strides and {rank - 1} strides, not "
            f"{len(boxes)}, {len(steps)} and {len(strides)}"
        )
    wrong = map_rule_broken(Tiled(address, kind, shape, strides, boxes, steps, swizzle, oob_fill, interleave))
    if wrong is not None:
        raise TensorMapError(wrong)
    data = struct.pack(
        _FORMAT, _MAGIC, rank, ALL.index(kind), _SWIZZLES.index(swizzle),
        1 if oob_fill is OobFill.NAN else 0, 0, 0, 0, address,
        *_pad(shape, 5, 1), *_pad(strides, 4, 0), *_pad(boxes, 5, 1), *_pad(steps, 5, 1),
    )  # fmt: skip
    return data.ljust(128, b"\0")


def _pad(values: tuple[int, ...], count: int, fill: int) -> tuple[int, ...]:
    return values + (fill,) * (count - len(values))


def decode_tensor_map(data: bytes) -> TensorMap | None:
    """Return the map that `encode_tensor_map` made, or None if it did not make these bytes."""
    size = struct.calcsize(_FORMAT)
    if len(data) < size or data[:4] != _MAGIC:
        return None
    f: tuple[Any, ...] = struct.unpack(_FORMAT, data[:size])
    rank: int = f[1]
    if not 1 <= rank <= MAX_RANK or f[5]:  # interleaved layouts are not supported
        return None
    dtype: DType = ALL[int(f[2])]
    shape, strides = f[9 : 9 + rank], (dtype.itemsize, *f[14 : 14 + rank - 1])
    swizzle: Swizzle = _SWIZZLES[int(f[3])]
    return TensorMap(
        f[8], dtype, shape, strides, f[18 : 18 + rank], (1, *f[24 : 23 + rank]), swizzle,
        OobFill.NAN if f[4] else OobFill.ZEROS,
    )  # fmt: skip


# The element types of tensormap.replace, by number (PTX ISA 9.7.9.28); .tf32 and .ftz have the bits of .f32.
_ELEMENTS = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32", "float64", "bfloat16",
    "float32", "float32",
)  # fmt: skip
_AT = {"rank": 1, "elemtype": 2, "swizzle_mode": 3, "fill_mode": 4, "interleave_layout": 5, "global_address": 8}
_FIRST = {"global_dim": 9, "global_stride": 14, "box_dim": 18, "element_stride": 23}


def replace_field(data: bytes, field: str, dimension: int, value: int) -> bytes | None:
    """Return a map's 128 bytes with one field replaced. The map may begin as zeros. None if the bytes are neither a map nor
    zeros.

    `global_stride` 0 is that of the second dimension; `rank` is one less than the rank.
    """
    size = struct.calcsize(_FORMAT)
    fresh = not any(data)
    if not fresh and data[:4] != _MAGIC:
        return None
    values = list(struct.unpack(_FORMAT, data[:size]))
    values[0] = _MAGIC
    if field in _FIRST:
        most = 4 if field == "global_stride" else 5
        if dimension >= most:
            return data
        values[_FIRST[field] + dimension] = value & (
            0xFFFF if field in ("box_dim", "element_stride") else (1 << 64) - 1
        )
    elif field == "elemtype":
        values[2] = ALL.index(as_dtype(_ELEMENTS[value]))
    else:
        values[_AT[field]] = value + 1 if field == "rank" else value
    return struct.pack(_FORMAT, *values).ljust(MAP_BYTES, b"\0")


def rule_broken(m: TensorMap) -> str | None:
    """Return the driver's rule that a map made by the kernel breaks; None if it breaks none."""
    return map_rule_broken(
        Tiled(m.address, m.dtype, m.shape, m.strides[1:], m.box, m.element_strides, m.swizzle, m.oob_fill, 0)
    )


@dataclass(frozen=True)
class Box:
    """One box of a tensor: `offset` bytes from the map's address, and per dimension, innermost first, the first and
    last + 1 of the tile's elements that lie inside the tensor. All are in bounds if `inside` is the whole tile."""

    offset: int
    inside: tuple[tuple[int, int], ...]

    @property
    def empty(self) -> bool:
        return any(a >= b for a, b in self.inside)


def locate_box(m: TensorMap, coords: Sequence[int], store: bool = False) -> Box:
    """Return the place of the box at `coords` (innermost first)."""
    offset = 0
    inside: list[tuple[int, int]] = []
    shape = (end_of_stores(m.shape[0], m.dtype.itemsize), *m.shape[1:]) if store else m.shape
    for c, n, stride, tile, step in zip(coords, shape, m.strides, m.tile, m.element_strides, strict=True):
        first = max(0, -(c // step) if c < 0 else 0)
        if c < 0:
            first = -(c // step)
        last = min(tile, -(-(n - c) // step))
        inside.append((first, max(last, 0)))
        offset += (c + first * step) * stride
    return Box(offset, tuple(inside))


def box_view(m: TensorMap, box: Box, words: Array, origin: int) -> Array:
    """Return the tensor's elements inside the box, outermost first, as a view of `words` (unsigned, of the element size).

    `origin`: the byte of the map's address in the buffer that `words` views. Raises IndexError out of bounds.
    """
    size = m.dtype.itemsize
    counts = [b - a for a, b in box.inside]
    steps = [s * e for s, e in zip(m.strides, m.element_strides, strict=True)]
    start = origin + box.offset
    end = start + sum((n - 1) * s for n, s in zip(counts, steps, strict=True)) + size
    if start < 0 or end > len(words) * size:
        raise IndexError("the tensor map reaches outside of the array")
    return np.ndarray(counts[::-1], words.dtype, words, start, steps[::-1])


def swizzled(offsets: Array, swizzle: Swizzle) -> Array:
    """Return shared-memory byte addresses through a swizzle: bits 4 to 6 XORed with bits 7 to 9, as far as the span goes."""
    bits = {Swizzle.NONE: 0, Swizzle.B32: 0x10, Swizzle.B64: 0x30, Swizzle.B128: 0x70}[swizzle]
    return offsets ^ ((offsets >> 3) & bits) if bits else offsets


def fill_bits(m: Any) -> int:
    """Return the bits of elements outside of the tensor: zero, or the NaN that `fma.oob` knows in each 16 bits."""
    if m.oob_fill is OobFill.ZEROS:
        return 0
    return int.from_bytes(int(OOB_NAN).to_bytes(2, "little") * (m.dtype.itemsize // 2), "little")
