"""Clusters: mapa, getctarank, st.async and red.async, and griddepcontrol (PTX ISA 9.7.9.23 to 9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks import launches
from ...checks.kinds import HazardKind
from ...ptx.module import TYPE_BYTES, Imm, Instruction, Reg, Sym, Vec
from ..compiler import Compiler
from ..group import Group
from ..memory import RANK_SHIFT, WINDOW_MASK
from ..program import Op, builds
from .accesses import address_of
from .atomics import combiner
from .transfers import Issuer, complete, note_shared

Array = npt.NDArray[Any]


def _address(k: Compiler, operand: Any, type_: str) -> Any:
    if isinstance(operand, Sym | Reg | Imm):
        return k.reader(operand, type_)
    raise k.error("an address is wanted")


@builds("mapa")
def build_mapa(k: Compiler, ins: Instruction) -> Op:
    """Build mapa{.shared::cluster}.{u32,u64}: the address of the same place in another block of the cluster."""
    type_ = k.form["type"]
    read, rank = _address(k, ins.operands[1], type_), k.reader(ins.operands[2], "u32")
    write = k.writer(ins.operands[0], type_)
    dtype = np.uint32 if type_ == "u32" else np.uint64
    assert write is not None

    def run(c: Group) -> None:
        where = np.broadcast_to(rank(c), (c.n, 32))
        bad = (where >= c.batch.cluster) & c.active
        if bad.any():
            row, lane, who = c.batch.run.reporter.group(c, bad)
            what = f"mapa to rank {int(where[row, lane])} of a cluster of {c.batch.cluster} blocks"
            c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
        base = read(c) & dtype(0xFFFFFFFF00FFFFFF & ((1 << (8 * dtype().itemsize)) - 1))
        write(c, base | (where.astype(dtype) << dtype(RANK_SHIFT)))

    return run


@builds("getctarank")
def build_getctarank(k: Compiler, ins: Instruction) -> Op:
    """Build getctarank{.shared::cluster}.{u32,u64}: the rank of the block that an address belongs to."""
    type_ = k.form["type"]
    read, write = _address(k, ins.operands[1], type_), k.writer(ins.operands[0], "u32")
    assert write is not None

    def run(c: Group) -> None:
        rank = (np.broadcast_to(read(c), (c.n, 32)).astype(np.uint64) & np.uint64(0xFFFFFFFF)) >> np.uint64(RANK_SHIFT)
        write(c, rank.astype(np.uint32))

    return run


@builds("griddepcontrol")
def build_griddepcontrol(k: Compiler, ins: Instruction) -> Op:
    """Build griddepcontrol.launch_dependents and .wait.

    The interpreter runs launches in order, so it never waits; it checks the accesses that would overlap on a GPU
    (`checks/launches.py`).
    """
    tell = launches.passed_wait if k.form["action"] == "wait" else launches.triggered

    def run(c: Group) -> bool:
        tell(c)
        return True

    return run


@builds("st.async")
def build_st_async(k: Compiler, ins: Instruction) -> Op:
    """Build st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.v2,.v4}.type [addr], value, [barrier]."""
    dst, value, barrier = ins.operands
    items = value.items if isinstance(value, Vec) else (value,)
    return _remote(k, ins, dst, items, barrier, k.form["type"], "")


@builds("red.async")
def build_red_async(k: Compiler, ins: Instruction) -> Op:
    """Build red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [addr], value, [barrier]."""
    dst, value, barrier = ins.operands
    items = value.items if isinstance(value, Vec) else (value,)
    return _remote(k, ins, dst, items, barrier, k.form["type"], k.form["op"])


def _remote(k: Compiler, ins: Instruction, dst: Any, items: Any, barrier: Any, type_: str, operation: str) -> Op:
    """Build a store or reduction that completes on a barrier of the target block."""
    size = TYPE_BYTES[type_]
    width = size * len(items)
    address, barrier_address = address_of(k, dst), address_of(k, barrier)
    readers = [k.reader(i, type_) for i in items]
    combine = combiner(operation, type_) if operation else None

    def run(c: Group) -> None:
        batch = c.batch
        part = batch.shared.locate(c, address(c), size, width, ins, True)[0]
        bar_cta, bar_at = batch.shared.place(c, barrier_address(c) & np.uint64(WINDOW_MASK))
        values = [np.broadcast_to(r(c), (c.n, 32)).copy() for r in readers]
        where = c.active if part.mask is None else part.mask
        for row, lane in np.argwhere(where):
            i = Issuer(c, int(row), int(lane), ins)
            at = int(part.index[row, lane])
            cta = int(np.broadcast_to(bar_cta, (c.n, 32))[row, lane])
            offset = int(np.broadcast_to(bar_at, (c.n, 32))[row, lane])
            queue, clock = i.issue(("copy", cta % batch.cluster, offset))
            if i.clocks is not None:
                start = at * size
                owner, inside = divmod(start, batch.shared.stride)
                # PTX ISA 9.7.9.12 and 9.7.13.7
                note_shared(i, owner, inside, width, queue, clock, True, None, True, combine is not None)
            data = [v[row, lane] for v in values]
            batch.engine.issue(
                _effect(i, part.view, at, data, combine, cta, offset, width, queue, clock), "remote store"
            )

    return run


def _effect(
    i: Issuer, view: Array, at: int, data: list[Any], combine: Any, cta: int, offset: int, width: int,
    queue: int, clock: int,
) -> Any:  # fmt: skip
    def perform() -> None:
        for n, value in enumerate(data):
            new = np.array([value], view.dtype)
            view[at + n : at + n + 1] = new if combine is None else combine(view[at + n : at + n + 1], new)
        complete(i.batch, cta, offset, width, queue, clock, i.ins)

    return perform
