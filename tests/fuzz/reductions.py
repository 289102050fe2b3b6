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
    """How far a sum of float terms, given by their sizes, may be from the exact one."""
    return 2 * (2.0**-52 if x.dtype == "float64" else 2.0**-23) * count * terms


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
    name = c.one(["cumsum", "cumprod", "cummax"])
    if x is None or (name == "cumprod" and x.is_float):
        return None
    axis = c.below(len(x.shape))
    out = x.dtype if name == "cummax" else _accumulated(x)

    def reference(a: np.ndarray) -> Any:
        with np.errstate(all="ignore"):
            if name == "cummax":
                return np.maximum.accumulate(wide(a), axis=axis), 0, 0
            exact = getattr(np, name)(wide(a), axis=axis, dtype=None if x.is_float else out)
            sizes = np.cumsum(np.abs(wide(a)), axis=axis) if x.is_float else 0
            return exact, 1, _error(x, sizes, a.shape[axis]) if x.is_float else 0

    return Step(name, f"kd.{name}({x.name}, axis={axis})", (x.name,), x.shape, out, reference)


@operation(4)
def sorting(c: Choices, values: list[Value]) -> Step | None:
    x = pick(c, values, lambda v: bool(v.shape) and 0 not in v.shape)
    if x is None:
        return None
    name, axis = c.one(["sort", "argsort"]), c.below(len(x.shape))

    def reference(a: np.ndarray) -> Any:
        return getattr(np, name)(wide(a), axis=axis, kind="stable"), 0, 0

    out = x.dtype if name == "sort" else "int32"
    return Step(name, f"kd.{name}({x.name}, axis={axis})", (x.name,), x.shape, out, reference)
