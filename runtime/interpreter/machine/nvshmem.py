"""The interpreter's own NVSHMEM device functions: copies and atomics on peers, whether they are mapped or not.

A put moves its bytes at once; the language calls quiet before it signals.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind
from ..ptx.module import Instruction
from .group import Group
from .memory import SLOT_BITS, SLOT_MASK
from .spaces import Part

Array = npt.NDArray[Any]
_COMPARE: list[Callable[[int, int], bool]] = [
    operator.eq, operator.ne, operator.gt, operator.le, operator.lt, operator.ge,
]  # fmt: skip


class _Weak:
    """An ordinary access, as shadow memory sees it."""

    semantics, scope, strong, updates, fails, reach, read_only = "weak", "", False, False, False, 0, False


class _Strong:
    """An atomic of system scope, which releases its warp's earlier accesses, or acquires."""

    scope, strong, updates, fails, reach, read_only = "sys", True, True, False, 0, False

    def __init__(self, semantics: str) -> None:
        self.semantics = semantics
        self.operation, self.type, self.count, self.size = "add", "u32", 1, 4
        self.updates = semantics == "release"


def _values(c: Group, param: Array, dtype: str) -> Array:
    return np.ascontiguousarray(param[c.select]).view(dtype)[..., 0]


def _there(c: Group, row: int, lane: int, address: int, rank: int, ins: Instruction) -> int | None:
    """Return the address of the same place on another rank; None, after a report, if there is none."""
    members = c.batch.run.memory.peers.get(address >> SLOT_BITS)
    if members is None or not 0 <= rank < len(members):
        who = c.batch.run.reporter.group(c, c.active)[2]
        what = f"no rank {rank}" if members is not None else f"{address:#x} lies in no symmetric array"
        c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, f"a call of NVSHMEM: {what}", ins, (who,))
        return None
    return members[rank] << SLOT_BITS | (address & SLOT_MASK)


def _callers(c: Group) -> Iterator[tuple[int, int]]:
    for row, lane in np.argwhere(c.active):
        yield int(row), int(lane)


def _spread(c: Group, row: int, start: int, to: int, size: int) -> Iterator[tuple[Group, Array, Array, int]]:
    """Yield pieces of a copy, with a word for each lane of the caller's warp: (group, source, target, bytes of a word)."""
    unit = next(u for u in (8, 4, 2, 1) if not (start % u or to % u or size % u))
    lanes = unit * np.arange(32, dtype=np.uint64)[None]
    for at in range(0, size, 32 * unit):
        group = c.part(c.pc, c.rows[row : row + 1], lanes < np.uint64(size - at))
        yield group, np.uint64(start + at) + lanes, np.uint64(to + at) + lanes, unit


def _read(c: Group, at: Array, unit: int, ins: Instruction) -> Array:
    out = np.zeros((1, 32), f"u{unit}")
    for part in c.batch.run.globals.locate(c, at, unit, unit, ins, False):
        if part.shadow is not None:
            part.shadow.read(c, part.index, unit, 1, part.mask, ins, _Weak)
        where = c.active if part.mask is None else part.mask
        out[where] = part.view[part.index[where]]
    return out


def _write(c: Group, at: Array, unit: int, data: Array, ins: Instruction) -> None:
    for part in c.batch.run.globals.locate(c, at, unit, unit, ins, True):
        where = c.active if part.mask is None else part.mask
        if part.shadow is not None:

            def same(part: Part = part) -> Array:
                return part.view[part.index] == data

            access = part.shadow.write(c, part.index, unit, 1, part.mask, ins, _Weak, same)
            if access is not None and access.clash is not None:
                part.shadow.settle_clash(access)
        part.view[part.index[where]] = data[where]


def put(c: Group, ins: Instruction, params: list[Array]) -> None:
    """Execute nvshmem_putmem_nbi(destination, source, bytes, rank)."""
    _copy(c, ins, params, far=0)


def get(c: Group, ins: Instruction, params: list[Array]) -> None:
    """Execute nvshmem_getmem_nbi(destination, source, bytes, rank)."""
    _copy(c, ins, params, far=1)


def _copy(c: Group, ins: Instruction, params: list[Array], far: int) -> None:
    """Copy from a source to a destination, of which parameter `far` is the one on the other device."""
    ranks = _values(c, params[3], "i4")
    values = [_values(c, p, "u8") for p in params[:3]]
    for row, lane in _callers(c):
        places = [int(x[row, lane]) for x in values]
        there = _there(c, row, lane, places[far], int(ranks[row, lane]), ins)
        if there is None:
            continue
        places[far] = there
        to, source, size = places
        for group, at, target, unit in _spread(c, row, source, to, size):
            _write(group, target, unit, _read(group, at, unit, ins), ins)
    c.batch.run.progress += 1


def add(c: Group, ins: Instruction, params: list[Array]) -> None:
    """Execute nvshmem_int_atomic_add(address, value, rank)."""
    addresses, values, ranks = _values(c, params[0], "u8"), _values(c, params[1], "u4"), _values(c, params[2], "i4")
    form = _Strong("release")
    for row, lane in _callers(c):
        target = _there(c, row, lane, int(addresses[row, lane]), int(ranks[row, lane]), ins)
        if target is None:
            continue
        _atomic(c, row, lane, target, int(values[row, lane]), form, ins)
    c.batch.run.atomics += 1
    c.batch.run.progress += 1


def test(c: Group, ins: Instruction, params: list[Array]) -> Array:
    """Execute nvshmem_int_test(address, comparison, value)."""
    addresses, kinds, values = _values(c, params[0], "u8"), _values(c, params[1], "i4"), _values(c, params[2], "i4")
    out = np.zeros((c.n, 32), np.int32)
    form = _Strong("acquire")
    for row, lane in _callers(c):
        held = _atomic(c, row, lane, int(addresses[row, lane]), 0, form, ins)
        out[row, lane] = _COMPARE[int(kinds[row, lane])](held, int(values[row, lane]))
    return out


def _atomic(c: Group, row: int, lane: int, address: int, value: int, form: _Strong, ins: Instruction) -> int:
    """Add to a word of one lane. Returns its old value."""
    mask = np.zeros((1, 32), np.bool_)
    mask[0, lane] = True
    group = c.part(c.pc, c.rows[row : row + 1], mask)
    held = 0
    for part in c.batch.run.globals.locate(group, np.full((1, 32), address, np.uint64), 4, 4, ins, form.updates):
        where = group.active if part.mask is None else part.mask
        if part.shadow is not None:
            part.shadow.atomic(group, part.index, 4, part.mask, ins, form)
            c.batch.run.sync.access(group, part, 4, form, not form.updates, form.updates)
        at = part.index[where]
        held = int(part.view[at][0].view(np.int32))
        part.view[at] += np.uint32(value)
    return held


def quiet(c: Group, ins: Instruction, params: list[Array]) -> None:
    """Execute nvshmem_quiet(): all puts are complete."""


def mapped_at(c: Group, ins: Instruction, params: list[Array]) -> Array:
    """Execute nvshmem_ptr(address, rank): return where the address is mapped, or 0."""
    addresses, ranks = _values(c, params[0], "u8"), _values(c, params[1], "i4")
    near = next((group for group in c.batch.run.memory.near if c.batch.device in group), None)
    out = np.zeros((c.n, 32), np.uint64)
    for row, lane in _callers(c):
        rank = int(ranks[row, lane])
        target = _there(c, row, lane, int(addresses[row, lane]), rank, ins)
        out[row, lane] = target if target is not None and (near is None or rank in near) else 0
    return out


def my_pe(c: Group, ins: Instruction, params: list[Array]) -> Array:
    """Execute nvshmem_my_pe()."""
    return np.full((c.n, 32), c.batch.device, np.int32)


def n_pes(c: Group, ins: Instruction, params: list[Array]) -> Array:
    """Execute nvshmem_n_pes()."""
    return np.full((c.n, 32), c.batch.run.devices, np.int32)


def fetch(c: Group, ins: Instruction, params: list[Array]) -> Array:
    """Execute nvshmem_signal_fetch(address): return a word of 8 bytes, of which the upper half is 0 here."""
    addresses = _values(c, params[0], "u8")
    out = np.zeros((c.n, 32), np.uint64)
    form = _Strong("acquire")
    for row, lane in _callers(c):
        out[row, lane] = np.uint32(_atomic(c, row, lane, int(addresses[row, lane]), 0, form, ins))
    return out


SIZES: dict[str, tuple[int, ...]] = {
    "nvshmem_putmem_nbi": (8, 8, 8, 4), "nvshmem_int_atomic_add": (8, 4, 4), "nvshmem_int_test": (8, 4, 4), "nvshmem_quiet": (),
    "nvshmem_getmem_nbi": (8, 8, 8, 4), "nvshmem_ptr": (8, 4), "nvshmem_my_pe": (), "nvshmem_n_pes": (),
    "nvshmem_signal_fetch": (8,),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Group, Instruction, list[Array]], Array | None]] = {
    "nvshmem_putmem_nbi": put, "nvshmem_int_atomic_add": add, "nvshmem_int_test": test, "nvshmem_quiet": quiet,
    "nvshmem_getmem_nbi": get, "nvshmem_ptr": mapped_at, "nvshmem_my_pe": my_pe, "nvshmem_n_pes": n_pes,
    "nvshmem_signal_fetch": fetch,
}  # fmt: skip
