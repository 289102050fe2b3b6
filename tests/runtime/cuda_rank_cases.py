"""Kernels on a mesh with one process a GPU, on the driver without a GPU: see `cuda_cases.py`. Both ranks are played here."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import mesh_kernel
from kernel_dsl.dtypes import float32, int64
from kernel_dsl.errors_mesh import NoMulticast, NotSymmetric, RanksDiffer, Unreachable
from kernel_dsl.runtime.mesh import rank_calls, rank_cuda, ranks
from tests.speed import on_the_reference

from . import fake_cupy
from .cuda_mesh_cases import N, at, calls_of
from .fake import CALLBACK, LIB, Launch

BARRIERS: list[int] = []
HANDLE, ZEROS = ranks.Ranks.handle, ranks.Ranks.zeros  # as they are, where the cases play others


def met(channel: int) -> None:
    BARRIERS.append(channel)


class Group:
    """One of two ranks, whose peer says the same as this one, or what `other` makes of it."""

    def __init__(self, rank: int) -> None:
        self.number = rank
        self.other: Any = lambda value: value
        self.asked = 0

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return 2

    def exchange(self, value: Any) -> list[Any]:
        self.asked += 1
        found = [value, value]
        found[1 - self.number] = self.other(value)
        return found


class Memory:
    """Torch's symmetric memory: pairs of arrays, one a rank, found by any address in them."""

    def __init__(self) -> None:
        self.pairs: list[list[Any]] = []
        self.arenas: list[Any] = []
        self.asked = 0

    def pair(self, *values: float, shape: tuple[int, ...] = (N,)) -> list[Any]:
        made = [fake_cupy.ndarray(np.full(shape, v, np.float32)) for v in values]
        for rank, array in enumerate(made):
            array.data.device_id = array.device.id = 0
            array.data_of = rank
            storage = SimpleNamespace(_cdata=id(array))  # as torch's tensors say whose memory it is
            array.untyped_storage = lambda storage=storage: storage
        self.pairs.append(made)
        return made

    def handle(self, own: ranks.Ranks, array: Any, op: str, what: str) -> Any:
        self.asked += 1
        for pair in self.pairs:
            if array is pair[own.rank]:
                # mapped elsewhere than where the array begins, as a part of a larger allocation is
                pointers = [a.data.ptr - 64 for a in pair]
                return SimpleNamespace(rank=own.rank, world_size=2, buffer_ptrs=pointers, barrier=met)
        raise ranks.not_symmetric(op, what)

    def zeros(self, own: ranks.Ranks, count: int, arrays: Any) -> Any:
        made = self.pair(0, 0, shape=(count,)) if not self.arenas else self.arenas.pop()
        if own.rank == 0:
            self.arenas.append(made)
        return made[own.rank]


def handle_of(memory: Memory) -> Any:
    def handle(own: ranks.Ranks, array: Any, op: str, what: str) -> Any:
        return memory.handle(own, array, op, what)

    return handle


def zeros_of(memory: Memory) -> Any:
    def zeros(own: ranks.Ranks, count: int, arrays: Any) -> Any:
        return memory.zeros(own, count, arrays)

    return zeros


class Played:
    """Plays a kernel that adds its peer's array to its output."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def __call__(self, *got: Any) -> int:
        launch = Launch(*got)
        self.launches.append(launch)
        rank, peers, x, out, semaphores = (int.from_bytes(p, "little", signed=True) for p in launch.params)
        table = at(peers, (6, 2), int64)
        assert table[:3, rank].tolist() == [x, out, semaphores] and table[1, 1 - rank] == 0, "only x is asked for"
        assert table[2, 1 - rank] and table[2, 1 - rank] != semaphores and table[3, rank] and not table[3, 1 - rank]
        at(out, (N,), float32)[...] = at(int(table[0, 1 - rank]), (N,), float32) + 5
        return 0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mesh_kernel, "load", lambda stages, device: device.load(stages.kernel))
    module = fake_cupy.install(monkeypatch)
    from kernel_dsl.runtime.arrays.interop import cupy as interop

    monkeypatch.setattr(interop, "cupy", module)
    monkeypatch.setattr(interop.INTEROP, "current_stream", lambda index: 0x50 + index, raising=False)
    memory = Memory()
    monkeypatch.setattr(ranks.Ranks, "handle", handle_of(memory))
    monkeypatch.setattr(ranks.Ranks, "zeros", zeros_of(memory))
    monkeypatch.setattr(rank_calls, "is_symmetric", lambda array: any(array is a for p in memory.pairs for a in p))
    monkeypatch.setattr(rank_cuda, "held", lambda array: array)
    monkeypatch.setattr(ranks.Ranks, "on_stream", lambda own, stream: nullcontext())
    made = Played()
    callback = CALLBACK(made)
    LIB.fake_callback(callback)
    yield SimpleNamespace(memory=memory, launches=made.launches)
    LIB.fake_callback(CALLBACK())


def kernel(group: Group, meets: bool = True) -> Any:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), mesh=kd.Mesh(("x",), (2,), group))
    def other(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1 - kd.axis_index("x"))[...] + 5

    other.meets = meets
    return other


def plain() -> Any:
    made = fake_cupy.ndarray(np.zeros(N, np.float32))
    return made


def test_each_rank_launches_its_part_with_the_peers_addresses(played: Any) -> None:
    xs = played.memory.pair(1, 2)
    groups = [Group(0), Group(1)]
    for rank in range(2):
        k, out = kernel(groups[rank]), plain()
        BARRIERS.clear()
        assert k(xs[rank], out=out) is out and out.host[3] == 7 - rank
        assert BARRIERS == [0, 0], "the ranks' streams meet before and after it"
        asked = groups[rank].asked
        again = plain()
        assert k(xs[rank], out=again) is again and again.host[0] == 7 - rank
        made = k(xs[rank])
        assert made.host[0] == 7 - rank and groups[rank].asked > asked, "another kind of call: the ranks agree again"
        asked = groups[rank].asked
        for _ in range(3):
            k(xs[rank], out=out)
            assert k(xs[rank]).host[0] == 7 - rank
        assert groups[rank].asked == asked, "after that no rank asks another"


def test_calls_like_earlier_ones_take_the_fast_path(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    k = kernel(Group(0), meets=False)
    xs, ys, out = played.memory.pair(1, 2), played.memory.pair(3, 4), plain()
    k(xs[0], out=out)
    k(xs[0])
    with monkeypatch.context() as patch:
        patch.setattr(k, "_slow_call", None)
        assert k(ys[0], out=out) is out and out.host[0] == 9
        assert k(ys[0]).host[0] == 9
        asked = played.memory.asked
        for _ in range(3):
            k(ys[0], out=out)
        assert played.memory.asked == asked, "where the peers have it is known"
    with pytest.raises(NotSymmetric, match="argument 0"):
        k(plain(), out=out)
    assert k(xs[0], out=out, stream=0x77) is out and played.launches[-1].stream == 0x77


def test_other_memory_at_the_same_address_is_looked_up(played: Any) -> None:
    """An array that is gone leaves its address to another one, which the peer has elsewhere."""
    k, out = kernel(Group(0), meets=False), plain()
    first = played.memory.pair(1, 2)
    for _ in range(2):
        k(first[0], out=out)
    second = played.memory.pair(1, 30)
    second[0].data.ptr = first[0].data.ptr
    assert k(second[0], out=out).host[0] == 35
    assert k(first[0], out=out).host[0] == 7 and k(second[0], out=out).host[0] == 35


def test_in_place_has_a_fast_path_of_its_own(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    k, out = kernel(Group(0), meets=False), plain()
    xs, ys = played.memory.pair(1, 2), played.memory.pair(3, 4)
    k(xs[0], out=xs[0])
    k(xs[0], out=out)
    with monkeypatch.context() as patch:
        patch.setattr(k, "_slow_call", None)
        assert k(ys[0], out=ys[0]).host[0] == 9 and k(ys[0], out=out).host[0] == 9
    with pytest.raises(kd.Error):
        k(ys[0], out=ys[0][1:])
    part = fake_cupy.ndarray(np.zeros(2 * N, np.float32))
    mine = part[:N]
    played.memory.pairs.append([mine, part[N:]])
    with monkeypatch.context() as patch:
        patch.setattr(k, "_slow_call", lambda *_: "looked at")
        assert k(mine, out=part[N // 2 : N // 2 + N]) == "looked at", "an output shares a part of an input"


def test_what_a_call_of_the_library_costs_the_host(played: Any) -> None:
    """Counted, as a call of Python or C is some 50 ns; and at most 15 us."""
    LIB.fake_callback(CALLBACK())
    group, xs, out = Group(0), played.memory.pair(1, 2), plain()
    call = lambda: kd.library.all_reduce(xs[0], group, out=out)  # noqa: E731
    call()
    asked = played.memory.asked
    counted = calls_of(call)
    print(f"{counted} calls")
    assert counted <= 45 and played.memory.asked == asked
    took = on_the_reference(lambda: [call() for _ in range(50)], 50 * 15e-6) / 50 * 1e6
    print(f"{took:.1f} us")
    assert took <= 15


class Nvshmem:
    """Of nvshmem4py what is asked of it: arrays, one a process, and where those of the peers are mapped."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.far, self.processes = memory, False, 2
        self.Teams, self.barriers = SimpleNamespace(TEAM_WORLD=0), list[int]()

    def barrier(self, team: int, stream: Any) -> None:
        self.barriers.append(stream.__cuda_stream__()[1])

    def my_pe(self) -> int:
        return 0

    def n_pes(self) -> int:
        return self.processes

    def get_peer_array(self, array: Any, peer_pe: int) -> Any:
        for pair in self.memory.pairs:
            if array is pair[0]:
                if self.far and peer_pe:
                    raise RuntimeError("no address")
                return pair[peer_pe]
        raise ValueError("not tracked by nvshmem")

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        made = self.memory.pair(0, 0, shape=shape)[0]
        made.fill = lambda value: None
        return made


def test_arrays_of_nvshmem4py(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Nvshmem(played.memory)
    monkeypatch.setitem(sys.modules, "nvshmem.core", package)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # imported, and the arrays are CuPy's all the same
    monkeypatch.setattr(ranks.Ranks, "handle", HANDLE)
    monkeypatch.setattr(ranks.Ranks, "zeros", ZEROS)
    monkeypatch.setattr(rank_calls, "is_symmetric", ranks.is_symmetric)
    k, xs, out = kernel(Group(0), meets=False), played.memory.pair(1, 2), plain()
    for _ in range(2):
        assert k(xs[0], out=out) is out and out.host[0] == 7
    assert not package.barriers and kernel(Group(0))(xs[0], out=out).host[0] == 7 and len(package.barriers) == 2
    package.far = True
    with pytest.raises(Unreachable, match="rank 0 can't reach the memory of rank 1: the memory of argument 0"):
        k(played.memory.pair(3, 4)[0], out=out)
    package.far, package.processes = False, 3
    with pytest.raises(NotSymmetric, match="process 0 of 3 and rank 0 of 2"):
        k(played.memory.pair(3, 4)[0], out=out)


def test_hosts_whose_memory_is_not_mapped(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(mesh_kernel, "load", lambda stages, device: seen.append(stages) or device.load(stages.kernel))
    tables: list[list[int]] = []

    def played_by(*got: Any) -> int:
        table = at(int.from_bytes(Launch(*got).params[1], "little", signed=True), (6, 2), int64)
        tables.append(table[1].tolist())
        return 0

    callback = CALLBACK(played_by)
    LIB.fake_callback(callback)
    x, out, there = played.memory.pair(1, 2)[0], played.memory.pair(0, 0), SimpleNamespace(all=True)
    real = ranks.Ranks.handle

    def handle(own: ranks.Ranks, array: Any, op: str, what: str) -> Any:
        made = real(own, array, op, what)
        if not there.all:
            made.buffer_ptrs[1] = 0
        return made

    monkeypatch.setattr(ranks.Ranks, "handle", handle)
    monkeypatch.setattr(rank_calls, "is_symmetric", lambda array: array in (x, out[0]))
    for mapped in (True, False):
        there.all = mapped
        mesh = kd.Mesh(("host",), (2,), Group(0), hosts="host")

        @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), mesh=mesh)
        def send(x: Any, out: Any) -> None:
            kd.async_copy(x, out, device_id=1 - kd.axis_index("host"))

        assert send(x, out=out[0]) is out[0]
        assert ("nvshmem_putmem_nbi" in seen[-1].ptx) is not mapped and (tables[-1][1] == 0) is not mapped
    LIB.fake_callback(CALLBACK())


def test_what_the_ranks_do_not_agree_on(played: Any) -> None:
    xs, group = played.memory.pair(1, 2), Group(0)
    group.other = lambda words: [(n, w.replace("[64]", "[65]")) for n, w in words]
    with pytest.raises(RanksDiffer, match=r"argument 0 .* rank 0 has float32\[64\], rank 1 float32\[65\]"):
        kernel(group)(xs[0])
    group.other = lambda words: [(n, w.replace("memory that is not symmetric", "symmetric memory")) for n, w in words]
    with pytest.raises(RanksDiffer, match="rank 0 has memory that is not symmetric, rank 1 symmetric memory"):
        kernel(group)(plain())
    assert not played.launches


def test_multicast_addresses_that_are_not_there(played: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), mesh=kd.Mesh(("x",), (2,), Group(0)))
    def joined(x: Any, out: Any) -> None:
        out[...] = kd.multimem_load_reduce(x, collective_axes="x", reduction_op="add")

    with pytest.raises(NoMulticast, match="argument 0 has no multicast address"):
        joined(played.memory.pair(1, 2)[0])
