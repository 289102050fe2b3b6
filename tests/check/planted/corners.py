"""Planted bugs of rarer instructions and their combinations: stores and reductions that complete on a peer's mbarrier, remote
arrivals and their scopes, copies between blocks, the life of an mbarrier, counted barriers, unwritten operands, launches."""

from __future__ import annotations

from typing import Any

from .order import MEET, A, B, S
from .probe import Probe, numbers, ptx, sequence, zeros
from .proxies import LOAD, MAP, MAPPED, START, STORE, TENSOR_LOAD, TILE, WAIT, maps

PAIR: dict[str, Any] = {"before": S, "grid": 2, "cluster": 2}
W2 = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra W;"


def pair(sync: str = MEET) -> str:
    """An mbarrier in each block of a pair. %r6: this lane's word in the peer's SMEM, %r7: the peer's mbarrier."""
    return (
        B
        + """ @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY:"""
        + sync
        + """ xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5; mapa.shared::cluster.u32 %r7, %r2, %r5;
"""
    )


PROBES: list[Probe] = [
    ptx("st.async before the peer's mbarrier exists", "barrier_misuse peer_not_running race_shared uninitialised deadlock", pair(sync="<<bar.sync 0;||"+MEET+">>")+"""
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7];
 """+W2+" ld.shared.u32 %r8,[%r1];"+MEET, zeros(64), **PAIR),
    ptx("st.async read without a wait", "read_before_wait race_shared uninitialised", pair()+"""
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; st.shared.u32 [%r1], 0;"""+MEET+"""
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7];
 <<||"""+W2+">>  ld.shared.u32 %r8,[%r1]; st.global.u32 [%d2], %r8;<<"+W2+"||>>"+MEET, zeros(64), ignore=("race_blocks", "equal_value_race"), **PAIR),
    ptx("st.async of more bytes than expected", "bytes_mismatch phase_overrun barrier_misuse deadlock read_before_wait", pair()+"""
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], <<128||256>>;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7];
 """+W2+" ld.shared.u32 %r8,[%r1];"+MEET, zeros(64), **PAIR),
    ptx("st.async and a plain store of the owner", "race_shared", pair()+"""
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; <<st.shared.u32 [%r1], 77;||st.shared.u32 [%r1+512], 77;>>
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7];
 """+W2+" ld.shared.u32 %r8,[%r1];"+MEET, zeros(64), **PAIR),
    ptx("red.async on what the owner clears too late", "race_shared uninitialised", B+""" @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: <<||st.shared.u32 [%r1], 0;>>"""+MEET+""" <<st.shared.u32 [%r1], 0;||>> xor.b32 %r5, rank, 1;
 mapa.shared::cluster.u32 %r6, %r1, %r5; mapa.shared::cluster.u32 %r7, %r2, %r5;
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r6], tid, [%r7];
 """+W2+" ld.shared.u32 %r8,[%r1];"+MEET, zeros(64), **PAIR),
    ptx("red.async read without a wait", "read_before_wait race_shared", B+""" @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: st.shared.u32 [%r1], 0;"""+MEET+""" xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5;
 mapa.shared::cluster.u32 %r7, %r2, %r5;
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r6], 100, [%r7];
 <<ld.shared.u32 %r8,[%r1];"""+W2+"||"+W2+" ld.shared.u32 %r8,[%r1];>>"+MEET, zeros(64), **PAIR),
    ptx("red.async to a block that has left", "unawaited_copy peer_not_running deadlock", B+""" @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: st.shared.u32 [%r1], 0;"""+MEET+""" setp.eq.u32 %p6, rank, 1;
 <<@%p6 ret;||@%p6 bra OWN;>> mapa.shared::cluster.u32 %r6, %r1, 1; mapa.shared::cluster.u32 %r7, %r2, 1;
 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.or.b32 [%r6], tid, [%r7]; bra END;
OWN: @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; """+W2+"\nEND: <<||"+MEET+">>", zeros(64), **PAIR),
    ptx("a remote arrival released for the block alone", "race_shared", pair()+""" setp.eq.u32 %p4, rank, 1;
 mapa.shared::cluster.u32 %r6, %r0, 1; @%p4 bra R; @%p0 bra E;
 st.shared::cluster.u32 [%r6], 5; mapa.shared::cluster.u32 %r7, %r2, 1;
 mbarrier.arrive.release.<<cta||cluster>>.shared::cluster.b64 _, [%r7]; bra E;
R: """+W2+""" ld.shared.u32 %r8, [%r0];
E:"""+MEET, zeros(64), **PAIR),
    ptx("a remote arrival acquired for the block alone", "race_shared", pair()+""" setp.eq.u32 %p4, rank, 1;
 mapa.shared::cluster.u32 %r6, %r0, 1; @%p4 bra R; @%p0 bra E;
 st.shared::cluster.u32 [%r6], 5; mapa.shared::cluster.u32 %r7, %r2, 1;
 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; bra E;
R: """+W2.replace("acquire.cluster", "acquire.<<cta||cluster>>")+""" ld.shared.u32 %r8, [%r0];
E:"""+MEET, zeros(64), **PAIR),
    ptx("remote arrivals with a relaxed fence pair", "race_shared", pair()+""" setp.eq.u32 %p4, rank, 1;
 mapa.shared::cluster.u32 %r6, %r0, 1; @%p4 bra R; @%p0 bra E;
 st.shared::cluster.u32 [%r6], 5; mapa.shared::cluster.u32 %r7, %r2, 1;
 <<||fence.acq_rel.cluster;>> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r7]; bra E;
R: """+W2.replace("acquire", "relaxed")+""" fence.acq_rel.cluster; ld.shared.u32 %r8, [%r0];
E:"""+MEET, zeros(64), **PAIR),
    ptx("a remote arrival to a barrier that was not told to the cluster", "barrier_misuse race_shared peer_not_running", B+""" @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 1; <<||fence.mbarrier_init.release.cluster;>>
READY: bar.warp.sync -1; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; xor.b32 %r5, rank, 1;
 mapa.shared::cluster.u32 %r7, %r2, %r5;
 @!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; """+W2+MEET, zeros(64), **PAIR),
    ptx("a tile that the peer frees and refills", "race_shared", B+""" @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 32; fence.mbarrier_init.release.cluster;
READY: st.shared.u32 [%r1], tid;"""+MEET+""" setp.eq.u32 %p4, rank, 1; @%p4 bra R;
 <<||"""+W2+""">> mapa.shared::cluster.u32 %r6, %r1, 1; st.shared::cluster.u32 [%r6], 9; bra E;
R: ld.shared.u32 %r8, [%r1]; mapa.shared::cluster.u32 %r7, %r2, 0;
 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
E: """+MEET, zeros(64), block=32, **PAIR),
    ptx("a copy to the peer's SMEM without a fence", "missing_proxy_fence", pair()+""" st.shared.u32 [%r1], tid;
 <<||fence.proxy.async.shared::cta;>> bar.sync 1; setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E;
 mapa.shared::cluster.u32 %r6, %r0, 1; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, 1;
 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r0], 256, [%r7]; bra E;
R: @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; """+W2+""" ld.shared.u32 %r8, [%r1+1024];
E:"""+MEET, zeros(64), **PAIR),
    ptx("the source of a copy to the peer is written again", "reused_before_read race_shared", pair()+""" st.shared.u32 [%r1], tid; fence.proxy.async.shared::cta; bar.sync 1; setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E;
 mapa.shared::cluster.u32 %r6, %r0, 1; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, 1;
 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r0], 256, [%r7]; bra E;
R: @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; """+W2+""" ld.shared.u32 %r8, [%r1+1024];
E: <<st.shared.u32 [%r1], 3;"""+MEET+"||"+MEET+" st.shared.u32 [%r1], 3;>>", zeros(64), **PAIR),
    ptx("a block leaves while a copy to its peer reads its SMEM", "unawaited_copy", pair()+""" st.shared.u32 [%r1], tid;
 fence.proxy.async.shared::cta; bar.sync 1; setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E;
 mapa.shared::cluster.u32 %r6, %r0, 1; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, 1;
 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r0], 256, [%r7]; bra E;
R: @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; """+W2+""" ld.shared.u32 %r8, [%r1+1024];
E: <<||"""+MEET+">>", zeros(64), **PAIR),
    ptx("a reduction into the peer's SMEM beside its own sum", "race_shared", pair()+""" st.shared.u32 [%r1], tid;
 st.shared.u32 [%r1+1024], 1; fence.proxy.async; """+MEET+""" setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E;
 mapa.shared::cluster.u32 %r6, %r0, 1; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, 1;
 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r6], [%r0], 256, [%r7];
 bra E;
R: @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; <<||"""+W2+""">> red.shared.add.u32 [%r1+1024], 1;
 <<"""+W2+"""||>> bar.sync 2; ld.shared.u32 %r8, [%r1+1024];
E:"""+MEET, zeros(64), **PAIR),
    ptx("bar.arrive taken for a wait", "race_shared", B+""" setp.ge.u32 %p4, tid, 64; st.shared.u32 [%r1], tid;
 @%p4 bra R; <<barrier.cta.arrive||barrier.cta.sync>> 4, 128; ld.shared.u32 %r5, [%r1+256]; ret;
R: barrier.cta.sync 4, 128;""", zeros(8), before=S, block=128),
    ptx("arrivals of two rounds at one barrier", "barrier_count deadlock race_shared", B+""" setp.ge.u32 %p4, tid, 32;
 @%p4 bra R;
 st.shared.u32 [%r1], tid; bar.arrive 4, 64; <<||bar.sync 5, 64;>> st.shared.u32 [%r1], lane; bar.arrive 4, 64; ret;
R: bar.sync 4, 64; ld.shared.u32 %r5, [%r1+-128]; <<||bar.arrive 5, 64;>> bar.sync 4, 64;
 ld.shared.u32 %r5, [%r1+-128];""", zeros(8), before=S, block=64, ignore=("equal_value_race",)),
    ptx("a producer and two consumers, a count too small", "race_shared barrier_count deadlock", B+""" setp.ge.u32 %p4, tid, 32; @%p4 bra R; st.shared.u32 [%r0], tid; bar.arrive 6, <<64||96>>; ret;
R: bar.sync 6, <<64||96>>; ld.shared.u32 %r5, [%r0];""", zeros(8), before=S, block=96),
    ptx("an mbarrier's words used for data", "barrier_misuse", START+""" <<||@!%p0 mbarrier.inval.shared.b64 [%r2];
 bar.sync 1;>> @!%p0 st.shared.u64 [%r2], 5; bar.sync 2; ld.shared.u64 %d5, [%r2]; bar.sync 3;
 <<""" + """@!%p0 mbarrier.arrive.shared.b64 _, [%r2];||>>""", zeros(8), before=TILE),
    ptx("an mbarrier ended while a warp waits", "barrier_misuse race_shared", START+""" setp.eq.u32 %p4, warp, 1;
 @%p4 bra R; @!%p0 mbarrier.arrive.shared.b64 _, [%r2]; <<||bar.sync 7;>> @!%p0 mbarrier.inval.shared.b64 [%r2];
 bra X;
R: """+WAIT+""" R; <<||bar.sync 7;>>
X:""", zeros(8), before=TILE),
    ptx("an arrival after the drop", "phase_overrun barrier_misuse race_shared impossible_wait deadlock", B+""" @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 64;
READY: bar.sync 0; setp.eq.u32 %p4, warp, 1; @%p4 bra D;
 mbarrier.arrive.shared.b64 %d5, [%r2]; W: mbarrier.test_wait.shared.b64 %p5, [%r2], %d5; @!%p5 bra W;
 mbarrier.arrive.shared.b64 %d5, [%r2]; V: mbarrier.test_wait.shared.b64 %p5, [%r2], %d5; @!%p5 bra V; bra E;
D: mbarrier.arrive_drop.shared.b64 %d5, [%r2]; U: mbarrier.test_wait.shared.b64 %p5, [%r2], %d5; @!%p5 bra U;
 <<mbarrier.arrive.shared.b64 %d5, [%r2];||>>
E:""", zeros(8), before=S, every=False),
    ptx("the same parity in each round", "race_shared read_before_wait deadlock phase_overrun unawaited_copy", START+""" mov.u32 %r10, 0; mov.u32 %r11, 0;
T: @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: mbarrier.try_wait.parity.shared.b64 %p4, [%r2], %r11; @!%p4 bra L; ld.shared.u32 %r7, [%r1];
 fence.proxy.async.shared::cta; bar.sync 1;
 <<||xor.b32 %r11, %r11, 1;>> add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 3;
 @%p5 bra T;""", numbers(64), before=TILE),
    ptx("one test, and no loop", "read_before_wait race_shared unawaited_copy", START+""" @%p0 bra L; """+LOAD+"""
L: mbarrier.<<test||try>>_wait.parity.shared.b64 %p4, [%r2], 0; <<||@!%p4 bra L;>> ld.shared.u32 %r7, [%r1];
 bar.sync 1; M: mbarrier.try_wait.parity.shared.b64 %p4, [%r2], 0;
 @!%p4 bra M;""", numbers(64), before=TILE, every=False),
    ptx("bytes expected apart, after the arrival", "read_before_wait race_shared bytes_mismatch phase_overrun barrier_misuse", START+""" @%p0 bra L; <<mbarrier.arrive.shared.b64 _, [%r2]; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 256;||mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 256; mbarrier.arrive.shared.b64 _, [%r2];>>
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: """+WAIT+" L; ld.shared.u32 %r7,[%r1];", numbers(64), before=TILE),
    ptx("a cluster barrier arrived at twice", "barrier_count deadlock", B+""" barrier.cluster.arrive;
 <<||barrier.cluster.wait;>> barrier.cluster.arrive; barrier.cluster.wait;""", zeros(8), **PAIR),
    ptx("a cluster barrier's wait without its arrival", "deadlock barrier_count", B+""" <<||barrier.cluster.arrive;>> barrier.cluster.wait;""", zeros(8), **PAIR),
    ptx("a rank that the cluster does not have", "out_of_bounds peer_not_running", B+""" st.shared.u32 [%r1], tid;"""+MEET+""" add.u32 %r5, rank, 1; <<||and.b32 %r5, %r5, 1;>> mapa.shared::cluster.u32 %r6, %r1, %r5; ld.shared::cluster.u32 %r7, [%r6]; st.global.u32 [%d2], %r7;"""+MEET, zeros(64), ignore=("race_blocks", "equal_value_race"), **PAIR),
    ptx("writes between the cluster's arrival and its wait", "race_shared", B+""" st.shared.u32 [%r1], tid;
 xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5; barrier.cluster.arrive.aligned;
 <<st.shared.u32 [%r1], 4;||st.shared.u32 [%r1+1024], 4;>> barrier.cluster.wait.aligned;
 ld.shared::cluster.u32 %r7, [%r6];"""+MEET, zeros(8), **PAIR),
    ptx("blocks of a cluster by flags of the block's scope", "race_blocks", A+""" @%p0 ret; setp.eq.u32 %p3, rank, 1;
 @%p3 bra R; st.global.u32 [%d0+64], 5; fence.acq_rel.<<cta||cluster>>; st.relaxed.cluster.global.u32 [%d0], 1; ret;
R: ld.relaxed.cluster.global.u32 %r5, [%d0]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R; fence.acq_rel.cluster;
 ld.global.u32 %r6, [%d0+64];""", zeros(64), grid=2, cluster=2, block=32),
    ptx("two clusters by flags of the cluster's scope", "race_blocks", A+""" @%p0 ret; setp.eq.u32 %p3, cta, 2;
 setp.eq.u32 %p6, cta, 0; @%p3 bra R; @!%p6 ret; st.global.u32 [%d0+64], 5;
 st.release.<<cluster||gpu>>.global.u32 [%d0], 1; ret;
R: ld.acquire.<<cluster||gpu>>.global.u32 %r5, [%d0]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R;
 ld.global.u32 %r6, [%d0+64];""", zeros(64), grid=4, cluster=2, block=32),
    ptx("fence.sc of the cluster between two clusters", "race_blocks", A+""" @%p0 ret; setp.eq.u32 %p3, cta, 2;
 setp.eq.u32 %p6, cta, 0; @%p3 bra R; @!%p6 ret; st.global.u32 [%d0+64], 5; fence.sc.<<cluster||gpu>>;
 st.relaxed.gpu.global.u32 [%d0], 1; ret;
R: ld.relaxed.gpu.global.u32 %r5, [%d0]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R; fence.sc.gpu;
 ld.global.u32 %r6, [%d0+64];""", zeros(64), grid=4, cluster=2, block=32),
    ptx("a plain store into the upper half of what 16 bytes exchange", "race_blocks", A+""" .reg .b128 w<3>; @%p0 ret;
 mov.u64 %d5, 1; mov.b128 w1, {%d5, %d5}; setp.eq.u32 %p3, cta, 0; @%p3 atom.relaxed.gpu.global.exch.b128 w2, [%d0+496], w1;
 @!%p3 st.global.u64 [%d0+<<504||488>>], 2;""", zeros(128), grid=2, block=32),
    ptx("the read-only path of what a bulk store brings", "read_only_cache race_global", START+""" st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 bra X; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
X: bar.sync 2; ld.global<<.nc||>>.u32 %r5, [%d2]; ld.param.u64 %d5, [a1]; add.s64 %d5, %d5, %d1;
 st.global.u32 [%d5], %r5;""", zeros(64,64), before=TILE),
    ptx("an unwritten word is a lane's number in a shuffle", "uninitialised", B+""" <<||st.shared.u32 [%r1], lane;>> ld.shared.u32 %r5, [%r1]; shfl.sync.idx.b32 %r6, lane, %r5, 31, -1; st.global.u32 [%d2], %r6;""", zeros(64), before=S),
    ptx("an unwritten word is the size of a bulk copy", "uninitialised", START+""" <<||@!%p0 st.shared.u32 [%r0+1024], 256;>> @%p0 bra L; ld.shared.u32 %r5, [%r0+1024]; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], %r5, [%r2];
L: """+WAIT+" L;", numbers(64), before=TILE),
    ptx("an unwritten word is the count of an mbarrier", "uninitialised", B+""" @%p0 ret;
 <<||st.shared.u32 [%r0], 1;>> ld.shared.u32 %r5, [%r0]; mbarrier.init.shared.b64 [%r2], %r5;
 mbarrier.arrive.shared.b64 _, [%r2];""", zeros(8), before=S),
    ptx("an unwritten word is the number of a barrier", "uninitialised", B+""" <<||st.shared.u32 [%r1], 3;>> ld.shared.u32 %r5, [%r1]; barrier.sync %r5, 64;""", zeros(8), before=S),
    ptx("an unwritten word is the rank of a peer", "uninitialised", B+""" st.shared.u32 [%r1], tid;"""+MEET+"""<<||st.shared.u32 [%r1+1024], 1;>> ld.shared.u32 %r5, [%r1+1024]; mapa.shared::cluster.u32 %r6, %r1, %r5; ld.shared::cluster.u32 %r7, [%r6]; """+MEET, zeros(8), **PAIR),
    ptx("an unwritten word is an atomic's operand", "uninitialised", B+""" <<||st.shared.u32 [%r1], 3;>> ld.shared.u32 %r5, [%r1]; red.global.add.u32 [%d0], %r5;""", zeros(8), before=S),
    ptx("an unwritten word chooses a branch of a table", "uninitialised", B+""" <<||st.shared.u32 [%r1], 1;>> ld.shared.u32 %r5, [%r1]; and.b32 %r5, %r5, 1;
 TS: .branchtargets L0, L1; brx.idx %r5, TS; L0: st.global.u32 [%d2], 1; ret;
 L1: st.global.u32 [%d2], 2;""", zeros(64), before=S),
    sequence("a bulk load before the wait, after a prefetch", "race_launches",[(A+"griddepcontrol.launch_dependents; st.global.u32 [%d2], 7;", "x",False),(START+""" @%p0 bra L; cp.async.bulk.prefetch.L2.global [%d0], 256; <<||griddepcontrol.wait;>> """+LOAD+"""
L: """+WAIT+""" L; griddepcontrol.wait; ld.shared.u32 %r5,[%r1]; ld.param.u64 %d5,[a1]; add.s64 %d5,%d5,%d1;
 st.global.u32 [%d5], %r5;""", "xy",True)],{"x":64,"y":64},before=TILE),
    sequence("a bulk reduction before the wait", "race_launches",[(A+"griddepcontrol.launch_dependents; st.global.u32 [%d2], 7;", "x",False),(START+""" st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; <<||griddepcontrol.wait;>> @%p0 bra L;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;
L: griddepcontrol.wait;""", "x",True)],{"x":64},before=TILE),
    sequence("the read-only path before the wait", "race_launches read_only_cache",[(A+"griddepcontrol.launch_dependents; st.global.u32 [%d2], 7;", "x",False),(A+""" <<||griddepcontrol.wait;>> ld.global.nc.u32 %r5,[%d2]; griddepcontrol.wait; ld.param.u64 %d5,[a1]; add.s64 %d5,%d5,%d1; st.global.u32 [%d5], %r5;""", "xy",True)],{"x":64,"y":64}),
    ptx("a store into constant memory", "read_only", "mov.u64 %d1, c; cvta.const.u64 %d1, %d1; ld.param.u64 %d2,[a0]; <<st.u32 [%d1], tid;||ld.u32 %r1, [%d1]; st.global.u32 [%d2], %r1;>>", zeros(8), before=".const .align 4 .u32 c[4] = {1,2,3,4};\n", block=1),
    ptx("elect by lanes that are not all there", "divergence deadlock", B+""" setp.lt.u32 %p4, lane, <<9||99>>;
 @!%p4 bra X; elect.sync %r5|%p5, -1; @%p5 st.shared.u32 [%r0], 1;
 X: bar.warp.sync -1;""", zeros(8), before=S, block=32),
    ptx("a bulk load of a tile that cp.async still fills", "race_shared read_before_wait missing_proxy_fence equal_value_race", START+""" shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0; mul.wide.u32 %d3, tid, 16; add.s64 %d3, %d3, %d0; cp.async.cg.shared.global [%r11], [%d3], 16; cp.async.commit_group; <<||cp.async.wait_group 0; fence.proxy.async;>> bar.sync 1; @%p0 bra L; """+LOAD+"\nL: "+WAIT+" L; cp.async.wait_all; bar.sync 2; ld.shared.u32 %r5,[%r1];", numbers(256), before=TILE),
    ptx("cp.async over what a bulk store still reads", "reused_before_read", START+""" st.shared.u32 [%r1], tid;
 fence.proxy.async; bar.sync 1; @%p0 bra X; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256;
 cp.async.bulk.commit_group; <<||cp.async.bulk.wait_group.read 0;>>
X: bar.sync 2; ld.param.u64 %d5,[a1]; add.s64 %d5,%d5,%d1; cp.async.ca.shared.global [%r1], [%d5], 4;
 cp.async.wait_all; bar.sync 3; @!%p0 cp.async.bulk.wait_group 0;""", zeros(64,64), before=TILE),
    ptx("a tile is stored, and loaded back before it has arrived", "race_global read_before_wait", START+""" st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 bra L; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group<<.read||>> 0;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+1024], [%d0], 256, [%r2];
L: """+WAIT+" L; ld.shared.u32 %r5, [%r1+1024]; @!%p0 cp.async.bulk.wait_group 0;", zeros(64), before=TILE),
    ptx("SMEM is read by lanes that only the block's exit would order", "race_shared", B+""" setp.eq.u32 %p4, warp, 0;
 @!%p4 bra R; st.shared.u32 [%r1], 1; <<ret;||bar.arrive 1, 64; ret;>>
R: <<||bar.sync 1, 64;>> ld.shared.u32 %r5, [%r1+-128];""", zeros(8), before=S),
    ptx("a store behind a relaxed arrival, to a block that leaves", "peer_not_running race_shared", pair()+""" setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E; mapa.shared::cluster.u32 %r7, %r2, 1; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r7]; <<mapa.shared::cluster.u32 %r6, %r0, 1; st.shared::cluster.u32 [%r6], 1;||>>  bra E;
R: """+W2+" E:", zeros(8), ignore=("uninitialised",), **PAIR),
    ptx("a store behind an arrival, to a block that leaves", "peer_not_running race_shared", pair()+""" setp.eq.u32 %p4, rank, 1; @%p4 bra R; @%p0 bra E; mapa.shared::cluster.u32 %r7, %r2, 1; mbarrier.arrive.shared::cluster.b64 _, [%r7]; <<mapa.shared::cluster.u32 %r6, %r0, 1; st.shared::cluster.u32 [%r6], 1;||>>  bra E;
R: W: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra W;
 E:""", zeros(8), ignore=("uninitialised",), **PAIR),
    ptx("an mbarrier made anew while a warp waits at it", "barrier_misuse race_shared deadlock", START+""" setp.eq.u32 %p4, warp, 1; @%p4 bra R; @!%p0 mbarrier.arrive.shared.b64 _, [%r2]; bar.warp.sync -1; <<||bar.sync 7, 64;>> @!%p0 mbarrier.inval.shared.b64 [%r2]; @!%p0 mbarrier.init.shared.b64 [%r2], 1; bra X;
R: """+WAIT+""" R; <<||bar.sync 7, 64;>>
X:""", zeros(8), before=TILE),
    sequence("an early launch writes through a tensor store before the wait", "race_launches",[(A+"griddepcontrol.launch_dependents; ld.global.u32 %r5,[%d2]; ld.param.u64 %d5,[a1]; add.s64 %d5,%d5,%d1; st.global.u32 [%d5], %r5;", "xy",False),
   (START+""" st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 ret;
 <<||griddepcontrol.wait;>> cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; griddepcontrol.wait;""", "x",True)],{"x":64,"y":64},before=TILE),
    ptx("half a warp meets with the wrong mask", "divergence deadlock", B+""" setp.lt.u32 %p4, lane, 16; @!%p4 bra H;
 st.shared.u32 [%r1], 1; bar.warp.sync <<-1||0xffff>>; ld.shared.u32 %r5,[%r0]; bra E; H: bar.warp.sync 0xffff0000;
 E: bar.warp.sync -1;""", zeros(8), before=S, block=32),
    ptx("a ballot by a mask that comes from another branch", "divergence deadlock", B+""" setp.lt.u32 %p4, lane, 16;
 activemask.b32 %r9; @!%p4 bra H; <<||activemask.b32 %r9;>> vote.sync.ballot.b32 %r5, %p4, %r9; bra E;
 H: st.shared.u32 [%r1], 1; E: bar.warp.sync -1;""", zeros(8), before=S, block=32),
    ptx("a barrier that two roles use at once", "race_shared barrier_count deadlock", B+""" setp.lt.u32 %p4, tid, 64;
 st.shared.u32 [%r1], tid; @%p4 bra F; barrier.cta.sync <<1||2>>, 64; ld.shared.u32 %r5,[%r1+-128];
 ld.shared.u32 %r5, [%r1+0]; bra E;
F: barrier.cta.sync 1, 64; xor.b32 %r6, %r1, 128; ld.shared.u32 %r5, [%r6];
 E:""".replace("[%r1+-128]", "[%r7]").replace("@%p4 bra F;", "xor.b32 %r7, %r1, 128; @%p4 bra F;"), zeros(8), before=S, block=128, every=False),
    ptx("bar.red whose result comes from warps that have not met before", "race_shared", B+""" <<||bar.sync 2;>> st.shared.u32 [%r1], tid; setp.gt.u32 %p4, tid, 3; xor.b32 %r6, %r1, 128; <<ld.shared.u32 %r7,[%r6]; bar.red.and.pred %p5, 1, %p4;||bar.red.and.pred %p5, 1, %p4; ld.shared.u32 %r7,[%r6];>>""", zeros(8), before=S),
    ptx("a multicast over what the peer still reads", "race_shared", (B+""" @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; mbarrier.init.shared.b64 [%r2+8], 128; fence.mbarrier_init.release.cluster;
READY: st.shared.u32 [%r1], tid; fence.proxy.async; """+MEET+""" setp.eq.u32 %p4, rank, 0; ld.shared.u32 %r8, [%r1];
 <<||mapa.shared::cluster.u32 %r7, %r2, 0; add.u32 %r7, %r7, 8;
 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];>> @%p0 bra L;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; @!%p4 bra L;
 <<||V: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r2+8], 0; @!%p5 bra V;>> mov.u16 %h1, 3;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d0], 256, [%r2], %h1;
L: """+W2+" ld.shared.u32 %r8,[%r1];"+MEET), numbers(64), before=".shared .align 128 .b8 s[4096];\n.shared .align 8 .b64 bar[2];\n", grid=2, cluster=2, ignore=("equal_value_race",)),
    ptx("the fence by the issuing lane after the barrier", "missing_proxy_fence", START+""" st.shared.u32 [%r1], tid;
 <<fence.proxy.async.global;||fence.proxy.async;>> bar.sync 1; @%p0 ret; """+STORE, zeros(64), before=TILE),
    ptx("a fence by the lane that copies, and no barrier before", "race_shared missing_proxy_fence", START+""" st.shared.u32 [%r1], tid; <<||bar.sync 1;>> fence.proxy.async; @%p0 ret; """+STORE, zeros(64), before=TILE),
    ptx("a reduction's result is read when its source has been", "race_global read_before_wait", START+""" st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 bra X; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group<<.read||>> 0;
X: bar.sync 2; ld.global.u32 %r5, [%d2]; st.global.u32 [%d2+512], %r5;""", zeros(256), before=TILE),
    ptx("one group too many may be left", "reused_before_read", START+""" st.shared.u32 [%r1], tid;
 st.shared.u32 [%r1+256], tid; fence.proxy.async; bar.sync 1; @%p0 bra X;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.global.shared::cta.bulk_group [%d0+256], [%r0+256], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read <<1||0>>;
X: bar.sync 2; st.shared.u32 [%r1+256], 7; @!%p0 cp.async.bulk.wait_group 0;""", zeros(256), before=TILE),
    ptx("a lock in SMEM whose release is relaxed", "race_shared", B+""" @!%p0 st.shared.u32 [%r0+1024], 0;
 @!%p0 st.shared.u32 [%r0+1028], 0; bar.sync 0; setp.ne.u32 %p4, lane, 0; @%p4 ret;
T: atom.acquire.cta.shared.cas.b32 %r5, [%r0+1024], 0, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra T;
 ld.shared.u32 %r6, [%r0+1028]; add.u32 %r6, %r6, 1; st.shared.u32 [%r0+1028], %r6;
 <<st.relaxed||st.release>>.cta.shared.u32 [%r0+1024], 0;""", zeros(8), before=S),
    ptx("a block's own SMEM by a bulk copy within the block", "read_before_wait", START+""" st.shared.u32 [%r1], tid;
 fence.proxy.async; bar.sync 1; @%p0 bra L; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
 mapa.shared::cluster.u32 %r5, %r0, 0; mapa.shared::cluster.u32 %r6, %r2, 0; add.u32 %r5, %r5, 1024;
 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r0], 256, [%r6];
L: <<ld.shared.u32 %r8,[%r1+1024];||>> M: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0; @!%p9 bra M;
 ld.shared.u32 %r8,[%r1+1024];""", zeros(64), before=TILE, ignore=("uninitialised",)),
    ptx("a zero fill of cp.async is read", "read_before_wait", START+""" shl.b32 %r11, tid, 4;
 add.u32 %r11, %r11, %r0; mul.wide.u32 %d3, tid, 16; add.s64 %d3, %d3, %d0;
 cp.async.cg.shared.global [%r11], [%d3], 16, 0; cp.async.commit_group;
 <<||cp.async.wait_group 0;>> ld.shared.u32 %r5,[%r11]; cp.async.wait_all;""", numbers(256), before=TILE),
    ptx("cp.async by an ignored predicate brings nothing", "uninitialised", START+""" shl.b32 %r11, tid, 4;
 add.u32 %r11, %r11, %r0; mul.wide.u32 %d3, tid, 16; add.s64 %d3, %d3, %d0; setp.lt.u32 %p4, tid, <<32||64>>;
 @%p4 cp.async.cg.shared.global [%r11], [%d3], 16; cp.async.wait_all; ld.shared.u32 %r5,[%r11];
 st.global.u32 [%d2+1024], %r5;""", numbers(512), before=TILE),
    ptx("setmaxnreg of more than there is", "register_capacity deadlock divergence", B+""" setp.ge.u32 %p4, tid, 128;
 @%p4 bra C; setmaxnreg.dec.sync.aligned.u32 <<160||40>>; bra E; C: setmaxnreg.inc.sync.aligned.u32 232;
 E:""", zeros(8), before=S, block=384, directives=".maxntid 384 .minnctapersm 1"),
    ptx("a peer's barrier is expected of, before it is made", "barrier_misuse peer_not_running race_shared", B+""" @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: <<barrier.cluster.arrive.aligned; mapa.shared::cluster.u32 %r7, %r2, 1; setp.eq.and.u32 %p4, rank, 0, !%p0;
 @%p4 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r7], 0;
 barrier.cluster.wait.aligned;||barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 mapa.shared::cluster.u32 %r7, %r2, 1; setp.eq.and.u32 %p4, rank, 0, !%p0;
 @%p4 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r7], 0;>> setp.eq.u32 %p6, rank, 0;
 @%p6 bra E; """+W2+" E:"+MEET, zeros(8), **PAIR),
    ptx("an acquire fence for the async proxy is missing across the cluster", "missing_proxy_fence", pair()+""" setp.eq.u32 %p4, rank, 1; mapa.shared::cluster.u32 %r6, %r1, 0; @%p4 st.shared::cluster.u32 [%r6], tid; <<||fence.proxy.async;>> """+MEET+""" @%p4 ret; @%p0 ret; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;""", zeros(64), **PAIR),
    ptx("a store to a peer by generic address past its window", "out_of_bounds misaligned", pair()+""" cvt.u64.u32 %d5, %r1; cvta.shared.u64 %d5, %d5; mapa.u64 %d6, %d5, %r5; st.u32 [%d6+<<8192||1024>>], tid;"""+MEET, zeros(8), ignore=("equal_value_race",), **PAIR),
    ptx("a counter by ld and st volatile in one block", "race_shared", B+""" @!%p0 st.shared.u32 [%r0], 0; bar.sync 0;
 <<ld.shared.u32 %r5,[%r0]; add.u32 %r5,%r5,1; st.shared.u32 [%r0],%r5;||atom.shared.add.u32 %r5,[%r0],1;>>""", zeros(8), before=S, block=64),
    ptx("blocks poll a flag by nc loads", "read_only_cache livelock race_blocks", A+""" @%p0 ret;
 setp.eq.u32 %p3, cta, 1; @%p3 bra R; st.global.u32 [%d0+64], 5; st.release.gpu.global.u32 [%d0], 1; ret;
R: <<ld.global.nc||ld.acquire.gpu.global>>.u32 %r5, [%d0]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R;
 ld.global.u32 %r6, [%d0+64];""", zeros(64), grid=2, block=32),
    ptx("128-bit words by two blocks with acquire of halves", "race_blocks", A+""" @%p0 ret; setp.eq.u32 %p3, cta, 1;
 mov.b64 %d5, 7; @%p3 bra R; st.relaxed.gpu.global.v2.b64 [%d0], {%d5, %d5}; ret;
R: <<ld.global.v2.b64||ld.relaxed.gpu.global.v2.b64>> {%d6, %d7}, [%d0];""", zeros(64), grid=2, block=32),
    ptx("an unwritten predicate guards a barrier", "uninitialised", B+""" <<||st.shared.u32 [%r1], 1;>> ld.shared.u32 %r5,[%r1]; setp.gt.u32 %p4, %r5, 0; @%p4 bar.sync 1; @!%p4 bar.sync 1;""", zeros(8), before=S),
    ptx("an unwritten word is a tensor copy's coordinate", "uninitialised", MAPPED+""" <<||@!%p0 st.shared.u32 [%r0+4096], 0;>> @%p0 bra L; ld.shared.u32 %r20,[%r0+4096]; mov.u32 %r21, 0; """+TENSOR_LOAD+"\nL: "+WAIT+" L;", maps, params=MAP, before=TILE),
    ptx("an unwritten word is an mbarrier's parity", "uninitialised", START+""" <<||@!%p0 st.shared.u32 [%r0+4096], 1;
 bar.sync 1;>> ld.shared.u32 %r5,[%r0+4096]; L: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], %r5;
 @!%p9 bra L;""", zeros(8), before=TILE),
    ptx("an unwritten word goes to another block by st.async", "uninitialised", pair()+""" <<||st.shared.u32 [%r1+1024], 3;>> ld.shared.u32 %r8,[%r1+1024]; @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r8, [%r7]; """+W2+MEET, zeros(8), **PAIR),
]  # fmt: skip
