"""tcgen05.ld.red: loads of tensor memory that also give each thread its least or largest value, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind
from kernel_dsl.runtime.interpreter.ptx.module import PtxError

from .launching import launch

RNG = np.random.default_rng(11)


def program(num: int, how: str, wait: str = "tcgen05.wait::ld.sync.aligned;") -> str:
    """Each of 64 threads stores its `num` words, loads them with a reduction, and writes them and the result."""
    words = "{" + ", ".join(f"v{i}" for i in range(num)) + "}"
    return f""".version 8.8
.target sm_103a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out, .param .u64 most) {{
 .reg .pred p<4>; .reg .b32 r<8>; .reg .b64 d<6>; .reg .b32 v<{num}>; .shared .align 4 .b8 slot[4];
 mov.u32 r1, %tid.x; mov.u32 r2, slot; shr.u32 r4, r1, 5; setp.eq.u32 p1, r4, 0;
 @p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r2], 128; bar.sync 0; ld.shared.b32 r3, [r2];
 shl.b32 r5, r4, 21; add.u32 r5, r5, r3; ld.param.u64 d1, [x]; mul.wide.u32 d2, r1, {4 * num}; add.s64 d1, d1, d2;
{"".join(f" ld.global.b32 v{i}, [d1+{4 * i}];" for i in range(num))}
 tcgen05.st.sync.aligned.32x32b.x{num}.b32 [r5], {words}; tcgen05.wait::st.sync.aligned;
{"".join(f" mov.b32 v{i}, 7;" for i in range(num))}
 tcgen05.ld.red.sync.aligned.32x32b.x{num}.{how} {words}, {{r6}}, [r5]; {wait}
 ld.param.u64 d3, [out]; add.s64 d3, d3, d2; ld.param.u64 d4, [most]; mul.wide.u32 d5, r1, 4; add.s64 d4, d4, d5;
{"".join(f" st.global.b32 [d3+{4 * i}], v{i};" for i in range(num))} st.global.b32 [d4], r6;
 bar.sync 0; @p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r3, 128; ret;
}}
"""


def wanted(x: np.ndarray, operation: str, magnitude: bool, nan: bool) -> np.ndarray:
    values = np.abs(x) if magnitude else x
    if x.dtype.kind != "f":
        return (np.min if operation == "min" else np.max)(values, axis=1)
    if nan:
        return (np.min if operation == "min" else np.max)(values, axis=1)
    return (np.nanmin if operation == "min" else np.nanmax)(values, axis=1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", ["f32", "NaN.f32", "abs.f32", "abs.NaN.f32", "u32", "s32"])
@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("num", [2, 8, 64])
def test_reductions(num: int, operation: str, how: str) -> None:
    dtype = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[how.split(".")[-1]]
    x = RNG.integers(0, 2**32, (64, num), dtype=np.uint32).view(dtype)
    if dtype is np.float32:
        x = RNG.standard_normal((64, num)).astype(dtype)
        x[3, 1], x[40, 0], x[41, :] = np.nan, -np.inf, -2.5
    out, most = np.zeros_like(x), np.zeros(64, dtype)
    launch(program(num, f"{operation}.{how}"), "k", [x, out, most], block=64, target="sm_103a")
    np.testing.assert_array_equal(out.view(np.uint32), x.view(np.uint32))
    np.testing.assert_array_equal(most, wanted(x, operation, "abs" in how, "NaN" in how))


def test_what_is_overwritten_before_the_wait_races() -> None:
    again = "tcgen05.st.sync.aligned.32x32b.x2.b32 [r5], {v0, v1}; tcgen05.wait::st.sync.aligned;"
    wait = "tcgen05.wait::ld.sync.aligned; "
    given = [np.zeros((64, 2), np.float32), np.zeros((64, 2), np.float32), np.zeros(64, np.float32)]
    launch(program(2, "max.f32", wait + again), "k", given, block=64, target="sm_103a")
    with pytest.raises(HazardError) as caught:
        launch(program(2, "max.f32", again + wait), "k", given, block=64, target="sm_103a")
    assert caught.value.kind is HazardKind.RACE_TMEM


def test_other_targets_lack_it() -> None:
    text = program(2, "max.f32").replace("sm_103a", "sm_100a")
    with pytest.raises(PtxError, match="sm_103a"):
        launch(text, "k", [np.zeros(128, np.float32)] * 3, block=64, target="sm_100a")
