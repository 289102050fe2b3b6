"""The reasons for which groups of warps wait: the machine records them, and reports of deadlocks read them."""

from __future__ import annotations

from dataclasses import dataclass

from ..ptx.module import Instruction


@dataclass(slots=True)
class MbarrierWait:
    """The reason for which a group waits: an mbarrier. `wanted`: the parity or phase of its first lane."""

    ins: Instruction
    offset: int
    cta: int
    wanted: str


@dataclass(frozen=True, slots=True)
class RegisterWait:
    """The reason for which a group waits: setmaxnreg to `count` registers, until its block has enough free ones."""

    ins: Instruction
    count: int


@dataclass(frozen=True, slots=True)
class TensorWait:
    """The reason for which a group waits: tcgen05.alloc, until its block has as many free columns."""

    ins: Instruction
