"""8-bit integers to 16-bit floats, two at a time and exactly, without the conversion unit (a quarter of the speed).

A byte in the low bits of a float whose last place is worth 1 adds its own value; what the float was worth before is then
taken away, with no rounding.

float16, 10 bits of mantissa: 0x6400 is 1024, so 0x6400 | b is 1024 + b. A signed byte with its sign bit flipped is the
value plus 128.

bfloat16, 7 bits: 0x4300 is 128, so 0x4300 | (b & 127) is 128 + b mod 128, and 0x4300 | (b & 128) is 128 or, as that bit
belongs to the exponent, 256. Their difference is the signed byte. An unsigned one has its bit 7 added instead.
"""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType

from ..context import Context
from ..emit import Regs, llvm_type

BYTES = (dt.int8, dt.uint8)
HALVES = (dt.float16, dt.bfloat16)


def widen_bytes(ctx: Context, names: Regs, source: DType, to: DType) -> Regs:
    """Bytes, an even number, as float16 or bfloat16."""
    e, t = ctx.e, f"<2 x {llvm_type(to)}>"
    convert = _to_float16 if to == dt.float16 else _to_bfloat16
    out: Regs = []
    for i in range(0, len(names), 2):
        value = convert(ctx, names[i], names[i + 1], source.is_signed)
        word = e.v(f"bitcast {t} {value} to i32")
        for half in (0, 1):
            name = e.v(f"extractelement {t} {value}, i32 {half}")
            ctx.words[name] = (word, half)
            out.append(name)
    return out


def _spread(ctx: Context, a: str, b: str, high: int) -> str:
    """Two bytes as the low bytes of 16-bit halves whose high bytes are `high`."""
    e = ctx.e
    (whole, i), (other, j) = ctx.words.get(a, ("", 0)), ctx.words.get(b, ("", 0))
    if whole and whole == other:  # PTX ISA 9.7.7.7 (prmt): bytes of the first word are 0 to 3, of the second 4 to 7
        return e.v(f"call i32 @llvm.nvvm.prmt(i32 {whole}, i32 {high}, i32 {0x4040 | j << 8 | i})")
    low, up = e.v(f"zext i8 {a} to i32"), e.v(f"zext i8 {b} to i32")
    pair = e.v(f"or i32 {low}, {e.v(f'shl i32 {up}, 16')}")
    return e.v(f"or i32 {pair}, {high << 8 | high << 24}")


def _to_float16(ctx: Context, a: str, b: str, signed: bool) -> str:
    e = ctx.e
    word = _spread(ctx, a, b, 0x64)
    if signed:
        word = e.v(f"xor i32 {word}, {0x00800080}")
    start = "0xH6480" if signed else "0xH6400"
    value = e.v(f"bitcast i32 {word} to <2 x half>")
    return e.v(f"fsub <2 x half> {value}, <half {start}, half {start}>")


def _to_bfloat16(ctx: Context, a: str, b: str, signed: bool) -> str:
    """A multiply-add subtracts: sm_80 has no other instruction on pairs."""
    e = ctx.e
    word = _spread(ctx, a, b, 0x43)

    def add(x: str, y: str, scale: str) -> str:
        scaled = f"<bfloat {scale}, bfloat {scale}>"
        return e.v(f"call <2 x bfloat> @llvm.fma.v2bf16(<2 x bfloat> {x}, <2 x bfloat> {scaled}, <2 x bfloat> {y})")

    def floats(mask: int) -> str:
        return e.v(f"bitcast i32 {e.v(f'and i32 {word}, {mask}')} to <2 x bfloat>")

    rest, top = floats(0xFF7FFF7F), floats(0xFF80FF80)
    if signed:
        return add(top, rest, "0xRBF80")
    # 128 or 256 becomes -128 or 0
    return add(add(top, "<bfloat 0xRC380, bfloat 0xRC380>", "0xR3F80"), rest, "0xR3F80")
