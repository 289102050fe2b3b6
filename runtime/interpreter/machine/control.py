"""Branches, calls, and instructions that need several lanes at the same place (PTX ISA 9.7.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.poison import check_branch
from ..ptx.module import BraceGroup as Arguments
from ..ptx.module import Instruction, Sym, Var
from .call_arguments import as_bytes, own, passed, put
from .calls import called
from .compiler import Compiler
from .group import Group
from .program import Op, builds

if TYPE_CHECKING:
    from .batch import Batch
    from .program import Seg

Array = npt.NDArray[Any]


def split_branch(batch: Batch, g: Group, seg: Seg) -> bool:
    """Take a guarded branch.

    Returns True if all lanes take the same side (then `g.pc` is set), and False if they were pushed.
    """
    assert seg.guard is not None
    predicate, negated = seg.guard
    if g.frame.poison:
        check_branch(g, predicate, seg.end)
    lanes = g.v[predicate]
    if negated:
        lanes = ~lanes
    mask = g.mask
    total = lanes.size
    if mask is not None:
        lanes = lanes & mask
        total = np.count_nonzero(mask)
    elif not negated:
        lanes = lanes.copy()  # a copy for the mask, because the predicate's register will be written again
    taken = np.count_nonzero(lanes)
    if taken == total:
        g.pc = seg.targets[0]
        return True
    if taken == 0:
        g.pc = seg.targets[1]
        return True
    if mask is None and not negated:
        lanes = lanes.copy()  # a copy, because the group's mask outlives the predicate's value
    others = ~lanes if mask is None else mask & ~lanes
    if lanes.base is not None:
        lanes = lanes.copy()  # a copy, because a mask must not change with its register
    batch.push(g.lanes(seg.targets[0], lanes))
    batch.push(g.lanes(seg.targets[1], others))
    return False


def split_table(batch: Batch, g: Group, seg: Seg) -> None:
    """Take a brx.idx: each lane goes to the entry that its index names."""
    index = np.broadcast_to(g.frame.code.call[seg.index](g), (g.n, 32))
    active = g.active
    for value in np.unique(index[active]):
        if value >= len(seg.targets):
            from ..checks.kinds import HazardKind

            _, _, who = batch.run.reporter.group(g, active & (index == value))
            what = f"brx.idx with index {value} of a table of {len(seg.targets)}"
            batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, seg.end, (who,))
            continue
        batch.push(g.lanes(seg.targets[int(value)], active & (index == value)))


@builds("brx")
def build_table(k: Compiler, ins: Instruction) -> Op:
    """Build brx.idx with a .branchtargets table. The scheduler itself runs bra, ret, exit and trap."""
    return k.reader(ins.operands[0], "u32")


def whole_rows(c: Group, wanted: Array | None = None) -> Array:
    """Return the rows, (rows,), of which all lanes that an instruction needs are here; `wanted` as of `together`."""
    if c.mask is None:
        return np.ones(c.n, np.bool_)
    live = c.batch.live[c.select]
    needed = live if wanted is None else live & wanted
    return ~np.any(needed & ~c.mask, axis=1)


def together(c: Group, wanted: Array | None) -> bool:
    """Return whether all lanes that an instruction needs have arrived at it.

    `wanted` (rows, 32): the needed lanes, or None for all live ones. If some are missing, it parks their rows until
    they come, makes the other rows ready to run the instruction, and returns False.
    """
    if c.mask is None:
        return True
    missing = ~whole_rows(c, wanted)
    if not missing.any():
        return True
    batch = c.batch
    if not missing.all():
        rest = c.subset(c.pc, ~missing)
        held = c.subset(c.pc, missing)
        batch.park(held)
        batch.again(rest)
        return False
    batch.park(c.at(c.pc))
    return False


# --- calls ------------------------------------------------------------------------------------------


@builds("call")
def build_call(k: Compiler, ins: Instruction) -> Any:
    """Build `call (ret), f, (args);`: direct, indirect, or to a function of the system."""
    from .system import SIZES, SYSTEM

    operands = list(ins.operands)
    first = operands[1] if isinstance(operands[0], Arguments) else operands[0]
    direct_name = first.name if isinstance(first, Sym) else ""
    known = k.module.functions.get(direct_name)
    if direct_name and known is None:
        raise k.error(f"function '{direct_name}' is not declared")
    last = operands[-1]
    label = last.name if isinstance(last, Sym) else ""
    given = [(known.rets, known.params)] if known is not None else k.fn.prototypes[label]
    sizes = {name: var.size for name, var in k.fn.variables.items() if var.space == "param"}
    for results, parameters in given[1:]:
        _check_target(k, operands, results, parameters, sizes)
    rets = passed(k, operands, given[0][0], sizes, True)
    target = operands.pop(0)
    args = passed(k, operands, given[0][1], sizes, False)
    if known is None:
        _check_counts(k, label, (len(args), len(rets)), (len(given[0][1]), len(given[0][0])))
    pc = len(k.code.segments)

    def back(g: Group, caller: Any) -> None:
        fn = g.frame.code.fn
        for ret, var in zip(rets, fn.rets, strict=False):
            ret.give(g, caller, own(fn, g.frame, var)(g.select))

    k.code.returns[pc] = back

    def enter(c: Group, name: str) -> None:
        batch = c.batch
        system = SYSTEM.get(name)
        fn = k.module.functions.get(name)
        if fn is None or not fn.defined:
            if system is None:
                raise k_error(k, ins, f"function '{name}' has no body")
            value = system(c, ins, [arg.all(c) for arg in args])
            for ret in rets:
                if value is not None and ret.size == value.dtype.itemsize:
                    ret.give(c, c.frame, as_bytes(value, ret.size))
            batch.push(c.at(c.frame.code.segments[pc].next))
            return
        stack = called(c, pc, k.program.code(name).local_bytes, ins)
        callee = batch.frame(stack.depth, name)
        callee.enter(c)
        _check_call(k, name, len(args), len(rets), ins)
        for arg, var in zip(args, fn.params, strict=True):
            put(fn, callee, var, c, arg.taken(c))
        batch.push(Group(batch, callee, stack, 0, c.rows, c.mask))

    if known is not None:
        name = direct_name
        _check_call(k, name, len(args), len(rets))
        lengths = tuple(arg.size for arg in args)
        if not known.defined and lengths != SIZES.get(name, lengths):
            raise k.error(f"'{name}' takes arguments of {SIZES[name]} bytes, not {lengths}")

        def direct(c: Group) -> None:
            enter(c, name)

        return direct
    read = k.reader(target, "u64")
    by_id = {i: name for name, i in k.program.function_ids.items()}

    def indirect(c: Group) -> None:
        ids = np.broadcast_to(read(c), (c.n, 32))
        active = c.active
        for value in np.unique(ids[active]):
            if int(value) not in by_id:
                raise k_error(k, ins, f"indirect call to {int(value):#x}, which is no function")
            enter(c.lanes(c.pc, active & (ids == value)), by_id[int(value)])

    return indirect


def _check_target(
    k: Compiler, operands: list[Any], results: list[Var], parameters: list[Var], sizes: dict[str, int]
) -> None:
    """Raise PtxError if a function that an indirect call may reach does not take its arguments, or has other results."""
    rest = list(operands)
    rets = passed(k, rest, results, sizes, True)
    rest.pop(0)
    args = passed(k, rest, parameters, sizes, False)
    _check_counts(k, "a target of the call", (len(args), len(rets)), (len(parameters), len(results)))


def _check_counts(k: Compiler, name: str, have: tuple[int, int], wanted: tuple[int, int]) -> None:
    if have != wanted:
        raise k.error(f"{name} takes {wanted[0]} arguments and gives {wanted[1]} results, not {have[0]} and {have[1]}")


def _check_call(k: Compiler, name: str, args: int, rets: int, ins: Instruction | None = None) -> None:
    """Raise PtxError if a call has another number of arguments or results than its function."""
    fn = k.module.functions[name]
    if (args, rets) != (len(fn.params), len(fn.rets)):
        what = f"'{name}' takes {len(fn.params)} arguments and gives {len(fn.rets)} results, not {args} and {rets}"
        raise k.error(what) if ins is None else k_error(k, ins, what)


def k_error(k: Compiler, ins: Instruction, message: str) -> Exception:
    k.ins = ins
    return k.error(message)
