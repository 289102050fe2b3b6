"""Expectations written on a kernel's own lines: `# sm_90a: "ld.global.nc.v4.b32"` or `# any: not "ld.global"`.

Each must be found (or, with `not`, must be absent) in the PTX that the line became, by its `.loc`. Several go on one
line, separated by semicolons; `"st.global" x4` counts occurrences.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from kernel_dsl.stages import Stages

_TARGET = re.compile(r"#\s*(any|sm_\w+):([^#]+)")
_ONE = re.compile(r'(not\s+)?"([^"]+)"(?:\s*x(\d+))?')


@dataclass(frozen=True)
class Expectation:
    """What a line of a body says of the PTX for a target."""

    line: int
    target: str
    text: str
    absent: bool
    count: int | None


def expectations(body: Any) -> list[Expectation]:
    """All that a body's comments say."""
    lines, first = inspect.getsourcelines(body)
    found: list[Expectation] = []
    for number, line in enumerate(lines, first):
        for comment in _TARGET.finditer(line):
            for match in _ONE.finditer(comment[2]):
                count = int(match[3]) if match[3] else None
                found.append(Expectation(number, comment[1], match[2], bool(match[1]), count))
    return found


def by_line(stages: Stages) -> dict[int, list[str]]:
    """The PTX instructions that each Python line became."""
    kernel = stages.kernel
    lines: dict[int, list[str]] = {}
    text = kernel.ptx.splitlines()
    for number, source in kernel.lines.items():
        lines.setdefault(source.line, []).append(text[number - 1].strip())
    return lines


def check(body: Any, stages: Stages) -> int:
    """Compare; returns how many expectations held."""
    lines = by_line(stages)
    held = 0
    for e in expectations(body):
        if e.target not in ("any", stages.target.name):
            continue
        here = "\n".join(lines.get(e.line, []))
        seen = here.count(e.text)
        good = seen == 0 if e.absent else (seen == e.count if e.count is not None else seen > 0)
        assert good, f"line {e.line} on {stages.target}: {'not ' if e.absent else ''}{e.text!r} (seen {seen})\n{here}"
        held += 1
    return held
