"""mbarriers that are initialised while they are valid (PTX ISA 9.7.13.15.9, mbarrier.init).

mbarrier.init of a location that holds a valid mbarrier is undefined; mbarrier.inval has to end it before. An mbarrier is valid
from its init in the life of its block. Lanes of one warp that initialise it by one instruction with one count count as one, like
their stores of equal values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FIX = "end it by mbarrier.inval before, or initialise it once, by one lane"


def initialised_again(valid: Array, rows: Array, ctas: Array, counts: Array) -> tuple[int, str] | None:
    """Return a block that initialises its valid mbarrier and how, or None.

    `valid`, (blocks,): which mbarriers are valid. `rows`, `ctas` and `counts`, (lanes,): the warps that initialise now, their
    blocks, and the counts of arrivals that they give.
    """
    before = valid[ctas]
    if before.any():
        return int(ctas[before][0]), "initialised while it is valid"
    each = np.unique(np.stack([ctas, rows, counts]), axis=1)
    twice = each[0, 1:] == each[0, :-1]
    if not twice.any():
        return None
    at = int(np.flatnonzero(twice)[0])
    same = each[1, at] == each[1, at + 1]
    how = "by lanes with different counts" if same else "by two warps"
    return int(each[0, at]), f"initialised {how}"
