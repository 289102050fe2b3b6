"""Planted bugs of TMA, bulk copies, cp.async, mbarriers and wgmma."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardKind as K
from kernel_dsl.runtime.interpreter.machine.tensor_map import encode_tensor_map

from .planted import Planted, check, swap

MAP = ".param .align 64 .b8 m[128]"
PTR = ".param .u64 a"


def tile_map(rows: int = 16, columns: int = 32, box=(32, 8), name: str = "x"):
    """Makes a float32 tensor in memory and its map; the tile is `box` (columns, rows)."""

    def make(memory):
        data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        address = memory.allocate(data, name)
        return encode_tensor_map(address, "float32", (columns, rows), (columns * 4,), box)

    return make


def maps():
    return [tile_map()]


def pointer(n: int = 1024):
    return lambda: [np.zeros(n, np.int32)]


# One thread copies a tile of 1024 bytes in; all wait for it; each reads two words.
SETUP = """ .shared .align 1024 .b8 t[4096]; .shared .align 8 .b64 bar; .shared .align 8 .b64 bar2;
 mov.u32 r2, t; mov.u32 r3, bar; mov.u32 r30, bar2; shl.b32 r4, r1, 2; add.u32 r4, r4, r2; mov.u32 r5, 0;
 setp.ne.u32 p1, r1, 0;
 @p1 bra READY;
 mbarrier.init.shared::cta.b64 [r3], 1;
 mbarrier.init.shared::cta.b64 [r30], 64;
 fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
"""
TMA = """cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1, {r5, r5}], [r3];"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], 0; @!p2 bra WAIT;\n"
LOAD = (
    SETUP
    + " mov.b64 d1, m; cvta.param.u64 d1, d1;\n @p1 bra WAIT;\n mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 1024;\n "
    + TMA
    + "\n"
    + WAIT
    + " ld.shared.u32 r6, [r4]; ret;"
)
BULK = LOAD.replace("mov.b64 d1, m; cvta.param.u64 d1, d1", "ld.param.u64 d1, [a]").replace(
    TMA,
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1], 1024, [r3];",
)
# All threads fill the tile; one stores it.
STORE = (
    SETUP
    + """ mov.b64 d1, m; cvta.param.u64 d1, d1;
 mov.u32 r7, 0;
FILL: st.shared.u32 [r4], r1; add.u32 r4, r4, 256; add.u32 r7, r7, 1; setp.lt.u32 p3, r7, 4; @p3 bra FILL;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 @p1 bra DONE;
 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [d1, {r5, r5}], [r2];
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read 0;
DONE: bar.sync 1;
 st.shared.u32 [r2], r1;
 ret;"""
)
STORE = STORE.replace(" st.shared.u32 [r2], r1;\n ret", " @p1 bra X;\n st.shared.u32 [r2], r1;\nX: ret")
BULK_STORE = STORE.replace("mov.b64 d1, m; cvta.param.u64 d1, d1", "ld.param.u64 d1, [a]").replace(
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [d1, {r5, r5}], [r2];",
    "cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 1024;",
)
# A ring of one stage: the producer warp refills what the consumer warp has read.
RING = (
    SETUP.replace("[r30], 64", "[r30], 32")
    + """ mov.b64 d1, m; cvta.param.u64 d1, d1; mov.u32 r10, 0;
 setp.ge.u32 p4, r1, 32; @p4 bra CONSUME;
PRODUCE: not.b32 r11, r10; and.b32 r11, r11, 1;
 @p1 bra NEXT;
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 p2, [r30], r11; @!p2 bra EMPTY;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 1024;
 """
    + TMA
    + """
NEXT: add.u32 r10, r10, 1; setp.lt.u32 p5, r10, 3; @p5 bra PRODUCE;
 ret;
CONSUME: and.b32 r11, r10, 1;
FULL: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], r11; @!p2 bra FULL;
 ld.shared.u32 r6, [r4];
 mbarrier.arrive.shared::cta.b64 _, [r30];
 add.u32 r10, r10, 1; setp.lt.u32 p5, r10, 3; @p5 bra CONSUME;
 ret;"""
)
CP_ASYNC = """ .shared .align 16 .b8 t[1024]; ld.param.u64 d1, [a]; mov.u32 r2, t;
 shl.b32 r3, r1, 4; add.u32 r4, r2, r3; cvt.u64.u32 d2, r3; add.s64 d2, d1, d2; xor.b32 r5, r3, 512; add.u32 r5, r5, r2;
 cp.async.cg.shared.global [r4], [d2], 16;
 cp.async.commit_group;
 cp.async.wait_group 0;
 bar.sync 0;
 ld.shared.u32 r6, [r5];
 ret;"""
ARRIVALS = (
    SETUP
    + """ mbarrier.arrive.shared::cta.b64 _, [r30];
W0: mbarrier.try_wait.parity.shared::cta.b64 p2, [r30], 0; @!p2 bra W0;
 mbarrier.arrive.shared::cta.b64 _, [r30];
W1: mbarrier.try_wait.parity.shared::cta.b64 p2, [r30], 1; @!p2 bra W1;
 ret;"""
)
CROSSED = """ .shared .align 8 .b64 b0; .shared .align 8 .b64 b1; mov.u32 r2, b0; mov.u32 r3, b1;
 setp.ne.u32 p1, r1, 0;
 @p1 bra READY;
 mbarrier.init.shared::cta.b64 [r2], 32; mbarrier.init.shared::cta.b64 [r3], 32;
READY: bar.sync 0;
 setp.ge.u32 p4, r1, 32; @p4 bra OTHER;
 mbarrier.arrive.shared::cta.b64 _, [r3];
W0: mbarrier.try_wait.parity.shared::cta.b64 p2, [r2], 0; @!p2 bra W0;
 ret;
OTHER:
W1: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], 0; @!p2 bra W1;
 mbarrier.arrive.shared::cta.b64 _, [r2];
 ret;"""

# wgmma m64n8k16 on zeros: A of 64 rows at t, B of 8 rows at t + 2048, no swizzle.
ACC = "{f1, f2, f3, f4}"
WGMMA = """ .shared .align 1024 .b8 t[4096]; mov.u32 r2, t; shl.b32 r3, r1, 4; add.u32 r4, r2, r3; mov.u32 r5, 0;
 st.shared.v4.u32 [r4], {r5, r5, r5, r5}; st.shared.v4.u32 [r4+2048], {r5, r5, r5, r5};
 mov.f32 f1, 0f00000000; mov.f32 f2, 0f00000000; mov.f32 f3, 0f00000000; mov.f32 f4, 0f00000000;
 mul.f32 f1, f1, f1;
 shr.u32 r6, r2, 4; cvt.u64.u32 d1, r6; or.b64 d1, d1, 0x0000001000080000; add.s64 d2, d1, 128;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f1, f2, f3, f4}, d1, d2, 1, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0;
 add.f32 f5, f1, f2;
 bar.sync 1;
 st.shared.u32 [r4], r5;
 ret;"""
WGMMA_RS = (
    WGMMA.replace(
        "f16 {f1, f2, f3, f4}, d1, d2, 1, 1, 1, 0, 0", "f16 {f1, f2, f3, f4}, {r11, r12, r13, r14}, d2, 1, 1, 1, 0"
    )
    .replace(" wgmma.fence", " mov.b32 r11, 0; mov.b32 r12, 0; mov.b32 r13, 0; mov.b32 r14, 0;\n wgmma.fence")
    .replace(" add.f32 f5", " add.u32 r11, r11, 1;\n add.f32 f5")
)
WG = {"block": 128}
# The same in a cluster of two, with B K by N at the end of the tile; PTX ISA 9.7.15.5.1 cuts addresses to 18 bits.
WGMMA_PAIR = (
    WGMMA.replace(" shr.u32 r6, r2, 4;", " and.b32 r6, r2, 0x3FFFF; shr.u32 r6, r6, 4;")
    .replace("add.s64 d2, d1, 128", "add.s64 d2, d1, 240")
    .replace("1, 1, 1, 0, 0;", "1, 1, 1, 0, 1;")
)
FIELDS = "0x0000001000080000"


def reserved(name: str, bits: int, *mentions: str) -> Planted:
    return swap(
        f"reserved bits of a wgmma descriptor above {name}",
        K.DESCRIPTOR,
        WGMMA,
        FIELDS,
        f"0x{int(FIELDS, 16) | bits:016x}",
        options=WG,
        mentions=("reserved bits", f"above {name}", "0x3FFFF", *mentions),
    )


CASES = [
    swap(
        "TMA tile read before its wait",
        K.READ_BEFORE_WAIT,
        LOAD,
        WAIT,
        "WAIT:\n",
        params=MAP,
        args=maps,
        mentions=("'t'",),
    ),
    swap("bulk copy read before its wait", K.READ_BEFORE_WAIT, BULK, WAIT, "WAIT:\n", params=PTR, args=pointer()),
    swap(
        "wait for the wrong parity",
        K.READ_BEFORE_WAIT,
        LOAD,
        "[r3], 0; @!p2",
        "[r3], 1; @!p2",
        params=MAP,
        args=maps,
        also=(K.DEADLOCK,),
    ),
    swap(
        "more bytes expected than issued",
        K.BYTES_MISMATCH,
        LOAD,
        "[r3], 1024;",
        "[r3], 1040;",
        params=MAP,
        args=maps,
        mentions=("16 bytes",),
    ),
    swap(
        "fewer bytes expected than issued",
        K.BYTES_MISMATCH,
        LOAD,
        "[r3], 1024;",
        "[r3], 512;",
        params=MAP,
        args=maps,
        mentions=("512 bytes",),
    ),
    swap(
        "bytes never expected",
        K.BYTES_MISMATCH,
        LOAD,
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 1024;",
        "mbarrier.arrive.shared::cta.b64 _, [r3];",
        params=MAP,
        args=maps,
        also=(K.READ_BEFORE_WAIT,),
    ),
    swap("bytes expected and no copy", K.BYTES_MISMATCH, LOAD, TMA, params=MAP, args=maps),
    swap(
        "no proxy fence before a TMA store",
        K.MISSING_PROXY_FENCE,
        STORE,
        " fence.proxy.async.shared::cta;",
        params=MAP,
        args=maps,
        mentions=("'t'",),
    ),
    swap(
        "no proxy fence before a bulk store",
        K.MISSING_PROXY_FENCE,
        BULK_STORE,
        " fence.proxy.async.shared::cta;",
        params=PTR,
        args=pointer(),
    ),
    swap(
        "no barrier before a TMA store",
        K.RACE_SHARED,
        STORE,
        " bar.sync 0;\n @p1 bra DONE",
        " @p1 bra DONE",
        params=MAP,
        args=maps,
    ),
    swap(
        "source reused before the store has read it",
        K.REUSED_BEFORE_READ,
        STORE,
        " cp.async.bulk.wait_group.read 0;",
        params=MAP,
        args=maps,
    ),
    swap(
        "source reused, only some groups waited for",
        K.REUSED_BEFORE_READ,
        STORE,
        "wait_group.read 0",
        "wait_group.read 1",
        params=MAP,
        args=maps,
    ),
    swap(
        "bulk source reused by another warp",
        K.REUSED_BEFORE_READ,
        BULK_STORE.replace("@p1 bra X", "setp.ne.u32 p6, r1, 32; @p6 bra X"),
        "DONE: bar.sync 1;",
        "DONE:",
        params=PTR,
        args=pointer(),
    ),
    swap(
        "result of a bulk store read before its writes are done",
        K.READ_BEFORE_WAIT,
        BULK_STORE.replace("wait_group.read 0;", "wait_group 0; ld.global.u32 r9, [d1];"),
        "wait_group 0",
        "wait_group.read 0",
        params=PTR,
        args=pointer(),
    ),
    swap(
        "consumer that never frees its stage",
        K.DEADLOCK,
        RING,
        " mbarrier.arrive.shared::cta.b64 _, [r30];",
        params=MAP,
        args=maps,
        mentions=("'bar2'", "32 of 32 arrivals"),
    ),
    swap(
        "stage freed before it is read",
        K.RACE_SHARED,
        RING,
        " ld.shared.u32 r6, [r4];\n mbarrier.arrive.shared::cta.b64 _, [r30];",
        " mbarrier.arrive.shared::cta.b64 _, [r30];\n ld.shared.u32 r6, [r4];",
        params=MAP,
        args=maps,
    ),
    swap(
        "producer that starts by waiting",
        K.DEADLOCK,
        RING,
        "not.b32 r11, r10;",
        "mov.b32 r11, r10;",
        params=MAP,
        args=maps,
    ),
    swap(
        "cp.async without a wait", K.READ_BEFORE_WAIT, CP_ASYNC, " cp.async.wait_group 0;", params=PTR, args=pointer()
    ),
    swap(
        "cp.async group still in flight",
        K.READ_BEFORE_WAIT,
        CP_ASYNC,
        "wait_group 0",
        "wait_group 1",
        params=PTR,
        args=pointer(),
    ),
    swap(
        "cp.async of another warp without a barrier",
        K.READ_BEFORE_WAIT,
        CP_ASYNC,
        " bar.sync 0;",
        params=PTR,
        args=pointer(),
    ),
    swap("mbarrier never initialised", K.BARRIER_MISUSE, ARRIVALS, " mbarrier.init.shared::cta.b64 [r30], 64;"),
    swap("mbarrier initialised for too many", K.DEADLOCK, ARRIVALS, "[r30], 64", "[r30], 65", mentions=("1 of 65",)),
    swap("mbarrier initialised for too few", K.BARRIER_MISUSE, ARRIVALS, "[r30], 64", "[r30], 48"),
    swap(
        "phase completed before the last was seen",
        K.PHASE_OVERRUN,
        ARRIVALS,
        "W0: mbarrier.try_wait.parity.shared::cta.b64 p2, [r30], 0; @!p2 bra W0;\n",
    ),
    swap(
        "warps wait for each other",
        K.DEADLOCK,
        CROSSED,
        " mbarrier.arrive.shared::cta.b64 _, [r3];\nW0: mbarrier.try_wait.parity.shared::cta.b64 p2, [r2], 0; @!p2 bra W0;",
        "W0: mbarrier.try_wait.parity.shared::cta.b64 p2, [r2], 0; @!p2 bra W0;\n mbarrier.arrive.shared::cta.b64 _, [r3];",
        mentions=("'b0'", "'b1'"),
    ),
    swap("no proxy fence before wgmma", K.MISSING_PROXY_FENCE, WGMMA, " fence.proxy.async.shared::cta;", options=WG),
    swap("no wgmma.fence", K.MISSING_WGMMA_FENCE, WGMMA, " wgmma.fence.sync.aligned;", options=WG),
    swap(
        "registers computed after wgmma.fence",
        K.MISSING_WGMMA_FENCE,
        WGMMA,
        " wgmma.fence.sync.aligned;",
        " wgmma.fence.sync.aligned;\n add.f32 f1, f1, f1;",
        options=WG,
    ),
    swap(
        "accumulator read in flight",
        K.WGMMA_REGISTERS,
        WGMMA,
        " wgmma.wait_group.sync.aligned 0;\n add.f32 f5, f1, f2;",
        " add.f32 f5, f1, f2;\n wgmma.wait_group.sync.aligned 0;",
        options=WG,
        mentions=("f2",),
    ),
    swap("accumulator read with a group in flight", K.WGMMA_REGISTERS, WGMMA, "aligned 0;", "aligned 1;", options=WG),
    swap(
        "A fragment overwritten in flight",
        K.WGMMA_REGISTERS,
        WGMMA_RS,
        " wgmma.wait_group.sync.aligned 0;\n add.u32 r11, r11, 1;",
        " add.u32 r11, r11, 1;\n wgmma.wait_group.sync.aligned 0;",
        options=WG,
        mentions=("r11",),
    ),
    swap(
        "operand overwritten while wgmma may read it",
        K.REUSED_BEFORE_WGMMA,
        WGMMA,
        " wgmma.wait_group.sync.aligned 0;\n add.f32 f5, f1, f2;",
        options=WG,
    ),
    swap(
        "wgmma descriptor beyond shared memory",
        K.DESCRIPTOR,
        WGMMA,
        "add.s64 d2, d1, 128",
        "add.s64 d2, d1, 250",
        options=WG,
    ),
    swap(
        "wgmma descriptor with the block's rank in it",
        K.DESCRIPTOR,
        WGMMA_PAIR,
        " and.b32 r6, r2, 0x3FFFF; shr.u32 r6, r6, 4;",
        " shr.u32 r6, r2, 4;",
        options={**WG, "grid": 2, "cluster": (2, 1, 1)},
        mentions=("0x3FFFF", "block (1, 0, 0)"),
    ),
    reserved("the start address", 1 << 15, ": 15 above"),
    reserved("the leading-dimension byte offset", 3 << 30, "30 and 31"),
    reserved("the stride-dimension byte offset", 1 << 46),
    reserved("the base offset", 1 << 61),
    swap(
        "operand of no tensor map",
        K.DESCRIPTOR,
        LOAD,
        "mov.b64 d1, m; cvta.param.u64 d1, d1",
        "cvta.shared.u64 d1, 1024",
        params=MAP,
        args=maps,
    ),
    swap(
        "tensor map of another rank",
        K.DESCRIPTOR,
        LOAD,
        TMA,
        TMA.replace("2d", "3d").replace("{r5, r5}", "{r5, r5, r5}"),
        params=MAP,
        args=maps,
    ),
    swap(
        "misaligned TMA destination", K.MISALIGNED, LOAD, "mov.u32 r2, t;", "mov.u32 r2, t+16;", params=MAP, args=maps
    ),
    swap(
        "TMA destination beyond shared memory",
        K.OUT_OF_BOUNDS,
        LOAD,
        "mov.u32 r2, t;",
        "mov.u32 r2, t+3584;",
        params=MAP,
        args=maps,
    ),
    swap(
        "bulk copy beyond the array",
        K.OUT_OF_BOUNDS,
        BULK,
        "[d1], 1024, [r3]",
        "[d1+3584], 1024, [r3]",
        params=PTR,
        args=pointer(),
        mentions=("'a0'",),
    ),
    swap(
        "bulk copy of an odd size",
        K.MISALIGNED,
        BULK.replace(
            "cp.async.bulk.shared::cluster.global", "mov.u32 r40, 1024; cp.async.bulk.shared::cluster.global"
        ).replace("[d1], 1024, [r3]", "[d1], r40, [r3]"),
        "r40, 1024",
        "r40, 1020",
        params=PTR,
        args=pointer(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_planted_bug(case: Planted):
    check(case)
