"""`precompiled_cuda_kernel`: PTX on both devices, machine code on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.arrays.array_view import CPU, view
from kernel_dsl.runtime.build import fatbin
from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
from kernel_dsl.runtime.devices import memory
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError, DeviceError, LoadError, RunError

from .conftest import FAKE

PTX = Path(__file__).parent / "ptx"
SCALE = (PTX / "scale.ptx").read_bytes()
REVERSE = (PTX / "reverse.ptx").read_bytes()


def scale(x: Any, interpret: Any, **change: Any) -> list[Any]:
    arguments: dict[str, Any] = {
        "name": "scale",
        "compiled_source": SCALE,
        "inputs": [x],
        "output_shapes": [x.shape],
        "output_dtypes": [np.float32],
        "scalars": [
            True,
            x.size if hasattr(x, "size") and isinstance(x.size, int) else 1,
            0.5,
            np.float64(0.1),
        ],
        "grid": (12, 1, 1),
        "threadgroup": (4, 1, 1),
        "interpret": interpret,
    }
    return precompiled_cuda_kernel(**(arguments | change))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32)


def expected(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    return (x.astype(np.float64) * a + 0.1).astype(np.float32)


@pytest.mark.parametrize("target", ["sm_30", "sm_52", "sm_70"])
def test_ptx_for_older_targets(x, interpret, target):
    older = SCALE.replace(b".target sm_80", f".target {target}".encode()).replace(b".version 8.0", b".version 6.4")
    assert target.encode() in older
    np.testing.assert_allclose(scale(x, interpret, compiled_source=older)[0], expected(x), rtol=1e-6)


def test_scalars_in_order(x, interpret):
    """bool as one byte, int as int32, float as float32, a NumPy scalar in its own dtype."""
    out = scale(x, interpret)
    assert isinstance(out, list) and len(out) == 1
    np.testing.assert_allclose(out[0], expected(x), rtol=1e-6)
    (kept,) = scale(x, interpret, scalars=[False, np.int32(12), np.float32(0.5), np.float64(0.1)])
    np.testing.assert_allclose(kept, expected(x, 0.5), rtol=1e-6)


def test_ragged_grid(x, interpret):
    """The last threadgroup is full; the kernel's own mask keeps its extra threads off the array."""
    (out,) = scale(x, interpret, threadgroup=(5, 1, 1))
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)
    (out,) = scale(x, interpret, threadgroup=(512, 1, 1))
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)
    with pytest.raises(ArgumentValueError, match="does not divide"):
        scale(x, interpret, threadgroup=(5, 1, 1), exact_grid=True)
    (out,) = scale(x, interpret, threadgroup=(512, 1, 1), exact_grid=True)
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)


def test_init_value(x, interpret):
    (out,) = scale(x, interpret, scalars=[True, 5, 0.5, np.float64(0.1)], init_value=7)
    np.testing.assert_allclose(out.ravel()[:5], expected(x).ravel()[:5], rtol=1e-6)
    assert (out.ravel()[5:] == 7).all()


def test_not_contiguous(x, interpret):
    """By default the kernel sees the memory as it is; with `ensure_row_contiguous` a copy in order."""
    (out,) = scale(x.T, interpret, ensure_row_contiguous=True)
    np.testing.assert_allclose(out, expected(x.T), rtol=1e-6)
    (out,) = scale(x.T, interpret)
    np.testing.assert_allclose(out.ravel(), expected(x).ravel(), rtol=1e-6)
    (out,) = scale(x[:, ::2], interpret, scalars=[True, 6, 0.5, np.float64(0.1)])
    np.testing.assert_allclose(out.ravel(), expected(x).ravel()[:6], rtol=1e-6)


def test_scalar_as_input(interpret):
    (out,) = scale(np.float32(3), interpret, output_shapes=[()], scalars=[True, 1, 0.5, np.float64(0.1)])
    np.testing.assert_allclose(out, -1.4, rtol=1e-6)
    (out,) = scale(
        np.float32(0),
        interpret,
        inputs=[3.0],
        output_shapes=[()],
        scalars=[True, 1, 0.5, np.float64(0.1)],
    )
    np.testing.assert_allclose(out, -1.4, rtol=1e-6)


def test_shared_memory_at_every_launch(interpret):
    """64 KiB needs an opt-in on a GPU, at each launch of a module whose first launches asked for less."""
    x = np.arange(128, dtype=np.int32)
    for extra in (0, 1024, 0):
        (out,) = precompiled_cuda_kernel(
            name="reverse",
            compiled_source=REVERSE,
            inputs=[x],
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
            scalars=[],
            grid=(128, 1, 1),
            threadgroup=(64, 1, 1),
            shared_memory=64 * 1024 + extra,
            interpret=interpret,
        )
        np.testing.assert_array_equal(out, x.reshape(2, 64)[:, ::-1].ravel())


def test_empty_grid(x, interpret):
    (out,) = scale(x, interpret, grid=(0, 1, 1), init_value=1)
    assert (out == 1).all()


def test_torch(interpret):
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.float32)
    (out,) = scale(x, interpret, output_dtypes=[torch.float32], scalars=[True, 12, 0.5, np.float64(0)])
    assert isinstance(out, torch.Tensor) and torch.equal(out, x * -0.5)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"scalars": [True, 2**31, 0.5, 1.0]}, ArgumentValueError, "np.int64"),
        ({"scalars": [True, "3", 0.5, 1.0]}, ArgumentTypeError, r"scalars\[1\]"),
        ({"scalars": [np.str_("3")]}, ArgumentTypeError, r"scalars\[0\]"),
        ({"scalars": [np.bytes_(b"3")]}, ArgumentTypeError, r"scalars\[0\]"),
        ({"scalars": [1j]}, ArgumentTypeError, r"scalars\[0\]"),
        ({"scalars": 3}, ArgumentTypeError, "scalars"),
        ({"compiled_source": SCALE.decode()}, ArgumentTypeError, "encode"),
        ({"compiled_source": b""}, ArgumentValueError, "empty"),
        ({"name": ""}, ArgumentTypeError, "entry"),
        ({"inputs": ["x"]}, ArgumentTypeError, r"inputs\[0\]"),
        ({"output_shapes": []}, ArgumentValueError, "at least one output"),
        ({"output_dtypes": []}, ArgumentValueError, "one of each"),
        ({"grid": (1, 1)}, ArgumentTypeError, "three integers"),
        ({"threadgroup": (2048, 1, 1), "grid": (4096, 1, 1)}, ArgumentValueError, "1024"),
        ({"shared_memory": -1}, ArgumentValueError, "negative"),
        ({"shared_memory": 10**7}, ArgumentValueError, "10000000"),
        ({"init_value": "0"}, ArgumentTypeError, "init_value"),
        (
            {"init_value": 300, "output_dtypes": [np.uint8]},
            ArgumentValueError,
            r"init_value= of kernel 'scale': the fill value 300 does not fit uint8 \(0 to 255\)",
        ),
    ],
)
def test_bad_arguments(x, change, error, says):
    with pytest.raises(error, match=says):
        scale(x, True, **change)


def test_positional_arguments_are_refused(x):
    with pytest.raises(TypeError):
        precompiled_cuda_kernel("scale", SCALE)  # pyright: ignore


@pytest.mark.parametrize("name", ["nothing", "scal", "scale2"])
def test_wrong_entry(x, interpret, name):
    with pytest.raises(LoadError, match=name):
        scale(x, interpret, name=name)


@pytest.mark.parametrize("scalars", [[], [True, 12, 0.5], [True, 12, 0.5, 0.1], [True, 12, 0.5, np.float64(1), 3]])
def test_wrong_parameters(x, interpret, scalars):
    with pytest.raises(ArgumentTypeError, match="param"):
        scale(x, interpret, scalars=scalars)


@pytest.mark.parametrize("image", [b"no image at all", SCALE[:700], SCALE.replace(b"mul.rn.f32", b"mul.what.f32")])
def test_corrupt_image(x, interpret, image):
    if FAKE and not interpret:
        pytest.skip("the made-up driver takes any PTX")
    with pytest.raises(LoadError):
        scale(x, interpret, compiled_source=image)


def test_machine_code_in_the_interpreter(x):
    with pytest.raises(DeviceError, match="takes PTX"):
        scale(x, True, compiled_source=b"\x7fELF" + bytes(64))


@pytest.mark.parametrize("form", ["plain", "lz4", "zstd"])
def test_fat_binary(x, interpret, form):
    if FAKE and not interpret:
        pytest.skip("the made-up driver reads PTX alone")
    (out,) = scale(x, interpret, compiled_source=(PTX / f"scale.{form}.fatbin").read_bytes())
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)


def test_damaged_zstd(x):
    """Each 16th byte of the packed text in turn is another: the text, or an error of ours."""
    packed = (PTX / "scale.zstd.fatbin").read_bytes()
    start = packed.index(b"\x28\xb5\x2f\xfd")
    assert b".entry scale" in fatbin.ptx_in_fatbin(packed, "scale")
    for at in range(start, len(packed), 16):
        data = packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :]
        with contextlib.suppress(LoadError):
            fatbin.ptx_in_fatbin(data, "scale")


def test_zstd_that_nothing_unpacks(x, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(DeviceError, match=r"pip install .*zstd"):
        scale(x, True, compiled_source=(PTX / "scale.zstd.fatbin").read_bytes())


def test_fat_binary_that_the_interpreter_cannot_run(x):
    with pytest.raises(DeviceError, match="machine code alone"):
        scale(x, True, compiled_source=(PTX / "scale.sm_80.fatbin").read_bytes())
    packed = (PTX / "scale.lz4.fatbin").read_bytes()
    for cut in (3, 10, 40, 100, len(packed) - 50):
        with pytest.raises(RunError):
            scale(x, True, compiled_source=packed[:cut])


# --- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_device_arrays_in_the_interpreter(x):
    """They are brought to the host, with their layout."""
    if FAKE:
        from tests.runtime.fake import CudaArray

        given, dtype = CudaArray(x.T), np.float32
    else:
        torch = pytest.importorskip("torch")
        given, dtype = torch.from_numpy(x).cuda().T, torch.float32
    for contiguous, want in ((False, expected(x).ravel()), (True, expected(x.T).ravel())):
        (out,) = precompiled_cuda_kernel(
            name="scale",
            compiled_source=SCALE,
            inputs=[given],
            output_shapes=[(12,)],
            output_dtypes=[dtype],
            scalars=[True, 12, 0.5, np.float64(0.1)],
            grid=(12, 1, 1),
            threadgroup=(4, 1, 1),
            ensure_row_contiguous=contiguous,
            interpret=True,
        )
        out = memory.host_array(dataclasses.replace(view(out), device=CPU)) if FAKE else out.cpu().numpy()
        np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.gpu
def test_cubin_of_the_gpu(x, gpu):
    if nvrtc.unavailable():
        pytest.skip(nvrtc.unavailable())
    from kernel_dsl.runtime.custom.body import gpu_architecture
    from kernel_dsl.runtime.devices.devices import cuda_device

    source = """extern "C" __global__ void scale(const float* x, float* out, bool negate, int n, float a, double shift) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = (negate ? -a : a) * x[i] + shift;
    }"""
    arch = gpu_architecture(cuda_device())
    for kind in ("cubin", "ptx"):
        image = nvrtc.compile_source(source, file="scale.cu", target=arch, kind=kind)
        (out,) = scale(x, False, compiled_source=image)
        np.testing.assert_allclose(out, expected(x), rtol=1e-6)
    with pytest.raises(LoadError):
        scale(x, False, compiled_source=b"\x7fELF" + bytes(64))


@pytest.mark.gpu
def test_load_error_has_the_log(x, gpu):
    with pytest.raises(LoadError, match="line"):
        scale(x, False, compiled_source=SCALE.replace(b"mul.rn.f32", b"mul.what.f32"))


@pytest.mark.gpu
def test_torch_on_the_gpu(gpu):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    x = torch.arange(12, dtype=torch.float32, device="cuda").reshape(3, 4)
    for stream in (None, torch.cuda.Stream()):
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        (out,) = scale(
            x.T,
            None,
            output_dtypes=[torch.float32],
            scalars=[True, 12, 0.5, np.float64(0)],
            ensure_row_contiguous=True,
            stream=stream,
        )
        torch.cuda.synchronize()
        assert out.is_cuda and torch.equal(out, x.T.contiguous() * -0.5)
