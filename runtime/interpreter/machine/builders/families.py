"""Imports every file that registers instruction builders, so that importing this one fills the table."""

from __future__ import annotations

from .. import control
from . import (
    atomics,
    barrier_ops,
    bulk,
    copies,
    cp_async,
    discards,
    launch_control,
    loads,
    matrix_ops,
    mbarrier_ops,
    moves,
    multimem,
    remote,
    stack,
    tensor_maps,
    tensor_ops,
    warp,
    wmma_ops,
)

BUILDERS = (
    atomics,
    barrier_ops,
    bulk,
    control,
    copies,
    cp_async,
    discards,
    launch_control,
    loads,
    matrix_ops,
    mbarrier_ops,
    moves,
    multimem,
    remote,
    stack,
    tensor_maps,
    tensor_ops,
    warp,
    wmma_ops,
)
