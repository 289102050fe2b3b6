"""Planted bugs: unordered writes of one value (PTX ISA 8.7.1, 'Conflict and data-races': the value makes no difference)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument
from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS, Planted, check, swap

PTR = ".param .u64 a"


def zeros() -> Any:
    return [np.zeros(4096, np.int32)]


def sevens() -> Any:
    return [np.full(4096, 7, np.int32)]


ONE = " ld.param.u64 d1, [a]; shr.u32 r2, r1, 5; setp.eq.u32 p1, r2, 0; mov.u32 r3, 7;\n"
GLOBAL = ONE + " @p1 st.global.u32 [d1], r3; ret;"
SHARED = ".shared .align 16 .b32 s[64]; mov.u32 r4, s;" + ONE + " @p1 st.shared.u32 [r4], r3; bar.sync 0; ret;"
WIDE = ".reg .b128 q<2>;" + ONE + " mov.b64 d2, 7; mov.b128 q0, {d2, d2}; @p1 st.global.b128 [d1], q0; ret;"
BLOCKS = (
    ONE
    + " mov.u32 r5, %ctaid.x; setp.eq.u32 p1, r5, 0; setp.eq.and.u32 p1, r1, 0, p1; @p1 st.global.u32 [d1], r3; ret;"
)
CP_ASYNC = """.shared .align 16 .b8 s[1024]; mov.u32 r4, s; ld.param.u64 d1, [a]; shl.b32 r5, r1, 4; and.b32 r6, r5, 1008;
 add.u32 r6, r6, r4; cp.async.cg.shared.global [r6], [d1], 16; cp.async.wait_all; bar.sync 0; ret;"""
# Each of two warps stores a tile of sevens.
MATRIX = """.shared .align 128 .b8 s[2048]; mov.u32 r4, s; and.b32 r5, r1, 31; shl.b32 r5, r5, 4; shr.u32 r2, r1, 5;
 mul.lo.u32 r2, r2, 1024; add.u32 r6, r4, r2; mov.u32 r3, 7;"""
STMATRIX = MATRIX + " add.u32 r5, r5, r6; stmatrix.sync.aligned.m8n8.x2.shared.b16 [r5], {r3, r3}; bar.sync 0; ret;"
WMMA_STORE = (
    MATRIX
    + """ mov.b32 f1, r3;
 wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [r6], {f1, f1, f1, f1, f1, f1, f1, f1}, 16; bar.sync 0; ret;"""
)
# A bulk load of sevens into a tile, and one lane's store of a seven into it.
LOAD = """.shared .align 128 .b8 t[512]; .shared .align 8 .b64 b; mov.u32 r2, t; mov.u32 r3, b; ld.param.u64 d1, [a];
 mov.u32 r4, 7; setp.ne.u32 p1, r1, 0; @p1 bra W; mbarrier.init.shared.b64 [r3], 1; fence.mbarrier_init.release.cluster;
 st.shared.u32 [r2], r4; fence.proxy.async.shared::cta; // before
 mbarrier.arrive.expect_tx.shared.b64 _, [r3], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1], 256, [r3];
W: bar.sync 0;
L: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L;
 setp.eq.u32 p3, r1, 32; @p3 st.shared.u32 [r2], r4; ret;"""
STORE = " setp.eq.u32 p3, r1, 32; @p3 st.shared.u32 [r2], r4;"
EARLY = LOAD.replace(STORE, "").replace("L: ", STORE + "\nL: ")
TWO_LOADS = LOAD.replace("b64 _, [r3], 256;", "b64 _, [r3], 512;").replace(
    "[r3];\nW:",
    "[r3];\n cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2+256], [d1], 256, [r3];\nW:",
)
STORES = """.shared .align 128 .b8 t[512]; mov.u32 r2, t; ld.param.u64 d1, [a]; shl.b32 r4, r1, 2; add.u32 r4, r4, r2;
 mov.u32 r5, 7; st.shared.u32 [r4], r5; st.shared.u32 [r4+256], r5; fence.proxy.async.shared::cta; bar.sync 0;
 setp.ne.u32 p1, r1, 0; @p1 ret;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256;
 cp.async.bulk.global.shared::cta.bulk_group [d1+256], [r2+256], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;"""
TWO = {"grid": 2}
SAME = "both write the same value"

CASES = [
    swap("two warps, global", K.EQUAL_VALUE_RACE, GLOBAL, "setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0", params=PTR,
        args=zeros, mentions=(SAME, "warp 1")),
    swap("two warps, shared", K.EQUAL_VALUE_RACE, SHARED, "setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0", params=PTR,
        args=zeros, mentions=(SAME, "'s'")),
    swap("two warps, 16 bytes", K.EQUAL_VALUE_RACE, WIDE, "setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0", params=PTR,
        args=zeros, mentions=(SAME,)),
    swap("two blocks", K.EQUAL_VALUE_RACE, BLOCKS, "setp.eq.u32 p1, r5, 0", "setp.ge.u32 p1, r5, 0", params=PTR, args=zeros,
        options=TWO, mentions=(SAME, "block (")),
    swap("two warps' cp.async", K.EQUAL_VALUE_RACE, CP_ASYNC, "1008", "496", params=PTR, args=sevens, mentions=(SAME,)),
    swap("two warps' stmatrix", K.EQUAL_VALUE_RACE, STMATRIX, "r2, 1024", "r2, 0", mentions=(SAME,)),
    swap("two warps' wmma.store", K.EQUAL_VALUE_RACE, WMMA_STORE, "r2, 1024", "r2, 0", mentions=(SAME,)),
    Planted("a store beside a bulk load", K.EQUAL_VALUE_RACE, EARLY, LOAD, params=PTR, args=sevens, mentions=(SAME,)),
    swap("a store before a bulk load, no proxy fence", K.EQUAL_VALUE_RACE, LOAD.replace("st.shared.u32 [r2], r4; f",
        "st.shared.u32 [r2], r4; st.shared.u32 [r2+4], r4; st.shared.u32 [r2+8], r4; st.shared.u32 [r2+12], r4; f"),
        "fence.proxy.async.shared::cta; // before", params=PTR, args=sevens, mentions=(SAME, "async proxy")),
    swap("two bulk loads of one barrier", K.EQUAL_VALUE_RACE, TWO_LOADS, "[r2+256]", "[r2]", params=PTR, args=sevens,
        mentions=(SAME,)),
    swap("two bulk stores of one lane", K.EQUAL_VALUE_RACE, STORES, "[d1+256]", "[d1]", params=PTR, args=zeros,
        mentions=(SAME,)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_the_kind_is_switched_off(case: Planted) -> None:
    for schedule in SCHEDULES:
        for seed in range(4 if schedule == "random" else 1):
            options = {"block": 64, **case.options, "ignore": ("equal_value_race",), "seed": seed}
            launch(kernel(case.params, REGISTERS + case.bad), "k", case.args(), schedule=schedule, **options)


# Only the values differ from the cases above: then it is a race of the other kinds, whatever is ignored.
DIFFERENT = [
    (GLOBAL.replace("setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0").replace("mov.u32 r3, 7", "mov.u32 r3, r2"), K.RACE_GLOBAL),
    (SHARED.replace("setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0").replace("mov.u32 r3, 7", "mov.u32 r3, r2"), K.RACE_SHARED),
    (STMATRIX.replace("r2, 1024", "r2, 0").replace("mov.u32 r3, 7", "mov.u32 r3, r1"), K.RACE_SHARED),
    (BLOCKS.replace("setp.eq.u32 p1, r5, 0", "setp.ge.u32 p1, r5, 0").replace("setp.ge", "mov.u32 r3, r5; setp.ge"), K.RACE_BLOCKS),
    (EARLY.replace("mov.u32 r4, 7", "mov.u32 r4, 8"), K.RACE_SHARED),
    (TWO_LOADS.replace("[r2+256], [d1]", "[r2], [d1+1024]"), K.RACE_SHARED),
]  # fmt: skip


@pytest.mark.parametrize("body,kind", DIFFERENT, ids=[str(k) for _, k in DIFFERENT])
def test_other_values_are_a_race_whatever_is_ignored(body: str, kind: K) -> None:
    data = np.where(np.arange(4096) < 256, 7, 9).astype(np.int32)
    for schedule in SCHEDULES:
        with pytest.raises(HazardError) as caught:
            launch(kernel(PTR, REGISTERS + body), "k", [data], block=64, grid=2 if "ctaid" in body else 1, schedule=schedule,
                ignore=("equal_value_race",))  # fmt: skip
        assert caught.value.kind == kind


def test_lanes_of_one_instruction_may_write_one_value() -> None:
    text = kernel(PTR, REGISTERS + ONE + " st.global.u32 [d1], r3; ret;")
    launch(text, "k", zeros(), block=32)


def test_any_kind_is_ignored_and_others_are_errors() -> None:
    race = SHARED.replace("setp.eq.u32 p1, r2, 0", "setp.ge.u32 p1, r2, 0").replace("mov.u32 r3, 7", "mov.u32 r3, r2")
    launch(kernel(PTR, REGISTERS + race), "k", zeros(), block=64, ignore=(K.RACE_SHARED,))
    with pytest.raises(BadArgument, match="race_shared, race_global, race_blocks, race_launches, equal_value_race"):
        kd.InterpretParams(ignore=("races",))
    assert kd.InterpretParams(ignore=["race_shared"]) == kd.InterpretParams(ignore=("race_shared",))


def test_what_ends_a_run_is_told_all_the_same() -> None:
    body = " setp.ge.u32 p1, r1, 32; @p1 bra X; bar.sync 1, 64;\nX: ret;"
    with pytest.raises(HazardError) as caught:
        launch(kernel("", REGISTERS + body), "k", [], block=64, ignore=("deadlock",))
    assert caught.value.kind == K.DEADLOCK


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_lanes_of_one_warp_that_write_several_values(space: str, schedule: str) -> None:
    """Which lane wins is open within a warp. Another warp with the same values makes that no worse, one with others does."""
    body = """ .reg .b32 r<6>; .reg .b64 d<2>; ld.param.u64 d1, [a]; mov.u32 r1, %tid.x; and.b32 r2, r1, 31; shr.u32 r3, r1, 5;
 mov.u32 r4, s; VALUE st.PLACE.u32 WHERE, r5; ret;"""
    for value, kind in (
        ("mov.u32 r5, r2;", "equal_value_race"),
        ("and.b32 r5, r2, 1;", "equal_value_race"),
        ("mad.lo.u32 r5, r3, 32, r2;", f"race_{space}"),
    ):
        text = (
            body.replace("VALUE", value)
            .replace("PLACE", space)
            .replace("WHERE", "[r4]" if space == "shared" else "[d1]")
        )
        with pytest.raises(HazardError) as caught:
            launch(
                kernel(".param .u64 a", text, shared=".shared .b32 s;"), "k", [np.zeros(4, np.uint32)], block=64,
                schedule=schedule,
            )  # fmt: skip
        assert caught.value.kind == kind, value
