"""Values from unwritten memory and registers, and of loads that race, followed through registers to the first use that matters.

Compilers turn branches into selects: they load a word even if it is unwritten, and then discard it. So a load of
unwritten local, shared or global memory is not reported: its value is undefined (PTX ISA 5.1.8 and 8.7), but harmless
until it is used. Such a value is poison. Arithmetic and moves propagate poison, a select propagates the poison of the
operand that it selects, and a shuffle that of the lane that it reads: a warp that takes one lane's value leaves the
register of the others unwritten. What a warp computes together (redux) has the poison of all its lanes. The check
reports an instruction that stores poison, branches on it, uses it as an address or a guard, votes with it, or lets it
choose the lane of a shuffle.

A load that races with a store (`doubts.py`) brings such a value, too: the race is reported where the value decides something.
Votes, matches and mma pass it on to all lanes.

Registers that a path of the entry reads before it writes them are poison at the start. Compilers pack a value with such a
register and overwrite the other half later, so a result of bits from several registers has this poison if all of them do.
Sorts exchange ragged tiles through shared memory, so a store of such a register there leaves the memory unwritten.

Instructions run with this check only while some register of the function holds poison (`Seg.wary`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.liveness import numbers_of, scale_of, used
from ..isa.semantics.warp import source_lane
from ..ptx.module import Imm, Instruction, Mem, Operand, Pair, Reg, Vec
from .kinds import HazardKind

if TYPE_CHECKING:
    from ..machine.frame import Frame
    from ..machine.group import Group
    from ..machine.program import Op

Array = npt.NDArray[Any]
Poison = dict[int, Array]  # register -> (warps, 32): 0, UNWRITTEN, or more: the number of a doubt + FIRST_DOUBT
UNWRITTEN, FIRST_DOUBT = 1, 2
LOADS = ("ld", "ldu", "clusterlaunchcontrol")  # the response of a failed request names no block
_PACKING = ("bfi", "prmt", "lop3", "and", "or", "xor", "shf")
_TOGETHER = ("redux", "vote", "match", "mma")  # instructions whose results depend on all lanes of the warp
_SHUFFLES = ("up", "down", "bfly", "idx")
_LOCAL = "local memory is read before it was written"
_REGISTER = "register "


def following(op: Op, ins: Instruction) -> Op:
    """Return a load, `op` with its guard, that marks values from unwritten memory as poison."""
    first = ins.operands[0]
    items = first.items if isinstance(first, Vec) else (first,)
    dests = [o.index if isinstance(o, Reg) else -1 for o in items]
    guard = ins.guard

    def run(c: Group) -> Any:
        result = op(c)
        frame = c.frame
        fresh = frame.fresh
        if fresh is None:
            return result
        frame.fresh = None
        active = _executing(c, guard)
        for i, register in enumerate(dests):
            if register >= 0:
                _mark(c, register, active, fresh if fresh.ndim == 2 else fresh[..., i], frame.origin)
        return result

    return run


def poisoned(op: Op, ins: Instruction, pure: bool) -> Op:
    """Return `op` so that it propagates poison (`pure`) or reports it. `op` contains its guard."""
    if ins.opcode[0] == "mov" and all(isinstance(o, Vec) for o in ins.operands):
        return _each(op, ins)
    read_bits, write_bits = used(ins)
    reads, writes = numbers_of(read_bits & ~_times(ins)), numbers_of(write_bits)
    select = ins.operands[1:4] if ins.opcode[0] == "selp" else ()
    logic = _logic(ins)
    shuffle = next((m for m in ins.opcode if m in _SHUFFLES), "") if ins.opcode[0] == "shfl" else ""
    loads, together = ins.opcode[0] in LOADS, ins.opcode[0] in _TOGETHER
    guard = ins.guard
    scale = scale_of(ins)
    first = ins.operands[0] if ins.operands else None
    # a shuffle's predicate, which no value decides
    given = first.second.index if shuffle and isinstance(first, Pair) and isinstance(first.second, Reg) else -1
    carries = "cc" in ins.opcode
    keeps = ins.opcode[0] == "st" and ("shared" in ins.opcode or "shared::cta" in ins.opcode)
    packs = ins.opcode[0] in _PACKING or (ins.opcode[0] in ("mov", "cvt") and len(reads) > 1)

    def run(c: Group) -> Any:
        poison = c.frame.poison
        if not poison:
            return op(c)
        active = _executing(c, guard)
        if guard is not None:
            _check(c, ins, poison, [guard[0].index], None)
        if select and all(isinstance(o, Reg) for o in select[2:]):
            bad = _chosen(c, poison, select)
        elif packs and not _memory(c, poison, reads):
            bad = _all(c, poison, reads)
        elif logic is not None:
            bad = _undecided(c, poison, reads, *logic)
        elif pure:
            bad = _union(c, poison, reads)
            if carries and bad is not None:  # the carry is no register
                report(c, ins, np.where(active & (bad > UNWRITTEN), bad, 0), _LOCAL)
        elif shuffle:
            bad = _shuffled(c, ins, poison, shuffle, active)
        elif together:
            bad = _collected(c, ins, poison, reads, active)
        elif keeps and not _memory(c, poison, reads):
            return _kept(c, op, ins, poison, active)
        else:
            _check(c, ins, poison, reads, active)
            if scale is not None:
                _check(c, ins, poison, writes, active & _adds(c, scale))
            bad = None
        origin = next((c.frame.origins[r] for r in reads if r in poison), _LOCAL)
        if loads:  # before `op`, because `op` marks them again
            for register in writes:
                _mark(c, register, active, None, origin)
            return op(c)
        result = op(c)
        for register in writes:
            _mark(c, register, active, bad if register != given else None, origin)
        return result

    return run


def _each(op: Op, ins: Instruction) -> Op:
    """Return mov.v2 or mov.v4 so that each element passes its own poison on."""
    dest, source = ins.operands
    assert isinstance(dest, Vec) and isinstance(source, Vec)
    pairs = [
        (d.index, s.index if isinstance(s, Reg) else -1)
        for d, s in zip(dest.items, source.items, strict=True)
        if isinstance(d, Reg)
    ]
    guard = ins.guard

    def run(c: Group) -> Any:
        frame = c.frame
        if not frame.poison:
            return op(c)
        active = _executing(c, guard)
        if guard is not None:
            _check(c, ins, frame.poison, [guard[0].index], None)
        held = [
            (frame.poison[s][c.select].copy(), frame.origins[s]) if s in frame.poison else (None, "") for _, s in pairs
        ]
        result = op(c)
        for (d, _), (bad, origin) in zip(pairs, held, strict=True):
            _mark(c, d, active, bad, origin)
        return result

    return run


def _times(ins: Instruction) -> int:
    """Return the register that says how long an instruction may wait, as a mask: it decides nothing but time."""
    if ins.opcode[0] == "nanosleep":
        at = 0
    elif ins.opcode[:2] == ("mbarrier", "try_wait") and len(ins.operands) == 4:
        at = 3
    else:
        return 0
    hint = ins.operands[at]
    others = [o.index for o in ins.operands[:at] if isinstance(o, Reg)]
    return 1 << hint.index if isinstance(hint, Reg) and hint.index not in others else 0


def mark_unset(frame: Frame) -> None:
    """Make the registers poison that the entry may read before it writes them (`Code.unset`)."""
    for register in numbers_of(frame.code.unset):
        frame.poison[register] = np.full((frame.batch.warps, 32), UNWRITTEN, np.int32)
        frame.origins[register] = f"{_REGISTER}{frame.code.fn.registers[register].name} is read before it was written"


def _adds(c: Group, scale: Operand) -> Array:
    """Return in which lanes a wgmma adds to its accumulators, by its operand scale-d."""
    if isinstance(scale, Reg):
        return np.broadcast_to(c.v[scale.index], (c.n, 32))
    return np.full((c.n, 32), not isinstance(scale, Imm) or scale.value != 0)


def _executing(c: Group, guard: tuple[Reg, bool] | None) -> Array:
    if guard is None:
        return c.active
    lanes = np.broadcast_to(c.v[guard[0].index], (c.n, 32))
    return c.active & (~lanes if guard[1] else lanes)


def _union(c: Group, poison: Poison, registers: list[int]) -> Array | None:
    found = [poison[r][c.select] for r in registers if r in poison]
    return np.maximum.reduce(found) if found else None


def _memory(c: Group, poison: Poison, registers: list[int]) -> bool:
    """Return whether one of the registers has poison from memory."""
    held = [(poison[r], c.frame.origins[r]) for r in registers if r in poison]
    return any(not origin.startswith(_REGISTER) or bool((lanes > UNWRITTEN).any()) for lanes, origin in held)


def _all(c: Group, poison: Poison, registers: list[int]) -> Array | None:
    """Return the lanes in which all registers hold poison."""
    if any(r not in poison for r in registers):
        return None
    return np.minimum.reduce([poison[r][c.select] for r in registers])


def _kept(c: Group, op: Op, ins: Instruction, poison: Poison, active: Array) -> Any:
    """Run a store to shared memory of registers that nobody has written: what it writes with them stays unwritten."""
    where, value = ins.operands[:2]
    assert isinstance(where, Mem)
    _check(c, ins, poison, [where.base.index] if isinstance(where.base, Reg) else [], active)
    items = value.items if isinstance(value, Vec) else (value,)
    held = [i.index for i in items if isinstance(i, Reg) and i.index in poison]
    if held:
        none = np.zeros((c.n, 32), np.int32)
        lanes = [poison[i.index][c.select] if isinstance(i, Reg) and i.index in poison else none for i in items]
        c.frame.hollow = (np.stack(lanes, axis=2) > 0) & active[..., None], c.frame.origins[held[0]]
    try:
        return op(c)
    finally:
        c.frame.hollow = None


def _chosen(c: Group, poison: Poison, operands: tuple[Any, ...]) -> Array:
    """Return the poison of selp's result: it has the poison of the selected operand and of the predicate."""
    first, second = (
        poison[o.index][c.select] if isinstance(o, Reg) and o.index in poison else np.zeros((c.n, 32), np.int32)
        for o in operands[:2]
    )
    which = operands[2].index
    bad = np.where(np.broadcast_to(c.v[which], (c.n, 32)), first, second)
    return np.maximum(bad, poison[which][c.select]) if which in poison else bad


def _shuffled(c: Group, ins: Instruction, poison: Poison, mode: str, active: Array) -> Array | None:
    """Return the poison of a shuffle's results: that of the lanes that it reads. Report poison in its other operands."""
    value, *others = ins.operands[1:]
    _check(c, ins, poison, [o.index for o in others if isinstance(o, Reg)], active)
    if not isinstance(value, Reg) or value.index not in poison:
        return None
    delta, clamp = (
        np.broadcast_to(np.asarray(c.v[o.index] if isinstance(o, Reg) else getattr(o, "value", 0), np.int64), (c.n, 32))
        for o in others[:2]
    )
    return np.take_along_axis(poison[value.index][c.select], source_lane(mode, delta, clamp)[0], axis=1)


def _collected(c: Group, ins: Instruction, poison: Poison, reads: list[int], active: Array) -> Array | None:
    """Return the poison of what a warp computes together: that of its lanes. Report unwritten values except those of redux."""
    bad = _union(c, poison, reads)
    if bad is None:
        return None
    bad = np.where(active, bad, 0)
    if ins.opcode[0] != "redux":
        for register in reads:
            if register in poison:
                lanes = np.where(active & (poison[register][c.select] == UNWRITTEN), UNWRITTEN, 0)
                if lanes.any():
                    report(c, ins, lanes, c.frame.origins[register])
        bad = np.where(bad == UNWRITTEN, 0, bad)
    return np.broadcast_to(bad.max(axis=1, keepdims=True), bad.shape)


def _logic(ins: Instruction) -> tuple[list[Any], bool] | None:
    """Return the operands of and, or, or a combining setp, and whether ones (as in or) or zeros decide the result.

    None for other instructions.
    """
    name, *modifiers = ins.opcode
    if name in ("and", "or"):
        return list(ins.operands[1:3]), name == "or"
    if name == "setp" and len(ins.operands) == 4 and modifiers[1] in ("and", "or"):
        return list(ins.operands[3:]), modifiers[1] == "or"
    return None


def _undecided(c: Group, poison: Poison, reads: list[int], operands: list[Any], ones: bool) -> Array | None:
    """Return the poison of a logical operation: none where an operand without poison decides the result."""
    bad = _union(c, poison, reads)
    if bad is None:
        return None
    for operand in operands:
        if isinstance(operand, Reg) and operand.index in poison:
            clean = poison[operand.index][c.select] == 0
        else:
            clean = np.True_
        value: Any = c.v[operand.index] if isinstance(operand, Reg) else getattr(operand, "value", None)
        if value is not None:
            decides = np.asarray(value) == (np.array(-1).astype(np.asarray(value).dtype) if ones else 0)
            bad = np.where(clean & np.broadcast_to(decides, bad.shape), 0, bad)
    return bad


def fresh(c: Group, lanes: Array, origin: str = _LOCAL) -> None:
    """Note that a load reads unwritten memory in `lanes`, (rows, 32) or for a vector (rows, 32, elements)."""
    _bring(c, np.where(lanes, np.int32(UNWRITTEN), np.int32(0)))
    c.frame.origin = origin


def raced(c: Group, marks: Array) -> None:
    """Note that a load races in some lanes. `marks`: as in `Poison`; (rows, 32) or for a vector (rows, 32, elements)."""
    held = c.frame.fresh
    if held is not None and held.shape == marks.shape:
        for mark in np.unique(marks[(marks > 0) & (held == UNWRITTEN)]).tolist():
            c.batch.run.doubts.is_unwritten(mark - FIRST_DOUBT, c.frame.origin)
    _bring(c, marks)


def _bring(c: Group, marks: Array) -> None:
    held = c.frame.fresh
    if held is not None and held.shape != marks.shape:
        marks, held = (a if a.ndim == 2 else a.max(axis=2) for a in (marks, held))
    c.frame.fresh = marks if held is None else np.maximum(marks, held)


def _mark(c: Group, register: int, active: Array, lanes: Array | None, origin: str) -> None:
    poison = c.frame.poison
    held = poison.get(register)
    if held is None:
        if lanes is None or not (active & (lanes > 0)).any():
            return
        held = poison[register] = np.zeros((c.batch.warps, 32), np.int32)
    held[c.select] = np.where(active, 0 if lanes is None else lanes, held[c.select])
    if lanes is not None and lanes.any():
        c.frame.origins[register] = origin
    if not held.any():
        del poison[register]


def _check(c: Group, ins: Instruction, poison: Poison, registers: list[int], active: Array | None) -> None:
    for register in registers:
        if register not in poison:
            continue
        bad = np.where(c.active if active is None else active, poison[register][c.select], 0)
        if bad.any():
            report(c, ins, bad, c.frame.origins[register])


def report(c: Group, ins: Instruction | None, bad: Array, origin: str) -> None:
    """Report that values from unwritten memory, unless a later write makes it a race, or of loads that race are used.

    `bad`: (rows, 32), as in `Poison`.
    """
    run = c.batch.run
    for mark in np.unique(bad[bad > 0]).tolist():
        what = origin if mark == UNWRITTEN else run.doubts.unwritten(mark - FIRST_DOUBT)
        if what:
            _, _, who = run.reporter.group(c, bad == mark)
            run.reporter.defer(HazardKind.UNINITIALISED, f"{what}, and the value is used", ins, (who,))
        if mark != UNWRITTEN:
            run.doubts.decide(c, mark - FIRST_DOUBT, bad == mark)


def check_branch(c: Group, predicate: int, ins: Instruction | None) -> None:
    """Report a branch on poison."""
    held = c.frame.poison.get(predicate)
    if held is not None and ((held[c.select] > 0) & c.active).any():
        report(c, ins, np.where(c.active, held[c.select], 0), c.frame.origins[predicate])
