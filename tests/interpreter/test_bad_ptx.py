"""PTX that an assembler refuses: an error with line and column, and nothing is run."""

from __future__ import annotations

import pickle
import re
import signal

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import PtxError, parse
from kernel_dsl.runtime.interpreter.machine.compiler import Compiler
from kernel_dsl.runtime.interpreter.machine.program import Program

from .launching import HEADER, kernel, launch

REG = ".reg .pred p; .reg .b16 h<3>; .reg .b32 r<9>; .reg .b64 d<9>; .reg .f32 f<9>; .reg .s32 s<3>;\n"

PARSE = [
    (kernel("", "ret;;"), "expected an instruction, found ';'"),
    (kernel("", "{ ret; };"), "expected an instruction, found ';'"),
    ("", "no .target"),
    (".target sm_90a", "starts with .version"),
    (kernel("", f"{REG} ld.global.u32 r1, [d1-4];"), "expected ']', found '-'"),
    (kernel("", f"{REG} mov.f32 f1, -0f3f800000;"), "expected an integer"),
    (kernel("", f"{REG} mov.u32 r1, 5 / 0;"), "divided by 0"),
    (kernel("", f"{REG} mov.u32 r1, (1 << 3;"), "expected '\\)', found ';'"),
    (HEADER + ".entry", "expected a function name"),
    (".version 8.6\n.entry", "follows .version, not '.entry'"),
    (".version x\n.target sm_90a", "a version such as 8.6"),
    (".version 8.6\n.target hopper\n", "'hopper' is no target"),
    (HEADER + ".visible .entry k() {", "not closed"),
    (HEADER + ".visible .entry k() { ret }", "expected an operand"),
    (HEADER + ".visible .entry k() { .reg .b33 r; ret; }", "unknown register type '.b33'"),
    (HEADER + ".visible .entry k() { .reg .b32 r; .reg .b32 r; ret; }", "declared twice"),
    (HEADER + ".visible .entry k() { add.s32 %r1, %r1, 1; ret; }", "'%r1' is not declared"),
    (HEADER + ".visible .entry k() { bra NOWHERE; }", "label 'NOWHERE' is not defined"),
    (HEADER + ".visible .entry k() { L: L: ret; }", "label 'L' is defined twice"),
    (HEADER + ".visible .entry k() { .reg .b32 r; @r ret; }", "not a predicate"),
    (HEADER + ".visible .entry k() { mov.u32 #; }", "unexpected character '#'"),
    (HEADER + ".shared .align 3 .b8 s[4];", "not a power of two"),
    (HEADER + ".visible .entry k() .maxntud 3 { ret; }", "unknown directive"),
    (HEADER + ".visible .entry k() { ret; }\n.visible .entry k() { ret; }", "defined twice"),
]


@pytest.mark.parametrize("text,words", PARSE, ids=[w for _, w in PARSE])
def test_text_that_does_not_parse(text, words):
    with pytest.raises(PtxError, match=words) as caught:
        parse(text)
    assert caught.value.line > 0 and caught.value.column > 0
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


COMPILE = [
    ("frobnicate.b32 r1, r2;", "unknown instruction"),
    ("add.s33 r1, r1, r2;", r"add\.s33"),
    ("add.rn.s32 r1, r1, r2;", r"add\.rn\.s32"),
    ("add.s32 r1, r2;", "operands"),
    ("add.s32 r1, r2, r3, r4;", "operands"),
    ("add.s32 r1, d1, r2;", "'d1' is .b64"),
    ("add.f32 f1, f1, s1;", "'s1' is .s32"),
    ("add.s32 r1, f1, r2;", "'f1' is .f32"),
    ("add.f32 f1, f1, 1;", "integer literal"),
    ("setp.lt.s32 r1, r2, r3;", "the result is .pred|wants .pred"),
    ("selp.b32 r1, r2, r3, r4;", "wants .pred"),
    ("ld.global.u32 r1, d1;", "address in brackets"),
    ("ld.global.u32 r1, [h1];", "'h1' is .b16"),
    ("ld.global.u64 r1, [d1];", "too narrow"),
    ("ld.glob.u32 r1, [d1];", "'.glob' is not possible"),
    ("ld.global.v2.u32 r1, [d1];", "a vector of 2"),
    ("ld.relaxed.global.u32 r1, [d1];", "needs a scope"),
    ("st.global.u32 [nowhere], r1;", "'nowhere' is not declared"),
    ("bar.sink 0;", "'.sink' is not possible"),
    ("bar.arrive 1;", "takes 2 operands"),
    ("shfl.sync.sideways.b32 r1, r2, 0, 31, -1;", "shfl"),
    ("mbarrier.arrive.shared::cta.u64 d1, [r1];", "'.u64' is not possible"),
    ("fence.proxy.sink;", "'.sink' is not possible"),
    ("setmaxnreg.inc.sync.aligned.u32 30;", "multiple of 8"),
    ("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {f1, f2}, d1, d2, 1, 1, 1, 0, 0;", "wgmma"),
    ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f1, f2}, d1, d2, 1, 1, 1, 0, 0;", "vector of 4"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.f16.f16 {f1, f2, f3, f4}, d1, d2, r1, 0, 1, 1, 1, 0, 0;", "wgmma"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {f1, f2, f3, f4}, d1, d2, r1, 2, 1, 1, 1, 0, 0;", "selector"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e4m3 {f1, f2, f3, f4}, d1, d2, r1, 1, 1, 1, 1;", "selector"),
    ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [r1], [d1, {r1}], [r2];", "2 coord|wants 2"),
    ("cp.async.ca.shared.global [r1], [d1], 5;", "copies of 5 bytes"),
    ("cp.async.wait_group r1;", "constant"),
    ("atom.global.frob.u32 r1, [d1], r2;", "'.frob' is not possible"),
    ("mov.b64 {r1, r2, r3}, d1;", "3 parts"),
    ("call missing;", "not declared"),
    ("mov.u32 r1, %clock64;", "'%clock64' is a number of 64 bits"),
    ("mov.u64 d1, %tid.x;", "'%tid.x' is a number of 32 bits"),
    ("mov.f32 f1, %tid.x;", "'%tid.x' is a number of 32 bits"),
    ("exit.uni;", "'exit.uni' is no form of exit"),
    ("exit 1;", "exit takes no operands"),
    ("ret.b32;", "'ret.b32' is no form of ret"),
    ("ret r1;", "ret takes no operands"),
    ("trap.uni;", "'trap.uni' is no form of trap"),
    ("call 3;", "call takes a function, or a register"),
    ("call d1;", "needs the label of a prototype"),
    ("call d1, nix;", "needs the label of a prototype"),
]  # fmt: skip


def test_targets_of_calls() -> None:
    """What ptxas refuses of labels, prototypes and lists of targets."""
    head = HEADER + ".func f() { ret; }\n.visible .entry k() {\n .reg .b64 d; .reg .b32 r; "
    for body, words in (
        ("p: .callprototype _ (); call d, p;", ""),
        ("c: .calltargets f; call.uni d, c;", ""),
        ("c: .calltargets f, nix; call d, c;", "'nix' is not a function"),
        ("c: .calltargets k; call d, c;", "'k' is not a function"),
        ("p: .callprototype _ (); call f, p;", "a function has no prototype here"),
        ("call f, f;", "a function has no prototype here"),
        ("A: bra.b32 A;", "'bra.b32' is no form of bra"),
        ("A: t: .branchtargets A; brx r, t;", "'brx' is no form of brx"),
        ("A: t: .branchtargets A; brx.idx.uni r, t;", ""),
    ):
        text = f"{head}{body}\n ret;\n}}\n"
        if not words:
            Program(parse(text), "k", Compiler).code("k")
            continue
        with pytest.raises(PtxError, match=words) as caught:
            Program(parse(text), "k", Compiler).code("k")
        assert caught.value.line == 6 and caught.value.column > 1, body


@pytest.mark.parametrize("line,words", COMPILE, ids=[line for line, _ in COMPILE])
def test_instructions_that_are_refused(line, words):
    text = kernel("", f"{REG}  {line}\n ret;")
    out = np.zeros(1, np.int32)
    with pytest.raises(PtxError, match=words) as caught:
        launch(text, "k", [])
    assert caught.value.line == text[: text.index(line)].count("\n") + 1
    assert caught.value.column == 3
    assert out[0] == 0


EVERY = """.version 8.6
.target sm_90a, debug
.address_size 64
.file 1 "a.cu"
.extern .func other (.param .b32 x, .param .align 8 .b8 y[16]) .noreturn;
.visible .global .align 4 .u32 table[2][3] = {{1, 2}, {-3, (4+5)*6}};
.const .b8 words[3] = {1, 3, 2};
.func (.reg .b32 o) inner (.reg .b32 i) { .loc 1 2 3 mov.u32 o, i; ret; }
.visible .entry k(.param .u64 .ptr .global .align 8 a) .maxntid 32, 1, 1 .pragma "nounroll";
{
 .reg .pred p<2>; .reg .b32 r<9>; .reg .b64 d; .shared .align 16 .b8 s[64];
 .loc 1 3 4, function_name $L__info+2, inlined_at 1 5 6
 T: .branchtargets A, B;
 C: .callprototype (.param .b32 _) _ (.param .b32 _);
 U: .calltargets inner, other;
 A: @!p1 add.s32 r1, r2, -1;
 B: { .param .b32 x; st.param.b32 [x+0], r1; call.uni (x), other, (x, {r1, r2}); }
 tex.1d.v4.s32.f32 {r1, r2, r3, r4}, [d, {r1}];
 brx.idx r1, T; vote.sync.any.pred p0|p1, p1, 0xffffffff; mov.b64 {r1, _}, d;
}
.section .debug_str { $L__info: .b8 1, 2 .b32 $L__info }
"""


def test_text_that_ends_anywhere():
    """Each beginning of a text is an error, or parses, and takes no time: no loop waits for a token behind the end."""

    def stop(*_):
        raise TimeoutError

    parse(EVERY)
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for end in re.finditer(r"[%$.\w]+|\S", EVERY):
            for more in ("", ",", " {", " [", " ("):
                signal.setitimer(signal.ITIMER_VIRTUAL, 5)
                try:
                    parse(EVERY[: end.end()] + more)
                except PtxError as error:
                    assert error.line
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_a_missing_entry_names_those_there_are():
    with pytest.raises(PtxError, match="no entry 'other'; the module's entries: k"):
        launch(kernel("", "ret;"), "other", [])


@pytest.mark.parametrize("target,fits", [("sm_75", True), ("sm_90", True), ("sm_90a", True), ("sm_100a", False),
                                         ("sm_100", False), ("sm_89", True)])  # fmt: skip
def test_code_for_another_target(target, fits):
    text = kernel("", "ret;").replace("sm_90a", target)
    if fits:
        launch(text, "k", [])
        return
    with pytest.raises(PtxError, match=f"line 2, column 1: the module is for {target}, and the device is sm_90a"):
        launch(text, "k", [])


def test_launches_that_are_refused():
    text = kernel(".param .u32 n", "ret;").replace("(.param .u32 n)", "(.param .u32 n) .reqntid 64")
    with pytest.raises(ValueError, match="requires a block of"):
        launch(text, "k", [1], block=32)
    with pytest.raises(ValueError, match="takes 1 parameters, 0 given"):
        launch(text, "k", [], block=64)
    with pytest.raises(ValueError, match="has 4 bytes, 8 given"):
        launch(text, "k", [bytes(8)], block=64)
    with pytest.raises(ValueError, match="the limit is 1024"):
        launch(kernel("", "ret;"), "k", [], block=(1025,))
