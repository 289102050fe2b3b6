"""Work in child processes: results in order, errors as they are, and what becomes of a child that dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from io import StringIO
from typing import Any

import pytest

from kernel_dsl.children import ChildError, Progress, in_children
from kernel_dsl.errors import BadArgument


def test_results_come_in_order() -> None:
    ended: list[int] = []
    slow = lambda: time.sleep(0.1) or os.getpid()  # noqa: E731
    results = in_children([slow, lambda: "b" * 200_000, lambda: None], 2, ended.append)
    assert results[0] != os.getpid() and results[1:] == ["b" * 200_000, None] and ended == [1, 2, 3]
    assert in_children([], 2) == []


def test_what_goes_wrong() -> None:
    def bad() -> Any:
        raise BadArgument(op="f", what="x", hint="y")

    def killed() -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def raises() -> Any:
        raise ValueError("x")

    made = in_children([bad, killed, partial(os._exit, 7), lambda: lambda: 0, raises], 4)
    assert isinstance(made[0], BadArgument) and made[0].loc.file == __file__
    assert [str(x) for x in made[1:3]] == ["the process ended by signal 9", "the process ended by exit status 7"]
    assert isinstance(made[3], ChildError) and "lambda" in str(made[3])
    assert [x.raised for x in made[1:]] == [False, False, False, True] and str(made[4]) == "ValueError('x')"


def test_an_interrupt_leaves_no_child() -> None:
    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_children([lambda: 0, lambda: time.sleep(60)], 2, interrupt)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((Terminal(), "compiling [############............] 1/2"), (StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        bar = Progress("compiling", 2)
        bar(1)
        bar.close()
        assert expected in stream.getvalue() and bool(stream.getvalue()) == bool(expected)
