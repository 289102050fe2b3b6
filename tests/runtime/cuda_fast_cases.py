"""Fast calls on a driver without a GPU: see `cuda_cases.py`."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

from kernel_dsl import runtime
from kernel_dsl.compiled import PointerParam, ScalarParam, Workspace
from kernel_dsl.dtypes import float32
from kernel_dsl.runtime.arrays.array_view import ArrayView
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.errors import LaunchError, OutOfMemoryError
from kernel_dsl.runtime.plan.dispatch import MISS, FastCalls, first
from kernel_dsl.runtime.plan.fast_plan import PACKED
from tests.work import calls

from .fake import CALLBACK, ENCODES, LIB, Launch, Player, count, player
from .gpu.support import tile_kernel
from .kernels import STRIDES, scale

__all__ = ["player"]
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch, with CPU tensors taken for tensors on GPU 0, whose memory is host memory here."""
    module = pytest.importorskip("torch")
    from kernel_dsl.runtime.arrays.interop import torch as interop

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
    with torch.autograd.forward_ad.dual_level():  # any tensor may have a tangent, which the slow path looks for
        assert fast((x, 2.0)) is MISS
    assert fast((x, 2.0)) is not MISS


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
    assert fast((x, 2.0), x) is MISS, "sharing memory is for the slow path"
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


@pytest.mark.parametrize("seed", range(8))
def test_fast_calls_have_workspaces_of_their_own(seed: int, player: Player, torch: Any) -> None:
    """Each begins at a multiple of its alignment, meets no other, and is zero in each launch where it is to be."""
    rng = np.random.default_rng(seed)
    spaces = [
        Workspace(int(n), zeroed=bool(z), alignment=int(a))
        for n, z, a in zip(rng.integers(1, 700, 3), rng.integers(0, 2, 3), rng.choice([16, 128, 256], 3), strict=True)
    ]
    kernel = scale(workspaces=tuple(spaces))
    loaded = cuda_device(0).load(kernel)
    seen: list[bool] = []

    def play(*got: Any) -> int:
        launch = Launch(*got)
        places = [int.from_bytes(p, "little") for p in launch.params[3:]]
        ends = sorted((a, a + s.bytes) for s, a in zip(spaces, places, strict=True))
        right = all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
        for space, address in zip(spaces, places, strict=True):
            right &= address % space.alignment == 0
            right &= not space.zeroed or ctypes.string_at(address, space.bytes) == bytes(space.bytes)
            ctypes.memset(address, 1, space.bytes)
        seen.append(right)
        return 0

    callback = CALLBACK(play)
    LIB.fake_callback(callback)
    x = torch.from_numpy(X.copy())
    fast = FastCalls()
    fast.learn((x, 2.0), None, loaded, lambda outs: outs[0])
    for stream in (None, None, 5):
        assert fast((x, 2.0), stream=stream) is not MISS
    assert seen == [True] * 3


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
    assert aliased((x, 2.0)) is MISS, "a copy comes first: the slow path"
    aliased.learn((x, 2.0), x, loaded)
    aliased((x, 2.0), x)
    np.testing.assert_array_equal(x.numpy(), X * 2)
    assert aliased((x, 2.0), x.clone()) is MISS


def test_many_signatures(player: Player, torch: Any) -> None:
    loaded = cuda_device(0).load(scale())
    fast = FastCalls()
    kinds = [float, np.float32]
    forms = [None, list, tuple, "one"]
    for kind in kinds:
        for form in forms:
            x, out = torch.from_numpy(X.copy()), torch.zeros(32)
            given = {None: None, list: [out], tuple: (out,), "one": out}[form]
            assert fast((x, kind(2)), given) is MISS
            fast.learn((x, kind(2)), given, loaded)
    for _ in range(2):
        for kind in kinds:
            for form in forms:
                x, out = torch.from_numpy(X.copy()), torch.zeros(32)
                given = {None: None, list: [out], tuple: (out,), "one": out}[form]
                result = fast((x, kind(3)), given)
                assert result is not MISS and (form is None or result[0] is out)
                np.testing.assert_array_equal(result[0].numpy(), X * 3)


def test_learning_keeps_no_array_alive(player: Player, torch: Any) -> None:
    fast = FastCalls()
    x, out = torch.from_numpy(X.copy()), torch.zeros(32)
    fast.learn((x, 2.0), out, cuda_device(0).load(scale()))
    held = [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    assert [r() for r in held] == [None, None]


def test_tensors_without_memory_are_left_to_the_long_way(player: Player, torch: Any) -> None:
    fast = FastCalls()
    x = torch.from_numpy(X.copy())
    fast.learn((x, 2.0), None, cuda_device(0).load(scale()))
    seen: list[Any] = []

    def look(t: Any) -> Any:
        seen.append(fast((t, 2.0)))
        return t

    torch.vmap(look)(torch.zeros(3, 32))
    assert seen == [MISS]


def test_a_host_array_of_any_strides_reaches_tma_as_a_copy(player: Player) -> None:
    """TMA can't walk rows of 516 bytes, and need not: what the GPU sees is a row-major copy."""
    kernel = tile_kernel(40, 128)  # a shape of its own: descriptors are kept by shape and address
    x = np.zeros((40, 129), np.float32)[:, :128]
    runtime.call(cuda_device(0).load(kernel), [x], [])
    words = np.frombuffer(player.launches[-1].params[0], np.uint64)
    assert words[3:6].tolist() == [128, 40, 512]  # columns, rows, bytes from row to row


def test_a_host_array_that_tma_can_address_stays_so(player: Player) -> None:
    """Rows of 12 bytes at multiples of 16: a row-major copy would be none that the kernel's descriptor can have."""
    kernel = tile_kernel(40, 3)
    x = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)[:, :3]
    runtime.call(cuda_device(0).load(kernel), [x], [])
    words = np.frombuffer(player.launches[-1].params[0], np.uint64)
    assert words[3:6].tolist() == [3, 40, 16]


def test_tensor_maps_are_fast(player: Player, torch: Any) -> None:
    kernel = tile_kernel(64, 128)
    loaded = cuda_device(0).load(kernel)
    fast = FastCalls()
    x = torch.zeros(64, 128)
    fast.learn((x,), None, loaded, first)
    before = count(ENCODES)
    assert fast((x,)) is not MISS
    encoded = count(ENCODES)
    assert encoded <= before + 2  # the input's and the output's
    for _ in range(3):
        assert fast((x,)) is not MISS
    assert count(ENCODES) == encoded
    y = torch.zeros(64, 128)
    fast((y,))
    assert count(ENCODES) == encoded + 1
    words = np.frombuffer(player.launches[-1].params[0], np.uint64)
    assert words[2] == y.data_ptr()


def test_one_array_in_three_places(player: Player, torch: Any) -> None:
    one = scale()
    array = dataclasses.replace(one.arrays[0], written=True)
    kernel = dataclasses.replace(
        one,
        ptx=one.ptx.replace("scale", "three"),
        entry="three",
        arrays=(array, array, array),
        inputs=2,
        overlaps=((0, 2), (1, 2)),
        params=(*(PointerParam(i) for i in range(2)), ScalarParam(0, float32)),
    )
    fast = FastCalls()
    x = torch.zeros(32)
    fast.learn((x, x, 2.0), x, cuda_device(0).load(kernel), first)
    assert fast((x, x, 2.0), x) is x
    assert fast((x, x.clone(), 2.0), x) is MISS
    assert fast((x, x.clone(), 2.0), torch.zeros(32)) is MISS


@pytest.mark.parametrize("compared", [True, False])
def test_fast_calls_with_and_without_the_frameworks_own_comparison(
    player: Player, torch: Any, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    from kernel_dsl.runtime.arrays.interop import torch as interop

    assert interop._can_compare(), "this torch's guards are not what they were"
    if not compared:
        monkeypatch.setattr(interop, "_can_compare", lambda: False)
    loaded = cuda_device(0).load(scale())
    fast = FastCalls()
    x, out = torch.from_numpy(X.copy()), torch.zeros(32)
    fast.learn((x, 2.0), out, loaded, first)
    assert fast((x, 3.0), out) is out
    np.testing.assert_array_equal(out.numpy(), X * 3)
    for other in (
        x[:16],
        x.double(),
        x.clone().requires_grad_(),
        torch.zeros(33)[1:],
        torch.zeros(64)[::2],
    ):
        assert fast((other, 3.0), out) is MISS
        assert fast((x, 3.0), other) is MISS
    with torch.inference_mode():
        made = torch.from_numpy(X + 1)
        assert fast((made, 3.0), out) is out, "tensors that only the long look finds alike"
    np.testing.assert_array_equal(out.numpy(), (X + 1) * 3)


def test_an_interrupted_launch_leaves_the_fast_way_open(player: Player, torch: Any) -> None:
    fast = FastCalls()
    x, out = torch.from_numpy(X.copy()), torch.zeros(32)
    fast.learn((x, 2.0), out, cuda_device(0).load(scale()), first)
    desks = fast.latest.__globals__["desks"]
    for scalar in (2.0, 3.0, 4.0):
        desks.clear()  # what an interrupt between taking one and putting it back does
        assert fast((x, scalar), out) is out
        assert len(desks) == 1
    np.testing.assert_array_equal(out.numpy(), X * 4)


def test_launches_that_come_again_are_kept_packed(player: Player, torch: Any) -> None:
    """Each is for its own stream, addresses and scalars, and passes no other array by."""
    held = torch.zeros(96)
    x, out = held[:32], held[32:64]
    x[:] = torch.from_numpy(X)
    fast = FastCalls()
    fast.learn((x, 2.0), out, cuda_device(0).load(scale()), first)
    packed = fast.latest.__globals__["packed"]
    for number, made in ((1, None), (2, 1), (3, 1)):
        assert fast((x, 2.0), out) is out
        assert len(packed) == 1 and sum(launch is not None for launch in packed.values()) == (made or 0), number
    again = calls(lambda: fast((x, 2.0), out))
    assert again < calls(lambda: fast((x, 5.0), out)), "no desk is taken, and nothing is packed"
    other, outs = torch.from_numpy(X + 1), (out, torch.zeros(32), out)
    for scalar, given, stream in ((3.0, x, None), (2.0, other, 4), (2.0, x, None)):
        for target in outs:
            assert fast((given, scalar), target, stream) is target
            assert player.launches[-1].stream == (stream or 11)
            np.testing.assert_array_equal(target.numpy(), given.numpy() * scalar)
    assert fast((x, 2.0), held[16:48]) is MISS, "shared memory"
    many = torch.zeros(4, 300, 32)
    for number in range(300):
        fast((x, 2.0), many[0, number])
    assert len(packed) == PACKED
    np.testing.assert_array_equal(many[0].numpy(), np.tile(X * 2, (300, 1)))


@pytest.fixture
def memory_left(torch: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An allocator that raises what the list holds, while it holds something."""
    from kernel_dsl.runtime.arrays.interop import torch as interop

    to_raise: list[Any] = []

    def limited(make: Any) -> Any:
        def allocate(*args: Any) -> Any:
            if to_raise:
                raise to_raise[-1]
            return make(*args)

        return allocate

    allocator, empty = interop.INTEROP.allocator, interop.INTEROP.empty
    monkeypatch.setattr(interop.INTEROP, "allocator", lambda *spec: limited(allocator(*spec)))
    monkeypatch.setattr(interop.INTEROP, "empty", limited(empty), raising=False)
    return to_raise


@pytest.mark.parametrize("stream", [None, 4])
def test_no_memory_for_an_output_of_a_fast_call(
    player: Player, torch: Any, memory_left: list[Any], stream: int | None
) -> None:
    fast = FastCalls()
    x = torch.from_numpy(X.copy())
    fast.learn((x, 2.0), None, cuda_device(0).load(scale()), first)
    said = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 128 bytes.")
    memory_left.append(said)
    launches = len(player.launches)
    with pytest.raises(OutOfMemoryError) as caught:
        fast((x, 2.0), None, stream)
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value, RuntimeError)
    assert caught.value.__cause__ is said and caught.value.context_survives
    assert caught.value.status == "CUDA_ERROR_OUT_OF_MEMORY"
    for part in ("no memory for output", "kernel 'scale'", "float32[32], 128 bytes", "on cuda:0", "Tried to allocate"):
        assert part in str(caught.value)
    memory_left[:] = [RuntimeError("something else")]
    with pytest.raises(RuntimeError, match="something else") as other:
        fast((x, 2.0), None, stream)
    assert other.value is memory_left[0], "only a lack of memory is worded anew"
    assert len(player.launches) == launches
    memory_left.clear()
    np.testing.assert_array_equal(fast((x, 2.0), None, stream).numpy(), X * 2)


def test_learning_a_call_takes_no_memory(player: Player, torch: Any, memory_left: list[Any]) -> None:
    """Its outputs may fill the GPU: another set of them may not fit, and would stay with the framework if it did."""
    fast = FastCalls()
    x = torch.from_numpy(X.copy())
    loaded = cuda_device(0).load(scale())
    memory_left.append(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    fast.learn((x, 2.0), None, loaded, first)
    memory_left.clear()
    np.testing.assert_array_equal(fast((x, 2.0)).numpy(), X * 2)


def test_a_fill_that_fails_in_a_fast_call(player: Player, torch: Any) -> None:
    fast = FastCalls()
    x = torch.from_numpy(X.copy())
    fast.learn((x, 2.0), None, cuda_device(0).load(scale(fill=2.5)), first)
    LIB.fake_fail(719)
    with pytest.raises(LaunchError, match=r"preparing kernel 'scale'.*CUDA_ERROR_LAUNCH_FAILED") as caught:
        fast((x, 2.0))
    assert not caught.value.context_survives
