"""Matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync, wgmma, and setmaxnreg (PTX ISA 9.7.14 and 9.7.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...checks.waits import RegisterWait
from ...isa.semantics import sparse
from ...isa.semantics.fragments import matrix_row_map, movmatrix
from ...isa.semantics.matrix import MmaSemantics, compile_mma
from ...isa.semantics.wgmma import compile_wgmma
from ...ptx.module import Instruction, Operand, Reg, Vec
from ..compiler import Compiler, registers
from ..control import together, whole_rows
from ..group import Group
from ..program import Op, builds
from ..spaces import Part
from ..wgmma import WgmmaProduct
from .accesses import address_of, noted, space_of
from .lanes import constant_operand
from .mbarrier_ops import Weak

Array = npt.NDArray[Any]
Extra = Callable[[Group], tuple[Array, ...]] | None


def _slots(k: Compiler, operand: Operand, count: int) -> tuple[int, ...]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count or not all(isinstance(i, Reg) for i in items):
        raise k.error(f"a vector of {count} registers is wanted")
    return tuple(i.index for i in items if isinstance(i, Reg))


def whole_warp(c: Group, ins: Instruction) -> bool:
    """Return whether all lanes of the warps are here; incomplete warps wait for their other lanes.

    Report lanes that have exited, because all threads of a warp must execute a matrix instruction (PTX ISA 9.7.14).
    """
    if not together(c, None):
        return False
    if c.mask is not None:
        batch = c.batch
        thread = batch.row_warp[c.rows][:, None] * 32 + np.arange(32)
        left = (thread < batch.run.threads_per_block) & ~c.mask
        if left.any():
            _, _, who = batch.run.reporter.group(c, left)
            what = "a matrix instruction of a warp of which lanes have left"
            fix = "let all lanes of the warp reach it"
            batch.run.reporter.hazard(HazardKind.DIVERGENCE, what, ins, (f"gone: {who}",), fix)
    return True


def by_whole_warps(ins: Instruction, act: Callable[[Group], None]) -> Op:
    """Return the operation that runs `act` once all lanes of the warps are here."""

    def run(c: Group) -> bool:
        if not whole_warp(c, ins):
            return False
        act(c)
        return True

    return run


@builds("mma")
def build_mma(k: Compiler, ins: Instruction) -> Op:
    """Build mma.sync.aligned in every shape and type, of a dense or a sparse A."""
    if set(sparse.VARIANTS) & set(ins.opcode):
        return _sparse_product(k, ins)
    return build_product(k, ins, compile_mma(ins.opcode))


def _sparse_product(k: Compiler, ins: Instruction) -> Op:
    """Build mma.sp: metadata and a selector follow the operands of a dense product."""
    op = sparse.compile_sparse(ins.opcode)
    if len(ins.operands) != 6:
        raise k.error(f"takes 6 operands, {len(ins.operands)} given")
    read, selector = k.reader(ins.operands[4], "b32"), constant_operand(k, ins.operands[5])
    if not 0 <= selector < op.selectors:
        raise k.error(f"a sparsity selector of {selector} is not supported, it is below {op.selectors} here")

    def places(c: Group) -> tuple[Array]:
        found = op.places(np.broadcast_to(read(c), (c.n, 32)), selector)
        bad = (found < 0).any(axis=(1, 2))
        if bad.any() and c.batch.run.detect:
            _report_metadata(c, ins, int(bad.argmax()))
        return (found,)

    return build_product(k, ins, op, places)


def _report_metadata(c: Group, ins: Instruction, row: int) -> None:
    """Report metadata that does not name different elements, in ascending order: the product is then undefined."""
    reporter = c.batch.run.reporter
    who = reporter.who(c.batch.coordinates[int(c.cta[row])], int(c.batch.row_warp[c.rows[row]]))
    what = "the metadata of a sparse product does not name which elements are stored"
    fix = "make each four bits by PTX ISA 9.7.14.6.1"
    if "sp::ordered_metadata" in ins.opcode:
        fix += ": .sp::ordered_metadata wants them in ascending order"
    reporter.hazard(HazardKind.DESCRIPTOR, what, ins, (who,), fix)


def _items(operand: Operand) -> tuple[Operand | None, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def build_product(k: Compiler, ins: Instruction, op: MmaSemantics | sparse.SparseSemantics, more: Extra = None) -> Op:
    """Build a warp's matrix product, with d, a, b and c in registers. `more`: further arguments of its function."""
    dest, a, b, c_ = ins.operands[:4]
    if more is None and len(ins.operands) != 4:
        raise k.error(f"takes 4 operands, {len(ins.operands)} given")
    want = ((dest, op.d), (a, op.a), (b, op.b), (c_, op.c))
    for (operand, (type_, count)), element in zip(want, (op.types[3], *op.types[:3]), strict=True):
        k.check_fragment(operand, element, ins.opcode[0] == "wmma")
        if len(_items(operand)) != count:
            raise k.error(f"{count} registers of .{type_} are wanted, {len(_items(operand))} given")
    readers = [[k.reader(i, type_) for i in _items(o)] for o, (type_, _) in want[1:]]
    writers = [k.writer(r, op.d[0]) for r in registers(dest)]
    function: Callable[..., list[Array]] = op.function
    infinite = {"f16": 0x7C007C00, "f32": 0x7F800000, "f64": 0x7FF << 52}.get(op.types[3])

    def run(c: Group) -> None:
        if infinite is not None and c.batch.run.config.skip_floating_point_ops:
            for write in writers:
                if write is not None:
                    write(c, np.full((c.n, 32), infinite, np.uint64 if op.types[3] == "f64" else np.uint32))
            return
        given = [[np.broadcast_to(r(c), (c.n, 32)) for r in some] for some in readers]
        given = [[np.ascontiguousarray(v) for v in some] for some in given]
        extra = () if more is None else more(c)
        for write, value in zip(writers, function(*given, *extra), strict=True):
            if write is not None:
                write(c, value)

    return by_whole_warps(ins, run)


def _matrix_form(k: Compiler) -> tuple[int, bool, str]:
    """Return (matrices, transposed, space) of ldmatrix or stmatrix."""
    return int(k.form["num"][1:]), bool(k.form["trans"]), "shared" if k.form["space"] else ""


def _rows_part(c: Group, address: Array, count: int, space: Any, ins: Instruction, write: bool) -> Part:
    """Return the place of the 8 * count rows of 16 bytes that lanes 0 to 8 * count - 1 address."""
    held = c.mask
    if count < 4:
        lanes = np.broadcast_to(np.arange(32) < 8 * count, (c.n, 32))
        c.mask = lanes if held is None else held & lanes
    part = space(c).locate(c, address, 2, 16, ins, write)[0]
    c.mask = held
    return part


@builds("ldmatrix")
def build_ldmatrix(k: Compiler, ins: Instruction) -> Op:
    """Build ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16."""
    count, trans, space_name = _matrix_form(k)
    writers = [k.writer(r, "b32") for r in registers(ins.operands[0])]
    address, space = address_of(k, ins.operands[1]), space_of(space_name)
    lane, byte = matrix_row_map(count, trans)

    def run(c: Group) -> None:
        part = _rows_part(c, address(c), count, space, ins, False)
        if part.shadow is not None:
            part.shadow.read(c, part.index, 2, 8, part.mask, ins, Weak)
        at = part.index[:, lane] + byte // 2  # (rows, count, 32, 2)
        halves = part.view[at].astype(np.uint32)
        words = halves[..., 0] | (halves[..., 1] << np.uint32(16))
        for i, write in enumerate(writers):
            if write is not None:
                write(c, words[:, i])

    return by_whole_warps(ins, run)


@builds("stmatrix")
def build_stmatrix(k: Compiler, ins: Instruction) -> Op:
    """Build stmatrix.sync.aligned.m8n8.x{1,2,4}[.trans][.shared].b16."""
    count, trans, space_name = _matrix_form(k)
    address, space = address_of(k, ins.operands[0]), space_of(space_name)
    items = ins.operands[1].items if isinstance(ins.operands[1], Vec) else (ins.operands[1],)
    readers = [k.reader(i, "b32") for i in items]
    lane, byte = matrix_row_map(count, trans)

    def run(c: Group) -> None:
        part = _rows_part(c, address(c), count, space, ins, True)
        at = part.index[:, lane] + byte // 2  # (rows, count, 32, 2)
        words = np.stack([np.broadcast_to(r(c), (c.n, 32)) for r in readers], axis=1)
        halves = words.astype(np.uint16), (words >> np.uint32(16)).astype(np.uint16)
        kept = None if part.mask is None else part.mask[:, lane]

        def same() -> Array:
            """Return the lanes whose row already has these values in memory."""
            found = np.ones((c.n, 32), np.bool_)
            for i, half in enumerate(halves):
                equal = part.view[at[..., i]] == half
                for row, lanes in zip(lane[..., i].reshape(-1), equal.reshape(c.n, -1).T, strict=True):
                    found[:, row] &= lanes
            return found

        def put() -> None:
            for i, half in enumerate(halves):
                if kept is None:
                    part.view[at[..., i]] = half
                else:
                    part.view[at[..., i][kept[..., i]]] = half[kept[..., i]]

        noted(c, part, 2, 8, ins, Weak, same, put)
        c.batch.run.progress += 1

    return by_whole_warps(ins, run)


@builds("movmatrix")
def build_movmatrix(k: Compiler, ins: Instruction) -> Op:
    """Build movmatrix.sync.aligned.m8n8.trans.b16."""
    read, write = k.reader(ins.operands[1], "b32"), k.writer(ins.operands[0], "b32")

    def run(c: Group) -> None:
        if write is not None:
            write(c, movmatrix(np.broadcast_to(read(c), (c.n, 32))))

    return by_whole_warps(ins, run)


@builds("setmaxnreg.inc setmaxnreg.dec")
def build_setmaxnreg(k: Compiler, ins: Instruction) -> Op:
    """Build setmaxnreg.{inc,dec}.sync.aligned.u32: an increase waits until the block has enough free registers."""
    count, grows = constant_operand(k, ins.operands[0]), k.form.row.name[1] == "inc"

    def run(c: Group) -> bool:
        if not together(c, None):
            return False
        batch = c.batch
        short = batch.run.registers.set(c, count, grows, ins)
        if not grows:
            batch.wake()
        elif short.any():
            batch.poll(c.subset(c.pc, short), RegisterWait(ins, count))
            if not short.all():
                batch.again(c.subset(c.pc, ~short))
            return False
        batch.run.registers.note(c, ins)
        return True

    return run


# --- wgmma --------------------------------------------------------------------------------------------


def warpgroups_together(c: Group) -> bool:
    """Return whether whole warpgroups are here; park the warps of incomplete ones."""
    unit = c.batch.wgmma
    keys = unit.keys(c.rows)
    whole = whole_rows(c)
    whole &= np.bincount(keys[whole], minlength=len(unit.committed))[keys] == 4
    if whole.all():
        return True
    # Parked apart, warps that lack lanes and those that lack warps would wake each other before any other lane came.
    c.batch.park(c.subset(c.pc, ~whole))
    if whole.any():
        c.batch.again(c.subset(c.pc, whole))
    return False


@builds("wgmma")
def build_wgmma(k: Compiler, ins: Instruction) -> Op:
    """Build wgmma.mma_async, .fence, .commit_group and .wait_group."""
    words = ins.opcode[1:]
    if words[0] == "mma_async":
        return _mma_async(k, ins)
    if words[0] not in ("fence", "commit_group", "wait_group") or set(words[1:]) not in ({"sync"}, {"sync", "aligned"}):
        raise k.error("unknown form")
    keep = constant_operand(k, ins.operands[0]) if words[0] == "wait_group" else 0
    if keep < 0:
        raise k.error(f"waits until {keep} groups are left: a number from 0 on is wanted")

    def run(c: Group) -> bool:
        unit = c.batch.wgmma
        if words[0] == "fence":
            if not together(c, None):
                return False
            unit.fence(c)
            return True
        if not warpgroups_together(c):
            return False
        if words[0] == "commit_group":
            unit.commit(c)
        else:
            unit.wait(c, keep)
        return True

    return run


def _mma_async(k: Compiler, ins: Instruction) -> Op:
    form = compile_wgmma(ins.opcode)
    operands = list(ins.operands)
    k.check_fragment(operands[0], form.d_type)
    if isinstance(operands[1], Vec):
        k.check_fragment(operands[1], form.a_type, False)
    acc = _slots(k, operands.pop(0), form.accumulator_registers)
    a_operand = operands.pop(0)
    a_slots = _slots(k, a_operand, 4) if isinstance(a_operand, Vec) else ()
    a = None if a_slots else k.reader(a_operand, "b64")
    b = k.reader(operands.pop(0), "b64")
    meta, selector = -1, 0
    if form.sparse:
        (meta,) = _slots(k, operands.pop(0), 1)
        selector = constant_operand(k, operands.pop(0))
        if not 0 <= selector < form.selectors:
            raise k.error("the sparsity selector is 0" + (" or 1" if form.selectors > 1 else " for 8 bits"))
    scale_d = _scale_d(k, operands.pop(0))
    rest = [constant_operand(k, o) for o in operands]
    wanted = (2 if form.negatable else 0) + ((1 if a_slots else 2) if form.transposable else 0)
    if len(rest) != wanted:
        raise k.error(f"{wanted} immediate operands are wanted after scale-d, {len(rest)} given")
    scales = (rest[0], rest[1]) if form.negatable else (1, 1)
    trans = rest[2:] if form.transposable else []
    if any(s not in (1, -1) for s in scales) or any(t not in (0, 1) for t in trans):
        raise k.error("imm-scale is 1 or -1, imm-trans 0 or 1")
    a_trans = bool(trans[0]) if trans and not a_slots else False
    b_trans = bool(trans[-1]) if trans else False
    a_mask = _mask(a_slots) | (_mask((meta,)) if form.sparse else 0)
    product = WgmmaProduct(
        form, acc, a_slots, a, b, scale_d, scales, a_trans, b_trans, ins, _mask(acc), a_mask, meta, selector
    )
    _lay_out(k, acc)

    def run(c: Group) -> bool:
        if not warpgroups_together(c) or not whole_warp(c, ins):
            return False
        c.batch.wgmma.issue(c, product)
        return True

    return run


def _scale_d(k: Compiler, operand: Operand) -> Any:
    if isinstance(operand, Reg):
        return k.reader(operand, "pred")
    return k.reader(operand, "pred") if not isinstance(operand, Vec) else None


def _mask(slots: tuple[int, ...]) -> int:
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


def _lay_out(k: Compiler, acc: tuple[int, ...]) -> None:
    """Keep consecutive accumulator registers in one array."""
    if acc != tuple(range(acc[0], acc[0] + len(acc))):
        return
    if any(slot in k.code.block_of for slot in acc):
        return
    types = {k.fn.registers[slot].type[-2:] for slot in acc}
    if types == {"32"}:
        for slot in acc:
            k.code.block_of[slot] = (acc[0], len(acc))
