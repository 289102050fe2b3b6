"""Planted bugs of the memory model: scopes, the read-only path, copies of one queue, products, lanes that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter import HazardKind as K
from kernel_dsl.runtime.interpreter.checks import livelock

from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS, Planted, check, swap

PTR = ".param .u64 a"
WORD = " ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2;"


def zeros(n: int = 4096) -> Any:
    return lambda: [np.zeros(n, np.int32)]


def numbers() -> Any:
    return [np.arange(4096, dtype=np.int32)]


TWO_BLOCKS = {"block": 32, "grid": 2}
COUNT = WORD + " atom.global.gpu.add.u32 r2, [d1], 1; ret;"
REDUCE = WORD + " red.relaxed.gpu.global.add.u32 [d1], 1; ret;"
# Block 0 writes word 1 and raises the flag in word 0; block 1 waits for it and reads word 1.
MESSAGE = """ ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r1, 0; @p1 ret; setp.eq.u32 p2, r2, 1; @p2 bra READER;
 st.global.u32 [d1+4], 7; st.release.gpu.global.u32 [d1], 1; ret;
READER: ld.acquire.gpu.global.u32 r3, [d1]; setp.eq.u32 p3, r3, 0; @p3 bra READER;
 ld.global.u32 r4, [d1+4]; st.global.u32 [d1+8], r4; ret;"""
# The same within a block, between its two warps: there .cta is enough.
NEAR = MESSAGE.replace("mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r1, 0; @p1 ret;", "shr.u32 r2, r1, 5;").replace(
    ".gpu", ".cta"
)
CACHED = WORD + " st.global.u32 [d3], r1; ld.global.u32 r2, [d3]; st.global.u32 [d3+1024], r2; ret;"
BEFORE = WORD + " ld.global.u32 r2, [d3]; st.global.u32 [d3], r2; ret;"
SHUFFLE = " setp.ge.u32 p1, r1, 20; @p1 bra X; shfl.sync.bfly.b32 r2, r1, 1, 31, 0xfffff;\nX: ret;"
# Two loads into one tile, on one barrier.
LOADS = """.shared .align 128 .b8 t[512]; .shared .align 8 .b64 b; mov.u32 r2, t; mov.u32 r3, b; ld.param.u64 d1, [a];
 setp.ne.u32 p1, r1, 0; @p1 bra W; mbarrier.init.shared.b64 [r3], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 _, [r3], 512;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1], 256, [r3];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2+256], [d1+256], 256, [r3];
W: bar.sync 0;
L: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L; ret;"""
# Two stores of one lane to global memory.
STORES = """.shared .align 128 .b8 t[512]; mov.u32 r2, t; ld.param.u64 d1, [a]; shl.b32 r4, r1, 2; add.u32 r4, r4, r2;
 add.u32 r5, r1, 99; st.shared.u32 [r4], r1; st.shared.u32 [r4+256], r5; fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 p1, r1, 0; @p1 ret;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256;
 cp.async.bulk.global.shared::cta.bulk_group [d1+256], [r2+256], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;"""
PRODUCT = """.shared .align 1024 .b8 t[4096]; mov.u32 r2, t; shl.b32 r4, r1, 2; add.u32 r4, r4, r2; mov.u32 r5, 0;
 mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0; mov.u32 r6, 0;
Z: st.shared.u32 [r4], r5; add.u32 r4, r4, 512; add.u32 r6, r6, 1; setp.lt.u32 p1, r6, 8; @p1 bra Z;
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 r7, r2, 4; cvt.u64.u32 d4, r7; or.b64 d4, d4, 0x0000001000080000; add.s64 d5, d4, 128;
 wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d4, d5, 1, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; ret;"""

# A word that the lower half of the block writes, loaded by all: what becomes of it for the others.
SPECULATED = """ .local .align 8 .b8 l[16]; mov.u64 d4, l; ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2;
 mov.u32 r9, 3; setp.lt.u32 p1, r1, 16; @!p1 bra X; st.local.u32 [d4], r9;
X: ld.local.u32 r2, [d4]; """

# (how the loaded word is used, what makes that right)
POISON = {
    "stored": ("st.global.u32 [d3], r2; ret;", "@p1 st.global.u32 [d3], r2; ret;"),
    "selected": ("selp.b32 r3, 5, r2, p1; st.global.u32 [d3], r3; ret;", "selp.b32 r3, r2, 5, p1; st.global.u32 [d3], r3; ret;"),
    "added, then stored": (
        "add.u32 r3, r2, 1; add.u32 r3, r3, r3; st.global.u32 [d3], r3; ret;",
        "add.u32 r3, r2, 1; mov.u32 r3, 4; st.global.u32 [d3], r3; ret;",
    ),
    "branched on": ("setp.eq.u32 p2, r2, 3; @p2 bra Y; ret; Y: ret;", "setp.eq.u32 p2, r2, 3; @!p1 ret; @p2 bra Y; ret; Y: ret;"),
    "a guard": (
        "setp.eq.u32 p2, r2, 3; @p2 st.global.u32 [d3], r1; ret;",
        "setp.eq.u32 p2, r2, 3; and.pred p2, p2, p1; selp.b32 r2, r2, 0, p1; st.global.u32 [d3], r2; ret;",
    ),
    "an address": (
        "mul.wide.u32 d5, r2, 0; add.s64 d5, d5, d3; ld.global.u32 r4, [d5]; ret;",
        "mul.wide.u32 d5, r2, 0; add.s64 d5, d5, d3; @p1 ld.global.u32 r4, [d5]; ret;",
    ),
    "given to another lane": (
        "shfl.sync.bfly.b32 r4, r2, 1, 31, -1; st.global.u32 [d3], r4; ret;",
        "shfl.sync.bfly.b32 r4, r2, 1, 31, -1; @p1 st.global.u32 [d3], r4; ret;",
    ),
    "given to all lanes": (
        "shfl.sync.idx.b32 r4, r2, 17, 31, -1; @p1 st.global.u32 [d3], r4; ret;",
        "shfl.sync.idx.b32 r4|p3, r2, 15, 31, -1; setp.lt.u32 p2, r1, 32; and.pred p2, p2, p3; @p2 st.global.u32 [d3], r4; ret;",
    ),
    "the lane of a shuffle": ("shfl.sync.idx.b32 r4, r1, r2, 31, -1; ret;", "shfl.sync.idx.b32 r4, r1, r9, 31, -1; ret;"),
    "voted with": (
        "setp.eq.u32 p2, r2, 3; vote.sync.any.pred p3, p2, -1; ret;",
        "setp.eq.u32 p2, r2, 3; and.pred p2, p2, p1; vote.sync.any.pred p3, p2, -1; ret;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", POISON)
def test_local_memory_that_nobody_wrote_is_reported_where_it_decides(use: str) -> None:
    bad, good = (SPECULATED + body for body in POISON[use])
    check(Planted(use, K.UNINITIALISED, bad, good, params=PTR, args=zeros(), mentions=("local memory",)))


# The same of shared memory, and of an output: `d4` is the lane's word of it.
WHERE = {
    "shared": (".shared .align 4 .b32 s[64]; mov.u64 d4, s; add.s64 d4, d4, d2;", "'s'"),
    "global": (" add.s64 d4, d3, 1024;", "'a0'["),
}


@pytest.mark.parametrize("use", POISON)
@pytest.mark.parametrize("space", WHERE)
def test_memory_that_nobody_wrote_is_reported_where_it_decides(space: str, use: str) -> None:
    start, name = WHERE[space]
    both = SPECULATED.replace(".local .align 8 .b8 l[16]; mov.u64 d4, l;", "").replace(
        " mov.u32 r9, 3;", start + " mov.u32 r9, 3;"
    )
    bad, good = (both.replace(".local.u32", f".{space}.u32") + body for body in POISON[use])
    options, mentions = {"block": 32, "outputs": (0,)}, (name, "before anything was written")
    check(Planted(use, K.UNINITIALISED, bad, good, params=PTR, args=zeros(), options=options, mentions=mentions))


VECTOR = """ ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 16; add.s64 d3, d1, d2; mov.u32 r2, 1;
 st.global.u32 [d3], r2; st.global.u32 [d3+8], r2; st.global.u32 [d3+12], r2;
 ld.global.v4.u32 {r3, r4, r5, r6}, [d3]; add.u32 r7, r3, r5; add.u32 r4, r4, r4; st.global.u32 [d3+2048], r7; ret;"""
RING = """.shared .align 4 .b32 s[64]; ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2; mov.u32 r2, s; shl.b32 r3, r1, 2;
 add.u32 r3, r3, r2; mov.u32 r4, 0;
L: ld.shared.u32 r5, [r3]; setp.eq.u32 p1, r4, 0; selp.b32 r5, r4, r5, p1; add.u32 r5, r5, 1; st.shared.u32 [r3], r5;
 add.u32 r4, r4, 1; setp.lt.u32 p2, r4, 3; @p2 bra L; ret;"""
DECIDES = [
    swap("one element of a vector", K.UNINITIALISED, VECTOR, "add.u32 r7, r3, r5", "add.u32 r7, r3, r4", params=PTR, args=zeros(),
        options={"block": 32, "outputs": (0,)}),
    swap("the first turn of a loop", K.UNINITIALISED, RING, "setp.eq.u32 p1, r4, 0", "setp.eq.u32 p1, r4, 9", params=PTR, args=zeros(),
        options={"block": 32}),
    swap("a word that a copy of shared memory brings", K.UNINITIALISED, STORES, "st.shared.u32 [r4+256], r5;", params=PTR, args=zeros()),
]  # fmt: skip


@pytest.mark.parametrize("case", DECIDES, ids=[c.name for c in DECIDES])
def test_planted_poison(case: Planted) -> None:
    check(case)


CASES = [
    swap("atomic of a block's scope, two blocks", K.RACE_BLOCKS, COUNT, ".gpu", ".cta", params=PTR, args=zeros(), options=TWO_BLOCKS),
    swap("reduction of a cluster's scope", K.RACE_BLOCKS, REDUCE, ".gpu", ".cluster", params=PTR, args=zeros(), options=TWO_BLOCKS),
    Planted("atomic of a block's scope, one block", K.RACE_BLOCKS, COUNT.replace(".gpu", ".cta"), COUNT.replace(".gpu", ".cta"),
        params=PTR, args=zeros(), options={"block": 64}, bad_options={"grid": 2}),
    swap("release of a block's scope", K.RACE_BLOCKS, MESSAGE, "release.gpu", "release.cta", params=PTR, args=zeros(),
        options=TWO_BLOCKS),
    swap("acquire of a block's scope", K.RACE_BLOCKS, MESSAGE, "acquire.gpu", "acquire.cta", params=PTR, args=zeros(),
        options=TWO_BLOCKS),
    swap("message within a block", K.RACE_GLOBAL, NEAR, "st.release.cta", "st.relaxed.cta", params=PTR, args=zeros(),
        options={"block": 64}),
    swap("read-only load after a store", K.READ_ONLY_CACHE, CACHED, "ld.global.u32", "ld.global.nc.u32", params=PTR, args=zeros(),
        mentions=("'a0'[0]", "st.global.u32")),
    swap("read-only load before a store", K.READ_ONLY_CACHE, BEFORE, "ld.global.u32", "ld.global.nc.u32", params=PTR, args=zeros()),
    swap("shuffle from a lane that is elsewhere", K.DIVERGENCE, SHUFFLE, "r1, 1, 31, 0xfffff", "r1, 16, 31, -1",
        options={"block": 32}, mentions=("reads lane",)),
    swap("two loads of one barrier into one tile", K.RACE_SHARED, LOADS, "[r2+256], [d1+256]", "[r2], [d1+256]", params=PTR,
        args=numbers),
    swap("two stores of one lane to one place", K.RACE_GLOBAL, STORES, "[d1+256], [r2+256]", "[d1], [r2+256]", params=PTR,
        args=zeros()),
    swap("product of what other warps wrote", K.RACE_SHARED, PRODUCT, " bar.sync 0;", options={"block": 128}),
    swap("product of what was not fenced", K.MISSING_PROXY_FENCE, PRODUCT, "fence.proxy.async.shared::cta;",
        options={"block": 128}),
]  # fmt: skip


# All warps go round by barriers and shared memory until the word is set; by block 1, or by nobody.
SPIN = """.shared .align 4 .b32 s; ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; setp.eq.u32 p1, r1, 0; setp.eq.u32 p2, r2, 1;
 @p2 bra SETS;
L: @p1 ld.relaxed.gpu.global.u32 r3, [d1]; @p1 st.shared.u32 [s], r3; bar.sync 0; ld.shared.u32 r4, [s]; bar.sync 0;
 setp.eq.u32 p3, r4, 0; @p3 bra L; ret;
SETS: @p1 st.relaxed.gpu.global.u32 [d1], 1; ret;"""
# The same, and each turn counts in a register: for how long it goes on is no one's business.
COUNTS = SPIN.replace(
    "bar.sync 0; ld.shared", "add.u32 r9, r9, 1; setp.gt.u32 p4, r9, 600; @p4 ret; bar.sync 0; ld.shared"
)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check of a run comes after a tenth of its steps."""
    monkeypatch.setattr(livelock, "_FIRST", livelock._FIRST // 10)


def test_the_first_check_comes() -> None:
    with pytest.raises(HazardError, match="repeats itself"):
        launch(kernel(PTR, REGISTERS + SPIN), "k", [np.zeros(4, np.int32)], block=64, step_budget=2_000_000)


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_spin_that_nobody_ends(schedule: str) -> None:
    for blocks in (1, 2):
        text = kernel(PTR, REGISTERS + SPIN)
        if blocks == 2:
            launch(text, "k", [np.zeros(4, np.int32)], block=64, grid=2, schedule=schedule)
            continue
        with pytest.raises(HazardError, match="repeats itself") as caught:
            launch(text, "k", [np.zeros(4, np.int32)], block=64, schedule=schedule, step_budget=2_000_000)
        assert caught.value.kind == K.LIVELOCK


@pytest.mark.usefixtures("early")
def test_a_spin_that_counts_ends() -> None:
    text = kernel(PTR, REGISTERS + " mov.u32 r9, 0;" + COUNTS)
    launch(text, "k", [np.zeros(4, np.int32)], block=64)


@pytest.mark.usefixtures("early")
def test_blocks_that_wait_for_one_another_in_a_circle() -> None:
    text = kernel(PTR, REGISTERS + SPIN.replace("setp.eq.u32 p2, r2, 1;", "setp.gt.u32 p2, r2, 9;"))
    with pytest.raises(HazardError) as caught:
        launch(text, "k", [np.zeros(4, np.int32)], block=64, grid=3, step_budget=2_000_000)
    assert caught.value.kind == K.LIVELOCK


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)
