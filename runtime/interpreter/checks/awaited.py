"""What warps wait for that poll memory: the element, its value, and the value that would let them go on.

A warp that polls goes round a loop of the segments that were executed lately. There a strong load or an atomic reads an
element, and a comparison of its value decides whether the warp leaves. The value reaches the comparison through moves, or
through shared memory if one lane reads for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.cfg import components, synchronises
from ..isa.instructions import known_form
from ..isa.liveness import used
from ..ptx.module import Imm, Instruction, Mem, Operand, Pair, Reg, Vec

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group

_UNTIL = {
    "lt": "to reach {}", "lo": "to reach {}", "ge": "to fall below {}", "hs": "to fall below {}",
    "gt": "to fall to {}", "hi": "to fall to {}", "le": "to exceed {}", "ls": "to exceed {}",
    "eq": "to differ from {}", "ne": "to become {}",
}  # fmt: skip
_OPPOSITES = (("lt", "ge"), ("lo", "hs"), ("gt", "le"), ("hi", "ls"), ("eq", "ne"))
_OPPOSITE = dict([*_OPPOSITES, *((b, a) for a, b in _OPPOSITES)])
_SIDES = (("lt", "gt"), ("le", "ge"), ("lo", "hi"), ("ls", "hs"))  # with the operands in the other order
_TURNED = dict([*_SIDES, *((b, a) for a, b in _SIDES)])
_HOLDS = {"lt": np.less, "lo": np.less, "gt": np.greater, "hi": np.greater, "eq": np.equal}
_MOVES = ("mov", "cvt", "selp", "shfl")  # instructions that pass a value on


@dataclass(frozen=True)
class PolledRead:
    """A read of an element in global memory: the instruction, the registers of its results, address and bytes of each."""

    ins: Instruction
    results: tuple[int | None, ...]
    address: int
    size: int
    signed: bool


def awaited(batch: Batch, g: Group, poll: Instruction | None) -> list[tuple[Instruction, str]]:
    """Return (its poll, a report's line) for each block of a group that goes round a loop.

    `poll`: the instruction that read last, if it is known. Empty if the loop polls no global memory.
    """
    segments = g.frame.code.segments
    loop = _loop(batch, g)
    code = [ins for n in loop for ins in segments[n].code]
    polls = [ins for ins in code if ins is poll] or [ins for ins in code if synchronises(ins)]
    branches = [segments[n].guard for n in loop if _leaves(segments[n], loop)]
    leaves = {guard[0] for guard in branches if guard is not None}
    found: list[tuple[Instruction, str]] = []
    reporter = batch.run.reporter
    for cta in np.unique(g.cta).tolist():
        row, lane = (int(i) for i in np.argwhere(g.active & (g.cta == cta)[:, None])[0])
        at = PollingLane(batch, g, row, lane)
        read = next(filter(None, (_poll(at, ins) for ins in polls)), None)
        if read is not None:
            who = f"{reporter.block(batch.coordinates[cta])} warpgroup {int(batch.row_warp[g.rows[row]]) // 4}"
            line = f"{who}: {_text(at, read, code, leaves)}, at {reporter.place(read.ins)}"
            found.append((read.ins, line))
    return found


def _loop(batch: Batch, g: Group) -> list[int]:
    """Return the segments of the loop around a group that were executed since memory last changed, or all of the loop."""
    segments = g.frame.code.segments
    lately = {pc for name, pc in batch.trail or () if name == g.frame.code.name} | {g.pc}
    for among in (lately, set(range(len(segments)))):
        edges = {n: [t for t in segments[n].targets if t in among] for n in among}
        loop = components((), edges, g.pc)[-1]
        if len(loop) > 1 or g.pc in edges[g.pc]:
            return sorted(loop)
    return []


def _leaves(seg: Any, loop: list[int]) -> bool:
    return seg.kind == "branch" and any(target not in loop for target in seg.targets)


class PollingLane:
    """One lane's registers."""

    def __init__(self, batch: Batch, g: Group, row: int, lane: int) -> None:
        self.batch: Batch = batch
        self.g: Group = g
        self.row: int = row
        self.lane: int = lane

    def value(self, operand: Operand, signed: bool = False) -> int | None:
        """Return an integer operand's value; None for other operands."""
        if isinstance(operand, Imm):
            return operand.value
        if not isinstance(operand, Reg):
            return None
        held = np.broadcast_to(self.g.v[operand.index], (self.g.n, 32))[self.row, self.lane]
        if held.dtype.kind not in "iub":
            return None
        return int(held.view(f"i{held.itemsize}") if signed and held.dtype.kind != "b" else held)

    def address(self, operand: Operand) -> int | None:
        """Return the address that a memory operand names, if a register holds its base."""
        base = self.value(operand.base) if isinstance(operand, Mem) and operand.coords is None else None
        return None if base is None or not isinstance(operand, Mem) else base + operand.offset


def _poll(at: PollingLane, ins: Instruction) -> PolledRead | None:
    form = known_form(ins)
    if form is None or ins.opcode[0] not in ("ld", "atom") or form["space"] not in ("", "global"):
        return None
    address = at.address(ins.operands[1])
    if address is None or at.batch.run.memory.bytes_at(address, form.size) is None:
        return None
    dest = ins.operands[0]
    results = dest.items if isinstance(dest, Vec) else (dest,)
    numbers = tuple(r.index if isinstance(r, Reg) else None for r in results)
    return PolledRead(ins, numbers, address, form.size, form["type"][:1] == "s")


def _text(at: PollingLane, poll: PolledRead, code: list[Instruction], leaves: set[int]) -> str:
    """Return "waits for 'arrived'[2] on device 1 to reach 3; it was 1"."""
    number, until = next(_comparisons(at, poll, code, leaves), (0, "to change"))
    address = poll.address + number * poll.size
    buffer = at.batch.run.memory.find(address)
    name = "memory" if buffer is None else buffer.element(address - buffer.address)
    return f"waits for {name} {until}; it was {_held(at, poll, number)}"


def _held(at: PollingLane, poll: PolledRead, number: int) -> int:
    data = at.batch.run.memory.bytes_at(poll.address + number * poll.size, poll.size)
    assert data is not None
    return int.from_bytes(data.tobytes(), "little", signed=poll.signed)


def _comparisons(
    at: PollingLane, poll: PolledRead, code: list[Instruction], leaves: set[int]
) -> Iterator[tuple[int, str]]:
    """Yield (the number of the polled element, words) for comparisons of it; those that decide the loop's end come first."""
    carried = _carried(at, poll, code)
    written = 0
    for ins in code:
        written |= used(ins)[1]
    compares = [ins for ins in code if ins.opcode[0] == "setp" and len(ins.operands) == 3]
    compares.sort(key=lambda ins: _result(ins.operands[0]) not in leaves)
    for ins in compares:
        for one, other, turned in ((1, 2, False), (2, 1, True)):
            value, bound = ins.operands[one], ins.operands[other]
            fixed = isinstance(bound, Imm) or (isinstance(bound, Reg) and not written >> bound.index & 1)
            if isinstance(value, Reg) and value.index in carried and fixed:
                number = carried[value.index]
                until = _until(ins, at, _held(at, poll, number), bound, turned)
                if until:
                    yield number, until


def _until(ins: Instruction, at: PollingLane, held: int, bound: Operand, turned: bool) -> str:
    """Return the words for the opposite of how the value now compares with the bound."""
    relation, kind = ins.opcode[1], ins.opcode[-1]
    signed = kind[:1] == "s"
    wanted = at.value(bound, signed)
    if relation not in _OPPOSITE or wanted is None or kind[:1] not in "sub":
        return ""
    if turned:
        relation = _TURNED.get(relation, relation)
    bits = int(kind[1:])
    if signed:
        held = (held + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    holds = _HOLDS[relation](held, wanted) if relation in _HOLDS else not _HOLDS[_OPPOSITE[relation]](held, wanted)
    return _UNTIL[relation if holds else _OPPOSITE[relation]].format(wanted)


def _result(operand: Operand) -> int | None:
    first = operand.first if isinstance(operand, Pair) else operand
    return first.index if isinstance(first, Reg) else None


def _carried(at: PollingLane, poll: PolledRead, code: list[Instruction]) -> dict[int, int]:
    """Return the registers that hold what the poll has read, and the number of the element in each."""
    carried = {register: number for number, register in enumerate(poll.results) if register is not None}
    shared: dict[int, int] = {}
    while True:
        before = len(carried), len(shared)
        for ins in code:
            _pass_on(at, ins, carried, shared)
        if before == (len(carried), len(shared)):
            return carried


def _pass_on(at: PollingLane, ins: Instruction, carried: dict[int, int], shared: dict[int, int]) -> None:
    """Enter the register or the word of shared memory to which an instruction moves a carried value."""
    head, dest = ins.opcode[0], ins.operands[0] if ins.operands else None
    inside = "shared" in ins.opcode or "shared::cta" in ins.opcode
    if head in _MOVES:
        source = next((o.index for o in ins.operands[1:] if isinstance(o, Reg) and o.index in carried), None)
        result = _result(dest) if dest is not None else None
        if source is not None and result is not None:
            carried.setdefault(result, carried[source])
    elif head == "st" and inside and isinstance(dest, Mem):
        value, address = ins.operands[1], at.address(dest)
        if isinstance(value, Reg) and value.index in carried and address is not None:
            shared.setdefault(address, carried[value.index])
    elif head == "ld" and inside and isinstance(dest, Reg):
        address = at.address(ins.operands[1])
        if address in shared:
            carried.setdefault(dest.index, shared[address])
