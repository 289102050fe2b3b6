"""What PTX the interpreter runs, as a page made from the code.

`python -m runtime.interpreter.coverage FILE` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .families import BUILDERS
from .program import builder_docs
from .semantics import matrix, table, warp, wmma

_FAMILIES = {
    "integer": "Integers",
    "carry": "Carries",
    "bits": "Bits and moves",
    "floating": "Single and double precision",
    "minmax": "Minimum and maximum of floats",
    "halves": "Half precision",
    "approx": "Approximations",
    "compare": "Comparison and selection",
    "convert": "Conversions",
    "convert_packed": "Packed and narrow conversions",
    "video": "SIMD video instructions",
}

#: Importing the families has filled the table of builders.
MODULES = BUILDERS

_HEAD = """# PTX in the interpreter

Made from the code by `python -m runtime.interpreter.coverage docs/ptx-coverage.md`; a test compares the two.
An instruction that is not here is an error that names it and its line.

In the grammars below words are separated by dots in PTX, `a|b` is a choice, and `?` says that a word may be absent.
"(d|p)" marks forms with two destinations; a number at the end of a line counts its legal forms.
"""


def _elementwise() -> Iterator[str]:
    lines = list(table.lines())
    total = sum(1 for _ in table.entries())
    yield f"## Elementwise instructions ({total} forms)"
    for family, title in _FAMILIES.items():
        yield f"### {title}\n"
        yield "| form | from | forms |\n|---|---|---|"
        for line in lines:
            if line.family == family:
                text = line.line.replace("|", "\\|")
                pair = " (d\\|p)" if line.pair else ""
                yield f"| `{text}`{pair} | sm_{line.since} | {line.forms} |"
        yield ""


def _grammar(title: str, prefix: str, lines: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    for line in lines:
        yield f"- `{prefix} {line}`"
    yield ""


def _wide() -> Iterator[str]:
    yield "## Warp-wide instructions\n"
    for head, lines in warp.LINES.items():
        for line in lines:
            yield f"- `{head} {line}`"
    yield ""
    yield from _grammar("mma.sync", "mma sync aligned", matrix.LINES)
    yield "## wgmma.mma_async\n"
    yield "Shapes m64nNkK with K of 32 bytes, A in shared memory or registers, every swizzle and both orders:\n"
    yield "- `f16|f32 f16 f16`, `f32 bf16 bf16`, `f32 tf32 tf32`, `f16|f32 e4m3|e5m2 e4m3|e5m2`: N = 8, 16, ..., 256"
    yield "- `satfinite? s32 u8|s8 u8|s8`: N = 8, 16, 24, 32, 48, ..., 256\n"
    yield from _grammar("wmma.mma", "wmma mma sync aligned", wmma.MMA_LINES)
    yield "## wmma.load and wmma.store\n"
    for kind, lines in wmma.MEMORY_LINES.items():
        name = "load c, store d" if kind == "c" else f"load {kind}"
        for line in lines:
            yield f"- `wmma {name} sync aligned row|col {line}`"
    yield ""


def _machine() -> Iterator[str]:
    yield "## Memory, control, barriers and the asynchronous engines\n"
    yield "| instructions | what of them |\n|---|---|"
    yield "| bra, ret, exit, trap | control flow, with divergence and reconvergence |"
    for heads, text in builder_docs().items():
        yield f"| {heads} | {text or 'all forms'} |"


def page() -> str:
    """The Markdown page."""
    return "\n".join([_HEAD, *_elementwise(), *_wide(), *_machine()]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
