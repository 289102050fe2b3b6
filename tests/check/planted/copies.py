"""Planted bugs of copies that overlap, or that nobody waits for, of arrivals that nobody sees, and of wgmma."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

from .probe import Probe, numbers, ptx, zeros
from .proxies import AT, LOAD, MAP, MAPPED, START, TENSOR_LOAD, TILE, WAIT

RACE = "race_shared"
STORE2 = """cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;"""
FILL = """ st.shared.u32 [%r1], tid; st.shared.u32 [%r1+256], lane; st.shared.u32 [%r1+512], tid;
 fence.proxy.async.shared::cta; bar.sync 1;
"""
# A ring of four stages: warp 0 produces, warp 1 consumes eight tiles of 128 bytes.
RING = """ ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; mov.u32 %r0, tile; mov.u32 %r2, bars; add.u32 %r3, %r2, 32;
 setp.ne.u32 %p0, lane, 0;
 setp.ne.u32 %p1, tid, 0; @%p1 bra READY; mov.u32 %r4, 0;
I: shl.b32 %r5, %r4, 3; add.u32 %r6, %r5, %r2; add.u32 %r7, %r5, %r3; mbarrier.init.shared.b64 [%r6], 1;
 mbarrier.init.shared.b64 [%r7], <<COUNT>>;
 add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 4; @%p2 bra I; fence.mbarrier_init.release.cluster;
READY: bar.sync 0; mov.u32 %r10, 0; setp.eq.u32 %p3, warp, 1; @%p3 bra CONSUME; @%p0 ret;
PRODUCE: and.b32 %r11, %r10, 3; shl.b32 %r12, %r11, 3; add.u32 %r13, %r12, %r2; add.u32 %r14, %r12, %r3;
 shr.u32 %r15, %r10, 2; not.b32 %r16, %r15; and.b32 %r16, %r16, 1;
E: mbarrier.try_wait.parity.shared.b64 %p4, [%r14], %r16; @!%p4 bra E;
 shl.b32 %r17, %r11, 7; add.u32 %r17, %r17, %r0; mul.wide.u32 %d2, %r10, 128; add.s64 %d2, %d2, %d0;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r13], 128;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r17], [%d2], 128, [%r13];
 add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, <<MANY>>; @%p5 bra PRODUCE; ret;
CONSUME: and.b32 %r11, %r10, 3; shl.b32 %r12, %r11, 3; add.u32 %r13, %r12, %r2; add.u32 %r14, %r12, %r3;
 shr.u32 %r15, %r10, 2; and.b32 %r16, %r15, 1;
F: mbarrier.try_wait.parity.shared.b64 %p4, [%r13], <<PARITY>>; @!%p4 bra F;
 shl.b32 %r17, %r11, 7; shl.b32 %r18, lane, 2; add.u32 %r17, %r17, %r18; add.u32 %r17, %r17, %r0;
 <<EARLY>> ld.shared.u32 %r19, [%r17]; mul.wide.u32 %d3, %r10, 128; mul.wide.u32 %d4, lane, 4; add.s64 %d3, %d3, %d4;
 add.s64 %d3, %d3, %d1;
 st.global.u32 [%d3], %r19; <<FREE>>
 add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 8; @%p5 bra CONSUME;"""
RINGS = ".shared .align 128 .b8 tile[1024];\n.shared .align 8 .b64 bars[8];\n"
FREE = "@!%p0 mbarrier.arrive.shared.b64 _, [%r14];"


def ring(name: str, kinds: str, **changed: str) -> Probe:
    """The ring with `changed` pieces, "bad||good"."""
    body = RING
    pieces = {"COUNT": "1", "MANY": "8", "PARITY": "%r16", "EARLY": "", "FREE": "bar.warp.sync -1; " + FREE, **changed}
    for key, text in pieces.items():
        body = body.replace(f"<<{key}>>", f"<<{text}>>" if "||" in text else text)
    return ptx(name, kinds, body, numbers(512, 256), before=RINGS)


# Both blocks of a pair load into their SMEM; block 0's load goes to both.
PAIR = START + """ barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 @%p0 bra L; mov.u16 %h1, 3; setp.ne.u32 %p3, rank, 0; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
 @!%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d0], 256, [%r2], %h1;
 @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0+<<128||256>>], [%d0+256], 256, [%r2], %h1;
L: """ + WAIT + """ L; ld.shared.u32 %r7, [%r1]; barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;"""  # fmt: skip

# wgmma m64n16k16 of a tile of bfloat16 zeros, twice: accumulators %f0-7 and %f8-15.
PRODUCT = (
    START
    + """ mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10};
 st.shared.v4.b32 [%r11+2048], {%r10, %r10, %r10, %r10}; mov.f32 %f0, 0f00000000;
 fence.proxy.async.shared::cta; <<NOT1>>bar.sync 1;
 shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13; or.b64 %d4, %d4, 0x0000001000080000; add.s64 %d5, %d4, 128;
 mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d4, %d5, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f8, %f9, %f10, %f11}, {%r20, %r21, %r22, %r23}, %d5, 0, 1, 1, 0;
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned <<FIRST>>; <<USE>> wgmma.wait_group.sync.aligned 0; <<END>>"""
)


def product(name: str, kinds: str, block: int = 128, **changed: str) -> Probe:
    body = PRODUCT
    for key, text in {"NOT1": "", "FIRST": "1", "USE": "", "END": "", **changed}.items():
        body = body.replace(f"<<{key}>>", f"<<{text}>>" if "||" in text else text)
    return ptx(name, kinds, body, zeros(4096), before=TILE, block=block)


def _numbered() -> list[Any]:
    a = np.arange(64 * 64, dtype=np.float16).reshape(64, 64)
    return [kd.check.tensor_map(a, (8, 64))]


def _both() -> list[Any]:
    a = np.zeros((64, 64), np.float16)
    return [kd.check.tensor_map(a, (8, 64)), a]


PROBES: list[Probe] = [
    ptx("boxes of two tensor loads share a row", RACE, MAPPED + AT + """ @%p0 bra L;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 2048;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r20, %r21}], [%r2];
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+<<896||1024>>], [%d0, {%r20, %r21}], [%r2];
L: """ + WAIT + " L;", _numbered, params=MAP, before=TILE),
    ptx("a load over what a load on another mbarrier brings", RACE, START + """ @%p0 bra L; """ + LOAD + """
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;
 <<||X: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r2], 0; @!%p8 bra X;>>
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+128], [%d0+512], 128, [%r3];
L: """ + WAIT + """ L;
M: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], 0; @!%p9 bra M;
 ld.shared.u32 %r7, [%r1];""", numbers(256), before=TILE),
    ptx("two groups of one lane store to one place", "race_global", START + FILL + " @%p0 ret; " + STORE2 + """
 <<||cp.async.bulk.wait_group 0;>>
 cp.async.bulk.global.shared::cta.bulk_group [%d0+240], [%r0+256], 32; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;""",
        zeros(256), before=TILE),
    ptx("a reduction over what a store still writes", "race_global", START + FILL + " @%p0 ret; " + STORE2 + """
 <<||cp.async.bulk.wait_group 0;>> cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%d0+64], [%r0+512], 64;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""", zeros(256), before=TILE),
    ptx("two reductions of one lane, of which one adds", "race_global", START + FILL + """ @%p0 ret;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group;
 <<||cp.async.bulk.wait_group 0;>> cp.reduce.async.bulk.global.shared::cta.bulk_group.max.u32 [%d0], [%r0+256], 128;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""", zeros(256), before=TILE),
    ptx("blocks add, and one takes the minimum", "race_blocks", START + FILL + """ setp.eq.u32 %p3, cta, 2; @%p0 ret; @%p3 bra M;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%d0], [%r0], 256; cp.async.bulk.commit_group; bra W;
M: cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s32 [%d0+<<128||256>>], [%r0], 256; cp.async.bulk.commit_group;
W: cp.async.bulk.wait_group 0;""", zeros(256), before=TILE, grid=3),
    ptx("atomics of lanes beside a reduction by a copy", "race_global", START + FILL + """ @%p0 bra A;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group;
A: red.global.gpu.add.u32 [%d2+<<0||256>>], 1; @%p0 ret; cp.async.bulk.wait_group 0;""", zeros(256), before=TILE),
    ptx("a reduction into what another block reads", "race_blocks", START + FILL + """ setp.eq.u32 %p3, cta, 1;
 @%p3 bra R; @%p0 ret;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0; ret;
R: ld.global.u32 %r7, [%d2+<<0||256>>]; st.shared.u32 [%r1], %r7;""", zeros(128), before=TILE, grid=2),
    ptx("tensor reductions of two blocks, and a plain store", "race_blocks", MAPPED.replace("mov.b64 %d0, m; cvta.param.u64 %d0, %d0;",
        """mov.b64 %d0, m; cvta.param.u64 %d0, %d0; ld.param.u64 %d7, [p];""")
        + AT + """ mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10};
 fence.proxy.async.shared::cta; bar.sync 1; setp.eq.u32 %p3, cta, 2; @%p3 bra W; @%p0 ret;
 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d0, {%r20, %r21}], [%r0];
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0; ret;
W: mul.wide.u32 %d3, warp, 128; add.s64 %d3, %d3, %d7;
 st.global.u16 [%d3+<<1024||0>>], 7;""", _both, params=MAP + ", .param .u64 p",
        before=TILE, grid=3),
    ptx("blocks store rows that overlap by 16 bytes", "race_blocks", START + FILL + """ @%p0 ret;
 mul.wide.u32 %d4, cta, <<240||256>>;
 add.s64 %d0, %d0, %d4; mul.lo.u32 %r9, cta, 256; add.u32 %r0, %r0, %r9;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;""", zeros(256), before=TILE, grid=2),
    ptx("multicasts of two blocks meet", RACE, PAIR, numbers(256), before=TILE, grid=2, cluster=2),
    ptx("a load into what a store still reads", "reused_before_read", START + FILL + """ @%p0 bra L;
 cp.async.bulk.global.shared::cta.bulk_group
 [%d0+1024], [%r0], 256; cp.async.bulk.commit_group;
 <<||cp.async.bulk.wait_group.read 0;>> """ + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r7, [%r1]; @%p0 ret; cp.async.bulk.wait_group 0;""", numbers(512), before=TILE),
    ptx("a wait of another lane than the one that copied", "reused_before_read",
        START + FILL + """ setp.eq.u32 %p3, tid, 0; setp.eq.u32 %p4, tid, <<32||0>>;
 @!%p3 bra W; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
W: @!%p4 bra X; cp.async.bulk.wait_group.read 0;
X: bar.sync 2; st.shared.u32 [%r1], lane; bar.sync 3; @%p0 ret; cp.async.bulk.wait_group 0;""", zeros(64), before=TILE),
    ptx("a wait before the commit", "reused_before_read unawaited_copy", START + FILL + """ @%p0 ret;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256;
 <<cp.async.bulk.wait_group.read 0; cp.async.bulk.commit_group;||cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read 0;>>
 st.shared.u32 [%r0], lane;""", zeros(64), before=TILE),
    ptx("a block leaves while a tensor store reads its SMEM", "unawaited_copy", MAPPED + AT + """ mov.u32 %r10, 0;
 shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10}; fence.proxy.async.shared::cta; bar.sync 1; @%p0 ret;
 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d0, {%r20, %r21}], [%r0]; cp.async.bulk.commit_group;
 <<||cp.async.bulk.wait_group.read 0;>>""",
        _numbered, params=MAP, before=TILE),
    ptx("a block leaves while a tensor load writes its SMEM", "unawaited_copy", MAPPED + AT + """ @%p0 bra L;
 """ + TENSOR_LOAD + "\nL: <<||" + WAIT
        + " L;>>", _numbered, params=MAP, before=TILE),
    ring("a ring that prefetches one tile too many", "unawaited_copy", MANY="9||8"),
    ring("a ring that frees a stage before it is read", RACE, EARLY=FREE + "||", FREE="||bar.warp.sync -1; " + FREE),
    ring("a ring that waits for the other parity", "read_before_wait race_shared deadlock uninitialised",
        PARITY="1||%r16"),
    ring("a ring that frees no stage", "deadlock", FREE="||bar.warp.sync -1; " + FREE),
    ring("a ring whose stages want two arrivals", "deadlock", COUNT="2||1"),
    ptx("cp.async of the next turn over what warps still read", RACE, START + """ mov.u32 %r10, 0;
 shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 xor.b32 %r12, tid, 63; shl.b32 %r12, %r12, 4; add.u32 %r12, %r12, %r0; mul.wide.u32 %d3, tid, 16;
 add.s64 %d3, %d3, %d0;
T: cp.async.cg.shared.global [%r11], [%d3], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 1;
 ld.shared.v4.u32 {%r13, %r14, %r15, %r16}, [%r12];
 <<||bar.sync 2;>> add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 3; @%p3 bra T;""", numbers(256), before=TILE),
    ptx("two stages of cp.async, and a wait for the older one", "read_before_wait race_shared",
        START + """ shl.b32 %r11, tid, 3; add.u32 %r11, %r11, %r0;
 mul.wide.u32 %d3, tid, 8; add.s64 %d3, %d3, %d0; cp.async.ca.shared.global [%r11], [%d3], 8; cp.async.commit_group;
 cp.async.ca.shared.global [%r11+1024], [%d3+512], 8; cp.async.commit_group; cp.async.wait_group 1; bar.sync 1;
 xor.b32 %r12, tid, 32; shl.b32 %r12, %r12, 3; add.u32 %r12, %r12, %r0;
 ld.shared.v2.u32 {%r13, %r14}, [%r12+<<1024||0>>]; cp.async.wait_all;""",
        numbers(256), before=TILE),
    ptx("an mbarrier that counts fewer copies of cp.async than lanes make",
        "read_before_wait race_shared barrier_misuse", START + """ mul.wide.u32 %d3, tid, 16; shl.b32 %r11, tid, 4;
 add.s64 %d3, %d3, %d0; add.u32 %r11, %r11, %r0; setp.ne.u32 %p4, tid, 0; @%p4 bra A; mbarrier.inval.shared.b64 [%r3];
 mbarrier.init.shared.b64 [%r3], <<32||64>>;
A: bar.sync 1; cp.async.cg.shared.global [%r11], [%d3], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];
B: mbarrier.try_wait.parity.shared.b64 %p5, [%r3], 0; @!%p5 bra B; xor.b32 %r12, %r11, 512;
 ld.shared.u32 %r13, [%r12];""", numbers(256), before=TILE),
    ptx("two phases complete, and one is seen", "phase_overrun", START + """ @%p0 ret;
 mbarrier.arrive.shared.b64 %d5, [%r2];
 <<||A: mbarrier.test_wait.shared.b64 %p4, [%r2], %d5; @!%p4 bra A;>> mbarrier.arrive.shared.b64 %d6, [%r2];
B: mbarrier.test_wait.shared.b64 %p5, [%r2], %d6; @!%p5 bra B;""", zeros(4), before=TILE),
    ptx("bytes are expected after the copy's phase has ended",
        "bytes_mismatch phase_overrun barrier_misuse deadlock read_before_wait unawaited_copy", START + """ @%p0 bra L;
 mbarrier.arrive<<||.expect_tx>>.shared.b64 _, [%r2]<<||, 256>>;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];", numbers(64), before=TILE),
    # wgmma
    product("accumulators of the younger product", "wgmma_registers",
        USE="add.f32 %f20, %f9, %f1;||add.f32 %f20, %f2, %f1;"),
    product("a fragment changes under the product", "wgmma_registers", USE="mov.b32 %r22, 5;||mov.b32 %r24, 5;"),
    product("a load into the operand of a product in flight", "reused_before_wgmma", END="""||@%p0 bra L;
 """ + LOAD.replace(
        "[%r0]", "[%r0+2048]") + "\nL: " + WAIT + " L;", USE="""@%p0 bra L; """ + LOAD.replace("[%r0]",
        "[%r0+2048]") + "\nL: " + WAIT + " L;||"),
    product("an epilogue writes over operands before the last wait", "reused_before_wgmma", USE="""bar.sync 3;
 stmatrix.sync.aligned.m8n8.x2.shared.b16"""
        " [%r11+2048], {%r20, %r21};||bar.sync 3;", END="""||bar.sync 4;
 stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r11+2048], {%r20, %r21};"""),
    ptx("operands that the other warpgroup wrote", "race_shared", START + """ mov.u32 %r10, 0; and.b32 %r9, tid, 127;
 shl.b32 %r11, %r9, 4; add.u32 %r11, %r11, %r0;
 setp.ge.u32 %p3, tid, 128; @%p3 add.u32 %r11, %r11, 2048; st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10};
 fence.proxy.async;
 bar<<.warp||>>.sync <<-1||6, 256>>; @%p3 bra END; bar.sync 7, 128; shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13;
 or.b64 %d4, %d4, 0x0000001000080000;
 add.s64 %d5, %d4, 128; mov.b32 %r20, 0; mov.b32 %r21, 0; wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r20, %r21}, %d4, %d5, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
END: bar.sync 8;""",
        zeros(64), before=TILE, block=256),
]  # fmt: skip
