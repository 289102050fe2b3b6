"""How a run goes: schedules and seeds, warnings, order between blocks, reports in the author's words."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernel_dsl.compiled import ReportNames, SmemRegion, SourceLine, Swizzle
from kernel_dsl.dtypes import float16, float32
from kernel_dsl.runtime.interpreter import HazardError, HazardKind, HazardWarning, InterpretParams, parse
from kernel_dsl.runtime.interpreter.checks.hazards import region_index
from kernel_dsl.runtime.interpreter.machine.batch import Batch

from .launching import kernel, launch, load
from .planted import REGISTERS

RACE = """ .shared .align 16 .b32 s[64];
 mov.u32 r2, s; shl.b32 r3, r1, 2; add.u32 r3, r3, r2; xor.b32 r4, r1, 32; shl.b32 r4, r4, 2; add.u32 r4, r4, r2;
 st.shared.u32 [r3], r1;
 ld.shared.u32 r5, [r4];
 ret;"""


def text_of(body: str, params: str = "") -> str:
    return kernel(params, REGISTERS + body)


def test_warnings_say_each_place_once_and_the_run_goes_on():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = launch(text_of(RACE), "k", [], block=64, grid=3, on_hazard="warn")
    found = [w.message for w in caught if isinstance(w.message, HazardWarning)]
    assert len(found) == 1 and found[0].kind is HazardKind.RACE_SHARED
    assert [kind for kind, _ in report.hazards] == [HazardKind.RACE_SHARED]


def test_an_out_of_bounds_load_that_is_warned_of_gives_zero():
    body = " ld.param.u64 d1, [a]; mul.wide.u32 d2, r1, 4; add.s64 d3, d1, d2; ld.global.u32 r2, [d3+4]; st.global.u32 [d3], r2; ret;"
    a = np.arange(1, 33, dtype=np.int32)
    with pytest.warns(HazardWarning, match="element 32"):
        launch(text_of(body, ".param .u64 a"), "k", [a], on_hazard="warn")
    assert a[31] in (0, 1) and a[:31].tolist() == list(range(2, 33))


def test_nothing_is_looked_for_without_detection():
    report = launch(text_of(RACE), "k", [], block=64, detect_hazards=False)
    assert report.hazards == []


def test_errors_that_are_always_raised():
    body = " .shared .align 8 .b64 bar; mov.u32 r2, bar; mbarrier.init.shared::cta.b64 [r2], 33;\n"
    body += "W: mbarrier.try_wait.parity.shared::cta.b64 p1, [r2], 0; @!p1 bra W; ret;"
    with pytest.raises(HazardError) as caught:
        launch(text_of(body), "k", [], on_hazard="warn", detect_hazards=False)
    assert caught.value.kind is HazardKind.DEADLOCK
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.kind is caught.value.kind and str(again) == str(caught.value)


def test_a_seed_replays_a_run():
    """The order in which groups run depends on the seed alone."""

    def steps(seed: int) -> tuple[int, str]:
        a = np.arange(2000, dtype=np.float32)
        out = np.zeros(1, np.float32)
        report = launch(load("cuda_basics.ptx"), "reduce", [a, out, 2000], grid=4, block=256, seed=seed)
        return report.steps, out.tobytes().hex()

    runs = [steps(seed) for seed in range(6)]
    assert runs == [steps(seed) for seed in range(6)]


def test_more_blocks_than_fit_make_progress():
    """Each block waits for the one before it: blocks are admitted in order, so none waits for one that cannot start."""
    body = """ ld.param.u64 d1, [a]; mov.u32 r2, %ctaid.x; setp.ne.u32 p1, r1, 0; @p1 bra END;
W: ld.acquire.gpu.global.u32 r3, [d1]; setp.ne.u32 p2, r3, r2; @p2 bra W;
 add.u32 r3, r3, 1; st.release.gpu.global.u32 [d1], r3;
END: ret;"""
    a = np.zeros(1, np.int32)
    launch(text_of(body, ".param .u64 a"), "k", [a], grid=60, block=1024, schedule="late")
    assert a[0] == 60


def test_a_spin_lock_between_lanes_of_a_warp():
    """Lanes that hold a lock must run while the others spin (independent thread scheduling)."""
    body = """ ld.param.u64 d1, [a];
L: atom.global.cas.b32 r2, [d1], 0, 1; setp.ne.u32 p1, r2, 0; @p1 bra L;
 ld.volatile.global.u32 r3, [d1+4]; add.u32 r3, r3, 1; st.volatile.global.u32 [d1+4], r3;
 fence.acq_rel.gpu; atom.global.exch.b32 r4, [d1], 0; ret;"""
    a = np.zeros(2, np.int32)
    launch(text_of(body, ".param .u64 a"), "k", [a], block=64)
    assert a.tolist() == [0, 64]


def test_reports_name_lines_and_refs():
    text = text_of(RACE.replace(" .shared .align 16 .b32 s[64];", "")).replace(
        ".visible", ".extern .shared .align 16 .b8 s[];\n.visible"
    )
    line = text[: text.index("ld.shared")].count("\n") + 1
    store = text[: text.index("st.shared")].count("\n") + 1
    names = ReportNames(smem=(SmemRegion("tile", 0, 4096, (32, 32), float32),), thread_axis=("wg", 1))
    lines = {line: SourceLine("user.py", 12), store: SourceLine("user.py", 11)}
    with pytest.raises(HazardError) as caught:
        launch(text, "k", [], block=64, dynamic_smem=4096, names=names, lines=lines, kernel_name="mine")
    message = str(caught.value)
    for words in ("'tile'[1, 0]", "user.py:12", "user.py:11", "kernel 'mine'", "(wg=0)"):
        assert words in message, message
    assert caught.value.line == SourceLine("user.py", 12)


def test_logical_index_through_tiling_and_swizzle():
    plain = SmemRegion("a", 0, 64 * 128, (64, 64), float16)
    assert region_index(plain, 2 * (3 * 64 + 5)) == "[3, 5]"
    swizzled = SmemRegion("a", 0, 64 * 128, (64, 64), float16, (8, 64), Swizzle.B128)
    # Row 3 of the first tile: its 16-byte chunks are XORed with 3.
    assert region_index(swizzled, 3 * 128 + (2 ^ 3) * 16 + 6) == "[3, 19]"
    tiled = SmemRegion("a", 0, 64 * 128, (64, 64), float16, (8, 32))
    assert region_index(tiled, 2 * (64 * 32 + 2 * 32 + 7)) == "[2, 39]"


def test_params_are_checked():
    for wrong in ({"on_hazard": "ignore"}, {"schedule": "lazy"}, {"step_budget": 0}):
        with pytest.raises(ValueError):
            InterpretParams(**wrong)


def test_debug_lines_are_used_where_there_are_no_others():
    text = text_of(
        " .loc 1 42 3\n ld.param.u64 d1, [a];\n .loc 1 43 3\n ld.global.u32 r2, [d1+64]; ret;", ".param .u64 a"
    )
    text = text.replace(".visible", '.file 1 "kernel.cu"\n.visible')
    with pytest.raises(HazardError, match=r"kernel\.cu:43"):
        launch(parse(text), "k", [np.zeros(1, np.int32)])


@pytest.mark.parametrize(("blocks", "cluster", "warps"), [(6, 2, 3), (4, 1, 2), (8, 8, 1), (8, 4, 5)])
def test_rows_of_a_batch_are_found_by_cluster_and_agent(blocks: int, cluster: int, warps: int):
    batch: Any = SimpleNamespace(blocks=blocks, cluster=cluster, per_block=warps)
    for row in range(blocks * warps):
        warp, block = divmod(row, blocks)
        assert Batch.row_of(batch, block // cluster, block % cluster * warps + warp) == row


@pytest.mark.parametrize("width", [16, 32, 64])
def test_compare_and_swap_by_lanes_in_turn(width: int) -> None:
    """Each lane finds what the lane before has put; the words of odd lanes are others, and one of them is wrong."""
    body = (
        REGISTERS
        + f""" .reg .b{width} w<5>;
 ld.param.u64 d1, [a]; and.b32 r2, r1, 1; mul.wide.u32 d2, r2, {width // 8}; add.s64 d2, d1, d2; add.u32 r3, r1, 2;
 cvt.u{width}.u32 w1, r1; cvt.u{width}.u32 w2, r3; setp.eq.u32 p1, r1, 9; @p1 mov.b{width} w1, 99;
 atom.global.cas.b{width} w3, [d2], w1, w2;
 mul.wide.u32 d3, r1, {width // 8}; add.s64 d3, d1, d3; st.global.b{width} [d3+{width}], w3; ret;"""
    )
    data = np.zeros(200, f"u{width // 8}")
    data[1] = 1
    launch(kernel(".param .u64 a", body), "k", [data])
    want = np.where((np.arange(32) % 2 == 1) & (np.arange(32) > 9), 9, np.arange(32))
    assert data[:2].tolist() == [32, 9] and (data[8:40] == want).all()
