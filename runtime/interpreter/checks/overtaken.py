"""Ordinary loads that a later write by the async proxy may overtake (PTX ISA 8.9.5).

Reads and writes of different proxies are ordered by a proxy fence between them. On a GPU, loads may still be on their way when
`bar.sync`, a cluster barrier or an arrival on an mbarrier completes, and also when their own warp issues a bulk store. Such a
store then overtakes them. Fences, and releases other than those of mbarriers, wait for earlier loads. So does an instruction
with an effect that needs the loaded value. An addition does not: the assembler may move it behind a barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.instructions import known_form
from ..isa.liveness import bits_of, used
from ..ptx.module import Instruction, Mem
from .clocks import PERFORMED_GLOBAL

if TYPE_CHECKING:
    from ..machine.launch import Run
    from ..machine.program import Program
    from .global_shadow import GlobalShadow
    from .shadow_access import ShadowAccess

Array = npt.NDArray[Any]
_SYNCHRONISE = {"bar", "barrier", "mbarrier", "griddepcontrol"}
_COMPUTE = {"mov", "cvta", "isspacep", "mapa", "getctarank", "mma", "wmma"}  # instructions with a row that only compute
_STATES = 4_000  # that a search visits at most


def check(shadow: GlobalShadow, a: ShadowAccess, g: Array, rows: Array) -> None:
    """Report loads that are ordered before a write by the async proxy, but may not have taken place."""
    if a.c.batch.clocks.planes <= PERFORMED_GLOBAL or shadow.reads.blank:
        return
    for epochs, sites in shadow.every_reader(g):
        bad = shadow.unfenced(a, epochs, rows, PERFORMED_GLOBAL)
        if bad is not None and without_used(shadow.run, bad, sites).any():
            shadow.report(a, g, rows, bad, epochs, sites, True, earlier_reads=True, fence=True)
            return


def without_used(run: Run, bad: Array, sites: Array) -> Array:
    """Clear `bad` where the loads `sites` have certainly brought their values, because lanes needed them since."""
    for site in np.unique(sites[bad]).tolist():
        if not outlasts(run.program, run.sites[site]):
            bad &= sites != site
    return bad


def outlasts(program: Program, load: Instruction) -> bool:
    """Return whether lanes may reach a synchronisation or a copy before they need the value that `load` brings."""
    if load.opcode[0] not in ("ld", "ldu", "ldmatrix", "wmma") or "acquire" in load.opcode:
        return False
    known: dict[int, bool] = program.outlasting
    found = known.get(id(load))
    if found is None:
        found = known[id(load)] = _search(program, load)
    return found


def _search(program: Program, load: Instruction) -> bool:
    for code in program.codes.values():
        for n, seg in enumerate(code.segments):
            for i, ins in enumerate(seg.code):
                if ins is load:
                    registers = used(load)[1]
                    if not _is_read(code.segments, registers):
                        return False  # the assembler drops the load
                    return _reaches(code.segments, n, i + 1, registers) and not _is_place(code.segments, registers)
    return False


def _is_read(segments: Any, registers: int) -> bool:
    """Return whether an instruction reads any of these registers."""
    return any(used(i)[0] & registers for seg in segments for i in (*seg.code, seg.end) if i is not None)


def _is_place(segments: Any, registers: int) -> bool:
    """Return whether values in registers are addresses of tensor memory, which the assembler moves on to uniform registers
    soon after they are loaded, and so before a later barrier.
    """
    code = [ins for seg in segments for ins in seg.code]
    before = 0
    while before != registers:
        before = registers
        for ins in code:
            reads, writes = used(ins)
            places = [bits_of(o) for o in ins.operands if isinstance(o, Mem)]
            if ins.opcode[0] == "tcgen05" and any(bits & registers for bits in places):
                return True
            if reads & registers and _computes(ins):
                registers |= writes
    return False


def _reaches(segments: Any, n: int, start: int, registers: int) -> bool:
    """Return whether a path from an instruction may lead to a synchronisation before one that needs any of `registers`."""
    seen: set[tuple[int, int]] = set()
    left = [(n, start, registers)]
    while left and len(seen) < _STATES:
        n, start, held = left.pop()
        seg = segments[n]
        for ins in seg.code[start:]:
            reads, writes = used(ins)
            if reads & held:
                if not _computes(ins):
                    break
                held |= writes
            elif _synchronises(ins):
                return True
            elif ins.guard is None:
                held &= ~writes
            if not held:
                break
        else:
            if seg.kind in ("call", "return"):
                return True  # the other function may synchronise
            if (seg.guard is not None and held >> seg.guard[0] & 1) or (seg.end and used(seg.end)[0] & held):
                continue
            for target in seg.targets:
                if (target, held) not in seen:
                    seen.add((target, held))
                    left.append((target, 0, held))
    return bool(left)  # the search was too long


def _computes(ins: Instruction) -> bool:
    return ins.opcode[0] in _COMPUTE or known_form(ins) is None


def _synchronises(ins: Instruction) -> bool:
    head = ins.opcode[0]
    return head in _SYNCHRONISE or "bulk" in ins.opcode or (head in ("st", "red") and "async" in ins.opcode)
