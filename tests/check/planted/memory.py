"""Planted bugs of memory between blocks and in rings: discarded data, prefetches, flags with relaxed order, slots reused too early."""

from __future__ import annotations

from typing import Any

from .order import A, B
from .probe import Probe, ptx, zeros

TWO: dict[str, Any] = {"grid": 2}
# Warps 0 and 1 of block 0 store 64 words, and one lane raises a flag at 1024; lane 0 of block 1 reads a word of warp 1.
WRITE = A + " @!%p1 bra READER; st.global.u32 [%d2+256], tid; "
AWAIT = """ ret;
READER: @%p0 ret;
Z: ld.relaxed.gpu.global.u32 %r6, [%d0+1024]; setp.eq.s32 %p3, %r6, 0; @%p3 bra Z; """
READ = " ld.global.u32 %r5, [%d0+400]; st.global.u32 [%d0+1028], %r5;"
RAISE = " st.relaxed.gpu.global.u32 [%d0+1024], 1;"
FENCE = " fence.acq_rel.gpu;"
# Warp 0 fills two slots in turns, warp 1 reads them: full at 0 and 8, empty at 16 and 24.
RING = ".shared .align 128 .b8 s[256];\n.shared .align 8 .b64 bar[4];\n"
TURNS = B + """ @%p0 bra GO; mbarrier.init.shared.b64 [%r2], 1; mbarrier.init.shared.b64 [%r2+8], 1; mbarrier.init.shared.b64 [%r2+16], 1;
 mbarrier.init.shared.b64 [%r2+24], 1;
GO: bar.sync 0; setp.ne.u32 %p2, lane, 0; setp.eq.u32 %p4, warp, 1; shl.b32 %r3, lane, 2; add.u32 %r3, %r3, %r0; mov.u32 %r10, 0;
T: and.b32 %r11, %r10, 1; shr.u32 %r12, %r10, 1; and.b32 %r12, %r12, 1; xor.b32 %r13, %r12, 1; shl.b32 %r14, %r11, 3;
 add.u32 %r14, %r14, %r2; shl.b32 %r15, %r11, 7; add.u32 %r15, %r15, %r3; @%p4 bra CONSUMER;
 setp.lt.u32 %p5, %r10, SLOTS; @%p5 bra FILL;
E: mbarrier.try_wait.parity.shared.b64 %p6, [%r14+16], %r13; @!%p6 bra E;
FILL: st.shared.u32 [%r15], %r10; bar.warp.sync -1; @!%p2 mbarrier.arrive.shared.b64 _, [%r14]; bra NEXT;
CONSUMER: mbarrier.try_wait.parity.shared.b64 %p6, [%r14], %r12; @!%p6 bra CONSUMER;
 READ
NEXT: add.u32 %r10, %r10, 1; setp.lt.u32 %p7, %r10, 6; @%p7 bra T;"""  # fmt: skip
TAKE = "ld.shared.u32 %r5, [%r15]; st.global.u32 [%d2], %r5;"
FREE = " bar.warp.sync -1; @!%p2 mbarrier.arrive.shared.b64 _, [%r14+16];"


def ring(name: str, kinds: str, slots: str = "2", read: str = TAKE + FREE) -> Probe:
    return ptx(name, kinds, TURNS.replace("SLOTS", slots).replace("READ", read), zeros(64), before=RING)


PROBES: list[Probe] = [
 # discard.L2
 ptx("a discarded word is read", "uninitialised", A + " @%p0 ret; discard.global.L2 [%d0], 128; <<||st.global.u32 [%d0+4], 3;>> ld.global.u32 %r5, [%d0+4]; st.global.u32 [%d0+256], %r5;", zeros(128)),
 ptx("a discarded word is added to", "uninitialised", A + " @%p0 ret; discard.L2 [%d0], 128; red.relaxed.gpu.global.add.u32 [%d0+<<4||128>>], 1;", zeros(128)),
 ptx("a discard reaches past the array", "out_of_bounds", A + " @%p0 ret; discard.global.L2 [%d0+<<512||384>>], 128;", zeros(128)),
 ptx("a discard of half a line", "misaligned", A + " @%p0 ret; discard.global.L2 [%d0+<<64||128>>], 128;", zeros(128)),
 ptx("a discard of what another warp has not read", "race_global", A + " ld.global.u32 %r5, [%d2]; st.global.u32 [%d2+256], %r5; <<||bar.sync 1;>> @%p0 ret; discard.global.L2 [%d0+128], 128;", zeros(128)),
 ptx("a discard of what another block stores", "race_blocks", A + " @%p0 ret; @%p1 discard.global.L2 [%d0], 128; @!%p1 st.global.u32 [%d0+<<4||128>>], 1;", zeros(128), **TWO),
 # prefetches
 ptx("a bulk prefetch past the array", "out_of_bounds", A + " @%p0 ret; cp.async.bulk.prefetch.L2.global [%d0+384], <<144||128>>;", zeros(128)),
 ptx("a bulk prefetch of no array", "out_of_bounds", A + " @%p0 ret; <<mov.u64 %d0, 4096;||>> cp.async.bulk.prefetch.L2.global [%d0], 128;", zeros(128)),
 # messages: a barrier of the block, then a flag with relaxed order
 ptx("a relaxed flag behind a barrier", "race_blocks", WRITE + "bar.sync 1; @%p0 ret; <<||" + FENCE + ">>" + RAISE + AWAIT + FENCE + READ, zeros(512), **TWO),
 ptx("a volatile flag behind a barrier", "race_blocks", WRITE + "bar.sync 1; @%p0 ret; <<||membar.gl;>> st.volatile.global.u32 [%d0+1024], 1;" + AWAIT + FENCE + READ, zeros(512), **TWO),
 ptx("a relaxed atomic flag behind a barrier", "race_blocks", WRITE + "bar.sync 1; @%p0 ret; atom.<<relaxed||release>>.gpu.global.exch.b32 %r7, [%d0+1024], 1;" + AWAIT + FENCE + READ, zeros(512), **TWO),
 ptx("a fence of the block before the barrier and a relaxed flag", "race_blocks", WRITE + "fence.acq_rel.<<cta||gpu>>; bar.sync 1; @%p0 ret;" + RAISE + AWAIT + FENCE + READ, zeros(512), **TWO),
 ptx("a relaxed poll, and no fence of the reader", "race_blocks", WRITE + "bar.sync 1; @%p0 ret;" + FENCE + RAISE + AWAIT + "<<||" + FENCE + ">>" + READ, zeros(512), **TWO),
 # rings of ordinary stores
 ring("a ring that fills one slot too many", "race_shared", slots="<<3||2>>"),
 ring("a ring that fills every slot at once", "race_shared phase_overrun", slots="<<6||2>>"),
 ring("a ring that frees its slot before the read", "race_shared", read="<<" + FREE + TAKE + "||" + TAKE + FREE + ">>"),
 ring("a ring whose lanes are not met before the slot is free", "race_shared", read="<<@!%p2 mbarrier.arrive.shared.b64 _, [%r14+16]; " + TAKE + "||" + TAKE + FREE + ">>"),
]  # fmt: skip
