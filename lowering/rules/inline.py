"""Inline PTX on registers, and addresses of views."""

from __future__ import annotations

import re

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import array_type, layout_of
from kernel_dsl.layout import SCALAR
from kernel_dsl.ops.inline import InlineRegisters, RefAddress, numbered, words

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..value import Regs, V
from .access import AccessPlace, pack, unpack

_BITS = {"half": "i16", "bfloat": "i16"}
_WORD = 4  # bytes


def lower_address(ctx: Context, op: RefAddress) -> None:
    place = AccessPlace(ctx, op.ref.type, ctx.buffers[op.ref], op.view, SCALAR, op.offsets)
    base, constant = place.address(())
    ctx.values[op.result] = [base + constant]


def lower_registers(ctx: Context, op: InlineRegisters) -> None:
    args = [_packed(ctx, ctx.regs(x), array_type(x).dtype) for x in op.xs]
    counts = [words(d, layout_of(r).registers) for d, r in zip(op.dtypes, op.results, strict=True)]
    types = ["i32" if d.bits < 32 and not d.is_bool else llvm_type(d) for d in op.dtypes]
    text = numbered(re.sub(r"\s+", " ", op.template), [*counts, *map(len, args)])
    flat = [t for t, n in zip(types, counts, strict=True) for _ in range(n)]
    got = ctx.e.ptx(
        text, *(a for some in args for a in some), results=flat, early=bool(args), memory=not op.pure, pure=op.pure
    )
    start = 0
    for result, dtype, count in zip(op.results, op.dtypes, counts, strict=True):
        own, start = got[start : start + count], start + count
        ctx.values[result] = _unpacked(ctx, own, dtype, layout_of(result).registers)


def _packed(ctx: Context, names: Regs, dtype: DType) -> Regs:
    """The registers of PTX that hold a lane's elements."""
    if dtype.bits >= 32 or dtype.is_bool:
        return names
    per = _WORD // dtype.itemsize
    zero = ctx.e.literal(0, dtype)
    padded = [*names, *[zero] * (-len(names) % per)]
    return [pack(ctx, padded[i : i + per], dtype, _WORD) for i in range(0, len(padded), per)]


def _unpacked(ctx: Context, names: list[V], dtype: DType, count: int) -> Regs:
    if dtype.bits >= 32 or dtype.is_bool:
        return names
    per = _WORD // dtype.itemsize
    return [x for name in names for x in unpack(ctx, name, dtype, per, _WORD)][:count]


RULES: Rules = {RefAddress: lower_address, InlineRegisters: lower_registers}
