"""f16, bf16 and their pairs, and minimum and maximum of all widths, against rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries

from . import reference as ref
from .operands import operands

COUNT = 500
ROUNDED = [e for e in entries() if e.family == "halves" and "approx" not in e.opcode]
EXTREMES = [e for e in entries() if e.family == "minmax"]
OOB_NAN = 0x7FF7


def flush(bits: int, fmt: ref.Format) -> int:
    magnitude = bits & (1 << (fmt.bits - 1)) - 1
    return bits & 1 << (fmt.bits - 1) if magnitude < 1 << fmt.mantissa else bits


def clamped(bits: int, name: str, op: tuple[str, ...]) -> int:
    """.sat and .relu on a result."""
    value = ref.decode(bits, name)
    one = ref.encode(Fraction(1), name)
    if "sat" in op:
        if value.kind == ref.INF:
            return one
        return min(bits, one) if value.kind == "finite" and value.number > 0 else 0
    if "relu" in op and value.kind != ref.NAN and value.negative:
        return 0
    return bits


def scalar(op: tuple[str, ...], name: str) -> Callable[..., int]:
    """The instruction on one element's bits."""
    fmt = ref.FORMATS[name]
    sign = 1 << (fmt.bits - 1)

    def fn(*bits: int) -> int:
        if "oob" in op and OOB_NAN in [b & 0x7FFF for b in bits[:2]]:
            return 0
        bits = tuple(flush(b, fmt) for b in bits) if "ftz" in op else bits
        v = [ref.decode(b, name) for b in bits]
        if op[0] in ("abs", "neg"):
            if v[0].kind == ref.NAN:
                return fmt.nan
            return bits[0] & ~sign if op[0] == "abs" else bits[0] ^ sign
        if op[0] in ("min", "max"):
            return extreme(op, bits, name)
        result = clamped(arithmetic(op[0], v, name), name, op)
        if "ftz" in op and ref.is_tiny(arithmetic(op[0], v, f"{name} unbounded"), f"{name} unbounded"):
            result &= sign
        return result

    return fn


def arithmetic(operation: str, v: list[ref.Value], name: str) -> int:
    if operation == "add":
        return ref.add(v[0], v[1], name, "rn")
    if operation == "sub":
        return ref.add(v[0], ref.negated(v[1]), name, "rn")
    if operation == "mul":
        return ref.mul(v[0], v[1], name, "rn")
    return ref.fma(v[0], v[1], v[2], name, "rn")


def extreme(op: tuple[str, ...], bits: tuple[int, ...], name: str) -> int:
    fmt = ref.FORMATS[name]
    sign = 1 << (fmt.bits - 1)
    signs = (bits[0] ^ bits[1]) & sign
    nan = [ref.decode(b, name).kind == ref.NAN for b in bits]
    if all(nan) and name == "f64":
        return bits[1] | 1 << 51
    if all(nan) or (any(nan) and "NaN" in op):
        return fmt.nan
    if "xorsign" in op:
        bits = tuple(b & ~sign for b in bits)

    def order(b: int) -> int:
        return -(b & ~sign) - 1 if b & sign else b

    if any(nan):
        chosen = bits[0] if nan[1] else bits[1]
    else:
        chosen = min(bits, key=order) if op[0] == "min" else max(bits, key=order)
    return chosen | signs if "xorsign" in op else chosen


def check(entry: Entry) -> None:
    type_ = entry.operands[0]
    name = type_.removesuffix("x2")
    fn = scalar(entry.opcode, name)
    arrays = operands(entry.operands, COUNT, seed=len(entry.mnemonic))
    got = compile_alu(entry.opcode)(*arrays)[0]
    parts = [(0, 0xFFFF), (16, 0xFFFF)] if type_.endswith("x2") else [(0, (1 << 64) - 1)]
    for index, row in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        for shift, mask in parts:
            inputs = [x >> shift & mask for x in row]
            want, have = fn(*inputs), int(got[index]) >> shift & mask
            assert have == want, (entry.mnemonic, [hex(x) for x in inputs], hex(have), hex(want))


@pytest.mark.parametrize("entry", ROUNDED, ids=lambda e: e.mnemonic)
@pytest.mark.sampled(7)
def test_half_precision(entry: Entry) -> None:
    check(entry)


@pytest.mark.parametrize("entry", EXTREMES, ids=lambda e: e.mnemonic)
def test_minimum_and_maximum(entry: Entry) -> None:
    check(entry)


def test_every_f16_sum_with_a_half_ulp() -> None:
    """All f16 numbers plus half a unit of theirs: ties everywhere."""
    a = np.arange(0, 0x7C00, dtype=np.uint16)
    exponent = np.maximum(a >> 10, 1).astype(np.int64)
    half = np.ldexp(1.0, exponent - 26).astype(np.float16).view(np.uint16)
    got = compile_alu(("add", "f16"))(a, half)[0]
    exact = a.view(np.float16).astype(np.float64) + half.view(np.float16).astype(np.float64)
    with np.errstate(over="ignore"):
        want = exact.astype(np.float16)
    assert np.array_equal(got, want.view(np.uint16))
