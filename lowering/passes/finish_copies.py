"""Insert waits and fences for copies that still read or write SMEM when it ends or is used again.

Authors order the accesses to their own buffers. They can't order three things: the end of a block, the reuse of an
ended scope's scratch by another scope or iteration, and the overlap of a union's members. There this pass inserts a
wait for copies to GMEM that may still read (`cp.async.bulk.wait_group.read`), and a proxy fence between ordinary stores
and a copy that overwrites them. It inserts nothing if the kernel already has the wait or fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from kernel_dsl.in_flight import merged
from kernel_dsl.in_place import member_of, span_of, stored_to, turns
from kernel_dsl.ir import KernelIR, Op, RefType, Region, Value, buffer_of
from kernel_dsl.ops.control import For, If, While
from kernel_dsl.ops.copy import CopyGmemToSmem, CopySmemToGmem
from kernel_dsl.ops.copy_waits import CommitGroup, CommitSmem, WaitSmemToGmem
from kernel_dsl.ops.ref import AllocSmem, Store
from kernel_dsl.ops.scope import EnterScope
from kernel_dsl.registers import follow
from kernel_dsl.storage import storage_of
from kernel_dsl.target import Feature, Target
from kernel_dsl.view import View

from .plan_smem import Scope, sharing
from .telling import TELLING, tells

__all__ = ["run"]


class CopyPart(NamedTuple):
    """Bytes `low` to `high` of a buffer, accessed through a member: the buffer itself, or a member of a union."""

    member: Value
    low: int
    high: int


Parts = frozenset[CopyPart]
NONE: Parts = frozenset()


@dataclass(frozen=True)
class CopyState:
    """The possible accesses in flight at a point of the kernel.

    `groups`: parts that copies to GMEM may still read, by commit group, the newest first; `open`: those of the group
    not yet closed; `stored`: parts that ordinary stores wrote since the last proxy fence.
    """

    groups: tuple[Parts, ...] = ()
    open: Parts = NONE
    stored: Parts = NONE

    @property
    def read(self) -> Parts:
        """The parts that copies may still read."""
        return self.open.union(*self.groups)

    def closed(self) -> CopyState:
        return replace(self, groups=merged((self.open, *self.groups), ()), open=NONE)

    def waited(self, pending: int) -> CopyState:
        return replace(self, groups=self.groups[:pending])

    def joined(self, other: CopyState) -> CopyState:
        return CopyState(merged(self.groups, other.groups), self.open | other.open, self.stored | other.stored)


_EVENTS = (
    AllocSmem,
    EnterScope,
    CopyGmemToSmem,
    CopySmemToGmem,
    CommitGroup,
    CommitSmem,
    WaitSmemToGmem,
    *TELLING,
)


@cache
def _matters(cls: type[Op]) -> bool:
    """Whether ops of the class can change the state or hold regions: most only compute."""
    stores = "ref" in cls.fields and cls.writes
    return bool(cls.region_fields) or stores or issubclass(cls, _EVENTS)


def _clash(a: CopyPart, b: CopyPart) -> bool:
    """Whether two parts belong to different members of a union and overlap."""
    if a.member is b.member or buffer_of(a.member) is not buffer_of(b.member):
        return False
    return a.low < b.high and b.low < a.high


def _used(ref: Value, known: Mapping[Value, Any], view: View | None = None, offsets: Sequence[Value] = ()) -> CopyPart:
    """The part that an access touches.

    `known` may give its start along the outermost axis, such as a warpgroup's own slot.
    """
    member = member_of(ref)
    low, high = span_of(member)
    if view is None or ref is not member or not view.start:
        return CopyPart(member, low, high)
    type: RefType = ref.type
    stride = storage_of(type).strides[0] * type.dtype.itemsize
    moving = view.moving(offsets).get(0)
    if stride * type.shape[0] != high - low or (moving is not None and moving not in known):
        return CopyPart(member, low, high)
    first = view.start[0] + (0 if moving is None else known[moving])
    count = max((1 + (d.size - 1) * d.step for d in view.dims if d.axis == 0), default=1)
    return CopyPart(member, max(low, low + first * stride), min(high, low + (first + count) * stride))


def _stored(op: Op, known: Mapping[Value, Any]) -> CopyPart | None:
    """The parts of SMEM that an op writes through the generic proxy."""
    if stored_to(op) is None:
        return None
    if isinstance(op, CopyGmemToSmem):
        return _used(op.dst, known, op.dst_view, op.dst_offsets)
    if isinstance(op, Store):
        return _used(op.ref, known, op.view, op.offsets)
    return _used(op.ref, known)  # type: ignore[attr-defined]


@dataclass
class Writes:
    """The members that a warpgroup writes in SMEM: in any way, and by copies alone."""

    all: set[CopyPart] = field(default_factory=set)
    loaded: set[CopyPart] = field(default_factory=set)

    def note(self, region: Region, thread: int, known: dict[Value, Any]) -> Writes:
        for op in region.ops:
            follow(op, thread, known)
            if isinstance(op, CopyGmemToSmem):
                self.loaded.add(_used(op.dst, known, op.dst_view, op.dst_offsets))
            if (part := _stored(op, known)) is not None:
                self.all.add(part)
            for inner in _taken(op, known):
                self.note(inner, thread, known)
        self.all |= self.loaded
        return self


def _taken(op: Op, known: Mapping[Value, Any]) -> Sequence[Region]:
    """The regions of an op that a warpgroup may execute."""
    if isinstance(op, If) and op.predicate in known:
        return (op.then if known[op.predicate] else op.otherwise,)
    return op.region_list()


class Finish:
    """The pass over one kernel for one of its warpgroups. It follows branches that the warpgroup's number decides."""

    def __init__(self, ir: KernelIR, thread: int, others: Sequence[Writes]) -> None:
        self.ir = ir
        self.thread = thread
        self.others_write: list[CopyPart] = [part for writes in others for part in writes.all]
        self.others_load: list[CopyPart] = [part for writes in others for part in writes.loaded]
        self.known: dict[Value, Any] = {}
        self.loops: dict[tuple[Op, CopyState], tuple[CopyState, CopyState]] = {}  # before the insertion
        self.sharing: frozenset[Scope] = sharing(ir.walk())
        copies = [op for op in ir.walk() if isinstance(op, CopyGmemToSmem)]
        self.loaded: set[Value] = {member_of(op.dst) for op in copies}  # members that copies write
        self.written: set[Value] = self.loaded | {m for op in ir.walk() if (m := stored_to(op)) is not None}

    def region(self, region: Region, state: CopyState, insert: bool) -> CopyState:
        """The state after a region, from the state before it. With `insert`, waits and fences are put in."""
        out: list[Op] = []
        for op in region.ops:
            if self.ir.threads > 1:
                follow(op, self.thread, self.known)
            if _matters(type(op)):
                before, state = self.step(op, state, insert)
                out += before
            out.append(op)
        if insert:
            region.ops[:] = out
        return state

    def step(self, op: Op, state: CopyState, insert: bool) -> tuple[list[Op], CopyState]:
        """The ops to insert before an op, and the state after it."""
        if isinstance(op, (For, While)):
            return [], self.loop(op, state, insert)
        if op.region_fields:
            ends = [self.region(inner, state, insert) for inner in _taken(op, self.known)]
            for end in ends[1:]:
                ends[0] = ends[0].joined(end)
            return [], ends[0]
        wait, fence = self.needs(op, state)
        before: list[Op] = []
        if wait:
            before += _waits(op, state)
            state = replace(state, groups=(), open=NONE)
        if fence:
            before.append(_at(CommitSmem(), op))
            state = replace(state, stored=NONE)
        return before, self.after(op, state)

    def loop(self, op: For | While, state: CopyState, insert: bool) -> CopyState:
        """Adds iterations until the state is stable. Results are kept, because outer loops ask repeatedly."""
        if (op, state) not in self.loops:
            self.loops[op, state] = self.settled(op, state)
        start, left = self.loops[op, state]
        if insert:
            left = self.iteration(op, start, True)[1]
        return left if isinstance(op, While) or turns(op)[0] else state.joined(left)

    def iteration(self, op: For | While, state: CopyState, insert: bool) -> tuple[CopyState, CopyState]:
        """The states at an iteration's end, and where the loop is left: `while` is left after its test."""
        ends: list[CopyState] = []
        for inner in op.region_list():
            state = self.region(inner, state, insert)
            ends.append(state)
        return state, ends[0]

    def settled(self, op: For | While, state: CopyState) -> tuple[CopyState, CopyState]:
        """The states before an iteration and where the loop is left, from the state before the loop."""
        start = state
        while True:
            end, left = self.iteration(op, start, False)
            both = start.joined(end)
            if both == start:
                return start, left
            start = both

    def needs(self, op: Op, state: CopyState) -> tuple[bool, bool]:
        """Whether an op needs a wait for copies, and whether it needs a fence, before it."""
        if isinstance(op, AllocSmem):  # the next iteration of a loop allocates it again
            unfenced = self.unfenced(op.result)
            stored = (part for part in state.stored if part.member in unfenced)
            return op.result in _buffers(state.read), op.result in _buffers(stored)
        if isinstance(op, EnterScope):
            return any(self.ends(op, b) for b in _buffers(state.read)), False
        wait = fence = False
        if self.ir.threads > 1 and isinstance(op, TELLING) and tells(op, self.ir.threads):
            # others may then use the union's memory
            wait = any(_clash(part, w) for part in state.read for w in self.others_write)
            fence = any(_clash(part, w) for part in state.stored for w in self.others_load)
        load = isinstance(op, CopyGmemToSmem)
        own = _used(op.dst, self.known, op.dst_view, op.dst_offsets) if load else _stored(op, self.known)
        if own is None:
            return wait, fence
        wait = wait or any(_clash(own, p) for p in state.read)
        return wait, fence or (load and any(_clash(own, p) for p in state.stored))

    def unfenced(self, buffer: Value) -> frozenset[Value]:
        """The members of a buffer whose stored data copies overwrite in another iteration."""
        return frozenset(m for m in self.written if buffer_of(m) is buffer and any(
            buffer_of(w) is buffer and (w is m or _clash(_used(w, {}), _used(m, {}))) for w in self.loaded
        ))  # fmt: skip

    def ends(self, op: EnterScope, buffer: Value) -> bool:
        """Whether a buffer may share memory with the scope."""
        alloc = buffer.op
        if not isinstance(alloc, AllocSmem) or alloc.scope == op.scope:
            return isinstance(alloc, AllocSmem) and bool(alloc.scope)
        return op.scope in self.sharing and alloc.scope != op.scope[: len(alloc.scope)]

    def after(self, op: Op, state: CopyState) -> CopyState:
        if isinstance(op, EnterScope) and op.scope in self.sharing:
            return replace(state, stored=NONE)  # it fences
        if isinstance(op, CommitSmem):
            return replace(state, stored=NONE)
        if isinstance(op, WaitSmemToGmem):
            return state.waited(op.pending)
        if isinstance(op, CommitGroup):
            return state.closed()
        if isinstance(op, CopySmemToGmem):
            read = _used(op.src, self.known, op.src_view, op.src_offsets)
            issued = replace(state, open=state.open | {read})
            issued = issued.closed() if op.commit else issued
            return issued if op.predicate is None else state.joined(issued)
        stored = _stored(op, self.known)
        return state if stored is None else replace(state, stored=state.stored | {stored})


def _buffers(parts: Iterable[CopyPart]) -> set[Value]:
    return {buffer_of(part.member) for part in parts}


def _at(op: Op, place: Op) -> Op:
    op.loc = place.loc
    return op


def _waits(place: Op, state: CopyState) -> list[Op]:
    close = [_at(CommitGroup(), place)] if state.open else []
    return [*close, _at(WaitSmemToGmem(0, True), place)]


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Put the waits and fences in, in place."""
    if not target.supports(Feature.TMA):
        return ir
    if not any(isinstance(op, (CopyGmemToSmem, CopySmemToGmem)) for op in ir.walk()):
        return ir
    writes = [Writes().note(ir.body, thread, {}) for thread in range(ir.threads)]
    for thread in range(ir.threads):
        others = [w for number, w in enumerate(writes) if number != thread]
        end = Finish(ir, thread, others).region(ir.body, CopyState(), True)
        if end.read:
            last = [op for op in ir.walk() if isinstance(op, CopySmemToGmem)][-1]
            ir.body.ops += _waits(last, end)
    return ir
