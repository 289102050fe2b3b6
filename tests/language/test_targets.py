"""Every dtype through the language's families, assembled for every target."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.target import TARGETS
from tests.language.casts import DTYPES

Spec = kd.ShapeDtypeStruct
pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")


def everything(x: Any, y: Any, starts: Any, out: Any, marks: Any) -> None:
    """A kernel that uses each family of operations on one dtype."""
    a, b = x[...], y[...]
    i = starts[0]
    dtype = x.dtype
    total = kd.where(a == b, a, b[:1])
    if not dtype.is_bool:
        total = kd.maximum(total + a * b - b, kd.minimum(a, b))
        total = total + (a // 3 if dtype.is_integer else kd.exp(a) / 2 + kd.floor(b) + kd.sqrt(kd.abs(a)))
    total = kd.concatenate([total[1:], total.reshape(5, 12)[:, :6].reshape(-1)[:12][None]], axis=0)
    total = kd.where(kd.any(total == a, -1, keepdims=True), kd.flip(total, 1), kd.cummax(total, 0))
    wide = kd.sum(total, 0) if dtype.is_float else kd.sum(total, 0).astype(dtype)
    total = kd.where(kd.argmax(total, 0) > 2, total, kd.sort(total, axis=1)) if not dtype.is_bool else total
    total = kd.fori_loop(0, i, lambda k, c: kd.where(k > 2, c, wide), total)
    total = kd.where(total != x[kd.ds(i, 5), :], total, x[kd.arange(5) + i][:, ::-1])
    out[kd.ds(i, 5)] = total
    marks[...] = (total <= a) & kd.cond(i > 1, lambda: total == b, lambda: total != b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.sampled(10)
def test_every_dtype_assembles(target: str, dtype: kd.dtypes.DType) -> None:
    spec = Spec((5, 12), dtype)
    outs = (Spec((9, 12), dtype), Spec((5, 12), kd.bool_))
    stages = kd.kernel(everything, out_type=outs).lower(spec, spec, Spec((1,), kd.int32), target=target)
    assert stages.compile().resources.spills == 0
