"""Dispatch and combine of experts: rows in their order, sums against float64, rows that do not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType

BF16 = ml_dtypes.bfloat16


def routed(n: int, tokens: int, width: int, k: int, experts: int, dtype: Any) -> tuple[list[Any], list[Any], list[Any]]:
    rng = np.random.default_rng(3)
    xs = [rng.standard_normal((tokens, width)).astype(dtype) for _ in range(n)]
    ids = [np.argsort(rng.random((tokens, experts)), axis=1)[:, :k].astype(np.int32) for _ in range(n)]
    return xs, ids, [rng.random((tokens, k)).astype(np.float32) for _ in range(n)]


def rows_of(xs: list[Any], ids: list[Any], expert: int) -> list[np.ndarray]:
    """The rows that an expert gets: by rank, then by token."""
    return [x[t] for x, i in zip(xs, ids, strict=True) for t, _ in np.argwhere(i == expert)]


@pytest.mark.parametrize(
    ("n", "tokens", "width", "k", "experts", "dtype", "schedule"),
    [
        (2, 9, 40, 2, 4, np.float32, {"seed": 0}),
        pytest.param(4, 20, 300, 3, 8, BF16, {"schedule": "late"}, marks=pytest.mark.slow),
        pytest.param(2, 33, 5000, 8, 16, BF16, {"seed": 7}, marks=pytest.mark.slow),
    ],
)
def test_there_and_back(
    n: int, tokens: int, width: int, k: int, experts: int, dtype: Any, schedule: dict[str, Any]
) -> None:
    mesh, interpret = kd.Mesh(("x",), (n,)), kd.InterpretParams(**schedule)
    xs, ids, weights = routed(n, tokens, width, k, experts, dtype)
    received, counts, places = library.expert_dispatch(xs, ids, mesh, num_experts=experts, interpret=interpret)
    for device in range(n):
        own = range(device * experts // n, (device + 1) * experts // n)
        want = [rows_of(xs, ids, expert) for expert in own]
        assert counts[device].tolist() == [len(rows) for rows in want]
        flat = np.stack([row for rows in want for row in rows])
        assert received[device][: len(flat)].tobytes() == flat.tobytes()
    scale = [np.float32(device + 1) for device in range(n)]
    for device in range(n):
        received[device][counts[device].sum() :] = 0
    ys = [(r.astype(np.float32) * s).astype(dtype) for r, s in zip(received, scale, strict=True)]
    back = library.expert_combine(ys, ids, places, weights, mesh, num_experts=experts, interpret=interpret)
    for rank in range(n):
        factor = np.array(scale, np.float64)[ids[rank] // (experts // n)]
        want = xs[rank].astype(np.float64) * (weights[rank] * factor).sum(1)[:, None]
        step = 2.0**-7 if dtype is BF16 else 2.0**-21
        assert np.abs(back[rank].astype(np.float64) - want).max() <= step * np.abs(want).max() * k


def test_rows_that_do_not_fit_are_dropped_and_add_nothing() -> None:
    mesh = kd.Mesh(("x",), (2,))
    xs = [np.full((3, 8), rank + 1, np.float32) for rank in range(2)]
    ids = [np.zeros((3, 1), np.int32) for _ in range(2)]
    received, counts, places = library.expert_dispatch(xs, ids, mesh, num_experts=2, rows=4, interpret=True)
    assert counts[0].tolist() == [6] and counts[1].tolist() == [0] and received[0][:, 0].tolist() == [1, 1, 1, 2]
    ones = [np.ones((3, 1), np.float32) for _ in range(2)]
    received[1][...] = 0
    back = library.expert_combine(received, ids, places, ones, mesh, num_experts=2, interpret=True)
    assert back[1][:, 0].tolist() == [2, 0, 0] and back[0][:, 0].tolist() == [1, 1, 1]


def test_what_is_refused() -> None:
    mesh = kd.Mesh(("x",), (2,))
    xs, ids, weights = routed(2, 4, 8, 2, 4, np.float32)
    with pytest.raises(BadArgument, match="num_experts=3, for 2 devices"):
        library.expert_dispatch(xs, ids, mesh, num_experts=3)
    with pytest.raises(BadArgument, match="for 4 tokens"):
        library.expert_dispatch(xs, [i[:3] for i in ids], mesh, num_experts=4)
    with pytest.raises(BadArgumentType, match="rows are int32"):
        library.expert_dispatch(ids, ids, mesh, num_experts=4)
    with pytest.raises(BadArgument, match=r"all \(tokens, k\)"):
        library.expert_combine(xs, ids, weights, weights, mesh, num_experts=4)
