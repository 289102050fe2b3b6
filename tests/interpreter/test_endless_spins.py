"""Spins that nobody can end are told in seconds, whatever they count; spins that count to an end are not taken for these."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import HazardError, HazardKind
from kernel_dsl.runtime.interpreter.checks import livelock

from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS

K = HazardKind
START = " ld.param.u64 d1, [a]; mov.u32 r9, 0; mov.u32 r8, 8;\n"
POLL = "L: ld.volatile.global.u32 r2, [d1];"
AGAIN = " setp.eq.u32 p1, r2, 0; @p1 bra L; st.global.u32 [d1+4], r9; ret;"
COUNT = " add.u32 r9, r9, 1;"
SLEEP = " and.b32 r10, r9, 31; setp.ne.u32 p2, r10, 0; @p2 bra M; nanosleep.u32 100; M:"
LOOK = """.func (.param .b32 o) look (.param .b64 at) {
 .reg .b64 e; .reg .b32 v; ld.param.b64 e, [at]; ld.volatile.global.u32 v, [e]; st.param.b32 [o], v; ret;
}
"""
CALL = " { .param .b64 x; .param .b32 y; st.param.b64 [x], d1; call (y), look, (x); ld.param.b32 r2, [y]; }"
SHARED = " .shared .align 8 .b64 m; mov.u32 r3, m; setp.ne.u32 p2, r1, 0; mov.u32 r9, 0;"
ENDLESS = {
    "a counter": START + POLL + COUNT + AGAIN,
    "a back-off": START + POLL + " nanosleep.u32 r8; add.u32 r8, r8, r8;" + AGAIN,
    "a sleep in each 32nd round": START + POLL + COUNT + SLEEP + AGAIN,
    "an atomic": START + "L: atom.cas.b32 r2, [d1], 1, 2;" + COUNT + AGAIN,
    "a mean of counters": START + POLL + COUNT + " mad.lo.u32 r8, r9, r8, r9; xor.b32 r8, r8, r9;" + AGAIN,
    "a word of shared memory": SHARED
    + " @!p2 st.shared.u32 [r3], 0; bar.sync 0;\nL: ld.volatile.shared.u32 r2, [r3];"
    + COUNT
    + " setp.eq.u32 p1, r2, 0; @p1 bra L; ret;",
    "an mbarrier": SHARED
    + " @!p2 mbarrier.init.shared.b64 [r3], 1; bar.sync 0;\nL: mbarrier.try_wait.parity.shared.b64 p1, [r3], 0;"
    + COUNT
    + " @!p1 bra L; ret;",
    "a back-off by the clock": SHARED
    + """ @!p2 mbarrier.init.shared.b64 [r3], 65; bar.sync 0; mbarrier.arrive.shared.b64 d9, [r3]; mov.u64 d8, %globaltimer;
 L: mbarrier.try_wait.shared.b64 p1, [r3], d9; @p1 bra E; add.u32 r9, r9, 1; setp.lt.u32 p3, r9, 16; @p3 bra L;
 mov.u64 d7, %globaltimer; sub.s64 d7, d7, d8; setp.gt.s64 p4, d7, 4000000; @p4 bra M; cvt.u32.u64 r10, d7; nanosleep.u32 r10; bra L;
 M: nanosleep.u32 1000000; bra L; E: ret;""",
    "one of two blocks": START + " mov.u32 r4, %ctaid.x; setp.eq.u32 p3, r4, 1; @p3 bra E; " + POLL + COUNT + AGAIN + " E: ret;",
}  # fmt: skip
BOUND = " setp.gt.u32 p2, r9, 300; @p2 bra E;"
END = " setp.eq.u32 p1, r2, 0; @p1 bra L; E: st.global.u32 [d1+4], r9; ret;"
# (body, what it leaves)
ENDING = {
    "so many rounds": (START + POLL + COUNT + BOUND + END, 301),
    "a bound that a shift makes": (
        START + "mov.u32 r12, 1; " + POLL + COUNT + " and.b32 r10, r9, 127; setp.ne.u32 p2, r10, 0; @p2 bra M;"
        " shl.b32 r12, r12, 1; M: setp.gt.u32 p3, r12, 4; @p3 bra E;" + END,
        384,
    ),
    "rounds of rounds": (
        START + "mov.u32 r11, 0; K: mov.u32 r9, 0; " + POLL + COUNT + " setp.gt.u32 p2, r9, 20; @p2 bra F;"
        " setp.eq.u32 p1, r2, 0; @p1 bra L; F: add.u32 r11, r11, 1; setp.lt.u32 p3, r11, 20; @p3 bra K;"
        " st.global.u32 [d1+4], r11; ret;",
        20,
    ),
    "a poll in a function": (START + "L:" + CALL + COUNT + " setp.lt.u32 p1, r9, 200; @p1 bra L; st.global.u32 [d1+4], r9; ret;", 200),
    "a flag that is set, often": (
        START + POLL + " setp.ne.u32 p1, r2, 0; @p1 bra L;" + COUNT + " setp.lt.u32 p3, r9, 200; @p3 bra L;"
        " st.global.u32 [d1+4], r9; ret;",
        200,
    ),
    "a flag that another block sets late": (
        START + " mov.u32 r4, %ctaid.x; setp.eq.u32 p3, r4, 0; @p3 bra L; mov.u32 r5, 0;"
        " W: add.u32 r5, r5, 1; setp.lt.u32 p4, r5, 3000; @p4 bra W; st.release.gpu.global.u32 [d1], 1; ret; "
        "L: ld.acquire.gpu.global.u32 r2, [d1];" + COUNT + " setp.eq.u32 p1, r2, 0; @p1 bra L; st.global.u32 [d1+4], 7; ret;",
        7,
    ),
}  # fmt: skip
RACES = ("equal_value_race", "race_blocks")


def run(body: str, schedule: str) -> int:
    data = np.zeros(4, np.int32)
    options = {"block": 64, "grid": 2, "schedule": schedule, "ignore": RACES, "step_budget": 100_000}
    launch(kernel(".param .u64 a", REGISTERS + body, before=LOOK if "look" in body else ""), "k", [data], **options)
    return int(data[1])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ENDLESS)
def test_a_spin_that_nobody_ends(name: str, schedule: str) -> None:
    with pytest.raises(HazardError) as caught:
        run(ENDLESS[name], schedule)
    assert caught.value.kind in (K.DEADLOCK, K.LIVELOCK), str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ENDING)
def test_a_spin_that_ends(name: str, schedule: str) -> None:
    body, left = ENDING[name]
    assert run(body, schedule) == left


def test_ordinary_loads_and_a_counter() -> None:
    weak = START + "L: ld.global.u32 r2, [d1];" + COUNT
    with pytest.raises(HazardError) as caught:
        run(weak + AGAIN, "eager")
    assert caught.value.kind is K.LIVELOCK, str(caught.value)
    assert run(weak + " setp.gt.u32 p2, r9, 900; @p2 bra E;" + END, "eager") == 901


def test_a_time_out_by_the_clock_ends() -> None:
    body = (
        START
        + " mov.u64 d8, %globaltimer;"
        + POLL
        + COUNT
        + """
 mov.u64 d9, %globaltimer; sub.u64 d9, d9, d8; setp.gt.u64 p2, d9, 8000; @p2 bra E;"""
        + END
    )
    assert run(body.replace("[d1+4], r9", "[d1+4], 9"), "eager") == 9


def test_time_passes_while_the_only_warp_sleeps() -> None:
    """Waiting 1 ms takes a few rounds."""
    wait = """ mov.u32 r9, 0; mov.u64 d8, %globaltimer; W: nanosleep.u32 100000; add.u32 r9, r9, 1; mov.u64 d9, %globaltimer;
 sub.u64 d9, d9, d8; setp.lt.u64 p2, d9, 1000000; @p2 bra W; @!p0 st.global.u32 [d1+4], r9; ret;"""
    alone = START + " mov.u32 r4, %ctaid.x; mov.u32 r5, %tid.x; or.b32 r4, r4, r5; setp.ne.u32 p0, r4, 0; @p0 exit;"
    assert 5 <= run(alone + wait, "eager") <= 11


def test_polls_outside_of_loops_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warp-synchronous code loads volatile words in diverged lanes, one after the other: none can come back."""
    compared: list[int] = []
    of = livelock.deciding
    monkeypatch.setattr(livelock, "deciding", lambda *args: compared.append(0) or of(*args))
    polls = "".join(f" ld.volatile.global.u32 r2, [d1]; setp.gt.u32 p1, r1, {n}; @p1 bra E;" for n in range(20))
    assert run(START + polls + " E: st.global.u32 [d1+4], 3; ret;", "late") == 3 and not compared
    with pytest.raises(HazardError):
        run(ENDLESS["a back-off"], "late")
    assert compared


def test_the_checker_says_so_in_seconds() -> None:
    text = kernel(".param .u64 a", REGISTERS + ENDLESS["a sleep in each 32nd round"])
    report = kd.check(text, np.zeros(4, np.int32), grid=2, block=64, ignore=RACES)
    assert {str(h.kind) for h in report.hazards} == {"deadlock"}
