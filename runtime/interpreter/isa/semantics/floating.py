"""Single and double precision (PTX ISA 9.7.3): add, sub, mul, fma, mad, div, rcp, sqrt, abs, neg,
copysign, testp.

f32 results that are NaN are the canonical 0x7fffffff; f64 NaNs propagate, the last operand's first.
`.ftz` flushes subnormal f32 operands and results to zero and keeps their sign; `.sat` clamps to [0, 1]
and takes NaN to +0. docs/instruction-differential.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from . import exact
from .forms import Body, form, in_pieces
from .types import CANONICAL_NAN_F32, CANONICAL_NAN_F64, AnyMap, Array, Map, spreadable

_EXPONENT, _SIGN = np.uint32(0x7F800000), np.uint32(0x80000000)
_MIN_NORMAL, _EDGE = np.float32(2.0**-126), np.uint32(0x00800000)
_LIFT, _LIFTED_MIN_NORMAL = np.float64(2.0**60), np.float32(2.0**-66)
_QUIET_F64, _INFINITY_F64 = np.uint64(1 << 51), np.uint64(0x7FF << 52)
_LOW29, _HALF29 = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)

Real = Map  # on float arrays


def flush_f32(bits: Array) -> Array:
    """Return bits of f32 with subnormals replaced by zeros of their sign."""
    tiny = (bits & _EXPONENT) == 0
    return np.where(tiny, bits & _SIGN, bits) if np.count_nonzero(tiny) else bits


def canonical_f32(r: Array) -> Array:
    """Return float32 values as bits, with PTX's NaN."""
    nan = r != r
    if np.count_nonzero(nan):
        return np.where(nan, CANONICAL_NAN_F32, r.view(np.uint32))
    return r.view(np.uint32)


def saturate(r: Array) -> Array:
    """Clamp values to [0, 1]; NaN and -0 give +0."""
    zero, one = r.dtype.type(0), r.dtype.type(1)
    return np.where(r > zero, np.minimum(r, one), zero)


def tiny_result(wide: Real, mode: str) -> Real:
    """Return a function that finds the results that `.ftz` flushes: those below the smallest normal magnitude after they
    are rounded to 24 digits, whatever their exponent.

    `wide` gives the result in float64, exact or rounded to odd.
    """
    fn = spreadable(wide)

    def tiny(*values: Array) -> Array:
        return np.abs(exact.round_f32(fn(*values) * _LIFT, mode)) < _LIFTED_MIN_NORMAL

    return tiny


def flush_tiny(bits: Array, values: tuple[Array, ...], tiny: AnyMap) -> Array:
    """Flush results as `.ftz` does, also those that rounding to a subnormal's coarser steps made the smallest normal."""
    edge = (bits & ~_SIGN) == _EDGE
    if not np.count_nonzero(edge):
        return flush_f32(bits)
    flushed = np.zeros(bits.shape, np.bool_)
    flushed[edge] = tiny(*(np.broadcast_to(v, bits.shape)[edge] for v in values))
    return flush_f32(np.where(flushed, bits & _SIGN, bits))


def body_f32(real: Real, arity: int, ftz: bool = False, sat: bool = False, tiny: Real | None = None) -> Body:
    """Make `real`, a function of float32 values, an instruction on f32 registers.

    `tiny` (`tiny_result`) tells `.ftz` where a result that rounds to the smallest normal is flushed. The plain cases are
    the interpreter's inner loop.
    """
    fn = spreadable(real)
    finish: Callable[[Array], Array] = canonical_f32
    if sat:
        finish = lambda r: saturate(r).view(np.uint32)  # noqa: E731
    if ftz:
        plain = finish

        small = None if tiny is None else spreadable(tiny)

        def flushed(*arrays: Array) -> tuple[Array, ...]:
            values = tuple(flush_f32(a).view(np.float32) for a in arrays)
            bits = plain(fn(*values))
            return (flush_f32(bits) if small is None else flush_tiny(bits, values, small),)

        return Body(("f32",) * arity, ("f32",), flushed)
    if arity == 1:
        return Body(("f32",), ("f32",), lambda a: (finish(fn(a.view(np.float32))),))
    if arity == 2:
        return Body(
            ("f32",) * 2,
            ("f32",),
            lambda a, b: (finish(fn(a.view(np.float32), b.view(np.float32))),),
        )
    return Body(
        ("f32",) * 3,
        ("f32",),
        lambda a, b, c: (finish(fn(a.view(np.float32), b.view(np.float32), c.view(np.float32))),),
    )


def propagate_f64(result: Array, operands: tuple[Array, ...]) -> Array:
    """Return float64 values as bits. A NaN result is the last NaN operand, made quiet, or else the canonical NaN."""
    nan = result != result
    bits = result.view(np.uint64)
    if not np.count_nonzero(nan):
        return bits
    bits = np.where(nan, CANONICAL_NAN_F64, bits)
    for operand in operands:
        bits = np.where(nan & (operand != operand), operand.view(np.uint64) | _QUIET_F64, bits)
    return bits


def body_f64(real: Real, arity: int, first: bool = False) -> Body:
    """Make `real`, a function of float64 values, an instruction on f64 registers.

    If several operands are NaN, the result is the last one or, with `first`, the first one.
    """
    fn = spreadable(real)

    def run(*arrays: Array) -> tuple[Array, ...]:
        values = tuple(a.view(np.float64) for a in arrays)
        return (propagate_f64(fn(*values), values[::-1] if first else values),)

    return Body(("f64",) * arity, ("f64",), run)


# --- add, sub, mul -------------------------------------------------------------------------------

_PLAIN: dict[str, Real] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def directed_f32(name: str, mode: str) -> Real:
    """Return the function of add, sub or mul of float32 arrays in mode rz, rm or rp."""
    if name == "mul":
        return lambda a, b: exact.round_f32(np.multiply(a, b, dtype=np.float64), mode)

    def total(a: Array, b: Array) -> Array:
        a, b = a.astype(np.float64), b.astype(np.float64)
        b = -b if name == "sub" else b
        s, error = exact.two_sum(a, b)
        return exact.round_f32(exact.zero_sign(exact.to_odd(s, error), a, b, mode), mode)

    return total


def _tiny_product(mode: str) -> Real:
    """Return `tiny_result` of a product. Sums of normal numbers need none: they are exact where they are subnormal."""
    return tiny_result(lambda a, b: np.multiply(a, b, dtype=np.float64), mode or "rn")


@form("add|sub|mul rn|rz|rm|rp? ftz? sat? f32")
def arithmetic_f32(name: str, mode: str, ftz: str, sat: str, _type: str) -> Body:
    tiny = _tiny_product(mode) if name == "mul" else None
    if mode in ("", "rn"):
        return body_f32(_PLAIN[name], 2, bool(ftz), bool(sat), tiny)
    return in_pieces(body_f32(directed_f32(name, mode), 2, bool(ftz), bool(sat), tiny))


@form("add|sub|mul rn|rz|rm|rp? f64")
def arithmetic_f64(name: str, mode: str, _type: str) -> Body:
    if mode in ("", "rn"):
        return body_f64(_PLAIN[name], 2)
    return in_pieces(_directed_f64(name, mode))


def _directed_f64(name: str, mode: str) -> Body:
    one = np.ones(())
    if name == "mul":
        # The zero that is added takes the product's sign, so that it never changes the sum of
        # zeros.
        return body_f64(lambda a, b: exact.fma_f64(a, b, np.copysign(np.float64(0), a * b), mode), 2)
    if name == "add":
        return body_f64(lambda a, b: exact.fma_f64(a, one, b, mode), 2)
    return body_f64(lambda a, b: exact.fma_f64(a, one, -b, mode), 2)


# --- fma -----------------------------------------------------------------------------------------


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """Return a*b + c of float32 arrays, rounded once to nearest even."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    r = total.astype(np.float32)
    # Two roundings differ from one only if the first one's result is a tie of the second. Subnormal
    # results have other ties, so they are computed exactly, too.
    risky = (total.view(np.uint64) & _LOW29) == _HALF29
    tiny = np.abs(r) <= _MIN_NORMAL
    if np.count_nonzero(tiny):
        risky |= tiny & (total != 0)
    if not np.count_nonzero(risky):
        return r
    s, error = exact.two_sum(product, c.astype(np.float64))
    return exact.to_odd(s, error).astype(np.float32)


def _tiny_fma(mode: str) -> Real:
    def wide(a: Array, b: Array, c: Array) -> Array:
        return exact.fma_odd(a.astype(np.float64), b.astype(np.float64), c.astype(np.float64))

    return tiny_result(wide, mode)


def _fma_f32_directed(mode: str) -> Real:
    def fn(a: Array, b: Array, c: Array) -> Array:
        product, c = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
        s, error = exact.two_sum(product, c)
        return exact.round_f32(exact.zero_sign(exact.to_odd(s, error), product, c, mode), mode)

    return fn


def real_fma_f32(mode: str) -> Real:
    return fma_f32 if mode == "rn" else _fma_f32_directed(mode)


@form("fma|mad rn|rz|rm|rp ftz? sat? f32")
def fused_f32(_name: str, mode: str, ftz: str, sat: str, _type: str) -> Body:
    return in_pieces(body_f32(real_fma_f32(mode), 3, bool(ftz), bool(sat), _tiny_fma(mode)))


@form("fma|mad rn|rz|rm|rp f64")
def fused_f64(_name: str, mode: str, _type: str) -> Body:
    def run(*arrays: Array) -> tuple[Array, ...]:
        a, b, c = (array.view(np.float64) for array in arrays)
        # of several NaN operands the multiplier's wins, then the addend's (measured on one NVIDIA H200)
        return (propagate_f64(exact.fma_f64(a, b, c, mode), (a, c, b)),)

    return in_pieces(Body(("f64",) * 3, ("f64",), run))


# --- f32 with f16 or bf16 operands ---------------------------------------------------------------


def _widened(body: Body, halves: tuple[int, ...], type_: str) -> Body:
    """Build an f32 instruction, `body`, some of whose operands have a half type: it widens them first, which is exact."""
    widen = _WIDEN[type_]

    def run(*arrays: Array) -> tuple[Array, ...]:
        return cast(Any, body.function)(*(widen(a) if i in halves else a for i, a in enumerate(arrays)))

    return Body(tuple(type_ if i in halves else "f32" for i in range(len(body.operands))), ("f32",), run)


_WIDEN: dict[str, Callable[[Array], Array]] = {
    "f16": lambda a: np.ascontiguousarray(a).view(np.float16).astype(np.float32).view(np.uint32),
    "bf16": lambda a: a.astype(np.uint32) << np.uint32(16),
}


@form("add|sub rn|rz|rm|rp? sat? f32 f16|bf16", since=100)
def arithmetic_mixed(name: str, mode: str, sat: str, _type: str, half: str) -> Body:
    return _widened(arithmetic_f32(name, mode, "", sat, "f32"), (0,), half)


@form("fma rn|rz|rm|rp sat? f32 f16|bf16", since=100)
def fused_mixed(mode: str, sat: str, _type: str, half: str) -> Body:
    return _widened(fused_f32("fma", mode, "", sat, "f32"), (0, 1), half)


# --- pairs of f32 --------------------------------------------------------------------------------


def _pairs(fn: Real, arity: int, ftz: bool, tiny: Real | None) -> Body:
    """Build an f32 operation on both halves of 64-bit registers."""
    scalar = body_f32(fn, arity, ftz, tiny=tiny).function

    def run(*arrays: Array) -> tuple[Array, ...]:
        halves = (np.ascontiguousarray(a).view(np.uint32) for a in np.broadcast_arrays(*arrays))
        return (scalar(*halves)[0].view(np.uint64),)

    return Body(("f32x2",) * arity, ("f32x2",), run)


@form("add|sub|mul rn|rz|rm|rp? ftz? f32x2", since=100)
def arithmetic_pairs(name: str, mode: str, ftz: str, _type: str) -> Body:
    fn = _PLAIN[name] if mode in ("", "rn") else directed_f32(name, mode)
    return _pairs(fn, 2, bool(ftz), _tiny_product(mode) if name == "mul" else None)


@form("fma rn|rz|rm|rp ftz? f32x2", since=100)
def fused_pairs(mode: str, ftz: str, _type: str) -> Body:
    return _pairs(real_fma_f32(mode), 3, bool(ftz), _tiny_fma(mode))


# --- division and roots --------------------------------------------------------------------------


def _wide_quotient(a: Array, b: Array) -> Array:
    """Divide f32 in float64. If a quotient (or root) of f32 is not an f32, its distance to each is more than half a unit of
    float64.
    """
    return np.divide(a, b, dtype=np.float64)


def _quotient_f32(mode: str) -> Callable[[Array, Array], Array]:
    if mode == "rn":
        return np.divide
    return lambda a, b: exact.round_f32(_wide_quotient(a, b), mode)


@form("div rn|rz|rm|rp ftz? f32")
def div_f32(mode: str, ftz: str, _type: str) -> Body:
    return body_f32(_quotient_f32(mode), 2, bool(ftz), tiny=tiny_result(_wide_quotient, mode))


@form("rcp rn|rz|rm|rp ftz? f32")
def rcp_f32(mode: str, ftz: str, _type: str) -> Body:
    quotient, one = _quotient_f32(mode), np.ones((), np.float32)
    tiny = tiny_result(lambda a: _wide_quotient(one, a), mode)
    return body_f32(lambda a: quotient(one, a), 1, bool(ftz), tiny=tiny)


@form("sqrt rn|rz|rm|rp ftz? f32")
def sqrt_f32(mode: str, ftz: str, _type: str) -> Body:
    if mode == "rn":
        return body_f32(np.sqrt, 1, bool(ftz))
    return body_f32(lambda a: exact.round_f32(np.sqrt(a, dtype=np.float64), mode), 1, bool(ftz))


@form("div rn|rz|rm|rp f64")
def div_f64(mode: str, _type: str) -> Body:
    return body_f64(lambda a, b: exact.div_f64(a, b, mode), 2, first=True)


@form("rcp rn|rz|rm|rp f64")
def rcp_f64(mode: str, _type: str) -> Body:
    one = np.ones(())
    return body_f64(lambda a: exact.div_f64(one, a, mode), 1)


@form("sqrt rn|rz|rm|rp f64")
def sqrt_f64(mode: str, _type: str) -> Body:
    return body_f64(lambda a: exact.sqrt_f64(a, mode), 1)


# --- signs and classes ---------------------------------------------------------------------------


@form("abs|neg ftz? f32")
def sign_f32(name: str, ftz: str, _type: str) -> Body:
    """Build abs or neg of f32. A NaN operand gives the canonical NaN; its sign is lost."""
    fn: Real = np.abs if name == "abs" else np.negative
    return body_f32(fn, 1, bool(ftz))


@form("abs|neg f64")
def sign_f64(name: str, _type: str) -> Body:
    """Build abs or neg of f64. A NaN operand keeps its sign, because the hardware adds -0."""
    sign = np.uint64(1 << 63)

    def fn(a: Array) -> tuple[Array, ...]:
        nan = (a & ~sign) > _INFINITY_F64
        return (np.where(nan, a | _QUIET_F64, a & ~sign if name == "abs" else a ^ sign),)

    return Body(("f64",), ("f64",), fn)


@form("copysign f32|f64")
def copysign(type_: str) -> Body:
    """Build copysign: b with the sign of a. It is a bit operation, also for NaNs."""
    unsigned: Any = np.uint32 if type_ == "f32" else np.uint64
    sign = unsigned(1 << (31 if type_ == "f32" else 63))
    return Body((type_, type_), (type_,), lambda a, b: ((a & sign) | (b & ~sign),))


def _classes(type_: str) -> dict[str, Callable[[Array], Array]]:
    unsigned: Any = np.uint32 if type_ == "f32" else np.uint64
    width, fraction = (32, 23) if type_ == "f32" else (64, 52)
    magnitude, infinity = unsigned(2 ** (width - 1) - 1), unsigned(2 ** (width - 1) - 2**fraction)
    normal = unsigned(1 << fraction)
    return {
        "finite": lambda a: (a & magnitude) < infinity,
        "infinite": lambda a: (a & magnitude) == infinity,
        "number": lambda a: (a & magnitude) <= infinity,
        "notanumber": lambda a: (a & magnitude) > infinity,
        # Zeros count as normal.
        "normal": lambda a: ((a & magnitude) - unsigned(1) >= normal - unsigned(1)) & ((a & magnitude) < infinity),
        "subnormal": lambda a: ((a & magnitude) < normal) & ((a & magnitude) != 0),
    }


@form("testp finite|infinite|number|notanumber|normal|subnormal f32|f64")
def testp(kind: str, type_: str) -> Body:
    test = _classes(type_)[kind]
    return Body((type_,), ("pred",), lambda a: (test(a),))
