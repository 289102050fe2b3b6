"""Initial values of variables (PTX ISA, section 5.4.4)."""

from __future__ import annotations

from math import prod

from .cursor import Cursor
from .lexer import Token
from .literals import literal_bits
from .module import TYPE_BYTES, Function, PtxError, Var

_FLOATS = ("f32", "f64")
_NONE = ("f16", "f16x2", "pred")  # types without initial values
_ADDRESSES = ("u64", "u32")


def initial_value(c: Cursor, var: Var, name: Token, extents: list[int], lanes: int) -> None:
    """Parse what follows the `=` of a variable: its bytes, and the addresses among them.

    `extents`: of its array, where a first one of 0 is that of the value. `lanes`: of its vector type.
    """
    if var.space not in ("global", "const") or var.extern or var.elem in _NONE:
        what = "an external variable" if var.extern else f"a .{var.space} variable of .{var.elem}"
        raise c.error(f"'{name.text}' has an initial value, which {what} does not take", name)
    shape = (*extents, *((lanes,) if lanes > 1 else ()))
    values = _Values(c, var, name, lanes)
    values.read(shape, 0)
    size = len(values.out)
    if extents and not extents[0]:
        var.size = size
    var.init, var.relocations = bytes(values.out), tuple(values.found)
    if values.masked:
        raise c.error(f"'{name.text}' has a mask of an address that is not one of eight, from 0xFF on", name)


class _Values:
    """Reads the value of one variable."""

    def __init__(self, c: Cursor, var: Var, name: Token, lanes: int) -> None:
        self.c = c
        self.var = var
        self.name = name
        self.lanes = lanes
        self.width: int = TYPE_BYTES[var.elem]
        self.out = bytearray()
        self.found: list[tuple[int, str, int]] = []
        self.masked: list[str] = []  # the symbol of each byte of an address so far

    def read(self, shape: tuple[int, ...], depth: int) -> None:
        """Read the value of an array of this shape, filled up with zeros, or of one element."""
        c = self.c
        if not shape:
            if c.text == "{":
                raise c.error(f"'{self.name.text}' has a list as the value of an element")
            self._element()
            return
        start, count = len(self.out), 0
        c.expect("{")
        while c.text != "}" or count:
            if count == shape[0] and (count or depth):
                raise c.error(f"'{self.name.text}' has more initial values than elements", self.name)
            self.read(shape[1:], depth + 1)
            count += 1
            if not c.accept(","):
                break
        c.expect("}")
        if len(shape) == 1 and self.lanes > 1 and count != self.lanes:
            raise c.error(f"'{self.name.text}' has {count} values for a vector of {self.lanes}", self.name)
        if shape[0]:
            self.out.extend(bytes(start + prod(shape) * self.width - len(self.out)))

    def _element(self) -> None:
        c = self.c
        token = c.token
        if token.kind == "word" and token.text != "WARP_SZ":
            if self.var.elem not in _ADDRESSES or self.width < 8:
                raise c.error(f"the address of '{token.text}' does not fit .{self.var.elem}: it wants .u64")
            symbol = self._symbol()
            self.found.append((len(self.out), symbol, c.integer() if c.accept("+") else 0))
            self.out.extend(bytes(8))
        elif token.kind == "int" and c.tokens[c.at + 1].text == "(":
            self._mask(token)
        else:
            self.out.extend(self._literal(token))

    def _symbol(self) -> str:
        c = self.c
        name = c.next().text
        if name == "generic":
            c.expect("(")
            name = c.name("a name").text
            c.expect(")")
        return name

    def _mask(self, token: Token) -> None:
        """Read `0xFF00(symbol)`: one byte of an address. Compilers write all eight, one after the other."""
        c = self.c
        if self.var.elem != "u8" or c.number("a mask") != 0xFF << (8 * len(self.masked)):
            raise c.error("expected the masks 0xFF, 0xFF00 and so on of an address, in .u8", token)
        c.expect("(")
        self.masked.append(self._symbol())
        c.expect(")")
        self.out.append(0)
        if self.masked[-1] != self.masked[0]:
            raise c.error(f"expected a mask of '{self.masked[0]}'", token)
        if len(self.masked) == 8:
            self.found.append((len(self.out) - 8, self.masked[0], 0))
            self.masked.clear()

    def _literal(self, token: Token) -> bytes:
        """Return the bytes of a number. An assembler converts doubles to 4 bytes, and keeps the bits of other literals."""
        c, elem, width = self.c, self.var.elem, self.width
        found = c.constant()
        if found.kind == "int":
            if elem in _FLOATS:
                raise c.error(f"expected a float for .{elem}, found '{token.text}'", token)
            return (found.value % (1 << (8 * width))).to_bytes(width, "little")
        if elem[0] in "us":
            raise c.error(f"the float {token.text} is no value of .{elem}", token)
        return literal_bits(found, 8 * width, width == 4).to_bytes(width, "little")


def check_addresses(var: Var, variables: dict[str, Var], functions: dict[str, Function]) -> None:
    """Check that the addresses in a variable's value are those of functions and variables before it, in memory of the GPU."""
    for _, name, _ in var.relocations:
        target = variables.get(name)
        if name not in functions and (target is None or target.space not in ("global", "const")):
            what = "not declared before it" if target is None else "neither in .global nor in .const"
            raise PtxError(f"'{var.name}' refers to '{name}', which is {what}", var.line, var.column)
