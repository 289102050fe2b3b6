"""Comparison and selection (PTX ISA 9.7.5 and 9.7.6): setp, set, selp, slct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from .floating import flush_f32
from .formats import decode
from .forms import Body, Illegal, form
from .halves import flush_f16
from .types import BITS, ORDERED, SIGNED, STORAGE, Array

Compare = Callable[[Array, Array], Array]

_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_NEGATED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_BOOL: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}

_INTEGERS = "b16|b32|b64|u16|u32|u64|s16|s32|s64"
_INTEGER_OPS = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"
_FLOAT_OPS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"


def _integer_compare(op: str, type_: str) -> Compare:
    if op in _UNSIGNED_NAMES and type_[0] != "u":
        raise Illegal(f"'.{op}' compares unsigned integers")
    if type_[0] == "b" and op not in ("eq", "ne"):
        raise Illegal("bit types compare by .eq and .ne")
    ufunc = ORDERED[_UNSIGNED_NAMES.get(op, op)]
    if type_[0] != "s":
        return ufunc
    signed = SIGNED[BITS[type_]]
    return lambda a, b: ufunc(a.view(signed), b.view(signed))


def _float_relation(op: str) -> Compare:
    """Return the relation `op` on float values.

    Ordered relations are false for NaN, unordered ones (`..u`) are true.
    """
    if op == "ne":
        # Ordered: NumPy's own != is true for NaN.
        return lambda a, b: (a < b) | (a > b)
    if op == "equ":
        return lambda a, b: ~((a < b) | (a > b))
    if op in ORDERED:
        return ORDERED[op]
    if op == "neu":
        return np.not_equal
    if op in _NEGATED:
        opposite = ORDERED[_NEGATED[op]]
        return lambda a, b: np.logical_not(opposite(a, b))
    if op == "num":
        return lambda a, b: (a == a) & (b == b)
    return lambda a, b: (a != a) | (b != b)


def _float_compare(op: str, ftz: bool, type_: str) -> Compare:
    relation = _float_relation(op)
    if type_ == "f32":
        if ftz:
            return lambda a, b: relation(flush_f32(a).view(np.float32), flush_f32(b).view(np.float32))
        return lambda a, b: relation(a.view(np.float32), b.view(np.float32))
    if type_ == "f64":
        return lambda a, b: relation(a.view(np.float64), b.view(np.float64))
    if ftz:
        return lambda a, b: relation(decode(flush_f16(a), type_), decode(flush_f16(b), type_))
    return lambda a, b: relation(decode(a, type_), decode(b, type_))


def compare(op: str, ftz: str, type_: str) -> Compare:
    """Return the comparison `op` on registers of a scalar type."""
    if type_[0] in "bus" and type_ != "bf16":
        if ftz:
            raise Illegal("'.ftz' is for floating types")
        return _integer_compare(op, type_)
    return _float_compare(op, bool(ftz), type_)


# --- setp ----------------------------------------------------------------------------------------


def _predicate(test: Compare, bool_op: str, type_: str, pair: bool) -> Body:
    operands = (type_, type_, "pred") if bool_op else (type_, type_)
    results = ("pred", "pred") if pair else ("pred",)
    if not bool_op:
        if not pair:
            return Body(operands, results, lambda a, b: (test(a, b),))

        def both(a: Array, b: Array) -> tuple[Array, ...]:
            p = test(a, b)
            return p, np.logical_not(p)

        return Body(operands, results, both)
    combine = _BOOL[bool_op]
    if not pair:
        return Body(operands, results, lambda a, b, c: (combine(test(a, b), c),))

    def both_combined(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        p = test(a, b)
        return combine(p, c), combine(np.logical_not(p), c)

    return Body(operands, results, both_combined)


def _register_setp(pair: bool) -> None:
    @form(
        f"setp {_INTEGER_OPS} and|or|xor? {_INTEGERS}",
        f"setp {_FLOAT_OPS} and|or|xor? f64",
        pair=pair,
    )
    def setp(op: str, bool_op: str, type_: str) -> Body:  # pyright: ignore[reportUnusedFunction]
        return _predicate(compare(op, "", type_), bool_op, type_, pair)

    @form(f"setp {_FLOAT_OPS} and|or|xor? ftz? f32|f16", pair=pair)
    @form(f"setp {_FLOAT_OPS} and|or|xor? - bf16", pair=pair, since=90)
    def setp_float(  # pyright: ignore[reportUnusedFunction]
        op: str, bool_op: str, ftz: str, type_: str
    ) -> Body:
        if pair and type_ != "f32":
            raise Illegal("scalar halves are compared into one predicate")
        return _predicate(compare(op, ftz, type_), bool_op, type_, pair)


_register_setp(pair=False)
_register_setp(pair=True)


@form(f"setp {_FLOAT_OPS} and|or|xor? ftz? f16x2", pair=True)
@form(f"setp {_FLOAT_OPS} and|or|xor? - bf16x2", pair=True, since=90)
def setp_halves(op: str, bool_op: str, ftz: str, type_: str) -> Body:
    """Build setp on two halves: p compares the low halves, q the high ones."""
    test = compare(op, ftz, type_[:-2])

    def fn(a: Array, b: Array, c: Array | None = None) -> tuple[Array, ...]:
        low, high = test(low_half(a), low_half(b)), test(high_half(a), high_half(b))
        if c is None:
            return low, high
        return _BOOL[bool_op](low, c), _BOOL[bool_op](high, c)

    return Body((type_, type_, "pred") if bool_op else (type_, type_), ("pred", "pred"), fn)


def low_half(a: Array) -> Array:
    return a.astype(np.uint16)


def high_half(a: Array) -> Array:
    return (a >> np.uint32(16)).astype(np.uint16)


# --- set -----------------------------------------------------------------------------------------

_TRUE = {
    # integers get all ones, floats 1.0 in their format
    **{f"{kind}{bits}": 2**bits - 1 for kind in "us" for bits in (16, 32)},
    "f32": 0x3F800000,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}


def _set(op: str, bool_op: str, ftz: str, result: str, type_: str) -> Body:
    test = compare(op, ftz, type_)
    true: Array = np.array(_TRUE[result], STORAGE[result])
    false: Array = np.array(0, STORAGE[result])
    if not bool_op:
        return Body((type_, type_), (result,), lambda a, b: (np.where(test(a, b), true, false),))
    combine = _BOOL[bool_op]
    return Body(
        (type_, type_, "pred"),
        (result,),
        lambda a, b, c: (np.where(combine(test(a, b), c), true, false),),
    )


@form(f"set {_INTEGER_OPS} and|or|xor? u32|s32|f32|f16 {_INTEGERS}")
@form(f"set {_INTEGER_OPS} and|or|xor? bf16 {_INTEGERS}", since=90)
def set_integer(op: str, bool_op: str, result: str, type_: str) -> Body:
    return _set(op, bool_op, "", result, type_)


@form(
    f"set {_FLOAT_OPS} and|or|xor? ftz? u32|s32|f32|f16 f32",
    f"set {_FLOAT_OPS} and|or|xor? ftz? u16|s16|u32|s32|f16 f16",
)
def set_flushing(op: str, bool_op: str, ftz: str, result: str, type_: str) -> Body:
    return _set(op, bool_op, ftz, result, type_)


@form(f"set {_FLOAT_OPS} and|or|xor? u32|s32|f32|f16 f64")
@form(
    f"set {_FLOAT_OPS} and|or|xor? bf16 f64|f32|f16",
    f"set {_FLOAT_OPS} and|or|xor? u16|s16|u32|s32|bf16 bf16",
    since=90,
)
def set_float(op: str, bool_op: str, result: str, type_: str) -> Body:
    return _set(op, bool_op, "", result, type_)


def _set_halves(op: str, bool_op: str, ftz: str, result: str, type_: str) -> Body:
    """Build set on two halves, each on its own: true is 1.0 or, in an integer result, 16 ones."""
    half_result = result[:-2] if result.endswith("x2") else "u16"
    half: Callable[..., tuple[Array, ...]]
    half = cast(Any, _set(op, bool_op, ftz, half_result, type_[:-2]).function)

    def fn(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
        low = half(low_half(a), low_half(b), *c)[0].astype(np.uint32)
        high = half(high_half(a), high_half(b), *c)[0].astype(np.uint32)
        return (low | (high << np.uint32(16)),)

    return Body((type_, type_, "pred") if bool_op else (type_, type_), (result,), fn)


@form(f"set {_FLOAT_OPS} and|or|xor? ftz? f16x2|u32|s32 f16x2")
def set_f16x2(op: str, bool_op: str, ftz: str, result: str, type_: str) -> Body:
    return _set_halves(op, bool_op, ftz, result, type_)


@form(f"set {_FLOAT_OPS} and|or|xor? bf16x2|u32|s32 bf16x2", since=90)
def set_bf16x2(op: str, bool_op: str, result: str, type_: str) -> Body:
    return _set_halves(op, bool_op, "", result, type_)


# --- selection -----------------------------------------------------------------------------------

_SELECTABLE = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"


@form(f"selp {_SELECTABLE}")
def selp(type_: str) -> Body:
    ones: Any = STORAGE[type_](2 ** BITS[type_] - 1)

    def fn(a: Array, b: Array, p: Array) -> tuple[Array, ...]:
        if p.size < 2048:
            return (np.where(p, a, b),)
        # For large arrays: `where` branches on each element, bit masks don't.
        mask = np.multiply(p, ones, dtype=ones.dtype)
        result = a ^ b
        result = np.bitwise_and(result, mask, out=result if result.shape == mask.shape else None)
        return (np.bitwise_xor(result, b, out=result),)

    return Body((type_, type_, "pred"), (type_,), fn)


@form(f"slct {_SELECTABLE} s32")
def slct_s32(type_: str, control: str) -> Body:
    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return (np.where(c.view(np.int32) >= 0, a, b),)

    return Body((type_, type_, control), (type_,), fn)


@form(f"slct ftz? {_SELECTABLE} f32")
def slct_f32(ftz: str, type_: str, control: str) -> Body:
    """Build slct with an f32 control: -0 selects a, NaN selects b."""

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        c = flush_f32(c) if ftz else c
        return (np.where(c.view(np.float32) >= 0, a, b),)

    return Body((type_, type_, control), (type_,), fn)
