"""Every function as PTX: it compiles, assembles without local memory, and grows no instructions
unseen.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_dsl.lowering.math import APPROX, FUNCTIONS

from .device import assemble, compile_ptx, ptxas

KEYS = [key for key in FUNCTIONS if not FUNCTIONS.is_helper(key)]
# PTX instructions, without the rare slow path. A change here is a change of speed: say why in the
# commit.
INSTRUCTIONS = {
    "acos.f32": 25,
    "acos.f64": 31,
    "acosh.f32": 58,
    "acosh.f64": 56,
    "asin.f32": 18,
    "asin.f64": 24,
    "asinh.f32": 58,
    "asinh.f64": 45,
    "atan.f32": 29,
    "atan.f64": 36,
    "atan2.f32": 34,
    "atan2.f64": 45,
    "atanh.f32": 53,
    "atanh.f64": 41,
    "cbrt.f32": 35,
    "cbrt.f64": 44,
    "ceil.f32": 1,
    "ceil.f64": 1,
    "cos.f32": 29,
    "cos.f64": 35,
    "cosh.f32": 28,
    "cosh.f64": 29,
    "erf.f32": 33,
    "erf.f64": 94,
    "erfc.f32": 88,
    "erfc.f64": 98,
    "erfinv.f32": 80,
    "erfinv.f64": 134,
    "exp.f32": 17,
    "exp.f64": 27,
    "exp10.f32": 17,
    "exp10.f64": 27,
    "exp2.f32": 16,
    "exp2.f64": 26,
    "expm1.f32": 20,
    "expm1.f64": 29,
    "floor.f32": 1,
    "floor.f64": 1,
    "floor_divide.f32": 40,
    "floor_divide.f64": 40,
    "fmod.f32": 20,
    "fmod.f64": 20,
    "hypot.f32": 17,
    "hypot.f64": 17,
    "ldexp.f32": 19,
    "ldexp.f64": 23,
    "log.f32": 29,
    "log.f64": 33,
    "log10.f32": 32,
    "log10.f64": 36,
    "log1p.f32": 29,
    "log1p.f64": 33,
    "log2.f32": 32,
    "log2.f64": 36,
    "logaddexp.f32": 52,
    "logaddexp.f64": 74,
    "logaddexp2.f32": 52,
    "logaddexp2.f64": 74,
    "logistic.f32": 34,
    "logistic.f64": 28,
    "nextafter.f32": 15,
    "nextafter.f64": 15,
    "pow.f32": 133,
    "pow.f64": 145,
    "remainder.f32": 28,
    "remainder.f64": 28,
    "rint.f32": 1,
    "rint.f64": 1,
    "rsqrt.f32": 2,
    "rsqrt.f64": 2,
    "sin.f32": 28,
    "sin.f64": 34,
    "sinh.f32": 37,
    "sinh.f64": 42,
    "sqrt.f32": 1,
    "sqrt.f64": 1,
    "tan.f32": 53,
    "tan.f64": 41,
    "tanh.f32": 33,
    "tanh.f64": 27,
    "trunc.f32": 1,
    "trunc.f64": 1,
}


def test_every_function_has_a_recorded_count() -> None:
    assert set(INSTRUCTIONS) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_instruction_count(key: str) -> None:
    assert compile_ptx(key).instructions == INSTRUCTIONS[key]


@pytest.mark.parametrize("key", KEYS)
def test_operations_carry_their_rounding(key: str) -> None:
    ptx = compile_ptx(key).ptx
    assert not re.search(r"\.approx|\.ftz|\.local", ptx)
    assert not re.search(r"\b(add|sub|mul|fma|div|sqrt|rcp)\.f(32|64)", ptx)


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not on the path")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.sampled(4)
def test_assembles_without_local_memory(key: str, arch: str, tmp_path: Path) -> None:
    report = assemble(compile_ptx(key, arch).ptx, arch, tmp_path)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    assert frames and all(frame == ("0", "0") for frame in frames), report


@pytest.mark.skipif(ptxas() is None, reason="ptxas is not on the path")
def test_approximations_assemble(tmp_path: Path) -> None:
    for key in APPROX:
        compiled = compile_ptx(f"approx.{key}")
        assert ".approx" in compiled.ptx
        assemble(compiled.ptx, "sm_90a", tmp_path)
