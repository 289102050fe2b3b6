"""Approximations and contraction where a call or a scope asks for them, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import WHERE, random, run

# what the hardware has, NumPy's function, and how far it may be, relative to 1 and the result
FUNCTIONS = {
    "exp": ("ex2.approx.ftz.f32", np.exp, 2.0**-20),
    "exp2": ("ex2.approx.ftz.f32", np.exp2, 2.0**-21),
    "log2": ("lg2.approx.ftz.f32", np.log2, 2.0**-20),
    "tanh": ("tanh.approx.f32", np.tanh, 2.0**-10),
    "sin": ("sin.approx.ftz.f32", np.sin, 2.0**-20),
    "cos": ("cos.approx.ftz.f32", np.cos, 2.0**-20),
    "rsqrt": ("rsqrt.approx.ftz.f32", lambda x: 1 / np.sqrt(x), 2.0**-21),
}
ROUGH = kd.CompilerParams(approx_math=True)


def kernel(function: Any, **options: Any) -> Any:
    def body(x: Any, out: Any) -> None:
        out[...] = function(x[...])

    return kd.kernel(body, out_type=lambda x: x, **options)


def ptx(function: Any, dtype: Any = np.float32, **options: Any) -> str:
    text = kernel(function, **options).lower(kd.ShapeDtypeStruct((1,), dtype)).ptx
    return "\n".join(line for line in text.splitlines() if ".loc" not in line and "//" not in line)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_is_what_it_asks_for(name: str) -> None:
    """One of three calls in a kernel is approximate, or one of three is not where the kernel's switch is on."""
    instruction, f = FUNCTIONS[name][0], getattr(kd, name)
    plain = ptx(f)
    assert instruction not in plain and plain == ptx(lambda x: f(x, approx=False))
    assert ptx(lambda x: f(x, approx=True)).count(instruction) == 1
    assert ptx(lambda x: f(x, approx=True) + f(x + 1) + f(x + 2)).count(instruction) == 1
    assert ptx(lambda x: f(x, approx=False) + f(x + 1) + f(x + 2), compiler_params=ROUGH).count(instruction) == 2
    assert ptx(lambda x: f(x, approx=True), np.float16).count(instruction) == 1
    assert ptx(lambda x: f(x, approx=True), np.float64) == ptx(f, np.float64)  # there is none


def test_the_switch_of_a_kernel_leaves_sums_of_products() -> None:
    def line(x: Any) -> Any:
        return x * x + 1.0

    def fused(x: Any) -> Any:
        with kd.fma_contraction():
            return line(x)

    for params in (ROUGH, kd.CompilerParams()):
        assert "fma" not in ptx(line, compiler_params=params)
        assert "fma" in ptx(fused, compiler_params=params)


@pytest.mark.parametrize("name", FUNCTIONS)
@WHERE
def test_approximations_are_near(name: str, interpret: Any) -> None:
    x = np.random.default_rng(0).uniform(0.1, 3, 999).astype(np.float32)
    _, reference, bound = FUNCTIONS[name]
    got = run(lambda v: getattr(kd, name)(v, approx=True), x, interpret=interpret)
    exact = reference(x.astype(np.float64))
    assert np.all(np.abs(got - exact) <= bound * np.maximum(1, np.abs(exact)))


@WHERE
def test_division(interpret: Any) -> None:
    x, y = random((300,)), random((300,), seed=1) + 3
    got = run(lambda a, b: kd.div(a, b, approx=True), x, y, interpret=interpret)
    np.testing.assert_allclose(got, x.astype(np.float64) / y, rtol=2.0**-21)
    np.testing.assert_array_equal(run(lambda a, b: kd.div(a, b, approx=False), x, y, compiler_params=ROUGH), x / y)
    assert "div.approx" in ptx(lambda a: kd.div(a, 3.5 + a, approx=True)) and "div.approx" not in ptx(
        lambda a: a / (a + 1)
    )
    assert "div.rn" in ptx(lambda a: kd.div(a, a + 1, approx=False), compiler_params=ROUGH)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@WHERE
def test_contraction_in_a_scope(dtype: str, interpret: Any) -> None:
    """Sums of products as `kd.fma` gives them, bit by bit, in the scope alone."""
    a, b, c = (random((500,), dtype, seed=s) for s in range(3))

    def inside(a: Any, b: Any, c: Any) -> Any:
        with kd.fma_contraction():
            made = (a * b + c, c + a * b, a * b - c, c - a * b, a * b + c * a, c + 2 * a, a + b)
        return (*made, a * b + c)

    def spelled(a: Any, b: Any, c: Any) -> Any:
        sums = (kd.fma(a, b, c), kd.fma(a, b, c), kd.fma(a, b, -c), kd.fma(-a, b, c), kd.fma(a, b, c * a))
        return (*sums, kd.fma(a, a.dtype(2), c), a + b, a * b + c)

    for got, want in zip(*(run(f, a, b, c, interpret=interpret) for f in (inside, spelled)), strict=True):
        assert got.tobytes() == want.tobytes()


def test_contraction_keeps_what_it_must() -> None:
    """Integers, narrow floats and broadcast products are as they are; the scope ends, in loops and by errors too."""
    x = np.arange(12, dtype=np.int32).reshape(3, 4)

    def mixed(v: Any) -> Any:
        with kd.fma_contraction():
            narrow = v.astype(kd.float16)
            return v * v + v, narrow * narrow + 1, (v[0] * 0.5) + v.astype(kd.float32)

    got = run(mixed, x)
    np.testing.assert_array_equal(got[0], x * x + x)
    np.testing.assert_array_equal(got[1], (x * x + 1).astype(np.float16))
    np.testing.assert_array_equal(got[2], x[0] * 0.5 + x)

    def after(v: Any) -> Any:
        with pytest.raises(ZeroDivisionError), kd.fma_contraction():
            raise ZeroDivisionError
        return v * v + v

    text = ptx(after)
    assert "fma.rn" not in text and "mul.rn" in text

    def looped(v: Any) -> Any:
        with kd.fma_contraction():
            return kd.fori_loop(0, 8, lambda i, s: s * v + 1.0, v)

    text = ptx(looped)
    assert "fma.rn.f32" in text and "mul.rn" not in text
