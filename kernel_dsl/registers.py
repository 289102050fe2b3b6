"""The register budget of a warp-specialised kernel: what `set_max_registers` gives its warpgroups, together."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .errors_hopper import RegisterBudget
from .ir import KernelIR, Op, Region, Value
from .ops.arith import Add, And, Mul, Not, Or, Sub
from .ops.cast import Constant
from .ops.compare import Equal, Less, LessEqual, NotEqual
from .ops.control import If, Switch
from .ops.index import AxisIndex
from .ops.matrix import SetMaxRegisters

__all__ = ["check_registers", "follow", "shared_registers"]

LANE_REGISTERS = 512  # 65536 registers of a multiprocessor, 128 lanes a warpgroup
LEAST = 24  # PTX ISA 9.7.19.5: setmaxnreg takes 24 to 256

_FUNCTIONS: dict[type[Op], Callable[..., Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    And: operator.and_,
    Or: operator.or_,
    Equal: operator.eq,
    NotEqual: operator.ne,
    Less: operator.lt,
    LessEqual: operator.le,
    Not: lambda x: not x if isinstance(x, bool) else ~x,
}


def shared_registers(warpgroups: int, most: int | None = None) -> int:
    """Registers that a block's warpgroups share: the sum over warpgroups of the registers of one lane.

    A lane starts with a multiple of 8, and the remainder is not used: three warpgroups share 504, not 512.
    `setmaxnreg.inc` waits until the block has enough free registers (PTX ISA 9.7.19.5), so a warpgroup that asks for
    more waits forever. `most`: `max_registers` of the kernel, which lanes start with.
    """
    return min(LANE_REGISTERS // warpgroups, 256, most or 256) // 8 * 8 * warpgroups


def check_registers(ir: KernelIR) -> None:
    """Raise `RegisterBudget` if a warpgroup would wait for registers that the others never release.

    A warpgroup counts with the number that it certainly has in the end; if that is unknown, with the least possible
    number.
    """
    body, threads = ir.body, ir.threads
    holding: set[int] = set()
    if threads == 1 or not _find(body, holding):
        return
    last: dict[int, SetMaxRegisters] = {}
    for number in range(threads):
        found = _last(body, number, {}, holding)
        if found is not None:
            last[number] = found
    counts = [last[n].count if n in last else LEAST for n in range(threads)]
    growing = [n for n in last if last[n].increase]
    there = shared_registers(threads, ir.max_registers)
    if not growing or sum(counts) <= there:
        return
    worst = max(growing, key=lambda n: last[n].count)
    others = ", ".join(str(c) for n, c in enumerate(counts) if n != worst)
    what = f"{counts[worst]} registers a lane for one warpgroup, with {others} for the others, are {sum(counts)}"
    why = f"a block of {threads} warpgroups has {there} registers for a lane of each, all together"
    hint = "decrease the other warpgroups' registers further"
    if there < shared_registers(threads):
        why += f", since max_registers={ir.max_registers}"
        hint += ", or raise `CompilerParams(max_registers=)`"
    raise RegisterBudget(loc=last[worst].loc, what=what, why=why, hint=hint)


def _find(region: Region, holding: set[int]) -> bool:
    """Whether a region contains a `set_max_registers`; `holding` gets the ids of such regions."""
    holds = False
    for op in region.ops:
        if isinstance(op, SetMaxRegisters):
            holds = True
        for inner in op.region_list():
            holds = _find(inner, holding) or holds
    if holds:
        holding.add(id(region))
    return holds


def _last(region: Region, thread: int, known: dict[Value, Any], holding: set[int]) -> SetMaxRegisters | None:
    """The last `set_max_registers` that a warpgroup executes; None if there is none, or it is uncertain."""
    found: SetMaxRegisters | None = None
    for op in region.ops:
        if isinstance(op, SetMaxRegisters):
            found = op
            continue
        follow(op, thread, known)
        inner = op.region_list()
        if isinstance(op, If) and op.predicate in known:
            inner = (op.then if known[op.predicate] else op.otherwise,)
        elif isinstance(op, Switch) and op.index in known:
            inner = (op.branches[min(max(known[op.index], 0), len(op.branches) - 1)],)
        elif isinstance(op, (If, Switch)):
            continue
        for nested in inner:
            if id(nested) in holding:
                found = _last(nested, thread, known, holding) or found
    return found


def follow(op: Op, thread: int, known: dict[Value, Any]) -> None:
    """Note an op's result if it depends only on constants and the warpgroup's number."""
    function = _FUNCTIONS.get(type(op))
    if function is not None:
        numbers: list[Any] = []
        for value in op.values():
            if value not in known:
                return
            numbers.append(known[value])
        known[op.results[0]] = function(*numbers)
    elif isinstance(op, Constant):
        if isinstance(op.value, (bool, int)):
            known[op.results[0]] = op.value
    elif isinstance(op, AxisIndex) and op.kind == "thread":
        known[op.results[0]] = thread
