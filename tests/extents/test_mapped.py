"""Arrays that TMA copies: each launch makes their tensor maps, so that one compiled kernel serves arrays of every size."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

pytestmark = pytest.mark.wgmma

Spec = kd.ShapeDtypeStruct
f32 = kd.float32


class Program:
    """A kernel that copies blocks of an array into SMEM, doubles them, and copies them back."""

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.dtype = np.dtype(chosen.choice([np.float32, np.float16, np.int8, np.int32, np.float64]))
        self.unit = 16 // self.dtype.itemsize
        rank = chosen.choice([1, 2, 2, 3])
        self.tile = [chosen.choice([1, 2, 4, 8, 16]) for _ in range(rank - 1)] + [self.unit * chosen.choice([1, 2, 4])]
        self.one = rank > 1 and chosen.random() < 0.4  # one index of the first axis, not a slice of it
        self.before = int(rank > 1 and not self.one and chosen.random() < 0.4)  # rows that blocks start earlier
        self.prefetches = chosen.random() < 0.5
        self.numbers = np.random.default_rng(seed)

    def body(self, x: Any, out: Any, tile: Any, ready: Any) -> None:
        starts = [kd.program_id(axis) * n for axis, n in enumerate(self.tile)]
        rest = [kd.ds(start, n) for start, n in zip(starts[1:], self.tile[1:], strict=True)]
        source = starts[0] if self.one else kd.ds(starts[0] - self.before, self.tile[0])
        if self.prefetches:
            kd.async_prefetch(x.at[(source, *rest)])
        kd.copy_gmem_to_smem(x.at[(source, *rest)], tile, ready)
        kd.barrier_wait(ready)
        tile[...] = tile[...] + tile[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[(starts[0] if self.one else kd.ds(starts[0], self.tile[0]), *rest)])
        kd.wait_smem_to_gmem(0)

    def kernel(self) -> Any:
        return kd.kernel(
            self.body,
            out_type=lambda x: Spec(x.shape, x.dtype, init=0),
            grid=lambda x: tuple(kd.cdiv(n, t) for n, t in zip(x.shape, self.tile, strict=True)),
            scratch_types=[kd.SMEM(tuple(self.tile[self.one :]), kd.dtypes.as_dtype(self.dtype)), kd.Barrier()],
        )

    def array(self) -> np.ndarray:
        sides = [int(n) for n in self.numbers.integers(1, 20, len(self.tile) - 1)]
        shape = [*sides, self.unit * int(self.numbers.integers(1, 6))]
        return self.numbers.integers(-9, 9, shape).astype(self.dtype)

    def expected(self, x: np.ndarray) -> np.ndarray:
        wanted = np.zeros_like(x)
        step = self.tile[0]
        for row in range(len(x)):
            if not self.one:
                source = row - self.before
                wanted[row] = 2 * x[source] if source >= 0 else 0
            elif row % step == 0:
                wanted[row] = 2 * x[row]
        return wanted


def check(seed: int, interpret: Any) -> None:
    program = Program(seed)
    kernel = program.kernel()
    for _ in range(4):
        x = program.array()
        np.testing.assert_array_equal(kernel(x, interpret=interpret), program.expected(x))
    assert len(kernel.specialisations()) == 1


@pytest.mark.parametrize("seed", range(12))
def test_any_extents(seed: int, interpret: Any) -> None:
    check(seed, interpret)


@pytest.mark.slow
def test_any_extents_at_length() -> None:
    for seed in range(12, 400):
        check(seed, True)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(12, 20))
def test_any_extents_on_a_gpu(seed: int) -> None:
    check(seed, False)


def doubling() -> Any:
    """Blocks of 16 rows of 32 columns."""

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (kd.cdiv(x.shape[0], 16), kd.cdiv(x.shape[1], 32)),
        scratch_types=[kd.SMEM((16, 32), f32), kd.Barrier()],
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        block = kd.ds(kd.program_id(0) * 16, 16), kd.ds(kd.program_id(1) * 32, 32)
        kd.copy_gmem_to_smem(x.at[block], tile, ready)
        kd.barrier_wait(ready)
        out[block] = tile[...] * 2.0

    return kernel


def test_what_a_tensor_map_needs_is_in_the_key(rng: Any) -> None:
    """No elements, and rows that are no whole units of 16 bytes, have their own code or their own error."""
    kernel, counts = doubling(), list[int]()
    for shape in ((16, 32), (40, 68), (0, 32), (3, 4)):
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(kernel(x, interpret=True), 2 * x)
        counts.append(len(kernel.specialisations()))
    assert counts == [1, 1, 2, 2]
    with pytest.raises(kd.Error, match=r"rows of float32\[5, 33\] are 132 bytes apart"):
        kernel(np.zeros((5, 33), np.float32), interpret=True)
    gaps = rng.standard_normal((40, 68)).astype(np.float32)[::2]
    np.testing.assert_array_equal(kernel(gaps, interpret=True), 2 * gaps)


def test_blocks_of_a_pipeline(rng: Any) -> None:
    """A product by wgmma: the rows of a and the columns of b are any, and the loop over K reads K."""

    @kd.kernel(
        out_type=lambda a, b: Spec((a.shape[0], b.shape[1]), f32),
        grid=lambda a, b: (kd.cdiv(a.shape[0], 64), kd.cdiv(b.shape[1], 64)),
        scratch_types=[kd.ACC((64, 64))],
    )
    def matmul(a: Any, b: Any, out: Any, acc: Any) -> None:
        m, n = kd.program_id(0), kd.program_id(1)

        def step(_: Any, left: Any, right: Any) -> None:
            kd.wgmma(acc, left, right)
            kd.wgmma_wait(0)

        specs = [kd.BlockSpec((64, 64), lambda k: (m, k)), kd.BlockSpec((64, 64), lambda k: (k, n))]
        kd.emit_pipeline(step, grid=(kd.cdiv(a.shape[1], 64),), in_specs=specs, max_concurrent_steps=2)(a, b)
        out[kd.ds(m * 64, 64), kd.ds(n * 64, 64)] = acc[...]

    for rows, columns in ((70, 72), (64, 64), (1, 136)):
        a, b = rng.standard_normal((rows, 136)), rng.standard_normal((136, columns))
        a, b = a.astype(np.float16), b.astype(np.float16)
        np.testing.assert_allclose(matmul(a, b, interpret=True), a.astype(float) @ b.astype(float), atol=1e-2)
    assert len(matmul.specialisations()) == 1
