"""Planted bugs of lanes and warps that an instruction needs together (PTX ISA 9.7.9.6 to 9.7.9.8, 9.7.13 and 9.7.15.7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS, Planted, check, swap

PTR = ".param .u64 a"
WARP = {"block": 32}
HALVES = " setp.ge.u32 p1, r1, 16; selp.b32 r3, 0xffff0000, 0x0000ffff, p1;\n"
# The two halves of a warp exchange values, each by itself.
SHUFFLE = HALVES + " shfl.sync.bfly.b32 r2, r1, 8, 31, r3; ret;"
VOTE = HALVES + " setp.eq.u32 p2, r1, 3; vote.sync.ballot.b32 r2, p2, r3; ret;"
MATCH = HALVES + " match.any.sync.b32 r2, r1, r3; ret;"
REDUX = HALVES + " redux.sync.add.u32 r2, r1, r3; ret;"
# Only the lower half comes here, while the upper half waits elsewhere for what never comes, or leaves.
ALONE = " setp.ge.u32 p1, r1, 16; @p1 bra X;\n {WORK}\nX: bar.sync 0; ret;"
# A barrier that the halves of a warp meet at two places.
PLACES = """ setp.ge.u32 p1, r1, 16; @p1 bra B;
 barrier.sync 0; bra X;
B: barrier.sync 0;
X: ret;"""
ARRIVES = PLACES.replace("B: barrier.sync 0;", "B: barrier.arrive 0, 32;").replace(
    " barrier.sync 0; bra", " barrier.sync 0, 32; bra"
)


# A barrier that half of a warp skips. It waits for lanes that have not exited, so where they end it completes (`exit`, 9.7.12.7).
SKIPPED = " .shared .align 4 .b32 s[4]; setp.ge.u32 p1, r1, 16; @p1 bra X;\n {BARRIER}\nX: {END} ret;"


def skipped(barrier: str, end: str, leaves: str = "") -> Planted:
    text = SKIPPED.replace("{BARRIER}", barrier)
    name = f"half a warp skips {barrier} and comes to {end}, or leaves"
    return Planted(name, K.DIVERGENCE, text.replace("{END}", end), text.replace("{END}", leaves), options=WARP)


def lonely(work: str, mask: str, wrong: str = "-1") -> tuple[str, str]:
    return ALONE.replace("{WORK}", work.replace("MASK", wrong)), ALONE.replace("{WORK}", work.replace("MASK", mask))


def absent(name: str, work: str) -> Planted:
    bad, good = lonely(work, "0xffff")
    return Planted(name, K.DIVERGENCE, bad, good, options=WARP)


CASES = [
    swap("shuffle across masks", K.DIVERGENCE, SHUFFLE, "r1, 8, 31", "r1, 16, 31", options=WARP, mentions=("membermask",)),
    swap("shuffle, masks that overlap", K.DIVERGENCE, SHUFFLE, "0x0000ffff", "0x0001ffff", options=WARP, mentions=("differ",)),
    swap("vote, masks that overlap", K.DIVERGENCE, VOTE, "0x0000ffff", "0x0001ffff", options=WARP, mentions=("differ",)),
    swap("match, masks that overlap", K.DIVERGENCE, MATCH, "0xffff0000", "0xffffffff", options=WARP, mentions=("differ",)),
    swap("sum, masks that overlap", K.DIVERGENCE, REDUX, "0xffff0000", "0xffffff00", options=WARP, mentions=("differ",)),
    absent("shuffle of lanes that are elsewhere", "shfl.sync.idx.b32 r2, r1, 0, 31, MASK;"),
    absent("vote of lanes that are elsewhere", "setp.eq.u32 p2, r1, 3; vote.sync.any.pred p3, p2, MASK;"),
    absent("match of lanes that are elsewhere", "match.any.sync.b32 r2, r1, MASK;"),
    absent("sum of lanes that are elsewhere", "redux.sync.add.u32 r2, r1, MASK;"),
    absent("bar.warp.sync of lanes that are elsewhere", "bar.warp.sync MASK;"),
    skipped("bar.sync 0;", "bar.sync 0;"),
    skipped("bar.sync 0;", "bar.sync 1;", "mov.u32 r2, 1; st.shared.u32 [s], r2;"),
    skipped("barrier.sync.aligned 0;", "bar.sync 0; bar.sync 0;"),
    swap("an aligned barrier at two places", K.DIVERGENCE, PLACES, "\n barrier.sync 0", "\n barrier.sync.aligned 0", options=WARP),
    swap("bar.sync at two places", K.DIVERGENCE, PLACES, "B: barrier.sync 0", "B: bar.sync 0", options=WARP),
    swap("an aligned barrier that half a warp arrives at", K.DIVERGENCE, ARRIVES, "B: barrier.arrive", "B: bar.arrive", options=WARP),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_that_have_left_are_not_waited_for(schedule: str) -> None:
    """Votes, matches and sums wait for the lanes of the mask that have not exited."""
    for work in (
        "setp.eq.u32 p2, r1, 3; vote.sync.any.pred p3, p2, -1;",
        "match.any.sync.b32 r2, r1, -1;",
        "bar.warp.sync -1;",
    ):
        body = f" setp.ge.u32 p1, r1, 16; @p1 ret;\n {work}\n bar.sync 0; ret;"
        launch(kernel("", REGISTERS + body), "k", [], block=32, schedule=schedule)


def test_a_barrier_at_two_places_orders_memory() -> None:
    body = """.shared .align 4 .b32 s[64]; mov.u32 r2, s; shl.b32 r3, r1, 2; add.u32 r3, r3, r2; xor.b32 r4, r1, 48; shl.b32 r4, r4, 2;
 add.u32 r4, r4, r2; ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2; st.shared.u32 [r3], r1;
 and.b32 r5, r1, 16; setp.ne.u32 p1, r5, 0; @p1 bra B; barrier.sync 0; bra X;
B: barrier.sync 0;
X: ld.shared.u32 r6, [r4]; st.global.u32 [d3], r6; ret;"""
    for schedule in SCHEDULES:
        out = np.zeros(64, np.int32)
        launch(kernel(PTR, REGISTERS + body), "k", [out], block=64, schedule=schedule)
        assert (out == np.arange(64) ^ 48).all()


# --- products ---------------------------------------------------------------------------------------------------------

PRODUCT = """.shared .align 1024 .b8 t[4096]; mov.u32 r2, t; shl.b32 r4, r1, 2; add.u32 r4, r4, r2; mov.u32 r5, 0;
 mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0; mov.u32 r6, 0;
Z: st.shared.u32 [r4], r5; add.u32 r4, r4, 512; add.u32 r6, r6, 1; setp.lt.u32 p1, r6, 8; @p1 bra Z;
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 r7, r2, 4; cvt.u64.u32 d4, r7; or.b64 d4, d4, 0x0000001000080000; add.s64 d5, d4, 128;
 wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d4, d5, 1, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; bar.sync 1;
 setp.eq.u32 p6, r1, 0; @p6 st.shared.u32 [r2], r5; ret;"""
STRICT = {"block": 128, "strict_wgmma": True}


EARLY = PRODUCT.replace(" bar.sync 1;", "")


def test_a_wait_tells_a_warp_of_the_whole_product_or_strictly_of_its_part() -> None:
    """One warp writes over operands after its own wait: as the ISA has it, or with a barrier between in the strict reading."""
    check(Planted("refilled after a wait", K.REUSED_BEFORE_WGMMA, EARLY, PRODUCT, params=PTR, args=lambda: [np.zeros(4, np.int32)],
        options=STRICT))  # fmt: skip
    for schedule in SCHEDULES:
        for body in (EARLY, PRODUCT):
            launch(kernel(PTR, REGISTERS + body), "k", [np.zeros(4, np.int32)], block=128, schedule=schedule)


def test_operands_that_other_warps_write() -> None:
    options: dict[str, Any] = {"params": PTR, "args": lambda: [np.zeros(4, np.int32)], "options": {"block": 128}}
    check(swap("no barrier before the product", K.RACE_SHARED, PRODUCT, " bar.sync 0;", **options))
    late = PRODUCT.replace(" wgmma.wait_group.sync.aligned 0;", "").replace(
        "ret;", "wgmma.wait_group.sync.aligned 0; ret;"
    )
    check(Planted("the wait comes too late", K.REUSED_BEFORE_WGMMA, late, PRODUCT, **options))
