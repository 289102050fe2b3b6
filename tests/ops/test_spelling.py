"""What Pallas spells in its own way: rounding methods, logical shifts, several axis names, single barriers; and batched products."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import WHERE, random, run

AWAY = kd.RoundingMethod.AWAY_FROM_ZERO


def away(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.trunc(wide) + np.where(np.abs(wide - np.trunc(wide)) >= 0.5, np.sign(wide), 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
@WHERE
def test_halves_away_from_zero(dtype: str, interpret: Any) -> None:
    numpy = kd.dtypes.as_dtype(dtype).numpy
    near = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.5,
        0.49999997,
        0.49999999999999994,
        8388607.5,
        4503599627370495.5,
        -0.0,
        1e30,
        -1e30,
        3.0,
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.concatenate([np.array(near).astype(numpy), random((200,), dtype)])
        got = run(lambda v: (kd.round(v, AWAY), kd.round(v, rounding_method=AWAY), kd.round(v)), x, interpret=interpret)
        expected = np.where(np.isfinite(x.astype(np.float64)), away(x), x.astype(np.float64))
    np.testing.assert_array_equal(got[0].astype(np.float64), expected.astype(numpy).astype(np.float64))
    assert got[0].tobytes() == got[1].tobytes() and np.signbit(got[0][9].astype(np.float64))
    np.testing.assert_array_equal(
        got[2].astype(np.float64), np.rint(x.astype(np.float64)).astype(numpy).astype(np.float64)
    )


def test_rounding_specials_and_decimals() -> None:
    got = run(lambda v: kd.round(v, AWAY), np.array([np.inf, -np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan])
    x = np.array([0.25, 0.75, -1.25, 1234.5], np.float64)
    got = run(lambda v: (kd.round(v, 1, rounding_method=AWAY), kd.round(v, -1, rounding_method=AWAY)), x)
    np.testing.assert_allclose(got[0], [0.3, 0.8, -1.3, 1234.5])
    np.testing.assert_allclose(got[1], [0, 0, 0, 1230])
    np.testing.assert_array_equal(run(lambda v: kd.round(v, AWAY), np.arange(4)), np.arange(4))


@WHERE
def test_logical_shifts_of_any_amount(interpret: Any) -> None:
    x = np.array([-1, -(2**31), 2**31 - 1, 5], np.int32)
    for amount in (0, 1, 31, 32, 2**31 - 1, -1):
        got = run(kd.shift_right_logical, x, np.full(4, amount, np.int32), interpret=interpret)
        want = x.view(np.uint32).astype(np.uint64) >> np.uint64(amount) if 0 <= amount < 32 else np.zeros(4, np.uint64)
        np.testing.assert_array_equal(got.view(np.uint32), want)


@WHERE
def test_several_axes_are_one(interpret: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((5, 3, 2, 6), kd.int32), grid=(5, 3), grid_names=("i", "j"),
        num_threads=2, thread_name="wg", interpret=interpret,
    )  # fmt: skip
    def kernel(out: Any) -> None:
        sizes = (kd.axis_size(("i", "wg")), kd.axis_size(["j"]), kd.axis_size(()))
        assert sizes == (10, 3, 1)
        names = (("i", "j"), ("j", "i"), ("wg", "j", "i"), ["i"], (), "j")
        index = tuple(kd.axis_index(n) for n in ("i", "j", "wg"))
        for place, name in enumerate(names):
            out[(*index, place)] = kd.axis_index(name)

    i, j, w = np.mgrid[:5, :3, :2]
    want = np.stack([i * 3 + j, j * 5 + i, (w * 3 + j) * 5 + i, i, i * 0, j], axis=-1)
    np.testing.assert_array_equal(kernel(), want)


@pytest.mark.parametrize("index", [0, -1, "traced"])
@WHERE
def test_a_single_barrier_is_number_0(index: Any, interpret: Any) -> None:
    @kd.kernel(
        out_type=lambda x: x, num_threads=2, thread_name="wg", interpret=interpret,
        scratch_types=[kd.SMEM((64,), kd.float32), kd.Barrier(num_arrivals=1)],
    )  # fmt: skip
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        wg = kd.axis_index("wg")
        one = ready.at[wg - wg if index == "traced" else index]

        @kd.when(wg == 0)
        def _() -> None:
            tile[...] = x[...] * 2
            kd.barrier_arrive(one)

        @kd.when(wg == 1)
        def _() -> None:
            kd.barrier_wait(one)
            out[...] = tile[...]

    x = random((64,))
    np.testing.assert_array_equal(kernel(x), x * 2)


PRODUCTS = [
    ((3, 5, 7), (3, 7, 4)),
    ((2, 1, 5, 8), (3, 8, 9)),
    ((6, 20), (4, 20, 3)),
    ((4, 3, 20), (20, 6)),
    ((7,), (3, 7, 2)),
    ((2, 3, 5, 7), (7,)),
    ((1, 33, 40), (5, 40, 20)),
    ((2, 0, 4), (4, 3)),
    ((2, 3, 0), (2, 0, 5)),
    ((0, 3, 4), (4, 5)),
]


@pytest.mark.parametrize(("number", "shapes"), list(enumerate(PRODUCTS)), ids=str)
@pytest.mark.sampled(4)
def test_products_follow_matmul(number: int, shapes: Any) -> None:
    """By lanes and by tensor cores, with each of the three names."""
    product = (kd.dot, kd.matmul, lambda x, y: x @ y)[number % 3]
    for dtype in ("bfloat16", ("float32", "int32", "float64")[number % 3]):
        a, b = random(shapes[0], dtype), random(shapes[1], dtype, seed=1)
        _agree(run(product, a, b), a, b)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_products_of_8_bits(dtype: str) -> None:
    a, b = random((2, 33, 40), dtype), random((40, 20), dtype, seed=1)
    _agree(run(lambda x, y: x @ y, a, b), a, b)


def _agree(got: np.ndarray, a: np.ndarray, b: np.ndarray, acc: Any = 0) -> None:
    wide = [v if v.dtype.kind in "iub" else v.astype(np.float64) for v in (a, b)]
    if a.dtype.kind == "i":
        exact = np.matmul(*(v.astype(np.int64) for v in wide)).astype(np.int32)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, exact)
        return
    exact, sizes = np.matmul(*wide) + acc, np.matmul(*map(np.abs, wide)) + np.abs(acc)
    assert got.shape == exact.shape and got.dtype == (np.float64 if a.dtype == np.float64 else np.float32)
    step = 2.0**-50 if a.dtype == np.float64 else 2.0**-20
    assert np.all(np.abs(got - exact) <= step * sizes)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@WHERE
@pytest.mark.sampled(2)
def test_products_of_refs_with_sums_of_before(dtype: str, interpret: Any) -> None:
    """GMEM, SMEM and values on either side; a sum that came from such a product, and one of another layout."""

    def body(x: Any, y: Any, z: Any, out: Any, tile: Any) -> None:
        tile[...] = y[...]
        first = kd.dot(x, y[...], acc=z[...])
        out[0] = kd.dot(x[...], tile, acc=first)
        out[1] = x[...] @ kd.dot(y, kd.zeros((64, 64), dtype)).astype(dtype) + z[...]

    x, y = random((2, 64, 32), dtype), random((2, 32, 64), dtype, seed=1)
    z = random((2, 64, 64), "float32", seed=2)
    kernel = kd.kernel(
        body, out_type=kd.ShapeDtypeStruct((2, 2, 64, 64), kd.float32), scratch_types=[kd.SMEM((2, 32, 64), dtype)],
        interpret=interpret,
    )  # fmt: skip
    got = kernel(x, y, z)
    _agree(got[0] - z, x, y, np.matmul(x.astype(np.float64), y.astype(np.float64)))
    np.testing.assert_array_equal(got[1], z)


@dataclasses.dataclass
class Tile:
    """A buffer, the barrier that guards it, and how much of it is used."""

    data: Any
    ready: Any
    size: int

    def fill(self, source: Any, start: Any) -> None:
        self.data[kd.ds(0, self.size)] = source[kd.ds(start, self.size)]
        kd.barrier_arrive(self.ready)

    def take(self) -> Any:
        kd.barrier_wait(self.ready)
        return self.data[kd.ds(0, self.size)]


class Pair(NamedTuple):
    left: Any
    right: Any


def _difference(pair: Pair, *, scale: Any) -> Any:
    return (pair.left[...] - pair.right[...]) * scale


@WHERE
def test_functions_of_refs_in_classes(interpret: Any) -> None:
    """A body calls functions and methods as Python does: they are traced in place, whatever holds their Refs."""

    @kd.kernel(
        out_type=lambda x, y: (x, y), num_threads=2, thread_name="wg", interpret=interpret,
        scratch_types={"data": kd.SMEM((96,), kd.float32), "ready": kd.Barrier(num_arrivals=1)},
    )  # fmt: skip
    def kernel(x: Any, y: Any, shifted: Any, differences: Any, data: Any, ready: Any) -> None:
        tile = Tile(data, ready, 80)
        kd.when(kd.axis_index("wg") == 0)(lambda: tile.fill(x, 8))

        @kd.when(kd.axis_index("wg") == 1)
        def _() -> None:
            shifted[kd.ds(0, tile.size)] = tile.take()
            shifted[kd.ds(80, 20)] = kd.zeros((20,))
            differences[...] = _difference(Pair(x, y), scale=0.5)

    x, y = random((100,)), random((100,), seed=1)
    shifted, differences = kernel(x, y)
    np.testing.assert_array_equal(shifted, np.concatenate([x[8:88], np.zeros(20, np.float32)]))
    np.testing.assert_array_equal(differences, (x - y) * np.float32(0.5))
