"""Tools for debugging: printing, checks, layouts and names for regions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from .. import dtypes as dt
from ..diagnostics import shown
from ..errors import BadArgument, BadArgumentType
from ..ir import Effect, Op, Value, attr, operand, operands
from ..layout import Layout
from ..layouts import name_of
from ..refs import Ref
from ..source import here
from ..storage import transforms_of
from ..trace import current, emit, profiler, resolve
from ..values import Array
from .cast import as_value, astype
from .control import as_predicate

__all__ = ["debug_check", "debug_print", "named_scope", "print_layout"]


class DebugPrint(Op, name="debug_print", effect=Effect.SYNC):
    """Print from the kernel, once for a warpgroup, or once for each element. PTX calls `vprintf`."""

    args: tuple[Value, ...] = operands()
    pieces: tuple[str, ...] = attr()


class DebugCheck(Op, name="debug_check", effect=Effect.SYNC):
    """Stop the kernel with a message if the condition fails. PTX calls `__assertfail`."""

    condition: Value = operand()
    message: str = attr()
    file: str = attr()
    line: int = attr()


class ProfileMark(Op, name="profile_mark", effect=Effect.SYNC):
    """Note the time in a warp's ring of GMEM, by one lane.

    PTX `st.global`, of `%globaltimer` and a word. `rings`: the address of the first ring. A ring has a head of 16
    bytes, whose first 4 count the events so far, and `space` events of 16 bytes: the time and the word. The word is
    `code` with, in its upper half, `index` or (with `where`) the multiprocessor's number.
    """

    rings: Value = operand()
    index: Value | None = operand()
    code: int = attr()
    space: int = attr()
    where: bool = attr(False)


def debug_print(fmt: str, *args: Any) -> None:
    """Print `fmt` with `{}` for each argument: rank-0 values, or one array, which prints a line an element with its index.

    Output of different warpgroups comes in no order. Raises `BadArgument` if braces and arguments don't match.
    """
    pieces = [text for text, *_ in _parsed(fmt)]
    fields = sum(1 for _, field, _, _ in _parsed(fmt) if field is not None)
    if fields != len(args):
        raise BadArgument(op="debug_print", what=f"{fields} braces for {len(args)} arguments", hint="one `{}` each")
    if fields == len(pieces):
        pieces.append("")
    values = [_printable(as_value(a, "debug_print")) for a in args]
    if any(v.ndim for v in values) and len(values) != 1:
        hint = "print rank-0 values together, and each array on its own"
        raise BadArgument(op="debug_print", what="an array beside other arguments", hint=hint)
    emit(DebugPrint(tuple(values), tuple(pieces)))


def _parsed(fmt: str) -> list[tuple[str, str | None, str | None, str | None]]:
    import string  # not needed to import the package

    try:
        return list(string.Formatter().parse(fmt))
    except ValueError as error:
        raise BadArgument(
            op="debug_print", what=f"the format {shown(fmt)}: {error}", hint="write `{}`, `{{` for a brace"
        ) from None


def _printable(value: Array) -> Array:
    """The types that vprintf takes: int32, int64 and float64."""
    if value.dtype.is_float:
        return astype(value, dt.float64)
    if value.dtype.bits == 64:
        return value
    return astype(value, dt.int64 if value.dtype == dt.uint32 else dt.int32)


def debug_check(condition: Any, message: str = "debug_check failed") -> None:
    """Stop the kernel with `message` and the user's line if the rank-0 condition is false.

    Raises `PredicateNotScalar`, `BadArgumentType` while tracing.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op="debug_check", what="the message is no string", hint="pass text")
    op = DebugCheck(as_predicate(condition, "debug_check"), message, "", 0)
    emit(op)
    op.file, op.line = op.loc.file, op.loc.line


def print_layout(fmt: str, x: Any) -> None:
    """Print, while tracing, `fmt` with the layout of a value in place of `{}`: its name, if any, and its factors.

    A Ref has its dtype, shape and transforms there. Raises `BadArgument` for another format.
    """
    current()
    if isinstance(x, Ref):
        text = ", ".join([repr(x), *map(repr, transforms_of(x.type))])
    else:
        value = as_value(x, "print_layout")
        layout: Layout = resolve(value.type.layout)
        text = f"{name_of(layout, value.shape)} {layout}".lstrip()
    try:
        print(fmt.format(text))
    except (ValueError, LookupError, AttributeError) as error:
        what, hint = f"fmt={shown(fmt)}: {error}", "write `{}` where the layout goes, `{{` for a brace"
        raise BadArgument(op="print_layout", what=what, hint=hint) from None


@contextmanager
def named_scope(name: str) -> Generator[None]:
    """Give the lines inside a name: `kernel.profile` says when each warpgroup began and ended them.

    The code of any other call does not change. Raises `BadArgumentType` for a name that is no string.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op="named_scope", what=f"{name!r} is no string", hint="pass a name")
    marks = profiler()
    if marks is None:
        yield
        return
    label = marks.begin("scope", name, here())
    yield
    marks.end(label)
