"""GPU time of a call by CUPTI: the same clock for frameworks that launch on streams of their own.

Events bracket work on one stream, and JAX launches on a stream that nobody else can record on. CUPTI's activity records
give the start and end of every kernel of the process, whoever launched it, as the GPU saw them: no launch overhead and
no host clock is in them. The time of a call is the sum over all kernels that it ran. Recording is what JAX's own
profiler does (`jax.experimental.mosaic.gpu.profiler`), through the same extension module. Where that is missing, times
are of events on PyTorch's stream, and calls that run elsewhere are refused.

L2 is overwritten before each call. The kernels that overwrite it are known by name, and left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from .harness import Timing, clear_l2

Run = Callable[[], Any]
CALLS = 4  # of a variant in a round: the GPU stays busy, as in a program


class ClockError(RuntimeError):
    """A call that this clock can't time."""


def settle(result: Any) -> None:
    """Wait for a call, on whatever stream it is."""
    if hasattr(result, "block_until_ready"):
        result.block_until_ready()
    torch.cuda.synchronize()


class CuptiClock:
    """Kernel times from CUPTI. Raises what JAX's extension raises, or ClockError, where they can't be had."""

    name = "kernel times by CUPTI"

    def __init__(self) -> None:
        from jax.experimental.mosaic.gpu import profiler

        self._extension: Any = profiler.mosaic_gpu_lib._mosaic_gpu_ext  # pyright: ignore[reportPrivateUsage]
        probe = torch.zeros(1 << 20, device="cuda")
        failure = ""
        for self._detach in (False, True, True):  # it may record again only after CUPTI left the process
            try:
                self._ignored: set[str] = set()
                self._ignored = {name for name, _ in self._record(clear_l2, 1)}
                counts = [len(self._record(lambda: probe.add_(1), 2)) for _ in range(2)]
                if counts == [2, 2]:
                    return
                failure = f"{counts} kernels where there were 2 each time"
            except Exception as error:
                failure = reason(error)
        raise ClockError(failure)

    def _record(self, run: Run, calls: int) -> list[tuple[str, float]]:
        """(name, milliseconds) of the kernels of some calls, each with a cleared L2."""
        self._extension._cupti_init()
        try:
            for _ in range(calls):
                clear_l2()
                torch.cuda.synchronize()
                settle(run())
        finally:
            times = self._extension._cupti_get_timings(self._detach)
        return [(name, t) for name, t in times if name not in self._ignored]

    def seconds(self, run: Run, calls: int = CALLS) -> float:
        """Mean time of a call."""
        times = self._record(run, calls)
        if not times or len(times) % calls:
            raise ClockError(f"{len(times)} kernels in {calls} calls")
        return sum(t for _, t in times) * 1e-3 / calls


class EventClock:
    """Times by events, for calls on PyTorch's stream only."""

    name = "events on PyTorch's stream"

    def seconds(self, run: Run, calls: int = CALLS) -> float:
        """Mean time of a call."""
        pairs: list[tuple[Any, Any]] = []
        for _ in range(calls):
            clear_l2()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            result = run()
            stop.record()
            if hasattr(result, "block_until_ready"):
                raise ClockError("JAX launches on its own stream, and CUPTI is not there")
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return sum(a.elapsed_time(b) for a, b in pairs) * 1e-3 / calls


Clock = CuptiClock | EventClock


def best_clock() -> Clock:
    """CUPTI where it works."""
    try:
        return CuptiClock()
    except Exception as error:
        print(f"no CUPTI ({type(error).__name__}: {error}); JAX's calls can't be timed")
        return EventClock()


def interleaved(clock: Clock, variants: dict[str, Run], rounds: int) -> dict[str, Timing | str]:
    """Time every variant once a round, in turn; the reason for one that fails."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    failed: dict[str, str] = {}
    for number in range(-2, rounds):  # two rounds to warm up
        for name, run in variants.items():
            if name in failed:
                continue
            try:
                seconds = clock.seconds(run)
            except Exception as error:
                failed[name] = reason(error)
                continue
            if number >= 0:
                times[name].append(seconds)
    return {name: failed.get(name) or _timing(list_) for name, list_ in times.items()}


def _timing(times: list[float]) -> Timing:
    ordered = sorted(times)
    n = len(ordered)
    return Timing(statistics.median(ordered), ordered[n // 4], ordered[3 * n // 4])


def reason(error: BaseException) -> str:
    """One line of an exception."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:100]}"
