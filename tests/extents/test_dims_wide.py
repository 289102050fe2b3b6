"""Dims of over 2**31 elements beside narrower integers: what the body computes is what Python computes with ints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

LARGE = 2**31 + 4096  # not one element is stored: the array repeats one

# (the body's, NumPy's of int64): i has four small ints, n is the extent
COMPUTED: dict[str, tuple[Any, Any]] = {
    "less": (lambda i, n: i < n, lambda i, n: i < n),
    "greater": (lambda i, n: n > i, lambda i, n: n > i),
    "equal": (lambda i, n: i == n - (n - 2), lambda i, n: i == 2),
    "not": (lambda i, n: i != n, lambda i, n: i != n),
    "at least": (lambda i, n: i >= n, lambda i, n: i >= n),
    "difference": (lambda i, n: n - 1 - i, lambda i, n: n - 1 - i),
    "sum": (lambda i, n: i + n, lambda i, n: i + n),
    "product": (lambda i, n: i * n, lambda i, n: i * n),
    "rest": (lambda i, n: (i - 7) % n, lambda i, n: (i - 7) % n),
    "quotient": (lambda i, n: (i - 7) // n, lambda i, n: (i - 7) // n),
    "smaller": (lambda i, n: kd.minimum(i, n - 1), lambda i, n: np.minimum(i, n - 1)),
    "larger": (kd.maximum, np.maximum),
    "within": (lambda i, n: kd.clip(i + 5, 0, n - 1), lambda i, n: np.clip(i + 5, 0, n - 1)),
    "one of two": (lambda i, n: kd.where(i < 2, i, n), lambda i, n: np.where(i < 2, i, n)),
}


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "uint32", "int64"])
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("size", [5, 300, LARGE])
@pytest.mark.sampled(40)
def test_computed_as_python_does(name: str, dtype: str, size: int) -> None:
    """A Dim without a maximum has 64 bits, and does not lose them to the other operand."""
    body, model = COMPUTED[name]
    if dtype == "uint8" and name in ("rest", "quotient"):
        pytest.skip("it has no numbers below zero")

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int64), shapes={"x": (kd.Dim("N"),)})
    def kernel(x: Any, i: Any, out: Any) -> None:
        out[...] = body(i[...], x.shape[0]).astype(kd.int64)

    i = np.arange(4, dtype=dtype)
    wanted = model(np.arange(4, dtype=np.int64), size)
    if dtype == "uint32" and name in ("rest", "quotient"):
        wanted = model(i.astype(np.int64) + 2**32 * (i < 7), size)  # i - 7 wraps
    np.testing.assert_array_equal(kernel(np.broadcast_to(np.uint8(0), (size,)), i, interpret=True), wanted)


def test_elements_beyond_31_bits_are_found() -> None:
    """Indices from both ends, by index arrays of 32 bits."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((3, 4), kd.uint8), shapes={"x": (kd.Dim("N"),)})
    def kernel(x: Any, out: Any) -> None:
        i, n = kd.arange(4), x.shape[0]
        for number, index in enumerate((n - 4 + i, n - 1 - i, n + i)):
            out[number] = kd.load(x, (index,), fill=9)

    x = np.broadcast_to(np.uint8(1), (LARGE,))
    np.testing.assert_array_equal(kernel(x, interpret=True), [[1] * 4, [1] * 4, [9] * 4])


def test_comparisons_with_numbers_that_the_other_dtype_lacks() -> None:
    """Dims and scalars of 32 bits beside narrower arrays; a quotient of ints is float32 all the same."""

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((4,), kd.bool_), kd.ShapeDtypeStruct((4,), kd.bool_), kd.ShapeDtypeStruct((4,), kd.float32)),
        shapes={"x": (kd.Dim("N", max=2**20),)},
    )  # fmt: skip
    def kernel(x: Any, v: Any, s: Any, a: Any, b: Any, c: Any) -> None:
        a[...] = v[...] < x.shape[0]
        b[...] = v[...] > s
        quotient = kd.arange(4) / x.shape[0]
        assert quotient.dtype == kd.float32
        c[...] = quotient

    for dtype in (np.uint8, np.int8, np.uint16, np.uint32):
        v = np.array([0, 43, 44, 127], dtype)
        below, above, quotient = kernel(np.zeros(300, np.float32), v, -1, interpret=True)
        assert below.all() and above.all()
    np.testing.assert_array_equal(quotient, np.arange(4, dtype=np.float32) / np.float32(300))


def test_a_quotient_with_a_dim_of_any_size_is_float32() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.float32), shapes={"x": (kd.Dim("N"),)})
    def kernel(x: Any, out: Any) -> None:
        quotient = kd.arange(4) / x.shape[0]
        assert quotient.dtype == kd.float32
        out[...] = quotient

    for size in (3, LARGE):
        found = kernel(np.broadcast_to(np.uint8(1), (size,)), interpret=True)
        np.testing.assert_array_equal(found, np.arange(4, dtype=np.float32) / np.float32(size))


@pytest.mark.parametrize(("most", "narrow"), [(2**20, True), (2**31 - 1, True), (2**40, False), (None, False)])
def test_what_is_left_of_a_bounded_extent_has_32_bits(most: int | None, narrow: bool) -> None:
    """It needs no clamp then. Indices of any launch stay right."""

    def body(x: Any, out: Any) -> None:
        first = kd.clip(kd.program_id(0), 0, 1000) * 64
        out[kd.ds(first, 64)] = x[kd.ds(first, 64)]

    n = kd.Dim("N", max=most)
    out = {"out_type": lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), "grid": lambda x: (kd.cdiv(x.shape[0], 64),)}
    kernel = kd.kernel(body, shapes={"x": (n,)}, **out)
    ptx = kernel.lower(kd.ShapeDtypeStruct((n,), kd.float32), target="sm_90a").ptx
    assert ("max.s64" not in ptx) == narrow
    x = np.arange(1000, dtype=np.float32)
    for size in (1, 63, 64, 65, 1000):
        np.testing.assert_array_equal(kernel(x[:size], interpret=True), x[:size])


@pytest.mark.parametrize("interpret", [True, pytest.param(False, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"])
def test_addresses_of_views_have_the_strides_of_the_launch(interpret: bool) -> None:
    """An address needs no extent, but those that make a stride."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((2,), kd.int64), shapes={"x": (4, kd.Dim("N"))})
    def apart(x: Any, out: Any) -> None:
        views = x, x.at[2], x.at[1, kd.ds(3, 4)]
        first, row, part = (kd.inline_ptx("mov.b64 $0, $1;", view, out_type=kd.int64) for view in views)
        out[0], out[1] = row - first, part - first

    for n in (5, 8, 1000):
        assert np.asarray(apart(np.zeros((4, n), np.float32), interpret=interpret)).tolist() == [8 * n, 4 * n + 12]
    assert len(apart.specialisations()) == 1
