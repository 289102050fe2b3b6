"""Elementwise instructions and products whose modifiers stand in another order, twice, or not at all, for ptxas and the
interpreter: `python -m tests.interpreter.orders [COUNT] [SEED]`."""

from __future__ import annotations

import random
import re
import sys
from functools import cache

from kernel_dsl.runtime.interpreter.isa.semantics import table

from .forms import assembled, takes

_FOUR = "{f1, f2, f3, f4}"
_EIGHT = "{f1, f2, f3, f4, f5, f6, f7, f8}"
_REGISTERS = "{r1, r2, r3, r4, r5, r6, r7, r8}"
PRODUCTS = f"""
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {_FOUR}, {{r1, r2}}, {{r3}}, {_FOUR};
mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {{r1, r2, r3, r4}}, {{r1, r2, r3, r4}}, {{r5, r6}}, {{r1, r2, r3, r4}};
mma.sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {_FOUR}, {{r1, r2}}, {{r3, r4}}, {_FOUR}, r5, 1;
mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.satfinite.s32.s4.u4.s32 {{r1, r2, r3, r4}}, {{r1, r2}}, {{r5, r6}}, {{r1, r2, r3, r4}}, r5, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {_FOUR}, d1, d2, 1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {{r1, r2, r3, r4}}, d1, d2, 1;
wmma.load.a.sync.aligned.row.m16n16k16.f16 {_REGISTERS}, [d1];
wmma.load.c.sync.aligned.col.m16n16k16.global.f32 {_EIGHT}, [d1];
wmma.store.d.sync.aligned.row.m16n16k16.f32 [d1], {_EIGHT};
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {_EIGHT}, {_REGISTERS}, {_REGISTERS}, {_EIGHT};
""".strip().split("\n")
_LETTERS = {"pred": "q", "f32": "f", "f64": "g", "b128": "w"}
_LEFT_OUT = (
    "cc",
    "testp",
    "prmt",
    "lop3",
    "szext",
    "fns",
)  # with operands that the table does not name, or laxer than the ISA


def _register(type_: str, number: int) -> str:
    letter = _LETTERS.get(type_)
    if letter is None:
        bits = {"x2": 32, "x4": 32}.get(type_[-2:]) or int(re.sub(r"\D", "", type_)[-2:])
        bits = 64 if type_ == "f32x2" else 16 if type_[0] == "e" else bits
        letter = "h" if bits <= 16 else "r" if bits == 32 else "d"
    return f"{letter}{number}"


@cache
def elementwise() -> tuple[str, ...]:
    """One line for each form of the table that sm_90a has, and ptxas takes."""
    lines: list[str] = []
    for e in table.entries():
        if e.since > 90 or e.pair or e.opcode[0] in _LEFT_OUT or "cc" in (*e.operands, *e.results):
            continue
        given = [_register(t, n + 1) for n, t in enumerate((*e.results, *e.operands))]
        lines.append(f"{e.mnemonic} {', '.join(given)};")
    return tuple(lines)


def bent(rng: random.Random, line: str) -> str:
    """The instruction with its modifiers in another order, one of them twice, or one fewer."""
    opcode, rest = line.split(" ", 1)
    head, *words = opcode.split(".")
    kind = rng.random()
    if kind < 0.6:
        rng.shuffle(words)
    elif kind < 0.8:
        words.insert(rng.randrange(len(words)), rng.choice(words))
    else:
        words.pop(rng.randrange(len(words)))
    return f"{'.'.join((head, *words))} {rest}"


def differences(count: int, seed: int) -> tuple[int, list[str]]:
    """(how many ptxas takes, where the two differ) of `count` lines."""
    rng = random.Random(seed)
    straight = [rng.choice(elementwise()) for _ in range(count - count // 8)]
    straight = [line for line, why in zip(straight, assembled(straight), strict=True) if not why]
    straight += [rng.choice(PRODUCTS) for _ in range(count // 8)]
    lines = [bent(rng, line) for line in straight]
    theirs = assembled(lines)
    found = [
        f"{line}   ptxas: {why or 'takes it'}; interpreter: {takes(line) or 'takes it'}"
        for line, why in zip(lines, theirs, strict=True)
        if bool(takes(line)) != bool(why)
    ]
    return sum(not why for why in theirs), found


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    taken, unequal = differences(number, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("\n".join(unequal))
    print(f"{len(unequal)} of {number} differ; ptxas takes {taken}")
    sys.exit(bool(unequal))
