"""cvt to and from packed halves, tf32 and floats of 4 to 8 bits, and cvt.pack (PTX ISA 9.7.9.21 and
9.7.9.22).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from .formats import BF16, FORMATS, decode, encode, half_of_f32
from .forms import Body, form
from .types import CANONICAL_NAN_F32, Array, narrow

_13, _16 = np.uint32(13), np.uint32(16)


def _relu(x: Array) -> Array:
    """Return max(x, +0), but keep NaN."""
    return np.where(x <= 0, x.dtype.type(0), x)


def _half_codes(mode: str, relu: bool, satfinite: bool, name: str) -> Callable[[Array], Array]:
    """Return a function from f32 registers to f16 or bf16 codes, in uint16."""

    def convert(a: Array) -> Array:
        x = narrow(a, "f32").view(np.float32)
        if relu:
            x = _relu(x)
        if mode == "rn" and not satfinite:
            return half_of_f32(x, name)
        return encode(x.astype(np.float64), FORMATS[name], mode, satfinite).astype(np.uint16)

    return convert


@form("cvt rn|rz relu|satfinite|relu.satfinite|satfinite.relu? f16|bf16 f32", since=80)
def cvt_half(mode: str, clamp: str, target: str, source: str) -> Body:
    convert = _half_codes(mode, "relu" in clamp, "satfinite" in clamp, target)
    return Body((source,), (target,), lambda a: (convert(a),))


@form("cvt rn|rz relu|satfinite|relu.satfinite|satfinite.relu? f16x2|bf16x2 f32", since=80)
def cvt_halves(mode: str, clamp: str, target: str, source: str) -> Body:
    """Build cvt of two f32: a goes to the upper half, b to the lower."""
    if target == "bf16x2" and mode == "rn" and not clamp:
        return Body((source, source), (target,), lambda a, b: (_bf16x2(a, b),))
    convert = _half_codes(mode, "relu" in clamp, "satfinite" in clamp, target[:-2])

    def fn(a: Array, b: Array) -> tuple[Array, ...]:
        return ((convert(a).astype(np.uint32) << _16) | convert(b),)

    return Body((source, source), (target,), fn)


def _bf16x2(a: Array, b: Array) -> Array:
    """Round two f32 to nearest-even bf16. The sums stay in 32 bits, and the halves are masked together."""
    low, one, high = np.uint32(0x7FFF), np.uint32(1), np.uint32(0xFFFF0000)
    upper = (a + (low + ((a >> _16) & one))) & high
    lower = (b + (low + ((b >> _16) & one))) >> _16
    x, y = a.view(np.float32), b.view(np.float32)
    a_nan, b_nan = x != x, y != y
    if np.count_nonzero(a_nan):
        upper = np.where(a_nan, np.uint32(BF16.nan << 16), upper)
    if np.count_nonzero(b_nan):
        lower = np.where(b_nan, np.uint32(BF16.nan), lower)
    return upper | lower


def _canonical_nan(_: Array) -> Array:
    return np.array(CANONICAL_NAN_F32 >> _13 << _13)


def _rounded_away_nan(satfinite: bool) -> Callable[[Array], Array]:
    """Return a function that gives the result of a NaN under `.rna`, as integer rounding leaves it.

    The low bits are cut, so a NaN without other bits becomes infinity. With `.satfinite`, one unit is subtracted.
    """
    return lambda a: (a >> _13 << _13) - (np.uint32(1) << _13 if satfinite else np.uint32(0))


@form("cvt rn|rz satfinite relu? tf32 f32", since=100)
@form("cvt rna satfinite? tf32 f32", since=80)
@form("cvt rn|rz relu? tf32 f32", since=90)
def cvt_tf32(*words: str) -> Body:
    mode, target, source = words[0], words[-2], words[-1]
    relu, satfinite = "relu" in words, "satfinite" in words
    nan = _rounded_away_nan(satfinite) if mode == "rna" else _canonical_nan

    def fn(a: Array) -> tuple[Array, ...]:
        x = a.view(np.float32)
        if relu:
            x = _relu(x)
        code = encode(x.astype(np.float64), FORMATS["tf32"], mode, satfinite).astype(np.uint32)
        return (np.where(x != x, nan(a), code << _13),)

    return Body((source,), (target,), fn)


# --- floats of 4 to 8 bits -----------------------------------------------------------------------


_WITHOUT_NAN = ("e2m1", "e2m3", "e3m2")  # a NaN gives their largest number


@cache
def _fp8_table(name: str, source: str, relu: bool) -> Array:
    """Return the code of at most 8 bits of each of the 65536 codes of f16 or bf16, in uint16."""
    x = decode(np.arange(65536, dtype=np.uint16), source)
    x = _relu(x) if relu else x
    if name in _WITHOUT_NAN:
        x = np.where(x != x, np.float32(np.inf), x)
    return encode(x.astype(np.float64), FORMATS[name], "rn", saturate=True).astype(np.uint16)


def _fp8_of_f32(a: Array, name: str, relu: bool) -> Array:
    """Convert f32 registers to 8-bit codes, through bf16 rounded to odd.

    This bf16 is the upper half of the f32, with its last bit set if the lower half is not zero. It has four digits more
    than the widest 8-bit format, so it rounds to the same code as the f32.
    """
    odd = (a >> _16) | ((a & np.uint32(0xFFFF)) != 0)
    return _fp8_table(name, "bf16", relu)[odd]


def _upper(target: str) -> np.uint16:
    """Return the bit at which the upper of two codes begins."""
    return np.uint16(4 if target == "e2m1x2" else 8)


@form("cvt rn satfinite relu? e2m1x2|e2m3x2|e3m2x2 f32", since=100)
@form("cvt rn satfinite relu? e4m3x2|e5m2x2 f32", since=89)
def cvt_fp8_of_f32(_mode: str, _satfinite: str, relu: str, target: str, source: str) -> Body:
    name, clamp, upper = target[:-2], bool(relu), _upper(target)

    def fn(a: Array, b: Array) -> tuple[Array, ...]:
        return ((_fp8_of_f32(a, name, clamp) << upper) | _fp8_of_f32(b, name, clamp),)

    return Body((source, source), (target,), fn)


@form("cvt rn satfinite relu? e2m1x2 f16x2", since=100)
@form("cvt rn satfinite relu? e4m3x2|e5m2x2 f16x2", since=89)
def cvt_fp8_of_halves(_mode: str, _satfinite: str, relu: str, target: str, source: str) -> Body:
    name, clamp, upper = target[:-2], bool(relu), _upper(target)

    def fn(a: Array) -> tuple[Array, ...]:
        table = _fp8_table(name, "f16", clamp)
        return ((table[a >> _16] << upper) | table[a & np.uint32(0xFFFF)],)

    return Body((source,), (target,), fn)


@form("cvt rn relu? f16x2 e2m1x2|e2m3x2|e3m2x2", since=100)
@form("cvt rn relu? f16x2 e4m3x2|e5m2x2", since=89)
def cvt_halves_of_fp8(_mode: str, relu: str, target: str, source: str) -> Body:
    name, upper = source[:-2], _upper(source)
    mask = np.uint16((1 << FORMATS[name].bits) - 1)

    def half(codes: Array) -> Array:
        x = decode(codes, name)
        return half_of_f32(_relu(x) if relu else x, "f16").astype(np.uint32)

    def fn(a: Array) -> tuple[Array, ...]:
        a = narrow(a, "b16")
        return ((half(a >> upper & mask) << _16) | half(a & mask),)

    return Body((source,), (target,), fn)


# --- powers of two -------------------------------------------------------------------------------


def _ue8m0(a: Array, mode: str, satfinite: bool) -> Array:
    """Return the biased exponents of f32 registers, in uint16; the sign is ignored. Code 0 is 2 ** -127, and 255 is NaN."""
    magnitude = a & np.uint32(0x7FFFFFFF)
    code = magnitude >> np.uint32(23)
    if mode == "rp":
        inexact = ((magnitude & np.uint32(0x7FFFFF)) != 0) & (magnitude > np.uint32(0x400000))
        code = code + (inexact & (magnitude < np.uint32(0x7F800000)))
    if satfinite:
        code = np.where((code == 255) & (magnitude <= np.uint32(0x7F800000)), np.uint32(254), code)
    return code.astype(np.uint16)


@form("cvt rz|rp satfinite? ue8m0x2 f32", since=100)
def cvt_ue8m0_of_f32(mode: str, satfinite: str, target: str, source: str) -> Body:
    def fn(a: Array, b: Array) -> tuple[Array, ...]:
        return ((_ue8m0(a, mode, bool(satfinite)) << np.uint16(8)) | _ue8m0(b, mode, bool(satfinite)),)

    return Body((source, source), (target,), fn)


@form("cvt rz|rp satfinite? ue8m0x2 bf16x2", since=100)
def cvt_ue8m0_of_halves(mode: str, satfinite: str, target: str, source: str) -> Body:
    def fn(a: Array) -> tuple[Array, ...]:
        upper, lower = _ue8m0(a & ~np.uint32(0xFFFF), mode, bool(satfinite)), _ue8m0(a << _16, mode, bool(satfinite))
        return ((upper << np.uint16(8)) | lower,)

    return Body((source,), (target,), fn)


@form("cvt rn bf16x2 ue8m0x2", since=100)
def cvt_halves_of_ue8m0(_mode: str, target: str, source: str) -> Body:
    def half(codes: Array) -> Array:
        codes = codes.astype(np.uint32)
        found = np.where(codes == 0, np.uint32(0x40), codes << np.uint32(7))  # 2 ** -127 is subnormal
        return np.where(codes == 255, np.uint32(BF16.nan), found)

    def fn(a: Array) -> tuple[Array, ...]:
        a = narrow(a, "b16")
        return ((half(a >> np.uint16(8)) << _16) | half(a & np.uint16(0xFF)),)

    return Body((source,), (target,), fn)


# --- cvt.pack ------------------------------------------------------------------------------------


def _clamped(target: str, source: str) -> Callable[[Array], Array]:
    """Return a function that saturates 32-bit registers to a 2- to 16-bit integer type: its low bits in uint32."""
    width = int(target[1:])
    signed = target[0] == "s"
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    view = np.int32 if source == "s32" else np.uint32
    mask = np.uint32(2**width - 1)

    def clamp(a: Array) -> Array:
        value = a.view(view).astype(np.int64)
        return np.clip(value, low, high).astype(np.uint32) & mask

    return clamp


@form("cvt pack sat u16|s16 s32")
def cvt_pack_halves(_pack: str, _sat: str, target: str, source: str) -> Body:
    clamp = _clamped(target, source)
    return Body((source, source), ("b32",), lambda a, b: ((clamp(a) << _16) | clamp(b),))


@form("cvt pack sat u8|s8|u4|s4|u2|s2 s32 b32")
def cvt_pack(_pack: str, _sat: str, target: str, source: str, rest: str) -> Body:
    """Build cvt.pack: the saturated a and b go below the bits of c, which move up by both their widths."""
    clamp, width = _clamped(target, source), np.uint32(int(target[1:]))

    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return ((c << (width + width)) | (clamp(a) << width) | clamp(b),)

    return Body((source, source, rest), ("b32",), fn)
