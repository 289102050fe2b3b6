"""Exact sums and products in float64, and roundings in every mode made from them.

The tools are error-free transformations (Knuth's two-sum, Dekker's product) and rounding to odd, which
cuts the exact value and sets the last bit if the value was inexact. Such a float64 rounds to any format
at least two bits narrower as the exact value would (Boldo and Melquiond, 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .formats import F64, pack
from .types import Array

_SPLIT = np.float64(2**27 + 1)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return s = a + b rounded, and its exact error e: s + e == a + b."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return p = a * b rounded, and its exact error, for factors far from overflow and underflow."""
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def to_odd(s: Array, error: Array) -> Array:
    """Return `s`, but where it is even and inexact its neighbour on the error's side, whose last bit is odd."""
    bits = s.view(np.int64)
    inexact = (np.abs(error) > 0) & ((bits & np.int64(1)) == 0)
    if not np.count_nonzero(inexact):
        return s
    step = np.where((error > 0) == (s > 0), np.int64(1), np.int64(-1))
    return np.where(inexact, bits + step, bits).view(np.float64)


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """Return a*b + c, rounded to odd in float64, of float32-representable operands (given as float64)."""
    s, error = two_sum(a * b, c)
    return to_odd(s, error)


def round_f32(x: Array, mode: str) -> Array:
    """Round float64, which is exact or rounded to odd, to float32 in a rounding mode."""
    r = x.astype(np.float32)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    if mode == "rz":
        wrong = np.abs(back) > np.abs(x)
    elif mode == "rm":
        wrong = back > x
    else:
        wrong = back < x
    if not np.count_nonzero(wrong):
        return r
    return np.where(wrong, _step(r, mode, np.uint32), r)


def _step(r: Array, mode: str, unsigned: Any) -> Array:
    """Return the neighbour of r towards zero (rz), below (rm) or above (rp)."""
    if mode == "rz":
        return (r.view(unsigned) - unsigned(1)).view(r.dtype)
    return np.nextafter(r, r.dtype.type(-np.inf if mode == "rm" else np.inf))


def zero_sign(result: Array, first: Array, second: Array, mode: str) -> Array:
    """Give an exact zero sum the sign that mode rm wants: minus, unless both terms are plus."""
    if mode != "rm":
        return result
    minus = (result == 0) & (np.signbit(first) | np.signbit(second))
    return np.where(minus, result.dtype.type(-0.0), result)


# --- float64 -------------------------------------------------------------------------------------


def _scaled(x: Array) -> tuple[Array, Array]:
    """Return (m, e) with x = m * 2**e and |m| in [1/2, 1), or m == 0; e in int64."""
    m, e = np.frexp(x)
    return m, e.astype(np.int64)


def pack_f64(s: Array, t: Array, sticky: Array, exponent: Array, mode: str) -> Array:
    """Return (s + t) * 2**exponent as float64 rounded once; |t| is at most half a unit of s.

    `sticky`: t is inexact, but has the right sign.
    """
    m, e = _scaled(s)
    sign = np.where(s < 0, -1.0, 1.0)
    low = np.ldexp(t * sign, 62 - e.astype(np.int32))
    whole = np.floor(low)
    rest = sticky | (whole != low)
    total = np.ldexp(np.abs(m), 62).astype(np.int64) + whole.astype(np.int64)
    short = (total < (1 << 61)) & (total > 0)
    total = np.where(short, total << 1, total)
    top = e + exponent - 1 - short
    bits = pack(s < 0, top, total.view(np.uint64) | rest.astype(np.uint64), F64, mode)
    return bits.view(np.float64)


def _fma_any(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Return the fused multiply-add of finite float64 of any size: it scales them to where the transformations are exact."""
    (ma, ea), (mb, eb), (mc, ec) = _scaled(a), _scaled(b), _scaled(c)
    product = ea + eb
    vanished = (ma == 0) | (mb == 0)
    # If terms are more than 400 binary digits apart, only the sign of the smaller one matters.
    gap = np.where(mc == 0, 0, np.where(vanished, 0, ec - product))
    gap = np.clip(gap, -400, 400)
    exponent = np.where(vanished, ec, np.where(gap == 400, ec - 400, product))
    p, e = two_product(ma, mb)
    c_scaled = np.ldexp(mc, gap.astype(np.int32))
    upper, upper_low = two_sum(c_scaled, e)
    top, top_low = two_sum(p, upper)
    v = to_odd(*two_sum(top_low, upper_low))
    s, t = two_sum(top, v)
    result = pack_f64(s, t, np.zeros(np.shape(s), np.bool_), exponent, mode)
    zero = np.where(vanished, a * b, p) + c  # an exact zero: the sum of zeros has the right sign
    cancelled = (s == 0) & ~vanished & (mc != 0)
    zero = np.where(cancelled, -0.0 if mode == "rm" else 0.0, zero_sign(zero, a * b, c, mode))
    return np.where(s == 0, zero, result)


_SMALL, _LARGE = np.float64(2.0**-400), np.float64(2.0**400)


def fma_f64(a: Array, b: Array, c: Array, mode: str) -> Array:
    """Return a*b + c rounded once. NaN operands propagate as in NumPy's own sum."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if mode == "rn":
        p, e = two_product(a, b)
        magnitude = np.abs(p)
        safe = (magnitude > _SMALL) & (magnitude < _LARGE) & (np.abs(a) < _LARGE) & (np.abs(b) < _LARGE)
        safe &= (np.abs(c) < _LARGE) & ((np.abs(c) > _SMALL) | (c == 0))
        upper, upper_low = two_sum(c, e)
        top, top_low = two_sum(p, upper)
        result = top + to_odd(*two_sum(top_low, upper_low))
        if np.count_nonzero(safe) == safe.size:
            return result
    else:
        safe, result = np.zeros(a.shape, np.bool_), a
    zero = np.float64(0)
    finite = np.isfinite(a) & np.isfinite(b)
    plain = np.where(finite, zero, a * b) + c  # a finite product may overflow, and must not be added to an infinite c
    finite &= np.isfinite(c)
    exact = _fma_any(np.where(finite, a, zero), np.where(finite, b, zero), np.where(finite, c, zero), mode)
    return np.where(finite, np.where(safe, result, exact), plain)


def div_f64(a: Array, b: Array, mode: str) -> Array:
    """Return a / b rounded once, in any mode."""
    plain = a / b
    if mode == "rn":
        return plain
    regular = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    one = np.float64(1)
    (ma, ea), (mb, eb) = _scaled(np.where(regular, a, one)), _scaled(np.where(regular, b, one))
    q = ma / mb
    p, e = two_product(q, mb)
    rest = (ma - p) - e
    result = pack_f64(q, rest / mb, rest != 0, ea - eb, mode)
    return np.where(regular, result, plain)


def sqrt_f64(a: Array, mode: str) -> Array:
    """Return the square root rounded once, in any mode."""
    plain = np.sqrt(a)
    if mode == "rn":
        return plain
    regular = np.isfinite(a) & (a > 0)
    m, e = _scaled(np.where(regular, a, np.float64(1)))
    odd = e & 1
    m, e = np.ldexp(m, odd.astype(np.int32)), (e - odd) >> 1
    s = np.sqrt(m)
    p, error = two_product(s, s)
    rest = (m - p) - error
    result = pack_f64(s, rest / (s + s), rest != 0, e, mode)
    return np.where(regular, result, plain)
