"""The writer's values: an operator writes one instruction, and none where it changes nothing."""

from __future__ import annotations

import pytest

from kernel_dsl.lowering.debug_lines import DebugLines
from kernel_dsl.lowering.value import V
from kernel_dsl.lowering.writer import Loop, Writer


@pytest.fixture
def w() -> Writer:
    return Writer(DebugLines())


@pytest.fixture
def x(w: Writer) -> V:
    return w.value("%x", "i32")


def test_one_instruction_an_operator(w: Writer, x: V) -> None:
    made = ((x + 1) * 8 // 3 % 5 & 6 ^ 7) >> 2
    assert made == "%v7" and made.type == "i32"
    assert [line.split(" = ")[1] for line in w.lines] == [
        "add i32 %x, 1", "mul i32 %v1, 8", "udiv i32 %v2, 3", "urem i32 %v3, 5", "and i32 %v4, 6", "xor i32 %v5, 7",
        "lshr i32 %v6, 2",
    ]  # fmt: skip


def test_nothing_is_written_for_nothing(w: Writer, x: V) -> None:
    assert [x + 0, x - 0, x * 1, x // 1, x ^ 0, w.i32(0) + x, x.bitcast("i32")] == ["%x"] * 7
    assert w.lines == []
    f = w.value("%f", "float")
    assert f + 0.0 == "%v1"  # -0.0 + 0.0 is 0.0


def test_constants_are_computed_in_their_width(w: Writer) -> None:
    assert (w.i32(6) * 7 - 2) // 5 % 3 == "2" and w.lines == []
    assert w.i32(2**31 - 1) + 1 == str(-(2**31))
    assert w.i32(-8).constant == -8 and w.value("%x", "i32").constant is None
    assert w.i32(-8) // 2 == "%v1"  # unsigned: LLVM's to compute
    assert w.i32(8) // 0 == "%v2"


def test_comparisons_and_selects(w: Writer, x: V) -> None:
    assert x.lt(3).where(x, 0).type == "i32" and x.below(3).type == "i1"
    assert "icmp slt i32 %x, 3" in w.lines[0] and "select i1 %v1, i32 %x, i32 0" in w.lines[1]
    with pytest.raises(TypeError):
        x.lt(3).where(1, 2)


def test_an_operator_on_once_writes_into_the_prelude_once(w: Writer, x: V) -> None:
    a, b = x.once * 4, x.once * 4
    assert a == b and len(w.prelude) == 1 and w.lines == []
    assert (x.once + 0) + 1 == "%v2" and len(w.lines) == 1  # what it gives is an ordinary value


def test_ptx_takes_its_constraints_from_types(w: Writer, x: V) -> None:
    (got,) = w.ptx("ld.b32 $0, [$1];", x, results=["i32"], when=w.value("%p", "i1"), first="mov.b32 $0, 0;")
    assert got.type == "i32"
    assert '"mov.b32 $0, 0; @$2 ld.b32 $0, [$1];", "=&r,r,b,~{memory}"(i32 %x, i1 %p) #0' in w.lines[0]
    w.ptx("mov.b32 $0, $1;", x, results=["i32"], pure=True)
    assert 'asm "mov.b32 $0, $1;", "=r,r"(i32 %x) #1' in w.lines[1]


def test_a_loop_patches_its_header(w: Writer, x: V) -> None:
    loop = Loop(w, [x])
    loop.close([loop.carried[0] + 1])
    assert w.lines[2] == "  %v2 = phi i32 [ %x, %start ], [ %v3, %b1 ]" and w.lines[-1] == "  br label %b1"
