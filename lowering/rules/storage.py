"""4-bit numbers of bytes and back, eight at a time where a lane has four bytes of them.

The number is put into the low bits of a float whose last place is worth 1, which adds the number to the float. A subtraction of
the float then gives the number, without rounding. The floats are 0x6400, 1024 in float16; 0x4300, 128 in bfloat16; 0x4B000000,
2 ** 23 in float32. A signed number with its sign bit flipped is the value plus 8. For float4, exponent and mantissa become those
of a half; a product with a power of two then accounts for the other bias.
"""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.storage import JoinNibbles, Nibbles

from ..context import Context, Rules
from ..value import Regs, V
from .access import unpack
from .widen import halves

_BYTES = 4  # of a word


def lower_nibbles(ctx: Context, op: Nibbles) -> None:
    names = ctx.regs(op.x)
    if op.dtype == op.source:
        ctx.values[op.result] = _placed(op, [[name & 15, name >> 4] for name in names])
        return
    pairs: list[Regs] = []
    for start in range(0, len(names), _BYTES):
        group = names[start : start + _BYTES]
        made = _eight(ctx, _word(ctx, group), len(group), op.source, op.dtype)
        pairs += [made[2 * i : 2 * i + 2] for i in range(len(group))]
    ctx.values[op.result] = _placed(op, pairs)


def _placed(op: Nibbles, pairs: list[Regs]) -> Regs:
    """Numbers by byte, put in the order of the result's registers."""
    source, axis = layout_of(op.x), op.axis
    return [
        pairs[source.register_of[(*coord[:axis], coord[axis] // 2, *coord[axis + 1 :])]][coord[axis] % 2]
        for coord in layout_of(op.result).register_coords
    ]


def lower_join(ctx: Context, op: JoinNibbles) -> None:
    source, names, axis = layout_of(op.x), ctx.regs(op.x), op.axis
    out: Regs = []
    for coord in layout_of(op.result).register_coords:
        low, high = (
            names[source.register_of[(*coord[:axis], 2 * coord[axis] + i, *coord[axis + 1 :])]] for i in (0, 1)
        )
        out.append(low | (high << 4))
    ctx.values[op.result] = out


def _word(ctx: Context, names: Regs) -> V:
    """Up to four bytes as a word: the word that they were loaded in, if there is one."""
    found = [ctx.words.get(name, (None, i)) for i, name in enumerate(names)]
    whole = found[0][0]
    if whole is not None and [(w, i) for w, i in found] == [(whole, i) for i in range(len(names))]:
        return whole
    word = names[0].zext("i32")
    for i, name in enumerate(names[1:], 1):
        word = word | (name.zext("i32") << (8 * i))
    return word


def _eight(ctx: Context, word: V, count: int, source: DType, to: DType) -> Regs:
    """The numbers of the first `count` bytes of a word."""
    if to == dt.int8 and source != dt.float4_e2m1fn:
        return _integers(ctx, word, count, source)
    if to == dt.float32 and source != dt.float4_e2m1fn:
        return _floats(word, count, source)
    upper = word >> 4
    half = dt.bfloat16 if to == dt.bfloat16 else dt.float16
    out: Regs = []
    for byte in range(count):
        # PTX ISA 9.7.7.7 (prmt): bytes of the first word are 0 to 3, of the second 4 to 7
        pair = _permuted(ctx, word, upper, (4 + byte) << 8 | byte)
        out += halves(ctx, _float4(ctx, pair, half) if source == dt.float4_e2m1fn else _pair(ctx, pair, source, half))
    if to == dt.float32:
        return [x.to("fpext", "float") for x in out]
    return [x.to("fptosi", "i8") for x in out] if to == dt.int8 else out


def _permuted(ctx: Context, a: V, b: V, selector: int) -> V:
    return ctx.e.v(f"call i32 @llvm.nvvm.prmt(i32 {a}, i32 {b}, i32 {selector})", "i32")


def _pair(ctx: Context, word: V, source: DType, to: DType) -> V:
    """The low four bits of both halves of a word as 16-bit floats."""
    signed = source == dt.int4
    base = (0x6400 if to == dt.float16 else 0x4300) | (8 if signed else 0)
    lifted = (word & 0x000F000F) ^ (base << 16 | base)
    if to == dt.float16:
        pair = "<2 x half>"
        return ctx.e.v(f"fsub {pair} {lifted.bitcast(pair)}, <half 0xH{base:04X}, half 0xH{base:04X}>", pair)
    return _multiplied(ctx, lifted, 0x3F80, 0x8000 | base)  # sm_80 has no other instruction on pairs


def _multiplied(ctx: Context, word: V, factor: int, plus: int) -> V:
    """A pair of bfloat16 times a constant, plus another constant."""
    pair = "<2 x bfloat>"
    scale, rest = (ctx.e.value(f"<bfloat 0xR{c:04X}, bfloat 0xR{c:04X}>", pair) for c in (factor, plus))
    return ctx.e.call(pair, "llvm.fma.v2bf16", word.bitcast(pair), scale, rest)


def _float4(ctx: Context, word: V, to: DType) -> V:
    """The low four bits of both halves of a word, as float4, as 16-bit floats."""
    shift = 9 if to == dt.float16 else 6
    raised = ((word & 0x00080008) << 12) | ((word & 0x00070007) << shift)
    if to == dt.float16:
        pair = "<2 x half>"
        return ctx.e.v(f"fmul {pair} {raised.bitcast(pair)}, <half 0xH7400, half 0xH7400>", pair)
    return _multiplied(ctx, raised, 0x7E80, 0x8000)  # 2 ** 126, and -0, which changes nothing


def _floats(word: V, count: int, source: DType) -> Regs:
    bias = 8 if source == dt.int4 else 0
    numbers = [((word >> (4 * i)) & 15) ^ (0x4B000000 | bias) for i in range(2 * count)]
    return [n.bitcast("float") - float(2**23 + bias) for n in numbers]


def _integers(ctx: Context, word: V, count: int, source: DType) -> Regs:
    low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
    if source == dt.int4:
        low, high = (((x ^ 0x08080808) | -0x7F7F7F80) - 0x08080808 ^ -0x7F7F7F80 for x in (low, high))
    words = [_permuted(ctx, low, high, 0x5140), _permuted(ctx, low, high, 0x7362)]
    return [x for w in words for x in unpack(ctx, w, dt.int8, 4, 4)][: 2 * count]


RULES: Rules = {
    Nibbles: lower_nibbles,
    JoinNibbles: lower_join,
}
