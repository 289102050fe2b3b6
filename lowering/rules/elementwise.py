"""Elementwise ops: a template per kind of dtype, a function of lowering/math, or one of the rules below."""

from __future__ import annotations

from collections.abc import Callable

from kernel_dsl import dtypes as dt
from kernel_dsl.conversion import cheaper, plan_in_warps
from kernel_dsl.dtypes import DType
from kernel_dsl.facts import certain
from kernel_dsl.ir import Op, Value, array_type, layout_of
from kernel_dsl.ops import arith
from kernel_dsl.ops.elementwise import Broadcast, Constant, ConvertLayout, Elementwise, Expand

from ..context import Context, Rules
from ..emit import Regs, kind_letter, literal, llvm_type, suffix
from .convert import convert_in_warps
from .exchange import through_smem


def lower_elementwise(ctx: Context, op: Elementwise) -> None:
    """Apply the op's template register by register."""
    operands = [ctx.regs(v) for v in op.values()]
    if op.math:
        ctx.values[op.result] = _call_math(ctx, op.math, operands, op.values()[0].type.dtype)
        return
    dtype: DType = op.values()[-1].type.dtype
    template = op.llvm[kind_letter(dtype)]
    form = template.replace("{t}", llvm_type(dtype)).replace("{s}", suffix(dtype)).format
    append = ctx.e.v
    ctx.values[op.result] = [append(form(*row)) for row in zip(*operands, strict=True)]


def _call_math(ctx: Context, name: str, operands: list[Regs], dtype: DType) -> Regs:
    from ..math import APPROX, FUNCTIONS

    key = f"{name}.{suffix(dtype)}"
    if ctx.ir.approx_math and key in APPROX:
        key = f"approx.{key}"
        function = APPROX[key.removeprefix("approx.")]
    else:
        function = FUNCTIONS[key]
    ctx.math[key] = None
    t, types = llvm_type(dtype), function.parameters
    calls = [", ".join(f"{p} {x}" for p, x in zip(types, row, strict=True)) for row in zip(*operands, strict=True)]
    return [ctx.e.v(f"call {t} @{function.symbol}({arguments})") for arguments in calls]


# --- integer operations that must not trap or be undefined ----------------------------------------


def _constant_of(name: str) -> int | None:
    return int(name) if name.lstrip("-").isdigit() else None


def _divide(ctx: Context, x: str, y: str, dtype: DType, word: str) -> str:
    """Quotient or remainder; 0 for a zero divisor; the most negative number over -1 wraps."""
    e, t = ctx.e, llvm_type(dtype)
    sign = "s" if dtype.is_signed else "u"
    known = _constant_of(y)
    if known is not None and known not in (0, -1):
        return e.v(f"{sign}{word} {t} {x}, {y}")
    zero = e.v(f"icmp eq {t} {y}, 0")
    safe = e.v(f"select i1 {zero}, {t} 1, {t} {y}")
    if dtype.is_signed:
        minus = e.v(f"icmp eq {t} {y}, -1")
        safe = e.v(f"select i1 {minus}, {t} 1, {t} {safe}")
        result = e.v(f"{sign}{word} {t} {x}, {safe}")
        negated = e.v(f"sub {t} 0, {x}") if word == "div" else "0"
        result = e.v(f"select i1 {minus}, {t} {negated}, {t} {result}")
    else:
        result = e.v(f"{sign}{word} {t} {x}, {safe}")
    return e.v(f"select i1 {zero}, {t} 0, {t} {result}")


def _truncated(ctx: Context, op: Op, word: str) -> None:
    x, y = op.values()
    dtype: DType = x.type.dtype
    if dtype.is_float:
        ctx.values[op.results[0]] = [
            ctx.e.v(f"fdiv {llvm_type(dtype)} {a}, {b}") for a, b in zip(ctx.regs(x), ctx.regs(y), strict=True)
        ]
        return
    pairs = zip(ctx.regs(x), ctx.regs(y), strict=True)
    ctx.values[op.results[0]] = [_divide(ctx, a, b, dtype, word) for a, b in pairs]


def lower_div(ctx: Context, op: arith.Div) -> None:
    if ctx.ir.approx_math and op.x.type.dtype == dt.float32:
        ctx.values[op.result] = _call_math(ctx, "div", [ctx.regs(op.x), ctx.regs(op.y)], dt.float32)
        return
    _truncated(ctx, op, "div")


def lower_rem(ctx: Context, op: arith.Rem) -> None:
    _truncated(ctx, op, "rem")


def _floored(ctx: Context, op: Op, word: str) -> None:
    e = ctx.e
    x, y = op.values()
    dtype: DType = x.type.dtype
    t = llvm_type(dtype)
    out: Regs = []
    for a, b in zip(ctx.regs(x), ctx.regs(y), strict=True):
        if not dtype.is_signed:
            out.append(_divide(ctx, a, b, dtype, word))
            continue
        remainder = _divide(ctx, a, b, dtype, "rem")
        # the remainder's sign must be the divisor's: where it is not, one divisor too much was taken
        nonzero = e.v(f"icmp ne {t} {remainder}, 0")
        signs = e.v(f"icmp slt {t} {e.v(f'xor {t} {remainder}, {b}')}, 0")
        fix = e.v(f"and i1 {nonzero}, {signs}")
        if word == "rem":
            out.append(e.v(f"select i1 {fix}, {t} {e.v(f'add {t} {remainder}, {b}')}, {t} {remainder}"))
        else:
            quotient = _divide(ctx, a, b, dtype, "div")
            out.append(e.v(f"select i1 {fix}, {t} {e.v(f'sub {t} {quotient}, 1')}, {t} {quotient}"))
    ctx.values[op.results[0]] = out


def lower_floor_div(ctx: Context, op: arith.FloorDiv) -> None:
    _floored(ctx, op, "div")


def lower_floor_mod(ctx: Context, op: arith.FloorMod) -> None:
    _floored(ctx, op, "rem")


def _shift(ctx: Context, op: Op, left: bool) -> None:
    e = ctx.e
    x, y = op.values()
    dtype: DType = x.type.dtype
    t, bits = llvm_type(dtype), dtype.bits
    word = "shl" if left else ("ashr" if dtype.is_signed else "lshr")
    wide = word != "ashr" and _may_pass_32_bits(y)
    out: Regs = []
    for a, b in zip(ctx.regs(x), ctx.regs(y), strict=True):
        if wide and _constant_of(b) is None:
            out.append(_clamped_shift(ctx, a, b, left))
            continue
        small = e.v(f"icmp ult {t} {b}, {bits}")
        amount = e.v(f"select i1 {small}, {t} {b}, {t} {bits - 1}")
        shifted = e.v(f"{word} {t} {a}, {amount}")
        if word == "ashr":  # by width - 1 already gives the sign
            out.append(shifted)
        else:
            out.append(e.v(f"select i1 {small}, {t} {shifted}, {t} 0"))
    ctx.values[op.results[0]] = out


def _may_pass_32_bits(amount: Value) -> bool:
    """Whether a shift's amount can be 2**32 or more, seen as unsigned."""
    if array_type(amount).dtype.bits < 64:
        return False
    known = certain(amount.facts, array_type(amount).dtype)
    return known is None or known.lo < 0 or known.hi >= 1 << 32


def _clamped_shift(ctx: Context, x: str, amount: str, left: bool) -> str:
    """A 64-bit shift, zeros coming in, by an amount of 64 bits. PTX `shl.b64`, `shr.u64`.

    Their amount has 32 bits, and the hardware clamps it (PTX ISA 9.7.8.8, 9.7.8.9). LLVM takes that clamp for one of
    the whole amount: it drops a guard around its own shift, and with it the upper half. So the shift is PTX.
    """
    e = ctx.e
    short = e.v(f"trunc i64 {e.v(f'call i64 @llvm.umin.i64(i64 {amount}, i64 64)')} to i32")
    text = "shl.b64 $0, $1, $2;" if left else "shr.u64 $0, $1, $2;"
    (result,) = e.asm(text, "=l,l,r", [("i64", x), ("i32", short)], ["i64"], sideeffect=False)
    return result


def lower_shift_left(ctx: Context, op: arith.ShiftLeft) -> None:
    _shift(ctx, op, left=True)


def lower_shift_right(ctx: Context, op: arith.ShiftRight) -> None:
    _shift(ctx, op, left=False)


# --- constants and shapes ------------------------------------------------------------------------


def lower_constant(ctx: Context, op: Constant) -> None:
    ctx.values[op.result] = [literal(op.value, op.dtype)]


def lower_broadcast(ctx: Context, op: Broadcast) -> None:
    source = ctx.regs(op.x)
    layout = layout_of(op.result)
    old = layout_of(op.x)
    if old.rank == 0:
        ctx.values[op.result] = source * layout.registers
        return
    stretched = [a != b for a, b in zip(op.x.type.shape, op.shape, strict=True)]
    ctx.values[op.result] = [
        source[old.register_of[tuple(0 if s else c for s, c in zip(stretched, coord, strict=True))]]
        for coord in layout.register_coords
    ]


def lower_expand(ctx: Context, op: Expand) -> None:
    ctx.values[op.result] = ctx.regs(op.x)


def lower_convert_layout(ctx: Context, op: ConvertLayout) -> None:
    """Within warps where that is possible and cheaper, else through SMEM."""
    shape: tuple[int, ...] = op.x.type.shape
    regs, dtype = ctx.regs(op.x), op.x.type.dtype
    old, new = layout_of(op.x), layout_of(op.result)
    plan = plan_in_warps(old, new, shape)
    if plan is not None and cheaper(plan, old, new, dtype):
        ctx.values[op.result] = convert_in_warps(ctx, regs, dtype, shape, plan)
    else:
        ctx.values[op.result] = through_smem(ctx, regs, dtype, shape, old, new)


RULES: Rules = {
    arith.Div: lower_div,
    arith.Rem: lower_rem,
    arith.FloorDiv: lower_floor_div,
    arith.FloorMod: lower_floor_mod,
    arith.ShiftLeft: lower_shift_left,
    arith.ShiftRight: lower_shift_right,
    Constant: lower_constant,
    Broadcast: lower_broadcast,
    Expand: lower_expand,
    ConvertLayout: lower_convert_layout,
}


def leaf_rule(op: type[Op]) -> Callable[[Context, Elementwise], None] | None:
    """The one rule of every op whose lowering is data."""
    if issubclass(op, Elementwise) and (op.llvm or op.math):
        return lower_elementwise
    return None
