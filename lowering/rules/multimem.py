"""Loads and stores of multicast addresses (PTX ISA, `multimem.ld_reduce`, `multimem.st`)."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument
from kernel_dsl.ir import Op, RefType, layout_of
from kernel_dsl.ops.multimem import HALVES, MultimemLoadReduce, MultimemStore
from kernel_dsl.refs import Access

from ..context import Context, Rules
from ..value import V
from ..writer import address
from .access import AccessPlace, listed, split_access, unpack, words_of
from .tiled import make_place


def _width(place: AccessPlace, access: Access, item: int, floats: bool) -> int:
    """Elements that one access moves: PTX has vectors of floats of 32 bits and less."""
    whole = not place.view.masked or access.whole
    width = place.width(access) if whole else 1
    return width if floats or item == 2 else 1


def _predicate(ctx: Context, place: AccessPlace, coord: tuple[int, ...], first: V | None) -> V | None:
    predicate = ctx.e.both(first, place.padding(coord))
    return ctx.e.both(predicate, place.bounds(coord)) if place.view.masked else predicate


def _in_pairs(op: Op, type: RefType, width: int) -> None:
    if type.dtype in HALVES and width < 2:
        what = f"a layout that gives lanes single elements of {type.dtype}, which are taken two by two"
        hint = "load and store whole rows with an even number of elements"
        raise BadArgument(loc=op.loc, op=op.op_name, what=what, hint=hint)


def lower_load_reduce(ctx: Context, op: MultimemLoadReduce) -> None:
    type: RefType = op.ref.type
    dtype, layout = type.dtype, layout_of(op.result)
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, layout, op.offsets)
    width = _width(place, op.access, dtype.itemsize, dtype.is_float and dtype.itemsize == 4)
    _in_pairs(op, type, width)
    part, parts = split_access(dtype.itemsize, width)
    word = "i64" if part == 8 else "i32"
    kind = {"float16": "f16x2", "bfloat16": "bf16x2"}.get(dtype.name) or _kind(dtype, op.kind)
    wide = ".acc::f32" if dtype in HALVES and op.kind == "add" else ""
    vector = f".v{parts}" if parts > 1 else ""
    name = f"multimem.ld_reduce.weak.global.{op.kind}{wide}{vector}.{kind}"
    loaded: dict[int, V] = {}
    for group in place.groups(width, op.access.minor):
        coord = layout.register_coords[group[0]]
        predicate = _predicate(ctx, place, coord, None)
        if predicate == "false":
            loaded |= {i: ctx.e.literal(0, dtype) for i in group}
            continue
        base, constant = place.address(coord)
        zeros = " ".join(f"mov.b{part * 8} ${i}, 0;" for i in range(parts)) if predicate is not None else ""
        text = f"{name} {listed(0, parts)}, {address(parts, constant)};"
        words = ctx.e.ptx(text, base, results=[word] * parts, when=predicate, first=zeros)
        per = max(part // dtype.itemsize, 1)
        names = [n for w in words for n in unpack(ctx, w, dtype, per, part)]
        loaded |= dict(zip(group, names, strict=True))
    ctx.values[op.result] = [loaded[i] for i in range(layout.registers)]


def _kind(dtype: DType, kind: str) -> str:
    if dtype.is_float:
        return f"f{dtype.bits}"
    if kind in ("and", "or", "xor"):
        return f"b{dtype.bits}"
    return f"{'s' if dtype.is_signed else 'u'}{dtype.bits}"


def lower_store(ctx: Context, op: MultimemStore) -> None:
    type: RefType = op.ref.type
    layout, names = layout_of(op.x), ctx.regs(op.x)
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, layout, op.offsets)
    width = _width(place, op.access, type.dtype.itemsize, type.dtype.itemsize == 4)
    _in_pairs(op, type, width)
    owner = ctx.owner(layout)
    for group in place.groups(width, op.access.minor):
        coord = layout.register_coords[group[0]]
        predicate = _predicate(ctx, place, coord, owner)
        if predicate == "false":
            continue
        words, suffix = words_of(ctx, [names[i] for i in group], type.dtype)
        base, constant = place.address(coord)
        how = f".v{len(words)}.f32" if len(words) > 1 else f".{suffix}"
        text = f"multimem.st.weak.global{how} {address(0, constant)}, {listed(1, len(words))};"
        ctx.e.ptx(text, base, *words, when=predicate)


RULES: Rules = {MultimemLoadReduce: lower_load_reduce, MultimemStore: lower_store}
