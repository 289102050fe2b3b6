"""Wait for copies that still read or write SMEM where that ends or is used again: the compiler's waits and fences.

What an author does with his own buffers is his to order. That a block ends, that scratch of an ended scope is another
one's or the next turn's, and that members of a union lie on each other, is not his doing: there stand a wait for the
copies to GMEM that may still read (`cp.async.bulk.wait_group.read`), and a proxy fence between ordinary stores and a copy
that overwrites them. Nothing is put in where the kernel shows that it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kernel_dsl.in_flight import merged, turns
from kernel_dsl.in_place import member_of, stored_to
from kernel_dsl.ir import Effect, KernelIR, Op, RefType, Region, Value, buffer_of
from kernel_dsl.ops.barrier import BarrierArrive
from kernel_dsl.ops.control import For, If, While
from kernel_dsl.ops.copy import CommitGroup, CommitSmem, CopyGmemToSmem, CopySmemToGmem, WaitSmemToGmem
from kernel_dsl.ops.ref import AllocSmem
from kernel_dsl.ops.scope import EnterScope
from kernel_dsl.ops.threads import AliasSmem
from kernel_dsl.registers import follow
from kernel_dsl.target import Feature, Target

from .plan_smem import sharing

__all__ = ["run"]

Members = frozenset[Value]
NONE: Members = frozenset()


@dataclass(frozen=True)
class State:
    """What may be going on at a place. A member is a buffer, or one of those that share a union's memory.

    `groups`: what copies to GMEM may still read, by commit group, the newest first; `open`: of the group not yet closed;
    `stored`: what ordinary stores wrote since the last proxy fence.
    """

    groups: tuple[Members, ...] = ()
    open: Members = NONE
    stored: Members = NONE

    @property
    def read(self) -> Members:
        """What copies may still read."""
        return self.open.union(*self.groups)

    def closed(self) -> State:
        return replace(self, groups=merged((self.open, *self.groups), ()), open=NONE)

    def waited(self, pending: int) -> State:
        return replace(self, groups=self.groups[:pending])

    def joined(self, other: State) -> State:
        return State(merged(self.groups, other.groups), self.open | other.open, self.stored | other.stored)


_EVENTS = (
    AllocSmem,
    EnterScope,
    CopyGmemToSmem,
    CopySmemToGmem,
    CommitGroup,
    CommitSmem,
    WaitSmemToGmem,
    BarrierArrive,
)


@cache
def _matters(cls: type[Op]) -> bool:
    """Whether an op of the class can change the state, or holds regions: most only compute."""
    stores = "ref" in cls.fields and bool(cls.effect & Effect.WRITE)
    return bool(cls.region_fields) or stores or issubclass(cls, _EVENTS)


def _span(member: Value) -> tuple[int, int]:
    """(first byte, past the last) within the buffer."""
    start = member.op.offset if isinstance(member.op, AliasSmem) else 0
    type: RefType = member.type
    size = type.dtype.itemsize
    for extent in type.shape:
        size *= extent
    return start, start + size


def _clash(a: Value, b: Value) -> bool:
    """Whether two are different members of a union that lie on each other."""
    if a is b or buffer_of(a) is not buffer_of(b):
        return False
    (low_a, high_a), (low_b, high_b) = _span(a), _span(b)
    return low_a < high_b and low_b < high_a


class Finish:
    """The pass over one kernel, for one of its warpgroups: which branches it takes is followed where its number says so."""

    def __init__(self, ir: KernelIR, thread: int) -> None:
        self.ir = ir
        self.thread = thread
        self.known: dict[Value, Any] = {}
        self.loops: dict[tuple[Op, State], tuple[State, State]] = {}  # of loops, before anything is put in
        self.sharing = sharing(ir.walk())
        copies = [op for op in ir.walk() if isinstance(op, CopyGmemToSmem)]
        self.loaded = {member_of(op.dst) for op in copies}  # what copies write
        self.written = self.loaded | {m for op in ir.walk() if (m := stored_to(op)) is not None}

    def region(self, region: Region, state: State, insert: bool) -> State:
        """What may be going on behind a region, given what may be before it. With `insert`, waits and fences are put in."""
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

    def step(self, op: Op, state: State, insert: bool) -> tuple[list[Op], State]:
        """What has to stand before an op, and the state behind it."""
        if isinstance(op, (For, While)):
            return [], self.loop(op, state, insert)
        if op.region_fields:
            taken = op.region_list()
            if isinstance(op, If) and op.predicate in self.known:
                taken = (op.then if self.known[op.predicate] else op.otherwise,)
            ends = [self.region(inner, state, insert) for inner in taken]
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

    def loop(self, op: For | While, state: State, insert: bool) -> State:
        """Turns are added until they bring nothing new. The ends are kept, for loops around it ask again and again."""
        if (op, state) not in self.loops:
            self.loops[op, state] = self.settled(op, state)
        start, end = self.loops[op, state]
        if insert:
            end = start
            for inner in op.region_list():
                end = self.region(inner, end, True)
        return end if turns(op)[0] else state.joined(end)

    def settled(self, op: For | While, state: State) -> tuple[State, State]:
        """What may be going on before a turn, and behind it, given what may be before the loop."""
        start = state
        while True:
            end = start
            for inner in op.region_list():
                end = self.region(inner, end, False)
            both = start.joined(end)
            if both == start:
                return start, end
            start = both

    def needs(self, op: Op, state: State) -> tuple[bool, bool]:
        """Whether copies have to end before an op, and whether stores have to be fenced."""
        if isinstance(op, AllocSmem):  # the next turn of a loop has it anew
            return op.result in _buffers(state.read), op.result in _buffers(state.stored & self.unfenced(op.result))
        if isinstance(op, EnterScope):
            return any(self.ends(op, b) for b in _buffers(state.read)), False
        if isinstance(op, BarrierArrive) and self.ir.threads > 1:  # others may use the union's memory behind it
            wait = any(_clash(m, w) for m in state.read for w in self.written)
            return wait, any(_clash(m, w) for m in state.stored for w in self.loaded)
        member = member_of(op.dst) if isinstance(op, CopyGmemToSmem) else stored_to(op)
        if member is None:
            return False, False
        fence = isinstance(op, CopyGmemToSmem) and any(_clash(member, m) for m in state.stored)
        return any(_clash(member, m) for m in state.read), fence

    def unfenced(self, buffer: Value) -> Members:
        """The members of a buffer of which copies overwrite what stores wrote, in another turn."""
        return frozenset(m for m in self.written if buffer_of(m) is buffer and any(
            buffer_of(w) is buffer and (w is m or _clash(w, m)) for w in self.loaded
        ))  # fmt: skip

    def ends(self, op: EnterScope, buffer: Value) -> bool:
        """Whether the memory of a buffer may be that of the scope."""
        alloc = buffer.op
        if not isinstance(alloc, AllocSmem) or alloc.scope == op.scope:
            return isinstance(alloc, AllocSmem) and bool(alloc.scope)
        return op.scope in self.sharing and alloc.scope != op.scope[: len(alloc.scope)]

    def after(self, op: Op, state: State) -> State:
        if isinstance(op, EnterScope) and op.scope in self.sharing:
            return replace(state, stored=NONE)  # it fences
        if isinstance(op, CommitSmem):
            return replace(state, stored=NONE)
        if isinstance(op, WaitSmemToGmem):
            return state.waited(op.pending)
        if isinstance(op, CommitGroup):
            return state.closed()
        if isinstance(op, CopySmemToGmem):
            issued = replace(state, open=state.open | {member_of(op.src)})
            issued = issued.closed() if op.commit else issued
            return issued if op.predicate is None else state.joined(issued)
        member = stored_to(op)
        return state if member is None else replace(state, stored=state.stored | {member})


def _buffers(members: Iterable[Value]) -> set[Value]:
    return {buffer_of(m) for m in members}


def _at(op: Op, place: Op) -> Op:
    op.loc = place.loc
    return op


def _waits(place: Op, state: State) -> list[Op]:
    close = [_at(CommitGroup(), place)] if state.open else []
    return [*close, _at(WaitSmemToGmem(0, True), place)]


def run(ir: KernelIR, target: Target) -> KernelIR:
    """Put the waits and fences in, in place."""
    if not target.supports(Feature.TMA):
        return ir
    if not any(isinstance(op, (CopyGmemToSmem, CopySmemToGmem)) for op in ir.walk()):
        return ir
    for thread in range(ir.threads):
        end = Finish(ir, thread).region(ir.body, State(), True)
        if end.read:
            last = [op for op in ir.walk() if isinstance(op, CopySmemToGmem)][-1]
            ir.body.ops += _waits(last, end)
    return ir
