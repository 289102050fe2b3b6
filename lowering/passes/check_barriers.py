"""Refuse barriers whose phase can never complete: the most arrivals that a kernel can make are fewer than they need."""

from __future__ import annotations

from math import prod

from kernel_dsl.errors_hopper import TooFewArrivals
from kernel_dsl.ir import KernelIR, Op, Region, Value
from kernel_dsl.ops.barrier import BarrierArrive, BarrierTest, BarrierWait
from kernel_dsl.ops.cluster import AsyncStoreSmem
from kernel_dsl.ops.control import For, While
from kernel_dsl.ops.copy import CopyGmemToSmem
from kernel_dsl.ops.threads import WarpMap

from ..context import WARPS

__all__ = ["check_waits"]


class _Count:
    """The most arrivals of each barrier's ops, and its first wait; None counts for a loop: no bound."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.most: dict[Value, int | None] = {}
        self.waits: dict[Value, Op] = {}

    def region(self, region: Region, looped: bool, each: int) -> None:
        """`each`: how often a warpgroup runs the region, at most."""
        for op in region.ops:
            if isinstance(op, (BarrierArrive, AsyncStoreSmem, CopyGmemToSmem)) and op.barrier is not None:
                before = self.most.get(op.barrier, 0)
                self.most[op.barrier] = None if looped or before is None else before + each * self.threads
            elif isinstance(op, (BarrierWait, BarrierTest)):
                self.waits.setdefault(op.barrier, op)
            for inner in op.region_list():
                # a warp on its own arrives for a warpgroup
                self.region(inner, looped or isinstance(op, (For, While)), WARPS if isinstance(op, WarpMap) else each)


def check_waits(ir: KernelIR) -> None:
    """Raise `TooFewArrivals` at the wait. For a GPU only: the interpreter shows who waits for what instead."""
    count = _Count(ir.threads)
    count.region(ir.body, False, 1)
    blocks = prod(a.size for a in ir.cluster)
    for barrier, wait in count.waits.items():
        most = count.most.get(barrier, 0)
        if most is not None and most * blocks < barrier.type.arrivals:
            name = barrier.type.name or "a barrier"
            what = "nothing arrives on it" if not most else f"at most {most * blocks} arrivals can be made"
            raise TooFewArrivals(loc=wait.loc, name=name, needed=barrier.type.arrivals, what=what)
