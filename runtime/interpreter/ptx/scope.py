"""The names of one scope of a PTX function (PTX ISA, sections 4.4 and 5.4)."""

from __future__ import annotations

import re

from .module import PtxError, Reg, Vec

Range = tuple[int, str, int]  # a number of registers, their type, and the elements of each
NUMBERED = re.compile(r"(.*?)(\d+)$")


class Scope:
    """Names declared between one pair of braces."""

    def __init__(self, parent: Scope | None, tag: str) -> None:
        self.parent = parent
        self.tag = tag
        self.registers: dict[str, Reg | Vec] = {}
        self.ranges: dict[str, Range] = {}
        self.variables: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.names: dict[
            str, str
        ] = {}  # what is declared, without the registers of ranges: "register", "variable", "label"

    def declare(self, name: str, what: str, line: int, column: int) -> None:
        """Declare a register, variable or label. Raises PtxError if the scope has another one of this name."""
        known = self.names.get(name, "")
        if not known and what != "label" and (numbered := NUMBERED.match(name)):
            prefix, digits = numbered.groups()
            limit = self.ranges.get(prefix)
            known = "register" if limit and in_range(digits, limit[0]) else ""
        if known:
            twice = "defined" if what == "label" else "declared"
            also = f", as a {known}, too" if known != what else ""
            raise PtxError(f"{what} '{name}' is {twice} twice{also}", line, column)
        self.names[name] = what

    def declare_range(self, prefix: str, registers: Range, line: int, column: int) -> None:
        """Declare the registers `prefix`0 and so on."""
        count = registers[0]
        clash = prefix + "<" if prefix in self.ranges else ""
        for name, what in self.names.items():
            numbered = NUMBERED.match(name) if name.startswith(prefix) and what != "label" else None
            # assemblers find a name with zeros before its number before they find the one of the range
            plain = numbered and (numbered[2] == "0" or numbered[2][0] != "0")
            if numbered and plain and numbered[1] == prefix and in_range(numbered[2], count):
                clash = name
        if clash:
            raise PtxError(f"register '{clash}' is declared twice", line, column)
        self.ranges[prefix] = registers


def in_range(digits: str, count: int) -> bool:
    """Return whether a range of `count` registers has one of this number, which zeros may precede."""
    digits = digits.lstrip("0") or "0"
    return len(digits) < 10 and int(digits) < count
