"""Entries of shadow memory that become one: reports are those of shadow memory that keeps all, but for the block's number."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardWarning
from kernel_dsl.runtime.interpreter.checks import columns, global_shadow
from kernel_dsl.runtime.interpreter.machine import launch as launches
from kernel_dsl.runtime.interpreter.machine import program as program_of_ptx

from .launching import kernel, launch
from .planted import REGISTERS

BLOCKS, WARPS = 8, 3
HEAD = (
    REGISTERS
    + """ ld.param.u64 d1, [a]; ld.param.u64 d2, [f]; mov.u32 r2, %ctaid.x; mov.u32 r3, %ntid.x; mad.lo.u32 r4, r2, r3, r1;
 shr.u32 r6, r1, 5; mov.u32 r20, 0;
"""
)
# A thread's byte of 1024: its own in the grid, its own in the block, that of another warp, of another block, the warp's lanes in turn.
PLACES = (
    "and.b32 r7, r4, 1023;",
    "mov.u32 r7, r1;",
    f"add.u32 r7, r1, 32; rem.u32 r7, r7, {32 * WARPS}; mad.lo.u32 r7, r2, r3, r7;",
    f"add.u32 r7, r4, {32 * WARPS}; rem.u32 r7, r7, {32 * WARPS * BLOCKS};",
    "mul.lo.u32 r7, r4, 2654435761; and.b32 r7, r7, 1023;",
)
# What orders warps, blocks, or both; the flag of a block is a word of `f`.
FLAG = "mul.wide.u32 d5, BLOCK, 4; add.s64 d5, d2, d5;"
SYNC = (
    "bar.sync 0;",
    "bar.warp.sync -1;",
    "fence.acq_rel.gpu;",
    "membar.cta;",
    f"{FLAG.replace('BLOCK', 'r2')} st.release.gpu.u32 [d5], 1;",
    f"{FLAG.replace('BLOCK', 'r2')} st.relaxed.gpu.u32 [d5], 1;",
    f"{FLAG.replace('BLOCK', 'r2')} red.release.gpu.add.u32 [d5], 1;",
    f"add.u32 r8, r2, OTHER; rem.u32 r8, r8, {BLOCKS}; {FLAG.replace('BLOCK', 'r8')} ld.acquire.gpu.u32 r9, [d5];",
    f"add.u32 r8, r2, OTHER; rem.u32 r8, r8, {BLOCKS}; {FLAG.replace('BLOCK', 'r8')} ld.relaxed.gpu.u32 r9, [d5];",
    "atom.acq_rel.gpu.add.u32 r9, [d2+64], 1;",
    "atom.relaxed.gpu.add.u32 r9, [d2+64], 1;",
)


def program(rng: random.Random) -> str:
    lines = [HEAD]
    for _ in range(rng.randint(4, 14)):
        if rng.random() < 0.4:
            lines.append(" " + rng.choice(SYNC).replace("OTHER", str(rng.randrange(1, BLOCKS))))
            continue
        warp = rng.randrange(2 * WARPS)  # one of the warps, or all
        guard = "@p1 " if warp < WARPS else ""
        access = rng.choice(("st.global.u8 [d3], h1;", "ld.global.u8 h1, [d3];", "st.volatile.global.u8 [d3], h1;",
                             "ld.relaxed.gpu.global.u8 h1, [d3];"))  # fmt: skip
        lines.append(f" setp.eq.u32 p1, r6, {warp}; {rng.choice(PLACES)} cvt.u64.u32 d3, r7; add.s64 d3, d1, d3;")
        lines.append(f" mov.u16 h1, {rng.randrange(3)}; {guard}{access}")
    return kernel(".param .u64 a, .param .u64 f", "\n".join(lines) + " ret;")


def reports(text: str, seed: int) -> list[str]:
    """The hazards of a run in words, without those that name warps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            launch(text, "k", [np.zeros(1024, np.uint8), np.zeros(32, np.uint32)], grid=BLOCKS, block=32 * WARPS,
                   on_hazard="warn", schedule=("eager", "late", "random")[seed % 3], seed=seed)  # fmt: skip
        except HazardError as error:
            return [str(error.kind)]
    found = [str(w.message) for w in caught if issubclass(w.category, HazardWarning)]
    return ["\n".join(line for line in one.splitlines() if "block" not in line) for one in found]


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12))])
def test_reports_are_those_without_folding(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "BATCH_WARPS", 2 * WARPS)  # so that blocks have ended when others begin
    # doubts need the names of readers, which folding drops
    monkeypatch.setattr(program_of_ptx, "may_doubt", lambda code: False)
    cases = [(program(random.Random(seed)), seed) for seed in range(40 * first, 40 * first + 40)]
    with monkeypatch.context() as never:
        never.setattr(global_shadow.GlobalShadow, "folding", lambda self: None)
        want = [reports(*case) for case in cases]
    folded = 0

    def collected(self: columns.Column, count: int) -> None:
        self.many = 0
        self.collect(count)

    fold = columns.Column._fold

    def counted(self: columns.Column, used: Any) -> Any:
        nonlocal folded
        found = fold(self, used)
        folded += 0 if found is None else int((found != np.arange(len(found))).sum())
        return found

    monkeypatch.setattr(columns.Column, "make_room", collected)
    monkeypatch.setattr(columns.Column, "_fold", counted)
    for case, expected in zip(cases, want, strict=True):
        assert reports(*case) == expected, case[0]
    assert folded > 20
    assert sum(map(bool, want)) > 10 and not all(want)
