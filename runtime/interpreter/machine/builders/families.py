"""Imports every file that registers instruction builders, so that importing this one fills the table."""

from __future__ import annotations

from .. import barriers, control
from . import (
    atomics,
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
    barriers,
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
