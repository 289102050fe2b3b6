"""Every supported opcode form, listed from the registrations themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import forms
from .forms import Opcode


@dataclass(frozen=True, slots=True)
class Entry:
    """One legal opcode.

    Its family (file), types, whether its destination is `d|p`, and the first sm_NN that has it.
    """

    opcode: Opcode
    family: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    pair: bool
    since: int

    @property
    def mnemonic(self) -> str:
        return ".".join(self.opcode)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the grammar as it was registered: `forms` legal opcodes."""

    family: str
    line: str
    pair: bool
    since: int
    forms: int


def lines() -> Iterator[Line]:
    """The registered lines, in order."""
    found: dict[tuple[str, str, bool, int], int] = {}
    for form in forms.registered():
        key = (form.family, form.line, form.pair, form.since)
        found[key] = found.get(key, 0) + sum(1 for _ in form.opcodes())
    return (Line(*key, count) for key, count in found.items())


def entries() -> Iterator[Entry]:
    """All elementwise forms, each once.

    The first registration that takes an opcode is the one that computes it.
    """
    seen: set[tuple[Opcode, bool]] = set()
    for form in forms.registered():
        for opcode, body in form.opcodes():
            if (opcode, form.pair) in seen:
                continue
            seen.add((opcode, form.pair))
            yield Entry(opcode, form.family, body.operands, body.results, form.pair, form.since)
