"""Small kernels made from functions of values, run in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

INTERPRET = kd.InterpretParams(seed=0)
# for tests with an argument `interpret`: in the interpreter, and on a GPU
WHERE = pytest.mark.parametrize(
    "interpret", [INTERPRET, pytest.param(False, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"]
)


def types_of(function: Callable[..., Any], *arrays: Any) -> list[kd.ShapeDtypeStruct]:
    """The shapes and dtypes of what `function` returns for loaded arrays, found by tracing it."""
    seen: list[kd.ShapeDtypeStruct] = []

    @kd.kernel(out_type=())
    def probe(*refs: Any) -> None:
        results = function(*(r[...] for r in refs))
        for value in results if isinstance(results, tuple) else (results,):
            seen.append(kd.ShapeDtypeStruct(value.shape, value.dtype))

    probe.lower(*arrays)
    return seen


def run(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """`function` on whole arrays as values, in a kernel of one warpgroup; its result, or a tuple of several.

    `options` are the kernel's; it is interpreted unless they say `interpret=False`.
    """
    outs = types_of(function, *arrays)

    def body(*refs: Any) -> None:
        results = function(*(r[...] for r in refs[: len(arrays)]))
        for ref, value in zip(refs[len(arrays) :], results if isinstance(results, tuple) else (results,), strict=True):
            ref[...] = value

    made = kd.kernel(body, out_type=tuple(outs), **{"interpret": INTERPRET, **options})(*arrays)
    return made[0] if len(made) == 1 else made


def run_each(functions: Sequence[Callable[..., Any]], *arrays: Any) -> list[Any]:
    """What `run` gives for each of the functions, by one kernel. Each loads anew, so that no layout comes from another."""
    counts: list[int] = []
    outs: list[kd.ShapeDtypeStruct] = []

    @kd.kernel(out_type=())
    def probe(*refs: Any) -> None:
        for function in functions:
            results = function(*(r[...] for r in refs))
            results = results if isinstance(results, tuple) else (results,)
            counts.append(len(results))
            outs.extend(kd.ShapeDtypeStruct(value.shape, value.dtype) for value in results)

    probe.lower(*arrays)

    def body(*refs: Any) -> None:
        left = iter(refs[len(arrays) :])
        for function in functions:
            results = function(*(r[...] for r in refs[: len(arrays)]))
            for value in results if isinstance(results, tuple) else (results,):
                next(left)[...] = value

    made = iter(kd.kernel(body, out_type=tuple(outs), interpret=INTERPRET)(*arrays))
    return [next(made) if count == 1 else tuple(next(made) for _ in range(count)) for count in counts]


def random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Random numbers of a dtype: normal, small integers, or bools."""
    rng = np.random.default_rng([seed, *shape])
    numpy = kd.dtypes.as_dtype(dtype).numpy
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if numpy.kind in "iu":
        return rng.integers(0 if numpy.kind == "u" else -50, 50, shape).astype(numpy)
    return np.asarray(rng.standard_normal(shape)).astype(numpy)
