"""A GPU gives the interpreter's bits: random numbers, scans, sorts and products of batches."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random, run


def _recurrence(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


FUNCTIONS = {
    "uniform": lambda x: kd.random.uniform(1, (50, 70), minval=-3.0, maxval=0.1),
    "normal": lambda x: kd.random.normal(2, (50, 70)),
    "bernoulli": lambda x: kd.random.bernoulli(3, kd.logistic(x), (50, 70)),
    "associative_scan": lambda x: kd.associative_scan(_recurrence, (x, x + 1.0), axis=1)[1],
    "reverse": lambda x: kd.associative_scan(_recurrence, (x, x + 1.0), axis=0, reverse=True)[1],
    "cumsum": lambda x: kd.cumsum(x, axis=1, reverse=True, exclusive=True),
    "sort": lambda x: kd.sort(kd.rint(x), x, axis=0, descending=True)[1],
    "top_k": lambda x: kd.top_k(kd.rint(x), 9)[1],
    "searchsorted": lambda x: kd.searchsorted(kd.sort(x[0]), x),
    "round": lambda x: kd.round(x * 2, kd.RoundingMethod.AWAY_FROM_ZERO),
    "matmul": lambda x: x.reshape(5, 10, 70) @ x.reshape(5, 70, 10),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits(name: str) -> None:
    x = random((50, 70), seed=12)
    on_gpu, interpreted = (run(FUNCTIONS[name], x, interpret=where) for where in (False, INTERPRET))
    assert on_gpu.tobytes() == interpreted.tobytes()
