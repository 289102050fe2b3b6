"""Inline PTX beyond elements: addresses of Refs, and templates on all the registers that a lane holds of a value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from .. import dtypes as dt
from ..compiled import Swizzle
from ..diagnostics import shown
from ..dtypes import DType, as_dtype
from ..errors import BadArgument, BadArgumentType
from ..ir import ArrayType, MemorySpace, Op, Value, array_type, attr, operand, operands
from ..layout import SCALAR, Layout
from ..layouts import resolve_rule
from ..memory import ShapeDtypeStruct
from ..refs import Ref, View
from ..trace import emit, resolve, traced
from ..values import Array
from .broadcast import together
from .cast import as_value
from .sync import WarpgroupBarrier
from .threads import InlinePtx

__all__ = ["inline_ptx"]

_ANY = r"\$\$|\$(\d+)(?:\[(\d+|\*)\])?|\$"


class RefAddress(Op, name="ref_address"):
    """The address of a view's first element: in SMEM 32 bits, in GMEM 64. PTX `add`."""

    any_dim = True
    ref: Value = operand()
    offsets: tuple[Value, ...] = operands()
    view: View = attr()

    def infer(self) -> tuple[Any, ...]:
        wide = self.ref.type.space is MemorySpace.GMEM
        return (ArrayType((), dt.uint64 if wide else dt.uint32, SCALAR),)


class InlineRegisters(InlinePtx, name="inline_registers"):
    """PTX by hand, once, on all registers of the operands: `$1[0]`, `$1[*]`. `shapes`, `layouts`: of the results."""

    shapes: tuple[tuple[int, ...], ...] = attr(())
    layouts: tuple[Layout, ...] = attr(())

    def infer(self) -> tuple[Any, ...]:
        parts = zip(self.shapes, self.dtypes, self.layouts, strict=True)
        return tuple(ArrayType(shape, dtype, layout) for shape, dtype, layout in parts)


def address_of(ref: Ref, op: str) -> Array:
    """The address of a Ref's first element. Raises `BadArgument` for a buffer in tiles or with a swizzle."""
    view, offsets = ref.view(promise=True, own=0)  # no extent has a part in it
    type = ref.type
    if type.tiling or type.swizzle is not Swizzle.NONE:
        hint = "allocate it without transforms, or load from it"
        raise BadArgument(op=op, what=f"{ref!r}, whose elements lie in tiles or swizzled", hint=hint)
    return traced(RefAddress(ref.root, offsets, View((), view.start, view.dynamic)))


def uses_registers(template: str) -> bool:
    """Whether a template names registers of operands."""
    return re.search(r"\$\d+\[(\d+|\*)\]", template) is not None


def words(dtype: DType, registers: int) -> int:
    """The number of PTX registers that hold `registers` elements of a lane."""
    return -(-registers * dtype.itemsize // 4) if dtype.bits < 32 and not dtype.is_bool else registers


def inline_registers(template: str, args: tuple[Any, ...], out_type: Any, pure: bool, layout: Any) -> Any:
    """`inline_ptx` of a template that names registers."""
    op = "inline_ptx"
    xs = [as_value(a, op) for a in args]
    single = out_type is not None and not isinstance(out_type, (tuple, list))
    given = cast("Sequence[Any]", () if out_type is None else ((out_type,) if single else out_type))
    spread = list(cast("Sequence[Any]", layout)) if isinstance(layout, (tuple, list)) else [layout] * len(given)
    if len(spread) != len(given):
        raise BadArgument(
            op=op, what=f"{len(spread)} layouts for {len(given)} results", hint="give one, or one for each"
        )
    first = next((x for x in xs if x.ndim), None)
    results: list[tuple[tuple[int, ...], DType, Layout]] = []
    for wanted, how in zip(given, spread, strict=True):
        struct = wanted if isinstance(wanted, ShapeDtypeStruct) else None
        if struct is None and first is None:
            hint = "give out_type as `kd.ShapeDtypeStruct(shape, dtype)`, with `layout=`"
            raise BadArgument(op=op, what="a result of unknown shape: no operand is an array", hint=hint)
        shape = struct.shape if struct is not None else cast("Array", first).shape
        dtype = struct.dtype if struct is not None else as_dtype(wanted)
        if how is not None:
            own = resolve_rule(how, shape, op)
        elif first is not None and first.shape == shape:
            own = resolve(first.type.layout)
        elif not shape:
            own = SCALAR
        else:
            raise BadArgument(op=op, what=f"a result of shape {shape} without a layout", hint="give its `layout=`")
        results.append((shape, dtype, own))
    for x in xs:
        resolve(x.type.layout)
    _check_template(template, results, xs, op)
    shapes, dtypes, layouts = (tuple(r[i] for r in results) for i in range(3))
    made = emit(
        InlineRegisters(tuple(xs), template, cast("Any", dtypes), bool(pure), cast("Any", shapes), cast("Any", layouts))
    )
    return None if not results else made.results[0] if single else tuple(made.results)


def _check_template(template: str, results: Sequence[Any], xs: Sequence[Array], op: str) -> None:
    counts = [words(dtype, own.registers) for _, dtype, own in results]
    counts += [words(array_type(x).dtype, resolve(x.type.layout).registers) for x in xs]
    for found in re.finditer(_ANY, template):
        number, register = found[1], found[2]
        if found[0] == "$$":
            continue
        if number is None or int(number) >= len(counts):
            what = f"{found[0]!r} in the template, with {len(results)} results and {len(xs)} operands"
            raise BadArgument(op=op, what=what, hint="results are $0 ..., then operands; write `$$` for a dollar")
        if register is None and counts[int(number)] != 1:
            hint = f"it has {counts[int(number)]} registers: write `${number}[0]`, or `${number}[*]` for all"
            raise BadArgument(op=op, what=f"{found[0]!r} beside operands by registers", hint=hint)
        if register not in (None, "*") and int(register) >= counts[int(number)]:
            what = f"{found[0]!r} of {counts[int(number)]} registers"
            raise BadArgument(op=op, what=what, hint="use a smaller number: elements of 8 and 16 bits share registers")
    if any(c in template for c in '"\\') or not template.isascii():
        raise BadArgument(op=op, what="a quote, backslash or non-ASCII character", hint="write plain PTX")
    for x in xs:
        if array_type(x).dtype.is_bool and x.ndim:
            raise BadArgumentType(op=op, what="an array of bool by registers", hint="convert it to uint8 or uint32")


def numbered(template: str, counts: Sequence[int]) -> str:
    """The template with one number for each register: operand i has `counts[i]` registers."""
    starts = [sum(counts[:i]) for i in range(len(counts))]

    def one(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        first = starts[int(found[1])]
        if found[2] == "*":
            return ", ".join(f"${first + i}" for i in range(counts[int(found[1])]))
        return f"${first + int(found[2] or 0)}"

    return re.sub(_ANY, one, template)


_OPERAND = r"\$\$|\$(\d+)|\$"


def inline_ptx(template: str, *args: Any, out_type: Any = None, pure: bool = False, layout: Any = None) -> Any:
    """PTX instructions for every element: `kd.inline_ptx("ex2.approx.f32 $0, $1;", x, out_type=kd.float32)`.

    `$0`, `$1` ... are the results in order of `out_type` (a dtype, several, or None), then the operands, broadcast
    together; `$$` is a dollar. `pure`: the optimiser may move, merge or drop it. Operands and results have 16, 32 or 64
    bits, or are bool (a predicate). kernel-dsl does not check what the text does. A Ref, or a view of one, becomes the
    address of its first element: 32 bits in SMEM, for instructions such as `ld.shared`, and 64 in GMEM. SMEM with
    tiling or swizzle has no such address. The warpgroup's lanes synchronise before and after.

    A template with `$1[0]` or `$1[*]` is run once, not once for every element: `$1[j]` is register number j of those
    that a lane holds of operand 1, in the order of its layout, and `$1[*]` is all of them with commas between. Elements
    of 8 and 16 bits share registers of 32 bits. A result has the shape and the layout of the first array, or the shape
    of a `kd.ShapeDtypeStruct` in `out_type` and the layout of `layout` (one, or one for each result).

    Raises `BadArgument`, `BadArgumentType`.
    """
    op = "inline_ptx"
    refs = any(isinstance(a, Ref) for a in args)
    args = tuple(address_of(a, op) if isinstance(a, Ref) else a for a in args)
    if refs:
        emit(WarpgroupBarrier())
    try:
        if isinstance(template, str) and uses_registers(template):  # pyright: ignore[reportUnnecessaryIsInstance]
            return inline_registers(template, args, out_type, pure, layout)
        if layout is not None:
            raise BadArgument(
                op=op,
                what="a layout for a template without registers",
                hint="`layout=` is for templates with registers, such as `$0[*]`",
            )
        return _inline_elements(template, args, out_type, pure)
    finally:
        if refs:
            emit(WarpgroupBarrier())


def _inline_elements(template: str, args: tuple[Any, ...], out_type: Any, pure: bool) -> Any:
    """A template for every element."""
    op = "inline_ptx"
    single = out_type is not None and not isinstance(out_type, (tuple, list))
    given = cast("Sequence[Any]", () if out_type is None else ((out_type,) if single else out_type))
    outs: tuple[DType, ...] = tuple([as_dtype(d) for d in given])
    xs = together([as_value(a, op) for a in args], op) if args else []
    for d in (*outs, *(x.dtype for x in xs)):
        if d.bits == 8 and not d.is_bool:
            raise BadArgumentType(
                op=op, what=f"an operand of {d}", hint="PTX has no 8-bit registers: convert to 16 bits"
            )
    if not isinstance(template, str) or not template.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"template {shown(template)}", hint="a string of PTX instructions")
    for found in re.finditer(_OPERAND, template):
        if found[0] != "$$" and (found[1] is None or int(found[1]) >= len(outs) + len(xs)):
            what = f"{found[0]!r} in the template, with {len(outs)} results and {len(xs)} operands"
            raise BadArgument(op=op, what=what, hint="results are $0 ..., then operands; write `$$` for a dollar")
    if any(c in template for c in '"\\') or not template.isascii():
        raise BadArgument(op=op, what="a quote, backslash or non-ASCII character", hint="write plain PTX")
    results = emit(InlinePtx(tuple(xs), template, outs, bool(pure))).results
    return None if not outs else results[0] if single else tuple(results)
