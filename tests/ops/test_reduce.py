"""Reductions and scans against NumPy: shapes, axes, keepdims, accumulation, NaN, ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from tests import compare
from tests.ops.harness import random, run

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple) | st.tuples(
    st.integers(1, 9), st.integers(1, 200)
)


@given(shape=shapes, data=st.data())
def test_sum_and_max_over_any_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = tuple(data.draw(st.sets(st.integers(-len(shape), len(shape) - 1), min_size=1).map(sorted)))
    if len({a % len(shape) for a in axes}) < len(axes):
        axes = axes[:1]
    keep = data.draw(st.booleans())
    x = random(shape)
    wide = x.astype(np.float64)
    got = run(lambda v: kd.sum(v, axis=axes, keepdims=keep), x)
    bound = 2.0**-22 * np.abs(wide).sum(axis=axes, keepdims=keep)
    assert got.dtype == np.float32 and np.all(np.abs(got - wide.sum(axis=axes, keepdims=keep)) <= bound)
    np.testing.assert_array_equal(run(lambda v: v.max(axes, keepdims=keep), x), x.max(axis=axes, keepdims=keep))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_accumulate_in_float32(dtype: str) -> None:
    # in the narrow dtype this sum would stop growing
    x = np.ones(5000, kd.dtypes.as_dtype(dtype).numpy)
    got = run(kd.sum, x)
    assert got.dtype == x.dtype and got == np.asarray(5000.0).astype(x.dtype)
    assert run(lambda v: kd.sum(v, dtype=kd.float32), x) == 5000


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        ("bool", "int32"),
        ("int8", "int32"),
        ("uint8", "uint32"),
        ("int16", "int32"),
        ("int64", "int64"),
        ("uint32", "uint32"),
    ],
)
def test_integers_accumulate_wide_and_wrap(dtype: str, result: str) -> None:
    x = random((300,), dtype) if dtype == "bool" else np.full(300, np.iinfo(dtype).max, dtype)
    got = run(kd.sum, x)
    assert got.dtype == np.dtype(result)
    np.testing.assert_array_equal(got, x.astype(result).sum(dtype=result))


def test_nan_wins_in_max_and_min() -> None:
    x = random((4, 50))
    x[2, 17] = np.nan
    for f, reference in ((kd.max, np.max), (kd.min, np.min)):
        np.testing.assert_array_equal(run(lambda v, f=f: f(v, axis=1), x), reference(x, axis=1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_arg_reductions_give_the_first(name: str, axis: Any) -> None:
    x = np.random.default_rng(3).integers(0, 4, (7, 60)).astype(np.float32)
    for special in (False, True):
        if special:
            x[3, 20] = x[5, 20] = np.nan
        got = run(lambda v: getattr(kd, name)(v, axis=axis), x)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis=axis))


def test_mean_and_var() -> None:
    x = random((9, 111))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(run(lambda v: kd.mean(v, axis=1), x), wide.mean(1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(run(lambda v: kd.var(v, axis=0), x), wide.var(0), rtol=1e-5)
    assert run(kd.mean, random((8,), "int32")).dtype == np.float32


def test_any_all_prod() -> None:
    x = random((6, 40), "bool")
    np.testing.assert_array_equal(run(lambda v: kd.any(v, axis=1), x), x.any(1))
    np.testing.assert_array_equal(run(lambda v: kd.all(v, axis=0), x), x.all(0))
    y = (1 + random((12,)) / 8).astype(np.float32)
    np.testing.assert_allclose(run(kd.prod, y), y.astype(np.float64).prod(), rtol=1e-5)


def test_empty_sums_are_zero() -> None:
    x = np.zeros((3, 0), np.float32)
    np.testing.assert_array_equal(run(lambda v: kd.sum(v, axis=1), x), np.zeros(3, np.float32))
    np.testing.assert_array_equal(run(lambda v: kd.sum(v, axis=0), x), np.zeros(0, np.float32))


@given(shape=shapes, data=st.data())
def test_scans(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = random(shape, "int32")
    sums, largest = run(lambda v: (kd.cumsum(v, axis=axis), kd.cummax(v, axis=axis)), x)
    np.testing.assert_array_equal(sums, np.cumsum(x, axis=axis, dtype=np.int32))
    np.testing.assert_array_equal(largest, np.maximum.accumulate(x, axis=axis))


@given(n=st.integers(1, 160), data=st.data())
def test_sort_and_argsort(n: int, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "int32", "int8", "bfloat16", "uint64"]))
    x = random((3, n), dtype, seed=n)
    if dtype == "float32" and n > 4:
        x[1, 2] = x[2, 0] = np.nan
        x[0, 1] = -0.0
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    ordered, places = run(lambda v: (kd.sort(v), kd.argsort(v)), x)
    np.testing.assert_array_equal(ordered.astype(wide.dtype), np.sort(wide, axis=-1))
    np.testing.assert_array_equal(places, np.argsort(wide, axis=-1, kind="stable"))


def test_a_row_over_several_warpgroups() -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((5,), kd.float32),
        grid=(5,),
        grid_names=("row",),
        num_threads=3,
        thread_name="wg",
        scratch_types=[kd.SMEM((3,), kd.float32), kd.Barrier(num_arrivals=3)],
    )
    def total(x: Any, out: Any, parts: Any, barrier: Any) -> None:
        row, wg = kd.axis_index("row"), kd.axis_index("wg")
        parts[wg] = x[row, kd.ds(wg * 100, 100)].sum()
        kd.barrier_arrive_and_wait(barrier)

        @kd.when(wg == 0)
        def _() -> None:
            out[row] = parts[...].sum()

    x = random((5, 280))
    for seed in range(3):
        got = total(x, interpret=kd.InterpretParams(seed=seed))
        np.testing.assert_allclose(got, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)


def test_agreement_is_strict() -> None:
    with pytest.raises(AssertionError):
        compare.agree(np.float32([1.0, 2.0]), np.array([1.0, 2.0000005]), ulps=1)
