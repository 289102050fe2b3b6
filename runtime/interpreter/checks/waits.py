"""The reasons for which groups of warps wait: the machine records them, and reports of deadlocks read them."""

from __future__ import annotations

from dataclasses import dataclass

from ..ptx.module import Instruction


@dataclass(slots=True)
class MbarrierWait:
    """Why a group is held: an mbarrier wait. `wanted`: the parity or phase of its first lane."""

    ins: Instruction
    offset: int
    cta: int
    wanted: str


@dataclass(frozen=True, slots=True)
class RegisterWait:
    """Why a group is held: setmaxnreg to `count` registers, until its block has as many left."""

    ins: Instruction
    count: int
