"""Scopes of scratch: the barrier where SMEM is used again."""

from __future__ import annotations

from kernel_dsl.ops.matrix import Wgmma
from kernel_dsl.ops.scope import EnterScope
from kernel_dsl.target import Feature

from ..context import Context, Rules


def lower_enter_scope(ctx: Context, op: EnterScope) -> None:
    if op.scope not in ctx.sharing:
        return
    if op.in_flight and any(isinstance(o, Wgmma) for o in ctx.ops):
        ctx.e.ptx("wgmma.wait_group.sync.aligned 0;")
    if ctx.target.supports(Feature.TMA):
        # earlier stores used the generic proxy, and a copy may follow
        ctx.e.ptx("fence.proxy.async.shared::cta;")
    if op.block:
        ctx.sync_block()
    else:
        ctx.sync()


RULES: Rules = {EnterScope: lower_enter_scope}
