"""Reductions, scans and sorts of every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.choose import Choices, Value
from tests.fuzz.operations import Step, numpy, operation, pick, wide


def _axes(c: Choices, rank: int) -> tuple[int, ...]:
    return tuple(sorted(c.rng.permutation(rank)[: c.between(1, rank)].tolist()))


def _accumulated(x: Value) -> str:
    """The dtype that sums of a value have."""
    if x.is_float or numpy(x.dtype).itemsize >= 4:
        return x.dtype
    return "uint32" if x.dtype.startswith("u") else "int32"


def _error(x: Value, terms: Any, count: int) -> Any:
    """How far a sum of float terms, given by their sizes, may be from the exact one.

    Terms are added in any order. So where all of one sign could exceed the largest number, a part of the sum may be infinite.
    """
    info = np.finfo(np.float64 if x.dtype == "float64" else np.float32)
    return np.where(terms > info.max, np.inf, 2 * float(info.eps) * count * terms)


@operation(10)
def reduction(c: Choices, values: list[Value]) -> Step | None:
    name = c.one(["sum", "max", "min", "any", "all", "argmax", "argmin", "mean", "prod"])
    x = pick(c, values, lambda v: bool(v.shape))
    if x is None or (name in ("any", "all")) != (x.dtype == "bool") or 0 in x.shape:
        return None
    axes: Any = _axes(c, len(x.shape)) if not name.startswith("arg") else c.below(len(x.shape))
    keep = c.chance(0.4) and not name.startswith("arg")
    if (name == "mean" and not x.is_float) or (name == "prod" and x.is_float):
        return None
    out = {"any": "bool", "all": "bool", "argmax": "int32", "argmin": "int32"}.get(name, x.dtype)
    if name in ("sum", "prod"):
        out = _accumulated(x)

    def reference(a: np.ndarray) -> Any:
        if name.startswith("arg"):
            return getattr(np, name)(wide(a), axis=axes), 0, 0
        with np.errstate(all="ignore"):
            options = {"dtype": out} if name in ("sum", "prod") and not x.is_float else {}
            exact = getattr(np, name)(wide(a), axis=axes, keepdims=keep, **options)
            if name not in ("sum", "mean") or not x.is_float:
                return exact, 0, 0
            count = a.size // max(exact.size, 1)
            sizes = np.sum(np.abs(wide(a)), axis=axes, keepdims=keep)
            return exact, 1, _error(x, sizes, count) / (count if name == "mean" else 1)

    shape = tuple(np.sum(np.empty(x.shape, np.int8), axis=axes, keepdims=keep).shape)
    text = f"kd.{name}({x.name}, axis={axes!r}{', keepdims=True' if keep else ''})"
    return Step(name, text, (x.name,), shape, out, reference)


@operation(5)
def scan(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape))
    name = c.one(["cumsum", "cumprod", "cummax", "cummin"])
    if x is None or (name == "cumprod" and x.is_float):
        return None
    axis, reverse = c.below(len(x.shape)), c.chance(0.3)
    # what an exclusive extreme starts with is the dtype's own
    exclusive = c.chance(0.3) and not name.startswith("cumm") and x.shape[axis] > 0
    out = x.dtype if name.startswith("cumm") else _accumulated(x)

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            given = np.flip(wide(a), axis) if reverse else wide(a)
            if name.startswith("cumm"):
                exact: Any = (np.maximum if name == "cummax" else np.minimum).accumulate(given, axis=axis)
                return np.flip(exact, axis) if reverse else exact, 0, 0
            exact = getattr(np, name)(given, axis=axis, dtype=None if x.is_float else out)
            if exclusive:
                exact = np.roll(exact, 1, axis)
                np.moveaxis(exact, axis, 0)[0] = name == "cumprod"
            exact = np.flip(exact, axis) if reverse else exact
            # what is summed before the first infinity or not-a-number has a bound, too
            finite = np.where(np.isfinite(given), np.abs(given), 0) if x.is_float else 0
            sizes = np.sum(finite, axis=axis, keepdims=True) if x.is_float else 0
            return exact, 1, _error(x, sizes, a.shape[axis]) if x.is_float else 0

    options = f"{', reverse=True' if reverse else ''}{', exclusive=True' if exclusive else ''}"
    return Step(name, f"kd.{name}({x.name}, axis={axis}{options})", (x.name,), x.shape, out, reference)


@operation(3)
def associative_scan(c: Choices, values: list[Value]) -> Step | None:
    """Sums that start anew where the element before is even: a function that does not commute."""
    x = pick(c, values, lambda v: v.dtype in ("int32", "uint32", "int64") and bool(v.shape))
    if x is None:
        return None
    axis, reverse = c.below(len(x.shape)), c.chance(0.5)
    text = (
        f"kd.associative_scan(lambda a, b: (a[0] | b[0], kd.where(b[0], b[1], a[1] + b[1])), "
        f"({x.name} % 2 == 0, {x.name}), axis={axis}, reverse={reverse})[1]"
    )

    def reference(a: np.ndarray) -> Any:
        rows = np.moveaxis(np.flip(a, axis) if reverse else a, axis, 0).copy()
        with np.errstate(all="ignore"):
            for i in range(1, len(rows)):
                rows[i] = np.where(rows[i] % 2 == 0, rows[i], rows[i - 1] + rows[i])
        exact = np.moveaxis(rows, 0, axis)
        return np.flip(exact, axis) if reverse else exact, 0, 0

    return Step("associative_scan", text, (x.name,), x.shape, x.dtype, reference)


def _order(a: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The indices that sort stably, NaN last."""
    x = wide(a)
    ranks: Any = np.searchsorted(np.unique(x[x == x]), x)
    return np.argsort(np.where(x == x, -ranks if descending else ranks, x.size), axis=axis, kind="stable")


@operation(4)
def sorting(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape) and 0 not in v.shape)
    if x is None:
        return None
    name, axis, descending = c.one(["sort", "argsort"]), c.below(len(x.shape)), c.chance(0.5)

    def reference(a: np.ndarray) -> Any:
        order = _order(a, axis, descending)
        return (np.take_along_axis(wide(a), order, axis) if name == "sort" else order), 0, 0

    out = x.dtype if name == "sort" else "int32"
    text = f"kd.{name}({x.name}, axis={axis}{', descending=True' if descending else ''})"
    return Step(name, text, (x.name,), x.shape, out, reference)


@operation(3)
def lookup(c: Choices, values: list[Value]) -> Step | None:
    """The largest, and a value in the order of another: bits move and stay as they are."""
    x = pick(c, values, lambda v: bool(v.shape) and 0 not in v.shape)
    y = pick(c, values, lambda v: x is not None and v.shape == x.shape)
    if x is None or y is None:
        return None
    axis = c.below(len(x.shape))
    if c.chance(0.5):
        count = c.between(1, x.shape[axis])

        def first(a: np.ndarray) -> Any:
            order = np.take(_order(a, axis, True), range(count), axis)
            return np.take_along_axis(a, order, axis), 0, "bits"

        shape = tuple(count if i == axis else n for i, n in enumerate(x.shape))
        return Step("top_k", f"kd.top_k({x.name}, {count}, axis={axis})[0]", (x.name,), shape, x.dtype, first)

    def moved(a: np.ndarray, b: np.ndarray) -> Any:
        return np.take_along_axis(b, _order(a, axis, False), axis), 0, "bits"

    text = f"kd.sort({x.name}, {y.name}, axis={axis})[1]"
    return Step("take_along_axis", text, (x.name, y.name), x.shape, y.dtype, moved)
