"""Copies of operands in registers that a wgmma reads in each iteration of a loop, and that the loop does not change.

ptxas 13.0 loses these: it gives the left sides of several wgmma the same registers, also where one lives across a loop in which
another is computed. The next iteration then multiplies by the other's elements (-O1 to -O3 do so; -O0 is right). ptxas removes
plain copies, and the same happens. So a zero that it cannot know is added in. The copies are made in the PTX, because LLVM would
move its own out of the loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["copy_operands"]

_LEFT = re.compile(r"wgmma\.mma_async\.[^;{]*\{[^}]*\}, \{([^}]*)\}")  # of a product whose A is in registers
_LABEL = re.compile(r"(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")
# the first operand of each instruction of a line; a line of inline PTX has several, in braces
_WRITTEN = re.compile(r"(?:^|[;{])\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|[^,;]*)")
_REGISTER = re.compile(r"%\w+")


class _Loop(NamedTuple):
    """Lines from a label to a branch back to it, and the registers that they write."""

    lines: range
    written: frozenset[str]


def copy_operands(ptx: str) -> str:
    """The PTX with copies of such operands before the `wgmma.fence` of their product; PTX without any is returned as it is."""
    if "wgmma.mma_async" not in ptx:
        return ptx
    lines = ptx.split("\n")
    loops = list(_loops(lines))
    before: dict[int, list[str]] = {}
    for number, line in enumerate(lines):
        around = [loop for loop in loops if number in loop.lines]
        left = [r for found in _LEFT.findall(line) for r in _REGISTER.findall(found)] if around else []
        kept = list(dict.fromkeys(r for r in left if any(r not in loop.written for loop in around)))
        if kept:
            copies = {register: f"kept{number}_{place}" for place, register in enumerate(kept)}
            lines[number] = _LEFT.sub(lambda m, c=copies: _renamed(m, c), line)
            before[_fence(lines, number)] = _copies(copies, number)
    if not before:
        return ptx
    return "\n".join(text for number, line in enumerate(lines) for text in (*before.get(number, ()), line))


def _loops(lines: Sequence[str]) -> Iterator[_Loop]:
    """The loops of all functions. One label may start several."""
    labels = {found[1]: number for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    for number, line in enumerate(lines):
        for target in _BRANCH.findall(line):
            if labels.get(target, number) < number:
                inside = range(labels[target], number + 1)
                written = (_REGISTER.findall(found) for n in inside for found in _WRITTEN.findall(lines[n]))
                yield _Loop(inside, frozenset(register for some in written for register in some))


def _fence(lines: Sequence[str], number: int) -> int:
    """The line of the fence of a product. Its registers must be written before it (PTX ISA 9.7.15.7.1)."""
    return next(n for n in range(number, -1, -1) if "wgmma.fence.sync.aligned" in lines[n])


def _renamed(product: re.Match[str], copies: dict[str, str]) -> str:
    left = _REGISTER.sub(lambda m: copies.get(m[0], m[0]), product[1])
    return product[0][: product.start(1) - product.start()] + left + product[0][product.end(1) - product.start() :]


def _copies(copies: dict[str, str], number: int) -> list[str]:
    zero = f"kept{number}_{len(copies)}"
    return [
        f"\t.reg .b32 kept{number}_<{len(copies) + 1}>;",
        f"\tmov.u32 \t{zero}, %smid;",
        f"\tshr.u32 \t{zero}, {zero}, 31;",
        *(f"\tor.b32 \t{copy}, {register}, {zero};" for register, copy in copies.items()),
    ]
