"""Base classes of elementwise operations, and the common dtype of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from .. import dtypes as dt
from ..dtypes import DType
from ..facts import Range
from ..ir import ArrayType, Op, Value, array_type, operand
from ..promote import promote, true_division
from ..values import Array
from .cast import as_value, astype, item_type


def common_dtype(args: Sequence[Any], op: str) -> DType:
    """The dtype that operands promote to."""
    return _holding(promote([item_type(a, op) for a in args])[0], args)


def operands_of(args: Sequence[Any], op: str, compared: bool = False) -> tuple[list[Array], DType, bool]:
    """Operands promoted to their common dtype, and that dtype (and whether it is still weak).

    `compared`: the dtype holds the values of all integers, so that the comparison is that of the numbers.
    """
    x, y = args[0], args[-1]
    if len(args) == 2 and isinstance(x, Array) and isinstance(y, Array) and x.dtype is y.dtype:  # the common case
        return [x, y], x.dtype, x.weak and y.weak
    dtype, weak = promote([item_type(a, op) for a in args])
    held = _holding(dtype, args, compared)
    return [as_value(a, op, held) for a in args], held, weak or held is not dtype


def in_floats(args: tuple[Any, ...], op: str) -> tuple[DType, tuple[Any, ...]]:
    """The dtype of a function of floats of these operands, ints or floats, and operands to give to `elementwise` with it."""
    common = promote([item_type(a, op) for a in args])[0]
    to = true_division(common)
    if _holding(common, args) is common:
        return to, args
    return to, tuple(astype(a, to) if isinstance(a, Array) else a for a in args)


def _holding(dtype: DType, args: Sequence[Any], compared: bool = False) -> DType:
    """A common dtype, or a wider one if a weak operand of the body, such as a Dim, may not fit the first.

    Arithmetic is widened for operands of 64 bits only: a narrower one takes the dtype of the other operand.
    """
    if not dtype.is_integer or dtype.bits == 64:
        return dtype
    weak = [a for a in args if isinstance(a, Array) and a.weak and a.dtype.is_integer]
    beyond = [a for a in weak if a.facts is None or not a.facts.fits(dtype.bits, dtype.is_signed)]
    widest = max((a.dtype.bits for a in beyond), default=0)
    if widest == 64 or (compared and widest and dtype == dt.uint32):
        return dt.int64
    return dt.int32 if compared and widest > dtype.bits else dtype


Interval: TypeAlias = Callable[[Range, Range], Range | None]  # of a result, from those of two operands


class Elementwise(Op):
    """Operands of one shape and layout; the result has them too. `llvm`: text by kind ("f", "i", "u", "b")."""

    llvm: ClassVar[dict[str, str]] = {}
    math: ClassVar[str] = ""  # a function of lowering/math instead of an instruction

    def result_dtype(self) -> DType:
        """The dtype of the result, by default the first operand's."""
        return array_type(self.values()[0]).dtype

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.values()[0])
        return (ArrayType(t.shape, self.result_dtype(), t.layout),)


class Unary(Elementwise):
    """One operand."""

    x: Value = operand()


class Binary(Elementwise):
    """Two operands of one dtype. `interval`: the range of an integer result, from the ranges of both operands."""

    x: Value = operand()
    y: Value = operand()
    interval: ClassVar[Interval | None] = None

    def range(self) -> Range | None:
        a, b, interval = self.x.facts, self.y.facts, type(self).interval
        return None if interval is None or a is None or b is None else interval(a, b)


class Compare(Binary):
    """Two operands of one dtype; the result is bool."""

    def result_dtype(self) -> DType:
        return dt.bool_
