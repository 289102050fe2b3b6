"""Declarations of PTX: variables, parameters, initialisers and directives (PTX ISA, sections 5.4 and 11)."""

from __future__ import annotations

import struct

from .lexer import Token
from .module import TYPE_BYTES, PtxError, Var

_COUNTS = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster",
    ".maxclusterrank", ".explicitcluster", ".blocksareclusters", ".noreturn", ".abi_preserve",
    ".abi_preserve_control",
}  # fmt: skip


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


def parse_directives(c: Cursor, into: dict[str, tuple[int, ...]]) -> None:
    """Parse performance-tuning and cluster directives between a function's header and its body."""
    while c.peek().kind == "word" and c.peek().text.startswith("."):
        if c.peek().text == ".pragma":
            c.next()
            while not c.accept(";"):
                if c.peek().kind == "end":
                    raise c.error("expected ';'")
                c.next()
            continue
        if c.peek().text == ".attribute":
            c.next()
            skip_parentheses(c)
            continue
        if c.peek().text not in _COUNTS:
            raise c.error(f"unknown directive '{c.peek().text}'")
        key = c.next().text[1:]
        numbers: list[int] = []
        if c.peek().kind == "int":
            numbers.append(c.integer())
            while c.accept(","):
                numbers.append(c.integer())
        into[key] = tuple(numbers)


def skip_parentheses(c: Cursor) -> None:
    depth = 0
    while True:
        token = c.next()
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return
        if token.kind == "end":
            raise c.error("expected ')'", token)


def parse_parameters(c: Cursor) -> list[Var]:
    """Parse a list of parameters: `( .param .b32 a, .param .align 8 .b8 b[16], .reg .b32 %r )`."""
    c.expect("(")
    params: list[Var] = []
    while not c.accept(")"):
        if params:
            c.expect(",")
        token = c.token
        space = c.word("a parameter").text
        if space not in (".param", ".reg"):
            raise c.error(f"expected .param, found '{space}'", token)
        params.append(_one_variable(c, space[1:], False))
    return params


def parse_variable(c: Cursor, extern: bool) -> list[Var]:
    """Parse a variable declaration up to its semicolon; several names may share one type."""
    space = c.next().text[1:]
    first = _one_variable(c, space, extern)
    found = [first]
    while c.accept(","):
        token = c.word("a variable name")
        size, align = TYPE_BYTES[first.elem], first.align
        found.append(_finish_variable(c, token, space, first.elem, size, align, extern))
    c.expect(";")
    return found


def _one_variable(c: Cursor, space: str, extern: bool) -> Var:
    align, elem, size = 0, "", 0
    while c.text.startswith("."):
        token = c.next()
        text = token.text
        if text == ".align":
            align = c.integer()
            if align < 1 or align & (align - 1):
                raise c.error(f"alignment {align} is not a power of two", token)
        elif text == ".ptr":
            while c.text.startswith("."):
                if c.next().text == ".align":
                    c.integer()
        elif text == ".attribute":
            skip_parentheses(c)
        elif text in (".v2", ".v4"):
            size = int(text[2:])
        elif text[1:] in TYPE_BYTES:
            elem = text[1:]
        else:
            raise c.error(f"unknown type or modifier '{text}'", token)
    if not elem:
        raise c.error(f"expected a type, found '{c.text}'")
    bytes_ = TYPE_BYTES[elem] * (size or 1)
    return _finish_variable(c, c.word("a name"), space, elem, bytes_, align, extern)


def _finish_variable(c: Cursor, name: Token, space: str, elem: str, size: int, align: int, extern: bool) -> Var:
    align = align or size
    unsized = False
    while c.accept("["):
        if c.accept("]"):
            unsized, size = True, 0
        else:
            size *= c.integer()
            c.expect("]")
    var = Var(name.text, space, size, align, elem, extern=extern, line=name.line, column=name.column)
    if c.accept("="):
        data, relocations = _initializer(c, elem)
        if unsized:
            var.size = len(data)
        if len(data) > var.size:
            raise c.error(f"'{name.text}' has more initial values than elements", name)
        var.init, var.relocations = data.ljust(var.size, b"\0"), tuple(relocations)
    elif unsized and not extern:
        raise c.error(f"'{name.text}' has no size", name)
    return var


def _initializer(c: Cursor, elem: str) -> tuple[bytes, list[tuple[int, str, int]]]:
    out = bytearray()
    relocations: list[tuple[int, str, int]] = []

    def value() -> None:
        if c.accept("{"):
            while not c.accept("}"):
                value()
                if not c.accept(","):
                    c.expect("}")
                    return
            return
        token = c.token
        if token.kind == "word" and token.text != "WARP_SZ":
            name = c.next().text
            if name == "generic":
                c.expect("(")
                name = c.next().text
                c.expect(")")
            relocations.append((len(out), name, c.integer() if c.text in "+-" else 0))
            out.extend(bytes(TYPE_BYTES[elem]))
        else:
            out.extend(_literal(c, elem))

    value()
    return bytes(out), relocations


def _literal(c: Cursor, elem: str) -> bytes:
    width = TYPE_BYTES[elem]
    token = c.token
    negative = token.text == "-" and c.tokens[c.at + 1].kind in ("dec", "bits")
    if negative:
        c.next()
        token = c.token
    if token.kind == "bits":
        c.next()
        bits = int(token.text[2:], 16) ^ ((1 << (4 * len(token.text[2:]) - 1)) if negative else 0)
        return bits.to_bytes(width, "little")
    if token.kind == "dec" or elem in ("f32", "f64"):
        text = token.text
        c.next()
        number = -float(text) if negative else float(text)
        return struct.pack("<f" if elem == "f32" else "<d", number)
    return (c.integer() % (1 << (8 * width))).to_bytes(width, "little")
