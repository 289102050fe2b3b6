"""Declarations of PTX: variables, parameters and directives (PTX ISA, sections 5.4 and 11)."""

from __future__ import annotations

from .cursor import Cursor
from .initial_values import initial_value
from .lexer import Token
from .module import OPAQUE_TYPES, REGISTER_TYPES, TYPE_BYTES, Var

# The directives of functions, with the most numbers that each takes; those of entries alone; those whose numbers are positive.
_COUNTS = {
    "maxntid": 3, "reqntid": 3, "minnctapersm": 1, "maxnctapersm": 1, "maxnreg": 1, "reqnctapercluster": 3,
    "maxclusterrank": 1, "explicitcluster": 0, "blocksareclusters": 0, "noreturn": 0, "abi_preserve": 1,
    "abi_preserve_control": 1,
}  # fmt: skip
_OF_FUNCTIONS = {"noreturn", "abi_preserve", "abi_preserve_control"}
_POSITIVE = {"maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg"}
_POINTED = {".global", ".const", ".shared", ".local"}  # what a pointer of an entry may point to
_ATTRIBUTES = {".managed", ".unified"}


def parse_directives(c: Cursor, into: dict[str, tuple[int, ...]], entry: bool = False) -> None:
    """Parse performance-tuning and cluster directives between a function's header and its body (11.4, 11.7)."""
    while c.peek().kind == "word" and c.peek().text.startswith("."):
        if c.peek().text == ".pragma":
            pragma(c)
            continue
        if c.peek().text == ".attribute":
            c.next()
            _attributes(c)
            continue
        token = c.next()
        key = token.text[1:]
        if key not in _COUNTS:
            raise c.error(f"unknown directive '{token.text}'", token)
        if entry is (key in _OF_FUNCTIONS):
            raise c.error(f"{token.text} is of {'functions' if entry else 'entries'}", token)
        numbers: list[int] = []
        if _COUNTS[key]:
            numbers.append(c.number("a number"))
            while len(numbers) < _COUNTS[key] and c.accept(","):
                numbers.append(c.number("a number"))
        if key in _POSITIVE and not all(numbers):
            raise c.error(f"{token.text} needs positive numbers", token)
        into[key] = tuple(numbers)
        if {"maxntid", "reqntid"} <= into.keys():
            raise c.error(".maxntid and .reqntid exclude each other", token)
        if {"maxclusterrank", "reqnctapercluster"} <= into.keys():
            raise c.error(".maxclusterrank and .reqnctapercluster exclude each other", token)


def pragma(c: Cursor) -> None:
    """Parse `.pragma "nounroll", "x";` (11.4.6). What the strings say has no effect on results."""
    c.next()
    while True:
        if c.token.kind != "string":
            raise c.error(f"expected a string, found '{c.text}'")
        c.next()
        if not c.accept(","):
            break
    c.expect(";")


def _attributes(c: Cursor) -> None:
    """Parse what follows the word in `.attribute(.managed, .unified(1, 2))` (5.4.8, 11.3)."""
    c.expect("(")
    while True:
        if c.text not in _ATTRIBUTES:
            raise c.error(f"unknown attribute '{c.text}'")
        if c.next().text == ".unified":
            c.expect("(")
            c.number("a number")
            c.expect(",")
            c.number("a number")
            c.expect(")")
        if not c.accept(","):
            break
    c.expect(")")


def parse_parameters(c: Cursor, unnamed: bool = False, entry: bool = False) -> list[Var]:
    """Parse a list of parameters: `( .param .b32 a, .param .align 8 .b8 b[16], .reg .b32 %r )`.

    `unnamed`: those of a prototype, whose names may be `_`. `entry`: those of an entry, which may have `.ptr`.
    """
    c.expect("(")
    params: list[Var] = []
    while not c.accept(")"):
        if params:
            c.expect(",")
        token = c.token
        space = c.word("a parameter").text
        if space not in (".param", ".reg"):
            raise c.error(f"expected .param, found '{space}'", token)
        params.append(_one_variable(c, space[1:], False, unnamed, entry))
    return params


def parse_variable(c: Cursor, extern: bool) -> list[Var]:
    """Parse a variable declaration up to its semicolon; several names may share one type."""
    space = c.next().text[1:]
    first = _one_variable(c, space, extern)
    found = [first]
    while c.accept(","):
        token = c.name("a name")
        found.append(_finish_variable(c, token, space, first.elem, 1, first.align, extern))
    c.expect(";")
    return found


def alignment(c: Cursor) -> int:
    """Parse `.align 8`."""
    token = c.next()
    align = c.number("an alignment")
    if align < 1 or align & (align - 1):
        raise c.error(f"alignment {align} is not a power of two", token)
    return align


def check_vector(c: Cursor, elem: str, lanes: int, token: Token) -> None:
    """Check a vector type (5.4.2)."""
    if elem == "pred":
        raise c.error("predicates are scalar", token)
    if TYPE_BYTES[elem] * lanes > 16:
        raise c.error(f"a vector has at most 16 bytes, and {lanes} of .{elem} have {TYPE_BYTES[elem] * lanes}", token)


def _one_variable(c: Cursor, space: str, extern: bool, unnamed: bool = False, entry: bool = False) -> Var:
    """Parse `.align 8 .v2 .b32 .ptr x`, in this order."""
    align, elem, size = 0, "", 1
    while c.text.startswith("."):
        token = c.token
        text = token.text
        if text == ".align" and not elem and size == 1:
            align = alignment(c)
            continue
        c.next()
        if text == ".ptr" and elem and entry:
            if c.text in _POINTED:
                c.next()
            if c.text == ".align":
                alignment(c)
        elif text == ".attribute" and space == "global":
            _attributes(c)
        elif text in (".v2", ".v4") and not elem and size == 1:
            size = int(text[2:])
        elif (text[1:] in REGISTER_TYPES or (text[1:] in OPAQUE_TYPES and space == "global")) and not elem:
            elem = text[1:]
            if size > 1:
                check_vector(c, elem, size, token)
        elif text in (".align", ".v2", ".v4") or text[1:] in REGISTER_TYPES:
            raise c.error(f"'{text}' is at the wrong place: .align, a vector and a type come in this order", token)
        elif text[1:] in TYPE_BYTES:
            raise c.error(f"'{text}' is no type of .{space} variables", token)
        else:
            raise c.error(f"unknown type or modifier '{text}'", token)
    if not elem:
        raise c.error(f"expected a type, found '{c.text}'")
    name = c.word("a name") if unnamed and c.text == "_" else c.name("a name")
    if space == "reg" and size > 1:
        raise c.error(f"the vector '{name.text}' as a parameter in registers is not supported", name)
    if space == "param" and (elem == "f16x2" or size > 1):
        raise c.error(f"'{name.text}' is .f16x2 or a vector, which .param does not have", name)
    if elem == "pred" and space != "reg":
        raise c.error(f"the predicate '{name.text}' must be a register", name)
    return _finish_variable(c, name, space, elem, size, align, extern)


def _finish_variable(c: Cursor, name: Token, space: str, elem: str, lanes: int, align: int, extern: bool) -> Var:
    """Parse what follows a variable's name. `lanes`: elements of its vector type."""
    size = TYPE_BYTES[elem] * lanes
    align = align or size
    extents: list[int] = []
    unsized = False
    while c.accept("["):
        if not extents and c.accept("]"):
            unsized = True
            extents.append(0)
            continue
        extents.append(c.number("an extent"))
        c.expect("]")
        if not extents[-1] and not extern:
            raise c.error(f"'{name.text}' has an extent of 0", name)
    for extent in extents:
        size *= extent
    var = Var(name.text, space, size, align, elem, extern=extern, line=name.line, column=name.column)
    if c.accept("="):
        initial_value(c, var, name, extents, lanes)
        if unsized and not var.size:
            raise c.error(f"'{name.text}' has no size: its list is empty", name)
    elif unsized and not extern:
        raise c.error(f"'{name.text}' has no size", name)
    return var
