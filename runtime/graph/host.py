"""A graph in the interpreter: its nodes run one after another, in the order of recording."""

from __future__ import annotations

import time

import numpy as np

from ..arrays.array_view import CPU, ArrayView
from ..devices import driver, memory
from .build import GraphProgram
from .nodes import CopyWork, LaunchWork, MemorySlot, Node
from .plan import ALIGNMENT


class HostExec:
    """Runs a program on the CPU. Arrays on a GPU are copied here, and results back."""

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        self._memory = np.empty(program.memory_bytes + ALIGNMENT, np.uint8)
        start = self._memory.ctypes.data
        start += -start % ALIGNMENT
        for slot in program.slots:
            if slot.block is not None:
                slot.base = start + slot.block.offset + slot.shift
                slot.current = slot.home
        self._staged = [s for s in program.slots if s.block is not None and s.home is not None]
        self._written = {o.slot for n in program.nodes for o in n.operands if o.written}

    def run(self, stream: int, timed: bool) -> float | None:
        """Run every node. With `timed`, return the wall time in seconds."""
        started = time.perf_counter()
        for slot in self._staged:
            if slot.kind != "result" or slot.given:
                self._exchange(slot, stream, back=False)
        for node in self._program.nodes:
            arrays = [operand.slot.at(operand.view, CPU) for operand in node.operands]
            run_node(node, arrays)
        for slot in self._staged:
            if slot in self._written:
                self._exchange(slot, stream, back=True)
        return time.perf_counter() - started if timed else None

    def _exchange(self, slot: MemorySlot, stream: int, *, back: bool) -> None:
        assert slot.home is not None and slot.current is not None  # staged slots have both
        here, there = slot.at(slot.home, CPU), slot.current
        memory.copy(*((there, here) if back else (here, there)), stream)
        driver.check(driver.api().cuStreamSynchronize(stream))

    def close(self) -> None:
        """Drop the memory."""
        self._memory = np.empty(0, np.uint8)


def run_node(node: Node, arrays: list[ArrayView]) -> None:
    """Run a node on host arrays."""
    work = node.work
    if isinstance(work, LaunchWork):
        work.loaded.launch(arrays, work.scalars, 0, work.fresh)
    elif isinstance(work, CopyWork):
        memory.copy(arrays[0], arrays[1])
    else:
        memory.fill(arrays[0], work.value)
