"""Elementwise ops: a template per kind of dtype, a function of lowering/math, or one of the rules below."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.facts import certain
from kernel_dsl.ir import Op, Value, array_type
from kernel_dsl.ops import arith
from kernel_dsl.ops.elementwise import Elementwise

from ..context import Context, Rules
from ..llvm_types import kind_letter, llvm_type, suffix
from ..value import Regs, V


def lower_elementwise(ctx: Context, op: Elementwise) -> None:
    """Apply the op's template register by register."""
    operands = [ctx.regs(v) for v in op.values()]
    if op.math:
        approx = approximate(ctx, getattr(op, "approx", None))
        ctx.values[op.result] = _call_math(ctx, op.math, operands, op.values()[0].type.dtype, approx)
        return
    dtype: DType = op.values()[-1].type.dtype
    form = _compiled(op.llvm[kind_letter(dtype)], llvm_type(dtype))
    put, made = ctx.e.v, llvm_type(op.result.type.dtype)
    ctx.values[op.result] = [put(form % row, made) for row in zip(*operands, strict=True)]


@cache
def _compiled(template: str, type: str) -> str:
    """An op's template for the fast `%` formatting, with each operand once and in order."""
    text = template.replace("{t}", type).replace("{s}", suffix(type))
    places = re.findall(r"\{(\d)\}", text)
    assert places == [str(i) for i in range(len(places))], template
    return re.sub(r"\{\d\}", "%s", text.replace("%", "%%"))


def approximate(ctx: Context, asked: bool | None) -> bool:
    """Whether an op may be approximate: the call's own choice overrides the kernel's switch."""
    return ctx.ir.approx_math if asked is None else asked


def _call_math(ctx: Context, name: str, operands: list[Regs], dtype: DType, approx: bool) -> Regs:
    from ..math import APPROX, FUNCTIONS

    t = llvm_type(dtype)
    key = f"{name}.{suffix(t)}"
    rough = approx and key in APPROX
    function = APPROX[key] if rough else FUNCTIONS[key]
    ctx.math[f"approx.{key}" if rough else key] = None
    types = function.parameters
    call = f"call {t} @{function.symbol}({', '.join([f'{p} %s' for p in types])})"
    return [ctx.e.v(call % row, t) for row in zip(*operands, strict=True)]


# --- integer operations that must not trap or be undefined ----------------------------------------


def _divide(x: V, y: V, signed: bool, word: str, positive: bool = False) -> V:
    """Quotient or remainder; 0 for a zero divisor; the most negative number over -1 wraps. `positive`: y is more than 0."""
    opcode = f"{'s' if signed else 'u'}{word}"
    if positive or y.constant not in (None, 0, -1):
        return x.written(opcode, y)
    zero = y.equal(0)
    safe = zero.where(1, y)
    if not signed:
        return zero.where(0, x.written(opcode, safe))
    minus = y.equal(-1)
    result = x.written(opcode, minus.where(1, safe))
    negated = -x if word == "div" else 0
    return zero.where(0, minus.where(negated, result))


def _truncated(ctx: Context, op: Op, word: str) -> None:
    x, y = op.values()
    dtype: DType = x.type.dtype
    pairs = list(zip(ctx.regs(x), ctx.regs(y), strict=True))
    if dtype.is_float:
        ctx.values[op.results[0]] = [a / b for a, b in pairs]
        return
    above, divisor = certain(x.facts, dtype), certain(y.facts, dtype)
    positive = divisor is not None and divisor.lo > 0 and divisor.constant is None  # LLVM knows what constants save
    signed = dtype.is_signed and not (positive and above is not None and above.lo >= 0)
    ctx.values[op.results[0]] = [_divide(a, b, signed, word, positive) for a, b in pairs]


def lower_div(ctx: Context, op: arith.Div) -> None:
    if approximate(ctx, op.approx) and op.x.type.dtype == dt.float32:
        ctx.values[op.result] = _call_math(ctx, "div", [ctx.regs(op.x), ctx.regs(op.y)], dt.float32, True)
        return
    _truncated(ctx, op, "div")


def lower_mulhi(ctx: Context, op: arith.MulHi) -> None:
    """A product in twice the width, whose upper half LLVM recognises."""
    dtype: DType = op.x.type.dtype
    t, wide = llvm_type(dtype), f"i{dtype.bits * 2}"
    extend = "sext" if dtype.is_signed else "zext"
    pairs = zip(ctx.regs(op.x), ctx.regs(op.y), strict=True)
    ctx.values[op.result] = [((a.to(extend, wide) * b.to(extend, wide)) >> dtype.bits).trunc(t) for a, b in pairs]


def lower_rem(ctx: Context, op: arith.Rem) -> None:
    _truncated(ctx, op, "rem")


def _floored(ctx: Context, op: Op, word: str) -> None:
    x, y = op.values()
    signed: bool = x.type.dtype.is_signed
    out: Regs = []
    for a, b in zip(ctx.regs(x), ctx.regs(y), strict=True):
        if not signed:
            out.append(_divide(a, b, signed, word))
            continue
        remainder = _divide(a, b, signed, "rem")
        # if the remainder's sign is not the divisor's, one divisor too many was subtracted
        fix = remainder.differs(0) & (remainder ^ b).lt(0)
        if word == "rem":
            out.append(fix.where(remainder + b, remainder))
        else:
            quotient = _divide(a, b, signed, "div")
            out.append(fix.where(quotient - 1, quotient))
    ctx.values[op.results[0]] = out


def lower_floor_div(ctx: Context, op: arith.FloorDiv) -> None:
    _floored(ctx, op, "div")


def lower_floor_mod(ctx: Context, op: arith.FloorMod) -> None:
    _floored(ctx, op, "rem")


def _shift(ctx: Context, op: Op, left: bool) -> None:
    x, y = op.values()
    dtype: DType = x.type.dtype
    word = "shl" if left else ("ashr" if dtype.is_signed else "lshr")
    wide = word != "ashr" and _may_pass_32_bits(y)
    out: Regs = []
    for a, b in zip(ctx.regs(x), ctx.regs(y), strict=True):
        if wide and b.constant is None:
            out.append(_clamped_shift(ctx, a, b, left))
            continue
        small = b.below(dtype.bits)
        shifted = a.written(word, small.where(b, dtype.bits - 1))
        # an arithmetic shift by width - 1 already gives the sign
        out.append(shifted if word == "ashr" else small.where(shifted, 0))
    ctx.values[op.results[0]] = out


def _may_pass_32_bits(amount: Value) -> bool:
    """Whether a shift's amount, as an unsigned integer, can be 2**32 or more."""
    if array_type(amount).dtype.bits < 64:
        return False
    known = certain(amount.facts, array_type(amount).dtype)
    return known is None or known.lo < 0 or known.hi >= 1 << 32


def _clamped_shift(ctx: Context, x: V, amount: V, left: bool) -> V:
    """A 64-bit shift that shifts zeros in, by an amount of 64 bits.

    PTX `shl.b64`, `shr.u64`. Their amount has 32 bits, and the hardware clamps it (PTX ISA 9.7.8.8, 9.7.8.9). LLVM
    assumes a clamp of the whole amount, and removes a guard around its own shift, which ignores the upper half. So the
    shift is inline PTX.
    """
    short = ctx.e.call("i64", "llvm.umin.i64", amount, ctx.e.i64(64)).trunc("i32")
    text = "shl.b64 $0, $1, $2;" if left else "shr.u64 $0, $1, $2;"
    return ctx.e.ptx(text, x, short, results=["i64"], pure=True)[0]


def lower_shift_left(ctx: Context, op: arith.ShiftLeft) -> None:
    _shift(ctx, op, left=True)


def lower_shift_right(ctx: Context, op: arith.ShiftRight) -> None:
    _shift(ctx, op, left=False)


# --- shapes --------------------------------------------------------------------------------------


RULES: Rules = {
    arith.Div: lower_div,
    arith.MulHi: lower_mulhi,
    arith.Rem: lower_rem,
    arith.FloorDiv: lower_floor_div,
    arith.FloorMod: lower_floor_mod,
    arith.ShiftLeft: lower_shift_left,
    arith.ShiftRight: lower_shift_right,
}


def leaf_rule(op: type[Op]) -> Callable[[Context, Elementwise], None] | None:
    """The one rule of every op whose lowering is data."""
    if issubclass(op, Elementwise) and (op.llvm or op.math):
        return lower_elementwise
    return None
