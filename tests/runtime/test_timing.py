"""Samples of a GPU's time while the host is slow, on a GPU and a host that only count."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.timing import MOST_CLEARS, ColdRuns, Stopwatch, device_times

CALL, CLEAR = 2.0, 30.0  # host microseconds of a call of the driver, GPU microseconds of clearing L2


class Machine:
    """A host whose calls take `CALL`, and a GPU that does what it is told in order. Both count microseconds."""

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self.clears = 0
        self.events: list[float] = []

    def issue(self, seconds: float) -> None:
        self.host += CALL
        self.gpu = max(self.gpu, self.host) + seconds

    def kernel(self, host: float, gpu: float) -> None:
        self.host += host
        self.issue(gpu)

    # --- the driver -------------------------------------------------------------------------------

    def cuEventCreate(self, flags: int) -> tuple[int, int]:  # noqa: N802
        self.events.append(0.0)
        return 0, len(self.events) - 1

    def cuEventDestroy(self, event: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:  # noqa: N802
        self.issue(0.0)
        self.events[event] = self.gpu
        return (0,)

    def cuEventQuery(self, event: int) -> tuple[int]:  # noqa: N802
        return (0 if self.events[event] <= self.host else 600,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:  # noqa: N802
        self.host = max(self.host, self.events[event])
        return (0,)

    def cuEventElapsedTime(self, start: int, stop: int) -> tuple[int, float]:  # noqa: N802
        return 0, (self.events[stop] - self.events[start]) * 1e-3

    def cuMemsetD32Async(self, *_: Any) -> tuple[int]:  # noqa: N802
        self.clears += 1
        self.issue(CLEAR)
        return (0,)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(driver, "success", lambda: 0)
    monkeypatch.setattr(driver, "current", lambda context: nullcontext())
    monkeypatch.setattr(driver, "attribute", lambda device, name: 1 << 20)
    return made


DEVICE: Any = SimpleNamespace(context=0, device=0, allocate=lambda size, stream: SimpleNamespace(address=0))


@pytest.mark.parametrize("host", [1.0, 40.0, 500.0])
@pytest.mark.parametrize("gpu", [2.0, 80.0])
def test_a_sample_has_no_time_of_the_host(machine: Machine, host: float, gpu: float) -> None:
    cold, watch = ColdRuns(DEVICE), Stopwatch(DEVICE)
    for _ in range(5):
        cold(watch, lambda: machine.kernel(host, gpu))
        assert watch.seconds == pytest.approx(gpu * 1e-6)
    assert machine.clears <= 5 * (2 * (host + 3 * CALL) / CLEAR + 2) + 64, "twice as many as needed, after the first"


def test_a_host_that_is_always_late_ends(machine: Machine) -> None:
    cold, watch = ColdRuns(DEVICE), Stopwatch(DEVICE)
    cold(watch, lambda: machine.kernel(1e6, 1.0))
    assert machine.clears == 2 * MOST_CLEARS - 1
    cold(watch, lambda: machine.kernel(1e6, 1.0))
    assert machine.clears == 3 * MOST_CLEARS - 1, "the next sample is not repeated"


def test_rounds_of_a_slow_and_a_fast_host(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    runs = {"slow": lambda: machine.kernel(rng.uniform(0, 300), 7.0), "fast": lambda: machine.kernel(1.0, 5.0)}
    times = device_times(runs, rounds=20, device=DEVICE)
    assert times["slow"].samples == pytest.approx([7e-6] * 20) and times["fast"].samples == pytest.approx([5e-6] * 20)
    loose = device_times(runs, rounds=20, device=DEVICE, flush=False)
    assert max(loose["slow"].samples) > 1e-5, "without clears the GPU waits"
