"""Where the user's code is: locations taken from Python frames, and nothing else is ever read from a frame."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_ROOT, p) + os.sep for p in ("kernel_dsl", "lowering", "runtime"))
_ours: dict[str, bool] = {}  # by file. Code objects are no keys: one is hashed by all of its instructions


@dataclass(frozen=True, slots=True)
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


def is_ours(code: CodeType) -> bool:
    """Whether a code object belongs to this project, so that it is never shown as the user's."""
    file = code.co_filename
    found = _ours.get(file)
    if found is None:
        found = _ours[file] = os.path.abspath(file).startswith(_OURS)
    # dataclasses compile their __init__ from a string
    return found or (file == "<string>" and code.co_name == "__init__")


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    ours = _ours.get
    while frame is not None and (ours(frame.f_code.co_filename) or is_ours(frame.f_code)):
        frame = frame.f_back
    return frame


# By a code object's id, which is its own for as long as it is kept here: its positions, which can only be walked from
# the first on, and the places that were asked for, by instruction.
_seen: dict[int, tuple[CodeType, list[Any], dict[int, Loc]]] = {}


def here() -> Loc:
    """The user's current line."""
    frame = user_frame(2)
    if frame is None:
        return UNKNOWN
    code = frame.f_code
    seen = _seen.get(id(code))
    if seen is None:
        seen = _seen[id(code)] = (code, list(code.co_positions()), {})
    loc = seen[2].get(frame.f_lasti)
    if loc is None:
        loc = seen[2][frame.f_lasti] = _locate(frame, seen[1])
    return loc


def _locate(frame: FrameType, positions: list[Any]) -> Loc:
    code = frame.f_code
    column = end = -1
    index = frame.f_lasti // 2
    if 0 <= index < len(positions):
        line, end_line, start, stop = positions[index]
        if start is not None and stop is not None and line == end_line == frame.f_lineno:
            column, end = start, stop
    return Loc(code.co_filename, frame.f_lineno, column, end, code.co_name)


def of_function(function: object) -> Loc:
    """Where a function is defined."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return UNKNOWN
    return Loc(code.co_filename, _line_of_def(code), function=code.co_name)


def _line_of_def(code: CodeType) -> int:
    """The line of the `def`: a decorated function's first line is its first decorator's."""
    first = code.co_firstlineno
    for line in range(first, first + 60):
        text = linecache.getline(code.co_filename, line).lstrip()
        if text.startswith(("def ", "async def ")):
            return line
        if not text:
            break
    return first
