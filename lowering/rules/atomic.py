"""Atomics: one lane updates each element, and all lanes that replicate the element get its old value."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, layout_of
from kernel_dsl.ops.atomic import RED_ORDERS, AtomicCas, AtomicKind, AtomicRmw
from kernel_dsl.target import Feature

from ..context import Context, Rules
from ..llvm_types import llvm_type, suffix
from ..value import Regs, V
from ..writer import Loop, address
from .access import Address, listed, pack
from .exchange import through_smem
from .gather import GatheredElements
from .ref import broadcast_from_first
from .tiled import make_place


def _form(kind: AtomicKind, dtype: DType) -> str:
    """Operation and type in PTX's spelling."""
    if kind is AtomicKind.ADD and dtype.is_float:
        name = {"float16": "noftz.f16", "bfloat16": "noftz.bf16"}.get(dtype.name, f"f{dtype.bits}")
        return f"add.{name}"
    if kind in (AtomicKind.AND, AtomicKind.OR, AtomicKind.XOR, AtomicKind.XCHG):
        return f"{kind.value}.b{dtype.bits}"
    signed = dtype.is_signed and not (kind is AtomicKind.ADD and dtype.bits == 64)
    return f"{kind.value}.{'s' if signed else 'u'}{dtype.bits}"


class _AtomicSite:
    """The element that one register of an atomic updates."""

    def __init__(self, ctx: Context, op: AtomicRmw | AtomicCas) -> None:
        self.ctx = ctx
        self.op = op
        self.type: RefType = op.ref.type
        self.dtype = self.type.dtype
        self.word = f"i{self.dtype.bits}"
        self.layout = layout_of(op.x)
        self.elements = GatheredElements(ctx, op, self.layout) if op.indices else None
        self.place = make_place(ctx, self.type, ctx.buffers[op.ref], op.view, self.layout, op.offsets)
        self.where: tuple[int, Address] | None = None  # the register whose predicate was made last, and its address
        self.mask = ctx.regs(op.mask) if op.mask is not None else None
        remote = "shared::cluster" if ctx.buffers[op.ref].remote else "shared"
        space = remote if self.type.space is MemorySpace.SMEM else "global"
        self.kind = f"{op.order}.{op.scope}.{space}"
        self.owner = ctx.owner(self.layout)

    def predicate(self, register: int) -> V | None:
        e = self.ctx.e
        coord = self.layout.register_coords[register]
        if self.elements is not None:
            where, own = self.elements.at(register)
            self.where = register, where
            result = e.both(self.owner, own)
        else:
            result = e.both(e.both(self.owner, self.place.padding(coord)), self.place.bounds(coord))
        return result if self.mask is None else e.both(result, self.mask[register])

    def reduce(self, register: int, form: str, operand: V, predicate: V | None) -> None:
        """The update without an old value. PTX `red`, ISA 9.7.13.6."""
        base, constant = self._address(register)
        self.ctx.e.ptx(f"red.{self.kind}.{form} {address(0, constant)}, $1;", base, self.bits(operand), when=predicate)

    def run(self, register: int, form: str, operands: list[V], predicate: V | None) -> V:
        """One atomic instruction on bit patterns. Returns the old bits, or zero if the predicate does not hold."""
        base, constant = self._address(register)
        listed = ", ".join(f"${i + 2}" for i in range(len(operands)))
        text = f"atom.{self.kind}.{form} $0, {address(1, constant)}, {listed};"
        first = f"mov.b{self.dtype.bits} $0, 0;" if predicate is not None else ""
        return self.ctx.e.ptx(text, base, *operands, results=[self.word], when=predicate, first=first)[0]

    def bits(self, x: V) -> V:
        """An element's bit pattern."""
        return x.bitcast(self.word)

    def element(self, bits: V) -> V:
        """The element with this bit pattern."""
        return bits.bitcast(llvm_type(self.dtype))

    def _address(self, register: int) -> Address:
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


def _by_exchange(ctx: Context, kind: AtomicKind, dtype: DType) -> bool:
    """Whether the hardware lacks the operation, so that a loop of compare-and-swap does it."""
    if kind is AtomicKind.XCHG:
        return dtype.bits == 16
    if not dtype.is_float:
        return False
    return kind is not AtomicKind.ADD or (dtype == dt.bfloat16 and not ctx.target.supports(Feature.ATOM_BF16))


def lower_atomic(ctx: Context, op: AtomicRmw) -> None:
    site = _AtomicSite(ctx, op)
    dtype = site.dtype
    built = _by_exchange(ctx, op.kind, dtype)
    form = "" if built else _form(op.kind, dtype)
    # `red` has no exchange
    alone = not built and op.result not in ctx.used and op.kind is not AtomicKind.XCHG and op.order in RED_ORDERS
    if alone and _lower_neighbours(site, ctx.regs(op.x)):
        return
    out: Regs = []
    for register, value in enumerate(ctx.regs(op.x)):
        predicate = site.predicate(register)
        if predicate == "false":
            out.append(ctx.e.literal(0, dtype))
        elif alone:
            site.reduce(register, form, value, predicate)
        elif built:
            out.append(site.element(_swap_loop(ctx, site, register, op.kind, value, predicate)))
        else:
            out.append(site.element(site.run(register, form, [site.bits(value)], predicate)))
    if not alone:
        site.finish(out)


def _lower_neighbours(site: _AtomicSite, values: Regs) -> bool:
    """Add to several neighbours at once if the target can.

    Returns whether it did. PTX `red` of vectors, ISA 9.7.13.6.
    """
    ctx, op = site.ctx, site.op
    assert isinstance(op, AtomicRmw)
    width = site.place.width(op.access)
    if width == 1 or not ctx.target.supports(Feature.RED_VECTOR) or (op.view.masked and not op.access.whole):
        return False
    packed = 4 // site.dtype.itemsize
    form = {"float32": "f32", "float16": "noftz.f16x2", "bfloat16": "noftz.bf16x2"}[site.dtype.name]
    vector = f".v{width // packed}" if width > packed else ""
    # the qualifiers stand around the vector's: add{.noftz}.v2.f16x2
    *modifier, kind = form.split(".")
    name = ".".join(["add", *modifier]) + f"{vector}.{kind}"
    for group in site.place.groups(width, op.access.minor):
        predicate = site.predicate(group[0])
        if predicate == "false":
            continue
        words = [pack(ctx, [values[i] for i in group[k : k + packed]], site.dtype, 4) for k in range(0, width, packed)]
        base, constant = site.place.address(site.layout.register_coords[group[0]])
        text = f"red.{site.kind}.{name} {address(0, constant)}, {listed(1, len(words))};"
        ctx.e.ptx(text, base, *words, when=predicate)
    return True


def _swap_loop(ctx: Context, site: _AtomicSite, register: int, kind: AtomicKind, value: V, predicate: V | None) -> V:
    """Compare-and-swap until no other update came between. Returns the old bits."""
    e = ctx.e
    cas, zero = f"cas.b{site.dtype.bits}", e.value(0, site.word)
    start, loop, done, end = e.label(), e.label(), e.label(), e.label()
    before = e.block
    if predicate is None:
        e.jump(start)
    else:
        e.branch(predicate, start, end)
    e.begin(start)
    first = site.run(register, cas, [zero, zero], None)  # an atomic read
    again = Loop(e, [first], loop)
    (seen,) = again.carried
    new = site.bits(_combined(ctx, kind, site.element(seen), value))
    old = site.run(register, cas, [seen, new], None)
    again.brings([old])
    e.branch(old.equal(seen), done, loop)
    e.begin(done)
    e.jump(end)
    e.begin(end)
    return old if predicate is None else e.phi(site.word, [(old, done), (zero, before)])


def _combined(ctx: Context, kind: AtomicKind, a: V, b: V) -> V:
    if kind is AtomicKind.XCHG:
        return b
    t = a.type
    if t in ("half", "bfloat"):
        a, b = a.to("fpext", "float"), b.to("fpext", "float")
    if kind is AtomicKind.ADD:
        made = a + b
    else:
        word = "maxnum" if kind is AtomicKind.MAX else "minnum"
        made = ctx.e.call(a.type, f"llvm.{word}.{suffix(a.type)}", a, b)
    return made.to("fptrunc", t)


def lower_cas(ctx: Context, op: AtomicCas) -> None:
    site = _AtomicSite(ctx, op)
    out: Regs = []
    for register, (compare, value) in enumerate(zip(ctx.regs(op.compare), ctx.regs(op.x), strict=True)):
        predicate = site.predicate(register)
        if predicate == "false":
            out.append(ctx.e.literal(0, site.dtype))
            continue
        operands = [site.bits(compare), site.bits(value)]
        out.append(site.element(site.run(register, f"cas.b{site.dtype.bits}", operands, predicate)))
    site.finish(out)


RULES: Rules = {AtomicRmw: lower_atomic, AtomicCas: lower_cas}
