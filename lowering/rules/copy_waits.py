"""Fences, groups and waits of asynchronous copies."""

from __future__ import annotations

from kernel_dsl.ops.copy_waits import CommitGmem, CommitGroup, CommitSmem, WaitGmemToSmem, WaitSmemToGmem

from ..context import Context, Rules
from .cp_async import wait_lanes


def lower_commit_gmem(ctx: Context, op: CommitGmem) -> None:
    ctx.e.ptx("fence.proxy.async.global;")
    ctx.sync()


def lower_commit_smem(ctx: Context, op: CommitSmem) -> None:
    ctx.e.ptx("fence.proxy.async.shared::cta;")
    ctx.sync()


def commit_group(ctx: Context) -> None:
    """Close the group of the warpgroup's copies to GMEM, which its first lane issued."""
    ctx.e.ptx("cp.async.bulk.commit_group;", when=ctx.first_lane())


def lower_wait_smem_to_gmem(ctx: Context, op: WaitSmemToGmem) -> None:
    # groups belong to the lane that issued the copies; the others wait for it at the barrier
    ctx.e.ptx(f"cp.async.bulk.wait_group{'.read' if op.read_only else ''} {op.pending};")
    ctx.sync()


def lower_wait_gmem_to_smem(ctx: Context, op: WaitGmemToSmem) -> None:
    wait_lanes(ctx, op.pending)


RULES: Rules = {
    CommitGmem: lower_commit_gmem,
    CommitSmem: lower_commit_smem,
    CommitGroup: lambda ctx, op: commit_group(ctx),
    WaitSmemToGmem: lower_wait_smem_to_gmem,
    WaitGmemToSmem: lower_wait_gmem_to_smem,
}
