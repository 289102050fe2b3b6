"""Approximations stay within the bounds of the PTX ISA, and their special cases are exact."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import compile_alu
from kernel_dsl.runtime.interpreter.isa.semantics.table import Entry, entries
from tests.gpu.bounds import within_bound

from .operands import operands

FORMS = [e for e in entries() if e.family in ("approx", "halves") and {"approx", "full"} & {*e.opcode}]


@pytest.mark.parametrize("entry", FORMS, ids=lambda e: e.mnemonic)
def test_bound(entry: Entry) -> None:
    arrays = operands(entry.operands, 5000)
    got = compile_alu(entry.opcode)(*arrays)[0]
    nothing = np.zeros_like(got)  # "equal to the interpreter" must not be what passes
    bad = ~within_bound(entry.opcode, arrays, got, nothing)
    special = _is_special(entry, arrays)
    assert not (bad & ~special).any(), [hex(int(x)) for a in arrays for x in a[bad & ~special][:3]]


def _is_special(entry: Entry, arrays: list[np.ndarray]) -> np.ndarray:
    """NaN and infinite results, whose distance means nothing, and divisors beyond 2**126."""
    type_ = entry.opcode[-1]
    if type_.endswith("x2"):
        return np.zeros(len(arrays[0]), bool) | _odd_halves(entry, arrays)
    result = compile_alu(entry.opcode)(*arrays)[0]
    exponent = {"f32": 0x7F800000, "f64": 0x7FF << 52, "f16": 0x7C00, "bf16": 0x7F80}[type_]
    special = (result & result.dtype.type(exponent)) == exponent
    if entry.opcode[:2] == ("div", "approx"):
        special |= np.abs(arrays[1].view(np.float32)) > 2.0**126
    return special


def _odd_halves(entry: Entry, arrays: list[np.ndarray]) -> np.ndarray:
    result = compile_alu(entry.opcode)(*arrays)[0]
    exponent = 0x7C00 if entry.opcode[-1] == "f16x2" else 0x7F80
    low, high = result & exponent == exponent, (result >> 16) & exponent == exponent
    return low | high


def test_special_values() -> None:
    def run(opcode: str, *values: float) -> list[float]:
        arrays = [np.array([v], np.float32).view(np.uint32) for v in values]
        return compile_alu(tuple(opcode.split(".")))(*arrays)[0].view(np.float32).tolist()

    inf = float("inf")
    assert run("ex2.approx.f32", -inf) == [0.0] and run("ex2.approx.f32", inf) == [inf]
    assert run("lg2.approx.f32", 0.0) == [-inf] and run("lg2.approx.f32", inf) == [inf]
    assert run("rcp.approx.f32", 0.0) == [inf] and run("rsqrt.approx.f32", -0.0) == [-inf]
    assert run("div.approx.f32", 3.0, 2.0**127) == [0.0]
    assert np.isnan(run("div.approx.f32", inf, 2.0**127)[0])
    assert run("div.full.f32", 3.0, 2.0**127) == [3 * 2.0**-127]
    assert run("ex2.approx.ftz.f32", -127.0) == [0.0] and run("ex2.approx.f32", -127.0) == [2.0**-127]
    assert run("sin.approx.f32", -0.0) == [-0.0] and np.isnan(run("cos.approx.f32", inf)[0])


def test_double_precision_seeds_keep_the_upper_word() -> None:
    (a,) = operands(("f64",), 400)
    for name in ("rcp", "rsqrt"):
        result = compile_alu((name, "approx", "ftz", "f64"))(a)[0]
        assert not (result & np.uint64(0xFFFFFFFF)).any()
