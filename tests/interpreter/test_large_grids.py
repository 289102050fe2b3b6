"""Grids that are larger than what can be held: blocks exist while they run, and no longer."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

from kernel_dsl.compiled import ReportNames
from kernel_dsl.runtime.interpreter import GlobalMemory, HazardError, InterpretParams, RunReport, parse
from kernel_dsl.runtime.interpreter import HazardKind as K
from kernel_dsl.runtime.interpreter.machine.compiler import Compiler
from kernel_dsl.runtime.interpreter.machine.launch import Run
from kernel_dsl.runtime.interpreter.machine.program import Program

from .launching import HEADER, launch

BASE = 2**24 + 3
# Every warp owns an element, which it writes and reads: block BASE's is the first.
OWN = f""" mov.u32 r2, %ctaid.x; sub.u32 r2, r2, {BASE};
 ld.param.u64 d1, [a]; mul.wide.u32 d2, r2, 4; add.s64 d3, d1, d2;
 setp.ne.u32 p1, r1, 0; @p1 bra END;
 mov.u32 r3, %ctaid.x; st.global.u32 [d3], r3; ld.global.u32 r4, [d3]; add.u32 r4, r4, 1; st.global.u32 [d3], r4;
END: ret;"""
SAME = OWN.replace("mul.wide.u32 d2, r2, 4;", "and.b32 r5, r2, 1; mul.wide.u32 d2, r5, 4;")


def text(body: str) -> str:
    return (
        f"{HEADER}.visible .entry k(.param .u64 a)\n{{\n .reg .pred p<9>; .reg .b32 r<9>; .reg .b64 d<9>;\n"
        f" mov.u32 r1, %tid.x;\n{body}\n}}"
    )


def start(body: str, out: np.ndarray, first: int, **change) -> Run:
    """A launch of 2^31 - 1 blocks of which all before `first` are taken as done."""
    memory = GlobalMemory()
    params = [memory.allocate(out, "out", initialised=False).to_bytes(8, "little")]
    options = {"grid": (2**31 - 1, 1, 1), "block": (32, 1, 1), "cluster": (1, 1, 1)} | change
    run = Run(
        Program(parse(text(body)), "k", Compiler), params, options["grid"], options["block"], options["cluster"],
        0, memory, "sm_90a", InterpretParams(), ReportNames(), {}, "k",
    )  # fmt: skip
    run.next_block = first
    return run


def stop_after(run: Run, blocks: int) -> RunReport:
    """As if the grid ended so many blocks from here."""
    run.blocks = run.next_block + blocks
    return run.run()


@pytest.mark.parametrize("grid", [(2**26, 1, 1), (2**31 - 1, 65535, 65535)])
def test_blocks_are_made_as_they_run(grid: tuple[int, int, int]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HazardError) as caught:
            launch(text("ret;"), "k", [np.zeros(1, np.int32)], grid=grid, step_budget=64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind == K.STEP_BUDGET
    assert peak < 100 * 2**20, "2^26 blocks with 24 bytes each would be 1.6 GB"


def test_a_wave_that_is_done_is_let_go_of() -> None:
    peaks: list[int] = []
    for waves in (2, 16):
        tracemalloc.start()
        try:
            launch(text("ret;"), "k", [np.zeros(1, np.int32)], grid=(waves * 1024, 1, 1))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks


@pytest.mark.parametrize(("grid", "cluster"), [((5, 3, 4), (1, 1, 1)), ((6, 4, 3), (2, 2, 1)), ((4, 2, 6), (1, 2, 3))])
def test_coordinates(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
    run = start("ret;", np.zeros(1, np.int32), 0, grid=grid, cluster=cluster)
    teams = [
        (x, y, z)
        for z in range(0, grid[2], cluster[2])
        for y in range(0, grid[1], cluster[1])
        for x in range(0, grid[0], cluster[0])
    ]
    inside = [(x, y, z) for z in range(cluster[2]) for y in range(cluster[1]) for x in range(cluster[0])]
    expected = [[t + i for t, i in zip(team, within, strict=True)] for team in teams for within in inside]
    assert run.blocks == len(expected)
    assert run.coordinates(0, run.blocks).tolist() == expected
    size = len(inside)
    parts = [run.coordinates(first, size).tolist() for first in range(0, run.blocks, size)]
    assert [at for part in parts for at in part] == expected


def test_no_false_race_where_block_numbers_wrap() -> None:
    out = np.zeros(3000, np.int32)
    report = stop_after(start(OWN, out, BASE), 3000)
    np.testing.assert_array_equal(out, BASE + 1 + np.arange(3000))
    assert not report.hazards


def test_races_are_found_and_named_where_block_numbers_wrap() -> None:
    with pytest.raises(HazardError) as caught:
        stop_after(start(SAME, np.zeros(2, np.int32), BASE), 8)
    assert caught.value.kind == K.RACE_BLOCKS
    one, other = (int(n) - BASE for n in re.findall(r"block \((\d+), 0, 0\)", str(caught.value)))
    assert one != other and one % 2 == other % 2 and {one, other} <= set(range(8))


def test_a_race_with_a_block_of_an_earlier_wave_is_named() -> None:
    one_wave = 1024
    body = OWN.replace("mul.wide.u32 d2, r2, 4;", f"and.b32 r5, r2, {2 * one_wave - 1}; mul.wide.u32 d2, r5, 4;")
    with pytest.raises(HazardError) as caught:
        stop_after(start(body, np.zeros(2 * one_wave, np.int32), BASE), 3 * one_wave)
    assert caught.value.kind == K.RACE_BLOCKS
    assert f"block ({BASE}, 0, 0)" in str(caught.value)
    assert f"block ({BASE + 2 * one_wave}, 0, 0)" in str(caught.value)
