"""`astype` between every pair of dtypes, at the edges of every format, with and without the hardware's conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests import compare
from tests.language import casts
from tests.ops.harness import run
from tests.ops.patterns import QUIET, evaluate


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("own", casts.DTYPES, ids=str)
@pytest.mark.sampled(4)
def test_every_pair(own: kd.dtypes.DType, target: str) -> None:
    x = casts.values(own)
    params = kd.CompilerParams(target=target)
    others = [d for d in casts.DTYPES if d != own]
    fp8 = [d for d in kd.dtypes.FP8 if d != own]

    def convert(a: kd.dtypes.DType) -> tuple[kd.dtypes.DType, ...]:
        return tuple(a.astype(d) for d in others) + tuple(a.astype(d, saturate=False) for d in fp8)

    results = run(convert, x, compiler_params=params)
    wanted = [(d, casts.reference(x, d)) for d in others] + [(d, casts.reference(x, d, saturate=False)) for d in fp8]
    for got, (dtype, want) in zip(results, wanted, strict=True):
        assert got.dtype == dtype.numpy
        bad = ~compare.same(got, want)
        assert not bad.any(), [(x[i], got[i], want[i]) for i in np.flatnonzero(bad)[:3]]


@pytest.mark.parametrize(
    ("count", "interpret"),
    [
        pytest.param(1 << 11, QUIET, id="sample"),
        pytest.param(1 << 16, QUIET, id="every", marks=pytest.mark.slow),
        pytest.param(1 << 16, False, id="gpu", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("own", [d for d in casts.DTYPES if d.itemsize > 1], ids=str)
@pytest.mark.sampled(4)
def test_any_bits(own: kd.dtypes.DType, count: int, interpret: Any) -> None:
    """Every pattern of 16 bits, or a sample; of more bits any, shifted to any size, and beside ties of narrower floats."""
    x = casts.any_bits(own, count)
    wanted = [(d, True) for d in casts.DTYPES if d != own] + [(d, False) for d in kd.dtypes.FP8]
    functions = [lambda a, d=d, saturate=s: a.astype(d, saturate=saturate) for d, s in wanted]
    for (dtype, saturate), got in zip(wanted, evaluate(functions, [x], interpret), strict=True):
        want = casts.reference(x, dtype, saturate)
        bad = np.flatnonzero(~compare.same(got, want))[:3]
        assert not bad.size, (str(dtype), saturate, [(x[i], got[i], want[i]) for i in bad])


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("own", [kd.int8, kd.uint8], ids=str)
@pytest.mark.parametrize("to", [kd.float16, kd.bfloat16], ids=str)
def test_computed_bytes_to_halves(own: kd.dtypes.DType, to: kd.dtypes.DType, target: str) -> None:
    """All values, in bytes that are no neighbours of a loaded word, and in odd numbers."""
    x = casts.values(own)
    params = kd.CompilerParams(target=target)

    def convert(a: kd.dtypes.DType) -> tuple[kd.dtypes.DType, ...]:
        return (a + 1).astype(to), a.reshape(2, 128).T.astype(to), a[:128].astype(to), a[:3].astype(to)

    wanted = (x + own.numpy.type(1), x.reshape(2, 128).T, x[:128], x[:3])
    for got, want in zip(run(convert, x, compiler_params=params), wanted, strict=True):
        assert got.dtype == to.numpy
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("own", [kd.float32, kd.float64], ids=str)
def test_constants_to_integers(own: kd.dtypes.DType) -> None:
    """Conversions that the compiler folds: saturated, and NaN to 0, as the ones that run."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -1.0, -2.7, 2.7], own.numpy)
    integers = casts.INTEGERS

    def convert(_: kd.dtypes.DType) -> tuple[kd.dtypes.DType, ...]:
        constants = [kd.full((), v, own) for v in x.tolist()]
        return tuple(kd.stack([c.astype(d) for c in constants]) for d in integers)

    for got, dtype in zip(run(convert, own.numpy.type(1)), integers, strict=True):
        np.testing.assert_array_equal(got, casts.reference(x, dtype))
