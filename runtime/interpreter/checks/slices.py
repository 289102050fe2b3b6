"""What a spin goes on by: the registers that decide whether warps leave the code that they go round in.

A counter or a back-off changes in each round, and decides nothing: it is never looked at, or says only when to sleep. If all
that decides is as it was, and memory too, the spin goes on for ever, whatever the counter. A counter that ends the spin after
so many rounds does decide.

The decision is a slice of the segments that were executed. Observed are what has effects, and branches out of these segments.
A branch decides if what is observed first after it depends on where it goes; an instruction decides if it computes what one
that decides reads. What loads bring is as it was where their addresses are, as nobody writes memory. Clocks go on, so what a
time-out compares is never as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..isa.instructions import known_form
from ..isa.liveness import used
from ..ptx.module import Instruction

_OUT = -1
# Instructions with a row that only compute or load, and those that have no effect on what any other gives.
_PURE = {
    "ld", "ldu", "cvta", "isspacep", "mapa", "getctarank", "shfl", "vote", "match", "redux", "elect", "activemask", "mov",
    "movmatrix", "ldmatrix",
}  # fmt: skip
_IDLE = {"nanosleep", "membar", "fence", "prefetch", "prefetchu", "pmevent"}
_CARRY = {"cc", "addc", "subc", "madc"}  # the condition code is no operand


def deciding(segments: Sequence[Any], executed: frozenset[int], at: int) -> int | None:
    """The registers (a bit set) that decide whether warps that execute these segments leave them, and with what effect.

    `at`: the segment where states are compared. None where all may, as where a segment calls or ends.
    """
    if any(segments[n].kind not in ("fall", "branch") for n in executed):
        return None
    code = [(n, ins) for n in executed for ins in segments[n].code]
    if any(_unknown(ins) for _, ins in code):
        return None
    wanted, observed = 0, {at}
    pure: list[tuple[int, int, int]] = []  # (segment, registers read, written)
    for n, ins in code:
        reads, writes = used(ins)
        if _kind(ins) == "effect":
            wanted |= reads | writes
            observed.add(n)
        elif _kind(ins) == "pure":
            pure.append((n, reads, writes))
    branches = [n for n in executed if segments[n].kind == "branch"]
    while True:
        before = wanted, len(observed)
        for n, reads, writes in pure:
            if writes & wanted:
                wanted |= reads
                observed.add(n)
        for n in branches:
            first = [_first(segments, executed, observed, target) for target in segments[n].targets]
            # Where neither way leads to one thing alone, a later branch parts them.
            if len(first[0] | first[1]) > 1 and min(map(len, first)) == 1:
                wanted |= 1 << segments[n].guard[0]
                observed.add(n)
        if before == (wanted, len(observed)):
            return wanted


def with_pauses(segments: Sequence[Any], executed: frozenset[int], at: int) -> frozenset[int]:
    """Also the segments of the loop around `at` that only compute, load or sleep, as a back-off does that gets longer."""
    pauses = {n for n in loop_around(segments, at) if all(_kind(ins) != "effect" for ins in segments[n].code)}
    return executed | {n for n in pauses if segments[n].kind in ("fall", "branch")}


def loop_around(segments: Sequence[Any], at: int) -> set[int]:
    """Return the segments to which one comes from `at`, and from which one comes to it."""
    ways: dict[int, list[int]] = {n: segments[n].targets for n in range(len(segments))}
    ahead = _reached(at, ways)
    before: dict[int, list[int]] = {}
    for n in ahead:
        for target in ways[n]:
            before.setdefault(target, []).append(n)
    return ahead & _reached(at, before)


def _reached(start: int, ways: dict[int, list[int]]) -> set[int]:
    """The segments that one comes to from `start` in at least one step."""
    found: set[int] = set()
    left = list(ways.get(start, ()))
    while left:
        n = left.pop()
        if n not in found:
            found.add(n)
            left += ways.get(n, ())
    return found


def _first(segments: Sequence[Any], executed: frozenset[int], observed: set[int], start: int) -> set[int]:
    """The observed segments that may come first from `start` on; _OUT for those that were not executed."""
    found: set[int] = set()
    seen: set[int] = set()
    left = [start]
    while left:
        n = left.pop()
        if n in seen:
            continue
        seen.add(n)
        if n not in executed:
            found.add(_OUT)
        elif n in observed:
            found.add(n)
        else:
            left += segments[n].targets
    return found


def _kind(ins: Instruction) -> str:
    head = ins.opcode[0]
    if head in _IDLE or ins.opcode[:3] == ("bar", "warp", "sync"):
        return "idle"
    if (
        head in _PURE
        or known_form(ins) is None
        or ins.opcode[:2] in (("mbarrier", "test_wait"), ("mbarrier", "try_wait"))
    ):
        return "pure"
    return "effect"


def _unknown(ins: Instruction) -> bool:
    return not _CARRY.isdisjoint(ins.opcode) or ins.opcode[0] in ("wgmma", "setmaxnreg")
