"""Kernels with the axis of a batch before their grid, as `vmap` of JAX and PyTorch runs them, and which kernels can have one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .batching import vmap
from .diagnostics import Error
from .ir import KernelIR, Op, walk_region
from .kernel import Kernel
from .ops.atomic import AtomicCas, AtomicRmw
from .ops.control import While
from .ops.semaphore import AllocSemaphore


@functools.lru_cache(maxsize=1024)
def with_axis(kernel: Kernel, mapped: tuple[bool, ...]) -> Kernel:
    """The kernel over a batch: each mapped input has the batch's axis first."""
    return vmap(kernel, tuple(0 if has else None for has in mapped))


def with_axis_for(kernel: Kernel, mapped: tuple[bool, ...], args: Sequence[Any]) -> Kernel | None:
    """The kernel with one more axis, for a call with these arguments; None if it can't have one."""
    made = with_axis(kernel, mapped)
    try:
        return None if blocks_wait(made.lower(*args).ir) else made
    except Error:
        return None


def blocks_wait(ir: KernelIR) -> bool:
    """Whether blocks may wait for one another: if a GPU can't hold them all at once, they would wait for ever."""
    loops = [op for op in ir.walk() if isinstance(op, While)]
    spins = any(_is_atomic(x) for op in loops for region in op.region_list() for x in walk_region(region))
    return spins or any(isinstance(op, AllocSemaphore) for op in ir.walk())


def _is_atomic(op: Op) -> bool:
    return isinstance(op, (AtomicRmw, AtomicCas))
