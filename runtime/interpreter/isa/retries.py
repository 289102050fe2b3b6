"""Tests of mbarriers that are only tried again when they fail.

    L: mbarrier.try_wait.parity.shared.b64 p, [bar], 0;  @!p bra L;

A failure of such a test (PTX ISA 9.7.13.15.16, mbarrier.test_wait and .try_wait) changes nothing. After any other test, a
program goes on without the phase, so `checks/given_up.py` lets it fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ptx.module import Function, Imm, Instruction, Label, Negated, Operand, Reg, Sym
from .liveness import bits_of, used

_MOST = 200  # instructions between two tries
_QUIET = frozenset(
    "mov add sub mul mad neg min max and or xor not shl shr selp setp cvt cvta nanosleep".split()  # noqa: SIM905
)


def only_tried_again(fn: Function, test: Instruction) -> bool:
    """Return whether `test`, if it fails, is tried again with the same operands, and nothing else happens before."""
    places = {item.name: at for at, item in enumerate(fn.body) if isinstance(item, Label)}
    start = next(at for at, item in enumerate(fn.body) if item is test)
    result = test.operands[0]
    if not isinstance(result, Reg):
        return False
    asked = 0
    for operand in test.operands[1:]:
        asked |= bits_of(operand)
    known, changed, at = {result.index: 0}, 0, start + 1
    for _ in range(_MOST):
        if at == start:
            return True
        if at >= len(fn.body):
            return False
        ins = fn.body[at]
        at += 1
        if isinstance(ins, Label):
            continue
        taken = _taken(ins, known)
        if ins.opcode[0] == "bra":
            target = ins.operands[0]
            if taken is None or not isinstance(target, Sym):
                return False
            at = places[target.name] if taken else at
            continue
        if taken is False:
            continue
        if ins.opcode[0] not in _QUIET:
            return False
        reads, writes = used(ins)
        value = _value(ins, known) if taken else None
        varies = value is None and bool(reads & changed or taken is None or _counts(ins, reads, writes))
        if varies and writes & asked:
            return False
        changed = changed | writes if varies else changed & ~writes
        _keep(known, ins, writes, value)
    return False


def _taken(ins: Instruction, known: dict[int, int]) -> bool | None:
    """Return whether an instruction's guard is true, or None if that is not known."""
    if ins.guard is None:
        return True
    value = known.get(ins.guard[0].index)
    return None if value is None else bool(value) != ins.guard[1]


def _counts(ins: Instruction, reads: int, writes: int) -> bool:
    """Return whether an instruction may give another value at each try."""
    return bool(reads & writes) or (ins.opcode[0] == "mov" and "clock" in str(ins.operands[1:]))


def _keep(known: dict[int, int], ins: Instruction, writes: int, value: int | None) -> None:
    for index in [i for i in known if writes >> i & 1]:
        del known[index]
    if value is not None and isinstance(ins.operands[0], Reg):
        known[ins.operands[0].index] = value


def _value(ins: Instruction, known: dict[int, int]) -> int | None:
    """Return the integer that an instruction computes from known ones, or None."""
    name, first = ins.opcode[0], ins.operands[1:]
    if name == "selp" and len(first) == 3:
        chosen = _read(first[2], known)
        return None if chosen is None else _read(first[0 if chosen else 1], known)
    values = [_read(operand, known) for operand in first]
    if name == "and" and 0 in values:
        return 0
    given = [v for v in values if v is not None]
    if len(given) != len(values) or any(t in ins.opcode for t in ("f16", "bf16", "f32", "f64")):
        return None
    return _computed(name, ins.opcode, given)


def _computed(name: str, opcode: Sequence[str], values: list[int]) -> int | None:
    match name, values:
        case (("mov" | "cvt"), [x]):
            return x
        case "not", [x] if opcode[-1] == "pred":
            return int(not x)
        case "and", [x, y]:
            return x & y
        case "or", [x, y]:
            return x | y
        case "xor", [x, y]:
            return x ^ y
        case "setp", [x, y] if opcode[1] in ("eq", "ne") and len(opcode) == 3:
            return int((x == y) == (opcode[1] == "eq"))
        case _:
            return None


def _read(operand: Operand | None, known: dict[int, int]) -> int | None:
    if isinstance(operand, Imm):
        return operand.value if operand.kind == "int" else None
    if isinstance(operand, Reg):
        return known.get(operand.index)
    if isinstance(operand, Negated):
        value = known.get(operand.reg.index)
        return None if value is None else int(not value)
    return None
