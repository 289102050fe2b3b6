"""clusterlaunchcontrol as programs: each block's work is done once, by the block itself or by one that took its place."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import parse
from kernel_dsl.runtime.interpreter.machine.launch import Run

from .launching import SCHEDULES, launch

TRY = "clusterlaunchcontrol.try_cancel.async"
QUERY = "clusterlaunchcontrol.query_cancel"


def program(to_all: bool, generic: bool, one_by_one: bool) -> str:
    """Blocks of 32 lanes add 1 to element z * 64 + y * 8 + x of their own place, and of those whose place they take."""
    where = "d1" if generic else "r1"
    space = "" if generic else ".shared::cta"
    ask = f"{TRY}{space}.mbarrier::complete_tx::bytes{'.multicast::cluster::all' if to_all else ''}.b128 [{where}], [{where}+16];"
    first = (
        f"{QUERY}.get_first_ctaid::x.b32.b128 r3, w; {QUERY}.get_first_ctaid::y.b32.b128 r4, w; {QUERY}.get_first_ctaid::z.b32.b128 r5, w;"
        if one_by_one
        else f"{QUERY}.get_first_ctaid.v4.b32.b128 {{r3, r4, r5, _}}, w;"
    )
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {{
 .reg .pred p<6>; .reg .b32 r<16>; .reg .b64 d<8>; .reg .b128 w; .shared .align 16 .b8 s[16]; .shared .align 8 .b8 bar[8];
 ld.param.u64 d0, [out]; mov.u32 r1, s; cvt.u64.u32 d1, r1; cvta.shared.u64 d1, d1; mov.u32 r2, 0;
 mov.u32 r3, %ctaid.x; mov.u32 r4, %ctaid.y; mov.u32 r5, %ctaid.z; mov.u32 r6, %tid.x; setp.eq.u32 p0, r6, 0;
 mov.u32 r7, %cluster_ctarank; setp.eq.and.u32 p1, r7, 0, p0; mov.u32 r8, %cluster_ctaid.x; mov.u32 r9, %cluster_ctaid.y;
 @p0 mbarrier.init.shared.b64 [r1+16], 1; {meet}
L: @p0 mbarrier.arrive.expect_tx.shared.b64 _, [r1+16], 16;
 @{"p1" if to_all else "p0"} {ask}
 shl.b32 r10, r5, 6; mad.lo.u32 r10, r4, 8, r10; add.u32 r10, r10, r3; mul.wide.u32 d2, r10, 4; add.s64 d2, d2, d0;
 @p0 red.global.add.u32 [d2], 1;
W: mbarrier.try_wait.parity.shared.b64 p2, [r1+16], r2; @!p2 bra W;
 ld.shared.b128 w, [r1]; {QUERY}.is_canceled.pred.b128 p3, w; @!p3 bra E;
 {first}
 add.u32 r3, r3, r8; add.u32 r4, r4, r9; xor.b32 r2, r2, 1; fence.proxy.async.shared::cta; {meet} bra L;
E: {meet} ret;
}}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1), (2, 2, 1)])
def test_each_block_is_done_once(schedule: str, cluster: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[list[int]] = []
    cancel = Run.cancel

    def counted(run: Run, device: int) -> np.ndarray | None:
        found = cancel(run, device)
        if found is not None:
            cancelled.append(found.tolist())
        return found

    monkeypatch.setattr(Run, "cancel", counted)
    to_all = cluster != (1, 1, 1)
    out = np.zeros((3, 8, 8), np.uint32)
    for generic, one_by_one in ((False, False), (True, True)):
        text = program(to_all, generic, one_by_one)
        launch(text, "k", [out], grid=(6, 4, 3), cluster=cluster, schedule=schedule, seed=3, target="sm_100a")
    expected = np.zeros_like(out)
    expected[:3, :4, :6] = 2
    np.testing.assert_array_equal(out, expected)
    assert cancelled
    assert all(where[axis] % cluster[axis] == 0 for where in cancelled for axis in range(3))


def test_all_blocks_may_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request fails where all blocks have started."""
    monkeypatch.setattr(Run, "_some", lambda run, clusters: clusters)
    out = np.zeros((3, 8, 8), np.uint32)
    launch(program(False, False, False), "k", [out], grid=(6, 4, 3), target="sm_100a")
    assert out.sum() == 72


def test_blocks_that_wait_for_others_are_started() -> None:
    """A kernel whose blocks wait for each other ends, though not all start at once."""
    text = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {
 .reg .pred p<4>; .reg .b32 r<8>; .reg .b64 d<4>; .reg .b128 w; .shared .align 16 .b8 s[16]; .shared .align 8 .b8 bar[8];
 ld.param.u64 d0, [out]; mov.u32 r1, %tid.x; setp.ne.u32 p0, r1, 0; @p0 bra E; mov.u32 r1, s;
 red.release.gpu.global.add.u32 [d0], 1;
L: ld.acquire.gpu.global.u32 r2, [d0]; setp.lt.u32 p1, r2, 8; @p1 bra L;
 mbarrier.init.shared.b64 [r1+16], 1; mbarrier.arrive.expect_tx.shared.b64 _, [r1+16], 16;
 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [r1], [r1+16];
W: mbarrier.try_wait.parity.shared.b64 p2, [r1+16], 0; @!p2 bra W;
 ld.shared.b128 w, [r1]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p3, w; @p3 trap;
E: ret;
}
"""
    out = np.zeros(1, np.uint32)
    for schedule in SCHEDULES:
        out[:] = 0
        launch(parse(text), "k", [out], grid=8, schedule=schedule, target="sm_100a")
        assert out[0] == 8
