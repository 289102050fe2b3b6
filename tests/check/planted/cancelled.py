"""Planted bugs of kernels whose blocks take the place of others that have not started (PTX ISA 9.7.13.17, clusterlaunchcontrol)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .probe import REGISTERS, Probe, one_of

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
QUERY = "clusterlaunchcontrol.query_cancel"
START = """ mov.u32 %r0, s; mov.u32 %r1, bar; mov.u32 %r2, cta; mov.u32 %r3, 0; setp.eq.u32 %p0, tid, 0; ld.param.u64 %d0, [a0];
 @%p0 mbarrier.init.shared.b64 [%r1], 1; bar.sync 0;
"""
ASK = f" @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16; @%p0 {TRY}.b128 [%r0], [%r1];\n"
WORK = """ mad.lo.u32 %r4, %r2, 64, tid; mul.wide.u32 %d1, %r4, 4; add.s64 %d1, %d1, %d0;
 ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, %r4; st.global.u32 [%d1], %r5;
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r3; @!%p1 bra W;\n"
LOAD = " ld.shared.b128 w, [%r0];\n"
DONE = f" {QUERY}.is_canceled.pred.b128 %p2, w; @!%p2 bra E;\n"
NEXT = f" {QUERY}.get_first_ctaid::x.b32.b128 %r2, w;\n"
AGAIN = " xor.b32 %r3, %r3, 1; fence.proxy.async.shared::cta; bar.sync 0; bra L;\nE:\n"
LOOP = START + "L:\n" + ASK + WORK + WAIT + LOAD + DONE + NEXT + AGAIN
# Two requests before the first response is seen: both may fail.
TWICE = (
    START.replace("[%r1], 1", "[%r1], 2")
    + ASK
    + ASK.replace("[%r0]", "[%r0+16]")
    + WORK
    + WAIT
    + LOAD
    + DONE
    + NEXT
    + "E:\n"
)
# A cluster of two: rank 0 asks, and each block gets the response.
MEET = " barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
ASK_ALL = (
    " @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16; setp.eq.and.u32 %p3, rank, 0, %p0;\n"
    f" @%p3 {TRY}.multicast::cluster::all.b128 [%r0], [%r1];\n"
)
FENCES = (
    " fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;\n",
    " fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;\n",
)
CLUSTER = (
    START + MEET + "L:\n" + ASK_ALL + WORK + WAIT + LOAD + DONE + NEXT + " add.u32 %r2, %r2, rank; xor.b32 %r3, %r3, 1;\n"
    + FENCES[0] + MEET + FENCES[1] + " bra L;\nE:\n" + MEET
)  # fmt: skip


def cancelled(
    name: str, kinds: str, good: str, bad: str, body: str = LOOP, every: bool = True, cluster: int | None = None
) -> Probe:
    """A loop over eight clusters' work with one piece that is `bad` instead."""
    assert body.count(good) == 1, (name, body.count(good))
    text = body.replace(good, f"<<{bad}||{good}>>")
    grid = 8 * (cluster or 1)

    def calls(right: bool) -> Sequence[tuple[tuple[Any, ...], dict[str, Any]]]:
        image = f"""{HEAD}.visible .entry k(.param .u64 a0) {{
{REGISTERS} .reg .b128 w; .shared .align 16 .b8 s[32]; .shared .align 8 .b8 bar[8];
{one_of(text, right)} ret;
}}
"""
        more = {} if cluster is None else {"cluster": cluster}
        return [((image, np.zeros(64 * grid, np.int32)), {"grid": grid, "block": 64, **more})]

    return Probe(name, tuple(kinds.split()), calls, every, (), text)


# The block is read from every response, also from one that names none.
EARLY = START + "L:\n" + ASK + WORK + WAIT + LOAD + NEXT.replace("%r2", "%r6") + DONE + " mov.u32 %r2, %r6;\n" + AGAIN

PROBES: list[Probe] = [
    cancelled("a response that is not waited for", "read_before_wait", WAIT, ""),
    cancelled("a response read by other warps, and no barrier", "race_shared", " bar.sync 0; bra L;", " bra L;"),
    cancelled("a response that the block does not wait for before it ends", "unawaited_copy", WAIT, "", START + ASK + WORK + WAIT),
    cancelled("a barrier that expects 8 bytes of a response", "bytes_mismatch", "[%r1], 16;", "[%r1], 8;"),
    cancelled("a request after one that failed", "launch_control", "@!%p2 bra E;", "@!%p2 bra A; bra B;\n"
              "A: xor.b32 %r3, %r3, 1; fence.proxy.async.shared::cta; bar.sync 0;\n" + ASK + WAIT.replace("W", "V") + " bra E;\nB:"),
    cancelled("a block of a response that cancelled none", "uninitialised", "E:", "E:\n mov.u32 %r2, %r6;\n" + WORK, EARLY),
    cancelled("a word of shared memory in the place of a response", "launch_control", LOAD, " mov.b128 w, {%d0, %d0};\n"),
    cancelled("a response at a multiple of 8", "misaligned", "[%r0+16],", "[%r0+8],", TWICE),
    cancelled("a block that asks for all, and a peer that may have ended", "peer_not_running", MEET + "L:", "L:", CLUSTER,
              cluster=2),
    cancelled("a response for all, and a block that does not wait for the others", "race_shared phase_overrun", FENCES[0] + MEET, FENCES[0],
              CLUSTER, cluster=2),
]  # fmt: skip
