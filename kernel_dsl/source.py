"""Locations of the user's code, from Python frames. Nothing else is read from a frame."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from .dataclass import dataclass
from .rooms import folders

_OURS = tuple(folder + os.sep for folder in folders())
# Code that calls this project with the user's arguments: the standard library, NumPy, JAX and PyTorch.
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_STANDARD + folder for folder in ("site-packages", "dist-packages"))
_FRAMEWORKS = tuple(
    os.sep + os.path.join(a, b) + os.sep for a in ("site-packages", "dist-packages") for b in ("jax", "torch")
)
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
# Keyed by id, because hashing a code object hashes all of its constants. The code is kept, so that its id stays its
# own.
_seen: dict[int, tuple[bool, CodeType]] = {}
_MAX_SEEN = 4096


@dataclass(frozen=True)
class Loc:
    """A place in a Python file; columns are 0-based offsets in characters, -1 where unknown."""

    file: str
    line: int
    column: int = -1
    end_column: int = -1
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


UNKNOWN = Loc("<unknown>", 0)
_locs: dict[tuple[int, int], tuple[Loc, CodeType]] = {}  # by code object and instruction


_Position = tuple[int | None, int | None, int | None, int | None]
_tables: dict[int, tuple[list[_Position], CodeType]] = {}  # by code object: the position of each instruction


def is_ours(code: CodeType | None) -> bool:
    """Whether a code object is never shown as the user's: it is this project's, Python's, NumPy's, JAX's or PyTorch's."""
    if code is None:
        return False
    found = _seen.get(id(code))
    if found is None:
        # dataclasses compile their __init__ from a string
        generated = code.co_filename == "<string>" and code.co_name == "__init__"
        ours = generated or _is_our_file(code.co_filename)
        if len(_seen) >= _MAX_SEEN:  # a program makes code by exec, again and again
            _seen.clear()
            _locs.clear()
            _tables.clear()
        found = _seen[id(code)] = ours, code
    return found[0]


@functools.lru_cache(256)
def _is_our_file(name: str) -> bool:
    for folder in _FRAMEWORKS:  # no generator: a first launch asks for ten files
        if folder in name:
            return True
    standard = name.startswith(_STANDARD) and not name.startswith(_INSTALLED)
    return standard or name.startswith((_NUMPY, "<frozen ")) or is_of_project(name)


def is_of_project(name: str) -> bool:
    """Whether a file is one of this project's."""
    return (name.startswith(_OURS) and ".." not in name) or os.path.abspath(name).startswith(_OURS)


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside this project."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    seen = _seen
    while frame is not None:  # runs for every op of a trace, through some 20 frames in a library kernel
        found = seen.get(id(frame.f_code))
        if not (is_ours(frame.f_code) if found is None else found[0]):
            return frame
        frame = frame.f_back
    return None


def here() -> Loc:
    """The user's current line."""
    frame = user_frame(2)
    if frame is None:
        return UNKNOWN
    key = id(frame.f_code), frame.f_lasti
    found = _locs.get(key)
    if found is None or found[1] is not frame.f_code:
        found = _locs[key] = _locate(frame), frame.f_code
    return found[0]


def _locate(frame: FrameType) -> Loc:
    code = frame.f_code
    table = _tables.get(id(code))
    if table is None or table[1] is not code:
        table = _tables[id(code)] = list(code.co_positions()), code
    column = end = -1
    line, end_line, start, stop = table[0][frame.f_lasti // 2]
    if start is not None and stop is not None and line == end_line == frame.f_lineno:
        column, end = start, stop
    return Loc(code.co_filename, frame.f_lineno, column, end, code.co_name)


def misfit(function: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    """The reason why a function can't be called so. Empty if it can, and for builtins without a signature."""
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def runs_later(function: Callable[..., Any]) -> bool:
    """Whether it is a generator or an async function, whose call runs nothing."""
    code = getattr(getattr(function, "func", function), "__code__", None)  # `func`: of functools.partial
    # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
    return isinstance(code, CodeType) and bool(code.co_flags & 0x2A0)


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters in order; none for one without a signature."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []


def argument_names(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    """What arguments by position are called: those of `*refs` are refs[0], refs[1] and so on.

    There are fewer than `count` names if the function takes fewer arguments, or has no signature.
    """
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in named][:count]
    rest = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
    return names + [f"{name}[{i}]" for name in rest for i in range(count - len(names))]


def of_function(function: object) -> Loc:
    """The place where a function is defined."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return UNKNOWN
    return Loc(code.co_filename, _line_of_def(code), function=code.co_name)


def _line_of_def(code: CodeType) -> int:
    """The line of the `def`: a decorated function's first line is its first decorator's. A lambda has its own."""
    first = code.co_firstlineno
    if is_ours(code) or code.co_name == "<lambda>":  # ours is never shown, and reading it takes half a millisecond
        return first
    for line in range(first, first + 60):
        text = linecache.getline(code.co_filename, line).lstrip()
        if text.startswith(("def ", "async def ")):
            return line
        if not text:
            break
    return first
