"""The registers that an instruction reads and writes, as bit sets (bit i: register i)."""

from __future__ import annotations

from collections.abc import Iterable

from ..ptx.module import BraceGroup, Instruction, Label, Mem, Negated, Operand, Pair, Reg, Vec
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


def used(ins: Instruction) -> tuple[int, int]:
    """Return (registers read, registers written)."""
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
    for operand in rest:
        reads |= bits_of(operand)
    return reads, writes


def mentioned_once(body: Iterable[Instruction | Label]) -> int:
    """Return the registers that only one instruction names."""
    seen = again = 0
    for ins in body:
        if isinstance(ins, Instruction):
            reads, writes = used(ins)
            again |= seen & (reads | writes)
            seen |= reads | writes
    return seen & ~again
