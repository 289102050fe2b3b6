"""Declarations of PTX: variables, parameters and directives (PTX ISA, sections 5.4 and 11)."""

from __future__ import annotations

from .cursor import Cursor
from .initial_values import initial_value
from .lexer import Token
from .module import OPAQUE_TYPES, REGISTER_TYPES, TYPE_BYTES, Var

# The directives of entries, with the most numbers that each takes; those whose numbers are positive.
_COUNTS = {
    "maxntid": 3, "reqntid": 3, "minnctapersm": 1, "maxnreg": 1, "reqnctapercluster": 3, "maxclusterrank": 1,
    "explicitcluster": 0, "blocksareclusters": 0,
}  # fmt: skip
_POSITIVE = {"maxntid", "reqntid", "minnctapersm", "maxnreg"}
_PRESERVED = {"abi_preserve": 239, "abi_preserve_control": 11}  # of functions, with the most registers or predicates
_POINTED = {".global", ".const", ".shared", ".local"}  # what a pointer of an entry may point to
_ATTRIBUTES = {".managed", ".unified"}
_IN_MODULES = {"nounroll", "abi_param_reg all"}  # pragmas outside of functions
# Pragmas in the body of a function alone: the first version of PTX, and the least number behind each (None: no number).
_IN_BODIES = {"used_bytes_mask": ((8, 3), 0), "enable_smem_spilling": ((8, 7), None), "frequency": ((9, 0), 1)}


def parse_directives(
    c: Cursor, into: dict[str, tuple[int, ...]], entry: bool = False, version: tuple[int, int] = (0, 0)
) -> None:
    """Parse the directives between a function's parameters and its body (11.4, 11.7)."""
    while c.peek().kind == "word" and c.peek().text.startswith("."):
        if entry and c.peek().text == ".pragma":
            pragma(c, "header")
            continue
        token = c.next()
        key = token.text[1:]
        if not entry:
            _of_function(c, key, into, token, version)
            continue
        if key not in _COUNTS:
            of_functions = key in ("noreturn", *_PRESERVED)
            raise c.error(
                f"{token.text} is of functions" if of_functions else f"unknown directive '{token.text}'", token
            )
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


def _of_function(
    c: Cursor, key: str, into: dict[str, tuple[int, ...]], token: Token, version: tuple[int, int]
) -> None:  # fmt: skip
    """Parse what follows the word in `.noreturn .abi_preserve 8 .abi_preserve_control 2` (11.4), in this order."""
    if key not in ("noreturn", *_PRESERVED):
        raise c.error(f"{token.text} is of entries" if key in _COUNTS else f"unknown directive '{token.text}'", token)
    if key in into or (key == "noreturn" and into):
        raise c.error(f"'{token.text}' is at the wrong place", token)
    if key == "noreturn":
        into[key] = ()
        return
    number = c.number("a number")
    if version < (9, 0):
        raise c.error(f"{token.text} needs .version 9.0 or later", token)
    if not 0 <= number <= _PRESERVED[key]:
        raise c.error(f"{token.text} {number} is more than {_PRESERVED[key]}", token)
    into[key] = (number,)


def pragma(c: Cursor, where: str, version: tuple[int, int] = (0, 0)) -> None:
    """Parse `.pragma "nounroll", "x";` (11.4.6). No string has an effect on results.

    `where`: "module", "header", or "entry" or "function" in a body. An assembler warns of unknown strings in functions, and
    refuses them elsewhere.
    """
    c.next()
    while True:
        token = c.token
        if token.kind != "string":
            raise c.error(f"expected a string, found '{c.text}'")
        text = c.next().text.strip('"')
        name, _, value = text.partition(" ")
        if name in _IN_BODIES:
            first, least = _IN_BODIES[name]
            if where not in ("entry", "function") or (where == "function" and name == "enable_smem_spilling"):
                raise c.error(
                    f"the pragma '{name}' is of the body of {'an entry' if least is None else 'a function'}", token
                )
            if version < first:
                raise c.error(f"the pragma '{name}' needs .version {first[0]}.{first[1]} or later", token)
            if least is not None and not _at_least(value, least):
                raise c.error(f"the pragma '{name}' needs a number from {least} on, not '{value}'", token)
        elif where == "module" and text not in _IN_MODULES:
            raise c.error(f"there is no pragma '{text}' outside of functions", token)
        elif where == "entry" and text == "abi_param_reg all":
            raise c.error(f"the pragma '{text}' is of functions", token)
        if not c.accept(","):
            break
    c.expect(";")


def _at_least(value: str, least: int) -> bool:
    try:
        return int(value, 0) >= least
    except ValueError:
        return False


def parse_attributes(c: Cursor, variable: bool = True) -> None:
    """Parse what follows the word in `.attribute(.managed, .unified(1, 2))` (5.4.8, 11.3).

    `.unified` is for modules that are linked later, with relocatable code; an assembler of a whole program refuses it.
    """
    c.expect("(")
    while True:
        token = c.token
        if c.text not in _ATTRIBUTES or (c.text == ".managed" and not variable):
            raise c.error(f"unknown attribute '{c.text}'")
        if c.next().text == ".unified":
            raise c.error("'.unified' needs a linker: this module is a whole program", token)
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
        elif text == ".attribute" and space == "global" and not elem and size == 1:
            parse_attributes(c)
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
