"""Many loads in doubt, and large arrays: both are looked at like few and small ones."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter import HazardError
from kernel_dsl.runtime.interpreter.checks import doubts
from kernel_dsl.runtime.interpreter.machine import attempts

from .launching import kernel, launch
from .test_doubts import HEAD, SCHEDULES, SHARED


def of_blocks(n: int, use: str = "") -> str:
    """Each block changes its own n elements in place, by the first n of 96 lanes; all lanes load. `use`: after that."""
    own = f"mov.u32 r9, %ctaid.x; mul.wide.u32 d6, r9, {4 * n}; add.u64 d3, d3, d6; "
    step = "ld.global.f32 f1, [d3]; fma.rn.f32 f2, f1, 0f40000000, 0f3F800000; @p0 st.global.f32 [d3], f2; "
    return kernel(".param .u64 a, .param .u64 b", HEAD.replace("N", str(n)) + own + step + use + " ret;", shared=SHARED)


ONE_BLOCK = "setp.eq.u32 p2, r9, NUMBER; setp.eq.u32 p3, r0, LANE; and.pred p2, p2, p3; @p2 st.global.f32 [d1], f1;"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_loads_in_doubt_than_are_described(schedule: str) -> None:
    """Loads of 800 warps are in doubt. The report is exact wherever a value is used, in each mode."""
    x, out, want = np.arange(6400, dtype=np.float32), np.zeros(128, np.float32), 2 * np.arange(6400) + 1
    launch(of_blocks(16), "k", [x, out], grid=400, block=96, schedule=schedule)
    np.testing.assert_array_equal(x, want)
    for block, lane in ((399, 40), (3, 70), (200, 95)):
        text = of_blocks(16, ONE_BLOCK.replace("NUMBER", str(block)).replace("LANE", str(lane)))
        x = np.arange(6400, dtype=np.float32)
        with pytest.raises(HazardError) as caught:
            launch(text, "k", [x.copy(), out], grid=400, block=96, schedule=schedule)
        with pytest.warns():
            report = launch(text, "k", [x, out], grid=400, block=96, schedule=schedule, on_hazard="warn")
        np.testing.assert_array_equal(x, want)
        (one,) = report.findings
        assert f"read by block ({block}, 0, 0), warpgroup 0, warp {lane // 32}" in one.message
        assert str(caught.value) == "[hazard] " + one.message
        assert (
            "'a0'" in one.message and block * 16 <= int(one.message.split("'a0'[")[1].split("]")[0]) < block * 16 + 16
        )


def test_unwritten_memory_beyond_what_is_described() -> None:
    """What is found in a block is the same for a block whose doubts are described, and for one whose are not."""
    found: list[list[str]] = []
    for block in (3, 350):
        text = of_blocks(16, ONE_BLOCK.replace("NUMBER", str(block)).replace("LANE", "64"))
        arrays = [np.zeros(6400, np.float32), np.zeros(128, np.float32)]
        with pytest.warns():
            report = launch(text, "k", arrays, outputs=(0,), grid=400, block=96, schedule="eager", on_hazard="warn")
        found.append([str(f.kind) for f in report.findings])
    assert found[0] == found[1] == ["race_global", "uninitialised", "uninitialised"]


def test_an_ignored_kind_beyond_what_is_described() -> None:
    x, out = np.arange(6400, dtype=np.float32), np.zeros(128, np.float32)
    text = of_blocks(16, ONE_BLOCK.replace("NUMBER", "350").replace("LANE", "64"))
    for ignore, kinds in ((("race_global",), []), (("race_blocks",), ["race_global"])):
        report = kd.check(text, x, out, grid=400, block=96, schedules=("eager",), ignore=ignore)
        assert [str(h.kind) for h in report.hazards] == kinds


def test_large_arrays_have_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of 12 MiB are copied before the launch. A copy that would be too large reports all races."""
    for most, kind in ((attempts._MOST, ""), (1 << 23, "race_global")):
        monkeypatch.setattr(attempts, "_MOST", most)
        x, out = np.ones(3 << 20, np.float32), np.zeros(128, np.float32)
        report = kd.check(of_blocks(16), x, out, grid=3, block=96, schedules=("eager",))
        assert [str(h.kind) for h in report.hazards] == [kind] * bool(kind) and x[47] == 3 and x[48] == 1


def test_a_copy_that_has_no_room_beside_shadow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped, before or after a race is put in doubt: all races are reported then, with the results of a whole run."""
    monkeypatch.setattr(attempts, "_SMALL", 0)
    for beside, kind in ((100, ""), (1.01, "race_global"), (0.1, "race_global")):
        monkeypatch.setattr(doubts, "_BESIDE", beside)
        x, out = np.arange(4096, dtype=np.float32), np.zeros(128, np.float32)
        report = kd.check(of_blocks(16), x, out, grid=256, block=96, schedules=("eager",))
        assert [str(h.kind) for h in report.hazards] == [kind] * bool(kind)
        np.testing.assert_array_equal(x, 2 * np.arange(4096) + 1)
