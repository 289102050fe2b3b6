"""Numbers where they are hard: casts of every dtype, shifts by any amount, edges of 64 bits, operands of two dtypes, and
what fp8 and infinities do beside each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.promote import join
from tests.fuzz.choose import FP8, Choices, Value, broadcastable
from tests.fuzz.operations import Step, numpy, operation, pick, wide
from tests.language import casts

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


# --- contents and literals -----------------------------------------------------------------------


def contents(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random elements: mostly ordinary numbers; around powers of two and any bits; for floats special ones too."""
    own = numpy(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    unsigned = np.dtype(f"u{own.itemsize}")
    bits = np.asarray(rng.integers(0, np.iinfo(unsigned).max, shape, unsigned, endpoint=True)).view(own)
    kind = rng.random(shape)
    if own.kind in "iu":
        power = np.left_shift(unsigned.type(1), rng.integers(0, own.itemsize * 8, shape).astype(unsigned))
        near = np.asarray(power + rng.integers(0, 4, shape).astype(unsigned) - unsigned.type(1)).view(own)
        small = rng.integers(-9 if own.kind == "i" else 0, 10, shape).astype(own)
        return np.where(kind < 0.1, bits, np.where(kind < 0.25, near, small)).astype(own)
    values = np.asarray(rng.standard_normal(shape) * np.exp(rng.uniform(-3, 2, shape)))
    special = rng.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], shape)
    values = np.where(kind < 0.02, special, values)
    values = values.astype(np.float32 if own.itemsize < 4 else own).astype(own)
    return np.where(kind > (0.7 if dtype in FP8 else 0.97), bits, values) if own.itemsize < 4 else values


def edge(c: Choices, dtype: str) -> tuple[str, Any]:
    """A Python number for an operand beside a dtype, as text and as a value: often at the end of some format."""
    if "float" in dtype:
        return c.one([
            ("np.inf", np.inf), ("-np.inf", -np.inf), ("1e6", 1e6), ("-70000.0", -70000.0), ("448.0", 448.0), ("464.0", 464.0),
            ("0.1", 0.1), ("-0.0", -0.0), ("1e-9", 1e-9), ("3", 3), ("500", 500),
        ])  # fmt: skip
    if dtype == "bool":
        return c.one([("True", True), ("False", False)])
    info = np.iinfo(dtype)
    power = 1 << c.below(info.bits)
    value = c.one([power, power - 1, power + 1, -power, -power - 1, info.max, info.min, c.between(-9, 9)])
    value = min(max(value, int(info.min)), int(info.max))
    return repr(value), value


def beside(given: Any, dtype: str) -> np.ndarray:
    """An operand, an array of any dtype or a Python number, in `dtype` to compute with: floats as float64.

    What float8_e4m3fn can't hold is an infinity.
    """
    own, source = kd.dtypes.as_dtype(dtype), np.asarray(given)
    if source.dtype == own.numpy:
        return wide(source)
    with np.errstate(all="ignore"):
        if isinstance(given, np.ndarray):
            near = casts.reference(source.reshape(-1), own, saturate=False).reshape(source.shape)
        else:
            near = source.astype(np.float64).astype(own.numpy) if own.is_float else np.asarray(given, own.numpy)
        if not own.is_float:
            return near
        lost = np.isnan(wide(near)) & ~np.isnan(source.astype(np.float64))
        return np.where(lost, np.copysign(np.inf, source.astype(np.float64)), wide(near))


# --- casts ---------------------------------------------------------------------------------------


@operation(6)
def cast(c: Choices, values: list[Value]) -> Step | None:
    x, to = pick(c, values), c.dtype()
    if x is None:
        return None
    saturate = to not in FP8 or c.chance(0.5)

    def reference(a: np.ndarray) -> Any:
        if a.dtype == numpy(to):
            return a, 0, "bits"
        return wide(casts.reference(a.reshape(-1), kd.dtypes.as_dtype(to), saturate).reshape(a.shape)), 0, 0

    text = f"{x.name}.astype(kd.{'bool_' if to == 'bool' else to}{'' if saturate else ', saturate=False'})"
    return Step("astype", text, (x.name,), x.shape, to, reference)


# --- two dtypes, and edges -----------------------------------------------------------------------

_ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
}


@operation(12)
def mixed(c: Choices, values: list[Value]) -> Step | None:
    """An operation on two dtypes, or on one and a number at an edge of it."""
    x = pick(c, values, lambda v: v.is_number)
    if x is None:
        return None
    y = pick(c, values, lambda v: v.dtype != x.dtype and broadcastable(v.shape, x.shape))
    name = c.one(list(_ARITHMETIC))
    if y is None or c.chance(0.5):
        dtype, (text, number) = x.dtype, edge(c, x.dtype)
        names, shape = (x.name,), x.shape
        arguments = [x.name, text]
    else:
        try:
            dtype = join(kd.dtypes.as_dtype(x.dtype), kd.dtypes.as_dtype(y.dtype)).name
        except kd.Error:
            return None
        names, shape, number = (x.name, y.name), np.broadcast_shapes(x.shape, y.shape), None
        arguments = [x.name, y.name]
    if int(np.prod(shape)) > 3000:
        return None
    swap = c.chance(0.3)
    out = "bool" if name in ("less", "less_equal", "equal", "not_equal", "greater") else dtype

    def reference(*arrays: np.ndarray) -> Any:
        given = [beside(a, dtype) for a in ([*arrays] if number is None else [*arrays, number])]
        with np.errstate(all="ignore"):
            return np.broadcast_to(_ARITHMETIC[name](*(given[::-1] if swap else given)), shape), 0, 0

    ordered = arguments[::-1] if swap else arguments
    return Step(name, f"kd.{name}({', '.join(ordered)})", names, shape, out, reference)


@operation(4)
def clipped(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: v.is_number)
    if x is None:
        return None
    (low_text, low), (high_text, high) = edge(c, x.dtype), edge(c, x.dtype)

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            raised = np.maximum(beside(a, x.dtype), beside(low, x.dtype)).astype(a.dtype)
            return np.minimum(wide(raised), beside(high, x.dtype)), 0, 0

    return Step("clip", f"kd.clip({x.name}, {low_text}, {high_text})", (x.name,), x.shape, x.dtype, reference)


@operation(3)
def chosen(c: Choices, values: list[Value]) -> Step | None:
    """`where` with a number at an edge: an element, which float8_e4m3fn may not have."""
    x = pick(c, values)
    if x is None:
        return None
    text, number = edge(c, x.dtype)

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            element = np.asarray(float(number) if "float" in x.dtype else number).astype(a.dtype)
            return np.where(wide(a) > 0, element, a), 0, "bits" if not np.any(np.isnan(wide(element))) else 0

    return Step("where", f"kd.where({x.name} > 0, {text}, {x.name})", (x.name,), x.shape, x.dtype, reference)


# --- integers ------------------------------------------------------------------------------------


def shifted(x: np.ndarray, amount: np.ndarray, left: bool) -> np.ndarray:
    """x shifted by amounts of its dtype, which count as unsigned."""
    bits = x.dtype.itemsize * 8
    unsigned = amount.astype(f"u{x.dtype.itemsize}")
    safe = np.minimum(unsigned, bits - 1).astype(x.dtype)
    made = np.left_shift(x, safe) if left else np.right_shift(x, safe)
    rest = np.where(x < 0, -1, 0) if not left and x.dtype.kind == "i" else 0
    return np.where(unsigned < bits, made, rest).astype(x.dtype)


@operation(8)
def shift(c: Choices, values: list[Value]) -> Step | None:
    """By a number at an edge, or by another value: plain, guarded, or as half of a rotation."""
    x = pick(c, values, lambda v: v.dtype in INTEGERS)
    if x is None:
        return None
    y = pick(c, values, lambda v: v.dtype in INTEGERS and broadcastable(v.shape, x.shape))
    number: Any = None
    if y is None or c.chance(0.3):
        text, number = edge(c, x.dtype)
        dtype, names, shape = x.dtype, (x.name,), x.shape
    else:
        try:
            dtype = join(kd.dtypes.as_dtype(x.dtype), kd.dtypes.as_dtype(y.dtype)).name
        except kd.Error:
            return None
        text, names, shape = y.name, (x.name, y.name), np.broadcast_shapes(x.shape, y.shape)
    if int(np.prod(shape)) > 3000:
        return None
    bits, kind = numpy(dtype).itemsize * 8, c.one(["<<", ">>", "guarded", "rotated"])
    form = {
        "<<": "({x} << {y})",
        ">>": "({x} >> {y})",
        "guarded": "kd.where({y} < {bits}, {x} << {y}, 1)",
        "rotated": "({x} << {y}) | ({x} >> ({bits} - {y}))",
    }[kind]
    if kind in ("guarded", "rotated") and number is not None:
        return None  # both operands of a comparison or a difference would be numbers

    def reference(a: np.ndarray, b: Any = None) -> Any:
        a = np.broadcast_to(beside(a, dtype), shape)
        own = np.asarray(number, a.dtype) if b is None else b
        n = np.broadcast_to(beside(own, dtype), shape)
        with np.errstate(all="ignore"):
            if kind == "rotated":
                # the amount's own dtype computes what is left of the width
                rest = np.broadcast_to(beside(np.asarray(own.dtype.type(bits) - own), dtype), shape)
                return shifted(a, n, True) | shifted(a, rest, False), 0, 0
            made = shifted(a, n, kind != ">>")
            return np.where(np.asarray(own < bits), made, 1) if kind == "guarded" else made, 0, 0

    return Step("shift", form.format(x=x.name, y=text, bits=bits), names, shape, dtype, reference)


@operation(4)
def divided(c: Choices, values: list[Value]) -> Step | None:
    """By a constant: a multiplication and shifts to the compiler."""
    x = pick(c, values, lambda v: v.dtype in INTEGERS)
    if x is None:
        return None
    text, number = edge(c, x.dtype)
    name = c.one(["div", "rem", "floor_divide", "mod"])

    def reference(a: np.ndarray) -> Any:
        exact = [_quotient(name, v, int(number)) for v in a.reshape(-1).tolist()]
        held = [v & (1 << a.dtype.itemsize * 8) - 1 for v in exact]
        return np.array(held, f"u{a.dtype.itemsize}").view(a.dtype).reshape(a.shape), 0, 0

    return Step(name, f"kd.{name}({x.name}, {text})", (x.name,), x.shape, x.dtype, reference)


def _quotient(name: str, x: int, y: int) -> int:
    if y == 0:
        return 0
    whole = x // y
    if name in ("div", "rem") and x % y and (x < 0) != (y < 0):
        whole += 1
    return whole if name in ("div", "floor_divide") else x - whole * y


@operation(3)
def power(c: Choices, values: list[Value]) -> Step | None:
    """A static power, of bools and integers; or integers to the low bits of others."""
    x = pick(c, values, lambda v: not v.is_float)
    if x is None:
        return None
    out = "int32" if x.dtype == "bool" else x.dtype
    exponent: Any = c.one([True, False]) if x.dtype == "bool" else c.between(0, 33)
    text = f"{x.name} ** {exponent}"
    y = pick(c, values, lambda v: v.dtype == x.dtype and v.shape == x.shape)
    by_value = y is not None and x.dtype != "bool" and c.chance(0.5)
    if by_value:
        text = f"{x.name} ** ({y.name} & 7)"

    def reference(a: np.ndarray, b: Any = None) -> Any:
        base, n = a.astype(out), np.asarray(exponent if b is None else b & 7).astype(np.int64)
        result = np.ones(a.shape, out)
        for k in range(34):
            result = np.where(n > k, result * base, result)
        return result, 0, 0

    return Step("power", text, (x.name, y.name) if by_value and y else (x.name,), x.shape, out, reference)


@operation(2)
def scaled(c: Choices, values: list[Value]) -> Step | None:
    """`ldexp` by integers of any dtype."""
    x = pick(c, values, lambda v: v.is_float)
    n = pick(c, values, lambda v: v.dtype in INTEGERS and x is not None and broadcastable(v.shape, x.shape))
    if x is None or n is None:
        return None
    shape = np.broadcast_shapes(x.shape, n.shape)
    if int(np.prod(shape)) > 3000:
        return None

    def reference(a: np.ndarray, b: np.ndarray) -> Any:
        by = np.clip(b.astype(np.float64), -3000, 3000).astype(np.int32)
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.ldexp(wide(a), by), shape), 0, 0

    return Step("ldexp", f"kd.ldexp({x.name}, {n.name})", (x.name, n.name), shape, x.dtype, reference)
