"""A GPU that only counts: what it runs, the interpreter runs; what a run takes, the test says; its clock goes by what ran."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from kernel_dsl import tuned, tuning_file, tuning_trial
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.runtime.measure import samples as measuring


class FakeBench:
    """`seconds(kernel name)` is what a run takes. `sampled`: the names of what was timed, in order."""

    gpu = "Fake GPU"
    target = "sm_90a"

    def __init__(self, seconds: Callable[[str], float]) -> None:
        self._seconds = seconds
        self._now = 0.0
        self.sampled: list[str] = []

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        rng = np.random.default_rng(0)
        return [
            rng.standard_normal(x.shape).astype(as_dtype(x.dtype).numpy) if hasattr(x, "shape") else x for x in leaves
        ]

    def poison(self, outputs: Sequence[Any]) -> None:
        for x in outputs:
            x.view(np.uint8)[...] = 255

    def host(self, output: Any) -> Any:
        return np.array(output).reshape(-1)

    def sample(self, run: Any) -> float:
        name = run.func.kernel.name
        self.sampled.append(name)
        self._now += self._seconds(name)
        return self._seconds(name)

    def clock(self) -> float:
        return self._now


def resources(spills: int = 0, blocks: int = 1) -> Any:
    """Machine code of a kernel, as far as tuning looks at it."""
    return SimpleNamespace(resources=SimpleNamespace(spills=spills, blocks_per_multiprocessor=blocks))


@contextmanager
def gpu(
    seconds: Callable[[str], float] = lambda name: 1e-3,
    made: Callable[[str], Any] = lambda name: resources(),
    results: Callable[[str], Any] | None = None,
) -> Generator[FakeBench]:
    """A GPU. `made(kernel name)`: machine code; `results(kernel name)`: what a kernel gives, without a run."""
    bench = FakeBench(seconds)
    with (
        mock.patch.object(measuring, "bench_of", lambda device: bench),
        mock.patch.object(measuring, "assembles_apart", lambda: False),
        mock.patch.object(tuned, "machine_code", lambda stages: made(stages.name)),
    ):
        if results is None:
            yield bench
            return
        given = results
        with (
            mock.patch.object(
                tuning_trial.KernelTrial, "__call__", lambda self, *args, out=None: given(self.kernel.name)
            ),
            mock.patch.object(bench, "poison", lambda outputs: None),
            no_file(),
        ):
            yield bench


@contextmanager
def no_file() -> Generator[tuning_file.TunedResults]:
    """Results of this process alone."""
    own = tuning_file.TunedResults(None)
    with mock.patch.object(tuned, "tuned_results", lambda: own):
        yield own
