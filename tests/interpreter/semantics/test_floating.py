"""Every rounded operation against rational arithmetic, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.minmax import extreme_of_three

from . import reference as ref
from .operands import operands

MODES = ["rn", "rz", "rm", "rp"]
COUNT = 1200


def scalar_reference(name: str, source: str, type_: str, mode: str) -> Callable[..., int]:
    """The operation on bits of one element, to another type."""

    def value(bits: int) -> ref.Value:
        return ref.decode(bits, source)

    operations: dict[str, Callable[..., int]] = {
        "add": lambda a, b: ref.add(value(a), value(b), type_, mode),
        "sub": lambda a, b: ref.add(value(a), ref.negated(value(b)), type_, mode),
        "mul": lambda a, b: ref.mul(value(a), value(b), type_, mode),
        "div": lambda a, b: ref.div(value(a), value(b), type_, mode),
        "rcp": lambda a: ref.div(ref.ONE, value(a), type_, mode),
        "sqrt": lambda a: ref.sqrt(value(a), type_, mode),
        "fma": lambda a, b, c: ref.fma(value(a), value(b), value(c), type_, mode),
    }
    return operations[name]


def is_nan(bits: int, type_: str) -> bool:
    return ref.decode(bits, type_).kind == ref.NAN


def flush(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


def saturated(bits: int) -> int:
    value = ref.decode(bits, "f32")
    if value.kind == ref.INF:
        return 0x3F800000
    if value.kind != "finite" or value.number <= 0:
        return 0
    return min(bits, 0x3F800000)


def check(opcode: str, type_: str, mode: str, ftz: bool = False, sat: bool = False) -> None:
    alu = compile_alu(tuple(opcode.split(".")))
    scalar = scalar_reference(opcode.split(".")[0], type_, type_, mode)
    unbounded = scalar_reference(opcode.split(".")[0], type_, "f32 unbounded", mode)
    arrays = operands(alu.operands, COUNT, seed=len(opcode))
    got = alu(*arrays)[0]
    for index, row in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        inputs = [flush(x) for x in row] if ftz else row
        want = scalar(*inputs)
        want = saturated(want) if sat else want
        if ftz and ref.is_tiny(unbounded(*inputs), "f32 unbounded"):
            want &= 0x80000000
        have = int(got[index])
        if type_ == "f64" and is_nan(want, type_):
            assert is_nan(have, type_), (opcode, [hex(x) for x in row])
            continue
        assert have == want, (opcode, [hex(x) for x in row], hex(have), hex(want))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rcp", "sqrt", "fma"])
@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.sampled(2)
def test_rounding(name: str, type_: str, mode: str) -> None:
    check(f"{name}.{mode}.{type_}", type_, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rcp", "sqrt", "fma"])
@pytest.mark.sampled(2)
def test_flush(name: str, mode: str) -> None:
    check(f"{name}.{mode}.ftz.f32", "f32", mode, ftz=True)


@pytest.mark.parametrize("opcode", ["add.sat.f32", "mul.rm.sat.f32", "fma.rn.sat.f32", "sub.rn.ftz.sat.f32"])
def test_saturate(opcode: str) -> None:
    check(opcode, "f32", "rm" if ".rm" in opcode else "rn", ftz=".ftz" in opcode, sat=True)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("opcode", ["add.f32", "sub.rz.f32", "add.rp.sat.f32", "fma.rn.f32", "fma.rm.sat.f32"])
def test_operands_of_half_precision(opcode: str, half: str) -> None:
    alu = compile_alu((*opcode.split("."), half))
    assert alu.operands == ((half, half, "f32") if opcode.startswith("fma") else (half, "f32")) and alu.since == 100
    plain = compile_alu(tuple(opcode.split(".")))
    arrays = operands(alu.operands, COUNT, seed=len(opcode))
    exact = {
        "f16": lambda a: a.view(np.float16).astype(np.float32).view(np.uint32),
        "bf16": lambda a: a.astype(np.uint32) << 16,
    }
    widened = [a if t == "f32" else exact[half](a) for t, a in zip(alu.operands, arrays, strict=True)]
    np.testing.assert_array_equal(alu(*arrays)[0], plain(*widened)[0])


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("words", ["f32", "NaN.f32", "ftz.f32", "abs.f32", "ftz.NaN.abs.f32"])
def test_extremes_of_three(name: str, words: str) -> None:
    alu = extreme_of_three((name, *words.split(".")))
    arrays = operands(("f32",) * 3, COUNT, seed=3)
    got = alu(*arrays)[0].tolist()
    for have, *row in zip(got, *(a.tolist() for a in arrays), strict=True):
        bits = [flush(x) if "ftz" in words else x for x in row]
        bits = [x & 0x7FFFFFFF for x in bits] if "abs" in words else bits
        numbers = [x for x in bits if not is_nan(x, "f32")]
        if not numbers or ("NaN" in words and len(numbers) < 3):
            assert have == 0x7FFFFFFF
            continue
        order = [(-(x & 0x7FFFFFFF) - 1 if x >> 31 else x, x) for x in numbers]  # -0 is less than +0
        assert have == (min if name == "min" else max)(order)[1], (words, [hex(x) for x in row])


def test_fma_hard_ties() -> None:
    """Products one digit off a tie of float32: a float64 sum alone rounds them twice."""
    rng = np.random.default_rng(5)
    alu = compile_alu(("fma", "rn", "f32"))
    a = (1 + rng.integers(0, 2**12, 400) * 2.0**-23).astype(np.float32)
    b = np.full(400, 2.0**-40, np.float32) * rng.choice(np.float32([1, -1]), 400)
    c = np.float32(1) + np.float32(2.0**-23) * rng.integers(0, 4, 400).astype(np.float32)
    half = np.float32(2.0**-24)
    # a*b is tiny and c + 2**-24 a tie: build the tie through the product
    x, y = (half * (np.float32(1) + np.float32(2.0**-23))).repeat(400), a * 0 + 1
    got = alu(x.view(np.uint32), y.view(np.uint32), c.view(np.uint32))[0]
    small = alu(a.view(np.uint32), b.view(np.uint32), c.view(np.uint32))[0]
    for i in range(400):
        want = ref.encode(Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(c[i])), "f32")
        assert got[i] == want
        want = ref.encode(Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])), "f32")
        assert small[i] == want
