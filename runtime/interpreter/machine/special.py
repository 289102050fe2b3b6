"""Special registers (PTX ISA, section 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .memory import SHARED_RESERVED

if TYPE_CHECKING:
    from .batch import Batch
    from .launch import Run

Array = npt.NDArray[Any]
_AXES = {"x": 0, "y": 1, "z": 2}
STEP = 4  # cycles of the clock, and nanoseconds of %globaltimer, for each step of a run
EPOCH = 1_700_000_000 * 10**9  # the first value of %globaltimer, in nanoseconds
_LANES = np.arange(32, dtype=np.uint32)


def special(run: Run, batch: Batch, name: str) -> Array:
    """Return a special register of all warps of a batch: (warps or 1, 32 or 1), uint32 or uint64."""
    name = name[1:]
    head, _, axis = name.partition(".")
    if axis == "w":
        return _constant(0)
    if axis:
        return _vector(run, batch, head, _AXES[axis])
    return _scalar(run, batch, name)


def _rows(batch: Batch, per_block: Array) -> Array:
    return per_block[batch.row_cta].astype(np.uint32)[:, None]


def _constant(value: int, dtype: Any = np.uint32) -> Array:
    return np.full((1, 1), value, dtype)


def _vector(run: Run, batch: Batch, head: str, axis: int) -> Array:
    x, y, _ = run.block
    where = batch.coordinates[:, axis]
    cluster = run.cluster[axis]
    match head:
        case "tid":
            thread = batch.thread
            value = (thread % x, thread // x % y, thread // (x * y))[axis]
            return value.astype(np.uint32)
        case "ntid":
            return _constant(run.block[axis])
        case "ctaid":
            return _rows(batch, where)
        case "nctaid":
            return _constant(run.grid[axis])
        case "clusterid":
            return _rows(batch, where // cluster)
        case "nclusterid":
            return _constant(run.grid[axis] // cluster)
        case "cluster_ctaid":
            return _rows(batch, where % cluster)
        case _:
            return _constant(cluster)


def _scalar(run: Run, batch: Batch, name: str) -> Array:
    now = (run.steps - run.ahead) * STEP + run.slept  # a clock that a seed repeats: STEP cycles for each instruction
    time = EPOCH + (now if run.devices == 1 else run.waited if run.recorder is None else run.waited + now)
    table: dict[str, Any] = {
        "laneid": lambda: _LANES[None],
        "warpid": lambda: batch.row_warp.astype(np.uint32)[:, None],
        "nwarpid": lambda: _constant(run.target.limits.warps_per_multiprocessor),
        "smid": lambda: _rows(batch, (batch.first + np.arange(batch.blocks)) % run.target.limits.multiprocessors),
        "nsmid": lambda: _constant(run.target.limits.multiprocessors),
        "gridid": lambda: _constant(1, np.uint64),
        "cluster_ctarank": lambda: batch.row_rank.astype(np.uint32)[:, None],
        "cluster_nctarank": lambda: _constant(run.cluster_size),
        "is_explicit_cluster": lambda: np.full((1, 1), run.cluster_size > 1),
        "lanemask_eq": lambda: (np.uint32(1) << _LANES)[None],
        "lanemask_lt": lambda: ((np.uint64(1) << _LANES.astype(np.uint64)) - 1).astype(np.uint32)[None],
        "lanemask_le": lambda: ((np.uint64(2) << _LANES.astype(np.uint64)) - 1).astype(np.uint32)[None],
        "lanemask_gt": lambda: (~((np.uint64(2) << _LANES.astype(np.uint64)) - 1)).astype(np.uint32)[None],
        "lanemask_ge": lambda: (~((np.uint64(1) << _LANES.astype(np.uint64)) - 1)).astype(np.uint32)[None],
        "clock": lambda: _constant(now & 0xFFFFFFFF),
        "clock_hi": lambda: _constant(now >> 32),
        "clock64": lambda: _constant(now, np.uint64),
        "globaltimer": lambda: _constant(time, np.uint64),
        "globaltimer_lo": lambda: _constant(time & 0xFFFFFFFF),
        "globaltimer_hi": lambda: _constant(time >> 32),
        # The address of a cooperative launch's grid barrier.
        "envreg1": lambda: _constant(run.grid_workspace() >> 32),
        "envreg2": lambda: _constant(run.grid_workspace() & 0xFFFFFFFF),
        "dynamic_smem_size": lambda: _constant(run.dynamic_smem),
        "total_smem_size": lambda: _constant(run.shared_bytes - SHARED_RESERVED),
        "aggr_smem_size": lambda: _constant(run.shared_bytes),
        "reserved_smem_offset_begin": lambda: _constant(0),
        "reserved_smem_offset_1": lambda: _constant(SHARED_RESERVED // 2),
        "reserved_smem_offset_cap": lambda: _constant(SHARED_RESERVED),
        "reserved_smem_offset_end": lambda: _constant(SHARED_RESERVED),
        "current_graph_exec": lambda: _constant(0, np.uint64),
    }
    made = table.get(name)
    return made() if made else _constant(0)
