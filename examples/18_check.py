"""Find a race without a GPU: a transpose through shared memory without its barrier, in PTX as any compiler writes it.

`kd.check` runs the PTX on the CPU under several schedules and reports the race: both lines, the element, the reason and
the fix. The same call on the mended PTX reports nothing, and its result is the transpose.

Run it: `python -m examples.18_check`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

N = 16
TRANSPOSE = f"""
.version 8.6
.target sm_80
.address_size 64
.visible .entry transpose(.param .u64 x, .param .u64 out) {{
    .reg .b32 %r<8>; .reg .b64 %d<6>;
    .shared .align 4 .b8 tile[{4 * N * N}];
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    mad.lo.u32 %r3, %r2, {N}, %r1;
    mul.wide.u32 %d3, %r3, 4;
    add.u64 %d4, %d1, %d3;
    ld.global.b32 %r4, [%d4];
    mov.u32 %r5, tile;
    mad.lo.u32 %r6, %r3, 4, %r5;
    st.shared.b32 [%r6], %r4;
    // barrier
    mad.lo.u32 %r7, %r1, {N}, %r2;
    mad.lo.u32 %r7, %r7, 4, %r5;
    ld.shared.b32 %r4, [%r7];
    add.u64 %d5, %d2, %d3;
    st.global.b32 [%d5], %r4;
    ret;
}}
"""
MENDED = TRANSPOSE.replace("// barrier", "bar.sync 0;")


def checked(ptx: str, x: Any) -> Any:
    """The report of a check, whose second output is the result."""
    return kd.check(ptx, x, np.zeros_like(x), grid=1, block=(N, N))


def main() -> None:
    """Find the race and its lines, and show that the mended kernel is right."""
    x = np.arange(N * N, dtype=np.float32).reshape(N, N)
    report = checked(TRANSPOSE, x)
    hazard = report.hazards[0]
    print(report)
    assert hazard.kind == "race_shared" and hazard.buffer == "tile"
    assert {hazard.source, hazard.other.code} <= {"ld.shared.b32 %r4, [%r7];", "st.shared.b32 [%r6], %r4;"}
    mended = checked(MENDED, x)
    print(mended)
    assert mended.verdict == "none" and np.array_equal(mended.outputs[1], x.T)


if __name__ == "__main__":
    main()
