"""Tests of mbarriers that may fail: whoever reads behind one must have looked at its result."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd

from ..check.images import image

# Each thread writes a word, arrives, and reads the word of the other warp at %r5.
BODY = """ mov.u32 %r1, %tid.x; ld.param.u64 %d1, [a]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d2, %d1; mov.u32 %r2, b; mov.u32 %r3, s;
 shl.b32 %r4, %r1, 2; add.u32 %r4, %r4, %r3; xor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r3;
 setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r2], 64; bar.sync 0;
 st.shared.u32 [%r4], %r1; mbarrier.arrive.shared.b64 %d3, [%r2]; mov.u32 %r6, 0;
 WAIT st.global.u32 [%d2], %r6;"""
BEFORE = ".shared .align 8 .b64 b;\n.shared .align 4 .b8 s[256];\n"
TEST = "mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; "
READ = "ld.shared.u32 %r6, [%r5];"
TRY = TEST.replace("test", "try")
# (instructions, whether the read is ordered)
WAITS = {
    "a loop of tests": (f"L: {TEST} @!%p2 bra L; {READ}", True),
    "a loop of waits": (f"L: {TEST.replace('test', 'try')} @!%p2 bra L; {READ}", True),
    "one test, and a read if it is true": (f"{TEST} @%p2 {READ}", True),
    "one test, then a loop": (f"{TEST} @%p2 bra E; L: {TEST.replace('test', 'try')} @!%p2 bra L; E: {READ}", True),
    "a test of a state": (f"L: mbarrier.test_wait.shared.b64 %p2, [%r2], %d3; @!%p2 bra L; {READ}", True),
    "a test whose result nothing reads": (f"{TEST} {READ}", False),
    "a wait whose result nothing reads": (f"{TEST.replace('test', 'try')} {READ}", False),
    "a test of a state whose result nothing reads": (f"mbarrier.test_wait.shared.b64 %p2, [%r2], %d3; {READ}", False),
    "a wait with a time limit whose result nothing reads": (
        f"mbarrier.try_wait.shared.b64 %p2, [%r2], %d3, 100; {READ}", False
    ),
    "one test, and a read if it is false": (f"{TEST} @!%p2 {READ}", False),
    "one test whose result becomes a number": (f"{TEST} selp.u32 %r7, 1, 2, %p2; st.global.u32 [%d2], %r7; {READ}", False),
    "one wait whose result becomes a number": (f"{TRY} selp.u32 %r7, 1, 2, %p2; st.global.u32 [%d2], %r7; {READ}", False),
    "one wait whose result selects an address": (f"{TRY} selp.u32 %r7, %r5, %r4, %p2; ld.shared.u32 %r6, [%r7];", True),
    "one wait whose result selects the wrong address": (f"{TRY} selp.u32 %r7, %r4, %r5, %p2; ld.shared.u32 %r6, [%r7];", False),
    "one wait, and a read where it fails": (f"{TRY} @%p2 bra E; {READ} E:", False),
    "one wait, and a read behind both its ways": (f"{TRY} @%p2 bra E; mov.u32 %r7, 1; E: {READ}", False),
    "one wait, and a read if its copy is true": (f"{TRY} not.pred %p3, %p2; @!%p3 {READ}", True),
    "a wait that is tried twice": (f"{TRY} @!%p2 {TRY} {READ}", False),
    "one wait, then a loop": (
        f"{TRY} selp.u32 %r7, 1, 0, %p2; setp.ne.u32 %p3, %r7, 0; @%p3 bra E; L: {TRY} @!%p2 bra L; E: {READ}", True
    ),
    "a loop that tests a number": (f"L: {TRY} selp.u32 %r7, 1, 0, %p2; setp.eq.u32 %p3, %r7, 0; @%p3 bra L; {READ}", True),
    "a loop that counts its tries": (
        f"mov.u32 %r8, 0; L: {TRY} @%p2 bra E; add.u32 %r8, %r8, 1; setp.lt.u32 %p4, %r8, 100; @%p4 bra L; trap; E: {READ}", True
    ),
    "a wait after a barrier": (f"bar.sync 0; {TRY} @!%p2 trap; {READ}", True),
    "a wait after another warp's": (
        f"setp.ge.u32 %p4, %r1, 32; @%p4 bra M; L: {TRY} @!%p2 bra L; M: bar.sync 0; {TRY} @!%p2 trap; {READ}", True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_read_behind_a_test(name: str) -> None:
    wait, ordered = WAITS[name]
    text = image(".param .u64 a", BODY.replace("WAIT", wait), before=BEFORE)
    report = kd.check(text, np.zeros(64, np.int32), grid=1, block=64)
    assert {str(h.kind) for h in report.hazards} == (set() if ordered else {"race_shared"}), str(report)


def test_a_wait_that_gives_up_has_no_verdict_by_luck() -> None:
    """A wait that another warp's arrival ends is tried in both ways, by the schedule "late" alone, too."""
    wait, _ = WAITS["one wait, and a read where it fails"]
    text = image(".param .u64 a", BODY.replace("WAIT", wait), before=BEFORE)
    for run in ("late", "random:8"):
        report = kd.check(text, np.zeros(64, np.int32), grid=1, block=64, schedules=(run,))
        assert report.verdict == "found", run
