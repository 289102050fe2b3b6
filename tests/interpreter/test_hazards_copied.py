"""Planted bugs of lanes: a wait for copies orders them for the lane that issued them, and for no other of its warp."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardKind as K

from .planted import Planted, check, swap

# Each lane copies 16 bytes to r4; its neighbour's are at r5.
COPY = """ .shared .align 16 .b8 t[4096]; .shared .align 8 .b64 b; ld.param.u64 d1, [a]; mov.u32 r2, t; mov.u32 r7, b;
 and.b32 r3, r1, 31; shl.b32 r3, r3, 4; shl.b32 r8, r1, 4; add.u32 r4, r2, r8; cvt.u64.u32 d2, r8; add.s64 d2, d1, d2;
 xor.b32 r5, r8, 16; add.u32 r5, r5, r2; mov.u32 r6, 0; setp.ne.u32 p1, r1, 0;
 @!p1 mbarrier.init.shared.b64 [r7], 64; bar.sync 0;
 cp.async.cg.shared.global [r4], [d2], 16;
 cp.async.commit_group;
"""
WAIT = " cp.async.wait_group 0;\n bar.warp.sync -1;\n"
READ = " ld.shared.u32 r6, [r5];\n ret;"
MATRIX = COPY + WAIT + " ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r6}, [r5];\n ret;"
# Two groups in flight; the second lands 1024 bytes further on.
GROUPS = (
    COPY
    + """ add.u32 r4, r4, 1024; add.u32 r5, r5, 1024;
 cp.async.cg.shared.global [r4], [d2], 16;
 cp.async.commit_group;
 cp.async.wait_group 1;
 bar.warp.sync -1;
 sub.u32 r8, r5, 1024; ld.shared.u32 r6, [r8];
 cp.async.wait_group 0;
 bar.sync 0;
 ld.shared.u32 r6, [r5];
 ret;"""
)
ARRIVE = """ cp.async.mbarrier.arrive.noinc.shared.b64 [r7];
W: mbarrier.try_wait.parity.shared.b64 p2, [r7], 0; @!p2 bra W;
"""
BY_MBARRIER = COPY + ARRIVE + " cp.async.wait_all;\n" + READ
SYNC = " bar.warp.sync -1;\n"
LANES = ("lane 0", "lane 1", "bar.warp.sync")


def lanes(name: str, body: str, line: str = SYNC, instead: str = "", mentions: tuple[str, ...] = LANES) -> Planted:
    def data() -> list[object]:
        return [np.arange(1024, dtype=np.int32)]

    return swap(name, K.RACE_SHARED, body, line, instead, params=".param .u64 a", args=data, mentions=mentions)


# Lane 0 stores what all have written, and waits until the copy has read it; then others write anew.
STORE = """ .shared .align 16 .b8 t[1024]; ld.param.u64 d1, [a]; mov.u32 r2, t; shl.b32 r3, r1, 2; add.u32 r4, r2, r3;
 setp.ne.u32 p1, r1, 0; st.shared.u32 [r4], r1; fence.proxy.async.shared::cta; bar.sync 0;
 setp.ge.u32 p2, r1, 32; @p2 bra END;
 @p1 bra DONE;
 cp.async.bulk.global.shared::cta.bulk_group [d1], [r2], 256;
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read 0;
DONE: bar.warp.sync -1;
 st.shared.u32 [r4], r3;
END: ret;"""
ALL_WAIT = STORE.replace("DONE:", "DONE: cp.async.bulk.wait_group.read 0;")
ONE = ("lane 1", "lane 0", "bar.warp.sync")


def stored(name: str, body: str) -> Planted:
    case = lanes(name, body, " bar.warp.sync -1;\n", "\n", ONE)
    return replace(case, kind=K.REUSED_BEFORE_READ)


CASES = [
    stored("the source of another lane's store", STORE),
    stored("each lane waits for its own stores", ALL_WAIT),
    lanes("another lane reads", COPY + WAIT + READ),
    lanes("another lane writes", COPY + WAIT + " st.shared.v4.u32 [r5], {r1, r1, r1, r1};\n ret;"),
    lanes("another lane adds", COPY + WAIT + " red.shared.add.u32 [r5], 1;\n ret;"),
    lanes("another lane copies", COPY + WAIT + " cp.async.ca.shared.global [r5], [d2], 4;\n cp.async.wait_all;\n ret;"),
    lanes("a matrix of other lanes' rows", MATRIX),
    lanes(
        "zeros of a size of 0", COPY.replace("[d2], 16;", "[d2], 16, r6;") + WAIT + " st.shared.u32 [r5], r1;\n ret;"
    ),
    lanes("the older of two groups", GROUPS),
    lanes("the later of two groups", GROUPS, " bar.sync 0;\n ld", " ld"),
    lanes("lanes that each wait for all", BY_MBARRIER, ARRIVE),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted(case: Planted) -> None:
    check(case)


OWN = COPY + " cp.async.wait_group 0;\n ld.shared.v4.u32 {r5, r6, r8, r9}, [r4];\n st.shared.u32 [r4], r1;\n ret;"


def test_a_lane_uses_its_own_copies() -> None:
    """No barrier is needed then, as in Triton's epilogues, which store where the same lane has copied to."""
    check(
        Planted(
            "own",
            K.RACE_SHARED,
            OWN.replace("[r4];\n st", "[r4];\n xor.b32 r4, r4, 16;\n st"),
            OWN,
            ".param .u64 a",
            lambda: [np.arange(1024, dtype=np.int32)],
        )
    )
