"""Planted bugs of ordinary memory, barriers and launches."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardKind as K

from .planted import Planted, check, swap


def ints(*sizes: int):
    return lambda: [np.zeros(n, np.int32) for n in sizes]


A = ".param .u64 a"
AB = ".param .u64 a, .param .u64 b"
PTR = " ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2;\n"
SHARED = """ .shared .align 16 .b32 s[64];
 mov.u32 r2, s; shl.b32 r3, r1, 2; add.u32 r3, r3, r2; xor.b32 r4, r1, 32; shl.b32 r4, r4, 2; add.u32 r4, r4, r2;
"""
EXCHANGE = SHARED + " st.shared.u32 [r3], r1;\n bar.sync 0;\n ld.shared.u32 r5, [r4];\n ret;"
TWICE = (
    SHARED + " st.shared.u32 [r3], r1; bar.sync 0; ld.shared.u32 r5, [r4];\n bar.sync 1;\n st.shared.u32 [r3], r5; ret;"
)
LEADER = (
    SHARED
    + """ setp.ge.u32 p1, r1, 32;
 @p1 bra SECOND;
 st.shared.u32 [r2], r1;
 bar.arrive 1, 64;
 ret;
SECOND:
 bar.sync 1, 64;
 st.shared.u32 [r2], r1; ret;"""
)
NEIGHBOUR = (
    PTR
    + " xor.b32 r4, r1, 32; mul.wide.u32 d4, r4, 4; add.s64 d5, d1, d4;\n st.global.u32 [d3], r1;\n"
    + " bar.sync 0;\n ld.global.u32 r5, [d5]; ret;"
)
# Block 0 writes, then raises a flag; block 1 waits for it, then reads.
FLAG = """ ld.param.u64 d1, [a]; ld.param.u64 d2, [b];
 mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r2, 0; @p1 bra READER;
 setp.ne.u32 p2, r1, 0; @p2 bra END;
 mov.u32 r3, 7; st.global.u32 [d1], r3;
 mov.u32 r4, 1; st.release.gpu.global.u32 [d2], r4;
 bra END;
READER: setp.ne.u32 p2, r1, 0; @p2 bra END;
WAIT: ld.acquire.gpu.global.u32 r5, [d2];
 setp.eq.u32 p3, r5, 0; @p3 bra WAIT;
 ld.global.u32 r6, [d1];
END: ret;"""
FENCED = (
    FLAG.replace("st.release.gpu.global.u32 [d2], r4;", "fence.acq_rel.gpu;\n st.relaxed.gpu.global.u32 [d2], r4;")
    .replace("ld.acquire.gpu", "ld.relaxed.gpu")
    .replace(" ld.global.u32 r6", " fence.acq_rel.gpu;// reader\n ld.global.u32 r6")
)
SEMAPHORE = """ ld.param.u64 d1, [a];
 setp.ne.u32 p1, r1, 0;
 @p1 bra END;
 atom.release.gpu.global.add.u32 r3, [d1], 1;
WAIT: ld.acquire.gpu.global.u32 r4, [d1]; setp.lt.u32 p2, r4, 4; @p2 bra WAIT;
END: ret;"""
LOCAL = """ .local .align 8 .b8 l[16]; mov.u64 d1, l; st.local.u32 [d1], r1; ld.local.u32 r2, [d1]; setp.eq.u32 p1, r2, 0; @p1 ret; ret;"""
DSMEM = """ .shared .align 16 .b32 s[64];
 mov.u32 r2, s; shl.b32 r3, r1, 2; add.u32 r3, r3, r2; mov.u32 r4, %cluster_ctarank; xor.b32 r5, r4, 1;
 st.shared.u32 [r3], r1;
 barrier.cluster.arrive; barrier.cluster.wait;
 mapa.shared::cluster.u32 r6, r3, r5; ld.shared::cluster.u32 r7, [r6];
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 ret;"""
SHUFFLE = """ setp.ge.u32 p1, r1, 16; mov.u32 r3, 0;
 @p1 bra X;
 shfl.sync.idx.b32 r2, r1, 0, 31, 0xffff;
X: bar.sync 0; ret;"""
NAMED = " bar.sync 1, 64; ret;"
CLUSTER2 = {"cluster": (2, 1, 1), "grid": 2}

CASES = [
    swap("shared read after write", K.RACE_SHARED, EXCHANGE, " bar.sync 0;", mentions=("'s'", "warp 1")),
    swap("shared write after read", K.RACE_SHARED, TWICE, " bar.sync 1;"),
    swap("shared write after write", K.RACE_SHARED, LEADER, " bar.sync 1, 64;"),
    swap("barrier that orders other warps", K.RACE_SHARED, EXCHANGE, "bar.sync 0;", "bar.warp.sync -1;"),
    swap("global read after write in a block", K.RACE_GLOBAL, NEIGHBOUR, " bar.sync 0;", params=A, args=ints(64)),
    swap(
        "flag without release",
        K.RACE_BLOCKS,
        FLAG,
        "st.release",
        "st.relaxed",
        params=AB,
        args=ints(1, 1),
        options={"grid": 2, "block": 32},
    ),
    swap(
        "flag without acquire",
        K.RACE_BLOCKS,
        FLAG,
        "ld.acquire",
        "ld.relaxed",
        params=AB,
        args=ints(1, 1),
        options={"grid": 2, "block": 32},
    ),
    swap(
        "relaxed flag without the writer's fence",
        K.RACE_BLOCKS,
        FENCED,
        "fence.acq_rel.gpu;\n st",
        "st",
        params=AB,
        args=ints(1, 1),
        options={"grid": 2, "block": 32},
    ),
    swap(
        "relaxed flag without the reader's fence",
        K.RACE_BLOCKS,
        FENCED,
        " fence.acq_rel.gpu;// reader",
        params=AB,
        args=ints(1, 1),
        options={"grid": 2, "block": 32},
    ),
    Planted(
        "blocks write one element",
        K.RACE_BLOCKS,
        PTR + " mov.u32 r2, %ctaid.x; st.global.u32 [d3], r2; ret;",
        PTR + " red.global.add.u32 [d3], 1; ret;",
        A,
        ints(64),
        {"grid": 3},
        mentions=("'a0'", "block ("),
    ),
    swap(
        "cluster barrier missing",
        K.PEER_NOT_RUNNING,
        DSMEM,
        " barrier.cluster.arrive; barrier.cluster.wait;",
        options=CLUSTER2,
    ),
    swap(
        "peers write after the last barrier",
        K.PEER_NOT_RUNNING,
        DSMEM,
        " barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n ret;",
        " setp.eq.u32 p1, r5, 1; @p1 ret; bar.sync 0; nanosleep.u32 1; nanosleep.u32 1; ld.shared::cluster.u32 r7, [r6]; ret;",
        options=CLUSTER2,
    ),
    swap(
        "peer read without order",
        K.RACE_SHARED,
        DSMEM.replace(" st.shared.u32", " barrier.cluster.arrive; barrier.cluster.wait;\n st.shared.u32"),
        "r1;\n barrier.cluster.arrive; barrier.cluster.wait;",
        "r1;",
        options=CLUSTER2,
    ),
    swap(
        "out of bounds load",
        K.OUT_OF_BOUNDS,
        PTR + " ld.global.u32 r2, [d3]; ret;",
        "[d3]",
        "[d3+4]",
        params=A,
        args=ints(64),
        mentions=("'a0'", "element 64", "lane 31"),
    ),
    swap(
        "out of bounds before the start",
        K.OUT_OF_BOUNDS,
        PTR + " st.global.u32 [d3], r1; ret;",
        "[d3]",
        "[d3+-4]",
        params=A,
        args=ints(64),
    ),
    swap("out of bounds shared", K.OUT_OF_BOUNDS, SHARED + " st.shared.u32 [r3], r1; ret;", "[r3]", "[r3+4]"),
    swap("out of bounds local", K.OUT_OF_BOUNDS, LOCAL, "ld.local.u32 r2, [d1]", "ld.local.u32 r2, [d1+16]"),
    swap(
        "wild pointer", K.OUT_OF_BOUNDS, PTR + " ld.global.u32 r2, [d3]; ret;", "[d3]", "[d2]", params=A, args=ints(64)
    ),
    swap(
        "misaligned global",
        K.MISALIGNED,
        PTR + " ld.global.u32 r2, [d1+4]; ret;",
        "[d1+4]",
        "[d1+2]",
        params=A,
        args=ints(64),
    ),
    swap(
        "misaligned vector",
        K.MISALIGNED,
        SHARED + " st.shared.v4.u32 [r2+16], {r1, r1, r1, r1}; ret;",
        "[r2+16]",
        "[r2+8]",
        options={"block": 1},
    ),
    swap(
        "uninitialised shared",
        K.UNINITIALISED,
        SHARED + " st.shared.u32 [r3], r1; ld.shared.u32 r5, [r3]; st.shared.u32 [r3], r5; ret;",
        " st.shared.u32 [r3], r1;",
    ),
    swap("uninitialised local", K.UNINITIALISED, LOCAL, "st.local.u32 [d1], r1;"),
    swap(
        "uninitialised output",
        K.UNINITIALISED,
        PTR + " st.global.u32 [d3], r1; ld.global.u32 r2, [d3]; st.global.u32 [d3], r2; ret;",
        "st.global.u32 [d3], r1;",
        params=A,
        args=ints(64),
        options={"outputs": (0,)},
        mentions=("'a0'[",),
    ),
    swap(
        "unwritten output",
        K.UNWRITTEN,
        PTR + " setp.lt.u32 p1, r1, 64; @p1 st.global.u32 [d3], r1; ret;",
        "r1, 64",
        "r1, 60",
        params=A,
        args=ints(64),
        options={"outputs": (0,), "report_unwritten": True},
        mentions=("4 elements", "[60]"),
    ),
    swap(
        "barrier in a branch of some lanes",
        K.DIVERGENCE,
        " setp.ge.u32 p1, r1, 32;\n @p1 bra X;\n bar.sync 1, 32;\nX: bar.sync 2, 64; ret;",
        "r1, 32;",
        "r1, 7;",
    ),
    swap("shuffle with absent lanes", K.DIVERGENCE, SHUFFLE, "0xffff", "0x1ffff", options={"block": 32}),
    swap("lane outside of its membermask", K.DIVERGENCE, SHUFFLE, "0xffff", "0xff", options={"block": 32}),
    swap(
        "named barrier count",
        K.BARRIER_COUNT,
        " mov.u32 r40, 64;" + NAMED.replace("1, 64", "1, r40"),
        "r40, 64",
        "r40, 48",
    ),
    Planted(
        "named barrier counts differ",
        K.BARRIER_COUNT,
        " setp.ge.u32 p1, r1, 32; @p1 bra X; bar.arrive 1, 96; ret;\nX: bar.sync 1, 128; ret;",
        " setp.ge.u32 p1, r1, 32; @p1 bra X; bar.arrive 1, 64; ret;\nX: bar.sync 1, 64; ret;",
        options={"block": 64},
        bad_options={"block": 128},
    ),
    Planted(
        "barrier that one warp skips",
        K.DEADLOCK,
        " setp.ge.u32 p1, r1, 32; @p1 bra X; bar.sync 1, 64;\nX: ret;",
        NAMED,
        mentions=("32 of 64", "barrier 1"),
    ),
    swap(
        "semaphore that is never raised",
        K.DEADLOCK,
        SEMAPHORE,
        "r4, 4",
        "r4, 5",
        params=AB,
        args=ints(1, 1),
        options={"grid": 4, "block": 32},
        mentions=("block (3, 0, 0)", "to reach 5; it was 4"),
    ),
    Planted(
        "shared memory over capacity",
        K.SHARED_CAPACITY,
        " ret;",
        " ret;",
        options={"dynamic_smem": 232448},
        bad_options={"dynamic_smem": 232449},
    ),
    Planted(
        "cluster over capacity",
        K.CLUSTER_SIZE,
        " ret;",
        " ret;",
        options={"grid": 32, "cluster": (16, 1, 1)},
        bad_options={"cluster": (32, 1, 1)},
    ),
    swap(
        "setmaxnreg over capacity",
        K.REGISTER_CAPACITY,
        " setp.lt.u32 p1, r1, 128; @p1 bra X; setmaxnreg.inc.sync.aligned.u32 232; ret;\nX: setmaxnreg.dec.sync.aligned.u32 40; ret;",
        "dec.sync.aligned.u32 40",
        "dec.sync.aligned.u32 48",  # 512 for a lane of each warpgroup, where 384 threads begin with 168 each
        options={"block": 384},
    ),
    swap(
        "endless loop",
        K.STEP_BUDGET,
        " mov.u32 r2, 0;\nL: add.u32 r2, r2, 1; setp.lt.u32 p1, r2, 9; @p1 bra L; ret;",
        "@p1 bra L",
        "bra L",
        options={"step_budget": 1500},
    ),
    swap(
        "endless loop that is looked at",
        K.LIVELOCK,
        " mov.u32 r2, 0;\nL: add.u32 r2, r2, 1; setp.lt.u32 p1, r2, 9; @p1 bra L; ret;",
        "@p1 bra L",
        "bra L",
        options={"step_budget": 5000},
    ),
    swap("trap", K.TRAP, " setp.gt.u32 p1, r1, 63; @p1 trap; ret;", "r1, 63", "r1, 62", mentions=("lane 31",)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_planted_bug(case: Planted):
    check(case)
