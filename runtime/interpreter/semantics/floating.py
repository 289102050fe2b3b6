"""Single and double precision (PTX ISA 9.7.3): add, sub, mul, fma, mad, div, rcp, sqrt, abs, neg,
copysign, testp.

f32 results that are NaN are the canonical 0x7fffffff; f64 NaNs propagate. `.ftz` flushes subnormal
f32 operands and results to zero and keeps their sign; `.sat` clamps to [0, 1] and takes NaN to +0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import exact
from .forms import Body, form, in_pieces
from .types import CANONICAL_NAN_F32, Array, Map, spreadable

_EXPONENT, _SIGN = np.uint32(0x7F800000), np.uint32(0x80000000)
_MIN_NORMAL = np.float32(2.0**-126)
_LOW29, _HALF29 = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)

Real = Map  # on float arrays


def flush_f32(bits: Array) -> Array:
    """Bits of f32 with subnormals replaced by zeros of their sign."""
    tiny = (bits & _EXPONENT) == 0
    return np.where(tiny, bits & _SIGN, bits) if np.count_nonzero(tiny) else bits


def canonical_f32(r: Array) -> Array:
    """float32 values as bits, with PTX's NaN."""
    nan = r != r
    if np.count_nonzero(nan):
        return np.where(nan, CANONICAL_NAN_F32, r.view(np.uint32))
    return r.view(np.uint32)


def saturate(r: Array) -> Array:
    """Clamped to [0, 1]; NaN and -0 give +0."""
    zero, one = r.dtype.type(0), r.dtype.type(1)
    return np.where(r > zero, np.minimum(r, one), zero)


def body_f32(real: Real, arity: int, ftz: bool = False, sat: bool = False) -> Body:
    """`real` on float32 values as an instruction on f32 registers.

    The plain cases are the interpreter's inner loop.
    """
    fn = spreadable(real)
    finish: Callable[[Array], Array] = canonical_f32
    if sat:
        finish = lambda r: saturate(r).view(np.uint32)  # noqa: E731
    if ftz:
        plain = finish

        def flushed(*arrays: Array) -> tuple[Array, ...]:
            return (flush_f32(plain(fn(*(flush_f32(a).view(np.float32) for a in arrays)))),)

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


def body_f64(real: Real, arity: int) -> Body:
    fn = spreadable(real)

    def run(*arrays: Array) -> tuple[Array, ...]:
        return (fn(*(a.view(np.float64) for a in arrays)).view(np.uint64),)

    return Body(("f64",) * arity, ("f64",), run)


# --- add, sub, mul -------------------------------------------------------------------------------

_PLAIN: dict[str, Real] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def directed_f32(name: str, mode: str) -> Real:
    """add, sub or mul of float32 arrays in mode rz, rm or rp."""
    if name == "mul":
        return lambda a, b: exact.round_f32(np.multiply(a, b, dtype=np.float64), mode)

    def total(a: Array, b: Array) -> Array:
        a, b = a.astype(np.float64), b.astype(np.float64)
        b = -b if name == "sub" else b
        s, error = exact.two_sum(a, b)
        return exact.round_f32(exact.zero_sign(exact.to_odd(s, error), a, b, mode), mode)

    return total


@form("add|sub|mul rn|rz|rm|rp? ftz? sat? f32")
def arithmetic_f32(name: str, mode: str, ftz: str, sat: str, _type: str) -> Body:
    if mode in ("", "rn"):
        return body_f32(_PLAIN[name], 2, bool(ftz), bool(sat))
    return in_pieces(body_f32(directed_f32(name, mode), 2, bool(ftz), bool(sat)))


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
    """a*b + c of float32 arrays, rounded once to nearest even."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    r = total.astype(np.float32)
    # Two roundings differ from one only where the first lands on a tie of the second; among
    # subnormal results ties lie elsewhere, so those take the careful way too.
    risky = (total.view(np.uint64) & _LOW29) == _HALF29
    tiny = np.abs(r) <= _MIN_NORMAL
    if np.count_nonzero(tiny):
        risky |= tiny & (total != 0)
    if not np.count_nonzero(risky):
        return r
    s, error = exact.two_sum(product, c.astype(np.float64))
    return exact.to_odd(s, error).astype(np.float32)


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
    return in_pieces(body_f32(real_fma_f32(mode), 3, bool(ftz), bool(sat)))


@form("fma|mad rn|rz|rm|rp f64")
def fused_f64(_name: str, mode: str, _type: str) -> Body:
    return in_pieces(body_f64(lambda a, b, c: exact.fma_f64(a, b, c, mode), 3))


# --- pairs of f32 --------------------------------------------------------------------------------


def _pairs(fn: Real, arity: int, ftz: bool) -> Body:
    """An f32 operation on both halves of 64-bit registers."""
    scalar = body_f32(fn, arity, ftz).function

    def run(*arrays: Array) -> tuple[Array, ...]:
        halves = (np.ascontiguousarray(a).view(np.uint32) for a in np.broadcast_arrays(*arrays))
        return (scalar(*halves)[0].view(np.uint64),)

    return Body(("f32x2",) * arity, ("f32x2",), run)


@form("add|sub|mul rn|rz|rm|rp? ftz? f32x2", since=100)
def arithmetic_pairs(name: str, mode: str, ftz: str, _type: str) -> Body:
    return _pairs(_PLAIN[name] if mode in ("", "rn") else directed_f32(name, mode), 2, bool(ftz))


@form("fma rn|rz|rm|rp ftz? f32x2", since=100)
def fused_pairs(mode: str, ftz: str, _type: str) -> Body:
    return _pairs(real_fma_f32(mode), 3, bool(ftz))


# --- division and roots --------------------------------------------------------------------------


def _quotient_f32(mode: str) -> Callable[[Array, Array], Array]:
    if mode == "rn":
        return np.divide
    # A quotient (or root) of f32 that is no f32 is further from any than half a unit of float64.
    return lambda a, b: exact.round_f32(np.divide(a, b, dtype=np.float64), mode)


@form("div rn|rz|rm|rp ftz? f32")
def div_f32(mode: str, ftz: str, _type: str) -> Body:
    return body_f32(_quotient_f32(mode), 2, bool(ftz))


@form("rcp rn|rz|rm|rp ftz? f32")
def rcp_f32(mode: str, ftz: str, _type: str) -> Body:
    quotient, one = _quotient_f32(mode), np.ones((), np.float32)
    return body_f32(lambda a: quotient(one, a), 1, bool(ftz))


@form("sqrt rn|rz|rm|rp ftz? f32")
def sqrt_f32(mode: str, ftz: str, _type: str) -> Body:
    if mode == "rn":
        return body_f32(np.sqrt, 1, bool(ftz))
    return body_f32(lambda a: exact.round_f32(np.sqrt(a, dtype=np.float64), mode), 1, bool(ftz))


@form("div rn|rz|rm|rp f64")
def div_f64(mode: str, _type: str) -> Body:
    return body_f64(lambda a, b: exact.div_f64(a, b, mode), 2)


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
    """A NaN operand gives the canonical NaN; its sign is not kept."""
    fn: Real = np.abs if name == "abs" else np.negative
    return body_f32(fn, 1, bool(ftz))


@form("abs|neg f64")
def sign_f64(name: str, _type: str) -> Body:
    sign = np.uint64(1 << 63)
    if name == "abs":
        return Body(("f64",), ("f64",), lambda a: (a & ~sign,))
    return Body(("f64",), ("f64",), lambda a: (a ^ sign,))


@form("copysign f32|f64")
def copysign(type_: str) -> Body:
    """b with the sign of a; a bit operation, NaNs included."""
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
        "normal": lambda a: ((a & magnitude) < infinity) & ((a & magnitude) >= normal),
        "subnormal": lambda a: ((a & magnitude) < normal) & ((a & magnitude) != 0),
    }


@form("testp finite|infinite|number|notanumber|normal|subnormal f32|f64")
def testp(kind: str, type_: str) -> Body:
    test = _classes(type_)[kind]
    return Body((type_,), ("pred",), lambda a: (test(a),))
