"""A position in the tokens of a PTX text, and its constant integers (PTX ISA, section 4.5)."""

from __future__ import annotations

import re

from .lexer import Token
from .module import PtxError

_IDENTIFIER = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+")


class Cursor:
    """A position in the token list."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at: int = 0
        self._ended: bool = False  # whether `next` has given the end

    def peek(self) -> Token:
        """Return the next token. This is a call, so that a type checker does not assume that two results are equal."""
        return self.tokens[self.at]

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    @property
    def text(self) -> str:
        return self.tokens[self.at].text

    def next(self) -> Token:
        """Take a token. The end is given once: a loop that skips tokens would go on for ever."""
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        elif self._ended:
            raise self.error("the text ends too early")
        else:
            self._ended = True
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.at].text == text and self.tokens[self.at].kind != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.tokens[self.at]
        if token.text != text:
            raise self.error(f"expected '{text}', found '{token.text}'")
        self.at += 1
        return token

    def word(self, what: str) -> Token:
        token = self.next()
        if token.kind != "word":
            raise PtxError(f"expected {what}, found '{token.text}'", token.line, token.column)
        return token

    def name(self, what: str) -> Token:
        """Take an identifier (4.4)."""
        token = self.word(what)
        if not _IDENTIFIER.fullmatch(token.text):
            raise self.error(f"'{token.text}' is not {what}", token)
        return token

    def error(self, message: str, token: Token | None = None) -> PtxError:
        token = token or self.token
        return PtxError(message, token.line, token.column)

    def integer(self) -> int:
        """Parse a constant integer expression: literals with + - * and unary minus, left to right."""
        value = self._integer_factor()
        while self.text in ("+", "-", "*"):
            sign = self.next().text
            other = self._integer_factor()
            value = value + other if sign == "+" else value - other if sign == "-" else value * other
        return value

    def number(self, what: str) -> int:
        """Parse an integer literal that is no expression."""
        if self.token.kind != "int" and self.text != "WARP_SZ":
            raise self.error(f"expected {what}, found '{self.text}'")
        return self._integer_factor()

    def _integer_factor(self) -> int:
        if self.accept("-"):
            return -self._integer_factor()
        if self.accept("~"):
            return ~self._integer_factor()
        if self.accept("("):
            value = self.integer()
            self.expect(")")
            return value
        token = self.next()
        if token.kind == "word" and token.text == "WARP_SZ":
            return 32
        if token.kind != "int":
            raise self.error(f"expected an integer, found '{token.text}'", token)
        value = parse_int(token.text) if len(token.text) < _DIGITS else 1 << 64
        if value >> 64:
            raise self.error(f"the integer {token.text} does not fit 64 bits", token)
        return value


_DIGITS = 4000  # of a literal; Python reads no longer ones


def parse_int(text: str) -> int:
    """Return the value of a PTX integer literal (decimal, octal, hexadecimal or binary, with or without U)."""
    text = text.rstrip("U")
    if len(text) > 1 and text[0] == "0" and text.isdigit():
        return int(text, 8)
    return int(text, 0)
