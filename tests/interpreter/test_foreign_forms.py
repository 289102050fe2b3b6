"""PTX as other compilers write it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .launching import HEADER, kernel, launch
from .planted import REGISTERS

PTR = ".param .u64 a"
ADDRESS = " ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2;"


def test_a_vector_of_one() -> None:
    out = np.zeros(32, np.int32)
    body = ADDRESS + " ld.global.b32 { r2 }, [ d3 + 0 ]; add.u32 r2, r2, r1; st.global.b32 [ d3 + 0 ], { r2 }; ret;"
    launch(kernel(PTR, REGISTERS + body), "k", [out])
    np.testing.assert_array_equal(out, np.arange(32))


@pytest.mark.parametrize("types", ["f64.f64.f64.f64.rn", "rn.f64.f64.f64.f64", "f64.f64.f64.f64"])
def test_the_rounding_of_wmma_first_or_last(types: str) -> None:
    body = f""" .reg .f64 g<9>; mov.f64 g1, 0d3FF0000000000000; mov.f64 g2, g1; mov.f64 g3, 0d0000000000000000; mov.f64 g4, g3;
 wmma.mma.sync.aligned.row.col.m8n8k4.{types} {{g5, g6}}, {{g1}}, {{g2}}, {{g3, g4}}; cvt.rzi.s32.f64 r3, g5;
 st.global.u32 [d3], r3; ret;"""
    out = np.zeros(32, np.int32)
    launch(kernel(PTR, REGISTERS + ADDRESS + body), "k", [out])
    assert (out == 4).all()


CLUSTER = f"""{HEADER}.visible .entry k({PTR}) .explicitcluster .reqnctapercluster 2, 1, 1
{{ {REGISTERS} ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; mul.wide.u32 d2, r2, 4; add.s64 d3, d1, d2;
 mov.u32 r3, %cluster_nctaid.x; st.global.u32 [d3], r3; ret; }}"""


def test_the_directive_alone_makes_clusters() -> None:
    out = np.zeros(4, np.int32)
    launch(CLUSTER, "k", [out], block=1, grid=4)
    assert out.tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="requires clusters of"):
        launch(CLUSTER, "k", [out], block=1, grid=4, cluster=(4, 1, 1))


def test_atomics_of_16_bytes() -> None:
    out = np.zeros(4, np.uint64)
    body = """ .reg .b128 w<4>; .reg .b64 x<8>; ld.param.u64 d1, [a]; cvt.u64.u32 x1, r1; mov.u64 x2, 7; mov.b128 w1, {x1, x2};
 setp.ne.u32 p1, r1, 5; @p1 ret; atom.global.exch.b128 w2, [d1], w1; mov.u64 x3, 9; mov.b128 w3, {x3, x2};
 atom.global.cas.b128 w2, [d1], w1, w3; mov.b128 {x4, x5}, w2; st.global.u64 [d1+16], x4; atom.global.cas.b128 w2, [d1], w1, w1;
 mov.b128 {x4, x5}, w2; st.global.u64 [d1+24], x4; ret;"""
    launch(kernel(PTR, REGISTERS + body), "k", [out])
    assert out.tolist() == [9, 7, 5, 9]


def test_atomics_of_16_bytes_by_many_lanes() -> None:
    """Blocks add to a pair of words by compare-and-swap. The pair is a whole array, or its end."""
    body = """ .reg .b128 w<4>; .reg .b64 x<8>; ld.param.u64 d1, [a]; cvt.u64.u32 x1, r1; mov.u64 x2, 0; mov.u64 x3, 0;
L: add.u64 x4, x2, x1; max.u64 x5, x3, x1; mov.b128 w1, {x2, x3}; mov.b128 w2, {x4, x5};
 atom.acq_rel.gpu.global.cas.b128 w3, [d1+AT], w1, w2; mov.b128 {x4, x5}, w3;
 setp.ne.u64 p1, x4, x2; setp.ne.u64 p2, x5, x3; or.pred p1, p1, p2; mov.u64 x2, x4; mov.u64 x3, x5; @p1 bra L; ret;"""
    for words in (2, 6):
        out = np.zeros(words, np.uint64)
        text = kernel(PTR, REGISTERS + body.replace("AT", str(8 * words - 16)))
        report = kd.check(text, out, grid=3, block=32)
        assert report.hazards == [] and out[-2:].tolist() == [3 * 31 * 16, 31]


@pytest.mark.parametrize("name", ["clock", "clock64", "globaltimer"])
def test_a_clock_that_is_read_twice_has_moved(name: str) -> None:
    bits = 32 if name == "clock" else 64
    register = "r" if bits == 32 else "d"
    body = f""" mov.u{bits} {register}8, %{name}; mov.u{bits} {register}9, %{name}; sub.u{bits} {register}8, {register}9, {register}8;
 st.global.u{bits} [d1], {register}8; ret;"""
    out = np.zeros(2, np.int32)
    launch(kernel(PTR, REGISTERS + ADDRESS + body), "k", [out], block=1)
    assert out[0] > 0


def test_pairs_of_4_bits_in_registers_of_8() -> None:
    """As `cuda_fp4.hpp` writes them: a lane's two numbers become codes, and those halves again."""
    out = np.zeros(32, np.uint32)
    body = (
        ADDRESS
        + """ .reg .b8 q, z; .reg .b16 c; .reg .f32 x, y; cvt.rn.f32.u32 x, r1; neg.f32 y, x;
 { cvt.rn.satfinite.e2m1x2.f32 q, y, x; mov.b16 c, {q, 0}; } { mov.b16 {q, z}, c; cvt.rn.f16x2.e2m1x2 r2, q; }
 st.global.b32 [d3], r2; ret;"""
    )
    launch(kernel(PTR, REGISTERS + body).replace("sm_90a", "sm_100a"), "k", [out], target="sm_100a")
    want = np.minimum(np.arange(32), 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float16)
    low, high = out.astype(np.uint16).view(np.float16), (out >> 16).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(low, want)
    np.testing.assert_array_equal(high, -want)
