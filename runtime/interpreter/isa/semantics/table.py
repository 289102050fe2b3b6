"""Every supported opcode form, listed from the registrations themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

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


@cache
def entries() -> tuple[Entry, ...]:
    """Return all elementwise forms, each once.

    The first registration that takes an opcode computes it.
    """
    made: dict[tuple[Opcode, bool], Entry] = {}
    for form in forms.registered():
        for opcode, body in form.opcodes():
            if (opcode, form.pair) not in made:
                entry = Entry(opcode, form.family, body.operands, body.results, form.pair, form.since)
                made[opcode, form.pair] = entry
    return tuple(made.values())
