"""Dtypes for memory alone: 4-bit numbers, two a byte, and scales that are powers of two. `astype` converts them for arithmetic.

A lane holds a 4-bit number as a byte, its code from 0 to 15.
"""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..dtypes import DType
from ..errors import UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..layout import Bit, Layout
from ..trace import resolve, traced
from ..values import Array
from .arith import abs as magnitude_of
from .bits import signbit
from .broadcast import convert
from .cast import Bitcast, astype, bitcast_convert_type, enter
from .compare import where
from .logic import clip
from .numeric import isnan

__all__: list[str] = []

FAST = (dt.float16, dt.bfloat16, dt.float32, dt.int8)  # dtypes that bytes convert to directly


class Nibbles(Op, name="nibbles"):
    """The 4-bit numbers `source` in bytes along `axis`, the low half of each first, as they are or as a wider `dtype`.
    PTX `and`, `shr`, or `prmt`, `lop3` and `add` on pairs.
    """

    x: Value = operand()
    source: DType = attr()
    dtype: DType = attr()
    axis: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(doubled_shape(array_type(self.x).shape, self.axis), self.dtype, self.layout),)


class JoinNibbles(Op, name="join_nibbles"):
    """Joins 4-bit numbers: two neighbours along `axis` become a byte, with the first in its low half.

    PTX `shl`, `or`.
    """

    x: Value = operand()
    axis: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        shape = array_type(self.x).shape
        return (
            ArrayType((*shape[: self.axis], shape[self.axis] // 2, *shape[self.axis + 1 :]), dt.uint8, self.layout),
        )


def doubled_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape in elements, if two along `axis` share a byte."""
    return (*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])


def doubled(layout: Layout, axis: int) -> Layout:
    """The layout of the numbers in bytes with this layout."""

    def wide(bits: tuple[Bit, ...]) -> tuple[Bit, ...]:
        return tuple((b[0], b[1] * 2) if b is not None and b[0] == axis else b for b in bits)

    regs = [(d, n, s * 2 if d == axis else s) for d, n, s in layout.regs]
    return Layout(layout.rank, ((axis, 2, 1), *regs), wide(layout.lanes), wide(layout.warps))


def halved(layout: Layout, axis: int) -> Layout | None:
    """The layout of bytes whose numbers have this layout; None if the two numbers of a byte lie in different lanes."""
    if any(b is not None and b[0] == axis and b[1] % 2 for b in layout.bits):
        return None
    if layout.vector_length(axis) % 2:
        return None

    def narrow(bits: tuple[Bit, ...]) -> tuple[Bit, ...]:
        return tuple((b[0], b[1] // 2) if b is not None and b[0] == axis else b for b in bits)

    regs = [(d, n // 2, 1) if d == axis and s == 1 else (d, n, s // 2 if d == axis else s) for d, n, s in layout.regs]
    return Layout(layout.rank, tuple(regs), narrow(layout.lanes), narrow(layout.warps))


def numbers_of(bytes_: Array, dtype: DType, axis: int) -> Array:
    """The 4-bit numbers in a value of uint8."""
    return traced(Nibbles(bytes_, dtype, dtype, axis, doubled(resolve(bytes_.type.layout), axis)))


def bytes_of(x: Array, axis: int, layout: Layout) -> Array:
    """The bytes that hold 4-bit numbers. They get `layout` if the two numbers of a byte lie in different lanes."""

    own = halved(resolve(x.type.layout), axis)
    if own is None:
        x, own = convert(x, doubled(layout, axis)), layout
    return traced(JoinNibbles(x, axis, own))


# --- conversions ---------------------------------------------------------------------------------


def converted(x: Array, to: DType) -> Array:
    """`astype` from or to one of these dtypes (docs/programming-model.md, dtypes)."""

    source = x.dtype
    if source == to:
        return x
    if (to.kind is dt.Kind.OPAQUE and to not in dt.STORAGE) or (
        source.kind is dt.Kind.OPAQUE and source not in dt.STORAGE
    ):
        raise UnsupportedDType(op="astype", dtype=dt.complex64, hint=dt.complex64.only_copied)
    if source == dt.float8_e8m0fnu:
        wide = _from_scale(bitcast_convert_type(x, dt.uint8))
        return astype(wide, to)
    if source.is_packed:
        op = x.op
        if isinstance(op, Nibbles) and to in FAST:
            return traced(Nibbles(op.x, source, to, op.axis, resolve(x.type.layout)))
        code: Array = traced(Bitcast(x, dt.uint8))
        if source == dt.float4_e2m1fn:
            return astype(_from_float4(code), to)
        return astype(code if source == dt.uint4 else astype((code ^ 8) - 8, dt.int8), to)
    if to == dt.float8_e8m0fnu:
        return bitcast_convert_type(_to_scale(astype(x, dt.float32)), to)
    if to == dt.float4_e2m1fn:
        return traced(Bitcast(_to_float4(x if x.dtype.is_float and x.dtype.bits == 64 else astype(x, dt.float32)), to))
    return traced(Bitcast(_to_integer(x, to), to))


def _to_integer(x: Array, to: DType) -> Array:
    """The code: integers wrap, floats are truncated and saturate, as in wider dtypes."""

    if x.dtype.is_float:
        low, high = (-8, 7) if to == dt.int4 else (0, 15)
        x = clip(astype(x, dt.int32), low, high)
    return astype(x, dt.uint8) & 15


def _from_float4(code: Array) -> Array:
    """The number as float16: shift the exponent and mantissa into place, and multiply by the difference of the biases."""

    wide = astype(code, dt.uint16)
    return bitcast_convert_type(((wide & 8) << 12) | ((wide & 7) << 9), dt.float16) * 16384.0


# the midpoint between each two neighbours, and whether a tie goes to the upper one, which has an even code
_MEETS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def _to_float4(x: Array) -> Array:
    """The code: to nearest, ties to even, saturated; NaN gives -0, as ml_dtypes does."""

    magnitude = magnitude_of(x)
    code: Any = where(signbit(x), 8, 0)
    for place, tie in _MEETS:
        code = code + astype(magnitude >= place if tie else magnitude > place, dt.int32)
    return astype(where(isnan(x), 8, code), dt.uint8)


def _from_scale(code: Array) -> Array:
    """float32 of an exponent: 2 ** (code - 127), and NaN for 255."""

    wide = astype(code, dt.uint32)
    bits = where(wide == 0, 0x400000, where(wide == 255, 0x7FC00000, wide << 23))
    return bitcast_convert_type(bits, dt.float32)


def _to_scale(x: Array) -> Array:
    """The exponent of a float32, to nearest, ties up. Numbers that are not positive or too large give NaN, 255."""

    bits = bitcast_convert_type(x, dt.int32)  # at most 0 for negative numbers and 0
    code = (bits >> 23) + ((bits >> 22) & 1)
    code = where(bits < 0x800000, where(bits > 0x400000, 1, 0), code)
    return astype(where((bits > 0) & (code < 255), code, 255), dt.uint8)


enter(converted)
