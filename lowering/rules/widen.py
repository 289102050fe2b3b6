"""8-bit integers to 16-bit floats, two at a time and exactly, without the conversion unit (a quarter of the speed).

The byte is put into the low bits of a float whose last place is worth 1, which adds the byte to the float. A subtraction of the
float then gives the byte, without rounding.

float16, 10 bits of mantissa: 0x6400 is 1024, so 0x6400 | b is 1024 + b. A signed byte with its sign bit flipped is the
value plus 128.

bfloat16, 7 bits: 0x4300 is 128, so 0x4300 | (b & 127) is 128 + b mod 128, and 0x4300 | (b & 128) is 128 or, as that bit
belongs to the exponent, 256. Their difference is the signed byte. An unsigned one has its bit 7 added instead.
"""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType

from ..context import Context
from ..value import Regs, V

BYTES = (dt.int8, dt.uint8)
HALVES = (dt.float16, dt.bfloat16)


def widen_bytes(ctx: Context, names: Regs, source: DType, to: DType) -> Regs:
    """An even number of bytes as float16 or bfloat16."""
    convert = _to_float16 if to == dt.float16 else _to_bfloat16
    out: Regs = []
    for i in range(0, len(names), 2):
        out += halves(ctx, convert(ctx, names[i], names[i + 1], source.is_signed))
    return out


def halves(ctx: Context, pair: V) -> Regs:
    """The elements of a pair of 16-bit floats. The context keeps their word."""
    word = pair.bitcast("i32")
    low, high = pair.part(0), pair.part(1)
    ctx.words[low], ctx.words[high] = (word, 0), (word, 1)
    return [low, high]


def _spread(ctx: Context, a: V, b: V, high: int) -> V:
    """Two bytes as the low bytes of 16-bit halves whose high bytes are `high`."""
    (whole, i), (other, j) = ctx.words.get(a, (None, 0)), ctx.words.get(b, (None, 0))
    if whole is not None and whole == other:
        # PTX ISA 9.7.7.7 (prmt): bytes of the first word are 0 to 3, of the second 4 to 7
        return ctx.e.v(f"call i32 @llvm.nvvm.prmt(i32 {whole}, i32 {high}, i32 {0x4040 | j << 8 | i})", "i32")
    low, up = a.zext("i32"), b.zext("i32")
    return (low | up << 16) | (high << 8 | high << 24)


def _to_float16(ctx: Context, a: V, b: V, signed: bool) -> V:
    word = _spread(ctx, a, b, 0x64)
    if signed:
        word = word ^ 0x00800080
    start = "0xH6480" if signed else "0xH6400"
    pair = "<2 x half>"
    return ctx.e.v(f"fsub {pair} {word.bitcast(pair)}, <half {start}, half {start}>", pair)


def _to_bfloat16(ctx: Context, a: V, b: V, signed: bool) -> V:
    """A multiply-add subtracts: sm_80 has no other instruction on pairs."""
    pair = "<2 x bfloat>"
    word = _spread(ctx, a, b, 0x43)

    def add(x: V, y: str, scale: str) -> V:
        scaled = ctx.e.value(f"<bfloat {scale}, bfloat {scale}>", pair)
        return ctx.e.call(pair, "llvm.fma.v2bf16", x, scaled, ctx.e.value(y, pair))

    rest, top = (word & 0xFF7FFF7F).bitcast(pair), (word & 0xFF80FF80).bitcast(pair)
    if signed:
        return add(top, rest, "0xRBF80")
    # 128 or 256 becomes -128 or 0
    return add(add(top, "<bfloat 0xRC380, bfloat 0xRC380>", "0xR3F80"), rest, "0xR3F80")
