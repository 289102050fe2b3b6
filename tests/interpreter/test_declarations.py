"""Declarations that an assembler takes and refuses: names, arrays, initial values, functions, directives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.interpreter import PtxError, parse

from .launching import HEADER


def module(before: str = "", body: str = "", params: str = "", directives: str = "", after: str = "") -> str:
    return f"{HEADER}{before}\n.visible .entry k({params}) {directives} {{\n{body}\n ret;\n}}\n{after}"


Y = ".global .b32 y[4];\n"
FUNCTION = ".func f() { ret; }\n"
TAKEN = {
    "inner names": module(body=".reg .b32 x, r<5>; { .reg .b64 x, r<5>; } { .reg .b32 x; .shared .b32 s; } .shared .b32 s;"),
    "ranges beside each other": module(body=".reg .b32 r<5>, r5, r1<5>, %r<3>;"),
    "a name of the module, too": module(".global .b32 x;", ".reg .b32 x; x2: .shared .b32 k;"),
    "external first": module(".extern .global .b32 x;\n.visible .global .b32 x;\n.extern .shared .b8 s[];\n.extern .shared .align 16 .b8 s[];"),
    "declared, then defined": module(".func f(.param .b32 y);\n.func f(.param .b32 z);\n.func f(.param .b32 x) { ret; }"),
    "external and unused": module(".extern .func (.param .b32 r) f(.param .b64 a);"),
    "an entry before it is defined": module(".visible .entry k();"),
    "names": module(body=".reg .b32 $x, _y, %z9$_, add; %l: mov.u32 add, 1;"),
    "attributes": module(".global .attribute(.managed) .b32 x;"),
    "parameters": module(params=".param .align 4 .b8 a[32764]"),
    "form feed": module(body="\f"),
    "options of the target": module().replace("sm_90a", "sm_90a, texmode_independent"),
    "addresses": module(Y + FUNCTION + ".global .u64 x[4] = {y, y+4, generic(y)+8, f};"),
    "vectors": module(".global .v2 .b32 x[2] = {{3, 4}, {5, 6}};\n.global .v4 .f32 v = {1.0, 2.0, 3.0, 4.0};"),
    "lines of a preprocessor": module('# 1 "x.cu"\n  # 2 "x.cu" 3\n.global .b32 x; # 3 "x.cu"', '# 4 "x.cu"\n .pragma "nounroll", "x";'),
    "an alias": module(FUNCTION + ".visible .func a();\n.alias a, f;"),
    "pointers of an entry": module(params=".param .u64 .ptr .global .align 8 a, .param .u32 .ptr .shared b, .param .u64 .ptr .align 4 c"),
    "numbers of 128 bits": module(".global .b128 x[2] = {1, -1};"),
    "all constants": module(".const .b8 x[65536];"),
    "several results": module(".func (.reg .b32 r, .reg .b32 q) g() { ret; }"),
    "linkages": module(".extern .global .b32 w;\n.weak .global .b32 w = 3;\n.common .global .b32 v = 1;\n.weak .func g();\n.func g() { ret; }\n.visible .func h();\n.func h() { ret; }"),
    "pragmas": module('.pragma "nounroll";', '.pragma "used_bytes_mask 0x3", "anything";', directives='.pragma "z";'),
    "pragmas of PTX 9.0": module(body='.pragma "frequency 4", "enable_smem_spilling";').replace("8.6", "9.0"),
    "registers that a call keeps": module(".func g() .noreturn .abi_preserve 8 .abi_preserve_control 2 { exit; }").replace("8.6", "9.0"),
    "blocks as clusters": module(directives=".blocksareclusters .reqntid 32 .reqnctapercluster 2").replace("8.6", "9.0"),
    "sizes": module(".global .b32 x[WARP_SZ];\n.global .b32 z[] = {1, 2};\n.global .b32 e[2] = {};"),
}  # fmt: skip
REFUSED = {
    "a register of a range": (module(body=".reg .b32 r<5>; .reg .b32 r3;"), "'r3' is declared twice"),
    "a range over a register": (module(body=".reg .b32 r3; .reg .b32 r<5>;"), "'r3' is declared twice"),
    "a range twice": (module(body=".reg .b32 r<5>; .reg .b32 r<3>;"), "declared twice"),
    "a variable of a range": (module(body=".shared .b32 r3; .reg .b32 r<5>;"), "'r3' is declared twice"),
    "a register and a variable": (module(body=".reg .b32 x; .local .b32 x;"), "declared twice, as a register, too"),
    "a register and a parameter": (module(body=".reg .b32 a;", params=".param .b32 a"), "declared twice, as a variable"),
    "a register and a label": (module(body=".reg .b32 x; x: mov.u32 x, 0;"), "label 'x' is defined twice, as a register"),
    "a label and a register": (module(body="x: .reg .b32 x;"), "declared twice, as a label, too"),
    "a label and a table": (module(body="A: B: A: .branchtargets A, B;"), "label 'A' is defined twice"),
    "a table of no labels": (module(body="t: .branchtargets A, B;"), "label 'A' is not defined"),
    "parameters of one name": (module(params=".param .b32 a, .param .b32 a"), "'a' is declared twice"),
    "no name": (module(body=".reg .b32 a.b;"), "'a.b' is not a register name"),
    "a percent sign": (module(body=".reg .b32 %<5>;"), "'%' is not a register name"),
    "an underscore": (module(".func f(.param .b32 _) { ret; }"), "'_' is not a name"),
    "a range below 0": (module(body=".reg .b32 r<-1>;"), "expected a number of registers"),
    "variables of one name": (module(".global .b32 x;\n.const .b32 x;"), "'x' is declared twice"),
    "a variable and a function": (module(FUNCTION + ".global .b32 f;"), "'f' is declared twice"),
    "an external variable of another size": (module(".extern .global .b32 x[2];\n.global .b32 x[4];"), "another kind of variable"),
    "an external function here": (module(".extern .func f();\n" + FUNCTION), "is .extern in line 4"),
    "a function of other parameters": (module(".func f(.param .b32 x);\n.func f(.param .u32 x) { ret; }"), "with other parameters"),
    "a function after its definition": (module(FUNCTION + ".func f();"), "defined twice"),
    "a function and an entry": (module(".func f();\n.entry f() { ret; }"), "with other parameters"),
    "a function that nobody defines": (module(".visible .func f();"), "function 'f' is not defined"),
    "a predicate in memory": (module(body=".local .pred p;"), "must be a register"),
    "a register as the entry's parameter": (module(params=".reg .b32 a"), "must be in .param"),
    "too many parameters": (module(params=".param .align 4 .b8 a[32768]"), "may have 32764"),
    "local memory of the module": (module(".local .b32 x;"), "unexpected '.local'"),
    "two linkages": (module(".visible .extern .global .b32 x;"), "unexpected '.extern'"),
    "an array of none": (module(".global .b32 x[0];"), "an extent of 0"),
    "an array below 0": (module(".global .b32 x[-1];"), "expected an extent"),
    "a second open extent": (module(".global .b32 x[2][] = {{1},{2}};"), "expected an extent"),
    "a value in shared memory": (module(body=".shared .b32 x = 3;"), "does not take"),
    "a value of another module's": (module(".extern .global .b32 x = 3;"), "does not take"),
    "a value of halves": (module(".global .f16 x = 1;"), "does not take"),
    "an integer as a float": (module(".global .f32 x[2] = {1.0, 2};"), "expected a float for .f32"),
    "a float as an integer": (module(".global .u32 x = 0f3f800000;"), "is no value of .u32"),
    "an address as bits": (module(Y + ".global .b64 x = y;"), "wants .u64"),
    "an address of a later variable": (module(".global .u64 x = y;\n" + Y), "not declared before it"),
    "an address of shared memory": (module(".shared .b32 y;\n.global .u64 x = y;"), "neither in .global nor in .const"),
    "a list for a number": (module(".global .b32 x = {3};"), "as the value of an element"),
    "a number for a list": (module(".global .b32 x[2] = 3;"), "expected '{'"),
    "a flat list": (module(".global .b32 x[2][2] = {1, 2, 3, 4};"), "expected '{'"),
    "a comma at the end": (module(".global .b32 x[3] = {1, 2,};"), "expected an integer"),
    "half a vector": (module(".global .v2 .b32 x = {3};"), "1 values for a vector of 2"),
    "no registers": (module(directives=".maxnreg 0"), "positive numbers"),
    "a directive without a number": (module(directives=".maxntid"), "expected a number"),
    "a directive of functions": (module(directives=".noreturn"), "is of functions"),
    "a directive of entries": (module(".func f() .maxntid 32 { ret; }"), "is of entries"),
    "two sizes of clusters": (module(directives=".maxclusterrank 8 .reqnctapercluster 2"), "exclude each other"),
    "an unknown attribute": (module(".global .attribute(.foo) .b32 x;"), "unknown attribute '.foo'"),
    "two versions": (module().replace(".target", ".version 8.6\n.target"), "follows .version, not '.version'"),
    "a version at the end": (module(after=".version 8.6\n"), "unexpected '.version'"),
    "an address size at the end": (module(after=".address_size 64\n"), "unexpected '.address_size'"),
    "a pragma without a string": (module(".pragma x;"), "expected a string"),
    "an alias of itself": (module(FUNCTION + ".alias f, f;"), "is not declared before, without a body"),
    "an alias without a declaration": (module(FUNCTION + ".alias a, f;"), "is not declared before, without a body"),
    "an alias of no body": (module(".extern .func f();\n.func a();\n.alias a, f;"), "has no body"),
    "an alias with other parameters": (module(FUNCTION + ".func a(.param .b32 x);\n.alias a, f;"), "have other parameters"),
    "a pointer of a function": (module(".func g(.param .u64 .ptr .global p) { ret; }"), "unknown type or modifier '.ptr'"),
    "a pointer's parts in another order": (module(params=".param .u64 .ptr .align 8 .global a"), "unknown type or modifier '.global'"),
    "a pointer with a bad alignment": (module(params=".param .u64 .ptr .align 3 a"), "not a power of two"),
    "vectors as parameters": (module(params=".param .v2 .b32 a"), "which .param does not have"),
    "halves as parameters": (module(params=".param .f16x2 a"), "which .param does not have"),
    "too many constants": (module(".const .b8 x[60000];\n.const .b8 y[6000];"), "of .const, which has 65536"),
    "common shared memory": (module(".common .shared .b32 x;"), ".common is of .global variables"),
    "a common function": (module(".common .func g() { ret; }"), "unexpected '.func'"),
    "a result that nobody gets": (module(".func (.reg .b32 r) g() .noreturn { exit; }"), "so it is not .noreturn"),
    "a register as a declared entry's parameter": (module(".extern .entry g(.reg .b32 a);"), "must be in .param"),
    "an external function with a body": (module(".extern .func g() { ret; }"), "is .extern, and has a body"),
    "an external variable that nobody else sees": (module(".extern .global .b32 w;\n.global .b32 w;"), ".visible is missing"),
    "a function that is visible too late": (module(".func g();\n.visible .func g() { ret; }"), "declared before without .visible"),
    "several results in memory": (module(".func (.param .b32 r, .reg .b32 q) g() { ret; }"), "which must be registers"),
    "managed shared memory": (module(".shared .attribute(.managed) .b32 x;"), "unknown type or modifier '.attribute'"),
    "a size that nothing gives": (module(".global .b32 x[] = {};"), "its list is empty"),
    "two sizes of blocks": (module(directives=".maxntid 64 .reqntid 32"), "exclude each other"),
    "an unknown option": (module().replace("sm_90a", "sm_90a, foo"), "'foo' is no option"),
    "a pragma that nothing knows": (module('.pragma "unroll";'), "there is no pragma 'unroll' outside of functions"),
    "a pragma of bodies": (module('.pragma "used_bytes_mask 1";'), "of the body of a function"),
    "a pragma of entries": (module(".func g() { .pragma \"enable_smem_spilling\"; ret; }").replace("8.6", "9.0"), "of the body of an entry"),
    "a pragma too early": (module(body='.pragma "frequency 3";'), "needs .version 9.0"),
    "a pragma without its number": (module(body='.pragma "used_bytes_mask";'), "needs a number from 0 on, not ''"),
    "a frequency of 0": (module(body='.pragma "frequency 0";').replace("8.6", "9.0"), "needs a number from 1 on"),
    "a pragma before a function's body": (module('.func g() .pragma "z"; { ret; }'), "unknown directive '.pragma'"),
    "a unified variable": (module(".global .attribute(.unified(1, 2)) .b32 x;"), "needs a linker"),
    "a unified function": (module(".func .attribute(.unified(1, 2)) g() { ret; }"), "needs a linker"),
    "a managed function": (module(".func .attribute(.managed) g() { ret; }"), "unknown attribute '.managed'"),
    "an attribute behind a type": (module(".global .b32 .attribute(.managed) x;"), "unknown type or modifier '.attribute'"),
    "an attribute of an entry": (module(directives=".attribute(.managed)"), "unknown directive"),
    "registers that a call keeps too early": (module(".func g() .abi_preserve 8 { ret; }"), "needs .version 9.0"),
    "too many registers that a call keeps": (module(".func g() .abi_preserve 240 { ret; }").replace("8.6", "9.0"), "is more than 239"),
    "registers that a call keeps twice": (
        module(".func g() .abi_preserve 8 .abi_preserve 8 { ret; }").replace("8.6", "9.0"), "at the wrong place"),
    "a directive before the name": (module(".func .noreturn g() { exit; }"), "'.noreturn'"),
    "directives of a declared entry": (module(".extern .entry g() .maxntid 32;"), "has directives, and no body"),
    "a pragma of a declared entry": (module('.extern .entry g() .pragma "z";;'), "has directives, and no body"),
    "a function that returns after all": (module(".func g() .noreturn;\n.func g() { ret; }"), "with other directives"),
    "a directive of old versions": (module(directives=".maxnctapersm 2"), "unknown directive"),
    "blocks as clusters without sizes": (
        module(directives=".blocksareclusters .reqntid 32").replace("8.6", "9.0"), "needs .reqntid and .reqnctapercluster"),
    "a file twice": (module('.file 1 "x.cu"\n.file 1 "y.cu"'), "file 1 is declared twice"),
    "a file without a name": (module(".file 1 x"), "expected a file's name"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken(name: str) -> None:
    parse(TAKEN[name])


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_place(name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(PtxError) as caught:
        parse(text)
    assert words in str(caught.value) and caught.value.line > 1 and caught.value.column > 0, str(caught.value)


@pytest.mark.slow
def test_the_assembler_agrees(tmp_path: Path) -> None:
    differ = list[str]()
    for name, text in {**TAKEN, **{name: text for name, (text, _) in REFUSED.items()}}.items():
        (tmp_path / "x.ptx").write_text(text)
        command = [str(find_ptxas()), "-arch=sm_90a", "x.ptx", "-o", "x.cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        if (done.returncode == 0) != (name in TAKEN):
            differ.append(f"{name}: {done.stderr or 'taken'}")
    assert differ == []


# What an assembler makes of values: it fills lists up, makes floats of doubles, and keeps the bits of floats.
VALUES = {
    ".b32 x[2][2] = {{1}, {2, 3}}": np.array([1, 0, 2, 3], np.int32),
    ".b32 x[3] = {7}": np.array([7, 0, 0], np.int32),
    ".b32 x = 1.5": np.float32([1.5]),
    ".f32 x = 0d400c000000000000": np.float32([3.5]),
    ".f32 x[2] = {-1.5, 0f40600000}": np.float32([-1.5, 3.5]),
    ".b64 x = 0f3f800000": np.array([0x3F800000], np.int64),
    ".f64 x = -2.5": np.float64([-2.5]),
    ".u8 x = -1": np.uint8([255]),
    ".u32 x[] = {3+4, (3+4)*2, WARP_SZ}": np.uint32([7, 14, 32]),
    ".v2 .b16 x[2] = {{1, 2}, {3, 4}}": np.uint16([1, 2, 3, 4]),
}


@pytest.mark.parametrize("declaration", VALUES)
def test_initial_values(declaration: str) -> None:
    want = VALUES[declaration]
    var = parse(module(f".global {declaration};")).variables["x"]
    assert var.init is not None and var.size == want.nbytes
    assert np.frombuffer(var.init, want.dtype).tolist() == want.tolist()


# Constant expressions and their values, as ptxas computes them.
CONSTANTS = {
    "3+4*2": 11, "(3+4)*2": 14, "1<<4|3": 19, "7-3-2": 2, "16/4/2": 2, "-5/2": -2, "-5/2U": 0x7FFFFFFFFFFFFFFD, "-5 % 3": 2, "5 % -3": 5, "-1>>1": -1,
    "-1U>>1": 0x7FFFFFFFFFFFFFFF, "~0>>1": 0x7FFFFFFFFFFFFFFF, "1?2:3": 2, "0?2:1?4:5": 4, "-1<2": 1, "-1<2U": 0, "!5": 0, "1&&0||1": 1,
    "6^3|8&12": 13, "1<<65": 2, "(.s64)0xffffffffffffffff/2": 0, "0xffffffffffffffff>>60": 15, "1+2<<3": 24, "3==3!=0": 1, "2*-3": -6,
    "WARP_SZ*2": 64, "(1?-1:1U)>>1": -1, "1<=2>=1": 1, "- -3": 3,
}  # fmt: skip


def test_constant_expressions() -> None:
    text = module(f".global .s64 x[] = {{{', '.join(CONSTANTS)}}};")
    init = parse(text).variables["x"].init
    assert init is not None
    made = np.frombuffer(init, np.int64).tolist()
    assert dict(zip(CONSTANTS, made, strict=True)) == CONSTANTS
    body = """ .reg .b64 d; .reg .b32 r; ld.param.u64 d, [a]; mov.u32 r, (1 << 4) | 3; st.global.u32 [d+4*(1+1)], r;
 st.global.u32 [d+-4+8], !0; st.global.u32 [d], 5 / 2 * 10;"""
    out = np.zeros(3, np.int32)
    assert kd.check(module("", body, ".param .u64 a"), out, grid=1, block=1).verdict == "none"
    assert out.tolist() == [20, 1, 19]


MASKS = ", ".join(f"{0xFF << 8 * n:#x}({{}})" for n in range(8))


@pytest.mark.parametrize(
    "value", [".u64 x = y+4", ".u64 x = generic(y)+4", f".u8 x[8] = {{{MASKS.replace('{}', 'z')}}}"], ids=str
)
def test_addresses_as_values(value: str) -> None:
    """An address, and one in bytes, as compilers write pointers in packed structures."""
    body = """ .reg .b64 d<3>; .reg .b32 r<2>; ld.param.u64 d0, [a]; ld.global.u64 d1, [x]; ld.u32 r0, [d1]; st.global.u32 [d0], r0;"""
    before = f".global .b32 y[2] = {{5, 6}};\n.global .b32 z = 6;\n.global .align 8 {value};"
    out = np.zeros(1, np.int32)
    report = kd.check(module(before, body, ".param .u64 a"), out, grid=1, block=1)
    assert report.verdict == "none" and out.tolist() == [6]


FUNCTIONS = """.func (.reg .b32 o) more (.reg .b32 i, .reg .b64 n) { .reg .b32 t; cvt.u32.u64 t, n; add.u32 o, i, t; ret; }
.func (.param .b32 o) plus (.param .b32 i, .param .f32 f) { .reg .b32 x, y; .reg .f32 g; ld.param.b32 x, [i]; ld.param.f32 g, [f];
 cvt.rni.s32.f32 y, g; add.u32 x, x, y; st.param.b32 [o], x; ret; }
.func (.reg .b32 o) down (.reg .b32 i) { .reg .pred p; .reg .b32 j, k; mov.u32 o, 0; setp.eq.u32 p, i, 0; @p ret;
 sub.u32 j, i, 1; call (k), down, (j); add.u32 o, k, i; ret; }
.func set (.reg .b64 a, .reg .b32 v) { st.global.u32 [a], v; ret; }
"""
# What each thread t stores; calls pass registers, literals and .param variables.
CALLS = {
    "registers to registers": ("call (r1), more, (r0, d2);", lambda t: t + 7),
    "a literal": ("call (r1), more, (r0, 5);", lambda t: t + 5),
    "registers to parameters": ("mov.f32 f0, 0f40400000; call (r1), plus, (r0, f0);", lambda t: t + 3),
    "a float literal": ("call.uni (r1), plus, (r0, 0f41100000);", lambda t: t + 9),
    "parameters to registers": (
        "{ .param .b32 x, y; .param .b64 z; st.param.b32 [x], r0; st.param.b64 [z], d2; call (y), more, (x, z); ld.param.b32 r1, [y]; }",
        lambda t: t + 7,
    ),
    "recursion": ("call (r1), down, (r0);", lambda t: t * (t + 1) // 2),
    "no result": ("mov.u32 r1, 3; call (_), more, (r0, d2);", lambda t: 0 * t + 3),
    "some lanes": ("mov.u32 r1, 1; setp.gt.u32 p, r0, 9; @p call (r1), more, (r0, d2);", lambda t: np.where(t > 9, t + 7, 1)),
    "by address": (
        "mov.u64 d3, more; P: .callprototype (.reg .b32 _) _ (.reg .b32 _, .reg .b64 _); call (r1), d3, (r0, d2), P;",
        lambda t: t + 7,
    ),
    "a pointer": ("mov.u32 r1, 4; call set, (d1, 9); ld.global.u32 r1, [d1];", lambda t: 0 * t + 9),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arguments_in_registers(name: str) -> None:
    line, want = CALLS[name]
    body = f""" .reg .b64 d<4>; .reg .b32 r<3>; .reg .f32 f<2>; .reg .pred p; ld.param.u64 d0, [a]; mov.u32 r0, %tid.x;
 mul.wide.u32 d1, r0, 4; add.u64 d1, d1, d0; mov.u64 d2, 7; {line} st.global.u32 [d1], r1;"""
    out = np.zeros(64, np.int32)
    report = kd.check(module(FUNCTIONS, body, ".param .u64 a"), out, grid=1, block=64)
    assert report.verdict == "none", str(report)
    np.testing.assert_array_equal(out, want(np.arange(64)))


@pytest.mark.parametrize(
    "line,words",
    [
        ("call (r1), more, (r0);", "takes 2 arguments and gives 1 results, not 1 and 1"),
        ("call (r1), plus, (r0, d1);", "'d1' is .b64"),
        ("call (r1), more, (d2, d2);", "'d2' is .b64"),
        ("call (3), more, (r0, d2);", "results are"),
        ("call (r1), more, (a, d2);", "'a' is no .param variable of this body"),
        ("{ .param .b64 q; call (q), more, (r0, d2); }", "'q' has 8 bytes, and the parameter 'o' 4"),
    ],
)
def test_arguments_that_do_not_fit(line: str, words: str) -> None:
    body = f" .reg .b64 d<4>; .reg .b32 r<3>;\n {line}"
    with pytest.raises(PtxError, match=words) as caught:
        kd.check(module(FUNCTIONS, body, ".param .u64 a"), np.zeros(4, np.int32), grid=1, block=32)
    assert caught.value.line > 1 and caught.value.column > 0
