"""Kernels whose own scratch takes nearly all SMEM: what the compiler adds goes where an alignment left room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import SmemExceeded

pytestmark = pytest.mark.tma
LIMIT = 232448  # bytes that a block has on Hopper
SWIZZLED = (kd.TilingTransform((8, 32)), kd.SwizzleTransform(128))


def total(bytes: int) -> tuple[Any, tuple[int, int]]:
    """A kernel whose buffer has that many bytes, and the shape of its input."""
    shape = (bytes // 256, 64)

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((1,), kd.float32),
        scratch_types={
            "arrived": kd.Barrier(num_arrivals=1),
            "rows": kd.SMEM(shape, kd.float32, transforms=SWIZZLED),
        },
    )
    def total(x: Any, out: Any, arrived: Any, rows: Any) -> None:
        some = kd.ds(0, 128)
        kd.copy_gmem_to_smem(x.at[some], rows.at[some], arrived)
        kd.barrier_wait(arrived)
        out[0] = kd.sum(rows[some])  # the warps exchange their sums

    return total, shape


def test_sums_beside_buffers_that_leave_one_gap(interpret: Any, rng: Any) -> None:
    """The gap between the barrier and the buffer, which begins at a multiple of 1,024 bytes."""
    kernel, shape = total(LIMIT - 1024)
    x = rng.standard_normal(shape).astype(np.float32)
    got = np.asarray(kernel(x, interpret=interpret))
    np.testing.assert_allclose(got, [x[:128].astype(np.float64).sum()], rtol=1e-4)


def test_buffers_that_leave_none() -> None:
    kernel, shape = total(LIMIT + 1024)
    with pytest.raises(SmemExceeded):
        kernel(np.zeros(shape, np.float32), interpret=True)
