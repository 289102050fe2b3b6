"""PTX text to tokens (PTX ISA, section 4)."""

from __future__ import annotations

import re
from typing import NamedTuple

from .module import PtxError

# Each match includes the blanks before the token, so a token of generated code is one match.
_TOKEN = re.compile(
    r"""
    [ \t\r\f]*(?:
    (?P<newline>\n)
  | (?P<word>\.[A-Za-z_$%][\w$%]*|[%$_A-Za-z](?:[\w$%.]|::)*)
  | (?P<skip>//[^\n]*|/\*.*?\*/|\#[ ]*\d+[ ]+"[^"\n]*"[^\n]*|\Z)
  | (?P<punct>[{}()\[\],;:|!@+\-<>=*/~&^?])
  | (?P<bits>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F])|0[dD][0-9a-fA-F]{16})
  | (?P<dec>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|0[0-7]*U?|[1-9]\d*U?)
  | (?P<string>"[^"]*")
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_PARTS = re.compile(r"\.[^.]*")


class Token(NamedTuple):
    """A word of PTX. `kind`: bits, dec, int, word, string, punct or end. `line` and `column` count from 1."""

    kind: str
    text: str
    line: int
    column: int


def tokenize(text: str) -> list[Token]:
    """Return all tokens of `text`, with one of kind "end" last.

    Raises PtxError at a character that starts none, and at one that is not ASCII, in comments and strings too.
    """
    if not text.isascii():
        at = next(n for n, c in enumerate(text) if ord(c) > 127)
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise PtxError(f"{text[at]!r} is not ASCII, and PTX is text in ASCII", line, column)
    tokens: list[Token] = []
    append, new, match = tokens.append, tuple.__new__, _TOKEN.match
    line, before, at, end = 1, -1, 0, len(text)  # `before`: the end of the last line
    while at < end:
        m = match(text, at)
        if m is None:
            at += len(text[at:]) - len(text[at:].lstrip(" \t\r\f"))
            raise PtxError(f"unexpected character {text[at]!r}", line, at - before)
        kind, at = m.lastgroup or "", m.end()
        if kind == "newline":
            line += 1
            before = at - 1
            continue
        found = m[kind]
        start = at - len(found)
        if kind == "skip":
            newlines = found.count("\n")
            if newlines:
                line += newlines
                before = text.rfind("\n", start, at)
        elif found[0] == "." and found.count(".") > 1 and kind == "word":
            # Inline assembly may join the words of a declaration: `.reg.b16 x;`.
            for part in _PARTS.finditer(found):
                append(new(Token, (kind, part.group(), line, start + part.start() - before)))
        else:
            append(new(Token, (kind, found, line, start - before)))
    append(new(Token, ("end", "end of file", line, at - before)))
    return tokens
