"""A warning for values that cannot fit a lane's registers: they are right still, and slow."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod

from .ir import ArrayType, KernelIR, Op, layout_of
from .ops.broadcast import Broadcast, Expand
from .ops.cast import Constant
from .ops.create import Iota
from .ops.matrix import SetMaxRegisters

LANES = 128  # of a warpgroup
FILE_REGISTERS = 65536  # 32-bit registers of a multiprocessor (CUDA C++ Programming Guide, 'technical specifications')
MOST = 255  # registers that one lane can have
OTHERS = 24  # registers for addresses, masks and other operands

_told: ContextVar[list[str] | None] = ContextVar("told", default=None)
_REMADE = (Broadcast, Constant, Expand, Iota)  # never held in registers as such


def available(threads: int) -> int:
    """Registers a lane can have in a block of `threads` warpgroups.

    A lower limit of the author's is ignored: it is a choice.
    """
    return min(MOST, FILE_REGISTERS // (LANES * threads))


def registers_of(type: ArrayType, registers: int) -> int:
    """32-bit registers of a lane that holds `registers` elements of a value."""
    if type.dtype.is_bool:
        return -(-registers // 32)  # predicates, of which many are packed into a register
    return -(-registers * max(type.dtype.bits, 8) // 32)


@contextmanager
def large_values() -> Generator[list[str]]:
    """Collect short texts in place of warnings."""
    found: list[str] = []
    token = _told.set(found)
    try:
        yield found
    finally:
        _told.reset(token)


def warn_of_large_values(ir: KernelIR) -> None:
    """Warn, once a line, of each value that is larger than all before it and leaves no register for others."""
    room = available(ir.threads)
    large: list[tuple[Op, ArrayType, int]] = []
    for op in ir.walk():
        if isinstance(op, SetMaxRegisters) and op.increase:
            room = max(room, op.count)  # the largest number that any warpgroup asks for
        for value in op.results:
            type = value.type
            if not isinstance(type, ArrayType) or not prod(type.shape) or not type.shape or isinstance(op, _REMADE):
                continue
            taken = registers_of(type, layout_of(value).registers)
            if taken > room - OTHERS:
                large.append((op, type, taken))
    largest = room - OTHERS
    for op, type, taken in large:
        if taken > largest:
            largest = taken
            _warn(op, type, taken, room, ir.threads)


def _warn(op: Op, type: ArrayType, taken: int, room: int, threads: int) -> None:
    told = _told.get()
    if told is not None:
        told.append(f"{type} takes {taken} registers a lane of {room}")
        return
    ways = "load and compute a part at a time in a loop (`kd.fori_loop` over `kd.ds` slices)"
    if threads < 8:
        ways = f"share it among more warpgroups (`num_threads=`, now {threads}, and a slice each), or {ways}"
    text = (
        f"{type} takes {taken} registers a lane of {room}: it spills to local memory, which is right and slow; {ways}"
    )
    warnings.warn_explicit(text, RuntimeWarning, op.loc.file, op.loc.line)
