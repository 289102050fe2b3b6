"""Kernels in servers: many threads that compile, bind and call at once, coroutines that wait for events, pinned memory."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.conftest import ROOT

THREADS = 32
LAUNCHES = 40  # of a request
SHAPE = (128, 128)  # of its arrays
SHAPES = [(8,), (33,), (4, 16), (2, 3, 8)]


def made(factor: float) -> Any:
    """A kernel of its own: `x * factor + y`."""

    @kd.kernel(out_type=lambda x, y: x, name=f"scaled_sum_{factor:g}".replace(".", "_"))
    def scaled_sum(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] * factor + y[...]

    return scaled_sum


@kd.kernel(out_type=lambda x, bias: x)
def shifted(x: Any, bias: Any, o: Any) -> None:
    o[...] = x[...] + bias


def at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """Do `work` in threads that begin together; raises the first error."""
    gate, errors = threading.Barrier(count), list[BaseException]()

    def run(me: int) -> None:
        try:
            gate.wait(60)
            work(me)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive(), "a thread does not end"
    if errors:
        raise errors[0]


class Host:
    """Where the arrays of a test lie: NumPy's, or PyTorch's on a GPU with a stream for each thread."""

    def __init__(self, on_gpu: bool) -> None:
        self.torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed") if on_gpu else None

    def stream(self) -> Any:
        return self.torch.cuda.Stream() if self.torch else None

    def array(self, x: Any) -> Any:
        return self.torch.from_numpy(x).cuda() if self.torch else x

    def numpy(self, x: Any, stream: Any) -> Any:
        if stream is not None:
            stream.synchronize()
        return x.cpu().numpy() if self.torch else np.asarray(x)

    def settled(self) -> None:
        """The copies of `array` are there, for all streams."""
        if self.torch:
            self.torch.cuda.current_stream().synchronize()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"])
def host(request: pytest.FixtureRequest) -> Host:
    return Host(request.param)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_threads_compile_bind_and_call_at_once(host: Host, seed: int) -> None:
    """Some of them the same kernel and signature, at the same moment: each compiles once, and no result is another's."""
    rng = random.Random(seed)
    kernels = [made(factor) for factor in (0.5, 2.0, 3.0)]
    plans = [[(rng.randrange(3), rng.choice(SHAPES), rng.randrange(4)) for _ in range(4)] for _ in range(THREADS)]

    def work(me: int) -> None:
        drawn, stream = np.random.default_rng(me), host.stream()
        for which, shape, how in plans[me]:
            x, y = (drawn.standard_normal(shape, np.float32) for _ in range(2))
            a, b = host.array(x), host.array(y)
            host.settled()
            kernel, factor = kernels[which], np.float32((0.5, 2.0, 3.0)[which])
            if how == 0:
                found = kernel(a, b, stream=stream)
            elif how == 1:
                bound = kernel.bind(a, b, stream=stream)
                found = (bound(), bound())[1]
            elif how == 2:
                found = host.array(np.full(shape, np.nan, np.float32))
                host.settled()
                kernel(a, b, out=found, stream=stream)
            else:
                found = shifted(kernel(a, b, stream=stream), float(me), stream=stream)
            wanted = x * factor + y + (np.float32(me) if how == 3 else 0)
            np.testing.assert_array_equal(host.numpy(found, stream), wanted)

    at_once(work)
    for which, kernel in enumerate(kernels):
        asked = {(shape, how == 2) for plan in plans for w, shape, how in plan if w == which}
        assert len(kernel.specialisations()) <= len(asked)


def test_an_error_in_one_thread_is_its_own(host: Host) -> None:
    kernel, errors = made(4.0), list[str]()

    def work(me: int) -> None:
        x, stream = np.full(SHAPES[0], me, np.float32), host.stream()
        a = host.array(x)
        y = host.array(np.ones(3, np.float32)) if me % 4 == 0 else a
        host.settled()
        if me % 4 == 0:
            with pytest.raises(kd.Error) as error:
                kernel(a, y, stream=stream)
            errors.append(str(error.value))
        else:
            np.testing.assert_array_equal(host.numpy(kernel(a, y, stream=stream), stream), x * 5)

    at_once(work)
    assert len(errors) == THREADS // 4
    assert all("shapes (8,) and (3,) do not broadcast" in text for text in errors)


def test_coroutines_on_the_cpu() -> None:
    """Calls in the interpreter block, so a server gives them to threads."""
    kernel = made(2.0)

    async def serve(n: int) -> Any:
        x = np.full(16, n, np.float32)
        return await asyncio.to_thread(kernel, x, x)

    async def all_of_them() -> Any:
        return await asyncio.gather(*(serve(n) for n in range(16)))

    for n, found in enumerate(asyncio.run(all_of_them())):
        np.testing.assert_array_equal(found, np.full(16, 3 * n, np.float32))


def test_nothing_waits_for_a_whole_device() -> None:
    """It would wait for the other threads' streams, too."""
    waits = re.compile(r"cuCtxSynchronize|[dD]eviceSynchronize|\bcuda\.synchronize\(")
    assert waits.search("torch.cuda.synchronize()") and waits.search("cudaDeviceSynchronize()")
    files = [path for part in ("kernel_dsl", "lowering", "runtime") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 400
    assert not [f"{path}: {found[0]}" for path in files if (found := waits.search(path.read_text()))]


@pytest.mark.gpu
def test_coroutines_wait_for_events() -> None:
    """Each request has a stream, and waits for its event without holding up the loop, which ticks while the last one waits."""
    torch: Any = Host(True).torch
    kernel, ticks = made(2.0), [0]
    some = torch.randn(SHAPE, device="cuda")
    kernel(some, some)
    torch.cuda.synchronize()

    async def done(event: Any) -> None:
        while not event.query():
            await asyncio.sleep(0)

    async def serve(n: int) -> Any:
        generator, stream = torch.Generator("cuda").manual_seed(n), torch.cuda.Stream()
        x, y = (torch.randn(SHAPE, device="cuda", generator=generator) for _ in range(2))
        stream.wait_stream(torch.cuda.current_stream())
        found, event = x, torch.cuda.Event()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000 if n == 31 else 20_000_000)  # cycles: work before this request's
        for _ in range(LAUNCHES):
            found = kernel(found, y, stream=stream)
        event.record(stream)
        await done(event)
        wanted = x
        for _ in range(LAUNCHES):
            wanted = torch.add(y, wanted, alpha=2.0)  # products by 2 are exact: one rounding, fused or not
        return torch.equal(found, wanted)

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    async def all_of_them() -> Any:
        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(*(serve(n) for n in range(32)))
        ticking.cancel()
        return found

    assert all(asyncio.run(all_of_them()))
    assert ticks[0] > 2, "a wait that holds up the loop lets it tick once; a slow host, a few times"


@pytest.mark.gpu
def test_pinned_arrays_are_read_and_written_where_they_lie() -> None:
    torch: Any = Host(True).torch
    kernel = made(3.0)
    pinned = [torch.empty(1 << 14, pin_memory=True).numpy() for _ in range(3)]
    plain = [np.empty(1 << 14, np.float32) for _ in range(3)]
    for x, y, out in (pinned, plain):
        x[:], y[:] = np.random.default_rng(0).standard_normal((2, 1 << 14), np.float32)
        out[:] = np.nan
        assert kernel(x, y, out=out, interpret=False) is out
        np.testing.assert_array_equal(out, kernel(x, y, interpret=True))
        np.testing.assert_array_equal(kernel(x[5:-3], y[5:-3], interpret=False), out[5:-3])
        np.testing.assert_array_equal(kernel(x[::3], y[::3], interpret=False), out[::3])
