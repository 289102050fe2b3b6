"""Ordinary array code on blocks of any shape, straight from GMEM, with no layout named; the host computes in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.compare import same
from tests.language.casts import DTYPES
from tests.ops.harness import random, run, run_each

SHAPES = [(1,), (7,), (100,), (3, 5), (64, 96), (1, 1000), (2, 3, 4, 5), (2, 1, 3, 2, 2)]
FLOATS = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3, "float64": 1e-14}
Function = Callable[[Any], Any]

NORMS: dict[str, tuple[Function, Function]] = {
    "softmax": (
        lambda x: (e := kd.exp(x - kd.max(x, -1, keepdims=True))) / kd.sum(e, -1, keepdims=True),
        lambda x: (e := np.exp(x - x.max(-1, keepdims=True))) / e.sum(-1, keepdims=True),
    ),
    "log-softmax": (
        lambda x: (s := x - kd.max(x, -1, keepdims=True)) - kd.log(kd.sum(kd.exp(s), -1, keepdims=True)),
        lambda x: (s := x - x.max(-1, keepdims=True)) - np.log(np.exp(s).sum(-1, keepdims=True)),
    ),
    "layer norm": (
        lambda x: (x - kd.mean(x, -1, keepdims=True)) * kd.rsqrt(kd.var(x, -1, keepdims=True) + 1e-2),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-2),
    ),
    "RMS norm": (
        lambda x: x * kd.rsqrt(kd.mean(x * x, axis=-1, keepdims=True) + 1e-2),
        lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-2),
    ),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(8)
def test_norms(shape: tuple[int, ...]) -> None:
    for dtype, bound in FLOATS.items():
        x = random(shape, dtype)
        # computed in float32, as one would write it, and rounded at the end
        wide = "float64" if dtype == "float64" else "float32"
        ours = [lambda a, f=f, w=wide, d=dtype: f(a.astype(w)).astype(d) for f, _ in NORMS.values()]
        results = run_each(ours, x)
        for (name, (_, reference)), got in zip(NORMS.items(), results, strict=True):
            want = reference(x.astype(np.float64))
            message = f"{name} {dtype}"
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=bound, atol=4 * bound, err_msg=message)


@pytest.mark.filterwarnings("ignore:.*registers a lane:RuntimeWarning")
def test_a_large_block() -> None:
    x = random((5, 123, 123), "float32")
    got = run(lambda a: (NORMS["softmax"][0](a[0]), kd.sum(a, (0, 2)), kd.max(a, 1)), x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got[0], NORMS["softmax"][1](wide[0]), rtol=2e-6, atol=1e-8)
    np.testing.assert_allclose(got[1], wide.sum((0, 2)), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(got[2], x.max(1))


def axes_of(rank: int) -> list[Any]:
    several = [(0, rank - 1)] if rank > 1 else []
    return [None, *range(rank), *several, *([(-1, -2)] if rank > 2 else [])]


def accumulator(dtype: kd.dtypes.DType) -> np.dtype[Any]:
    """What NumPy is told to sum in."""
    if dtype.is_float:
        return np.dtype(np.float64)
    if dtype.bits >= 32:
        return dtype.numpy
    return np.dtype(np.int32 if dtype.is_signed or dtype.is_bool else np.uint32)


def sums(dtype: kd.dtypes.DType) -> np.dtype[Any]:
    return dtype.numpy if dtype.is_float else accumulator(dtype)


def close(got: np.ndarray, want: Any, dtype: kd.dtypes.DType, count: int, message: str) -> None:
    """Exact for integers; floats to within their own rounding of a float32 (float64) sum."""
    want = np.asarray(want)
    assert got.shape == want.shape, message
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    step = 2.0 ** -(52 if dtype.bits == 64 else 23) * max(count, 1)
    own = 2.0 ** -{8: 2, 16: 7, 32: 23, 64: 52}[got.dtype.itemsize * 8]
    wide = want.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), wide, rtol=own, atol=own * 0.1 + 4 * step, err_msg=message)


REDUCED = [(7,), (3, 5), (4, 40), (2, 1, 3, 2), (0, 4)]


@pytest.mark.parametrize("shape", REDUCED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(16)
def test_reductions(dtype: kd.dtypes.DType, shape: tuple[int, ...]) -> None:
    x = random(shape, dtype.name)
    counts = [math.prod(shape if a is None else (shape[i] for i in np.atleast_1d(a))) for a in axes_of(len(shape))]
    by_axis = [Reduction(axis, count) for axis, count in zip(axes_of(len(shape)), counts, strict=True)]
    for reduction, got in zip(by_axis, run_each(by_axis, x), strict=True):
        reduction.check(x, got, dtype)


class Reduction:
    """Every reduction over `axis`, of `count` elements: those of none only, where there are none."""

    def __init__(self, axis: Any, count: int) -> None:
        self.options = {"axis": axis, "keepdims": axis != 0}
        self.count = count
        self.functions = [kd.sum, kd.any, kd.all, *([kd.max, kd.min, kd.mean, kd.var] if count else [])]
        self.functions += [kd.argmax, kd.argmin] if count and not isinstance(axis, tuple) else []

    def __call__(self, a: Any) -> tuple[Any, ...]:
        return tuple(f(a, **self.options) for f in self.functions)

    def check(self, x: Any, got: Any, dtype: kd.dtypes.DType) -> None:
        options, count = self.options, self.count
        wide, message = x.astype(accumulator(dtype)), f"{x.shape} {options['axis']}"
        assert len(got) == len(self.functions)
        assert got[0].dtype == sums(dtype) and got[1].dtype == np.bool_
        close(got[0], wide.sum(dtype=accumulator(dtype), **options), dtype, count * 4, message)
        np.testing.assert_array_equal(got[1], (wide != 0).any(**options))
        np.testing.assert_array_equal(got[2], (wide != 0).all(**options))
        if count:
            assert got[3].dtype == dtype.numpy
            assert got[5].dtype == (dtype.numpy if dtype.is_float else np.float32)
            np.testing.assert_array_equal(got[3].astype(np.float64), wide.max(**options).astype(np.float64))
            np.testing.assert_array_equal(got[4].astype(np.float64), wide.min(**options).astype(np.float64))
            close(got[5], wide.astype(np.float64).mean(**options), kd.float32, 400, message)
            close(got[6], wide.astype(np.float64).var(**options), kd.float32, 40000, message)
        if len(got) > 7:
            assert got[7].dtype == np.int32
            np.testing.assert_array_equal(got[7], wide.argmax(**options))
            np.testing.assert_array_equal(got[8], wide.argmin(**options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(8)
def test_scans(dtype: kd.dtypes.DType) -> None:
    for shape in [(100,), (3, 5), (4, 130), (2, 3, 7)]:
        x = random(shape, dtype.name)
        wide = x.astype(accumulator(dtype))
        axes = [None, *range(len(shape))]
        got = run(lambda a, axes=axes: tuple(f(a, i) for i in axes for f in (kd.cumsum, kd.cummax)), x)
        for n, axis in enumerate(axes):
            total, largest = got[2 * n : 2 * n + 2]
            assert total.dtype == sums(dtype) and largest.dtype == dtype.numpy
            close(total, np.cumsum(wide, axis, accumulator(dtype)), dtype, 400, f"{shape} {axis}")
            flat = wide if axis is not None else wide.ravel()
            np.testing.assert_array_equal(
                largest.astype(np.float64), np.maximum.accumulate(flat, axis or 0).astype(np.float64)
            )
    if dtype.bits >= 32:
        x = np.array([1, 2, -1, 1, 3, 1, 2], np.float64).astype(dtype.numpy)
        np.testing.assert_array_equal(run(kd.cumprod, x), np.cumprod(x, dtype=accumulator(dtype)))
        np.testing.assert_array_equal(run(kd.prod, x), np.prod(x, dtype=accumulator(dtype)))


def test_dtype_arguments() -> None:
    x = random((4, 9), "int8")
    got = run(lambda a: (kd.sum(a, dtype=kd.int64), kd.sum(a, 0, dtype="float32"), kd.cumsum(a, 1, dtype=kd.int8)), x)
    np.testing.assert_array_equal(got[0], x.sum(dtype=np.int64))
    np.testing.assert_array_equal(got[1], x.sum(0, dtype=np.float32))
    np.testing.assert_array_equal(got[2], np.cumsum(x, 1, np.int8))
    half = np.full((3000,), 40.0, np.float16)  # the sum overflows float16 and not float32
    assert run(kd.mean, half) == 40 and run(lambda a: kd.sum(a, dtype=kd.float32), half) == 120000


def test_not_a_number_rules() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"):
        x = np.array([1, np.nan, 3, -2, np.nan, 7]).astype(kd.dtypes.as_dtype(dtype).numpy)
        low, high, first, last, running, kept = run(
            lambda a: (kd.min(a), kd.max(a), kd.argmin(a), kd.argmax(a), kd.cummax(a), kd.fmax(a, 2.0)), x
        )
        assert np.isnan(low) and np.isnan(high) and first == last == 1
        np.testing.assert_array_equal(np.isnan(running.astype(np.float64)), [False, True, True, True, True, True])
        np.testing.assert_array_equal(kept.astype(np.float64), [2, 2, 3, 2, 2, 7])


MOVES: dict[str, tuple[Function, Function]] = {
    "x[None]": (lambda a: a[None], lambda a: a[None]),
    "x[0]": (lambda a: a[0], lambda a: a[0]),
    "x[:3]": (lambda a: a[:3], lambda a: a[:3]),
    "x[..., None, ::-2]": (lambda a: a[..., None, ::-2], lambda a: a[..., None, ::-2]),
    "x.T": (lambda a: a.T, lambda a: a.T),
    "reshape": (lambda a: a.reshape(-1), lambda a: a.reshape(-1)),
    "reshape in three": (lambda a: a.reshape(2, -1, 5), lambda a: a.reshape(2, -1, 5)),
    "concatenate": (
        lambda a: kd.concatenate([a, a[:1], a[::-1], a], axis=0),
        lambda a: np.concatenate([a, a[:1], a[::-1], a], axis=0),
    ),
    "concatenate many columns": (
        lambda a: kd.concatenate([a[:, i : i + 1] for i in range(10)] + [a], axis=-1),
        lambda a: np.concatenate([a[:, i : i + 1] for i in range(10)] + [a], axis=-1),
    ),
    "stack": (lambda a: kd.stack([a, a], -1), lambda a: np.stack([a, a], -1)),
    "split": (lambda a: kd.split(a, [2, 2, 7], 1)[2], lambda a: np.split(a, [2, 2, 7], 1)[2]),
    "flip": (lambda a: kd.flip(a, (0, 1)), lambda a: np.flip(a, (0, 1))),
    "pad": (
        lambda a: kd.pad(a, ((1, 2), (0, 3)), constant_values=1),
        lambda a: np.pad(a, ((1, 2), (0, 3)), constant_values=1),
    ),
    "swapaxes": (lambda a: kd.swapaxes(a, 0, 1), lambda a: np.swapaxes(a, 0, 1)),
    "expand_dims and squeeze": (
        lambda a: kd.squeeze(kd.expand_dims(a, (0, 2)), 0),
        lambda a: np.squeeze(np.expand_dims(a, (0, 2)), 0),
    ),
    "nested where": (
        lambda a: kd.where(a == a[0], a, kd.where(a != a[:, :1], a[::-1], a)),
        lambda a: np.where(a == a[0], a, np.where(a != a[:, :1], a[::-1], a)),
    ),
    "comparison": (lambda a: (a >= a[:1]) & ~(a == a[::-1]), lambda a: (a >= a[:1]) & ~(a == a[::-1])),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(4)
def test_moving_elements(dtype: kd.dtypes.DType) -> None:
    x = random((4, 10), dtype.name)
    results = run(lambda a: tuple(ours(a) for ours, _ in MOVES.values()), x)
    for name, got, (_, reference) in zip(MOVES, results, MOVES.values(), strict=True):
        want = reference(x)
        assert got.dtype == want.dtype and got.shape == want.shape, name
        assert same(got, want).all(), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants_closed_over(dtype: kd.dtypes.DType) -> None:
    table, one = random((3, 5), dtype.name, seed=4), random((1,), dtype.name, seed=5)[0]
    x = random((3, 5), "float32")
    got = run(lambda a: (kd.where(a > 0, table, table[::-1]), kd.full((3,), one), kd.concatenate([table, table])), x)
    want = (np.where(x > 0, table, table[::-1]), np.full(3, one), np.concatenate([table, table]))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and same(g, w).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 3)], ids=str)
def test_nothing_at_all(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    functions: list[tuple[Function, Function]] = [
        (lambda a: a + 1, lambda a: a + 1),
        (lambda a: kd.exp(a).T, lambda a: a.T),
        (lambda a: kd.concatenate([a, a], -1), lambda a: np.concatenate([a, a], -1)),
        (lambda a: kd.sum(a, -1), lambda a: a.sum(-1)),
        (lambda a: kd.sum(a, 0, keepdims=True), lambda a: a.sum(0, keepdims=True)),
        (kd.prod, lambda a: a.prod()),
        (kd.all, lambda a: a.all()),
        (kd.any, lambda a: a.any()),
        (lambda a: kd.cumsum(a, 0), lambda a: a),
        (lambda a: a.reshape(-1), lambda a: a.reshape(-1)),
        (lambda a: kd.pad(a, 1), lambda a: np.pad(a, 1)),
        (lambda a: kd.flip(a)[:0], lambda a: a[:0]),
        (lambda a: kd.broadcast_to(a, (2, *shape)), lambda a: np.broadcast_to(a, (2, *shape))),
    ]
    for got, (_, reference) in zip(run(lambda a: tuple(f(a) for f, _ in functions), x), functions, strict=True):
        want = np.asarray(reference(x))
        assert got.shape == want.shape
        assert (got == want).all() and (np.signbit(got) == np.signbit(want)).all()


def test_making_values() -> None:
    x = random((6,), "float32")
    got = run(
        lambda a: (
            kd.arange(7), kd.arange(2, 20, 3), kd.arange(1.0, 2.0, 0.25), kd.arange(5, 0, -2), kd.iota(kd.int8, 100),
            kd.broadcasted_iota(kd.float32, (3, 4, 5), 1), kd.ones((2, 0)), kd.full((2, 3), a[0]),
            kd.broadcast_to(a, (4, 6)), kd.zeros_like(a, kd.int8), kd.full((), 7, kd.uint64),
        ),
        x,
    )  # fmt: skip
    want = (
        np.arange(7, dtype=np.int32), np.arange(2, 20, 3, dtype=np.int32), np.arange(1, 2, 0.25, dtype=np.float32),
        np.arange(5, 0, -2, dtype=np.int32), np.arange(100, dtype=np.int8),
        np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (3, 4, 5)), np.ones((2, 0), np.float32),
        np.full((2, 3), x[0]), np.broadcast_to(x, (4, 6)), np.zeros(6, np.int8), np.uint64(7),
    )  # fmt: skip
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
        assert g.dtype == np.asarray(w).dtype


def test_ufuncs() -> None:
    x = random((5, 40), "float32")
    names = ["exp", "log1p", "tanh", "floor", "ceil", "trunc", "rint", "sign", "sqrt", "cbrt", "expm1", "isfinite"]
    got = run(lambda a: tuple(getattr(np, n)(a if n != "sqrt" else abs(a)) for n in names), x)
    with np.errstate(all="ignore"):
        for name, g in zip(names, got, strict=True):
            want = getattr(np, name)(x.astype(np.float64) if name != "sqrt" else abs(x.astype(np.float64)))
            np.testing.assert_allclose(g, want, rtol=1e-6, err_msg=name)
    pair = run(lambda a: (np.float32(3) * a, np.ones(40, np.float32) - a, 2.0**a, np.maximum(a, 0), np.add(1, a)), x)
    for g, w in zip(pair, (3 * x, 1 - x, 2.0 ** x.astype(np.float64), np.maximum(x, 0), 1 + x), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)
