"""The registers that an instruction reads and writes, as bit sets (bit i: register i)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ptx.module import BraceGroup, Imm, Instruction, Label, Mem, Negated, Operand, Pair, Reg, Vec
from .cfg import Segment
from .instructions import known_form

# Instructions without a row whose first operand is not a destination.
_NO_RESULT = {"bra", "brx", "ret", "exit", "trap", "call"}


def bits_of(operand: Operand | None) -> int:
    """Return the registers that an operand names."""
    if isinstance(operand, Reg):
        return 1 << operand.index
    if isinstance(operand, Negated):
        return 1 << operand.reg.index
    if isinstance(operand, Mem):
        bits = bits_of(operand.base)
        for coordinate in operand.coords or ():
            bits |= bits_of(coordinate)
        return bits
    if isinstance(operand, Vec | BraceGroup):
        bits = 0
        for item in operand.items:
            bits |= bits_of(item)
        return bits
    if isinstance(operand, Pair):
        return bits_of(operand.first) | bits_of(operand.second)
    return 0


def numbers_of(bits: int) -> list[int]:
    """Return the numbers of the registers of a set, in order. It takes time by how many these are, which is few of thousands."""
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def used(ins: Instruction) -> tuple[int, int]:
    """Return (registers read, registers written)."""
    if ins.registers is None:
        ins.registers = _used(ins)
    return ins.registers


def _used(ins: Instruction) -> tuple[int, int]:
    reads = 1 << ins.guard[0].index if ins.guard else 0
    writes = 0
    rest = ins.operands
    form = known_form(ins)
    if form is not None and form.row.roles:
        results = form.row.roles[0].kind in ("D", "D!", "D|P", "X", "{}")
    else:
        results = ins.opcode[0] not in _NO_RESULT and bool(rest) and not isinstance(rest[0], Mem)
    if results and rest:
        roles = () if form is None else form.row.roles or ()
        count = 1 + any(role.kind in ("D", "D!", "D{}") for role in roles[1:])
        for operand in rest[:count]:
            writes |= bits_of(operand)
        rest = rest[count:]
    if ins.opcode[0] == "call" and rest and isinstance(rest[0], BraceGroup):  # the results
        writes |= bits_of(rest[0])
        rest = rest[1:]
    for operand in rest:
        reads |= bits_of(operand)
    return reads, writes


def scale_of(ins: Instruction) -> Operand | None:
    """Return the operand of wgmma.mma_async that says whether it adds to its accumulators; None for other instructions."""
    if ins.opcode[:2] != ("wgmma", "mma_async"):
        return None
    return ins.operands[5 if "sp" in ins.opcode else 3]


def read_first(segments: Sequence[Segment]) -> int:
    """Return the registers that some path from the entry, the first segment, reads before it writes them."""
    reads, writes = list[int](), list[int]()
    for segment in segments:
        read = written = 0
        for ins in (segment.sync, *segment.code, segment.end):
            if ins is None:
                continue
            uses, results = used(ins)
            scale = scale_of(ins)
            if scale is not None and not (isinstance(scale, Imm) and scale.value == 0):
                uses |= results
            read |= uses & ~written
            written |= results if ins.guard is None else 0
        reads.append(read)
        writes.append(written)
    needed, last = reads.copy(), None
    while needed != last:
        last = needed.copy()
        for at in reversed(range(len(segments))):
            later = 0
            for target in segments[at].targets:
                later |= needed[target]
            needed[at] = reads[at] | (later & ~writes[at])
    return needed[0]


def mentioned_once(body: Iterable[Instruction | Label]) -> int:
    """Return the registers that only one instruction names."""
    seen = again = 0
    for ins in body:
        if isinstance(ins, Instruction):
            reads, writes = used(ins)
            again |= seen & (reads | writes)
            seen |= reads | writes
    return seen & ~again
