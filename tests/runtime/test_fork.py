"""Children of `os.fork()` while threads of the parent compile: no lock of ours stays held, and every child ends well."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import forking
from kernel_dsl.runtime import disk_cache
from kernel_dsl.runtime.build import cache
from kernel_dsl.runtime.graph import turns
from kernel_dsl.runtime.plan import recording
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PACKAGES = ("kernel_dsl", "lowering", "runtime")
SOURCES = {"threading", "_thread", "queue", "functools", "concurrent.futures", "multiprocessing"}
LOCKS = (type(threading.Lock()), type(threading.RLock()))


def in_child(check: Any) -> bool:
    """Whether `check()` is true in a child that is forked now. No assertion may leave the child."""
    pid = os.fork()
    if not pid:
        good = False
        try:
            good = bool(check())
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def our_locks() -> Iterator[tuple[str, Any]]:
    """The locks in modules of ours, in their classes, and in what these made: (where, lock)."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            holders: list[Any] = [module, *(v for v in vars(module).values() if isinstance(v, type))]
            for holder in holders:
                for attribute, value in list(vars(holder).items()):
                    if isinstance(value, LOCKS):
                        yield f"{name}.{attribute}", value
    for thing in gc.get_objects():
        if str(type(thing).__module__).partition(".")[0] in PACKAGES and not isinstance(thing, types.ModuleType):
            for attribute in (*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())):
                value = getattr(thing, attribute, None)
                for each in value.values() if isinstance(value, dict) else (value,):
                    if isinstance(each, LOCKS):
                        yield f"{type(thing).__qualname__}.{attribute}", each


def some_of_each() -> list[Any]:
    """Objects of classes that hold locks."""
    x = np.ones(8, np.float32)
    kernel = kd.kernel(lambda x, o: o.__setitem__(..., x[...]), out_type=lambda x: x)
    with kd.Graph() as graph:
        kernel(x)
    graph()
    kernels = cache.KernelCache()
    kernels._building["key"] = forking.lock()
    return [kernel, graph, kernels, disk_cache.DiskCache(None)]


def test_every_lock_of_ours_is_one_that_children_get_anew() -> None:
    kept = some_of_each()
    known = {id(lock) for lock in forking.locks()}
    found = [(where, id(lock)) for where, lock in our_locks()]
    assert {"KernelFinder._lock", "Graph._lock", "KernelCache._lock", "KernelCache._building", "DiskCache._lock"} <= {
        where for where, _ in found
    }
    assert not [where for where, number in found if number not in known]
    del kept


def test_no_other_lock_is_written() -> None:
    """Of the standard library's classes too: a cached_property of Python 3.11 has a lock, as queues and events have."""
    banned = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "allocate_lock"}
    banned |= {"cached_property", "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "ThreadPoolExecutor"}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.name == "forking.py":
                continue
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if any(word in text for word in banned) else ():
                names: list[str] = []
                if isinstance(node, ast.Attribute) and node.attr in banned and ast.unparse(node.value) in SOURCES:
                    names = [node.attr]
                if isinstance(node, ast.ImportFrom) and node.module in SOURCES:
                    names += [a.name for a in node.names]
                assert not banned.intersection(names), f"{path}:{getattr(node, 'lineno', 0)}: use kernel_dsl.forking"


def test_locks_that_another_thread_holds_are_free_in_a_child() -> None:
    kept = some_of_each()
    held, done = threading.Event(), threading.Event()
    waited = set(map(id, guards()))  # a fork waits for these

    def hold() -> None:
        with ExitStack() as stack:
            for lock in forking.locks():
                if id(lock) not in waited:
                    stack.enter_context(lock)
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        assert not all(lock.acquire(blocking=False) for lock in forking.locks() if id(lock) not in waited)
        assert in_child(lambda: all(lock.acquire(blocking=False) for lock in forking.locks()))
    finally:
        done.set()
        thread.join()
    del kept


def guards() -> list[Any]:
    from kernel_dsl.runtime.custom import nvrtc

    return [nvrtc._lock]


@pytest.mark.parametrize("which", ["llvm", "nvrtc"])
def test_a_fork_waits_for_a_compiler_at_work(which: str) -> None:
    from llvmlite.binding import ffi

    import kernel_dsl.lowering.llvm  # noqa: F401
    from kernel_dsl.runtime.custom import nvrtc

    guard = ffi.lib._lock if which == "llvm" else nvrtc._lock
    busy, order = threading.Event(), []

    def compile_for_a_while() -> None:
        with guard:
            busy.set()
            threading.Event().wait(0.3)
            order.append("compiled")

    thread = threading.Thread(target=compile_for_a_while)
    thread.start()
    assert busy.wait(60)

    def is_free() -> bool:
        with guard:
            return order == ["compiled"]

    assert in_child(is_free)
    order.append("forked")
    thread.join()
    assert order == ["compiled", "forked"]
    with guard:  # here too
        pass


def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(forking, "_PATIENCE", 0.2)
    held, done = threading.Event(), threading.Event()
    (guard,) = guards()

    def hold() -> None:
        with guard:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        assert in_child(lambda: guard.acquire(blocking=False))
        assert "the child may not compile" in caplog.text
    finally:
        done.set()
        thread.join()


def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    lock = forking.lock()

    def use() -> bool:
        lock.release()
        return lock.acquire(blocking=False)

    with lock:
        assert in_child(use)
    with lock:
        pass


def test_a_child_takes_the_fast_paths_while_another_thread_of_the_parent_records() -> None:
    recording_now, done = threading.Event(), threading.Event()

    def record() -> None:
        with kd.Graph():
            recording_now.set()
            done.wait(60)

    thread = threading.Thread(target=record)
    thread.start()
    try:
        assert recording_now.wait(60)
        assert recording.active
        assert in_child(lambda: not recording.active and recording.current() is None)
        with kd.Graph():  # and this thread's own recording goes on
            assert in_child(lambda: recording.active == 1 and recording.current() is not None)
    finally:
        done.set()
        thread.join()
    assert not recording.active


def test_a_fast_path_that_another_thread_took_does_not_hold_a_child_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running:
        closed = False

        def close(self) -> None:
            self.closed = True

        def running(self) -> bool:
            return True

    taken = object.__new__(turns.Turns)
    taken._path = Running()
    monkeypatch.setattr(turns.driver, "_forked", True)
    taken.hold()
    assert taken._path.closed


# Children at random moments of a process' first compiles, imports included.
SCRIPT = """
import os, random, signal, sys, threading, time
random.seed(int(sys.argv[1]))
forks, span = int(sys.argv[2]), float(sys.argv[3])
import numpy as np
import kernel_dsl as kd

x = np.arange(64, dtype=np.float32)

def chain(n, at):
    def body(x, o):
        v = x[...]
        for _ in range(n):
            v = kd.tanh(v * 0.1) + at
        o[...] = v
    return kd.kernel(body, out_type=lambda x: x)

def work(number):
    for at in range(3):
        chain(20, number + at)(x, interpret=True)

shared = chain(20, 0.5)
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
threads.append(threading.Thread(target=lambda: shared(x, interpret=True)))
for t in threads:
    t.start()
children = []
for pause in sorted(random.uniform(0, span) for _ in range(forks)):
    time.sleep(max(0, pause - (time.perf_counter() - START if children else 0)))
    if not children:
        START = time.perf_counter() - pause
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            kernel = random.choice([shared, chain(2, 0.25)])
            got = kernel(x, interpret=True)
            os._exit(0 if np.isfinite(got).all() else 3)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(2)
    children.append(pid)
bad = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
for t in threads:
    t.join()
assert not any(bad), bad
"""


def fork_at_random(seed: int, forks: int, span: float) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    line = [sys.executable, "-c", SCRIPT, str(seed), str(forks), str(span)]
    done = subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("forks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_children_at_random_moments_of_compiles(forks: int) -> None:
    fork_at_random(0, forks=forks, span=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 42))
def test_children_at_many_moments_of_compiles(seed: int) -> None:
    fork_at_random(seed, forks=10, span=2.0)
