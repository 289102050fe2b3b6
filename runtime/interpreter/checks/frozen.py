"""Endless loops that store: loaded values decide whether they end, and no warp writes the memory of these loads any more.

`runaway.py` follows loops whose end depends on counters. Here a round also loads from memory. If every running lane comes
back to the same deciding registers, its loop goes on as long as the memory that it loads from stays the same. The run is
endless if nothing has stored to the arrays that hold this memory during several checks. Stores to other arrays do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.instructions import known_form
from ..ptx.module import Instruction, Mem, Reg
from .runaway import Round, deciding_by
from .shadow_access import adds_nothing

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_LOOKS = 8  # the checks in a row that must find no store
_PERIOD = 64  # rounds within which a lane comes back to its registers
_LANES = 256  # the most lanes that a check follows


@dataclass
class DecidingWords:
    """The memory that rounds load from: addresses of global memory, and words of shared memory by block and offset."""

    addresses: set[int]
    shared: dict[tuple[int, int], bytes]


class Frozen:
    """Checks from time to time whether all running warps are in endless loops that loaded values decide."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.looks: int = 0
        self.state: Any = None
        self._wanted: dict[Any, int | None] = {}

    def look(self) -> bool:
        """Return whether the run is endless."""
        state = self._held()
        self.looks = self.looks + 1 if state is not None and state == self.state else 0
        self.state = state
        return self.looks >= _LOOKS

    def _held(self) -> Any:
        """Return the numbers of stores to the arrays that decide, and the words of shared memory that decide.

        None if a lane may leave its loop, or if other work may run.
        """
        run = self.run
        if run.devices > 1 or run.next_block < run.blocks:
            return None
        reads = DecidingWords(set(), {})
        left = _LANES
        for batch in run.resident:
            if batch.engine.pending or batch.polling or batch.parked:
                return None
            waiting = [w.group for w in (*batch.barriers.waiting, *batch.barriers.cluster_waiting)]
            for g in (*batch.ready.values(), *waiting):
                left = self._goes_round(g, reads, left)
                if left < 0:
                    return None
        arrays = {id(b): b for b in map(run.memory.find, reads.addresses) if b is not None}
        shadows = [b.shadow for b in arrays.values()] + [b.shared.shadow for b in run.resident if reads.shared]
        if not shadows or any(shadow is None for shadow in shadows):
            return None
        return [(id(shadow), shadow.stores) for shadow in shadows], reads.shared

    def _goes_round(self, g: Group, reads: DecidingWords, left: int) -> int:
        """Return how many more lanes may be followed, or -1 if a lane of `g` may leave its loop."""
        key = g.frame.code.name, g.pc
        if key not in self._wanted:
            self._wanted[key] = deciding_by(g.frame.code.segments, g.pc, _loads)
        wanted = self._wanted[key]
        if not wanted:
            return -1
        seen: set[Any] = set()
        for lane in np.flatnonzero(g.active.reshape(-1)).tolist():
            start = LoadingRound(g, wanted, lane, reads)
            held = _bits(start.registers)
            if held in seen:
                continue
            seen.add(held)
            left -= 1
            if left < 0 or not any(_bits(r) == held for r in start.rounds()):
                return -1
        return left


class LoadingRound(Round):
    """A round of one lane that also loads. `reads` collects the memory that it loads from."""

    def __init__(self, g: Group, wanted: int, lane: int, reads: DecidingWords) -> None:
        super().__init__(g, wanted, lane)
        self.reads = reads

    def rounds(self) -> Iterator[dict[int, Array]]:
        """Yield the registers after each of the coming rounds."""
        registers: dict[int, Array] | None = self.registers
        for _ in range(_PERIOD):
            registers = self.after(registers)
            if registers is None:
                return
            yield registers

    def execute(self, op: Any, ins: Instruction) -> bool:
        if ins.opcode[0] not in ("ld", "ldu", "atom"):
            return super().execute(op, ins)
        dest = ins.operands[0]
        form = known_form(ins)
        assert isinstance(dest, Reg) and form is not None
        data = self._shared(ins, form.size) if form["space"].startswith("shared") else self._global(ins, form.size)
        if data is None:
            return False
        old = self.v[dest.index]
        kind = "i" if form["type"][0] == "s" else "u"
        value = data.view(f"{kind}{form.size}").astype(f"{kind}{old.dtype.itemsize}").view(old.dtype)
        self.put(dest.index, value.reshape(1, 1))
        return True

    def _global(self, ins: Instruction, size: int) -> Array | None:
        source = ins.operands[1]
        assert isinstance(source, Mem)
        if not isinstance(source.base, Reg):
            return None
        address = int(self.v[source.base.index][0, 0]) + source.offset
        self.reads.addresses.add(address)
        return self.g.batch.run.memory.bytes_at(address, size)

    def _shared(self, ins: Instruction, size: int) -> Array | None:
        source, batch = ins.operands[1], self.g.batch
        assert isinstance(source, Mem)
        if isinstance(source.base, Reg):
            at = int(self.v[source.base.index][0, 0])
        else:
            at = batch.run.program.shared_offsets.get(getattr(source.base, "name", ""), -1)
        at += source.offset
        if batch.cluster > 1 or not batch.shared.first <= at <= batch.shared.limit - size:
            return None
        cta = int(batch.row_cta[self.g.rows[self.lane // 32]])
        data = batch.shared.data[cta * batch.shared.stride + at :][:size]
        self.reads.shared[batch.first + cta, at] = data.tobytes()
        return data


def _bits(registers: dict[int, Array]) -> tuple[bytes, ...]:
    return tuple(r.tobytes() for r in registers.values())


def _loads(ins: Instruction) -> bool:
    """Return whether an instruction is a load of one value, or an atomic that changes nothing."""
    form = known_form(ins) if ins.opcode[0] in ("ld", "ldu", "atom") else None
    if ins.opcode[0] == "cvta":
        return True
    if (
        form is None
        or form["space"] not in ("", "global", "shared", "shared::cta")
        or not isinstance(ins.operands[0], Reg)
    ):
        return False
    source = ins.operands[1]
    if not isinstance(source, Mem) or source.coords is not None or form.vector != 1:
        return False
    return ins.opcode[0] != "atom" or adds_nothing(ins)
