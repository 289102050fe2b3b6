"""Flags in memory that order one access after another, except that a fence is missing (PTX ISA 8.8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ptx.module import Instruction

_WIDE = {"gpu", "sys", "gl"}
_ORDERED = {"acquire", "release", "acq_rel"}


def missing_fence(code: Sequence[Instruction], first: Instruction, second: Instruction, scope: str) -> str:
    """Return what to do if a relaxed flag leads from `first` to `second` and a fence of `scope` is missing; else "".

    The flag is a strong store or atomic that follows `first` in the PTX, and a strong load or atomic before `second`.
    """
    at, then = _index(code, first), _index(code, second)
    if at is None or then is None:
        return ""
    stored, loaded = _flag(code[at + 1 :], "st"), _flag(reversed(code[:then]), "ld")
    if stored is None or loaded is None:
        return ""
    fence, places, words = f"fence.acq_rel.{scope}", list[str](), list[str]()
    if stored:
        places.append("between the write and the store of the flag")
        words.append('order="release"')
    if loaded:
        places.append("after the load that polls the flag")
        words.append('order="acquire"')
    if not places:
        return ""
    return f"put {fence} {' and '.join(places)}; in kernel-dsl: {' and '.join(words)} for the flag's atomics, or a semaphore"


def _index(code: Sequence[Instruction], ins: Instruction) -> int | None:
    return next((i for i, other in enumerate(code) if other is ins), None)


def _flag(code: Iterable[Instruction], head: str) -> bool | None:
    """Return whether the first flag of `code` lacks a fence before it; None without a flag."""
    fenced = False
    for ins in code:
        words = set(ins.opcode)
        if ins.opcode[0] in ("fence", "membar"):
            fenced |= "proxy" not in words and not words.isdisjoint(_WIDE)
        elif _is_strong(ins, head, words):
            return not fenced and words.isdisjoint(_ORDERED)
    return None


def _is_strong(ins: Instruction, head: str, words: set[str]) -> bool:
    if "shared" in words or any(w.startswith("shared::") for w in words):
        return False
    if ins.opcode[0] in ("atom", "red"):
        return ins.opcode[0] == "atom" or head == "st"
    return ins.opcode[0] == head and not words.isdisjoint({"relaxed", "volatile", *_ORDERED})
