"""Conversions between dtypes, and of numbers and NumPy arrays to values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..diagnostics import Error, of_kind, shown
from ..dtypes import DType, as_dtype, of_python
from ..errors import BadArgument, ClosedOverArray, LiteralOutOfRange, NotAnArray, RefAsValue, UnsupportedDType
from ..errors_dims import FROM_ARRAY
from ..extents import Unread
from ..facts import Range, any_of, of
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..layout import SCALAR
from ..trace import current, traced
from ..values import Array
from ..variables import Symbol
from .dense import dense

__all__ = ["astype", "bitcast_convert_type", "convert_element_type"]


class Constant(Op, name="constant"):
    """A rank-0 compile-time constant. No instruction: it is an immediate operand."""

    value: bool | int | float = attr()
    dtype: DType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), self.dtype, SCALAR),)

    def range(self) -> Range | None:
        return of(int(self.value)) if self.dtype.is_integer else None


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

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, self.dtype, t.layout),)


_of_storage: list[Callable[[Array, DType], Array]] = []  # converts from and to dtypes for memory; storage.py enters it


def enter(function: Callable[[Array, DType], Array]) -> None:
    """Enter the function that converts dtypes for memory."""
    _of_storage[:] = [function]


def astype(x: Any, dtype: Any, *, saturate: bool = True) -> Array:
    """`x` converted to `dtype`. With `saturate=False` an overflow of fp8 gives the result of ml_dtypes.

    >>> run(lambda x: kd.astype(x, kd.int8), [1.9, -300.0])
    [   1 -128]
    """
    value = as_value(x, "astype")
    to = as_dtype(dtype)
    if to.kind is dt.Kind.OPAQUE or value.dtype.kind is dt.Kind.OPAQUE:
        return _of_storage[0](value, to)
    if value.dtype == to:
        if value.weak:
            value = traced(Cast(value, to, saturate))
        return value
    return traced(Cast(value, to, saturate))


convert_element_type = astype


def rounded(x: Array, dtype: DType) -> Array:
    """A result of arithmetic, or a Python number, rounded to `dtype`. fp8 overflow is that of ml_dtypes."""
    return astype(x, dtype, saturate=dtype not in dt.FP8)


def as_number(x: Any, op: str) -> Array:
    """An operand for arithmetic that keeps integers as they are. Raises `UnsupportedDType` for dtypes that are only copied."""
    value = as_value(x, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint=value.dtype.only_copied)
    return value


def bitcast_convert_type(x: Any, dtype: Any) -> Array:
    """The bits of `x` as `dtype`, which must be as wide.

    >>> run(lambda x: kd.bitcast_convert_type(x, kd.int32), [1.0])
    [1065353216]
    """
    value = as_value(x, "bitcast_convert_type")
    to = as_dtype(dtype)
    if value.dtype.bits != to.bits or to.is_bool or value.dtype.is_bool:
        what = f"{value.dtype} and {to} are not of one width"
        hint = "a value keeps its shape; use `ref.bitcast(...)` to change the width"
        raise BadArgument(op="bitcast_convert_type", what=what, hint=hint)
    return value if value.dtype == to else traced(Bitcast(value, to))


# --- what becomes a value ------------------------------------------------------------------------


def constant(value: Any, dtype: DType, *, weak: bool = False) -> Array:
    """A rank-0 constant. A region has each constant once."""
    table = current().constants
    value = _fit(value, dtype)
    # repr distinguishes -0.0 from 0.0, and makes NaN equal to NaN
    key = (repr(value), dtype.name, weak)
    found = table.get(key)
    if found is None:
        found = table[key] = traced(Constant(value, dtype))
        found.weak = weak
    return found  # type: ignore[return-value]


def _fit(value: Any, dtype: DType) -> bool | int | float:
    if dtype.is_bool:
        return bool(value)
    if dtype.is_integer:
        number = _plain(value)
        held = any_of(dtype)
        assert held is not None
        if not held.lo <= number <= held.hi:
            raise LiteralOutOfRange(value=number, dtype=dtype, hint=_wider(number))
        return number
    try:
        return float(_plain(value))
    except OverflowError:
        hint = "its largest number is some 1.8e308"
        raise LiteralOutOfRange(value=value, dtype=dtype, hint=hint) from None


def _wider(number: int) -> str:
    if not -(2**63) <= number < 2**64:
        return "no integer dtype has more than 64 bits; write a float such as `1e30`"
    wide = "np.int64" if number < 2**63 else "np.uint64"
    return f"write `{wide}({number})` if a wide integer is meant, or convert the array first"


def _plain(value: Any) -> Any:
    """A plain Python number: a subclass may define its own printing, hashing and conversions."""
    cls: type[Any] = type(value)
    if issubclass(cls, int):
        return int.__int__(value)
    return float.__float__(value) if issubclass(cls, float) else value


def item_type(x: Any, op: str) -> tuple[DType, bool]:
    """(dtype, weak) of an operand that is not a value yet.

    Raises `NotAnArray` or `UnsupportedDType` if it can't become one.
    """
    if isinstance(x, Array):
        return x.dtype, x.weak
    weak = dt.int32 if isinstance(x, Unread) else of_python(x)
    if weak is not None:
        return weak, True
    if isinstance(x, np.ma.MaskedArray):
        raise NotAnArray(op=op, what="a masked array", hint="fill it first, with `.filled(value)`")
    if isinstance(x, (np.generic, np.ndarray)):
        try:
            return as_dtype(x.dtype), False
        except TypeError:
            raise NotAnArray(op=op, what=f"NumPy data of dtype {x.dtype}", hint="convert it first") from None
    raise _refuse(x, op)


def _refuse(x: Any, op: str) -> Error:
    cls: type[Any] = type(x)
    module = cls.__module__.partition(".")[0]
    if cls.__name__ in ("Ref", "AccRef") and module == "kernel_dsl":
        return RefAsValue(op=op, ref=repr(x))
    if hasattr(cls, "__cuda_array_interface__") or hasattr(cls, "__dlpack__"):
        return ClosedOverArray(what=f"{module} array")
    if isinstance(x, Symbol):
        return NotAnArray(op=op, what=f"`{shown(x)}`", hint=FROM_ARRAY)
    return NotAnArray(op=op, what=of_kind(x), hint="operands are traced values, numbers and NumPy arrays")


def as_value(x: Any, op: str, dtype: DType | None = None) -> Array:
    """`x` as a traced value, in `dtype` if given: numbers become constants, arrays are converted."""
    if isinstance(x, Array):
        if dtype is None or x.dtype == dtype:
            return x
        return rounded(x, dtype)
    if isinstance(x, Unread):
        x = operator.index(x)
    own, weak = item_type(x, op)
    if isinstance(x, np.ndarray) and x.ndim:
        value = dense(x)
        return value if dtype is None or dtype == own else as_value(value, op, dtype)
    if dtype is None or dtype == own:
        return constant(x.item() if isinstance(x, (np.generic, np.ndarray)) else x, own, weak=weak)
    number: Any = x.item() if isinstance(x, (np.generic, np.ndarray)) else x
    if weak and not (own.is_float and not dtype.is_float):
        return constant(number, dtype)
    return as_value(constant(number, own), op, dtype)


def bits_of(value: Array) -> Array:
    """The bits of a float as a signed integer."""
    return bitcast_convert_type(value, f"int{value.dtype.bits}")
