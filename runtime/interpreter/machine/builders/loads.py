"""ld, st, ldu, prefetch and their kin (PTX ISA 9.7.9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ptx.module import Instruction, Mem, Operand, Reg, Sym, Vec
from ..compiler import Compiler, registers
from ..group import Group
from ..memory import LOCAL_WINDOW, PARAM_WINDOW, RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS
from ..program import Op, builds
from ..shared_space import OwnShared
from ..spaces import Part
from .accesses import MemoryForm, address_of, changes, combine, gather, noted, scatter, space_name, space_of, unchanged

Array = npt.NDArray[Any]


class FirstGuess:
    """The access of an ordinary load whose value only a compare-and-swap uses: it does not race with atomics."""

    strong = True
    reach = 0


@builds("ld ldu")
def build_load(k: Compiler, ins: Instruction) -> Op:
    """Build ld and ldu: weak, volatile, relaxed and acquire with every scope; global, shared (::cta, ::cluster), local,
    const, param and generic; .nc and cache hints; .v2, .v4, .v8; b8 to b128."""
    form = MemoryForm(k)
    dest, source = ins.operands[:2]
    if form.space == "param" and isinstance(source, Mem) and isinstance(source.base, Sym):
        return _load_param(k, form, dest, source)
    regs = registers(dest)
    if form.type == "b128":
        return _load_wide(k, form, regs, source, ins)
    writers = [k.writer(r, form.type) for r in regs]
    address, space = address_of(k, source, form.space), space_of(form.space)
    size, count = form.size, form.count
    width = size * count
    write, strong = writers[0], form.strong
    plain = regs[0].index if count == 1 and regs[0] and k.widening(regs[0], form.type) is None else -1
    some = k.wanted(regs) if count > 1 else None
    seen: Any = FirstGuess if form.semantics == "weak" and k.is_first_guess(ins) else form

    def load(c: Group) -> bool:
        parts = space(c).locate(c, address(c), size, width, ins, False)
        for part in parts:
            if part.shadow is not None:
                if some is None:
                    part.shadow.read(c, part.index, size, count, part.mask, ins, seen)
                else:
                    read_some(c, part, some, size, count, ins, form)
                if strong:
                    c.batch.run.sync.access(c, part, size, form, True, False)
        if len(parts) == 1:
            value = gather(parts[0], count)
        else:
            value = combine(parts, count, c)
        if plain >= 0:
            c.put(plain, value)
        elif count == 1:
            if write is not None:
                write(c, value)
        else:
            for i, one in enumerate(writers):
                if one is not None:
                    one(c, value[..., i])
        return not strong or c.batch.run.looked(c, ins)

    return load


def _load_wide(k: Compiler, form: MemoryForm, regs: list[Reg | None], source: Operand, ins: Instruction) -> Op:
    """Build ld.b128 into one register pair."""
    reg = regs[0]
    if reg is None or reg.type != "b128" or form.count != 1:
        raise k.error("ld.b128 wants one .b128 register")
    address, space = address_of(k, source, form.space), space_of(form.space)

    def load(c: Group) -> bool:
        parts = space(c).locate(c, address(c), 8, 16, ins, False)
        for part in parts:
            if part.shadow is not None:
                part.shadow.read(c, part.index, 8, 2, part.mask, ins, form)
        c.put(reg.index, gather(parts[0], 2) if len(parts) == 1 else combine(parts, 2, c))
        return True

    return load


def read_some(c: Group, part: Part, some: list[int], size: int, count: int, ins: Instruction, form: Any) -> None:
    """Record the elements `some` of a vector load in shadow memory.

    Each element has its own lanes of unwritten memory.
    """
    unwritten: Array | None = None
    for i in some:
        part.shadow.read(c, part.index + i, size, 1, part.mask, ins, form)
        if c.frame.fresh is not None:
            unwritten = np.zeros((c.n, 32, count), np.int32) if unwritten is None else unwritten
            unwritten[..., i], c.frame.fresh = c.frame.fresh, None
    if unwritten is not None:
        c.frame.fresh = unwritten


def _load_param(k: Compiler, form: MemoryForm, dest: Operand, source: Mem) -> Op:
    """Build ld.param: a constant in an entry, and the caller's bytes in a function."""
    assert isinstance(source.base, Sym)
    name, offset = source.base.name, source.offset
    regs = registers(dest)
    entry = k.program.param_offsets.get(name) if k.fn.entry else None
    if entry is not None:
        if offset < 0 or offset + form.size * form.count > entry[1]:
            raise k.error(f"reads outside of parameter '{name}' of {entry[1]} bytes")
        slots = [k.param_value(entry[0] + offset + i * form.size, form.type, form.size) for i in range(form.count)]
        writers = [k.writer(r, form.type) for r in regs]

        def constant(c: Group) -> bool:
            for slot, write in zip(slots, writers, strict=True):
                if write is not None:
                    write(c, c.v[slot])
            return True

        return constant
    size = _param_size(k, name)
    if not 0 <= offset <= size - len(regs) * form.size:
        raise k.error(f"'{name}' has {size} bytes, and {len(regs) * form.size} at {offset} are loaded")
    writers = [k.writer(r, form.type) for r in regs]
    width = form.size

    def load(c: Group) -> bool:
        data = c.frame.param(name, size)[c.select]
        for i, write in enumerate(writers):
            if write is not None:
                at = offset + i * width
                piece = np.ascontiguousarray(data[..., at : at + width])
                write(c, piece.view(f"u{width}")[..., 0])
        return True

    return load


def _param_size(k: Compiler, name: str) -> int:
    for var in (*k.fn.params, *k.fn.rets, *k.fn.variables.values()):
        if var.name == name and var.space == "param":
            return max(var.size, 1)
    raise k.error(f"parameter '{name}' is not declared")


@builds("st")
def build_store(k: Compiler, ins: Instruction) -> Op:
    """Build st: weak, volatile, relaxed and release with every scope; the spaces and types of ld."""
    form = MemoryForm(k)
    dest, source = ins.operands[:2]
    items = list(source.items) if isinstance(source, Vec) else [source]
    if form.space == "param" and isinstance(dest, Mem) and isinstance(dest.base, Sym):
        if any(p.name == dest.base.name for p in k.fn.params):
            raise k.error(f"'{dest.base.name}' is a parameter, which is only read")
        return _store_param(k, form, dest, items)
    if form.type == "b128":
        return _store_wide(k, form, items[0], dest, ins)
    readers = [k.reader(i, form.type) for i in items]
    address, space = address_of(k, dest, form.space), space_of(form.space)
    size, count = form.size, form.count
    width = size * count

    def store(c: Group) -> bool:
        values = [r(c) for r in readers]
        moved = False
        for part in space(c).locate(c, address(c), size, width, ins, True):
            moved = moved or changes(c.batch.run, part, values)
            noted(c, part, size, count, ins, form, partial(unchanged, part, values), partial(scatter, part, values))
        c.batch.run.stored(moved)
        if moved and form.strong and c.batch.run.turns.interrupts:
            c.batch.run.atomics += 1  # warps of other batches may see it
        return True

    return store


def _store_wide(k: Compiler, form: MemoryForm, item: Any, dest: Operand, ins: Instruction) -> Op:
    if not isinstance(item, Reg) or item.type != "b128" or form.count != 1:
        raise k.error("st.b128 wants one .b128 register")
    address, space, slot = address_of(k, dest, form.space), space_of(form.space), item.index

    def store(c: Group) -> bool:
        value = c.v[slot]
        moved = False
        for part in space(c).locate(c, address(c), 8, 16, ins, True):
            halves: list[Array] = [np.broadcast_to(value[..., i], part.index.shape) for i in (0, 1)]
            moved = moved or changes(c.batch.run, part, halves)
            noted(c, part, 8, 2, ins, form, partial(unchanged, part, halves), partial(scatter, part, halves))
        c.batch.run.stored(moved)
        return True

    return store


def _store_param(k: Compiler, form: MemoryForm, dest: Mem, items: list[Any]) -> Op:
    assert isinstance(dest.base, Sym)
    name, offset, width = dest.base.name, dest.offset, form.size
    size = _param_size(k, name)
    if not 0 <= offset <= size - len(items) * width:
        raise k.error(f"'{name}' has {size} bytes, and {len(items) * width} at {offset} are stored")
    readers = [k.reader(i, form.type) for i in items]
    dtype = np.dtype(f"u{width}")

    def store(c: Group) -> bool:
        data = c.frame.param(name, size)
        held = data[c.select]
        for i, read in enumerate(readers):
            at = offset + i * width
            value = np.broadcast_to(read(c), (c.n, 32)).astype(dtype)
            piece = np.ascontiguousarray(value[..., None]).view(np.uint8)
            target = held[..., at : at + width]
            np.copyto(target, piece, where=c.active[..., None])
        data[c.select] = held
        return True

    return store


@builds("prefetch prefetchu applypriority")
def build_nothing(k: Compiler, ins: Instruction) -> Op:
    """Build cache hints, which have no effect in the interpreter."""
    address_of(k, ins.operands[0], space_name(k.form.words.get("space", "")))
    return lambda c: None


@builds("createpolicy.fractional createpolicy.range createpolicy.cvt")
def build_policy(k: Compiler, ins: Instruction) -> Op:
    """Build a cache policy: an opaque 64-bit value."""
    write = k.writer(ins.operands[0], "b64")
    types = {"createpolicy.fractional": ("f32",), "createpolicy.range": ("b32", "b32"), "createpolicy.cvt": ("b64",)}
    for operand in ins.operands[1:]:
        if isinstance(operand, Mem):
            address_of(k, operand, "global")
    given = [o for o in ins.operands[1:] if not isinstance(o, Mem)]
    for operand, type_ in zip(given, types[k.form.name], strict=False):
        k.reader(operand, type_)
    zero = np.zeros((1, 1), np.uint64)
    assert write is not None
    return lambda c: write(c, zero)


WINDOWS = {
    "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
    "global": 0,
    "const": 0,
}


@builds("cvta cvta.to")
def build_cvta(k: Compiler, ins: Instruction) -> Op:
    """Build cvta and cvta.to, which add or subtract a window."""
    delta = WINDOWS[k.form["space"].partition("::")[0]]
    if k.form.name == "cvta.to":
        delta = (1 << 64) - delta if delta else 0
    read, write = k.reader(ins.operands[1], "u64"), k.writer(ins.operands[0], "u64")
    step = np.uint64(delta)
    assert write is not None
    return lambda c: write(c, read(c) + step)


@builds("isspacep")
def build_isspacep(k: Compiler, ins: Instruction) -> Op:
    """Build isspacep: it tests whether a generic address lies in a space's window."""
    own = k.form["space"] in ("shared", "shared::cta")
    space = k.form["space"].partition("::")[0]
    given = ins.operands[1]
    small = isinstance(given, Reg) and given.type in ("b32", "u32", "s32")
    read, write = k.reader(given, "u32" if small else "u64"), k.writer(ins.operands[0], "pred")
    window = np.uint64(WINDOWS[space] >> WINDOW_BITS)
    assert write is not None

    def run(c: Group) -> None:
        address = read(c).astype(np.uint64)
        inside = (address >> np.uint64(WINDOW_BITS)) == window
        if own and c.batch.cluster > 1:
            inside = inside & (OwnShared.offset(c, address) >> RANK_SHIFT == 0)
        write(c, inside)

    return run
