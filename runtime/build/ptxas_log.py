"""Reads the log of `ptxas -v`: resources, remarks and errors.

The driver's own compiler writes the same text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from kernel_dsl.compiled import CompiledKernel, SourceLine

_ENTRY = re.compile(r"Compiling entry function '([^']+)'|Function properties for (\S+)")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SMEM = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_LINE = re.compile(r"\bline (\d+)\b")
_HEAD = re.compile(r"^ptxas (?:.*, line (?P<line>\d+); )?(?P<kind>info|warning|error|fatal)\s*: (?P<text>.*)$")
_CODE = re.compile(r"\((C\d{4})\)")
_QUOTED = re.compile(r"'([a-z][\w.:]*)'|\b(wgmma\.mma_async)\b|\b(setmaxnreg)\b")
# Sentences of -v that give the resources, or that every run prints.
_ROUTINE = re.compile(
    r"bytes gmem|^Compiling entry function|^Function properties|^Used \d+ registers|^Compile time"
    r"|bytes stack frame|bytes cumulative stack size|^Overriding (global )?maxrregcount"
)


@dataclass(frozen=True)
class Usage:
    """The resources of one entry. Bytes a lane; `shared` is static SMEM a block."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    barriers: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Message:
    """A sentence of the assembler.

    `kind` is info, warning, error or fatal; `ptx_line` 1-based, or None.
    """

    kind: str
    text: str
    ptx_line: int | None

    @property
    def code(self) -> str:
        """The message's code, such as 'C7510', or ''."""
        found = _CODE.search(self.text)
        return found.group(1) if found else ""


def usage(log: str, entry: str) -> Usage:
    """The resources of `entry` in a log of `ptxas -v`; zero for those that the log lacks."""
    values: dict[str, int] = {}
    inside = False
    for line in log.splitlines():
        named = _ENTRY.search(line)
        if named:
            inside = (named.group(1) or named.group(2)) == entry
            continue
        if not inside:
            continue
        stack = _STACK.search(line)
        if stack:
            for key, text in zip(("stack", "spill_stores", "spill_loads"), stack.groups(), strict=True):
                values[key] = int(text)
        for key, pattern in (("registers", _USED), ("barriers", _BARRIERS), ("shared", _SMEM)):
            found = pattern.search(line)
            if found:
                values[key] = int(found.group(1))
    return Usage(**values)


def messages(log: str) -> list[Message]:
    """All sentences except those that every run prints, in order, each once."""
    found: dict[Message, None] = {}
    for line in log.splitlines():
        head = _HEAD.match(line.rstrip())
        if head is None or _ROUTINE.search(head["text"]):
            continue
        number = head["line"]
        inner = _LINE.search(head["text"]) if number is None else None
        at = int(number) if number else int(inner.group(1)) if inner else None
        found[Message(head["kind"], head["text"].strip(), at)] = None
    return list(found)


def user_line(kernel: CompiledKernel, message: Message) -> SourceLine | None:
    """The user's line of a message.

    Performance remarks have no PTX line; they name an instruction, and the line is that of the first such instruction.
    """
    at = message.ptx_line
    if at is None:
        named = _QUOTED.search(message.text)
        word = next((g for g in named.groups() if g), None) if named else None
        at = _first_line_with(kernel.ptx, word) if word else None
    line = line_of(kernel, at) if at is not None else None
    return line or kernel.source


def line_of(kernel: CompiledKernel, ptx_line: int) -> SourceLine | None:
    """The user's line of a PTX line: the line of the last mapped PTX line at or before it."""
    numbers = [*kernel.lines]
    index = bisect_right(numbers, ptx_line) - 1
    return kernel.lines[numbers[index]] if index >= 0 else None


def _first_line_with(ptx: str, word: str) -> int | None:
    at = ptx.find(word)
    return ptx.count("\n", 0, at) + 1 if at >= 0 else None
