"""The registers that decide whether warps leave a loop in which they spin.

A counter or a back-off changes in each round, and often decides nothing: no instruction reads it, or it only sets the
time of a sleep. If all deciding registers and memory are as they were in an earlier round, the spin never ends,
whatever the other registers hold. A counter that ends the spin after some rounds is a deciding register.

The deciding instructions are a slice of the executed segments. Instructions with effects, and branches out of these
segments, are observed. A branch decides if its direction changes which observed segment comes first after it. An
instruction decides if a deciding one reads its result. A load gives the same value if its address is the same, because
no warp writes memory meanwhile. Clocks advance, so a comparison of a time-out never repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..isa.cfg import components
from ..isa.instructions import known_form
from ..isa.liveness import used
from ..ptx.module import Instruction

_OUT = -1
# Instructions with a row that only compute or load, then those that do not change the result of any other.
_PURE = {
    "ld", "ldu", "cvta", "isspacep", "mapa", "getctarank", "shfl", "vote", "match", "redux", "elect", "activemask", "mov",
    "movmatrix", "ldmatrix",
}  # fmt: skip
_IDLE = {"nanosleep", "membar", "fence", "prefetch", "prefetchu", "pmevent"}
_CARRY = {"cc", "addc", "subc", "madc"}  # these use the condition code, which is not an operand


def deciding(segments: Sequence[Any], executed: frozenset[int], at: int) -> int | None:
    """The registers (a bit set) that decide whether warps leave the segments that they execute, and with what effect.

    `at`: the segment where states are compared. Returns None if all registers may decide, because a segment calls or
    ends.
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
            # If neither direction leads to a single observed segment, a later branch decides.
            if len(first[0] | first[1]) > 1 and min(map(len, first)) == 1:
                wanted |= 1 << segments[n].guard[0]
                observed.add(n)
        if before == (wanted, len(observed)):
            return wanted


def with_pauses(segments: Sequence[Any], executed: frozenset[int], at: int) -> frozenset[int]:
    """Return `executed` with the segments of the loop around `at` that only compute, load or sleep, as in a growing
    back-off.
    """
    pauses = {n for n in loop_around(segments, at) if all(_kind(ins) != "effect" for ins in segments[n].code)}
    return executed | {n for n in pauses if segments[n].kind in ("fall", "branch")}


def is_used(segments: Sequence[Any], ins: Instruction) -> bool:
    """Return whether a result of an instruction may reach an effect, a branch or another function."""
    held = used(ins)[1]
    code = [(i, *used(i)) for seg in segments for i in (*seg.code, *([seg.end] if seg.end else []))]
    before = 0
    while before != held:
        before = held
        for other, reads, writes in code:
            if reads & held:
                if _kind(other) != "pure" or other.opcode[0] in ("call", "ret", "bra", "brx"):
                    return True
                held |= writes
        if any(seg.guard is not None and held >> seg.guard[0] & 1 for seg in segments):
            return True
    return False


def loop_around(segments: Sequence[Any], at: int) -> set[int]:
    """Return the segments that are reached from `at`, and from which `at` is reached."""
    loop = components((), {n: seg.targets for n, seg in enumerate(segments)}, at)[-1]
    return set(loop) if len(loop) > 1 or at in segments[at].targets else set()


def looping(segments: Sequence[Any]) -> set[int]:
    """Return the segments that may run again after themselves, in one call of the function."""
    edges = {n: seg.targets for n, seg in enumerate(segments)}
    loops = [found for found in components(list(edges), edges, 0) if len(found) > 1 or found[0] in edges[found[0]]]
    return {n for found in loops for n in found}


def _first(segments: Sequence[Any], executed: frozenset[int], observed: set[int], start: int) -> set[int]:
    """Return the observed segments that may come first from `start` on; _OUT stands for segments that were not
    executed.
    """
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
