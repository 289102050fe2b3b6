"""Planted bugs of protocols between several warps and blocks: messages both ways, pings, queues, flags behind copies."""

from __future__ import annotations

from .order import MEET, A, B, S
from .probe import Probe, numbers, ptx, zeros
from .proxies import START, TILE, WAIT

BLOCKS = "race_blocks"
TWO = {"grid": 2, "block": 32}
# Block 0 sends three words, one at a time, through one mailbox at 0; flags at 64 (full) and 128 (empty) count messages.
MAIL = A + """ @%p0 ret; mov.u32 %r9, 0; @!%p1 bra GET;
PUT: ld.<<EMPTY>>.global.u32 %r5, [%d0+128]; setp.ne.u32 %p3, %r5, %r9; @%p3 bra PUT;
 st.global.u32 [%d0], %r9; add.u32 %r9, %r9, 1; st.release.gpu.global.u32 [%d0+64], %r9; setp.lt.u32 %p4, %r9, 3; @%p4 bra PUT; ret;
GET: ld.acquire.gpu.global.u32 %r5, [%d0+64]; setp.le.u32 %p3, %r5, %r9; @%p3 bra GET;
 <<EARLY>> ld.global.u32 %r6, [%d0]; <<LATE>> setp.lt.u32 %p4, %r9, 3; @%p4 bra GET;"""  # fmt: skip
TAKEN = "add.u32 %r9, %r9, 1; st.release.gpu.global.u32 [%d0+128], %r9;"
# Block 0's bulk store, and a flag behind it; block 1 reads by lanes.
FLAG = START + """ setp.eq.u32 %p3, cta, 1; @%p3 bra READER; st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 ret;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; <<SENT>>
 st.release.gpu.global.u32 [%d0+1024], 1; ret;
READER: ld.acquire.gpu.global.u32 %r5, [%d0+1024]; setp.eq.u32 %p4, %r5, 0; @%p4 bra READER; ld.global.u32 %r6, [%d2];"""  # fmt: skip


def mail(name: str, empty: str = "acquire.gpu", early: str = "", late: str = TAKEN) -> Probe:
    body = MAIL
    for key, text in {"EMPTY": empty, "EARLY": early, "LATE": late}.items():
        body = body.replace(f"<<{key}>>", f"<<{text}>>" if "||" in text else text)
    return ptx(name, BLOCKS, body, zeros(64), grid=2, block=32)


PROBES: list[Probe] = [
    mail("a mailbox is emptied before it is read", early=TAKEN + "||", late="||" + TAKEN),
    mail("the sender does not acquire the empty mailbox", empty="relaxed.gpu||acquire.gpu"),
    ptx("a flag behind a bulk store whose source has been read", BLOCKS + " read_before_wait",
        FLAG.replace("<<SENT>>", "cp.async.bulk.wait_group<<.read||>> 0;"), zeros(512), before=TILE, grid=2),
    ptx("a flag behind a tensor of lanes, of which one stores late", BLOCKS, A + """ @!%p1 bra R; <<||st.global.u32 [%d2], tid;>>
 bar.sync 1; @!%p0 st.release.gpu.global.u32 [%d0+1024], 1; <<st.global.u32 [%d2], tid;||>> ret;
R: ld.acquire.gpu.global.u32 %r5, [%d0+1024]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R; ld.global.u32 %r6, [%d2];""", zeros(512), grid=2),
    ptx("a message through a third block that does not acquire", BLOCKS, A + """ @%p0 ret; setp.eq.u32 %p3, cta, 1; setp.eq.u32 %p4, cta, 2;
 @%p3 bra MIDDLE; @%p4 bra LAST; st.global.u32 [%d0], 7; st.release.gpu.global.u32 [%d0+64], 1; ret;
MIDDLE: ld.<<relaxed||acquire>>.gpu.global.u32 %r5, [%d0+64]; setp.eq.u32 %p5, %r5, 0; @%p5 bra MIDDLE;
 st.release.gpu.global.u32 [%d0+128], 1; ret;
LAST: ld.acquire.gpu.global.u32 %r5, [%d0+128]; setp.eq.u32 %p5, %r5, 0; @%p5 bra LAST; ld.global.u32 %r6, [%d0];""", zeros(64),
        grid=3, block=32),
    ptx("two pairs of warps meet at one named barrier", "race_shared barrier_count deadlock", B + """ and.b32 %r9, warp, 1; add.u32 %r10, %r9, 2;
 st.shared.u32 [%r1], tid; barrier.sync <<2||%r10>>, 64; xor.b32 %r11, %r1, 256; ld.shared.u32 %r12, [%r11];""", zeros(8),
        before=S, block=128),
    ptx("ldmatrix of what cp.async brings", "read_before_wait race_shared", B + """ shl.b32 %r9, tid, 4; add.u32 %r9, %r9, %r0;
 mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0; cp.async.cg.shared.global [%r9], [%d5], 16; cp.async.commit_group;
 <<||cp.async.wait_group 0;>> bar.sync 1; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r9];""",
        numbers(256), before=S),
    ptx("stmatrix over fragments that another warp loads", "race_shared", B + """ shl.b32 %r9, lane, 4; add.u32 %r9, %r9, %r0; mov.b32 %r10, 0;
 setp.eq.u32 %p4, warp, 1; st.shared.v4.b32 [%r9], {%r10, %r10, %r10, %r10}; bar.sync 1; @%p4 bra W;
 ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r11, %r12, %r13, %r14}, [%r9]; <<bar.arrive 3, 96;||bar.arrive 2, 64;>> ret;
W: <<||bar.sync 2, 64;>> stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9], {lane, lane, lane, lane};""", zeros(8), before=S,
        ignore=("equal_value_race", "barrier_count")),
    ptx("a multicast whose second block expects nothing", "bytes_mismatch deadlock unawaited_copy read_before_wait", START + MEET + """
 @%p0 bra L; setp.ne.u32 %p3, rank, 0; <<@!%p3||>> mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 <<@%p3 mbarrier.arrive.shared::cta.b64 _, [%r2];||>> mov.u16 %h1, 3; @%p3 bra L;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d0], 256, [%r2], %h1;
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];" + MEET, numbers(64), before=TILE, grid=2, cluster=2),
    ptx("a token of the phase before last", "race_shared read_before_wait phase_overrun", START + """ @%p0 ret; mbarrier.arrive.shared.b64 %d5, [%r2];
 mbarrier.arrive.expect_tx.shared.b64 %d6, [%r3], 64; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
 [%r0], [%d0], 64, [%r3]; A: mbarrier.try_wait.shared.b64 %p5, [<<%r2||%r3>>], <<%d5||%d6>>; @!%p5 bra A; ld.shared.u32 %r6, [%r0];
 B: mbarrier.try_wait.shared.b64 %p5, [%r3], %d6; @!%p5 bra B;""", numbers(64), before=TILE),
    ptx("an mbarrier that ends while a copy is on its way to it", "barrier_misuse unawaited_copy", START + """ @%p0 ret;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
 <<||C: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra C;>> mbarrier.inval.shared.b64 [%r2];""", numbers(64), before=TILE,
        every=False),
    ptx("two warps arrive where one is expected", "barrier_misuse phase_overrun", START + """ setp.eq.u32 %p4, lane, 0;
 <<||setp.eq.and.u32 %p4, warp, 0, %p4;>> @%p4 mbarrier.arrive.shared.b64 _, [%r2];
 C: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra C;""", zeros(8), before=TILE, every=False),
    ptx("a peer's SMEM by a generic address, before the cluster has met", "race_shared peer_not_running uninitialised", B + """ st.shared.u32 [%r1], tid;
 cvt.u64.u32 %d5, %r1; cvta.shared.u64 %d5, %d5; xor.b32 %r5, rank, 1; mapa.u64 %d6, %d5, %r5; <<||barrier.cluster.arrive;
 barrier.cluster.wait;>> ld.u32 %r6, [%d6];""" + MEET, zeros(8), before=S, grid=2, cluster=2),
    ptx("remote arrivals that nobody counted on", "barrier_misuse phase_overrun", B + """ @%p0 bra READY; mbarrier.init.shared.b64 [%r2], <<1||2>>;
 fence.mbarrier_init.release.cluster;
READY:""" + MEET + """ mapa.shared::cluster.u32 %r6, %r2, 0; @!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
 setp.ne.u32 %p4, rank, 0; @%p4 bra E;
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra W;
E:""" + MEET, zeros(8), before=S, grid=2, cluster=2, every=False),
    ptx("a tensor load of what another block's tensor store brings", BLOCKS, START + """ setp.eq.u32 %p3, cta, 1; @%p3 bra READER;
 st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 ret;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;
READER: @%p0 bra L; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0+<<128||256>>], 256, [%r2];
L: """ + WAIT + " L;", zeros(128), before=TILE, grid=2),
    ptx("the cluster meets without order, and without a fence of the cluster's scope", "race_shared", B + """ st.shared.u32 [%r1], tid;
 xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5; fence.acq_rel.<<cta||cluster>>; barrier.cluster.arrive.relaxed.aligned;
 barrier.cluster.wait.acquire.aligned; ld.shared::cluster.u32 %r7, [%r6];""" + MEET, zeros(8), before=S, grid=2, cluster=2),
    ptx("blocks take tickets, and write to the tickets of others", BLOCKS, A + """ @%p0 ret; atom.relaxed.gpu.global.add.u32 %r5, [%d0], 1;
 <<shr.u32 %r5, %r5, 1;||>> mul.wide.u32 %d5, %r5, 4; add.s64 %d5, %d5, %d0; st.global.u32 [%d5+64], cta;""", zeros(64), grid=4, block=32),
    ptx("a poll of a word that copies bring, by the generic proxy", "read_before_wait race_shared", START + """ st.shared.u32 [%r1], tid;
 fence.proxy.async.shared::cta; bar.sync 1; @%p0 bra L; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
 <<P: ld.volatile.shared.u32 %r5, [%r0+128]; setp.eq.u32 %p4, %r5, 32; @%p4 bra P;||>>
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];", zeros(64), before=TILE, every=False),
]  # fmt: skip
