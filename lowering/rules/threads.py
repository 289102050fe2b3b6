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
from kernel_dsl.storage import bytes_of

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..lowered import GmemScratch, SmemBuffer
from ..value import Regs, V
from ..writer import LETTERS
from .access import pack, together, unpack

_SCRATCH = 256  # bytes
_BITS = {"half": "i16", "bfloat": "i16"}


def lower_optimization_barrier(ctx: Context, op: OptimizationBarrier) -> None:
    for x, result in zip(op.xs, op.results, strict=True):
        dtype: DType = x.type.dtype
        names = ctx.regs(x)
        per = together(dtype, len(names))
        if per > 1:  # elements share a register, and stay so
            ctx.values[result] = _hidden_words(ctx, names, dtype, per)
        elif llvm_type(dtype) == "i8":  # PTX has no such registers, and the barrier would gain nothing
            ctx.values[result] = names
        else:
            ctx.values[result] = [_hidden(ctx, name) for name in names]


def _hidden(ctx: Context, x: V) -> V:
    """A value that the optimiser can't see through, in the same register."""
    return ctx.e.inline("", f"={LETTERS[x.type]},0", [x], [x.type])[0]


def _hidden_words(ctx: Context, names: Regs, dtype: DType, per: int) -> Regs:
    out: Regs = []
    for i in range(0, len(names), per):
        out += unpack(ctx, _hidden(ctx, pack(ctx, names[i : i + per], dtype, 4)), dtype, per, 4)
    return out


def lower_inline_ptx(ctx: Context, op: InlinePtx) -> None:
    outs = [llvm_type(d) for d in op.dtypes]
    columns = [ctx.regs(x) for x in op.xs]
    count = len(columns[0]) if columns else 1
    made: list[Regs] = [[] for _ in outs]
    text = re.sub(r"\s+", " ", op.template)
    for row in range(count):
        args = [_in_register(names[row]) for names in columns]
        types = [_BITS.get(t, t) for t in outs]
        got = ctx.e.ptx(text, *args, results=types, early=len(outs) > 1, memory=not op.pure, pure=op.pure)
        for column, name, t in zip(made, got, outs, strict=True):
            column.append(name.bitcast(t))
    for result, names in zip(op.results, made, strict=True):
        ctx.values[result] = names


def _in_register(x: V) -> V:
    """A value in the form that inline PTX takes: 16-bit floats as integers."""
    return x.bitcast(_BITS.get(x.type, x.type))


def lower_wait(ctx: Context, op: GridDependencyWait) -> None:
    ctx.e.ptx("griddepcontrol.wait;")


def lower_launch(ctx: Context, op: GridDependencyLaunch) -> None:
    ctx.e.ptx("griddepcontrol.launch_dependents;")


def lower_warp_map(ctx: Context, op: WarpMap) -> None:
    ctx.sync()
    # after a shuffle, the assembler knows that all lanes have the same value
    ctx.values[op.body.args[0]] = [ctx.first_lanes(ctx.local_thread().once >> 5)]
    ctx.warp_level = True
    ctx.region(op.body)
    ctx.warp_level = False
    ctx.sync()


def lower_alias(ctx: Context, op: AliasSmem) -> None:
    own = ctx.buffers[op.ref]
    ctx.buffers[op.result] = replace(own, address=own.address.once + op.offset, strides=strides_of(op.type.shape))


def lower_semaphore(ctx: Context, op: AllocSemaphore) -> None:
    size = max(bytes_of(op.type), 4)
    copies = 1 if op.everywhere else prod(a.size for a in (*ctx.ir.grid, *ctx.ir.cluster))
    base = ctx.e.value(f"%ws{len(ctx.workspaces)}", "i64")
    if not op.zeroed:  # scratch: the part of each block is aligned for every access
        size = -(-size // _SCRATCH) * _SCRATCH
    place, total = len(ctx.workspaces), ctx.e.i32(0)
    ctx.workspaces.append(Workspace(size * max(copies, 1), zeroed=op.zeroed))
    if copies > 1:
        for axis in "zyx":
            count, here = ctx.special(f"nctaid.{axis}"), ctx.special(f"ctaid.{axis}")
            total = total.once * count if total != "0" else total
            total = total.once + here
        base = base.once + total.once.zext("i64").once.times(size)
    ctx.buffers[op.result] = SmemBuffer(base, strides_of(op.type.shape))
    if not op.zeroed:
        ctx.scratch[op.result] = GmemScratch(place, max(copies, 1), size, total)


RULES: Rules = {
    OptimizationBarrier: lower_optimization_barrier,
    InlinePtx: lower_inline_ptx,
    GridDependencyWait: lower_wait,
    GridDependencyLaunch: lower_launch,
    WarpMap: lower_warp_map,
    AliasSmem: lower_alias,
    AllocSemaphore: lower_semaphore,
}
