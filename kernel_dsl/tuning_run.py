"""A tuning: configurations are ranked, those that can't run are dropped, a few are compiled, checked and timed in turn.

What is tuned is a `Trial`: something that can be lowered and called. What times it is a `Bench`: a GPU, or a test's clock.
"""

from __future__ import annotations

import datetime
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from .children import ChildError, Progress, in_children
from .diagnostics import Error
from .dtypes import DType, as_dtype
from .errors_tuning import NoConfiguration, NotTunable, ResultsDiffer
from .pressure import large_values
from .tree import flatten
from .tuning_file import TunedLine
from .tuning_table import TuningRow, changed

LEAST, MOST = 3, 200  # rounds of samples
WARM_UP = 2  # calls before the first sample
_SHOWN = 8  # reasons in a message
# errors of an impossible configuration: ours, and those of a function's own checks
REFUSALS = (Error, ValueError, AssertionError)
_TOOLS = ("tool-missing", "tool-failed")  # not the configuration's fault
# the difference between sums in another order, relative to a typical element; narrower dtypes: by their last place
_TOLERANCES = {"float64": 1e-9, "float32": 2e-3, "complex64": 2e-3}
_PLACES = 8.0  # units of the last place


class Trial(Protocol):
    """The kernel, or kernels, of a configuration."""

    def stages(self, target: str | None) -> Any:
        """Its stages for the inputs of the tuning."""
        ...

    def __call__(self, *args: Any, out: Any = None) -> Any: ...


class Bench(Protocol):
    """Runs and times trials."""

    gpu: str
    target: str

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Inputs like these with random floats. Ints stay, because they may be indices or lengths."""
        ...

    def poison(self, outputs: Sequence[Any]) -> None:
        """Fill arrays with values that no kernel computes."""
        ...

    def host(self, output: Any) -> Any:
        """A sample of an array's elements (all, if it is small) as a NumPy array."""
        ...

    def sample(self, run: Callable[[], object]) -> float:
        """Seconds of one run, with L2 cleared before it."""
        ...

    def clock(self) -> float:
        """Seconds, from any start."""
        ...


@dataclass(frozen=True)
class Built:
    """The rows of a space, and the trials of those rows that have one."""

    rows: list[TuningRow[Any]]
    trials: dict[int, Trial]


# --- before any run ------------------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """The reason why a configuration is dropped, as one line."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def build(rows: Sequence[TuningRow[Any]], make: Callable[[Any], Trial]) -> Built:
    """The trial of each row. A row whose configuration is refused is dropped with the reason."""
    out, trials = list(rows), dict[int, Trial]()
    for i, row in enumerate(rows):
        if not row.dropped:
            try:
                trials[i] = make(row.config)
            except NotTunable:
                raise
            except REFUSALS as error:
                out = changed(out, i, dropped=reason(error))
    return Built(out, trials)


def refusal(trial: Trial, target: str | None, code: Callable[[Any], Any] | None) -> str:
    """The reason why a trial can't run; empty if it can.

    `code` makes machine code of stages; None: they are only lowered.
    """
    try:
        with large_values() as large:
            stages = trial.stages(target)
            if code is None:
                _ = stages.kernel
                return f"spills registers: {large[0]}" if large else ""
            found = code(stages).resources
    except REFUSALS as error:
        if getattr(error, "code", "") in _TOOLS:
            raise
        return reason(error)
    if found.spills:
        return f"spills {found.spills} bytes of registers"
    return "" if found.blocks_per_multiprocessor else "needs more registers or SMEM than a multiprocessor has"


def first_that_runs(built: Built, order: Sequence[int], target: str | None, code: Any) -> tuple[Built, int]:
    """The number of the first row, in `order`, that can run; -1 for none. Rows before it are dropped."""
    rows = built.rows
    for i in order:
        why = refusal(built.trials[i], target, code)
        if not why:
            return replace(built, rows=rows), i
        rows = changed(rows, i, dropped=why)
    return replace(built, rows=rows), -1


def compiled(built: Built, keep: int, target: str | None, code: Any, apart: bool, name: str) -> tuple[Built, list[int]]:
    """Compile rows in order until `keep` of them can run. Returns their numbers. `apart`: in child processes."""
    rows, taken = built.rows, list[int]()
    waiting = [i for i, row in enumerate(rows) if not row.dropped]
    while waiting and len(taken) < keep:
        batch, waiting = waiting[: keep - len(taken)], waiting[keep - len(taken) :]
        work = [partial(refusal, built.trials[i], target, code) for i in batch]
        for i, why in zip(batch, _all_of(work, apart, f"compiling {name}"), strict=True):
            if isinstance(why, ChildError):
                if why.raised:  # as the user's code raises it, not as words
                    refusal(built.trials[i], target, None)
                why = str(why)
            elif isinstance(why, Exception):
                raise why
            if why:
                rows = changed(rows, i, dropped=why)
            else:
                taken.append(i)
    return replace(built, rows=rows), taken


def _all_of(work: Sequence[Callable[[], str]], apart: bool, what: str) -> list[Any]:
    progress = Progress(what, len(work))
    try:
        if apart and hasattr(os, "fork"):
            return in_children(work, os.cpu_count() or 1, progress)
        done: list[Any] = []
        for one in work:
            done.append(one())
            progress(len(done))
        return done
    finally:
        progress.close()


def nothing_runs(name: str, rows: Sequence[TuningRow[Any]]) -> NoConfiguration:
    """The error for a space whose configurations were all dropped."""
    reasons = [f"{row.text}: {row.dropped}" for row in rows[:_SHOWN]]
    more = [] if len(rows) <= _SHOWN else [f"and {len(rows) - _SHOWN} more"]
    return NoConfiguration(name=name, count=len(rows), reasons=_lines(reasons + more))


def _lines(words: Sequence[str]) -> str:
    return "\n".join(words)


# --- runs ----------------------------------------------------------------------------------------


def measure(
    built: Built,
    taken: Sequence[int],
    bench: Bench,
    leaves: Sequence[Any],
    rebuild: Callable[[list[Any]], Any],
    seconds: float,
    tolerance: float | None,
    name: str,
) -> Built:
    """Compare the results of the taken rows with the first's, and time those that agree.

    `rebuild`: leaves to arguments. A row that differs from the first is dropped with a warning. If fewer than half
    agree, it is unknown which are right: that is an error.
    """
    inputs = rebuild(bench.inputs(leaves))
    rows, agree, runs = _checked(built, taken, bench, inputs, tolerance, name)
    for i in agree:
        for _ in range(WARM_UP):
            runs[i]()
    samples = interleaved({i: partial(bench.sample, runs[i]) for i in agree}, seconds, bench.clock)
    for i in agree:
        rows = changed(rows, i, seconds=statistics.median(samples[i]), samples=len(samples[i]))
    return replace(built, rows=rows)


def interleaved(
    samplers: dict[int, Callable[[], float]], seconds: float, clock: Callable[[], float]
) -> dict[int, list[float]]:
    """Samples of each sampler, one in each round, for `seconds`. There are `LEAST` to `MOST` rounds."""
    samples: dict[int, list[float]] = {i: [] for i in samplers}
    end, count = clock() + seconds, 0
    while samplers and (count < LEAST or (clock() < end and count < MOST)):
        for i, sample in samplers.items():
            samples[i].append(sample())
        count += 1
    return samples


def _checked(
    built: Built, taken: Sequence[int], bench: Bench, inputs: Any, tolerance: float | None, name: str
) -> tuple[list[TuningRow[Any]], list[int], dict[int, Callable[[], object]]]:
    """The rows, the numbers of those that agree with the first that ran, and a function that runs each again."""
    rows, agree, differ = built.rows, list[int](), dict[int, str]()
    runs: dict[int, Callable[[], object]] = {}
    expected: list[Any] | None = None
    for i in taken:
        trial = built.trials[i]
        try:
            out = trial(*inputs)
            outputs = flatten(out)[0]
            bench.poison(outputs)
            got = [bench.host(x) for x in flatten(trial(*inputs, out=out))[0]]
        except Error as error:
            if not getattr(error, "context_survives", error.code == "load-failed"):
                raise
            rows = changed(rows, i, dropped=reason(error))
            continue
        why = "" if expected is None else difference(got, expected, tolerance)
        if why:
            differ[i] = why
            continue
        expected = got if expected is None else expected
        agree.append(i)
        runs[i] = partial(trial, *inputs, out=out)
    if len(differ) >= max(len(agree), 1) and differ:
        words = _lines([f"{rows[i].text}: {why}" for i, why in differ.items()])
        raise ResultsDiffer(name=name, first=rows[agree[0]].text, differing=words)
    for i, why in differ.items():
        text = f"{name}: {rows[i].text} is dropped, as its result is not that of {rows[agree[0]].text}: {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        rows = changed(rows, i, dropped=f"its result differs: {why}")
    return rows, agree, runs


def difference(got: Sequence[Any], expected: Sequence[Any], tolerance: float | None) -> str:
    """A description of how results differ; empty if they agree.

    Ints and bools agree if they are equal, NaNs with each other.
    """
    for number, (x, y) in enumerate(zip(got, expected, strict=True)):
        which = f"output {number}: " if len(expected) > 1 else ""
        dtype = as_dtype(x.dtype)
        if not (dtype.is_float or dtype.name == "complex64"):
            wrong = int(np.count_nonzero(x != y))
            if wrong and tolerance != np.inf:
                return f"{which}{wrong} of {x.size} elements differ"
            continue
        wide = np.complex128 if dtype.name == "complex64" else np.float64
        a, b = x.astype(wide), y.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            ok = np.isfinite(b)
            scale = float(np.sqrt(np.mean(np.abs(b[ok]) ** 2))) if ok.any() else 0.0
            bound = (tolerance_of(dtype) if tolerance is None else tolerance) * (np.abs(b) + scale)
            off = np.abs(a - b)
            bad = ~((off <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if tolerance != np.inf and bad.any():
            worst = float(np.nanmax(np.where(np.isnan(off), np.inf, off)[bad]))
            return f"{which}{int(bad.sum())} of {x.size} elements differ, by up to {worst:.3g} where {scale:.3g} is typical"
    return ""


def tolerance_of(dtype: DType) -> float:
    """The greatest difference between results of two correct kernels, relative to a typical element."""
    return _TOLERANCES.get(dtype.name) or _PLACES * float(ml_dtypes.finfo(dtype.numpy).eps)


# --- results -------------------------------------------------------------------------------------


def lines_of(
    rows: Sequence[TuningRow[Any]], place: tuple[str, str, str, str], version: str, assembler: str
) -> tuple[TunedLine, ...]:
    """The lines to keep of a run: timed and dropped configurations."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return tuple(
        TunedLine(*place, row.text, row.seconds, row.dropped, when, version, assembler)
        for row in rows
        if row.seconds is not None or row.dropped
    )


def with_lines(rows: Sequence[TuningRow[Any]], lines: Sequence[TunedLine]) -> list[TuningRow[Any]]:
    """The rows with times and reasons of an earlier run."""
    known = {line.config: line for line in lines}
    return [
        replace(row, seconds=known[row.text].seconds, dropped=known[row.text].dropped) if row.text in known else row
        for row in rows
    ]


def best_of(rows: Sequence[TuningRow[Any]]) -> int:
    """The number of the row with the least time; -1 if none has a time."""
    timed = [i for i, row in enumerate(rows) if row.seconds is not None]
    return min(timed, key=lambda i: rows[i].seconds or 0.0, default=-1)
