"""Kernels with the axis of a batch before their grid, as `vmap` of JAX and PyTorch runs them, and which kernels can have one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .batching import vmap
from .definition import Input
from .diagnostics import Error
from .ir import KernelIR, Op, walk_region
from .kernel import Kernel
from .loading import gpu_target
from .ops.atomic import AtomicCas, AtomicRmw
from .ops.control import While
from .ops.semaphore import AllocSemaphore
from .stages import Stages
from .target import DEFAULT
from .tree import flatten

_verdicts: dict[Any, bool] = {}  # of `may_run`


@functools.lru_cache(maxsize=1024)
def with_axis(kernel: Kernel, mapped: tuple[bool, ...]) -> Kernel:
    """The kernel over a batch: each mapped input has the batch's axis first."""
    return vmap(kernel, tuple(0 if has else None for has in mapped))


def with_axis_for(kernel: Kernel, mapped: tuple[bool, ...], args: Sequence[Any]) -> Kernel | None:
    """The kernel with one more axis, for a call with these arguments; None if it can't have one."""
    made = with_axis(kernel, mapped)
    leaves, structure = flatten(args)
    inputs = tuple(made._lower_input(x) for x in leaves)  # pyright: ignore[reportPrivateUsage]
    return made if may_run(made, inputs, structure, lambda target: made.lower(*args, target=target)) else None


def may_run(kernel: Kernel, inputs: tuple[Input, ...], structure: Any, stages: Callable[[str], Stages]) -> bool:
    """Whether a kernel with one more axis may run: its blocks do not wait for one another, and it can be lowered.

    An array of one more dimension may have more than TMA takes, for example. `stages(target)` traces the kernel.
    """
    target = kernel.target or gpu_target() or DEFAULT.name
    key = (kernel, inputs, repr(structure), target)
    if key not in _verdicts:
        if len(_verdicts) >= 1024:
            _verdicts.clear()
        try:
            made = stages(target)
            _verdicts[key] = not blocks_wait(made.ir) and bool(made.llvm)
        except Error:
            _verdicts[key] = False
    return _verdicts[key]


def blocks_wait(ir: KernelIR) -> bool:
    """Whether blocks may wait for one another: if a GPU can't hold them all at once, they would wait for ever."""
    loops = [op for op in ir.walk() if isinstance(op, While)]
    spins = any(_is_atomic(x) for op in loops for region in op.region_list() for x in walk_region(region))
    return spins or any(isinstance(op, AllocSemaphore) for op in ir.walk())


def _is_atomic(op: Op) -> bool:
    return isinstance(op, (AtomicRmw, AtomicCas))
