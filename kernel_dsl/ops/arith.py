"""Elementwise arithmetic and bit operations. LLVM text by kind is the whole lowering."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from .. import dtypes as dt
from .. import facts
from ..dtypes import DType
from ..errors import UnsupportedDType
from ..extents import compared
from ..facts import Range
from ..ir import Value, array_type, operand, option
from ..promote import computing
from ..trace import current, traced
from ..values import Array
from .broadcast import together
from .cast import as_number, as_value, astype, bitcast_convert_type, bits_of, constant, item_type, rounded
from .elementwise import Binary, Compare, Elementwise, Interval, Unary, common_dtype, in_floats, operands_of

__all__ = [
    "abs",
    "absolute",
    "add",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "conj",
    "conjugate",
    "div",
    "divide",
    "floor_divide",
    "fma",
    "fma_contraction",
    "invert",
    "left_shift",
    "mod",
    "mulhi",
    "multiply",
    "negative",
    "positive",
    "rem",
    "remainder",
    "right_shift",
    "subtract",
    "true_divide",
]


class Add(Binary, name="add"):
    """x + y; integers wrap. PTX `add`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fadd {t} {0}, {1}", "i": "add {t} {0}, {1}", "u": "add {t} {0}, {1}"}
    interval: ClassVar[Interval | None] = facts.add


class Sub(Binary, name="sub"):
    """x - y; integers wrap. PTX `sub`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fsub {t} {0}, {1}", "i": "sub {t} {0}, {1}", "u": "sub {t} {0}, {1}"}
    interval: ClassVar[Interval | None] = facts.sub


class Mul(Binary, name="mul"):
    """x * y; integers wrap. PTX `mul`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fmul {t} {0}, {1}", "i": "mul {t} {0}, {1}", "u": "mul {t} {0}, {1}"}
    interval: ClassVar[Interval | None] = facts.mul


class MulHi(Binary, name="mulhi"):
    """The upper half of the product of integers, which has twice their width. PTX `mul.hi`, `mul.wide`."""


class Div(Binary, name="div"):
    """x / y, IEEE-rounded; integers truncate and x / 0 is 0. PTX `div.rn`, `div`."""

    approx: bool | None = option(None)  # whether to use `div.approx` in float32; None: as `approx_math` says
    interval: ClassVar[Interval | None] = facts.div


class Rem(Binary, name="rem"):
    """The remainder of `Div`, with the sign of x; x rem 0 is 0. PTX `rem`."""

    interval: ClassVar[Interval | None] = facts.rem


class FloorDiv(Binary, name="floor_div"):
    """Integer floor division; x // 0 is 0. PTX `div`, `rem`, `selp`."""

    interval: ClassVar[Interval | None] = facts.floordiv


class FloorMod(Binary, name="floor_mod"):
    """Python's integer remainder, with the sign of y; x % 0 is 0. PTX `rem`, `selp`."""

    interval: ClassVar[Interval | None] = facts.mod

    @property
    def low_bits(self) -> bool:
        divisor = None if self.y.facts is None else self.y.facts.constant
        return divisor is not None and divisor > 0 and divisor & divisor - 1 == 0


class Fma(Elementwise, name="fma"):
    """x * y + z with one rounding. PTX `fma.rn`."""

    x: Value = operand()
    y: Value = operand()
    z: Value = operand()
    llvm: ClassVar[dict[str, str]] = {"f": "call {t} @llvm.fma.{s}({t} {0}, {t} {1}, {t} {2})"}


class And(Binary, name="and"):
    """Bitwise and. PTX `and`."""

    llvm: ClassVar[dict[str, str]] = dict.fromkeys("iub", "and {t} {0}, {1}")
    interval: ClassVar[Interval | None] = facts.masked

    @property
    def low_bits(self) -> bool:
        return True


class Or(Binary, name="or"):
    """Bitwise or. PTX `or`."""

    llvm: ClassVar[dict[str, str]] = dict.fromkeys("iub", "or {t} {0}, {1}")


class Xor(Binary, name="xor"):
    """Bitwise exclusive or. PTX `xor`."""

    llvm: ClassVar[dict[str, str]] = dict.fromkeys("iub", "xor {t} {0}, {1}")


class ShiftLeft(Binary, name="shift_left"):
    """x << y; an amount that, as an unsigned integer, is the width or more gives 0. PTX `shl`."""

    interval: ClassVar[Interval | None] = partial(facts.shifted, left=True)

    def range(self) -> Range | None:
        amount = self.y.facts and self.y.facts.constant
        if amount is not None and not 0 <= amount < array_type(self.x).dtype.bits:
            return facts.of(0)
        return super().range()


class ShiftRight(Binary, name="shift_right"):
    """x >> y, arithmetic for signed integers; an amount of the width or more gives 0, or the sign. PTX `shr`."""

    interval: ClassVar[Interval | None] = partial(facts.shifted, left=False)


class Neg(Unary, name="neg"):
    """-x. PTX `neg`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fneg {t} {0}", "i": "sub {t} 0, {0}", "u": "sub {t} 0, {0}"}

    def range(self) -> Range | None:
        return self.x.facts and facts.neg(self.x.facts)


class Not(Unary, name="not"):
    """Bitwise not; logical for bool. PTX `not`."""

    llvm: ClassVar[dict[str, str]] = {"i": "xor {t} {0}, -1", "u": "xor {t} {0}, -1", "b": "xor i1 {0}, true"}


class Abs(Unary, name="abs"):
    """|x|. PTX `abs`."""

    llvm: ClassVar[dict[str, str]] = {
        "f": "call {t} @llvm.fabs.{s}({t} {0})",
        "i": "call {t} @llvm.abs.{s}({t} {0}, i1 false)",
    }


class Fmod(Binary, name="fmod"):
    """The exact remainder of truncating division. Several PTX instructions."""

    math = "fmod"


class Remainder(Binary, name="remainder"):
    """Python's x % y. Several PTX instructions."""

    math = "remainder"


class FloorDivide(Binary, name="floor_divide"):
    """Python's x // y on floats. Several PTX instructions."""

    math = "floor_divide"


class IsNan(Compare, name="unordered"):
    """Whether either operand is NaN. PTX `setp.nan`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fcmp uno {t} {0}, {1}"}


class Select(Elementwise, name="select"):
    """x where the predicate holds, else y. PTX `selp`."""

    predicate: Value = operand()
    x: Value = operand()
    y: Value = operand()
    llvm: ClassVar[dict[str, str]] = dict.fromkeys("fiub", "select i1 {0}, {t} {1}, {t} {2}")

    def result_dtype(self) -> DType:
        return self.x.type.dtype

    def range(self) -> Range | None:
        a, b = self.x.facts, self.y.facts
        return None if a is None or b is None else facts.union(a, b)


# --- building ------------------------------------------------------------------------------------


def elementwise(
    cls: Any,
    args: tuple[Any, ...],
    op: str,
    dtype: DType | None = None,
    bools: Any = None,
    wide: DType | None = None,
    options: Mapping[str, Any] | None = None,
) -> Array:
    """Promote, broadcast and append one op; floats narrower than 32 bits compute in float32 and are rounded back.

    `dtype` overrides the common dtype of the operands; `bools` is the op's class for bools; `wide` is the dtype to
    compute in; `options` are the op's attributes.
    """
    if issubclass(cls, Compare) or (
        cls in (Add, Sub) and any(isinstance(a, Array) and a.dtype.is_integer for a in args)
    ):
        args = tuple(map(compared, args))
    values, common, weak = operands_of(args, op, issubclass(cls, Compare))
    if bools is not None and common.is_bool:
        cls = bools
    common = common if dtype is None else dtype
    if common.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=common, hint=common.only_copied)
    wide = computing(common) if wide is None else wide
    if common in dt.FP8:
        values = [beside_fp8(a, v) for a, v in zip(args, values, strict=True)]
    values = [v if v.dtype == wide else astype(v, wide) for v in values]
    if cls in (Add, Sub) and wide.is_float and current().contract:
        result = _contracted(cls, values, op)
    else:
        result = traced(cls(*together(values, op), **(options or {})))
    if issubclass(cls, Compare):
        return result
    if wide != common:
        result = rounded(result, common)
    result.weak = weak
    return result


def beside_fp8(given: Any, value: Array) -> Array:
    """An operand in float32 to compute with. `given`: as the user wrote it; `value`: that rounded to the fp8 dtype.
    float8_e4m3fn has no infinity. A computation still sees a number beyond its range as infinity, as in other dtypes,
    so that `v < inf` holds for every number.
    """
    own, _ = item_type(given, "an operand")
    if own == value.dtype and isinstance(given, Array):
        return astype(value, dt.float32)
    if isinstance(given, (bool, int, float, np.generic)):
        number = float(given)
        near = float(np.asarray(number).astype(value.dtype.numpy))
        lost = math.isnan(near) and not math.isnan(number)
        return constant(math.copysign(math.inf, number) if lost else near, dt.float32)
    wide = astype(value, dt.float32)
    if value.dtype == dt.float8_e5m2 or own.bits < 16:
        return wide
    infinite = elementwise(Mul, (as_value(given, "an operand", dt.float32), math.inf), "multiply")
    return traced(Select(*together([traced(IsNan(wide, wide)), infinite, wide], "where")))


def _contracted(cls: Any, values: list[Array], op: str) -> Array:
    """A sum or difference, with one rounding if a term is a product."""
    x, y = values
    for term, other, first in ((x, y, True), (y, x, False)):
        product = term.op
        if not isinstance(product, Mul):
            continue
        a: Any = product.x
        if cls is Sub:  # a * b - y, or x - a * b
            other, a = (traced(Neg(other)), a) if first else (other, traced(Neg(a)))
        return traced(Fma(*together([a, cast("Array", product.y), other], op)))
    return traced(cls(*together(values, op)))


@contextmanager
def fma_contraction() -> Generator[None]:
    """Inside `with kd.fma_contraction():`, sums of products, `a * b + c` and `c - a * b`, become `fma`, with one
    rounding. This holds for float32 and float64, and for products that are terms directly: neither narrowed nor
    broadcast. Nothing else is contracted, so the result is the same on every device.
    """
    trace = current()
    outer, trace.contract = trace.contract, True
    try:
        yield
    finally:
        trace.contract = outer


def _number(dtype: DType, op: str, hint: str = "convert it with `.astype(...)`") -> None:
    if dtype.is_bool:
        raise UnsupportedDType(op=op, dtype=dtype, hint=hint)


def add(x: Any, y: Any) -> Array:
    """x + y, where integers wrap; x or y of bools."""
    return elementwise(Add, (x, y), "add", bools=Or)


def subtract(x: Any, y: Any) -> Array:
    """x - y."""
    _number(common_dtype((x, y), "subtract"), "subtract", "use `^` on bools")
    return elementwise(Sub, (x, y), "subtract")


def multiply(x: Any, y: Any) -> Array:
    """x * y, where integers wrap; x and y of bools."""
    return elementwise(Mul, (x, y), "multiply", bools=And)


def mulhi(x: Any, y: Any) -> Array:
    """The upper half of x * y, which has twice the width of the integers x and y; `x * y` is the lower half.

    >>> run(lambda x: kd.mulhi(x, 1 << 30), [4, 8, -4])
    [ 1  2 -1]
    """
    dtype = common_dtype((x, y), "mulhi")
    if not dtype.is_integer:
        raise UnsupportedDType(op="mulhi", dtype=dtype, hint="it is for integers")
    return elementwise(MulHi, (x, y), "mulhi")


def true_divide(x: Any, y: Any) -> Array:
    """x / y, IEEE-rounded. Ints give float32, 64-bit ints float64."""
    dtype, args = in_floats((x, y), "true_divide")
    return elementwise(Div, args, "true_divide", dtype)


divide = true_divide


def div(x: Any, y: Any, *, approx: bool | None = None) -> Array:
    """lax.div: x / y for floats; integers truncate toward zero, and x / 0 is 0.

    `approx`: True divides floats by `div.approx` in float32, False with IEEE rounding, whatever `approx_math` is.

    >>> run(lambda x: kd.div(x, 2), [-3, 3])
    [-1  1]
    """
    dtype = common_dtype((x, y), "div")
    _number(dtype, "div")
    if approx and not dtype.is_float:
        raise UnsupportedDType(op="div", dtype=dtype, hint="`approx` is for floats: integers divide exactly")
    return elementwise(Div, (x, y), "div", options={"approx": approx})


def rem(x: Any, y: Any) -> Array:
    """lax.rem: the remainder of truncating division, with the sign of x."""
    dtype = common_dtype((x, y), "rem")
    _number(dtype, "rem")
    if dtype.is_float:
        return elementwise(Fmod, (x, y), "fmod")
    return elementwise(Rem, (x, y), "rem")


def floor_divide(x: Any, y: Any) -> Array:
    """x // y, as Python.

    >>> run(lambda x: x // 2, [-3, 3])
    [-2  1]
    """
    dtype = common_dtype((x, y), "floor_divide")
    _number(dtype, "floor_divide")
    if dtype.is_float:
        return elementwise(FloorDivide, (x, y), "floor_divide")
    return elementwise(FloorDiv, (x, y), "floor_divide")


def mod(x: Any, y: Any) -> Array:
    """x % y, as Python: the sign of y."""
    dtype = common_dtype((x, y), "mod")
    _number(dtype, "mod")
    if dtype.is_float:
        return elementwise(Remainder, (x, y), "mod")
    return elementwise(FloorMod, (x, y), "mod")


remainder = mod


def fma(x: Any, y: Any, z: Any) -> Array:
    """x * y + z with one rounding, for floats."""
    dtype = common_dtype((x, y, z), "fma")
    if not dtype.is_float:
        raise UnsupportedDType(op="fma", dtype=dtype, hint="use `x * y + z`")
    # 16 bits: the hardware's instruction, because float32 would round twice; products and sums of fp8 are exact in
    # float64
    return elementwise(Fma, (x, y, z), "fma", wide=dt.float64 if dtype in dt.FP8 else dtype)


def _bits(cls: Any, x: Any, y: Any, op: str) -> Array:
    dtype = common_dtype((x, y), op)
    if dtype.is_float:
        hint = "`kd.bitcast_convert_type` gives a float's bits as an integer"
        raise UnsupportedDType(op=op, dtype=dtype, hint=hint)
    return elementwise(cls, (x, y), op)


def bitwise_and(x: Any, y: Any) -> Array:
    """x & y, on ints and bools."""
    return _bits(And, x, y, "bitwise_and")


def bitwise_or(x: Any, y: Any) -> Array:
    """x | y, on ints and bools."""
    return _bits(Or, x, y, "bitwise_or")


def bitwise_xor(x: Any, y: Any) -> Array:
    """x ^ y, on ints and bools."""
    return _bits(Xor, x, y, "bitwise_xor")


def _shift(cls: Any, x: Any, y: Any, op: str) -> Array:
    _number(common_dtype((x, y), op), op)
    return _bits(cls, x, y, op)


def left_shift(x: Any, y: Any) -> Array:
    """x << y; an amount of the width or more gives 0, and so does a negative one.

    >>> run(lambda x: 1 << x, [4, 31, 32, -1])
    [         16 -2147483648           0           0]
    """
    return _shift(ShiftLeft, x, y, "left_shift")


def right_shift(x: Any, y: Any) -> Array:
    """x >> y; an amount of the width or more gives 0, or -1 for negative x, and so does a negative amount.

    >>> run(lambda x: x >> 40, [100, -100])
    [ 0 -1]
    """
    return _shift(ShiftRight, x, y, "right_shift")


bitwise_left_shift = left_shift
bitwise_right_shift = right_shift


def sign_bit(dtype: DType) -> int:
    """The sign bit alone, as a signed integer."""
    return -(1 << dtype.bits - 1)


def negative(x: Any) -> Array:
    """-x."""
    dtype = common_dtype((x,), "negative")
    _number(dtype, "negative", "use `~` on bools")
    if dtype.is_float and dtype.bits < 32:
        value = as_value(x, "negative")  # flips the sign bit, also of NaN
        return bitcast_convert_type(bitwise_xor(bits_of(value), sign_bit(dtype)), dtype)
    return elementwise(Neg, (x,), "negative")


def positive(x: Any) -> Array:
    """x itself."""
    return as_number(x, "positive")


conj = positive
conjugate = positive


def invert(x: Any) -> Array:
    """~x, on ints and bools."""
    dtype = common_dtype((x,), "invert")
    if dtype.is_float:
        raise UnsupportedDType(op="invert", dtype=dtype, hint="bitwise operations are for ints and bools")
    return elementwise(Not, (x,), "invert")


bitwise_not = invert
bitwise_invert = invert


def absolute(x: Any) -> Array:
    """|x|; unsigned ints and bools as they are."""
    dtype = common_dtype((x,), "absolute")
    if not (dtype.is_float or dtype.is_signed):
        return as_number(x, "absolute")
    if dtype.is_float and dtype.bits < 32:
        value = as_value(x, "absolute")
        return bitcast_convert_type(bitwise_and(bits_of(value), ~sign_bit(dtype)), dtype)
    return elementwise(Abs, (x,), "absolute")


abs = absolute
