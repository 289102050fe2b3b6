"""A strong write that a strong read has observed is ordered before what follows the read (PTX ISA 8.9.5, 'Causality order')."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd

from .launching import kernel

HEAD = """ .reg .b32 r<9>; .reg .b64 d<9>; .reg .pred p<9>; .shared .align 8 .b32 s[2];
 ld.param.u64 d1, [a]; mov.u32 r1, %tid.x; mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r1, 0; setp.ne.u32 p2, r2, 0; mov.u32 r8, s;
"""
WRITES = {
    "red.relaxed": "red.relaxed.gpu.global.add.u32 [d1], 1;",
    "st.relaxed": "st.relaxed.gpu.global.u32 [d1], 1;",
    "st.volatile": "st.volatile.global.u32 [d1], 1;",
    "st": "st.global.u32 [d1], 1;",
}
READS = ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32", "ld.volatile.global.u32")
# What follows the read: whether it is ordered after the write that the read has observed.
AFTER = {
    "the warp stores": (" st.global.u32 [d1], 0; C:", True),
    "the warp loads": (" ld.global.u32 r4, [d1]; st.global.u32 [d1+8], r4; C:", True),
    "another warp stores, behind a barrier": (
        " C: bar.sync 0; setp.eq.u32 p4, r1, 40; @p4 st.global.u32 [d1], 0;",
        True,
    ),
    "another warp stores": (" C: setp.eq.u32 p4, r1, 40; @p4 st.global.u32 [d1], 0;", False),
    "the warp stores to another word": (" st.global.u32 [d1+4], 0; C:", False),
}


def kinds(body: str) -> set[str]:
    text = kernel(".param .u64 a", HEAD + body + " ret;")
    found = kd.check(text, np.zeros(8, np.int32), grid=2, block=64, schedules=("eager", "random:2"))
    return {str(h.kind) for h in found.hazards}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_a_flag_between_blocks(write: str, read: str) -> None:
    """Block 0 sets a flag, with no fence before it; block 1 waits for it. The word behind the flag is stored first."""
    for what, (after, ordered) in AFTER.items():
        data = "st.global.u32 [d1+4], 5; " if "another word" in what else ""
        body = f"@p2 bra B; @p1 exit; {data}{WRITES[write]} ret; B: @p1 bra C; L: {read} r3, [d1]; setp.eq.u32 p3, r3, 0; @p3 bra L;"
        found = kinds(body + after)
        assert ("race_blocks" in found) == (write == "st" or not ordered), (what, found)


@pytest.mark.parametrize("read", ["ld.acquire.cta.shared.u32", "ld.relaxed.cta.shared.u32", "ld.volatile.shared.u32"])
def test_a_flag_between_warps(read: str) -> None:
    for write, right in (
        ("st.relaxed.cta.shared.u32", True),
        ("st.volatile.shared.u32", True),
        ("st.shared.u32", False),
    ):
        for store, ordered in (("@p5 st.shared.u32 [r8], 7;", True), ("@p6 st.shared.u32 [r8], 7;", False)):
            body = f"""setp.eq.u32 p4, r1, 0; setp.eq.u32 p5, r1, 32; setp.eq.u32 p6, r1, 64; @p4 st.shared.u32 [r8], 0; bar.sync 0;
 @p4 {write} [r8], 1; @!p5 bra C; L: {read} r3, [r8]; setp.eq.u32 p3, r3, 0; @p3 bra L; C: {store}"""
            text = kernel(".param .u64 a", HEAD + body + " ret;")
            found = kd.check(text, np.zeros(8, np.int32), grid=1, block=96, schedules=("eager", "random:2")).hazards
            assert ("race_shared" in {str(h.kind) for h in found}) == (not right or not ordered), (write, store)
