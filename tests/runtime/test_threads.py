"""32 threads at once: they trace, compile, call, record, replay and save, and each gets what it would get alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import loading
from kernel_dsl.lazy import once
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.disk_cache import DiskCache
from kernel_dsl.runtime.errors import ArgumentTypeError
from tests.assemble.test_cache import KEYS, made
from tests.conftest import ROOT

THREADS = 32


@pytest.fixture(autouse=True)
def often() -> Generator[None]:
    """Threads take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], object], count: int = THREADS) -> list[Any]:
    """`work(number)` in as many threads, which start together. Raises the first exception of any."""
    start, results, errors = threading.Barrier(count), [None] * count, list[BaseException]()

    def run(number: int) -> None:
        try:
            start.wait(60)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread does not end"
    if errors:
        raise errors[0]
    return results


def chain(length: int, add: float) -> Any:
    def body(x, out):
        value = x[...]
        for _ in range(length):
            value = kd.maximum(value * 0.5, value - 1) + add
        out[...] = value

    return kd.kernel(body, out_type=lambda x: x, interpret=True, name=f"chain{length}")


def expected(x: Any, length: int, add: float) -> Any:
    for _ in range(length):
        x = np.maximum(x * np.float32(0.5), x - np.float32(1)) + np.float32(add)
    return x


def test_one_kernel_called_by_all() -> None:
    """Of one signature and of several: each is traced once."""
    traces: list[tuple[int, ...]] = []

    def body(x, out):
        traces.append(x.shape)
        out[...] = x[...] * 3

    kernel = kd.kernel(body, out_type=lambda x: x, interpret=True)

    def work(number: int) -> None:
        for turn in range(3):
            x = np.random.default_rng(number * 7 + turn).standard_normal(32 + number % 4).astype(np.float32)
            np.testing.assert_array_equal(kernel(x), x * 3)

    at_once(work)
    assert sorted(traces) == [(32,), (33,), (34,), (35,)]


def test_kernels_made_and_compiled_by_all() -> None:
    """The same text in each thread, and the same as alone."""
    x = np.linspace(-2, 2, 40, dtype=np.float32)
    alone = {length: chain(length, 0.25).lower(x).ptx for length in range(1, 9)}

    def work(number: int) -> None:
        length = number % 8 + 1
        kernel = chain(length, 0.25)
        assert kernel.lower(x).ptx == alone[length]
        np.testing.assert_array_equal(kernel(x), expected(x, length, 0.25))

    at_once(work)


def test_stages_looked_at_by_all() -> None:
    x = np.ones(64, np.float32)
    stages = chain(5, 0.5).lower(x)
    seen = at_once(lambda number: (stages.ptx, stages.llvm, stages.ir_text, stages.key_text, stages.kernel.entry))
    assert all(one == seen[0] for one in seen)


def test_errors_are_each_threads_own() -> None:
    def work(number: int) -> None:
        def body(x, out):
            out[...] = x[...].reshape(number + 1000)

        kernel = kd.kernel(body, out_type=lambda x: x, interpret=True)
        for _ in range(2):
            with pytest.raises(kd.Error, match=str(number + 1000)):
                kernel(np.ones(8, np.float32))

    at_once(work)


def test_graphs_recorded_by_all() -> None:
    """While others call the same kernels: nobody's calls get into another's graph."""
    double, more = chain(1, 0.0), chain(2, 1.0)
    k = kd.Variable("k", 1, 4)
    times = kd.kernel(lambda x, s, out: out.__setitem__(..., x[...] * s), out_type=lambda x, s: x, interpret=True)

    def work(number: int) -> None:
        x = np.random.default_rng(number).standard_normal(24).astype(np.float32)
        wanted = expected(expected(x, 1, 0.0), 2, 1.0)
        if number % 4 == 3:
            for _ in range(4):
                np.testing.assert_array_equal(more(double(x)), wanted)
            return
        with kd.Graph() as g:
            y = more(double(x))
            z = times(y, k)
        assert len(g.nodes) == 3
        if number % 2:
            g.outputs = z
        for value in (4, 1, 3):
            got = g(k=value)
            np.testing.assert_array_equal(got, wanted * np.float32(value))
        other = x[::-1].copy()
        np.testing.assert_array_equal(g(other, k=2), expected(expected(other, 1, 0.0), 2, 1.0) * 2)

    at_once(work)


def test_one_graph_replayed_by_all() -> None:
    """Replays take turns: with outputs of its own, each thread has its own result."""
    kernel, shift = (
        chain(3, 0.125),
        kd.kernel(lambda x, s, out: out.__setitem__(..., x[...] + s), out_type=lambda x, s: x, interpret=True),
    )
    k = kd.Variable("k", 0, 100)
    x = np.zeros(24, np.float32)
    with kd.Graph() as g:
        shift(kernel(x), k)

    def work(number: int) -> None:
        mine = np.random.default_rng(number).standard_normal(24).astype(np.float32)
        out = np.empty_like(mine)
        for turn in range(3):
            assert g(mine, out=out, k=(number + turn) % 101) is out
            np.testing.assert_array_equal(out, expected(mine, 3, 0.125) + np.float32((number + turn) % 101))
            with pytest.raises(ArgumentTypeError):
                g(mine)

    at_once(work)


def test_bound_calls_and_files_of_all(tmp_path: Path) -> None:
    x = np.arange(48, dtype=np.float32)
    kernel = chain(2, 0.5)
    path = tmp_path / "kernel.kd"
    from kernel_dsl.runtime.build.aot import save

    save(kernel.lower(x).kernel, path)
    loaded = kd.load_compiled(path)

    def work(number: int) -> None:
        mine = x + number
        bound = kernel.bind(mine)
        file = loaded if number % 2 else kd.load_compiled(path)
        for _ in range(2):
            np.testing.assert_array_equal(bound(), expected(mine, 2, 0.5))
            np.testing.assert_array_equal(file(mine, interpret=True), expected(mine, 2, 0.5))
            loaded.save(tmp_path / f"again{number % 3}")
        assert (tmp_path / f"again{number % 3}").read_bytes() == path.read_bytes()

    at_once(work)


def test_caches_of_all(tmp_path: Path) -> None:
    kernels = KernelCache(DiskCache(tmp_path), capacity=4)
    built: list[int] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        for _ in range(20):
            at = choose.randrange(8)

            def build(at: int = at) -> Any:
                built.append(at)
                return made(2000, at)

            assert kernels.get_or_build(KEYS[at], build) == made(2000, at)
            if choose.random() < 0.05:
                kernels.clear()

    at_once(work)
    assert sorted(built) == list(range(8))  # then they come from the disk
    assert kernels.disk is not None and not kernels.disk.counters.corrupt and not kernels._building


def test_what_a_process_does_once() -> None:
    ran: list[int] = []

    @once
    def make(number: int) -> object:
        ran.append(number)
        threading.Event().wait(0.01)
        return object()

    assert len(set(at_once(lambda number: make(1)))) == 1 and ran == [1]
    loading.kernel_cache.cache_clear()  # type: ignore[attr-defined]
    assert len(set(map(id, at_once(lambda number: loading.kernel_cache())))) == 1


FIRST = """
import logging, sys, threading
sys.setswitchinterval(1e-6)
import numpy as np
import kernel_dsl as kd
x, start, bad = np.ones(16, np.float32), threading.Barrier(32), []

def work(n):
    start.wait()
    try:
        k = kd.kernel(lambda x, o: o.__setitem__(..., kd.tanh(x[...]) * n), out_type=lambda x: x)
        assert abs(k(x) - np.tanh(x) * n).max() < 1e-5
        k.lower(x, target="sm_80").ptx
    except BaseException as error:
        bad.append(error)

threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
for t in threads: t.start()
for t in threads: t.join()
if bad: raise bad[0]
"""


@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_the_first_calls_of_a_process_by_all(attempt: int) -> None:
    """Imports, LLVM and the choice of a device, at once; what is said once is said once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERNEL_DSL_CACHE": "off"}
    line = [sys.executable, "-c", FIRST]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("no GPU") <= 1


@pytest.mark.gpu
def test_a_gpu_used_by_all() -> None:
    """Calls, graphs and bound calls on one GPU, with arrays of the host and, where there is torch, of the GPU."""
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    double = kd.kernel(lambda x, out: out.__setitem__(..., x[...] * 2), out_type=lambda x: x)
    shift = kd.kernel(lambda x, s, out: out.__setitem__(..., x[...] + s), out_type=lambda x, s: x)
    k = kd.Variable("k", 0, 100)

    def work(number: int) -> None:
        x = np.random.default_rng(number).standard_normal(100 + number % 4).astype(np.float32)
        arrays: list[Any] = [x] if torch is None else [x, torch.from_numpy(x).cuda()]
        for array in arrays:
            for _ in range(5):
                np.testing.assert_array_equal(_host(double(array)), x * 2)
            bound = double.bind(array)
            with kd.Graph() as g:
                shift(double(array), k)
            for value in (3, 7, 3):
                np.testing.assert_array_equal(_host(bound()), x * 2)
                np.testing.assert_array_equal(_host(g(k=value)), x * 2 + value)

    at_once(work)


def _host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
