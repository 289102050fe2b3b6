"""PTX text to tokens (PTX ISA, section 4)."""

from __future__ import annotations

import re
from typing import NamedTuple

from .module import PtxError

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r]+|//[^\n]*|/\*.*?\*/)
  | (?P<newline>\n)
  | (?P<bits>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F])|0[dD][0-9a-fA-F]{16})
  | (?P<dec>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<word>\.[\w$%]+|[%$_A-Za-z](?:[\w$%.]|::)*)
  | (?P<string>"[^"]*")
  | (?P<punct>[{}()\[\],;:|!@+\-<>=*/~&^?])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """`kind`: bits, dec, int, word, string, punct or end. `line` and `column` count from 1."""

    kind: str
    text: str
    line: int
    column: int


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`, with one of kind "end" last. Raises PtxError at a character that starts none."""
    tokens: list[Token] = []
    append = tokens.append
    line, line_start, at, end = 1, 0, 0, len(text)
    match = _TOKEN.match
    while at < end:
        m = match(text, at)
        if m is None:
            raise PtxError(f"unexpected character {text[at]!r}", line, at - line_start + 1)
        kind = m.lastgroup or ""
        after = m.end()
        if kind == "newline":
            line += 1
            line_start = after
        elif kind == "skip":
            newlines = text.count("\n", at, after)
            if newlines:
                line += newlines
                line_start = text.rfind("\n", at, after) + 1
        elif kind == "word" and m.group()[0] == ".":
            # Inline assembly may join what a declaration is made of: `.reg.b16 x;`.
            for part in re.finditer(r"\.[^.]*", m.group()):
                append(Token(kind, part.group(), line, at + part.start() - line_start + 1))
        else:
            append(Token(kind, m.group(), line, at - line_start + 1))
        at = after
    append(Token("end", "end of file", line, at - line_start + 1))
    return tokens
