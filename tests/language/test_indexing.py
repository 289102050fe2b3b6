"""Indexing of Refs and values against NumPy: ints, slices, `ds`, static and dynamic, in and out of range, transposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.language import indices
from tests.ops.harness import INTERPRET, random, run

SHAPES = [(5,), (130,), (3, 5), (4, 33), (8, 16), (2, 3, 4), (5, 1, 7), (2, 2, 3, 4), (1, 3, 2, 2, 5)]
DTYPES = ["float32", "int8", "bfloat16", "int64", "bool", "float8_e4m3fn", "float64", "float16"]
Spec = kd.ShapeDtypeStruct


class Sample:
    """An array, a permutation of its dimensions, and random indices of that view."""

    def __init__(self, seed: int, *, static: bool = False) -> None:
        rng = np.random.default_rng(seed)
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        self.x = random(shape, DTYPES[int(rng.integers(len(DTYPES)))], seed=seed)
        self.order = tuple(int(i) for i in rng.permutation(len(shape)))
        self.view = self.x.transpose(self.order)
        self.indices = [tuple(indices.item(rng, n, static=static) for n in self.view.shape) for _ in range(6)]

    def written(self, ref: Any, items: tuple[indices.Item, ...], starts: Any) -> tuple[Any, Any]:
        """The view of a Ref, and the index as a kernel writes it."""
        return ref.transpose(*self.order), tuple(i.traced(starts) for i in items)


@pytest.mark.parametrize("seed", range(16))
def test_loads(seed: int) -> None:
    sample = Sample(seed)
    wanted = [indices.loaded(sample.view, items, fill=n % 3 == 2) for n, items in enumerate(sample.indices)]

    def body(x: Any, starts: Any, *outs: Any) -> None:
        for n, (items, out) in enumerate(zip(sample.indices, outs, strict=True)):
            view, index = sample.written(x, items, starts)
            if n % 3 == 0:
                out[...] = view[index]
            elif n % 3 == 1:
                out[...] = kd.load(view.at[index])
            else:
                out[...] = kd.load(view, index, fill=1)

    specs = tuple(Spec(w.shape, sample.x.dtype) for w in wanted)
    results = kd.kernel(body, out_type=specs, interpret=INTERPRET)(sample.x, indices.STARTS)
    for got, want, items in zip(results, wanted, sample.indices, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{sample.x.shape} {sample.order} {items}")


@pytest.mark.parametrize("seed", range(100, 116))
def test_stores(seed: int) -> None:
    sample = Sample(seed)

    def body(x: Any, starts: Any, *outs: Any) -> None:
        for n, (items, out) in enumerate(zip(sample.indices, outs, strict=True)):
            view, index = sample.written(out, items, starts)
            value = x.transpose(*sample.order)[index]
            if n % 2:
                view[index] = value
            else:
                kd.store(view.at[index], ..., value)

    specs = tuple(Spec(sample.x.shape, sample.x.dtype, init=0) for _ in sample.indices)
    results = kd.kernel(body, out_type=specs, interpret=INTERPRET)(sample.x, indices.STARTS)
    for got, items in zip(results, sample.indices, strict=True):
        want = np.zeros_like(sample.x)
        indices.stored(want.transpose(sample.order), items, indices.loaded(sample.view, items))
        np.testing.assert_array_equal(got, want, err_msg=f"{sample.x.shape} {sample.order} {items}")


@pytest.mark.parametrize("seed", range(200, 212))
def test_slices_of_values(seed: int) -> None:
    sample = Sample(seed, static=True)
    results = run(
        lambda a: tuple(a.transpose(sample.order)[tuple(i.traced(None) for i in items)] for items in sample.indices),
        sample.x,
    )
    for got, items in zip(results, sample.indices, strict=True):
        np.testing.assert_array_equal(got, indices.loaded(sample.view, items), err_msg=f"{sample.x.shape} {items}")


def gathered(x: np.ndarray, index: tuple[Any, ...]) -> np.ndarray:
    """NumPy's advanced indexing, where integers out of range (negative ones too) give 0."""
    wide = np.pad(x, [(50, 50)] * x.ndim)
    return wide[tuple(i + 50 if isinstance(i, (np.ndarray, int)) else slice(50, 50 + n) if i == slice(None) else i
                      for i, n in zip(index, x.shape, strict=True))]  # fmt: skip


ARRAYS = {"a": (6,), "b": (3, 1), "c": (4,), "d": (1, 4)}
PATTERNS = [
    "a",
    "b",
    "a:",
    ":a",
    "bc",
    "a1",
    "1a",
    "a:a",
    "1:a",
    "a:1",
    "bd:",
    ":bd",
    "b:d",
    ":1a",
    "cc1",
    "::a",
    "1:b",
]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.sampled(2)
def test_gather_and_scatter(pattern: str, dtype: str) -> None:
    rng = np.random.default_rng(len(pattern) * 7 + len(dtype))
    shape = (5, 7, 6)[: len(pattern)]
    x = random(shape, "float32", seed=3)
    low = 0 if dtype == "uint32" else -3
    arrays = {k: rng.integers(low, 10, s).astype(dtype) for k, s in ARRAYS.items()}
    plain = tuple({":": slice(None), "1": 1}.get(c, arrays.get(c)) for c in pattern)
    want = gathered(x, tuple(p.astype(np.int64) if isinstance(p, np.ndarray) else p for p in plain))

    def body(x: Any, a: Any, b: Any, c: Any, d: Any, out: Any, back: Any) -> None:
        loads = {"a": a[...], "b": b[...], "c": c[...], "d": d[...]}
        index = tuple({":": slice(None), "1": 1}.get(c, loads.get(c)) for c in pattern)
        out[...] = x[index]
        back[index] = x[index]

    specs = (Spec(want.shape, kd.float32), Spec(shape, kd.float32, init=0))
    repeats = replace(INTERPRET, ignore=("equal_value_race",))  # rows that several indices name are stored as often
    got, back = kd.kernel(body, out_type=specs, interpret=repeats)(x, *arrays.values())
    np.testing.assert_array_equal(got, want)
    marks = np.zeros(tuple(n + 100 for n in shape), bool)
    inner = tuple(slice(50, 50 + n) for n in shape)
    marks[tuple(
        p.astype(np.int64) + 50 if isinstance(p, np.ndarray) else p + 50 if isinstance(p, int) else slice(50, 50 + n)
        for p, n in zip(plain, shape, strict=True)
    )] = True  # fmt: skip
    np.testing.assert_array_equal(back, np.where(marks[inner], x, 0))


def test_index_arrays_never_wrap() -> None:
    """A view's stride takes a far index out of the array, not around to its start."""
    x = random((64,), "float32")
    far = np.array([0, 1, 2**30, 2**31 - 1, -(2**31), 2**29], np.int32)
    kernel = kd.kernel(
        lambda x, i, out: kd.store(out, ..., x.at[::4][i[...]]),
        out_type=Spec(far.shape, kd.float32),
        interpret=INTERPRET,
    )
    np.testing.assert_array_equal(kernel(x, far), np.where((far >= 0) & (far < 16), x[::4][far % 16], 0))


def test_scattered_duplicates_keep_one_of_the_values() -> None:
    x = random((40,), "int32")
    where = np.arange(40, dtype=np.int32) % 7

    def body(x: Any, i: Any, out: Any) -> None:
        out[i[...]] = x[...]

    out = kd.kernel(body, out_type=Spec((7,), kd.int32), interpret=INTERPRET)(x, where)
    assert all(out[k] in x[where == k] for k in range(7))


def test_masks_and_fills_broadcast() -> None:
    x = random((5, 40), "float32")
    keep, fill = random((40,), "bool"), random((5, 1), "float32", seed=2)

    def body(x: Any, keep: Any, fill: Any, out: Any, part: Any, counted: Any) -> None:
        out[...] = kd.load(x, mask=keep[...], fill=fill[...])
        kd.store(part, ..., x[...], mask=keep[...])
        counted[...] = kd.load(x, (slice(None), kd.ds(36, 8)), fill=-1, mask=x[:, :8] > 0)

    specs = (Spec(x.shape, x.dtype), Spec(x.shape, x.dtype, init=7), Spec((5, 8), x.dtype))
    got, part, counted = kd.kernel(body, out_type=specs, interpret=INTERPRET)(x, keep, fill)
    np.testing.assert_array_equal(got, np.where(keep, x, fill))
    np.testing.assert_array_equal(part, np.where(keep, x, 7))
    padded = np.pad(x, [(0, 0), (0, 4)], constant_values=-1)[:, 36:44]
    np.testing.assert_array_equal(counted, np.where(x[:, :8] > 0, padded, -1))


def test_views_of_views() -> None:
    x = random((6, 8, 10), "int32")

    def body(x: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        a[...] = x.at[1:5].T[::-1, 2:6][3, kd.ds(0, 4, 1)]
        b[...] = x.reshape(48, 10).at[5:45:4][...].T
        c[...] = x.at[:, None, 3].transpose(1, 2, 0)[...]
        d[...] = x.reshape(-1).bitcast(kd.uint8)[4:12]

    specs = (Spec((4, 4), kd.int32), Spec((10, 10), kd.int32), Spec((1, 10, 6), kd.int32), Spec((8,), kd.uint8))
    a, b, c, d = kd.kernel(body, out_type=specs, interpret=INTERPRET)(x)
    np.testing.assert_array_equal(a, x[1:5].T[::-1, 2:6][3, :4])
    np.testing.assert_array_equal(b, x.reshape(48, 10)[5:45:4].T)
    np.testing.assert_array_equal(c, x[:, None, 3].transpose(1, 2, 0))
    np.testing.assert_array_equal(d, x.reshape(-1).view(np.uint8)[4:12])


def test_accesses_through_another_shape_or_dtype_keep_their_order() -> None:
    """What one lane stores, another reads through a bitcast or reshaped Ref: a barrier must lie between."""
    x = random((4, 256), "int32")

    def body(x: Any, halves: Any, flat: Any, smem: Any) -> None:
        smem[:, :128] = x[:, :128]
        halves[...] = smem.bitcast(kd.int16)[:, 128:256]
        smem[:, 128:] = x[:, 128:]
        flat[...] = smem.reshape(-1)[::-1]

    specs = (Spec((4, 128), kd.int16), Spec((1024,), kd.int32))
    kernel = kd.kernel(body, out_type=specs, scratch_types=(kd.SMEM((4, 256), kd.int32),), interpret=INTERPRET)
    halves, flat = kernel(x)
    np.testing.assert_array_equal(halves, x.view(np.int16)[:, 128:256])
    np.testing.assert_array_equal(flat, x.reshape(-1)[::-1])


def test_a_tensor_copy_needs_the_array_itself() -> None:
    def body(x: Any, out: Any, smem: Any, barrier: Any) -> None:
        kd.copy_gmem_to_smem(x.reshape(64, 32).at[8:40], smem, barrier)
        kd.barrier_wait(barrier)
        out[...] = smem[...]

    scratch = (kd.SMEM((32, 32), kd.float32, transforms=(kd.SwizzleTransform(128),)), kd.Barrier())
    kernel = kd.kernel(body, out_type=Spec((32, 32), kd.float32), scratch_types=scratch, interpret=INTERPRET)
    with pytest.raises(kd.Error, match="another shape or dtype than its array"):
        kernel(random((8, 8, 32), "float32"))
