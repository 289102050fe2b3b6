"""Compiling before the first call, in processes of their own: what they make is found in the disk cache.

Children are forked, as a body is any function and need not be one that a child could import. A child traces, lowers and
assembles; it never touches a GPU, which a fork can't use.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from .arguments import an_int
from .boundary import checks_itself
from .diagnostics import Error, shown
from .errors import BadArgumentType
from .errors_dims import WarmFailed
from .loading import assembled, gpu_target
from .options import environment
from .stages import Stages


@dataclass
class _Child:
    """A process that compiles; what it says at its end comes through a pipe."""

    pid: int
    pipe: int
    said: bytes = b""


@checks_itself("work", "jobs")
def warm(work: Any, jobs: int | None = None) -> int:
    """Compile kernels ahead of their first calls, in child processes, into the disk cache; how many signatures that were.

    `work`: a list of (kernel, *arguments) or (kernel, (*arguments,)), with the arguments of one call as `lower` takes them:
    arrays, `ShapeDtypeStruct`s, scalars. `jobs`: processes at a time, by default one a CPU core. A later call, in this
    process or another with the same cache, then loads what was made. Without a disk cache nothing is kept, and nothing
    is done.

    Raises `BadArgumentType`, the errors of tracing and compiling as a call raises them, and `WarmFailed` for a child that ends
    without a word.
    """
    count = an_int(os.cpu_count() or 1 if jobs is None else jobs, "warm", "jobs", low=1)
    if not isinstance(work, (list, tuple)):
        raise BadArgumentType(op="warm", what=f"work={shown(work)}", hint="a list of (kernel, specs)")
    calls = [_call(item) for item in cast("Sequence[Any]", work)]
    if environment().cache_off:
        return 0
    target = gpu_target()
    return _compile([partial(_lowered, kernel, specs, target) for kernel, specs in calls], count)


def _lowered(kernel: Any, specs: tuple[Any, ...], target: str | None) -> Stages:
    return kernel.lower(*specs, target=kernel.target or target)


def _call(item: Any) -> tuple[Any, tuple[Any, ...]]:
    parts = cast("Sequence[Any]", item) if isinstance(item, (list, tuple)) else ()
    if not parts or not hasattr(parts[0], "warm"):
        hint = "a kernel and the arguments that it is compiled for, in a tuple"
        raise BadArgumentType(op="warm", what=f"{shown(item)} in work", hint=hint)
    given = parts[1] if len(parts) == 2 and isinstance(parts[1], (list, tuple)) else parts[1:]
    return parts[0], tuple(cast("Sequence[Any]", given))


def _compile(traces: Sequence[Callable[[], Stages]], jobs: int) -> int:
    """Run each in a child, so many at a time. Raises the first child's error, once all have ended."""
    waiting, running = list(traces), dict[int, _Child]()
    failed: list[Exception] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs and not failed:
                child = _start(waiting.pop(0))
                running[child.pipe] = child
            if failed:
                waiting.clear()
            for pipe in select.select(list(running), [], [])[0] if running else []:
                data = os.read(pipe, 65536)
                running[pipe].said += data
                if not data:
                    error = _end(running.pop(pipe))
                    failed += [] if error is None else [error]
    except BaseException:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            _end(child)
        raise
    if failed:
        raise failed[0]
    return len(traces)


def _start(trace: Callable[[], Stages]) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(pid, reading)
    code = 1
    try:  # nothing of the parent's may run on from here
        os.close(reading)
        told = pickle.dumps(_work(trace))
        while told:
            told = told[os.write(writing, told) :]
        code = 0
    finally:
        os._exit(code)


def _work(trace: Callable[[], Stages]) -> Exception | None:
    """Compile; the error as it can be sent."""
    try:
        assembled(trace())
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return WarmFailed(what=f"{type(error).__name__}: {shown(error)}")
        return error
    return None


def _end(child: _Child) -> Exception | None:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if not child.said:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
        return WarmFailed(what=f"the process that compiled ended by {how}")
    error = pickle.loads(child.said)
    if isinstance(error, Error):
        error.__traceback__ = None
    return error
