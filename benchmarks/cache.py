"""A second process with a warm disk cache: from the call to the launched kernel.

    python -m benchmarks.cache [FILE:KERNEL ARG ...]

Without arguments: the largest kernels of the examples and the library. Each row is a process of its own: imports and
the context are made first, and then the first call of the kernel is timed, up to the return of its launch (without a
GPU: up to the loaded machine code, ready to be launched). Beside it: the same with an empty cache, and what the parts
cost. The key of a kernel needs its trace; passes, LLVM and the assembler are not run again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

LIMIT_MS = 15.0
ROUNDS = 7
LARGEST = (
    ("examples/01_softmax.py:row_kernel(8)", "f32[4096,32768]"),
    ("kd.library.matmul", "bf16[8192,8192]", "bf16[8192,8192]"),
    ("kd.library.attention", *["bf16[4,32,4096,128]"] * 3),
)

CHILD = """
import json, sys, time
import numpy as np
import kernel_dsl as kd
import importlib
from kernel_dsl.__main__ import find_kernel, parse_argument
from runtime import driver
frontend = sys.modules["kernel_dsl.kernel"]
from runtime import assemble, binding, cache, calls, disk_cache, dispatch  # imports are not what is timed
place, *texts = json.loads(sys.argv[1])
arguments = [parse_argument(text) for text in texts]
gpu = bool(driver.available())
def array(spec):
    if not isinstance(spec, kd.ShapeDtypeStruct):
        return spec
    if not gpu:
        return spec
    import torch
    kind = getattr(torch, spec.dtype.name)
    return torch.ones(spec.shape, dtype=kind, device="cuda")
arrays = [array(a) for a in arguments]
if gpu:
    import torch
    import runtime.interop.torch
    from runtime.device import cuda_device
    cuda_device()
    torch.cuda.synchronize()
kernel = getattr(kd.library, place.rpartition(".")[2]) if place.startswith("kd.library.") else find_kernel(place)
class NoDevice:
    kind, index = "cuda", 0
    def load(self, assembled):
        return assembled
clock = time.perf_counter
start = clock()
if gpu:
    kernel(*arrays)
else:
    stages = kernel.lower(*arrays)
    traced = clock()
    frontend.load(stages, NoDevice())
end = clock()
disk = frontend._cache().disk.counters
print(json.dumps({
    "total": end - start,
    "trace": None if gpu else traced - start,
    "hits": disk.hits, "misses": disk.misses,
}))
"""


def child(arguments: list[str], folder: str) -> dict[str, Any]:
    """One process: seconds of its first call, and whether the disk had the kernel."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(arguments)],
        env={**os.environ, "KERNEL_DSL_CACHE": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(arguments: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs with an empty folder, and with a full one."""
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            folder += "/cache"
            cold.append(child(arguments, folder))
            warm.append(child(arguments, folder))
    assert all(run["hits"] == 0 and run["misses"] for run in cold), cold
    assert all(run["hits"] and run["misses"] == 0 for run in warm), warm
    return cold, warm


def report(arguments: list[str]) -> bool:
    """Print a kernel's rows; whether it keeps the limit."""
    cold, warm = measure(arguments)
    print(*arguments)
    for name, runs in (("empty cache", cold), ("warm cache", warm)):
        times = sorted(run["total"] * 1e3 for run in runs)
        print(f"{name:<12} {statistics.median(times):8.2f} ms ({times[0]:.2f} to {times[-1]:.2f})")
    traces = [run["trace"] for run in warm if run["trace"] is not None]
    if traces:
        print(f"of it trace  {statistics.median(traces) * 1e3:8.2f} ms; no GPU here, so nothing was launched")
    median = statistics.median(run["total"] for run in warm) * 1e3
    print(f"from call to launch {median:.2f} ms of at most {LIMIT_MS}")
    return median <= LIMIT_MS


def main() -> int:
    """Print the tables; 1 where the limit is missed."""
    cases = [sys.argv[1:]] if sys.argv[1:] else [list(case) for case in LARGEST]
    results = [report(case) for case in cases]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
