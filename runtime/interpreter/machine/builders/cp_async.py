"""cp.async without TMA, and the groups of both kinds of copies (PTX ISA 9.7.9.25.3 and 9.7.9.26)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...checks.shadow_access import ShadowAccess
from ...ptx.module import Instruction, Negated, Reg
from ..compiler import Compiler
from ..engine import Pending
from ..group import Group
from ..program import Op, builds
from ..shared_space import own_only
from ..spaces import Part
from .accesses import address_of, scatter, unchanged
from .lanes import constant_operand
from .mbarrier_ops import by_offset, lanes_at

Array = npt.NDArray[Any]


@builds("cp.async.commit_group cp.async.bulk.commit_group")
def build_commit(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async{.bulk}.commit_group."""
    kind = _kind(k)

    def run(c: Group) -> None:
        c.batch.engine.groups.commit(kind, c)

    return run


@builds("cp.async.wait_group cp.async.bulk.wait_group")
def build_wait(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async{.bulk}.wait_group."""
    return _waiter(constant_operand(k, ins.operands[0]), _kind(k), bool(k.form.words.get("read")), False)


@builds("cp.async.wait_all")
def build_wait_all(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.wait_all."""
    return _waiter(0, "cp.async", False, True)


def _kind(k: Compiler) -> str:
    return "bulk" if k.form.row.name[2] == "bulk" else "cp.async"


def _waiter(keep: int, kind: str, reads: bool, uncommitted: bool) -> Op:
    def run(c: Group) -> bool:
        if uncommitted:
            c.batch.engine.groups.commit(kind, c)
        c.batch.engine.groups.wait(kind, c, keep, reads)
        return True

    return run


# --- the copy -----------------------------------------------------------------------------------------


@builds("cp.async")
def build_copy(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.{ca,cg}.shared.global [dst], [src], size{, src-size | ignore-src}."""
    size = constant_operand(k, ins.operands[2])
    dst, src = address_of(k, ins.operands[0]), address_of(k, ins.operands[1])
    extra = ins.operands[3] if len(ins.operands) > 3 + bool(k.form["hint"]) else None
    source_size = ignore = None
    if isinstance(extra, Negated) or (isinstance(extra, Reg) and extra.type == "pred"):
        ignore = k.reader(extra, "pred")
    elif extra is not None:
        source_size = k.reader(extra, "b32")

    def run(c: Group) -> None:
        take = np.full((c.n, 32), size)
        if source_size is not None:
            take = np.broadcast_to(source_size(c), (c.n, 32)).astype(np.int64)
        if ignore is not None:
            take = np.where(ignore(c), 0, take)
        part = c.batch.own_shared.locate(c, dst(c), 4, size, ins, True)[0]
        fetch = _source(c, src(c), take, size, ins)

        def words() -> list[Array]:
            found = fetch()
            return [found[..., j] for j in range(size // 4)]

        queue, access = _note_write(c, part, size, ins, lambda: unchanged(part, words()))

        def perform() -> None:
            scatter(part, words())
            if access is not None and access.clash is not None:
                part.shadow.settle_clash(access)
                access.clash = None

        op = c.batch.engine.issue(perform, "cp.async", at=(ins, _blocks(c)))
        c.batch.engine.groups.add_rows("cp.async", c, op, queue)

    return run


def _note_write(
    c: Group, part: Part, size: int, ins: Instruction, same: Callable[[], Array]
) -> tuple[tuple[Array, Array], ShadowAccess | None]:
    """Record the write in shadow memory. Returns each row's (queue, clock), and the access."""
    clocks = c.batch.clocks
    if clocks is None:
        return (np.zeros(c.n, np.int64), np.zeros(c.n, np.int64)), None
    queues, when = clocks.begin(c.rows, "cp.async")
    access = ShadowAccess(c, clocks.of(c), c.batch.row_team[c.rows], queues, when, ins, False, False)
    shadow = part.shadow
    if clocks.lane_copies.open:
        clocks.lane_copies.check(c, part.index * 4, size, part.mask, ins, True)
    clocks.lane_copies.issue(c, (queues, when), part.index * 4, part.mask, size, ins)
    return (queues, when), shadow.note_write(access, shadow.granules(part.index, 4, size // 4), part.mask, same)


def _source(c: Group, address: Array, take: Array, size: int, ins: Instruction) -> Any:
    """Return a function that fetches (rows, 32, size / 4) words, with zeros after each lane's source size."""
    count = size // 4
    address = np.broadcast_to(address, (c.n, 32)).copy()
    held = c.mask
    full = c.active & (take >= size)
    short = c.active & (take > 0) & (take < size)
    c.mask = full
    parts = c.batch.run.globals.locate(c, address, 4, size, ins, False) if full.any() else []
    c.mask = held
    for part in parts:
        if part.shadow is not None:
            part.shadow.read(c, part.index, 4, count, part.mask, ins, _WEAK)
    if short.any():
        _, _, who = c.batch.run.reporter.group(c, short)
        for row, lane in np.argwhere(short):
            if c.batch.run.memory.bytes_at(int(address[row, lane]), int(take[row, lane])) is None:
                what = f"cp.async of {int(take[row, lane])} bytes outside of any array"
                c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
                short[row, lane] = False
    n = c.n
    memory = c.batch.run.memory

    def fetch() -> Array:
        out = np.zeros((n, 32, count), np.uint32)
        for part in parts:
            where = part.mask if part.mask is not None else full
            for j in range(count):
                out[where, j] = part.view[part.index[where] + j]
        for row, lane in np.argwhere(short):
            data = memory.bytes_at(int(address[row, lane]), int(take[row, lane]))
            if data is not None:
                out[row, lane] = np.frombuffer(data.tobytes().ljust(size, b"\0"), np.uint32)
        return out

    return fetch


class _WEAK:
    strong = False


@builds("cp.async.mbarrier.arrive")
def build_arrive(k: Compiler, ins: Instruction) -> Op:
    """Build cp.async.mbarrier.arrive: it arrives when the lane's earlier copies are done."""
    increments = not k.form["noinc"]
    address = own_only(address_of(k, ins.operands[0]), ins)

    def run(c: Group) -> None:
        row, _, cta, offset = lanes_at(c, ins, address(c))
        batch = c.batch
        before: list[Pending] = batch.engine.groups.all_rows("cp.async", c)
        spots = [(at, row[some], cta[some]) for at, some in by_offset(offset)]
        clocks = batch.clocks
        for at, rows, ctas in spots:
            m = batch.mbarriers.get(at)
            if increments:
                m.pending += np.bincount(ctas, minlength=batch.blocks)
            if clocks is not None:
                clocks.release_rows(m.clock, ctas, c.rows[rows])
        when = batch.engine.groups.last_rows("cp.async", c)

        def perform() -> None:
            for op in before:
                op.now()
            for at, rows, ctas in spots:
                m = batch.mbarriers.get(at)
                if clocks is not None:
                    m.clock.fit()
                    for r, cta_ in zip(rows, ctas, strict=True):
                        queue, clock = when[int(r)]
                        held = m.clock.gathering[cta_, 0, queue]
                        m.clock.gathering[cta_, 0, queue] = max(held, clock)
                ones = np.ones(len(ctas), np.int64)
                batch.mbarriers.arrive(at, ctas, ones, None, False, ins)

        batch.engine.issue(perform, "arrival of cp.async")
        if clocks is not None:
            clocks.tick(c)

    return run


def _blocks(c: Group) -> list[tuple[int, int | None]]:
    """Return the blocks and warpgroups of the warps that issue copies."""
    where = zip(c.cta.tolist(), (c.batch.row_warp[c.rows] // 4).tolist(), strict=True)
    return list(dict.fromkeys(where))
