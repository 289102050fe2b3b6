"""Floating minimum and maximum (PTX ISA 9.7.3.11, 9.7.3.12, 9.7.4.7, 9.7.4.8) of all widths.

-0 is less than +0. A NaN operand loses to a number, and wins with `.NaN`; a NaN result is
canonical. `.xorsign.abs` compares magnitudes and gives the result the product of the signs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import BadModifier
from .floating import flush_f32
from .formats import FORMATS, FloatFormat
from .forms import Alu, Body, Opcode, form, parse_lines
from .halves import flush_f16, packed
from .types import SIGNED, STORAGE, Array

Pair = Callable[[Array, Array], Array]


def _key(fmt: FloatFormat) -> Callable[[Array], Array]:
    """Return a function from bits to signed integers in the order of the values; it is its own inverse."""
    signed: Any = SIGNED[fmt.bits]
    storage: Any = STORAGE[fmt.name]
    last, magnitude = signed(fmt.bits - 1), signed(2 ** (fmt.bits - 1) - 1)

    def key(bits: Array) -> Array:
        value = bits.view(signed)
        return (value ^ ((value >> last) & magnitude)).view(storage)

    return key


def extreme(name: str, type_: str, nan: bool, xorsign: bool = False) -> Pair:
    """Return min or max on register bits, by integer order."""
    fmt = FORMATS[type_]
    storage: Any = STORAGE[type_]
    signed: Any = SIGNED[fmt.bits]
    key = _key(fmt)
    magnitude = storage(2 ** (fmt.bits - 1) - 1)
    sign, infinity, canonical = storage(fmt.sign), storage(fmt.infinity), storage(fmt.nan)
    quiet = storage(1 << (fmt.mantissa - 1))
    choose: Any = np.minimum if name == "min" else np.maximum

    def fn(a: Array, b: Array) -> Array:
        if xorsign:
            signs = (a ^ b) & sign
            a, b = a & magnitude, b & magnitude
            result = choose(a, b)
        else:
            signs = None
            result = key(choose(key(a).view(signed), key(b).view(signed)).view(storage))
        a_nan, b_nan = (a & magnitude) > infinity, (b & magnitude) > infinity
        if not np.count_nonzero(a_nan) and not np.count_nonzero(b_nan):
            return result if signs is None else result | signs
        if not nan:
            result = np.where(a_nan, b, np.where(b_nan, a, result))
        if signs is not None:
            result = result | signs
        if type_ == "f64":  # a NaN of f64 keeps its payload, and is made quiet; the second operand's counts
            return np.where(a_nan & b_nan, b | quiet, result)
        return np.where(a_nan | b_nan if nan else a_nan & b_nan, canonical, result)

    return fn


def _fast_f32(name: str, nan: bool) -> Pair:
    """Return a plain f32 form: NumPy's own, corrected where both operands are zeros or one is NaN."""
    numbers: Any = np.fmin if name == "min" else np.fmax
    strict: Any = np.minimum if name == "min" else np.maximum
    choose = strict if nan else numbers
    careful = extreme(name, "f32", nan, xorsign=False)

    def fn(a: Array, b: Array) -> Array:
        r = choose(a.view(np.float32), b.view(np.float32))
        suspect = (r == 0) | (r != r)
        return careful(a, b) if np.count_nonzero(suspect) else r.view(np.uint32)

    return fn


@form("min|max ftz? - - f32")
@form("min|max ftz? NaN - f32", since=80)
@form("min|max ftz? NaN? xorsign.abs f32", since=86)
def extreme_f32(name: str, ftz: str, nan: str, xorsign: str, type_: str) -> Body:
    fn = extreme(name, "f32", bool(nan), True) if xorsign else _fast_f32(name, bool(nan))
    if ftz:
        return Body((type_,) * 2, (type_,), lambda a, b: (fn(flush_f32(a), flush_f32(b)),))
    return Body((type_,) * 2, (type_,), lambda a, b: (fn(a, b),))


THREE = "ftz? NaN? abs? f32"  # min and max of three operands, from sm_100 on


def extreme_of_three(opcode: Opcode) -> Alu:
    """Return min or max of three f32 operands; with `.abs`, of their magnitudes. Raises BadModifier."""
    found = parse_lines([THREE], opcode[1:])
    if found is None:
        raise BadModifier(opcode, "of three operands there are .ftz, .NaN, .abs and .f32")
    ftz, nan, magnitudes, type_ = found[1]
    two = _fast_f32(opcode[0], bool(nan))

    def prepared(bits: Array) -> Array:
        bits = flush_f32(bits) if ftz else bits
        return bits & np.uint32(0x7FFFFFFF) if magnitudes else bits

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        a, b, c = prepared(a), prepared(b), prepared(c)
        return (two(np.ascontiguousarray(two(a, b)), c),)

    return Alu(opcode, (type_,) * 3, (type_,), fn, 100)


@form("min|max f64")
def extreme_f64(name: str, type_: str) -> Body:
    fn = extreme(name, "f64", nan=False, xorsign=False)
    return Body((type_,) * 2, (type_,), lambda a, b: (fn(a, b),))


@form("min|max ftz? NaN? - f16|f16x2", since=80)
@form("min|max ftz? NaN? xorsign.abs f16|f16x2", since=86)
def extreme_f16(name: str, ftz: str, nan: str, xorsign: str, type_: str) -> Body:
    fn = extreme(name, "f16", bool(nan), bool(xorsign))
    flushed: Pair = (lambda a, b: fn(flush_f16(a), flush_f16(b))) if ftz else fn
    return _half_body(flushed, type_)


@form("min|max NaN? - bf16|bf16x2", since=80)
@form("min|max NaN? xorsign.abs bf16|bf16x2", since=86)
def extreme_bf16(name: str, nan: str, xorsign: str, type_: str) -> Body:
    return _half_body(extreme(name, "bf16", bool(nan), bool(xorsign)), type_)


def _half_body(fn: Pair, type_: str) -> Body:
    if type_.endswith("x2"):
        fn = packed(fn)
    return Body((type_,) * 2, (type_,), lambda a, b: (fn(a, b),))
