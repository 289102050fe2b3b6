"""atom and red (PTX ISA 9.7.13.5 and 9.7.13.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.semantics.forms import compile_alu
from ...ptx.module import TYPE_BYTES, Imm, Instruction, Vec
from ..compiler import Compiler
from ..frame import STORAGE
from ..group import Group
from ..program import Op, builds
from ..spaces import Part
from .accesses import address_of, space_name, space_of

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array], Array]

_COST = 11  # an atomic takes as long as so many arithmetic instructions more
_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


class AtomForm:
    """An atomic instruction's semantics, from its words."""

    strong = True
    updates = True  # an atomic reads the word that it writes, even if it does not return the word
    fails = False  # whether this compare-and-swap fails

    def __init__(self, k: Compiler) -> None:
        form = k.form
        self.space: str = space_name(form["space"])
        self.semantics: str = form["order"]
        self.scope: str = form["scope"] or "gpu"
        self.operation: str = form["op"]
        self.type: str = form["type"]
        self.count: int = form.vector
        self.size: int = form.size
        self.reach: int = k.program.reach(self.scope)


def combiner(operation: str, type_: str) -> Combine:
    """Return the function that makes the new value from the old value and the operand, on bit patterns."""
    if operation == "exch":
        return lambda old, new: new
    if operation == "inc":
        return lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype)
    if operation == "dec":
        return lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
    if type_ in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64"):
        if operation == "add":
            alu = compile_alu(("add", "rn", type_))
        else:
            alu = compile_alu((operation, type_))
        return lambda old, new: alu.function(old, new)[0]
    ufunc = _UFUNCS[operation]
    if type_[0] == "s":
        signed = np.dtype(f"i{TYPE_BYTES[type_]}")
        return lambda old, new: ufunc(old.view(signed), new.view(signed)).view(old.dtype)
    return ufunc


def apply(part_view: Array, index: Array, operand: Array, combine: Combine, ufunc: Any) -> Array:
    """Apply one atomic for each lane, in lane order, to `part_view[index]` (1-D). Returns the old values."""
    order = np.argsort(index, kind="stable")
    at, value = index[order], operand[order]
    first = np.ones(len(at), np.bool_)
    first[1:] = at[1:] != at[:-1]
    old = np.empty_like(value)
    if first.all():
        old[order] = part_view[at]
        part_view[at] = combine(part_view[at], value)
        return old
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(at)))
    sorted_old = np.empty_like(value)
    if ufunc is not None and len(starts) * 4 < int(lengths.max()):
        for start, length in zip(starts, lengths, strict=True):
            span = slice(start, start + length)
            run = np.concatenate([part_view[at[start : start + 1]], value[span]])
            run = ufunc(run)
            sorted_old[span], part_view[at[start]] = run[:-1], run[-1]
    else:
        for turn in range(int(lengths.max())):
            here = starts[lengths > turn] + turn
            held = part_view[at[here]]
            sorted_old[here] = held
            part_view[at[here]] = combine(held, value[here])
    old[order] = sorted_old
    return old


def accumulator(operation: str, type_: str) -> Callable[[Array], Array] | None:
    """Return a function (n,) -> (n,) that accumulates bit patterns in order, or None if NumPy has none."""
    if operation == "exch":
        return _identity
    ufunc = _UFUNCS.get(operation)
    if ufunc is None or type_ in ("f16", "bf16", "f16x2", "bf16x2"):
        return None
    dtype = {"f": "f", "s": "i"}.get(type_[0], "u") + str(TYPE_BYTES[type_])
    if type_[0] == "f" and operation != "add":
        return None

    def accumulate(run: Array) -> Array:
        return ufunc.accumulate(run.view(dtype), dtype=dtype).view(run.dtype)

    return accumulate


def _identity(run: Array) -> Array:
    return run


@builds("atom red")
def build_atomic(k: Compiler, ins: Instruction) -> Op:
    """Build atom and red: add, min, max, and, or, xor, exch, cas, inc, dec on 16- to 64-bit integers and f16, f16x2, bf16,
    bf16x2, f32, f64, vectors of floats included; every order and scope; global, shared, shared::cluster and generic.
    """
    form = AtomForm(k)
    operands = list(ins.operands)
    dest = operands.pop(0) if ins.opcode[0] == "atom" else None
    address = address_of(k, operands.pop(0), form.space)
    space = space_of(form.space)
    if form.type == "b128":
        return _wide(k, ins, form, dest, address, space, operands)
    if form.operation == "cas":
        return _cas(k, ins, form, dest, address, space, operands)
    if form.count > 1 or isinstance(operands[0], Vec):
        return _vector(k, ins, form, dest, address, space, operands[0])
    kind = form.type
    read, write = k.reader(operands[0], kind), k.writer(dest, kind)
    returns = ins.opcode[0] == "atom"
    combine, accumulate = combiner(form.operation, kind), accumulator(form.operation, kind)

    def run(c: Group) -> bool:
        value = np.broadcast_to(read(c), (c.n, 32))
        old = np.zeros((c.n, 32), value.dtype)
        changed = False
        for part in space(c).locate(c, address(c), form.size, form.size, ins, True):
            where, index = _chosen(c, part)
            _note(c, part, form, ins)
            view = part.view
            operand = value[where].astype(view.dtype)
            before = apply(view, index, operand, combine, accumulate)
            old[where] = before
            changed |= bool((view[index] != before).any())
        c.batch.run.atomics += changed
        c.batch.run.progress += changed
        if write is not None:
            write(c, old)
        return changed or not returns or c.batch.run.looked(c, ins)

    return run


def _chosen(c: Group, part: Part) -> tuple[Any, Array]:
    """Return the (lanes, indices) of a part."""
    where = c.active if part.mask is None else part.mask
    return where, part.index[where]


def _note(c: Group, part: Part, form: AtomForm, ins: Instruction) -> None:
    c.batch.run.takes_long(_COST)
    if part.shadow is not None:
        part.shadow.atomic(c, part.index, form.size, part.mask, ins, form)
        c.batch.run.sync.access(c, part, form.size, form, ins.opcode[0] == "atom", True)


def _cas(k: Compiler, ins: Instruction, form: AtomForm, dest: Any, address: Any, space: Any, operands: list[Any]) -> Op:
    kind = form.type
    compare, new, write = k.reader(operands[0], kind), k.reader(operands[1], kind), k.writer(dest, kind)

    def run(c: Group) -> bool:
        wanted = np.broadcast_to(compare(c), (c.n, 32))
        value = np.broadcast_to(new(c), (c.n, 32))
        old = np.zeros((c.n, 32), STORAGE[kind])
        changed = False
        for part in space(c).locate(c, address(c), form.size, form.size, ins, True):
            where, index = _chosen(c, part)
            want, put = wanted[where].astype(part.view.dtype), value[where].astype(part.view.dtype)
            form.fails = bool((part.view[index] != want).all())
            _note(c, part, form, ins)
            old[where], swapped = _swap(part.view, index, want, put)
            changed |= swapped
        if changed:
            c.batch.run.atomics += 1
            c.batch.run.progress += 1
        if write is not None:
            write(c, old)
        return changed or c.batch.run.looked(c, ins)

    return run


def _wide(
    k: Compiler, ins: Instruction, form: AtomForm, dest: Any, address: Any, space: Any, operands: list[Any]
) -> Op:
    """Build exch and cas of 16 bytes: two words of 8, as registers hold them."""
    write = k.writer(dest, "b128")
    readers = [_pair(k, o) for o in operands[: 2 if form.operation == "cas" else 1]]

    def run(c: Group) -> bool:
        given = [np.broadcast_to(r(c), (c.n, 32, 2)) for r in readers]
        old = np.zeros((c.n, 32, 2), np.uint64)
        changed = False
        for part in space(c).locate(c, address(c), 8, 16, ins, True):
            where, index = _chosen(c, part)
            if len(given) == 2:
                held = np.stack([part.view[index], part.view[index + 1]], -1)
                form.fails = bool((held != given[0][where]).any(-1).all())
            _note(c, replace(part, index=part.index >> 1), form, ins)  # in words of 16 bytes
            for (row, lane), at in zip(np.argwhere(where), index, strict=True):
                held = part.view[at : at + 2].copy()
                old[row, lane] = held
                if len(given) == 1 or (held == given[0][row, lane]).all():
                    changed |= bool((held != given[-1][row, lane]).any())
                    part.view[at : at + 2] = given[-1][row, lane]
        c.batch.run.atomics += changed
        c.batch.run.progress += changed
        if write is not None:
            write(c, old)
        return changed or c.batch.run.looked(c, ins)

    return run


def _pair(k: Compiler, operand: Any) -> Callable[[Group], Array]:
    """Return a function that reads a value of 128 bits, low half first: a register, or a literal that fits the low half."""
    if isinstance(operand, Imm):
        value = np.array([operand.value % (1 << 64), (1 << 64) - 1 if operand.value < 0 else 0], np.uint64)
        return lambda c: value
    return k.reader(operand, "b128")


def _swap(view: Array, index: Array, want: Array, put: Array) -> tuple[Array, bool]:
    """Put values where `want` is found, lane after lane. Return what each lane found, and whether one has put its value."""
    before = view[index]
    now: dict[int, int] = {}
    if len(np.unique(index)) == len(index):
        hit = before == want
        view[index[hit]] = put[hit]
        return before, bool(hit.any())
    found: list[int] = []
    swapped = False
    for at, held, wanted, value in zip(index.tolist(), before.tolist(), want.tolist(), put.tolist(), strict=True):
        there = now.get(at, int(held))
        found.append(there)
        if there == wanted:
            now[at] = value
            swapped = True
    if swapped:
        view[list(now)] = np.array(list(now.values()), view.dtype)
    return np.array(found, view.dtype), swapped


def _vector(k: Compiler, ins: Instruction, form: AtomForm, dest: Any, address: Any, space: Any, source: Any) -> Op:
    kind, count = form.type, form.count
    readers = [k.reader(i, kind) for i in source.items]
    dests = dest.items if isinstance(dest, Vec) else [dest] * count
    writers = [k.writer(d, kind) for d in dests]
    combine = combiner(form.operation, kind)

    def run(c: Group) -> bool:
        values = [np.broadcast_to(r(c), (c.n, 32)) for r in readers]
        olds = [np.zeros((c.n, 32), STORAGE[kind]) for _ in readers]
        for part in space(c).locate(c, address(c), form.size, form.size * count, ins, True):
            where, index = _chosen(c, part)
            for i in range(count):
                shifted = replace(part, index=part.index + i)
                _note(c, shifted, form, ins)
                value = values[i][where].astype(part.view.dtype)
                olds[i][where] = apply(part.view, index + i, value, combine, None)
        c.batch.run.progress += 1
        for write, old in zip(writers, olds, strict=True):
            if write is not None:
                write(c, old)
        return True

    return run
