"""The writer and the tables: text that is deterministic, closed under calls and legal."""

from __future__ import annotations

import re

import pytest

from kernel_dsl.lowering.math import APPROX, FUNCTIONS, definitions, function
from kernel_dsl.lowering.math.huge import two_over_pi
from kernel_dsl.lowering.math.text import FunctionWriter

# The intrinsics that NVPTX selects an instruction for; others (llvm.exp, llvm.sin) abort the
# process.
SELECTABLE = {
    "llvm.ceil",
    "llvm.copysign",
    "llvm.fabs",
    "llvm.floor",
    "llvm.fma",
    "llvm.fshl",
    "llvm.maximum",
    "llvm.maxnum",
    "llvm.minimum",
    "llvm.roundeven",
    "llvm.smax",
    "llvm.smin",
    "llvm.sqrt",
    "llvm.trunc",
}


def test_definitions_hold_each_function_once_with_what_it_calls() -> None:
    text = definitions(["tan.f32", "sin.f32", "cos.f32", "sin.f32"])
    defined = re.findall(r"^define internal \w+ @(\w+)\(", text, re.M)
    called = set(re.findall(r"call \w+ @(kd_\w+)\(", text))
    assert defined == sorted(set(defined))
    assert called <= set(defined)
    assert text == definitions(["cos.f32", "tan.f32", "sin.f32"])


def test_unknown_key() -> None:
    with pytest.raises(KeyError):
        definitions(["frobnicate.f32"])


def test_approximations_have_keys_of_their_own() -> None:
    assert function("approx.exp.f32").symbol == "kd_approx_exp_f32"
    assert function("exp.f32") is FUNCTIONS["exp.f32"]
    text = definitions(["approx.exp.f32", "exp.f32"])
    assert "@kd_exp_f32(" in text and "ex2.approx" in text
    assert "approx" not in definitions(FUNCTIONS)
    with pytest.raises(KeyError):
        definitions(["approx.exp.f64"])


@pytest.mark.parametrize("key", FUNCTIONS)
def test_only_selectable_intrinsics_and_no_fast_math(key: str) -> None:
    text = FUNCTIONS[key].text
    names = {name.rsplit(".", 1)[0] for name in re.findall(r"@(llvm[\w.]+)", text)}
    assert names <= SELECTABLE
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|alloca)\b", text)


@pytest.mark.parametrize("table", [FUNCTIONS, APPROX], ids=["exact", "approx"])
def test_symbols_are_legal_in_ptx(table: dict[str, object]) -> None:
    symbols = [entry.symbol for entry in table.values()]  # type: ignore[attr-defined]
    assert all(re.fullmatch(r"[A-Za-z_$][A-Za-z0-9_$]*", symbol) for symbol in symbols)
    assert len(set(symbols)) == len(symbols)


def test_a_constant_that_float32_cannot_hold_is_refused() -> None:
    assert FunctionWriter("float").value(0.5) == "0x3FE0000000000000"
    with pytest.raises(ValueError, match="not a float32"):
        FunctionWriter("float").value(0.1)


def test_digits_of_two_over_pi() -> None:
    assert f"{two_over_pi(128):032x}" == "a2f9836e4e441529fc2757d1f534ddc0"
