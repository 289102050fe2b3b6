"""tcgen05: tensor memory and its products, of sm_100 (PTX ISA 9.7.16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks import tensor_shadow
from ...checks.waits import TensorWait
from ...isa.semantics.minmax import extreme
from ...isa.semantics.tensor_core import BadDescriptor, product_of
from ...ptx.module import Imm, Instruction, Mem, Operand, Reg, Vec
from ..compiler import Compiler, registers
from ..group import Group
from ..program import Op, builds
from ..tensor_commit import arrive, named
from ..tensor_copies import COPIES, copy
from ..tensor_memory import TensorMemory
from ..tensor_unit import Read, TensorProduct
from .accesses import address_of, space_of
from .lanes import constant_operand
from .matrix_ops import by_whole_warps, whole_warp
from .mbarrier_ops import by_offset, lanes_at, note

Array = npt.NDArray[Any]


def memory_of(c: Group) -> TensorMemory:
    """Return the tensor memory of a group's batch."""
    batch = c.batch
    if batch.tensor is None:
        batch.tensor = TensorMemory(batch)
    return batch.tensor


def _pair(k: Compiler) -> bool:
    return k.form["group"] == "cta_group::2"


def _address(k: Compiler, operand: Operand) -> Read:
    """Return a function that gives the addresses of tensor memory of an operand in brackets."""
    if not isinstance(operand, Mem) or not isinstance(operand.base, Reg | Imm):
        raise k.error("an address of tensor memory is a register of 32 bits in brackets")
    read, offset = k.reader(operand.base, "b32"), np.uint32(operand.offset % (1 << 32))
    return (lambda c: read(c) + offset) if offset else read


# --- allocation -----------------------------------------------------------------------------------


@builds("tcgen05.alloc")
def build_alloc(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.alloc: it waits until the block has enough free columns, and writes the first one's address to shared
    memory.
    """
    address, space = address_of(k, ins.operands[0]), space_of("shared" if k.form["space"] else "")
    count, pair = k.reader(ins.operands[1], "u32"), _pair(k)

    def run(c: Group) -> bool:
        if not whole_warp(c, ins):
            return False
        memory = memory_of(c)
        found = memory.allocate(c, memory.uniform(c, count(c), ins, "numbers of columns").astype(np.int64), pair, ins)
        short = found < 0
        if short.any():
            c.batch.poll(c.subset(c.pc, short), TensorWait(ins))
            if short.all():
                return False
            some = c.subset(c.pc, ~short)
            put(some, found[~short])
            c.batch.push(some.at(c.frame.code.segments[c.pc].next))
            return False
        put(c, found)
        return True

    def put(c: Group, found: Array) -> None:
        held = c.mask
        first = np.zeros((c.n, 32), np.bool_)
        first[np.arange(c.n), c.active.argmax(axis=1)] = True
        c.mask = first
        part = space(c).locate(c, address(c), 4, 4, ins, True)[0]
        value = np.broadcast_to(found[:, None].astype(np.uint32), (c.n, 32))
        index = np.broadcast_to(part.index, (c.n, 32))
        mask = first if part.mask is None else part.mask

        shadow = part.shadow
        if shadow is not None:  # it is ordered with accesses of the address by any proxy (PTX ISA 9.7.16.6.1)
            queues, when = tensor_shadow.issue(c.batch, c.rows, "tcgen05.alloc")
            a = tensor_shadow.access(c, c.rows, queues, when, ins, False, False)
            shadow.note_write(a, shadow.granules(index, 4, 1), mask, lambda: part.view[index] == value)
            tensor_shadow.learn(c, "tcgen05.alloc", every=True)
        part.view[index[mask]] = value[mask]
        c.mask = held

    return run


@builds("tcgen05.dealloc")
def build_dealloc(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.dealloc."""
    address, count = k.reader(ins.operands[0], "b32"), k.reader(ins.operands[1], "u32")

    def run(c: Group) -> None:
        memory = memory_of(c)
        where = memory.uniform(c, address(c), ins, "addresses")
        memory.free(c, where, memory.uniform(c, count(c), ins, "numbers of columns"), ins)

    return by_whole_warps(ins, run)


@builds("tcgen05.relinquish_alloc_permit")
def build_relinquish(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.relinquish_alloc_permit."""

    def run(c: Group) -> None:
        memory_of(c).relinquish(c)

    return by_whole_warps(ins, run)


# --- loads, stores and their waits ----------------------------------------------------------------


def _shape(k: Compiler, ins: Instruction) -> tuple[str, int, bool, int]:
    split = next((o.value for o in ins.operands if isinstance(o, Imm)), 0)
    packed = bool(k.form.words.get("pack") or k.form.words.get("unpack"))
    return k.form["shape"], int(k.form["num"][1:]), packed, split


def _smallest_of(k: Compiler) -> Callable[[Array], Array]:
    """Return a function that takes the minimum or maximum over axis 1 of words (rows, registers, 32)."""
    operation, type_ = k.form["op"], k.form["type"]
    if type_ != "f32":
        pick = np.min if operation == "min" else np.max
        signed = np.int32 if type_ == "s32" else np.uint32
        return lambda words: pick(words.view(signed), axis=1).view(np.uint32)
    pair = extreme(operation, "f32", bool(k.form["nan"]))
    kept = np.uint32(0x7FFFFFFF if k.form["abs"] else 0xFFFFFFFF)

    def least(words: Array) -> Array:
        words = words & kept
        while words.shape[1] > 1:
            words = pair(words[:, ::2], words[:, 1::2])
        return words[:, 0]

    return least


@builds("tcgen05.ld tcgen05.ld.red")
def build_ld(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.ld of any shape. Its registers have their values at once, because hardware respects true dependences
    (PTX ISA 9.7.16.6.4.5).

    tcgen05.ld.red also gives each thread the least or largest of the values that it loads.
    """
    type_ = k.form["type"]
    writers, shape = [k.writer(r, type_) for r in registers(ins.operands[0])], _shape(k, ins)
    reduced = k.writer(registers(ins.operands[1])[0], type_) if "op" in k.form.words else None
    address = _address(k, ins.operands[1 if reduced is None else 2])
    least = _smallest_of(k) if reduced is not None else None

    def run(c: Group) -> None:
        memory = memory_of(c)
        index, where = memory.place(c, memory.uniform(c, address(c), ins, "addresses"), *shape, ins)
        memory.note(c, where, False, ins)
        words = memory.data[index]
        if words.shape[3] == 2:
            values = (words[..., 0] & np.uint32(0xFFFF)) | words[..., 1] << np.uint32(16)
        else:
            values = words[..., 0]
        for i, write in enumerate(writers):
            if write is not None:
                write(c, values[:, i])
        if reduced is not None and least is not None:
            reduced(c, least(values))

    return by_whole_warps(ins, run)


@builds("tcgen05.st")
def build_st(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.st of any shape."""
    address, source = _address(k, ins.operands[0]), ins.operands[-1]
    readers = [k.reader(i, "b32") for i in (source.items if isinstance(source, Vec) else (source,))]
    shape = _shape(k, ins)

    def run(c: Group) -> None:
        memory = memory_of(c)
        index, where = memory.place(c, memory.uniform(c, address(c), ins, "addresses"), *shape, ins)
        memory.note(c, where, True, ins)
        values = np.stack([np.broadcast_to(r(c), (c.n, 32)) for r in readers], axis=1)
        if shape[2]:
            words = np.stack([values & np.uint32(0xFFFF), values >> np.uint32(16)], axis=-1)
        else:
            words = values[..., None]
        memory.data[index] = words
        c.batch.run.progress += 1

    return by_whole_warps(ins, run)


@builds("tcgen05.wait::ld tcgen05.wait::st")
def build_wait(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.wait::ld and ::st."""
    kind = "tcgen05." + k.form.row.name[1].removeprefix("wait::")

    def run(c: Group) -> None:
        tensor_shadow.learn(c, kind)

    return by_whole_warps(ins, run)


@builds("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync")
def build_fence(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.fence: two fences, with synchronisation between them, order operations that two threads issue."""
    if k.form.row.name[1] == "fence::before_thread_sync":
        return tensor_shadow.before_thread_sync
    return lambda c: tensor_shadow.after_thread_sync(c, memory_of(c).seen)


# --- products and copies --------------------------------------------------------------------------


@builds("tcgen05.mma tcgen05.mma.sp")
def build_product(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.mma and tcgen05.mma.sp of every kind, with A in shared or tensor memory."""
    d, a, b, *rest = ins.operands
    metadata = _address(k, rest.pop(0)) if k.form.row.name[-1] == "sp" else None
    word = rest.pop(0)
    if k.form["ashift"]:
        raise k.error(".ashift is not interpreted")
    scales: tuple[Read, Read] | None = None
    off: tuple[Read, ...] = ()
    if k.form["block_scale"]:
        scales = _address(k, rest.pop(0)), _address(k, rest.pop(0))
    elif isinstance(rest[0], Vec):
        off = tuple(k.reader(item, "b32") for item in rest[0].items)
        rest = rest[1:]
    p = TensorProduct(
        ins, k.form["kind"].removeprefix("kind::"), _pair(k), k.form["vector"], _address(k, d),
        _address(k, a) if isinstance(a, Mem) else k.reader(a, "b64"), isinstance(a, Mem), k.reader(b, "b64"),
        k.reader(word, "b32"), k.reader(rest[0], "pred"), scales, off,
        constant_operand(k, rest[1]) if len(rest) > 1 else 0, metadata=metadata,
    )  # fmt: skip
    return _checked(k, p, word)


@builds("tcgen05.mma.ws")
def build_stationary(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.mma.ws, of one block."""
    d, a, b, word, enable, *rest = ins.operands
    p = TensorProduct(
        ins, k.form["kind"].removeprefix("kind::"), False, "", _address(k, d),
        _address(k, a) if isinstance(a, Mem) else k.reader(a, "b64"), isinstance(a, Mem), k.reader(b, "b64"),
        k.reader(word, "b32"), k.reader(enable, "pred"), None, (), 0, True, k.reader(rest[0], "b64") if rest else None,
    )  # fmt: skip
    return _checked(k, p, word)


def _checked(k: Compiler, p: TensorProduct, word: Operand) -> Op:
    """Return the operation of a product. If its instruction descriptor is a literal, check it now."""
    if isinstance(word, Imm):
        try:
            product_of(word.value, p.kind, p.pair, p.vector, p.stationary, p.metadata is not None)
        except BadDescriptor as error:
            raise k.error(str(error)) from None
    return lambda c: memory_of(c).unit.multiply(c, p)


@builds("tcgen05.cp")
def build_copy(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.cp: rows of shared memory to tensor memory."""
    address, source, pair = _address(k, ins.operands[0]), k.reader(ins.operands[1], "b64"), _pair(k)
    key = k.form["shape"], k.form["cast"]
    if key not in COPIES or k.form["packed"]:
        what = ".b8x16" if k.form["packed"] else f".{k.form['shape']}"
        raise k.error(f"{what} is not interpreted")
    return lambda c: copy(memory_of(c), c, address(c), source(c), key, pair, ins)


@builds("tcgen05.commit")
def build_commit(k: Compiler, ins: Instruction) -> Op:
    """Build tcgen05.commit: it arrives at an mbarrier when the operations that the thread has issued are done."""
    address = address_of(k, ins.operands[0])
    mask = k.reader(ins.operands[1], "b16") if k.form["multicast"] else None

    def run(c: Group) -> None:
        memory = memory_of(c)
        row, lane, cta, offset = lanes_at(c, ins, address(c))
        masks = None if mask is None else np.broadcast_to(mask(c), (c.n, 32))[row, lane]
        if c.batch.peers is not None:
            c.batch.peers.accessed(c, row, cta, ins)
        for at, some in by_offset(offset):
            rows = c.rows[row[some]]
            if c.batch.clocks is not None:
                note(c, row[some], cta[some], at, ins, False)
            targets = named(memory, rows, cta[some], None if masks is None else masks[some], ins)
            arrive(memory, rows, at, targets, ins)

    return run
