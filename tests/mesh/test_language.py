"""Kernels on several devices: remote loads, stores and atomics, device axes, semaphores, and calls with a list a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument, BadArgumentType, BadCallArgument
from kernel_dsl.errors_mesh import RanksDiffer

N = 256
SPEC = kd.ShapeDtypeStruct((N,), kd.float32)
PAIR = kd.Mesh(("x",), (2,))
GRID = kd.Mesh(("a", "b"), (2, 2))
SCHEDULES = [{"seed": 0}, {"seed": 5}, {"schedule": "eager"}, {"schedule": "late"}]


def inputs(size: int, n: int = N, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype(np.float32) for _ in range(size)]


def meet(sem: Any, axes: Any, devices: int) -> None:
    kd.semaphore_signal_multicast(sem, collective_axes=axes)
    kd.semaphore_wait(sem, devices)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_loads_come_from_the_device_that_is_named(schedule: dict[str, Any]) -> None:
    @kd.kernel(out_type=(SPEC, SPEC, SPEC), mesh=GRID)
    def gather(x: Any, static: Any, by_number: Any, by_axis: Any) -> None:
        me = kd.axis_index(("a", "b"))
        static[...] = kd.remote_ref(x, 3)[...]
        by_number[...] = kd.remote_ref(x, (me + 1) % 4)[...]
        by_axis[...] = kd.remote_ref(x, {"b": 1 - kd.axis_index("b")})[...]
        assert kd.axis_size("a") == 2 and kd.axis_size(("a", "b")) == 4

    xs = inputs(4)
    static, by_number, by_axis = gather(xs, interpret=kd.InterpretParams(devices=4, **schedule))
    for rank in range(4):
        assert np.array_equal(static[rank], xs[3])
        assert np.array_equal(by_number[rank], xs[(rank + 1) % 4])
        assert np.array_equal(by_axis[rank], xs[rank ^ 1])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_stores_and_atomics_go_to_the_device_that_is_named(schedule: dict[str, Any]) -> None:
    @kd.kernel(
        out_type=(SPEC, kd.ShapeDtypeStruct((4,), kd.int32, init=0)),
        mesh=PAIR,
        scratch_types=[kd.SemaphoreType.REGULAR],
    )
    def scatter(x: Any, out: Any, counts: Any, done: Any) -> None:
        peer = 1 - kd.axis_index("x")
        kd.remote_ref(out, peer)[...] = x[...] * 2
        kd.atomic_add(kd.remote_ref(counts, 0).at[2], 3, scope="sys")
        meet(done, "x", 2)

    xs = inputs(2)
    out, counts = scatter(xs, interpret=kd.InterpretParams(**schedule))
    assert np.array_equal(out.local(0), xs[1] * 2) and np.array_equal(out.local(1), xs[0] * 2)
    assert counts[0].tolist() == [0, 0, 6, 0] and counts[1].tolist() == [0, 0, 0, 0]


def test_views_and_shapes_of_remote_refs() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((5, 7), kd.float32), mesh=PAIR)
    def turned(x: Any, out: Any) -> None:
        other = kd.remote_ref(x.T, 1)
        out[...] = other[...]

    xs = [x.reshape(7, 5) for x in inputs(2, 35)]
    out = turned(xs, interpret=True)
    assert all(np.array_equal(o, xs[1].T) for o in out)


def test_strided_arrays_and_outputs_given() -> None:
    @kd.kernel(out_type=SPEC, mesh=PAIR)
    def other(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1 - kd.axis_index("x"))[...]

    wide = inputs(2, 2 * N)
    xs = [x[::2] for x in wide]
    outs = [np.zeros(N, np.float32) for _ in range(2)]
    result = other(xs, out=outs, interpret=True)
    assert result[0] is outs[0] and np.array_equal(outs[0], xs[1]) and np.array_equal(outs[1], xs[0])
    with pytest.raises(RanksDiffer, match=r"rank 0 has strides \(2,\), rank 1 \(1,\)"):
        other([xs[0], wide[1][:N]], interpret=True)


def test_in_place() -> None:
    @kd.kernel(out_type=SPEC, mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR])
    def swap(x: Any, out: Any, read: Any, done: Any) -> None:
        mine = x[...]
        meet(read, "x", 2)
        kd.remote_ref(out, 1 - kd.axis_index("x"))[...] = mine
        meet(done, "x", 2)

    xs = inputs(2)
    before = [x.copy() for x in xs]
    swap(xs, out=xs, interpret=True)
    assert np.array_equal(xs[0], before[1]) and np.array_equal(xs[1], before[0])


def test_symmetric_arrays() -> None:
    xs = kd.symmetric.empty((N,), kd.float32, PAIR, interpret=True)
    for rank, values in enumerate(inputs(2)):
        xs.local(rank)[...] = values

    @kd.kernel(out_type=SPEC, mesh=PAIR, interpret=True)
    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    out = copy(xs)
    assert xs.shape == (N,) and xs.dtype == kd.float32 and len(xs) == 2
    assert all(np.array_equal(out.local(i), xs.local(i)) for i in range(2))
    with pytest.raises(IndexError):
        xs.local(2)
    with pytest.raises(BadArgumentType, match="`local`: device='first'"):
        xs.local("first")  # pyright: ignore[reportArgumentType]


def test_elements_of_4_bits_are_bytes_on_a_mesh() -> None:
    """A call packs no arrays on a mesh, so it refuses them; the body takes the bytes' elements."""

    def copy(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1 - kd.axis_index("x"))[...]

    def widen(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1 - kd.axis_index("x")).bitcast(kd.int4)[...].astype(kd.int8)

    four, result = [np.zeros(4).astype(ml_dtypes.int4) for _ in range(2)], kd.ShapeDtypeStruct((4,), kd.int8)
    refused = kd.kernel(copy, out_type=result, mesh=PAIR, interpret=True)
    with pytest.raises(BadCallArgument, match="argument 0 is int4, on a mesh of 2 devices"):
        refused(four)
    with pytest.raises(BadCallArgument, match="argument 0 is uint4, on a mesh of 2 devices"):
        refused.lower(kd.ShapeDtypeStruct((4,), kd.uint4))
    with pytest.raises(BadCallArgument, match="output 0 is int4, on a mesh of 2 devices"):
        kd.kernel(copy, out_type=kd.ShapeDtypeStruct((4,), kd.int4), mesh=PAIR, interpret=True)(
            [np.zeros(4, np.int8) for _ in range(2)]
        )
    halves = [np.array([0x21, 0xC3], np.uint8), np.array([0x0F, 0x21], np.uint8)]
    out = kd.kernel(widen, out_type=result, mesh=PAIR, interpret=True)(halves)
    assert out[0].tolist() == [-1, 0, 1, 2] and out[1].tolist() == [1, 2, 3, -4]


def test_scalars_nests_and_fills() -> None:
    @kd.kernel(out_type={"a": SPEC, "b": kd.ShapeDtypeStruct((3,), kd.int32, init=7)}, mesh=PAIR, interpret=True)
    def scaled(pair: Any, factor: Any, out: Any) -> None:
        out["a"][...] = kd.remote_ref(pair["x"], 0)[...] * factor + pair["y"][...]

    xs, ys = inputs(2), inputs(2, seed=1)
    out = scaled({"x": xs, "y": ys}, 2.5)
    for rank in range(2):
        assert np.allclose(out["a"][rank], xs[0] * 2.5 + ys[rank]) and out["b"][rank].tolist() == [7, 7, 7]


def test_one_block_of_each_device_has_its_semaphores() -> None:
    """A block's semaphore is that of the same block on the peer."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((4,), kd.int32),
        grid=(4,),
        grid_names=("i",),
        mesh=PAIR,
        scratch_types=kd.SemaphoreType.REGULAR((2,)),
        interpret=True,
    )
    def counted(out: Any, sem: Any) -> None:
        i = kd.axis_index("i")
        kd.semaphore_signal(sem.at[1], i + 1, device_id={"x": 1 - kd.axis_index("x")})
        kd.semaphore_wait(sem.at[1], i + 1)
        out[i] = kd.semaphore_read(sem.at[1])

    assert [o.tolist() for o in counted()] == [[0] * 4] * 2


def test_the_trace_is_the_same_for_other_ranks_and_lowers_without_arrays() -> None:
    @kd.kernel(out_type=SPEC, mesh=PAIR)
    def other(x: Any, out: Any) -> None:
        out[...] = kd.remote_ref(x, 1)[...]

    stages = other.lower(SPEC)
    assert "remote_ref" in stages.ir_text and "ld.global" in stages.ptx
    assert other.lower([SPEC, SPEC]).ptx == stages.ptx


def test_no_map_of_a_kernel_on_a_mesh() -> None:
    @kd.kernel(out_type=SPEC, mesh=PAIR)
    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    with pytest.raises(kd.Error, match="a map of a kernel on a mesh"):
        kd.vmap(copy)


@pytest.mark.parametrize("device", [1.0, "x", True, [1], {"x": 0.5}], ids=str)
def test_a_device_id_that_is_none_names_the_function_that_was_called(device: Any) -> None:
    def refused(op: str, body: Any) -> None:
        kernel = kd.kernel(body, out_type=SPEC, mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR])
        with pytest.raises(BadArgumentType, match=f"`{op}`: device_id is "):
            kernel(inputs(2), interpret=True)

    refused("remote_ref", lambda x, out, sem: kd.remote_ref(x, device))
    refused("semaphore_signal", lambda x, out, sem: kd.semaphore_signal(sem, device_id=device))
    refused("async_copy", lambda x, out, sem: kd.async_copy(x, out, None, sem, device))


def test_no_graph_of_a_kernel_on_a_mesh() -> None:
    """It would run at once, and not at a replay."""

    @kd.kernel(out_type=SPEC, mesh=PAIR, interpret=True)
    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    xs = inputs(2)
    for call in (lambda: copy(xs), lambda: kd.library.all_reduce(xs, PAIR, interpret=True)):
        with pytest.raises(BadCallArgument, match=r"a kd\.Graph of a kernel on a mesh of 2 devices"), kd.Graph():
            call()
    assert np.array_equal(copy(xs)[1], xs[1])


def test_impossible_counts_and_axes() -> None:
    def kernel(body: Any) -> Any:
        made = kd.kernel(body, out_type=SPEC, mesh=PAIR, scratch_types=[kd.SemaphoreType.REGULAR], interpret=True)
        return lambda: made(inputs(2))

    for axes in ((), ("x", "x"), []):
        with pytest.raises(BadArgument, match="collective_axes="):
            kernel(lambda x, out, sem, axes=axes: kd.semaphore_signal_multicast(sem, collective_axes=axes))()
    with pytest.raises(BadArgument, match="value=-1"):
        kernel(lambda x, out, sem: kd.semaphore_wait(sem, -1))()
    wrong = "out_of_bounds: .*\n(?:.*\n)* *fix: the address 0 is that of a device id out of range"
    with pytest.raises(kd.HazardError, match=wrong):
        kernel(lambda x, out, sem: out.__setitem__(..., kd.remote_ref(x, kd.axis_index("x") + 1)[...]))()


def test_each_launch_on_a_mesh_begins_with_all_points_of_a_dynamic_loop() -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((6, 64), kd.float32),
        mesh=kd.Mesh(("x",), (2,)),
        interpret=True,
        grid=(6,),
        grid_names=("row",),
    )
    def doubled(x: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop("row")
        def _(info: Any) -> None:
            out[info.index[0]] = x[info.index[0]] * 2

    for value in (1, 2):
        xs = [np.full((6, 64), value + rank, np.float32) for rank in range(2)]
        for rank, out in enumerate(doubled(xs)):
            assert (out == 2 * (value + rank)).all()


def test_atomics_on_a_peer_have_the_scope_of_the_system() -> None:
    mesh = kd.Mesh(("x",), (3,))

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((8,), kd.int32, init=0),
        mesh=mesh,
        scratch_types=[kd.SemaphoreType.REGULAR, kd.SMEM((8,), kd.int32)],
    )
    def count(x: Any, out: Any, came: Any, own: Any) -> None:
        own[...] = x[...]
        kd.atomic_max(own, 2)
        kd.atomic_add(kd.remote_ref(out, 0), own[...])
        kd.semaphore_signal(came, device_id=0)
        kd.when(kd.axis_index("x") == 0)(lambda: kd.semaphore_wait(came, 3))

    xs = [np.full(8, rank + 1, np.int32) for rank in range(3)]
    for seed in range(3):
        assert (count(xs, interpret=kd.InterpretParams(seed=seed))[0] == 7).all()
    ptx = count.lower(kd.ShapeDtypeStruct((8,), kd.int32), target="sm_90a").ptx
    assert "red.relaxed.sys.global.add" in ptx and "red.relaxed.gpu.shared.max" in ptx
