"""Instructions by which the lanes of a warp exchange values: what they compute is in `semantics.warp`, that the lanes
they name are together is seen to here (PTX ISA 9.7.9.6 and 9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...isa.semantics.warp import compile_warp, source_lane
from ...ptx.module import Instruction, Pair
from ..barriers import warp_together
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds

Array = npt.NDArray[Any]
_LANES = np.arange(32, dtype=np.uint32)


def _check_member(c: Group, member: Array, ins: Instruction) -> None:
    """Each active lane must be in its own membermask."""
    outside = (np.broadcast_to(member, (c.n, 32)) >> _LANES) & np.uint32(1) == 0
    if c.mask is not None:
        outside = outside & c.mask
    if outside.any():
        _, _, who = c.batch.run.reporter.group(c, outside)
        what = "a lane executes a .sync instruction without being in its membermask"
        c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,))


def _check_source(c: Group, ins: Instruction, mode: str, b: Array, clamp: Array) -> None:
    """What shfl reads from a lane that does not execute it is undefined (PTX ISA 9.7.9.6)."""
    source, inside = source_lane(
        mode, np.broadcast_to(b.astype(np.int64), (c.n, 32)), np.broadcast_to(clamp.astype(np.int64), (c.n, 32))
    )
    absent = c.active & inside & ~np.take_along_axis(c.active, source, axis=1)
    if absent.any():
        row, lane, who = c.batch.run.reporter.group(c, absent)
        what = f"shfl.sync reads lane {int(source[row, lane])}, which does not execute it"
        fix = "name the lanes that are there in the membermask, and let all of them get here"
        c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,), fix)


@builds("shfl vote match redux elect activemask")
def build_warp(k: Compiler, ins: Instruction) -> Op:
    """shfl.sync, vote.sync, match.sync, redux.sync, elect.sync and activemask."""
    first = ins.operands[0]
    op = compile_warp(k.form.opcode, isinstance(first, Pair))
    dests = (first.first, first.second) if isinstance(first, Pair) else (first,)
    given = ins.operands[1:]
    if len(given) != len(op.operands) or len(dests) != len(op.results):
        raise k.error(f"takes {len(op.operands)} operands, {len(given)} given")
    readers = [k.reader(o, t) for o, t in zip(given, op.operands, strict=True)]
    writers = [k.writer(d, t) for d, t in zip(dests, op.results, strict=True)]
    member = readers[-1] if ins.opcode[0] != "activemask" else None
    function = op.function
    mode = k.form.words.get("mode", "") if ins.opcode[0] == "shfl" else ""

    def run(c: Group) -> bool:
        if member is not None:
            members = member(c)
            if not warp_together(c, members):
                return False
            if members.size > 1 or members.flat[0] != 0xFFFFFFFF:
                _check_member(c, members, ins)
        values = [r(c) for r in readers]
        if mode and c.mask is not None and c.batch.run.detect:
            _check_source(c, ins, mode, values[1], values[2])
        if values and values[0].shape != (c.n, 32):
            values[0] = np.broadcast_to(values[0], (c.n, 32))
        for write, value in zip(writers, function(c.active, *values), strict=True):
            if write is not None:
                write(c, value)
        return True

    return run
