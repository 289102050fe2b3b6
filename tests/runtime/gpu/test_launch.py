"""Launches on a GPU: frameworks, streams, memory, attributes, errors."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_dsl import runtime
from kernel_dsl.compiled import LaunchAttributes, Workspace
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices import memory
from kernel_dsl.runtime.devices.devices import cuda_device, interpreter_device, pick_device
from kernel_dsl.runtime.errors import ArgumentValueError, LoadError, OutOfMemoryError
from kernel_dsl.runtime.plan.dispatch import MISS, FastCalls
from kernel_dsl.runtime.timing import device_times, host_times

from ..kernels import STRIDES, scale, scale_ptx
from ..test_calls import STRIDED
from .support import CLUSTER_PTX, GPU, any_gpu, needs_hopper, old, tile_kernel

pytestmark = GPU
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)
EMPTY = LaunchAttributes((1, 1, 1), (32, 1, 1), empty=True)


@pytest.fixture
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch without CUDA")
    return module


def load(kernel: Any, index: int | None = None) -> Any:
    return cuda_device(index).load(kernel)


def run(kernel: Any, *inputs: Any, scalars: Any = (2.0,), out: Any = None, stream: Any = None) -> Any:
    return runtime.call(load(kernel), inputs, scalars, out, stream)[0]


def test_numpy() -> None:
    kernel = any_gpu(scale())
    np.testing.assert_array_equal(run(kernel, X), X * 2)
    mine = X.copy()
    run(any_gpu(scale(overlaps=((0, 1),))), mine, out=[mine])
    np.testing.assert_array_equal(mine, X * 2)
    assert run(any_gpu(scale((0, 3), launch=EMPTY)), np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_torch(torch: Any) -> None:
    x = torch.from_numpy(X).cuda()
    kernel = any_gpu(scale())
    out = run(kernel, x)
    assert out.device == x.device
    torch.testing.assert_close(out, x * 2, rtol=0, atol=0)
    mine = torch.empty_like(x)
    assert run(kernel, x, out=[mine]) is mine
    torch.testing.assert_close(mine, x * 2, rtol=0, atol=0)
    torch.testing.assert_close(run(kernel, x.cpu()), x.cpu() * 2, rtol=0, atol=0)
    mixed = torch.zeros(32)
    run(kernel, x, out=[mixed])
    torch.testing.assert_close(mixed, x.cpu() * 2, rtol=0, atol=0)
    with pytest.raises(ArgumentValueError, match="requires grad"):
        run(kernel, x.clone().requires_grad_())


def test_strides_fills_aliases(torch: Any) -> None:
    kernel = any_gpu(dataclasses.replace(scale(contiguous=False, strides=STRIDES), ptx=STRIDED))
    base = torch.randn(64, device="cuda")
    held = torch.full((64,), 7.0, device="cuda")
    run(kernel, base[::2], out=[held[1::2]])
    torch.testing.assert_close(held[1::2], base[::2] * 2, rtol=0, atol=0)
    assert bool((held[::2] == 7).all())
    for value in (0, 3.5):
        filled = any_gpu(scale(fill=value, launch=EMPTY, contiguous=False))
        run(filled, base[:32], out=[held[::2]])
        assert bool((held[::2] == value).all())
        assert bool((run(filled, base[:32]) == value).all())
    alias = any_gpu(scale(alias=0, launch=EMPTY, contiguous=False))
    torch.testing.assert_close(run(alias, base[::2]), base[::2], rtol=0, atol=0)


def test_strided_copies_and_fills_of_every_rank(torch: Any) -> None:
    rng = np.random.default_rng(3)
    device = cuda_device()
    from kernel_dsl.runtime.devices import driver

    for index in (np.s_[::2, 1:, ::3], np.s_[:, 1:3, :], np.s_[1:3, 2:5, 4:9], np.s_[...]):
        data = torch.from_numpy(rng.standard_normal((4, 6, 10))).cuda()
        target = torch.zeros_like(data)
        with driver.current(device.context):
            memory.copy(view(target[index]), view(data[index]))
            device.synchronize(0)
            want = torch.zeros_like(data)
            want[index] = data[index]
            torch.testing.assert_close(target, want, rtol=0, atol=0)
            memory.fill(view(target[index]), -1.5)
            device.synchronize(0)
        want[index] = -1.5
        torch.testing.assert_close(target, want, rtol=0, atol=0)


def test_stream_order_with_torch(torch: Any) -> None:
    kernel = any_gpu(scale())
    loaded = load(kernel)
    fast = FastCalls()
    x = torch.zeros(32, device="cuda")
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    bound = runtime.bind(loaded, [x], [2.0], structure=lambda outs: outs[0])
    side = torch.cuda.Stream()
    ways = {
        "call": lambda: runtime.call(loaded, [x], [2.0])[0],
        "fast": lambda: fast((x, 2.0)),
        "bound": bound,
    }
    for number, way in enumerate(list(ways.values()) * 5):
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x.fill_(float(number))
            result = way() + 1
        side.synchronize()
        assert bool((result == 2 * number + 1).all()), number


def test_a_stream_that_is_given(torch: Any) -> None:
    kernel = any_gpu(scale())
    x = torch.zeros(32, device="cuda")
    side = torch.cuda.Stream()
    for number, stream in enumerate((side, side.cuda_stream, side)):
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x.fill_(float(number + 1))
        out = run(kernel, x, stream=stream)
        side.synchronize()
        assert bool((out == 2 * (number + 1)).all())


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(X)
    out = run(any_gpu(scale()), x)
    assert isinstance(out, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(out), X * 2)
    fast = FastCalls()
    fast.learn((x, 2.0), None, load(any_gpu(scale())), lambda outs: outs[0])
    np.testing.assert_array_equal(cupy.asnumpy(fast((x, 3.0))), X * 3)
    with cupy.cuda.Stream(non_blocking=True) as side:
        y = x + 1
        out = run(any_gpu(scale()), y)
        side.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), (X + 1) * 2)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("jax without CUDA")
    x = jax.numpy.asarray(X)
    kernel = any_gpu(scale())
    for _ in range(20):
        out = run(kernel, x * 3)
        assert isinstance(out, jax.Array) and out.devices() == x.devices()
        np.testing.assert_array_equal(np.asarray(out + 1), X * 3 * 2 + 1)
    with pytest.raises(ArgumentValueError, match="read-only"):
        run(kernel, x, out=[x])


class Stranger:
    """A torch tensor seen through one protocol only."""

    def __init__(self, tensor: Any, interface: bool) -> None:
        self.tensor = tensor
        if interface:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("interface", [False, True])
def test_strangers_and_device_arrays(torch: Any, interface: bool) -> None:
    x = torch.from_numpy(X).cuda()
    out = run(any_gpu(scale()), Stranger(x, interface))
    np.testing.assert_array_equal(out.numpy(), X * 2)
    taken = torch.from_dlpack(out)
    torch.testing.assert_close(taken, x * 2, rtol=0, atol=0)
    del out
    gc.collect()
    torch.testing.assert_close(taken, x * 2, rtol=0, atol=0)
    seen = torch.as_tensor(run(any_gpu(scale()), Stranger(x, interface)), device="cuda")
    torch.testing.assert_close(seen, x * 2, rtol=0, atol=0)


def test_interpreter_with_cuda_arrays(torch: Any) -> None:
    kernel = scale()
    x = torch.from_numpy(X).cuda()
    (out,) = runtime.call(interpreter_device().load(kernel), [x], [2.0])
    assert out.device == x.device
    torch.testing.assert_close(out, x * 2, rtol=0, atol=0)
    held = torch.zeros(64, device="cuda")
    loose = dataclasses.replace(scale(contiguous=False, strides=STRIDES), ptx=STRIDED)
    runtime.call(interpreter_device().load(loose), [x], [2.0], [held[::2]])
    torch.testing.assert_close(held[::2], x * 2, rtol=0, atol=0)
    assert not bool(held[1::2].any())
    assert pick_device(None, [view(x)]).kind == "cuda" and pick_device(False).kind == "cuda"


def test_workspaces(torch: Any) -> None:
    kernel = any_gpu(scale(workspaces=(Workspace(1 << 20, zeroed=True),)))
    x = torch.from_numpy(X).cuda()
    torch.testing.assert_close(run(kernel, x), x * 2, rtol=0, atol=0)
    bound = runtime.bind(load(kernel), [x], [2.0])
    torch.testing.assert_close(bound()[0], x * 2, rtol=0, atol=0)


@pytest.mark.parametrize("cluster", [1, 2, 8, 16])
@pytest.mark.parametrize("smem", [64, 100_000, 227 * 1024])
def test_clusters_and_shared_memory(torch: Any, cluster: int, smem: int) -> None:
    needs_hopper()
    image = cuda_device().load_image(CLUSTER_PTX, "sizes")
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    image.launch(
        [view(out), np.uint32(smem).tobytes()],
        grid=(32, 1, 1),
        block=(32, 1, 1),
        cluster=(cluster, 1, 1),
        dynamic_smem=smem,
    )
    assert out.tolist() == [cluster] * 32


def test_programmatic_dependent_launch(torch: Any) -> None:
    needs_hopper()
    attributes = LaunchAttributes((1, 1, 1), (32, 1, 1), programmatic_dependent_launch=True)
    x = torch.from_numpy(X).cuda()
    torch.testing.assert_close(run(scale(launch=attributes), x), x * 2, rtol=0, atol=0)


def test_tensor_maps(torch: Any) -> None:
    needs_hopper()
    x = torch.randn(64, 128, device="cuda")
    kernel = tile_kernel(64, 128)
    loaded = load(kernel)
    want = x[8:16, 16:48].reshape(-1)
    torch.testing.assert_close(runtime.call(loaded, [x], [])[0], want, rtol=0, atol=0)
    wide = torch.randn(64, 256, device="cuda")
    part = wide[:, 128:]
    (out,) = runtime.call(loaded, [part], [])
    torch.testing.assert_close(out, part[8:16, 16:48].reshape(-1), rtol=0, atol=0)
    fast = FastCalls()
    fast.learn((x,), None, loaded, lambda outs: outs[0])
    for _ in range(3):
        y = torch.randn(64, 128, device="cuda")
        want = y[8:16, 16:48].reshape(-1)
        torch.testing.assert_close(fast((y,)), want, rtol=0, atol=0)
    short = tile_kernel(12, 40)
    small = torch.randn(12, 40, device="cuda")
    padded = torch.zeros(8, 32, device="cuda")
    padded[:4, :24] = small[8:, 16:]
    (out,) = runtime.call(load(short), [small], [])
    torch.testing.assert_close(out, padded.reshape(-1), rtol=0, atol=0)
    with pytest.raises(ArgumentValueError, match="TMA"):
        odd = tile_kernel(64, 127)
        runtime.call(load(odd), [x[:, :127].contiguous()], [])


def test_fast_calls_agree_with_the_long_way(torch: Any) -> None:
    kernel = any_gpu(scale())
    loaded = load(kernel)
    fast = FastCalls()
    x, out = torch.from_numpy(X).cuda(), torch.zeros(32, device="cuda")
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    fast.learn((x, 2.0), out, loaded, lambda outs: outs[0])
    for number in range(10):
        y = torch.randn(32, device="cuda")
        (want,) = runtime.call(loaded, [y], [float(number)])
        torch.testing.assert_close(fast((y, float(number))), want, rtol=0, atol=0)
        assert fast((y, float(number)), out) is out
        torch.testing.assert_close(out, want, rtol=0, atol=0)
    assert fast((x.cpu(), 2.0)) is MISS and fast((x, 2.0), x) is MISS


def test_threads(torch: Any) -> None:
    kernel = any_gpu(scale())
    loaded = load(kernel)
    fast = FastCalls()
    fast.learn((torch.zeros(32, device="cuda"), 1.0), None, loaded, lambda outs: outs[0])
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((32,), float(number), device="cuda")
        for _ in range(200):
            if not bool((fast((x, float(number))) == number * number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bound_on_a_thread_of_its_own(torch: Any) -> None:
    kernel = any_gpu(scale())
    x = torch.from_numpy(X).cuda()
    bound = runtime.bind(load(kernel), [x], [2.0])
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(bound()[0].cpu()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(seen[0].numpy(), X * 2)


def test_torch_graph_capture(torch: Any) -> None:
    kernel = any_gpu(scale())
    x = torch.zeros(32, device="cuda")
    y = torch.zeros(32, device="cuda")
    loaded = load(kernel)
    fast = FastCalls()
    fast.learn((x, 2.0), y, loaded, lambda outs: outs[0])
    bound = runtime.bind(loaded, [y], [3.0], structure=lambda outs: outs[0])
    bound()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast((x, 2.0), y)
        out = bound()
        fresh = any_gpu(scale())  # loaded while capturing
        last = runtime.call(load(fresh), [out], [5.0])[0]
    for number in range(3):
        x.fill_(float(number))
        graph.replay()
        torch.cuda.synchronize()
        assert bool((last == 30 * number).all())


def test_two_gpus(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kernel = any_gpu(scale())
    first, second = load(kernel, 0), load(kernel, 1)
    a, b = torch.from_numpy(X).to("cuda:0"), torch.from_numpy(X).to("cuda:1")
    fast = FastCalls()
    bound = runtime.bind(second, [b], [4.0])
    fast.learn((a, 2.0), None, first, lambda outs: outs[0])
    fast.learn((b, 2.0), None, second, lambda outs: outs[0])
    for current in (0, 1):
        with torch.cuda.device(current):
            for loaded, x in ((first, a), (second, b)):
                (out,) = runtime.call(loaded, [x], [2.0])
                assert out.device == x.device
                torch.testing.assert_close(out, x * 2, rtol=0, atol=0)
                torch.testing.assert_close(fast((x, 3.0)), x * 3, rtol=0, atol=0)
            torch.testing.assert_close(bound()[0], b * 4, rtol=0, atol=0)
            assert torch.cuda.current_device() == current
    assert pick_device(None, [view(b)]).index == 1
    with pytest.raises(ArgumentValueError, match="two GPUs"):
        runtime.call(first, [a], [1.0], [torch.empty_like(b)])
    with pytest.raises(ArgumentValueError, match="loaded on cuda:0"):
        runtime.call(first, [b], [1.0])


def test_bad_images() -> None:
    device = cuda_device()
    with pytest.raises(LoadError, match=r"(?s)CUDA_ERROR.*line \d"):
        device.load_image(".version 8.0\n.target sm_80\nnonsense", "x")
    with pytest.raises(LoadError):
        device.load_image(b"\x7fELF" + bytes(200), "x")
    with pytest.raises(LoadError, match="no entry 'other'"):
        device.load_image(old(scale_ptx()), "other")
    image = device.load_image(old(scale_ptx()), "scale")
    assert image.param_sizes in (None, [8, 8, 4])


def test_out_of_memory_survives(torch: Any) -> None:
    kernel = any_gpu(scale(workspaces=(Workspace(1 << 45),)))
    x = torch.from_numpy(X).cuda()
    with pytest.raises(OutOfMemoryError, match="context survives"):
        run(kernel, x)
    torch.testing.assert_close(run(any_gpu(scale()), x), x * 2, rtol=0, atol=0)


CHILD = """
import numpy as np, pytest, dataclasses
from kernel_dsl import runtime
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.errors import LaunchError
from tests.runtime.kernels import scale
from tests.runtime.gpu.support import FAULT_PTX, any_gpu
bad = any_gpu(dataclasses.replace(scale(), ptx=FAULT_PTX))
x = np.zeros(32, np.float32)
for attempt in range(2):
    try:
        runtime.call(cuda_device().load(bad), [x], [1.0])
    except Exception as error:
        assert isinstance(error, LaunchError) or attempt, repr(error)
        if not attempt:
            text = str(error)
            assert error.status == "CUDA_ERROR_ILLEGAL_ADDRESS", text
            assert not error.context_survives
            for part in ("'scale'", "kernels.py:12", "'x_ref'", "float32[32]", "does not survive"):
                assert part in text, text
    else:
        raise SystemExit("no error")
print("done")
"""


def test_an_illegal_address_is_a_launch_error() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr


def free_bytes() -> int:
    from kernel_dsl.runtime.devices import driver

    device = cuda_device()
    device.synchronize(0)
    with driver.current(device.context):
        return int(driver.check(driver.api().cuMemGetInfo())[0])


def host_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def cycles(count: int) -> None:
    x = np.zeros(32, np.float32)
    for number in range(count):
        kernel = any_gpu(scale(workspaces=(Workspace(1 << 16),)))
        kernel = dataclasses.replace(kernel, ptx=kernel.ptx + f"// {number % 4}\n")
        loaded = cuda_device().load(kernel)
        runtime.call(loaded, [x], [1.0])
        del loaded
    gc.collect()


def check_flat(count: int) -> None:
    cycles(200)
    free, host = free_bytes(), host_bytes()
    cycles(count)
    assert free - free_bytes() < 32 << 20
    assert host_bytes() - host < 64 << 20


@pytest.mark.alone
def test_loading_and_freeing_leaks_nothing() -> None:
    check_flat(500)


@pytest.mark.alone
@pytest.mark.slow
def test_ten_thousand_loads_leak_nothing() -> None:
    check_flat(10_000)


def test_ten_thousand_calls_leak_nothing(torch: Any) -> None:
    kernel = any_gpu(scale())
    loaded = load(kernel)
    fast = FastCalls()
    x = torch.zeros(32, device="cuda")
    fast.learn((x, 1.0), None, loaded, lambda outs: outs[0])
    for _ in range(500):
        fast((x, 1.0))
    torch.cuda.synchronize()
    gc.collect()  # what other tests of this process have left would be freed meanwhile
    used, host = torch.cuda.memory_allocated(), host_bytes()
    for _ in range(10_000):
        fast((torch.zeros(32, device="cuda"), 1.0))
        runtime.call(loaded, [x], [1.0])
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == used
    assert host_bytes() - host < 16 << 20


def test_timing(torch: Any) -> None:
    a = torch.randn(2048, 2048, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    runs = {"one": lambda: torch.mm(a, a), "four": lambda: [torch.mm(a, a) for _ in range(4)]}
    times = device_times(runs, rounds=10, stream=stream)
    assert 2 < times["four"].median / times["one"].median < 8
    assert times["one"].median > 5e-6
    host = host_times({"nothing": lambda: None}, rounds=3)
    assert host["nothing"].median < 1e-5
