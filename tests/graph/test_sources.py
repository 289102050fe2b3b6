"""Kernels in CUDA C++ and in Metal's language, recorded: several under one name, several dtypes, one batch."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom import nvrtc

pytestmark = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable() or "NVRTC")


def run(kernel, x, n, **more):
    return kernel(
        inputs=[x], template=[("N", n)], grid=(x.size, 1, 1), threadgroup=(16, 1, 1),
        output_shapes=[x.shape], output_dtypes=[x.dtype], interpret=True, **more,
    )[0]  # fmt: skip


def cuda(source):
    return kd.cuda_kernel(name="same", input_names=["x"], output_names=["y"], source=source)


TWICE = "auto i = cg::this_grid().thread_rank(); y[i] = x[i] * N;"
MORE = "auto i = cg::this_grid().thread_rank(); y[i] = x[i] + N;"


def test_one_name_two_sources_in_one_graph() -> None:
    x = np.arange(32, dtype=np.float32)
    twice, more = cuda(TWICE), cuda(MORE)
    with kd.Graph() as g:
        a = run(twice, x, 2)
        b = run(more, x, 100)
    got = g()
    assert got[0] is a and got[1] is b
    np.testing.assert_array_equal(a, x * 2)
    np.testing.assert_array_equal(b, x + 100)
    other = x[::-1].copy()
    np.testing.assert_array_equal(g(other)[1], other + 100)


def test_one_kernel_of_two_dtypes_in_one_graph() -> None:
    twice = cuda("auto i = cg::this_grid().thread_rank(); y[i] = x[i] + x[i];")
    x, y = np.full(16, 1.5, np.float16), np.full(16, 2.5, np.float32)
    with kd.Graph() as g:
        a, b = run(twice, x, 1), run(twice, y, 1)
    g()
    assert float(a[0]) + float(b[0]) == 8.0


def test_variables_in_template_and_grid() -> None:
    n = kd.Variable("n", 1, 32)
    kernel = cuda("auto i = cg::this_grid().thread_rank(); if (i < N) y[i] = x[i] * N;")
    x = np.arange(32, dtype=np.float32)
    with kd.Graph() as g:
        y = kernel(
            inputs=[x], template=[("N", n)], grid=(n, 1, 1), threadgroup=(16, 1, 1),
            output_shapes=[x.shape], output_dtypes=[x.dtype], init_value=-1.0, interpret=True,
        )[0]  # fmt: skip
    for value in (32, 5, 17):
        g(n=value)
        np.testing.assert_array_equal(y[:value], x[:value] * value)
        np.testing.assert_array_equal(y[value:], -1)
        assert g.nodes[1].grid == (-(-value // min(16, value)), 1, 1)


def test_metal_kernels_and_traced_ones_in_one_graph() -> None:
    metal = kd.metal_kernel(
        name="scaled", input_names=["x"], output_names=["y"],
        source="uint i = thread_position_in_grid.x; y[i] = metal::exp(x[i]) * N;",
    )  # fmt: skip

    @kd.kernel(out_type=lambda x: x, interpret=True)
    def halve(x, out):
        out[...] = x[...] * 0.5

    x = np.linspace(-1, 1, 32, dtype=np.float32)
    with kd.Graph() as g:
        halve(run(metal, halve(x), 4))
    eager = halve(run(metal, halve(x), 4))
    np.testing.assert_array_equal(g(), eager)
    np.testing.assert_allclose(g(), 2 * np.exp(x.astype(np.float64) / 2), rtol=1e-6)
