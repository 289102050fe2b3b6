"""Atomics: one lane performs each element's update, and the lanes that replicate it get its old value."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, layout_of
from kernel_dsl.ops.atomic import AtomicKind, AtomicRmw

from ..context import Context
from ..emit import Regs, literal, llvm_type
from .elementwise import through_smem
from .ref import broadcast_from_first
from .tiled import make_place


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


def lower_atomic(ctx: Context, op: AtomicRmw) -> None:
    type: RefType = op.ref.type
    dtype = type.dtype
    layout = layout_of(op.x)
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, layout, op.offsets)
    mask = ctx.regs(op.mask) if op.mask is not None else None
    shared = type.space is MemorySpace.SMEM
    space = "shared" if shared else "global"
    wide, c = ("i32", "r") if shared else ("i64", "l")
    form, letter, word, t = _form(op.kind, dtype)
    owner = ctx.owner(layout)
    out: Regs = []
    for index, coord in enumerate(layout.register_coords):
        predicate = ctx.e.both(ctx.e.both(owner, place.padding(coord)), place.bounds(coord))
        if mask is not None:
            predicate = ctx.e.both(predicate, mask[index])
        if predicate == "false":
            out.append(literal(0, dtype))
            continue
        base, constant = place.address(coord)
        where = f"[$1+{constant}]" if constant else "[$1]"
        args = [(wide, base), (word, _as_bits(ctx, ctx.regs(op.x)[index], t, word))]
        text = f"atom.{op.order}.{op.scope}.{space}.{form} $0, {where}, $2;"
        if predicate is None:
            (old,) = ctx.e.asm(text, f"={letter},{c},{letter},~{{memory}}", args, [word])
        else:
            text = f"mov.b{dtype.bits} $0, 0; @$3 {text}"
            args.append(("i1", predicate))
            (old,) = ctx.e.asm(text, f"=&{letter},{c},{letter},b,~{{memory}}", args, [word])
        out.append(old if t == word else ctx.e.v(f"bitcast {word} {old} to {t}"))
    ctx.values[op.result] = out
    if op.result not in ctx.used:
        return
    if not layout.rank:
        ctx.values[op.result] = [broadcast_from_first(ctx, out[0], op.result)]
    elif layout.replicated_mask:
        shape: tuple[int, ...] = op.result.type.shape
        ctx.values[op.result] = through_smem(ctx, out, dtype, shape, layout, layout)


RULES = {AtomicRmw: lower_atomic}
