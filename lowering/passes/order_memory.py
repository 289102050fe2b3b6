"""Put a warpgroup barrier between two accesses of one warpgroup that touch the same memory from different lanes.

Each lane runs ops in their order, but lanes run ahead of each other. So if another lane may read or overwrite the elements of a
store, all lanes must meet in between. Where a TMA copy overwrites SMEM that lanes have read, they pass a proxy fence before
they meet, or before they tell another warpgroup or block (`telling.py`): neither `bar.sync` nor `mbarrier.arrive` waits for
loads, which may still be in the queue of SMEM, and the copy may overtake them (PTX ISA 8.9.5). Copies by lanes (`cp.async`) are
in the proxy of the loads, so a barrier is enough for them. The fence between stores and a copy is the author's. The pass visits
loops twice: once for the accesses that are pending at the end of an iteration, and once with these as the start. Its time is
linear in the number of ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kernel_dsl.ir import KernelIR, MemorySpace, Op, RefType, Region, Value, buffer_of, layout_of, walk_region
from kernel_dsl.layout import Layout
from kernel_dsl.ops.atomic import AtomicCas, AtomicRmw
from kernel_dsl.ops.cluster import PeerRef
from kernel_dsl.ops.control import For, While
from kernel_dsl.ops.copy import CopyGmemToSmem, CopySmemToGmem
from kernel_dsl.ops.copy_waits import CommitGmem, CommitSmem, WaitGmemToSmem, WaitSmemToGmem
from kernel_dsl.ops.ref import BitcastRef, Load, Store
from kernel_dsl.ops.remote import RemoteRef
from kernel_dsl.ops.sync import SmemProxyFence, WarpgroupBarrier
from kernel_dsl.ops.threads import AliasSmem, WarpMap
from kernel_dsl.refs import View
from kernel_dsl.target import Feature, Target

from .telling import TELLING, releases, tells

# The most pending accesses: an extra barrier at times keeps the pass linear in the number of ops
MOST_PENDING = 64


@dataclass(frozen=True, eq=False)
class Touch:
    """One access since the last barrier."""

    root: Value
    write: bool
    atomic: bool
    view: View | None
    offsets: tuple[Value, ...]
    layout: Layout | None
    variant: bool = False  # an access of the iteration before: dynamic offsets may have changed
    cast: Value | None = None  # the bitcast or reshaped buffer that it goes through: its indices mean other places

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of an access. Values are compared by `is`, because their `==` is the language's."""
        return id(self.root), self.write, self.atomic, self.view, self.starts, self.layout, self.variant, id(self.cast)

    @property
    def alone(self) -> bool:
        """Whether the first lane makes the access, as it does every signal and every store of rank 0."""
        return self.write and self.layout is not None and not self.layout.rank

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(id(v) for v in self.offsets)


@dataclass(frozen=True)
class LaneAccesses:
    """What lanes have accessed: `pending` since the last barrier; `read`, SMEM buffers, since the last proxy fence."""

    pending: tuple[Touch, ...] = ()
    read: frozenset[int] = frozenset()  # ids of roots

    def __or__(self, other: LaneAccesses) -> LaneAccesses:
        seen = {t.key for t in self.pending}
        new = tuple(t for t in other.pending if t.key not in seen)
        return LaneAccesses(self.pending + new, self.read | other.read)

    def fenced(self) -> LaneAccesses:
        """After a proxy fence."""
        return LaneAccesses(self.pending)

    def met(self) -> LaneAccesses:
        """After a barrier."""
        return LaneAccesses((), self.read)

    def before(self) -> LaneAccesses:
        """As accesses of the iteration before."""
        return LaneAccesses(tuple(variant(t) for t in self.pending), self.read)

    def with_touch(self, touch: Touch) -> LaneAccesses:
        type = touch.root.type
        read = not touch.write and isinstance(type, RefType) and type.space is MemorySpace.SMEM
        return self | LaneAccesses((touch,), frozenset([id(touch.root)]) if read else frozenset())


_WAITS = (WarpgroupBarrier, CommitGmem, CommitSmem, WaitSmemToGmem, WaitGmemToSmem)


@cache
def _matters(cls: type[Op]) -> bool:
    """Whether ops of the class may access memory, synchronise lanes or hold regions: most only compute."""
    return (
        "ref" in cls.fields
        or bool(cls.region_fields)
        or issubclass(cls, (*_WAITS, *TELLING, CopySmemToGmem, SmemProxyFence))
    )


class MemoryOrder:
    """The pass over one kernel."""

    def __init__(self, aliases: dict[Value, Value], threads: int, tma: bool) -> None:
        self.aliases = aliases
        self.threads = threads
        self.tma = tma  # whether copies into SMEM go through the async proxy
        self.roots: dict[Value, Value] = {}
        self.loop_ends: dict[int, tuple[LaneAccesses, LaneAccesses]] = {}  # as `iteration` returns them
        self.copied: frozenset[int] = frozenset()  # ids of the buffers in SMEM that copies fill

    def root(self, ref: Value) -> Value:
        while ref in self.roots:
            ref = self.roots[ref]
        return self.aliases.get(ref, ref)

    def touch(self, op: Op) -> Touch | None:
        """The access of an op; None if it needs no order, as for inputs that nothing writes."""
        if not isinstance(op, (Load, Store, AtomicRmw, AtomicCas)):
            return self.generic_touch(op)
        type: RefType = op.ref.type
        if type.space is MemorySpace.GMEM and not type.written:
            return None
        if isinstance(op, (AtomicRmw, AtomicCas)) and op.indices:
            return Touch(self.root(op.ref), True, True, None, (), None)  # anywhere
        layout = layout_of(op.result if isinstance(op, Load) else op.x)
        return Touch(
            self.root(op.ref),
            not isinstance(op, Load),
            isinstance(op, (AtomicRmw, AtomicCas)),
            op.view,
            op.offsets,
            layout,
            cast=op.ref if op.ref in self.roots else None,
        )

    def generic_touch(self, op: Op) -> Touch | None:
        """The access of an op with a `ref` field other than plain loads and stores, such as gather and scatter."""
        ref = getattr(op, "ref", None)
        if (
            not isinstance(ref, Value)
            or not isinstance(ref.type, RefType)
            or isinstance(op, (BitcastRef, AliasSmem, RemoteRef))
        ):
            return None
        if ref.type.space is MemorySpace.GMEM and not ref.type.written:
            return None
        if not (op.reads or op.writes):
            return None
        return Touch(self.root(ref), op.writes, False, None, (), None)

    def before(self, op: CopyGmemToSmem | CopySmemToGmem, now: LaneAccesses) -> Op | None:
        """What must stand before a copy that overwrites what lanes may still be reading or writing."""
        root = self.root(op.dst)
        if isinstance(op, CopySmemToGmem):  # `fence_reads.py` puts the fence
            return WarpgroupBarrier() if any(old.root is root and not old.write for old in now.pending) else None
        if self.tma and op.barrier is not None and id(root) in now.read:
            return CommitSmem()
        return WarpgroupBarrier() if any(old.root is root for old in now.pending) else None

    def tells(self, op: Op, now: LaneAccesses) -> bool:
        """Whether an op lets other warpgroups' copies overwrite what lanes may still be reading."""
        if not isinstance(op, (*TELLING, WarpMap)) or not (self.tma and now.read & self.copied):
            return False
        return tells(op, self.threads)  # inside a `warp_map`, only one warp would execute the fence

    def telling(self, op: Op, now: LaneAccesses) -> list[Op]:
        """What must stand before an op that tells others, who may then use what lanes still access."""
        before: list[Op] = [SmemProxyFence()] if self.tells(op, now) else []
        copy = isinstance(op, CopyGmemToSmem)
        # one lane signals for all, and one lane issues the part of a copy that other blocks wait for
        if releases(op) or (copy and op.multicast):
            if any(not touch.alone for touch in now.pending):
                before.append(WarpgroupBarrier())
        elif copy and before:
            op.meets = True
        return before

    def region(self, region: Region, now: LaneAccesses, rewrite: bool) -> LaneAccesses:
        """Walk a region. Returns the accesses at its end. With `rewrite`, barriers are put in."""
        out: list[Op] = []

        def put(barrier: Op, at: Op) -> None:
            barrier.loc = at.loc
            out.append(barrier)

        for op in region.ops:
            if not _matters(type(op)):
                out.append(op)
                continue
            if isinstance(op, (BitcastRef, PeerRef, AliasSmem, RemoteRef)):
                self.roots[op.result] = op.ref
            if isinstance(op, (CopyGmemToSmem, CopySmemToGmem)) and (barrier := self.before(op, now)) is not None:
                put(barrier, op)
                now = LaneAccesses() if isinstance(barrier, CommitSmem) else now.met()
            if isinstance(op, (*TELLING, WarpMap)):
                for barrier in self.telling(op, now):
                    put(barrier, op)
                    now = now.fenced() if isinstance(barrier, SmemProxyFence) else now.met()
            touched = self.touch(op)
            if touched is not None:
                if len(now.pending) >= MOST_PENDING or any(conflict(old, touched) for old in now.pending):
                    put(WarpgroupBarrier(), op)
                    now = now.met()
                now = now.with_touch(touched)
            elif isinstance(op, CommitSmem):
                now = LaneAccesses()
            elif isinstance(op, _WAITS):
                now = now.met()
            elif isinstance(op, SmemProxyFence):
                now = now.fenced()
            inner = op.region_list()
            if inner:
                now = self.nested(op, inner, now, rewrite)
            out.append(op)
        if rewrite:
            region.ops[:] = out
        return now

    def nested(self, op: Op, inner: tuple[Region, ...], now: LaneAccesses, rewrite: bool) -> LaneAccesses:
        if isinstance(op, (For, While)):
            key = id(op)
            if key not in self.loop_ends:
                end, left = self.iteration(inner, LaneAccesses(), rewrite=False)
                self.loop_ends[key] = end.before(), left.before()
            while True:
                last, left = self.loop_ends[key]
                start = now | last
                if not rewrite:
                    return start | left
                # a barrier for accesses before the loop may stand where later ones pend at the end, which did not above
                end, left = self.iteration(inner, start, rewrite=True)
                if (start | end.before()) == start:
                    return start | left
                self.loop_ends[key] = last | end.before(), left.before()
        merged = LaneAccesses()
        for region in inner:
            merged |= self.region(region, now, rewrite)
        return merged

    def iteration(
        self, inner: tuple[Region, ...], now: LaneAccesses, rewrite: bool
    ) -> tuple[LaneAccesses, LaneAccesses]:
        """Walk an iteration. Returns the accesses at its end, and those where the loop may be left: `while` ends in its test."""
        left = LaneAccesses()
        for region in inner:
            now = self.region(region, now, rewrite)
            left |= now
        return now, left


def variant(touch: Touch) -> Touch:
    """The access of the iteration before."""
    if not touch.offsets:
        return touch
    return Touch(touch.root, touch.write, touch.atomic, touch.view, touch.offsets, touch.layout, True, touch.cast)


def conflict(a: Touch, b: Touch) -> bool:
    """Whether two accesses, one of them a write, may touch one element from different lanes."""
    if a.root is not b.root or not (a.write or b.write) or (a.atomic and b.atomic):
        return False
    if a.view is None or b.view is None or a.layout is None or b.layout is None or a.cast is not b.cast:
        return True
    if disjoint(a, b):
        return False
    same_place = a.view == b.view and a.starts == b.starts and not a.variant and not b.variant
    if same_place and a.layout == b.layout and not a.layout.replicated_mask:
        return False
    return not (a.variant and a.write and b.write and tiles(a, b))


def tiles(a: Touch, b: Touch) -> bool:
    """Whether it is one store in two iterations, with starts at multiples of the extent: equal or disjoint places."""
    if a.view != b.view or a.starts != b.starts or a.layout != b.layout or a.layout is None or a.view is None:
        return False
    if a.layout.replicated_mask:
        return False
    for axis, offset in a.view.moving(a.offsets).items():
        span = 1 + sum(abs(d.step) * (d.size - 1) for d in a.view.dims if d.axis == axis)
        facts = offset.facts
        if facts is None or facts.divisor % span or a.view.start[axis] % span:
            return False
    return True


def disjoint(a: Touch, b: Touch) -> bool:
    """Whether they are provably disjoint along an axis with static starts."""
    if a.view is None or b.view is None or len(a.view.start) != len(b.view.start):
        return False
    for axis in range(len(a.view.start)):
        if axis in a.view.dynamic or axis in b.view.dynamic:
            continue
        (low_a, high_a), (low_b, high_b) = extent(a.view, axis), extent(b.view, axis)
        if high_a < low_b or high_b < low_a:
            return True
    return False


def extent(view: View, axis: int) -> tuple[int, int]:
    low = high = view.start[axis]
    for d in view.dims:
        if d.axis == axis:
            reach = d.step * (d.size - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Put the barriers in, in place."""
    order = MemoryOrder(ir.stand_ins(), ir.threads, target.supports(Feature.TMA))
    copies = [op for op in walk_region(ir.body) if isinstance(op, CopyGmemToSmem) and op.barrier is not None]
    order.copied = frozenset(id(buffer_of(op.dst)) for op in copies)
    order.region(ir.body, LaneAccesses(), rewrite=True)
    return ir
