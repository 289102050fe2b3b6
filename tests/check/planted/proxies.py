"""Planted bugs of proxies: generic and asynchronous accesses of the same bytes, in SMEM and GMEM, in both orders;
tensor maps."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

from .probe import Probe, numbers, ptx, zeros

FENCE = "missing_proxy_fence"
TILE = ".shared .align 1024 .b8 tile[8192];\n.shared .align 8 .b64 full;\n.shared .align 8 .b64 full2;\n"
# %r0: the tile, %r1: this lane's word of it, %p0: not lane 0 of the block; %d0 the array.
START = """ ld.param.u64 %d0, [a0]; mov.u32 %r0, tile; shl.b32 %r1, tid, 2; add.u32 %r1, %r1, %r0; mov.u32 %r2, full;
 mov.u32 %r3, full2;
 setp.ne.u32 %p0, tid, 0; @%p0 bra READY; mbarrier.init.shared.b64 [%r2], 1; mbarrier.init.shared::cta.b64 [%r3], 1;
 fence.mbarrier_init.release.cluster;
READY: bar.sync 0; mul.wide.u32 %d1, tid, 4; add.s64 %d2, %d0, %d1; // and %d2 its word of the array
"""
LOAD = """mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 256, [%r2];"""
WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r2], 0; @!%p9 bra"
STORE = """cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;"""


# Lanes fill the tile and read the array that a copy of the tile will overwrite; then they keep what they read.
READ = (
    START
    + " mov.u32 %r7, 5; st.shared.u32 [%r1], %r7; fence.proxy.async.shared::cta; bar.sync 1; ld.global.u32 %r6, [%d2];\n"
)
USE = "\nU: bar.sync 2; st.global.u32 [%d2+256], %r6;"
GIVEN = zeros(128)


def maps() -> list[Any]:
    a = np.arange(64 * 64, dtype=np.float16).reshape(64, 64)
    return [kd.check.tensor_map(a, (8, 64))]


MAP = ".param .align 64 .b8 m[128]"
MAPPED = START.replace("ld.param.u64 %d0, [a0];", "mov.b64 %d0, m; cvta.param.u64 %d0, %d0;")
TENSOR_LOAD = """mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r20, %r21}], [%r2];"""
TENSOR_STORE = """cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d0, {%r20, %r21}], [%r0];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"""
AT = " mov.u32 %r20, 0; mov.u32 %r21, 8;\n"


def _both() -> list[Any]:
    a = np.zeros((64, 64), np.float16)
    return [kd.check.tensor_map(a, (8, 64)), a]


def _small() -> list[Any]:
    return [kd.check.tensor_map(np.zeros((8, 64), np.float16), (8, 16))]


PROBES: list[Probe] = [
    ptx("generic addresses fill a tile, a bulk store takes it", FENCE, START + """
 mov.u64 %d5, tile; cvta.shared.u64 %d5, %d5; mul.wide.u32 %d6, tid, 8; add.s64 %d5, %d5, %d6;
 st.v2.u32 [%d5], {tid, lane}; <<||fence.proxy.async;>> bar.sync 3; @%p0 ret;
 """ + STORE.replace("256", "512"), zeros(128), before=TILE),
    ptx("atomics sum in a tile, a bulk store takes it", FENCE, START + """
 mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0f00000000; st.shared.f32 [%r1], %f2; bar.sync 1; xor.b32 %r5, %r1, 64;
 atom.shared.add.f32 %f3, [%r1], %f1; red.shared.add.f32 [%r5], %f1;
 <<||fence.proxy.async.shared::cta;>> bar.sync 2; @%p0 ret; """ + STORE, zeros(64, dtype=np.float32), before=TILE),
    ptx("a reduction takes what 16-bit stores left", FENCE, START + """
 shl.b32 %r5, tid, 1; add.u32 %r5, %r5, %r0; cvt.u16.u32 %h1, tid; st.shared.u16 [%r5], %h1;
 st.shared.u16 [%r5+128], %h1;
 <<fence.proxy.async.global||fence.proxy.async.shared::cta>>; barrier.sync 5, 64; @%p0 ret;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;""", zeros(64), before=TILE),
    ptx("stmatrix fills a tile, a tensor store takes it", FENCE, MAPPED + AT + """
 mov.u32 %r10, 0; shl.b32 %r11, lane, 4; shl.b32 %r12, warp, 9; add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r0;
 stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r11], {%r10, %r10, %r10, %r10};
 <<||fence.proxy.async.shared::cta;>> bar.sync 1; @%p0 ret; """ + TENSOR_STORE, maps, params=MAP, before=TILE),
    ptx("a tile is changed in place between its load and its store", FENCE, START + """ @%p0 bra L;
 """ + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r6, [%r1]; mad.lo.u32 %r6, %r6, 3, 1; st.shared.u32 [%r1], %r6;
 <<||fence.proxy.async.shared::cta;>> bar.sync 1; @%p0 ret; """ + STORE, numbers(64), before=TILE),
    ptx("lanes clear the padding of a stage before its tensor load", FENCE, MAPPED + AT + """
 mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0; st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10};
 <<||fence.proxy.async.shared::cta;>> bar.sync 1; @%p0 bra L;
 """ + TENSOR_LOAD + "\nL: " + WAIT + " L; ld.shared.u32 %r7, [%r1];",
        maps, params=MAP, before=TILE),
    ptx("cp.async brings an operand, wgmma reads it", FENCE, START + """
 mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0; add.u32 %r12, %r11, 2048; mul.wide.u32 %d3, tid, 16;
 add.s64 %d3, %d3, %d0;
 cp.async.cg.shared.global [%r11], [%d3], 16; cp.async.ca.shared.global [%r12], [%d3], 16; cp.async.wait_all;
 <<||fence.proxy.async.shared::cta;>> bar.sync 1;
 shr.u32 %r13, %r0, 4; cvt.u64.u32 %d4, %r13; or.b64 %d4, %d4, 0x0000001000080000; add.s64 %d5, %d4, 128;
 mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d4, %d5, 0, 1, 1, 0, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;""", zeros(1024), before=TILE, block=128),
    ptx("the second turn of a loop stores what lanes wrote again", FENCE, START + """
 mov.u32 %r10, 0;
T: add.u32 %r11, %r10, tid; st.shared.u32 [%r1], %r11;
 setp.gt.u32 %p3, %r10, 0; <<@!%p3||>> fence.proxy.async.shared::cta; bar.sync 1; @%p0 bra N;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read 0;
N: bar.sync 2; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 3; @%p4 bra T; @%p0 ret;
 cp.async.bulk.wait_group 0;""", zeros(64),
        before=TILE),
    ptx("one warp of two does not fence", FENCE, START + """
 st.shared.u32 [%r1], tid; setp.eq.u32 %p3, warp, 0; <<@%p3||>> fence.proxy.async.shared::cta; bar.sync 1; @%p0 ret;
 """ + STORE,
        zeros(64), before=TILE),
    ptx("a fence before the last write", FENCE, START + """
 st.shared.u32 [%r1], tid; <<fence.proxy.async;||>> st.shared.u32 [%r1], lane; <<||fence.proxy.async;>> bar.sync 1;
 @%p0 ret; """ + STORE,
        zeros(64), before=TILE),
    # GMEM
    ptx("vectors go to GMEM, a tensor load reads them", FENCE, START.replace("ld.param.u64 %d0, [a0];",
        """mov.b64 %d0, m; cvta.param.u64 %d0, %d0; ld.param.u64 %d7, [p];""")
        + AT + """ mov.u32 %r10, 0; mul.wide.u32 %d3, tid, 16; add.s64 %d3, %d3, %d7;
 st.global.v4.b32 [%d3+1024], {%r10, tid, lane, %r10}; <<||fence.proxy.async.global;>> bar.sync 1; @%p0 bra L;
 """ + TENSOR_LOAD
        + "\nL: " + WAIT + " L; ld.shared.u32 %r7, [%r1];", _both, params=MAP + ", .param .u64 p", before=TILE),
    ptx("the last block loads in bulk what all wrote", FENCE, START + """
 ld.param.u64 %d3, [a1]; mul.lo.u32 %r16, cta, 64; mul.wide.u32 %d8, %r16, 4; add.s64 %d9, %d2, %d8;
 st.global.u32 [%d9], tid; <<||fence.proxy.async.global;>> membar.gl; bar.sync 1;
 @%p0 bra D; atom.global.gpu.acq_rel.add.u32 %r15, [%d3], 1; st.shared.u32 [tile+1024], %r15;
D: bar.sync 2; ld.shared.u32 %r15, [tile+1024]; setp.ne.u32 %p6, %r15, 2; @%p6 ret;
 @%p0 bra L; """ + LOAD.replace("256", "768") + "\nL: " + WAIT + """ L; ld.shared.u32 %r7, [%r1];""", zeros(192, 1),
        before=TILE, grid=3),
    ptx("a block loads in bulk what its peer in the cluster wrote", FENCE, START + """
 setp.eq.u32 %p3, rank, 1; @%p3 st.global.u32 [%d2], tid; <<||fence.proxy.async;>>
 barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; @%p3 ret;
 @%p0 bra L; """ + LOAD + "\nL: " + WAIT + " L; ld.shared.u32 %r7, [%r1];", zeros(64), before=TILE, grid=2, cluster=2),
    ptx("lanes write over what a tensor store brought, which is not there yet", "race_global read_before_wait",
        MAPPED.replace(
        "mov.b64 %d0, m; cvta.param.u64 %d0, %d0;", "mov.b64 %d0, m; cvta.param.u64 %d0, %d0; ld.param.u64 %d7, [p];") + AT + """ mov.u32 %r10, 0; shl.b32 %r11, tid, 4;
 add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10}; fence.proxy.async.shared::cta; bar.sync 1; @%p0 bra X;
 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d0, {%r20, %r21}], [%r0]; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group<<.read||>> 0;
X: bar.sync 2; mul.wide.u32 %d3, tid, 4; add.s64 %d3, %d3, %d7; mov.u32 %r13, 9; st.global.u32 [%d3+1024], %r13;""",
        _both, params=MAP + ", .param .u64 p", before=TILE),
    ptx("the peer sends in bulk what was written into its SMEM from afar", FENCE, START + """
 barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r5, rank, 1; mapa.shared::cluster.u32 %r6, %r1, %r5;
 st.shared::cluster.u32 [%r6], tid; <<||fence.proxy.async;>>
 barrier.cluster.arrive; barrier.cluster.wait; @%p0 ret; mul.wide.u32 %d5, rank, 256; add.s64 %d0, %d0, %d5;
 """ + STORE,
        zeros(128), before=TILE, grid=2, cluster=(2, 1, 1)),
    # read-only
    ptx("vectors of the read-only path, where another block writes", "read_only_cache race_blocks", START + """
 setp.eq.u32 %p3, cta, 0; ld.param.u64 %d3, [a1]; mul.wide.u32 %d4, tid, 16; @%p3 bra W; add.s64 %d5, <<%d0||%d3>>, %d4;
 ld.global.nc.v4.u32 {%r5, %r6, %r7, %r8}, [%d5]; ret;
W: add.s64 %d6, %d0, %d4; st.global.v4.u32 [%d6], {tid, tid, tid, tid};""", zeros(256, 256), before=TILE, grid=2),
    ptx("the read-only path of a counter", "read_only_cache", START + """
 atom.global.gpu.inc.u32 %r5, [%d2], 9; bar.sync 1; xor.b32 %r6, tid, 32; mul.wide.u32 %d4, %r6, 4;
 add.s64 %d5, %d0, %d4;
 ld.global<<.nc||>>.u32 %r7, [%d5]; setp.eq.u32 %p4, %r7, 5; @%p4 st.shared.u32 [%r1], %r7;""", zeros(64), before=TILE),
    # tensor maps
    ptx("an unaligned start of the innermost axis", "misaligned descriptor", MAPPED + """ mov.u32 %r20, <<4||8>>;
 mov.u32 %r21, 0; @%p0 bra L; """
        + TENSOR_LOAD.replace("1024", "256") + "\nL: " + WAIT + " L;", _small, params=MAP, before=TILE),
    ptx("a tile at no multiple of 128 bytes", "misaligned descriptor", MAPPED + """ mov.u32 %r20, 0; mov.u32 %r21, 0;
 add.u32 %r0, %r0, <<64||256>>;
 @%p0 bra L; """ + TENSOR_LOAD.replace("1024", "256") + "\nL: " + WAIT + " L;", _small, params=MAP, before=TILE),
    ptx("bytes of the box that lies outside are not counted", "bytes_mismatch deadlock", MAPPED + """ mov.u32 %r20, 0;
 mov.u32 %r21, 60; @%p0 bra L;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], <<512||1024>>;
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r20, %r21}], [%r2];
L: """ + WAIT + " L; ld.shared.u32 %r7, [%r1];", maps, params=MAP, before=TILE),
    ptx("a map of two axes in a copy of three", "descriptor", MAPPED + AT + """ @%p0 bra L;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
 cp.async.bulk.tensor.<<3||2>>d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r20, %r21<<, %r20||>>}], [%r2];
L: """ + WAIT + " L;", maps, params=MAP, before=TILE),
    ptx("a map goes on to the next tile between two loads", FENCE, START + """ ld.param.u64 %d7, [a1];
 mov.u32 %r20, 0; mov.u32 %r21, 0;
 add.s64 %d8, %d7, 256; @%p0 bra L;
 tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d7;
 tensormap.replace.tile.rank.global.b1024.b32 [%d0], 0;
 tensormap.replace.tile.box_dim.global.b1024.b32 [%d0], 0, 64;
 tensormap.replace.tile.global_dim.global.b1024.b32 [%d0], 0, 64;
 tensormap.replace.tile.element_stride.global.b1024.b32 [%d0], 0, 1;
 tensormap.replace.tile.elemtype.global.b1024.b32 [%d0], 3;
 tensormap.replace.tile.interleave_layout.global.b1024.b32 [%d0], 0;
 tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%d0], 0;
 tensormap.replace.tile.fill_mode.global.b1024.b32 [%d0], 0;
 fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;
 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%r20}], [%r3];
M: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], 0; @!%p8 bra M;
 tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d8;
 <<fence.proxy.async||fence.proxy.tensormap::generic.release.gpu;
 fence.proxy.tensormap::generic.acquire.gpu [%d0], 128>>;
 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+256], [%d0, {%r20}], [%r2];
L: """ + WAIT + " L;\nN: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], 0; @!%p8 bra N; ld.shared.u32 %r7, [%r1];", zeros(32, 256), before=TILE),
    ptx("a bulk load takes the place of what warps read before a barrier", FENCE, START + " @%p0 bra L;\n " + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r6, [%r1]; <<||fence.proxy.async.shared::cta;>> bar.sync 1; @%p0 bra M;
 """ + LOAD + "\nM: " + WAIT.replace(", 0;", ", 1;") + " M; st.global.u32 [%d2], %r6;", zeros(64), before=TILE),
    ptx("the fence stands after the barrier, in the lane that copies", FENCE, START + " @%p0 bra L;\n " + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r6, [%r1]; bar.sync 1; @%p0 bra M; <<fence.proxy.async.global||fence.proxy.async>>;
 """ + LOAD + "\nM: " + WAIT.replace(", 0;", ", 1;") + " M; st.global.u32 [%d2], %r6;", zeros(64), before=TILE),
    ptx("an arrival frees a tile that a lane still reads", FENCE, START + " @%p0 bra L;\n " + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r6, [%r1]; setp.eq.u32 %p1, tid, 32; <<||fence.proxy.async.shared::cta;>> bar.warp.sync 0xffffffff;
 @%p1 mbarrier.arrive.shared::cta.b64 _, [%r3]; @%p0 bra M;
 N: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], 0; @!%p8 bra N;
 """ + LOAD + "\nM: " + WAIT.replace(", 0;", ", 1;") + " M; st.global.u32 [%d2], %r6;", zeros(64), before=TILE),
    ptx("ldmatrix reads a tile that a tensor load fills next", FENCE, MAPPED + AT + " @%p0 bra L;\n " + TENSOR_LOAD + "\nL: " + WAIT + """ L;
 shl.b32 %r11, lane, 4; shl.b32 %r12, warp, 9; add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r0;
 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r13, %r14, %r15, %r16}, [%r11];
 <<||fence.proxy.async;>> barrier.sync 2, 64; @%p0 bra M;
 """ + TENSOR_LOAD + "\nM: " + WAIT.replace(", 0;", ", 1;") + " M; st.shared.u32 [%r1], %r16;", maps, params=MAP, before=TILE),
    ptx("a cluster barrier frees a tile for a bulk load", FENCE, START + " @%p0 bra L;\n " + LOAD + "\nL: " + WAIT + """ L;
 ld.shared.u32 %r6, [%r1]; <<||fence.proxy.async.shared::cta;>> barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned; @%p0 bra M;
 """ + LOAD + "\nM: " + WAIT.replace(", 0;", ", 1;") + " M; st.global.u32 [%d2], %r6;", zeros(64), before=TILE),
    ptx("a bulk store overtakes what warps load before a barrier", FENCE, READ + """
 <<||fence.proxy.async.global;>> bar.sync 1; @%p0 bra U; """ + STORE + USE, GIVEN, before=TILE),
    ptx("the loaded values are used after the barrier, or stored before it", FENCE, READ + """
 <<||st.shared.u32 [%r1+256], %r6;>> bar.sync 1; @%p0 bra U; """ + STORE + USE, GIVEN, before=TILE),
    ptx("an addition may be moved behind the barrier, a comparison that a branch needs may not", FENCE, READ + """
 add.u32 %r6, %r6, 1; <<||setp.eq.u32 %p5, %r6, 77; @%p5 ret;>> bar.sync 1; @%p0 bra U; """ + STORE + USE,
        GIVEN, before=TILE),
    ptx("a fence of shared memory does not wait for loads of global memory", FENCE, READ + """
 <<fence.proxy.async.shared::cta||fence.acq_rel.cta>>; bar.sync 1; @%p0 bra U; """ + STORE + USE, GIVEN, before=TILE),
    ptx("arrivals on an mbarrier do not wait for loads of global memory", FENCE, READ + """
 setp.eq.u32 %p1, tid, 32; bar.warp.sync 0xffffffff; <<||fence.acq_rel.gpu;>>
 @%p1 mbarrier.arrive.shared::cta.b64 _, [%r3]; @%p0 bra U; <<||fence.proxy.async;>>
N: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r3], 0; @!%p8 bra N; """ + STORE + USE, GIVEN, before=TILE),
    ptx("the warp that issues a bulk store has loads on their way", FENCE, READ + """
 <<||fence.proxy.async.global;>> bar.warp.sync 0xffffffff; @%p0 bra U; """ + STORE.replace("256", "128") + USE, GIVEN,
        before=TILE, block=32),
    ptx("a bulk reduction overtakes loads behind a cluster barrier", FENCE, READ + """
 <<||fence.proxy.async.global;>> barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p0 bra U;
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r0], 256; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;""" + USE, GIVEN, before=TILE),
    ptx("one of five warps that load a word does not fence", FENCE, READ.replace("ld.global.u32 %r6, [%d2];", "") + """
 ld.global.u32 %r6, [%d0]; shr.u32 %r10, tid, 5; setp.ne.u32 %p5, %r10, <<2||9>>; @%p5 fence.proxy.async.global;
 bar.sync 1; @%p0 bra U; """ + STORE + USE.replace("+256", "+640"), zeros(512), before=TILE, block=160),
    ptx("a tensor store overtakes loads; its lane fences after the barrier", FENCE, MAPPED + AT + """
 ld.param.u64 %d7, [a]; add.s64 %d8, %d7, %d1; mov.u32 %r10, 0; shl.b32 %r11, tid, 4; add.u32 %r11, %r11, %r0;
 st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10}; fence.proxy.async.shared::cta;
 ld.global.u32 %r6, [%d8+1024]; bar.sync 1; @%p0 bra U; <<||fence.proxy.async;>>
 """ + TENSOR_STORE + " cp.async.bulk.wait_group 0;\nU: bar.sync 2; st.global.u32 [%d8], %r6;", _both,
        params=MAP + ", .param .u64 a", before=TILE),
    ptx("the store of a turn overtakes the loads of the turn before", FENCE, READ.replace("ld.global.u32 %r6, [%d2];", "") + """
 mov.u32 %r10, 0; mov.u32 %r6, 0;
T: add.u32 %r7, %r6, %r7; ld.global.u32 %r6, [%d2]; <<||fence.proxy.async.global;>> bar.sync 1; @%p0 bra N;
 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
N: bar.sync 2; add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 3; @%p4 bra T;
U: st.global.u32 [%d2+256], %r6;""", GIVEN, before=TILE),
]  # fmt: skip
