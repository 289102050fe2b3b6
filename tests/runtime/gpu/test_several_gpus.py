"""Several GPUs in one process: each call runs where its tensors are, whatever device is current."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.loading import kernel_cache
from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.errors import ArgumentValueError

from .support import GPU

pytestmark = [*GPU, pytest.mark.several_gpus]
N = 1024


@kd.kernel(out_type=lambda x, k: x, grid=(N // 128,), grid_names=("i",), name="plus_on_any_gpu")
def plus(x: Any, k: Any, out: Any) -> None:
    at = kd.ds(kd.axis_index("i") * 128, 128)
    out[at] = x[at] + k


@kd.kernel(out_type=kd.ShapeDtypeStruct((N,), np.float32, init=1), input_output_aliases={}, name="filled_on_any_gpu")
def filled(x: Any, out: Any) -> None:
    out[...] = out[...] + x[...]


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if module.cuda.device_count() < 2:
        pytest.skip("torch sees one GPU")
    return module


@pytest.fixture(autouse=True)
def first_is_current(torch: Any) -> Any:
    """The device that torch has current is the first, and every call leaves it so."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def tensors(torch: Any) -> list[Any]:
    """Different numbers on each GPU."""
    count = torch.cuda.device_count()
    return [torch.arange(N, dtype=torch.float32, device=f"cuda:{i}") + 1000 * i for i in range(count)]


def check(torch: Any, got: Any, x: Any, expected: Any) -> None:
    torch.cuda.synchronize(x.device)
    assert got.device == x.device
    assert torch.equal(got, expected)


def test_a_kernel_compiled_once_runs_on_each(torch: Any) -> None:
    counters = kernel_cache().counters
    xs = tensors(torch)
    check(torch, plus(xs[0], 3), xs[0], xs[0] + 3)
    before = counters.misses
    for _ in range(3):  # the slow path first, then the short ones
        for x in reversed(xs):
            check(torch, plus(x, 3), x, x + 3)
    alike = {torch.cuda.get_device_capability(x.device) for x in xs}
    assert counters.misses - before <= len(alike) - 1


def test_outputs_fills_bindings_and_host_arrays(torch: Any) -> None:
    for x in reversed(tensors(torch)):
        out = torch.empty_like(x)
        for _ in range(2):
            assert plus(x, 5, out=out) is out
            check(torch, out, x, x + 5)
            check(torch, filled(x), x, x + 1)
        bound = plus.bind(x, 7, out=out)
        for _ in range(2):
            out.zero_()
            bound()
            check(torch, out, x, x + 7)
        with torch.cuda.device(x.device):
            host = np.arange(N, dtype=np.float32)
            np.testing.assert_array_equal(plus(host, 2), host + 2)


def test_streams_of_each(torch: Any) -> None:
    """Work in a side stream of each GPU, ordered after what was put into it, and none waits for another GPU."""
    xs = tensors(torch)
    streams = [torch.cuda.Stream(device=x.device) for x in xs]
    for s, x in zip(streams, xs, strict=True):
        s.wait_stream(torch.cuda.current_stream(x.device))  # the tensors were made there
    results: list[Any] = []
    for _ in range(2):
        results.clear()
        for s, x in zip(streams, xs, strict=True):
            with torch.cuda.stream(s):
                torch.cuda._sleep(2_000_000)
                y = x * 2
                results.append(plus(y, 1))
    explicit = [plus(x, 4, stream=s) for s, x in zip(streams, xs, strict=True)]
    for s, x, r, e in zip(streams, xs, results, explicit, strict=True):
        s.synchronize()
        check(torch, r, x, x * 2 + 1)
        check(torch, e, x, x + 4)


def test_a_graph_of_each(torch: Any) -> None:
    xs = tensors(torch)
    graphs: list[tuple[Any, Any]] = []
    for x in xs:
        with kd.Graph() as g:
            y = plus(x, 1)
            z = plus(y, kd.Variable("k", 0, 9))
        graphs.append((g, z))
    for _ in range(2):
        for x, (g, z) in zip(xs, graphs, strict=True):
            assert g(k=4) is z
            check(torch, z, x, x + 5)
            g(x * 3, k=2, wait=True)
            check(torch, z, x, x * 3 + 3)
            assert g.seconds is not None and g.seconds > 0
            side = torch.cuda.Stream(device=x.device)
            side.wait_stream(torch.cuda.current_stream(x.device))
            g(k=0, stream=side)
            side.synchronize()
            check(torch, z, x, x + 1)


def test_a_plain_graph_follows_the_default_stream_of_its_own_gpu(torch: Any) -> None:
    """Without variables a replay is one driver call, in whatever context the thread has."""
    x = tensors(torch)[-1]
    with kd.Graph() as g:
        z = plus(plus(x, 1), 1)
    for _ in range(3):
        z.zero_()
        assert g() is z
        check(torch, z, x, x + 2)
    with pytest.raises(ArgumentValueError, match="as recorded"):
        g(x.to("cuda:0"))


def test_kernels_from_elsewhere(torch: Any) -> None:
    if nvrtc.unavailable():
        pytest.skip(nvrtc.unavailable())
    cuda = kd.cuda_kernel(
        "tripled", ["x"], ["out"], "auto i = cg::this_grid().thread_rank(); if (i < N) out[i] = 3 * x[i];"
    )
    metal = kd.metal_kernel("negated", ["x"], ["out"], "uint i = thread_position_in_grid.x; out[i] = -x[i];")
    for x in reversed(tensors(torch)):
        call = {
            "grid": (N, 1, 1),
            "threadgroup": (128, 1, 1),
            "output_shapes": [(N // 2,)],
            "output_dtypes": [torch.float32],
        }
        for _ in range(2):
            (tripled,) = cuda(inputs=[x[::2]], template=[("N", N // 2)], **call)  # a strided input: copied there
            check(torch, tripled, x, x[::2] * 3)
            call["grid"] = (N // 2, 1, 1)
            (negated,) = metal(inputs=[x], init_value=0, **call)
            check(torch, negated, x, -x[: N // 2])
        ptx = nvrtc.compile_source(
            'extern "C" __global__ void half(const float* x, float* out, int n) {'
            " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = x[i] / 2; }",
            file="half",
            target="sm_80",
            kind="ptx",
        )
        (half,) = kd.precompiled_cuda_kernel(name="half", compiled_source=ptx, inputs=[x], scalars=[N // 2], **call)
        check(torch, half, x, x[: N // 2] / 2)


def test_tensors_of_two_gpus_do_not_meet_in_a_call(torch: Any) -> None:
    first, second = tensors(torch)[:2]
    with pytest.raises(ArgumentValueError, match="two GPUs"):
        plus(first, 1, out=second)
    with pytest.raises(ArgumentValueError, match="two GPUs"):
        kd.precompiled_cuda_kernel(
            name="any",
            compiled_source=b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry any() { ret; }",
            inputs=[first, second],
            output_shapes=[(1,)],
            output_dtypes=[torch.float32],
            scalars=[],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
    with kd.Graph() as g:
        plus(first, 1)
        with pytest.raises(RuntimeError, match="one device"):
            plus(second, 1)
    check(torch, g(), first, first + 1)


def test_a_thread_for_each(torch: Any) -> None:
    """Threads start without a context, and each uses another GPU."""
    xs = tensors(torch)
    failures: list[BaseException] = []

    def work(x: Any) -> None:
        try:
            for k in range(50):
                check(torch, plus(x, k), x, x + k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_outputs_lie_beside_inputs_whatever_device_is_current(torch: Any) -> None:
    """The allocator of the fast path is that of the current GPU, if this is the inputs' own."""
    xs = tensors(torch)
    for _ in range(3):
        for current in range(len(xs)):
            with torch.cuda.device(current):
                for x in xs:
                    check(torch, plus(x, 2), x, x + 2)
