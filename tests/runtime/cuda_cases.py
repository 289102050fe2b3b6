"""Cases for a driver without a GPU (see `fake_cuda.c`):

device memory is host memory, and launches call `play` here.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

from kernel_dsl import runtime
from kernel_dsl.compiled import (
    Assembled,
    LaunchAttributes,
    Resources,
    Swizzle,
    TensorMapParam,
    Workspace,
)
from kernel_dsl.dtypes import bfloat16, float32, float64, uint8
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices import driver, memory
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    LaunchError,
    LoadError,
    OutOfMemoryError,
)
from kernel_dsl.runtime.plan.binding import bind
from kernel_dsl.runtime.plan.dispatch import MISS, FastCalls

from .fake import (
    BLOCKS,
    CALLBACK,
    DEPTH,
    ENCODES,
    LIB,
    MODULES,
    CudaArray,
    Launch,
    Player,
    count,
    player,
)
from .kernels import SOURCE, STRIDES, scale, scale_ptx

__all__ = ["player"]  # a fixture
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)


def test_numpy_goes_there_and_back(player: Player) -> None:
    blocks, depth = count(BLOCKS), count(DEPTH)
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    (out,) = runtime.call(loaded, [X], [np.float32(3)])
    np.testing.assert_array_equal(out, X * 3)
    assert isinstance(out, np.ndarray)
    assert count(BLOCKS) == blocks, "staging memory must be given back"
    assert count(DEPTH) == depth, "the thread's context must be left as it was"


def test_torch_cpu_tensors_come_back_as_tensors(player: Player) -> None:
    torch = pytest.importorskip("torch")
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    (out,) = runtime.call(loaded, [torch.from_numpy(X)], [2.0])
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), X * 2)


def test_given_output_and_in_place(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    out = np.zeros(32, np.float32)
    (same,) = runtime.call(loaded, [X], [2.0], out=[out])
    assert same is out
    np.testing.assert_array_equal(out, X * 2)
    inplace = scale(overlaps=((0, 1),))
    mine = X.copy()
    runtime.call(cuda_device(0).load(inplace), [mine], [2.0], out=[mine])
    np.testing.assert_array_equal(mine, X * 2)
    first, second = player.launches[-1].params[:2]
    assert first == second, "one array must stay one array on the GPU"


def test_strided_host_arrays(player: Player) -> None:
    kernel = scale(contiguous=False, strides=STRIDES)
    loaded = cuda_device(0).load(kernel)
    base = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    for source in (base[::2], base[::-2], np.broadcast_to(base[3], (32,))):
        held = np.full(64, 7, np.float32)
        runtime.call(loaded, [source], [2.0], out=[held[1::2]])
        np.testing.assert_array_equal(held[1::2], source * 2)
        assert (held[::2] == 7).all()


def test_generic_device_arrays(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    out = runtime.call(loaded, [CudaArray(X, stream=5)], [2.0])[0]
    assert player.launches[-1].stream == 5
    np.testing.assert_array_equal(np.asarray(out), X * 2)
    again = runtime.call(loaded, [out], [2.0])[0]
    np.testing.assert_array_equal(again.numpy(), X * 4)
    assert view(np.from_dlpack(memory.host_array(view(again)))).shape == (32,)
    blocks = count(BLOCKS)
    del out, again
    gc.collect()
    assert count(BLOCKS) == blocks - 2


class OnlyDlpack:
    """An array that speaks DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_dlpack_out_and_in(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    out = runtime.call(loaded, [CudaArray(X)], [2.0])[0]

    blocks = count(BLOCKS)
    seen = view(OnlyDlpack(out))
    assert (seen.address, seen.shape, seen.dtype, seen.device) == (
        view(out).address,
        (32,),
        float32,
        ("cuda", 0),
    )
    capsule = out.__dlpack__()
    del out, seen
    gc.collect()
    assert count(BLOCKS) == blocks, "the capsule keeps the memory"
    del capsule
    gc.collect()
    assert count(BLOCKS) == blocks - 1


def test_read_only_device_output_is_refused(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    with pytest.raises(ArgumentValueError, match="read-only"):
        runtime.call(loaded, [CudaArray(X)], [1.0], out=[CudaArray(X.copy(), readonly=True)])
    assert not player.launches


@pytest.mark.parametrize("value", [0, 1, -2.5, float("nan")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
def test_fills(dtype: Any, value: Any) -> None:
    if dtype is np.int8 and not (isinstance(value, int)):
        value = 3
    context = cuda_device(0).context
    data = np.full((4, 6, 10), 9, dtype)
    want = data.copy()
    want[::2, 1:, ::3] = value
    part = data[::2, 1:, ::3]
    target = view(part)
    target.device = ("cuda", 0)
    with driver.current(context):
        memory.fill(target, value)
    np.testing.assert_array_equal(data, want)
    whole = view(data)
    whole.device = ("cuda", 0)
    with driver.current(context):
        memory.fill(whole, value)
    np.testing.assert_array_equal(data, np.full_like(data, value))


def test_strided_copies_on_the_device() -> None:
    context = cuda_device(0).context
    rng = np.random.default_rng(2)
    for index in (np.s_[::2, 1:, ::3], np.s_[:, ::-1, :], np.s_[1:3, 2:5, 4:9], np.s_[...]):
        source, target = rng.standard_normal((2, 4, 6, 10))
        before = target.copy()
        a, b = view(target[index]), view(source[index])
        a.device = b.device = ("cuda", 0)
        with driver.current(context):
            memory.copy(a, b)
        before[index] = source[index]
        np.testing.assert_array_equal(target, before)


def test_output_fill_also_on_given_out(player: Player) -> None:
    kernel = scale(fill=5.0, launch=LaunchAttributes((1, 1, 1), (32, 1, 1), empty=True))
    loaded = cuda_device(0).load(kernel)
    out = np.zeros(32, np.float32)
    runtime.call(loaded, [X], [2.0], out=[out])
    assert (out == 5).all()
    assert (runtime.call(loaded, [X], [2.0])[0] == 5).all()
    assert not player.launches, "an empty grid launches nothing"


def test_alias_starts_as_a_copy(player: Player) -> None:
    kernel = scale(alias=0, launch=LaunchAttributes((1, 1, 1), (32, 1, 1), empty=True))
    loaded = cuda_device(0).load(kernel)
    (out,) = runtime.call(loaded, [X], [2.0])
    assert out is not X
    np.testing.assert_array_equal(out, X)


def test_launch_attributes_reach_the_driver(player: Player) -> None:
    attributes = LaunchAttributes((32, 2, 1), (128, 1, 1), (16, 1, 1), 200 * 1024, True)
    kernel = scale(launch=attributes)
    loaded = cuda_device(0).load(kernel)
    runtime.call(loaded, [X], [2.0], stream=9)
    got = player.launches[-1]
    assert (got.grid, got.block, got.smem) == ((32, 2, 1), (128, 1, 1), 200 * 1024)
    assert (got.cluster, got.pdl, got.stream) == (16, 1, 9)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (LaunchAttributes((1, 1, 1), (2048, 1, 1)), "block axis x"),
        (LaunchAttributes((1, 1, 1), (32, 32, 2)), "2048 threads"),
        (LaunchAttributes((1, 70000, 1), (32, 1, 1)), "grid axis y"),
        (LaunchAttributes((3, 1, 1), (32, 1, 1), (2, 1, 1)), "not a multiple"),
        (LaunchAttributes((32, 1, 1), (32, 1, 1), (32, 1, 1)), "cluster"),
        (LaunchAttributes((1, 1, 1), (32, 1, 1), dynamic_smem=300_000), "SMEM"),
    ],
)
def test_limits_are_checked_before_the_driver(attributes: LaunchAttributes, words: str) -> None:
    with pytest.raises(ArgumentValueError, match=words):
        cuda_device(0).load(scale(launch=attributes))


def test_workspaces_are_zeroed_each_launch_and_freed(player: Player) -> None:
    kernel = scale(workspaces=(Workspace(64, zeroed=True),))
    loaded = cuda_device(0).load(kernel)
    seen: list[bytes] = []

    def play(*got: Any) -> int:
        launch = Launch(*got)
        address = int.from_bytes(launch.params[3], "little")
        seen.append(ctypes.string_at(address, 64))
        ctypes.memset(address, 1, 64)
        return 0

    callback = CALLBACK(play)
    LIB.fake_callback(callback)
    blocks = count(BLOCKS)
    runtime.call(loaded, [X], [2.0])
    assert count(BLOCKS) == blocks
    bound = bind(loaded, [CudaArray(X)], [2.0])
    bound()
    bound()
    assert seen == [bytes(64)] * 3


def test_bound_calls(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    data = X.copy()
    bound = bind(loaded, [CudaArray(data)], [2.0], structure=lambda outs: outs[0])
    out = bound()
    assert out is bound() is bound.outputs[0]
    np.testing.assert_array_equal(out.numpy(), X * 2)
    data *= 2
    bound()
    np.testing.assert_array_equal(out.numpy(), X * 4)
    host = bind(loaded, [data], [2.0])
    np.testing.assert_array_equal(host()[0], X * 4)


def test_bound_call_from_a_thread_without_a_context(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    bound = bind(loaded, [CudaArray(X)], [2.0])
    before = len(player.launches)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(bound()))
    thread.start()
    thread.join()
    assert results and len(player.launches) == before + 1


def test_empty_arrays(player: Player) -> None:
    kernel = scale((0, 4), launch=LaunchAttributes((1, 1, 1), (32, 1, 1)))
    player.shape = (0, 4)
    loaded = cuda_device(0).load(kernel)
    (out,) = runtime.call(loaded, [np.empty((0, 4), np.float32)], [1.0])
    assert out.shape == (0, 4)


def test_overlap_is_refused_before_anything_happens(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    base = np.zeros(64, np.float32)
    for x, out in ((base[:32], base[16:48]), (base[:32], base[:32])):
        with pytest.raises(ArgumentValueError, match=r"(?s)share|overlap"):
            runtime.call(loaded, [x], [1.0], out=[out])
        with pytest.raises(ArgumentValueError, match=r"(?s)share|overlap"):
            bind(loaded, [CudaArray(x)], [1.0], out=[CudaArray(out)])
    assert not player.launches


def test_errors_name_the_kernel_and_say_what_survives(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    callback = CALLBACK(lambda *got: 700)
    LIB.fake_callback(callback)
    with pytest.raises(LaunchError) as caught:
        runtime.call(loaded, [CudaArray(X)], [1.0])
    text = str(caught.value)
    assert caught.value.status == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert not caught.value.context_survives
    for part in ("'scale'", str(SOURCE), "'x_ref'", "float32[32] on cuda:0", "does not survive"):
        assert part in text
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.status, copy.context_survives) == (text, caught.value.status, False)


def test_out_of_memory_survives(player: Player) -> None:
    kernel = scale(workspaces=(Workspace(2**50),))
    loaded = cuda_device(0).load(kernel)
    with pytest.raises(OutOfMemoryError) as caught:
        runtime.call(loaded, [X], [1.0])
    assert isinstance(caught.value, MemoryError) and caught.value.context_survives


def test_images(player: Player) -> None:
    device = cuda_device(0)
    image = device.load_image(scale_ptx(), "scale")
    assert device.load_image(scale_ptx().encode(), "scale") is image, "the same image loads once"
    out = np.zeros(32, np.float32)
    x = view(CudaArray(X))
    image.launch([x, view(CudaArray(out)), np.float32(2).tobytes()], grid=(1, 1, 1), block=(32, 1, 1))
    np.testing.assert_array_equal(out, X * 2)
    with pytest.raises(ArgumentTypeError, match="3 parameters"):
        image.launch([x, x], grid=(1, 1, 1), block=(32, 1, 1))
    with pytest.raises(ArgumentTypeError, match="8, 8, 4"):
        image.launch([x, x, bytes(8)], grid=(1, 1, 1), block=(32, 1, 1))
    with pytest.raises(LoadError, match="no entry 'other'"):
        device.load_image(scale_ptx(), "other")
    with pytest.raises(LoadError, match="ptxas fatal: not PTX"):
        device.load_image("nonsense", "x")


def test_image_smem_is_raised_for_each_launch(player: Player) -> None:
    image = cuda_device(0).load_image(scale_ptx(), "scale")
    x = view(CudaArray(X))
    for smem in (0, 60_000, 1000, 100_000):
        image.launch([x, x, bytes(4)], grid=(1, 1, 1), block=(32, 1, 1), dynamic_smem=smem)
        assert player.launches[-1].smem == smem


def test_cubins_are_preferred(player: Player) -> None:
    kernel = scale()
    cubin = scale_ptx().replace("sm_90a", "sm_90a // machine code").encode()
    loaded = cuda_device(0).load(Assembled(kernel, cubin, Resources(1, 0, 0, 0, 0, 1)))
    np.testing.assert_array_equal(runtime.call(loaded, [X], [2.0])[0], X * 2)


def test_modules_are_unloaded(player: Player) -> None:
    kernel = scale()
    device = cuda_device(0)
    for _ in range(200):
        loaded = device.load(kernel)
        runtime.call(loaded, [X], [2.0])
        del loaded
    gc.collect()
    assert count(MODULES) < 40
    assert count(BLOCKS) < 20


def test_tensor_maps_are_encoded_once(player: Player) -> None:
    maps = cuda_device(0).tensor_maps
    data = np.zeros((64, 128), np.float32)
    param = TensorMapParam(0, float32, (8, 32), Swizzle.B128)
    before = count(ENCODES)
    first = maps.get(param, view(CudaArray(data)))
    assert maps.get(param, view(CudaArray(data))) is first
    assert count(ENCODES) == before + 1
    words = np.frombuffer(first, np.uint64)
    assert words[:11].tolist() == [7, 2, data.ctypes.data, 128, 64, 512, 32, 8, 1, 3, 0]
    rows = np.zeros((65, 128), np.float32)
    for start in (1, 0):  # arrays alike, elsewhere
        part = rows[start : start + 64]
        words = np.frombuffer(maps.get(param, view(CudaArray(part))), np.uint64)
        assert words[:11].tolist() == [7, 2, part.ctypes.data, 128, 64, 512, 32, 8, 1, 3, 0]
    odd = np.zeros(64 * 128 + 1, np.float32)
    with pytest.raises(ArgumentValueError, match="cannot be copied by TMA"):
        maps.get(param, view(CudaArray(odd[1 - odd.ctypes.data % 16 // 4 :][: 64 * 128].reshape(64, 128))))
    split = TensorMapParam(0, float32, (8, 1, 32), split=((1, 32),))
    words = np.frombuffer(maps.get(split, view(CudaArray(data))), np.uint64)
    assert words[1:8].tolist() == [3, data.ctypes.data, 32, 4, 128, 32, 1]
    fresh = maps.get(param, view(CudaArray(np.zeros((0, 128), np.float32))))
    assert fresh == bytes(128)


def test_mixed_devices_are_refused(player: Player) -> None:
    kernel = scale()
    loaded = cuda_device(1).load(kernel)
    with pytest.raises(ArgumentValueError, match="loaded on cuda:1"):
        runtime.call(loaded, [CudaArray(X)], [1.0])


def test_errors_of_the_driver_are_values() -> None:
    cuda_device(0)
    error = driver.error_of(driver.api().CUresult.CUDA_ERROR_INVALID_VALUE)
    assert (error.name, error.meaning) == ("CUDA_ERROR_INVALID_VALUE", "a made-up failure")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_fill_of_narrow_floats() -> None:
    cuda_device(0)
    import ml_dtypes

    data = np.zeros(10, ml_dtypes.bfloat16)
    target = view(data)
    target.device = ("cuda", 0)
    memory.fill(target, 1.5)
    assert (data == 1.5).all() and target.dtype == bfloat16
    assert memory.fill_pattern(2, uint8) == b"\x02" and len(memory.fill_pattern(2, float64)) == 8
    with pytest.raises(ArgumentValueError, match="does not fit"):
        memory.fill_pattern(300, uint8)


def test_cupy_arrays(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import fake_cupy

    cupy = fake_cupy.install(monkeypatch)
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    x = cupy.ndarray(X.copy())
    (out,) = runtime.call(loaded, [x], [2.0])
    assert type(out) is cupy.ndarray and player.launches[-1].stream == 21
    np.testing.assert_array_equal(out.host, X * 2)
    runtime.call(loaded, [x], [2.0], stream=5)
    assert fake_cupy.MADE == [21, 5], "an output belongs to the stream that writes it"
    fast = FastCalls()
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    np.testing.assert_array_equal(fast((x, 3.0)).host, X * 3)
    assert fast((cupy.ndarray(X[::2]), 3.0)) is MISS
    np.testing.assert_array_equal(bind(loaded, [x], [4.0])()[0].host, X * 4)
    assert player.launches[-1].stream == 21
