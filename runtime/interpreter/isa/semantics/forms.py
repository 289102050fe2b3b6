"""Instruction forms: the grammar of opcodes, the registry of forms, and `compile_alu`.

A family registers its instructions with `@form("add rn|rz|rm|rp? ftz? sat? f32")`. Each slot is a
choice of modifiers, which a '?' makes optional; '-' is a slot that stays empty. A choice may have
several words, as `xorsign.abs`. The decorated builder is called with the chosen word of each slot (''
for an absent one) and returns a `Body`. It raises `Illegal` for a combination that PTX does not have.
The same grammar reads opcodes and lists them, so the table of forms is made from the code itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np

from .errors import BadModifier, UnknownInstruction
from .types import STORAGE, Array

OLDEST = 75  # the default first sm_NN of a form; older targets are not told apart

Opcode = tuple[str, ...]
Results = tuple[Array, ...]
Function = Callable[..., Results]
# What a `Body` is made with. The arities are spelled out for the sake of lambdas, whose parameters
# take their types from here.
Arity = (
    Callable[[Array], Results]
    | Callable[[Array, Array], Results]
    | Callable[[Array, Array, Array], Results]
    | Callable[[Array, Array, Array, Array], Results]
    | Callable[[Array, Array, Array, Array, Array], Results]
)


@dataclass(frozen=True, slots=True)
class Body:
    """What a builder returns: operand and result types, and the function on register arrays."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    function: Arity


@dataclass(frozen=True, slots=True)
class Alu:
    """One instruction form, compiled.

    `operands` and `results` are PTX type names. Calling it maps one array an operand to one an
    result, elementwise over any (broadcastable) shape, and emits no NumPy warning. `function` is
    the same without the guard against warnings, for a caller that holds `np.errstate(all="ignore")`
    itself. Results may share memory with operands. `since` is the first sm_NN that has the form, from OLDEST on.
    """

    opcode: Opcode
    operands: tuple[str, ...]
    results: tuple[str, ...]
    function: Function
    since: int = OLDEST

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return self.function(*arrays)

    def __str__(self) -> str:
        return ".".join(self.opcode)


class Illegal(Exception):
    """Raised by a builder: these modifiers do not go together."""


Builder = Callable[..., Body]
Slot = tuple[str, ...]  # the words of one choice
Slots = tuple[tuple[Slot, ...], ...]


@dataclass(frozen=True)
class SemanticForm:
    """One registered line of the grammar."""

    head: str
    slots: Slots
    build: Builder
    family: str
    since: int
    pair: bool

    def parse(self, words: Opcode) -> tuple[list[str] | None, int]:
        """Return the chosen word of each slot, or None; and how many of `words` could be read."""
        return _match(self.slots, words, 0)

    def opcodes(self) -> Iterator[tuple[Opcode, Body]]:
        """Yield every legal opcode of this line, and its body."""
        for choice in itertools.product(*self.slots):
            try:
                body = self.build(*(".".join(word) for word in choice))
            except Illegal:
                continue
            yield (self.head, *itertools.chain.from_iterable(choice)), body


def _match(slots: Slots, words: Opcode, at: int) -> tuple[list[str] | None, int]:
    if not slots:
        return ([] if at == len(words) else None), at
    furthest = at
    for option in slots[0]:
        if words[at : at + len(option)] != option:
            continue
        rest, reached = _match(slots[1:], words, at + len(option))
        if rest is not None:
            return [".".join(option), *rest], reached
        furthest = max(furthest, reached)
    return None, furthest


# Assemblers take modifiers in any order, but these are parts of names, and types and layouts keep theirs; and these may
# stand twice.
_HALVES = frozenset(("hi", "lo", "wide"))
_OF_NAMES = {
    **dict.fromkeys(("mul", "mad", "mul24", "mad24", "madc", "dp2a"), _HALVES),
    "div": frozenset(("full",)), "shf": frozenset("lr"), "cvt": frozenset(("pack",)),
}  # fmt: skip
_TWICE = frozenset(("sat", "satfinite", "relu", "approx", "cc", "NaN", "shiftamt"))
_TYPE = re.compile(r"pred|([busf]|bf|tf|e\d+m|ue\d+m)\d+(x\d+)?")


def _in_order(slots: Slots, words: Opcode, head: str = "") -> list[str] | None:
    """Return the chosen word of each slot if `words` stand in another order, or twice; None if they do not match."""
    if len(words) > 4 * len(slots):
        return None
    once = tuple(w for at, w in enumerate(words) if w not in _TWICE or w not in words[:at])
    found = _match_in_any_order(slots, once)
    if found is None:
        return None
    spelled = [w for choice in found if choice for w in choice.split(".")]
    of_name = _OF_NAMES.get(head, frozenset())
    if spelled[:1] != list(words[:1]) and not of_name.isdisjoint((*spelled[:1], *words[:1])):
        return None
    for kept in (_TYPE.fullmatch, ("row", "col").__contains__):
        if [w for w in spelled if kept(w)] != [w for w in words if kept(w)]:
            return None
    return found


def _match_in_any_order(slots: Slots, words: Opcode) -> list[str] | None:
    """Match words to slots in any order. Words that two slots have go to the slots in their order."""
    if not slots:
        return None if words else []
    for at in range(len(words)):
        for option in slots[0]:
            if words[at] not in option or not set(option) <= set(words):
                continue
            rest = _match_in_any_order(slots[1:], _without(words, option, at))
            if rest is not None:
                return [".".join(option), *rest]
    if () not in slots[0]:
        return None
    rest = _match_in_any_order(slots[1:], words)
    return None if rest is None else ["", *rest]


def _without(words: Opcode, option: Slot, at: int) -> Opcode:
    """Return `words` without those of an option: word number `at`, and the first of each other one."""
    left = list(words[:at] + words[at + 1 :])
    for word in option:
        if word != words[at]:
            left.remove(word)
    return tuple(left)


def _parse_slot(text: str) -> tuple[Slot, ...]:
    if text == "-":
        return ((),)
    options = tuple(tuple(choice.split(".")) for choice in text.rstrip("?").split("|"))
    return (*options, ()) if text.endswith("?") else options


def slots_of(line: str) -> Slots:
    return tuple(_parse_slot(slot) for slot in line.split())


def parse_lines(lines: Iterable[str], words: Opcode) -> tuple[str, list[str]] | None:
    """Return the first line of the grammar that takes `words`, in its order or else in another, and the choice of each
    slot; None if no line does.
    """
    for match in (lambda slots: _match(slots, words, 0)[0], lambda slots: _in_order(slots, words)):
        for line in lines:
            found = match(slots_of(line))
            if found is not None:
                return line, found
    return None


def together(words: Opcode, *needed: str) -> Opcode | None:
    """Return `words` without those that an instruction needs, in any place; None if one is missing or there twice."""
    if any(words.count(w) != 1 for w in needed):
        return None
    return tuple(w for w in words if w not in needed)


def expand_slots(line: str) -> Iterator[tuple[str, ...]]:
    """Return every sequence of words of a line of the grammar."""
    for choice in itertools.product(*slots_of(line)):
        yield tuple(itertools.chain.from_iterable(choice))


_FORMS: dict[tuple[str, bool], list[SemanticForm]] = {}


def form(*lines: str, since: int = OLDEST, pair: bool = False) -> Callable[[Builder], Builder]:
    """Register a builder for one or more lines of the grammar.

    `since` is the first sm_NN that has them; `pair` says that they are the forms with a destination
    `d|p`.
    """

    def register(build: Builder) -> Builder:
        family = build.__module__.rsplit(".", 1)[-1]
        for line in lines:
            head, rest = line.split(" ", 1)
            parsed = slots_of(rest)
            for name in head.split("|"):
                bound = build if "|" not in head else _with_head(build, name)
                entry = SemanticForm(name, parsed, bound, family, since, pair)
                _FORMS.setdefault((name, pair), []).append(entry)
        return build

    return register


def _with_head(build: Builder, name: str) -> Builder:
    """Return a builder that passes the instruction's name first, for builders of several instructions."""
    return lambda *words: build(name, *words)


def registered() -> Iterator[SemanticForm]:
    """Return all forms, in the order of registration."""
    return itertools.chain.from_iterable(_FORMS.values())


def _find(opcode: Opcode, pair: bool) -> tuple[Body, int] | str:
    """Return the body of a form and the first sm_NN that has it, or why there is none."""
    words, furthest, why = opcode[1:], 0, ""
    for candidate in _FORMS.get((opcode[0], pair), ()):
        choice, reached = candidate.parse(words)
        furthest = max(furthest, reached)
        if choice is None:
            continue
        try:
            return candidate.build(*choice), candidate.since
        except Illegal as error:
            why = str(error)
    for candidate in _FORMS.get((opcode[0], pair), ()):
        choice = _in_order(candidate.slots, words, opcode[0])
        with suppress(Illegal):
            if choice is not None:
                return candidate.build(*choice), candidate.since
    if why:
        return why
    return f"'.{words[furthest]}' is not possible here" if furthest < len(words) else "it is incomplete"


@cache
def compile_alu(opcode: Opcode, pair: bool = False) -> Alu:
    """Return the function that `opcode`, a dotted mnemonic split at its dots, computes.

    `pair` asks for the form with a destination `d|p`. Raises `UnknownInstruction` or `BadModifier`.
    """
    if (opcode[0], False) not in _FORMS and (opcode[0], True) not in _FORMS:
        raise UnknownInstruction(opcode)
    found = _find(opcode, pair)
    if isinstance(found, tuple):
        body, since = found
        function = cast(Function, body.function)
        return Alu(opcode, body.operands, body.results, function, since)
    if isinstance(_find(opcode, not pair), tuple):
        found = "it takes one destination" if pair else "it takes a destination d|p"
    raise BadModifier(opcode, found)


_PIECE = 8192  # elements: a few temporaries of that many stay in the second cache


def in_pieces(body: Body) -> Body:
    """Return a body that runs `body` piece by piece on large arrays, for a body that makes many temporaries."""
    function = cast(Function, body.function)
    storages = [STORAGE[name] for name in body.results]

    def run(*arrays: Array) -> Results:
        largest = max(arrays, key=np.size)
        size = largest.size
        if size <= _PIECE or any(a.size not in (1, size) for a in arrays):
            return function(*arrays)
        flat = [a.reshape(-1) for a in arrays]
        results = tuple(np.empty(size, storage) for storage in storages)
        for start in range(0, size, _PIECE):
            piece = slice(start, start + _PIECE)
            parts = function(*(a if a.size == 1 else a[piece] for a in flat))
            for result, part in zip(results, parts, strict=True):
                result[piece] = part
        return tuple(result.reshape(largest.shape) for result in results)

    return Body(body.operands, body.results, run)


def unary(fn: Callable[[Array], Array], operand: str, result: str | None = None) -> Body:
    return Body((operand,), (result or operand,), lambda a: (fn(a),))


def binary(fn: Callable[[Array, Array], Array], operand: str, result: str | None = None) -> Body:
    return Body((operand, operand), (result or operand,), lambda a, b: (fn(a, b),))


def ternary(fn: Callable[[Array, Array, Array], Array], operand: str) -> Body:
    return Body((operand,) * 3, (operand,), lambda a, b, c: (fn(a, b, c),))
