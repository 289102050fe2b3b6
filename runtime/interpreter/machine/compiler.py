"""Compiles instructions to closures: finds operands' register slots, checks types, and looks up elementwise instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks.poison import LOADS, following, poisoned
from ..isa.attempts import first_guesses
from ..isa.cfg import build_segments, may_wait
from ..isa.instructions import BadForm, Form, form_of
from ..isa.liveness import mentioned_once, read_first, used
from ..isa.operand_types import ADDRESSES, RELAXED, SPECIALS, fragment_fits, in_range, literal_fits, register_fits
from ..isa.semantics.forms import OLDEST, compile_alu
from ..isa.semantics.minmax import extreme_of_three
from ..isa.targets import lacks, number_of
from ..ptx.literals import literal_bits
from ..ptx.module import (
    TYPE_BYTES,
    Function,
    Imm,
    Instruction,
    Mem,
    Module,
    Negated,
    Operand,
    Pair,
    PtxError,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)
from .frame import STORAGE
from .group import Group
from .program import BUILDERS, Code, Op, Program, Seg

Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]
SPECIAL_64 = {"%clock64", "%globaltimer", "%gridid", "%current_graph_exec", *(f"%pm{n}_64" for n in range(8))}
SPECIAL_PRED = {"%is_explicit_cluster"}
_NARROW = re.compile(r"%n?(tid|ctaid)\.")  # the special registers that moves of 16 bits read


class Compiler:
    """Turns one function into closures."""

    def __init__(self, program: Program, code: Code) -> None:
        self.program = program
        self.module: Module = program.module
        self.code = code
        self.fn: Function = code.fn
        self._slot_of: dict[Any, int] = {}
        self.carry: Reg = self._carry()
        self.ins: Instruction | None = None
        self._form: Form | None = None
        self._once: int | None = None
        self._guesses: set[tuple[int, int]] | None = None
        self._read: int | None = None

    def _carry(self) -> Reg:
        """Return the register that holds the condition code's carry flag (PTX ISA 9.7.2)."""
        registers = self.fn.registers
        if not registers or registers[-1].name != "%cc":
            registers.append(Reg(len(registers), "pred", "%cc"))
        return registers[-1]

    def wanted(self, regs: list[Reg | None]) -> list[int] | None:
        """Return the elements of a vector load that the program uses, or None for all.

        Compilers widen a load of three elements to four if the alignment allows it. Then no other instruction names the
        fourth register, and its value does not matter.
        """
        if self._once is None:
            self._once = mentioned_once(self.fn.body)
        places = [i for i, reg in enumerate(regs) if reg is not None and not self._once >> reg.index & 1]
        return places if 0 < len(places) < len(regs) else None

    def is_read(self, operand: Any) -> bool:
        """Return whether an instruction of the function reads a register that another one writes."""
        if self._read is None:
            read = 0
            for ins in self.fn.body:
                if isinstance(ins, Instruction):
                    read |= used(ins)[0]
            self._read = read
        return isinstance(operand, Reg) and bool(self._read >> operand.index & 1)

    def is_first_guess(self, ins: Instruction) -> bool:
        """Return whether only a compare-and-swap uses a load's value (`isa/attempts.py`)."""
        if self._guesses is None:
            self._guesses = first_guesses(self.fn)
        return (ins.line, ins.column) in self._guesses

    def run(self) -> None:
        sources = build_segments(self.fn, self.program.fine)
        if self.fn.entry:
            self.code.unset = read_first(sources)
        for index, source in enumerate(sources):
            seg = Seg(index, source)
            if source.sync is not None:
                seg.sync = self.instruction(source.sync, guarded=False)
                if not may_wait(source.sync):
                    seg.sync = _goes_on(seg.sync)
                seg.sources.append(self._source(seg.sync, source.sync, guarded=False))
            for left, ins in zip(range(len(source.code), 0, -1), source.code, strict=True):
                self.program.left[id(ins)] = left
                seg.ops.append(self.instruction(ins, guarded=True))
                seg.sources.append(self._source(seg.ops[-1], ins, guarded=True))
            seg.loads = any(ins.opcode[0] in LOADS for ins in source.code)
            if source.end is not None and source.kind in ("call", "table"):
                end = self.instruction(source.end, guarded=False)
                self.code.call[index] = poisoned(*self._source(end, source.end, guarded=False))
            self.code.segments.append(seg)
        self._mark_wgmma_registers()

    def _mark_wgmma_registers(self) -> None:
        """Record which segments access registers of wgmma."""
        wanted = 0
        for seg in self.code.segments:
            if seg.sync_ins is not None and seg.sync_ins.opcode[:2] == ("wgmma", "mma_async"):
                acc, a, _, meta, *_ = seg.sync_ins.operands
                held = (acc, *((a,) if isinstance(a, Vec) else ()), *((meta,) if "sp" in seg.sync_ins.opcode else ()))
                reads, writes = used(Instruction(("wgmma",), held, None, 0, 0))
                wanted |= writes | reads
        if not wanted:
            return
        for seg in self.code.segments:
            computed = 0
            for ins in seg.code:
                if ins.opcode[0] != "wgmma":
                    reads, writes = used(ins)
                    seg.reads |= reads & wanted
                    seg.writes |= writes & wanted
                    computed |= 0 if ins.opcode[0] == "mov" else writes
            seg.moves = seg.writes & ~computed
            seg.touches = bool(seg.reads | seg.writes)

    def instruction(self, ins: Instruction, guarded: bool) -> Op:
        self.ins = ins
        try:
            self._form = form_of(ins.opcode)
            lacking = lacks(self.module.target, ins)
            if lacking:
                raise self.error(lacking)
            if self._form is None:
                op = build_alu(self, ins)
            else:
                self._check_roles(self._form, ins)
                op = BUILDERS[self._form.row.name](self, ins)
        except PtxError:
            raise
        except BadForm as error:
            raise self.error(str(error)) from None
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise PtxError(self._why(error, ins), ins.line, ins.column) from error
        if guarded and ins.guard is not None:
            by_warp = self._form is not None and ins.opcode[0] not in ("ld", "st")
            op = guard(op, ins.guard[0].index, ins.guard[1], by_warp)
        if ins.opcode[0] not in LOADS or not ins.operands:
            return op
        return following(op, ins if guarded else replace(ins, guard=None))

    def _source(self, op: Op, ins: Instruction, guarded: bool) -> tuple[Op, Instruction, bool]:
        """Return the arguments of `poisoned` for the instruction that was compiled last."""
        whole = ins if guarded else replace(ins, guard=None)  # otherwise a branch around it tests the guard
        return op, whole, self._form is None or ins.opcode[0] == "mov"

    def _check_roles(self, form: Form, ins: Instruction) -> None:
        """Check operands against their roles. Builders check the types of the operands that they read."""
        if form.row.roles is None:
            return
        for role, operand in zip(form.row.check(form.words, ins.operands), ins.operands, strict=True):
            if role.kind == "S" and role.type:
                self._check_source(operand, role.type)
            if role.kind in ("D", "D!", "D|P") and role.type:
                first = operand.first if isinstance(operand, Pair) else operand
                if isinstance(first, Reg):
                    self.widening(first, role.type)
            if role.kind == "R" and role.home and isinstance(operand, Sym):
                self._check_space(operand.name, form.words.get(role.home, role.home))
            if isinstance(operand, Mem) and isinstance(operand.base, Sym):
                space = form.words.get(role.space.lstrip("~"), role.space) or role.home
                self._check_space(operand.base.name, space)

    def _check_space(self, name: str, space: str) -> None:
        """Check that a variable lies in the state space of the accessing instruction.

        A generic access takes all spaces.
        """
        params = {v.name: v for v in (*self.fn.params, *self.fn.rets)}
        var = params.get(name) or self.fn.variables.get(name) or self.module.variables.get(name)
        if var is None:
            return  # the builder that reads the operand reports it
        have = var.space
        wanted = space.lstrip("~").partition("::")[0]
        if have in ("param", "const") if wanted == "" else wanted not in (have, "any"):
            raise self.error(f"'{name}' is in .{have}")

    @property
    def form(self) -> Form:
        """Return the form in which a row read the instruction that is being compiled."""
        assert self._form is not None
        return self._form

    @staticmethod
    def _why(error: Exception, ins: Instruction) -> str:
        text = str(error)
        if isinstance(error, ValueError) and ins.name in text:
            return text
        return f"'{ins.name}' is not understood: {text}"

    def error(self, message: str) -> PtxError:
        assert self.ins is not None
        return PtxError(f"'{self.ins.name}': {message}", self.ins.line, self.ins.column)

    # --- slots ---------------------------------------------------------------------------------

    def _new_slot(self, kind: str, what: Any, dtype: Any) -> int:
        key = (kind, what if kind != "const" else (what, dtype), dtype)
        found = self._slot_of.get(key)
        if found is None:
            value = np.full((1, 1), what, dtype) if kind == "const" else what
            self.code.slots.append((kind, value, dtype))
            found = self._slot_of[key] = len(self.fn.registers) + len(self.code.slots) - 1
        return found

    def constant(self, bits: int, type_: str) -> int:
        """Return the slot of a constant of a PTX type."""
        dtype = STORAGE[type_]
        if type_ == "pred":
            return self._new_slot("const", bool(bits), dtype)
        return self._new_slot("const", bits & ((1 << (8 * np.dtype(dtype).itemsize)) - 1), dtype)

    def source(self, operand: Operand | None, type_: str) -> tuple[int, Convert | None]:
        """Return (slot, conversion or None) that reads `operand` as the storage of `type_`."""
        self._check_source(operand, type_)
        if isinstance(operand, Reg):
            return operand.index, self._narrowing(operand, type_)
        if isinstance(operand, Negated):
            return operand.reg.index, np.logical_not
        if isinstance(operand, Imm):
            width = 8 * TYPE_BYTES.get(type_, 4)
            is_float = type_ in ("f32", "f64", "f16", "bf16")
            return self.constant(literal_bits(operand, width, is_float), type_), None
        if isinstance(operand, Special):
            own = "pred" if operand.name in SPECIAL_PRED else "u64" if operand.name in SPECIAL_64 else "u32"
            slot = self._new_slot("special", operand.name, STORAGE[own])
            return slot, None if STORAGE[own] is STORAGE[type_] else _cast(type_)
        if isinstance(operand, Sym):
            return self.symbol(operand, type_), None
        raise self.error(f"operand {_show(operand)} is not possible here")

    def _check_source(self, operand: Operand | None, type_: str) -> None:
        assert self.ins is not None
        head, why = ".".join(self.ins.opcode[: 1 + (self.ins.opcode[1:2] == ("async",))]), ""
        if isinstance(operand, Reg):
            why = register_fits(operand.type, type_, head in RELAXED)
            why = f"'{operand.name}' {why}" if why else ""
        elif isinstance(operand, Imm):
            why = literal_fits(operand, type_, head)
        elif isinstance(operand, Negated) and type_ != "pred":
            why = f"a negated predicate where .{type_} is wanted"
        elif isinstance(operand, Special) and head not in SPECIALS:
            why = f"special register '{operand.name}' where a register is wanted"
        elif isinstance(operand, Special) and head == "cvt" and self.ins.opcode[-2][0] not in "us":
            why = f"special register '{operand.name}' where a register is wanted: convert an integer first"
        elif isinstance(operand, Special) and not _special_fits(operand.name, type_, head):
            why = f"'{operand.name}' is a number of {'64' if operand.name in SPECIAL_64 else '32'} bits, and .{type_} is wanted"
        elif isinstance(operand, Sym) and head not in ADDRESSES:
            why = f"the address of '{operand.name}' where a register is wanted"
        if why:
            raise self.error(why)

    @staticmethod
    def _narrowing(reg: Reg, type_: str) -> Convert | None:
        return None if STORAGE[reg.type] is STORAGE[type_] else _cast(type_)

    def symbol(self, sym: Sym, type_: str) -> int:
        """Return the slot that holds the address of a variable, in its own state space."""
        dtype = STORAGE[type_]
        name = sym.name
        if name in self.program.shared_offsets:
            return self._new_slot("shared", self.program.shared_offsets[name] + sym.offset, dtype)
        if name in self.code.local_offsets:
            return self._new_slot("local", (name, sym.offset), dtype)
        if self.fn.entry and name in self.program.param_offsets:
            return self.constant(self.program.param_offsets[name][0] + sym.offset, type_)
        if name in self.fn.variables and self.fn.variables[name].space in ("global", "const"):
            return self._new_slot("global", (name, sym.offset), dtype)
        if name in self.module.variables:
            return self._new_slot("global", (name, sym.offset), dtype)
        if name in self.program.function_ids:
            return self.constant(self.program.function_ids[name], type_)
        raise self.error(f"'{name}' is not declared")

    def param_value(self, offset: int, type_: str, size: int) -> int:
        return self._new_slot("param", (offset, size), STORAGE[type_])

    def check_fragment(self, operand: Operand, element: str, integers: bool = True) -> None:
        """Check that registers in braces hold a fragment of a matrix. Raises PtxError."""
        if not isinstance(operand, Vec):
            raise self.error(f"a vector in braces is wanted, {_show(operand)} given")
        for item in operand.items:
            if isinstance(item, Reg) and (why := fragment_fits(item.type, element, integers)):
                raise self.error(f"'{item.name}' {why}")

    def reader(self, operand: Operand | None, type_: str) -> Callable[[Group], Array]:
        """Return a function of the group that gives `operand`'s value in the storage of `type_`."""
        slot, convert = self.source(operand, type_)
        if convert is None:
            return lambda c: c.v[slot]
        return lambda c: convert(c.v[slot])

    def writer(self, operand: Operand | None, type_: str) -> Callable[[Group, Array], None] | None:
        """Return a function that puts a value of `type_` into a register, extended as in PTX; None for the sink."""
        if operand is None or isinstance(operand, Sink):
            return None
        if not isinstance(operand, Reg):
            raise self.error(f"{_show(operand)} is no destination")
        index = operand.index
        extend = self.widening(operand, type_)
        if extend is None:
            return lambda c, value: c.put(index, value)
        return lambda c, value: c.put(index, extend(value))

    def widening(self, reg: Reg, type_: str) -> Convert | None:
        assert self.ins is not None
        why = register_fits(reg.type, type_, self.ins.opcode[0] in RELAXED)
        if why:
            raise self.error(f"'{reg.name}' {why}")
        have, want = TYPE_BYTES[reg.type], TYPE_BYTES.get(type_, 4)
        if (type_[0] == "s" and have > want) or type_ == "s8":
            return _sign_extension(want, have)
        if STORAGE[reg.type] is STORAGE.get(type_, np.uint32):
            return None
        return _to(STORAGE[reg.type])


def _special_fits(name: str, type_: str, head: str) -> bool:
    """Return whether an instruction may read a special register as this type; %gridid has either size (PTX ISA 10)."""
    size = TYPE_BYTES.get(type_, 4)
    if name in SPECIAL_PRED:
        return type_ == "pred"
    if type_ in ("pred", "f16", "bf16", "f32", "f64") or size > 8:
        return False
    if size < 4 and head == "mov":
        return bool(_NARROW.match(name))
    if head == "cvt" and size <= 4:  # it converts the lower bits
        return True
    return name == "%gridid" or (size == 8) == (name in SPECIAL_64)


def _goes_on(op: Op) -> Op:
    """Return `op` as a segment's synchronising instruction, after which all lanes go on."""

    def run(c: Group) -> bool:
        op(c)
        return True

    return run


def _cast(type_: str) -> Convert:
    return _to(STORAGE[type_])


def _to(dtype: Any) -> Convert:
    return lambda a: a.astype(dtype)


def _sign_extension(want: int, have: int) -> Convert:
    """Return a function that sign-extends values of `want` bytes to registers of `have` bytes."""
    narrow, wide = np.dtype(f"i{want}"), np.dtype(f"i{max(have, 2)}")
    unsigned, storage = np.dtype(f"u{want}"), np.dtype(f"u{max(have, 2)}")
    return lambda a: a.astype(unsigned).view(narrow).astype(wide).view(storage)


def _show(operand: Operand | None) -> str:
    return getattr(operand, "name", type(operand).__name__)


def guard(op: Op, predicate: int, negated: bool, by_warp: bool = False) -> Op:
    """Return `op` under `@p` or `@!p`. `by_warp`: `op` acts on whole warps, so warps without an active lane are left out."""

    def run(c: Group) -> None:
        lanes = c.v[predicate]
        if negated:
            lanes = ~lanes
        held = c.mask
        lanes = lanes.copy() if held is None else lanes & held
        if not lanes.any():
            return
        if by_warp and c.n > 1 and not lanes.any(axis=1).all():
            op(c.lanes(c.pc, np.broadcast_to(lanes, (c.n, 32))))
            return
        c.mask = lanes if held is not None or not lanes.all() else None
        try:
            op(c)
        finally:
            c.mask = held

    return run


def build_alu(k: Compiler, ins: Instruction) -> Op:
    """Build an elementwise instruction of `semantics`."""
    operands = ins.operands
    pair = bool(operands) and isinstance(operands[0], Pair)
    three = len(operands) == 4 and ins.opcode[0] in ("min", "max")
    alu = extreme_of_three(ins.opcode) if three else compile_alu(ins.opcode, pair)
    # PTX for older targets runs everywhere (PTX ISA 11.1.2, .target), and the table begins at OLDEST.
    if alu.since > max(number_of(k.module.target), OLDEST):
        raise k.error(f"needs sm_{alu.since} or later, the module is for {k.module.target}")
    first = operands[0]
    dests = (first.first, first.second) if isinstance(first, Pair) else (first,)
    given = operands[1:]
    results, wanted = alu.results, alu.operands
    if "cc" in results:
        dests, results = (*dests, k.carry), _carried(results)
    if "cc" in wanted:
        given, wanted = (*given, k.carry), _carried(wanted)
    if len(dests) != len(results) or len(given) != len(wanted):
        raise k.error(f"takes {len(wanted)} operands, {len(given)} given")
    for at, operand in enumerate(given, 1):
        if isinstance(operand, Imm) and (why := in_range(ins.opcode[0], at, operand)):
            raise k.error(why)
    sources = [k.source(o, t) for o, t in zip(given, wanted, strict=True)]
    writers = [k.writer(d, t) for d, t in zip(dests, results, strict=True)]
    return _elementwise(alu.function, sources, writers, k, dests, results)


def _carried(types: Sequence[str]) -> tuple[str, ...]:
    """Return the types with that of the carry, whose register is a predicate."""
    return tuple("pred" if t == "cc" else t for t in types)


def _elementwise(
    fn: Any, sources: list[tuple[int, Convert | None]], writers: list[Any], k: Compiler, dests: Any, types: Any
) -> Op:
    slots = [s for s, _ in sources]
    plain = all(convert is None for _, convert in sources)
    single = len(dests) == 1 and isinstance(dests[0], Reg) and k.widening(dests[0], types[0]) is None
    if plain and single and len(slots) in (1, 2, 3):
        d = dests[0].index
        if len(slots) == 1:
            (a,) = slots
            return lambda c: c.put(d, fn(c.v[a])[0])
        if len(slots) == 2:
            a, b = slots

            def two(c: Group) -> None:
                v = c.v
                c.put(d, fn(v[a], v[b])[0])

            return two
        a, b, e = slots

        def three(c: Group) -> None:
            v = c.v
            c.put(d, fn(v[a], v[b], v[e])[0])

        return three

    def general(c: Group) -> None:
        v = c.v
        values = fn(*[v[s] if f is None else f(v[s]) for s, f in sources])
        for write, value in zip(writers, values, strict=True):
            if write is not None:
                write(c, value)

    return general


def registers(operand: Operand | None) -> list[Reg | None]:
    """Return the registers of a vector operand, or the one register; None for sinks."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    return [o if isinstance(o, Reg) else None for o in items]
