"""Rows of `tests/table.py` on every bit pattern of a narrow dtype, or on a seeded sample of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import kernel_dsl as kd
from tests import compare, table

QUIET = kd.InterpretParams(detect_hazards=False)
# of equal zeros either is an extreme: IEEE's order of -0.0 and 0.0 in 16 bits, the second operand in fp8, as ml_dtypes
EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin", "relu"}


def evaluate(
    functions: list[Callable[..., Any]], arrays: list[np.ndarray], interpret: Any = QUIET, **options: Any
) -> list[np.ndarray]:
    """What functions of values of one dimension give for arrays of any length, in one kernel, 1024 elements a block."""
    size = len(arrays[0])
    block = min(size, 1024)
    count = -(-size // block)
    padded = [np.resize(a, count * block) for a in arrays]
    dtypes: list[kd.dtypes.DType] = []

    def probe(*refs: Any) -> None:
        dtypes.extend(f(*(r[:block] for r in refs)).dtype for f in functions)

    kd.kernel(probe, out_type=()).lower(*padded)

    def body(*refs: Any) -> None:
        part = kd.ds(kd.axis_index("block") * block, block)
        values = [r[part] for r in refs[: len(arrays)]]
        for function, out in zip(functions, refs[len(arrays) :], strict=True):
            out[part] = function(*values)

    outs = tuple(kd.ShapeDtypeStruct((count * block,), d) for d in dtypes)
    kernel = kd.kernel(body, out_type=outs, grid=(count,), grid_names=("block",), interpret=interpret, **options)
    return [np.asarray(o)[:size] for o in kernel(*padded)]


def everything(dtype: kd.dtypes.DType) -> np.ndarray:
    """Every bit pattern of a dtype of 8 or 16 bits."""
    if dtype.is_bool:
        return np.array([False, True])
    return np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)


def operands(dtype: kd.dtypes.DType, arity: int, rng: np.random.Generator, full: bool) -> list[np.ndarray]:
    """All that `arity` operands can be, or, where that is more than 65,536 (2,048 if not `full`), a sample of them."""
    patterns = everything(dtype)
    if arity == 1 and (full or dtype.itemsize == 1):
        return [patterns]
    if arity == 2 and full and dtype.itemsize == 1:
        return [a.ravel() for a in np.meshgrid(patterns, patterns)]
    count = 65536 if full else 2048
    return [_sample(dtype, patterns, count, rng) for _ in range(arity)]


def _sample(dtype: kd.dtypes.DType, patterns: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A third of any bits, a third of edges, a third of ordinary numbers, all in one order."""
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        numbers = [0.0, 1.0, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan, 1.5, 2.5, 0.5]
        edges = np.array([s * float(n) for n in numbers for s in (1, -1)]).astype(dtype.numpy)
        ordinary = (rng.standard_normal(count) * 4).astype(dtype.numpy)
    else:
        edges, ordinary = patterns[[0, 1, -1, len(patterns) // 2, len(patterns) // 2 - 1]], patterns[:10]
    kinds = rng.integers(0, 3, count)
    any_bits, edge, number = (rng.choice(p, count) for p in (patterns, edges, ordinary))
    return np.where(kinds == 0, any_bits, np.where(kinds == 1, edge, number)).astype(dtype.numpy)


def rows_of(dtype: str, arity: int, inexact: bool = True) -> list[table.Row]:
    """The rows that a dtype takes part in: fp8 in all that float16 does. Without `inexact`: those of 0 ulps."""
    known = "float16" if dtype in table.FP8 else dtype
    return [r for r in table.ROWS if r.arity == arity and known in r.dtypes and (inexact or not r.ulps)]


def wrong(row: table.Row, got: np.ndarray, values: list[np.ndarray]) -> list[Any]:
    """(operands, got, wanted) of the first elements that differ from the reference, rounded once; empty where none do.

    Not-a-numbers agree with each other; the signs of zeros count. What the row says is inexact was rounded from a
    result within so many ulp of float32.
    """
    exact = table.exact(row, values)
    good = compare.same(got, compare.rounded(exact, got.dtype))
    if row.ulps and got.dtype.kind not in "iub":
        with np.errstate(all="ignore"):
            for factor in (1 - row.ulps * 2.0**-22, 1 + row.ulps * 2.0**-22):
                good |= compare.same(got, compare.rounded(exact * factor, got.dtype))
    if row.name in EITHER_ZERO:
        good |= (got == 0) & (exact == 0)
    bad = np.flatnonzero(~good)[:5]
    return [(*(v[i].item() for v in values), got[i].item(), exact[i].item()) for i in bad]
