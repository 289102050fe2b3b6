"""A position in the tokens of a PTX text, and its constant integers (PTX ISA, section 4.5)."""

from __future__ import annotations

import re

from .lexer import Token
from .module import PtxError

Constant = tuple[int, bool]  # a number of 64 bits, and whether it is unsigned
_ALL = (1 << 64) - 1
_TOP = 1 << 63
# Binary operators, and how tightly they bind
_OPERATORS = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
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
        """Parse a constant expression of integers (4.6), between -2^63 and 2^64 - 1."""
        value, unsigned = self._choice()
        return value if unsigned or value < _TOP else value - (1 << 64)

    def _choice(self) -> Constant:
        """Parse `a ? b : c`, or an expression without it."""
        condition = self._operation(0)
        if not self.accept("?"):
            return condition
        then = self._choice()
        self.expect(":")
        other = self._choice()
        return then if condition[0] else other

    def _operation(self, least: int) -> Constant:
        """Parse operators that bind at least as tightly as `least`, from the left."""
        left = self._unary()
        while (name := self._operator()) and _OPERATORS[name] >= least:
            token = self.token
            self.at += len(name)
            left = self._computed(name, left, self._operation(_OPERATORS[name] + 1), token)
        return left

    def _operator(self) -> str:
        """Return the operator that comes next, or ''. One of two characters is two tokens."""
        token = self.token
        if token.kind == "end":
            return ""
        following = self.tokens[self.at + 1]
        adjacent = (token.line, token.column + 1) == (following.line, following.column)
        if adjacent and token.text + following.text in _OPERATORS:
            return token.text + following.text
        return token.text if token.text in _OPERATORS and token.kind != "string" else ""

    def _computed(self, name: str, left: Constant, right: Constant, token: Token) -> Constant:
        """Return what an operator makes of 64-bit numbers. One that is unsigned makes both unsigned."""
        unsigned = left[1] or right[1]
        x, y = (v if unsigned else _signed(v) for v in (left[0], right[0]))
        if name in ("/", "%") and not y:
            raise self.error("a constant is divided by 0", token)
        match name:
            case "<<" | ">>":
                by, value = right[0] & 63, left[0] if left[1] else _signed(left[0])  # as assemblers do
                return (value << by if name == "<<" else value >> by) & _ALL, left[1]
            case "&" | "^" | "|":
                return {"&": left[0] & right[0], "^": left[0] ^ right[0], "|": left[0] | right[0]}[name], unsigned
            case "&&" | "||":
                both = bool(x) and bool(y)
                return int(both if name == "&&" else bool(x) or bool(y)), False
            case "<" | ">" | "<=" | ">=" | "==" | "!=":
                compared = {"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y, "==": x == y, "!=": x != y}
                return int(compared[name]), False
            case "%":
                return left[0] % right[0], True
            case "/":
                return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) & _ALL, unsigned
            case _:
                return (x + y if name == "+" else x - y if name == "-" else x * y) & _ALL, unsigned

    def _unary(self) -> Constant:
        if self.text in ("-", "~", "!", "+"):
            name = self.next().text
            value, unsigned = self._unary()
            results = {"-": (-value & _ALL, unsigned), "~": (value ^ _ALL, True), "!": (int(not value), False)}
            return results.get(name, (value, unsigned))
        if self.accept("("):
            if self.text in (".s64", ".u64"):
                to = self.next().text
                self.expect(")")
                return self._unary()[0], to == ".u64"
            value = self._choice()
            self.expect(")")
            return value
        unsigned = self.text.endswith("U")
        value = self._integer_factor()
        return value, unsigned or value >= _TOP

    def number(self, what: str) -> int:
        """Parse an integer literal that is no expression."""
        if self.token.kind != "int" and self.text != "WARP_SZ":
            raise self.error(f"expected {what}, found '{self.text}'")
        return self._integer_factor()

    def _integer_factor(self) -> int:
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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= _TOP else value


def parse_int(text: str) -> int:
    """Return the value of a PTX integer literal (decimal, octal, hexadecimal or binary, with or without U)."""
    text = text.rstrip("U")
    if len(text) > 1 and text[0] == "0" and text.isdigit():
        return int(text, 8)
    return int(text, 0)
