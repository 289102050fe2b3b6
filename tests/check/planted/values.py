"""Planted bugs of values: equal ones written twice, unwritten ones that decide, bounds; and runs that never end."""

from __future__ import annotations

import numpy as np

from .order import A, B, S
from .probe import Probe, numbers, ptx, sequence, zeros
from .proxies import START, TILE, WAIT

EQUAL = "equal_value_race"
UNWRITTEN = "uninitialised"
LOCAL = " .local .align 16 .b8 l[64];"

PROBES: list[Probe] = [
    ptx("two warps say that a value was found", EQUAL, B + """ @!%p0 st.shared.u32 [%r0+512], 0; bar.sync 0;
 setp.eq.u32 %p4, lane, 7;
 <<||setp.eq.and.u32 %p4, warp, 1, %p4;>> @%p4 st.shared.u32 [%r0+512], 1; bar.sync 1;
 ld.shared.u32 %r5, [%r0+512];""", zeros(64), before=S),
    ptx("blocks clear one counter with vectors", EQUAL, A + """ <<||@!%p1 ret;>> mov.u32 %r5, 0;
 setp.eq.u32 %p3, tid, 0; @%p3 st.global.v4.u32 [%d0], {%r5, %r5, %r5, %r5};""",
        zeros(8), grid=3),
    ptx("bytes of one value by both warps", EQUAL, B + """ cvt.u64.u32 %d5, lane; add.s64 %d5, %d5, %d0;
 <<||setp.ne.u32 %p5, warp, 0; @%p5 ret;>> mov.u16 %h1, 5; st.global.u8 [%d5], %h1;""",
        zeros(64), before=S),
    ptx("a store beside a copy of the same values", EQUAL, START + """ @%p0 bra L;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: setp.eq.u32 %p5, tid, 63; mov.u32 %r6, 0; @%p5 st.shared.u32 [%r1+<<0||256>>], %r6;
M: """ + WAIT + " M; ld.shared.u32 %r7, [%r1];", zeros(64), before=TILE),
    ptx("copies of two blocks bring the same", EQUAL, START + """ <<||setp.ne.u32 %p4, cta, 1;
 @%p4 ret;>> mov.u32 %r9, 77; st.shared.u32 [%r1], %r9; fence.proxy.async.shared::cta;
 bar.sync 1; @%p0 ret; cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;""",
        zeros(64), before=TILE, grid=2),
    # unwritten
    ptx("the last rows of a tile are not filled, and are summed", UNWRITTEN, B + """ setp.lt.u32 %p4, tid, 48;
 mov.u32 %r5, 0; <<||@!%p4 st.shared.u32 [%r1], %r5;>> @%p4 cp.async.ca.shared.global [%r1], [%d2], 4;
 cp.async.wait_all; bar.sync 1; xor.b32 %r6, %r1, 252; ld.shared.u32 %r7, [%r6]; ld.shared.u32 %r8, [%r1];
 add.u32 %r7, %r7, %r8; st.global.u32 [%d2+256], %r7;""",
        numbers(128), before=S),
    ptx("a table in local memory, one entry unwritten, as an address", UNWRITTEN, LOCAL + A + """ mov.u64 %d5, l;
 mov.u32 %r5, 0; st.local.v2.u32 [%d5], {%r5, %r5}; <<||st.local.u32 [%d5+8], %r5;>>
 and.b32 %r6, tid, 1; add.u32 %r6, %r6, 1; mul.wide.u32 %d6, %r6, 4; add.s64 %d6, %d6, %d5; ld.local.u32 %r7, [%d6];
 mul.wide.u32 %d7, %r7, 4; add.s64 %d7, %d7, %d0;
 ld.global.u32 %r8, [%d7];""", numbers(64)),
    ptx("a maximum of words that only half of the warps wrote", UNWRITTEN, B + """ cvt.rn.f32.u32 %f0, tid;
 setp.lt.u32 %p4, tid, <<32||64>>; @%p4 st.shared.f32 [%r1], %f0; bar.sync 0; ld.shared.f32 %f1, [%r1];
 xor.b32 %r6, %r1, 128;
 ld.shared.f32 %f2, [%r6]; max.f32 %f1, %f1, %f2; setp.gt.f32 %p5, %f1, 0f00000000;
 @%p5 st.global.f32 [%d2], %f1;""", zeros(64, dtype=np.float32), before=S),
    ptx("a heap block is copied before it is filled", UNWRITTEN, A + """ @%p0 ret;
 { .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call.uni (r), malloc, (n); ld.param.b64 %d5, [r]; }
 mov.u32 %r5, 3; <<||st.u32 [%d5+8], %r5;>> st.u32 [%d5], %r5; ld.u32 %r6, [%d5+8]; st.global.u32 [%d0], %r6;
 { .param .b64 q; st.param.b64 [q], %d5; call.uni free, (q); }""", zeros(8),
        before=".extern .func (.param .b64 r) malloc (.param .b64 n);\n.extern .func free (.param .b64 q);\n"),
    ptx("a tensor core multiplies a tile with a hole", UNWRITTEN, B + """ mov.u32 %r5, 0; shl.b32 %r20, tid, 3;
 add.u32 %r20, %r20, %r0; setp.ne.u32 %p4, tid, 9;
 <<@%p4||>> st.shared.v2.b32 [%r20], {%r5, %r5}; bar.warp.sync -1; and.b32 %r21, lane, 15; shl.b32 %r21, %r21, 4;
 add.u32 %r21, %r21, %r0;
 ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r6, %r7}, [%r21]; mov.f32 %f0, 0f00000000;
 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r5, %r5, %r5}, {%r6, %r7}, {%f0, %f0, %f0, %f0};
 st.global.f32 [%d2], %f4;""", zeros(32, dtype=np.float32), before=S, block=32),
    ptx("a bulk store of a tile that only some lanes filled", UNWRITTEN, START + """ setp.lt.u32 %p4, tid, <<63||64>>;
 @%p4 st.shared.u32 [%r1], tid; fence.proxy.async; bar.sync 1; @%p0 ret;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;""", zeros(64), before=TILE),
    ptx("a loop that ends by an unwritten bound", UNWRITTEN,
        B + """ <<||@!%p0 st.shared.u32 [%r0+512], 3;>> bar.sync 0; ld.shared.u32 %r5, [%r0+512]; mov.u32 %r6, 0;
T: add.u32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, %r5; @%p4 bra T;""", zeros(64), before=S),
    ptx("a byte of a word that was written by bytes", UNWRITTEN, B + """ mov.u16 %h1, 1; st.shared.u8 [%r1], %h1;
 st.shared.u8 [%r1+1], %h1; <<||st.shared.u8 [%r1+2], %h1;>> st.shared.u8 [%r1+3], %h1;
 ld.shared.u32 %r5, [%r1]; st.global.u32 [%d2], %r5;""", zeros(64), before=S),
    ptx("an atomic on what nobody cleared", UNWRITTEN, B + """ <<||@!%p0 st.shared.u32 [%r0+128], 0;>> bar.sync 0;
 atom.shared.add.u32 %r5, [%r0+128], 1; bar.sync 1; ld.shared.u32 %r6, [%r0+128];
 st.global.u32 [%d2], %r6;""", zeros(64), before=S),
    # bounds
    ptx("a vector past the end", "out_of_bounds", A + """ mul.wide.u32 %d5, tid, 16; add.s64 %d5, %d5, %d0;
 <<||setp.eq.u32 %p5, tid, 63; @%p5 ret;>> ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d5+16];""",
        zeros(256)),
    ptx("a vector at an odd word", "misaligned", A + """ add.s64 %d5, %d0, <<4||8>>;
 ld.global.v2.u32 {%r5, %r6}, [%d5];""", zeros(64)),
    ptx("SMEM past the declared array, dynamic", "out_of_bounds", B + """ mov.u32 %r5, d; mad.lo.u32 %r6, tid, 4, %r5;
 st.shared.u32 [%r6+<<16||0>>], tid;""", zeros(64), before=S + ".extern .shared .align 16 .b8 d[];\n", smem=256),
    ptx("a negative index", "out_of_bounds", A + """ add.u32 %r5, tid, -1;
 <<||max.s32 %r5, %r5, 0;>> mul.wide.s32 %d5, %r5, 4; add.s64 %d5, %d5, %d0; ld.global.u32 %r6, [%d5];""", zeros(64)),
    ptx("a local array overrun", "out_of_bounds", LOCAL + A + """ mov.u64 %d5, l; mul.wide.u32 %d6, tid, <<4||1>>;
 add.s64 %d5, %d5, %d6; mov.u16 %h1, 0; st.local.u8 [%d5], %h1;""", zeros(8)),
    # livelock and deadlock
    ptx("all poll a word of GMEM that nobody writes", "livelock deadlock",
        A + """ <<||@!%p0 st.release.gpu.global.u32 [%d0+8], 1;>>
T: ld.acquire.gpu.global.u32 %r5, [%d0+8]; setp.eq.u32 %p4, %r5, 0; @%p4 bra T;""", zeros(8), every=False),
    ptx("a lock that its owner takes twice", "livelock deadlock", A + """ @%p0 ret;
T: atom.acquire.gpu.global.cas.b32 %r5, [%d0], 0, 1; setp.ne.u32 %p4, %r5, 0; @%p4 bra T;
 <<||st.release.gpu.global.u32 [%d0], 0;>>
U: atom.acquire.gpu.global.cas.b32 %r5, [%d0], 0, 1; setp.ne.u32 %p4, %r5, 0; @%p4 bra U;
 st.release.gpu.global.u32 [%d0], 0;""", zeros(8), every=False),
    ptx("a grid barrier that wants one block more", "livelock deadlock", A + """ bar.sync 0; @%p0 bra OUT; membar.gl;
 atom.global.gpu.add.u32 %r5, [%d0], 1;
T: ld.relaxed.gpu.global.u32 %r6, [%d0]; setp.lt.u32 %p4, %r6, <<5||4>>; nanosleep.u32 40; @%p4 bra T; membar.gl;
OUT: bar.sync 1;""", zeros(8), grid=4, every=False),
    ptx("a flag in SMEM that the other warp waits to raise", "livelock deadlock", B + """ mov.u32 %r9, 0;
 @!%p0 st.shared.v2.u32 [%r0], {%r9, %r9}; bar.sync 0; setp.eq.u32 %p4, warp, 1; @%p4 bra R;
 <<T: ld.volatile.shared.u32 %r5, [%r0]; setp.eq.u32 %p5, %r5, 0; @%p5 bra T;
 st.volatile.shared.u32 [%r0+4], 1;||st.volatile.shared.u32 [%r0+4], 1; T: ld.volatile.shared.u32 %r5, [%r0];
 setp.eq.u32 %p5, %r5, 0; @%p5 bra T;>> ret;
R: ld.volatile.shared.u32 %r5, [%r0+4]; setp.eq.u32 %p5, %r5, 0; @%p5 bra R;
 st.volatile.shared.u32 [%r0], 1;""", zeros(8), before=S, every=False),
    ptx("mbarriers that wait in a circle", "deadlock livelock impossible_wait", START + """ setp.eq.u32 %p5, warp, 0;
 mov.u32 %r8, %r3; @%p5 mov.u32 %r8, %r2; mov.u32 %r9, %r2; @%p5 mov.u32 %r9, %r3; setp.eq.u32 %p6, lane, 0;
 <<||@%p6 mbarrier.arrive.shared.b64 _, [%r9];>>
T: mbarrier.try_wait.parity.shared.b64 %p7, [%r8], 0; @!%p7 bra T;
 <<@%p6 mbarrier.arrive.shared.b64 _, [%r9];||>>""", zeros(8), before=TILE),
]  # fmt: skip

HEAD = """ ld.param.u64 %d0, [a0]; ld.param.u64 %d1, [a1]; mul.wide.u32 %d2, tid, 4; add.s64 %d3, %d0, %d2;
 add.s64 %d4, %d1, %d2;
"""
GO, HOLD = " griddepcontrol.launch_dependents;", " griddepcontrol.wait;"
COPY = " ld.global.u32 %r5, [%d3]; add.u32 %r5, %r5, 1; st.global.u32 [%d4], %r5;"
FIRST = (HEAD + GO + COPY, "xy", False)
ARRAYS = dict.fromkeys("xyzuvw", 128)
LOADS = START.replace("[a0];", "[a0]; ld.param.u64 %d9, [a1];") + """ <<HOLD>> @%p0 bra L;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1]; <<LATE>> add.s64 %d8, %d9, %d1; st.global.u32 [%d8], %r7;"  # fmt: skip


def loads(hold: str, late: str) -> str:
    return LOADS.replace("<<HOLD>>", hold).replace("<<LATE>>", late)


LAUNCHES: list[Probe] = [
    sequence("the second reads by vectors before it waits", "race_launches", [FIRST, (HEAD + """ and.b32 %r9, tid, 15;
 mul.wide.u32 %d5, %r9, 16; add.s64 %d5, %d5, %d0; <<||griddepcontrol.wait;>>
 ld.global.nc.v4.u32 {%r5, %r6, %r7, %r8}, [%d5];
 <<griddepcontrol.wait;||>> st.global.u32 [%d4], %r8;""", "yz", True)], ARRAYS),
    sequence("a bulk load before the wait", "race_launches", [FIRST, (loads("<<||griddepcontrol.wait;>>",
        "<<griddepcontrol.wait;||>>"), "yz", True)], ARRAYS, before=TILE),
    sequence("an atomic before the wait", "race_launches", [FIRST,
        (HEAD + """<<||griddepcontrol.wait;>> red.global.gpu.add.u32 [%d3], 1; griddepcontrol.wait;""", "yz", True)],
        ARRAYS),
    sequence("it writes what the first still reads", "race_launches", [FIRST,
        (HEAD + """<<||griddepcontrol.wait;>> st.global.u32 [%d4], tid; griddepcontrol.wait;""", "zx", True)], ARRAYS),
    sequence("only one warp waits", "race_launches", [FIRST, (HEAD + """ setp.eq.u32 %p4, warp, 1; @%p4 bra X;
 griddepcontrol.wait; X: <<bar.warp.sync -1||bar.sync 1>>; ld.global.u32 %r5, [%d3]; st.global.u32 [%d4], %r5;""",
        "yz", True)], ARRAYS),
    sequence("weights are read early, and so is the activation", "race_launches", [FIRST,
        (HEAD + """ ld.param.u64 %d6, [a2]; add.s64 %d6, %d6, %d2; ld.global.u32 %r6, [%d6];
 <<||griddepcontrol.wait;>> ld.global.u32 %r5, [%d3];"""
        " griddepcontrol.wait; add.u32 %r5, %r5, %r6; st.global.u32 [%d4], %r5;", "yzw", True)], ARRAYS),
    sequence("the middle launch lets the third start before it has waited", "race_launches", [FIRST,
        (HEAD + """<<griddepcontrol.launch_dependents; griddepcontrol.wait;||griddepcontrol.wait;
 griddepcontrol.launch_dependents;>>"""
        """ ld.global.u32 %r5, [%d3]; st.global.u32 [%d4], %r5;""", "uv", True), (HEAD + """ ld.global.u32 %r5, [%d3];
 griddepcontrol.wait; st.global.u32 [%d4], %r5;""", "yz", True)], ARRAYS),
    sequence("it waits, and reads what the launch before the last wrote", "race_launches", [FIRST,
        (HEAD + GO + " <<||griddepcontrol.wait;>> st.global.u32 [%d4], tid;", "uv", True),
        (HEAD + HOLD + COPY, "yz", True)], ARRAYS),
    sequence("a launch clears the counter that the one before still counts in", "race_launches", [
        (HEAD + GO + " red.global.gpu.add.u32 [%d0], 1;", "xy", False),
        (HEAD + """<<||griddepcontrol.wait;>> setp.eq.u32 %p4, tid, 0; @%p4 st.global.u32 [%d0], 0;
 griddepcontrol.wait;""", "xz", True)], ARRAYS),
    sequence("a bulk store before the wait", "race_launches", [FIRST, (START + """ st.shared.u32 [%r1], tid;
 fence.proxy.async; bar.sync 1; @%p0 bra E; <<||griddepcontrol.wait;>>
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
E: griddepcontrol.wait;""", "yz", True)], ARRAYS, before=TILE),
]  # fmt: skip
PROBES += LAUNCHES
