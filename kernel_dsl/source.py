"""Where the user's code is: locations taken from Python frames, and nothing else is ever read from a frame."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_ROOT, p) + os.sep for p in ("kernel_dsl", "lowering", "runtime"))
_is_ours: dict[tuple[CodeType, str], bool] = {}  # code objects of two files may compare equal


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
    key = (code, code.co_filename)
    found = _is_ours.get(key)
    if found is None:
        # dataclasses compile their __init__ from a string
        generated = code.co_filename == "<string>" and code.co_name == "__init__"
        found = _is_ours[key] = generated or os.path.abspath(code.co_filename).startswith(_OURS)
    return found


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame that is not ours."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    return frame


_locs: dict[tuple[CodeType, str, int], Loc] = {}


def here() -> Loc:
    """The user's current line."""
    frame = user_frame(2)
    if frame is None:
        return UNKNOWN
    key = (frame.f_code, frame.f_code.co_filename, frame.f_lasti)
    loc = _locs.get(key)
    if loc is None:
        loc = _locs[key] = _locate(frame)
    return loc


def _locate(frame: FrameType) -> Loc:
    code = frame.f_code
    column = end = -1
    for index, position in enumerate(code.co_positions()):
        if index == frame.f_lasti // 2:
            line, end_line, start, stop = position
            if start is not None and stop is not None and line == end_line == frame.f_lineno:
                column, end = start, stop
            break
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
