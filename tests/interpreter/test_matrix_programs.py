"""wgmma, mma.sync, ldmatrix and stmatrix as programs, against float64 products of matrices laid out on the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from .launching import SCHEDULES, kernel, launch
from .test_tma import swizzle_bytes

TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip


def random_matrix(rng, shape, type_: str) -> np.ndarray:
    if type_ in ("s8", "u8"):
        info = np.iinfo(TYPES[type_])
        return rng.integers(info.min, info.max + 1, shape).astype(TYPES[type_])
    x = rng.standard_normal(shape).astype(TYPES[type_])
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if type_ == "tf32" else x


def k_major(x: np.ndarray, swizzle: int) -> np.ndarray:
    """(rows, k) with rows of `swizzle` bytes: 8 rows make a contiguous group, groups follow each other."""
    assert x.shape[1] * x.itemsize == swizzle
    return swizzle_bytes(np.ascontiguousarray(x), swizzle)


def descriptor(swizzle: int, leading: int, stride: int) -> int:
    code = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return leading >> 4 << 16 | stride >> 4 << 32 | code << 62


def wgmma_kernel(n: int, k: int, types, steps: int, registers: int, a_bytes: int, b_bytes: int, descs, step: int,
                 tail: str, d_type: str) -> str:  # fmt: skip
    """Copies A and B in, multiplies `steps` slices of k that lie `step` bytes apart, writes D's registers out."""
    acc = ", ".join(f"c{i}" for i in range(registers))
    products = "".join(
        f" add.s64 d5, d3, {i * step >> 4}; add.s64 d6, d4, {i * step >> 4};\n"
        f" wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d_type}.{types[0]}.{types[1]} "
        f"{{{acc}}}, d5, d6, {int(i > 0)}{tail};\n"
        for i in range(steps)
    )
    stores = "".join(f" st.global.b32 [d8+{512 * i}], c{i};\n" for i in range(registers))
    return kernel(
        ".param .u64 a, .param .u64 b, .param .u64 out",
        f""" .reg .pred p<4>; .reg .b32 r<20>; .reg .b64 d<12>; .reg .b32 c<{registers}>;
 .shared .align 1024 .b8 t[{a_bytes + b_bytes}];
 mov.u32 r1, %tid.x; mov.u32 r2, t; ld.param.u64 d1, [a]; ld.param.u64 d2, [b];
 shl.b32 r4, r1, 2;
A: setp.ge.u32 p1, r4, {a_bytes}; @p1 bra AEND; cvt.u64.u32 d7, r4; add.s64 d8, d1, d7; ld.global.u32 r5, [d8];
 add.u32 r6, r2, r4; st.shared.u32 [r6], r5; add.u32 r4, r4, 512; bra A;
AEND: shl.b32 r4, r1, 2;
B: setp.ge.u32 p1, r4, {b_bytes}; @p1 bra BEND; cvt.u64.u32 d7, r4; add.s64 d8, d2, d7; ld.global.u32 r5, [d8];
 add.u32 r6, r2, r4; st.shared.u32 [r6+{a_bytes}], r5; add.u32 r4, r4, 512; bra B;
BEND: fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 r7, r2, 4; cvt.u64.u32 d3, r7; add.s64 d4, d3, {a_bytes >> 4};
 or.b64 d3, d3, {descs[0]}; or.b64 d4, d4, {descs[1]};
 wgmma.fence.sync.aligned;
{products} wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
 ld.param.u64 d7, [out]; mul.wide.u32 d8, r1, 4; add.s64 d8, d8, d7;
{stores} ret;""",
    )


def accumulators(out: np.ndarray, n: int, d_type: str) -> np.ndarray:
    """(registers, 128) words to the 64 x n matrix."""
    if d_type == "f16":
        values = out.view(np.float16).reshape(out.shape[0], 128, 2).transpose(0, 2, 1).reshape(-1, 128)
    else:
        values = out.view(np.float32 if d_type == "f32" else np.int32)
    d = np.zeros((64, n))
    for i in range(n // 2):
        for t in range(128):
            row = t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2)
            d[row, i // 4 * 8 + t % 4 * 2 + i % 2] = values[i, t]
    return d


FORMS = [
    (8, "f16", "f16", "f32"), (64, "f16", "f16", "f16"), (128, "bf16", "bf16", "f32"), (24, "tf32", "tf32", "f32"),
    (256, "f16", "f16", "f32"), (40, "e4m3", "e5m2", "f32"), (16, "e5m2", "e5m2", "f16"), (32, "s8", "u8", "s32"),
    (96, "u8", "u8", "s32"),
]  # fmt: skip


@pytest.mark.parametrize("n,a_type,b_type,d_type", FORMS, ids=str)
@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.sampled(2)
def test_wgmma_of_k_major_operands(n, a_type, b_type, d_type, swizzle):
    rng = np.random.default_rng(n + swizzle)
    size = np.dtype(TYPES[a_type]).itemsize
    depth = swizzle // size
    a, b = random_matrix(rng, (64, depth), a_type), random_matrix(rng, (n, depth), b_type)
    registers = n // 4 if d_type == "f16" else n // 2
    desc = descriptor(swizzle, 16, 8 * swizzle)
    tail = "" if d_type == "s32" else ", 1, 1, 0, 0" if a_type in ("f16", "bf16") else ", 1, 1"
    text = wgmma_kernel(n, 32 // size, (a_type, b_type), swizzle // 32, registers, 64 * swizzle, n * swizzle,
                        (desc, desc), 32, tail, d_type)  # fmt: skip
    out = np.zeros((registers, 128), np.uint32)
    launch(text, "k", [k_major(a, swizzle), k_major(b, swizzle), out], block=128, outputs=(2,))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    scale = abs(a.astype(np.float64)) @ abs(b.astype(np.float64)).T
    bound = {"s32": 0, "f32": 1e-6, "f16": 4e-3}[d_type]
    assert (abs(accumulators(out, n, d_type) - exact) <= bound * scale).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wgmma_transposed_negated(schedule):
    """A and B stored with m and n contiguous, 128-byte swizzle, and both scales -1 or one of them."""
    rng = np.random.default_rng(5)
    a, b = random_matrix(rng, (64, 16), "f16"), random_matrix(rng, (64, 16), "f16")
    # 64 elements of m are one 128-byte row; 8 values of k make a group of 1024 bytes.
    desc = descriptor(128, 2048, 1024)
    for scales, sign in (("1, 1", 1), ("-1, 1", -1), ("-1, -1", 1)):
        text = wgmma_kernel(64, 16, ("f16", "f16"), 1, 32, 2048, 2048, (desc, desc), 0, f", {scales}, 1, 1", "f32")
        out = np.zeros((32, 128), np.uint32)
        args = [swizzle_bytes(np.ascontiguousarray(x.T), 128) for x in (a, b)]
        launch(text, "k", [*args, out], block=128, schedule=schedule)
        exact = sign * (a.astype(np.float64) @ b.astype(np.float64).T)
        assert abs(accumulators(out, 64, "f32") - exact).max() < 1e-4


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("word", ["wgmma.wait_group.sync.aligned 0", "wgmma.commit_group.sync.aligned"])
def test_a_warpgroup_waits_for_a_lane_that_comes_later(schedule, word):
    """The other warps of the group are there, and nothing lets them go on but this lane."""
    text = kernel(
        ".param .u64 out",
        f""" .reg .pred p<2>; .reg .b32 r<4>; .reg .b64 d<4>;
 mov.u32 r1, %tid.x; mov.u32 r2, 1; mov.u32 r3, 0;
ROUND: {word}; add.u32 r3, r3, 1; setp.eq.u32 p1, r3, 2; @p1 bra END; setp.ne.u32 p1, r1, 37; @p1 bra ROUND;
 mov.u32 r2, 2; bra ROUND;
END: ld.param.u64 d1, [out]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2; st.global.u32 [d3], r2; ret;
""",
    )
    out = np.zeros(128, np.uint32)
    launch(text, "k", [out], block=128, schedule=schedule, step_budget=10_000)
    np.testing.assert_array_equal(out, np.where(np.arange(128) == 37, 2, 1))


def test_wgmma_with_a_in_registers():
    """Each lane packs its part of A (64 x 16) from global memory."""
    rng = np.random.default_rng(6)
    a, b = random_matrix(rng, (64, 16), "bf16"), random_matrix(rng, (8, 16), "bf16")
    loads = "".join(f" ld.global.b32 a{i}, [d9+{(i % 2) * 8 * 32 + (i // 2) * 16}];\n" for i in range(4))
    text = kernel(
        ".param .u64 a, .param .u64 b, .param .u64 out",
        f""" .reg .b32 r<20>; .reg .b64 d<12>; .reg .b32 a<4>; .reg .f32 c<4>; .shared .align 1024 .b8 t[256];
 mov.u32 r1, %tid.x; mov.u32 r2, t; ld.param.u64 d1, [a]; ld.param.u64 d2, [b]; ld.param.u64 d3, [out];
 and.b32 r3, r1, 63; mul.wide.u32 d4, r3, 4; add.s64 d5, d2, d4; ld.global.u32 r4, [d5];
 shl.b32 r5, r3, 2; add.u32 r5, r5, r2; st.shared.u32 [r5], r4;
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 r6, r1, 5; and.b32 r7, r1, 31; shr.u32 r8, r7, 2; mad.lo.u32 r8, r6, 16, r8; and.b32 r9, r7, 3;
 shl.b32 r8, r8, 5; mad.lo.u32 r8, r9, 4, r8; cvt.u64.u32 d8, r8; add.s64 d9, d1, d8;
{loads}
 shr.u32 r10, r2, 4; cvt.u64.u32 d6, r10; or.b64 d6, d6, {descriptor(32, 16, 256)};
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{c0, c1, c2, c3}}, {{a0, a1, a2, a3}}, d6, 0, 1, 1, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
 mul.wide.u32 d10, r1, 4; add.s64 d10, d10, d3;
 st.global.f32 [d10], c0; st.global.f32 [d10+512], c1; st.global.f32 [d10+1024], c2; st.global.f32 [d10+1536], c3;
 ret;""",
    )
    out = np.zeros((4, 128), np.uint32)
    both = k_major(b, 32)
    launch(text, "k", [a, both, out], block=128, ignore=("equal_value_race",))  # two warps fill B
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert abs(accumulators(out, 8, "f32") - exact).max() < 1e-5


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_mma_stmatrix(trans):
    """A 16 x 16 by ldmatrix.x4, B 16 x 8 by ldmatrix.x2 (or transposed), the product by stmatrix."""
    rng = np.random.default_rng(7)
    a, b = random_matrix(rng, (16, 16), "f16"), random_matrix(rng, (8, 16), "f16")
    stored_b = b.T.copy() if trans else b
    out = np.zeros((16, 8), np.float16)
    modifier = ".trans" if trans else ""
    # Rows of B in memory: 8 rows of 16 (two matrices side by side), or 16 rows of 8 (one under the other).
    b_row = (
        "and.b32 r8, r1, 15; shl.b32 r8, r8, 4;"
        if trans
        else ("and.b32 r8, r1, 7; shl.b32 r8, r8, 5; and.b32 r9, r1, 8; shl.b32 r9, r9, 1; add.u32 r8, r8, r9;")
    )
    text = kernel(
        ".param .u64 a, .param .u64 b, .param .u64 out",
        f""" .reg .b32 r<30>; .reg .b64 d<12>; .shared .align 16 .b8 t[1024];
 mov.u32 r1, %tid.x; mov.u32 r2, t; ld.param.u64 d1, [a]; ld.param.u64 d2, [b]; ld.param.u64 d3, [out];
 shl.b32 r3, r1, 4; cvt.u64.u32 d4, r3; add.s64 d5, d1, d4; ld.global.v4.u32 {{r4, r5, r6, r7}}, [d5];
 add.u32 r10, r2, r3; st.shared.v4.u32 [r10], {{r4, r5, r6, r7}};
 shl.b32 r11, r1, 3; cvt.u64.u32 d6, r11; add.s64 d7, d2, d6; ld.global.v2.u32 {{r4, r5}}, [d7];
 add.u32 r12, r2, r11; st.shared.v2.u32 [r12+512], {{r4, r5}};
 bar.warp.sync -1;
 and.b32 r13, r1, 15; shl.b32 r13, r13, 5; and.b32 r14, r1, 16; add.u32 r13, r13, r14; add.u32 r13, r13, r2;
 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{r15, r16, r17, r18}}, [r13];
 {b_row} add.u32 r8, r8, r2;
 ldmatrix.sync.aligned.m8n8.x2{modifier}.shared::cta.b16 {{r19, r20}}, [r8+512];
 mov.b32 r21, 0;
 mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {{r22, r23}}, {{r15, r16, r17, r18}}, {{r19, r20}}, {{r21, r21}};
 and.b32 r24, r1, 15; shl.b32 r24, r24, 4; add.u32 r24, r24, r2;
 stmatrix.sync.aligned.m8n8.x2.shared.b16 [r24+768], {{r22, r23}};
 bar.warp.sync -1;
 ld.shared.v2.u32 {{r25, r26}}, [r12+768]; add.s64 d8, d3, d6; st.global.v2.u32 [d8], {{r25, r26}};
 ret;""",
    )
    launch(text, "k", [a, stored_b, out])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert abs(out - exact).max() < 2e-2
