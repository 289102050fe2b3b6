"""The sum of partial results, and how kernels that mostly load have all loads in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

REGISTERS = 168  # of a lane of a kernel that mostly loads


def loads_first() -> kd.CompilerParams:
    """The parameters of a kernel that mostly loads: they let the assembler issue all loads before their first use.

    Without a number of registers it saves them, and puts loads after uses: those of 8 parts, 8 sums a lane, in 11 groups.
    """
    return kd.CompilerParams(max_registers=REGISTERS)


def sum_of_parts(part: Callable[[Any], Any], count: Any, together: int) -> Any:
    """part(0) + part(1) + … in order, of `count` parts, 1 or more. The loads of `together` parts are in flight at once.

    `part(number)` loads a part. If `count` is traced, the last loads may go beyond it: `part` gives zeros there. Of a known
    number, the last loads are those that are left, because masks in the loop would cost up to a fifth of its time.
    """
    known = isinstance(count, int)
    turns, rest = divmod(count, together) if known else (kd.cdiv(count, together), 0)

    def loaded(first: Any, number: int) -> list[Any]:
        return [part(first + i) for i in range(number)]

    head, *others = loaded(0, min(count, together) if known else together)
    total = kd.fori_loop(1, turns, lambda turn, total: sum(loaded(turn * together, together), total), sum(others, head))
    return sum(loaded(count - rest, rest), total) if rest and turns else total
