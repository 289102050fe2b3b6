"""Integer arithmetic (PTX ISA 9.7.1): add to rem, min and max, the 24-bit and the dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .forms import Body, Illegal, binary, form, ternary, unary
from .types import BITS, STORAGE, VALUE, WIDER, Array

_ALL = "u16|u32|u64|s16|s32|s64"
_SIGNED = "s16|s32|s64"
_ADD: dict[str, Any] = {"add": np.add, "sub": np.subtract}
_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


# --- add, sub, neg, abs, sad ---------------------------------------------------------------------


@form(f"add|sub {_ALL}")
def add(name: str, type_: str) -> Body:
    # Two's complement: the unsigned sum has the signed one's bits, and needs no view.
    return binary(_ADD[name], type_)


@form("add|sub sat s32")
def add_saturating(name: str, _sat: str, type_: str) -> Body:
    exact = _ADD[name]

    def fn(a: Array, b: Array) -> Array:
        wide = exact(a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64))
        return clamp_s32(wide)

    return binary(fn, type_)


def clamp_s32(wide: Array) -> Array:
    """Saturate int64 values to the range of .s32, as uint32 bits."""
    low, high = np.int64(-(2**31)), np.int64(2**31 - 1)
    return np.minimum(np.maximum(wide, low), high).astype(np.int32).view(np.uint32)


@form(f"neg {_SIGNED}")
def neg(type_: str) -> Body:
    return unary(np.negative, type_)


@form(f"abs {_SIGNED}")
def abs_(type_: str) -> Body:
    value, storage = VALUE[type_], STORAGE[type_]
    return unary(lambda a: np.abs(a.view(value)).view(storage), type_)


@form(f"sad {_ALL}")
def sad(type_: str) -> Body:
    value = VALUE[type_]

    def fn(a: Array, b: Array, c: Array) -> Array:
        less = a.view(value) < b.view(value)
        return np.where(less, b - a, a - b) + c

    return ternary(fn, type_)


# --- multiplication ------------------------------------------------------------------------------

Product = Callable[[Array, Array], Array]


def _wide_product(type_: str) -> Product:
    """Return a function that gives the whole product of 16- or 32-bit operands, as the bits of the next wider type."""
    value, wider = VALUE[type_], VALUE[WIDER[type_]]
    storage = STORAGE[WIDER[type_]]
    if value is STORAGE[type_]:
        return lambda a, b: np.multiply(a, b, dtype=wider)
    return lambda a, b: np.multiply(a.view(value), b.view(value), dtype=wider).view(storage)


def _high_u64(a: Array, b: Array) -> Array:
    """Return bits 64 to 127 of the product of uint64 arrays, by 32-bit halves."""
    a_low, a_high = a & _LOW32, a >> _32
    b_low, b_high = b & _LOW32, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW32)
    return a_high * b_high + (middle >> _32) + (other >> _32)


def _high_s64(a: Array, b: Array) -> Array:
    high = _high_u64(a, b)
    zero = np.uint64(0)
    return high - np.where(a.view(np.int64) < 0, b, zero) - np.where(b.view(np.int64) < 0, a, zero)


def high_product(type_: str) -> Product:
    """Return the function of mul.hi: the upper half of the product, as bits of the operands' width."""
    if type_ == "u64":
        return _high_u64
    if type_ == "s64":
        return _high_s64
    product, storage = _wide_product(type_), STORAGE[type_]
    shift = STORAGE[WIDER[type_]](BITS[type_])
    return lambda a, b: (product(a, b) >> shift).astype(storage)


def _product(mode: str, type_: str) -> tuple[Product, str]:
    """Return the function of the product of mode lo, hi or wide, and the type of its result."""
    if mode == "lo":
        return np.multiply, type_
    if mode == "hi":
        return high_product(type_), type_
    if type_ not in WIDER:
        raise Illegal("there is no type twice as wide")
    return _wide_product(type_), WIDER[type_]


@form(f"mul lo|hi|wide {_ALL}")
def mul(mode: str, type_: str) -> Body:
    product, result = _product(mode, type_)
    return binary(product, type_, result)


@form(f"mad lo|hi|wide {_ALL}")
def mad(mode: str, type_: str) -> Body:
    product, result = _product(mode, type_)
    return Body((type_, type_, result), (result,), lambda a, b, c: (product(a, b) + c,))


@form("mad hi sat s32")
def mad_saturating(_mode: str, _sat: str, type_: str) -> Body:
    product = high_product(type_)

    def fn(a: Array, b: Array, c: Array) -> Array:
        high = product(a, b).view(np.int32).astype(np.int64)
        return clamp_s32(high + c.view(np.int32))

    return ternary(fn, type_)


def _low24(type_: str) -> Callable[[Array], Array]:
    """Return a function that extends the low 24 bits of a 32-bit register, by sign or zeros, to 64 bits."""
    if type_ == "u32":
        return lambda a: (a & np.uint32(0xFFFFFF)).astype(np.uint64)
    return lambda a: ((a << np.uint32(8)).view(np.int32) >> np.int32(8)).astype(np.int64).view(np.uint64)


def _product24(mode: str, type_: str) -> Product:
    low24, shift = _low24(type_), np.uint64(0 if mode == "lo" else 16)
    return lambda a, b: ((low24(a) * low24(b)) >> shift).astype(np.uint32)


@form("mul24 lo|hi u32|s32")
def mul24(mode: str, type_: str) -> Body:
    return binary(_product24(mode, type_), type_)


@form("mad24 lo|hi u32|s32")
def mad24(mode: str, type_: str) -> Body:
    product = _product24(mode, type_)
    return ternary(lambda a, b, c: product(a, b) + c, type_)


@form("mad24 hi sat s32")
def mad24_saturating(mode: str, _sat: str, type_: str) -> Body:
    product = _product24(mode, type_)

    def fn(a: Array, b: Array, c: Array) -> Array:
        return clamp_s32(product(a, b).view(np.int32).astype(np.int64) + c.view(np.int32))

    return ternary(fn, type_)


# --- division ------------------------------------------------------------------------------------


def _magnitude(a: Array, type_: str) -> tuple[Array, Array]:
    """Return |a| as unsigned bits, and where a < 0."""
    negative = a.view(VALUE[type_]) < 0
    return np.where(negative, np.negative(a), a), negative


def _signed_quotient(type_: str) -> Product:
    def fn(a: Array, b: Array) -> Array:
        a_abs, a_negative = _magnitude(a, type_)
        b_abs, b_negative = _magnitude(b, type_)
        quotient = a_abs // b_abs
        return np.where(a_negative != b_negative, np.negative(quotient), quotient)

    return fn


def _signed_remainder(type_: str) -> Product:
    def fn(a: Array, b: Array) -> Array:
        a_abs, a_negative = _magnitude(a, type_)
        remainder = a_abs % _magnitude(b, type_)[0]
        return np.where(a_negative, np.negative(remainder), remainder)

    return fn


@form(f"div|rem {_ALL}")
def div(name: str, type_: str) -> Body:
    """Build div, which truncates the quotient, or rem, its remainder.

    A zero divisor gives all ones, as on an NVIDIA H200.
    """
    ones = STORAGE[type_](2 ** BITS[type_] - 1)
    exact: Product
    if type_[0] == "u":
        exact = np.floor_divide if name == "div" else np.remainder
    else:
        exact = _signed_quotient(type_) if name == "div" else _signed_remainder(type_)

    def fn(a: Array, b: Array) -> Array:
        result = exact(a, b)
        zero = b == 0
        return np.where(zero, ones, result) if np.count_nonzero(zero) else result

    return binary(fn, type_)


# --- minimum and maximum -------------------------------------------------------------------------

_EXTREME: dict[str, Any] = {"min": np.minimum, "max": np.maximum}


@form(f"min|max {_ALL}")
def extreme(name: str, type_: str) -> Body:
    ufunc, value, storage = _EXTREME[name], VALUE[type_], STORAGE[type_]
    if value is storage:
        return binary(ufunc, type_)
    return binary(lambda a, b: ufunc(a.view(value), b.view(value)).view(storage), type_)


@form("min|max relu s32", "min|max s32 relu", since=90)
def extreme_relu(name: str, *_: str) -> Body:
    ufunc, zero = _EXTREME[name], np.int32(0)

    def fn(a: Array, b: Array) -> Array:
        return np.maximum(ufunc(a.view(np.int32), b.view(np.int32)), zero).view(np.uint32)

    return binary(fn, "s32")


def _halves(ufunc: Any, dtype: Any) -> Product:
    """Return a function that applies `ufunc` to both 16-bit halves of 32-bit registers."""

    def fn(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        halves = ufunc(np.ascontiguousarray(a).view(dtype), np.ascontiguousarray(b).view(dtype))
        return halves.view(np.uint32)

    return fn


@form("add u16x2|s16x2", since=90)
def add_halves(type_: str) -> Body:
    return binary(_halves(np.add, np.uint16), type_)


@form("min|max u16x2|s16x2", since=90)
def extreme_halves(name: str, type_: str) -> Body:
    return binary(_halves(_EXTREME[name], np.int16 if type_[0] == "s" else np.uint16), type_)


@form("min|max relu s16x2", "min|max s16x2 relu", since=90)
def extreme_halves_relu(name: str, *_: str) -> Body:
    ufunc = _EXTREME[name]

    def clamped(a: Array, b: Array) -> Array:
        return np.maximum(ufunc(a, b), np.int16(0))

    return binary(_halves(clamped, np.int16), "s16x2")


# --- dot products --------------------------------------------------------------------------------


def _bytes_of(a: Array, signed: bool, count: int, width: int) -> list[Array]:
    """Return the `count` lowest fields of `width` bits, each as uint32, extended by sign or zeros."""
    fields: list[Array] = []
    for index in range(count):
        field = a << np.uint32(32 - width * (index + 1))
        shift = 32 - width
        fields.append((field.view(np.int32) >> shift).view(np.uint32) if signed else field >> shift)
    return fields


@form("dp4a u32|s32 u32|s32")
def dp4a(a_type: str, b_type: str) -> Body:
    result = "s32" if "s32" in (a_type, b_type) else "u32"

    def fn(a: Array, b: Array, c: Array) -> Array:
        for x, y in zip(_bytes_of(a, a_type == "s32", 4, 8), _bytes_of(b, b_type == "s32", 4, 8), strict=True):
            c = c + x * y
        return c

    return Body(("b32", "b32", result), (result,), lambda a, b, c: (fn(a, b, c),))


@form("dp2a lo|hi u32|s32 u32|s32")
def dp2a(mode: str, a_type: str, b_type: str) -> Body:
    result = "s32" if "s32" in (a_type, b_type) else "u32"

    def fn(a: Array, b: Array, c: Array) -> Array:
        b = b >> np.uint32(16) if mode == "hi" else b
        for x, y in zip(_bytes_of(a, a_type == "s32", 2, 16), _bytes_of(b, b_type == "s32", 2, 8), strict=True):
            c = c + x * y
        return c

    return Body(("b32", "b32", result), (result,), lambda a, b, c: (fn(a, b, c),))
