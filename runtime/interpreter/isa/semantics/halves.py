"""Half precision (PTX ISA 9.7.4): f16 and bf16, alone and in packed pairs.

Each operation is exact or rounded to odd in a wider format and then rounded once. NaN results are
0x7fff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import exact
from .approx import real_function
from .floating import saturate
from .formats import BF16, decode, encode, f16_of_float, half_of_f32
from .forms import Body, form, in_pieces
from .types import AnyMap, Array, Map, spreadable

Bits = Map

#: The value of elements out of bounds if a tensor map asks for NaN (PTX ISA 5.5.2, OOB-NaN), of either
#: sign. PTX does not say which NaN it is; it differs from 0xffff and from the NaNs that instructions give.
OOB_NAN = np.uint16(0x7FF7)


# `.ftz` flushes a result that is below the smallest normal when it is rounded to 11 digits, whatever its exponent.
_MAGNITUDE = np.uint16(0x7FFF)
_TINY_F16 = np.float32(2.0**-14 - 2.0**-26)


def flush_f16(bits: Array) -> Array:
    """Return bits of f16 with subnormals replaced by zeros of their sign."""
    tiny = (bits & np.uint16(0x7C00)) == 0
    return np.where(tiny, bits & np.uint16(0x8000), bits) if np.count_nonzero(tiny) else bits


def packed(fn: Bits) -> AnyMap:
    """Return a function of uint16 halves for 32-bit registers that hold two."""
    half = spreadable(fn)

    def run(*arrays: Array) -> Array:
        if len(arrays) > 1:
            arrays = np.broadcast_arrays(*arrays)
        return half(*(np.ascontiguousarray(a).view(np.uint16) for a in arrays)).view(np.uint32)

    return run


def half_body(fn: Bits, type_: str, arity: int, ftz: bool = False) -> Body:
    """Make a function of uint16 codes an instruction on .f16, .bf16, .f16x2 or .bf16x2 registers."""
    plain = spreadable(fn)

    def flushed(*arrays: Array) -> Array:
        return flush_f16(plain(*(flush_f16(a) for a in arrays)))

    half = flushed if ftz else plain
    whole = packed(half) if type_.endswith("x2") else half

    def run(*arrays: Array) -> tuple[Array, ...]:
        return (whole(*arrays),)

    return Body((type_,) * arity, (type_,), run)


def _relu(x: Array) -> Array:
    return np.where(x <= 0, x.dtype.type(0), x)


def _rounded(name: str, sat: bool, relu: bool = False, ftz: bool = False) -> Callable[[Array], Array]:
    """Return a function that rounds float32 or float64 results, exact or rounded to odd, to codes of f16 or bf16."""

    def finish(x: Array) -> Array:
        if ftz:
            x = np.where(np.abs(x) < _TINY_F16, np.copysign(x.dtype.type(0), x), x)
        x = saturate(x) if sat else _relu(x) if relu else x
        if name == "f16":
            return f16_of_float(x)
        if x.dtype == np.float32:
            return half_of_f32(x, name)
        return encode(x, BF16).astype(np.uint16)

    return finish


_PLAIN: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@form("add|sub|mul rn? ftz? sat? f16|f16x2")
def arithmetic_f16(name: str, _rn: str, ftz: str, sat: str, type_: str) -> Body:
    # float32 has twice 11 digits and two more, so its own rounding does not change the result.
    ufunc, finish = _PLAIN[name], _rounded("f16", bool(sat), ftz=bool(ftz))
    return half_body(lambda a, b: finish(ufunc(decode(a, "f16"), decode(b, "f16"))), type_, 2, bool(ftz))


@form("add|sub|mul rn? bf16|bf16x2", since=90)
def arithmetic_bf16(name: str, _rn: str, type_: str) -> Body:
    # Products of bf16 underflow in float32 and not in float64.
    ufunc, finish = _PLAIN[name], _rounded("bf16", False)
    dtype = np.float64 if name == "mul" else np.float32
    return half_body(lambda a, b: finish(ufunc(decode(a, "bf16"), decode(b, "bf16"), dtype=dtype)), type_, 2)


def _fused(name: str, sat: bool, relu: bool, ftz: bool = False) -> AnyMap:
    finish = _rounded(name, sat, relu, ftz)

    def f16(a: Array, b: Array, c: Array) -> Array:
        x, y, z = (decode(bits, name).astype(np.float64) for bits in (a, b, c))
        return finish(exact.fma_odd(x, y, z))

    def bf16(a: Array, b: Array, c: Array) -> Array:
        # Two roundings, to float32 and then to bf16, differ from one only where the first makes a
        # tie of the second; a bf16 is the upper half of a float32, so its ties are easy to see.
        x, y, z = (decode(bits, name) for bits in (a, b, c))
        near = (np.multiply(x, y, dtype=np.float64) + z).astype(np.float32)
        codes = finish(near)
        tie = (near.view(np.uint32) & np.uint32(0xFFFF)) == np.uint32(0x8000)
        if np.count_nonzero(tie):
            x, y, z = (np.broadcast_to(v, tie.shape)[tie].astype(np.float64) for v in (x, y, z))
            codes[tie] = finish(exact.fma_odd(x, y, z))
        return codes

    return f16 if name == "f16" else bf16


@form("fma rn ftz? sat? f16|f16x2")
@form("fma rn ftz? relu f16|f16x2", since=80)
def fma_f16(_rn: str, ftz: str, clamp: str, type_: str) -> Body:
    return in_pieces(half_body(_fused("f16", clamp == "sat", clamp == "relu", bool(ftz)), type_, 3, bool(ftz)))


@form("fma rn relu? bf16|bf16x2", since=80)
def fma_bf16(_rn: str, relu: str, type_: str) -> Body:
    return in_pieces(half_body(_fused("bf16", False, bool(relu)), type_, 3))


@form("fma rn oob relu? f16|f16x2|bf16|bf16x2", since=90)
def fma_oob(_rn: str, _oob: str, relu: str, type_: str) -> Body:
    """Build fma with .oob: an OOB-NaN factor makes the result 0."""
    fused = _fused(type_.removesuffix("x2"), False, bool(relu))

    def fn(a: Array, b: Array, c: Array) -> Array:
        outside = ((a & _MAGNITUDE) == OOB_NAN) | ((b & _MAGNITUDE) == OOB_NAN)
        return np.where(outside, np.uint16(0), fused(a, b, c))

    return half_body(fn, type_, 3)


@form("abs|neg ftz? f16|f16x2")
@form("abs|neg - bf16|bf16x2", since=80)
def sign(name: str, ftz: str, type_: str) -> Body:
    infinity = np.uint16(0x7C00 if type_.startswith("f16") else 0x7F80)
    top, magnitude, nan = np.uint16(0x8000), np.uint16(0x7FFF), np.uint16(0x7FFF)

    def fn(a: Array) -> Array:
        result = a & magnitude if name == "abs" else a ^ top
        return np.where((a & magnitude) > infinity, nan, result)

    return half_body(fn, type_, 1, bool(ftz))


def _approximate(function: str, type_: str) -> Body:
    name = type_.removesuffix("x2")
    real = real_function(function)
    return half_body(lambda a: half_of_f32(real(decode(a, name)), name), type_, 1)


@form("tanh approx f16|f16x2")
def tanh_f16(_approx: str, type_: str) -> Body:
    return _approximate("tanh", type_)


@form("tanh approx bf16|bf16x2", since=90)
def tanh_bf16(_approx: str, type_: str) -> Body:
    return _approximate("tanh", type_)


@form("ex2 approx f16|f16x2")
def ex2_f16(_approx: str, type_: str) -> Body:
    return _approximate("ex2", type_)


@form("ex2 approx ftz bf16|bf16x2", since=90)
def ex2_bf16(_approx: str, _ftz: str, type_: str) -> Body:
    plain = real_function("ex2")

    def fn(a: Array) -> Array:
        code = half_of_f32(plain(decode(_flush_bf16(a), "bf16")), "bf16")
        return _flush_bf16(code)

    return half_body(fn, type_, 1)


def _flush_bf16(bits: Array) -> Array:
    return np.where((bits & np.uint16(0x7F80)) == 0, bits & np.uint16(0x8000), bits)
