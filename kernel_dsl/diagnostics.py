"""The form of every error a user can cause: a small class with its words as data, and the renderer that shows it.

A class gives `code` (kebab-case, the name of its page), `title`, and where they help `label` (under the caret), `note`
(why) and `help` (what to do); each is a template filled from the keyword arguments at the raise site.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from types import CodeType, NoneType
from typing import Any, ClassVar

from .dataclass import dataclass
from .source import UNKNOWN, Loc, here


class Error(Exception):
    """Base of all errors of this project. Each class also derives from the builtin that NumPy would raise."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "{message}"
    label: ClassVar[str] = ""
    note: ClassVar[str] = ""
    help: ClassVar[str] = ""
    named = False  # whether the message names the function that the user called

    def __init__(
        self, *, loc: Loc | None = None, other: Loc | None = None, other_label: str = "", **fields: Any
    ) -> None:
        self.loc: Loc = here() if loc is None else loc
        self.other = other
        self.other_label = other_label
        # turned into text now: a user's object may fail to print, be large, or change later
        self.fields: dict[str, Any] = {key: _text(value) for key, value in fields.items()}
        super().__init__()

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:  # other programs put it into errors of their own
        return f"{type(self).__name__}({str(self).partition(chr(10))[0]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.loc, self.other, self.other_label, self.fields)


@dataclass(frozen=True)
class CostNote:
    """Work that the author did not write, such as a layout conversion: `str(note)` shows both places."""

    text: str
    loc: Loc
    other: Loc = UNKNOWN
    other_label: str = ""

    def __str__(self) -> str:
        lines = [f"[cost] {self.text}"]
        for loc, label in ((self.loc, ""), (self.other, self.other_label)):
            if loc.line:
                lines += _excerpt(loc, label)
        return "\n".join(lines)


def _rebuild(cls: type[Error], loc: Loc, other: Loc | None, label: str, fields: dict[str, Any]) -> Error:
    return cls(loc=loc, other=other, other_label=label, **fields)


class _Text(str):
    """The text of a field's value; `repr` gives the value's own."""

    quoted: str

    def __repr__(self) -> str:
        return self.quoted


def _text(value: Any) -> Any:
    if type(value) in (str, bool, float, NoneType) or (type(value) is int and value.bit_length() < _LONG):
        return value
    text = _Text(_printed(str, value))
    text.quoted = shown(value)
    return text


_LONG = 512  # characters of a value in a message, and bits of an int


def shown(value: Any) -> str:
    """`repr(value)`, shortened if it is long. Never raises, even if the value's `__repr__` does."""
    return _printed(repr, value)


def of_kind(value: Any) -> str:
    """The name of the type of `value` with its article: "an int", "a list", "None"."""
    name = type(value).__name__
    if value is None:
        return "None"
    start = name.lower()
    vowel = start.startswith(("a", "e", "i", "o", "ndarray", "un")) and not start.startswith(("uni", "one", "eu"))
    return f"{'an' if vowel else 'a'} {name}"


def counted(number: int, word: str) -> str:
    """A number of things: "1 input", "2 inputs"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _printed(how: Callable[[Any], str], value: Any) -> str:
    cls: type[Any] = type(value)  # isinstance could call the value's `__class__` property
    if issubclass(cls, int) and int.bit_length(value) >= _LONG:  # Python refuses to print those of 4300 digits
        return f"an int of {int.bit_length(value)} bits"
    try:
        text = str.__str__(how(value))
    except Exception as error:
        return f"a {cls.__name__} whose {how.__name__}() raises {type(error).__name__}"
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} ... {text[-_LONG // 4 :]}"


def render(error: Error) -> str:
    """The whole message: title, the user's line with a caret, a second place where two disagree, note and help."""

    def fill(template: str) -> str:
        return template.format(**error.fields) if template else ""

    lines = [f"[{error.code}] {fill(error.title)}"]
    if error.loc is not UNKNOWN and error.loc.line:
        lines += _excerpt(error.loc, fill(error.label))
    if error.other is not None and error.other.line:
        lines += _excerpt(error.other, error.other_label.format(**error.fields))
    for word, template in (("note", error.note), ("help", error.help)):
        text = fill(template)
        if text:
            lines.append(f"   = {word}: " + text.replace("\n", "\n     "))
    return "\n".join(lines)


def _excerpt(loc: Loc, label: str) -> list[str]:
    number = str(loc.line)
    pad = " " * len(number)
    lines = [f"{pad}--> {loc.file}:{loc.line}" + (f" in {loc.function}" if loc.function else "")]
    text = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not text:
        return lines
    stripped = text.lstrip()
    indent = len(text) - len(stripped)
    if loc.column >= 0:
        # co_positions counts UTF-8 bytes
        start = len(text.encode()[: loc.column].decode(errors="ignore"))
        stop = len(text.encode()[: loc.end_column].decode(errors="ignore"))
    else:
        start, stop = indent, len(text)
    caret = " " * (start - indent) + "^" * max(stop - start, 1)
    lines += [f"{pad} |", f"{number} | {stripped}", f"{pad} | {caret}" + (f" {label}" if label else "")]
    return lines


def at_user_line(error: Error) -> Error:
    """The error with a traceback that ends at the user's line, without frames of this project after it.

    A frame is made by running `raise` from a code object that carries the user's file, line and function name.
    """
    loc = error.loc
    if loc is UNKNOWN or not loc.line:
        return error.with_traceback(None)
    code: CodeType = compile("\n" * (loc.line - 1) + "raise __error__", loc.file, "exec")
    code = code.replace(co_name=loc.function or "<kernel>", co_qualname=loc.function or "<kernel>")
    try:
        exec(code, {"__error__": error.with_traceback(None)})
    except Error as raised:
        traceback = raised.__traceback__
        error = raised.with_traceback(traceback.tb_next if traceback is not None else None)
    return error
