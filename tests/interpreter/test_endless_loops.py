"""Loops that store, count or call for ever are told in seconds; loops that end, however late, are not taken for these."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.check import run as checked
from kernel_dsl.runtime.interpreter.checks import joint, livelock, runaway
from tests.check.images import image
from tests.speed import on_the_reference

START = """ ld.param.u64 %d1,[a]; mov.u32 %r9,0; mov.u32 %r8,8; mov.u32 %r7,100; mov.u32 %r1,%tid.x; mul.wide.u32 %d2,%r1,4;
 add.u64 %d2,%d1,%d2; setp.eq.u32 %p5,%r1,0;
"""
STORE = "L: st.global.u32 [%d2],%r9; add.u32 %r9,%r9,1; "
CELL = " .shared .align 16 .b8 m[1024]; mov.u32 %r3,m; shl.b32 %r4,%r1,4; add.u32 %r3,%r3,%r4;"
COPY = (
    CELL + " mul.wide.u32 %d3,%r1,16; add.u64 %d3,%d1,%d3; L: cp.async.ca.shared.global [%r3],[%d3],16;"
    " cp.async.commit_group; cp.async.wait_group 0; add.u32 %r9,%r9,1; "
)
ENDLESS = {
    "no branch": (STORE + "bra L;", "livelock"),
    "a bound too far": (STORE + "setp.lt.u32 %p1,%r9,4294967295; @%p1 bra L;", "step_budget"),
    "the wrong direction": ("L: st.global.u32 [%d2],%r9; add.s32 %r9,%r9,-1; setp.lt.s32 %p1,%r9,9; @%p1 bra L;", "step_budget"),
    "the wrong register": (STORE + "setp.lt.u32 %p1,%r8,%r7; @%p1 bra L;", "livelock"),
    "a loop in a loop": (
        "K: mov.u32 %r10,0; " + STORE + "add.u32 %r10,%r10,1; setp.lt.u32 %p1,%r10,5; @%p1 bra L; setp.lt.u32 %p2,%r8,%r7;"
        " @%p2 bra K;",
        "livelock",
    ),
    "barriers": ("L: add.u32 %r9,%r9,1; bar.sync 0; setp.lt.u32 %p1,%r9,4000000; @%p1 bra L;", "step_budget"),
    "phases of an mbarrier": (
        CELL + " mov.u32 %r3,m; @%p5 mbarrier.init.shared.b64 [%r3],64; bar.sync 0;\nL: mbarrier.arrive.shared.b64 %d4,[%r3];\n"
        "W: mbarrier.try_wait.shared.b64 %p1,[%r3],%d4; @!%p1 bra W; bra L;",
        "livelock",
    ),
    "reductions": ("L: red.global.add.u32 [%d1],1; bra L;", "livelock"),
    "copies": (COPY + "bra L;", "livelock"),
    "lanes that leave": (STORE + "setp.gt.u32 %p1,%r9,%r1; setp.gt.u32 %p2,%r1,9; and.pred %p1,%p1,%p2; @%p1 ret; bra L;", "step_budget"),
}  # fmt: skip
# (body, what thread 0 stores at last)
ENDING = {
    "a guarded ret": (STORE + "setp.gt.u32 %p1,%r9,4500; @%p1 ret; bra L;", 4500),
    "a count for each lane": (STORE + "mad.lo.u32 %r6,%r1,90,3000; setp.lt.u32 %p1,%r9,%r6; @%p1 bra L;", 2999),
    "a float": (
        "mov.f32 %f1,0f00000000; L: st.global.f32 [%d2],%f1; add.f32 %f1,%f1,0f3F800000; setp.lt.f32 %p1,%f1,0f45A00000;"
        " @%p1 bra L;",
        0x459FF800,
    ),
    "what it stored": (
        "L: ld.global.u32 %r2,[%d2]; add.u32 %r2,%r2,1; st.global.u32 [%d2],%r2; setp.lt.u32 %p1,%r2,4500; @%p1 bra L;",
        4500,
    ),
    "the clock": (
        "mov.u64 %d5,%clock64; L: st.global.u32 [%d2],7; mov.u64 %d6,%clock64; sub.u64 %d6,%d6,%d5; setp.lt.u64 %p1,%d6,90000;"
        " @%p1 bra L;",
        7,
    ),
    "a bound that moves": (
        "mov.u32 %r10,1; " + STORE + "and.b32 %r6,%r9,1023; setp.ne.u32 %p2,%r6,0; @%p2 bra M; shl.b32 %r10,%r10,1;"
        " M: setp.lt.u32 %p1,%r10,32; @%p1 bra L;",
        5 * 1024 - 1,
    ),
    "two strides": (
        "L: st.global.u32 [%d2],%r9; setp.lt.u32 %p2,%r9,3000; @%p2 add.u32 %r9,%r9,1; @!%p2 add.u32 %r9,%r9,7;"
        " setp.lt.u32 %p1,%r9,9000; @%p1 bra L;",
        3000 + 857 * 7,
    ),
}  # fmt: skip


def run(body: str, **options) -> tuple[kd.Report, int]:
    data = np.zeros(4096, np.int32)
    report = kd.check(image(".param .u64 a", START + body), data, grid=1, block=64, **options)
    return report, int(data[0])


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.sampled(4)
def test_a_loop_that_nobody_ends(name: str) -> None:
    body, kind = ENDLESS[name]
    report, _ = run(body, schedules=("eager", "late", "random:2"))
    assert [str(h.kind) for h in report.hazards] == [kind] and report.steps < 100_000, report


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.sampled(4)
def test_a_loop_that_ends(name: str) -> None:
    body, last = ENDING[name]
    report, stored = run(body, schedules="eager")
    assert (report.verdict, stored) == ("none", last) and report.steps > 20_000, report.steps


def test_a_small_budget_ends_a_loop_that_a_large_one_does_not() -> None:
    body = STORE + "setp.lt.u32 %p1,%r9,6000; @%p1 bra L;"
    report, _ = run(body, schedules="eager", step_budget=20_000)
    assert [str(h.kind) for h in report.hazards] == ["step_budget"] and report.steps < 8_000
    assert run(body, schedules="eager", step_budget=40_000)[0].verdict == "none"


DEEP = """.func (.param .b32 r) f (.param .b32 n) {
 .reg .b32 %r<4>; .reg .pred %p1; .local .align 16 .b8 x[240];
 ld.param.u32 %r1, [n]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r3, 0; @%p1 bra E; sub.u32 %r2, %r1, 1;
 { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), f, (a); ld.param.b32 %r3, [b]; }
 add.u32 %r3, %r3, 1;
E: st.param.b32 [r], %r3; ret;
}
"""
CALL = """ ld.param.u64 %d1,[a]; mov.u32 %r1, %tid.x; add.u32 %r2, %r1, COUNT; mul.wide.u32 %d2,%r1,4; add.u64 %d2,%d1,%d2;
 { .param .b32 x; .param .b32 y; st.param.b32 [x], %r2; call (y), f, (x); ld.param.b32 %r3, [y]; }
 st.global.u32 [%d2], %r3;"""


def test_calls_that_nest() -> None:
    data = np.zeros(32, np.int32)
    text = image(".param .u64 a", CALL, before=DEEP)
    assert kd.check(text.replace("COUNT", "400"), data, grid=1, block=32, schedules="random").verdict == "none"
    assert (data == 400 + np.arange(32)).all()
    report = kd.check(
        text.replace("COUNT", "-3"), data, grid=1, block=32, schedules="eager"
    )  # of lanes 0 to 2 the recursion never ends
    assert [str(h.kind) for h in report.hazards] == ["out_of_bounds"]
    assert "1025 nested calls need more than 262144 bytes of stack" in report.hazards[0].message


def test_copies_that_lanes_keep_to_themselves_take_the_same_time_each() -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        assert run(COPY + f"setp.lt.u32 %p1,%r9,{count}; @%p1 bra L;", schedules="eager")[0].hazards == []
        return time.process_time() - began

    seconds(10)
    assert seconds(1200) < 24 * max(seconds(150), 0.02)


# %d2: this lane's word of `a`; %d4: the first word of `f`; %d5: this lane's word of `f`
LOADS = """ ld.param.u64 %d1,[a]; ld.param.u64 %d4,[f]; mov.u32 %r1,%tid.x; mul.wide.u32 %d2,%r1,4; add.u64 %d5,%d4,%d2;
 add.u64 %d2,%d1,%d2; mov.u32 %r9,0; setp.eq.u32 %p5,%r1,0; mov.u32 %r3,0;
"""
COUNT = "ld.global.u32 %r2,[%d2]; add.u32 %r2,%r2,1; st.global.u32 [%d2],%r2;"
SHARED = " .shared .u32 s; @%p5 st.shared.u32 [s],0; bar.sync 0;"
FROZEN = {
    "a flag": f"L: {COUNT} ld.volatile.global.u32 %r3,[%d4]; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
    "a flag, and barriers": f"L: {COUNT} bar.sync 0; ld.global.u32 %r3,[%d4]; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
    "an addition of nothing": f"L: {COUNT} atom.global.add.u32 %r3,[%d4],0; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
    "a list in a ring": f"L: {COUNT} mul.wide.u32 %d6,%r3,4; add.u64 %d6,%d4,%d6; ld.global.u32 %r3,[%d6+4]; "
    "setp.ne.u32 %p1,%r3,99; @%p1 bra L;",
    "a word of shared memory": f"{SHARED} L: {COUNT} ld.shared.u32 %r3,[s]; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
}  # fmt: skip
THAWED = {
    "a flag that each round stores": f"L: {COUNT} add.u32 %r9,%r9,1; setp.eq.u32 %p2,%r9,9000; selp.u32 %r4,1,0,%p2; st.global.u32 [%d5],%r4;"
    " ld.volatile.global.u32 %r3,[%d5]; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
    "a flag that the loop raises at last": f"L: {COUNT} add.u32 %r9,%r9,1; setp.eq.u32 %p2,%r9,9000; @%p2 st.global.u32 [%d5],1;"
    " ld.volatile.global.u32 %r3,[%d5]; setp.eq.u32 %p1,%r3,0; @%p1 bra L;",
    "a flag that the other lanes raise at last": f"L: {COUNT} add.u32 %r9,%r9,1; setp.eq.u32 %p2,%r9,9000; @%p2 bra E;"
    " ld.volatile.global.u32 %r3,[%d4]; setp.eq.u32 %p1,%r3,0; @%p1 bra L; bra F; E: atom.global.exch.b32 %r4,[%d4],1; F:",
    "a counter in shared memory": f"{SHARED} @!%p5 bra F; L: {COUNT} ld.shared.u32 %r3,[s]; add.u32 %r3,%r3,1; st.shared.u32 [s],%r3;"
    " setp.lt.u32 %p1,%r3,9000; @%p1 bra L; F:",
}  # fmt: skip


def decided(body: str) -> kd.HazardKind | None:
    data, flags = np.zeros(64, np.int32), np.zeros(64, np.int32)
    text = image(".param .u64 a, .param .u64 f", LOADS + body)
    found = kd.check(text, data, flags, grid=1, block=64, schedules="eager", ignore=("equal_value_race",))
    return found.hazards[0].kind if found.hazards else None


def names(of: Iterable[str]) -> list[Any]:
    """The first, and the others in the long form."""
    return [pytest.param(n, marks=[pytest.mark.slow] if at else []) for at, n in enumerate(of)]


@pytest.fixture(params=[5, pytest.param(1, marks=pytest.mark.slow)], ids=["early looks", "looks as they are"])
def sooner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """By how much the checks look sooner, and sooner again, than for a user: loops may be shorter by the same factor."""
    for module, name in ((livelock, "_FIRST"), (joint, "_FIRST"), (runaway, "_EVERY")):
        monkeypatch.setattr(module, name, getattr(module, name) // request.param)
    return request.param


@pytest.mark.parametrize("name", names(FROZEN))
def test_a_loop_that_memory_decides_and_that_stores(name: str, sooner: int) -> None:
    def decide() -> None:
        assert decided(FROZEN[name]) == "livelock"

    assert on_the_reference(decide, 10, tries=2) <= 10


@pytest.mark.parametrize("name", names(THAWED))
def test_a_loop_that_memory_ends_at_last(name: str, sooner: int) -> None:
    assert "9000" in THAWED[name] and decided(THAWED[name].replace("9000", str(9000 // sooner))) is None


# Warp 0 takes the word from 0 to 1 in one loop, and warp 1 takes it back to 0 in another one.
SWAP = """ @!%p5 bra N; M: ld.volatile.global.u32 %r3,[%d4]; setp.gt.u32 %p2,%r3,4; @%p2 ret; setp.ne.u32 %p1,%r3,0; @%p1 bra M;
 add.u32 %r9,%r9,1; ENOUGH st.volatile.global.u32 [%d4],1; bra M; Q: st.volatile.global.u32 [%d4],9; ret;
 N: ld.volatile.global.u32 %r3,[%d4]; setp.gt.u32 %p2,%r3,4; @%p2 ret; setp.ne.u32 %p1,%r3,1; @%p1 bra N; st.volatile.global.u32 [%d4],0; bra N;
"""
TOGETHER = {
    "a word that warps hand to each other": (SWAP.replace("ENOUGH", ""), "livelock"),
    "the same, with a count": (SWAP.replace("ENOUGH", "setp.gt.u32 %p3,%r9,100; @%p3 bra Q;"), None),
    "a warp behind another one's loop": (
        f" @%p5 bra M; L: {COUNT.replace('add.u32 %r2,%r2,1', 'xor.b32 %r2,%r2,1')} ld.global.u32 %r3,[%d4]; setp.eq.u32 %p1,%r3,0;"
        " @%p1 bra L; ret; M: add.u32 %r9,%r9,1; setp.lt.u32 %p2,%r9,20; @%p2 bra M; st.global.u32 [%d4],1; ret;",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", names(TOGETHER))
def test_warps_that_come_back_to_a_state_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_FIRST", 2_000)
    body, kind = TOGETHER[name]
    ones = " and.b32 %r4,%r1,31; setp.ne.u32 %p4,%r4,0; @%p4 ret;"
    data, flags = np.zeros(64, np.int32), np.zeros(64, np.int32)
    text = image(".param .u64 a, .param .u64 f", LOADS + ones + body)
    races = ("equal_value_race", "race_global")
    report = kd.check(
        text, data, flags, grid=1, block=64, schedules=("eager", "late"), ignore=races, step_budget=60_000
    )
    assert [str(h.kind) for h in report.hazards] == ([kind] if kind else []), report
    assert kind is None or "the run never ends under this schedule: every" in report.hazards[0].message
    assert kind or int(flags[0]) > 0


def test_after_a_random_schedule_warps_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_FIRST", 2_000)
    monkeypatch.setattr(joint, "_ROUNDS_OF_RANDOM", 8)
    ones = " and.b32 %r4,%r1,31; setp.ne.u32 %p4,%r4,0; @%p4 ret;"
    text = image(".param .u64 a, .param .u64 f", LOADS + ones + SWAP.replace("ENOUGH", ""))
    data, flags = np.zeros(64, np.int32), np.zeros(64, np.int32)
    races = ("equal_value_race", "race_global")
    report = kd.check(text, data, flags, grid=1, block=64, schedules="random", ignore=races, step_budget=120_000)
    assert [str(h.kind) for h in report.hazards] == ["step_budget"], report
    assert "the run was ended, as only luck may end it: if warps take turns, every" in report.hazards[0].message


# Warp 0 raises a word and takes it back, without end, until warp 1 has seen it down and up by turns in four looks.
BY_TURNS = """ @!%p5 bra N; M: ld.volatile.global.u32 %r3,[%d4+4]; setp.ne.u32 %p1,%r3,0; @%p1 ret; st.volatile.global.u32 [%d4],1;
 ld.volatile.global.u32 %r3,[%d4+4]; st.volatile.global.u32 [%d4],0; bra M;
 N: mov.u32 %r9,0; L: ld.volatile.global.u32 %r3,[%d4]; and.b32 %r4,%r9,1; setp.ne.u32 %p1,%r3,%r4; @%p1 bra N;
 add.u32 %r9,%r9,1; setp.lt.u32 %p2,%r9,4; @%p2 bra L; st.volatile.global.u32 [%d4+4],1; ret;
"""


def test_a_retry_that_luck_may_end_is_no_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_FIRST", 300)
    monkeypatch.setattr(joint, "_ROUNDS_OF_RANDOM", 2)
    ones = " and.b32 %r4,%r1,31; setp.ne.u32 %p4,%r4,0; @%p4 ret;"
    text = image(".param .u64 a, .param .u64 f", LOADS + ones + BY_TURNS)
    data, flags = np.zeros(64, np.int32), np.zeros(64, np.int32)
    races = ("equal_value_race", "race_global")
    report = kd.check(text, data, flags, grid=1, block=64, schedules="random:4", ignore=races)
    assert [str(h.kind) for h in report.hazards] == ["step_budget"], report
    assert "only luck may end it" in report.hazards[0].message


# Loops whose end nothing decides, under a patience of 2,000 instructions. Memory of `f` counts from 0.
WALK = "mul.wide.u32 %d6,%r3,4; add.u64 %d6,%d4,%d6; mad.lo.u32 %r3,%r3,5,3; and.b32 %r3,%r3,63;"
UNDECIDED = {
    "an atomic that counts to a far value": "L: atom.global.add.u32 %r2,[%d4],1; setp.lt.u32 %p1,%r2,4000000000; @%p1 bra L;",
    "a reduction that a load sees": "L: red.global.add.u32 [%d4],1; ld.relaxed.gpu.global.u32 %r2,[%d4];"
    " setp.lt.u32 %p1,%r2,4000000000; @%p1 bra L;",
    "a state with a long period": "L: st.global.u32 [%d2],%r3; mad.lo.u32 %r3,%r3,1664525,1013904223; and.b32 %r3,%r3,524287;"
    " setp.ne.u32 %p1,%r3,1000000; @%p1 bra L;",
    "a state of each lane": "mov.u32 %r3,%r1; L: st.global.u32 [%d2],%r3; mad.lo.u32 %r3,%r3,1664525,1013904223;"
    " setp.eq.u32 %p1,%r3,%r3; @%p1 bra L;",
    "a counter in memory": f"L: {COUNT} setp.ne.u32 %p1,%r2,0; @%p1 bra L;",
    "a walk over memory that stores": f"L: {WALK} @%p5 st.global.u32 [%d6],%r9; add.u32 %r9,%r9,1; ld.global.u32 %r2,[%d5];"
    " setp.ne.u32 %p1,%r2,-7; @%p1 bra L;",
    "a loop that ends in one that does not": f"K: mov.u32 %r4,0; L: {COUNT} add.u32 %r4,%r4,1; setp.lt.u32 %p1,%r4,50; @%p1 bra L;"
    " setp.ne.u32 %p2,%r2,-7; @%p2 bra K;",
    "a counter that is set back": f"L: {COUNT} add.u32 %r9,%r9,1; and.b32 %r9,%r9,255; setp.lt.u32 %p1,%r9,2000; @%p1 bra L;",
}  # fmt: skip
# (body, the word of `f` at last), all with more than 5,000 instructions
LATE = {
    "an atomic that counts": ("L: atom.global.add.u32 %r2,[%d4],1; setp.lt.u32 %p1,%r2,100000; @%p1 bra L;", 100_064),
    "a reduction that a load sees": (
        "L: red.global.add.u32 [%d4],1; ld.relaxed.gpu.global.u32 %r2,[%d4]; setp.lt.u32 %p1,%r2,100000; @%p1 bra L;", 100_032
    ),
    "a counter in memory": (f"L: {COUNT} setp.lt.s32 %p1,%r2,1500; @%p1 bra L; st.global.u32 [%d4],%r2;", 1500),
    "a sum over loads": (
        "L: and.b32 %r4,%r9,63; mul.wide.u32 %d6,%r4,4; add.u64 %d6,%d1,%d6; ld.global.u32 %r2,[%d6]; add.u32 %r3,%r3,1; add.u32 %r3,%r3,%r2;"
        " add.u32 %r9,%r9,1; setp.lt.u32 %p1,%r9,800; @%p1 bra L; st.global.u32 [%d4],%r3;", 800
    ),
    "tiles that an atomic gives": (
        "L: atom.global.add.u32 %r2,[%d4],1; setp.ge.u32 %p1,%r2,640; @%p1 bra E; mov.u32 %r4,0; K: ld.global.u32 %r7,[%d2];"
        " add.u32 %r4,%r4,1; xor.b32 %r9,%r9,%r7; st.global.u32 [%d2],%r9; setp.lt.u32 %p2,%r4,150; @%p2 bra K; bra L; E:", 704
    ),
    "a flag or a counter": (
        f"L: {COUNT} add.u32 %r9,%r9,1; ld.volatile.global.u32 %r3,[%d5]; setp.eq.u32 %p1,%r3,0; setp.lt.u32 %p2,%r9,800;"
        " and.pred %p1,%p1,%p2; @%p1 bra L; st.global.u32 [%d4],%r9;", 800
    ),
    "halves of a float": (
        "mov.f32 %f1,0f3F800000; L: st.global.f32 [%d2],%f1; mul.f32 %f1,%f1,0f3F7C0000; add.u32 %r9,%r9,1; setp.gt.f32 %p1,%f1,0f322BCC77;"
        " @%p1 bra L; st.global.u32 [%d4],%r9;", None
    ),
    "warps that leave one after the other": (
        "shr.u32 %r8,%r1,5; mad.lo.u32 %r8,%r8,1000,300; L: " + COUNT + " add.u32 %r3,%r3,1664525; setp.eq.u32 %p1,%r2,%r8; @%p1 bra E; bra L;"
        " E: st.global.u32 [%d4],1;", 1
    ),
}  # fmt: skip


def patient(body: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[kd.Report, int]:
    """The report of a check with a patience of 2,000 instructions, and what the first word of `f` then is."""
    monkeypatch.setattr(checked, "PATIENCE", 2_000)
    data, flags = np.zeros(64, np.int32), np.zeros(64, np.int32)
    text = image(".param .u64 a, .param .u64 f", LOADS + body)
    races = ("equal_value_race", "race_global")
    return kd.check(text, data, flags, grid=1, block=64, ignore=races, **options), int(flags[0])


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_loop_without_a_sign_of_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = patient(UNDECIDED[name], monkeypatch, schedules=("eager", "random"))
    assert [str(h.kind) for h in report.hazards] == ["step_budget"] and report.steps < 8_000, report
    message = report.hazards[0].message
    last = int(message.partition("it showed no sign of an end in the last ")[2].partition("\n")[0])
    atomics = sum(UNDECIDED[name].count(word) for word in ("atom.", "red."))
    assert last < 1000 if atomics else last == 2000  # an atomic takes long, and counts as several instructions
    assert ": goes round at PTX line" in message and "; compares %r" in message and " changed" in message, message


@pytest.mark.parametrize("name", LATE)
@pytest.mark.sampled(4)
def test_a_loop_that_comes_nearer_to_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, last = LATE[name]
    report, word = patient(body, monkeypatch, schedules="eager")
    assert report.hazards == [] and last in (None, word), (report, word)
    assert report.steps > 5_000, report.steps


def test_a_step_budget_alone_ends_a_loop_without_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = patient(UNDECIDED["a state of each lane"], monkeypatch, schedules="eager", step_budget=6_000)
    assert [str(h.kind) for h in report.hazards] == ["step_budget"] and report.steps > 6_000
    assert "the step budget of 6000 instructions ran out" in report.hazards[0].message
