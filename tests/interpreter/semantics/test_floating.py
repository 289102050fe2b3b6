"""Every rounded operation against rational arithmetic, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu

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
