"""Hazards as data: both sides of a race, with lines, whether the run raises or goes on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import GlobalMemory, HazardError, HazardKind, InterpretParams, RunReport, parse, run

from .launching import kernel
from .planted import REGISTERS

RACE = kernel(
    "",
    "\n.shared .b32 s[64];\n"
    + REGISTERS
    + """
 setp.eq.u32 p1, r1, 0; mov.u32 r2, s;
 @p1 st.shared.u32 [r2], 1;
 setp.eq.u32 p1, r1, 32;
 @p1 ld.shared.u32 r3, [r2];
 ret;""",
)


def findings(on_hazard: str) -> RunReport:
    report = RunReport(quiet=True)
    options = {"grid": (1, 1, 1), "block": (64, 1, 1), "memory": GlobalMemory(), "report": report}
    run(parse(RACE), "k", [], params_cfg=InterpretParams(schedule="eager", on_hazard=on_hazard), **options)
    return report


def test_both_sides_of_a_race() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = findings("warn")
    (found,) = report.findings
    assert found.kind == HazardKind.RACE_SHARED and found.other is not None
    lines = RACE.splitlines()
    assert "ld.shared" in lines[found.at.ptx_line - 1] and found.at.instruction == "ld.shared.u32"
    assert "st.shared" in lines[found.other.ptx_line - 1] and "warp 0" in found.other.who
    assert found.fix and found.what in found.message and np.all([d in found.message for d in found.details])


def test_what_was_found_before_an_error_is_kept() -> None:
    report = RunReport()
    with pytest.raises(HazardError) as caught:
        run(parse(RACE), "k", [], grid=(1, 1, 1), block=(64, 1, 1), memory=GlobalMemory(), report=report,
            params_cfg=InterpretParams(schedule="eager"))  # fmt: skip
    assert [f.kind for f in report.findings] == [caught.value.kind]
