"""Every row of `tests/table.py` against NumPy, for every dtype, over shapes; and what the table can't say."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl.values import Array
from tests import compare, table
from tests.ops import patterns
from tests.ops.harness import random, run

SHAPES = [(), (1,), (7,), (128,), (130,), (3, 5), (1, 33), (4, 1, 9), (2, 3, 1, 4), (2, 1, 2, 3, 2)]


@pytest.mark.parametrize(("row", "dtype"), table.CASES, ids=[f"{r.name}-{d}" for r, d in table.CASES])
@pytest.mark.sampled(4)
def test_row(row: table.Row, dtype: str) -> None:
    rng = np.random.default_rng(len(row.name) * 31 + len(dtype))
    shape = SHAPES[int(rng.integers(len(SHAPES)))] if dtype not in ("float32", "bfloat16", "int32") else (3, 77)
    values = table.operands(row, dtype, shape, rng)
    result = run(row.function, *values)
    assert result.dtype == kd.dtypes.as_dtype(table.result_dtype(row, dtype)).numpy
    narrow = dtype in ("float16", "bfloat16")
    compare.agree(result, table.exact(row, values), 1 if narrow and row.ulps else row.ulps, f"{row.name} of {dtype}")


shapes = st.lists(st.integers(1, 6), max_size=5).map(tuple) | st.tuples(st.integers(1, 300))


@given(shape=shapes, data=st.data())
def test_broadcasting(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Operands of lower rank and with extents of 1 stretch as NumPy's do."""
    drop = data.draw(st.integers(0, len(shape)))
    other = tuple(1 if data.draw(st.booleans()) else n for n in shape[drop:])
    x, y = random(shape), random(other, seed=1)
    np.testing.assert_array_equal(run(lambda a, b: a * b - b, x, y), x * y - y)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "int64"])
def test_shifts_by_the_width_or_more(dtype: str) -> None:
    numpy = np.dtype(dtype)
    bits = numpy.itemsize * 8
    x = np.array([1, 5, 100, -1 if numpy.kind == "i" else 3], numpy)
    for by in (bits, bits + 1, 100):
        y = np.full(4, by, numpy)
        np.testing.assert_array_equal(run(kd.left_shift, x, y), 0)
        np.testing.assert_array_equal(run(kd.right_shift, x, y), np.where(x < 0, -1, 0).astype(numpy))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_division_never_traps(dtype: str) -> None:
    low = np.iinfo(dtype).min
    x = np.array([low, low, 7, -7, 0], dtype)
    y = np.array([-1, 0, 0, 0, 0], dtype)
    np.testing.assert_array_equal(run(kd.div, x, y), np.array([low, 0, 0, 0, 0], dtype))
    for f in (kd.rem, kd.mod):
        np.testing.assert_array_equal(run(f, x, y), np.zeros(5, dtype))
    np.testing.assert_array_equal(run(kd.floor_divide, x, y), np.array([low, 0, 0, 0, 0], dtype))


def test_all_divisions_of_int8() -> None:
    x, y = (a.ravel() for a in np.meshgrid(*[np.arange(-128, 128, dtype=np.int8)] * 2))
    exact = [(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    wrapped = {
        kd.div: [0 if b == 0 else int(a / b) for a, b in exact],
        kd.rem: [0 if b == 0 else a - b * int(a / b) for a, b in exact],
        kd.floor_divide: [0 if b == 0 else a // b for a, b in exact],
        kd.mod: [0 if b == 0 else a % b for a, b in exact],
    }
    for (f, want), got in zip(wrapped.items(), patterns.evaluate(list(wrapped), [x, y]), strict=True):
        np.testing.assert_array_equal(got, np.array(want, np.int64).astype(np.int8), err_msg=f.__name__)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)


def test_special_values_of_float_arithmetic() -> None:
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        for f, reference in ((kd.add, np.add), (kd.multiply, np.multiply), (kd.true_divide, np.true_divide)):
            got, want = run(f, x, y), reference(x, y)
            np.testing.assert_array_equal(got, want)
            numbers = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))
        for f, reference in (
            (kd.maximum, np.maximum),
            (kd.minimum, np.minimum),
            (kd.fmax, np.fmax),
            (kd.fmin, np.fmin),
        ):
            np.testing.assert_array_equal(run(f, x, y), reference(x, y))
        for f, reference in ((kd.less, np.less), (kd.equal, np.equal), (kd.not_equal, np.not_equal)):
            np.testing.assert_array_equal(run(f, x, y), reference(x, y))


def test_where_and_select() -> None:
    x, y = random((5, 40)), random((5, 40), seed=1)
    np.testing.assert_array_equal(run(lambda a, b: kd.where(a > b, a, 2.0), x, y), np.where(x > y, x, np.float32(2)))
    np.testing.assert_array_equal(run(lambda a, b: kd.select(a > b, a, b), x, y), np.where(x > y, x, y))


def test_clip() -> None:
    x = random((99,))
    np.testing.assert_array_equal(
        run(lambda a: kd.clip(a, -0.5, 0.5), x), np.clip(x, np.float32(-0.5), np.float32(0.5))
    )
    np.testing.assert_array_equal(run(lambda a: kd.clip(a, max=0.0), x), np.minimum(x, 0))


def test_operators_and_reflected_operators() -> None:
    x = np.array([1, 2, 3, -4, 5], np.int32)
    for got, want in (
        (run(lambda a: 7 - a, x), 7 - x),
        (run(lambda a: a // 2, x), x // 2),
        (run(lambda a: -7 // a, x), -7 // x),
        (run(lambda a: a % 3, x), x % 3),
        (run(lambda a: -7 % a, x), -7 % x),
        (run(lambda a: a << 2, x), x << 2),
        (run(lambda a: 1 << (a & 3), x), 1 << (x & 3)),
        (run(lambda a: ~a ^ (a | 1), x), ~x ^ (x | 1)),
        (run(lambda a: abs(-a), x), abs(-x)),
        (run(lambda a: divmod(a, 3)[1], x), x % 3),
        (run(lambda a: (a > 2) & ~(a == 3) | (a < 0), x), (x > 2) & ~(x == 3) | (x < 0)),
    ):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_literals_are_weak() -> None:
    for dtype in ("bfloat16", "float16", "float32", "int8", "uint32"):
        assert run(lambda a: a + 1, random((4,), dtype)).dtype == kd.dtypes.as_dtype(dtype).numpy
    assert run(lambda a: a + 1.5, random((4,), "int32")).dtype == np.float32
    assert run(lambda a: a + np.float64(1.5), random((4,), "float32")).dtype == np.float64


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_literal_beyond_the_dtype_is_an_infinity(dtype: str) -> None:
    """Without a warning of NumPy's."""
    assert (run(lambda a: kd.abs(a) * 1e300, np.ones(4, kd.dtypes.as_dtype(dtype).numpy)) == np.inf).all()


@pytest.mark.skipif(find_spec("kernel_dsl.ops.dense") is None, reason="array constants have not landed")
def test_numpy_constants_are_closed_over() -> None:
    x = random((6, 4))
    row = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(lambda a: a + np.float32(2), x), x + 2)
    np.testing.assert_array_equal(run(lambda a: a * row, x), x * row)


@pytest.mark.skipif(not hasattr(Array, "__array_ufunc__"), reason="ufuncs have not landed")
def test_ufuncs_on_traced_values() -> None:
    x = random((9,))
    np.testing.assert_array_equal(run(lambda a: np.maximum(a, 0), x), np.maximum(x, 0))
    compare.agree(run(np.exp, x), np.exp(x.astype(np.float64)), ulps=2)
