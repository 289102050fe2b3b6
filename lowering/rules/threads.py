"""Warps on their own, PTX by hand, overlapping grids, buffers inside buffers, and hidden counters in GMEM."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from kernel_dsl.compiled import Workspace
from kernel_dsl.dtypes import DType
from kernel_dsl.ops.semaphore import AllocSemaphore
from kernel_dsl.ops.threads import (
    AliasSmem,
    GridDependencyLaunch,
    GridDependencyWait,
    InlinePtx,
    OptimizationBarrier,
    WarpMap,
)
from kernel_dsl.refs import strides_of
from kernel_dsl.transforms import bytes_of

from ..context import Buffer, Context, Rules
from ..emit import Regs, llvm_type
from .access import pack, unpack

_LETTERS = {
    "i1": "b",
    "i16": "h",
    "half": "h",
    "bfloat": "h",
    "i32": "r",
    "float": "f",
    "i64": "l",
    "double": "d",
}
_BITS = {"half": "i16", "bfloat": "i16"}


def lower_optimization_barrier(ctx: Context, op: OptimizationBarrier) -> None:
    for x, result in zip(op.xs, op.results, strict=True):
        dtype: DType = x.type.dtype
        names = ctx.regs(x)
        if dtype.bits == 16 and len(names) % 2 == 0:  # two to a register, and they stay so
            ctx.values[result] = _hidden_pairs(ctx, names, dtype)
            continue
        t = llvm_type(dtype)
        if t == "i8":  # an 8-bit value has no register class of its own, and nothing to gain
            ctx.values[result] = names
            continue
        ctx.values[result] = [ctx.e.asm("", f"={_letter(t)},0", [(t, name)], [t])[0] for name in names]


def _hidden_pairs(ctx: Context, names: Regs, dtype: DType) -> Regs:
    out: Regs = []
    for i in range(0, len(names), 2):
        (word,) = ctx.e.asm("", "=r,0", [("i32", pack(ctx, names[i : i + 2], dtype, 4))], ["i32"])
        out += unpack(ctx, word, dtype, 2, 4)
    return out


def _letter(t: str) -> str:
    return _LETTERS[t]


def lower_inline_ptx(ctx: Context, op: InlinePtx) -> None:
    outs = [llvm_type(d) for d in op.dtypes]
    columns = [ctx.regs(x) for x in op.xs]
    count = len(columns[0]) if columns else 1
    made: list[list[str]] = [[] for _ in outs]
    letters = ["=" + ("&" if len(outs) > 1 else "") + _letter(t) for t in outs]
    for row in range(count):
        args: list[tuple[str, str]] = []
        constraints = list(letters)
        for x, names in zip(op.xs, columns, strict=True):
            dtype: DType = x.type.dtype
            t, name = llvm_type(dtype), names[row]
            if t in _BITS:
                name, t = ctx.e.v(f"bitcast {t} {name} to {_BITS[t]}"), _BITS[t]
            args.append((t, name))
            constraints.append(_letter(t))
        if not op.pure:
            constraints.append("~{memory}")
        types = [_BITS.get(t, t) for t in outs]
        text = re.sub(r"\s+", " ", op.template)
        got = ctx.e.asm(text, ",".join(constraints), args, types, sideeffect=not op.pure)
        for column, name, t in zip(made, got, outs, strict=True):
            column.append(ctx.e.v(f"bitcast {_BITS[t]} {name} to {t}") if t in _BITS else name)
    for result, names in zip(op.results, made, strict=True):
        ctx.values[result] = names


def lower_wait(ctx: Context, op: GridDependencyWait) -> None:
    ctx.e.asm("griddepcontrol.wait;", "~{memory}")


def lower_launch(ctx: Context, op: GridDependencyLaunch) -> None:
    ctx.e.asm("griddepcontrol.launch_dependents;", "~{memory}")


def lower_warp_map(ctx: Context, op: WarpMap) -> None:
    ctx.sync()
    warp = ctx.e.pre(f"lshr i32 {ctx.local_thread()}, 5")
    # through a shuffle, the assembler knows it to be the same in all lanes
    index = ctx.e.pre(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {warp}, i32 0, i32 31) #0")
    ctx.values[op.body.args[0]] = [index]
    ctx.warp_level = True
    ctx.region(op.body)
    ctx.warp_level = False
    ctx.sync()


def lower_alias(ctx: Context, op: AliasSmem) -> None:
    own = ctx.buffers[op.ref]
    address = ctx.e.pre(f"add i32 {own.address}, {op.offset}") if op.offset else own.address
    ctx.buffers[op.result] = replace(own, address=address, strides=strides_of(op.type.shape))


def lower_semaphore(ctx: Context, op: AllocSemaphore) -> None:
    e = ctx.e
    size = max(bytes_of(op.type), 4)
    copies = 1 if op.everywhere else prod(a.size for a in (*ctx.ir.grid, *ctx.ir.cluster))
    base = f"%ws{len(ctx.workspaces)}"
    ctx.workspaces.append(Workspace(size * max(copies, 1), zeroed=True))
    if copies > 1:
        total = "0"
        for axis in "zyx":
            count = e.pre(f"call i32 @llvm.nvvm.read.ptx.sreg.nctaid.{axis}()")
            here = e.pre(f"call i32 @llvm.nvvm.read.ptx.sreg.ctaid.{axis}()")
            scaled = e.pre(f"mul i32 {total}, {count}") if total != "0" else "0"
            total = here if scaled == "0" else e.pre(f"add i32 {scaled}, {here}")
        offset = e.pre(f"mul i64 {e.pre(f'zext i32 {total} to i64')}, {size}")
        base = e.pre(f"add i64 {base}, {offset}")
    ctx.buffers[op.result] = Buffer(base, strides_of(op.type.shape))


RULES: Rules = {
    OptimizationBarrier: lower_optimization_barrier,
    InlinePtx: lower_inline_ptx,
    GridDependencyWait: lower_wait,
    GridDependencyLaunch: lower_launch,
    WarpMap: lower_warp_map,
    AliasSmem: lower_alias,
    AllocSemaphore: lower_semaphore,
}
