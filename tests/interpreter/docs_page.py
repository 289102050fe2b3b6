"""Runs the code of `docs/interpreter.md` and puts in what it prints: `python -m tests.interpreter.docs_page`."""

from __future__ import annotations

import inspect
import linecache
import re
from pathlib import Path

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks import kinds
from kernel_dsl.runtime.interpreter.isa import coverage
from kernel_dsl.runtime.interpreter.isa.semantics.distances import DISTANCES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "interpreter.md"
COVERAGE = DOCS / "ptx-coverage.md"
DIFFERENTIAL = DOCS / "instruction-differential.md"
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)
_DISTANCES = re.compile(r"DISTANCES\n|\| instruction \| operands \|.*?\n(?=\n)", re.DOTALL)
_KINDS = re.compile(r"KINDS\n|\| kind \| defect \|\n.*?\n(?=\n)", re.DOTALL)


def output_of(code: str, name: str) -> str:
    """The hazard that a block ends with."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    try:
        exec(compile(code, name, "exec"), {"__name__": name})
    except kd.HazardError as error:
        return f"{error}\n"
    raise AssertionError(f"{name} ran without a hazard")


def kinds_table() -> str:
    """The table of all kinds, described by the comments of the code."""
    source = inspect.getsource(kinds.HazardKind)
    lines = ["| kind | defect |", "|---|---|"]
    for kind in kinds.HazardKind:
        found = re.search(rf'{kind.name} = "{kind.value}"  # (.*)', source)
        text = found[1].removeprefix("always: ") if found else kind.value.replace("_", " ")
        text = "" if text == "always" else text
        words = [w for w in (text, "*always*" if kind in kinds.ALWAYS else "") if w]
        lines.append(f"| `{kind.value}` | {'; '.join(words)} |")
    return "\n".join(lines) + "\n"


def distances_table() -> str:
    """The measured distances of tensor instructions and their bounds."""
    lines = ["| instruction | operands | result | hardware | interpreter | bound |", "|---|---|---|---|---|---|"]
    for (instruction, a_type, d_type), m in DISTANCES.items():
        numbers = f"{m.hardware:.2e} | {m.interpreter:.2e} | {m.bound:.2e}"
        lines.append(f"| {instruction} | {a_type} | {d_type} | {numbers} |")
    return "\n".join(lines) + "\n"


def render_distances(text: str) -> str:
    """The page of measurements with the bounds that the code has."""
    return _DISTANCES.sub(lambda _: distances_table(), text, count=1)


def render(text: str) -> str:
    """The page with fresh output and a fresh table of kinds."""
    names = iter(("double.py", "exchange.py", "crossed.py"))

    def block(match: re.Match[str]) -> str:
        code = match["code"]
        return f"```python\n{code}```\n\n```text\n{output_of(code, next(names))}```"

    return _KINDS.sub(lambda _: kinds_table(), _BLOCK.sub(block, text), count=1)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
    COVERAGE.write_text(coverage.markdown())
    DIFFERENTIAL.write_text(render_distances(DIFFERENTIAL.read_text()))
