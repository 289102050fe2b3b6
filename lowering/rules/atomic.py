"""Atomics: one lane performs each element's update, and the lanes that replicate it get its old value."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, layout_of
from kernel_dsl.ops.atomic import AtomicCas, AtomicKind, AtomicRmw
from kernel_dsl.target import Feature

from ..context import Context, Rules
from ..emit import Regs, literal, llvm_type, suffix
from .exchange import through_smem
from .gather import Elements
from .ref import broadcast_from_first
from .tiled import make_place

_RED_ORDERS = ("relaxed", "release")


def _form(kind: AtomicKind, dtype: DType) -> tuple[str, str, str, str]:
    """(operation and type as PTX spells them, constraint letter, register type, LLVM type)."""
    t = llvm_type(dtype)
    if kind is AtomicKind.ADD and dtype.is_float:
        name = {"float16": "noftz.f16", "bfloat16": "noftz.bf16"}.get(dtype.name, f"f{dtype.bits}")
        return f"add.{name}", *_register(dtype), t
    if kind in (AtomicKind.AND, AtomicKind.OR, AtomicKind.XOR, AtomicKind.XCHG):
        return f"{kind.value}.b{dtype.bits}", *_register(dtype), t
    sign = "s" if dtype.is_signed and not (kind is AtomicKind.ADD and dtype.bits == 64) else "u"
    if kind is AtomicKind.ADD and dtype.bits == 64:
        sign = "u"
    return f"{kind.value}.{sign}{dtype.bits}", *_register(dtype), t


def _register(dtype: DType) -> tuple[str, str]:
    return {16: ("h", "i16"), 32: ("r", "i32"), 64: ("l", "i64")}[dtype.bits]


def _as_bits(ctx: Context, name: str, t: str, word: str) -> str:
    return name if t == word else ctx.e.v(f"bitcast {t} {name} to {word}")


class _Site:
    """The element that one register of an atomic updates."""

    def __init__(self, ctx: Context, op: AtomicRmw | AtomicCas) -> None:
        self.ctx = ctx
        self.op = op
        self.type: RefType = op.ref.type
        self.dtype = self.type.dtype
        self.layout = layout_of(op.x)
        self.elements = Elements(ctx, op, self.layout) if op.indices else None
        self.place = make_place(ctx, self.type, ctx.buffers[op.ref], op.view, self.layout, op.offsets)
        self.where: tuple[int, tuple[str, int]] | None = None  # of the register whose predicate was made last
        self.mask = ctx.regs(op.mask) if op.mask is not None else None
        shared = self.type.space is MemorySpace.SMEM
        remote = "shared::cluster" if ctx.buffers[op.ref].remote else "shared"
        self.space = remote if shared else "global"
        self.wide, self.letter = ("i32", "r") if shared else ("i64", "l")
        self.prefix = f"atom.{op.order}.{op.scope}.{self.space}"
        self.owner = ctx.owner(self.layout)

    def predicate(self, register: int) -> str | None:
        e = self.ctx.e
        coord = self.layout.register_coords[register]
        if self.elements is not None:
            address, own = self.elements.at(register)
            self.where = register, address
            result = e.both(self.owner, own)
        else:
            result = e.both(e.both(self.owner, self.place.padding(coord)), self.place.bounds(coord))
        return result if self.mask is None else e.both(result, self.mask[register])

    def reduce(self, register: int, form: str, operand: str, predicate: str | None) -> None:
        """The update alone, where nobody wants the old value. PTX `red`, ISA 9.7.13.7."""
        letter, word = _register(self.dtype)
        base, constant = self._address(register)
        where = f"[$0+{constant}]" if constant else "[$0]"
        guard = "" if predicate is None else "@$2 "
        args = [(self.wide, base), (word, operand)]
        constraints = [self.letter, letter]
        if predicate is not None:
            args.append(("i1", predicate))
            constraints.append("b")
        text = f"{guard}red.{self.op.order}.{self.op.scope}.{self.space}.{form} {where}, $1;"
        self.ctx.e.asm(text, ",".join([*constraints, "~{memory}"]), args)

    def run(self, register: int, form: str, operands: list[str], predicate: str | None) -> str:
        """One atomic instruction on bit patterns; the old bits, or zero where the predicate does not hold."""
        letter, word = _register(self.dtype)
        base, constant = self._address(register)
        where = f"[$1+{constant}]" if constant else "[$1]"
        count = len(operands)
        listed = ", ".join(f"${i + 2}" for i in range(count))
        text = f"{self.prefix}.{form} $0, {where}, {listed};"
        args = [(self.wide, base), *((word, o) for o in operands)]
        constraints = [f"={letter}", self.letter, *([letter] * count)]
        if predicate is not None:
            text = f"mov.b{self.dtype.bits} $0, 0; @${count + 2} {text}"
            args.append(("i1", predicate))
            constraints[0] = f"=&{letter}"
            constraints.append("b")
        constraints.append("~{memory}")
        (old,) = self.ctx.e.asm(text, ",".join(constraints), args, [word])
        return old

    def _address(self, register: int) -> tuple[str, int]:
        if self.elements is None:
            return self.place.address(self.layout.register_coords[register])
        assert self.where is not None and self.where[0] == register
        return self.where[1]

    def finish(self, out: Regs) -> None:
        """Old values in all lanes that hold them."""
        ctx, result = self.ctx, self.op.result
        ctx.values[result] = out
        if result not in ctx.used:
            return
        if not self.layout.rank:
            ctx.values[result] = [broadcast_from_first(ctx, out[0], result)]
        elif self.layout.replicated_mask:
            shape: tuple[int, ...] = result.type.shape
            ctx.values[result] = through_smem(ctx, out, self.dtype, shape, self.layout, self.layout)


def _from_bits(ctx: Context, name: str, dtype: DType) -> str:
    t, word = llvm_type(dtype), _register(dtype)[1]
    return name if t == word else ctx.e.v(f"bitcast {word} {name} to {t}")


def _by_exchange(ctx: Context, kind: AtomicKind, dtype: DType) -> bool:
    """Whether the hardware lacks the operation, so that compare-and-swap has to build it."""
    if not dtype.is_float or kind is AtomicKind.XCHG:
        return False
    return kind is not AtomicKind.ADD or (dtype == dt.bfloat16 and not ctx.target.supports(Feature.ATOM_BF16))


def lower_atomic(ctx: Context, op: AtomicRmw) -> None:
    site = _Site(ctx, op)
    dtype = site.dtype
    built = _by_exchange(ctx, op.kind, dtype)
    form = "" if built else _form(op.kind, dtype)[0]
    # `red` has no exchange, and orders nothing after itself
    alone = not built and op.result not in ctx.used and op.kind is not AtomicKind.XCHG and op.order in _RED_ORDERS
    out: Regs = []
    for register, value in enumerate(ctx.regs(op.x)):
        predicate = site.predicate(register)
        if predicate == "false":
            out.append(literal(0, dtype))
        elif alone:
            site.reduce(register, form, _as_bits(ctx, value, llvm_type(dtype), _register(dtype)[1]), predicate)
        elif built:
            out.append(_from_bits(ctx, _swap_loop(ctx, site, register, op.kind, value, predicate), dtype))
        else:
            bits = _as_bits(ctx, value, llvm_type(dtype), _register(dtype)[1])
            out.append(_from_bits(ctx, site.run(register, form, [bits], predicate), dtype))
    if not alone:
        site.finish(out)


def _swap_loop(ctx: Context, site: _Site, register: int, kind: AtomicKind, value: str, predicate: str | None) -> str:
    """Compare-and-swap until nothing came between; the old bits."""
    e, dtype = ctx.e, site.dtype
    _, word = _register(dtype)
    cas = f"cas.b{dtype.bits}"
    start, loop, done, end = e.label(), e.label(), e.label(), e.label()
    before = e.block
    if predicate is None:
        e.jump(start)
    else:
        e.branch(predicate, start, end)
    e.begin(start)
    first = site.run(register, cas, ["0", "0"], None)  # an atomic read
    start_block = e.block
    e.jump(loop)
    e.begin(loop)
    seen = e.phi(word, [(first, start_block)])
    hole = len(e.lines) - 1
    new = _as_bits(ctx, _combined(ctx, kind, _from_bits(ctx, seen, dtype), value, dtype), llvm_type(dtype), word)
    old = site.run(register, cas, [seen, new], None)
    text, comma, debug = e.lines[hole].partition(", !dbg")
    e.lines[hole] = f"{text}, [ {old}, %{e.block} ]{comma}{debug}"
    e.branch(e.v(f"icmp eq {word} {old}, {seen}"), done, loop)
    e.begin(done)
    if predicate is None:
        e.jump(end)
        e.begin(end)
        return old
    e.jump(end)
    e.begin(end)
    return e.phi(word, [(old, done), ("0", before)])


def _combined(ctx: Context, kind: AtomicKind, a: str, b: str, dtype: DType) -> str:
    e, t = ctx.e, llvm_type(dtype)
    narrow = dtype.bits == 16
    if narrow:
        a, b = e.v(f"fpext {t} {a} to float"), e.v(f"fpext {t} {b} to float")
    wide, s = ("float", "f32") if narrow else (t, suffix(dtype))
    if kind is AtomicKind.ADD:
        made = e.v(f"fadd {wide} {a}, {b}")
    else:
        word = "maxnum" if kind is AtomicKind.MAX else "minnum"
        made = e.v(f"call {wide} @llvm.{word}.{s}({wide} {a}, {wide} {b})")
    return e.v(f"fptrunc float {made} to {t}") if narrow else made


def lower_cas(ctx: Context, op: AtomicCas) -> None:
    site = _Site(ctx, op)
    dtype = site.dtype
    t, word = llvm_type(dtype), _register(dtype)[1]
    out: Regs = []
    for register, (compare, value) in enumerate(zip(ctx.regs(op.compare), ctx.regs(op.x), strict=True)):
        predicate = site.predicate(register)
        if predicate == "false":
            out.append(literal(0, dtype))
            continue
        bits = [_as_bits(ctx, compare, t, word), _as_bits(ctx, value, t, word)]
        out.append(_from_bits(ctx, site.run(register, f"cas.b{dtype.bits}", bits, predicate), dtype))
    site.finish(out)


RULES: Rules = {AtomicRmw: lower_atomic, AtomicCas: lower_cas}
