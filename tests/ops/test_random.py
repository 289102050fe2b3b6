"""Random numbers against Random123's known answers, and a NumPy model that gives those: every shape, layout and grid."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from tests.ops.harness import WHERE, run

# Random123's kat_vectors for philox4x32, 10 rounds: the counter, the key and the four words
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox-4x32-10 of counters (n, 4), as (n, 4) words, in Python's integers' width."""
    c = counter.astype(np.uint64)
    low = np.uint64(0xFFFFFFFF)
    k = [np.uint64(w) for w in key]
    for _ in range(10):
        p = [c[:, 0] * np.uint64(0xD2511F53), c[:, 2] * np.uint64(0xCD9E8D57)]
        high = [x >> np.uint64(32) for x in p]
        c = np.stack([high[1] ^ c[:, 1] ^ k[0], p[1] & low, high[0] ^ c[:, 3] ^ k[1], p[0] & low], axis=1)
        k = [(w + np.uint64(step)) & low for w, step in zip(k, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return c.astype(np.uint32)


def words(seed: int, count: int, offset: int = 0) -> np.ndarray:
    """What `bits` gives, in a row."""
    at = (offset % 2**64 + np.arange(-(-count // 4), dtype=object)) % 2**64
    counter = np.array([[int(a) % 2**32, int(a) >> 32, 0, 0] for a in at], np.uint64).reshape(-1, 4)
    return philox(counter, (seed % 2**32, seed % 2**64 >> 32)).reshape(-1)[:count]


def fractions(seed: int, count: int, offset: int = 0) -> np.ndarray:
    return (words(seed, count, offset) >> 8).astype(np.float64) / 2**24


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_model_gives_the_known_answers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(philox(np.array([counter]), key)[0].tolist()) == expected


@WHERE
def test_known_answer(interpret: Any) -> None:
    got = run(lambda: kd.random.bits(0, (4,)), interpret=interpret)
    assert got.dtype == np.uint32 and tuple(got.tolist()) == KNOWN[0][2]


shapes = st.lists(st.integers(1, 6), max_size=4).map(tuple) | st.tuples(st.integers(1, 9), st.integers(1, 130))
seeds = st.integers(-(2**63), 2**64 - 1)


@settings(max_examples=10)
@given(shape=shapes, seed=seeds, offset=st.integers(0, 40) | seeds)
def test_bits_of_any_shape(shape: tuple[int, ...], seed: int, offset: int) -> None:
    got = run(lambda: kd.random.bits(seed, shape, offset))
    np.testing.assert_array_equal(got, words(seed, int(np.prod(shape)), offset).reshape(shape))


LAYOUTS = [
    None,
    kd.Layout(2, ((0, 16, 4),), ((1, 1), (1, 2), (1, 4), (1, 8), (0, 1)), ((0, 2), None)),
    kd.Layout(2, ((0, 2, 32), (1, 8, 2)), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16)), ((1, 1), None)),
    kd.Layout(2, ((1, 8, 1), (0, 4, 16)), ((1, 8), (0, 2), (0, 4), (0, 8), None), ((0, 1), None)),
    kd.Layout.WGMMA,
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["open", "lanes", "columns", "eights", "wgmma"])
@WHERE
@pytest.mark.sampled(4)
def test_no_layout_matters(layout: Any, interpret: Any) -> None:
    """Whatever the value that numbers meet is spread by, they are the same."""

    def both(x: Any) -> Any:
        spread = x if layout is None else kd.layout_cast(x, layout)
        return (kd.random.bits(7, (64, 16), 3) ^ spread, kd.random.normal(7, (64, 16), offset=3) + spread * 0)

    x = np.zeros((64, 16), np.uint32)
    got, normal = run(both, x, interpret=interpret)
    np.testing.assert_array_equal(got, words(7, 1024, 3).reshape(64, 16))
    np.testing.assert_allclose(normal, box_muller(7, 1024, 3).reshape(64, 16), rtol=0, atol=4e-6)


@WHERE
def test_no_grid_matters(interpret: Any) -> None:
    """Blocks with offsets of their own give what one gives of everything; seeds and offsets are known when it runs."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((1024,), kd.uint32), grid=(4,), grid_names=("i",), interpret=interpret)
    def blocks(seed: Any, start: Any, out: Any) -> None:
        i = kd.axis_index("i")
        out[kd.ds(i * 256, 256)] = kd.random.bits(seed, (256,), start + i.astype(kd.uint64) * 64)

    for seed in (5, np.int32(-3), np.uint64(2**64 - 2), np.int64(-(2**40))):
        np.testing.assert_array_equal(blocks(seed, np.uint64(2**32 - 100)), words(int(seed), 1024, 2**32 - 100))


def box_muller(seed: int, count: int, offset: int = 0) -> np.ndarray:
    u = fractions(seed, 2 * count, offset).reshape(-1, 2)
    return np.sqrt(-2 * np.log1p(-u[:, 0])) * np.cos(2 * np.pi * u[:, 1])


@settings(max_examples=4)
@given(shape=shapes, seed=seeds, dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_uniform_and_normal(shape: tuple[int, ...], seed: int, dtype: str) -> None:
    count = int(np.prod(shape))
    numpy = kd.dtypes.as_dtype(dtype).numpy
    uniform, normal = run(
        lambda: (kd.random.uniform(seed, shape, dtype), kd.random.normal(seed, shape, dtype, offset=9))
    )
    expected = fractions(seed, count).reshape(shape)
    assert uniform.dtype == numpy and normal.dtype == numpy
    rounded = expected.astype(numpy)
    assert np.all((uniform == rounded) | (rounded == 1)) and np.all(uniform < 1)
    wide = box_muller(seed, count, 9).reshape(shape)
    bound = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 4e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(normal.astype(np.float64), wide, rtol=0, atol=bound)


@settings(max_examples=6)
@given(seed=seeds, low=st.floats(-1e3, 1e3, width=16), size=st.sampled_from([0.0, 2**-10, 1.0, 7.5, 1e3]))
def test_uniform_stays_below_its_maximum(seed: int, low: float, size: float) -> None:
    """In float16 most of these numbers would round up to it."""
    high = float(np.float32(low + size))
    got = [run(lambda d=d: kd.random.uniform(seed, (300,), d, low, high)) for d in ("float16", "float32")]
    traced = run(lambda a, b: kd.random.uniform(seed, (300,), "float16", a, b), np.float32(low), np.float32(high))
    np.testing.assert_array_equal(got[0], traced)
    exact = low + fractions(seed, 300) * (high - low)
    for x, step in zip(got, (2**-10, 2**-22), strict=True):
        wide = x.astype(np.float64)
        assert np.all(np.abs(wide - exact) <= step * max(abs(low), abs(high), 2**-13))
        assert np.all(wide <= high) and (size == 0 or np.all(wide < high))


@WHERE
def test_many_are_as_they_should_be(interpret: Any) -> None:
    """Means, variances and tails, and how often bernoulli is true."""
    each, blocks = 1024, 64
    out = [kd.ShapeDtypeStruct((blocks, each), t) for t in (kd.float32, kd.float32, kd.bool_)]

    @kd.kernel(out_type=tuple(out), grid=(blocks,), interpret=interpret)
    def draw(uniform: Any, normal: Any, true: Any) -> None:
        i = kd.program_id(0)
        uniform[i] = kd.random.uniform(1, (each,), offset=i * (each // 4))
        normal[i] = kd.random.normal(2, (each,), offset=i * (each // 2))
        true[i] = kd.random.bernoulli(3, 0.25, (each,), offset=i * (each // 4))

    uniform, normal, true = draw()
    count = each * blocks
    assert abs(uniform.mean() - 0.5) < 4 / np.sqrt(12 * count) and uniform.max() < 1 and uniform.min() >= 0
    assert abs(normal.mean()) < 4 / np.sqrt(count) and abs(normal.var() - 1) < 4 * np.sqrt(2 / count)
    assert abs((normal**4).mean() - 3) < 4 * np.sqrt(96 / count) and np.isfinite(normal).all()
    assert abs(true.mean() - 0.25) < 4 * np.sqrt(0.1875 / count)
    np.testing.assert_array_equal(true, (fractions(3, count) < 0.25).reshape(blocks, each))


@pytest.mark.parametrize("shape", [(), 5, (0,), (3, 0), (1, 1, 1, 1, 2)], ids=str)
def test_odd_shapes(shape: Any) -> None:
    got = run(lambda: (kd.random.bits(4, shape), kd.random.normal(4, shape), kd.random.uniform(4, shape, "float64")))
    to = (shape,) if isinstance(shape, int) else shape
    count = int(np.prod(to))
    assert [v.shape for v in got] == [to] * 3
    np.testing.assert_array_equal(got[0], words(4, count).reshape(to))
    np.testing.assert_array_equal(got[2], fractions(4, count).reshape(to))


def test_bernoulli_takes_a_probability_for_each_element() -> None:
    p = np.linspace(0, 1, 60).astype(np.float32).reshape(1, 60)
    got = run(lambda v: kd.random.bernoulli(11, v, (7, 60), offset=2), p)
    np.testing.assert_array_equal(got, fractions(11, 420, 2).reshape(7, 60) < p)
    assert run(lambda: kd.random.bernoulli(11, 1, (50,))).all()
    assert not run(lambda: kd.random.bernoulli(11, 0.0, (50,))).any()


def test_a_lane_runs_the_rounds_once_for_four_neighbours() -> None:
    """At most 19 products each: that of a word that is 0 in the first round is none."""

    def products(function: Any, count: int) -> int:
        @kd.kernel(out_type=kd.ShapeDtypeStruct((count,), kd.float32))
        def kernel(seed: Any, out: Any) -> None:
            out[...] = function(seed, (count,))

        ptx = kernel.lower(np.uint64(1)).ptx
        return len(re.findall(r"mul\.wide\.u32 %whole", ptx))

    assert products(kd.random.uniform, 512) <= 19
    assert products(kd.random.uniform, 4096) <= 8 * 19
    assert products(kd.random.normal, 4096) <= 16 * 19
