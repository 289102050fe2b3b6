"""Host code tells the driver what the runtime tells it: every kernel of the suite, launched both ways on the same arrays."""

from __future__ import annotations

import ctypes
import os
import queue
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import hosting
from kernel_dsl.compiled import PointerParam
from kernel_dsl.dtypes import DType
from kernel_dsl.launch_plan import plan_of
from kernel_dsl.lowering.host import Host
from kernel_dsl.lowering.host_entries import FFI, SCALAR, add_c_entry, add_ffi_entry
from kernel_dsl.lowering.host_tensors import DL_CODES
from kernel_dsl.lowering.llvm import host_addresses, host_object
from kernel_dsl.runtime.arrays.array_view import ArrayView, row_major
from kernel_dsl.runtime.devices import driver, memory
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.devices.params import scalar_bytes
from tests.kernels import CASES
from tests.speed import on_the_reference

from .dlpack_c import Tensor, tensor
from .fake import BLOCKS, CALLBACK, DEPTH, LIB, Launch, count
from .xla_ffi_c import call_handler

Spec = kd.ShapeDtypeStruct
RNG = np.random.default_rng(0)


def _with_fills(x: Any, f64: Any, z: Any, b: Any, copy: Any) -> None:
    f64[0] = x[0].astype(kd.float64)
    copy[0] = x[1]


def _split_maps(x: Any, out: Any, smem: Any, barrier: Any) -> None:
    kd.copy_gmem_to_smem(x.at[:, kd.ds(64, 64)], smem, barrier)
    kd.barrier_wait(barrier)
    out[...] = smem[...].astype(kd.float32)


EXTRA = {
    "with_fills": kd.kernel(
        _with_fills,
        out_type=(
            Spec((7,), kd.float64, init=1.5),
            Spec((5,), kd.complex64, init=2.0),
            Spec((9,), kd.bfloat16, init=-2.0),
            Spec((16,), kd.float32),
        ),
        input_output_aliases={0: 3},
    ).lower(Spec((16,), kd.float32)),
    "split_maps": kd.kernel(
        _split_maps,
        out_type=Spec((64, 64), kd.float32),
        scratch_types=(
            kd.SMEM((64, 64), kd.bfloat16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))),
            kd.Barrier(),
        ),
    ).lower(Spec((64, 256), kd.bfloat16)),
}


@cache
def all_stages() -> dict[str, Any]:
    return EXTRA | {name: case.lower("sm_90a") for name, case in CASES.items() if "sm_90a" in case.targets}


class Recorder:
    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.callback = CALLBACK(self)

    def __call__(self, *got: Any) -> int:
        self.launches.append(Launch(*got))
        return 0

    def of(self, call: Any) -> list[Launch]:
        self.launches.clear()
        call()
        return list(self.launches)


@pytest.fixture
def recorder() -> Any:
    made = Recorder()
    LIB.fake_callback(made.callback)
    yield made
    LIB.fake_callback(CALLBACK(0))


def memory_of(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Random bytes at a multiple of 256."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = RNG.integers(0, 127, size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype.numpy).reshape(shape)


def arguments(stages: Any) -> tuple[list[np.ndarray[Any, Any]], list[Any]]:
    """Memory of a kernel's arrays, outputs too, and its scalars."""
    arrays = [memory_of(a.shape, a.dtype) for a in stages.kernel.arrays]
    scalars = [a.dtype.numpy.type(3) for a in hosting.arguments_of(stages.ir) if a.scalar is not None]
    return arrays, scalars


def by_runtime(stages: Any, arrays: list[Any], scalars: list[Any]) -> None:
    kernel = stages.kernel
    views = [
        ArrayView(a.ctypes.data, a.shape, row_major(a.shape), k.dtype, ("cuda", 0), "generic", False, a)
        for a, k in zip(arrays, kernel.arrays, strict=True)
    ]
    loaded = cuda_device(0).load(kernel)
    with driver.current(loaded.device.context):
        for step in loaded.plan.first:
            memory.take(step, views, scalars, 0)
    loaded.launch(views, scalars, 0)


def same(one: list[Launch], two: list[Launch], kernel: Any) -> None:
    assert len(one) == len(two) == (not kernel.launch.empty)
    for a, b in zip(one, two, strict=True):
        assert (a.name, a.grid, a.block, a.smem, a.cluster, a.pdl) == (
            b.name,
            b.grid,
            b.block,
            b.smem,
            b.cluster,
            b.pdl,
        )
        for param, x, y in zip(kernel.params, a.params, b.params, strict=True):
            own = isinstance(param, PointerParam) and param.array >= len(kernel.arrays)
            assert own or x == y, param  # each launch has workspaces of its own


def built(every: dict[str, Any], folder: Path) -> ctypes.CDLL:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler
    objects: list[str] = []
    for name, stages in every.items():
        host = Host(stages.kernel, plan_of(stages.kernel), stages.kernel.ptx.encode())
        add_c_entry(host, f"kd_{name}", hosting.arguments_of(stages.ir))
        (folder / f"{name}.o").write_bytes(host_object(str(host)))
        objects.append(str(folder / f"{name}.o"))
    subprocess.run([compiler, "-shared", "-o", str(folder / "all.so"), *objects], check=True)
    return ctypes.CDLL(str(folder / "all.so"))


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_from_c_are_launched_as_by_the_runtime(step: int, recorder: Recorder, tmp_path: Path) -> None:
    """Every second one; the next test has all, with the same host code behind another entry."""
    every = dict(list(all_stages().items())[::step])
    library = built(every, tmp_path)
    checked = 0
    for name, stages in every.items():
        arrays, scalars = arguments(stages)
        before = [a.tobytes() for a in arrays]
        python = recorder.of(lambda: by_runtime(stages, arrays, scalars))  # noqa: B023
        filled = [a.tobytes() for a in arrays]
        for a, data in zip(arrays, before, strict=True):
            a.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        blocks, depth = count(BLOCKS), count(DEPTH)
        given: list[Any] = []
        for argument in hosting.arguments_of(stages.ir):
            if argument.array is not None:
                given.append(ctypes.byref(tensor(arrays[argument.array], argument.dtype)))
            else:
                given.append(c_scalar(scalars[argument.scalar or 0], argument.dtype))
        function = getattr(library, f"kd_{name}")
        error = getattr(library, f"kd_{name}_error")
        error.restype = ctypes.c_char_p
        for _ in range(2):  # the second call knows of the first
            host = recorder.of(lambda: function_ok(function, error, given))  # noqa: B023
            same(python, host, stages.kernel)
            assert filled == [a.tobytes() for a in arrays], name
        assert count(BLOCKS) == blocks
        assert count(DEPTH) == max(depth, 1)
        checked += 1
    assert checked > 60 // step


def function_ok(function: Any, error: Any, given: list[Any]) -> None:
    code = function(None, *given)
    assert code == 0, error()


def c_scalar(value: Any, dtype: DType) -> Any:
    kinds = {"float32": ctypes.c_float, "float64": ctypes.c_double}
    if dtype.name in kinds:
        return kinds[dtype.name](float(value))
    return getattr(ctypes, f"c_uint{dtype.bits}")(int.from_bytes(scalar_bytes(value, dtype), "little"))


def test_every_kernel_from_xla_is_launched_as_by_the_runtime(recorder: Recorder) -> None:
    for stages in all_stages().values():
        kernel = stages.kernel
        arrays, scalars = arguments(stages)
        python = recorder.of(lambda: by_runtime(stages, arrays, scalars))  # noqa: B023
        host = Host(kernel, plan_of(kernel), kernel.ptx.encode())
        dtypes = [a.dtype for a in hosting.arguments_of(stages.ir) if a.scalar is not None]
        add_ffi_entry(host, len(scalars))
        (address,) = host_addresses(str(host), [FFI])
        spaces = [memory_of((s.bytes + s.alignment,), kd.uint8)[1:] for s in kernel.workspaces]
        data = b"".join(scalar_bytes(v, d).ljust(SCALAR, b"\0") for v, d in zip(scalars, dtypes, strict=True))
        depth = count(DEPTH)
        made = recorder.of(
            lambda: check_ffi(address, arrays[: kernel.inputs], [*arrays[kernel.inputs :], *spaces], data)  # noqa: B023
        )
        same(python, made, kernel)
        assert count(DEPTH) == depth


def check_ffi(address: int, operands: list[Any], results: list[Any], scalars: bytes) -> None:
    assert call_handler(address, operands, results, scalars) is None


def test_the_ffi_handler_says_what_the_driver_says(recorder: Recorder) -> None:
    stages = CASES["vector_add"].lower("sm_90a")
    kernel = stages.kernel
    host = Host(kernel, plan_of(kernel), kernel.ptx.encode())
    add_ffi_entry(host, 0)
    (address,) = host_addresses(str(host), [FFI])
    arrays, _ = arguments(stages)
    assert call_handler(address, arrays[:2], arrays[2:], b"") is None
    LIB.fake_fail(700)
    try:
        error = call_handler(address, arrays[:2], arrays[2:], b"")
    finally:
        LIB.fake_fail(0)
    assert error is not None
    assert "CUDA error 700 (a made-up failure)" in error and "vector_add" in error
    error = call_handler(address, arrays[:1], arrays[2:], b"")
    assert error is not None
    assert "1 operands, and the kernel has 2" in error


def test_arguments_that_do_not_fit_are_refused_in_c(recorder: Recorder, tmp_path: Path) -> None:
    stages = kd.kernel(
        lambda x, y, o: o.__setitem__(..., x[...] + y[...]), out_type=Spec((4, 8), kd.float32), name="sum_of_two"
    ).lower(Spec((4, 8), kd.float32), Spec((4, 8), kd.float32))
    paths = stages.export("sum_of_two", folder=tmp_path, c=True)
    assert [p.name for p in paths] == ["sum_of_two.o", "sum_of_two.h"]
    so = tmp_path / "lib.so"
    subprocess.run([shutil.which("gcc") or "cc", "-shared", "-o", str(so), str(paths[0])], check=True)
    library = ctypes.CDLL(str(so))
    library.sum_of_two_error.restype = ctypes.c_char_p
    x, y, o = (memory_of((4, 8), kd.float32) for _ in range(3))

    def refused(*tensors: Tensor | None) -> str:
        code = library.sum_of_two(None, *(None if t is None else ctypes.byref(t) for t in tensors))
        assert code == -1
        assert not recorder.launches
        return library.sum_of_two_error().decode()

    def good(a: Any) -> Tensor:
        return tensor(a, kd.float32)

    def refusals() -> None:
        bad = good(x)
        bad.strides[0] = 16
        assert "x is not row-major: axis 0 has a stride of 16 elements, and needs 8" in refused(bad, good(y), good(o))
        bad = good(x)
        bad.shape[1] = 9
        assert "axis 1 of x has 9 elements, and the kernel was compiled for 8" in refused(bad, good(y), good(o))
        bad = good(y)
        bad.ndim = 1
        assert "y has rank 1, and the kernel was compiled for rank 2" in refused(good(x), bad, good(o))
        assert "y has a dtype of code 0, 32 bits" in refused(good(x), tensor(y, kd.int32), good(o))
        assert DL_CODES["int32"] == 0
        bad = good(o)
        bad.device_type = 1
        assert "o is not on a GPU: its device type is 1" in refused(good(x), good(y), bad)
        bad = good(o)
        bad.device_id = 1
        assert "o is on GPU 1, and x is on GPU 0" in refused(good(x), good(y), bad)
        elsewhere = [good(a) for a in (x, y, o)]
        for t in elsewhere:
            t.device_id = 1
        assert "x is on GPU 1, and the current context is that of GPU 0" in refused(*elsewhere)
        assert "x and o overlap in memory" in refused(good(x), good(y), good(x))
        assert "y is NULL" in refused(good(x), None, good(o))
        bad = good(x)
        bad.data += 4
        assert "of x is not a multiple of 16 bytes" in refused(bad, good(y), good(o))
        bad = good(x)
        for offset in (0, 16):
            bad.data, bad.byte_offset = None, offset
            assert "x has no memory: its data is NULL" in refused(bad, good(y), good(o))
        bad = good(y)
        bad.shape = None
        assert "the shape of y is NULL" in refused(good(x), bad, good(o))

    def goes() -> None:
        recorder.launches.clear()
        assert library.sum_of_two(None, *(ctypes.byref(good(a)) for a in (x, y, o))) == 0
        assert library.sum_of_two_error() == b""
        assert [launch.name for launch in recorder.launches] == [stages.kernel.entry]
        recorder.launches.clear()

    contexts = [ctypes.c_void_p() for _ in range(2)]
    cuda: Any = LIB
    for n, context in enumerate(contexts):
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), n)
    cuda.cuCtxSetCurrent(contexts[0])
    refusals()
    goes()
    refusals()  # what the thread knows of its last call lets nothing pass
    goes()
    no_strides = [good(a) for a in (x, y, o)]
    for t in no_strides:
        t.strides = None
    assert library.sum_of_two(None, *map(ctypes.byref, no_strides)) == 0
    recorder.launches.clear()
    cuda.cuCtxPushCurrent_v2(contexts[1])
    try:
        words = refused(*(good(a) for a in (x, y, o)))
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    assert "x is on GPU 0, and the current context is that of GPU 1" in words
    goes()
    LIB.fake_fail(700)
    try:
        assert library.sum_of_two(None, *(ctypes.byref(good(a)) for a in (x, y, o))) == 700
    finally:
        LIB.fake_fail(0)
    assert b"CUDA error 700 (a made-up failure)" in library.sum_of_two_error()
    goes()
    found = queue.SimpleQueue[int]()  # another thread knows nothing, and has no context
    thread = threading.Thread(
        target=lambda: [
            found.put(library.sum_of_two(None, *(ctypes.byref(good(a)) for a in (x, y, o)))) for _ in range(2)
        ]
    )
    thread.start()
    thread.join()
    assert [found.get(), found.get()] == [0, 0]


def test_code_for_another_gpu_says_so(recorder: Recorder) -> None:
    stages = CASES["vector_add"].lower("sm_90a")
    host = Host(stages.kernel, plan_of(stages.kernel), stages.kernel.ptx.encode())
    add_ffi_entry(host, 0)
    (address,) = host_addresses(str(host), [FFI])
    arrays, _ = arguments(stages)
    ctypes.CDLL(None).setenv(b"FAKE_CUDA_FOREIGN", b"1", 1)
    try:
        error = call_handler(address, arrays[:2], arrays[2:], b"")
    finally:
        ctypes.CDLL(None).unsetenv(b"FAKE_CUDA_FOREIGN")
    assert error is not None
    assert "was compiled for sm_90a, and its machine code does not run on this GPU" in error


def test_host_code_takes_little_time() -> None:
    """At most 15 ms a kernel."""
    stages = all_stages()["matmul"]

    def make() -> None:
        host = Host(stages.kernel, plan_of(stages.kernel), stages.kernel.ptx.encode())
        add_ffi_entry(host, 0)
        host_addresses(str(host), [FFI])

    assert on_the_reference(make, 0.015) <= 0.015
