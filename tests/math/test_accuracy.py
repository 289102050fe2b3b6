"""Errors in ulp against references of higher precision: sampled by default, all float32 values in
the slow form.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.lowering.math import FUNCTIONS

from .accuracy import measured_names, sweep, worst_at_random
from .host import host_function
from .references import pairs, samples, specials

# Every 4099th float32: prime, so that all low bits are met.
STRIDE = 4099
UNARY = [name for name in measured_names() if FUNCTIONS[f"{name}.f32"].arity == 1]
BINARY = [name for name in measured_names() if FUNCTIONS[f"{name}.f32"].arity == 2]


def limit(name: str, dtype: str) -> float:
    """The promise, in ulp."""
    single = 4.0 if name == "pow" else 2.0
    return single if dtype == "f32" else 2 * single


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.sampled(2)
def test_float32_over_the_whole_range(name: str) -> None:
    worst = sweep(name, STRIDE).or_worse(worst_at_random(name, "f32", 60_000))
    assert worst.error <= limit(name, "f32"), worst


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
def test_every_float32(name: str) -> None:
    worst = sweep(name)
    assert worst.error <= limit(name, "f32"), worst


@pytest.mark.parametrize("name", UNARY)
def test_float64_at_random(name: str) -> None:
    worst = worst_at_random(name, "f64", 60_000)
    assert worst.error <= limit(name, "f64"), worst


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(name: str, dtype: str) -> None:
    worst = worst_at_random(name, dtype, 60_000)
    assert worst.error <= limit(name, dtype), worst


def same(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, but for what a NaN's bits are."""
    integer = np.uint32 if result.dtype == np.float32 else np.uint64
    equal = result.view(integer) == expected.astype(result.dtype).view(integer)
    wrong = ~(equal | (np.isnan(result) & np.isnan(expected)))
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], result[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "rint", "sqrt"])
def test_rounding_is_exact(name: str, dtype: str) -> None:
    x = samples(dtype, 30_000)
    with np.errstate(all="ignore"):
        same(host_function(f"{name}.{dtype}")(x), getattr(np, name)(x))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["nextafter", "fmod", "remainder", "floor_divide"])
def test_exact_functions_of_two(name: str, dtype: str) -> None:
    x, y = pairs(name, dtype, 30_000)
    with np.errstate(all="ignore"):
        same(host_function(f"{name}.{dtype}")(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_ldexp_rounds_once(dtype: str) -> None:
    x = samples(dtype, 30_000)
    exponents = np.random.default_rng(0).integers(-2300, 2300, x.size).astype(np.int32)
    exponents[::3] //= 10
    with np.errstate(all="ignore"):
        same(host_function(f"ldexp.{dtype}")(x, exponents), np.ldexp(x, exponents))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_sums_of_exponentials(name: str, dtype: str) -> None:
    """Relative to the larger of the operands and 1: the sum may cancel."""
    x, y = pairs(name, dtype, 30_000)
    wide = np.float64 if dtype == "f32" else np.longdouble
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(wide), y.astype(wide)).astype(x.dtype)
        result = host_function(f"{name}.{dtype}")(x, y)
        error = np.abs(result - exact) / np.maximum(1, np.maximum(np.abs(x), np.abs(y)))
    finite = np.isfinite(exact)
    assert error[finite].max() <= 3 * np.finfo(x.dtype).eps
    same(result[~finite], exact[~finite])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exact_results(dtype: str) -> None:
    """Where the result is a whole number that users expect to be exact."""
    kind = np.float32 if dtype == "f32" else np.float64
    info = np.finfo(kind)
    whole = np.arange(info.minexp - info.nmant, info.maxexp)
    power = np.ldexp(kind(1), whole)
    same(host_function(f"exp2.{dtype}")(whole), power)
    same(host_function(f"log2.{dtype}")(power), whole.astype(kind))
    zero, one = np.array([0.0, -0.0], kind), np.array([1.0, 1.0], kind)
    for name in ("exp", "exp10", "cos", "cosh"):
        same(host_function(f"{name}.{dtype}")(zero), one)
    for name in ("log", "log10", "acos", "acosh"):
        same(host_function(f"{name}.{dtype}")(one), np.zeros(2, kind))
    same(host_function(f"logistic.{dtype}")(zero), one / 2)
    same(host_function(f"rsqrt.{dtype}")(one * 4), one / 2)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    "name",
    [
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cbrt",
        "erf",
        "erfinv",
        "expm1",
        "sin",
        "sinh",
        "tan",
        "tanh",
    ],
)
def test_odd_functions_are_odd(name: str, dtype: str) -> None:
    x = np.concatenate([samples(dtype, 9_000), np.array(specials(dtype), samples(dtype, 3).dtype)])
    if name == "expm1":  # not odd, but its zeros keep their sign
        x = x[x == 0]
    apply = host_function(f"{name}.{dtype}")
    same(apply(-x), -apply(x))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_whole_powers_are_exact(dtype: str) -> None:
    kind = np.float32 if dtype == "f32" else np.float64
    limit_ = 2 ** (np.finfo(kind).nmant + 1)
    cases = [(x, y) for x in range(-60, 200) for y in range(60) if abs(x**y) <= limit_]
    base, exponent = (np.array(column, kind) for column in zip(*cases, strict=True))
    same(host_function(f"pow.{dtype}")(base, exponent), np.array([x**y for x, y in cases], kind))
    squares = np.arange(1, 4097, dtype=kind) ** 2
    same(host_function(f"pow.{dtype}")(squares, np.full_like(squares, 0.5)), np.sqrt(squares))
    tens = np.arange(0, 11 if dtype == "f32" else 23)
    powers = np.array([10**k for k in tens.tolist()], kind)
    same(host_function(f"exp10.{dtype}")(tens), powers)
    same(host_function(f"log10.{dtype}")(powers), tens.astype(kind))
    whole = np.arange(200).astype(kind)
    same(host_function(f"cbrt.{dtype}")(whole**3), whole)
