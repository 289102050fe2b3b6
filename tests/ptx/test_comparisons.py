"""Comparisons that are made again before distant uses of their masks."""

from __future__ import annotations

from unittest import mock

import pytest

import kernel_dsl.lowering.comparisons as comparisons
from kernel_dsl.lowering.comparisons import MANY, NEAR, compare_again
from tests.fuzz.__main__ import attempt
from tests.fuzz.generate import generate

MASKS = MANY + 4
AWAY = [f"\tadd.s32 \t%r{200 + i}, %r2, {i};" for i in range(NEAR)]


def function(made: list[str], between: list[str], used: list[str]) -> str:
    body = [*made, *between, *used]
    return "\n".join(["{", f"\t.reg .pred \t%p<{MASKS}>;", *body, "\tret;", "}", ""])


def compared(count: int = MASKS) -> list[str]:
    return [f"\tsetp.lt.s32 \t%p{i}, %r1, {i};" for i in range(count)]


def selected(count: int = MASKS) -> list[str]:
    return [f"\tselp.b32 \t%r{100 + i}, %r2, 0, %p{i};" for i in range(count)]


def test_masks_far_from_their_uses_are_compared_again() -> None:
    lines = compare_again(function(compared(), AWAY, selected())).split("\n")
    assert lines[1] == f"\t.reg .pred \t%p<{2 * MASKS}>;"
    for i in range(MASKS):
        place = lines.index(f"\tsetp.lt.s32 \t%p{MASKS + i}, %r1, {i};")
        assert lines[place + 1] == f"\tselp.b32 \t%r{100 + i}, %r2, 0, %p{MASKS + i};"


CHANGED = ["\tadd.s32 \t%r1, %r1, 1;"]
ASSEMBLY = ["\t// begin inline asm", "\t{ .reg .b32 t; mov.b32 t, 1; add.u32 %r3, %r1, t; }", "\t// end inline asm"]


@pytest.mark.parametrize(
    "text",
    [
        function(compared(MANY), AWAY, selected(MANY)),
        function(compared(), [], selected()[::-1]),
        function(compared(), [*AWAY, "$L__BB0_1:"], selected()),
        function(compared(), [*AWAY, *CHANGED], selected()),
        function(compared(), [*AWAY, *ASSEMBLY], selected()),
        function([line.replace("%r1", f"%r{300 + i}") for i, line in enumerate(compared())], AWAY, selected()),
        function([*compared(), *compared()], AWAY, selected()),
    ],
    ids=["few", "near", "another block", "changed", "changed by inline PTX", "registers apart", "written twice"],
)
def test_other_masks_stay(text: str) -> None:
    assert compare_again(text) == text


@pytest.mark.usefixtures("kernels_apart")
def test_kernels_compute_the_same_where_all_masks_are_compared_again() -> None:
    changed = 0

    def counted(ptx: str) -> str:
        nonlocal changed
        made = compare_again(ptx)
        changed += made != ptx
        return made

    with (
        mock.patch.multiple(comparisons, MANY=-1, NEAR=0, SHARED=0),
        mock.patch("kernel_dsl.lowering.module.compare_again", counted),
    ):
        for seed in range(8_000_000, 8_000_006):
            assert (failure := attempt(generate(seed), gpu=False)) is None, failure
    assert changed
