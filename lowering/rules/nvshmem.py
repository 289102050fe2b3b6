"""Calls of NVSHMEM's device functions, which the device links."""

from __future__ import annotations

from kernel_dsl.ops.nvshmem import FUNCTIONS, NvshmemCall

from ..context import Context, Rules


def lower_call(ctx: Context, op: NvshmemCall) -> None:
    e = ctx.e
    types, result = FUNCTIONS[op.function]
    ctx.declarations.add(f"declare {result} @{op.function}({', '.join(types)})")
    yes, end = e.label(), e.label()
    arguments: list[str] = []
    for value, type in zip(op.args, types, strict=True):
        x = ctx.scalar(value)
        arguments.append(f"{type} {x.to('inttoptr', 'ptr') if type == 'ptr' else x}")
    e.branch(ctx.first_lane(), yes, end)
    e.begin(yes)
    text = f"call {result} @{op.function}({', '.join(arguments)})"
    if result == "void":
        e.do(text)
    else:
        e.v(text, result)
    e.jump(end)
    e.begin(end)


RULES: Rules = {NvshmemCall: lower_call}
