"""Graphs of 100 small kernels: what a replay costs the host and the GPU, and what new inputs cost.

    python -m benchmarks.graph

Beside a bare cuGraphLaunch of the same executable through `cuda.bindings`, and a torch CUDA graph that captured the same
kernels. One process, interleaved rounds, medians; ratios are medians of each round's.

On a rented host even a loop of machine code takes twice as long for seconds at a time, while a neighbour uses the
same core. A fixed loop of Python begins and ends each round, and rounds count in which it ran at its full speed.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.timing import Timing, device_times

N, NODES = 1024, 100
WARM, ROUNDS, CALLS = 5, 120, 20
SLOWER = 1.15  # a round counts if the host is slower than at its best by less than this factor
REPLAY_LIMIT, UPDATE_LIMIT_US, GPU_LIMIT = 1.15, 1.5, 1.02


@kd.kernel(out_type=lambda x, y: x, grid=(N // 128,), grid_names=("block",), name="graph_add")
def add(x: Any, y: Any, out: Any) -> None:
    """out = x + y, one vector of 128 elements a block."""
    at = kd.ds(kd.axis_index("block") * 128, 128)
    out[at] = x[at] + y[at]


def chain(x: Any, y: Any) -> tuple[Any, list[Any]]:
    """A graph in which each kernel reads what the one before wrote, and bound calls of the same."""
    outs = [x.new_empty(N) for _ in range(NODES)]
    sources = [x, *outs[:-1]]
    bound = [add.bind(source, y, out=out) for source, out in zip(sources, outs, strict=True)]
    with kd.Graph() as g:
        for call in bound:
            call()
    return g, bound


def fan(inputs: list[Any], y: Any) -> Any:
    """A graph of independent kernels, each with an input of its own."""
    with kd.Graph() as g:
        for x in inputs:
            add(x, y)
    return g


def torch_graph(torch: Any, bound: list[Any]) -> Any:
    """The same kernels, captured by torch."""
    captured = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in bound:
            call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(captured):
        for call in bound:
            call()
    return captured


def bare_launch(g: Any, torch: Any) -> Callable[[], Any]:
    """cuGraphLaunch of the graph's own executable, and nothing else."""
    launch = driver.api().cuGraphLaunch
    arguments = g._exec.launch_args(torch.cuda.current_stream().cuda_stream)
    return lambda: launch(*arguments)


def pace() -> int:
    """A fixed piece of work, which shows how fast the host is now."""
    return sum(range(400))


def rounds_of(runs: dict[str, Callable[[], Any]], torch: Any) -> dict[str, Timing]:
    """Host times of the runs in the rounds that began and ended at the host's full speed.

    Each sample follows a call of the same run, as the first call after a wait for the GPU takes longer; and another
    run comes first in each round.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    paces: list[float] = []
    listed = list(runs.items())
    for number in range(-WARM, ROUNDS):
        around = [seconds_of(pace)]
        for name, run in (*listed[number % len(listed) :], *listed[: number % len(listed)]):
            taken = seconds_of(run)
            torch.cuda.synchronize()
            if number >= 0:
                samples[name].append(taken)
        around.append(seconds_of(pace))
        if number >= 0:
            paces.append(max(around))
    kept = [number for number, each in enumerate(paces) if each < SLOWER * min(paces)]
    print(f"{len(kept)} of {ROUNDS} rounds count, in which the host had its full speed: {', '.join(runs)}")
    return {name: Timing(tuple(each[number] for number in kept)) for name, each in samples.items()}


def seconds_of(run: Callable[[], Any]) -> float:
    """Host seconds of one of `CALLS` calls, which fill no queue."""
    run()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - start) / CALLS


def ratio(a: Timing, b: Timing) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(x / y for x, y in zip(a.samples, b.samples, strict=True))


def measure(torch: Any) -> tuple[dict[str, Timing], dict[str, Timing], Timing, Timing]:
    """Host times of replays; GPU times of replays; host times of new inputs, and with none."""
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    g, bound = chain(x, y)
    result = g()
    captured = torch_graph(torch, bound)
    captured.replay()
    expected = x
    for _ in range(NODES):
        expected = expected + y
    torch.cuda.synchronize()
    assert torch.equal(result, expected), "the graph is wrong"

    host = rounds_of(
        {
            "cuGraphLaunch": bare_launch(g, torch),
            "g()": g,
            "torch CUDAGraph.replay": captured.replay,
            "100 bound calls": lambda: [call() for call in bound],
        },
        torch,
    )
    gpu = device_times({"torch CUDA graph": captured.replay, "g()": g}, rounds=100, flush=False)

    sets = [[torch.randn(N, device="cuda") for _ in range(NODES)] for _ in range(2)]
    wide = fan(sets[0], y)
    # Inputs come in order of first use: the first vector, y, and the other vectors.
    replays = [(each[0], y, *each[1:]) for each in sets]
    results = wide(*replays[1])
    torch.cuda.synchronize()
    for got, source in zip(results, sets[1], strict=True):
        assert torch.equal(got, source + y), "the graph is wrong"
    turn = itertools.cycle(replays)
    updates = rounds_of({"launch": bare_launch(wide, torch), "new inputs": lambda: wide(*next(turn))}, torch)
    return host, gpu, updates["new inputs"], updates["launch"]


def main() -> int:
    """Print the tables; 1 where a limit is missed."""
    state = driver.available()
    if not state:
        print(f"a GPU is needed: {state.reason}")
        return 2
    import torch

    print(cuda_device(), f"{NODES} kernels of {N} float32")
    host, gpu, updated, plain = measure(torch)
    bare = host["cuGraphLaunch"]
    print(f"{'host':<28}{'median and quartiles':>40}{'ratio':>8}")
    for name, timing in host.items():
        print(f"{name:<28}{timing!s:>40}{ratio(timing, bare):>8.2f}")
    print(f"{'GPU':<28}")
    peer = gpu["torch CUDA graph"].median
    for name, timing in gpu.items():
        print(f"{name:<28}{timing!s:>40}{timing.median / peer:>8.3f}")
    a_node = statistics.median(a - b for a, b in zip(updated.samples, plain.samples, strict=True)) / NODES * 1e6
    print(f"all {NODES} inputs anew: {updated!s}, {a_node:.2f} us a node beyond a launch of {plain!s}")
    figures = [
        ("replay on the host", ratio(host["g()"], bare), REPLAY_LIMIT),
        ("new inputs, us a node", a_node, UPDATE_LIMIT_US),
        ("time on the GPU", gpu["g()"].median / peer, GPU_LIMIT),
    ]
    missed = 0
    for name, value, limit in figures:
        missed += value > limit
        print(f"{name:<28}{value:>8.3f} of at most {limit} {'' if value <= limit else 'MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
