"""Planted bugs with twins: `kd.check` finds each bug under every schedule, and is silent about its correct twin."""

from __future__ import annotations

import pytest

from .planted import cancelled, copies, language, order, protocols, proxies, tensor, values
from .planted.probe import EVERY, Probe

PROBES = [p for m in (proxies, copies, cancelled, order, protocols, values, language, tensor) for p in m.PROBES]


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
    if probe.every:
        assert set(EVERY) <= set(first), str(bad)
    good = probe.check(True)
    assert not good.hazards, str(good)
