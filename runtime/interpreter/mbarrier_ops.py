"""The mbarrier instructions and fences (PTX ISA 9.7.13.4 and 9.7.13.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .compiler import Compiler
from .group import Group
from .loads import address_of
from .mbarriers import PHASE_BITS, TIMED_OUT, MbarrierWait
from .memory import WINDOW_MASK
from .program import Op, builds
from .ptx import Instruction, Operand, Sink
from .spaces import own_only

Array = npt.NDArray[Any]

_WORDS = {
    "init", "inval", "expect_tx", "complete_tx", "arrive", "arrive_drop", "noComplete", "test_wait",
    "try_wait", "parity", "pending_count", "shared", "shared::cta", "shared::cluster", "b64",
    "release", "acquire", "relaxed", "cta", "cluster",
}  # fmt: skip


class Strong:
    """What shadow memory is told of an access that does not race with its like."""

    strong = True


class Weak:
    """An ordinary access."""

    strong = False


def lanes_at(c: Group, address: Array, *others: Array) -> tuple[Array, Array, Array, Array]:
    """(row, lane, block, offset) of each active lane's shared address, generic ones included.

    With `others`, one lane stands for a warp whose active lanes agree in the address and in those.
    """
    cta, offset = c.batch.shared.place(c, address & np.uint64(WINDOW_MASK))
    shape = (c.n, 32)
    if others and all(_agrees(c, v) for v in (address, *others)):
        row, lane = np.arange(c.n), c.active.argmax(axis=1)
    else:
        row, lane = np.nonzero(c.active)
    return row, lane, np.broadcast_to(cta, shape)[row, lane], np.broadcast_to(offset, shape)[row, lane]


def _agrees(c: Group, value: Array) -> bool:
    """Whether the active lanes of each warp hold one value."""
    if value.shape[1] == 1:
        return True
    lead = value[np.arange(len(value)), c.active.argmax(axis=1)] if len(value) == c.n else value[:, 0]
    same = value == lead[:, None]
    return bool(same.all() if c.mask is None else (same | ~c.mask).all())


def unique_pairs(row: Array, cta: Array) -> tuple[Array, Array]:
    """The distinct (row, block) pairs of lanes in the order of their rows."""
    first = np.ones(len(row), np.bool_)
    first[1:] = (row[1:] != row[:-1]) | (cta[1:] != cta[:-1])
    row, cta = row[first], cta[first]
    if len(row) > 1 and (row[1:] == row[:-1]).any():
        pairs = np.unique(np.stack([row, cta]), axis=1)
        return pairs[0], pairs[1]
    return row, cta


def by_offset(offset: Array) -> list[tuple[int, Any]]:
    """(offset, which lanes) for each barrier that lanes name."""
    if len(offset) and (offset == offset[0]).all():
        return [(int(offset[0]), slice(None))]
    return [(int(o), offset == o) for o in np.unique(offset)]


def note(c: Group, row: Array, cta: Array, offset: int, ins: Instruction, init: bool) -> None:
    """Tell shadow memory of an access to a barrier, so that use before a visible init is a race."""
    shadow = c.batch.shared.shadow
    if shadow is None:
        return
    index = np.zeros((c.n, 32), np.int64)
    mask = np.zeros((c.n, 32), np.bool_)
    index[row, 0] = (cta * c.batch.shared.stride + offset) // 8
    mask[row, 0] = True
    shadow.write(c, index, 8, 1, mask, ins, Weak if init else Strong)


@builds("mbarrier")
def build_mbarrier(k: Compiler, ins: Instruction) -> Op:
    """mbarrier.init, inval, arrive, arrive_drop, .expect_tx, .noComplete, expect_tx, complete_tx, test_wait, try_wait
    (by state and by parity), pending_count; of this block and, for arrivals, of peers."""
    words = ins.opcode[1:]
    unknown = [w for w in words if w not in _WORDS]
    if unknown:
        raise k.error(f"'.{unknown[0]}' is not possible here")
    if words[-1] != "b64":
        raise k.error("the type is .b64")
    if {"release", "acquire", "relaxed"}.intersection(words) and not {"cta", "cluster"}.intersection(words):
        raise k.error("an order needs a scope")
    match words[0]:
        case "init":
            return _init(k, ins)
        case "inval":
            return _inval(k, ins)
        case "expect_tx" | "complete_tx":
            return _transact(k, ins, 1 if words[0] == "expect_tx" else -1)
        case "arrive" | "arrive_drop":
            return _arrive(k, ins)
        case "test_wait" | "try_wait":
            return _wait(k, ins)
        case _:
            read, write = k.reader(ins.operands[1], "b64"), k.writer(ins.operands[0], "b32")
            assert write is not None
            return lambda c: write(c, (read(c) >> np.uint64(PHASE_BITS)).astype(np.uint32))


def _barrier(k: Compiler, ins: Instruction, operand: Operand) -> Callable[[Group], Array]:
    """The addresses of a barrier: of a peer's too for .shared::cluster and, by generic address, for what has that."""
    words, address = ins.opcode[1:], address_of(k, operand)
    may = words[0] in ("arrive", "arrive_drop", "expect_tx", "complete_tx")
    if "shared::cluster" in words or (may and not {"shared", "shared::cta"}.intersection(words)):
        return address
    return own_only(address, ins)


def _init(k: Compiler, ins: Instruction) -> Op:
    address, count = _barrier(k, ins, ins.operands[0]), k.reader(ins.operands[1], "b32")

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, address(c))
        counts = np.broadcast_to(count(c), (c.n, 32))[row, lane].astype(np.int64)
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, True)
            c.batch.mbarriers.init(at, cta[some], counts[some], ins)

    return run


def _inval(k: Compiler, ins: Instruction) -> Op:
    address = _barrier(k, ins, ins.operands[0])

    def run(c: Group) -> None:
        row, _, cta, offset = lanes_at(c, address(c))
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, True)
            c.batch.mbarriers.invalidate(at, cta[some], ins)

    return run


def _transact(k: Compiler, ins: Instruction, sign: int) -> Op:
    address, count = _barrier(k, ins, ins.operands[0]), k.reader(ins.operands[1], "b32")

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, address(c))
        bytes_ = np.broadcast_to(count(c), (c.n, 32))[row, lane].astype(np.int64) * sign
        for at, some in by_offset(offset):
            c.batch.mbarriers.transact(at, cta[some], bytes_[some], ins)

    return run


def _arrive(k: Compiler, ins: Instruction) -> Op:
    operands = list(ins.operands)
    dest: Any = None
    from .ptx import Mem

    if not isinstance(operands[0], Mem):
        dest = operands.pop(0)
        dest = None if isinstance(dest, Sink) else dest
    address = _barrier(k, ins, operands.pop(0))
    expects = "expect_tx" in ins.opcode
    amount = k.reader(operands[0], "b32") if operands else None
    if expects and amount is None:
        raise k.error("needs the number of bytes")
    write = k.writer(dest, "b64")
    drop = ins.opcode[1] == "arrive_drop"
    relaxed = "relaxed" in ins.opcode

    def run(c: Group) -> None:
        row, lane, cta, offset = lanes_at(c, address(c))
        value = np.ones(len(row), np.int64)
        if amount is not None:
            value = np.broadcast_to(amount(c), (c.n, 32))[row, lane].astype(np.int64)
        one = np.ones(len(row), np.int64)
        batch, clocks = c.batch, c.batch.clocks
        tokens = np.zeros((c.n, 32), np.uint64)
        for at, some in by_offset(offset):
            here, blocks = row[some], cta[some]
            m = batch.mbarriers.get(at)
            if clocks is not None:
                note(c, here, blocks, at, ins, False)
                rows, targets = unique_pairs(here, blocks)
                clocks.release_rows(m.clock, targets, c.rows[rows], relaxed)
            counts, expect = (one[some], value[some]) if expects else (value[some], None)
            tokens[here, lane[some]] = batch.mbarriers.arrive(at, blocks, counts, expect, drop, ins)
        if clocks is not None:
            clocks.tick(c)
        if write is not None:
            write(c, tokens)

    return run


def _wait(k: Compiler, ins: Instruction) -> Op:
    """test_wait and try_wait. A try_wait whose phase is not complete holds the warp until it is."""
    parity = "parity" in ins.opcode
    write = k.writer(ins.operands[0], "pred")
    address = _barrier(k, ins, ins.operands[1])
    read = k.reader(ins.operands[2], "b32" if parity else "b64")
    blocking = ins.opcode[1] == "try_wait"
    relaxed = "relaxed" in ins.opcode

    def run(c: Group) -> bool:
        row, lane, cta, offset = lanes_at(c, address(c), read(c))
        wanted = np.broadcast_to(read(c), (c.n, 32))[row, lane].astype(np.int64)
        together = len(row) == c.n  # one question a warp: the answer is every lane's
        done = np.zeros(len(row), np.bool_)
        batch = c.batch
        for at, some in by_offset(offset):
            note(c, row[some], cta[some], at, ins, False)
            done[some] = batch.mbarriers.complete(at, cta[some], wanted[some], parity, ins)
        if blocking and not done.all() and c.why is not TIMED_OUT:
            result = np.zeros((c.n, 1 if together else 32), np.bool_)
            result[row, 0 if together else lane] = done
            idle: Array = ~np.any(result, axis=1)
            if idle.any():
                first = int(np.flatnonzero(idle[row])[0])
                asked = f"parity {int(wanted[first]) & 1}" if parity else f"phase {int(wanted[first])}"
                why = MbarrierWait(ins, int(offset[first]), int(cta[first]), asked)
                batch.poll(c.subset(c.pc, idle), why)
                if not idle.all():
                    rest = c.subset(c.pc, ~idle)
                    rest.why = TIMED_OUT  # its rows have something to return
                    batch.again(rest)
                return False
        for at, some in by_offset(offset):
            seen = done[some]
            if seen.any():
                rows, targets = unique_pairs(row[some][seen], cta[some][seen])
                batch.mbarriers.saw(at, c.rows[rows], targets, c, relaxed)
        if write is not None:
            result = np.zeros((c.n, 1 if together else 32), np.bool_)
            result[row, 0 if together else lane] = done
            write(c, result)
        if done.any() or blocking:
            return True
        return batch.run.looked(c, ins)

    return run


# --- fences -----------------------------------------------------------------------------------------

_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES: set[tuple[str, ...]] = {
    ("proxy", "alias"),
    *(("proxy", "async", *space) for space in ((), ("global",), ("shared::cta",), ("shared::cluster",))),
    *((sem, scope) for sem in ("acq_rel", "sc", "acquire", "release") for scope in _SCOPES),
    ("mbarrier_init", "release", "cluster"),
    *(("proxy", "tensormap::generic", way, scope) for way in ("acquire", "release") for scope in _SCOPES),
    ("acquire", "sync_restrict::shared::cluster", "cluster"),
    ("release", "sync_restrict::shared::cta", "cluster"),
    ("proxy", "async::generic", "acquire", "sync_restrict::shared::cluster", "cluster"),
    ("proxy", "async::generic", "release", "sync_restrict::shared::cta", "cluster"),
}


def fence_forms() -> list[str]:
    return sorted(".".join(("fence", *f)) for f in _FENCES)


@builds("fence", "membar")
def build_fence(k: Compiler, ins: Instruction) -> Op:
    """fence in all its forms, and membar."""
    words = ins.opcode[1:]
    if ins.opcode[0] == "membar":
        if words not in (("cta",), ("gl",), ("sys",)) and words not in _FENCES:
            raise k.error("unknown scope")
        return _ordering(ins)
    if words not in _FENCES and words not in (("cta",), ("gpu",), ("sys",), ("cluster",)):
        raise k.error("unknown fence")
    if words[0] == "proxy":
        if words[1] != "async":
            return lambda c: None

        def proxy(c: Group) -> None:
            if c.batch.clocks is not None:
                c.batch.clocks.proxy_fence(c)

        return proxy
    return _ordering(ins)


def _ordering(ins: Instruction) -> Callable[[Group], Any]:
    def run(c: Group) -> None:
        if c.batch.clocks is not None:
            c.batch.clocks.fence(c)
            c.batch.run.sync.fence(c)

    return run
