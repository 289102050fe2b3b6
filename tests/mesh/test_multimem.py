"""Multicast addresses: loads that reduce over devices and stores to all of them, compiled and interpreted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.dtypes import DType
from kernel_dsl.errors_mesh import NoMulticast, NotSymmetric

PAIR = kd.Mesh(("x",), (2,))
GRID = kd.Mesh(("a", "b"), (2, 2))
N = 1024
FLOATS = [kd.float32, kd.float64, kd.float16, kd.bfloat16]
INTS = [kd.int32, kd.uint32, kd.uint64]
OPS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
CASES = [
    *(("add", dtype) for dtype in [*FLOATS, *INTS]),
    *((op, dtype) for op in ("min", "max") for dtype in [*INTS, kd.int64, kd.float16, kd.bfloat16]),
    *((op, dtype) for op in ("and", "or", "xor") for dtype in [*INTS, kd.int64]),
]


def reduction(op: str, dtype: DType, mesh: kd.Mesh = PAIR, shape: tuple[int, ...] = (N,), part: Any = ...) -> Any:
    """Each device gets the reduction of a part of all arrays, and gives it to all in another output."""

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct(shape, dtype, init=0), kd.ShapeDtypeStruct((mesh.size, *shape), dtype, init=0)),
        scratch_types=[kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR],
        mesh=mesh,
    )
    def kernel(x: Any, mine: Any, every: Any, begin: Any, end: Any) -> None:
        kd.semaphore_signal_multicast(begin, collective_axes=mesh.names)
        kd.semaphore_wait(begin, mesh.size)
        total = kd.multimem_load_reduce(x.at[part], collective_axes=mesh.names, reduction_op=op)
        mine[part] = total
        target = every.at[kd.axis_index(mesh.names)].at[part]
        kd.multimem_store(total, target, collective_axes=mesh.names)
        kd.semaphore_signal_multicast(end, collective_axes=mesh.names)
        kd.semaphore_wait(end, mesh.size)

    return kernel


def inputs(dtype: DType, mesh: kd.Mesh, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    if dtype.is_float:
        return [rng.standard_normal(shape).astype(dtype.numpy) for _ in range(mesh.size)]
    info = np.iinfo(dtype.numpy)
    return [rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True) for _ in range(mesh.size)]


def expected(op: str, xs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    half = xs[0].dtype in (np.float16, ml_dtypes.bfloat16) and op == "add"
    total = xs[0].astype(np.float32) if half else xs[0]
    with np.errstate(over="ignore"):
        for x in xs[1:]:
            total = OPS[op](total, x.astype(total.dtype))
    return total.astype(xs[0].dtype)


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
@pytest.mark.sampled(4)
def test_reductions_of_all_dtypes(op: str, dtype: DType) -> None:
    xs = inputs(dtype, PAIR, (N,))
    mine, every = reduction(op, dtype)(xs, interpret=True)
    want = expected(op, xs)
    for device in range(2):
        assert np.array_equal(mine[device], want)
        assert all(np.array_equal(every[device][other], want) for other in range(2))


@pytest.mark.parametrize("schedule", [{"seed": 3}, {"schedule": "eager"}, {"schedule": "late"}], ids=str)
def test_parts_with_ends_on_four_devices(schedule: dict[str, Any]) -> None:
    shape, part = (5, 150), (slice(1, 4), slice(2, 137))
    xs = inputs(kd.float32, GRID, shape)
    mine, every = reduction("add", kd.float32, GRID, shape, part)(xs, interpret=kd.InterpretParams(**schedule))
    want = np.zeros(shape, np.float32)
    want[part] = expected("add", xs)[part]
    for device in range(4):
        assert np.array_equal(mine[device], want)
        assert all(np.array_equal(every[device][other], want) for other in range(4))


def test_the_ptx() -> None:
    def ptx(dtype: DType, op: str = "add") -> str:
        return reduction(op, dtype).lower(np.zeros(N, dtype.numpy), target="sm_90a").ptx

    text = ptx(kd.bfloat16)
    assert "multimem.ld_reduce.weak.global.add.acc::f32.v4.bf16x2" in text and "multimem.st.weak.global.v4.f32" in text
    assert "multimem.ld_reduce.weak.global.add.v4.f32" in ptx(kd.float32)
    assert "multimem.ld_reduce.weak.global.max.s32" in ptx(kd.int32, "max")
    assert "multimem.st.weak.global.b64" in ptx(kd.uint64)


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
@pytest.mark.sampled(6)
def test_it_assembles(op: str, dtype: DType) -> None:
    assert reduction(op, dtype).lower(np.zeros(N, dtype.numpy), target="sm_90a").compile().cubin


def test_older_targets_have_none() -> None:
    with pytest.raises(kd.errors.TargetFeature, match="multimem"):
        reduction("add", kd.float32).lower(np.zeros(N, np.float32), target="sm_89").ptx  # noqa: B018


def test_what_is_refused() -> None:
    def load(**given: Any) -> Any:
        shape = given.pop("shape", (N,))
        dtype = given.pop("dtype", kd.float32)
        mesh = given.pop("mesh", PAIR)

        @kd.kernel(out_type=kd.ShapeDtypeStruct(shape, dtype), mesh=mesh, interpret=True)
        def kernel(x: Any, out: Any) -> None:
            out[...] = kd.multimem_load_reduce(x, **{"collective_axes": mesh.names, "reduction_op": "add", **given})

        return kernel([np.zeros(shape, dtype.numpy)] * mesh.size)

    with pytest.raises(kd.errors.BadArgument, match="reduction_op='mul'"):
        load(reduction_op="mul")
    with pytest.raises(kd.errors.UnknownAxis, match="'y'"):
        load(collective_axes="y")
    with pytest.raises(kd.errors.BadArgument, match="leaves out 'b'"):
        load(mesh=GRID, collective_axes="a")
    with pytest.raises(kd.errors.UnsupportedDType, match="uint64"):
        load(dtype=kd.int64)
    with pytest.raises(kd.errors.UnsupportedDType, match="'min' is for float16"):
        load(dtype=kd.float32, reduction_op="min")
    with pytest.raises(kd.errors.BadArgument, match="two by two"):
        load(dtype=kd.float16, shape=(33, 33))
    with pytest.raises(NotSymmetric):

        @kd.kernel(
            mesh=PAIR,
            interpret=True,
            out_type=kd.ShapeDtypeStruct((N,), kd.float32),
            scratch_types=[kd.SMEM((N,), kd.float32)],
        )
        def in_smem(x: Any, out: Any, smem: Any) -> None:
            kd.multimem_store(x[...], smem, collective_axes="x")

        in_smem([np.zeros(N, np.float32)] * 2)


def test_devices_that_do_not_map_each_other_have_none() -> None:
    xs = inputs(kd.float32, GRID, (N,))
    with pytest.raises(NoMulticast, match=r"\(0, 1\) and \(2, 3\) do not map"):
        reduction("add", kd.float32, GRID)(xs, interpret=kd.InterpretParams(mapped=((0, 1), (2, 3))))


def test_a_reader_that_does_not_wait_is_found() -> None:
    def run(waits: bool) -> Any:
        @kd.kernel(
            out_type=(kd.ShapeDtypeStruct((N,), kd.float32), kd.ShapeDtypeStruct((N,), kd.float32)),
            scratch_types=[kd.SemaphoreType.REGULAR],
            mesh=PAIR,
        )
        def kernel(x: Any, all_of: Any, out: Any, done: Any) -> None:
            @kd.when(kd.axis_index("x") == 0)
            def _() -> None:
                kd.multimem_store(x[...], all_of, collective_axes="x")

            kd.semaphore_signal_multicast(done, collective_axes="x")
            if waits:
                kd.semaphore_wait(done, 2)
            out[...] = all_of[...]
            if not waits:
                kd.semaphore_wait(done, 2)

        xs = [np.full(N, rank, np.float32) for rank in range(2)]
        for seed in range(8):
            _, out = kernel(xs, interpret=kd.InterpretParams(seed=seed))
        return out

    assert all((o == 0).all() for o in run(True))
    with pytest.raises(kd.HazardError) as caught:
        run(False)
    assert caught.value.kind in ("race_blocks", "uninitialised")
