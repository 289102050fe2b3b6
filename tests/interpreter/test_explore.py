"""Exploration of the order of synchronisation: bugs that need one order are found, and what has no other order is said so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import (
    Exploration,
    HazardError,
    InterpretParams,
    explore,
    over_schedules,
    schedules_of,
)
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import kernel, launch
from .planted import REGISTERS

PTR = ".param .u64 a"
# Two warps take two locks; ORDER says in which order the second does.
LOCKS = """.shared .align 4 .b32 s[2]; mov.u32 r2, s; setp.eq.u32 p1, r1, 0; @!p1 bra INIT; mov.u32 r3, 0; st.shared.v2.u32 [r2], {r3, r3};
INIT: bar.sync 0; and.b32 r4, r1, 31; setp.ne.u32 p2, r4, 0; @p2 ret; shr.u32 r5, r1, 5; shl.b32 r5, r5, 2; ORDER
 add.u32 r6, r2, r5; xor.b32 r7, r5, 4; add.u32 r7, r2, r7;
A: atom.acquire.cta.shared.cas.b32 r8, [r6], 0, 1; setp.ne.u32 p3, r8, 0; @p3 bra A;
B: atom.acquire.cta.shared.cas.b32 r8, [r7], 0, 1; setp.ne.u32 p3, r8, 0; @p3 bra B;
 st.release.cta.shared.u32 [r7], 0; st.release.cta.shared.u32 [r6], 0; ret;"""
CROSSED, SAME = LOCKS.replace("ORDER", ""), LOCKS.replace("ORDER", "mov.u32 r5, 0;")
# Warp 0 arrives twice; warp 1 tells it that it has seen the first phase, and warp 2 does not: it may come too late.
PHASES = """.shared .align 8 .b64 m[2]; mov.u32 r2, m; add.u32 r3, r2, 8; setp.eq.u32 p1, r1, 0; @!p1 bra INIT;
 mbarrier.init.shared.b64 [r2], 1; mbarrier.init.shared.b64 [r3], WAITERS;
INIT: bar.sync 0; and.b32 r4, r1, 31; setp.ne.u32 p2, r4, 0; @p2 ret; setp.ge.u32 p3, r1, 32; @p3 bra SEE;
 mbarrier.arrive.shared.b64 _, [r2];
W: mbarrier.try_wait.parity.shared.b64 p4, [r3], 0; @!p4 bra W;
 mbarrier.arrive.shared.b64 _, [r2]; ret;
SEE: mbarrier.try_wait.parity.shared.b64 p4, [r2], 0; @!p4 bra SEE;
 setp.ge.u32 p5, r1, LAST; @p5 bra ON; mbarrier.arrive.shared.b64 _, [r3];
ON: mbarrier.try_wait.parity.shared.b64 p4, [r2], 1; @!p4 bra ON; ret;"""
LATE = PHASES.replace("WAITERS", "1").replace("LAST", "64")
HELD = PHASES.replace("WAITERS", "2").replace("LAST", "999")
# Who comes first takes a number, and the code believes that it is warp 0.
TICKET = """.shared .align 4 .b32 s[2]; mov.u32 r2, s; setp.eq.u32 p1, r1, 0; @!p1 bra INIT; mov.u32 r3, 0; st.shared.u32 [r2], r3;
INIT: bar.sync 0; and.b32 r4, r1, 31; setp.ne.u32 p2, r4, 0; @p2 ret; ld.param.u64 d1, [a];
 atom.relaxed.cta.shared.add.u32 r5, [r2], 1; shr.u32 r6, r1, 5; setp.ne.u32 p3, r5, WHO; @p3 ret; st.shared.u32 [r2+4], r5;
 setp.ne.u32 p4, r6, 0; @p4 trap; ret;"""
FIRST, ANYONE = TICKET.replace("WHO", "0"), TICKET.replace("WHO", "9")
# A ring of one stage that a bulk copy fills: each side waits for the other.
RING = """.shared .align 128 .b8 t[256]; .shared .align 8 .b64 m[2]; mov.u32 r2, m; add.u32 r3, r2, 8; mov.u32 r10, t;
 ld.param.u64 d1, [a]; setp.eq.u32 p1, r1, 0; @!p1 bra INIT; mbarrier.init.shared.b64 [r2], 1; mbarrier.init.shared.b64 [r3], 32;
 fence.mbarrier_init.release.cluster;
INIT: bar.sync 0; mov.u32 r6, 0; setp.ge.u32 p3, r1, 32; @p3 bra USE; and.b32 r4, r1, 31; setp.ne.u32 p2, r4, 0; @p2 ret;
FILL: and.b32 r7, r6, 1; xor.b32 r7, r7, 1;
E: mbarrier.try_wait.parity.shared.b64 p4, [r3], r7; @!p4 bra E;
 mbarrier.arrive.expect_tx.shared.b64 _, [r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r10], [d1], 256, [r2];
 add.u32 r6, r6, 1; setp.lt.u32 p5, r6, 3; @p5 bra FILL; ret;
USE: and.b32 r7, r6, 1;
F: mbarrier.try_wait.parity.shared.b64 p4, [r2], r7; @!p4 bra F;
 ld.shared.u32 r8, [r10]; mbarrier.arrive.shared.b64 _, [r3];
 add.u32 r6, r6, 1; setp.lt.u32 p5, r6, 3; @p5 bra USE; ret;"""


def explored(body: str, block: int = 64, limit: int = 64, **options: Any) -> Exploration:
    text = kernel(PTR, REGISTERS + body)
    return explore(lambda: launch(text, "k", [np.zeros(64, np.int32)], block=block, **options), limit)


@pytest.mark.parametrize(
    "bad,good,kind,block",
    [(CROSSED, SAME, K.DEADLOCK, 64), (LATE, HELD, K.DEADLOCK, 96), (FIRST, ANYONE, K.TRAP, 64)],
    ids=["two locks", "a phase missed", "who comes first"],
)
def test_what_one_order_alone_shows(bad: str, good: str, kind: K, block: int) -> None:
    found = explored(bad, block)
    assert found.verdict == "found"
    assert found.hazard is not None and found.hazard.kind == kind
    mended = explored(good, block)
    assert mended.verdict == "none", mended
    assert mended.hazard is None


def test_the_plain_schedules_may_miss_it() -> None:
    """Which is why the order is explored: eager and late run the warps one way."""
    text = kernel(PTR, REGISTERS + FIRST)
    for schedule in ("eager", "late"):
        launch(text, "k", [np.zeros(64, np.int32)], block=64, schedule=schedule)


def test_a_protocol_with_one_order_takes_one_run() -> None:
    found = explored(RING)
    assert (found.verdict, found.schedules) == ("none", 1)


def test_a_bound_is_said() -> None:
    found = explored(SAME, limit=2)
    assert found.verdict == "none up to 2 schedules"
    with pytest.raises(ValueError, match="at least one"):
        explored(SAME, limit=0)


def test_memory_between_blocks_is_not_said_to_be_complete() -> None:
    body = " ld.param.u64 d1, [a]; atom.global.add.u32 r2, [d1], 1; ret;"
    found = explored(body, block=32, limit=8, grid=2)
    assert found.verdict.startswith("none up to")


def test_kernels_of_the_language() -> None:
    @kd.kernel(out_type=lambda x: x, num_threads=2, thread_name="wg", scratch_types=[kd.SMEM((2, 128), kd.float32)])
    def exchange(x, out, tile):
        wg = kd.axis_index("wg")
        tile[wg] = x[wg]
        out[wg] = x[wg]

    x = np.ones((2, 128), np.float32)
    assert explore(lambda: exchange(x, interpret=True)).verdict == "none"


def test_several_schedules() -> None:
    assert [(p.schedule, p.seed) for p in schedules_of(("eager", "late", "random:2"))] == [
        ("eager", 0), ("late", 0), ("random", 0), ("random", 1)
    ]  # fmt: skip
    base = InterpretParams(seed=5, ignore=("equal_value_race",))
    assert schedules_of(("random",), base) == [base]
    for wrong in ("soon", "random:", "random:0", "late:2"):
        with pytest.raises(ValueError, match="schedule"):
            schedules_of((wrong,))
    text = kernel(PTR, REGISTERS + ANYONE)

    def call(params: InterpretParams) -> None:
        launch(text, "k", [np.zeros(64, np.int32)], block=64, schedule=params.schedule, seed=params.seed)

    assert over_schedules(call).verdict == "none up to 10 schedules"

    def fails(params: InterpretParams) -> None:
        if params.schedule == "late":
            raise HazardError(K.DEADLOCK, "deadlock: as planned")

    assert (over_schedules(fails).verdict, over_schedules(fails).schedules) == ("found", 2)
