"""mov in all its forms, and instructions that do nothing here (PTX ISA 9.7.9.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ptx.module import TYPE_BYTES, Instruction, Reg, Special, Sym, Vec
from ..compiler import Compiler
from ..frame import STORAGE
from ..group import Group
from ..program import Op, builds


@builds("mov")
def build_mov(k: Compiler, ins: Instruction) -> Op:
    """Build mov: copy, pack and unpack, or take an address."""
    type_ = k.form["type"]
    dest, source = ins.operands
    if k.form["vec"]:
        return _each(k, dest, source, type_)
    if isinstance(dest, Vec) or isinstance(source, Vec):
        return _pack(k, ins, dest, source, type_)
    if isinstance(source, Special) and ("clock" in source.name or "globaltimer" in source.name):
        k.source(source, type_)
        write, name = k.writer(dest, type_), source.name
        dtype = STORAGE[type_]
        assert write is not None

        def read_time(c: Group) -> None:
            run = c.batch.run
            run.ahead = run.program.left.get(id(ins), 0)
            now = c.batch.special(name)
            run.ahead = 0
            write(c, now.astype(dtype))

        return read_time
    if isinstance(source, Sym):
        if source.offset and source.name in k.module.functions:
            raise k.error(f"an address behind the function '{source.name}'")
        slot = k.symbol(source, type_)
        write = k.writer(dest, type_)
        assert write is not None
        return lambda c: write(c, c.v[slot])
    slot, convert = k.source(source, type_)
    write = k.writer(dest, type_)
    if write is None:
        return lambda c: None
    if convert is None and isinstance(dest, Reg) and k.widening(dest, type_) is None:
        d = dest.index
        return lambda c: c.put(d, c.v[slot])
    if convert is None:
        return lambda c: write(c, c.v[slot])
    return lambda c: write(c, convert(c.v[slot]))


def _each(k: Compiler, dest: Any, source: Any, type_: str) -> Op:
    """Build mov.v2 and mov.v4, which copy each element. The source is read before a result is written."""
    readers = [k.reader(item, type_) for item in source.items]
    writers = [k.writer(item, type_) for item in dest.items]

    def run(c: Group) -> None:
        values = [read(c).copy() for read in readers]
        for write, value in zip(writers, values, strict=True):
            if write is not None:
                write(c, value)

    return run


def _pack(k: Compiler, ins: Instruction, dest: Any, source: Any, type_: str) -> Op:
    width = TYPE_BYTES[type_]
    if isinstance(dest, Vec) and isinstance(source, Vec):
        raise k.error("packs or unpacks, not both")
    items = dest.items if isinstance(dest, Vec) else source.items
    part = width // len(items)
    kind = f"b{8 * part}"
    if kind not in STORAGE or part * len(items) != width or type_[0] != "b":
        raise k.error(f"{len(items)} parts do not make .{type_}")
    for item in items:
        if isinstance(item, Reg) and TYPE_BYTES[item.type] != part:
            raise k.error(f"'{item.name}' has {TYPE_BYTES[item.type]} bytes, a part has {part}")
        if isinstance(item, Special) and part not in (4, 8):
            raise k.error(f"'{item.name}' has 4 bytes, a part has {part}")
    if isinstance(dest, Vec):
        if not any(items):
            raise k.error("all parts are dropped, so nothing says how wide they are")
        writers = [k.writer(i, kind) for i in items]
        return _unpack(k, writers, source, type_, part)
    readers = [k.reader(i, kind) for i in items]
    if type_ == "b128":

        def wide(c: Group) -> None:
            words = [read(c).astype(np.uint64) for read in readers]
            if len(words) == 4:
                words = [words[0] | words[1] << np.uint64(32), words[2] | words[3] << np.uint64(32)]
            c.put(dest.index, np.stack(np.broadcast_arrays(*words), axis=-1))

        return wide
    write = k.writer(dest, type_)
    storage = STORAGE[type_]
    shifts = [storage(8 * part * i) for i in range(len(items))]
    assert write is not None

    def pack(c: Group) -> None:
        total: Any = None
        for read, shift in zip(readers, shifts, strict=True):
            value = read(c).astype(storage)
            total = value if total is None else total | (value << shift)
        write(c, total)

    return pack


def _unpack(k: Compiler, writers: list[Any], source: Any, type_: str, part: int) -> Op:
    if type_ == "b128":
        if not isinstance(source, Reg):
            raise k.error("a register is wanted")
        index = source.index

        def wide(c: Group) -> None:
            value = c.v[index].copy()
            for i, write in enumerate(writers):
                if write is not None:
                    write(c, value[..., i])

        return wide
    read = k.reader(source, type_)
    storage = STORAGE[type_]
    narrow = STORAGE[f"b{8 * part}"]
    cut = storage((1 << (8 * part)) - 1)
    shifts = [storage(8 * part * i) for i in range(len(writers))]

    def unpack(c: Group) -> None:
        value = read(c).copy()
        for write, shift in zip(writers, shifts, strict=True):
            if write is not None:
                write(c, ((value >> shift) & cut).astype(narrow))

    return unpack


@builds("pmevent brkpt")
def build_ignored(k: Compiler, ins: Instruction) -> Op:
    """Build instructions without an effect on values."""
    return lambda c: None


@builds("nanosleep")
def build_nanosleep(k: Compiler, ins: Instruction) -> Op:
    """Build nanosleep.u32: let others run. If there are none, time passes."""
    time = k.reader(ins.operands[0], "u32")

    def run(c: Group) -> bool:
        c.batch.run.sleep(c, int(np.broadcast_to(time(c), (c.n, 32))[c.active].max()))
        return c.batch.run.yield_group(c, ins)

    return run
