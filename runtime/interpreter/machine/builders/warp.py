"""Instructions by which the lanes of a warp exchange values. `semantics.warp` computes their results; this file checks that the
lanes of their masks run together (PTX ISA 9.7.9.6 and 9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...isa.semantics.warp import compile_warp, source_lane
from ...ptx.module import Instruction, Pair
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds
from .barrier_ops import warp_together

Array = npt.NDArray[Any]
_LANES = np.arange(32, dtype=np.uint32)


def _check_member(c: Group, member: Array, ins: Instruction) -> None:
    """Check that each active lane is in its own membermask."""
    outside = (np.broadcast_to(member, (c.n, 32)) >> _LANES) & np.uint32(1) == 0
    if c.mask is not None:
        outside = outside & c.mask
    what = "a lane executes a .sync instruction without being in its membermask"
    if not outside.any() and member.size > 1:
        outside = _disagreeing(c, np.broadcast_to(member, (c.n, 32)))
        what = "lanes execute a .sync instruction together, and their membermasks differ"
    if outside.any():
        _, _, who = c.batch.run.reporter.group(c, outside)
        c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,))


def _disagreeing(c: Group, member: Array) -> Array:
    """Return the lanes, (rows, 32), whose mask names an active lane with another mask."""
    active = c.active
    if (member == member[:, :1]).all():
        return ~active & active
    names = ((member[:, :, None] >> _LANES) & np.uint32(1)).astype(np.bool_)  # (rows, lane, lanes that it names)
    other = member[:, :, None] != member[:, None, :]
    return (names & other & active[:, None, :]).any(axis=2) & active


def _check_source(c: Group, ins: Instruction, mode: str, b: Array, clamp: Array, member: Array) -> None:
    """Report a shfl whose result is undefined (PTX ISA 9.7.9.6).

    It reads from a lane that does not execute it, or that its membermask does not name.
    """
    source, inside = source_lane(
        mode, np.broadcast_to(b.astype(np.int64), (c.n, 32)), np.broadcast_to(clamp.astype(np.int64), (c.n, 32))
    )
    named = (np.broadcast_to(member, (c.n, 32)) >> source.astype(np.uint32)) & np.uint32(1) != 0
    absent = c.active & inside & ~(np.take_along_axis(c.active, source, axis=1) & named)
    if absent.any():
        row, lane, who = c.batch.run.reporter.group(c, absent)
        here = bool(c.active[row, int(source[row, lane])])
        why = "is not in its membermask" if here else "does not execute it"
        what = f"shfl.sync reads lane {int(source[row, lane])}, which {why}"
        fix = "name the lanes that are there in the membermask, and let all of them get here"
        c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,), fix)


@builds("shfl vote match redux elect activemask")
def build_warp(k: Compiler, ins: Instruction) -> Op:
    """Build shfl.sync, vote.sync, match.sync, redux.sync, elect.sync and activemask."""
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
        members = member(c) if member is not None else _LANES
        if member is not None:
            if not warp_together(c, members):
                return False
            if members.size > 1 or members.flat[0] != 0xFFFFFFFF:
                _check_member(c, members, ins)
        values = [r(c) for r in readers]
        if mode and c.batch.run.detect and (c.mask is not None or not (members == 0xFFFFFFFF).all()):
            _check_source(c, ins, mode, values[1], values[2], members)
        if values and values[0].shape != (c.n, 32):
            values[0] = np.broadcast_to(values[0], (c.n, 32))
        for write, value in zip(writers, function(c.active, *values), strict=True):
            if write is not None:
                write(c, value)
        return True

    return run
