"""Planted bugs of counts: arrivals, bytes, phases, masks of multicasts, registers; of scopes and widths; of counted barriers."""

from __future__ import annotations

from typing import Any

from .order import MEET, A, B, S
from .probe import Probe, numbers, ptx, zeros
from .proxies import AT, MAP, MAPPED, START, TENSOR_LOAD, TILE, WAIT, maps

BLOCKS = "race_blocks"
PAIR: dict[str, Any] = {"before": S, "grid": 2, "cluster": 2}
# An mbarrier in each block of a pair. %r6: this lane's word in the peer's SMEM, %r7: the peer's mbarrier.
PEER = (
    B
    + """ @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY:"""
    + MEET
    + """ xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5; mapa.shared::cluster.u32 %r7, %r2, %r5;
"""
)

W2 = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra W;"
PROBES: list[Probe] = [
 # mbarriers: counts, phases
 ptx("an arrival that counts for two", "deadlock barrier_misuse phase_overrun impossible_wait", START.replace("[%r2], 1", "[%r2], 64") + " mbarrier.arrive.shared.b64 _, [%r2], <<2||1>>; L: " + WAIT + " L; <<mbarrier.arrive.shared.b64 _, [%r2];||>>", zeros(64), before=TILE, every=False),
 ptx("only bytes are expected, and nobody arrives", "deadlock bytes_mismatch unawaited_copy", START + " @%p0 bra L; mbarrier.<<expect_tx.relaxed.cta.shared::cta.b64||arrive.expect_tx.shared::cta.b64 _,>> [%r2], 256; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2]; L: " + WAIT + " L; ld.shared.u32 %r7, [%r1];", numbers(64), before=TILE),
 ptx("the parity flips at each step and not at each turn of the ring", "read_before_wait deadlock race_shared impossible_wait phase_overrun unawaited_copy", START + """ mov.u32 %r10, 0; mov.u32 %r11, 0;
T: and.b32 %r12, %r10, 1; shl.b32 %r13, %r12, 3; add.u32 %r13, %r13, %r2; shl.b32 %r14, %r12, 8; add.u32 %r15, %r14, %r0; add.u32 %r16, %r14, %r1; @%p0 bra L;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r13], 256; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r15], [%d0], 256, [%r13];
L: <<xor.b32 %r17, %r11, 0;||shr.u32 %r17, %r10, 1; and.b32 %r17, %r17, 1;>> M: mbarrier.try_wait.parity.shared.b64 %p4, [%r13], %r17; @!%p4 bra M; ld.shared.u32 %r7, [%r16]; fence.proxy.async.shared::cta; bar.sync 1; xor.b32 %r11, %r11, 1;
 add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 6; @%p5 bra T;""", numbers(64), before=TILE),
 ptx("the consumers arrive on the mbarrier that says full", "phase_overrun deadlock barrier_misuse", START.replace("[%r3], 1", "[%r3], 32") + """ mov.u32 %r10, 0; setp.eq.u32 %p6, warp, 1; @%p6 bra C; @%p0 ret;
T: mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2]; and.b32 %r11, %r10, 1;
E: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], %r11; @!%p4 bra E; add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 2; @%p5 bra T; ret;
C: and.b32 %r11, %r10, 1; F: mbarrier.try_wait.parity.shared.b64 %p4, [%r2], %r11; @!%p4 bra F; ld.shared.u32 %r7, [%r1]; fence.proxy.async.shared::cta; mbarrier.arrive.shared.b64 _, [<<%r2||%r3>>]; add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 2; @%p5 bra C;""", numbers(64), before=TILE),
 ptx("all lanes expect the bytes of one copy", "bytes_mismatch deadlock barrier_misuse unawaited_copy", START + """ setp.ne.u32 %p6, warp, 0; @%p6 bra L; <<||@%p0 bra L;>> mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; @%p0 bra L; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];", numbers(64), before=TILE),
 ptx("all lanes of a warp issue the copy of one", "race_shared equal_value_race bytes_mismatch barrier_misuse phase_overrun", START + """ setp.ne.u32 %p6, warp, 0; @%p6 bra L; @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; <<||@%p0 bra L;>> cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];", numbers(64), before=TILE),
 # clusters
 ptx("a multicast to a rank that the cluster lacks", "out_of_bounds peer_not_running descriptor", PEER + """ @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; setp.ne.u32 %p4, rank, 0; @%p4 bra L; mov.u16 %h1, <<7||3>>;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d0], 256, [%r2], %h1;
L: """ + W2 + MEET, numbers(64), **PAIR),
 ptx("a multicast that leaves out its own block", "deadlock bytes_mismatch", PEER + """ @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; setp.ne.u32 %p4, rank, 0; @%p4 bra L; mov.u16 %h1, <<2||3>>;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d0], 256, [%r2], %h1;
L: """ + W2 + MEET, numbers(64), **PAIR),
 ptx("halves of a multicast tile at one place", "race_shared equal_value_race", PEER + """ @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512; mov.u16 %h1, 3; mul.lo.u32 %r9, rank, <<0||256>>; add.u32 %r9, %r9, %r0; mul.wide.u32 %d5, rank, 256; add.s64 %d5, %d5, %d0;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r9], [%d5], 256, [%r2], %h1;
L: """ + W2 + "ld.shared.u32 %r8, [%r1];" + MEET, numbers(128), **PAIR),
 ptx("a wait at the peer's mbarrier", "out_of_bounds barrier_misuse", PEER + " @!%p0 mbarrier.arrive.shared.b64 _, [%r2]; W: mbarrier.try_wait.parity.shared.b64 %p5, [<<%r7||%r2>>], 0; @!%p5 bra W;" + MEET, zeros(8), **PAIR),
 ptx("the peer's word by its own window", "out_of_bounds", PEER + " st.shared.u32 [%r1], tid;" + MEET + " ld.shared<<||::cluster>>.u32 %r8, [%r6];" + MEET, zeros(8), **PAIR),
 ptx("a copy for this block completes at the peer's mbarrier", "bytes_mismatch descriptor deadlock unawaited_copy barrier_misuse phase_overrun read_before_wait", PEER + """ @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; setp.ne.u32 %p4, rank, 0; mapa.shared::cluster.u32 %r9, %r2, rank; mapa.shared::cluster.u32 %r10, %r0, rank;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d0], 256, [<<%r7||%r9>>];
L: """ + W2 + "ld.shared.u32 %r8, [%r1];" + MEET, numbers(64), **PAIR),
 ptx("sums of peers by red, read before the cluster has met", "race_shared", B + " st.shared.u32 [%r1], 0;" + MEET + " mapa.shared::cluster.u32 %r6, %r1, 0; red.relaxed.cluster.shared::cluster.add.u32 [%r6], tid; <<||" + MEET + ">> ld.shared.u32 %r8, [%r1];" + MEET, zeros(8), **PAIR),
 ptx("the reducing block leaves before the others have added", "peer_not_running", B + " st.shared.u32 [%r1], 0;" + MEET + " mapa.shared::cluster.u32 %r6, %r1, 0; setp.eq.u32 %p6, rank, 0; <<@%p6 ret;||>> @!%p6 red.relaxed.cluster.shared::cluster.add.u32 [%r6], tid; <<||" + MEET + ">>", zeros(8), **PAIR),
 ptx("a vector by st.async, half of its bytes expected", "bytes_mismatch read_before_wait phase_overrun unawaited_copy", PEER + """ @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], <<512||1024>>; shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0; mapa.shared::cluster.u32 %r9, %r9, %r5;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r9], {tid, tid, tid, tid}, [%r7]; """ + W2 + " ld.shared.u32 %r8, [%r1];" + MEET, zeros(8), **PAIR),
 ptx("st.async to two rounds of one mailbox", "race_shared equal_value_race", PEER + """ @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7]; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6+<<0||256>>], lane, [%r7]; """ + W2 + " ld.shared.u32 %r8, [%r1];" + MEET, zeros(8), **PAIR),
 # registers
 ptx("consumers ask for more registers than producers gave back", "register_capacity deadlock", B + """ setp.ge.u32 %p4, tid, 128;
 @%p4 bra C; <<||setmaxnreg.dec.sync.aligned.u32 24;>> bar.sync 1, 384; bra E; C: setmaxnreg.inc.sync.aligned.u32 240; bar.sync 1, 384;
E:""", zeros(8), before=S, block=384, directives=".maxntid 384 .minnctapersm 1 .maxnreg 168"),
 ptx("setmaxnreg by one warp of a warpgroup", "divergence deadlock register_capacity", B + """ setp.ge.u32 %p4, tid, <<32||128>>; @%p4 bra E; setmaxnreg.dec.sync.aligned.u32 40; E: bar.sync 1;""", zeros(8), before=S, block=128, directives=".maxntid 128 .maxnreg 168"),
 # scopes, atomics, caches
 ptx("a byte beside an atomic's byte, by a weak store", BLOCKS, A + """ mov.u16 %h1, 9; @%p0 ret; @%p1 red.relaxed.gpu.global.add.u32 [%d0], 1; @!%p1 st.global.u8 [%d0+<<3||4>>], %h1;""", zeros(8), grid=2, block=32),
 ptx("half of a 64-bit counter by a relaxed store", BLOCKS, A + """ @%p0 ret; @%p1 red.relaxed.gpu.global.add.u64 [%d0], 1; @!%p1 st.relaxed.gpu.global.u32 [%d0+<<4||8>>], 9;""", zeros(8), grid=2, block=32),
 ptx("a key by compare-and-swap, its value by a weak store", BLOCKS, A + """ @%p0 ret; @!%p1 bra FIND; st.global.u32 [%d0+4], 7; atom<<.relaxed||.release>>.gpu.global.cas.b32 %r5, [%d0], 0, 42; ret;
FIND: ld.acquire.gpu.global.u32 %r5, [%d0]; setp.ne.u32 %p4, %r5, 42; @%p4 bra FIND; ld.global.u32 %r6, [%d0+4];""", zeros(8), grid=2, block=32),
 ptx("a flag and its data in two words where one is polled", BLOCKS, A + """ @%p0 ret; @!%p1 bra R; <<st.relaxed.gpu.global.u32 [%d0+4], 1; st.global.u32 [%d0], 7;||mov.b64 %d5, 0x100000007; st.relaxed.gpu.global.u64 [%d0], %d5;>> ret;
R: <<ld.relaxed.gpu.global.u32 %r5, [%d0+4];||ld.relaxed.gpu.global.u64 %d6, [%d0]; mov.b64 {%r6, %r5}, %d6;>> setp.eq.u32 %p4, %r5, 0; @%p4 bra R; <<ld.global.u32 %r6, [%d0];||>> st.global.u32 [%d0+64], %r6;""", zeros(32), grid=2, block=32),
 ptx("a prefetch into L2 at 4 bytes", "misaligned", A + """ @%p0 ret; cp.async.bulk.prefetch.L2.global [%d0+<<4||16>>], 128;""", zeros(256)),
 ptx("a grid barrier whose count is not taken back", "race_blocks livelock deadlock", A + """ mov.u32 %r10, 0;
T: mad.lo.u32 %r11, cta, 4, %r10; mul.wide.u32 %d5, %r11, 4; add.s64 %d5, %d5, %d0; @%p0 bra J; st.global.u32 [%d5+64], %r10; red.release.gpu.global.add.u32 [%d0], 1; <<mov.u32 %r12, 2;||add.u32 %r12, %r10, 1; shl.b32 %r12, %r12, 1;>>
Z: ld.acquire.gpu.global.u32 %r13, [%d0]; setp.lt.u32 %p4, %r13, %r12; @%p4 bra Z; xor.b32 %r14, cta, 1; mad.lo.u32 %r14, %r14, 4, %r10; mul.wide.u32 %d6, %r14, 4; add.s64 %d6, %d6, %d0; ld.global.u32 %r15, [%d6+64];
J: bar.sync 1; add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 3; @%p5 bra T;""", zeros(64), grid=2, every=False),
 ptx("blocks steal work by an atomic that one lane shares too early", "race_shared uninitialised", B + """ T: @!%p0 atom.relaxed.gpu.global.add.u32 %r5, [%d0], 1; @!%p0 st.shared.u32 [%r0], %r5; bar.sync 1; ld.shared.u32 %r6, [%r0]; <<||bar.sync 2;>> setp.lt.u32 %p5, %r6, 6; @%p5 bra T;""", zeros(8), before=S, grid=2),
 ptx("a counted barrier by groups of two sizes", "barrier_count deadlock", B + """ setp.ge.u32 %p4, tid, 32; @%p4 bra X; bar.sync 3, <<96||64>>; bra E; X: setp.ge.u32 %p5, tid, 64; @%p5 bra E; bar.sync 3, 64; E:""", zeros(8), before=S, block=96),
 ptx("a barrier by 48 threads", "barrier_count deadlock", B + """ mov.u32 %r9, <<48||64>>; barrier.sync 3, %r9;""", zeros(8), before=S, block=64),
 ptx("warps take two barriers in two orders", "deadlock", B + """ setp.eq.u32 %p4, warp, 0; @%p4 bra X; bar.sync <<4||3>>, 64; bar.sync <<3||4>>, 64; bra E; X: bar.sync 3, 64; bar.sync 4, 64; E:""", zeros(8), before=S),
 ptx("the elected lane meets the block alone", "divergence deadlock", B + """ elect.sync %r9|%p5, -1; <<@!%p5 bra N;||>> bar.sync 1; <<bar.sync 2;||>> N: bar.sync <<3||2>>;""", zeros(8), before=S),
 # tensor maps
 ptx("two tensor loads where one map's box is larger", "bytes_mismatch deadlock", MAPPED + AT + " @%p0 bra L; " + TENSOR_LOAD.replace("1024", "<<512||1024>>") + "\nL: " + WAIT + " L; ld.shared.u32 %r7, [%r1];", maps, params=MAP, before=TILE),
]  # fmt: skip
