"""Races of ordinary loads: reported if the loaded value decides something in the lane that races, in either order.

In most kernels here, more lanes than elements load an array that changes in place, and the first of them store it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import HazardError, explore

from .launching import kernel, launch

SCHEDULES = ("eager", "late", "random")
SHARED = ".shared .align 16 .b8 s[4096];"
HEAD = """ .reg .b32 r<16>; .reg .b64 d<12>; .reg .f32 f<8>; .reg .pred p<8>;
 ld.param.u64 d0, [a]; ld.param.u64 d1, [b]; mov.u32 r0, %tid.x; rem.u32 r1, r0, N; setp.lt.u32 p0, r0, N;
 shl.b32 r2, r1, 2; cvt.u64.u32 d2, r2; add.u64 d3, d0, d2; shl.b32 r3, r0, 2; cvt.u64.u32 d4, r3; add.u64 d5, d1, d4;
 mov.u32 r4, s; add.u32 r5, r4, r2; setp.lt.u32 p1, r0, 32; mov.u32 r15, 0;
"""
PLACES = {"global": "global.f32", "shared": "shared.f32"}
# The doubled lanes' values: dropped, or stored, compared for a branch or a guard, or part of an address.
USES = {
    "dropped": "",
    "stored": "st.global.f32 [d5], f1;",
    "branched on": "setp.gt.f32 p2, f1, 0f00000000; @p2 bra X; mov.f32 f2, f1; X:",
    "a guard": "setp.gt.f32 p2, f1, 0f00000000; @p2 st.global.u32 [d5], r15;",
    "an address": "mov.b32 r6, f1; and.b32 r6, r6, 4; add.u32 r6, r6, r4; st.shared.u32 [r6+2048], r15;",
    "shuffled": "shfl.sync.idx.b32 r6, f1, 0, 0x1f, 0xffffffff; @p0 st.global.u32 [d5], r6;",
    "reduced": "mov.b32 r6, f1; redux.sync.max.u32 r6, r6, 0xffffffff; @p0 st.global.u32 [d5], r6;",
    "voted on": "setp.gt.f32 p2, f1, 0f00000000; vote.sync.ballot.b32 r6, p2, 0xffffffff; @p0 st.global.u32 [d5], r6;",
    "matched": "mov.b32 r6, f1; match.any.sync.b32 r6, r6, 0xffffffff; @p0 st.global.u32 [d5], r6;",
    "multiplied": "mov.b32 r6, f1; mov.u32 r8, 0; mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {r9, r10}, {r6}, {r6}, {r8, r8};"
    " @p0 st.global.u32 [d5], r9;",
    "reduced, and all lanes store it": "mov.b32 r6, f1; redux.sync.max.u32 r6, r6, 0xffffffff; st.global.u32 [d5], r6;",
    "voted on, and all lanes store it": "setp.gt.f32 p2, f1, 0f00000000; vote.sync.any.pred p3, p2, -1; @p3 st.global.u32 [d5], r15;",
    "multiplied, and all lanes store it": "mov.b32 r6, f1; mov.u32 r8, 0; mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32"
    " {r9, r10}, {r6}, {r6}, {r8, r8}; st.global.u32 [d5], r9;",
    "carried": "mov.b32 r6, f1; add.cc.u32 r6, r6, 0xffffffff; addc.u32 r9, r15, 0; st.global.u32 [d5], r9;",
    "selected": "selp.f32 f3, f1, 0f00000000, p0; st.global.f32 [d5], f3;",
    "counted": "atom.global.add.f32 f3, [d1], f1;",
    "another warp's": "bar.sync 0; st.shared.f32 [r4+1024], f1;",
}
DROPPED = (
    "dropped",
    "shuffled",
    "selected",
    "reduced",
    "voted on",
    "matched",
    "multiplied",
)  # nothing of warp 1 is needed by lanes that store


def text(place: str, use: str, n: int, first: str = "") -> str:
    """A kernel that changes n elements in place. `first`: the warps that have a path of their own, ahead or behind."""
    space = PLACES[place]
    where = "[d3]" if place == "global" else "[r5]"
    into = "" if place == "global" else "@p0 ld.global.f32 f0, [d3]; @p0 st.shared.f32 [r5], f0; bar.sync 0;"
    back = "" if place == "global" else "bar.sync 0; @p0 ld.shared.f32 f0, [r5]; @p0 st.global.f32 [d3], f0;"
    step = f"ld.{space} f1, {where}; fma.rn.f32 f2, f1, 0f40000000, 0f3F800000; @p0 st.{space} {where}, f2; "
    if first:  # the other path has the same instructions, at an earlier or later place
        step = f"{'@!p1' if first == 'stores' else '@p1'} bra Q; {step} bra R; Q: {step} R: "
    lines = HEAD.replace("N", str(n)) + into + step + USES[use] + back + " ret;"
    return kernel(".param .u64 a, .param .u64 b", lines, shared=SHARED)


def found(*args: Any, schedule: str = "eager", n: int = 16, **options: Any) -> str:
    x, out = np.arange(n, dtype=np.float32), np.zeros(128, np.float32)
    try:
        launch(text(*args), "k", [x, out], block=96, schedule=schedule, **options)
    except HazardError as error:
        return str(error.kind)
    np.testing.assert_array_equal(x, 2 * np.arange(n) + 1)
    return ""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("first", ["", "stores", "loads"])
@pytest.mark.parametrize("place", PLACES)
def test_lanes_that_nobody_needs(place: str, first: str, schedule: str) -> None:
    """Lanes of other warps load the elements after they were stored, before, or together with the lanes that store."""
    for use in USES:
        want = "" if use in DROPPED else f"race_{place}"
        assert found(place, use, 16, first, schedule=schedule, seed=3) == want, use


@pytest.mark.parametrize("n", [1, 5, 31, 32, 33, 48, 64, 95, 96])
def test_any_number_of_elements(n: int) -> None:
    for place in PLACES:
        assert found(place, "dropped", n, n=n) == ""
        assert found(place, "stored", n, n=n) == (f"race_{place}" if n < 96 and n > 0 and (n % 32 or n < 96) else "")


def test_a_report_is_that_of_the_race() -> None:
    """Both sides of the first race, once, whatever else the run finds."""
    for schedule in SCHEDULES:
        x, out = np.arange(16, dtype=np.float32), np.zeros(128, np.float32)
        with pytest.warns() as caught:
            report = launch(
                text("global", "stored", 16), "k", [x, out], block=96, schedule=schedule, on_hazard="warn"
            )  # fmt: skip
        (one,) = report.findings
        assert one.kind == "race_global" and one.other is not None and one.other.instruction.startswith("ld.global")
        assert one.at.instruction.startswith("st.global") and [str(w.message) for w in caught] == [one.message]
        np.testing.assert_array_equal(x, 2 * np.arange(16) + 1)


# Kernels of three warps on 32 elements: p0 is warp 0, p4 warp 1, p5 warp 2. Lanes of warps 1 and 2 load what warp 0 stores.
OF_WARPS = (
    HEAD.replace("N", "32")
    + """ shr.u32 r7, r0, 5; setp.eq.u32 p4, r7, 1; setp.eq.u32 p5, r7, 2; setp.eq.u32 p6, r7, 9;
 mov.f32 f1, 0f00000000; mov.f32 f2, f1; mov.f32 f3, f1; mov.f32 f4, f1; @p1 st.shared.u32 [r5], r15; bar.sync 0;
"""
)
AT = {"global": "[d3]", "shared": "[r5]"}


def of_warps(place: str, lines: str, use: str = "") -> str:
    """LD and ST of `lines` access the place; the kind of hazard, the same under each schedule."""
    code = lines.replace("LD", f"ld.{PLACES[place]}").replace("ST", f"st.{PLACES[place]}").replace("AT", AT[place])
    kinds: set[str] = set()
    for schedule, seed in itertools.product(SCHEDULES, (0, 1, 2)):
        if seed and schedule != "random":
            continue
        x, out = np.ones(96, np.float32), np.zeros(128, np.float32)
        module = kernel(".param .u64 a, .param .u64 b", OF_WARPS + code + use + " ret;", shared=SHARED)
        try:
            launch(module, "k", [x, out], block=96, schedule=schedule, seed=seed)
            kinds.add("")
        except HazardError as error:
            kinds.add(str(error.kind))
    (kind,) = kinds
    return kind


NEVER = " @p6 st.global.f32 [d5], f3;"  # what compilers leave of a value that no lane needs
BEFORE = {
    "another instruction of the warp": "@p4 LD f1, AT; @p4 st.global.f32 [d5], f1; @p4 LD f3, AT; @p0 ST AT, f2;",
    "another warp": "@p4 LD f1, AT; @p4 st.global.f32 [d5], f1; @p5 LD f3, AT; @p0 ST AT, f2;",
    "a warp that it follows": "@p0 bra W; @p4 LD f1, AT; @p4 st.global.f32 [d5], f1; bar.sync 1, 64; @p5 LD f3, AT; W: @p0 ST AT, f2;",
    "another store of the lane": "@p4 LD f3, AT; @p4 st.global.f32 [d5], f1; @p4 LD f1, AT; @p4 st.global.f32 [d5], f1; @p0 ST AT, f2;",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hidden", BEFORE)
def test_a_load_that_nobody_needs_hides_no_other(hidden: str, place: str) -> None:
    lines = BEFORE[hidden]
    assert of_warps(place, lines, NEVER) == f"race_{place}"
    good = lines.replace("@p0 ST", "bar.sync 0; @p0 ST").replace("@p0 bra W;", "@p0 bra V;").replace("W:", "V:")
    assert of_warps(place, good, NEVER) == ""


@pytest.mark.parametrize("place", PLACES)
def test_in_a_loop(place: str) -> None:
    """Each round loads what the last one stored; doubled lanes need none of it, or that of the last round alone."""
    loop = "mov.u32 r9, 0; L: LD f3, AT; fma.rn.f32 f2, f3, f3, f3; @p0 ST AT, f2; add.u32 r9, r9, 1; setp.lt.u32 p7, r9, 6; @p7 bra L;"
    assert of_warps(place, loop, NEVER) == ""
    assert of_warps(place, loop, " @p5 st.global.f32 [d5], f3;") == f"race_{place}"


@pytest.mark.parametrize("place", PLACES)
def test_elements_of_vectors(place: str) -> None:
    at = "[d6]" if place == "global" else "[r8]"
    lines = "rem.u32 r8, r0, 8; shl.b32 r8, r8, 3; cvt.u64.u32 d6, r8; add.u64 d6, d6, d0; add.u32 r8, r8, r4;"
    lines += f" ld.{PLACES[place].replace('.f32', '.v2.f32')} {{f1, f3}}, {at}; @p0 st.{PLACES[place]} {at}, f2;"
    assert of_warps(place, lines, " @p5 st.global.f32 [d5], f3; @p6 st.global.f32 [d5], f1;") == ""
    assert of_warps(place, lines, " @p6 st.global.f32 [d5], f3; @p5 st.global.f32 [d5], f1;") == f"race_{place}"


CERTAIN = {
    "an atomic": ("LD f3, AT; @p0 atom.PLACE.add.f32 f2, AT, f2;", True),
    "a volatile load": ("ld.volatile.PLACE.f32 f3, AT; @p0 ST AT, f2;", True),
    "a volatile store": ("LD f3, AT; @p0 st.volatile.PLACE.f32 AT, f2;", True),
    "two stores": ("cvt.rn.f32.u32 f3, r7; ST AT, f3;", False),
    "a load that no instruction needs": ("LD f4, AT; @p0 ST AT, f2;", True),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pair", CERTAIN)
def test_other_pairs_race_in_any_case(pair: str, place: str) -> None:
    lines, reads = CERTAIN[pair]
    use = NEVER if reads else ""
    assert of_warps(place, lines.replace("PLACE", place), use) == f"race_{place}"


def test_a_launch_that_runs_again_begins_anew() -> None:
    """Memory, printed lines and counts are those of one run; an ignored kind makes no further run."""
    lines = "LD f3, AT; @p0 ST AT, f2; @p0 red.global.add.f32 [d1], 0f3F800000;"
    code = lines.replace("LD", "ld.global.f32").replace("ST", "st.global.f32").replace("AT", "[d3]")
    module = kernel(".param .u64 a, .param .u64 b", OF_WARPS + code + NEVER + " ret;", shared=SHARED)
    for options in ({}, {"ignore": ("race_global",)}, {"detect_hazards": False}, {"on_hazard": "warn"}):
        x, out = np.ones(96, np.float32), np.zeros(128, np.float32)
        report = launch(module, "k", [x, out], block=96, **options)
        assert out[0] == 32 and out[1:].sum() == 0 and (x[:32] == 0).all() and report.findings == []
    x, out = np.ones(96, np.float32), np.zeros(128, np.float32)
    report = kd.check(module, x, out, grid=1, block=96)
    assert report.hazards == [] and out[0] == 32
    found = explore(lambda: launch(module, "k", [np.ones(96, np.float32), np.zeros(128, np.float32)], block=96), 8)
    assert found.hazard is None


def test_many_elements_take_few_runs() -> None:
    """A long loop over an array: each round has new races in doubt."""
    lines = """ mov.u32 r9, 0; L: rem.u32 r10, r0, 32; mad.lo.u32 r10, r9, 32, r10; mul.wide.u32 d6, r10, 4; add.u64 d6, d6, d0;
 ld.global.f32 f3, [d6]; add.f32 f2, f3, 0f3F800000; @p0 st.global.f32 [d6], f2; add.u32 r9, r9, 1; setp.lt.u32 p7, r9, 700; @p7 bra L;"""
    module = kernel(".param .u64 a, .param .u64 b", OF_WARPS + lines + NEVER + " ret;", shared=SHARED)
    for schedule in ("eager", "random"):
        x = np.zeros(32 * 700, np.float32)
        report = launch(module, "k", [x, np.zeros(128, np.float32)], block=96, schedule=schedule)
        assert report.findings == [] and (x == 1).all()
    x = np.zeros(32 * 700, np.float32)
    report = kd.check(module, x, np.zeros(128, np.float32), grid=1, block=96, schedules="eager")
    assert report.hazards == [] and (x == 1).all()
