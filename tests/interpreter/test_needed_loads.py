"""Which loads may still be on their way at a barrier, by what has needed the loaded values."""

from __future__ import annotations

import pytest

from kernel_dsl.runtime.interpreter import parse
from kernel_dsl.runtime.interpreter.checks.overtaken import outlasts
from kernel_dsl.runtime.interpreter.machine.compiler import Compiler
from kernel_dsl.runtime.interpreter.machine.program import Program

# (lines between the load of %r1 and the barrier, whether the load has certainly taken place by then)
CASES: dict[str, tuple[str, bool]] = {
    "nothing": ("", False),
    "arithmetic": ("add.u32 %r2, %r1, 1;", False),
    "a store": ("st.shared.u32 [%r9], %r1;", True),
    "a store of what comes from it": ("add.u32 %r2, %r1, 1; mul.lo.u32 %r3, %r2, %r2; st.global.u32 [%d1], %r3;", True),
    "a guarded store": ("@%p1 st.shared.u32 [%r9], %r1;", True),
    "a store of another value": ("st.shared.u32 [%r9], %r8;", False),
    "nobody, before the register is overwritten": ("mov.u32 %r1, 0; st.shared.u32 [%r9], %r1;", True),
    "an address": ("ld.shared.u32 %r4, [%r1]; st.shared.u32 [%r9], %r4;", True),
    "a branch": ("setp.ne.u32 %p2, %r1, 0; @%p2 bra NEXT; NEXT:", True),
    "a store on one path": ("@%p1 bra NEXT; st.shared.u32 [%r9], %r1; NEXT:", False),
    "stores on both paths": ("@%p1 bra ELSE; st.shared.u32 [%r9], %r1; bra NEXT; ELSE: st.global.u32 [%d1], %r1; NEXT:", True),
    "an atomic": ("atom.shared.add.u32 %r5, [%r9], %r1;", True),
    "a table of branches": ("L: .branchtargets A, B; brx.idx %r8, L; A: add.u32 %r5, %r8, 1; B:", False),
    "a branch by a table": ("L: .branchtargets A, B; brx.idx %r1, L; A: add.u32 %r5, %r8, 1; B:", True),
    "a shuffle": ("shfl.sync.idx.b32 %r5, %r1, 0, 31, -1;", True),
}  # fmt: skip
BARRIERS = ("bar.sync 0;", "mbarrier.arrive.shared::cta.b64 _, [%r10];")


def behind(
    lines: str,
    end: str = "st.global.u32 [%d1], %r1; st.global.u32 [%d1], %r2; st.global.u32 [%d1], %r4;",
    functions: str = "",
) -> bool:
    text = f""".version 8.8
.target sm_90a
.address_size 64
{functions}
.visible .entry k(.param .u64 a) {{
 .reg .b32 %r<12>; .reg .b64 %d<3>; .reg .pred %p<4>; .shared .align 8 .b8 t[64];
 ld.param.u64 %d1, [a]; mov.u32 %r9, t; add.u32 %r10, %r9, 8; mov.u32 %r8, 3; setp.eq.u32 %p1, %r8, 4;
 {lines}
 {end} ret;
}}"""
    program = Program(parse(text), "k", Compiler)
    loads = [
        i for seg in program.code("k").segments for i in seg.code if i.opcode[0] == "ld" and i.opcode[1] != "param"
    ]
    return not outlasts(program, loads[0])


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("name", CASES)
def test_a_use(name: str, barrier: str) -> None:
    lines, wanted = CASES[name]
    assert behind(f"ld.shared.u32 %r1, [%r9]; {lines} {barrier}") == wanted


def test_a_barrier_in_another_function() -> None:
    assert not behind("ld.shared.u32 %r1, [%r9]; call.uni meet;", functions=".func meet() { bar.sync 0; ret; }")


def test_a_value_that_nobody_uses() -> None:
    assert behind("ld.shared.u32 %r1, [%r9]; bar.sync 0;", end="")


@pytest.mark.parametrize("stored", [False, True])
def test_a_loop(stored: bool) -> None:
    """What one turn has loaded is on its way at the barrier of the next, unless a store has taken it."""
    store = "st.shared.u32 [%r9], %r1;" if stored else ""
    loop = f"L: bar.sync 0; ld.shared.u32 %r1, [%r9]; {store} add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 9; @%p3 bra L;"
    assert behind(loop) == stored
