"""A position in the tokens of a PTX text, and its constant expressions (PTX ISA, sections 4.5 and 4.6)."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from .lexer import Token
from .module import Imm, PtxError

_ALL = (1 << 64) - 1
_TOP = 1 << 63
# Binary operators, and how tightly they bind
_OPERATORS = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_ENDS = {",", ";", "]", "}"}  # what follows an operand
_SHORT = 17  # characters of a number with less than 63 bits
_IDENTIFIER = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+")


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """The value of an expression: 64 bits that are `signed` or not, or a double, or the 32 bits of a `single` (`0f3F800000`).

    A single is no part of an expression: assemblers take its bits for those of a double there.
    """

    value: int
    kind: str = "signed"  # "signed", "unsigned", "double" or "single"

    @property
    def integer(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def number(self) -> float:
        """The value of a double."""
        return struct.unpack("<d", struct.pack("<Q", self.value))[0]


def double(value: float) -> ConstantValue:
    """Return a double as a constant."""
    return ConstantValue(int.from_bytes(struct.pack("<d", value), "little"), "double")


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
        if (plain := self._plain()) is not None:
            return plain
        token = self.token
        found = self._choice()
        if not found.integer:
            raise self.error(f"expected an integer, found '{token.text}'", token)
        return found.value if found.kind == "unsigned" or found.value < _TOP else found.value - (1 << 64)

    def constant(self) -> Imm:
        """Parse a constant expression (4.6). One of floats is of doubles, and a lone `0f3F800000` is a float of 32 bits."""
        if (plain := self._plain()) is not None:
            return Imm(plain)
        found = self._choice()
        if found.integer:
            return Imm(found.value if found.kind == "unsigned" or found.value < _TOP else found.value - (1 << 64))
        return Imm(found.value, "f64" if found.kind == "double" else "f32")

    def _plain(self) -> int | None:
        """Take an integer of less than 63 bits that is no part of an expression, as nearly all are; None for others."""
        token = self.tokens[self.at]
        if token.kind != "int" or len(token.text) > _SHORT or self.tokens[self.at + 1].text not in _ENDS:
            return None
        self.at += 1
        return parse_int(token.text)

    def _choice(self) -> ConstantValue:
        """Parse `a ? b : c`, or an expression without it."""
        token = self.token
        condition = self._operation(0)
        if not self.accept("?"):
            return condition
        then = self._choice()
        self.expect(":")
        other = self._choice()
        if not (condition.integer and then.integer and other.integer):
            raise self.error("a choice between constants is of integers", token)
        return then if condition.value else other

    def _operation(self, least: int) -> ConstantValue:
        """Parse operators that bind at least as tightly as `least`, from the left."""
        left = self._unary()
        while (name := self._operator()) and _OPERATORS[name] >= least:
            token = self.token
            if left.kind == "single" and self.tokens[self.at - 1].kind == "bits":
                break
            self.at += len(name)
            right = self._operation(_OPERATORS[name] + 1)
            if left.integer != right.integer:
                raise self.error(f"'{name}' is of two integers or of two floats", token)
            left = (
                self._computed(name, left, right, token) if left.integer else self._of_floats(name, left, right, token)
            )
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

    def _of_floats(self, name: str, left: ConstantValue, right: ConstantValue, token: Token) -> ConstantValue:
        """Return what an operator makes of floats, which become doubles."""
        if "single" in (left.kind, right.kind):
            raise self.error(
                f"a float such as 0f3F800000 is no part of an expression, '{name}': write it as a double", token
            )
        x, y = left.number, right.number
        compared = {"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y, "==": x == y, "!=": x != y}
        if name in compared:
            return ConstantValue(int(compared[name]))
        if name == "/" and not y:
            raise self.error("a constant is divided by 0", token)
        if name not in ("+", "-", "*", "/"):
            raise self.error(f"'{name}' is of integers", token)
        try:
            return double(x + y if name == "+" else x - y if name == "-" else x * y if name == "*" else x / y)
        except OverflowError:
            return double(math.copysign(math.inf, x) * math.copysign(1, y))

    def _computed(self, name: str, left: ConstantValue, right: ConstantValue, token: Token) -> ConstantValue:
        """Return what an operator makes of 64-bit numbers. One that is unsigned makes both unsigned."""
        is_unsigned = "unsigned" in (left.kind, right.kind)
        kind = "unsigned" if is_unsigned else "signed"
        x, y = (c.value if is_unsigned else _signed(c.value) for c in (left, right))
        if name in ("/", "%") and not y:
            raise self.error("a constant is divided by 0", token)
        match name:
            case "<<" | ">>":
                # as assemblers do
                by, value = right.value & 63, left.value if left.kind == "unsigned" else _signed(left.value)
                return ConstantValue((value << by if name == "<<" else value >> by) & _ALL, left.kind)
            case "&" | "^" | "|":
                a, b = left.value, right.value
                return ConstantValue({"&": a & b, "^": a ^ b, "|": a | b}[name], kind)
            case "&&" | "||":
                both = bool(x) and bool(y)
                return ConstantValue(int(both if name == "&&" else bool(x) or bool(y)))
            case "<" | ">" | "<=" | ">=" | "==" | "!=":
                compared = {"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y, "==": x == y, "!=": x != y}
                return ConstantValue(int(compared[name]))
            case "%":
                return ConstantValue(left.value % right.value, "unsigned")
            case "/":
                return ConstantValue(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) & _ALL, kind)
            case _:
                return ConstantValue((x + y if name == "+" else x - y if name == "-" else x * y) & _ALL, kind)

    def _unary(self) -> ConstantValue:
        token = self.token
        if token.text in ("-", "~", "!", "+"):
            name = self.next().text
            if self.token.kind == "bits" and self.text[1] in "fF":
                raise self.error(f"expected an integer or a double after '{name}', found '{self.text}'")
            found = self._unary()
            value = found.value
            if not found.integer:
                if name in "~!":
                    raise self.error(f"'{name}' is of integers", token)
                if found.kind == "single" and name == "-":
                    raise self.error("a float such as 0f3F800000 has no '-': write it as a double", token)
                return found if name == "+" else double(-found.number)
            results = {
                "-": ConstantValue(-value & _ALL, found.kind),
                "~": ConstantValue(value ^ _ALL, "unsigned"),
                "!": ConstantValue(int(not value)),
            }
            return results.get(name, found)
        if self.accept("("):
            if self.text in (".s64", ".u64"):
                to = self.next().text
                self.expect(")")
                token = self.token
                found = self._unary()
                if not found.integer:
                    raise self.error(f"{to} is of integers", token)
                return ConstantValue(found.value, "unsigned" if to == ".u64" else "signed")
            found = self._choice()
            self.expect(")")
            return found
        if token.kind in ("bits", "dec"):
            return self._float_factor()
        is_unsigned = self.text.endswith("U")
        value = self._integer_factor()
        return ConstantValue(value, "unsigned" if is_unsigned or value >= _TOP else "signed")

    def _float_factor(self) -> ConstantValue:
        token = self.next()
        if token.kind == "bits":
            return ConstantValue(int(token.text[2:], 16), "single" if token.text[1] in "fF" else "double")
        value = float(token.text)
        if math.isinf(value):
            raise self.error(f"the float {token.text} does not fit 64 bits", token)
        return double(value)

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
