"""What a call waits for, what it copies, and 32 threads that call: on a driver without a GPU. Last of the cases, as it counts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

from kernel_dsl import runtime
from kernel_dsl.runtime.check.host import on_host
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.plan.binding import bind

from .fake import DEVICE_WAITS, LAUNCHES, LIB, CudaArray, Player, count, player
from .kernels import scale

__all__ = ["player"]  # a fixture
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)
THREADS, CALLS = 32, 40


def test_pages_of_the_host_are_copied_where_they_lie(player: Player) -> None:
    """Contiguous arrays, pinned or not, are what the driver copies from and to: a view in the middle of a buffer, too."""
    held, back = np.zeros(96, np.float32), np.zeros(96, np.float32)
    x, out = held[32:64], back[8:40]
    x[:] = X
    (fresh,) = runtime.call(cuda_device(0).load(scale()), [x], [2.0])
    np.testing.assert_array_equal(fresh, X * 2)
    assert LIB.fake_host_side(0) == x.ctypes.data
    assert LIB.fake_host_side(1) == fresh.ctypes.data
    runtime.call(cuda_device(0).load(scale()), [x], [3.0], out=[out])
    np.testing.assert_array_equal(out, X * 3)
    assert LIB.fake_host_side(0) == out.ctypes.data, "what the kernel may leave as it is comes last"
    assert LIB.fake_host_side(1) == out.ctypes.data


def test_a_copy_for_the_checker_waits_for_its_stream(player: Player) -> None:
    array = CudaArray(X, stream=5)
    np.testing.assert_array_equal(on_host(array, {}), X)
    assert count(DEVICE_WAITS) == 0


def at_once(work: Callable[[], object], threads: int) -> float:
    """Seconds in which `work` is done CALLS times by each of some threads."""
    start, errors = threading.Barrier(threads + 1), list[BaseException]()

    def run() -> None:
        try:
            start.wait(60)
            for _ in range(CALLS):
                work()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    start.wait(60)
    begin = time.perf_counter()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a thread does not end"
    assert not errors, errors[0]
    return time.perf_counter() - begin


@pytest.mark.parametrize("how", ["call", "bound"])
def test_32_threads_lose_no_call_and_little_time(how: str) -> None:
    """As many calls a second as one thread has, within what taking turns costs: nothing is locked while the driver works."""
    loaded = cuda_device(0).load(scale())

    def make() -> Callable[[], object]:
        if how == "call":
            return lambda: runtime.call(loaded, [CudaArray(X)], [2.0])
        local = threading.local()

        def work() -> object:
            if not hasattr(local, "bound"):
                local.bound = bind(loaded, [CudaArray(X)], [2.0])  # one binding is one launch at a time
            return local.bound()

        return work

    work = make()
    work()
    alone = min(at_once(work, 1) for _ in range(3))
    before = count(LAUNCHES)
    together = min(at_once(work, THREADS) for _ in range(2))
    assert count(LAUNCHES) - before == 2 * THREADS * CALLS
    calls = THREADS * CALLS / together, CALLS / alone
    print(f"{how}: {calls[0]:.0f} calls a second of {THREADS} threads, {calls[1]:.0f} of one")
    assert calls[0] > calls[1] / 10


def test_nothing_waited_for_a_whole_gpu() -> None:
    """In this process, in which all the cases ran."""
    assert count(LAUNCHES) > 0
    assert count(DEVICE_WAITS) == 0
    LIB.cuCtxSynchronize()
    assert count(DEVICE_WAITS) == 1, "the counter counts"
