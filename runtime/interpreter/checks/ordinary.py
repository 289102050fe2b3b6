"""Ordinary loads and stores: those that are not atomic, volatile or mmio, and not asynchronous."""

from __future__ import annotations

from ..ptx.module import Instruction

_STRONG = {"volatile", "relaxed", "acquire", "release", "mmio"}


def is_load(ins: Instruction) -> bool:
    """Return whether it is an ordinary load."""
    return ins.opcode[0] in ("ld", "ldu") and _STRONG.isdisjoint(ins.opcode)


def is_store(ins: Instruction) -> bool:
    """Return whether it is an ordinary store."""
    return ins.opcode[0] == "st" and "async" not in ins.opcode and _STRONG.isdisjoint(ins.opcode)


def may_doubt(code: list[Instruction]) -> bool:
    """Return whether a program has ordinary loads and stores of memory that others see."""
    kinds = {is_load(ins) for ins in code if (is_load(ins) or is_store(ins)) and _is_open(ins)}
    return kinds == {True, False}


def _is_open(ins: Instruction) -> bool:
    return not any(word in ("local", "const") or word.startswith("param") for word in ins.opcode)
