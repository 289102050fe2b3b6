"""Barriers and arrivals that certainly come after a warp's earlier loads of shared memory.

`bar.sync`, `barrier.cluster` and arrivals on mbarriers do not wait for loads. But a value that a store, an address, a branch or
a wgmma has taken is in its register, and such an instruction keeps its place before the barrier. Arithmetic and `mma.sync`
don't: the assembler may move them behind it. A load whose value nobody uses does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..isa.cfg import Segment, build_segments
from ..isa.liveness import bits_of, used
from ..ptx.module import Function, Instruction, Mem

_LOADS = ("ld", "ldu", "ldmatrix", "wmma")
_OTHER_SPACES = {"global", "param", "const", "local", "param::entry", "param::func"}
# instructions that keep their place among barriers and memory accesses, and so wait for what they take
_TAKES = {
    "st",
    "red",
    "atom",
    "stmatrix",
    "wgmma",
    "multimem",
    "cp",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "prefetch",
    "applypriority",
}


class _State:
    """What is on its way: loads, and the registers that hold what comes from each, as bit sets of loads."""

    __slots__ = ("pending", "taints")

    def __init__(self, pending: int = 0, taints: dict[int, int] | None = None) -> None:
        self.pending = pending
        self.taints: dict[int, int] = {} if taints is None else taints

    def join(self, other: _State) -> bool:
        """Add another path's; return whether anything is new."""
        new = bool(other.pending & ~self.pending)
        self.pending |= other.pending
        for register, loads in other.taints.items():
            known = self.taints.get(register, 0)
            if loads & ~known:
                self.taints[register] = known | loads
                new = True
        return new


def settled(fn: Function) -> frozenset[int]:
    """The ids of the instructions before which no load of shared memory may still be on its way, on any path."""
    return _Flow(fn).run()


def after_loads(op: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The operation of such an instruction: it records first that the warps' loads have taken place."""

    def run(c: Any) -> Any:
        if c.batch.clocks is not None:
            c.batch.clocks.performed(c.rows)
        return op(c)

    return run


class _Flow:
    def __init__(self, fn: Function) -> None:
        self.segments: list[Segment] = build_segments(fn)
        self.numbers: dict[int, int] = {}  # of loads, by id
        self.uses: dict[int, tuple[list[int], list[int]]] = {}  # registers read and written, by id
        read = 0
        code = [ins for segment in self.segments for ins in _all(segment)]
        for ins in code:
            reads, writes = used(ins)
            self.uses[id(ins)] = _numbers(reads), _numbers(writes)
            read |= reads
        for ins in code:
            if _loads_shared(ins) and used(ins)[1] & read:
                self.numbers[id(ins)] = len(self.numbers)
        self.quiet: set[int] = set()

    def run(self) -> frozenset[int]:
        starts: list[_State | None] = [_State(), *[None] * (len(self.segments) - 1)]
        todo = {0}
        while todo:
            at = min(todo)
            todo.remove(at)
            start = starts[at]
            assert start is not None
            end = self._through(self.segments[at], _State(start.pending, dict(start.taints)))
            for target in self.segments[at].targets:
                found = starts[target]
                if found is None:
                    starts[target] = _State(end.pending, dict(end.taints))
                    todo.add(target)
                elif found.join(end):
                    todo.add(target)
        for segment, start in zip(self.segments, starts, strict=True):
            if start is not None:
                self._through(segment, _State(start.pending, dict(start.taints)), note=True)
        return frozenset(self.quiet)

    def _through(self, segment: Segment, state: _State, note: bool = False) -> _State:
        taints = state.taints
        for ins in _all(segment):
            if note and not state.pending:
                self.quiet.add(id(ins))
            reads, writes = self.uses[id(ins)]
            taken = 0
            for register in reads:
                taken |= taints.get(register, 0)
            head = ins.opcode[0]
            if head in _TAKES or (head in _LOADS and taken and taken & self._of_addresses(ins, taints)):
                state.pending &= ~taken
            number = self.numbers.get(id(ins))
            if number is not None:
                taken |= 1 << number
                state.pending |= 1 << number
            taken &= state.pending
            for register in writes:
                # a guarded instruction may leave the register's earlier value
                kept = taints.get(register, 0) if ins.guard is not None else 0
                if taken | kept:
                    taints[register] = taken | kept
                else:
                    taints.pop(register, None)
        return state

    def _of_addresses(self, ins: Instruction, taints: dict[int, int]) -> int:
        bits = 0
        for operand in ins.operands:
            if isinstance(operand, Mem):
                for register in _numbers(bits_of(operand)):
                    bits |= taints.get(register, 0)
        return bits


def _all(segment: Segment) -> Iterator[Instruction]:
    if segment.sync is not None:
        yield segment.sync
    yield from segment.code
    if segment.end is not None and segment.end is not segment.sync:
        yield segment.end


def _loads_shared(ins: Instruction) -> bool:
    head = ins.opcode[0]
    if head not in _LOADS or (head == "wmma" and ins.opcode[1] != "load"):
        return False
    return not _OTHER_SPACES & set(ins.opcode)


def _numbers(bits: int) -> list[int]:
    out: list[int] = []
    while bits:
        low = bits & -bits
        out.append(low.bit_length() - 1)
        bits ^= low
    return out
