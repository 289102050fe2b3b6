"""Graphs on a GPU: bitwise what eager calls give, with torch's arrays, streams and captures."""

from __future__ import annotations

import gc
import resource
import sys
import sysconfig
import threading
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
from kernel_dsl.runtime.devices import driver
from tests.runtime.gpu.support import needs_hopper

from .nibble_programs import DTYPES, add_body, like, numbers, same, sums
from .test_interpreted import AXPB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.available(), reason=driver.available().reason or "a GPU"),
]
N = 4096


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch without CUDA")
    return module


@kd.kernel(out_type=lambda a, b: a, grid=(N // 128,), grid_names=("i",), name="graph_xor")
def xor(a: Any, b: Any, out: Any) -> None:
    at = kd.ds(kd.axis_index("i") * 128, 128)
    out[at] = a[at] ^ b[at]


@kd.kernel(out_type=lambda x, k: x, grid=(N // 128,), grid_names=("i",), name="graph_plus")
def plus(x: Any, k: Any, out: Any) -> None:
    at = kd.ds(kd.axis_index("i") * 128, 128)
    out[at] = x[at] + k


def ints(torch: Any) -> Any:
    return torch.randint(-(2**31), 2**31 - 1, (N,), dtype=torch.int32, device="cuda")


def equal(torch: Any, got: Any, expected: Any) -> None:
    torch.cuda.synchronize()
    assert torch.equal(got, expected)


def test_order_of_kernels_and_copies(torch: Any) -> None:
    """Two writes, read then write, write then read, kernel and copy, copy and kernel."""
    a, b, c, y = (ints(torch) for _ in range(4))

    def calls(g: Any) -> None:
        xor(a, b, out=y)
        xor(a, c, out=y)
        xor(b, c, out=a)
        xor(a, y, out=c)
        if g is None:
            b.copy_(c)
        else:
            g.copy(b, c)
        plus(b, 7, out=y)

    start = [t.clone() for t in (a, b, c, y)]
    calls(None)
    expected = [t.clone() for t in (a, b, c, y)]
    for _ in range(5):
        with kd.Graph() as g:
            calls(g)
        for _ in range(3):
            for t, s in zip((a, b, c, y), start, strict=True):
                t.copy_(s)
            g()
            for t, e in zip((a, b, c, y), expected, strict=True):
                equal(torch, t, e)


def test_inputs_outputs_scalars_and_feedback(torch: Any) -> None:
    k = kd.Variable("k", 0, 1000)
    a, b = ints(torch), ints(torch)
    with kd.Graph() as g:
        t = plus(a, k)
        y = xor(t, b)
    for value in (0, 5, 1000):
        p, q = ints(torch), ints(torch)
        equal(torch, g(p, q, k=value), (p + value) ^ q)
    equal(torch, g(k=3), (a + 3) ^ b)
    out = torch.empty_like(a)
    assert g(k=4, out=out) is out
    equal(torch, out, (a + 4) ^ b)
    expected, got = a, a
    for _ in range(4):
        expected = (expected + 1) ^ b
        got = g(got, b, k=1)
        equal(torch, got, expected)
    assert got is y


def test_host_arrays(torch: Any) -> None:
    a, b = (np.random.default_rng(i).integers(0, 99, N).astype(np.int32) for i in range(2))
    with kd.Graph() as g:
        y = xor(plus(a, 2), b)
    for _ in range(2):
        assert g() is y
        np.testing.assert_array_equal(y, (a + 2) ^ b)
        np.testing.assert_array_equal(g(b, a), (b + 2) ^ a)


def test_streams(torch: Any) -> None:
    """Recorded on several streams, replayed on a side stream behind work that fills the input."""
    a, b = ints(torch), ints(torch)
    streams = [torch.cuda.Stream() for _ in range(3)]
    with kd.Graph() as g:
        t = plus(a, 1, stream=streams[0])
        u = plus(b, 2, stream=streams[1])
        y = xor(t, u, stream=streams[2])
    assert [n.dependencies for n in g.nodes] == [(), (), (0, 1)]
    with torch.cuda.stream(streams[0]):
        for i in range(50):
            a.fill_(i)
            b.fill_(2 * i)
            got = g()
        streams[0].synchronize()
    equal(torch, got, torch.full_like(y, 50 ^ 100))
    g(stream=streams[1])
    streams[1].synchronize()
    equal(torch, y, torch.full_like(y, 50 ^ 100))


def test_captured_by_torch(torch: Any) -> None:
    a, b = ints(torch), ints(torch)
    with kd.Graph() as g:
        y = xor(plus(a, 1), b)
    g()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        z = g() + 5
        w = g(b, a) * 2
    a.copy_(ints(torch))
    b.copy_(ints(torch))
    captured.replay()
    equal(torch, w, ((b + 1) ^ a) * 2)
    equal(torch, z, ((a + 1) ^ b) + 5)
    assert y is g()


def test_a_stream_of_earlier_replays_is_captured(torch: Any) -> None:
    """The fast path knows the stream, and asks again whether it is captured."""
    a, b = ints(torch), ints(torch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with kd.Graph() as g:
        y = xor(plus(a, 1), b)
    g()
    with torch.cuda.stream(side):
        for _ in range(3):
            g()
        assert g._replays()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=side):
        assert not g._replays()
        z = g() + 5
    a.copy_(ints(torch))
    captured.replay()
    equal(torch, z, ((a + 1) ^ b) + 5)
    b.copy_(ints(torch))
    for _ in range(3):
        equal(torch, g(), (a + 1) ^ b)
    with torch.cuda.stream(side):
        assert g() is y
        assert g._replays()
    torch.cuda.synchronize()


def test_threads_replay_and_change_a_graph(torch: Any) -> None:
    """The driver forbids two threads to launch or change an executable at once."""
    a, b, c = (ints(torch) for _ in range(3))
    with kd.Graph() as g:
        y = xor(plus(xor(plus(a, 1), b), 2), b)
    g()
    failed: list[BaseException] = []
    torch.cuda.synchronize()

    def work(change: bool) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(500):
                    g(c, b) if change and i % 5 == 0 else g()
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    torch.cuda.synchronize()
    equal(torch, g(), (((a + 1) ^ b) + 2) ^ b)
    equal(torch, g(c, b), (((c + 1) ^ b) + 2) ^ b)
    assert g() is y


def test_host_code_launches_replays(torch: Any) -> None:
    a = ints(torch)
    with kd.Graph() as g:
        plus(a, 1)
    g()
    host_code = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert isinstance(g._replays, type(len)) == host_code


def test_graphs_in_graphs(torch: Any) -> None:
    a, b = ints(torch), ints(torch)
    with kd.Graph() as inner:
        xor(plus(a, 1), b)
    with kd.Graph() as outer:
        inner(inner(a, b), a)
    p, q = ints(torch), ints(torch)
    equal(torch, outer(p, q), (((p + 1) ^ q) + 1) ^ p)


def test_images(torch: Any) -> None:
    x = torch.randn(200, device="cuda")
    n = kd.Variable("n", 1, 200)
    with kd.Graph() as g:
        y = precompiled_cuda_kernel(
            name="axpb", compiled_source=AXPB.encode(), inputs=[x], output_shapes=[(200,)],
            output_dtypes=[np.float32], scalars=[n, 0.5], grid=(n, 1, 1), threadgroup=(64, 1, 1),
            init_value=0.0,
        )[0]  # fmt: skip
    for count in (200, 1, 65):
        g(n=count)
        torch.cuda.synchronize()
        assert torch.equal(y[:count], x[:count] * 2 + 0.5)
        assert not y[count:].any()


@kd.kernel(
    out_type=lambda x: x, grid=(8,), grid_names=("i",), cluster=(2,), cluster_names=("c",),
    name="graph_clustered",
)  # fmt: skip
def clustered(x: Any, out: Any) -> None:
    at = kd.ds((kd.axis_index("i") * 2 + kd.axis_index("c")) * 256, 256)
    out[at] = x[at] * 3


def test_clusters_survive(torch: Any) -> None:
    needs_hopper()
    a = ints(torch)
    with kd.Graph() as g:
        y = clustered(clustered(a))
    assert g.nodes[0].cluster == (2, 1, 1)
    equal(torch, g(), a * 9)
    b = ints(torch)
    equal(torch, g(b), b * 9)
    g.nodes[1].set_params(arrays=[a])
    g.launch()
    equal(torch, y, a * 3)


def test_time_and_steps(torch: Any) -> None:
    a = ints(torch)
    with kd.Graph() as g:
        y = plus(a, 3)
    g(wait=True)
    assert g.seconds is not None and 1e-7 < g.seconds < 1e-2
    g.nodes[0].set_params(scalars=[11])
    g.launch(wait=True)
    equal(torch, y, a + 11)
    g.set_launch_dims(0, grid=(1, 1, 1))
    y.zero_()
    g.launch()
    equal(torch, y[:128], a[:128] + 11)
    assert not y[128:].any()


def test_intermediates_are_given_up(torch: Any) -> None:
    x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")

    @kd.kernel(out_type=lambda x: x, grid=(1 << 13,), grid_names=("i",), name="graph_one_more")
    def more(x_ref: Any, out: Any) -> None:
        at = kd.ds(kd.axis_index("i") * 128, 128)
        out[at] = x_ref[at] + 1

    gc.collect()
    before = torch.cuda.memory_allocated()
    with kd.Graph() as g:
        y = x
        for _ in range(20):
            y = more(y)
    recorded = torch.cuda.memory_allocated()
    # Other tests' small tensors may go away meanwhile: less than one of the twenty vectors.
    slack = x.nbytes // 2
    assert recorded - before >= 20 * x.nbytes - slack
    g.instantiate()
    gc.collect()
    # The output stays; the other vectors are given back to torch, and the graph has its own memory for them.
    assert torch.cuda.memory_allocated() - before <= 2 * x.nbytes
    assert g.memory_bytes <= 2 * x.nbytes + 1024
    equal(torch, g(), torch.full_like(x, 20))


@pytest.mark.alone
@pytest.mark.slow
def test_a_million_replays_keep_memory_flat(torch: Any) -> None:
    a, b = ints(torch), ints(torch)
    sets = [(ints(torch), ints(torch)) for _ in range(2)]
    with kd.Graph() as g:
        xor(plus(a, 1), b)
    for i in range(2000):
        g(*sets[i % 2])
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(1_000_000):
        if i % 10:
            g()
        else:
            g(*sets[i % 20 // 10])
        if i % 1000 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= free - (1 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8192  # KiB


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_of_four_bits(dtype: kd.DType) -> None:
    add = kd.kernel(add_body, out_type=like, name=f"graph_nibbles_{dtype}", interpret=False)
    x, y = numbers(dtype, 0), numbers(dtype, 1)
    with kd.Graph() as g:
        add(add(x, y), y)
    same(g(), sums(sums(x, y), y))
    same(g(y, x), sums(sums(y, x), x))
    bound = add.bind(x, y)
    same(bound(), sums(x, y))
    x[...] = y
    same(bound(), sums(y, y))
