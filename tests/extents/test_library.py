"""Products of the library whose M changes: right at every length, and compiled for few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library.any_rows import kernel_for
from kernel_dsl.library.choose import choose, clocks
from kernel_dsl.library.persistent_matmul import MatmulConfig, matmul_kernel
from kernel_dsl.library.problem import Problem

SMALL = MatmulConfig(64, 64, 64, stages=2, consumers=1, epilogue_n=64, epilogue_stages=1)


def test_one_kernel_multiplies_any_number_of_rows() -> None:
    """Bit-equal with the kernel that is made for each, also where the transposed product is computed."""
    rng = np.random.default_rng(0)
    for config, lengths in ((SMALL, (130, 1)), (replace(SMALL, swapped=True), (72,))):
        p = Problem(0, 128, 64, kd.float16, kd.float16, kd.float16, b_transposed=config.swapped)
        kernel = matmul_kernel(p, config, 4, any_rows=True)
        b = rng.standard_normal((128, 64) if config.swapped else (64, 128)).astype(np.float16)
        for m in lengths:
            a = rng.standard_normal((m, 64)).astype(np.float16)
            exact = matmul_kernel(replace(p, M=m), config, 4)
            np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
        assert len(kernel.specialisations()) == 1


def test_a_new_length_takes_a_kernel_that_is_there() -> None:
    """Of 200 lengths few make a kernel, and each one's is by the cost model at 0.97 of the speed of the best."""
    rng = np.random.default_rng(1)
    made: set[int] = set()
    p = Problem(1, 4096, 4096, kd.bfloat16, kd.bfloat16, kd.bfloat16)
    late = 0
    for number, m in enumerate(int(n) for n in rng.integers(1, 16384, 200)):
        own = replace(p, M=m)
        config = choose(own, 132)
        kernel = kernel_for(matmul_kernel, own, config, (132,), lambda p, t: clocks(p, t, 132))
        late += number >= 100 and id(kernel) not in made
        made.add(id(kernel))
    assert len(made) <= 16 and late <= 4


def test_a_matmul_of_lengths_that_come_one_after_another() -> None:
    matmul = type(kd.library.matmul)()
    rng = np.random.default_rng(2)
    b = rng.standard_normal((64, 64)).astype(np.float16)
    counts: list[int] = []
    for m in (40, 33, 35, 34):
        a = rng.standard_normal((m, 64)).astype(np.float16)
        want = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_allclose(matmul(a, b, interpret=True), want, rtol=2e-2, atol=2e-2)
        counts.append(len(matmul.specialisations()))
    assert counts == [1, 2, 2, 2]
