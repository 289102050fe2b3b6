"""Index arrays along an axis whose extent is a `kd.Dim`: one compile, and indices beyond each call's extent touch nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

N, M = kd.Dim("n"), kd.Dim("m")
LANES = 64


def gathered(table: Any, index: Any, out: Any) -> None:
    row = kd.program_id(0)
    out[...] = kd.load(table, (row, index[...]), fill=-1)


def scattered(index: Any, like: Any, out: Any) -> None:
    row = kd.program_id(0)
    out[row, 0] = like[row, 0]
    kd.store(out, (row, index[...]), kd.arange(LANES))


@pytest.mark.parametrize("device", ["interpret", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_any_extent(device: str) -> None:
    rng, interpret = np.random.default_rng(7), device == "interpret"
    of_index = {0: (LANES,), 1: (M, N), 2: (M, N)}
    gather = kd.kernel(
        gathered,
        out_type=kd.ShapeDtypeStruct((LANES,), kd.int32),
        shapes={0: (M, N), 1: (LANES,), 2: (LANES,)},
        grid=(1,),
    )
    filled = kd.ShapeDtypeStruct((M, N), kd.int32, init=-5)
    scatter = kd.kernel(scattered, out_type=filled, shapes=of_index, grid=(M,))
    for m, n in ((1, 1), (2, 63), (3, 64), (2, 200)):
        table = rng.integers(0, 99, (m, n)).astype(np.int32)
        index = rng.permutation(np.arange(LANES) * 3 + n // 3).astype(np.int32)
        index = np.where(index == 0, n, index)
        inside = index < n
        want = np.where(inside, table[0, np.where(inside, index, 0)], -1)
        np.testing.assert_array_equal(gather(table, index, interpret=interpret), want)
        expected = np.full((m, n), -5, np.int32)
        expected[:, 0] = table[:, 0]
        expected[:, index[inside]] = np.arange(LANES)[inside]
        np.testing.assert_array_equal(scatter(index, table, interpret=interpret), expected)
    assert [len(k.specialisations()) for k in (gather, scatter)] == [1, 1]
