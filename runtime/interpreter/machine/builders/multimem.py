"""multimem: loads, stores and reductions at a multicast address, which reach the same place on all devices (PTX ISA 9.7.9.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...isa.semantics.forms import compile_alu
from ...ptx.module import Instruction, Vec
from ..compiler import Compiler, registers
from ..group import Group
from ..memory import SLOT_BITS, SLOT_MASK
from ..program import Op, builds
from .accesses import Address, MemoryForm, address_of, scatter, unchanged
from .accesses import combine as combined
from .atomics import AtomForm, apply, combiner

Array = npt.NDArray[Any]


def _members(c: Group, address: Array, ins: Instruction) -> Iterator[Array]:
    """Return the addresses behind the lanes' multicast addresses, one array for each device."""
    address = np.broadcast_to(address, (c.n, 32))
    slot = address >> np.uint64(SLOT_BITS)
    known = c.batch.run.globals.multicast
    active = c.active
    found = np.unique(slot[active])
    strange = [int(s) for s in found if int(s) not in known]
    if strange:
        reporter = c.batch.run.reporter
        row, lane, who = reporter.group(c, active & (slot == strange[0]))
        what = f"{ins.opcode[0]}.{ins.opcode[1]} at {int(address[row, lane]):#x}, which is no multicast address"
        fix = "take the address that the allocator gives for all devices"
        reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), fix)
        return
    low = address & np.uint64(SLOT_MASK)
    for device in range(len(known[int(found[0])])):
        high = np.zeros_like(slot)
        for one in found:
            high[slot == one] = known[int(one)][device]
        yield (high << np.uint64(SLOT_BITS)) | low


@builds("multimem.ld_reduce")
def build_load_reduce(k: Compiler, ins: Instruction) -> Op:
    """Build multimem.ld_reduce: add, min, max, and, or, xor, in the order of devices; .acc::f32 rounds once."""
    form = MemoryForm(k)
    regs = registers(ins.operands[0])
    writers = [k.writer(r, form.type) for r in regs]
    address = address_of(k, ins.operands[1], "global")
    size, count, width = form.size, form.count, form.size * form.count
    wide = bool(k.form["wide"])
    join = combiner(k.form["op"], form.type)

    def load(c: Group) -> bool:
        values: list[Array] = []
        for at in _members(c, address(c), ins):
            parts = c.batch.run.globals.locate(c, at, size, width, ins, False)
            for part in parts:
                if part.shadow is not None:
                    part.shadow.read(c, part.index, size, count, part.mask, ins, form)
                    if form.strong:
                        c.batch.run.sync.access(c, part, size, form, True, False)
            values.append(combined(parts, count, c))
        if not values:
            return True
        total = _wide_sum(values, form.type) if wide else values[0]
        for value in () if wide else values[1:]:
            total = join(total, value)
        for i, write in enumerate(writers):
            if write is not None:
                write(c, total[..., i] if count > 1 else total)
        return not form.strong or c.batch.run.looked(c, ins)

    return load


def _wide_sum(values: list[Array], type_: str) -> Array:
    """Return the sum of 16-bit floats in float32, rounded once. A word of f16x2 or bf16x2 has two floats."""
    half = type_.removesuffix("x2")
    grow, add, shrink = (
        compile_alu(("cvt", "f32", half)),
        compile_alu(("add", "rn", "f32")),
        compile_alu(("cvt", "rn", half, "f32")),
    )
    halves = [np.ascontiguousarray(v).view(np.uint16) for v in values]
    total = grow.function(halves[0])[0]
    for value in halves[1:]:
        total = add.function(total, grow.function(value)[0])[0]
    return np.ascontiguousarray(shrink.function(total)[0]).astype(np.uint16).view(values[0].dtype)


def _place_and_values(k: Compiler, ins: Instruction, type_: str) -> tuple[Address, list[Callable[[Group], Array]]]:
    """Return what gives the address of the first operand, and the elements of the second."""
    dest, source = ins.operands[:2]
    items = source.items if isinstance(source, Vec) else [source]
    readers = [k.reader(i, type_) for i in items]
    return address_of(k, dest, "global"), readers


@builds("multimem.st")
def build_store(k: Compiler, ins: Instruction) -> Op:
    """Build multimem.st: the same value to all devices."""
    form = MemoryForm(k)
    address, readers = _place_and_values(k, ins, form.type)
    size, count, width = form.size, form.count, form.size * form.count

    def store(c: Group) -> bool:
        values = [r(c) for r in readers]
        for at in _members(c, address(c), ins):
            for part in c.batch.run.globals.locate(c, at, size, width, ins, True):
                if part.shadow is not None:
                    same = partial(unchanged, part, values)
                    access = part.shadow.write(c, part.index, size, count, part.mask, ins, form, same)
                    if form.strong:
                        c.batch.run.sync.access(c, part, size, form, False, True)
                    if access is not None and access.clash is not None:
                        part.shadow.settle_clash(access)
                scatter(part, values)
        c.batch.run.progress += 1
        return True

    return store


@builds("multimem.red")
def build_reduction(k: Compiler, ins: Instruction) -> Op:
    """Build multimem.red: an atomic on each device."""
    form = AtomForm(k)
    address, readers = _place_and_values(k, ins, form.type)
    join = combiner(form.operation, form.type)

    def reduce(c: Group) -> bool:
        values = [np.broadcast_to(r(c), (c.n, 32)) for r in readers]
        for at in _members(c, address(c), ins):
            for part in c.batch.run.globals.locate(c, at, form.size, form.size * form.count, ins, True):
                where = c.active if part.mask is None else part.mask
                if part.shadow is not None:
                    part.shadow.atomic(c, part.index, form.size, part.mask, ins, form)
                    c.batch.run.sync.access(c, part, form.size, form, False, True)
                for i, value in enumerate(values):
                    index = part.index[where] + i
                    apply(part.view, index, value[where].astype(part.view.dtype), join, None)
        c.batch.run.progress += 1
        return True

    return reduce
