"""Replays from several threads, and interrupted ones, on a driver without a GPU: see `cuda_played.py`."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl.graphs  # noqa: F401  (it lets host code launch)
from kernel_dsl.runtime.arrays.array_view import frameworks
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.errors import ArgumentValueError
from kernel_dsl.runtime.graph import Graph, fast
from tests.runtime import fake_cupy

from .cuda_played import CALLBACK, CLASHES, LAUNCHES, LIB, CudaKernel, N, graphs, host, on_device
from .kernels import like


def twice(x: Any, out: Any) -> None:
    out[...] = x * 2


def either(a: Any, b: Any, out: Any) -> None:
    np.bitwise_xor(a, b, out=out)


TWICE, EITHER = CudaKernel(twice, like), CudaKernel(either, like)


HOST_CODE, GENERATOR = fast.host_code, None


@pytest.fixture(autouse=True, params=[HOST_CODE, GENERATOR], ids=["host code", "generator"])
def fast_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes the fast path."""
    monkeypatch.setattr(fast, "host_code", request.param)
    return request.param


@pytest.fixture(autouse=True)
def context() -> Any:
    """The GPU's context is current, as where a framework works on it."""
    gc.collect()  # what other tests left is destroyed now, and not while a test counts clashes
    with driver.current(cuda_device(0).context):
        yield


def chain() -> tuple[Any, Any, Any]:
    """A graph of two kernels, its input and its output, launched once."""
    x = on_device()
    with Graph() as g:
        y = EITHER(TWICE(x), x)
    g()
    return g, x, y


def in_threads(*works: Callable[[], None]) -> None:
    """Runs all to the end, at once; raises what one of them raised."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            with driver.current(cuda_device(0).context):
                work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread waits forever"
    if failed:
        raise failed[0]


def fast_paths(g: Any) -> int:
    """How many of ten replays, and of ten launches, took the fast path."""
    taken = 0
    for _ in range(10):
        taken += g._replays()
        taken += g._launches()
    return taken


def test_replays_take_the_fast_path() -> None:
    g, x, y = chain()
    before = len(LAUNCHES)
    assert fast_paths(g) == 20
    assert len(LAUNCHES) == before + 40
    assert g() is y
    other = on_device()
    g(other)
    assert fast_paths(g) == 10, "a replay must bring the recorded input back first; a launch need not"
    np.testing.assert_array_equal(host(y), (other.data * 2) ^ other.data)
    g()
    np.testing.assert_array_equal(host(y), (x.data * 2) ^ x.data)
    assert fast_paths(g) == 20


def python_calls(work: Callable[[], Any]) -> list[str]:
    """The Python functions that a call runs through before the binding of the driver, each resumption of a generator too."""
    names: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals["__name__"].partition(".")[0] not in ("cuda", "enum"):
            names.append(frame.f_code.co_name)

    LIB.fake_callback(None)  # kernels here are Python functions, too
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        LIB.fake_callback(CALLBACK)
    return names


@pytest.mark.parametrize("stream", [0, 5])
def test_the_fast_path_is_few_python_functions(fast_path: Any, monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    """Each costs as much as all that one of them does: nothing may come between the user's call and the driver's."""
    monkeypatch.setattr(frameworks("generic"), "current_stream", {0: stream}.__getitem__)
    g, _, _ = chain()
    assert fast_paths(g) == 20
    more = ["_launches"] if fast_path is GENERATOR else []
    assert python_calls(g) == ["call", *more]
    assert python_calls(g.launch) == ["launch", *more]


def test_a_generator_launches_where_no_host_code_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> int:
        raise OSError("no memory may be executable")

    monkeypatch.setattr(fast, "host_code", refuse)
    g, _, y = chain()
    assert fast_paths(g) == 20
    assert g() is y
    assert "_launches" in python_calls(g)


def test_an_error_of_the_framework_is_raised_and_a_failed_launch_is_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[Any] = [0]

    def current(_: int) -> int:
        if isinstance(now[0], Exception):
            raise now[0]
        return now[0]

    monkeypatch.setattr(frameworks("generic"), "current_stream", current)
    g, _, y = chain()
    assert g() is y
    for error in (RuntimeError("no stream"), KeyError(0)):
        now[0] = error
        with pytest.raises(type(error)):
            g._replays()
        now[0] = 0
        assert g() is y
        assert fast_paths(g) == 20
    for unknown in (0xBAD, -1):
        now[0] = unknown
        assert not g._replays()
        now[0] = 0
        g()
    now[0] = 0xC0DE  # a stream that is captured
    assert not g._replays()


def test_more_streams_than_a_path_knows() -> None:
    g, _, _ = chain()
    for stream in range(5, 5 + 3 * fast.STREAMS):
        g.launch(stream=stream)
    g()
    assert fast_paths(g) == 20


def test_new_inputs_ask_nothing_that_replays_before_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    x, *others = (fake_cupy.ndarray(on_device().data) for _ in range(3))
    with Graph() as g:
        y = EITHER(TWICE(x), x)
    for other in (x, *others, *others):
        assert g(other) is y
        np.testing.assert_array_equal(y.host, (other.host * 2) ^ other.host)
    names = python_calls(lambda: g(others[0]))
    assert len(names) <= 45 and not {"_replay", "converted", "_home", "_plan_fast_paths"} & set(names), " ".join(names)
    with pytest.raises(
        ArgumentValueError
    ):  # unlike the recorded one: the slow path says so, and the graph stays usable
        g(fake_cupy.ndarray(on_device(N + 1).data))
    g(others[1])
    np.testing.assert_array_equal(y.host, (others[1].host * 2) ^ others[1].host)


def test_threads_launch_and_change_an_executable_one_at_a_time() -> None:
    g, x, y = chain()
    other, clashes, launches = on_device(), graphs(CLASHES), len(LAUNCHES)

    def replay() -> None:
        for _ in range(300):
            assert g() is y

    def change() -> None:
        for _ in range(100):
            g(other)
            g.launch()

    in_threads(replay, replay, change)
    assert graphs(CLASHES) == clashes
    assert len(LAUNCHES) == launches + 2 * (300 + 300 + 200)
    g()
    np.testing.assert_array_equal(host(y), (x.data * 2) ^ x.data)
    assert fast_paths(g) == 20


def test_streams_do_not_close_the_fast_path_to_each_other() -> None:
    g, _, _ = chain()
    g.launch(stream=5)
    g.launch(stream=6)
    assert fast_paths(g) == 20


def test_releasing_waits_for_a_launch_under_way() -> None:
    for _ in range(20):
        g, _, _ = chain()
        clashes = graphs(CLASHES)

        def replay(g: Any = g) -> None:
            with pytest.raises(Exception, match="nothing was recorded"):
                while True:
                    g()

        def release(g: Any = g) -> None:
            time.sleep(0.001)
            g.release()

        in_threads(replay, release)
        assert graphs(CLASHES) == clashes


def test_an_interrupt_in_a_replay_leaves_it_usable(fast_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if fast_path is HOST_CODE:
        pytest.skip("no interrupt comes between the instructions of host code")
    cu = driver.api()
    launch, interrupted = cu.cuGraphLaunch, [False]

    def interrupt(*arguments: Any) -> Any:
        outcome = launch(*arguments)
        if interrupted[0]:
            interrupted[0] = False
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(cu, "cuGraphLaunch", interrupt)
    g, x, y = chain()
    for how in (g, g.launch, lambda: g(x)):
        assert g() is y
        interrupted[0] = True
        with pytest.raises(KeyboardInterrupt):
            how()
        assert not interrupted[0]
        before = len(LAUNCHES)
        assert g() is y
        assert len(LAUNCHES) == before + 2
        np.testing.assert_array_equal(host(y), (x.data * 2) ^ x.data)
        assert fast_paths(g) == 20


def test_signals_anywhere_in_a_replay_leave_it_usable() -> None:
    g, x, y = chain()
    LIB.fake_callback(None)  # no Python in kernels: an interrupt there would be lost

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    caught = 0
    try:
        for i in range(300):
            try:
                end = time.monotonic() + 0.05
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + i * 1e-6)
                while time.monotonic() < end:
                    g()
                    if i % 3 == 0:
                        g(on_device())
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        LIB.fake_callback(CALLBACK)
    assert caught > 250, "a few come where Python drops them: in a finalizer"
    in_threads(lambda: g() and None)
    np.testing.assert_array_equal(host(y), (x.data * 2) ^ x.data)
    g()
    assert fast_paths(g) == 20
