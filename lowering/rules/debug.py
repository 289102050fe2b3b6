"""Printing and checks from inside a kernel (CUDA C++ Programming Guide, 'Formatted output' and 'Assertion')."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.debug import DebugCheck, DebugPrint, ProfileMark

from ..context import Context, Rules
from ..value import Regs, V
from .access import inside


def _text(ctx: Context, text: str) -> V:
    """The generic address of a constant string."""
    name = ctx.text(text.encode() + b"\0")
    return ctx.e.pre(f"addrspacecast ptr addrspace(1) {name} to ptr", "ptr")


def _form(dtype: DType) -> str:
    if dtype.is_float:
        return "%g"
    return ("%lld" if dtype.is_signed else "%llu") if dtype.bits == 64 else "%d"


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def lower_debug_print(ctx: Context, op: DebugPrint) -> None:
    first = ctx.first_lane()
    if len(op.args) == 1 and op.args[0].type.shape:
        _print_elements(ctx, op)
        return
    text = _escape(op.pieces[0])
    for value, piece in zip(op.args, op.pieces[1:], strict=False):
        text += _form(value.type.dtype) + _escape(piece)
    _print(ctx, text + "\n", [ctx.scalar(value) for value in op.args], first)


def _print_elements(ctx: Context, op: DebugPrint) -> None:
    """Print a line for each element: its index, then the format."""
    (value,) = op.args
    layout = layout_of(value)
    shape: tuple[int, ...] = value.type.shape
    dtype: DType = value.type.dtype
    index = "[" + ", ".join("%d" for _ in shape) + "]: "
    text = index + _escape(op.pieces[0]) + _form(dtype) + _escape(op.pieces[1]) + "\n"
    owner = ctx.owner(layout)
    for name, coord in zip(ctx.regs(value), layout.register_coords, strict=True):
        predicate = owner
        arguments: Regs = []
        for dim, size in enumerate(shape):
            predicate = ctx.e.both(predicate, inside(ctx, layout, dim, size, coord[dim]))
            arguments.append(ctx.lane_coord(layout, dim).plus(coord[dim]))
        if predicate != "false":
            _print(ctx, text, [*arguments, name], predicate)


def _print(ctx: Context, text: str, arguments: Regs, predicate: V | None) -> None:
    e = ctx.e
    yes, end = e.label(), e.label()
    if predicate is None:
        e.jump(yes)
    else:
        e.branch(predicate, yes, end)
    e.begin(yes)
    types = "{" + ", ".join(a.type for a in arguments) + "}"
    ctx.declarations.add("declare i32 @vprintf(ptr, ptr)")
    buffer = e.value("null", "ptr")
    if arguments:
        buffer = e.pre(f"alloca {types}, align 8 ; {len(e.prelude)}", "ptr")
        for i, value in enumerate(arguments):
            e.store(value, e.v(f"getelementptr inbounds {types}, ptr {buffer}, i32 0, i32 {i}", "ptr"))
    e.call("i32", "vprintf", _text(ctx, text), buffer)
    e.jump(end)
    e.begin(end)


def lower_debug_check(ctx: Context, op: DebugCheck) -> None:
    e = ctx.e
    fail, end = e.label(), e.label()
    e.branch(ctx.scalar(op.condition), end, fail)
    e.begin(fail)
    ctx.declarations.add("declare void @__assertfail(ptr, ptr, i32, ptr, i64)")
    message, file, function = (_text(ctx, t) for t in (op.message, op.file, ctx.ir.name))
    e.do(f"call void @__assertfail(ptr {message}, ptr {file}, i32 {op.line}, ptr {function}, i64 1)")
    e.jump(end)
    e.begin(end)


_MARK = (
    "{{ .reg .b32 n, m; .reg .b64 t, a; mov.u64 t, %globaltimer; mov.b32 n, 0; @$2 ld.global.b32 n, [$0]; "
    "rem.u32 m, n, {space}; mad.wide.u32 a, m, 16, $0; @$2 st.global.v2.b64 [a+16], {{t, $1}}; "
    "add.u32 n, n, 1; @$2 st.global.b32 [$0], n; }}"
)


def lower_profile_mark(ctx: Context, op: ProfileMark) -> None:
    """The time is read first, so that the cost of the mark counts to the code after a begin, and not before an end."""
    e = ctx.e
    block = ctx.special("ctaid.z").once
    for axis in "yx":
        block = ((block * ctx.special(f"nctaid.{axis}")).once + ctx.special(f"ctaid.{axis}")).once
    ring = ((block * (4 * ctx.ir.threads)).once + (ctx.thread().once >> 5)).once.zext("i64").once * (16 + 16 * op.space)
    word = e.i64(op.code)
    above = ctx.special("smid") if op.where else None if op.index is None else ctx.scalar(op.index)
    if above is not None:
        word = (above.zext("i64") << 32) | op.code
    e.ptx(_MARK.format(space=op.space), ctx.scalar(op.rings) + ring, word, ctx.first_lane())


RULES: Rules = {DebugPrint: lower_debug_print, DebugCheck: lower_debug_check, ProfileMark: lower_profile_mark}
