"""The mbarrier instructions and fences (PTX ISA 9.7.13.4 and 9.7.13.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks import tensor_proxy
from ...checks.clocks import ASYNC, ASYNC_GLOBAL
from ...checks.kinds import HazardKind
from ...checks.waits import MbarrierWait
from ...isa.retries import only_tried_again
from ...ptx.module import Instruction, Operand
from ..compiler import Compiler
from ..group import Group
from ..mbarriers import PHASE_BITS, TIMED_OUT
from ..memory import SHARED_RESERVED, WINDOW_MASK
from ..program import Op, builds
from ..shared_space import own_only
from .accesses import address_of

Array = npt.NDArray[Any]


class Strong:
    """A strong access, as shadow memory records it: two of them do not race."""

    strong = True


class Weak:
    """An ordinary access."""

    strong = False


def lanes_at(c: Group, ins: Instruction, address: Array, *others: Array) -> tuple[Array, Array, Array, Array]:
    """Return (row, lane, block, offset) of each active lane's barrier, at a shared or generic address.

    With `others`, one lane stands for a warp if its active lanes have equal addresses and equal `others`. A barrier
    outside of shared memory is reported and left out.
    """
    cta, offset = c.batch.shared.place(c, address & np.uint64(WINDOW_MASK))
    shape = (c.n, 32)
    if others and all(_agrees(c, v) for v in (address, *others)):
        row, lane = np.arange(c.n), c.active.argmax(axis=1)
    else:
        row, lane = np.nonzero(c.active)
    found = np.broadcast_to(offset, shape)[row, lane]
    outside = ~_inside(c, found)
    if outside.any():
        bad = np.zeros(shape, np.bool_)
        bad[row[outside], lane[outside]] = True
        _, _, who = c.batch.run.reporter.group(c, bad)
        size = c.batch.shared.limit - SHARED_RESERVED
        what = f"an mbarrier at shared address {int(found[outside][0])}, outside of the block's {size} bytes at {SHARED_RESERVED}"
        c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
    return row, lane, np.broadcast_to(cta, shape)[row, lane], found


def _inside(c: Group, offset: Any) -> Any:
    """Return whether the 8 bytes at an offset, or at offsets, are shared memory of a block."""
    shared = c.batch.shared
    return (offset >= shared.first) & (offset + 8 <= shared.limit)


def _agrees(c: Group, value: Array) -> bool:
    """Return whether the active lanes of each warp hold one value."""
    if value.shape[1] == 1:
        return True
    lead = value[np.arange(len(value)), c.active.argmax(axis=1)] if len(value) == c.n else value[:, 0]
    same = value == lead[:, None]
    return bool(same.all() if c.mask is None else (same | ~c.mask).all())


def unique_pairs(row: Array, cta: Array) -> tuple[Array, Array]:
    """Return the distinct (row, block) pairs of lanes in the order of their rows."""
    first = np.ones(len(row), np.bool_)
    first[1:] = (row[1:] != row[:-1]) | (cta[1:] != cta[:-1])
    row, cta = row[first], cta[first]
    if len(row) > 1 and (row[1:] == row[:-1]).any():
        pairs = np.unique(np.stack([row, cta]), axis=1)
        return pairs[0], pairs[1]
    return row, cta


def by_offset(offset: Array) -> list[tuple[int, Any]]:
    """Return (offset, lanes) for each barrier that lanes name."""
    if len(offset) and (offset == offset[0]).all():
        return [(int(offset[0]), slice(None))]
    return [(int(o), offset == o) for o in np.unique(offset)]


def note(c: Group, row: Array, cta: Array, offset: int, ins: Instruction, init: bool) -> None:
    """Record an access to a barrier in shadow memory, so that a use before a visible init is a race."""
    shadow = c.batch.shared.shadow
    if shadow is None or not _inside(c, offset):
        return
    index = np.zeros((c.n, 32), np.int64)
    mask = np.zeros((c.n, 32), np.bool_)
    index[row, 0] = (cta * c.batch.shared.stride + offset) // 8
    mask[row, 0] = True
    shadow.write(c, index, 8, 1, mask, ins, Weak if init else Strong)


def tell(c: Group, row: Array, cta: Array, offset: int, kind: str, ago: int) -> None:
    """Record events of warps at an mbarrier, in its phase or `ago` phases before."""
    batch, order = c.batch, c.batch.run.order
    if len(row) and order is not None:
        rows, blocks = unique_pairs(row, cta)
        phases = (batch.mbarriers.get(offset).phase[blocks] + ago).tolist()
        places = [("mbarrier", batch.first + int(b), offset) for b in blocks]
        order.warps(batch, c.rows[rows], lambda i: places[i], kind, lambda i: phases[i])


@builds("mbarrier.pending_count")
def build_pending(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.pending_count of a state."""
    read, write = k.reader(ins.operands[1], "b64"), k.writer(ins.operands[0], "u32")
    assert write is not None
    return lambda c: write(c, (read(c) >> np.uint64(PHASE_BITS)).astype(np.uint32))


def _barrier(k: Compiler, ins: Instruction, operand: Operand) -> Callable[[Group], Array]:
    """Return the addresses of a barrier.

    With .shared::cluster, or by generic address if the instruction takes one, it may be a peer's.
    """
    name, space, address = k.form.row.name, k.form["space"], address_of(k, operand)
    may = name[1] in ("arrive", "arrive_drop", "expect_tx", "complete_tx")
    if space == "shared::cluster" or (may and not space):
        return address
    return own_only(address, ins)


@builds("mbarrier.init")
def build_init(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.init."""
    address, count = _barrier(k, ins, ins.operands[0]), k.reader(ins.operands[1], "b32")

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, ins, address(c))
        counts = np.broadcast_to(count(c), (c.n, 32))[row, lane].astype(np.int64)
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, True)
            c.batch.mbarriers.init(at, row[some], cta[some], counts[some], ins)

    return run


@builds("mbarrier.inval")
def build_inval(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.inval."""
    address = _barrier(k, ins, ins.operands[0])

    def run(c: Group) -> None:
        row, _, cta, offset = lanes_at(c, ins, address(c))
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, True)
            c.batch.mbarriers.invalidate(at, cta[some], ins)

    return run


@builds("mbarrier.expect_tx mbarrier.complete_tx")
def build_transaction(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.expect_tx and .complete_tx: they change the bytes that a phase waits for, without an arrival."""
    sign = 1 if k.form.name == "mbarrier.expect_tx" else -1
    address, count = _barrier(k, ins, ins.operands[0]), k.reader(ins.operands[1], "b32")

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, ins, address(c))
        if c.batch.peers is not None:
            c.batch.peers.accessed(c, row, cta, ins)
        bytes_ = np.broadcast_to(count(c), (c.n, 32))[row, lane].astype(np.int64) * sign
        for at, some in by_offset(offset):
            c.batch.mbarriers.transact(at, cta[some], bytes_[some], ins)

    return run


@builds("mbarrier.arrive mbarrier.arrive_drop mbarrier.arrive.expect_tx mbarrier.arrive_drop.expect_tx")
def build_arrive(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.arrive and .arrive_drop, with .expect_tx and .noComplete, on barriers of this block and of peers."""
    dest, barrier, *rest = ins.operands
    address = _barrier(k, ins, barrier)
    expects = k.form.row.name[-1] == "expect_tx"
    amount = k.reader(rest[0], "b32") if rest else None
    write = k.writer(dest, "b64")
    drop = k.form.row.name[1] == "arrive_drop"
    relaxed = k.form["order"] == "relaxed"
    scope = k.form["scope"]
    waits = scope == "cluster" and not relaxed  # for the lanes' loads: on a GPU, it comes behind a fence

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, ins, address(c))
        if c.batch.peers is not None:
            c.batch.peers.accessed(c, row, cta, ins)
        value = np.ones(len(row), np.int64)
        if amount is not None:
            value = np.broadcast_to(amount(c), (c.n, 32))[row, lane].astype(np.int64)
        one = np.ones(len(row), np.int64)
        batch, clocks = c.batch, c.batch.clocks
        tokens = np.zeros((c.n, 32), np.uint64)
        if clocks is not None and waits:
            clocks.performed(c.rows)
        for at, some in by_offset(offset):
            here, blocks = row[some], cta[some]
            if batch.run.order is not None:
                tell(c, here, blocks, at, "arrive", 0)
            if clocks is not None:
                note(c, here, blocks, at, ins, False)
                rows, targets = unique_pairs(here, blocks)
                batch.mbarriers.release(at, c.rows[rows], targets, relaxed, scope)
            counts, expect = (one[some], value[some]) if expects else (value[some], None)
            tokens[here, lane[some]] = batch.mbarriers.arrive(at, blocks, counts, expect, drop, ins)
        if clocks is not None:
            clocks.tick(c)
        if write is not None:
            write(c, tokens)

    return run


@builds("mbarrier.test_wait mbarrier.test_wait.parity mbarrier.try_wait mbarrier.try_wait.parity")
def build_wait(k: Compiler, ins: Instruction) -> Op:
    """Build mbarrier.test_wait and .try_wait, by state and by parity. A try_wait holds the warp until its phase is complete.

    Both may fail on a GPU, a try_wait after its time limit (`checks/given_up.py`). So a wait whose result nothing reads orders
    nothing.
    """
    parity = k.form.row.name[-1] == "parity"
    write, observed = k.writer(ins.operands[0], "pred"), k.is_read(ins.operands[0])
    address = _barrier(k, ins, ins.operands[1])
    read = k.reader(ins.operands[2], "b32" if parity else "b64")
    if len(ins.operands) > 3:
        k.reader(ins.operands[3], "b32")  # the time limit of the wait
    waits = k.form.row.name[1] == "try_wait"
    relaxed, scope = k.form["order"] == "relaxed", k.form["scope"]
    k.program.keeps_phases = k.program.keeps_phases or not parity
    gives_up = observed and not only_tried_again(k.fn, ins)

    def run(c: Group) -> bool:
        row, lane, cta, offset = lanes_at(c, ins, address(c), read(c))
        wanted = np.broadcast_to(read(c), (c.n, 32))[row, lane].astype(np.int64)
        together = len(row) == c.n  # one test for each warp, whose result all its lanes get
        batch = c.batch
        complete, failed = np.zeros((2, len(row)), np.bool_)
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, False)
            complete[some] = batch.mbarriers.complete(at, cta[some], wanted[some], parity, ins)
            if gives_up:
                failed[some] = batch.given_up.fails(c, ins, at, row[some], cta[some], complete[some])
        done = complete & ~failed
        blocking = waits and not (gives_up and batch.run.order is not None)
        if blocking and not (done | failed).all() and c.why is not TIMED_OUT:
            result = np.zeros((c.n, 1 if together else 32), np.bool_)
            result[row, 0 if together else lane] = done | failed
            idle: Array = ~np.any(result, axis=1)
            if idle.any():
                first = int(np.flatnonzero(idle[row])[0])
                asked = f"parity {int(wanted[first]) & 1}" if parity else f"phase {int(wanted[first])}"
                why = MbarrierWait(ins, int(offset[first]), int(cta[first]), asked)
                batch.poll(c.subset(c.pc, idle), why)
                if not idle.all():
                    rest = c.subset(c.pc, ~idle)
                    rest.why = TIMED_OUT  # these rows return False
                    batch.again(rest)
                return False
        for at, some in by_offset(offset):
            seen = done[some]
            if failed.any():
                those = failed[some]
                batch.given_up.failed(c, ins, at, row[some][those], complete[some][those])
            if batch.run.order is not None:
                for kind, those, ago in (("saw" if blocking else "took", seen, -1), ("missed", ~seen, 0)):
                    tell(c, row[some][those], cta[some][those], at, kind, ago)
            if not observed or not seen.any():
                continue
            if not parity:
                phases = batch.mbarriers.get(at).phase[cta[some]]
                earlier = seen & ((wanted[some] & ((1 << PHASE_BITS) - 1)) + 1 < phases)
                if earlier.any():
                    rows, targets = unique_pairs(row[some][earlier], cta[some][earlier])
                    batch.mbarriers.saw_earlier(at, c.rows[rows], targets, c, relaxed)
                    seen = seen & ~earlier
            rows, targets = unique_pairs(row[some][seen], cta[some][seen])
            batch.mbarriers.saw(at, c.rows[rows], targets, c, relaxed, scope)
        if write is not None:
            result = np.zeros((c.n, 1 if together else 32), np.bool_)
            result[row, 0 if together else lane] = done
            write(c, result)
        if done.any() or failed.any() or blocking:
            return True
        return batch.run.looked(c, ins)

    return run


# --- fences -----------------------------------------------------------------------------------------


@builds("fence membar")
def build_fence(k: Compiler, ins: Instruction) -> Op:
    """Build fence in all its forms, and membar; a fence orders as far as its scope (PTX ISA 9.7.13.4, 8.5)."""
    reach = k.program.reach(k.form.words.get("scope") or k.form.words.get("level", ""))
    if k.form.words.get("init"):  # .mbarrier_init orders only the initialisation of barriers, in the cluster
        reach = 0

    def run(c: Group) -> None:
        if c.batch.clocks is not None:
            c.batch.clocks.fence(c, reach)
            c.batch.run.sync.fence(c, reach)

    return run


@builds("fence.proxy membar.proxy")
def build_proxy_fence(k: Compiler, ins: Instruction) -> Op:
    """Build fences between proxies: .async orders the generic and the async proxy, in all memory or in one space;
    .tensormap::generic releases tensor maps to their proxy, and acquires one (`checks/tensor_proxy.py`).
    """
    kind, reach = k.form.words["kind"], k.program.reach(k.form.words.get("scope", ""))
    if kind == "tensormap::generic":
        if not ins.operands:
            return lambda c: tensor_proxy.release(c, reach)
        address = address_of(k, ins.operands[0], "")
        return lambda c: tensor_proxy.acquire(c, np.broadcast_to(address(c), (c.n, 32)), ins, reach)
    if kind != "async":
        return lambda c: None
    planes = {"": (ASYNC, ASYNC_GLOBAL), "global": (ASYNC_GLOBAL,)}.get(k.form["space"], (ASYNC,))

    def proxy(c: Group) -> None:
        if c.batch.clocks is not None:
            c.batch.clocks.proxy_fence(c, planes)

    return proxy
