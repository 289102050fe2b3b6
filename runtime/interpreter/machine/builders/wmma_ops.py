"""wmma.load, wmma.store and wmma.mma (PTX ISA 9.7.14.4): the matrix API of CUDA C++."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.semantics.wmma import WmmaMemory, compile_wmma, compile_wmma_memory
from ...ptx.module import Instruction, Operand, Vec
from ..compiler import Compiler, registers
from ..group import Group
from ..program import Op, builds
from .accesses import address_of, combine, gather, noted, scatter, space_name, space_of, unchanged
from .matrix_ops import build_product, by_whole_warps
from .mbarrier_ops import Weak

Array = npt.NDArray[Any]


@builds("wmma")
def build_wmma(k: Compiler, ins: Instruction) -> Op:
    """Build wmma.mma, .load and .store."""
    if ins.opcode[1:2] == ("mma",):
        return build_product(k, ins, compile_wmma(ins.opcode))
    form = compile_wmma_memory(ins.opcode)
    loads = form.action == "load"
    vector, memory = ins.operands[:2] if loads else ins.operands[1::-1]
    k.check_fragment(vector, form.fragment.type_)
    items = vector.items if isinstance(vector, Vec) else (vector,)
    type_, count = form.fragment.held
    if len(items) != count:
        raise k.error(f"{count} registers of .{type_} are wanted, {len(items)} given")
    if loads:
        return _load(k, ins, form, vector, memory)
    return _store(k, ins, form, items, memory)


class _Places:
    """The addresses of a fragment's elements."""

    def __init__(self, k: Compiler, ins: Instruction, form: WmmaMemory, memory: Operand) -> None:
        self.base = address_of(k, memory)
        self.space = space_of(space_name(form.space))
        given = len(ins.operands) > 2
        self.stride = k.reader(ins.operands[2], "u32") if given else None
        self.size = np.dtype(form.fragment.element).itemsize
        # An element's place is linear in the stride: an offset at stride 0, plus the stride times a factor.
        self.start = form.fragment.offsets(form.layout, 0)
        self.slope = form.fragment.offsets(form.layout, 1) - self.start
        self.bits = form.fragment.bits
        self.default = form.default_stride

    def addresses(self, c: Group) -> list[Array]:
        """Return the uint64 addresses (rows, 32) of each element of a lane."""
        base = np.broadcast_to(self.base(c), (c.n, 32))
        stride: Any = self.default if self.stride is None else self.stride(c).astype(np.int64)
        found: list[Array] = []
        for e in range(self.start.shape[1]):
            offset = (self.start[:, e] + self.slope[:, e] * stride) * self.bits >> 3
            found.append(base + offset.astype(np.uint64))
        return found


def _load(k: Compiler, ins: Instruction, form: WmmaMemory, dest: Operand, memory: Operand) -> Op:
    places = _Places(k, ins, form, memory)
    fragment, size = form.fragment, places.size
    writers = [k.writer(r, fragment.held[0]) for r in registers(dest)]

    def run(c: Group) -> None:
        codes: list[Array] = []
        for address in places.addresses(c):
            parts = places.space(c).locate(c, address, size, size, ins, False)
            for part in parts:
                if part.shadow is not None:
                    part.shadow.read(c, part.index, size, 1, part.mask, ins, Weak)
            codes.append(gather(parts[0], 1) if len(parts) == 1 else combine(parts, 1, c))
        values = fragment.to_registers(np.stack(codes, axis=-1).astype(fragment.element))
        for write, value in zip(writers, values, strict=True):
            if write is not None:
                write(c, value)

    return by_whole_warps(ins, run)


def _store(k: Compiler, ins: Instruction, form: WmmaMemory, items: tuple[Any, ...], memory: Operand) -> Op:
    places = _Places(k, ins, form, memory)
    fragment, size = form.fragment, places.size
    readers = [k.reader(item, fragment.held[0]) for item in items]

    def run(c: Group) -> None:
        held = [np.ascontiguousarray(np.broadcast_to(r(c), (c.n, 32))) for r in readers]
        codes = fragment.from_registers(held)
        for e, address in enumerate(places.addresses(c)):
            for part in places.space(c).locate(c, address, size, size, ins, True):
                values = [codes[..., e]]
                noted(c, part, size, 1, ins, Weak, partial(unchanged, part, values), partial(scatter, part, values))
        c.batch.run.progress += 1

    return by_whole_warps(ins, run)
