"""The report of a deadlock: a table of waiting warps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .awaited import awaited
from .kinds import HazardKind
from .waits import MbarrierWait, RegisterWait, TensorWait

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..machine.launch import Run

_MOST_LINES = 40


def stuck(run: Run) -> None:
    """Report that no group of any resident batch can run, unless some group waits for time to pass."""
    if run.pass_time():
        return
    lines: list[str] = []
    kind, what, ins = HazardKind.DEADLOCK, "no warp can go on", None
    polls = False  # whether memory is polled: lanes that wait for the rest of their warp are then no cause
    for batch in run.resident:
        for g in batch.polling:
            if type(g.why) is MbarrierWait:
                lines += _mbarrier_lines(batch, g, g.why)
                ins = ins or g.why.ins
            elif type(g.why) is TensorWait:
                state = f"columns of tensor memory that are free, at {run.reporter.place(g.why.ins)}"
                lines += _lines(batch, g, state)
                ins = ins or g.why.ins
            elif type(g.why) is RegisterWait:
                kind, ins = HazardKind.REGISTER_CAPACITY, g.why.ins
                what = f"warps wait forever for {g.why.count} registers by setmaxnreg: the others of their block hold too many"
                lines += _lines(batch, g, f"setmaxnreg at {run.reporter.place(ins)}")
            else:
                waits = [line for _, line in awaited(batch, g, g.why)]
                lines += waits or _lines(batch, g, f"polls memory at {run.reporter.place(g.why)}")
                ins, polls = ins or g.why, True
        for w in batch.barriers.waiting:
            lines += _named_lines(batch, w)
            ins = ins or w.ins
        for w in batch.barriers.cluster_waiting:
            lines += _lines(batch, w.group, f"the cluster barrier at {run.reporter.place(w.ins)}")
            ins = ins or w.ins
    mismatch = _bytes_short(run)
    if mismatch:
        kind, what, ins = HazardKind.BYTES_MISMATCH, mismatch[0], mismatch[1]
    parted = [(b, g) for b in run.resident for g in b.parked.values()]
    if parted:
        if not polls:
            kind, what = HazardKind.DIVERGENCE, "lanes of a warp part at an instruction that needs them together"
            ins = parted[0][1].frame.code.segments[parted[0][1].pc].sync_ins
        for batch, g in parted:
            at = g.frame.code.segments[g.pc].sync_ins
            here = int(g.active.sum(axis=1)[0])
            lines += _lines(batch, g, f"{here} of its lanes stand at {run.reporter.place(at)}")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more"]
    fix = {
        HazardKind.DEADLOCK: "see that every wait has its arrivals: counts, parities, and who runs first",
        HazardKind.REGISTER_CAPACITY: "have the warps of a block ask for no more than it has, and free some first",
        HazardKind.DIVERGENCE: "keep the instruction out of branches that only some lanes take",
        HazardKind.BYTES_MISMATCH: "make the bytes of expect_tx those of the copies",
    }[kind]
    run.reporter.hazard(kind, what, ins, ("waiting:", *("  " + line for line in lines)), fix, ends=True)
    raise AssertionError("a deadlock is always an error")


def _lines(batch: Batch, g: Group, what: str) -> list[str]:
    """Return one line for each warpgroup of `g`."""
    seen: set[tuple[int, int]] = set()
    out: list[str] = []
    for warp in g.rows.tolist():
        key = (int(batch.row_cta[warp]), int(batch.row_warp[warp]) // 4)
        if key in seen:
            continue
        seen.add(key)
        out.append(f"{batch.run.reporter.block(batch.coordinates[key[0]])} warpgroup {key[1]}: {what}")
    return out


def _mbarrier_lines(batch: Batch, g: Group, why: MbarrierWait) -> list[str]:
    m = batch.mbarriers.get(why.offset)
    name = batch.mbarriers.name(why.offset)
    out: list[str] = []
    for cta in np.unique(g.cta):
        # A wait may be on a barrier of a peer; the table shows the one that the first lane names.
        at = why.cta if batch.cluster > 1 else int(cta)
        some = g.subset(g.pc, g.cta == cta)
        state = (
            f"mbarrier {name}, {why.wanted}, in phase {int(m.phase[at])}, "
            f"{int(m.pending[at])} of {int(m.count[at])} arrivals and {int(m.bytes[at])} bytes pending, "
            f"at {batch.run.reporter.place(why.ins)}"
        )
        out += _lines(batch, some, state)
    return out


def _named_lines(batch: Batch, w: Any) -> list[str]:
    barriers = batch.barriers
    out: list[str] = []
    live = barriers.live_threads()
    for cta in np.unique(w.group.cta):
        some = w.group.subset(w.group.pc, w.group.cta == cta)
        need = int(barriers.expected[w.barrier][cta]) or int(live[cta])
        have = int(barriers.arrived[w.barrier][cta])
        state = f"barrier {w.barrier}, {have} of {need} threads arrived, at {batch.run.reporter.place(w.ins)}"
        out += _lines(batch, some, state)
    return out


def _bytes_short(run: Run) -> tuple[str, Any] | None:
    """Return (what, instruction) of a barrier that waits only for bytes, if no operation in flight brings them."""
    for batch in run.resident:
        for offset, m in batch.mbarriers.at.items():
            short = m.valid & (m.pending == 0) & (m.bytes > 0)
            if short.any():
                cta = int(np.flatnonzero(short)[0])
                block, name = run.reporter.block(batch.coordinates[cta]), batch.mbarriers.name(offset)
                return (
                    f"mbarrier {name} of {block} expects {int(m.bytes[cta])} bytes more than were issued",
                    m.last,
                )
    return None
