"""Planted bugs with twins: `kd.check` finds each bug under every schedule, and is silent about its correct twin."""

from __future__ import annotations

import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.interpreter.checks.fixes import FIXES

from .planted import (
    cancelled,
    copies,
    corners,
    counts,
    cuda,
    language,
    matrices,
    memory,
    order,
    protocols,
    proxies,
    tensor,
    values,
    written,
)
from .planted.probe import EVERY, Probe

FILES = (
    proxies,
    copies,
    cancelled,
    corners,
    counts,
    matrices,
    order,
    protocols,
    values,
    language,
    written,
    tensor,
    memory,
)
PROBES = [p for file in FILES for p in file.PROBES]


def test_there_are_enough_of_them() -> None:
    """At least 65, each with a name of its own."""
    assert len(PROBES) >= 65
    assert len({p.name for p in PROBES}) == len(PROBES)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("probe", PROBES, ids=[p.name for p in PROBES])
def test_planted_bug(probe: Probe) -> None:
    bad = probe.check(False)
    assert bad.hazards, "missed"
    first = {
        run: next(str(h.kind) for h in bad.hazards if run in h.schedules) for h in bad.hazards for run in h.schedules
    }
    assert set(first.values()) <= set(probe.kinds), str(bad)
    for h in bad.hazards:
        assert h.file and h.line and h.source and h.who and h.why and h.fix and h.message, str(h)
        assert h.other is None or (h.other_file and h.other_line), str(h)
    if probe.every:
        assert set(EVERY) <= set(first), str(bad)
    good = probe.check(True)
    assert not good.hazards, str(good)


def test_each_kind_says_what_mends_it() -> None:
    assert set(FIXES) == set(kd.HazardKind)


@pytest.mark.slow
def test_planted_bugs_in_cuda() -> None:
    reason = nvrtc.unavailable()
    if reason:
        pytest.skip(reason)
    found = nvrtc.compile_source(cuda.source(), file="bugs.cu", target="sm_90a", kind="ptx", options=[])
    ptx = found.rstrip(b"\0").decode()
    wrong: list[str] = []
    for n, bug in enumerate(cuda.ALL):
        for name in ("bad", "good"):
            args = bug.args()
            first = [kd.check.launch(ptx, args[0], entry="first", grid=1, block=64)] if bug.early else []
            early = bug.early or None
            last = kd.check.launch(
                ptx, *args, entry=f"{name}{n}", grid=bug.grid, block=bug.block, programmatic_dependent_launch=early
            )
            report = kd.check.sequence([*first, last], ignore=bug.ignore)
            kinds = [str(h.kind) for h in report.hazards]
            if (name == "good") is bool(kinds) or not set(kinds[:1]) <= set(bug.kinds.split()):
                wrong.append(f"{bug.name}, {name}: {kinds}")
    assert wrong == []
