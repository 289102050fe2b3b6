"""Row-major copies by a kernel, on both devices."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices.devices import interpreter_device
from kernel_dsl.runtime.devices.gather import gather, gather_ptx, merged_axes

LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.transpose(1, 2, 0),
    "reversed": lambda x: x[::-1, :, ::-1],
    "steps": lambda x: x[::2, 1::3, ::-2],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "rank0": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int32, np.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy(dtype, layout):
    x = np.random.default_rng(2).integers(0, 200, (4, 7, 9)).astype(dtype)
    source = np.asarray(LAYOUTS[layout](x))
    target = np.zeros(source.shape, dtype)
    gather(interpreter_device(), view(target), view(source), 0)
    np.testing.assert_array_equal(target, source)


def test_64_bit_indices():
    """The form for 2**31 elements and more, on a small array."""
    from kernel_dsl.runtime.devices import gather as module

    x = np.arange(60, dtype=np.int16).reshape(3, 4, 5).transpose(2, 0, 1)
    target = np.zeros(x.shape, x.dtype)
    loaded = interpreter_device().load_image(gather_ptx(3, 2, True), "gather")
    params = [view(x), view(target), np.uint64(60).tobytes()]
    for extent, stride in zip(x.shape, x.strides, strict=True):
        params += [np.uint64(extent).tobytes(), np.int64(stride).tobytes()]
    loaded.launch(params, grid=(1, 1, 1), block=(module._THREADS, 1, 1))
    np.testing.assert_array_equal(target, x)


def test_axes_are_merged():
    x = np.zeros((2, 3, 4, 5), np.float32)
    assert merged_axes(view(x)) == [(120, 1)]
    assert merged_axes(view(x[:, :, :, ::2])) == [(24, 5), (3, 2)]
    assert merged_axes(view(x.transpose(2, 3, 0, 1))) == [(20, 1), (6, 20)]


@pytest.mark.gpu
def test_on_the_gpu(gpu):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from kernel_dsl.runtime.devices.devices import cuda_device

    x = torch.randn(65, 33, 17, 5, device="cuda")
    for source in (x.permute(3, 1, 0, 2), x[::2, :, 1::3], x[:, :1].expand(-1, 33, -1, -1)):
        target = torch.zeros(source.shape, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        gather(cuda_device(0), view(target), view(source), stream)
        assert torch.equal(target, source)
