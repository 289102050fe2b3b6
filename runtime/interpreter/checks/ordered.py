"""Programs with the same happens-before order in every schedule, because only barriers order their warps.

Barriers of all threads of a block or cluster order the same accesses in every run. Atomics, flags, mbarriers and
asynchronous copies may pair up differently, and so may branches on values that they return.
"""

from __future__ import annotations

from ..ptx.module import Instruction, Module

_FREE = {"atom", "red", "mbarrier", "cp", "wgmma", "griddepcontrol", "tensormap", "nanosleep", "multimem", "tcgen05"}
_STRONG = {"volatile", "relaxed", "acquire", "release", "mmio", "acq_rel"}


def is_ordered(module: Module, entry: str) -> bool:
    """Return whether the entry's synchronisation pairs up in the same way under every schedule."""
    reached = [f for f in module.functions.values() if f.name == entry or not f.entry]
    return not any(isinstance(i, Instruction) and _is_free(i) for f in reached for i in f.body)


def _is_free(ins: Instruction) -> bool:
    head = ins.opcode[0]
    return head in _FREE or (head in ("ld", "st") and not _STRONG.isdisjoint(ins.opcode))
