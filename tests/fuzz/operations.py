"""What a random kernel is made of. A new operation is one entry of `OPERATIONS`: how to choose it, how the body says
it, and what NumPy says of it, given the operands' actual values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests import table
from tests.fuzz.choose import FP8, Choices, Value, broadcastable

# the reference's special values or its precision are not those of the language; tests/math covers them
_SKIP = {"signbit", "copysign"}  # the sign of a NaN that was computed is the hardware's
_SKIP |= {"floor_divide", "mod", "fmod", "power", "logaddexp", "logaddexp2", "arctan2", "hypot", "heaviside", "tan"}


@dataclass(frozen=True)
class Step:
    """One line of a body. `reference` maps the operands' arrays to (exact result, ulps, absolute error).

    The error is "bits" where the result, in its own dtype, must be equal bit for bit.
    """

    operation: str
    text: str
    operands: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    reference: Callable[..., Any]


Maker = Callable[[Choices, list[Value]], "Step | None"]
OPERATIONS: list[tuple[Maker, int]] = []


def operation(weight: int) -> Callable[[Maker], Maker]:
    def enter(make: Maker) -> Maker:
        OPERATIONS.append((make, weight))
        return make

    return enter


def numpy(dtype: str) -> Any:
    return kd.dtypes.as_dtype(dtype).numpy


def wide(x: np.ndarray) -> np.ndarray:
    """Floats as float64, the rest as they are."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is one as any other
        return x if x.dtype.kind in "iub" else x.astype(np.float64)


def pick(c: Choices, values: list[Value], test: Callable[[Value], bool] = lambda _: True) -> Value | None:
    fitting = [v for v in values if test(v)]
    return c.one(fitting[-6:]) if fitting else None


def literal(c: Choices, dtype: str) -> tuple[str, Any]:
    """A Python number that fits the dtype, as text and as a value."""
    if dtype == "bool":
        value: Any = c.chance(0.5)
    elif "float" in dtype:
        value = c.one([0.0, 1.0, -1.5, 0.25, 3.0])
    else:
        value = c.between(0 if dtype.startswith("u") else -5, 5)
    return repr(value), value


@operation(30)
def elementwise(c: Choices, values: list[Value]) -> Step | None:
    first = pick(c, values)
    if first is None:
        return None
    known = "float16" if first.dtype in FP8 else first.dtype
    rows = [r for r in table.ROWS if r.sample == "small" and known in r.dtypes]
    rows = [r for r in rows if not (first.is_float and r.name in _SKIP)]
    if not rows:
        return None
    row = c.one(rows)
    operands, texts, shape = [first], [first.name], first.shape
    constants: dict[int, Any] = {}
    for position in range(1, row.arity):
        other = pick(c, values, lambda v, s=shape: v.dtype == first.dtype and broadcastable(v.shape, s))
        if other is None or c.chance(0.2):
            text, constants[position] = literal(c, first.dtype)
            texts.append(text)
            continue
        operands.append(other)
        texts.append(other.name)
        shape = np.broadcast_shapes(shape, other.shape)
    if int(np.prod(shape)) > 3000:
        return None

    def reference(*arrays: np.ndarray) -> Any:
        given = iter(arrays)
        full = [
            np.asarray(constants[i]).astype(arrays[0].dtype) if i in constants else next(given)
            for i in range(row.arity)
        ]
        exact = np.broadcast_to(table.exact(row, full), shape)
        narrow = first.is_float and arrays[0].dtype.itemsize < 4
        return exact, 1 if narrow and row.ulps else row.ulps, 0

    out = table.result_dtype(row, first.dtype)
    return Step(row.name, f"kd.{row.name}({', '.join(texts)})", tuple(v.name for v in operands), shape, out, reference)


@operation(4)
def where(c: Choices, values: list[Value]) -> Step | None:
    p = pick(c, values, lambda v: v.dtype == "bool")
    x = pick(c, values)
    if p is None or x is None or not broadcastable(p.shape, x.shape):
        return None
    text, number = literal(c, x.dtype)
    shape = np.broadcast_shapes(p.shape, x.shape)
    if int(np.prod(shape)) > 3000:
        return None

    def reference(a: np.ndarray, b: np.ndarray) -> Any:
        return np.broadcast_to(np.where(a, b, np.asarray(number).astype(b.dtype)), shape), 0, "bits"

    return Step("where", f"kd.where({p.name}, {x.name}, {text})", (p.name, x.name), shape, x.dtype, reference)


def _moved(name: str, x: Value, text: str, f: Callable[[np.ndarray], np.ndarray]) -> Step:
    """An operation that moves elements and changes none."""
    shape = f(np.empty(x.shape, np.int8)).shape
    return Step(name, text, (x.name,), shape, x.dtype, lambda a: (f(a), 0, "bits"))


@operation(8)
def rearrange(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values)
    if x is None:
        return None
    rank, kind = len(x.shape), c.one(["transpose", "reshape", "expand", "squeeze", "flip", "broadcast", "flat"])
    if kind == "transpose" and rank > 1:
        order = tuple(c.rng.permutation(rank).tolist())
        return _moved("transpose", x, f"kd.transpose({x.name}, {order})", lambda a: np.transpose(a, order))
    if kind in ("reshape", "flat") and rank:
        to: tuple[int, ...] = (-1,) if kind == "flat" or 0 in x.shape else (*x.shape[:-2], int(np.prod(x.shape[-2:])))
        return _moved("reshape", x, f"kd.reshape({x.name}, {to})", lambda a: np.reshape(a, to if a.size else (0,)))
    if kind == "expand" and rank < 5:
        axis = c.between(0, rank)
        return _moved("expand_dims", x, f"kd.expand_dims({x.name}, {axis})", lambda a: np.expand_dims(a, axis))
    if kind == "squeeze" and 1 in x.shape:
        axis = x.shape.index(1)
        return _moved("squeeze", x, f"kd.squeeze({x.name}, {axis})", lambda a: np.squeeze(a, axis))
    if kind == "flip" and rank:
        axis = c.below(rank)
        return _moved("flip", x, f"kd.flip({x.name}, {axis})", lambda a: np.flip(a, axis))
    if kind == "broadcast" and rank < 5 and int(np.prod(x.shape)) < 500:
        to = (c.between(1, 4), *x.shape)
        return _moved("broadcast_to", x, f"kd.broadcast_to({x.name}, {to})", lambda a: np.broadcast_to(a, to))
    return None


@operation(5)
def value_slice(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape) and 0 not in v.shape)
    if x is None:
        return None
    parts: list[str] = []
    for extent in x.shape:
        a, b = sorted((c.between(0, extent), c.between(0, extent)))
        step = c.one([1, 1, 2, 3])
        parts.append(
            c.one([":", f"{a}:{max(b, a + 1)}", f"::{step}", str(c.between(-extent, extent - 1)), f"{a - extent}:"])
        )
    index = ", ".join(parts)
    where_ = eval(f"np.s_[{index}]", {"np": np})
    return _moved("getitem", x, f"{x.name}[{index}]", lambda a: np.asarray(a[where_]))


@operation(3)
def concatenate(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape) and int(np.prod(v.shape)) < 800)
    y = pick(c, values, lambda v: x is not None and v.shape == x.shape and v.dtype == x.dtype)
    if x is None or y is None:
        return None
    axis = c.below(len(x.shape))
    shape = tuple(2 * n if i == axis else n for i, n in enumerate(x.shape))

    def reference(a: np.ndarray, b: np.ndarray) -> Any:
        return np.concatenate([a, b], axis), 0, "bits"

    text = f"kd.concatenate([{x.name}, {y.name}], axis={axis})"
    return Step("concatenate", text, (x.name, y.name), shape, x.dtype, reference)


@operation(4)
def accumulate(c: Choices, values: list[Value]) -> Step | None:
    """A loop that carries a value; integers, where every order of operations gives the same."""
    x = pick(c, values, lambda v: v.dtype in ("int32", "uint32", "int64"))
    if x is None:
        return None
    trips, unroll = c.between(0, 5), c.one(["None", "None", "True", "2"])
    text = f"kd.fori_loop(0, {trips}, lambda i, v: v * 3 + i.astype(v.dtype), {x.name}, unroll={unroll})"
    if unroll == "True":
        text = f"kd.fori_loop(0, {trips}, lambda i, v: v * 3 + i, {x.name}, unroll=True)"

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            for i in range(trips):
                a = a * a.dtype.type(3) + a.dtype.type(i)
        return a, 0, 0

    return Step("fori_loop", text, (x.name,), x.shape, x.dtype, reference)


@operation(3)
def while_loop(c: Choices, values: list[Value]) -> Step | None:
    """Doubles a value until a counter says stop."""
    x = pick(c, values, lambda v: v.dtype in ("int32", "float32"))
    if x is None:
        return None
    trips = c.between(0, 4)
    text = f"kd.while_loop(lambda s: s[0] < {trips}, lambda s: (s[0] + 1, s[1] * 2), (0, {x.name}))[1]"

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            return a * a.dtype.type(2**trips), 0, 0

    return Step("while_loop", text, (x.name,), x.shape, x.dtype, reference)


@operation(3)
def switch(c: Choices, values: list[Value]) -> Step | None:
    index = pick(c, values, lambda v: v.dtype in ("int32", "int64", "uint8") and not v.shape)
    x = pick(c, values, lambda v: v.dtype in ("float32", "int32"))
    if index is None or x is None:
        return None
    text = f"kd.switch({index.name}, [lambda v: v, lambda v: -v, lambda v: v + v], {x.name})"

    def reference(i: np.ndarray, a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            return (a, -a, a + a)[min(max(int(i), 0), 2)], 0, 0

    return Step("switch", text, (index.name, x.name), x.shape, x.dtype, reference)


@operation(5)
def through_smem(c: Choices, values: list[Value]) -> Step | None:
    """Stored to SMEM, and read back transposed."""
    x = pick(c, values, lambda v: 0 not in v.shape and bool(v.shape) and v.dtype != "bool")
    if x is None:
        return None
    text = (
        f"kd.run_scoped(lambda s: (s.__setitem__(..., {x.name}), s.T[...])[1], "
        f"kd.SMEM({(c.smem, *x.shape) if c.smem else x.shape}, kd.{x.dtype}))"
    )
    if c.smem:
        text = text.replace("s.__setitem__(...", "s.__setitem__(me").replace("s.T[...]", "s.at[me].T[...]")
    return _moved("run_scoped", x, text, np.transpose)


@operation(3)
def pad(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape) and int(np.prod(v.shape)) < 500)
    if x is None or not hasattr(kd, "pad"):
        return None
    widths = [(c.between(0, 3), c.between(0, 3)) for _ in x.shape]
    return _moved("pad", x, f"kd.pad({x.name}, {widths})", lambda a: np.pad(a, widths))


@operation(3)
def masked_store(c: Choices, values: list[Value]) -> Step | None:
    """Part of a buffer overwritten under a mask."""
    x = pick(c, values, lambda v: 0 not in v.shape and bool(v.shape) and v.dtype in ("float32", "int32", "bfloat16"))
    if x is None or c.smem:
        return None
    text = f"kd.run_state(lambda s: kd.store(s, ..., kd.zeros({x.shape}, kd.{x.dtype}), mask={x.name} > 0))({x.name})"

    def reference(a: np.ndarray) -> Any:
        return np.where(wide(a) > 0, np.zeros((), a.dtype), a), 0, "bits"

    return Step("store", text, (x.name,), x.shape, x.dtype, reference)


@operation(3)
def branch(c: Choices, values: list[Value]) -> Step | None:
    p = pick(c, values, lambda v: v.dtype == "bool" and not v.shape)
    x = pick(c, values, lambda v: v.dtype in ("float32", "int32"))
    if p is None or x is None:
        return None
    text = f"kd.cond({p.name}, lambda v: v + v, lambda v: -v, {x.name})"

    def reference(a: np.ndarray, b: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            return (b + b if a else -b), 0, 0

    return Step("cond", text, (p.name, x.name), x.shape, x.dtype, reference)


@operation(3)
def dot(c: Choices, values: list[Value]) -> Step | None:
    """A product with the transpose: sums of float32 products, int32 for integers."""
    x = pick(c, values, lambda v: len(v.shape) == 2 and 0 not in v.shape and v.dtype in _DOT and v.shape[0] < 70)
    if x is None or not hasattr(kd, "dot"):
        return None
    out = {"float64": "float64", "int8": "int32", "uint8": "int32", "int32": "int32"}.get(x.dtype, "float32")

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            if not x.is_float:
                return a.astype(np.int32) @ a.astype(np.int32).T, 0, 0
            b = a.astype(np.float64)
            exact, spread = b @ b.T, np.abs(b) @ np.abs(b).T
            return exact, 1, (2.0**-51 if x.dtype == "float64" else 2.0**-21) * a.shape[1] * spread

    rows = x.shape[0]
    return Step("dot", f"kd.dot({x.name}, kd.transpose({x.name}))", (x.name,), (rows, rows), out, reference)


_DOT = ("float32", "bfloat16", "float16", "int8", "uint8", "int32", "float64")
