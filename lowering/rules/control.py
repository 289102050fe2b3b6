"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.ir import Region, Value, layout_of
from kernel_dsl.ops.control import For, If, Switch, While

from ..context import Context, Rules
from ..value import Regs
from ..writer import Loop
from .access import pack, together, unpack


def _together(value: Value) -> int:
    """How many elements of a value cross blocks in one register: two of 16 bits, four of 8 bits."""
    return together(value.type.dtype, layout_of(value).registers)


def _flat(ctx: Context, values: Sequence[Value]) -> Regs:
    """The registers of values in the form in which they cross from block to block."""
    out: Regs = []
    for v in values:
        names = ctx.regs(v)
        per = _together(v)
        if per > 1:
            names = [pack(ctx, names[i : i + per], v.type.dtype, 4) for i in range(0, len(names), per)]
        out += names
    return out


def _bind(ctx: Context, values: tuple[Value, ...], names: Regs) -> None:
    start = 0
    for v in values:
        count = layout_of(v).registers
        per = _together(v)
        if per > 1:
            words = names[start : start + count // per]
            ctx.values[v] = [n for w in words for n in unpack(ctx, w, v.type.dtype, per, 4)]
            start += count // per
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
    names = [e.phi(v.type, [(arm[i], block) for arm, block in ends]) for i, v in enumerate(ends[0][0])]
    _bind(ctx, results, names)


def lower_if(ctx: Context, op: If) -> None:
    yes, no = ctx.e.label(), ctx.e.label()
    ctx.e.branch(ctx.scalar(op.predicate), yes, no)
    _branches(ctx, op.results, [(yes, op.then), (no, op.otherwise)])


def lower_switch(ctx: Context, op: Switch) -> None:
    e = ctx.e
    last = len(op.branches) - 1
    index = ctx.scalar(op.index)
    t = index.type
    if op.index.type.dtype.is_signed:
        index = index.clamp(0, last)
    else:
        index = e.call(t, f"llvm.umin.{t}", index, e.value(last, t))
    labels = [e.label() for _ in op.branches]
    cases = " ".join(f"{t} {i}, label %{label}" for i, label in enumerate(labels[:-1]))
    e.do(f"switch {t} {index}, label %{labels[-1]} [ {cases} ]")
    _branches(ctx, op.results, list(zip(labels, op.branches, strict=True)))


def lower_for(ctx: Context, op: For) -> None:
    e = ctx.e
    index, *args = op.body.args
    inits = [ctx.scalar(op.lo), *_flat(ctx, op.inits)]
    ctx.forget_exchange()
    loop = Loop(e, inits)
    counter, *carried = loop.carried
    go = (counter.lt if op.step > 0 else counter.gt)(ctx.scalar(op.hi))
    body, end = e.label(), e.label()
    e.branch(go, body, end)
    e.begin(body)
    ctx.values[index] = [counter]
    _bind(ctx, tuple(args), carried)
    results = _flat(ctx, ctx.region(op.body))
    loop.close([counter + op.step, *results], rolled=not op.unroll)
    e.begin(end)
    ctx.forget_exchange()
    _bind(ctx, op.results, carried)


def lower_while(ctx: Context, op: While) -> None:
    e = ctx.e
    ctx.forget_exchange()
    loop = Loop(e, _flat(ctx, op.inits))
    _bind(ctx, op.before.args, loop.carried)
    (test,) = ctx.region(op.before)
    body, end = e.label(), e.label()
    e.branch(ctx.scalar(test), body, end)
    e.begin(body)
    _bind(ctx, op.body.args, loop.carried)
    loop.close(_flat(ctx, ctx.region(op.body)))
    e.begin(end)
    ctx.forget_exchange()
    _bind(ctx, op.results, loop.carried)


RULES: Rules = {If: lower_if, Switch: lower_switch, For: lower_for, While: lower_while}
