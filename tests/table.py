"""Every elementwise op in one line: what users call it, NumPy's function, the dtypes it takes and how exact it is.

Read by `tests/ops/test_elementwise.py`, by the abort fuzz of `tests/ptx` and by the random kernels of `tests/fuzz`, so
that a new op is one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import erf as _erf
from math import erfc as _erfc
from typing import Any

import ml_dtypes
import numpy as np

import kernel_dsl as kd

FP8 = ("float8_e4m3fn", "float8_e5m2")  # on every bit pattern: tests/ops/test_patterns.py
FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
BOOL = ("bool",)
NUMBERS = INTS + FLOATS
ALL = NUMBERS + BOOL


@dataclass(frozen=True)
class Row:
    """`reference` takes operands in the exact domain (float64, Python-like ints, bool); its result is rounded once.

    `ulps`: how far the result may be from the rounded reference, in units of the result's dtype. `out`: "same" dtype,
    "bool", "uint8", or "float" (as true division gives). `sample`: "any" bits that are numbers, "small" magnitudes, "positive",
    "unit" for [-1, 1], "open" for within it, "above" for over 1, "shift" for a second operand within the width.
    `own`: the reference takes the operands in their own dtype, and may give the result in it.
    """

    name: str
    arity: int
    dtypes: tuple[str, ...]
    reference: Callable[..., Any]
    ulps: float = 0
    out: str = "same"
    sample: str = "small"
    own: bool = False

    @property
    def function(self) -> Callable[..., Any] | None:
        """The public function, or None while the language does not have it."""
        return getattr(kd, self.name, None)


def _by_zero(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Integer division by zero gives 0."""

    def safe(x: Any, y: Any) -> Any:
        return np.where(y == 0, 0, f(x, np.where(y == 0, 1, y)))

    return safe


def _truncated(x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return x / y
    # without abs, which has no answer for the smallest number of a dtype
    with np.errstate(over="ignore"):
        floor = x // y
    return floor + ((np.fmod(x, y) != 0) & ((x < 0) != (y < 0)))


def _remainder(x: Any, y: Any) -> Any:
    return np.fmod(x, y)


def _shift_right(x: Any, y: Any) -> Any:
    return x >> y


def _fused_one(x: float, y: float, z: float, odd: bool) -> float:
    """x * y + z in float64, rounded to nearest, or to odd: what is rounded from that is rounded once."""
    if not all(np.isfinite((x, y, z))):
        return x * y + z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return x * y + z
    near = float(exact)
    if not odd or not np.isfinite(near) or Fraction(near) == exact or int(np.float64(near).view(np.int64)) & 1:
        return near
    return float(np.nextafter(near, np.inf if exact > Fraction(near) else -np.inf))


_fused_array = np.vectorize(_fused_one, otypes=[np.float64])


def _fused(x: Any, y: Any, z: Any) -> Any:
    return _fused_array(*(v.astype(np.float64) for v in (x, y, z)), x.dtype != np.float64)


def _float_mod(x: Any, y: Any) -> Any:
    # exact in float64 for operands of fewer bits
    return np.mod(x, y)


def _numbers(x: Any) -> Any:
    info = ml_dtypes.finfo(x.dtype)
    finite = np.where(np.isinf(x), np.copysign(info.max, x), x)
    return np.where(np.isnan(x), x.dtype.type(0), finite)


def _nextafter(x: Any, y: Any) -> Any:
    # of equal operands NumPy's for float16 alone gives x
    return np.where(x == y, y, np.nextafter(x, y))


def _spacing(x: Any) -> Any:
    # NumPy's of -0.0 and of any float16 has no sign
    return np.copysign(np.spacing(np.abs(x)), x)


def _leading_zeros(x: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return np.vectorize(lambda v: bits - int(v).bit_length() if v >= 0 else 0, otypes=[x.dtype])(x)


def _erf_inverse(y: float) -> float:
    """Newton's method on the C library's erf, started by bisection."""
    if y == 0 or not abs(y) < 1:
        return y if y == 0 else np.copysign(np.inf, y) if abs(y) == 1 else np.nan
    if abs(y) < 1e-8:
        return y * np.sqrt(np.pi) / 2
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _erf(middle) < y else (low, middle)
    return (low + high) / 2


_erf_inverse_array = np.vectorize(_erf_inverse, otypes=[np.float64])
_erfc_array = np.vectorize(_erfc, otypes=[np.float64])
_erf_array = np.vectorize(_erf, otypes=[np.float64])


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _shift_right_logical(x: Any, y: Any) -> Any:
    unsigned = x.dtype.str.replace("i", "u")
    return (x.view(unsigned) >> y.view(unsigned)).view(x.dtype)


def _upper_half(x: Any, y: Any) -> Any:
    bits = x.dtype.itemsize * 8
    return np.vectorize(lambda a, b: int(a) * int(b) >> bits, otypes=[x.dtype])(x, y)


TABLE = (
    Row("add", 2, NUMBERS, np.add),
    Row("subtract", 2, NUMBERS, np.subtract),
    Row("multiply", 2, NUMBERS, np.multiply),
    Row("true_divide", 2, FLOATS, np.true_divide),
    Row("true_divide", 2, INTS, np.true_divide, ulps=2, out="float"),
    Row("div", 2, INTS, _by_zero(_truncated)),
    Row("rem", 2, INTS, _by_zero(_remainder)),
    Row("floor_divide", 2, INTS, _by_zero(np.floor_divide)),
    Row("mod", 2, INTS, _by_zero(np.mod)),
    Row("maximum", 2, ALL, np.maximum),
    Row("minimum", 2, ALL, np.minimum),
    Row("fmax", 2, NUMBERS, np.fmax),
    Row("fmin", 2, NUMBERS, np.fmin),
    Row("bitwise_and", 2, (*INTS, *BOOL), np.bitwise_and),
    Row("bitwise_or", 2, (*INTS, *BOOL), np.bitwise_or),
    Row("bitwise_xor", 2, (*INTS, *BOOL), np.bitwise_xor),
    Row("left_shift", 2, INTS, np.left_shift, sample="shift"),
    Row("right_shift", 2, INTS, _shift_right, sample="shift"),
    Row("negative", 1, NUMBERS, np.negative),
    Row("invert", 1, (*INTS, *BOOL), np.invert),
    Row("absolute", 1, NUMBERS, np.abs),
    Row("equal", 2, ALL, np.equal, out="bool"),
    Row("not_equal", 2, ALL, np.not_equal, out="bool"),
    Row("less", 2, ALL, np.less, out="bool"),
    Row("less_equal", 2, ALL, np.less_equal, out="bool"),
    Row("greater", 2, ALL, np.greater, out="bool"),
    Row("greater_equal", 2, ALL, np.greater_equal, out="bool"),
    Row("logical_and", 2, ALL, np.logical_and, out="bool"),
    Row("logical_or", 2, ALL, np.logical_or, out="bool"),
    Row("logical_xor", 2, ALL, np.logical_xor, out="bool"),
    Row("logical_not", 1, ALL, np.logical_not, out="bool"),
    Row("fma", 3, FLOATS, _fused, own=True),
    Row("exp", 1, FLOATS, np.exp, ulps=4, out="float"),
    Row("exp2", 1, FLOATS, np.exp2, ulps=4, out="float"),
    Row("expm1", 1, FLOATS, np.expm1, ulps=4, out="float"),
    Row("log", 1, FLOATS, np.log, ulps=4, out="float", sample="positive"),
    Row("log2", 1, FLOATS, np.log2, ulps=4, out="float", sample="positive"),
    Row("log10", 1, FLOATS, np.log10, ulps=4, out="float", sample="positive"),
    Row("log1p", 1, FLOATS, np.log1p, ulps=4, out="float", sample="positive"),
    Row("sqrt", 1, FLOATS, np.sqrt, out="float", sample="positive"),
    Row("rsqrt", 1, FLOATS, lambda x: 1 / np.sqrt(x), ulps=4, out="float", sample="positive"),
    Row("cbrt", 1, FLOATS, np.cbrt, ulps=4, out="float"),
    Row("sin", 1, FLOATS, np.sin, ulps=4, out="float"),
    Row("cos", 1, FLOATS, np.cos, ulps=4, out="float"),
    Row("tan", 1, FLOATS, np.tan, ulps=4, out="float"),
    Row("arcsin", 1, FLOATS, np.arcsin, ulps=4, out="float", sample="unit"),
    Row("arccos", 1, FLOATS, np.arccos, ulps=4, out="float", sample="unit"),
    Row("arctan", 1, FLOATS, np.arctan, ulps=4, out="float"),
    Row("sinh", 1, FLOATS, np.sinh, ulps=4, out="float"),
    Row("cosh", 1, FLOATS, np.cosh, ulps=4, out="float"),
    Row("tanh", 1, FLOATS, np.tanh, ulps=4, out="float"),
    Row("arcsinh", 1, FLOATS, np.arcsinh, ulps=4, out="float"),
    Row("logistic", 1, FLOATS, _logistic, ulps=4, out="float"),
    Row("erf", 1, FLOATS, _erf_array, ulps=4, out="float"),
    Row("floor", 1, FLOATS, np.floor),
    Row("ceil", 1, FLOATS, np.ceil),
    Row("trunc", 1, FLOATS, np.trunc),
    Row("rint", 1, FLOATS, np.rint),
    Row("square", 1, NUMBERS, np.square),
    Row("sign", 1, NUMBERS, lambda x: np.where(x == 0, x, np.sign(x))),
    Row("copysign", 2, FLOATS, np.copysign, own=True),
    Row("exp10", 1, FLOATS, lambda x: np.power(10.0, x), ulps=4, out="float"),
    Row("erfc", 1, FLOATS, _erfc_array, ulps=4, out="float"),
    Row("erf_inv", 1, FLOATS, _erf_inverse_array, ulps=8, out="float", sample="open"),
    Row("arccosh", 1, FLOATS, np.arccosh, ulps=4, out="float", sample="above"),
    Row("arctanh", 1, FLOATS, np.arctanh, ulps=4, out="float", sample="open"),
    Row("arctan2", 2, FLOATS, np.arctan2, ulps=4, out="float"),
    Row("hypot", 2, FLOATS, np.hypot, ulps=4, out="float"),
    Row("power", 2, FLOATS, np.power, ulps=8, out="float", sample="positive"),
    Row("logaddexp", 2, FLOATS, np.logaddexp, ulps=64, out="float"),
    Row("logaddexp2", 2, FLOATS, np.logaddexp2, ulps=64, out="float"),
    Row("fmod", 2, FLOATS, np.fmod),
    Row("floor_divide", 2, FLOATS, np.floor_divide, own=True),
    Row("mod", 2, FLOATS, _float_mod, ulps=1),
    Row("sigmoid", 1, FLOATS, _logistic, ulps=4, out="float"),
    Row("population_count", 1, INTS, lambda x: np.bitwise_count(x.view(x.dtype.str.replace("i", "u")))),
    Row("bitwise_count", 1, INTS, np.bitwise_count, out="uint8"),
    Row("clz", 1, INTS, _leading_zeros),
    Row("gcd", 2, INTS, np.gcd),
    Row("lcm", 2, INTS, np.lcm),
    Row("reciprocal", 1, FLOATS, lambda x: 1 / x),
    Row("deg2rad", 1, FLOATS, np.deg2rad, ulps=2),
    Row("rad2deg", 1, FLOATS, np.rad2deg, ulps=2),
    Row("heaviside", 2, FLOATS, np.heaviside),
    Row("fabs", 1, FLOATS, np.fabs),
    Row("signbit", 1, FLOATS, np.signbit, out="bool", own=True),
    Row("isinf", 1, FLOATS, np.isinf, out="bool"),
    Row("isnan", 1, FLOATS, np.isnan, out="bool"),
    Row("isfinite", 1, FLOATS, np.isfinite, out="bool"),
    Row("isposinf", 1, FLOATS, np.isposinf, out="bool"),
    Row("isneginf", 1, FLOATS, np.isneginf, out="bool"),
    Row("relu", 1, NUMBERS, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0))),
    Row("nan_to_num", 1, FLOATS, _numbers, own=True),
    Row("nextafter", 2, FLOATS, _nextafter, own=True),
    Row("spacing", 1, FLOATS, _spacing, own=True),
    Row("mulhi", 2, INTS, _upper_half),
    Row("shift_right_logical", 2, INTS, _shift_right_logical, sample="shift"),
)

# rows of the language as it is now
ROWS = tuple(row for row in TABLE if row.function is not None)
CASES = tuple((row, dtype) for row in ROWS for dtype in row.dtypes)


def result_dtype(row: Row, dtype: str) -> str:
    """The dtype of the result for operands of `dtype`."""
    if row.out in ("bool", "uint8"):
        return row.out
    if row.out == "float" and dtype not in FLOATS and dtype not in FP8:
        return "float64" if dtype.endswith("64") else "float32"
    return dtype


def operands(row: Row, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Random operands of one dtype and shape that suit the row."""
    made: list[np.ndarray] = []
    for position in range(row.arity):
        numpy = kd.dtypes.as_dtype(dtype).numpy
        if dtype == "bool":
            made.append(rng.integers(0, 2, shape).astype(np.bool_))
        elif dtype in INTS:
            info = np.iinfo(numpy)
            if row.sample == "shift" and position == 1:
                # shifts by the width or more have their own test
                made.append(rng.integers(0, info.bits, shape).astype(numpy))
            else:
                wide = rng.integers(info.min, info.max, shape, dtype=numpy, endpoint=True)
                narrow = rng.integers(-4 if info.min else 0, 5, shape).astype(numpy)
                made.append(np.where(rng.random(shape) < 0.5, wide, narrow).astype(numpy))
        else:
            values = rng.standard_normal(shape) * np.exp(rng.uniform(-2, 1, shape))
            if row.sample == "positive":
                values = abs(values) + 1e-3
            elif row.sample == "unit":
                values = np.clip(values, -1, 1)
            elif row.sample == "open":
                values = np.clip(values / 3, -0.95, 0.95)
            elif row.sample == "above":
                values = 1 + abs(values)
            made.append(np.asarray(values).astype(numpy))
    return made


def exact(row: Row, values: list[np.ndarray]) -> np.ndarray:
    """The reference's result before rounding: float64 for floats, wrapping integers, bool."""
    with np.errstate(all="ignore"):
        if row.own:
            own = np.asarray(row.reference(*values))
            return own if own.dtype.kind in "iub" else own.astype(np.float64)
        # a signalling NaN is one as any other: the C library's functions make a difference
        wide = [v if v.dtype.kind in "iub" else np.where(np.isnan(v), np.nan, v.astype(np.float64)) for v in values]
        return np.asarray(row.reference(*wide))
