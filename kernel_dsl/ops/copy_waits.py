"""Fences, groups and waits of asynchronous copies."""

from __future__ import annotations

from typing import Any

from ..diagnostics import shown
from ..errors import BadArgument
from ..ir import Effect, Op, attr
from ..target import Feature
from ..trace import current, emit

__all__ = ["commit_gmem", "commit_smem", "commit_smem_to_gmem_group", "wait_gmem_to_smem", "wait_smem_to_gmem"]


class CommitGmem(Op, name="commit_gmem", effect=Effect.SYNC, requires=Feature.TMA):
    """Every lane's proxy fence for GMEM, then a warpgroup barrier. PTX `fence.proxy.async.global`."""


class CommitSmem(Op, name="commit_smem", effect=Effect.SYNC, requires=Feature.TMA):
    """Every lane's proxy fence, then a warpgroup barrier. PTX `fence.proxy.async.shared::cta`."""


class CommitGroup(Op, name="commit_smem_to_gmem_group", effect=Effect.SYNC, requires=Feature.TMA):
    """Close the group of copies to GMEM issued so far. PTX `cp.async.bulk.commit_group`."""


class WaitSmemToGmem(Op, name="wait_smem_to_gmem", effect=Effect.SYNC, requires=Feature.TMA):
    """Wait until at most `pending` groups are in flight. PTX `cp.async.bulk.wait_group[.read]`."""

    pending: int = attr()
    read_only: bool = attr(False)


class WaitGmemToSmem(Op, name="wait_gmem_to_smem", effect=Effect.SYNC, requires=Feature.CP_ASYNC):
    """Wait until at most `pending` barrier-less copies are in flight. PTX `cp.async.wait_group`."""

    pending: int = attr()


def commit_gmem() -> None:
    """Make this warpgroup's writes to GMEM visible to asynchronous copies of this launch.

    Each lane makes a proxy fence, then the warpgroup meets at a barrier. PTX ISA 9.7.13.4 (fence.proxy.async).
    """
    current()
    emit(CommitGmem())


def commit_smem() -> None:
    """Make this warpgroup's writes to SMEM visible to asynchronous copies and wgmma.

    Its loads from SMEM end before later copies overwrite what they read.
    Each lane makes a proxy fence, then the warpgroup meets at a barrier. PTX ISA 9.7.13.4 (fence.proxy.async).
    """
    current()
    emit(CommitSmem())


def commit_smem_to_gmem_group() -> None:
    """Close the group of `copy_smem_to_gmem(..., commit_group=False)` that this warpgroup issued.

    `wait_smem_to_gmem` counts such groups.
    """
    current()
    emit(CommitGroup())


def _pending(n: Any, op: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise BadArgument(op=op, what=f"n={shown(n)}", hint="a static int, 0 or more")
    return n


def wait_smem_to_gmem(n: int, wait_read_only: bool = False) -> None:
    """Wait until at most `n` groups of this warpgroup's copies to GMEM are in flight.

    `wait_read_only`: only until SMEM has been read and may be overwritten. Raises `BadArgument` unless `n` is a static
    int of 0 or more.
    """
    current()
    emit(WaitSmemToGmem(_pending(n, "wait_smem_to_gmem"), bool(wait_read_only)))


def wait_gmem_to_smem(n: int) -> None:
    """Wait until at most `n` of this warpgroup's copies without a barrier are in flight.

    Raises `BadArgument` unless `n` is a static int of 0 or more.
    """
    current()
    emit(WaitGmemToSmem(_pending(n, "wait_gmem_to_smem")))
