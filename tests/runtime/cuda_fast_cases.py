"""Fast calls on a driver without a GPU: see `cuda_cases.py`."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

from runtime.arrays import ArrayView
from runtime.device import cuda_device
from runtime.dispatch import MISS, FastCalls

from .fake import Launch, Player, player
from .kernels import STRIDES, scale

__all__ = ["player"]
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch, with CPU tensors taken for tensors on GPU 0, whose memory is host memory here."""
    module = pytest.importorskip("torch")
    from runtime.interop import torch as interop

    real = interop.INTEROP.view

    def on_gpu(array: Any, stream: int) -> ArrayView:
        seen = real(array, stream)
        seen.device = ("cuda", 0)
        return seen

    monkeypatch.setattr(interop.INTEROP, "view", on_gpu, raising=False)
    monkeypatch.setattr(interop.INTEROP, "current_stream", lambda index: 11, raising=False)
    monkeypatch.setattr(
        interop.INTEROP,
        "allocator",
        lambda shape, dtype, device: lambda: module.empty(shape, dtype=interop.torch_dtype(dtype)),
    )
    monkeypatch.setattr(
        interop.INTEROP,
        "empty",
        lambda shape, dtype, device, stream: module.empty(shape, dtype=interop.torch_dtype(dtype)),
        raising=False,
    )
    return module


def test_fast_calls(player: Player, torch: Any) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    fast = FastCalls()
    x = torch.from_numpy(X.copy())
    assert fast((x, 2.0)) is MISS
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    np.testing.assert_array_equal(fast((x, 2.0)).numpy(), X * 2)
    other = torch.from_numpy(X + 1)
    np.testing.assert_array_equal(fast((other, 3.0)).numpy(), (X + 1) * 3)
    assert player.launches[-1].stream == 11
    assert fast((x, 2.0), stream=4) is not MISS
    assert player.launches[-1].stream == 4
    for args in (
        (x[:16], 2.0),
        (x, 2),
        (x, np.float64(2)),
        (x.double(), 2.0),
        (x.clone().requires_grad_(), 2.0),
        (x, [2.0]),
        (X, 2.0),
        (torch.zeros(33)[1:], 2.0),
        (x, 1e300),
    ):
        assert fast(args) is MISS
    with torch.no_grad():
        assert fast((x.clone().requires_grad_(), 2.0)) is not MISS


def test_fast_calls_see_lazy_negation(player: Player, torch: Any) -> None:
    loaded = cuda_device(0).load(scale(contiguous=False, strides=STRIDES))
    fast = FastCalls()
    pairs = torch.view_as_complex(torch.from_numpy(np.stack([X, X], -1)))
    fast.learn((pairs.imag, 2.0), None, loaded, lambda outs: outs[0])
    np.testing.assert_array_equal(fast((pairs.imag, 2.0)).numpy(), X * 2)
    assert fast((pairs.conj().imag, 2.0)) is MISS


def test_fast_calls_with_out(player: Player, torch: Any) -> None:
    kernel = scale()
    loaded = cuda_device(0).load(kernel)
    fast = FastCalls()
    held = torch.zeros(96)
    x, out = held[:32], held[32:64]
    x[:] = torch.from_numpy(X)
    fast.learn((x, 2.0), out, loaded, lambda outs: outs[0])
    fast.learn((x, 2.0), [out], loaded)
    assert fast((x, 2.0), out) is out
    assert fast((x, 3.0), [out])[0] is out
    np.testing.assert_array_equal(out.numpy(), X * 3)
    assert fast((x, 2.0)) is MISS
    assert fast((x, 2.0), x) is MISS, "sharing memory is for the long way"
    assert fast((x, 2.0), held[16:48]) is MISS
    inplace = cuda_device(0).load(scale(overlaps=((0, 1),)))
    fast.learn((x, 2.0), x, inplace)
    fast((x, 2.0), x)
    np.testing.assert_array_equal(x.numpy(), X * 2)
    fast((x, 2.0), out)
    np.testing.assert_array_equal(out.numpy(), X * 4)
    assert fast((x, 2.0), held[16:48]) is MISS


def test_fast_calls_from_many_threads(player: Player, torch: Any) -> None:
    loaded = cuda_device(0).load(scale())
    fast = FastCalls()
    fast.learn((torch.from_numpy(X), 2.0), None, loaded, lambda outs: outs[0])
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = torch.full((32,), float(number))
        for _ in range(50):
            if not (fast((mine, float(number))).numpy() == number * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_fast_calls_fill_and_alias(player: Player, torch: Any) -> None:
    x = torch.from_numpy(X.copy())
    fast = FastCalls()
    loaded = cuda_device(0).load(scale(fill=2.5))
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    seen: list[Any] = []
    play = type(player).__call__

    def look(self: Player, *got: Any) -> int:
        address = int.from_bytes(Launch(*got).params[1], "little")
        seen.append(np.frombuffer(ctypes.string_at(address, 128), np.float32))
        return play(self, *got)

    type(player).__call__ = look
    try:
        np.testing.assert_array_equal(fast((x, 3.0)).numpy(), X * 3)
    finally:
        type(player).__call__ = play
    assert len(seen) == 1 and (seen[0] == 2.5).all()
    aliased = FastCalls()
    loaded = cuda_device(0).load(scale(alias=0))
    aliased.learn((x, 2.0), None, loaded)
    assert aliased((x, 2.0)) is MISS, "a copy comes first: the long way"
    aliased.learn((x, 2.0), x, loaded)
    aliased((x, 2.0), x)
    np.testing.assert_array_equal(x.numpy(), X * 2)
    assert aliased((x, 2.0), x.clone()) is MISS
