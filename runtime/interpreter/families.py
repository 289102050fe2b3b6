"""Imports every file that registers instruction builders, so that importing this one fills the table."""

from __future__ import annotations

from . import atomics, barriers, control, copies, loads, matrix_ops, mbarrier_ops, moves, remote, warp, wmma_ops

BUILDERS = (
    atomics,
    barriers,
    control,
    copies,
    loads,
    matrix_ops,
    mbarrier_ops,
    moves,
    remote,
    warp,
    wmma_ops,
)
