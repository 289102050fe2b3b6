"""The ops from which other warpgroups and blocks learn that this warpgroup is done with memory."""

from __future__ import annotations

from kernel_dsl.in_place import ARRIVALS
from kernel_dsl.ir import Op, walk_region
from kernel_dsl.ops.atomic import AtomicCas, AtomicRmw
from kernel_dsl.ops.copy import CopyGmemToSmem
from kernel_dsl.ops.nvshmem import NvshmemCall

__all__ = ["TELLING", "releases", "tells"]

TELLING = (*ARRIVALS, AtomicRmw, AtomicCas, NvshmemCall)  # the classes of ops that `tells` may hold for


def releases(op: Op) -> bool:
    """Whether an op is an atomic by which the warpgroup's other lanes release their accesses, too."""
    return isinstance(op, (AtomicRmw, AtomicCas)) and op.order in ("release", "acq_rel")


def tells(op: Op, threads: int) -> bool:
    """Whether others may learn from an op, or from one inside it, that this warpgroup is done with memory.

    `threads`: the number of warpgroups in a block. A copy into SMEM arrives on its block's barrier, and a multicast copy
    brings bytes that other blocks wait for.
    """
    return any(_tells(o, threads) for o in (op, *(o for r in op.region_list() for o in walk_region(r))))


def _tells(op: Op, threads: int) -> bool:
    if isinstance(op, CopyGmemToSmem):
        return op.barrier is not None and (threads > 1 or bool(op.multicast))
    return isinstance(op, (*ARRIVALS, NvshmemCall)) or releases(op)
