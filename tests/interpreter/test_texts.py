"""Registers, literals and operands as assemblers take them, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import PtxError, parse

from . import modules, texts
from .launching import HEADER
from .test_forms import needs_ptxas


@needs_ptxas
def test_a_sample_of_texts() -> None:
    taken, unequal = texts.differences(400, seed=0)
    assert not unequal, "\n".join(unequal)
    assert taken > 100


@needs_ptxas
@pytest.mark.slow
def test_many_texts() -> None:
    _, unequal = texts.differences(4000, seed=1)
    assert not unequal, "\n".join(unequal)


@needs_ptxas
def test_a_sample_of_modules() -> None:
    taken, unequal = modules.differences(40, seed=0)
    assert not unequal, "\n".join(unequal)
    assert taken > 4


@needs_ptxas
@pytest.mark.slow
def test_many_modules() -> None:
    _, unequal = modules.differences(600, seed=1)
    assert not unequal, "\n".join(unequal)


def run(
    body: str, out: np.ndarray, block: int | tuple[int, ...] = 32, before: str = "", **options: object
) -> kd.check.Report:
    """Run a body with the address of `out` in d0, and `t`, the number of the thread."""
    text = f"""{HEADER}{before}
.visible .entry k(.param .u64 p) {{
 .reg .b32 r<9>, t; .reg .b64 d<9>; .reg .f32 f<9>; .reg .f64 g<9>; .reg .b16 h<9>; .reg .pred q<9>; .reg .b128 w<3>;
 ld.param.u64 d0, [p]; mov.u32 t, %tid.x; {body}
 ret;
}}
"""
    return kd.check(text, out, grid=1, block=block, **options)


# What PTX says, and what a GPU's assembler makes of it.
STORES = {
    "leading zeros name the same register": ("mov.u32 r4, 5; mov.u32 r04, 7; st.global.u32 [d0], r4; st.global.u32 [d0+4], r004;", [7, 7]),
    "a vector and its elements": (".reg .v4 .b32 v; mov.b32 v.x, 3; mov.b32 v.g, 4; st.global.v2.b32 [d0], {v.r, v.y};", [3, 4]),
    "a vector is stored": (".reg .v2 .u32 v; mov.v2.u32 v, {8, 9}; st.global.v2.u32 [d0], v;", [8, 9]),
    "a vector of a range": (".reg .v2 .u32 v<3>; mov.v2.u32 v2, {8, 9}; mov.v2.u32 v1, v02; st.global.v2.u32 [d0], v1;", [8, 9]),
    "elements change places": (".reg .v2 .u32 v; mov.v2.u32 v, {8, 9}; mov.v2.u32 v, {v.y, v.x}; st.global.v2.u32 [d0], v;", [9, 8]),
    "a vector is packed": (".reg .v2 .u32 v; mov.v2.u32 v, {8, 9}; mov.b64 d1, v; st.global.u64 [d0], d1;", [8, 9]),
    "a vector is unpacked": (".reg .v2 .b32 v; mov.u64 d1, 0x900000008; mov.b64 v, d1; st.global.v2.b32 [d0], v;", [8, 9]),
    "an inner vector": (".reg .v2 .b32 v; mov.v2.b32 v, {1, 2}; { .reg .v2 .b32 v; mov.v2.b32 v, {8, 9}; } st.global.v2.b32 [d0], v;", [1, 2]),
    "the extents of a block": (".reg .v4 .u32 v; mov.v4.u32 v, %ntid; st.global.v2.u32 [d0], {v.x, v.w};", [32, 0]),
    "extents in 16 bits": ("mov.v4.u16 {h1, h2, h3, h4}, %ntid; mov.b32 r1, {h1, h2}; mov.b32 r2, {h3, h4}; st.global.v2.u32 [d0], {r1, r2};", [65568, 1]),
    "extents in 128 bits": ("mov.b128 w1, %ntid; mov.b128 {d1, d2}, w1; add.u64 d1, d1, d2; st.global.u64 [d0], d1;", [33, 1]),
    "a fourth element": ("mov.u32 r1, %ctaid.w; add.u32 r1, r1, 3; st.global.v2.u32 [d0], {r1, 1};", [3, 1]),
    "a predicate that is special": ("mov.u32 r1, 1; @%is_explicit_cluster mov.u32 r1, 2; st.global.v2.u32 [d0], {r1, r1};", [1, 1]),
    "the lower half of a clock": ("cvt.u32.u32 r1, %clock64; setp.ne.u32 q1, r1, 0; selp.u32 r1, 1, 0, q1; st.global.v2.u32 [d0], {r1, 7};", [1, 7]),
    "a comparison of floats": ("mov.u32 r1, 1.5 < 2.0; mov.u32 r2, (.5 >= 1e0) + 3; st.global.v2.u32 [d0], {r1, r2};", [1, 3]),
    "a float as 64 bits": ("mov.b64 d1, 1.5; st.global.b64 [d0], d1;", [0, 0x3FF80000]),
    "a warp and one": ("mov.u32 r1, WARP_SZ+1; st.global.v2.u32 [d0], {r1, 0};", [33, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_what_is_stored(name: str) -> None:
    body, want = STORES[name]
    out = np.zeros(2, np.uint32)
    report = run("setp.ne.u32 q0, t, 0; @q0 ret; " + body, out)
    assert report.verdict == "none", str(report)
    assert out.tolist() == want


# Literals and expressions of floats, with the doubles that ptxas makes of them.
FLOATS = {
    ".5": 0.5, "-.5e1": -5.0, "5.": 5.0, "0.1+0.2*3.0": 0.1 + 0.2 * 3.0, "(1.0+2.0)/4.0": 0.75, "- -2.0": 2.0,
    "0d4000000000000000*2.0": 4.0, "1e308*10.0": np.inf, "-1e308*10.0": -np.inf, "+1.5": 1.5, "1.0-2.0": -1.0,
}  # fmt: skip


def test_floats() -> None:
    body = " ".join(
        f"mov.f64 g1, {text}; st.global.f64 [d0+{16 * at}], g1; mov.f32 f1, {text}; st.global.f32 [d0+{16 * at + 8}], f1;"
        for at, text in enumerate([*FLOATS, "1e40", "-1e300"])
    )
    out = np.zeros((len(FLOATS) + 2, 2))
    assert run("setp.ne.u32 q0, t, 0; @q0 ret; " + body, out).verdict == "none"
    want = np.array([*FLOATS.values(), 1e40, -1e300])
    with np.errstate(over="ignore"):
        single = want.astype(np.float32)
    np.testing.assert_array_equal(out[:, 0], want)
    np.testing.assert_array_equal(np.ascontiguousarray(out[:, 1]).view(np.float32)[::2], single)
    values = parse(f"{HEADER}.global .f64 x[] = {{{', '.join(FLOATS)}}};\n").variables["x"].init
    assert values is not None
    np.testing.assert_array_equal(np.frombuffer(values), want[:-2])


STACK = """ mov.u32 r7, 0; stacksave.u64 d7;
L: add.u32 r1, t, 1; shl.b32 r1, r1, 3; cvt.u64.u32 d1, r1; alloca.u64 d2, d1, 16; and.b64 d3, d2, 15; setp.ne.u64 q1, d3, 0; @q1 trap;
 mov.u32 r2, 0; M: shl.b32 r3, r2, 2; cvt.u64.u32 d3, r3; add.u64 d3, d3, d2; add.u32 r4, r2, t; st.local.u32 [d3], r4; add.u32 r2, r2, 1;
 setp.lt.u32 q1, r3, r1; add.u32 r3, r3, 8; setp.lt.u32 q1, r3, r1; @q1 bra M;
 alloca.u64 d4, 4, 4; st.local.u32 [d4], 100; call (r5), fill, (t); ld.local.u32 r6, [d2]; ld.local.u32 r8, [d4]; add.u32 r6, r6, r8; add.u32 r6, r6, r5;
 stackrestore.u64 d7; add.u32 r7, r7, 1; setp.lt.u32 q1, r7, 9; @q1 bra L;
 mul.wide.u32 d5, t, 4; add.u64 d5, d5, d0; st.global.u32 [d5], r6;"""
FILL = """.func (.reg .b32 o) fill (.reg .b32 i) { .reg .b64 a; alloca.u64 a, 512; st.local.u32 [a], i; st.local.u32 [a+508], 1000;
 .reg .b32 x, y; ld.local.u32 x, [a]; ld.local.u32 y, [a+508]; add.u32 o, x, y; ret; }"""


def test_the_stack_grows_and_shrinks() -> None:
    """Each lane takes another number of bytes, in a loop that gives them back, beside a function that takes its own."""
    out = np.zeros(96, np.uint32)
    report = run(STACK, out, 96, FILL)
    assert report.verdict == "none", str(report)
    np.testing.assert_array_equal(out, 1100 + 2 * np.arange(96))


@pytest.mark.parametrize(
    "body,found",
    [("st.global.u32 [d2], r2;", False), ("st.global.u32 [d2], r1;", True), ("st.global.v2.u32 [d2], {r3, r2};", True)],
)
def test_each_element_of_a_move_has_its_own_origin(body: str, found: bool) -> None:
    """Unwritten memory goes to r1 by a move of two, and to r3 by one that exchanges elements; r2 is a number."""
    moves = "mov.v2.u32 {r1, r2}, {r4, 7}; mov.v2.u32 {r5, r3}, {r2, r1};"
    line = f"alloca.u64 d1, 16; ld.local.u32 r4, [d1]; {moves} mul.wide.u32 d2, t, 8; add.u64 d2, d2, d0; {body}"
    assert [str(h.kind) for h in run(line, np.zeros(64, np.uint32)).hazards] == ["uninitialised"] * found


@pytest.mark.parametrize(
    "body,kind",
    [
        ("alloca.u64 d1, 16; ld.local.u32 r1, [d1]; mul.wide.u32 d2, t, 4; add.u64 d2, d2, d0; st.global.u32 [d2], r1;", "uninitialised"),
        ("stacksave.u64 d3; alloca.u64 d1, 16; st.local.u32 [d1], 1; stackrestore.u64 d3; alloca.u64 d1, 16; ld.local.u32 r1, [d1];"
         " mul.wide.u32 d2, t, 4; add.u64 d2, d2, d0; st.global.u32 [d2], r1;", "uninitialised"),
        ("alloca.u64 d1, -16; st.local.u32 [d1], 1;", "out_of_bounds"),
        ("alloca.u64 d1, 64; st.local.u32 [d1+100000], 1;", "out_of_bounds"),
    ],
)  # fmt: skip
def test_hazards_of_the_stack(body: str, kind: str) -> None:
    report = run(body, np.zeros(32, np.uint32))
    assert {h.kind for h in report.hazards} == {kind}, str(report)


@pytest.mark.parametrize(
    "body,words",
    [
        (".reg .v2 .b32 v; ld.shared.b32 r1, [v.x];", "'v.x' is no address"),
        (".reg .v2 .b32 v; mov.b32 v.z, 1;", "v.z is no destination"),
        (".reg .v4 .b64 v;", "a vector has at most 16 bytes"),
        (".reg .v2 .pred v;", "predicates are scalar"),
        (".reg .bf16 x;", "unknown register type '.bf16'"),
        (".shared .b32 .align 8 x;", "come in this order"),
        (".shared .e4m3 x;", "is no type of .shared variables"),
        ("mov.f64 g1, 1e309;", "does not fit 64 bits"),
        ("mov.f64 g1, 1.0/0.0;", "divided by 0"),
        ("mov.f64 g1, 1.0+1;", "'+' is of two integers or of two floats"),
        ("mov.f64 g1, ~1.0;", "'~' is of integers"),
        ("mov.f32 f1, (0f3f800000)+1.0;", "is no part of an expression"),
        ("mov.f32 f1, -(0f3f800000);", "has no '-'"),
        ("mov.f64 g1, 1?2.0:3.0;", "is of integers"),
        ("mov.pred q1, 1.0;", "a floating literal"),
        ("mov.u16 h1, %laneid;", "'%laneid' is a number of 32 bits"),
        ("mov.b128 w1, %laneid;", "'%laneid' is a number of 32 bits"),
        ("cvt.rn.f32.u32 f1, %laneid;", "convert an integer first"),
        ("mov.u32 r1, %pm8;", "'%pm8' is not declared"),
        ("mov.v2.u32 {r1, r2}, %tid;", "a vector of 2 is wanted"),
        ("mov.v4.b64 {d1, d2, d3, d4}, {d1, d2, d3, d4};", "there is no .v4 of .b64"),
        ("mov.b32 r1, {h1, h2, h3, h4};", "'h1' has 2 bytes, a part has 1"),
        ("bfe.u32 r1, r2, 4, 300;", "operand 3, 300, is not in 0 to 255"),
        ("bfi.b64 d1, d2, d3, -1, 4;", "operand 3, -1, is not in 0 to 255"),
        ("wgmma.wait_group.sync.aligned -1;", "a number from 0 on is wanted"),
        ("cp.async.bulk.prefetch.L2.global [d0], 1048576;", "not in 0 to 1048560"),
        ("alloca.u64 d1, 16, 3;", "no power of two"),
        ("stackrestore.u64 16;", "a register is wanted"),
        ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {r1, r2}, r3, {r4}, {r1, r2};", "a vector in braces is wanted"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {f1, f2}, {r1, r2, r3, r4}, {r1, r2}, {r1, r2};", "'f1' is .f32"),
        ("cp.async.bulk.prefetch.tensor.1d.L2.global.tile [d0, r1];", "coordinates stand in braces"),
        ("mov.u64 d1, f; T: .calltargets f, g; call (r1), d1, (r2), T;", "'r1' is .b32, too narrow for .b64"),
        ("mov.u64 d1, f; call (r1), d1, (r2), T; T: .calltargets f;", "of call targets before it"),
        ("brx.idx r1, T; L: T: .branchtargets L;", "label before it"),
        ("mov.u64 d1, f+4;", "an address behind the function 'f'"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(body: str, words: str) -> None:
    before = ".func (.reg .b32 o) f (.reg .b32 i) { mov.b32 o, i; ret; }\n.func (.reg .b64 o) g (.reg .b32 i) { mov.b64 o, 1; ret; }\n"
    with pytest.raises(PtxError) as caught:
        run(body, np.zeros(32, np.uint32), 32, before)
    assert words in str(caught.value) and caught.value.line and caught.value.column, str(caught.value)
