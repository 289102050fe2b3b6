"""Other devices' memory."""

from __future__ import annotations

from kernel_dsl.ops.remote import RemoteRef

from ..context import Context, Rules
from ..lowered import SmemBuffer


def lower_remote_ref(ctx: Context, op: RemoteRef) -> None:
    ctx.remotes[op.result] = op
    ctx.buffers[op.result] = SmemBuffer(ctx.scalar(op.address), ctx.buffers[op.ref].strides)


RULES: Rules = {RemoteRef: lower_remote_ref}
