"""Branches and loops."""

from __future__ import annotations

from kernel_dsl.ir import Region, Value, layout_of
from kernel_dsl.ops.control import For, If, Switch, While

from ..context import Context, Rules
from ..emit import Regs, llvm_type
from .access import pack, unpack


def _paired(value: Value) -> bool:
    """Whether a value crosses blocks two elements to a register, as 16-bit values are held and moved."""
    return value.type.dtype.bits == 16 and layout_of(value).registers % 2 == 0


def _flat(ctx: Context, values: list[Value]) -> Regs:
    """The registers of values as they cross from block to block."""
    out: Regs = []
    for v in values:
        names = ctx.regs(v)
        if _paired(v):
            names = [pack(ctx, names[i : i + 2], v.type.dtype, 4) for i in range(0, len(names), 2)]
        out += names
    return out


def _types(values: list[Value] | tuple[Value, ...]) -> list[str]:
    out: list[str] = []
    for v in values:
        count = layout_of(v).registers
        out += ["i32"] * (count // 2) if _paired(v) else [llvm_type(v.type.dtype)] * count
    return out


def _bind(ctx: Context, values: tuple[Value, ...], names: Regs) -> None:
    start = 0
    for v in values:
        count = layout_of(v).registers
        if _paired(v):
            words = names[start : start + count // 2]
            ctx.values[v] = [n for w in words for n in unpack(ctx, w, v.type.dtype, 2, 4)]
            start += count // 2
        else:
            ctx.values[v] = names[start : start + count]
            start += count


def _branches(ctx: Context, results: tuple[Value, ...], arms: list[tuple[str, Region]]) -> None:
    """Lower regions as blocks that join, with a phi for each register of the results."""
    e = ctx.e
    end = e.label()
    ends: list[tuple[Regs, str]] = []
    state = (ctx.last_half, ctx.fresh_exchange)
    same = True
    for label, region in arms:
        e.begin(label)
        ctx.last_half, ctx.fresh_exchange = state
        names = _flat(ctx, ctx.region(region))
        same = same and (ctx.last_half, ctx.fresh_exchange) == state
        ends.append((names, e.block))
        e.jump(end)
    e.begin(end)
    if same:
        ctx.last_half, ctx.fresh_exchange = state
    else:
        ctx.forget_exchange()
    types = _types(results)
    names = [e.phi(t, [(arm[i], block) for arm, block in ends]) for i, t in enumerate(types)]
    _bind(ctx, results, names)


def lower_if(ctx: Context, op: If) -> None:
    yes, no = ctx.e.label(), ctx.e.label()
    ctx.e.branch(ctx.scalar(op.predicate), yes, no)
    _branches(ctx, op.results, [(yes, op.then), (no, op.otherwise)])


def lower_switch(ctx: Context, op: Switch) -> None:
    e = ctx.e
    dtype = op.index.type.dtype
    t = llvm_type(dtype)
    last = len(op.branches) - 1
    index = ctx.scalar(op.index)
    if dtype.is_signed:
        index = e.v(f"call {t} @llvm.smax.{t}({t} {index}, {t} 0)")
        index = e.v(f"call {t} @llvm.smin.{t}({t} {index}, {t} {last})")
    else:
        index = e.v(f"call {t} @llvm.umin.{t}({t} {index}, {t} {last})")
    labels = [e.label() for _ in op.branches]
    cases = " ".join(f"{t} {i}, label %{label}" for i, label in enumerate(labels[:-1]))
    e.do(f"switch {t} {index}, label %{labels[-1]} [ {cases} ]")
    _branches(ctx, op.results, list(zip(labels, op.branches, strict=True)))


def _header(ctx: Context, types: list[str], names: Regs) -> tuple[str, Regs, list[int]]:
    """A loop header with a phi a register; the back edge is patched in by `_close`."""
    e = ctx.e
    before, header = e.block, e.label()
    e.jump(header)
    e.begin(header)
    phis: Regs = []
    places: list[int] = []
    for t, name in zip(types, names, strict=True):
        phis.append(e.phi(t, [(name, before)]))
        places.append(len(e.lines) - 1)
    return header, phis, places


def _close(ctx: Context, header: str, places: list[int], names: Regs, unroll: int = 1) -> None:
    e = ctx.e
    for place, name in zip(places, names, strict=True):
        text, comma, debug = e.lines[place].partition(", !dbg")
        e.lines[place] = f"{text}, [ {name}, %{e.block} ]{comma}{debug}"
    e.jump(header)


def lower_for(ctx: Context, op: For) -> None:
    e = ctx.e
    dtype = op.lo.type.dtype
    t = llvm_type(dtype)
    index, *args = op.body.args
    types = _types(args)
    start = ctx.scalar(op.lo)
    inits = [start, *_flat(ctx, list(op.inits))]
    ctx.forget_exchange_in_loop()
    header, phis, places = _header(ctx, [t, *types], inits)
    word = "slt" if op.step > 0 else "sgt"
    go = e.v(f"icmp {word} {t} {phis[0]}, {ctx.scalar(op.hi)}")
    body, end = e.label(), e.label()
    e.branch(go, body, end)
    e.begin(body)
    ctx.values[index] = [phis[0]]
    _bind(ctx, tuple(args), phis[1:])
    results = _flat(ctx, ctx.region(op.body))
    following = e.v(f"add {t} {phis[0]}, {op.step}")
    _close(ctx, header, places, [following, *results], op.unroll)
    e.begin(end)
    ctx.forget_exchange_in_loop()
    _bind(ctx, op.results, phis[1:])


def lower_while(ctx: Context, op: While) -> None:
    e = ctx.e
    types = _types(op.inits)
    ctx.forget_exchange_in_loop()
    header, phis, places = _header(ctx, types, _flat(ctx, list(op.inits)))
    _bind(ctx, op.before.args, phis)
    (test,) = ctx.region(op.before)
    body, end = e.label(), e.label()
    e.branch(ctx.scalar(test), body, end)
    e.begin(body)
    _bind(ctx, op.body.args, phis)
    results = _flat(ctx, ctx.region(op.body))
    _close(ctx, header, places, results)
    e.begin(end)
    ctx.forget_exchange_in_loop()
    _bind(ctx, op.results, phis)


RULES: Rules = {If: lower_if, Switch: lower_switch, For: lower_for, While: lower_while}
