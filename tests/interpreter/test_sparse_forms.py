"""ptxas and the interpreter take the same forms of mma.sp: every shape with every type, accumulator and selector."""

from __future__ import annotations

import itertools
import random

import pytest

from kernel_dsl.runtime.assemble import find_ptxas

from . import forms

SHAPES = ("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m16n8k64", "m16n8k128")
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
PAIRS = [(t, t) for t in BITS] + [("e4m3", "e5m2"), ("u8", "s8"), ("s4", "u4"), ("f16", "bf16"), ("s8", "s4")]
HEADS = ("mma.sp", "mma.sp::ordered_metadata")


def vector(type_: str, count: int) -> str:
    return "{" + ", ".join(f"{'f' if type_ == 'f32' else 'r'}{i % 8 + 1}" for i in range(count)) + "}"


def lines() -> list[str]:
    found: list[str] = []
    choices = itertools.product(HEADS, SHAPES, PAIRS, ("f32", "f16", "s32"), ("", ".satfinite"), range(5))
    for head, shape, (a, b), d, saturates, selector in choices:
        k, count = int(shape[6:]), 2 if d == "f16" else 4
        of_a, of_b = (max(rows * k * BITS[t] // 1024, 1) for rows, t in ((8, a), (8, b)))
        name = f"{head}.sync.aligned.{shape}.row.col{saturates}.{d}.{a}.{b}.{d}"
        operands = (vector(d, count), vector(a, of_a), vector(b, of_b), vector(d, count), "r1", str(selector))
        found.append(f"{name} {', '.join(operands)};")
    return found


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_every_form_and_selector() -> None:
    some = random.Random(0).sample(lines(), 1200) + [x for x in lines() if "k32.row.col.f32.f16.f16" in x]
    unequal: list[str] = []
    for line, theirs in zip(some, forms.assembled(some), strict=True):
        ours = forms.takes(line)
        if bool(ours) != bool(theirs) and "is not supported" not in ours:
            unequal.append(f"{line}   ptxas: {theirs or 'takes it'}; interpreter: {ours or 'takes it'}")
    assert unequal == []
