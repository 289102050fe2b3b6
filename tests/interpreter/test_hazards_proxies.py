"""Planted bugs of proxies: ordinary writes and asynchronous copies of global memory, and tensor maps that a kernel makes
(PTX ISA 8.9.5, 9.7.9.28 and fence.proxy)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter import HazardKind as K

from .launching import SCHEDULES, kernel, launch
from .planted import REGISTERS, Planted, check, swap

PTR = ".param .u64 a"


def numbers() -> Any:
    return [np.arange(4096, dtype=np.int32)]


SETUP = """.shared .align 1024 .b8 t[1024]; .shared .align 8 .b64 b; mov.u32 r2, t; mov.u32 r3, b; ld.param.u64 d1, [a];
 shl.b32 r4, r1, 2; add.u32 r4, r4, r2; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2; add.u32 r9, r1, 70;
 setp.ne.u32 p1, r1, 0; @p1 bra READY; mbarrier.init.shared.b64 [r3], 1; fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
"""
BULK = """ mbarrier.arrive.expect_tx.shared.b64 _, [r3], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1], 256, [r3];
"""
WAIT = "L: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L; ld.shared.u32 r5, [r4];"
# Each lane writes its word of global memory; one lane's bulk copy reads all of it.
READ_BACK = SETUP + " st.global.u32 [d3], r9; fence.proxy.async; bar.sync 1; @p1 bra L;\n" + BULK + WAIT + " ret;"
GLOBAL_ONLY = READ_BACK.replace("fence.proxy.async;", "fence.proxy.async.global;")
# A bulk store over what lanes have written.
OVER = (
    SETUP
    + """ st.shared.u32 [r4], r1; st.global.u32 [d3], r9; fence.proxy.async; bar.sync 1; @p1 ret;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0; ret;"""
)
# A bulk store, then an ordinary read of what it wrote.
AFTER = (
    SETUP
    + """ st.shared.u32 [r4], r1; fence.proxy.async.shared::cta; bar.sync 1; @p1 bra W;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;
W: bar.sync 2; ld.global.u32 r5, [d3]; ret;"""
)
# A bulk load from global memory that is written when it has been read.
WRITTEN = SETUP + " @p1 bra L;\n" + BULK + WAIT + " st.global.u32 [d3], r9; ret;"
EARLY = WRITTEN.replace(" st.global.u32 [d3], r9; ret;", " ret;").replace(
    "L: mb", " @!p1 st.global.u32 [d1], r9;\nL: mb"
)
# The same between blocks, ordered by a flag.
BETWEEN = (
    SETUP
    + """ mov.u32 r5, %ctaid.x; setp.eq.u32 p3, r5, 1; @p1 ret; @p3 bra READER;
 st.global.u32 [d1], r9; fence.proxy.async; // writer
 st.release.gpu.global.u32 [d1+4096], 1; ret;
READER: ld.acquire.gpu.global.u32 r6, [d1+4096]; setp.ne.u32 p4, r6, 1; @p4 bra READER;
 fence.proxy.async.shared::cta; // reader
"""
    + BULK
    + WAIT
    + " ret;"
)
BY_READER = BETWEEN.replace("fence.proxy.async; // writer", "").replace(
    "async.shared::cta; // reader", "async.global; // reader"
)
# In shared memory: an ordinary write before a bulk load over it, and before a bulk store reads it.
LOAD_OVER = (
    SETUP + " st.shared.u32 [r4], r9; fence.proxy.async.shared::cta; bar.sync 1; @p1 bra L;\n" + BULK + WAIT + " ret;"
)
STORE_OF = OVER.replace("st.global.u32 [d3], r9;", "")

TWO = {"grid": 2}


def missing(name: str, body: str, fence: str, instead: str = "", **options: Any) -> Planted:
    return swap(name, K.MISSING_PROXY_FENCE, body, fence, instead, params=PTR, args=numbers, **options)


CASES = [
    missing("bulk load of what lanes wrote", READ_BACK, "fence.proxy.async;", mentions=("'a0'", "async proxy")),
    missing("a fence of shared memory for global", READ_BACK, "fence.proxy.async;", "fence.proxy.async.shared::cta;"),
    missing("a fence of global memory", GLOBAL_ONLY, "fence.proxy.async.global;"),
    missing("bulk store over what lanes wrote", OVER, "fence.proxy.async;", "fence.proxy.async.shared::cta;"),
    missing("the flag's writer has no proxy fence", BETWEEN, "fence.proxy.async; // writer", options=TWO),
    missing("the flag's reader has no proxy fence", BY_READER, "fence.proxy.async.global; // reader", "// reader", options=TWO),
    missing("in shared memory, a bulk load over what lanes wrote", LOAD_OVER, "fence.proxy.async.shared::cta;"),
    missing("in shared memory, a fence of global memory", LOAD_OVER, "fence.proxy.async.shared::cta;", "fence.proxy.async.global;"),
    missing("in shared memory, a bulk store of what lanes wrote", STORE_OF, "fence.proxy.async;", "fence.proxy.async.global;"),
    swap("read of what a bulk store has not written", K.READ_BEFORE_WAIT, AFTER, "wait_group 0", "wait_group.read 0", params=PTR,
        args=numbers),
    Planted("write of what a bulk load still reads", K.RACE_GLOBAL, EARLY, WRITTEN, params=PTR, args=numbers),
    swap("no order between the write and the bulk load", K.RACE_GLOBAL, READ_BACK, " bar.sync 1;", params=PTR, args=numbers),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)


# --- tensor maps that a kernel makes ----------------------------------------------------------------------------------

# A map of int32[16, 32] in boxes of 8 by 32, made in shared memory by one lane and copied to global memory by its warp.
FIELDS = (
    ("global_address", "b64", "", "d1"), ("rank", "b32", "", "1"), ("box_dim", "b32", "0, ", "32"),
    ("box_dim", "b32", "1, ", "8"), ("global_dim", "b32", "0, ", "32"), ("global_dim", "b32", "1, ", "16"),
    ("global_stride", "b64", "0, ", "128"), ("element_stride", "b32", "0, ", "1"), ("element_stride", "b32", "1, ", "1"),
    ("elemtype", "b32", "", "3"), ("interleave_layout", "b32", "", "0"), ("swizzle_mode", "b32", "", "0"),
    ("fill_mode", "b32", "", "0"),
)  # fmt: skip


def replaced(space: str, at: str) -> str:
    return "\n".join(
        f" @!p1 tensormap.replace.tile.{f}.{space}.b1024.{t} [{at}], {o}{'d9' if v == '128' and t == 'b64' else v};"
        for f, t, o, v in FIELDS
    )


ROWS = """.shared .align 1024 .b8 t[1024]; .shared .align 8 .b64 b; .shared .align 128 .b8 m[128]; mov.u32 r2, t; mov.u32 r3, b;
 mov.u32 r6, m; ld.param.u64 d1, [a]; ld.param.u64 d4, [maps]; mov.u64 d9, 128; mov.u32 r5, 0; shl.b32 r4, r1, 4; add.u32 r7, r4, r2;
 setp.ne.u32 p1, r1, 0; setp.lt.u32 p4, r1, 8; add.u32 r8, r4, r6; @p4 st.shared.v4.u32 [r8], {r5, r5, r5, r5};
 @p1 bra READY; mbarrier.init.shared.b64 [r3], 1; fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
"""
LOAD = """ mbarrier.arrive.expect_tx.shared.b64 _, [r3], 1024;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d4, {r5, 8}], [r3];
L: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L;
 ld.shared.v4.u32 {r20, r21, r22, r23}, [r7]; mul.wide.u32 d5, r1, 16; add.s64 d5, d5, d1; st.global.v4.u32 [d5+2048], {r20, r21, r22, r23}; ret;"""
LOAD = LOAD.replace(" mbarrier.arrive", " @p1 bra L;\n mbarrier.arrive", 1)
COPIED = (
    ROWS
    + replaced("shared::cta", "r6")
    + """
 bar.sync 1; setp.ge.u32 p5, r1, 32; @p5 bra ON;
 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [d4], [r6], 128;
 fence.proxy.tensormap::generic.acquire.gpu [d4], 128;
ON: bar.sync 2;
"""
    + LOAD
)
# The same map, made in place by lane 0, and used by its own warp or by the other one.
IN_PLACE = (
    ROWS
    + replaced("global", "d4")
    + """
 @!p1 fence.proxy.tensormap::generic.release.gpu;
 bar.sync 1; // between
 @!p1 fence.proxy.tensormap::generic.acquire.gpu [d4], 128;
"""
    + LOAD
)
TWO_POINTERS = ".param .u64 a, .param .u64 maps"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [d4], 128;"


def map_args() -> Any:
    return [np.arange(1024, dtype=np.int32), np.zeros(16, np.int64)]


@pytest.mark.parametrize("body", [COPIED, IN_PLACE], ids=["copied", "in place"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_map_that_the_kernel_made(body: str, schedule: str) -> None:
    args = map_args()
    launch(kernel(TWO_POINTERS, REGISTERS + body), "k", args, block=64, schedule=schedule)
    assert (args[0][512:768] == np.arange(256, 512)).all()


MAPS = [
    swap("no acquire of the map", K.MISSING_PROXY_FENCE, COPIED, ACQUIRE, params=TWO_POINTERS, args=map_args, mentions=("tensor map", "'a1'")),
    swap("acquire of another map", K.MISSING_PROXY_FENCE, COPIED, ACQUIRE, ACQUIRE.replace("[d4]", "[d1]"), params=TWO_POINTERS, args=map_args),
    swap("an acquire in place of the release", K.MISSING_PROXY_FENCE, IN_PLACE, "fence.proxy.tensormap::generic.release.gpu",
        ACQUIRE[:-1], params=TWO_POINTERS, args=map_args),
    swap("no release of the map", K.MISSING_PROXY_FENCE, IN_PLACE, "@!p1 fence.proxy.tensormap::generic.release.gpu;",
        "fence.acq_rel.gpu;", params=TWO_POINTERS, args=map_args),
    swap("a fence of the async proxy", K.MISSING_PROXY_FENCE, IN_PLACE, "@!p1 fence.proxy.tensormap::generic.release.gpu;",
        "fence.proxy.async;", params=TWO_POINTERS, args=map_args),
    swap("an acquire before the map is written", K.MISSING_PROXY_FENCE, IN_PLACE.replace("READY: bar", " // early\nREADY: bar"),
        "@!p1 " + ACQUIRE, "", params=TWO_POINTERS, args=map_args),
    swap("a box that no map may have", K.DESCRIPTOR, COPIED, "box_dim.shared::cta.b1024.b32 [r6], 1, 8", "box_dim.shared::cta.b1024.b32 [r6], 1, 300",
        params=TWO_POINTERS, args=map_args),
    swap("a stride that is no multiple of 16 bytes", K.DESCRIPTOR, COPIED, "mov.u64 d9, 128", "mov.u64 d9, 132", params=TWO_POINTERS,
        args=map_args),
    swap("a field of what is no map", K.DESCRIPTOR, COPIED, "{r5, r5, r5, r5}", "{r6, r6, r5, r5}", params=TWO_POINTERS, args=map_args),
]  # fmt: skip


@pytest.mark.parametrize("case", MAPS, ids=[c.name for c in MAPS])
def test_planted_map(case: Planted) -> None:
    check(case)


def test_a_map_that_another_cluster_made_is_acquired_there() -> None:
    """Block 0 makes the map and raises a flag; block 1 uses it, with an acquire of its own or without."""
    body = COPIED.replace(
        " bar.sync 1;", " mov.u32 r10, %ctaid.x; setp.eq.u32 p6, r10, 1; @p6 bra READER;\n bar.sync 1;", 1
    )
    body = body.replace(ACQUIRE, "@!p1 st.release.gpu.global.u32 [d1+4092], 1; ret;").replace(
        "ON: bar.sync 2;", "ON: ret;\nREADER: @p1 bra ON2;\nS: ld.acquire.gpu.global.u32 r11, [d1+4092]; setp.eq.u32 p7, r11, 0; @p7 bra S;\n"
        f" {ACQUIRE}\nON2: bar.sync 2;"
    )  # fmt: skip
    body = body.replace("@!p1 tensormap", "@p8 tensormap").replace(
        "READY: bar.sync 0;", "READY: bar.sync 0; mov.u32 r10, %ctaid.x; add.u32 r11, r10, r1; setp.eq.u32 p8, r11, 0;"
    )
    launch(kernel(TWO_POINTERS, REGISTERS + body), "k", map_args(), block=64, grid=2)
    with pytest.raises(HazardError) as caught:
        launch(kernel(TWO_POINTERS, REGISTERS + body.replace(ACQUIRE, "")), "k", map_args(), block=64, grid=2)
    assert caught.value.kind == K.MISSING_PROXY_FENCE
