"""Numbers of 4 bits, two a byte: their order in memory, and their conversion to floats.

16 bytes hold 32 rows: row 16 u + 8 v + r is in the low (v 0) or high (v 1) half of byte 2 r + u. A word of four bytes
then holds the numbers that one lane gives to wgmma for a column of the packed side. Neighbouring rows lie 16 bits
apart, like two 16-bit floats in a word, so four shifts give all pairs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

BLOCK, HALF = 64, 32  # rows that are packed together, rows of one product
HALF_BYTES, UNIT = 16, 8  # bytes of the rows of one product, distance of the two rows in a byte
HIGHEST, MIDDLE = 15, 8
_EXPONENT = 0x4B000000  # the bits of 2 ** 23 as a float32: its last bit stands for 1


# (a float of the dtype whose last bit stands for 1, twice in a word; the dtype's name in PTX)
_ONES = {"bfloat16": (0x43004300, "bf16x2"), "float16": (0x64006400, "f16x2")}


@cache
def _layouts(rows: int) -> tuple[kd.Layout, kd.Layout, kd.Layout]:
    """The layouts of (rows, 32) numbers for wgmma, of their bytes (rows, 16), and of factors (rows,)."""
    full = kd.Layout.WGMMA.of((rows, HALF))

    def bits(own: Any) -> Any:
        return tuple((1, bit[1] * 2) if bit is not None and bit[0] == 1 else bit for bit in own)

    held = ((1, 4, 1), *(reg for reg in full.regs if reg[0] == 0))
    return full, kd.Layout(2, held, bits(full.lanes), bits(full.warps)), kd.Layout.WGMMA_ROW.of((rows,))


def factors_of(scale: Any, zero: Any, dtype: Any) -> tuple[Any, ...]:
    """The factors for `widened` from float32 (rows,) scales and zeros (None: 8): words that hold a 16-bit float twice.
    A scale is the sum of two floats. A zero is split into its integer and its fraction.
    """
    _, kind = _ONES[dtype.name]
    twice = f"cvt.rn.{kind}.f32 $0, $1, $1;"

    def pair(x: Any) -> Any:
        return kd.inline_ptx(twice, x, out_type=kd.int32, pure=True)

    high = pair(scale)
    if dtype == kd.bfloat16:
        rounded = kd.bitcast_convert_type(high & -0x10000, kd.float32)
    else:
        rounded = kd.bitcast_convert_type(high.astype(kd.uint16), kd.float16).astype(kd.float32)
    low = pair(scale - rounded)
    if zero is None:
        return high, low
    whole = kd.rint(zero)
    return high, low, pair(whole + (128.0 if dtype == kd.bfloat16 else 1024.0)), pair((whole - zero) * scale)


@cache
def _template(rows: int, dtype: Any, zeros: bool) -> str:
    """PTX for `widened`: operands are bytes, high and low parts of scales.

    With `zeros` also the numbers to subtract and to add.
    """
    full, packed, row = _layouts(rows)
    base, kind = _ONES[dtype.name]
    lines = [f"{{ .reg .b32 %number, %rest, %zero; mov.b32 %zero, {base + MIDDLE * 0x10001};"]
    for place, (m, k) in enumerate(full.register_coords[::2]):
        word = packed.register_of[m, 0] // 4
        own = row.register_of[(m,)]
        shift = 4 * (k // UNIT)
        lines.append(f"shr.u32 %number, $1[{word}], {shift};" if shift else f"mov.b32 %number, $1[{word}];")
        lines.append(f"lop3.b32 %number, %number, {0x000F000F}, {base}, 0xEA;")  # (number & mask) | base
        lines.append(f"sub.rn.{kind} %number, %number, {f'$4[{own}]' if zeros else '%zero'};")
        if zeros:
            lines.append(f"fma.rn.{kind} %rest, %number, $3[{own}], $5[{own}];")
        else:
            lines.append(f"mul.rn.{kind} %rest, %number, $3[{own}];")
        lines.append(f"fma.rn.{kind} $0[{place}], %number, $2[{own}], %rest;")
    return " ".join([*lines, "}"])


def bytes_of(data: Any, part: int) -> Any:
    """The bytes (rows, 16) of `part` of `data`, in the registers of the lanes that widen them."""
    _, packed, _ = _layouts(data.shape[0])
    return kd.load(data.at[:, part * HALF_BYTES : (part + 1) * HALF_BYTES], layout=packed)


def widened(data: Any, factors: Any, dtype: Any) -> Any:
    """(q - zero) * scale, (rows, 32) for wgmma, of `bytes_of` a part.

    It takes two numbers at a time, in the 16 bits of `dtype`. The bits of q become the last bits of a float, without
    rounding. The product with both parts of the scale is rounded once, besides the rounding of the smaller part.
    """
    rows = data.shape[0]
    full, packed, row = _layouts(rows)
    own = [kd.layout_cast(x, row) for x in factors]  # carries of loops may have any layout
    template = _template(rows, dtype, len(factors) > 2)
    out = kd.ShapeDtypeStruct((rows, HALF), dtype)
    return kd.inline_ptx(template, kd.layout_cast(data, packed), *own, out_type=out, pure=True, layout=full)


def numbers(data: Any, half: int, scale: Any, zero: Any) -> Any:
    """(q - zero) * scale, float32, of the low (0) or high (1) halves of int8; `zero` None is 8.

    The bits of q become the last bits of a float32, because a conversion takes four times as long.
    """
    word = data.astype(kd.int32)
    bits = (word if half == 0 else word >> 4) & HIGHEST | _EXPONENT
    q = kd.bitcast_convert_type(bits, kd.float32)
    return (q - (2.0**23 + MIDDLE) if zero is None else q - 2.0**23 - zero) * scale


@cache
def _floats_template(rows: int, dtype: Any) -> str:
    """PTX for `floats_widened`: operands are bytes, and two powers of two for each row.

    Exponent and mantissa of e2m1 become the last bits of the exponent and the first bit of the mantissa, so 0.5 is
    subnormal in both.
    """
    full, packed, row = _layouts(rows)
    _, kind = _ONES[dtype.name]
    left, mask = (6, 0x01C001C0) if dtype == kd.bfloat16 else (9, 0x0E000E00)
    lines = ["{ .reg .b32 %sign, %number;"]

    def shifted(to: str, word: int, by: int) -> str:
        if not by:
            return f"mov.b32 {to}, $1[{word}];"
        return f"{'shl' if by > 0 else 'shr'}.{'b' if by > 0 else 'u'}32 {to}, $1[{word}], {abs(by)};"

    for place, (m, k) in enumerate(full.register_coords[::2]):
        word, at, own = packed.register_of[m, 0] // 4, 4 * (k // UNIT), row.register_of[(m,)]
        lines.append(shifted("%sign", word, 12 - at))
        lines.append(f"and.b32 %sign, %sign, {0x80008000 - (1 << 32)};")
        lines.append(shifted("%number", word, left - at))
        lines.append(f"lop3.b32 %number, %number, {mask}, %sign, 0xEA;")  # (number & mask) | sign
        lines.append(f"mul.rn.{kind} %number, %number, $2[{own}];")
        lines.append(f"mul.rn.{kind} $0[{place}], %number, $3[{own}];")
    return " ".join([*lines, "}"])


def floats_widened(data: Any, codes: Any, dtype: Any) -> Any:
    """The e2m1 numbers times the powers of two of `codes`, uint8 (rows,).

    The result is (rows, 32) for wgmma, of `bytes_of` a part. Two numbers at a time are multiplied by two powers of two,
    because one power may exceed the range of `dtype`. Only results that are subnormal in `dtype` are rounded.
    """
    rows = data.shape[0]
    full, packed, row = _layouts(rows)
    code = kd.layout_cast(codes, row).astype(kd.int32)
    bias, bits, first = (127, 7, 1) if dtype == kd.bfloat16 else (15, 10, 113)
    halves = (
        (code - (first - 1)) >> 1,
        (code - first) >> 1,
    )  # the exponents of the two powers
    if dtype == kd.float16:
        halves = tuple(kd.minimum(kd.maximum(half, 1 - bias), bias) for half in halves)
    powers = [half * (0x10001 << bits) + (bias << bits) * 0x10001 for half in halves]  # twice in a word
    nan = (((1 << (15 - bits)) - 1) << bits | 1 << (bits - 1)) * 0x10001
    factors = kd.where(code == 255, nan, powers[0]), powers[1]
    bytes_ = kd.layout_cast(data, packed)
    out = kd.ShapeDtypeStruct((rows, HALF), dtype)
    return kd.inline_ptx(_floats_template(rows, dtype), bytes_, *factors, out_type=out, pure=True, layout=full)


def power_of(code: Any) -> Any:
    """2 ** (byte - 127) of uint8, float32; NaN for 255."""
    wide = code.astype(kd.int32)
    bits = kd.where(wide == 0, 0x00400000, kd.where(wide == 255, 0x7FC00000, wide << 23))
    return kd.bitcast_convert_type(bits, kd.float32)


def floats_of(data: Any, half: int, scale: Any) -> Any:
    """e2m1 numbers times `scale`, float32, of the low (0) or high (1) halves of int8.

    Exponent and mantissa become the last bits of a float32's exponent and the first bit of its mantissa, so 0.5 is
    subnormal in both.
    """
    word = data.astype(kd.int32) if half == 0 else data.astype(kd.int32) >> 4
    bits = (word & 7) << 22 | (word & 8) << 28
    return kd.bitcast_convert_type(bits, kd.float32) * 2.0**126 * scale
