"""Put a proxy fence between lanes' loads of GMEM and a bulk copy that overwrites what they read.

Neither a barrier nor an arrival on an mbarrier waits for loads, and the copy may overtake them (PTX ISA 8.9.5). The pass puts a
fence before the copy, before which `order_memory.py` lets the lanes meet, and before each op that may tell another warpgroup or
block to copy (`telling.py`).
The pass visits loops twice, as `order_memory.py` does, so its time is linear in the number of ops.
"""

from __future__ import annotations

from functools import cache

from kernel_dsl.ir import KernelIR, MemorySpace, Op, RefType, Region, Value, buffer_of, walk_region
from kernel_dsl.ops.control import For, While
from kernel_dsl.ops.copy import CopySmemToGmem
from kernel_dsl.ops.copy_waits import CommitGmem
from kernel_dsl.ops.sync import GmemProxyFence
from kernel_dsl.ops.threads import WarpMap
from kernel_dsl.target import Feature, Target

from .telling import TELLING, tells

Read = frozenset[Value]  # arrays that lanes have read since the last fence
NOTHING: Read = frozenset()
_FENCES = (CommitGmem, GmemProxyFence)
_EVENTS = (*_FENCES, CopySmemToGmem, *TELLING)


@cache
def _matters(cls: type[Op]) -> bool:
    """Whether ops of the class may read GMEM, copy, tell others or hold regions: most only compute."""
    return "ref" in cls.fields or bool(cls.region_fields) or issubclass(cls, _EVENTS)


class ReadFences:
    """The pass over one kernel."""

    def __init__(self, ir: KernelIR) -> None:
        self.threads: int = ir.threads
        self.same: dict[Value, Value] = ir.stand_ins()
        self.loop_ends: dict[int, Read] = {}
        copies = [op for op in walk_region(ir.body) if isinstance(op, CopySmemToGmem)]
        self.overwritten: Read = frozenset(self.memory(op.dst) for op in copies)

    def memory(self, ref: Value) -> Value:
        """The array of a Ref, or the one that stands for it."""
        array = buffer_of(ref)
        return self.same.get(array, array)

    def reads(self, op: Op) -> Read:
        """The arrays that lanes read by an op, among those that copies write."""
        ref = getattr(op, "ref", None)
        if not op.reads or not isinstance(ref, Value) or not isinstance(ref.type, RefType):
            return NOTHING
        return frozenset([self.memory(ref)]) & self.overwritten if ref.type.space is MemorySpace.GMEM else NOTHING

    def overtaken(self, op: Op, read: Read) -> bool:
        """Whether an op copies over what was read, or may allow another warpgroup to do so."""
        if isinstance(op, WarpMap):  # inside, only one warp would execute the fence
            return any(self.overtaken(inner, read) for inner in walk_region(op.body))
        if isinstance(op, CopySmemToGmem):
            return self.memory(op.dst) in read
        return isinstance(op, TELLING) and tells(op, self.threads)

    def region(self, region: Region, read: Read, rewrite: bool) -> Read:
        """Walk a region. Returns what is read and not fenced at its end. With `rewrite`, fences are put in."""
        out: list[Op] = []
        for op in region.ops:
            if _matters(type(op)):
                if isinstance(op, _FENCES):
                    read = NOTHING
                elif read and self.overtaken(op, read):
                    fence = GmemProxyFence()
                    fence.loc = op.loc
                    out.append(fence)
                    read = NOTHING
                read |= self.reads(op)
                if inner := op.region_list():
                    read = self.nested(op, inner, read, rewrite)
            out.append(op)
        if rewrite:
            region.ops[:] = out
        return read

    def nested(self, op: Op, inner: tuple[Region, ...], read: Read, rewrite: bool) -> Read:
        if not isinstance(op, (For, While)):
            return frozenset().union(*(self.region(region, read, rewrite) for region in inner))
        key = id(op)
        if key not in self.loop_ends:
            self.loop_ends[key] = self.iteration(inner, NOTHING, rewrite=False)[0]
        while True:
            start = read | self.loop_ends[key]
            end, left = self.iteration(inner, start, rewrite)
            if end <= start:
                return start | left
            # a fence for reads before the loop may stand where later ones pend at the end, which did not above
            self.loop_ends[key] |= end

    def iteration(self, inner: tuple[Region, ...], read: Read, rewrite: bool) -> tuple[Read, Read]:
        """Walk an iteration. Returns the reads at its end, and those where the loop may be left: `while` ends in its test."""
        left = NOTHING
        for region in inner:
            read = self.region(region, read, rewrite)
            left |= read
        return read, left


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Put the fences in, in place."""
    if target.supports(Feature.TMA):
        fences = ReadFences(ir)
        if fences.overwritten:
            fences.region(ir.body, NOTHING, rewrite=True)
    return ir
