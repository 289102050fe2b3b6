"""Times on the GPU and on the host: events, a cleared L2, and rounds that measure candidates in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .devices import driver
from .devices.cuda_device import CudaDevice
from .devices.devices import cuda_device

Run = Callable[[], Any]
MOST_CLEARS = 64  # of L2 before one sample


@dataclass(frozen=True)
class Timing:
    """Samples in seconds. `str()` gives the median with the quartiles, in microseconds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The 25th and the 75th percentile."""
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4)
        return low, high

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median * 1e6:.2f} us ({low * 1e6:.2f} to {high * 1e6:.2f})"


class Stopwatch:
    """Two events around work on a stream. `seconds` waits for the second."""

    def __init__(self, device: CudaDevice, stream: int = 0) -> None:
        cu = driver.api()
        self._device = device
        self._stream = stream
        with driver.current(device.context):
            self._start = driver.check(cu.cuEventCreate(0))
            self._stop = driver.check(cu.cuEventCreate(0))

    def __enter__(self) -> Stopwatch:
        self._record(self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._record(self._stop)

    def _record(self, event: Any) -> None:
        with driver.current(self._device.context):
            driver.check(driver.api().cuEventRecord(event, self._stream))

    @property
    def begun(self) -> bool:
        """Whether the GPU has passed the first event."""
        with driver.current(self._device.context):
            return driver.api().cuEventQuery(self._start)[0] is driver.success()

    @property
    def seconds(self) -> float:
        """GPU time between the events, to about half a microsecond."""
        cu = driver.api()
        with driver.current(self._device.context):
            driver.check(cu.cuEventSynchronize(self._stop))
            return float(driver.check(cu.cuEventElapsedTime(self._start, self._stop))) * 1e-3

    def close(self) -> None:
        """Destroy the events."""
        cu = driver.api()
        with driver.current(self._device.context):
            cu.cuEventDestroy(self._start)
            cu.cuEventDestroy(self._stop)


class CacheFlush:
    """Clears a GPU's L2 by writing a buffer of twice its size."""

    def __init__(self, device: CudaDevice, stream: int = 0) -> None:
        self._device = device
        self._stream = stream
        self._bytes = max(2 * driver.attribute(device.device, "L2_CACHE_SIZE"), 1 << 20)
        self._memory = device.allocate(self._bytes, stream)

    def __call__(self) -> None:
        with driver.current(self._device.context):
            cu = driver.api()
            driver.check(cu.cuMemsetD32Async(self._memory.address, 0, self._bytes // 4, self._stream))


class ColdRuns:
    """Times runs behind a cleared L2, while the host is ahead of the GPU.

    If the GPU is done clearing before the host has issued the run, it waits for the host between the two events. Such
    a sample is repeated behind twice as many clears, up to `MOST_CLEARS`, which later samples of the same name get, too.
    """

    def __init__(self, device: CudaDevice, stream: int = 0) -> None:
        self._clear = CacheFlush(device, stream)
        self._clears: dict[str, int] = {}

    def __call__(self, watch: Stopwatch, run: Run, name: str = "") -> None:
        while True:
            clears = self._clears.get(name, 1)
            for _ in range(clears):
                self._clear()
            with watch:
                run()
            if clears >= MOST_CLEARS or not watch.begun:
                return
            self._clears[name] = 2 * clears


def device_times(
    runs: Mapping[str, Run],
    *,
    rounds: int = 30,
    warmup: int = 3,
    flush: bool = True,
    stream: int = 0,
    device: CudaDevice | None = None,
) -> dict[str, Timing]:
    """GPU seconds of each run: one sample in each round, in turn.

    Each run issues its work to `stream`. With `flush` the L2 is cleared before each sample, as `ColdRuns` does it.
    Nothing waits between samples.
    """
    device = device or cuda_device()
    cold = ColdRuns(device, stream) if flush else None
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(warmup):
            run()
    watches: list[tuple[str, Stopwatch]] = []
    for _ in range(rounds):
        for name, run in runs.items():
            watch = Stopwatch(device, stream)
            watches.append((name, watch))
            if cold:
                cold(watch, run, name)
                continue
            with watch:
                run()
    for name, watch in watches:
        samples[name].append(watch.seconds)
        watch.close()
    return {name: Timing(tuple(s)) for name, s in samples.items()}


def host_times(
    runs: Mapping[str, Run],
    *,
    rounds: int = 30,
    calls: int = 200,
    warmup: int = 20,
    between: Run | None = None,
) -> dict[str, Timing]:
    """Host seconds of one call of each run: the mean of `calls` consecutive calls. The runs are measured in turn.

    `between` runs, unmeasured, after each sample: a synchronisation, so that no queue is ever full.
    `calls` stays below the depth of a GPU's launch queue (about a thousand) for that reason.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(warmup):
            run()
        if between:
            between()
    clock = time.perf_counter
    numbers = range(calls)
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            for _ in numbers:
                run()
            samples[name].append((clock() - start) / calls)
            if between:
                between()
    return {name: Timing(tuple(s)) for name, s in samples.items()}
