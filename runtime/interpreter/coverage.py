"""The table of PTX that the interpreter runs, made from the code: `python -m kernel_dsl.runtime.interpreter.coverage`.

Elementwise, warp and matrix instructions are listed by their grammar; the others by what their builders say.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import families, mbarrier_ops, program
from .semantics import forms, matrix, table, warp, wgmma

HEADER = """# PTX that the interpreter runs

Made by `python -m kernel_dsl.runtime.interpreter.coverage`; a test keeps it so. An instruction or modifier that is not here is an
error that names it, with its line. `a|b` is a choice, `?` marks what may be left out, and the number is how many
opcodes a line stands for.
"""


def _slot(slot: tuple[tuple[str, ...], ...]) -> str:
    words = "\\|".join("." + ".".join(w) for w in slot if w)
    optional = () in slot
    return f"{{{words}}}" + ("?" if optional else "") if len(slot) > 1 else words


def _elementwise() -> Iterator[str]:
    counts: dict[str, int] = {}
    for entry in table.entries():
        counts[entry.opcode[0]] = counts.get(entry.opcode[0], 0) + 1
    lines: dict[str, list[str]] = {}
    for form in forms.registered():
        text = form.head + "".join(_slot(s) for s in form.slots)
        if form.pair:
            text += " d\\|p"
        lines.setdefault(form.head, []).append(f"`{text}`")
    for head in sorted(lines):
        yield f"| `{head}` | {counts[head]} | {'<br>'.join(dict.fromkeys(lines[head]))} |"


def _grouped(opcodes: list[tuple[str, ...]], first: int) -> Iterator[str]:
    """Opcodes with the same types on one line, with the shapes that they come in."""
    shapes: dict[tuple[str, ...], list[str]] = {}
    for opcode in opcodes:
        shapes.setdefault((*opcode[:first], "SHAPE", *opcode[first + 1 :]), []).append(opcode[first])
    for words, found in sorted(shapes.items()):
        named = ", ".join(found) if len(found) <= 4 else f"{found[0]} to {found[-1]}, {len(found)} shapes"
        yield f"| `{'.'.join(words)}` | {len(found)} | {named} |"


def _builders() -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for head in program.built_heads():
        text = program.builder_text(head)
        by_text.setdefault(text, []).append(head)
    for text, heads in by_text.items():
        yield f"| {', '.join(f'`{h}`' for h in heads)} | {text} |"


def markdown() -> str:
    """The page."""
    parts = [HEADER]
    parts.append("## Elementwise instructions\n\n| instruction | opcodes | forms |\n|---|---|---|")
    parts += _elementwise()
    parts.append("\n## Within a warp\n\n| opcode |\n|---|")
    both = {False: "", True: " with a destination d\\|p"}
    parts += sorted({f"| `{'.'.join(opcode)}`{both[pair]} |" for opcode, pair in warp.forms()})
    parts.append("\n## Matrix instructions\n\n| opcode | opcodes | shapes |\n|---|---|---|")
    parts += _grouped(matrix.forms(), 3)
    parts += _grouped(wgmma.forms(), 4)
    parts.append("\n## Fences\n\n| opcode |\n|---|")
    parts += [f"| `{form}` |" for form in mbarrier_ops.fence_forms()]
    parts.append("\n## Memory, control, synchronisation and copies\n\n| first words | what is run |\n|---|---|")
    parts += _builders()
    parts.append(f"\n{len(families.BUILDERS)} files register these builders.")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
