"""Instructions of named barriers and of the cluster barrier (PTX ISA 9.7.13: bar, barrier, barrier.cluster)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...isa.rows_sync import NAMED
from ...ptx.module import Instruction
from ..barriers import PARTED, Waiting
from ..compiler import Compiler
from ..control import together
from ..group import Group, merge
from ..program import Op, builds

Array = npt.NDArray[Any]


@builds("bar.warp.sync")
def build_warp_barrier(k: Compiler, ins: Instruction) -> Op:
    """Build bar.warp.sync."""
    member = k.reader(ins.operands[0], "u32")

    def run(c: Group) -> bool:
        met = warp_together(c, member(c))
        if met and c.batch.clocks is not None:
            c.batch.clocks.lane_copies.sync(c.rows)
        return met

    return run


@builds(" ".join(f"{b}{c}{a}" for b in ("bar", "barrier") for c in ("", ".cta") for a in ("", ".arrive", ".red")))
def build_barrier(k: Compiler, ins: Instruction) -> Op:
    """Build bar and barrier{.cta}: .sync, .arrive and .red."""
    form, action = k.form, k.form.row.name[-1]
    operands = list(ins.operands)
    reduces = action == "red"
    dest = operands.pop(0) if reduces else None
    vote = operands.pop() if reduces else None
    barrier = k.reader(operands[0], "u32")
    count = k.reader(operands[1], "u32") if len(operands) > 1 else None
    waits = action != "arrive"
    aligned = form.row.name[0] == "bar" or bool(form.words.get("aligned"))
    votes = _voter(k, vote) if vote is not None else None
    write = _reduction(k, dest, form["op"]) if dest is not None else None

    def run(c: Group) -> bool:
        if (aligned or c.why is not PARTED) and not together(c, None):
            return False
        ids = np.broadcast_to(barrier(c), (c.n, 32))
        lead = c.active.argmax(axis=1)
        row = np.arange(c.n)
        per_row = ids[row, lead].astype(np.int64)
        if aligned and ((ids != per_row[:, None]) & c.active).any():
            _, _, who = c.batch.run.reporter.group(c, (ids != per_row[:, None]) & c.active)
            what = "lanes of a warp name different barriers at an .aligned barrier"
            c.batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (who,))
        counts = None
        if count is not None:
            counts = np.broadcast_to(count(c), (c.n, 32))[row, lead].astype(np.int64)
        first = int(per_row[0])
        if (per_row == first).all():
            return meet(c, first, counts, ins, waits, votes(c) if votes else None, write)
        for one in np.unique(per_row):
            chosen = per_row == one
            part = c.subset(c.pc, chosen)
            some = None if counts is None else counts[chosen]
            if meet(part, int(one), some, ins, waits, votes(part) if votes else None, write):
                c.batch.push(part.at(_next(c)))
        return False

    return run


def _next(c: Group) -> int:
    return c.frame.code.segments[c.pc].next


def meet(c: Group, barrier: int, count: Array | None, ins: Instruction, waits: bool, votes: Any, write: Any) -> bool:
    """Arrive, and wait if `waits`. Returns True if all of `c` may go on at once."""
    if barrier >= NAMED:
        c.batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, f"barrier {barrier}: a block has {NAMED}", ins)
        return True
    barriers = c.batch.barriers
    done = barriers.arrive(c, barrier, count, ins, votes)
    if not waits:
        if done.any():
            barriers.complete(barrier, done)
        return True
    if not barriers.waiting and done[c.cta].all():
        barriers.passed(c, barrier, write)
        barriers.reset(barrier, done)
        return True
    pc = _next(c)
    for w in barriers.waiting:
        if w.barrier == barrier and w.write is write and w.group.key == (c.stack, c.frame.code.name, pc):
            w.group = merge(w.group, c.at(pc))
            break
    else:
        barriers.waiting.append(Waiting(barrier, c.at(pc), ins, write))
    if done.any():
        barriers.complete(barrier, done)
    return False


def _voter(k: Compiler, operand: Any) -> Callable[[Group], Array]:
    read = k.reader(operand, "pred")
    return lambda c: np.broadcast_to(read(c), (c.n, 32))


def _reduction(k: Compiler, dest: Any, op: str) -> Callable[[Group, Array, Array], None]:
    """Return the function that writes the result of a barrier's votes into its destination."""
    write = k.writer(dest, "u32" if op == "popc" else "pred")

    def run(g: Group, true: Array, total: Array) -> None:
        if write is None:
            return
        if op == "popc":
            write(g, true[:, None].astype(np.uint32))
        elif op == "and":
            write(g, (true == total)[:, None])
        else:
            write(g, (true > 0)[:, None])

    return run


@builds("barrier.cluster.arrive")
def build_cluster_arrive(k: Compiler, ins: Instruction) -> Op:
    """Build barrier.cluster.arrive."""
    release = k.form["order"] != "relaxed"

    def arrive(c: Group) -> bool:
        if not together(c, None):
            return False
        c.batch.barriers.cluster_arrive(c, ins, release)
        return True

    return arrive


@builds("barrier.cluster.wait")
def build_cluster_wait(k: Compiler, ins: Instruction) -> Op:
    """Build barrier.cluster.wait."""

    def wait(c: Group) -> bool:
        if not together(c, None):
            return False
        free = c.batch.barriers.cluster_wait(c, ins, _next(c))
        if free is None:
            return False
        if free.n == c.n:
            return True
        c.batch.push(free)
        return False

    return wait


def warp_together(c: Group, member: Array) -> bool:
    """Do the same as `together` for a membermask operand: each active lane's mask names the lanes that must be here."""
    if c.mask is None:
        return True
    bits = (np.broadcast_to(member, (c.n, 32)) * c.mask).astype(np.uint32)
    union = np.bitwise_or.reduce(bits, axis=1)
    return together(c, ((union[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.bool_))
