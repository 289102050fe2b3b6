"""The interpreter gives, bit for bit, what the hardware was seen to give where it once differed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter.isa.semantics import STORAGE, compile_alu

_LINES = (Path(__file__).parent / "observed.txt").read_text(encoding="utf-8").splitlines()


def rules() -> dict[str, list[str]]:
    """The observations under the rule that explains them."""
    found: dict[str, list[str]] = {}
    rule = ""
    for line in _LINES[1:]:
        if line.startswith("# "):
            rule = line[2:]
        elif line:
            found.setdefault(rule, []).append(line)
    return found


@pytest.mark.parametrize("rule", rules())
def test_observed(rule: str) -> None:
    for line in rules()[rule]:
        call, _, result = line.partition(" = ")
        mnemonic, *operands = call.split()
        alu = compile_alu(tuple(mnemonic.split(".")))
        arrays = [np.array([int(x, 16)], STORAGE[t]) for x, t in zip(operands, alu.operands, strict=True)]
        assert hex(int(alu(*arrays)[0][0])) == result, line


def bits(mnemonic: str, *operands: int) -> int:
    alu = compile_alu(tuple(mnemonic.split(".")))
    arrays = [np.array([x], STORAGE[t]) for x, t in zip(operands, alu.operands, strict=True)]
    return int(alu(*arrays)[0][0])


def test_rounding_up_to_the_smallest_normal_is_no_underflow() -> None:
    """2**-14 less a little, seen to stay, and the like in f32: full precision rounds it up."""
    assert bits("fma.rn.ftz.f16", 0x8401, 0x400, 0x400) == 0x400
    assert bits("mul.rn.ftz.f32", 0x3F000001, 0x00FFFFFE) == 0x00800000
    assert bits("mul.rz.ftz.f32", 0x3F000001, 0x00FFFFFE) == 0
    assert bits("mul.rm.ftz.f32", 0xBF000001, 0x00FFFFFE) == 0x80800000


def test_the_nan_of_tensor_maps_makes_products_vanish() -> None:
    for type_ in ("f16", "bf16"):
        one = 0x3C00 if type_ == "f16" else 0x3F80
        for sign in (0, 0x8000):
            assert bits(f"fma.rn.oob.{type_}", 0x7FF7 | sign, one, one) == 0
        assert bits(f"fma.rn.oob.{type_}", 0x7FFF, one, one) == 0x7FFF
