"""Launches that the library remembers: later calls of their kind launch the same kernel for their own arrays, and examine nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.collectives.by_rank import Fresh, Launched, by_rank
from kernel_dsl.symmetric import Symmetric

PAIR = kd.Mesh(("x",), (2,))


class Kernel:
    """A kernel whose calls are noted. Its fast path takes each call, or none where it `misses`."""

    miss, recording = object(), SimpleNamespace(active=False)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []
        self.misses = False
        self._fast = lambda args, out, stream: self.miss if self.misses else self(*args, out=out)
        self._fast.miss, self._fast.recording = self.miss, self.recording  # type: ignore[attr-defined]

    def __call__(self, *args: Any, out: Any = None, interpret: Any = None) -> Any:
        self.calls.append((list(args), out))
        return [[np.zeros(2)] * 2] if out is None else out


@pytest.fixture
def made() -> Any:
    """`made.function(q, k, mesh, *, out, scale)`, whose bodies are counted."""
    found = SimpleNamespace(kernel=Kernel(), entered=0)

    @by_rank
    def function(q: Any, k: Any, mesh: Any, *, out: Any = None, scale: Any = None, interpret: Any = None) -> Any:
        found.entered += 1
        if q is None:
            raise ValueError("no q")
        result = out if out is not None else Fresh((2,), kd.float32, mesh)
        room = Fresh((7,), kd.float32, mesh)
        return Launched(found.kernel, (k, q), (result, room), lambda outs: outs[0])

    found.function = function
    return found


def row(value: float, n: int = 2) -> list[Any]:
    return [np.full(n, value, np.float32) for _ in range(2)]


def test_later_calls_use_their_own_arrays(made: Any) -> None:
    made.function(row(1), row(2), PAIR, out=row(3))
    q, k, out = row(4), row(5), row(6)
    assert made.function(q, k, PAIR, out=out) is out and made.entered == 1
    (args, outs) = made.kernel.calls[-1]
    assert args[0] is k and args[1] is q and outs[0] is out
    assert type(outs[1]) is Symmetric and outs[1].shape == (7,) and outs[1] is not made.kernel.calls[0][1][1]


def test_an_array_that_comes_twice_says_nothing_of_two(made: Any) -> None:
    x, q, k, out = row(1), row(2), row(3), row(4)
    made.function(x, x, PAIR, out=out)
    made.function(q, k, PAIR, out=out)
    made.function(x, x, PAIR, out=x)
    assert made.entered == 3
    made.function(k, q, PAIR, out=out)
    assert made.entered == 3 and made.kernel.calls[-1][0][0] is q
    made.function(k, k, PAIR, out=out)
    assert made.entered == 3 and made.kernel.calls[-1][0] == [k, k]


def test_other_kinds_of_calls_are_examined(made: Any) -> None:
    q, k, out = row(1), row(2), row(3)
    made.function(q, k, PAIR, out=out)
    others = [
        lambda: made.function(row(1, 3), k, PAIR, out=out),
        lambda: made.function(q, [x.astype(np.float16) for x in k], PAIR, out=out),
        lambda: made.function(tuple(q), k, PAIR, out=out),
        lambda: made.function(q, k, kd.Mesh(("y",), (2,)), out=out),
        lambda: made.function(q, k, PAIR, out=out, scale=1),
        lambda: made.function(q, k, PAIR, out=out, scale=True),
        lambda: made.function(q, k, PAIR, out=out, scale=[1]),
        lambda: made.function(q, k, PAIR),
        lambda: made.function(q, k, PAIR, out=out, interpret=True),
        lambda: made.function(q, k, mesh=PAIR, out=out),
    ]
    for number, call in enumerate(others, 2):
        call()
        assert made.entered == number
    made.kernel.misses = True
    made.function(q, k, PAIR, out=out)
    assert made.entered == len(others) + 2, "the kernel's fast path has an eye on the rest"
    with pytest.raises(ValueError, match="no q"):
        made.function(None, k, PAIR, out=out)


def test_outputs_are_made_for_each_call(made: Any) -> None:
    for _ in range(2):
        made.function(row(1), row(2), PAIR)
    assert made.entered == 1 and [out for _, out in made.kernel.calls] == [None] * 2, "the kernel makes all of them"


class Like:
    """The kernel's newest kind of call, which takes calls of arrays of two elements."""

    repeats = True

    def __init__(self) -> None:
        self.took: list[Any] = []

    def again(self, given: list[Any]) -> bool:
        if any(x.shape != (2,) for x in given):
            return False
        self.took.append(given)
        return True


class Plain:
    """A group of ranks, of which this is one."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


def one_of(kernel: Any, scaled: bool = True) -> Any:
    @by_rank
    def function(x: Any, mesh: Any, *, out: Any = None, scale: Any = None, interpret: Any = None) -> Any:
        return Launched(kernel, (x,), out)

    return function


def vector(n: int = 2) -> Any:
    return np.zeros(n, np.float32)


def test_a_call_like_the_newest_is_told_by_its_arrays() -> None:
    kernel, like, group = Kernel(), Like(), Plain()
    kernel._fast.recent = (like,)  # type: ignore[attr-defined]
    function = one_of(kernel)
    for _ in range(2):  # in full, and by what is remembered
        function(vector(), group, out=vector())
    calls = len(kernel.calls)
    x, out = vector(), vector()
    assert function(x, group, out=out) is out and like.took == [[x, out]] and len(kernel.calls) == calls
    # other arrays, options, ranks, and a graph that records: none of them is like it
    others: list[Any] = [
        lambda: function(vector(3), group, out=vector(3)),
        lambda: function(x, group, out=out, scale=2.0),
        lambda: function(x, group, out=out, scale=None, interpret=None),
        lambda: function(x, Plain(), out=out),
        lambda: function(x, group),
    ]
    for other in others:
        other()
        assert len(like.took) == 1
    function(x, group, out=out)
    taken = len(like.took)
    kernel.recording.active = True
    try:
        function(x, group, out=out)
    finally:
        kernel.recording.active = False
    kernel._fast.recent = ()  # type: ignore[attr-defined]
    function(x, group, out=out)  # as after a fork
    assert len(like.took) == taken


def test_options_of_the_newest_are_compared_by_type_and_value() -> None:
    kernel, like, group = Kernel(), Like(), Plain()
    kernel._fast.recent = (like,)  # type: ignore[attr-defined]
    function = one_of(kernel)
    x, out = vector(), vector()
    for _ in range(3):
        function(x, group, out=out, scale=1)
    assert len(like.took) == 1
    for scale in (1.0, True, 2, None):
        function(x, group, out=out, scale=scale)
        assert len(like.took) == 1
    function(x, group, scale=1, out=out)
    function(x, group, scale=1, out=out)
    assert len(like.took) >= 2
