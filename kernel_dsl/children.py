"""Work in child processes: a limited number at a time, each of which returns its result through a pipe.

Children are forked, because the work may be a function that a new process can't import. A child must not use a GPU, which
does not work after a fork.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .diagnostics import Error, shown

Work = Callable[[], Any]


class ChildError(Exception):
    """The reason why a child has no result, as text. `raised`: the work raised an exception that is no `Error`.

    The same work raises it again in this process, with the traceback that ends at the user's line.
    """

    def __init__(self, text: str, raised: bool = False) -> None:
        super().__init__(text, raised)
        self.raised: bool = raised

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass
class _Started:
    """A process, and the bytes that it has sent so far."""

    pid: int
    pipe: int
    number: int
    said: bytes = b""


def in_children(work: Sequence[Work], jobs: int, done: Callable[[int], object] = lambda count: None) -> list[Any]:
    """The results of the functions in order, or the `Error`s that they raised.

    Calls `done(count)` when one has ended.

    Results are pickled. A child that raises another exception, or ends without a result, gives a `ChildError`. An interrupt
    kills the children.
    """
    results: list[Any] = [None] * len(work)
    waiting, running, ended = list(enumerate(work)), dict[int, _Started](), 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _start(*waiting.pop(0))
                running[child.pipe] = child
            for pipe in select.select(list(running), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                running[pipe].said += data
                if not data:
                    child = running.pop(pipe)
                    results[child.number] = _end(child)
                    ended += 1
                    done(ended)
    except BaseException:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            _end(child)
        raise
    return results


def _start(number: int, work: Work) -> _Started:
    reading, writing = os.pipe()
    # Python and JAX warn of other threads: children renew this project's locks, and call no JAX.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        pid = os.fork()
    if pid:
        os.close(writing)
        return _Started(pid, reading, number)
    code = 1
    try:  # the parent's code must not continue in the child
        os.close(reading)
        told = _told(work)
        while told:
            told = told[os.write(writing, told) :]
        code = 0
    finally:
        os._exit(code)


def _told(work: Work) -> bytes:
    """The bytes to send: the result or the `Error`, or a `ChildError` for other exceptions and what can't be pickled."""
    try:
        result: Any = work()
    except Error as error:
        result = error.with_traceback(None)
    except (Exception, SystemExit) as error:
        result = ChildError(shown(error), raised=True)
    try:
        data = pickle.dumps(result)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(ChildError(f"{type(result).__name__}: {shown(result)}"))
    return data


def _end(child: _Started) -> Any:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if child.said:
        try:
            return pickle.loads(child.said)
        except Exception:  # the child ended before it had sent all
            pass
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
    return ChildError(f"the process ended by {how}")


class Progress:
    """A progress bar for work of several seconds. Shows nothing if the output is not a terminal."""

    _WIDTH = 24

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._on = total > 0 and getattr(sys.stderr, "isatty", lambda: False)()

    def __call__(self, count: int) -> None:
        """Show that `count` of them are done."""
        if self._on:
            full = self._WIDTH * count // self._total
            bar = "#" * full + "." * (self._WIDTH - full)
            sys.stderr.write(f"\r{self._what} [{bar}] {count}/{self._total}")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave an empty line."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
