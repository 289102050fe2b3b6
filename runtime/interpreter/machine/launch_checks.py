"""Checks of a launch before any block runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..checks.kinds import HazardKind
from ..isa.targets import runs_on
from ..ptx.module import Module, PtxError
from .memory import SHARED_RESERVED

if TYPE_CHECKING:
    from .launch import Run


def check_launch(run: Run) -> None:
    """Check the sizes of a launch against its target and the directives of its entry. Raises ValueError."""
    target, limits, hazard = run.target, run.target.limits, run.reporter.hazard
    if run.threads_per_block > limits.threads_per_block or run.threads_per_block < 1:
        raise ValueError(
            f"a block of {run.block} has {run.threads_per_block} threads; the limit is {limits.threads_per_block}"
        )
    used = run.shared_bytes - SHARED_RESERVED
    if used > limits.smem_per_block:
        what = f"a block needs {used} bytes of shared memory; {target} has {limits.smem_per_block}"
        hazard(HazardKind.SHARED_CAPACITY, what, None)
    if run.cluster_size > 16:
        what = f"a cluster of {run.cluster_size} blocks; the limit is 16"
        hazard(HazardKind.CLUSTER_SIZE, what, None)
    for axis in range(3):
        if run.grid[axis] % run.cluster[axis]:
            what = f"grid {run.grid} is not a multiple of cluster {run.cluster}"
            hazard(HazardKind.CLUSTER_SIZE, what, None)
    wanted = run.program.entry.directives.get("reqntid")
    if wanted is not None:
        required = (*wanted, 1, 1)[:3]
        if required != run.block:
            raise ValueError(f"the entry requires a block of {required}, not {run.block}")
    most = run.program.entry.directives.get("maxntid")
    if most is not None and run.threads_per_block > int(np.prod(most)):
        raise ValueError(f"the entry allows blocks of at most {most}, not {run.block}")


def check_target(module: Module, device: str) -> None:
    """Check that the device runs code for the module's target."""
    if not runs_on(module.target, device):
        raise PtxError(f"the module is for {module.target}, and the device is {device}", *module.target_at)
