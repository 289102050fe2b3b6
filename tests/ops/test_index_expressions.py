"""Random expressions of index arrays: rows, columns and whole arrays whose layouts are open until they meet."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

UNARY = {
    "x * 0.5 + 1": lambda m, x: x * 0.5 + 1.0,
    "exp2": lambda m, x: m.exp2(x * 0.01),
    "sum of rows": lambda m, x: m.sum(x, axis=1, keepdims=True),
    "maximum of columns": lambda m, x: m.max(x, axis=0, keepdims=True),
}
BINARY = {
    "x + y": lambda m, x, y: x + y,
    "x - y": lambda m, x, y: x - y,
    "maximum": lambda m, x, y: m.maximum(x, y),
    "where": lambda m, x, y: m.where(x < y, x, y * 0.5),
}


def evaluate(seed: int, m: Any, rows: int, columns: int, index: Any) -> Any:
    """The value of a seed's expression by the functions of `m`: NumPy, or kernel_dsl."""
    rng = np.random.default_rng(seed)
    known = [index((rows, 1), 0), index((1, columns), 1), index((rows, columns), int(rng.integers(2)))]
    for _ in range(int(rng.integers(3, 9))):
        if rng.random() < 0.45:
            operation = [*UNARY.values()][rng.integers(len(UNARY))]
            known.append(operation(m, known[rng.integers(len(known))]))
        else:
            operation = [*BINARY.values()][rng.integers(len(BINARY))]
            known.append(operation(m, known[rng.integers(len(known))], known[rng.integers(len(known))]))
    total = known[0]
    for x in known[1:]:  # all of them matter
        total = m.where(total < x, total + x * 0.125, total)
    return total


@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_open_layouts_meet(block: int) -> None:
    for seed in range(12 * block, 12 * block + 12):
        rows, columns = ((128, 16), (64, 64), (8, 96), (128, 128))[seed % 4]

        @kd.kernel(out_type=kd.ShapeDtypeStruct((rows, columns), kd.float32))
        def kernel(o: Any, seed: int = seed, rows: int = rows, columns: int = columns) -> None:
            o[...] = evaluate(seed, kd, rows, columns, partial(kd.broadcasted_iota, kd.float32))

        def index(shape: tuple[int, int], axis: int) -> Any:
            return np.broadcast_to(np.expand_dims(np.arange(shape[axis], dtype=np.float64), 1 - axis), shape)

        wanted = np.broadcast_to(evaluate(seed, np, rows, columns, index), (rows, columns))
        near = np.isclose(kernel(interpret=True), wanted, rtol=1e-4, atol=1e-4)
        assert near.mean() > 0.97, f"seed {seed}"  # float32 may compare near equal values another way


def test_a_column_meets_the_array_that_it_decided() -> None:
    """The column's layout is a reduction of the array's, which nothing has closed."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((128, 16), kd.int32))
    def kernel(o: Any) -> None:
        i, j = kd.broadcasted_iota(kd.float32, (128, 1), 0), kd.broadcasted_iota(kd.float32, (1, 16), 1)
        power = kd.exp2(i - 100)
        o[...] = kd.where(i - j < power, 1, 2)

    i, j = np.arange(128.0)[:, None], np.arange(16.0)
    np.testing.assert_array_equal(kernel(interpret=True), np.where(i - j < np.exp2(i - 100), 1, 2))
    assert "bar.sync" not in kernel.lower(target="sm_90a").ptx
