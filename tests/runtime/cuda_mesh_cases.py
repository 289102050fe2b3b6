"""Kernels on a mesh of the two GPUs of a driver without a GPU: see `cuda_cases.py`."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import mesh_kernel
from kernel_dsl.dtypes import float32, int32, int64, uint8
from kernel_dsl.errors_mesh import Unreachable
from kernel_dsl.library.collectives import reductions as collectives
from kernel_dsl.mesh import TEXT_BYTES, TEXTS
from kernel_dsl.runtime.arrays.array_view import ArrayView, row_major
from kernel_dsl.runtime.devices import memory, reports
from kernel_dsl.runtime.errors import CudaError
from kernel_dsl.runtime.mesh import cuda
from tests.speed import on_the_reference

from . import fake_cupy
from .fake import CALLBACK, LAUNCHES, LIB, Launch, count

N = 64
PAIR = kd.Mesh(("x",), (2,))


def at(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What lies there."""
    return memory.host_array(ArrayView(address, shape, row_major(shape), dtype, ("cpu", 0), ""))


class Played:
    """Plays a kernel that gives each rank its peer's array plus its own output's fill, by the table of addresses."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.ranks: list[int] = []

    def __call__(self, *got: Any) -> int:
        launch = Launch(*got)
        self.launches.append(launch)
        numbers = [int.from_bytes(p, "little", signed=True) for p in launch.params]
        rank, peers, x, out, semaphores = numbers
        self.ranks.append(rank)
        table = at(peers, (4, 2), int64)
        assert table[:3, rank].tolist() == [x, out, semaphores]
        assert not at(int(table[3, rank]), (reports.NBYTES,), uint8).any()
        assert not at(semaphores, (16,), int32).any()
        at(out, (N,), float32)[...] += at(int(table[0, 1 - rank]), (N,), float32)
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels are loaded as PTX, of which the driver reads the parameters."""
    monkeypatch.setattr(mesh_kernel, "load", lambda stages, device: device.load(stages.kernel))
    made = Played()
    callback = CALLBACK(made)
    LIB.fake_callback(callback)
    yield made
    LIB.fake_callback(CALLBACK())


def kernel() -> Any:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32, init=5), mesh=PAIR)
    def other(x: Any, out: Any) -> None:
        out[...] = out[...] + kd.remote_ref(x, 1 - kd.axis_index("x"))[...]

    return other


def test_a_launch_on_each_with_the_peers_addresses(played: Played) -> None:
    xs = [np.arange(N, dtype=np.float32), np.arange(N, dtype=np.float32) * 3]
    k = kernel()
    for _ in range(3):
        out = k(xs)
        assert np.array_equal(out[0], xs[1] + 5) and np.array_equal(out[1], xs[0] + 5)
    assert played.ranks == [0, 1] * 3
    assert len({launch.params[4] for launch in played.launches}) == 2, "the semaphores stay where they are"
    assert LIB.fake_reached() == 2, "each GPU was told once that it reaches the other"


def test_arrays_of_the_gpus_stay_there(played: Played) -> None:
    xs = kd.symmetric.empty((N,), kd.float32, PAIR)
    assert [x.device for x in xs] == [("cuda", 0), ("cuda", 1)]
    for rank, x in enumerate(xs):
        at(x.view().address, (N,), float32)[...] = rank + 1
    outs = kd.symmetric.empty((N,), kd.float32, PAIR)
    assert kernel()(xs, out=outs)[0] is outs[0]
    assert outs[0].numpy()[3] == 7 and outs[1].numpy()[3] == 6
    made = kernel()(xs)
    assert made.local(1).device == ("cuda", 1) and made.local(1).numpy()[0] == 6
    with pytest.raises(kd.Error, match="ranks 0 and 1 both have their arrays on cuda:1"):
        kernel()([xs[1], made[1]])
    with pytest.raises(kd.Error, match=r"belong to generic \(array 0\) and numpy \(array 1\)"):
        kernel()([xs[0], np.ones(N, np.float32)])


def test_strided_host_arrays_and_streams(played: Played) -> None:
    wide = np.arange(4 * N, dtype=np.float32).reshape(2, 2 * N)
    outs = [np.zeros(N, np.float32) for _ in range(2)]
    kernel()([wide[0, :N], wide[1, :N]], out=outs, stream=[0x70, 0x71])
    assert np.array_equal(outs[0], wide[1, :N] + 5) and [launch.stream for launch in played.launches] == [0x70, 0x71]
    with pytest.raises(kd.Error, match="a list of 2 streams"):
        kernel()([wide[0, :N], wide[1, :N]], stream=0x70)


def test_gpus_that_do_not_reach_each_other(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_reached", set())
    LIB.fake_apart(1)
    try:
        with pytest.raises(Unreachable, match="rank 0 can't reach the memory of rank 1"):
            kernel()([np.ones(N, np.float32), np.ones(N, np.float32)])
    finally:
        LIB.fake_apart(0)
    assert not played.launches


def arrays(*shape: int, value: float = 0) -> list[Any]:
    """A CuPy array on each GPU."""
    made = [fake_cupy.ndarray(np.full(shape or (N,), value + rank, np.float32)) for rank in range(2)]
    for rank, array in enumerate(made):
        array.data.device_id = array.device.id = rank
    return made


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = fake_cupy.install(monkeypatch)
    from kernel_dsl.runtime.arrays.interop import cupy as interop

    monkeypatch.setattr(interop, "cupy", module)
    monkeypatch.setattr(interop.INTEROP, "current_stream", lambda index: 0x50 + index, raising=False)
    return module


def test_calls_like_earlier_ones_take_the_fast_path(played: Played, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    k, xs, outs = kernel(), arrays(value=1), arrays()
    first = k(xs, out=outs)
    assert [o.host[0] for o in outs] == [7, 6]
    monkeypatch.setattr(k, "_slow_call", None)
    again, others = arrays(value=4), arrays()
    for _ in range(2):
        assert k(again, out=others) == k(kd.symmetric.Symmetric(again, PAIR), out=tuple(others)) == others
        assert [o.host[0] for o in others] == [10, 9], "filled anew, and the peer's array added"
    assert type(k(xs, out=outs)) is type(first)
    assert [launch.stream for launch in played.launches] == [0x50, 0x51] * (len(played.launches) // 2)
    k(xs, out=outs, stream=[0x60, 0x61])
    assert [launch.stream for launch in played.launches[-2:]] == [0x60, 0x61]
    assert played.launches[-1].params[4] != played.launches[0].params[4], (
        "each set of streams has semaphores of its own"
    )


def test_what_is_not_like_earlier_calls_goes_the_full_way(played: Played, cupy: Any) -> None:
    k, xs, outs = kernel(), arrays(value=1), arrays()
    k(xs, out=outs)
    with pytest.raises(kd.Error, match="ranks 0 and 1 both have their arrays on cuda:0"):
        k([xs[0], xs[0]], out=outs)
    with pytest.raises(kd.Error, match="rank 0 has float32"):
        k([xs[0], arrays(N + 1)[1]], out=outs)
    with pytest.raises(kd.Error, match="a list of 1 array"):
        k(xs[:1], out=outs)
    with pytest.raises(kd.Error, match="was made for"):
        k(kd.symmetric.Symmetric(xs, kd.Mesh(("y",), (2,))), out=outs)
    with pytest.raises(kd.Error, match="it is output 0 too on rank 0, and not on rank 1"):
        k(xs, out=[xs[0], outs[1]])
    with pytest.raises(kd.Error, match="a list of 2 streams"):
        k(xs, out=outs, stream=[0x70])
    before = len(played.launches)
    k(xs, out=outs)
    assert len(played.launches) == before + 2


def test_what_a_fast_call_costs_the_host(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 15 us a device, and 10 where the devices do not meet."""
    monkeypatch.setattr(mesh_kernel, "load", lambda stages, device: device.load(stages.kernel))

    @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), mesh=PAIR)
    def other(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1 - kd.axis_index("x"))[...]

    xs, outs = arrays(), arrays()
    for meets, most in ((True, 15), (False, 10)):
        other.meets = meets
        other._kept.clear()
        other._fast = None
        other(xs, out=outs)

        def calls() -> None:
            before = count(LAUNCHES)
            for _ in range(50):
                other(xs, out=outs)
            assert count(LAUNCHES) == before + 100

        took = on_the_reference(calls, 100 * most * 1e-6) / 100 * 1e6
        print(f"meets={meets}: {took:.1f} us a device")
        assert took <= most


def calls_of(function: Any) -> int:
    """How many calls, of Python and of C, `function()` makes."""
    made = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return made


def test_what_a_call_of_the_library_costs_the_host(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No array is examined but by the kernel's fast path. Calls are counted: the figure is the same on each machine."""
    monkeypatch.setattr(mesh_kernel, "load", lambda stages, device: device.load(stages.kernel))
    xs, ys, outs = arrays(value=1), arrays(value=2), arrays()
    for array in (xs, ys):
        kd.library.all_reduce(array, PAIR, out=outs)
    assert calls_of(lambda: kd.library.all_reduce(ys, PAIR, out=outs)) <= 85
    with monkeypatch.context() as patch:
        patch.setattr(collectives, "described", None)
        before = count(LAUNCHES)
        assert [o is out for o, out in zip(kd.library.all_reduce(xs, PAIR, out=outs), outs, strict=True)] == [True] * 2
        assert count(LAUNCHES) == before + 2
        with pytest.raises(kd.Error):
            kd.library.all_reduce(arrays(N + 1), PAIR, out=outs)
    wide = arrays(N, 2)
    with pytest.raises(kd.Error, match="one-shot in place"):
        kd.library.all_reduce(xs, PAIR, out=xs, algorithm="one-shot")
    with pytest.raises(kd.Error):
        kd.library.all_reduce(xs, PAIR, out=wide)


def test_what_a_kernel_wrote_before_it_ended_stands_in_the_error(played: Played, capfd: Any) -> None:
    k, xs = kernel(), [np.ones(N, np.float32), np.ones(N, np.float32)]
    k(xs)
    data = at(reports.address_of(1, None), (TEXTS, TEXT_BYTES), uint8)
    text = b"kernel 'other' in block {block} waited for 2 s for 'arrived'{[10:2x3]} to reach {value}"
    data[5, : len(text)] = np.frombuffer(text, np.uint8)
    data[5, -32:] = np.array([4, 5, 0, 0, 1, 3, 10 + 6 + 4, 2 + 4 * (1 + 5 * 7)], np.int32).view(np.uint8)
    LIB.fake_fail(719)
    try:
        with pytest.raises(CudaError) as caught:
            k(xs)
        told = "rank 1: kernel 'other' in block (2, 1, 7) waited for 2 s for 'arrived'[1, 1] to reach 3; it was 1"
        assert told in str(caught.value)
        data[6, :2] = np.frombuffer(b"no", np.uint8)
        reports._at_the_end()
        assert capfd.readouterr().err == "rank 1: no; it was 0\n", "what no error told is told at the end"
    finally:
        LIB.fake_fail(0)
        data[...] = 0
