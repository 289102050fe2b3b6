"""Comparisons of integers that are made again where they are used, in kernels whose many masks live long.

LLVM makes equal comparisons once, and moves selections to the stores of their results. A mask of each column then lives from
its first use to its last. A lane has seven predicate registers: ptxas moves the other masks into bits of registers or to local
memory, and keeps what they would select. A Cholesky factor of 32 x 32 took 72 registers so, and takes 48 where each mask is
compared again. This is done in the PTX, because LLVM would make equal comparisons one again.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

__all__ = ["compare_again"]

MANY = 16  # more masks live at once, and more are compared again, or a kernel stays as it is
NEAR = 16  # instructions after a comparison, in which its mask is used as it is
SHARED = 3  # a register in more comparisons than these lives long anyway, such as a lane's number

_DECLARED = "\t.reg .pred \t%p<"
# patterns of what few kernels need, compiled at their first use
_COMPARISON = r"\tsetp\.\w+\.[bsu]\d+ \t(%p\d+), (%\w+), (%\w+|-?\d+);$"
_FIRST = r"\t(?:@!?%p\d+ )?[a-z][\w.:]*\s+(\{[^}]*\}|[^,;]*)"  # the operand that an instruction writes
_MASK, _REGISTER = r"%p\d+\b", r"%\w+"
_APART = r"\$L__BB\w+:|\t(?:@!?%p\d+ )?(?:bra|brx|ret|exit|trap)\b"  # where a basic block begins or ends
_NO_CODE = r"\t\.|\t//|\$L__tmp|\s*$"


def compare_again(ptx: str) -> str:
    """The PTX with such comparisons before distant uses; PTX of kernels with few masks is returned as it is."""
    start = ptx.rfind(_DECLARED)
    while start >= 0:
        end = ptx.find("\n}", start)
        if ptx.count("\tsetp.", start, end) > MANY and _most_at_once(ptx[start:end]) > MANY:
            ptx = ptx[:start] + _compared_again(ptx[start:end].split("\n")) + ptx[end:]
        start = ptx.rfind(_DECLARED, 0, start)
    return ptx


def _most_at_once(text: str) -> int:
    """The most masks of a function that live at once, from the first place in the text to the last."""
    named = re.findall(_MASK, text)
    last = {mask: place for place, mask in enumerate(named)}
    first = {mask: -place for place, mask in enumerate(reversed(named), 1 - len(named))}
    steps = [0] * len(named)
    for mask, place in last.items():
        steps[first[mask]] += 1
        steps[place] -= 1
    return max(accumulate(steps))


def _compared_again(lines: list[str]) -> str:
    """The text of a function whose first line declares the masks."""
    again, count = list(_distant(lines)), int(lines[0][len(_DECLARED) : -2])
    if len(again) > MANY:
        before: defaultdict[int, list[str]] = defaultdict(list)
        for number, (line, made, mask) in enumerate(again, count):
            before[line].append(_renamed(lines[made], mask, number))
            lines[line] = _renamed(lines[line], mask, number)
        lines[0] = lines[0].replace(f"<{count}>", f"<{count + len(again)}>")
        lines = [text for number, line in enumerate(lines) for text in (*before[number], line)]
    return "\n".join(lines)


def _renamed(line: str, mask: str, number: int) -> str:
    return re.sub(rf"{mask}\b", f"%p{number}", line)


def _distant(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """The distant uses of masks in the basic blocks of their comparisons: the lines of the use and of the comparison, and
    the mask.
    """
    places: defaultdict[str, list[int]] = defaultdict(list)  # of masks
    for number, line in enumerate(lines[1:], 1):
        for mask in set(re.findall(_MASK, line)):
            places[mask].append(number)
    assembly = list(
        accumulate(line.startswith("\t// begin inline") - line.startswith("\t// end inline") for line in lines)
    )
    blocks = list(accumulate(bool(re.match(_APART, line)) for line in lines))
    ages = list(accumulate(not re.match(_NO_CODE, line) for line in lines))
    comparisons = {
        number: found
        for number, line in enumerate(lines)
        if not assembly[number] and (found := re.match(_COMPARISON, line))
    }
    shared = Counter(x for found in comparisons.values() for x in found.groups()[1:])
    written = _written(lines, assembly)
    for number, found in comparisons.items():
        mask, *operands = found.groups()
        if len(written[mask]) > 1 or any(shared[x] <= SHARED for x in operands if x[0] == "%"):
            continue
        for use in places[mask]:
            near = ages[use] - ages[number] <= NEAR or blocks[use] != blocks[number]
            if not near and all(bisect(written[x], number) == bisect(written[x], use) for x in operands):
                yield use, number, mask


def _written(lines: Sequence[str], assembly: Sequence[int]) -> defaultdict[str, list[int]]:
    """The lines that write each register, or may do so: inline PTX that names it."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        first = re.match(_FIRST, line)
        for register in re.findall(_REGISTER, line if assembly[number] else first[1] if first else ""):
            found[register].append(number)
    return found
