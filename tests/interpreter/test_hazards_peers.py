"""Planted bugs of blocks that share memory and barriers, and of blocks that leave early (PTX ISA 5.1.7.1, 9.7.13.3, 9.7.9.25)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardKind as K

from .planted import Planted, check, swap

PTR = ".param .u64 a"


def zeros() -> Any:
    return [np.zeros(4096, np.int32)]


CLUSTER = " barrier.cluster.arrive; barrier.cluster.wait;"
PAIR = {"cluster": (2, 1, 1), "grid": 2}
SETUP = """.shared .align 128 .b8 t[512]; .shared .align 8 .b64 b; mov.u32 r2, t; mov.u32 r3, b; ld.param.u64 d1, [a];
 mov.u32 r4, %cluster_ctarank; xor.b32 r5, r4, 1; shl.b32 r6, r1, 2; add.u32 r6, r6, r2; setp.ne.u32 p1, r1, 0;
 mapa.shared::cluster.u32 r7, r6, r5; mapa.shared::cluster.u32 r8, r3, r5; mapa.shared::cluster.u32 r9, r2, r5;
 setp.eq.u32 p2, r4, 0; st.shared.u32 [r6], r1; @p1 bra READY; mbarrier.init.shared.b64 [r3], 1;
 fence.mbarrier_init.release.cluster;
READY:""" + CLUSTER + "\n"  # fmt: skip
# Block 0 reads block 1's memory, and both stay until that is done.
READ = SETUP + " @p2 ld.shared::cluster.u32 r10, [r7];" + CLUSTER + " ret;"
# Block 0 tells block 1 by an arrival at its barrier, which block 1 waits for.
ARRIVE = (
    SETUP
    + """ @!p2 bra WAIT; @p1 bra END; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r8]; bra END;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r3], 0; @!p3 bra WAIT;
END: ret;"""
)
# The same, by bytes that st.async brings.
STORE = (
    SETUP
    + """ @!p2 bra WAIT; @p1 bra END;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [r9], r1, [r8]; bra END;
WAIT: @p1 bra SPIN; mbarrier.arrive.expect_tx.shared.b64 _, [r3], 4;
SPIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r3], 0; @!p3 bra SPIN;
END: ret;"""
)
COPY = STORE.replace(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [r9], r1, [r8];",
    "fence.proxy.async; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r9], [r2], 16, [r8];",
).replace("[r3], 4;", "[r3], 16;")
COPY = COPY.replace("END: ret;", f"END:{CLUSTER} ret;")
COPY = COPY.replace(
    " @!p2 bra WAIT; @p1 bra END;\n", " fence.proxy.async;" + CLUSTER + " @!p2 bra WAIT; @p1 bra END;\n"
)
# Within one block: a load that is awaited, and a store of which the source is.
LOAD = """.shared .align 128 .b8 t[512]; .shared .align 8 .b64 b; mov.u32 r2, t; mov.u32 r3, b; ld.param.u64 d1, [a];
 setp.ne.u32 p1, r1, 0; @p1 bra W; mbarrier.init.shared.b64 [r3], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 _, [r3], 256;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d1], 256, [r3];
W: bar.sync 0;
L: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L; ret;"""
OUT = """.shared .align 128 .b8 t[512]; mov.u32 r2, t; ld.param.u64 d1, [a]; shl.b32 r4, r1, 2; add.u32 r4, r4, r2;
 st.shared.u32 [r4], r1; fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 p1, r1, 0; @p1 ret;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; ret;"""


def plant(name: str, kind: K, body: str, line: str, instead: str = "", **rest: Any) -> Planted:
    return swap(name, kind, body, line, instead, params=PTR, args=zeros, options=rest.pop("options", PAIR), **rest)


SPIN = "SPIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r3], 0; @!p3 bra SPIN;"
LAST = CLUSTER + " ret;"
CASES = [
    Planted("a peer's memory read while it may leave", K.PEER_NOT_RUNNING, READ.replace(LAST, " ret;"), READ, params=PTR,
        args=zeros, options=PAIR),
    Planted("the reader waits, the other leaves", K.PEER_NOT_RUNNING, READ.replace(LAST, " @!p2 ret;" + LAST), READ,
        params=PTR, args=zeros, options=PAIR),
    plant("a peer's memory read before it starts", K.PEER_NOT_RUNNING, READ, "READY:" + CLUSTER, "READY: bar.sync 0;"),
    plant("arrival at a barrier of a block that does not wait for it", K.PEER_NOT_RUNNING, ARRIVE, "@!p2 bra WAIT;", "@!p2 ret;"),
    plant("arrival before the peer has started", K.PEER_NOT_RUNNING, ARRIVE, "READY:" + CLUSTER, "READY: bar.sync 0;",
        also=(K.BARRIER_MISUSE,)),
    plant("st.async that the peer does not wait for", K.UNAWAITED_COPY, STORE, SPIN, "SPIN:"),
    plant("a copy between blocks that nobody waits for", K.UNAWAITED_COPY, COPY, SPIN, "SPIN:"),
    plant("a cluster barrier waited for without an arrival", K.BARRIER_COUNT, READ.replace("READY:" + CLUSTER, "READY:" + CLUSTER + "//\n"),
        "READY: barrier.cluster.arrive; barrier.cluster.wait;//", "READY: barrier.cluster.wait;//", mentions=("no barrier.cluster.arrive",)),
    plant("an arrival at a cluster barrier of one side alone", K.BARRIER_COUNT, READ, "READY:" + CLUSTER,
        "READY: @p2 barrier.cluster.arrive; barrier.cluster.wait;", also=(K.DIVERGENCE,)),
    plant("a copy between blocks, and its source's block leaves", K.UNAWAITED_COPY, COPY, f"END:{CLUSTER} ret;", "END: ret;"),
    plant("a load that nobody waits for", K.UNAWAITED_COPY, LOAD, "\nL: mbarrier.try_wait.parity.shared.b64 p2, [r3], 0; @!p2 bra L;",
        options={}),
    plant("a block that leaves while a store reads its memory", K.UNAWAITED_COPY, OUT, " cp.async.bulk.wait_group.read 0;", options={}),
    plant("a block that waits for all but the last store", K.UNAWAITED_COPY, OUT, "read 0", "read 1", options={}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_bug(case: Planted) -> None:
    check(case)
