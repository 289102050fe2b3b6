"""Sorts both ways with values that move along, the largest k, elements by indices and binary search, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from tests.language.test_convert import random_layout
from tests.ops.harness import WHERE, random, run

DTYPES = ["float32", "int32", "int8", "bfloat16", "uint64", "float64", "bool", "float8_e4m3fn", "uint16", "float16"]


def order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The indices that sort stably, NaN last, by the ranks of the numbers."""
    wide = x if x.dtype.kind in "iub" else x.astype(np.float64)
    ranks = np.searchsorted(np.unique(wide[wide == wide]), wide).astype(np.int64)
    ranks = np.where(wide == wide, -ranks if descending else ranks, x.size)
    return np.argsort(ranks, axis=axis, kind="stable")


def sample(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Few numbers, so that many are equal; among floats zeros of both signs, infinities and NaNs."""
    rng = np.random.default_rng(seed)
    x = random(shape, dtype, seed=seed)
    if x.dtype.kind in "iub":
        return np.where(rng.random(shape) < 0.5, x, x.dtype.type(1)).astype(x.dtype)
    for special in (0.0, -0.0, np.nan, -np.nan, *([] if dtype == "float8_e4m3fn" else [np.inf, -np.inf])):
        x = np.where(rng.random(shape) < 0.1, np.asarray(special).astype(x.dtype), x)
    return x.astype(x.dtype)


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple) | st.tuples(
    st.integers(1, 5), st.integers(1, 140)
)


@settings(max_examples=7)
@given(
    shape=shapes, dtype=st.sampled_from(DTYPES), descending=st.booleans(), seed=st.integers(0, 2**32), data=st.data()
)
def test_values_move_with_their_keys(
    shape: tuple[int, ...], dtype: str, descending: bool, seed: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, y = sample(shape, dtype, seed), random(shape, "int16", seed=seed + 1)
    layout = random_layout(shape, np.random.default_rng(seed))

    def everything(x: Any, y: Any) -> Any:
        x = kd.layout_cast(x, layout)
        both = kd.sort(x, y, axis=axis, descending=descending)
        return (*both, kd.argsort(x, axis, descending=descending), kd.sort(x, axis=axis, descending=descending))

    keys, values, indices, alone = run(everything, x, y)
    expected = order(x, axis, descending)
    np.testing.assert_array_equal(indices, expected)
    sorted_keys = np.take_along_axis(x, expected, axis)
    assert keys.tobytes() == sorted_keys.tobytes()  # every bit stays: of NaNs and zeros too
    np.testing.assert_array_equal(values, np.take_along_axis(y, expected, axis))
    wide = (lambda a: a) if x.dtype.kind in "iub" else (lambda a: a.astype(np.float64))
    np.testing.assert_array_equal(wide(alone), wide(sorted_keys))
    raw = f"u{x.dtype.itemsize}"  # and the elements are the same ones, zeros with their signs in order
    assert np.array_equal(np.sort(alone.view(raw), axis), np.sort(x.view(raw), axis))
    if x.dtype.kind not in "iub":
        signs = np.where(wide(alone) == 0, np.signbit(wide(alone)), -1).astype(np.int8)
        steps = np.diff(signs, axis=axis)
        zeros = np.diff(np.where(signs < 0, 1, 0), axis=axis) == 0
        wrong = (steps < 0) if descending else (steps > 0)
        assert not np.any(wrong & zeros & (np.take(signs, range(1, shape[axis]), axis) >= 0))


@WHERE
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.sampled(2)
def test_several_values(descending: bool, interpret: Any) -> None:
    x = sample((3, 200), "float32", 5)
    others = [random((3, 200), d, seed=6) for d in ("bool", "float64", "bfloat16")]
    got = run(lambda *a: kd.sort(*a, descending=descending), x, *others, interpret=interpret)
    expected = order(x, -1, descending)
    for a, b in zip(got, (x, *others), strict=True):
        assert a.tobytes() == np.take_along_axis(b, expected, -1).tobytes()


def test_edges() -> None:
    """Flattened, empty and of one element."""
    x = random((3, 5))
    flat = run(lambda a, b: kd.sort(a, b, axis=None, descending=True), x, -x)
    expected = np.sort(x.reshape(-1))[::-1]
    np.testing.assert_array_equal(flat[0], expected)
    np.testing.assert_array_equal(flat[1], -expected)
    assert run(lambda a: kd.sort(a, a)[1], np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert run(lambda a: kd.top_k(a, 1)[1], np.ones((4, 1), np.float32)).tolist() == [[0]] * 4
    assert [v.shape for v in run(lambda a: kd.top_k(a, 0), x)] == [(3, 0), (3, 0)]


@settings(max_examples=8)
@given(shape=shapes, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32), data=st.data())
def test_top_k(shape: tuple[int, ...], dtype: str, seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    x = sample(shape, dtype, seed)
    values, indices = run(lambda v: kd.top_k(v, k, axis), x)
    expected = np.take(order(x, axis, True), range(k), axis)
    np.testing.assert_array_equal(indices, expected)
    assert values.tobytes() == np.take_along_axis(x, expected, axis).tobytes()


@settings(max_examples=12)
@given(shape=shapes, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32), data=st.data())
def test_take_along_axis(shape: tuple[int, ...], dtype: str, seed: int, data: st.DataObject) -> None:
    """Indices of every dtype, out of range too, with dimensions that broadcast."""
    axis, rng = data.draw(st.integers(0, len(shape) - 1)), np.random.default_rng(seed)
    count = data.draw(st.integers(1, 9))
    others = [1 if rng.random() < 0.3 else n for n in shape]
    others[axis] = count
    kind = data.draw(st.sampled_from(["int32", "int8", "uint16", "int64", "uint64"]))
    index = rng.integers(-2 if kind.startswith("i") else 0, shape[axis] + 2, others).astype(kind)
    if kind == "int64":
        index.flat[0] = 2**32  # which is 0 in 32 bits
    x = random(shape, dtype, seed=3)
    wide = index.astype(np.int64) if kind != "uint64" else index
    good = (wide >= 0) & (wide < shape[axis])
    want = np.take_along_axis(x, np.where(good, wide, 0).astype(np.int64), axis)
    want = np.where(good, want, np.zeros((), x.dtype))
    layout = random_layout(tuple(others), rng)
    got = run(lambda v, i: kd.take_along_axis(v, kd.layout_cast(i, layout), axis), x, index)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@WHERE
def test_largest_of_rows_and_columns(dtype: str, interpret: Any) -> None:
    x = sample((6, 40), dtype, 11)
    got = run(lambda v: (*kd.top_k(v, 10), *kd.top_k(v, 3, 0)), x, interpret=interpret)
    for axis, k, values, indices in ((1, 10, *got[:2]), (0, 3, *got[2:])):
        expected = np.take(order(x, axis, True), range(k), axis)
        np.testing.assert_array_equal(indices, expected)
        assert values.tobytes() == np.take_along_axis(x, expected, axis).tobytes()


@WHERE
def test_static_and_flat_indices(interpret: Any) -> None:
    x = random((4, 6))
    static = np.array([[0, -1, 5], [1, 1, 1], [2, -6, 3], [0, 0, 0]])
    got = run(lambda v: (kd.take_along_axis(v, static), kd.take_along_axis(v, static[0], None)), x, interpret=interpret)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, static, -1))
    np.testing.assert_array_equal(got[1], x.reshape(-1)[static[0]])


@settings(max_examples=6)
@given(
    count=st.integers(0, 130),
    dtype=st.sampled_from(["float32", "int32", "uint8", "float16", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_searchsorted(count: int, dtype: str, seed: int) -> None:
    wide = (lambda a: a) if dtype in ("int32", "uint8") else (lambda a: a.astype(np.float64))
    table = sample((count,), dtype, seed)
    table = table[np.argsort(wide(table), kind="stable")]
    values = np.concatenate([sample((5, 9), dtype, seed + 1).reshape(-1), table[:30]])
    for side in ("left", "right"):
        got = run(lambda s, v, side=side: kd.searchsorted(s, v, side=side), table, values)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np.searchsorted(wide(table), wide(values), side=side))


@WHERE
def test_warpgroups_look_up_on_their_own(interpret: Any) -> None:
    """Each of three has a buffer of its own, and uses it again."""

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((3, 90), kd.float32), kd.ShapeDtypeStruct((3, 90), kd.int32)),
        num_threads=3, thread_name="wg", interpret=interpret,
    )  # fmt: skip
    def kernel(x: Any, keys: Any, places: Any) -> None:
        wg = kd.axis_index("wg")
        ordered, back = kd.sort(x[wg], kd.arange(90))
        keys[wg] = kd.take_along_axis(ordered, 89 - kd.arange(90))
        places[wg] = kd.searchsorted(ordered, x[wg]) + back * 0

    x = random((3, 90), seed=8)
    keys, places = kernel(x)
    np.testing.assert_array_equal(keys, np.sort(x, 1)[:, ::-1])
    np.testing.assert_array_equal(places, np.stack([np.searchsorted(np.sort(row), row) for row in x]))


@pytest.mark.parametrize("schedule", ["random", *(pytest.param(s, marks=pytest.mark.slow) for s in ("late", "eager"))])
def test_buffers_are_used_again(schedule: Any) -> None:
    """In a loop of two warpgroups, under every schedule: what one iteration reads the next one overwrites."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, 70), kd.int32), num_threads=2, thread_name="wg")
    def loops(x: Any, out: Any) -> None:
        wg = kd.axis_index("wg")

        def step(i: Any, v: Any) -> Any:
            moved = kd.sort(v % 7, v)[1]
            v = kd.take_along_axis(moved, (kd.arange(70) + i) % 70)
            return v + kd.searchsorted(kd.sort(v), v) + kd.associative_scan(kd.maximum, v)

        out[wg] = kd.fori_loop(0, 3, step, x[wg])

    x = np.random.default_rng(0).integers(0, 50, (2, 70)).astype(np.int32)
    expected = x.copy()
    for v in expected:
        for i in range(3):
            v[:] = np.roll(v[np.argsort(v % 7, kind="stable")], -i)
            v += (np.searchsorted(np.sort(v), v) + np.maximum.accumulate(v)).astype(np.int32)
    np.testing.assert_array_equal(loops(x, interpret=kd.InterpretParams(seed=1, schedule=schedule)), expected)
