"""Running reductions from either end, with and without the element itself, and scans by functions that do not commute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument
from tests.language.test_convert import random_layout
from tests.ops.harness import WHERE, random, run

Combine = Callable[[Any, Any], Any]


def scanned(combine: Combine, arrays: list[np.ndarray], axis: int, reverse: bool) -> list[np.ndarray]:
    """The scan one element at a time. `combine` takes and returns lists of arrays without the axis."""
    rows = [list(np.moveaxis(a, axis, 0))[:: -1 if reverse else 1] for a in arrays]
    for i in range(1, len(rows[0])):
        for column, x in zip(rows, combine([c[i - 1] for c in rows], [c[i] for c in rows]), strict=True):
            column[i] = x
    return [np.moveaxis(np.stack(c[:: -1 if reverse else 1]), 0, axis) for c in rows]


def affine(a: Any, b: Any) -> Any:
    """x -> x * m + c after another one: associative, and not commutative; exact where integers wrap."""
    return [a[0] * b[0], a[1] * b[0] + b[1]]


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple) | st.tuples(
    st.integers(1, 9), st.integers(1, 150)
)


@settings(max_examples=10)
@given(shape=shapes, data=st.data())
def test_any_function_shape_and_layout(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis, reverse = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["uint32", "uint8", "int16", "uint64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layout = random_layout(shape, rng)
    x = [rng.integers(0, 200, shape).astype(dtype) for _ in range(2)]

    def scan(m: Any, c: Any) -> Any:
        return tuple(kd.associative_scan(affine, [kd.layout_cast(m, layout), c], axis, reverse=reverse))

    with np.errstate(over="ignore"):
        expected = scanned(affine, x, axis % len(shape), reverse)
    for got, want in zip(run(scan, *x), expected, strict=True):
        np.testing.assert_array_equal(got, want)


NEUTRAL: dict[str, Any] = {"cumsum": 0, "cumprod": 1, "cummax": -(2**31), "cummin": 2**31 - 1}
REFERENCE = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def exclusively(x: np.ndarray, axis: int, reverse: bool, first: Any) -> np.ndarray:
    rows = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0)
    moved = np.moveaxis(np.concatenate([np.full_like(rows[:1], first), rows[:-1]]), 0, axis)
    return np.flip(moved, axis) if reverse else moved


@settings(max_examples=10)
@given(shape=shapes, name=st.sampled_from(sorted(NEUTRAL)), reverse=st.booleans(), data=st.data())
def test_reverse_and_exclusive(shape: tuple[int, ...], name: str, reverse: bool, data: st.DataObject) -> None:
    axis, rng = data.draw(st.integers(0, len(shape) - 1)), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layout = random_layout(shape, rng)
    x = rng.integers(-9, 9, shape).astype(np.int32)

    def scan(v: Any) -> Any:
        v, f = kd.layout_cast(v, layout), getattr(kd, name)
        return f(v, axis, reverse=reverse), f(v, axis, reverse=reverse, exclusive=True)

    given_ = np.flip(x, axis) if reverse else x
    whole = REFERENCE[name].accumulate(given_, axis, dtype=np.int32)
    whole = np.flip(whole, axis) if reverse else whole
    got = run(scan, x)
    np.testing.assert_array_equal(got[0], whole)
    np.testing.assert_array_equal(got[1], exclusively(whole, axis, reverse, NEUTRAL[name]))


def test_what_exclusive_ones_start_with() -> None:
    def starts(x: Any) -> Any:
        return tuple(getattr(kd, n)(x, exclusive=True)[0] for n in ("cumsum", "cumprod", "cummax", "cummin"))

    got = run(starts, np.full(5, -0.0, np.float32))
    assert [float(v) for v in got] == [0, 1, -np.inf, np.inf] and not np.signbit(got[0])
    assert run(lambda x: kd.cumsum(x, exclusive=True), np.full(5, -0.0, np.float32)).tobytes() == bytes(20)
    assert [
        bool(v)
        for v in run(lambda x: (kd.cummax(x, exclusive=True)[0], kd.cummin(x, exclusive=True)[0]), np.ones(3, bool))
    ] == [False, True]
    assert run(lambda x: kd.cumsum(x, axis=0, exclusive=True), np.zeros((0, 3), np.float32)).shape == (0, 3)


@WHERE
def test_from_the_end_without_themselves(interpret: Any) -> None:
    x = np.random.default_rng(6).integers(-9, 9, (7, 900)).astype(np.int32)

    def scan(v: Any) -> Any:
        return tuple(getattr(kd, n)(v, 1, reverse=True, exclusive=True) for n in NEUTRAL)

    for name, got in zip(NEUTRAL, run(scan, x, interpret=interpret), strict=True):
        whole = np.flip(REFERENCE[name].accumulate(np.flip(x, 1), 1, dtype=np.int32), 1)
        np.testing.assert_array_equal(got, exclusively(whole, 1, True, NEUTRAL[name]))


@WHERE
def test_linear_recurrence(interpret: Any) -> None:
    """s[t] = a[t] * s[t - 1] + b[t] along time, in float32, by rows; from the end too."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 1, (9, 700)).astype(np.float32), random((9, 700))

    def both(a: Any, b: Any) -> Any:
        return tuple(kd.associative_scan(affine, [a, b], axis=1, reverse=r)[1] for r in (False, True))

    for reverse, got in zip((False, True), run(both, a, b, interpret=interpret), strict=True):
        wide = [v.astype(np.float64) for v in (a, b)]
        np.testing.assert_allclose(got, scanned(affine, wide, 1, reverse)[1], rtol=0, atol=3e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float8_e4m3fn", "int8", "bool"])
@WHERE
@pytest.mark.sampled(4)
def test_segments_of_any_dtype(dtype: str, interpret: Any) -> None:
    """The first element of each segment, spread over it: picking keeps every bit."""
    x = random((3, 260), dtype, seed=4)
    heads = np.random.default_rng(5).random((3, 260)) < 0.05

    def pick(a: Any, b: Any) -> Any:
        return a[0] | b[0], kd.where(b[0], b[1], a[1])

    for reverse in (False, True):
        got = run(
            lambda f, v, r=reverse: kd.associative_scan(pick, (f, v), axis=1, reverse=r), heads, x, interpret=interpret
        )
        want = scanned(lambda a, b: [a[0] | b[0], np.where(b[0], b[1], a[1])], [heads, x], 1, reverse)
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1].tobytes() == np.ascontiguousarray(want[1]).tobytes()


@WHERE
def test_values_of_several_shapes_and_other_axes(interpret: Any) -> None:
    """Products of 2 x 2 matrices, a rotation for each place: the other axes of a block are whole."""
    rng = np.random.default_rng(1)
    m = rng.uniform(-0.7, 0.7, (90, 2, 2)).astype(np.float32)
    w = rng.uniform(0.5, 1, 90).astype(np.float32)

    def product(a: Any, b: Any) -> Any:
        whole = kd.sum(a["m"][:, :, :, None] * b["m"][:, None, :, :], axis=2)
        return {"m": whole, "w": a["w"] * b["w"]}

    def scan(m: Any, w: Any) -> Any:
        made = kd.associative_scan(product, {"m": m, "w": w})
        return made["m"], made["w"]

    got = run(scan, m, w, interpret=interpret)
    wide = m.astype(np.float64)
    for i in range(1, 90):
        wide[i] = wide[i - 1] @ wide[i]
    np.testing.assert_allclose(got[0], wide, rtol=0, atol=1e-5)
    np.testing.assert_allclose(got[1], np.cumprod(w.astype(np.float64)), rtol=1e-5)


def test_functions_with_branches_and_loops() -> None:
    """A function may hold control flow: greatest common divisors, by Euclid's loop."""
    x = (np.random.default_rng(2).integers(1, 50, 300) * 12).astype(np.int32)
    x[:40] *= 5
    np.testing.assert_array_equal(run(lambda v: kd.associative_scan(kd.gcd, v), x), np.gcd.accumulate(x))


MIXED: dict[str, Any] = {
    "max": lambda a, b: a + b - b.max(axis=0),
    "cumsum": lambda a, b: a + kd.cumsum(b, 0),
    "flip": lambda a, b: a + kd.flip(b, 0),
    "first": lambda a, b: a[:1] + b,
    "arange": lambda a, b: a + b * kd.arange(a.shape[0])[:, None],
    "transposed": lambda a, b: kd.broadcast_to(kd.sum(a, axis=1)[None, : a.shape[1]], a.shape),
}


@pytest.mark.parametrize("name", MIXED)
def test_functions_that_mix_places_are_refused(name: str) -> None:
    """They get some places at a time, so a result would depend on how lanes share them."""
    x = np.ones((300, 4), np.float32)
    with pytest.raises(BadArgument, match=r"associative_scan`: the function (uses|combines|gives)"):
        run(lambda v: kd.associative_scan(MIXED[name], v), x)


def test_a_scan_costs_what_cumsum_costs() -> None:
    """The same additions and shuffles as an op that knows its function; what is there before a run is chosen."""

    def count(function: Any) -> dict[str, int]:
        @kd.kernel(out_type=kd.ShapeDtypeStruct((4096,), kd.float32))
        def kernel(x: Any, out: Any) -> None:
            out[...] = function(x[...])

        ptx = kernel.lower(np.zeros(4096, np.float32)).ptx
        return {word: ptx.count(word) for word in ("add.rn.f32", "shfl.sync", "barrier.cta.sync", "bar.sync")}

    assert count(lambda x: kd.associative_scan(lambda a, b: a + b, x)) == count(kd.cumsum)
