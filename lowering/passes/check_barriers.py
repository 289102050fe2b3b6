"""Refuse barriers whose phase can never complete, or completes with arrivals left over that nothing waits for."""

from __future__ import annotations

from functools import cache
from math import prod

from kernel_dsl.errors_hopper import TooFewArrivals, TooManyArrivals, UnawaitedCopy
from kernel_dsl.in_place import ARRIVALS
from kernel_dsl.ir import KernelIR, Op, Region, Value
from kernel_dsl.ops.atomic import AtomicCas, AtomicRmw
from kernel_dsl.ops.barrier import BarrierArrive, BarrierTest, BarrierWait
from kernel_dsl.ops.cast import Constant
from kernel_dsl.ops.control import For, While
from kernel_dsl.ops.copy import CopyGmemToSmem
from kernel_dsl.ops.threads import InlinePtx, WarpMap

from ..context import WARPS

__all__ = ["check_waits"]


_WAITS = (BarrierWait, BarrierTest)
_CLEARS = (*_WAITS, AtomicRmw, AtomicCas, InlinePtx)


@cache
def _matters(cls: type[Op]) -> bool:
    """Whether ops of the class use barriers or hold regions: most only compute."""
    return bool(cls.region_fields) or issubclass(cls, (*ARRIVALS, *_CLEARS))


class _Count:
    """For each barrier, the most arrivals (None: unbounded, in a loop) and its first wait."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.most: dict[Value, int | None] = {}
        self.waits: dict[Value, Op] = {}

    def region(self, region: Region, looped: bool, each: int) -> None:
        """`each`: the most times that a warpgroup runs the region."""
        for op in region.ops:
            if not _matters(type(op)):
                continue
            if isinstance(op, ARRIVALS) and op.barrier is not None:
                before = self.most.get(op.barrier, 0)
                self.most[op.barrier] = None if looped or before is None else before + each * self.threads
            elif isinstance(op, _WAITS):
                self.waits.setdefault(op.barrier, op)
            for inner in op.region_list():
                # a single warp arrives for its warpgroup
                self.region(inner, looped or isinstance(op, (For, While)), WARPS if isinstance(op, WarpMap) else each)


def _check_excess(region: Region, each: int) -> None:
    """Raise `TooManyArrivals` if consecutive ops arrive on one barrier more often than a phase takes.

    Ops that can wait, or run regions, start the count again. `each`: the number of arrivals of one op.
    """
    counts: dict[tuple[Value, Value], int] = {}
    for op in region.ops:
        if not _matters(type(op)):
            continue
        inner = op.region_list()
        for nested in inner:
            _check_excess(nested, 1)
        if inner or isinstance(op, _CLEARS):
            counts.clear()
        elif isinstance(op, (BarrierArrive, CopyGmemToSmem)) and op.barrier is not None and op.predicate is None:
            if op.barrier.type.cluster or op.index is None:
                continue
            key = op.barrier, op.index
            # a computed index may differ between warpgroups
            counts[key] = counts.get(key, 0) + (each if isinstance(op.index.op, Constant) else 1)
            needed = op.barrier.type.arrivals
            if counts[key] > needed:
                name = op.barrier.type.name or "a barrier"
                raise TooManyArrivals(loc=op.loc, name=name, needed=needed, count=counts[key])


def _check_copies(ir: KernelIR) -> None:
    """Raise `UnawaitedCopy` for a copy whose barrier no later op waits for.

    With one warpgroup, ops after the copy and in the same loop count; with several, all ops count.
    """
    waited: dict[Value, int] = {}
    issued: list[tuple[int, CopyGmemToSmem, tuple[Op, ...]]] = []
    loops: dict[Value, set[Op]] = {}
    number = 0

    def walk(region: Region, around: tuple[Op, ...]) -> None:
        nonlocal number
        for op in region.ops:
            number += 1
            if isinstance(op, CopyGmemToSmem) and op.barrier is not None:
                issued.append((number, op, around))
            elif isinstance(op, (BarrierWait, BarrierTest)):
                waited[op.barrier] = number
                loops.setdefault(op.barrier, set()).update(around)
            for inner in op.region_list():
                walk(inner, (*around, op) if isinstance(op, (For, While)) else around)

    walk(ir.body, ())
    if any(isinstance(op, InlinePtx) for op in ir.walk()):
        return
    for at, op, around in issued:
        assert op.barrier is not None
        last = waited.get(op.barrier, -1)
        seen = last >= 0 if ir.threads > 1 else last > at or any(o in loops.get(op.barrier, ()) for o in around)
        if not seen and 0 not in op.src_view.shape:
            raise UnawaitedCopy(
                loc=op.loc, name=op.dst.type.name or "its buffer", barrier=op.barrier.type.name or "its barrier"
            )


def check_waits(ir: KernelIR) -> None:
    """Raise `TooFewArrivals` at the wait, `TooManyArrivals` at the arrival, `UnawaitedCopy` at the copy.

    For a GPU only: the interpreter shows what happens instead.
    """
    _check_excess(ir.body, ir.threads)
    _check_copies(ir)
    count = _Count(ir.threads)
    count.region(ir.body, False, 1)
    blocks = prod(a.size for a in ir.cluster)
    for barrier, wait in count.waits.items():
        most = count.most.get(barrier, 0)
        if most is not None and most * blocks < barrier.type.arrivals:
            name = barrier.type.name or "a barrier"
            what = "nothing arrives on it" if not most else f"at most {most * blocks} arrivals can be made"
            raise TooFewArrivals(loc=wait.loc, name=name, needed=barrier.type.arrivals, what=what)
