"""Planted bugs of tcgen05 and tensor memory (PTX ISA 9.7.16), in kernels of one product of 128 x 16 x 16 and of a pair of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .probe import REGISTERS, Probe, one_of

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
VALUES = "{" + ", ".join(f"%v{i}" for i in range(16)) + "}"
# Operands lie in cores of 8 rows of 16 bytes: A at s, B at s + 4096.
DESCRIPTORS = (0x800 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46, 0x100 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46)
WORD = 1 << 4 | 16 >> 3 << 17 | 128 >> 4 << 24

ALLOC = """ mov.u32 %r0, s; mov.u32 %r2, bar; mov.u32 %r3, slot; setp.eq.u32 %p0, tid, 0; setp.eq.u32 %p1, warp, 0; mov.u32 %r4, 32;
 @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;
 @%p0 mbarrier.init.shared.b64 [%r2], 1; @%p0 mbarrier.init.shared.b64 [%r2+8], 1;
"""
FILL = """ shl.b32 %r5, tid, 5; add.u32 %r5, %r5, %r0; mov.u32 %r6, 0x3c003c00;
 st.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6}; st.shared.v4.u32 [%r5+16], {%r6, %r6, %r6, %r6};
 setp.lt.u32 %p2, tid, 32; shl.b32 %r7, tid, 4; add.u32 %r7, %r7, %r0; @%p2 st.shared.v4.u32 [%r7+4096], {%r6, %r6, %r6, %r6};
"""
READY = """ fence.proxy.async.shared::cta; bar.sync 0; ld.shared.b32 %t0, [%r3]; shl.b32 %t1, warp, 21; add.u32 %t1, %t1, %t0;
"""
OPERANDS = f""" shr.u32 %r8, %r0, 4; cvt.u64.u32 %d3, %r8; add.s64 %d4, %d3, 256; or.b64 %d3, %d3, {DESCRIPTORS[0]}; or.b64 %d4, %d4, {DESCRIPTORS[1]};
 mov.u32 %r9, {WORD}; setp.ne.u32 %p3, %r9, %r9;
"""  # fmt: skip
MMA = " @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t0], %d3, %d4, %r9, %p3;\n"
COMMIT = " @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];\n"
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p5, [%r2], 0; @!%p5 bra W;\n"
LD = f" tcgen05.ld.sync.aligned.32x32b.x16.b32 {VALUES}, [%t1];"
WAIT_LD = " tcgen05.wait::ld.sync.aligned;\n"
OUT = " ld.param.u64 %d7, [a0]; mul.wide.u32 %d8, tid, 4; add.s64 %d8, %d8, %d7; st.global.b32 [%d8], %v3;\n"
FREE = " bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 32;\n"
ZERO = "".join(f" mov.b32 %v{i}, 0;" for i in range(16)) + "\n"
ST = f" tcgen05.st.sync.aligned.32x32b.x16.b32 [%t1], {VALUES};"
WAIT_ST = " tcgen05.wait::st.sync.aligned;\n"
PRODUCT = ALLOC + FILL + READY + OPERANDS + MMA + COMMIT + WAIT + LD + WAIT_LD + OUT + FREE


def tensor(
    name: str, kinds: str, body: str, every: bool = True, block: int = 128, grid: int = 1, cluster: int | None = None
) -> Probe:
    """A probe of one launch on sm_100a, of an array of 128 words a block."""

    def calls(good: bool) -> Sequence[tuple[tuple[Any, ...], dict[str, Any]]]:
        text = one_of(body, good)
        image = f"""{HEAD}.visible .entry k(.param .u64 a0) {{
{REGISTERS} .reg .b32 %v<32>; .reg .b32 %t<2>; .shared .align 1024 .b8 s[8192]; .shared .align 8 .b8 bar[16]; .shared .align 4 .b8 slot[4];
{text} ret;
}}
"""
        more = {} if cluster is None else {"cluster": cluster}
        return [((image, np.zeros(128 * grid, np.int32)), {"grid": grid, "block": block, **more})]

    return Probe(name, tuple(kinds.split()), calls, every, (), body)


def changed(name: str, kinds: str, good: str, bad: str, text: str = PRODUCT, **options: Any) -> Probe:
    """The product with one piece that is `bad` instead."""
    assert text.count(good) == 1, (name, text.count(good))
    return tensor(name, kinds, text.replace(good, f"<<{bad}||{good}>>"), **options)


# Two threads share the work: one issues, the other waits, or issues more.
OTHER = " setp.eq.u32 %p6, tid, 32;\n"
SECOND = " @%p6 tcgen05.mma.cta_group::1.kind::f16 [%t0], %d3, %d4, %r9, %p6;\n"
COMMIT_2 = " @%p6 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];\n"
PIPELINED = (
    ALLOC + FILL + READY + OPERANDS + OTHER + MMA
    + " tcgen05.fence::before_thread_sync;\n bar.sync 1; tcgen05.fence::after_thread_sync;\n" + SECOND
    + COMMIT_2 + WAIT + LD + WAIT_LD + OUT + FREE
)  # fmt: skip
RELAXED = "W: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p5, [%r2], 0; @!%p5 bra W; tcgen05.fence::after_thread_sync;\n"
AGAIN = (
    " bar.sync 1;\n @%p0 tcgen05.mma.cta_group::1.kind::f16 [%t0], %d3, %d4, %r9, %p3;\n"
    " @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2+8];\n"
    "V: mbarrier.try_wait.parity.shared.b64 %p5, [%r2+8], 0; @!%p5 bra V;\n"
)
# The accumulator is stored first, and added to.
ADDED = (
    ALLOC + FILL + READY + ZERO + ST + WAIT_ST + " bar.sync 1;\n" + OPERANDS.replace("setp.ne", "setp.eq") + MMA + COMMIT
    + WAIT + LD + WAIT_LD + OUT + FREE
)  # fmt: skip
# A in tensor memory: each thread stores its row.
FROM_TENSOR = (
    ALLOC + FILL + READY + ZERO + f" add.u32 %r10, %t1, 16; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r10], {VALUES[: VALUES.index(', %v8')]}}};"
    + WAIT_ST + " bar.sync 1;\n" + OPERANDS
    + MMA.replace("[%t0], %d3", "[%t0], [%t0+16]") + COMMIT + WAIT + LD + WAIT_LD + OUT + FREE
)  # fmt: skip
# Copies to tensor memory, in the order of the product that reads them.
CP = " @%p0 tcgen05.cp.cta_group::1.128x256b [%t0+16], %d3;\n"
COPIED = (
    ALLOC + FILL + READY + OPERANDS + CP + MMA.replace("[%t0], %d3", "[%t0], [%t0+16]") + COMMIT + WAIT + LD + WAIT_LD + OUT + FREE
)  # fmt: skip

PAIR_WORD = 1 << 4 | 16 >> 3 << 17 | 256 >> 4 << 24
MEET = " barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
PAIR = (
    ALLOC.replace("cta_group::1", "cta_group::2") + FILL + READY + MEET + " setp.eq.and.u32 %p4, rank, 0, %p0;\n"
    + OPERANDS.replace(str(WORD), str(PAIR_WORD)) + MMA.replace("::1.kind", "::2.kind").replace("@%p0", "@%p4")
    + " mov.u16 %h1, 3; @%p4 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r2], %h1;\n"
    + WAIT + LD + WAIT_LD + " mul.lo.u32 %r11, cta, 512;" + OUT.replace("st.global", "cvt.u64.u32 %d9, %r11; add.s64 %d8, %d8, %d9; st.global")
    + MEET + FREE.replace("cta_group::1", "cta_group::2")
)  # fmt: skip

PROBES: list[Probe] = [
    # what is in flight
    changed("a load before the commit's barrier", "read_before_wait", WAIT, ""),
    changed("a load after a barrier of threads, not of the product", "read_before_wait", WAIT, " bar.sync 1;\n"),
    changed("a relaxed wait without the fence behind it", "read_before_wait", " tcgen05.fence::after_thread_sync;", "",
            PRODUCT.replace(WAIT, RELAXED)),
    changed("a product over what is still being loaded", "race_tmem", WAIT_LD, "\n", PRODUCT.replace(FREE, AGAIN + FREE)),
    changed("a store over what is still being loaded", "race_tmem", WAIT_LD, "\n", PRODUCT.replace(FREE, ZERO + ST + WAIT_ST + FREE)),
    changed("a product that adds to what is still being stored", "race_tmem", WAIT_ST, "\n", ADDED),
    changed("a product that adds, with no barrier after the stores", "race_tmem", " bar.sync 1;\n", "", ADDED),
    changed("A that is still being stored", "race_tmem", WAIT_ST, "\n", FROM_TENSOR),
    changed("A stored by other warps, and no barrier", "race_tmem", " bar.sync 1;\n", "", FROM_TENSOR),
    changed("a load of what is still being stored", "race_tmem", WAIT_ST, "\n",
            ALLOC + FILL + READY + ZERO + ST + WAIT_ST + LD + WAIT_LD + OUT + FREE),
    changed("a second thread's product, and no fence", "race_tmem", " tcgen05.fence::before_thread_sync;\n", "", PIPELINED),
    changed("freed while a product may run", "race_tmem", WAIT, "", ALLOC + FILL + READY + OPERANDS + MMA + COMMIT + WAIT + FREE),
    changed("freed while other warps load", "race_tmem", " bar.sync 0; @%p1 tcgen05.dealloc", " @%p1 tcgen05.dealloc"),
    # operands
    changed("operands by stores without a proxy fence", "missing_proxy_fence", " fence.proxy.async.shared::cta;", ""),
    changed("operands that other warps still write", "race_shared missing_proxy_fence", " bar.sync 0; ld.shared", " bar.warp.sync -1; ld.shared"),
    changed("operands overwritten before the commit is seen", "reused_before_wgmma", WAIT, " bar.sync 1; st.shared.u32 [%r5], tid;\n" + WAIT,
            PRODUCT),
    changed("the source of a copy overwritten too early", "reused_before_wgmma", WAIT, " bar.sync 1; st.shared.u32 [%r5], tid;\n" + WAIT, COPIED),
    changed("a copy of what stores wrote without a fence", "missing_proxy_fence", " fence.proxy.async.shared::cta;", "", COPIED),
    changed("a descriptor of the version before", "descriptor", str(DESCRIPTORS[0]), str(DESCRIPTORS[0] & ~(1 << 46))),
    changed("a descriptor past the block's memory", "descriptor", "add.s64 %d4, %d3, 256;", "add.s64 %d4, %d3, 4096;"),
    changed("an instruction descriptor with M = 96", "descriptor", f"mov.u32 %r9, {WORD}", f"mov.u32 %r9, {WORD - (2 << 24)}"),
    changed("an instruction descriptor of another kind", "descriptor", f"mov.u32 %r9, {WORD}", f"mov.u32 %r9, {WORD | 2 << 7}"),
    changed("a sum that begins with what nobody wrote", "uninitialised", "setp.ne.u32 %p3", "setp.eq.u32 %p3"),
    # allocation
    changed("columns that are never freed", "tmem_misuse", FREE, " bar.sync 0;\n"),
    changed("freed twice", "tmem_misuse", FREE, FREE + FREE.replace(" bar.sync 0;", "")),
    changed("fewer columns freed than allocated", "tmem_misuse", "b32 %t0, 32;", "b32 %t0, 64;"),
    changed("an allocation of 48 columns", "tmem_misuse", "mov.u32 %r4, 32;", "mov.u32 %r4, 48;",
            PRODUCT.replace("[%r3], 32;", "[%r3], %r4;"), ),
    changed("an allocation after the right was given up", "tmem_misuse", " @%p1 tcgen05.alloc",
            " @%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n @%p1 tcgen05.alloc"),
    tensor("a larger allocation after a smaller one", "tmem_misuse", ALLOC.replace("32;\n", "<<32||64>>;\n")
           + " bar.sync 0; ld.shared.b32 %t0, [%r3]; bar.sync 0;\n @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 64;\n"
           + " bar.sync 0; ld.shared.b32 %t1, [%r3]; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t1, 64;\n"
           + " @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, <<32||64>>;\n"),
    tensor("more columns than there are", "deadlock", ALLOC.replace("32;\n", "512;\n")
           + " bar.sync 0; ld.shared.b32 %t0, [%r3]; bar.sync 0;\n <<||@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 512;>>"
           + " @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;\n"
           + " bar.sync 0; ld.shared.b32 %t1, [%r3]; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t1, 32;\n"),
    changed("the address read before other warps may see it", "race_shared", "bar.sync 0; ld.shared.b32 %t0", "ld.shared.b32 %t0",
            ALLOC + READY + " bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 32;\n"),
    # addresses
    changed("all warps load the lanes of the first", "tmem_misuse", "shl.b32 %t1, warp, 21;", "shl.b32 %t1, warp, 5;"),
    changed("columns past the allocation", "tmem_misuse", LD, LD.replace("[%t1]", "[%t1+24]"), FROM_TENSOR),
    changed("lanes of a warp that give different addresses", "tmem_misuse", LD, " and.b32 %r12, lane, 1; add.u32 %t1, %t1, %r12;" + LD),
    changed("D from lane 16 on", "tmem_misuse", "kind::f16 [%t0]", "kind::f16 [%t0+1048576]"),
    changed("a load by half a warp", "divergence deadlock", LD, " setp.lt.u32 %p7, lane, 16; @%p7" + LD),
    # pairs of blocks
    changed("a pair's product before the other block runs", "peer_not_running race_shared missing_proxy_fence uninitialised",
            READY + MEET, READY, PAIR, grid=2, cluster=2),
    changed("a pair's commit that tells one block", "deadlock", "mov.u16 %h1, 3;", "mov.u16 %h1, 1;", PAIR, grid=2, cluster=2),
    changed("a pair's memory freed by one block", "tmem_misuse", " @%p1 tcgen05.dealloc", " setp.eq.and.u32 %p1, rank, 0, %p1; @%p1 tcgen05.dealloc",
            PAIR, grid=2, cluster=2),
]  # fmt: skip
