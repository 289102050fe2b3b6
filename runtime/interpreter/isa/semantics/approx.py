"""Approximate transcendentals and reciprocals (PTX ISA 9.7.3: .approx and .full forms).

The hardware's tables are not published. The interpreter computes the correctly rounded value, or one
that is closer to it than the documented bound; results on the hardware differ within that bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .floating import body_f32, body_f64
from .forms import Body, form
from .types import Array

Real = Callable[[Array], Array]


def through_f64(fn: Real) -> Real:
    """Return a function of float32 arrays that computes in float64 and rounds once."""
    return lambda a: fn(a.astype(np.float64)).astype(np.float32)


_UNARY: dict[str, Real] = {
    "ex2": through_f64(np.exp2),
    "lg2": through_f64(np.log2),
    "sin": through_f64(np.sin),
    "cos": through_f64(np.cos),
    "tanh": through_f64(np.tanh),
    "rcp": lambda a: np.divide(np.float32(1), a),
    "sqrt": np.sqrt,
    "rsqrt": through_f64(lambda a: 1.0 / np.sqrt(a)),
}


def real_function(name: str) -> Real:
    """Return the function above of this name, for float32 arrays."""
    return _UNARY[name]


@form("ex2|lg2|sin|cos|rcp|sqrt|rsqrt approx ftz? f32")
def approximate(name: str, _approx: str, ftz: str, _type: str) -> Body:
    return body_f32(_UNARY[name], 1, bool(ftz))


@form("tanh approx f32")
def tanh(_approx: str, _type: str) -> Body:
    """Build tanh.approx. PTX has no .ftz here: subnormal operands and results stay."""
    return body_f32(_UNARY["tanh"], 1)


_HUGE = np.float32(2.0**126)


def _quotient(a: Array, b: Array) -> Array:
    """Compute div.approx. The reciprocal of a divisor beyond 2**126 is zero, so the quotient is zero or NaN."""
    result = np.divide(a, b)
    huge = np.abs(b) > _HUGE
    return np.where(huge, a * np.copysign(np.float32(0), b), result) if huge.any() else result


@form("div approx|full ftz? f32")
def div(mode: str, ftz: str, _type: str) -> Body:
    return body_f32(_quotient if mode == "approx" else np.divide, 2, bool(ftz))


# --- double precision seeds ----------------------------------------------------------------------

_HIGH_WORD = np.uint64(0xFFFFFFFF00000000)
_EXPONENT = np.uint64(0x7FF << 52)
_SIGN = np.uint64(1 << 63)


def _seed(fn: Real) -> Body:
    """Build the .approx.ftz.f64 form of `fn`. Only the upper words of operand and result count; subnormals are flushed."""

    def upper(bits: Array) -> Array:
        bits = bits & _HIGH_WORD
        return np.where((bits & _EXPONENT) == 0, bits & _SIGN, bits)

    def run(a: Array) -> tuple[Array, ...]:
        result = fn(upper(a).view(np.float64)).view(np.uint64)
        finite = (result & _EXPONENT) != _EXPONENT
        # Half a unit of the upper word is added before the cut, which rounds to nearest.
        return (upper(np.where(finite, result + np.uint64(1 << 31), result)),)

    return Body(("f64",), ("f64",), run)


@form("rcp approx ftz f64")
def rcp_f64(*_: str) -> Body:
    return _seed(lambda a: 1.0 / a)


@form("rsqrt approx ftz f64")
def rsqrt_seed(*_: str) -> Body:
    return _seed(lambda a: 1.0 / np.sqrt(a))


@form("rsqrt approx f64")
def rsqrt_f64(*_: str) -> Body:
    return body_f64(lambda a: 1.0 / np.sqrt(a), 1)
