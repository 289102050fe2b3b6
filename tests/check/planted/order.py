"""Planted bugs of order: scopes, flags and fences, named and cluster barriers, peers' SMEM, lanes of a warp."""

from __future__ import annotations

from .probe import Probe, ptx, zeros

BLOCKS = "race_blocks"
A = """ ld.param.u64 %d0, [a0]; mul.wide.u32 %d1, tid, 4; add.s64 %d2, %d0, %d1;
 setp.ne.u32 %p0, tid, 0; setp.eq.u32 %p1, cta, 0;
"""
S = ".shared .align 128 .b8 s[4096];\n.shared .align 8 .b64 bar;\n"
B = A + " mov.u32 %r0, s; shl.b32 %r1, tid, 2; add.u32 %r1, %r1, %r0; mov.u32 %r2, bar;\n"
MEET = " barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"

# Block 0 writes 64 words and raises a flag at 1024; block 1 waits for it and reads them.
MESSAGE = A + """ @!%p1 bra READER; st.global.u32 [%d2+256], tid;
 <<W>> ret;
READER: <<R>> ld.global.u32 %r5, [%d2+256]; st.global.u32 [%d2+2048], %r5;"""  # fmt: skip
RAISE = "bar.sync 1; @%p0 ret; st.release.gpu.global.b32 [%d0+1024], 1;"
AWAIT = "Z: ld.acquire.gpu.global.b32 %r6, [%d0+1024]; setp.eq.s32 %p3, %r6, 0; @%p3 bra Z;"


def message(name: str, writer: str = RAISE, reader: str = AWAIT, kinds: str = BLOCKS) -> Probe:
    body = MESSAGE.replace("<<W>>", writer).replace("<<R>>", reader)
    return ptx(name, kinds, body, zeros(1024), grid=2)


# A lock around a word.
LOCK = A + """ @%p0 ret;
T: atom.<<SEM>>.<<SCOPE>>.global.cas.b32 %r5, [%d0], 0, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra T;
 ld.global.u32 %r6, [%d0+64]; add.u32 %r6, %r6, 1; st.global.u32 [%d0+64], %r6;
 <<OPEN>>"""  # fmt: skip


def lock(
    name: str, sem: str = "acquire", scope: str = "gpu", opened: str = "st.release.gpu.global.u32 [%d0], 0;"
) -> Probe:
    body = LOCK
    for key, text in {"SEM": sem, "SCOPE": scope, "OPEN": opened}.items():
        body = body.replace(f"<<{key}>>", f"<<{text}>>" if "||" in text else text)
    return ptx(name, BLOCKS, body, zeros(64), grid=3, block=32)


def lanes(name: str, body: str, kinds: str = "divergence", block: int = 32, **rest: object) -> Probe:
    return ptx(name, kinds, B + body, zeros(256), before=S, block=block, **rest)  # pyright: ignore


# Cluster: each block writes its SMEM, meets the others, and reads its neighbour's.
RING = B + """ st.shared.u32 [%r1], tid; add.u32 %r5, rank, 1; and.b32 %r5, %r5, 3;
 mapa.shared::cluster.u32 %r6, %r1, %r5;
 <<ONE>> ld.shared::cluster.u32 %r7, [%r6]; <<TWO>>"""  # fmt: skip


def cluster(name: str, kinds: str, one: str = MEET, two: str = MEET) -> Probe:
    return ptx(
        name,
        kinds,
        RING.replace("<<ONE>>", one).replace("<<TWO>>", two),
        zeros(64),
        before=S,
        grid=4,
        cluster=(4, 1, 1),
    )


PROBES: list[Probe] = [
    message("a flag released for the block alone", RAISE.replace("gpu", "<<cta||sys>>")),
    message("a flag acquired for the cluster alone", reader=AWAIT.replace("gpu", "<<cluster||gpu>>")),
    message("a weak store raises the flag", """bar.sync 1; @%p0 ret; <<st||fence.acq_rel.gpu;
 st.relaxed.gpu>>.global.b32 [%d0+1024], 1;""",
        kinds="race_blocks"),
    message("a weak load sees the flag", reader=AWAIT.replace("ld.acquire.gpu", "<<ld||ld.acquire.sys>>"),
        kinds="race_blocks livelock"),
    message("a reduction raises the flag, with no order", """bar.sync 1; @%p0 ret;
 red.<<relaxed||release>>.gpu.global.or.b32 [%d0+1024], 4;"""),
    message("an exchange raises the flag before the fence", """bar.sync 1; @%p0 ret;
 <<||fence.acq_rel.gpu;>> atom.relaxed.gpu.global.exch.b32 %r9, [%d0+1024], 1;"""
        " <<fence.acq_rel.gpu;||>>"),
    message("a volatile flag, fenced for the block", """membar.<<cta||gl>>; bar.sync 1; @%p0 ret; membar.<<cta||gl>>;
 st.volatile.global.u32 [%d0+1024], 1;""",
        "Z: ld.volatile.global.u32 %r6, [%d0+1024]; setp.eq.s32 %p3, %r6, 0; @%p3 bra Z; membar.gl;"),
    message("only one warp of the writer has arrived", RAISE.replace("bar.sync 1;", "<<||bar.sync 1;>>")),
    message("the flag is polled by one lane, and the others do not wait", reader="""@%p0 bra GO;
 """ + AWAIT + " GO: <<bar.warp.sync -1||bar.sync 2>>;"),
    message("a 64-bit flag is polled by halves", """bar.sync 1; @%p0 ret; mov.b64 %d9, 0x100000001;
 st.release.gpu.global.b64 [%d0+1024], %d9;""",
        AWAIT.replace("""b32 %r6, [%d0+1024]; setp.eq.s32 %p3, %r6""", """<<b32||b64>> <<%r6||%d8>>, [%d0+1024];
 setp.eq.<<s32||s64>> %p3, <<%r6||%d8>>""")),
    lock("a lock taken for the block alone", scope="cta||gpu"),
    lock("a lock taken with no order", sem="relaxed||acquire"),
    lock("a lock opened with no order",
        opened="st.relaxed.gpu.global.u32 [%d0], 0;||st.release.gpu.global.u32 [%d0], 0;"),
    lock("a lock opened by a weak store",
        opened="st.global.u32 [%d0], 0;||atom.release.gpu.global.exch.b32 %r8, [%d0], 0;"),
    ptx("counters of two widths", BLOCKS + " race_global", A + """ atom.global.gpu.add.u64 %d5, [%d0], 1;
 @%p1 atom.global.gpu.add.u32 %r5, [%d0+<<4||8>>], 1;""",
        zeros(8), grid=2),
    ptx("a histogram with atomics of the block's scope", BLOCKS, A + """ and.b32 %r5, tid, 7;
 mul.wide.u32 %d3, %r5, 4; add.s64 %d3, %d3, %d0;
 red.relaxed.<<cta||gpu>>.global.add.u32 [%d3], 1;""", zeros(8), grid=4, block=96),
    ptx("half-precision atomics beside a plain read", "race_global", A + """ mov.b32 %r6, 0x3c003c00; setp.eq.u32 %p4, warp, 1;
 @!%p4 red.global.gpu.add.noftz.f16x2 [%d0], %r6; <<||bar.sync 2;>> @%p4 ld.global.u32 %r7, [%d0];""", zeros(8)),
    ptx("a plain read that follows only one of two stores of a flag", BLOCKS, A + """ @%p0 ret; setp.eq.u32 %p3, cta, 2; @%p3 bra R;
 st.relaxed.gpu.global.u32 [%d0], cta; @%p1 ret; st.release.gpu.global.u32 [%d0+64], 1; ret;
R: ld.acquire.gpu.global.u32 %r5, [%d0+64]; setp.eq.u32 %p4, %r5, 0; @%p4 bra R; ld<<||.relaxed.gpu>>.global.u32 %r6, [%d0];""",
        zeros(64), grid=3, block=32),
    ptx("the ticket of the last block, fenced for the block", BLOCKS, A + """ mul.wide.u32 %d3, cta, 4;
 add.s64 %d3, %d3, %d0; @%p0 bra DONE; st.global.u32 [%d3+64], cta;
 membar.<<cta||gl>>; atom.global.gpu.inc.u32 %r5, [%d0], 2; setp.ne.u32 %p4, %r5, 2; @%p4 bra DONE; membar.gl;
 ld.global.v2.u32 {%r6, %r7}, [%d0+64]; st.global.u32 [%d0], 0;
DONE:""", zeros(64), grid=3),
    # named barriers and warps
    ptx("barriers of other numbers", "race_shared deadlock barrier_count", B + """ st.shared.u32 [%r1], tid;
 setp.lt.u32 %p4, tid, 64; @%p4 bar.sync 3, 128;
 @!%p4 bar.sync <<4||3>>, <<64||128>>; xor.b32 %r5, %r1, 256;
 ld.shared.u32 %r6, [%r5];""", zeros(128), before=S, block=128),
    ptx("bar.arrive before the data", "race_shared", B + """ setp.ge.u32 %p4, tid, 64; @%p4 bra READ;
 <<bar.arrive 5, 128;||>> st.shared.u32 [%r1], tid; <<||bar.arrive 5, 128;>> ret;
READ: bar.sync 5, 128; ld.shared.u32 %r5, [%r1+-256];""", zeros(128), before=S, block=128),
    ptx("a tree of sums without the second barrier", "race_shared", B + """ st.shared.u32 [%r1], tid; bar.sync 0;
 mov.u32 %r9, 64;
T: setp.ge.u32 %p4, tid, %r9; @%p4 bra N; shl.b32 %r10, %r9, 2; add.u32 %r10, %r10, %r1; ld.shared.u32 %r5, [%r1];
 ld.shared.u32 %r6, [%r10];
 add.u32 %r5, %r5, %r6; st.shared.u32 [%r1], %r5;
N: <<||bar.sync 0;>> shr.u32 %r9, %r9, 1; setp.ge.u32 %p5, %r9, 32; @%p5 bra T;""", zeros(128), before=S, block=128),
    ptx("a scan in place", "race_shared", B + """ st.shared.u32 [%r1], tid; bar.sync 0; setp.eq.u32 %p4, tid, 0;
 @%p4 bra N; ld.shared.u32 %r5, [%r1+-4];
N: <<||bar.sync 0;>> @!%p4 st.shared.u32 [%r1], %r5;""", zeros(128), before=S, block=96),
    ptx("double buffers, and every second barrier left out", "race_shared", B + """ mov.u32 %r9, 0;
T: and.b32 %r10, %r9, 1; shl.b32 %r11, %r10, 9; add.u32 %r12, %r11, %r1; st.shared.u32 [%r12], %r9;
 setp.eq.u32 %p4, %r10, 1; <<@%p4||>> bar.sync 1;
 xor.b32 %r13, %r12, 128; ld.shared.u32 %r14, [%r13]; add.u32 %r9, %r9, 1; setp.lt.u32 %p5, %r9, 4;
 @%p5 bra T;""", zeros(64), before=S),
    ptx("a count that no warps make up", "deadlock barrier_count", B + """ setp.lt.u32 %p4, tid, 32; @%p4 bra X;
 barrier.sync.aligned 2, <<96||64>>;
X: st.shared.u32 [%r1], tid;""", zeros(64), before=S, block=96),
    ptx("a warp that leaves before a counted barrier", "deadlock barrier_count", B + """ setp.ge.u32 %p4, tid, 64;
 <<@%p4 ret||@%p4 bra ON>>;
ON: bar.sync 1, 96;""", zeros(64), before=S, block=96),
    ptx("flags in SMEM without order", "race_shared", B + """ setp.eq.u32 %p5, warp, 1;
 @!%p0 st.volatile.shared.u32 [%r0+1024], 0; bar.sync 0; @%p5 bra R;
 st.shared.u32 [%r1], tid; bar.warp.sync -1; <<||fence.acq_rel.cta;>> @!%p0 st.volatile.shared.u32 [%r0+1024], 1; ret;
R: ld.volatile.shared.u32 %r5, [%r0+1024]; setp.eq.u32 %p6, %r5, 0; @%p6 bra R;
 <<||fence.acq_rel.cta;>> ld.shared.u32 %r6, [%r1+-128];""", zeros(64), before=S),
    ptx("local sums through an mbarrier whose wait is relaxed", "race_shared", B + """ @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 64;
READY: bar.sync 0; st.shared.u32 [%r1], tid; mbarrier.arrive.<<relaxed||release>>.cta.shared.b64 %d5, [%r2];
W: mbarrier.try_wait.acquire.cta.shared.b64 %p5, [%r2], %d5; @!%p5 bra W; xor.b32 %r5, %r1, 128;
 ld.shared.u32 %r6, [%r5];""", zeros(64), before=S),
    # clusters
    cluster("a neighbour's SMEM before the cluster has met", "race_shared peer_not_running uninitialised",
        one="<<bar.sync 1;||" + MEET + ">>"),
    cluster("a neighbour's SMEM, and nobody waits for the readers", "peer_not_running", two="<<||" + MEET + ">>"),
    cluster("the cluster meets without order", "race_shared",
        one=""" barrier.cluster.arrive<<.relaxed||.release>>.aligned; barrier.cluster.wait.aligned;"""),
    cluster("a cluster barrier that one block leaves out", "deadlock barrier_count peer_not_running race_shared",
        two="setp.eq.u32 %p7, rank, 3; <<@!%p7||>> barrier.cluster.arrive; <<@!%p7||>> barrier.cluster.wait;"),
    ptx("SMEM of the pair's other block counted by atomics of the block's scope", "race_shared",
        B + MEET + """ mapa.shared::cluster.u32 %r6, %r0, 0;
 setp.eq.u32 %p4, rank, 0; @%p4 st.shared.u32 [%r1+256], tid;
 red.relaxed.<<cta||cluster>>.shared::cluster.add.u32 [%r6], 1;""" + MEET, zeros(64),
        before=S, grid=2, cluster=2, ignore=("uninitialised",)),
    ptx("st.async that lands on what the peer still reads", "race_shared", B + """ @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY: st.shared.u32 [%r1], tid; """ + MEET + """ xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5;
 mapa.shared::cluster.u32 %r7, %r2, %r5;
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; ld.shared.u32 %r8, [%r1]; <<||""" + MEET + """>>
 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], tid, [%r7];
W: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra W;""" + MEET, zeros(64), before=S, grid=2, cluster=2),
    ptx("a message by remote arrival, before the data", "race_shared", B + """ @%p0 bra READY;
 mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY:""" + MEET + """ setp.eq.u32 %p4, rank, 1; mapa.shared::cluster.u32 %r6, %r0, 1;
 mapa.shared::cluster.u32 %r7, %r2, 1; @%p4 bra R; @%p0 bra E;
 <<mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];||>> st.shared::cluster.v4.u32 [%r6], {tid, tid, tid, tid};
 <<||mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];>> bra E;
R: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra R; ld.shared.u32 %r8, [%r0+8];
E:""" + MEET, zeros(64), before=S, grid=2, cluster=2),
    # lanes
    lanes("a vote that names lanes which are elsewhere", """ setp.lt.u32 %p4, lane, 24; @!%p4 bra X;
 vote.sync.ballot.b32 %r5, %p4, <<0xffffffff||0xffffff>>; st.shared.u32 [%r1], %r5; X: bar.warp.sync -1;""",
        "divergence deadlock"),
    lanes("a match in a loop that some lanes have left", """ mov.u32 %r9, 0;
T: activemask.b32 %r10; match.any.sync.b32 %r5, lane, <<-1||%r10>>; add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, lane;
 @%p4 bra T; bar.warp.sync -1;""", "divergence deadlock"),
    lanes("a warp's sum by redux, of half a warp", """ and.b32 %r9, lane, 1; setp.eq.u32 %p4, %r9, 0; @%p4 bra X;
 redux.sync.add.s32 %r5, lane, <<-1||0xaaaaaaaa>>; X: bar.warp.sync -1;""", "divergence deadlock"),
    lanes("a shuffle up from lanes that are elsewhere", """ setp.lt.u32 %p4, lane, 16; @%p4 bra X;
 shfl.sync.up.b32 %r5, lane, <<4||0>>, 0, 0xffff0000; st.shared.u32 [%r1], %r5; X:"""),
    lanes("a lane that is not in its own mask", " shfl.sync.idx.b32 %r5, lane, 3, 31, <<0x7fffffff||-1>>;"),
    lanes("bar.warp.sync with lanes that are elsewhere", """ setp.eq.u32 %p4, lane, 9; @%p4 bra Y;
 bar.warp.sync <<-1||0xfffffdff>>; bra Z; Y: st.shared.u32 [%r1], tid; Z: shfl.sync.idx.b32 %r6, lane, 0, 31, -1;""",
        "divergence deadlock"),
    lanes("an aligned barrier of half a warp", """ setp.lt.u32 %p4, lane, 16; @%p4 bra X; bar<<||rier>>.sync 1; bra Y;
 X: bar<<||rier>>.sync 1; Y:""", block=64),
    lanes("ldmatrix of half a warp", """ st.shared.u32 [%r1], tid; setp.lt.u32 %p4, lane, <<16||99>>; @!%p4 bra X;
 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r0]; X: bar.warp.sync -1;"""),
    lanes("mma of lanes that parted", """ mov.b32 %r5, 0; mov.f32 %f0, 0f00000000; setp.gt.u32 %p4, lane, <<4||40>>;
 @%p4 bra X;
 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r5}, {%r5}, {%f0, %f0, %f0, %f0};
 X: bar.warp.sync -1;"""),
    lanes("mma of a warp of which lanes have left", """ mov.b32 %r5, 0; mov.f32 %f0, 0f00000000; setp.gt.u32 %p4, lane, <<30||31>>; @%p4 ret;
 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r5}, {%r5}, {%f0, %f0, %f0, %f0};"""),
    lanes("a sparse product of a warp of which lanes have left", """ mov.b32 %r5, 0x44444444; mov.f32 %f0, 0f00000000;
 setp.gt.u32 %p4, lane, <<30||31>>; @%p4 ret;
 mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r5}, {%r5, %r5},
 {%f0, %f0, %f0, %f0}, %r5, 0x0;"""),
    lanes("metadata that stores one element twice", """ mov.b32 %r5, <<0x55555555||0x44444444>>; mov.f32 %f0, 0f00000000;
 mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r5}, {%r5, %r5},
 {%f0, %f0, %f0, %f0}, %r5, 0x0;""", "descriptor"),
    lanes("metadata in another order than the instruction wants", """ mov.b32 %r5, 0x11111111; mov.f32 %f0, 0f00000000;
 mma.sp<<::ordered_metadata||>>.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r6, %r7, %r8, %r9}, {%r5, %r5, %r5, %r5},
 {%r5, %r5, %r5, %r5}, {%r5, %r5, %r5, %r5}, %r5, 0x0;""", "descriptor"),
    lanes("metadata from SMEM that nobody wrote", """ mov.f32 %f0, 0f00000000; <<||st.shared.u32 [%r1], 0x44444444;>>
 ld.shared.u32 %r5, [%r1]; mov.b32 %r6, 0;
 mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r6, %r6}, {%r6, %r6},
 {%f0, %f0, %f0, %f0}, %r5, 0x0;""", "uninitialised"),
    lanes("ldmatrix of a warp that some lanes leave early", """ st.shared.u32 [%r1], tid; setp.lt.u32 %p4, lane, <<16||99>>; @!%p4 bra X;
 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r0]; X:"""),
    lanes("a product that one warp of the group leaves out", """ setp.lt.u32 %p4, tid, <<96||128>>; @!%p4 bra X;
 wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0; mov.f32 %f0, 0f00000000; shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13;
 or.b64 %d4, %d4, 0x0000001000080000; mov.b32 %r20, 0; mov.b32 %r21, 0; wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r20, %r21}, %d4, %d4, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; X:""",
        "divergence deadlock", block=128, ignore=("uninitialised",)),
]  # fmt: skip
