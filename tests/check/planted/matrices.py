"""Planted bugs of wgmma and its registers, of ldmatrix and stmatrix, and of groups of cp.async."""

from __future__ import annotations

from typing import Any

import numpy as np

from .order import A, B, S
from .probe import Probe, numbers, ptx, zeros
from .proxies import START, TILE, WAIT

# One tile of zeros for both operands, and cleared sums.
WG = (
    START
    + """ mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10}; st.shared.v4.b32 [%r11+2048], {%r10, %r10, %r10, %r10};
 fence.proxy.async.shared::cta; bar.sync 1;
 shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13; or.b64 %d4, %d4, 0x0000001000080000; add.s64 %d5, %d4, 128;
 mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
"""
)
MMA8 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d4, %d5, 1, 1, 1, 0, 0;"
MMA16 = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %d4, %d5, 1, 1, 1, 0, 0;"
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"


def wait(n: Any) -> str:
    return f"wgmma.wait_group.sync.aligned {n};"


WGL = {"before": TILE, "block": 128}
PROBES: list[Probe] = [
 ptx("a product that no group holds", "wgmma_registers", WG + FENCE + MMA8 + f"<<||{COMMIT}>>" + wait(0) + " st.global.f32 [%d2], %f1; " + f"<<{COMMIT}{wait(0)}||>>", zeros(128, dtype=np.float32), **WGL),
 ptx("a product of another shape into the same sums, without a fence", "missing_wgmma_fence wgmma_registers", WG + FENCE + MMA8 + f"<<||{COMMIT}{wait(0)}{FENCE}>>" + MMA16 + COMMIT + wait(0) + " st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("the last step's products are drained one group short", "wgmma_registers", WG + f""" mov.u32 %r14, 0;
T: {FENCE} {MMA8} {COMMIT} {wait(1)} add.u32 %r14, %r14, 1; setp.lt.u32 %p4, %r14, 3; @%p4 bra T;
 {wait('<<1||0>>')} st.global.f32 [%d2], %f0;""", zeros(128, dtype=np.float32), **WGL),
 ptx("sums are cleared between a product and its wait", "wgmma_registers", WG + f"{FENCE} {MMA8} {COMMIT} <<mov.f32 %f2, 0f00000000; {wait(0)}||{wait(0)} mov.f32 %f2, 0f00000000;>> st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("a product of warps 2 to 5", "divergence deadlock", WG.replace("bar.sync 1", "bar.sync 1") + f"setp.ge.u32 %p4, tid, <<64||0>>; setp.lt.u32 %p5, tid, <<192||128>>; and.pred %p4, %p4, %p5; @!%p4 bra X; {FENCE} {MMA8} {COMMIT} {wait(0)} X:", zeros(256, dtype=np.float32), before=TILE.replace("8192", "16384"), block=256, ignore=("equal_value_race",)),
 ptx("sums that begin with unwritten registers", "uninitialised", WG.replace("mov.f32 %f1, %f0;", "<<||mov.f32 %f1, %f0;>>") + f"{FENCE} {MMA8} {COMMIT} {wait(0)} st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("an operand row that nobody wrote", "uninitialised", WG.replace("st.shared.v4.b32 [%r11], ", "setp.ne.u32 %p4, tid, 77; <<@%p4||>> st.shared.v4.b32 [%r11], ") + f"{FENCE} {MMA8} {COMMIT} {wait(0)} st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("one warp fences its sums, the others do not", "missing_wgmma_fence divergence deadlock", WG + f"add.f32 %f0, %f0, %f1; setp.eq.u32 %p4, warp, 0; <<@%p4||>> {FENCE} {MMA8} {COMMIT} {wait(0)} st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("the wait is in a branch that one warp skips", "wgmma_registers deadlock divergence", WG + f"{FENCE} {MMA8} {COMMIT} setp.eq.u32 %p4, warp, 3; <<@%p4 bra K;||>> {wait(0)} K: st.global.f32 [%d2], %f1; <<{wait(0)}||>>", zeros(128, dtype=np.float32), **WGL),
 ptx("fragments of A are loaded again under the product", "wgmma_registers", WG + """ mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0; mov.u32 %r23, 0; mov.u32 %r14, 0;
T: """ + FENCE + " wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%r20, %r21, %r22, %r23}, %d5, 1, 1, 1, 0;" + COMMIT + f" <<||{wait(0)}>> " + "ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r11]; " + f"<<{wait(0)}||>>" + " add.u32 %r14, %r14, 1; setp.lt.u32 %p4, %r14, 2; @%p4 bra T; st.global.f32 [%d2], %f0;", zeros(128, dtype=np.float32), **WGL),
 # the stage of a pipeline by TMA and wgmma
 ptx("a stage is given back before its product is done", "reused_before_wgmma race_shared", START.replace("[%r3], 1", "[%r3], 128") + """ setp.eq.u32 %p5, warp, 4; @!%p5 bra L0; setp.ne.u32 %p6, lane, 0; @%p6 ret; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 4096, [%r2];
E: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], 0; @!%p8 bra E; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 4096, [%r2]; ret;
L0: """ + WAIT + """ L0; shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13; or.b64 %d4, %d4, 0x0000001000080000; add.s64 %d5, %d4, 128; mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 """ + FENCE + MMA8 + COMMIT + f"<<||{wait(0)}>>" + """ mbarrier.arrive.shared.b64 _, [%r3]; """ + f"<<{wait(0)}||>>" + """
L1: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r2], 1; @!%p8 bra L1; st.global.f32 [%d2+16384], %f1;""", lambda: [np.zeros(8192, np.int32)], before=TILE, block=160),
 ptx("one warp waits for the stage that four multiply", "read_before_wait race_shared", START + """ @%p0 bra L0; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 4096, [%r2];
L0: setp.ne.u32 %p5, warp, 0; <<@%p5 bra GO;||>> L1: """ + WAIT + """ L1; GO: shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13; or.b64 %d4, %d4, 0x0000001000080000; add.s64 %d5, %d4, 128; mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 """ + FENCE + MMA8 + COMMIT + wait(0) + " st.global.f32 [%d2], %f1;", lambda: [np.zeros(2048, np.int32)], ignore=("race_global",), **WGL),
 # ldmatrix, stmatrix
 ptx("two warps' fragments overlap by a row of 8 halves", "race_shared equal_value_race", B + """ mul.lo.u32 %r9, warp, <<496||512>>; shl.b32 %r10, lane, 4; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r0;
 stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9], {tid, tid, tid, tid};""", zeros(8), before=S),
 ptx("ldmatrix.x2 of rows of which the last is not written", "uninitialised", B + """ setp.lt.u32 %p4, lane, 16; shl.b32 %r9, lane, 4; add.u32 %r9, %r9, %r0; mov.b32 %r10, 0; setp.lt.u32 %p5, lane, <<15||16>>; @%p5 st.shared.v4.b32 [%r9], {%r10, %r10, %r10, %r10}; bar.warp.sync -1;
 @!%p4 mov.u32 %r9, 0xfffffff0; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r11, %r12}, [%r9]; st.global.u32 [%d2], %r12;""", zeros(32), before=S, block=32),
 ptx("rows of ldmatrix at 8 bytes", "misaligned", B + """ shl.b32 %r9, lane, <<3||4>>; add.u32 %r9, %r9, %r0; mov.b32 %r10, 0; st.shared.u32 [%r1], 0; bar.sync 1; st.shared.v4.b32 [%r0+512], {%r10,%r10,%r10,%r10};
 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r11}, [%r9];""", zeros(32), before=S, block=32),
 ptx("stmatrix, then rows across warps", "race_shared", B + """ shl.b32 %r9, lane, 4; shl.b32 %r10, warp, 9; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r0;
 stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9], {tid, tid, tid, tid}; <<bar.warp.sync -1||bar.sync 1>>; shl.b32 %r11, tid, 4; xor.b32 %r11, %r11, 512; add.u32 %r11, %r11, %r0; ld.shared.v4.u32 {%r12, %r13, %r14, %r15}, [%r11]; st.global.u32 [%d2], %r13;""", zeros(64), before=S),
 # cp.async
 ptx("three stages of cp.async, two groups left where one may be", "read_before_wait race_shared", B + """ shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0; mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0; mov.u32 %r14, 0;
 cp.async.cg.shared.global [%r9], [%d5], 16; cp.async.commit_group; cp.async.cg.shared.global [%r9+1024], [%d5], 16; cp.async.commit_group; mov.u32 %r15, %r9; mov.u32 %r17, 0;
T: cp.async.wait_group <<2||1>>; bar.sync 1; xor.b32 %r16, %r15, 512; ld.shared.u32 %r18, [%r16]; add.u32 %r17, %r17, %r18; add.u32 %r19, %r14, 2; rem.u32 %r19, %r19, 3; mad.lo.u32 %r20, %r19, 1024, %r9;
 cp.async.cg.shared.global [%r20], [%d5], 16; cp.async.commit_group; add.u32 %r14, %r14, 1; rem.u32 %r19, %r14, 3; mad.lo.u32 %r15, %r19, 1024, %r9; setp.lt.u32 %p4, %r14, 6; @%p4 bra T; cp.async.wait_group 0; st.global.u32 [%d2+1024], %r17;""", numbers(512), before=S),
 ptx("the tail of a pipeline commits no empty groups", "read_before_wait race_shared", B + """ mov.u32 %r14, 0; shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0; mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0;
 cp.async.cg.shared.global [%r9], [%d5], 16; cp.async.commit_group; mov.u32 %r17, 0;
T: add.u32 %r21, %r14, 1; setp.lt.u32 %p5, %r21, 4; and.b32 %r19, %r21, 1; mad.lo.u32 %r20, %r19, 1024, %r9; @%p5 cp.async.cg.shared.global [%r20], [%d5], 16; <<@%p5||>> cp.async.commit_group; cp.async.wait_group 1; bar.sync 1;
 and.b32 %r19, %r14, 1; mad.lo.u32 %r15, %r19, 1024, %r9; xor.b32 %r16, %r15, 512; ld.shared.u32 %r18, [%r16]; add.u32 %r17, %r17, %r18; bar.sync 2; add.u32 %r14, %r14, 1; setp.lt.u32 %p4, %r14, 4; @%p4 bra T; cp.async.wait_all; st.global.u32 [%d2+1024], %r17;""", numbers(512), before=S),
 ptx("cp.async's arrival that is not counted, and the lanes' own", "phase_overrun barrier_misuse read_before_wait race_shared", B + """ @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 64;
READY: bar.sync 0; shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0; mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0; cp.async.cg.shared.global [%r9], [%d5], 16;
 cp.async.mbarrier.arrive<<.noinc||>>.shared.b64 [%r2]; mbarrier.arrive.shared.b64 _, [%r2]; W: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra W; xor.b32 %r16, %r9, 512; ld.shared.u32 %r18, [%r16];""", numbers(512), before=S, every=False),
 ptx("a copy is issued after its arrival on the mbarrier", "read_before_wait race_shared unawaited_copy", B + """ @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 64;
READY: bar.sync 0; shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0; mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0; <<||cp.async.cg.shared.global [%r9], [%d5], 16;>>
 cp.async.mbarrier.arrive.noinc.shared.b64 [%r2]; <<cp.async.cg.shared.global [%r9], [%d5], 16;||>> W: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra W; xor.b32 %r16, %r9, 512; ld.shared.u32 %r18, [%r16]; st.global.u32 [%d2+1024], %r18;""", numbers(512), before=S),

 ptx("sums of one product are A of the next, before they are there", "wgmma_registers", WG + FENCE + "mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r20, %r21}, %d4, %d5, 0, 1, 1, 0, 0; " + COMMIT + f"<<||{wait(0)}>>" + FENCE + "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, {%r20, %r21, %r22, %r23}, %d5, 1, 1, 1, 0;" + COMMIT + wait(0) + " st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
 ptx("a register that one path does not set is stored", "uninitialised", A + "setp.lt.u32 %p4, tid, <<40||64>>; @%p4 mov.u32 %r9, 5; st.global.u32 [%d2], %r9;", zeros(64)),
 ptx("a product clears its sums by scale-d, too late", "uninitialised", WG.replace("mov.f32 %f1, %f0;", "").replace("mov.f32 %f2, %f0;", "") + "mov.u32 %r14, 0; T: setp.ne.u32 %p6, %r14, <<1||0>>; " + FENCE + MMA8.replace("%d5, 1,", "%d5, %p6,") + COMMIT + wait(0) + " add.u32 %r14, %r14, 1; setp.lt.u32 %p4, %r14, 2; @%p4 bra T; st.global.f32 [%d2], %f1;", zeros(128, dtype=np.float32), **WGL),
]  # fmt: skip
