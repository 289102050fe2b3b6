"""Integers of every width against Python's: shifts by any amount, division by constants, bits, powers and wrapping.

The hardware's shifts, counts and multiplications take or give 32 bits where ours have 8 to 64, and the compiler rewrites
divisions by constants and pairs of shifts: so values and amounts stand around every power of two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.promote import join
from tests.ops.harness import INTERPRET, run
from tests.ops.patterns import evaluate

INTEGERS = [d for d in kd.dtypes.ALL if d.is_integer]
WHERE = [pytest.param(INTERPRET, id="interpreter"), pytest.param(False, id="gpu", marks=pytest.mark.gpu)]


def wrapped(value: int, dtype: kd.dtypes.DType) -> int:
    """An exact integer as a dtype holds it."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def edges(dtype: kd.dtypes.DType, around: tuple[int, ...] = (-1, 0, 1)) -> list[int]:
    """Zero, the ends, and what lies around each power of two, of both signs."""
    info = np.iinfo(dtype.numpy)
    every = {s * ((1 << k) + d) for k in range(dtype.bits + 1) for d in around for s in (1, -1)} | {info.min, info.max}
    return sorted(v for v in every if info.min <= v <= info.max)


def shifted(x: int, amount: int, dtype: kd.dtypes.DType, left: bool) -> int:
    """What the language says: an amount that is not below the width, seen as unsigned, leaves zeros, or the sign."""
    amount &= (1 << dtype.bits) - 1
    if amount >= dtype.bits:
        return 0 if left or x >= 0 else -1
    return wrapped(x << amount, dtype) if left else x >> amount


def agree(got: np.ndarray, want: list[int], *operands: Any) -> None:
    bad = [i for i, (g, w) in enumerate(zip(got.tolist(), want, strict=True)) if g != w]
    assert not bad, [(*(o[i] for o in operands), "got", got[i], "not", want[i]) for i in bad[:4]]


# --- shifts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize(
    "params", [{}, {"target": "sm_80"}, {"approx_math": True}], ids=["sm_90a", "sm_80", "approx_math"]
)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(4)
def test_shifts_of_arrays(dtype: kd.dtypes.DType, params: dict[str, Any], interpret: Any) -> None:
    """Every edge by every edge, plain, behind guards of the author's, and as halves of a rotation."""
    values = edges(dtype, (0, 1))[:: 1 if dtype.bits < 64 else 3]
    pairs = list(product(values, edges(dtype, (0, 1, 5))))
    x, n = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    bits = dtype.bits

    def whole(v: int, k: int) -> int:
        return shifted(v, k, dtype, left=True)

    cases: list[tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = [
        (kd.left_shift, whole),
        (kd.right_shift, lambda v, k: shifted(v, k, dtype, left=False)),
        (lambda v, k: kd.where(k < bits, v << k, 7), lambda v, k: whole(v, k) if k < bits else 7),
        (
            lambda v, k: kd.where(k < bits, v << (k & (bits - 1)), 7),
            lambda v, k: whole(v, k & bits - 1) if k < bits else 7,
        ),
        (
            lambda v, k: (v << k) | (v >> (bits - k)),
            lambda v, k: whole(v, k) | shifted(v, wrapped(bits - k, dtype), dtype, left=False),
        ),
        (
            lambda v, k: (v << (k & (bits - 1))) ^ (v >> (-k & (bits - 1))),
            lambda v, k: whole(v, k & bits - 1) ^ (v >> (-k & bits - 1)),
        ),
    ]
    results = evaluate([ours for ours, _ in cases], [x, n], interpret, compiler_params=kd.CompilerParams(**params))
    for got, (_, theirs) in zip(results, cases, strict=True):
        agree(got, [theirs(v, k) for v, k in pairs], x, n)


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(4)
def test_shifts_by_one_amount(dtype: kd.dtypes.DType, interpret: Any) -> None:
    """Static, as a Python int and as a NumPy scalar; and traced, as an argument of the call and loaded."""
    x = np.array(edges(dtype), dtype.numpy)
    amounts = [a for a in (-1, 0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 1, 2**31, 2**32, 2**32 + 1, 2**63) if
               np.iinfo(dtype.numpy).min <= a <= np.iinfo(dtype.numpy).max]  # fmt: skip
    outs = (kd.ShapeDtypeStruct(x.shape, dtype),) * 8

    for amount in amounts:
        number = dtype.numpy.type(amount)

        def body(r: Any, a: Any, scalar: Any, *refs: Any, amount: Any = amount, number: Any = number) -> None:
            v = r[...]
            ways = (amount, number, scalar, a[0])
            for (left, right), by in zip(zip(refs[::2], refs[1::2], strict=True), ways, strict=True):
                left[...], right[...] = v << by, v >> by

        kernel = kd.kernel(body, out_type=outs, interpret=interpret)
        for i, got in enumerate(kernel(x, np.array([amount], dtype.numpy), number)):
            agree(np.asarray(got), [shifted(v, amount, dtype, left=i % 2 == 0) for v in x.tolist()], x)


@pytest.mark.parametrize("interpret", WHERE)
def test_shifts_by_amounts_of_every_dtype(interpret: Any) -> None:
    """The operands are promoted first, as those of any operation."""
    for own, by in product(INTEGERS, INTEGERS):
        try:
            dtype = join(own, by)
        except kd.Error:
            continue
        pairs = list(product(edges(own, (0,)), edges(by, (0, 1))))
        x, n = np.array([p[0] for p in pairs], own.numpy), np.array([p[1] for p in pairs], by.numpy)
        left, right = evaluate([kd.left_shift, kd.right_shift], [x, n], interpret)
        assert left.dtype == right.dtype == dtype.numpy
        agree(left, [shifted(wrapped(v, dtype), k, dtype, left=True) for v, k in pairs], x, n)
        agree(right, [shifted(wrapped(v, dtype), k, dtype, left=False) for v, k in pairs], x, n)


def test_a_shift_beyond_the_width_as_an_index() -> None:
    """It is 0 there too, though an index that may leave int32 is computed again in 64 bits."""
    x = np.arange(64, dtype=np.int32)

    def body(r: Any, out: Any) -> None:
        i = kd.axis_index("i")
        out[i] = r[(i << 33) + 3 + (i << -1)]

    out = kd.ShapeDtypeStruct((2,), kd.int32)
    kernel = kd.kernel(body, out_type=out, grid=(2,), grid_names=("i",), interpret=INTERPRET)
    np.testing.assert_array_equal(kernel(x), [3, 3])


# --- division, bits and powers -------------------------------------------------------------------


def truncated(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


DIVISIONS: dict[Callable[..., Any], Callable[[int, int], int]] = {
    kd.div: truncated,
    kd.rem: lambda a, b: a - b * truncated(a, b) if b else 0,
    kd.floor_divide: lambda a, b: a // b if b else 0,
    kd.mod: lambda a, b: a % b if b else 0,
}


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(4)
def test_division_by_constants(dtype: kd.dtypes.DType, interpret: Any) -> None:
    info = np.iinfo(dtype.numpy)
    x = np.array(edges(dtype, (-3, -1, 0, 1, 7)), dtype.numpy)
    by = [
        1,
        2,
        3,
        7,
        10,
        25,
        64,
        100,
        127,
        641,
        65537,
        10**9,
        2**31 - 1,
        2**32 + 1,
        10**18,
        info.max,
        info.min,
        -1,
        -2,
        -7,
        0,
    ]
    constants = [dtype.numpy.type(k) for k in by if info.min <= k <= info.max]
    functions = [(f, k) for k in constants for f in DIVISIONS]
    results = evaluate([lambda v, f=f, k=k: f(v, k) for f, k in functions], [x], interpret)
    for (f, k), got in zip(functions, results, strict=True):
        agree(got, [wrapped(DIVISIONS[f](v, int(k)), dtype) for v in x.tolist()], x)


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(4)
def test_division_of_known_ranges(dtype: kd.dtypes.DType, interpret: Any) -> None:
    """What is known of operands leaves out checks, and no results change."""
    info = np.iinfo(dtype.numpy)
    values = edges(dtype, (0, 1))[:: 1 if dtype.bits < 32 else dtype.bits // 16]
    pairs = list(product(values, values))
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    top = int(info.max)
    bounds = [(0, 1, 7), (0, 1, top), (3, top - 1, top), (int(info.min), 1, 7), (int(info.min), 3, top), (1, 0, 5)]
    functions = [(f, *own) for own in bounds for f in DIVISIONS]
    results = evaluate(
        [lambda x, y, f=f, at=at, by=by: f(kd.maximum(x, at), kd.clip(y, *by)) for f, at, *by in functions],
        [a, b],
        interpret,
    )
    for (f, at, low, high), got in zip(functions, results, strict=True):
        want = [wrapped(DIVISIONS[f](max(x, at), min(max(y, low), high)), dtype) for x, y in pairs]
        agree(got, want, a, b)


def test_a_division_of_known_signs_has_no_checks() -> None:
    """As of sizes: indices are not negative, and a `kd.Dim` is at least 1."""

    def body(x: Any, out: Any) -> None:
        i = kd.program_id(0)
        out[i] = kd.div(i, x.shape[0]) + kd.rem(i, x.shape[0])

    struct = kd.ShapeDtypeStruct((100,), kd.int32)
    kernel = kd.kernel(body, out_type=struct, grid=(100,), shapes={0: (kd.Dim("n", max=1000),)})
    ptx = kernel.lower(struct, target="sm_90a").ptx
    assert ptx.count("div.u32") == 1
    assert not re.search(r"rem[.]|selp|div[.]s", ptx)


def _power(x: int, n: int) -> int:
    if n < 0:
        return 1 if x == 1 else (-1) ** (n & 1) if x == -1 else 0
    return x**n


UNARY: dict[Callable[..., Any], Callable[[int, int], int]] = {
    kd.population_count: lambda v, bits: (v & (1 << bits) - 1).bit_count(),
    kd.clz: lambda v, bits: bits - (v & (1 << bits) - 1).bit_length(),
    kd.absolute: lambda v, bits: abs(v),
    kd.negative: lambda v, bits: -v,
    kd.invert: lambda v, bits: ~v,
    kd.sign: lambda v, bits: (v > 0) - (v < 0),
    kd.square: lambda v, bits: v * v,
}
BINARY: dict[Callable[..., Any], Callable[[int, int], int]] = {
    **DIVISIONS,
    kd.add: lambda a, b: a + b,
    kd.subtract: lambda a, b: a - b,
    kd.multiply: lambda a, b: a * b,
    kd.maximum: max,
    kd.minimum: min,
    kd.gcd: math.gcd,
    kd.lcm: math.lcm,
}


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(4)
def test_against_python(dtype: kd.dtypes.DType, interpret: Any) -> None:
    values = edges(dtype, (0, 1))[:: 1 if dtype.bits < 32 else dtype.bits // 16]
    x = np.array(values, dtype.numpy)
    for (_, want), got in zip(UNARY.items(), evaluate(list(UNARY), [x], interpret), strict=True):
        agree(got, [wrapped(want(v, dtype.bits), dtype) for v in values], x)
    pairs = list(product(values, values))
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    for (_, want), got in zip(BINARY.items(), evaluate(list(BINARY), [a, b], interpret), strict=True):
        agree(got, [wrapped(want(*pair), dtype) for pair in pairs], a, b)
    exponents = [n for n in (-3, -2, -1, 0, 1, 2, 3, 5, 31, 63, 64, 127) if dtype.is_signed or n >= 0]
    pairs = list(product(values, exponents))
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    (got,) = evaluate([kd.power], [a, b], interpret)
    agree(got, [wrapped(_power(*pair), dtype) for pair in pairs], a, b)
    for got, n in zip(
        evaluate([lambda v, n=n: v**n for n in (0, 1, 3, 32)], [x], interpret), (0, 1, 3, 32), strict=True
    ):
        agree(got, [wrapped(v**n, dtype) for v in values], x)


def test_powers_of_bools_are_int32() -> None:
    """As JAX has it, by a literal and by a value."""
    x = np.array([True, True, False, False])
    y = np.array([True, False, True, False])
    for got, want in (
        (run(lambda a: a**True, x), x.astype(np.int32)),
        (run(lambda a: True**a, x), np.ones(4, np.int32)),
        (run(lambda a, b: a**b, x, y), np.array([1, 1, 0, 1], np.int32)),
        (run(lambda a: a**2, x), x.astype(np.int32)),
        (run(lambda a: 2**a, x), np.array([2, 2, 1, 1], np.int32)),
    ):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("interpret", WHERE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_upper_halves_of_products(dtype: Any, interpret: Any) -> None:
    rng = np.random.default_rng(9)
    info = np.iinfo(dtype.numpy)
    ends = np.array([info.min, info.max, 0, 1], dtype.numpy)
    x = np.concatenate([np.repeat(ends, 4), rng.integers(info.min, info.max, 200, dtype.numpy, endpoint=True)])
    y = np.concatenate([np.tile(ends, 4), rng.integers(info.min, info.max, 200, dtype.numpy, endpoint=True)])
    got = run(kd.mulhi, x, y, interpret=interpret)
    assert got.dtype == x.dtype
    assert got.tolist() == [int(a) * int(b) >> dtype.bits for a, b in zip(x, y, strict=True)]
