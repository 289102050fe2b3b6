"""The table of PTX that the interpreter runs, made from the code: `python -m kernel_dsl.runtime.interpreter.isa.coverage`.

Elementwise and matrix instructions are listed by their grammar, the others by their rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from .instructions import ROWS
from .semantics import forms, matrix, minmax, sparse, table, wgmma

HEADER = """# PTX that the interpreter runs

Made by `python -m kernel_dsl.runtime.interpreter.isa.coverage`; a test keeps it so. An instruction or modifier that is not here
is an error that names it, with its line. `a|b` is a choice, `?` marks what may be left out, and the number is how many
opcodes a line stands for.
"""

ROWS_TEXT = """## Memory, synchronisation, copies, warps and control

Modifiers may come in any order behind the name. Operands: `D` is a destination (`D!`: not `_`, `D{}`: in braces, too),
`D|P` may be a pair, `S` a value, `P` a predicate, `#` an integer literal, `[x]` an address in the state space that `x`
names, `{}` a vector. `?` marks what may be left out, `@x` what is there with the modifier `x`. What the columns can't say
(which types an operation has, which modifiers exclude one another) is checked too.
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
    three = "".join(_slot(s) for s in forms.slots_of(minmax.THREE))
    for head in ("min", "max"):
        lines[head].append(f"`{head}{three} d, a, b, c`")
        counts[head] += sum(1 for _ in forms.expand_slots(minmax.THREE))
    for head in sorted(lines):
        yield f"| `{head}` | {counts[head]} | {'<br>'.join(dict.fromkeys(lines[head]))} |"


def _grouped(opcodes: list[tuple[str, ...]], first: int) -> Iterator[str]:
    """Write opcodes with the same types on one line, with their shapes."""
    shapes: dict[tuple[str, ...], list[str]] = {}
    for opcode in opcodes:
        shapes.setdefault((*opcode[:first], "SHAPE", *opcode[first + 1 :]), []).append(opcode[first])
    for words, found in sorted(shapes.items()):
        named = ", ".join(found) if len(found) <= 4 else f"{found[0]} to {found[-1]}, {len(found)} shapes"
        yield f"| `{'.'.join(words)}` | {len(found)} | {named} |"


def _rows() -> Iterator[str]:
    """Write one line for each row: its modifiers, which may follow the name in any order, and its operands."""
    for row in sorted(ROWS.values(), key=lambda row: row.name):
        if row.roles is None:
            continue
        words = (_slot((*((w,) for w in s.words), *([()] if s.optional else []))) for s in row.slots)
        operands = row.operands.replace("|", "\\|")
        yield f"| `{'.'.join(row.name)}{''.join(words)}` | {f'`{operands}`' if operands else ''} |"


def markdown() -> str:
    """Return the page."""
    parts = [HEADER]
    parts.append("## Elementwise instructions\n\n| instruction | opcodes | forms |\n|---|---|---|")
    parts += _elementwise()
    parts.append("\n## Matrix instructions\n\n| opcode | opcodes | shapes |\n|---|---|---|")
    parts += _grouped(matrix.forms(), 3)
    parts += _grouped(sparse.forms(), 4)
    parts += _grouped(wgmma.forms(), 4)
    parts += _grouped(wgmma.sparse_forms(), 5)
    parts.append(f"\n{ROWS_TEXT}\n| instruction | operands |\n|---|---|")
    parts += _rows()
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
