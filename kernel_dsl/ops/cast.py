"""Conversions between dtypes."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..dtypes import DType, as_dtype
from ..errors import BadArgument, UnsupportedDType
from ..facts import Range
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..target import Feature
from ..trace import traced
from ..values import Array

__all__ = ["astype", "bitcast_convert_type", "convert_element_type"]


class Cast(Op, name="cast"):
    """Convert element by element (docs/programming-model.md, dtypes). PTX `cvt`.

    Float to int truncates, saturates and takes NaN to 0; int to bool is `!= 0`; fp8 rounds to nearest even and, with
    `saturate`, clamps to the largest finite value.
    """

    again = True
    x: Value = operand()
    dtype: DType = attr()
    saturate: bool = attr(True)

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, self.dtype, t.layout),)

    def range(self) -> Range | None:
        facts = self.x.facts
        if facts is None or not self.dtype.is_integer:
            return None
        return facts if facts.fits(self.dtype.bits, self.dtype.is_signed) else None


class Bitcast(Op, name="bitcast"):
    """The same bits as another dtype of the same width. PTX `mov`."""

    x: Value = operand()
    dtype: DType = attr()
    requires = Feature(0)

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, self.dtype, t.layout),)


def astype(x: Any, dtype: Any, *, saturate: bool = True) -> Array:
    """`x` converted to `dtype`. `saturate=False` lets fp8 overflow give what ml_dtypes gives.

    >>> run(lambda x: kd.astype(x, kd.int8), [1.9, -300.0])
    [   1 -128]
    """
    from .elementwise import as_value

    value = as_value(x, "astype")
    to = as_dtype(dtype)
    if to.kind is dt.Kind.OPAQUE or value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op="astype", dtype=to, hint="complex values are only copied")
    if value.dtype == to:
        if value.weak:
            value = traced(Cast(value, to, saturate))
        return value
    return traced(Cast(value, to, saturate))


convert_element_type = astype


def rounded(x: Array, dtype: DType) -> Array:
    """What arithmetic made of operands of `dtype`, or a number beside them, in it: fp8 overflow as ml_dtypes has it."""
    return astype(x, dtype, saturate=dtype not in dt.FP8)


def bitcast_convert_type(x: Any, dtype: Any) -> Array:
    """The bits of `x` as `dtype`, which must be as wide.

    >>> run(lambda x: kd.bitcast_convert_type(x, kd.int32), [1.0])
    [1065353216]
    """
    from .elementwise import as_value

    value = as_value(x, "bitcast_convert_type")
    to = as_dtype(dtype)
    if value.dtype.bits != to.bits or to.is_bool or value.dtype.is_bool:
        what = f"{value.dtype} and {to} are not of one width"
        hint = "a value keeps its shape; use `ref.bitcast(...)` to change the width"
        raise BadArgument(op="bitcast_convert_type", what=what, hint=hint)
    return value if value.dtype == to else traced(Bitcast(value, to))
