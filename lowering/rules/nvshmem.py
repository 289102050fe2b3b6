"""Calls of NVSHMEM's device functions, which the device links."""

from __future__ import annotations

from kernel_dsl.ops.nvshmem import FUNCTIONS, MORE, NvshmemAsk, NvshmemCall

from ..context import Context, Rules


def _text(ctx: Context, op: NvshmemCall | NvshmemAsk) -> tuple[str, str]:
    """The call, whose function is declared, and the type of its result."""
    types, result = (FUNCTIONS | MORE)[op.function]
    ctx.declarations.add(f"declare {result} @{op.function}({', '.join(types)})")
    arguments: list[str] = []
    for value, type in zip(op.args, types, strict=True):
        x = ctx.scalar(value)
        arguments.append(f"{type} {x.to('inttoptr', 'ptr') if type == 'ptr' else x}")
    return f"call {result} @{op.function}({', '.join(arguments)})", result


def lower_call(ctx: Context, op: NvshmemCall) -> None:
    e = ctx.e
    text, result = _text(ctx, op)
    yes, end = e.label(), e.label()
    e.branch(ctx.first_lane(), yes, end)
    e.begin(yes)
    if result == "void":
        e.do(text)
    else:
        e.v(text, result)
    e.jump(end)
    e.begin(end)


def lower_ask(ctx: Context, op: NvshmemAsk) -> None:
    ctx.values[op.result] = [ctx.e.v(*_text(ctx, op))]


RULES: Rules = {NvshmemCall: lower_call, NvshmemAsk: lower_ask}
