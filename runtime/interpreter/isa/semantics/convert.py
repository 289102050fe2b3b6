"""cvt between scalar types (PTX ISA 9.7.9.21, cvt). Packed and narrow formats are in
convert_packed.py.

Source registers may be wider than the source type; the surplus bits are ignored. 8-bit results come
in uint16, extended by their sign or by zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import exact
from .bits import leading_zeros
from .floating import canonical_f32, flush_f32, flush_tiny, saturate, tiny_result
from .formats import FORMATS, decode, encode, f16_of_float, half_of_f32, pack
from .forms import Body, Illegal, form, in_pieces
from .types import BITS, SIGNED, STORAGE, UNSIGNED, Array, narrow

_INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"
_FLOATS = "f16|f32|f64"


# --- integers ------------------------------------------------------------------------------------


def integer_value(type_: str) -> Callable[[Array], Array]:
    """Return a function from registers of any width to the value of their low bits.

    Its result is an int or uint array as wide as the type.
    """
    width = BITS[type_]
    unsigned = UNSIGNED[width]
    if type_[0] == "s":
        signed = SIGNED[width]
        return lambda a: (a if a.dtype == unsigned else a.astype(unsigned)).view(signed)
    return lambda a: a if a.dtype == unsigned else a.astype(unsigned)


def integer_bits(type_: str) -> Callable[[Array], Array]:
    """Return a function from integer values of any width to register bits of the type, to which it cuts them."""
    width, storage = BITS[type_], STORAGE[type_]
    own = (SIGNED if type_[0] == "s" else UNSIGNED)[width]
    if width == 8:
        middle = np.int16 if type_[0] == "s" else np.uint16
        return lambda v: v.astype(own).astype(middle).view(storage)
    if type_[0] == "s":
        return lambda v: v.astype(own).view(storage)
    return lambda v: v.astype(own)


def _limits(type_: str) -> tuple[int, int]:
    width = BITS[type_]
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if type_[0] == "s" else (0, 2**width - 1)


def clamp_integer(source: str, target: str) -> Callable[[Array], Array]:
    """Return a function that saturates values of one integer type to the range of another, in 64 bits."""
    low, high = _limits(target)
    if source[0] == "s":
        low64, high64 = np.int64(low), np.int64(min(high, 2**63 - 1))
        return lambda v: np.minimum(np.maximum(v.astype(np.int64), low64), high64)
    high_unsigned = np.uint64(high)
    return lambda v: np.minimum(v.astype(np.uint64), high_unsigned)


@form(f"cvt sat? {_INTEGERS} {_INTEGERS}")
def cvt_integer(sat: str, target: str, source: str) -> Body:
    value, bits = integer_value(source), integer_bits(target)
    if sat:
        (low, high), (lowest, highest) = _limits(target), _limits(source)
        if low <= lowest and highest <= high:
            raise Illegal("the target holds every value of the source: nothing to saturate")
        clamp = clamp_integer(source, target)
        return Body((source,), (target,), lambda a: (bits(clamp(value(a))),))
    return Body((source,), (target,), lambda a: (bits(value(a)),))


# --- float to integer ----------------------------------------------------------------------------

_INTEGRAL: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def float_value(type_: str, ftz: bool) -> Callable[[Array], Array]:
    """Return a function from registers to float32 or, for f64, float64 values."""
    storage = STORAGE[type_]
    if type_ == "f32" and ftz:
        return lambda a: flush_f32(narrow(a, "f32")).view(np.float32)
    return lambda a: decode(a if a.dtype == storage else a.astype(storage), type_)


def _to_integer(target: str, nan: int) -> Callable[[Array], Array]:
    """Return a function from integral float64 values to register bits, saturated to the type; NaN gives `nan`."""
    low, high = _limits(target)
    bits = integer_bits(target)
    if BITS[target] < 64:
        low_value, high_value = np.float64(low), np.float64(high)

        def narrow_bits(x: Array) -> Array:
            unknown = x != x
            clamped = np.minimum(np.maximum(x, low_value), high_value)
            if np.count_nonzero(unknown):
                clamped = np.where(unknown, np.float64(nan), clamped)
            return bits(clamped.astype(np.int64))

        return narrow_bits
    dtype: Any = np.int64 if target == "s64" else np.uint64
    limit, bottom = np.float64(2.0 ** (63 if target == "s64" else 64)), np.float64(low)

    def wide_bits(x: Array) -> Array:
        inside = (x >= bottom) & (x < limit)
        result = np.where(inside, x, np.float64(0)).astype(dtype)
        if np.count_nonzero(inside) < np.size(inside):
            result = np.where(x >= limit, dtype(high), np.where(x < bottom, dtype(low), result))
            result = np.where(x != x, np.uint64(nan).view(dtype), result)
        return result.view(np.uint64)

    return wide_bits


@form(f"cvt rni|rzi|rmi|rpi ftz? sat? {_INTEGERS} {_FLOATS}")
@form(f"cvt rni|rzi|rmi|rpi - - {_INTEGERS} bf16", since=90)
def cvt_float_to_integer(mode: str, ftz: str, sat: str, target: str, source: str) -> Body:
    """Build cvt from float to integer. It always saturates. NaN gives 0, or the top bit alone if either type has 64 bits."""
    _check_ftz(ftz, target, source)
    value, integral = float_value(source, bool(ftz)), _INTEGRAL[mode]
    wide = source == "f64" or BITS[target] == 64
    convert = _to_integer(target, 1 << (BITS[target] - 1) if wide else 0)
    return in_pieces(Body((source,), (target,), lambda a: (convert(integral(value(a).astype(np.float64))),)))


def _check_ftz(ftz: str, *types: str) -> None:
    if ftz and "f32" not in types:
        raise Illegal("'.ftz' needs .f32 on either side")


# --- to float ------------------------------------------------------------------------------------


def float_bits(target: str, mode: str, ftz: bool, sat: bool) -> Callable[[Array], Array]:
    """Return a function that rounds exact float32 or float64 values to a type's register bits, with canonical NaNs."""
    rounded = _rounded_bits(target, mode)
    flush = ftz and target == "f32"
    if not sat and not flush:
        return rounded

    tiny = tiny_result(lambda x: x, mode or "rn")

    def clamped(x: Array) -> Array:
        x = saturate(x) if sat else x
        bits = rounded(x)
        if not flush:
            return bits
        return flush_tiny(bits, (x,), tiny) if x.dtype == np.float64 else flush_f32(bits)

    return clamped


def _rounded_bits(target: str, mode: str) -> Callable[[Array], Array]:
    mode = mode or "rn"
    if target == "f64":
        return lambda x: x.astype(np.float64).view(np.uint64)
    if target == "f32":
        return lambda x: canonical_f32(x if x.dtype == np.float32 else exact.round_f32(x, mode))
    if target == "f16" and mode == "rn":
        return f16_of_float
    if mode == "rn":
        return lambda x: half_of_f32(x, target) if x.dtype == np.float32 else _encode_half(x, target, mode)
    return lambda x: _encode_half(x.astype(np.float64), target, mode)


def _encode_half(x: Array, target: str, mode: str) -> Array:
    return encode(x, FORMATS[target], mode).astype(np.uint16)


def _pack_integer(source: str, target: str, mode: str) -> Callable[[Array], Array]:
    """Return a function from 64-bit integers to any float format, rounded once."""
    fmt, storage = FORMATS[target], STORAGE[target]

    def convert(v: Array) -> Array:
        negative = v < 0 if source == "s64" else np.zeros(v.shape, np.bool_)
        magnitude = np.where(negative, np.negative(v.view(np.uint64)), v.view(np.uint64))
        zeros = leading_zeros(magnitude, 64)
        normal = magnitude << np.minimum(zeros, np.uint32(63)).astype(np.uint64)
        significand = (normal >> np.uint64(2)) | ((normal & np.uint64(3)) != 0)
        exponent = np.int64(63) - zeros.astype(np.int64)
        return pack(negative, exponent, significand, fmt, mode).astype(storage)

    return convert


@form(f"cvt rn|rz|rm|rp ftz? sat? {_FLOATS} {_INTEGERS}")
@form(f"cvt rn|rz|rm|rp - - bf16 {_INTEGERS}", since=90)
def cvt_integer_to_float(mode: str, ftz: str, sat: str, target: str, source: str) -> Body:
    _check_ftz(ftz, target)
    value = integer_value(source)
    if sat:  # values are clamped to 0 or 1, which every format holds
        clip = clamp_integer(source, "u8")
        one_bits = float_bits(target, "rn", False, False)
        return Body(
            (source,),
            (target,),
            lambda a: (one_bits(np.minimum(clip(value(a)).astype(np.float32), np.float32(1))),),
        )
    if BITS[source] == 64 and not (target in ("f32", "f64") and mode == "rn"):
        convert = _pack_integer(source, target, mode)
        return Body((source,), (target,), lambda a: (convert(value(a)),))
    if mode == "rn" and target in ("f32", "f64"):
        dtype = np.float32 if target == "f32" else np.float64
        storage = STORAGE[target]
        return Body((source,), (target,), lambda a: (value(a).astype(dtype).view(storage),))
    bits = float_bits(target, mode, False, False)
    return Body((source,), (target,), lambda a: (bits(value(a).astype(np.float64)),))


_RANK = {"f16": 1, "bf16": 1, "f32": 2, "f64": 3}


@form(f"cvt rn|rz|rm|rp? ftz? sat? {_FLOATS} {_FLOATS}")
@form("cvt rn|rz|rm|rp? - - f32 bf16", "cvt rn|rz|rm|rp ftz? - bf16 f32", since=80)
@form(
    "cvt rn|rz|rm|rp? ftz - f32 bf16",
    "cvt rn|rz|rm|rp? - - f16|bf16|f64 bf16",
    "cvt rn|rz|rm|rp? - - bf16 f16|f64",
    since=90,
)
def cvt_float(mode: str, ftz: str, sat: str, target: str, source: str) -> Body:
    """Build cvt between float types. Widening is exact and takes no rounding mode, except from bf16; narrowing needs one."""
    _check_ftz(ftz, target, source)
    exactly = target == source or _RANK[target] > _RANK[source]
    if exactly and mode and (source != "bf16" or target == "bf16"):
        raise Illegal("a widening conversion takes no rounding")
    if not exactly and not mode and {source, target} != {"f16", "bf16"}:
        raise Illegal("a narrowing conversion needs a rounding")
    # A conversion to f16 does not flush subnormals.
    value = float_value(source, bool(ftz) and target != "f16")
    if target == "f32" and source in ("f32", "bf16") and not ftz and not sat:
        return Body((source,), (target,), lambda a: (value(a).view(np.uint32),))  # a move: NaNs stay
    bits = float_bits(target, mode, bool(ftz), bool(sat))
    if source == "f32" and target == "f64" and ftz:  # the flush makes a NaN canonical
        return Body((source,), (target,), lambda a: (bits(canonical_f32(value(a)).view(np.float32)),))
    if source == "f64" and target != "f64" and not sat:
        nan = _narrowed_nan(target)
        return Body((source,), (target,), lambda a: (nan(a, bits(value(a))),))
    return Body((source,), (target,), lambda a: (bits(value(a)),))


def _narrowed_nan(target: str) -> Callable[[Array, Array], Array]:
    """Return a function that corrects NaNs in the results of narrowing f64: they keep their sign and leading bits, and are
    quiet.
    """
    fmt = FORMATS[target]
    storage: Any = STORAGE[target]
    assert fmt.infinity is not None
    quiet = np.uint64(fmt.infinity | 1 << (fmt.mantissa - 1))
    fraction, shift = np.uint64(2**fmt.mantissa - 1), np.uint64(52 - fmt.mantissa)
    up, sign = np.uint64(64 - fmt.bits), np.uint64(fmt.sign)

    def fn(a: Array, bits: Array) -> Array:
        x = a.view(np.float64)
        nan = x != x
        if not np.count_nonzero(nan):
            return bits
        kept = ((a >> up) & sign) | quiet | ((a >> shift) & fraction)
        return np.where(nan, kept.astype(storage), bits)

    return fn


@form(f"cvt rni|rzi|rmi|rpi ftz? sat? {_FLOATS} {_FLOATS}")
@form("cvt rni|rzi|rmi|rpi - - bf16 bf16", since=90)
def cvt_integral(mode: str, ftz: str, sat: str, target: str, source: str) -> Body:
    """Build cvt that rounds to an integral value of the same type."""
    if target != source:
        raise Illegal("integer rounding of a float keeps its type")
    _check_ftz(ftz, target)
    value, integral = float_value(source, bool(ftz)), _INTEGRAL[mode]
    bits = float_bits(target, "rn", bool(ftz), bool(sat))
    return Body((source,), (target,), lambda a: (bits(integral(value(a))),))
