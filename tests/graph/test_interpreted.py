"""Graphs of real kernels in the interpreter: traced ones and PTX images together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
from tests.assemble.kernels import HEADER

AXPB = (
    HEADER.format(version="8.0", target="sm_80")
    + """
.visible .entry axpb(.param .u64 x, .param .u64 y, .param .s32 n, .param .f32 b)
{
.reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<6>;
ld.param.u64 %rd1, [x];
ld.param.u64 %rd2, [y];
ld.param.s32 %r1, [n];
ld.param.f32 %f1, [b];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mov.u32 %r4, %tid.x;
mad.lo.s32 %r5, %r2, %r3, %r4;
setp.ge.s32 %p1, %r5, %r1;
@%p1 bra DONE;
mul.wide.s32 %rd3, %r5, 4;
add.s64 %rd4, %rd1, %rd3;
add.s64 %rd5, %rd2, %rd3;
ld.global.f32 %f2, [%rd4];
fma.rn.f32 %f3, %f2, 0f40000000, %f1;
st.global.f32 [%rd5], %f3;
DONE:
ret;
}
"""
)


def axpb(x, n, b, **more):
    """y[i] = 2 x[i] + b for i < n; the rest of y is 0."""
    return precompiled_cuda_kernel(
        name="axpb", compiled_source=AXPB.encode(), inputs=[x], output_shapes=[x.shape],
        output_dtypes=[np.float32], scalars=[n, b], grid=(n, 1, 1), threadgroup=(64, 1, 1),
        init_value=0.0, interpret=True, **more,
    )[0]  # fmt: skip


@kd.kernel(out_type=lambda x, *_: x, interpret=True)
def scale(x, s, out):
    out[...] = x[...] * s


def floats(n=200):
    return np.random.default_rng(n).standard_normal(n).astype(np.float32)


def test_traced_kernels_and_images_in_one_graph() -> None:
    x, other = floats(), floats()[::-1].copy()
    n, s = kd.Variable("n", 1, 200), kd.Variable("s", 0, 9)
    with kd.Graph() as g:
        t = scale(x, s)
        y = axpb(t, n, 0.5)
        scale(y, 0.25)
    assert [node.kind for node in g.nodes] == ["kernel", "fill", "kernel", "kernel"]

    def eager(a, count, factor):
        return scale(axpb(scale(a, factor), count, 0.5), 0.25)

    for count, factor in ((200, 3), (1, 3), (65, 9), (64, 0)):
        np.testing.assert_array_equal(g(n=count, s=factor), eager(x, count, factor))
        assert g.nodes[2].grid == (-(-count // 64), 1, 1)
        np.testing.assert_array_equal(g(other, n=count, s=factor), eager(other, count, factor))


def test_a_row_major_copy_is_made_at_each_replay() -> None:
    x = floats(400)
    with kd.Graph() as g:
        axpb(x[::2], 200, 1.0, ensure_row_contiguous=True)
    np.testing.assert_array_equal(g(), x[::2] * 2 + 1)
    x[...] = floats(401)[1:]
    np.testing.assert_array_equal(g(), x[::2] * 2 + 1)


def test_an_images_params_and_dims_by_hand() -> None:
    x = floats()
    with kd.Graph() as g:
        y = axpb(x, 200, 1.0)
    node = g.nodes[1]
    g.set_params(node, scalars=[150, 3.0])
    g.launch()
    np.testing.assert_array_equal(y[:150], x[:150] * 2 + 3)
    np.testing.assert_array_equal(y[150:], 0)
    node.set_launch_dims(grid=(1, 1, 1))
    g.launch()
    np.testing.assert_array_equal(y[:64], x[:64] * 2 + 3)
    np.testing.assert_array_equal(y[64:], 0)
    other = floats(200)[::-1].copy()
    node.set_params(arrays=[other])
    g.launch()
    np.testing.assert_array_equal(y[:64], other[:64] * 2 + 3)


def test_a_bound_call_is_recorded() -> None:
    x = floats()
    bound = scale.bind(x, 2.0, interpret=True)
    with kd.Graph() as g:
        y = bound()
    x[...] = 1
    assert g() is y
    np.testing.assert_array_equal(y, 2)


def test_hazards_are_found_in_replays() -> None:
    out_of_bounds = AXPB.replace("setp.ge.s32 %p1, %r5, %r1", "setp.ge.s32 %p1, %r5, 1000")

    def broken(x):
        return precompiled_cuda_kernel(
            name="axpb", compiled_source=out_of_bounds.encode(), inputs=[x],
            output_shapes=[x.shape], output_dtypes=[np.float32], scalars=[200, 1.0],
            grid=(256, 1, 1), threadgroup=(64, 1, 1), interpret=True,
        )  # fmt: skip

    with kd.Graph() as g:
        broken(floats())
    with pytest.raises(kd.HazardError):
        g()


def test_jax_outputs_are_new_arrays_each_time() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(8, dtype=jax.numpy.float32)
    with kd.Graph() as g:
        scale(scale(x, 2.0), 3.0)
    first = g()
    second = g(x + 1)
    assert isinstance(first, jax.Array)
    np.testing.assert_array_equal(np.asarray(first), np.arange(8) * 6)
    np.testing.assert_array_equal(np.asarray(second), (np.arange(8) + 1) * 6)
    with kd.Graph() as outer:
        scale(g(g(x)), 0.5)
    np.testing.assert_array_equal(np.asarray(outer()), np.arange(8) * 18)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(8, dtype=torch.float32)
    with kd.Graph() as g:
        y = scale(scale(x, 2.0), 3.0)
    assert g() is y
    assert torch.equal(y, x * 6)
    mine = torch.empty(8)
    assert torch.equal(g(x + 1, out=mine), (x + 1) * 6)


@pytest.mark.slow
def test_replays_keep_memory_flat() -> None:
    code = """
import resource, numpy as np, kernel_dsl as kd
@kd.kernel(out_type=lambda x: x, interpret=True)
def double(x, out):
    out[...] = x[...] * 2
x = np.ones(8, np.float32)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def one():
    with kd.Graph() as g:
        double(double(x))
    g()
    g(x + 1)
for _ in range(50):
    one()
before = peak()
for _ in range(300):
    one()
print(peak() - before)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4000, done.stdout  # KiB
