"""Memory whose data discard.L2 threw away (PTX ISA 9.7.9, `discard`).

`discard.L2` is a weak write of an undetermined value: it races like a store, and a read before the next write reads nothing of
use. The shadow keeps the discard as the last write, so its instruction tells which memory has no data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..machine.launch import Run
    from ..ptx.module import Instruction
    from .columns import Accesses

Array = npt.NDArray[Any]


def is_discard(ins: Instruction) -> bool:
    return ins.opcode[0] == "discard"


def lost(run: Run, writes: Accesses, numbers: Array) -> Array:
    """Return which entries of `writes`, by number, are discards."""
    sites = [site for site, ins in enumerate(run.sites) if is_discard(ins)]
    return (numbers != 0) & np.isin(writes.site[numbers], sites)
