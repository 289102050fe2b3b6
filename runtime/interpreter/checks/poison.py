"""Local memory that was never written, followed through registers to where it decides something.

Compilers turn branches into selects: they load a word whether or not it was written, and throw it away where it was not.
So a load is silent. What it brings is poison, arithmetic and moves hand it on, a select takes what it chooses, and it is
reported by what stores it, branches on it, uses it as an address, or gives it to other lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.liveness import used
from ..ptx.module import Instruction, Reg
from .kinds import HazardKind

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.program import Op

Array = npt.NDArray[Any]
Poison = dict[int, Array]  # register -> (warps, 32), which lanes hold poison


def _registers(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def poisoned(op: Op, ins: Instruction, pure: bool) -> Op:
    """`op` that hands poison on (`pure`), or reports it. `op` contains its guard."""
    read_bits, write_bits = used(ins)
    reads, writes = _registers(read_bits), _registers(write_bits)
    select = ins.operands[1:4] if ins.opcode[0] == "selp" else ()
    loads = ins.opcode[0] in ("ld", "ldu")
    guard = ins.guard

    def run(c: Group) -> Any:
        poison = c.frame.poison
        if not poison and not loads:
            return op(c)
        active = _executing(c, guard)
        if guard is not None:
            _check(c, ins, poison, [guard[0].index], None)
        if select and all(isinstance(o, Reg) for o in select[2:]):
            bad = _chosen(c, poison, select)
        elif pure:
            bad = _union(c, poison, reads)
        else:
            _check(c, ins, poison, reads, active)
            bad = None
        c.frame.fresh = None
        result = op(c)
        fresh = c.frame.fresh if loads else bad
        for register in writes:
            _mark(c, poison, register, active, fresh)
        return result

    return run


def _executing(c: Group, guard: tuple[Reg, bool] | None) -> Array:
    if guard is None:
        return c.active
    lanes = np.broadcast_to(c.v[guard[0].index], (c.n, 32))
    return c.active & (~lanes if guard[1] else lanes)


def _union(c: Group, poison: Poison, registers: list[int]) -> Array | None:
    found = [poison[r][c.select] for r in registers if r in poison]
    return np.logical_or.reduce(found) if found else None


def _chosen(c: Group, poison: Poison, operands: tuple[Any, ...]) -> Array:
    """What selp takes: the poison of the operand that it chooses, or of the predicate."""
    first, second = (
        poison[o.index][c.select] if isinstance(o, Reg) and o.index in poison else np.zeros((c.n, 32), np.bool_)
        for o in operands[:2]
    )
    which = operands[2].index
    bad = np.where(np.broadcast_to(c.v[which], (c.n, 32)), first, second)
    return bad | poison[which][c.select] if which in poison else bad


def _mark(c: Group, poison: Poison, register: int, active: Array, fresh: Array | None) -> None:
    held = poison.get(register)
    if held is None:
        if fresh is None or not (fresh & active).any():
            return
        held = poison[register] = np.zeros((c.batch.warps, 32), np.bool_)
    held[c.select] = np.where(active, False if fresh is None else fresh, held[c.select])
    if not held.any():
        del poison[register]


def _check(c: Group, ins: Instruction, poison: Poison, registers: list[int], active: Array | None) -> None:
    bad = _union(c, poison, registers)
    if bad is None:
        return
    bad = bad & (c.active if active is None else active)
    if bad.any():
        report(c, ins, bad)


def report(c: Group, ins: Instruction | None, bad: Array) -> None:
    """A value from local memory that nobody wrote decides something."""
    _, _, who = c.batch.run.reporter.group(c, bad)
    what = "a value from local memory that was read before it was written is used"
    c.batch.run.reporter.hazard(HazardKind.UNINITIALISED, what, ins, (who,))


def check_branch(c: Group, predicate: int, ins: Instruction | None) -> None:
    """A branch on poison."""
    held = c.frame.poison.get(predicate)
    if held is not None and (held[c.select] & c.active).any():
        report(c, ins, held[c.select] & c.active)
