"""Refs: slices, dynamic starts and strides, masks, fills, gathers and scatters, views, SMEM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random, types_of

Spec = kd.ShapeDtypeStruct


def load(x: np.ndarray, read: Any, *more: Any) -> np.ndarray:
    """What `read(ref, *more)` gives, stored to an output of its shape."""
    seen: list[Spec] = []

    @kd.kernel(out_type=())
    def probe(ref: Any, *rest: Any) -> None:
        value = read(ref, *rest)
        seen.append(Spec(value.shape, value.dtype))

    probe.lower(x, *more)

    @kd.kernel(out_type=seen[0], interpret=INTERPRET)
    def kernel(*refs: Any) -> None:
        refs[-1][...] = read(*refs[:-1])

    return kernel(x, *more)


@st.composite
def indexed(draw: Any) -> tuple[tuple[int, ...], Any]:
    """A shape of rank 1 to 5 and a NumPy index into it."""
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)))
    items: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "slice", "none"]))
        if kind == "int":
            items.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-extent - 2, extent + 2)
            step = draw(st.sampled_from([None, 1, 2, -1, 3, -2]))
            items.append(slice(draw(bound), draw(bound), step))
        else:
            items += [None, slice(None)]
    if draw(st.booleans()):
        items.append(Ellipsis)
    return shape, tuple(items)


@given(case=indexed())
def test_numpy_indexing(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    x = random(shape)
    np.testing.assert_array_equal(load(x, lambda r: r[index]), x[index])
    np.testing.assert_array_equal(load(x, lambda r: r[...][index]), x[index])


@given(case=indexed())
def test_numpy_stores(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    x = random(shape)
    part = random(x[index].shape, seed=1)

    @kd.kernel(out_type=Spec(shape, kd.float32, init=7), interpret=INTERPRET)
    def kernel(value: Any, out: Any) -> None:
        out[index] = value[...]

    want = np.full(shape, 7, np.float32)
    want[index] = part
    np.testing.assert_array_equal(kernel(part), want)


@given(
    extent=st.integers(1, 40), size=st.integers(0, 50), start=st.integers(-60, 60), step=st.sampled_from([1, 2, -1, 5])
)
def test_ds_is_masked_static_and_dynamic(extent: int, size: int, start: int, step: int) -> None:
    x = random((extent,))
    at = start + step * np.arange(size)
    inside = (at >= 0) & (at < extent)
    want = np.where(inside, x[np.where(inside, at, 0)], np.float32(-3))
    fixed = load(x, lambda r: kd.load(r, kd.ds(start, size, step), fill=-3.0))
    moving = load(x, lambda r, s: kd.load(r, kd.ds(s, size, step), fill=-3.0), np.int32(start))
    np.testing.assert_array_equal(fixed, want)
    np.testing.assert_array_equal(moving, want)

    @kd.kernel(out_type=Spec((extent,), kd.float32, init=0), interpret=INTERPRET)
    def kernel(s: Any, out: Any) -> None:
        out[kd.ds(s, size, step)] = kd.arange(size, dtype=kd.float32) + 1 if size else kd.zeros((0,), kd.float32)

    wrote = np.zeros(extent, np.float32)
    wrote[at[inside]] = np.arange(size)[inside] + 1
    np.testing.assert_array_equal(kernel(np.int32(start)), wrote)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint32"])
def test_starts_of_any_integer_dtype(dtype: str) -> None:
    x = random((50,))
    got = load(x, lambda r, s: r[kd.ds(s, 10)], np.dtype(dtype).type(20))
    np.testing.assert_array_equal(got, x[20:30])


def test_dynamic_indices_never_wrap() -> None:
    x = random((10,))
    assert load(x, lambda r, i: kd.load(r, i, fill=9.0), np.int32(-1)) == 9
    assert load(x, lambda r, i: kd.load(r, i, fill=9.0), np.int32(10)) == 9
    assert load(x, lambda r, i: r[i], np.int32(9)) == x[9]


@given(data=st.data())
def test_masks_broadcast(data: st.DataObject) -> None:
    x = random((6, 33))
    mask = random(data.draw(st.sampled_from([(6, 33), (33,), (6, 1), (1, 33), ()])), "bool", seed=2)
    got = load(x, lambda r, m: kd.load(r, ..., mask=m[...], fill=5.0), mask)
    np.testing.assert_array_equal(got, np.where(mask, x, np.float32(5)))

    @kd.kernel(out_type=Spec((6, 33), kd.float32, init=1), interpret=INTERPRET)
    def kernel(value: Any, m: Any, out: Any) -> None:
        kd.store(out, ..., value[...], mask=m[...])

    np.testing.assert_array_equal(kernel(x, mask), np.where(mask, x, np.float32(1)))


@given(data=st.data())
def test_gather_and_scatter(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20))
    x = random((rows, columns))
    rng = np.random.default_rng(rows * 31 + columns)
    shape = data.draw(st.sampled_from([(5,), (3, 4), (1,), (40,)]))
    i, j = (rng.integers(0, n, shape).astype(np.int32) for n in (rows, columns))
    np.testing.assert_array_equal(load(x, lambda r, a, b: r[a[...], b[...]], i, j), x[i, j])
    np.testing.assert_array_equal(load(x, lambda r, a: r[a[...]], i), x[i])
    np.testing.assert_array_equal(load(x, lambda r, b: r[:, b[...]], j), x[:, j])
    beyond = i + rows * (rng.random(shape) < 0.3).astype(np.int32)
    want = np.where(beyond < rows, x[np.minimum(beyond, rows - 1), 0], np.float32(-1))
    np.testing.assert_array_equal(load(x, lambda r, a: kd.load(r, (a[...], 0), fill=-1.0), beyond), want)
    order = rng.permutation(rows).astype(np.int32)

    @kd.kernel(out_type=Spec((rows, columns), kd.float32), interpret=INTERPRET)
    def scatter(value: Any, where: Any, out: Any) -> None:
        out[where[...]] = value[...]

    want = np.empty_like(x)
    want[order] = x
    np.testing.assert_array_equal(scatter(x, order), want)


def test_views() -> None:
    x = random((6, 8))
    np.testing.assert_array_equal(load(x, lambda r: r.T[...]), x.T)
    np.testing.assert_array_equal(load(x, lambda r: r.at[1:5].T.at[2:][1]), x[1:5].T[2:][1])
    np.testing.assert_array_equal(load(x, lambda r: r.reshape(2, 3, 8)[1]), x.reshape(2, 3, 8)[1])
    np.testing.assert_array_equal(load(x, lambda r: r.transpose(1, 0)[3:]), x.transpose(1, 0)[3:])
    np.testing.assert_array_equal(load(x, lambda r: r.bitcast(kd.int32)[2]), x.view(np.int32)[2])
    np.testing.assert_array_equal(load(x, lambda r: r.bitcast(kd.int16)[...]), x.view(np.int16))


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int8", "bool", "float64"]),
)
def test_smem_keeps_what_is_stored(shape: tuple[int, ...], dtype: str) -> None:
    x = random(shape, dtype)
    name = kd.dtypes.as_dtype(dtype)

    @kd.kernel(
        out_type=(Spec(shape, name), Spec(shape[::-1], name)), scratch_types=[kd.SMEM(shape, name)], interpret=INTERPRET
    )
    def kernel(ref: Any, out: Any, turned: Any, buffer: Any) -> None:
        buffer[...] = ref[...]
        out[...] = buffer[...]
        turned[...] = buffer.T[...]

    same, turned = kernel(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(turned, x.T)


def test_outputs_can_be_read_back() -> None:
    @kd.kernel(out_type=Spec((300,), kd.float32), interpret=INTERPRET)
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]
        out[::2] = out[::2] * 10
        out[1:] = out[1:] + 1

    x = random((300,))
    want = x.copy()
    want[::2] *= 10
    want[1:] += 1
    np.testing.assert_array_equal(kernel(x), want)


def test_strided_and_misaligned_inputs() -> None:
    base = random((40, 50))
    for x in (base[::2, 3:], base.T, base[5:, ::-1], base[:, ::3], np.asfortranarray(base), base.reshape(-1)[1:101]):
        np.testing.assert_array_equal(load(x, lambda r: r[...]), x)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 2), (1, 0, 1)])
def test_nothing_is_moved_for_arrays_of_size_zero(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert load(x, lambda r: r[...] * 2).shape == shape
    assert types_of(lambda v: v.T, x)[0].shape == shape[::-1]
