"""discard.L2, which leaves undetermined data in memory (PTX ISA 9.7.9, `discard`)."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...ptx.module import Instruction
from ..compiler import Compiler
from ..group import Group
from ..program import Op, builds
from .accesses import address_of, noted, scatter, unchanged

_BYTES = 128  # what one discard throws away
_WORD = 8


class _WeakWrite:
    """The semantics of a discard, as `MemoryForm` has those of a store."""

    strong = False
    reach = 0


@builds("discard")
def build_discard(k: Compiler, ins: Instruction) -> Op:
    """Build discard: a weak write of 128 bytes whose value nobody may count on. The interpreter sets all bits."""
    address, count = address_of(k, ins.operands[0], "global"), _BYTES // _WORD
    values = [np.full((1, 1), -1, np.int64).view(np.uint64)] * count

    def run(c: Group) -> None:
        for part in c.batch.run.globals.locate(c, address(c), _WORD, _BYTES, ins, True):
            if part.shadow is not None:
                part.shadow.discards = True
            same, put = partial(unchanged, part, values), partial(scatter, part, values)
            noted(c, part, _WORD, count, ins, _WeakWrite, same, put)
        c.batch.run.progress += 1

    return run
