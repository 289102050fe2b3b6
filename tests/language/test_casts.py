"""`astype` between every pair of dtypes, at the edges of every format, with and without the hardware's conversions."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from tests.language import casts
from tests.ops.harness import run


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("own", casts.DTYPES, ids=str)
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
        bad = ~casts.same(got, want)
        assert not bad.any(), [(x[i], got[i], want[i]) for i in np.flatnonzero(bad)[:3]]
