"""Rows: a row describes an instruction by its grammar, its operands, whether it may wait, and its first target.

A row has a name, whose words come first and in order, and slots of modifiers behind it, which may come in any order
(as assemblers take them): `order=weak|relaxed? space=global|shared? type=b32|b64`. A slot with a '?' may stay empty. A
word that two slots have goes to the first that is free.

Each operand has a role:

- `D` is a destination, `D!` one that may not be `_`, `D{}` one that may stand in braces, `D|P` a destination or a pair.
- `S` is a value of the instruction's type, `S:b32` a value of another type, `P` a predicate, `#` an integer literal.
- `R` is a register or the address of a variable, `R/shared` that of a variable in that space (or in the slot's space).
- `[slot]` is an address in the state space that the slot names, `[~slot]` one that may be 32 bits wide even if generic,
  `[slot/shared]` one that names variables of that space if generic, `[slot,{}]` a tensor map with coordinates.
- `{}` is a vector, `X` any operand.

A role with a `?` behind it may be left out. `role@slot` is there if the slot is filled, `role@slot=word` if it has that word,
`role@slot!=word` if it has another. A rule checks what the grammar cannot: it returns the reason why the chosen words do not
exist with these operands, or "". A row without slots and roles (`opened`) leaves the words to its builder, as for matrix
products and calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from ..ptx.module import TYPE_BYTES, Imm, Instruction, Mem, Negated, Operand, Pair, Reg, Sink, Special, Sym, Vec

Opcode = tuple[str, ...]
Words = dict[str, str]  # slot -> its word, "" where there is none
Operands = Sequence[Operand]
Rule = Callable[[Words, Operands], str]
OLDEST = 75  # the default sm_NN of a row
VECTORS = {"": 1, "v2": 2, "v4": 4, "v8": 8}


class BadForm(Exception):
    """The error of words or operands that no instruction has; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place for a modifier."""

    name: str
    words: tuple[str, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Role:
    """One operand.

    `kind`: its role, as in the module's text. `space`: a state space or the slot that names it. `when`: a condition. `home`:
    the space of variables that a generic address names. `type`: its type if that is not the instruction's.
    """

    kind: str
    space: str = ""
    optional: bool = False
    when: str = ""
    type: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction."""

    name: Opcode
    slots: tuple[Slot, ...]
    roles: tuple[Role, ...] | None
    rules: tuple[Rule, ...] = ()
    waits: Callable[[Words], bool] | bool = False
    since: int = OLDEST
    text: str = ""
    operands: str = ""

    def read(self, opcode: Opcode) -> Words:
        """Return the word of each slot. Raises `BadForm`."""
        if self.roles is None:
            return {}
        chosen: Words = {slot.name: "" for slot in self.slots}
        for word in opcode[len(self.name) :]:
            having = [slot for slot in self.slots if word in slot.words]
            free = next((slot for slot in having if not chosen[slot.name]), None)
            if free is None:
                raise BadForm(f"'.{word}' is one too many" if having else f"'.{word}' is not possible here")
            chosen[free.name] = word
        for slot in self.slots:
            if not slot.optional and not chosen[slot.name]:
                raise BadForm(f"one of {', '.join('.' + w for w in slot.words)} is missing")
        if "to" in chosen and "from" in chosen:  # the order of spaces is the direction of a copy
            spaces = [w for w in opcode[len(self.name) :] if w in (chosen["to"], chosen["from"])]
            if spaces != [chosen["to"], chosen["from"]]:
                raise BadForm(f"no copies from .{spaces[-1]} to .{spaces[0]}")
        return chosen

    def spell(self, words: Words) -> Opcode:
        """Return the opcode with its words in the row's order."""
        return (*self.name, *(words[slot.name] for slot in self.slots if words[slot.name]))

    def present(self, words: Words, count: int) -> tuple[Role, ...]:
        """Return the roles of `count` operands. Raises `BadForm`."""
        wanted = [r for r in self.roles or () if _holds(r.when, words)]
        spare = count - sum(not r.optional for r in wanted)
        found: list[Role] = []
        for role in wanted:
            if role.optional and spare <= 0:
                continue
            spare -= role.optional
            found.append(role)
        if len(found) != count:
            raise BadForm(f"takes {_number(wanted)} operands, {count} given")
        return tuple(found)

    def check(self, words: Words, operands: Operands) -> tuple[Role, ...]:
        """Return the roles of `operands`. Raises `BadForm` if the instruction does not take them."""
        roles = self.present(words, len(operands))
        lanes = VECTORS[words.get("vec", "")]
        for role, operand in zip(roles, operands, strict=True):
            why = _wrong(role, operand, lanes, words)
            if why:
                raise BadForm(why)
        for rule in self.rules:
            why = rule(words, operands)
            if why:
                raise BadForm(why)
        return roles

    def may_wait(self, words: Words) -> bool:
        return self.waits if isinstance(self.waits, bool) else self.waits(words)


def _holds(when: str, words: Words) -> bool:
    slot, equals, word = when.partition("=")
    if not equals:
        return not when or bool(words[slot])
    return words[slot[:-1]] != word if slot.endswith("!") else words[slot] == word


def _number(roles: Iterable[Role]) -> str:
    least = sum(not r.optional for r in roles)
    most = sum(1 for _ in roles)
    return str(least) if least == most else f"{least} to {most}"


def _wrong(role: Role, operand: Operand, lanes: int, words: Words) -> str:
    kind = role.kind
    if kind == "X":
        return ""
    if kind == "S" and isinstance(operand, Vec) and None in operand.items:
        return "'_' is no source"
    if kind in ("D", "D!", "S") and isinstance(operand, Vec) and not role.type and "vec" in words:
        return "" if len(operand.items) == lanes else f"a vector of {lanes} is wanted, {len(operand.items)} given"
    if kind in ("D", "D!", "S") and lanes > 1 and not role.type:
        return f"a vector of {lanes} is wanted"
    fits = _KINDS[kind]
    if not isinstance(operand, fits):
        if fits in ((Mem,), (Imm,)):
            return "an address in brackets is wanted" if fits == (Mem,) else "an integer constant is wanted"
        return f"operand {_show(operand)} is not possible here"
    if isinstance(operand, Mem):
        if (operand.coords is None) != (kind != "[,{}]"):
            return "coordinates belong to a tensor map, and to nothing else"
        space = words.get(role.space.lstrip("~"), role.space)
        base = operand.base
        wide = space in ("", "global") and role.space[:1] != "~"
        if wide and isinstance(base, Reg) and base.type in ("b32", "u32", "s32"):
            return f"a {space or 'generic'} address of 32 bits, '{base.name}', is not supported"
    if kind in ("#", "P") and isinstance(operand, Imm) and operand.kind != "int":
        return "an integer constant is wanted"
    if kind == "S" and isinstance(operand, Negated) and "pred" not in (role.type, words.get("type")):
        return "a negated predicate is not possible here"
    return ""


_KINDS: dict[str, tuple[type, ...]] = {
    "D": (Reg, Sink), "D!": (Reg,), "D{}": (Reg, Vec),
    "D|P": (Reg, Pair), "S": (Reg, Imm, Sym, Special, Negated), "P": (Reg, Negated, Imm),
    "#": (Imm,), "[]": (Mem,), "[,{}]": (Mem,), "{}": (Vec,), "R": (Reg, Imm, Sym),
}  # fmt: skip


def _show(operand: Operand) -> str:
    return getattr(operand, "name", type(operand).__name__)


ROWS: dict[Opcode, Row] = {}
_LONGEST = 6


def _slot(text: str) -> Slot:
    name, _, words = text.rstrip("?").rpartition("=")
    options = tuple(words.split("|"))
    return Slot(name or options[0], options, text.endswith("?"))


def _role(text: str) -> Role:
    body, _, when = text.partition("@")
    optional = body.endswith("?")
    body, _, type_ = body.rstrip("?").partition(":") if body[0] != "[" else (body.rstrip("?"), "", "")
    found = re.fullmatch(r"\[([~\w:]*)/?(\w*)(,\{\})?\]", body)
    if found is None:
        kind, _, home = body.partition("/")
        return Role(kind, "", optional, when, type_, home)
    return Role("[,{}]" if found[3] else "[]", found[1], optional, when, "", found[2])


def row(
    names: str,
    slots: str,
    operands: str,
    *rules: Rule,
    waits: Callable[[Words], bool] | bool = False,
    since: int = OLDEST,
) -> None:
    """Add the same row for each of `names`, which blanks separate."""
    for name in names.split():
        words = tuple(name.split("."))
        places = tuple(_slot(s) for s in slots.split())
        roles = tuple(_role(r) for r in operands.split())
        ROWS[words] = Row(words, places, roles, rules, waits, since, slots, operands)


def opened(names: str, waits: bool = False) -> None:
    """Add rows whose builders read the words by another grammar."""
    for name in names.split():
        ROWS[name,] = Row((name,), (), None, (), waits)


@dataclass(frozen=True, slots=True)
class Form:
    """An opcode, read by its row."""

    row: Row
    words: Words

    def __getitem__(self, slot: str) -> str:
        return self.words[slot]

    @property
    def name(self) -> str:
        return ".".join(self.row.name)

    @property
    def opcode(self) -> Opcode:
        return self.row.spell(self.words)

    @property
    def waits(self) -> bool:
        return self.row.may_wait(self.words)

    @property
    def vector(self) -> int:
        return VECTORS[self.words.get("vec", "")]

    @property
    def size(self) -> int:
        """Return the bytes of one element."""
        return TYPE_BYTES[self.words["type"]]


def _row_of(opcode: Opcode) -> Row | None:
    return next((ROWS[opcode[:n]] for n in range(min(_LONGEST, len(opcode)), 0, -1) if opcode[:n] in ROWS), None)


_HEADS: set[str] = set()
# Instructions of the ISA that have no row, though others with the same first word have one.
_LEFT_OUT = {("tcgen05", "shift"), ("tcgen05", "mma", "ws", "sp")}


def has_rows(head: str) -> bool:
    """Return whether rows describe the instructions that begin with this word."""
    if not _HEADS:
        _HEADS.update(name[0] for name in ROWS)
    return head in _HEADS


@cache
def form_of(opcode: Opcode) -> Form | None:
    """Return the form of an opcode, or None if no row has its first word. Raises `BadForm`."""
    found = _row_of(opcode)
    if any(opcode[:n] in _LEFT_OUT for n in (2, 3, 4)):
        raise BadForm("an instruction that is not interpreted (docs/ptx-coverage.md has those that are)")
    if found is None:
        if has_rows(opcode[0]):
            raise BadForm(f"there is no {'.'.join(opcode[:2])}")
        return None
    return Form(found, found.read(opcode))


def known_form(ins: Instruction) -> Form | None:
    """Return `form_of`, or None if no row can read the instruction: the compiler reports the reason."""
    try:
        return form_of(ins.opcode)
    except BadForm:
        return None
