"""Branches, loops, grids, persistent loops, scoped scratch, barriers between warpgroups, atomics."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random, run

Spec = kd.ShapeDtypeStruct


@given(
    lo=st.integers(-5, 5),
    hi=st.integers(-5, 8),
    step=st.sampled_from([1, 2, 3, -1, -2]),
    unroll=st.sampled_from([None, True, False, 1, 2, 3, 4, 7]),
)
def test_loop_visits_what_range_does(lo: int, hi: int, step: int, unroll: Any) -> None:
    """With bounds that are static, that are known at run time, and one of each."""

    @kd.kernel(out_type=Spec((4,), kd.int32, init=0), interpret=INTERPRET)
    def kernel(a: Any, b: Any, out: Any) -> None:
        for row, (low, high) in enumerate(((lo, hi), (a, b), (lo, b), (a, hi))):

            @kd.loop(low, high, step=step, unroll=unroll if row == 0 or unroll is not True else None)
            def _(i: Any, row: int = row) -> None:
                out[row] = out[row] * 3 + i

    want = 0
    for i in range(lo, hi, step):
        want = want * 3 + i
    np.testing.assert_array_equal(kernel(lo, hi), [want] * 4)


@pytest.mark.parametrize("count, copies", [(8, 4), (9, 5), (3, 1), (0, 1)])
def test_iterations_are_put_together(count: int, copies: int) -> None:
    """Four in a round, and those that are left in a loop of one. No mask appears that a plain loop has not."""

    @kd.kernel(out_type=Spec((16, 128), kd.float32))
    def kernel(x: Any, out: Any) -> None:
        value = x[0]
        kd.loop(0, count, unroll=4)(lambda i: out.__setitem__(i, kd.sin(value)))

    stages = kernel.lower(Spec((16, 128), kd.float32))
    assert str(stages).count("sin(") == copies
    assert str(stages).count(", true)}") == copies + 1, "each access is known to be inside"


def test_carries_of_iterations_that_are_put_together() -> None:
    def f(x: Any, n: Any) -> Any:
        return kd.fori_loop(0, n, lambda i, c: (c[1], c[0] * 2 + i), (x, x + 1), unroll=3)

    x = random((5, 30))
    for n in (0, 1, 2, 3, 7, 11):
        a, b = x.copy(), x + np.float32(1)
        for i in range(n):
            a, b = b, a * np.float32(2) + np.float32(i)
        got = run(f, x, np.int32(n))
        np.testing.assert_array_equal(got[0], a)
        np.testing.assert_array_equal(got[1], b)


def test_loops_carry_any_pytree() -> None:
    def body(i: Any, carry: Any) -> Any:
        a, (b, c) = carry["a"], carry["bc"]
        return {"a": a + b, "bc": (b * 2.0, c + i)}

    def f(x: Any) -> Any:
        out = kd.fori_loop(0, 4, body, {"a": x, "bc": (x, 0)})
        return out["a"], out["bc"][0], out["bc"][1]

    x = random((5, 30))
    a, b, c = run(f, x)
    want_a, want_b = x.copy(), x.copy()
    for _ in range(4):
        want_a, want_b = want_a + want_b, want_b * np.float32(2)
    np.testing.assert_array_equal(a, want_a)
    np.testing.assert_array_equal(b, want_b)
    assert c == 6


def test_nested_control_flow() -> None:
    @kd.kernel(out_type=Spec((), kd.int32), interpret=INTERPRET)
    def kernel(n: Any, out: Any) -> None:
        def outer(i: Any, total: Any) -> Any:
            def inner(state: Any) -> Any:
                j, t = state
                return j + 1, kd.cond((i + j) % 2 == 0, lambda t: t + j, lambda t: t - i, t)

            return kd.while_loop(lambda s: s[0] < i, inner, (0, total))[1]

        out[...] = kd.fori_loop(0, n, outer, 0)

    want = 0
    for i in range(9):
        for j in range(i):
            want = want + j if (i + j) % 2 == 0 else want - i
    assert kernel(9) == want


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_switch_clamps(index: int) -> None:
    @kd.kernel(out_type=Spec((20,), kd.float32), interpret=INTERPRET)
    def kernel(i: Any, x: Any, out: Any) -> None:
        out[...] = kd.switch(i, [lambda v: v, lambda v: -v, lambda v: v * 3], x[...])

    x = random((20,))
    np.testing.assert_array_equal(kernel(index, x), (x, -x, x * np.float32(3))[min(max(index, 0), 2)])


def test_static_conditions_are_python() -> None:
    @kd.kernel(out_type=Spec((3,), kd.int32, init=0), interpret=INTERPRET)
    def kernel(out: Any) -> None:
        @kd.when(True)
        def _() -> None:
            out[0] = 1

        @kd.when(False)
        def _() -> None:
            out[1] = 1

        out[2] = kd.cond(False, lambda: 5, lambda: 6)

    np.testing.assert_array_equal(kernel(), [1, 0, 6])


@given(grid=st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_grids_of_any_rank(grid: tuple[int, ...]) -> None:
    names = tuple("abcd"[: len(grid)])

    @kd.kernel(out_type=Spec((*grid, 2), kd.int32), grid=grid, grid_names=names, interpret=INTERPRET)
    def kernel(out: Any) -> None:
        at = tuple(kd.axis_index(n) for n in names)
        linear: Any = 0
        for n, i in zip(names, at, strict=True):
            linear = linear * kd.axis_size(n) + i
        out[(*at, 0)] = linear
        out[(*at, 1)] = sum((kd.program_id(k) for k in range(len(grid))), start=0)

    got = kernel()
    size = int(np.prod(grid))
    np.testing.assert_array_equal(got[..., 0].ravel(), np.arange(size))
    np.testing.assert_array_equal(got[..., 1], sum(np.indices(grid)) if grid else 0)


@pytest.mark.parametrize("grid", [(0,), (3, 0), (0, 2)])
def test_an_empty_grid_launches_nothing(grid: tuple[int, ...]) -> None:
    @kd.kernel(out_type=Spec((4,), kd.float32, init=2), grid=grid, interpret=INTERPRET)
    def kernel(out: Any) -> None:
        out[...] = 1.0

    np.testing.assert_array_equal(kernel(), np.full(4, 2, np.float32))


@given(extents=st.tuples(st.integers(1, 6), st.integers(1, 7)), workers=st.integers(1, 5), tiled=st.booleans())
def test_nd_loop_visits_every_point_once(extents: tuple[int, int], workers: int, tiled: bool) -> None:
    tiling = (1, extents[1]) if tiled else None

    @kd.kernel(out_type=Spec(extents, kd.int32, init=0), grid=(workers,), grid_names=("sm",), interpret=INTERPRET)
    def kernel(out: Any) -> None:
        @kd.nd_loop(extents, collective_axes="sm", tiling=tiling)
        def _(step: Any) -> None:
            i, j = step.index
            out[i, j] = out[i, j] + i * 100 + j + 1

    np.testing.assert_array_equal(kernel(), np.indices(extents)[0] * 100 + np.indices(extents)[1] + 1)


@given(shape=st.tuples(st.integers(1, 6), st.integers(1, 9)), minor=st.integers(0, 1), width=st.integers(1, 4))
def test_planar_snake_is_a_permutation(shape: tuple[int, int], minor: int, width: int) -> None:
    size = shape[0] * shape[1]

    @kd.kernel(out_type=Spec((size, 2), kd.int32), grid=(size,), grid_names=("i",), interpret=INTERPRET)
    def kernel(out: Any) -> None:
        i = kd.axis_index("i")
        out[i, 0], out[i, 1] = kd.planar_snake(i, shape, minor, width)

    got = kernel()
    assert Counter(map(tuple, got.tolist())) == Counter((a, b) for a in range(shape[0]) for b in range(shape[1]))
    steps = np.abs(np.diff(got, axis=0))
    if size > 1:
        # within a strip one step moves one element; the width of a strip bounds the rest
        assert steps[:, minor].max() <= max(width, 1) * 2


def test_run_state() -> None:
    def update(refs: Any) -> None:
        a, b = refs
        a[...] = a[...] + b[...]
        b[1:] = a[:-1]

    x, y = random((17,)), random((17,), seed=1)
    a, b = run(lambda u, v: kd.run_state(update)((u, v)), x, y)
    np.testing.assert_array_equal(a, x + y)
    np.testing.assert_array_equal(b, np.concatenate([y[:1], (x + y)[:-1]]))


@pytest.mark.parametrize("schedule", ["eager", "late", "random"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_producer_and_consumer(schedule: str, stages: int) -> None:
    """A ring of buffers between two warpgroups, with full and empty barriers."""
    steps = 7

    @kd.kernel(
        out_type=Spec((steps, 64), kd.float32),
        num_threads=2,
        thread_name="wg",
        scratch_types=[
            kd.SMEM((stages, 64), kd.float32),
            kd.Barrier(num_barriers=stages),
            kd.Barrier(num_barriers=stages),
        ],
    )
    def kernel(x: Any, out: Any, ring: Any, full: Any, empty: Any) -> None:
        @kd.when(kd.axis_index("wg") == 0)
        def _() -> None:
            @kd.loop(0, steps)
            def _(i: Any) -> None:
                @kd.when(i >= stages)
                def _() -> None:
                    kd.barrier_wait(empty.at[i % stages])

                ring[i % stages] = x[i] * 2
                kd.barrier_arrive(full.at[i % stages])

        @kd.when(kd.axis_index("wg") == 1)
        def _() -> None:
            @kd.loop(0, steps)
            def _(i: Any) -> None:
                kd.barrier_wait(full.at[i % stages])
                out[i] = ring[i % stages]
                kd.barrier_arrive(empty.at[i % stages])

    x = random((steps, 64))
    got = kernel(x, interpret=kd.InterpretParams(schedule=schedule, seed=stages))
    np.testing.assert_array_equal(got, x * 2)


def test_a_missing_barrier_is_a_race() -> None:
    @kd.kernel(
        out_type=Spec((128,), kd.float32), num_threads=2, thread_name="wg", scratch_types=[kd.SMEM((128,), kd.float32)]
    )
    def kernel(x: Any, out: Any, buffer: Any) -> None:
        @kd.when(kd.axis_index("wg") == 0)
        def _() -> None:
            buffer[...] = x[...]

        @kd.when(kd.axis_index("wg") == 1)
        def _() -> None:
            out[...] = buffer[...]

    with pytest.raises(kd.HazardError) as caught:
        kernel(random((128,)), interpret=True)
    assert isinstance(caught.value, kd.Error)
    assert "buffer" in str(caught.value) and "test_control.py" in str(caught.value)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "float32", "float64"])
def test_atomic_add_of_every_lane(dtype: str) -> None:
    name = kd.dtypes.as_dtype(dtype)

    @kd.kernel(out_type=(Spec((), name, init=0), Spec((10,), name, init=0)), grid=(3,), interpret=INTERPRET)
    def kernel(x: Any, total: Any, columns: Any) -> None:
        v = x[kd.program_id(0)]
        kd.atomic_add(total, v.sum())
        kd.atomic_add(columns, v)

    x = random((3, 10), "int32").astype(dtype)
    total, columns = kernel(x)
    assert total == x.sum(dtype=dtype) and total.dtype == x.dtype
    np.testing.assert_array_equal(columns, x.sum(0, dtype=dtype))


def test_atomics_return_old_values_once_each() -> None:
    @kd.kernel(out_type=(Spec((), kd.int32, init=0), Spec((16,), kd.int32)), grid=(16,), interpret=INTERPRET)
    def kernel(counter: Any, tickets: Any) -> None:
        tickets[kd.program_id(0)] = kd.atomic_add(counter, 1)

    counter, tickets = kernel()
    assert counter == 16
    assert sorted(tickets.tolist()) == list(range(16))


def test_masked_and_out_of_range_atomics_do_nothing() -> None:
    @kd.kernel(out_type=Spec((10,), kd.int32, init=0), interpret=INTERPRET)
    def kernel(x: Any, out: Any) -> None:
        v = x[...]
        kd.atomic_add(out.at[kd.ds(5, 10)], v, mask=v > 3)

    x = np.arange(10, dtype=np.int32)
    want = np.zeros(10, np.int32)
    want[5:] = np.where(x[:5] > 3, x[:5], 0)
    np.testing.assert_array_equal(kernel(x), want)
