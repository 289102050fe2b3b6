"""alloca, stacksave and stackrestore (PTX ISA 9.7.16): local memory that a function takes while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...ptx.module import Imm, Instruction
from ..calls import STACK_BYTES
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds

if TYPE_CHECKING:
    from ..frame import Frame

Array = npt.NDArray[Any]
_DEFAULT_ALIGN = 8
_LEAST = 256  # bytes of a piece of local memory


class Allocations:
    """What the lanes of a frame have allocated: pieces of local memory, and in them each lane's stack pointer.

    A pointer of 0 is that of a lane without allocations. A lane goes on to a later piece where its own has too little room.
    """

    def __init__(self, frame: Frame) -> None:
        self.space = frame.batch.local
        self.top: Array = np.zeros((frame.batch.warps, 32), np.int64)
        self.pieces: list[tuple[int, int]] = []  # where they begin and end

    def _piece(self, pointer: Array) -> Array:
        """Return the number of the piece that each pointer lies in; -1 for none."""
        found = np.full(pointer.shape, -1)
        for number, (begin, end) in enumerate(self.pieces):
            found[(begin <= pointer) & (pointer <= end)] = number
        return found

    def take(self, c: Group, size: Array, align: int, ins: Instruction) -> Array:
        """Return the addresses of `size` new bytes for each active lane."""
        top, active = self.top[c.rows], c.active
        piece = self._piece(top)
        ends = np.array([end for _, end in self.pieces] + [0])  # the last is that of no piece
        start = -(-top // align) * align
        lacking = active & ((top == 0) | (start + size > ends[piece]))
        if lacking.any():
            begin = self._room(int(piece[lacking].max()), int(size[lacking].max()), align, c, ins)
            start = np.where(lacking, begin, start)
        self.top[c.rows] = np.where(active, start + size, top)
        self._forget(c, np.where(active, start, 0), np.where(active, size, 0))
        return start

    def _room(self, after: int, size: int, align: int, c: Group, ins: Instruction) -> int:
        """Return the start of a piece behind piece `after` with room for `size` bytes."""
        for begin, end in self.pieces[after + 1 :]:
            start = -(-begin // align) * align
            if start + size <= end:
                return start
        if size > STACK_BYTES:
            reporter = c.batch.run.reporter
            _, _, who = reporter.group(c, c.active)
            what = (
                f"alloca of {size} bytes needs more than the {STACK_BYTES} bytes of stack that GPUs can give each lane"
            )
            reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), "correct the size", ends=True)
        room = max(size, _LEAST)
        begin = self.space.reserve(room, max(align, 16))
        self.pieces.append((begin, begin + room))
        return begin

    def _forget(self, c: Group, start: Array, size: Array) -> None:
        """Mark new memory as unwritten."""
        self.space.ready()
        places = np.arange(int(size.max()))
        row, lane, byte = np.nonzero(places < size[..., None])
        self.space.written[c.rows[row], lane, start[row, lane] + byte] = False


def _allocations(frame: Frame) -> Allocations:
    if frame.allocations is None:
        frame.allocations = Allocations(frame)
    return frame.allocations


@builds("alloca")
def build_alloca(k: Compiler, ins: Instruction) -> Op:
    """Build alloca: the new memory belongs to the function, until it returns or restores its stack."""
    type_ = k.form["type"]
    read, write = k.reader(ins.operands[1], type_), k.writer(ins.operands[0], type_)
    last = ins.operands[2] if len(ins.operands) > 2 else Imm(_DEFAULT_ALIGN)
    assert write is not None and isinstance(last, Imm)
    align, kept = last.value, STACK_BYTES + 1  # a size that is too large is reported; it must not wrap

    def run(c: Group) -> None:
        size = np.minimum(np.broadcast_to(read(c), (c.n, 32)), kept).astype(np.int64)
        write(c, _allocations(c.frame).take(c, size, align, ins).astype(np.uint32 if type_ == "u32" else np.uint64))

    return run


@builds("stacksave")
def build_stacksave(k: Compiler, ins: Instruction) -> Op:
    """Build stacksave: the stack pointer as a number."""
    type_ = k.form["type"]
    write = k.writer(ins.operands[0], type_)
    assert write is not None
    return lambda c: write(c, _allocations(c.frame).top[c.rows].astype(np.uint32 if type_ == "u32" else np.uint64))


@builds("stackrestore")
def build_stackrestore(k: Compiler, ins: Instruction) -> Op:
    """Build stackrestore: what was allocated after the stacksave is free again."""
    read = k.reader(ins.operands[0], k.form["type"])

    def run(c: Group) -> None:
        top = _allocations(c.frame).top
        saved = np.broadcast_to(read(c), (c.n, 32)).astype(np.int64)
        top[c.rows] = np.where(c.active, saved, top[c.rows])

    return run
