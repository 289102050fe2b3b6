"""Planted bugs of mbarriers: one that begins again while it is valid, and a wait that may have given up."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import HazardKind as K

from ..check.images import image
from .planted import Planted, check, swap

BEFORE = ".shared .align 8 .b64 b[2];\n"
HEAD = " mov.u32 %r1, %tid.x; mov.u32 %r2, b; and.b32 %r3, %r1, 31; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r3, 0; "
INIT = "mbarrier.init.shared.b64 [%r2], 64; "
USE = "bar.sync 0; mbarrier.arrive.shared.b64 %d3, [%r2]; L: mbarrier.try_wait.shared.b64 %p3, [%r2], %d3; @!%p3 bra L; bar.sync 0; "
AGAIN = USE.replace("L", "M")
# (instructions, what the report says, or "" for no hazard)
LIVES = {
    "once": (f"@%p1 {INIT}{USE}", ""),
    "again after inval": (f"@%p1 {INIT}{USE} @%p1 mbarrier.inval.shared.b64 [%r2]; @%p1 {INIT}{AGAIN}", ""),
    "again without inval": (f"@%p1 {INIT}{USE} @%p1 {INIT}{AGAIN}", "initialised while it is valid"),
    "again at once": (f"@%p1 {INIT} @%p1 {INIT}{USE}", "initialised while it is valid"),
    "again by a generic address": (
        f"@%p1 {INIT} cvt.u64.u32 %d5, %r2; cvta.shared.u64 %d5, %d5; @%p1 mbarrier.init.b64 [%d5], 64; {USE}",
        "initialised while it is valid",
    ),
    "again after other data": (
        f"@%p1 {INIT}{USE} @%p1 st.shared.u64 [%r2], 0; @%p1 {INIT}{AGAIN}", "initialised while it is valid"
    ),
    "the second after the first": (f"@%p1 {INIT} @%p1 mbarrier.init.shared.b64 [%r2+8], 1; {USE}", ""),
    "by all lanes of a warp": ("setp.lt.u32 %p4, %r1, 32; @%p4 " + INIT + USE, ""),
    "by lanes with counts of their own": (
        "setp.lt.u32 %p4, %r1, 32; add.u32 %r4, %r1, 33; @%p4 mbarrier.init.shared.b64 [%r2], %r4; ",
        "initialised by lanes with different counts",
    ),
    "by two warps": (f"@%p2 {INIT}{USE}", "initialised"),
}  # fmt: skip


# All threads write a word and arrive, and wait for the others; then the mbarrier begins anew.
PHASES = """ .shared .align 8 .b64 bar; .shared .align 4 .b8 t[256]; mov.u32 r2, bar; mov.u32 r3, t; shl.b32 r4, r1, 2; add.u32 r4, r4, r3;
 xor.b32 r5, r1, 32; shl.b32 r5, r5, 2; add.u32 r5, r5, r3; setp.ne.u32 p1, r1, 0; @p1 bra A; mbarrier.init.shared.b64 [r2], 64;
A: bar.sync 0; st.shared.u32 [r4], r1; mbarrier.arrive.shared.b64 d1, [r2];
W: mbarrier.try_wait.shared.b64 p2, [r2], d1; @!p2 bra W;
 ld.shared.u32 r6, [r5]; bar.sync 0; @p1 bra B;
 mbarrier.inval.shared.b64 [r2];
 mbarrier.init.shared.b64 [r2], 64;
B: bar.sync 0; mbarrier.arrive.shared.b64 d1, [r2];
X: mbarrier.try_wait.shared.b64 p2, [r2], d1; @!p2 bra X; ret;"""
# The same, where the second phase alone orders the words.
TOKENS = """ .shared .align 8 .b64 bar; .shared .align 4 .b8 t[256]; mov.u32 r2, bar; mov.u32 r3, t; shl.b32 r4, r1, 2; add.u32 r4, r4, r3;
 xor.b32 r5, r1, 32; shl.b32 r5, r5, 2; add.u32 r5, r5, r3; setp.ne.u32 p1, r1, 0; @p1 bra A; mbarrier.init.shared.b64 [r2], 64;
A: bar.sync 0; mbarrier.arrive.shared.b64 d1, [r2];
W: mbarrier.try_wait.shared.b64 p2, [r2], d1; @!p2 bra W;
 st.shared.u32 [r4], r1; mbarrier.arrive.shared.b64 d2, [r2];
X: mbarrier.try_wait.shared.b64 p2, [r2], d2; @!p2 bra X;
 ld.shared.u32 r6, [r5]; ret;"""
CASES = [
    swap("a wait for the phase before", K.RACE_SHARED, TOKENS, "[r2], d2; @!p2", "[r2], d1; @!p2"),
    swap(
        "an mbarrier begins again without an end", K.BARRIER_MISUSE, PHASES, " mbarrier.inval.shared.b64 [r2];\n",
        mentions=("'bar' is initialised while it is valid", "mbarrier.inval"),
    ),
    swap(
        "a phase ends by .noComplete", K.BARRIER_MISUSE, PHASES.replace("mbarrier.arrive.shared.b64 d1, [r2];\nW",
            "@p1 mbarrier.arrive.noComplete.shared.b64 d1, [r2], 1; bar.sync 0; @!p1 mbarrier.arrive.shared.b64 d1, [r2];\nW"),
        "@p1 mbarrier.arrive.noComplete.shared.b64 d1, [r2], 1; bar.sync 0; @!p1 mbarrier.arrive.shared.b64 d1, [r2];",
        "@!p1 mbarrier.arrive.shared.b64 d1, [r2]; bar.sync 0; @p1 mbarrier.arrive.noComplete.shared.b64 d1, [r2], 1;",
        mentions=("'bar' completes its phase by an arrival with .noComplete",),
    ),
    swap(
        "one wait, which may give up", K.RACE_SHARED, PHASES, "@!p2 bra W;", "selp.u32 r7, 1, 0, p2; st.shared.u32 [r4], r7;",
        found=("late",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted(case: Planted) -> None:
    check(case)


@pytest.mark.parametrize("name", LIVES)
def test_lives_of_an_mbarrier(name: str) -> None:
    body, says = LIVES[name]
    report = kd.check(image("", HEAD + body, before=BEFORE), grid=3, block=64, ignore=("race_shared",))
    assert {str(h.kind) for h in report.hazards} == ({"barrier_misuse"} if says else set()), str(report)
    for hazard in report.hazards:
        assert says in hazard.message and "mbarrier.inval" in hazard.fix, hazard


def test_each_launch_has_blocks_of_its_own() -> None:
    text = image(".param .u64 a", f"{HEAD}@%p1 {INIT}{USE}", before=BEFORE)
    launch = kd.check.launch(text, np.zeros(4, np.int32), grid=300, block=64)
    assert kd.check.sequence([launch, launch]).verdict == "none"
