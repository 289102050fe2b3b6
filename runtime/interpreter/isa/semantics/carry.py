"""Extended-precision integer arithmetic (PTX ISA 9.7.2): the .cc and c forms.

The condition code's carry flag is an explicit operand or result of type "cc" (bool), the last one.
The hardware subtracts by a + ~b + 1. So it sets the flag where nothing is borrowed, and subc reads the flag in this sense.
Only code that mixes additions and subtractions depends on this, such as NVRTC's division of 128-bit integers: subc.cc, then
addc to read the flag.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .forms import Body, form
from .integer import high_product
from .types import Array

Term = Callable[[Array, Array], Array]

_TYPES = "u32|s32|u64|s64"


def _sum(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """Return a + b + carry, and its carry out."""
    total = a + b
    out = total < a
    if carry is None:
        return total, out
    with_carry = total + carry.astype(total.dtype)
    return with_carry, out | (with_carry < total)


def _difference(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """Return a - b, less one more where `carry` is not set, and the carry out, which is set where nothing is borrowed."""
    total = a - b
    out = a >= b
    if carry is None:
        return total, out
    with_borrow = total - (~carry).astype(total.dtype)
    return with_borrow, out & (total >= with_borrow)


@form(f"add|sub cc {_TYPES}")
def add_cc(name: str, _cc: str, type_: str) -> Body:
    step = _sum if name == "add" else _difference
    return Body((type_, type_), (type_, "cc"), lambda a, b: step(a, b, None))


@form(f"addc|subc cc? {_TYPES}")
def addc(name: str, cc: str, type_: str) -> Body:
    step = _sum if name == "addc" else _difference
    operands = (type_, type_, "cc")
    if cc:
        return Body(operands, (type_, "cc"), step)
    return Body(operands, (type_,), lambda a, b, carry: step(a, b, carry)[:1])


def _product(mode: str, type_: str) -> Term:
    return np.multiply if mode == "lo" else high_product(type_)


@form(f"mad lo|hi cc {_TYPES}")
def mad_cc(mode: str, _cc: str, type_: str) -> Body:
    product = _product(mode, type_)
    return Body((type_,) * 3, (type_, "cc"), lambda a, b, c: _sum(product(a, b), c, None))


@form(f"madc lo|hi cc? {_TYPES}")
def madc(mode: str, cc: str, type_: str) -> Body:
    product = _product(mode, type_)
    operands = (type_, type_, type_, "cc")
    if cc:
        return Body(operands, (type_, "cc"), lambda a, b, c, carry: _sum(product(a, b), c, carry))
    return Body(operands, (type_,), lambda a, b, c, carry: _sum(product(a, b), c, carry)[:1])
