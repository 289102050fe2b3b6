"""A second process with a warm disk cache: from the call to the launched kernel.

    python -m benchmarks.cache                       # the largest of the examples and of the library
    python -m benchmarks.cache examples              # a kernel of every example
    python -m benchmarks.cache library               # functions of the library
    python -m benchmarks.cache FILE:KERNEL [ARG ...]

Each sample is a process of its own: imports and the context are made first, and then the first call of
the kernel is timed, up to the return of its launch (without a GPU: up to the loaded machine code,
ready to be launched). Beside it: the same with an empty cache, and what the trace costs. The key of a
kernel needs its trace, but for those of the library; passes, LLVM and the assembler are not run again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

LIMIT_MS, LIBRARY_MS = 15.0, 10.0
COLD, WARM = 2, 7  # rounds
SOFTMAX = ("examples/01_softmax.py:row_kernel(8)", "f32[4096,32768]")
LARGEST = (
    SOFTMAX,
    ("kd.library.matmul", "bf16[8192,8192]", "bf16[8192,8192]"),
    ("kd.library.attention", "bf16[1,16,4096,128]", "bf16[1,16,4096,128]", "bf16[1,16,4096,128]"),
)
_QKV = ("bf16[4,16,4096,128]",) * 3
_HEADS, _PAGES = ("bf16[8,32,1,128]",), ("bf16[256,8,64,128]",) * 2
LIBRARY = (
    ("kd.library.matmul", "bf16[8192,8192]", "bf16[8192,8192]"),
    ("kd.library.matmul", "f32[1024,1024]", "f32[1024,1024]", "bias=f32[1024]"),
    ("kd.library.attention", *_QKV, "causal=True"),
    ("kd.library.attention", *_QKV, "causal=True", "window=256", "return_lse=True"),
    ("kd.library.attention_backward", *_QKV, _QKV[0], _QKV[0], "f32[4,16,4096]", "causal=True"),
    ("kd.library.decode_attention", *_HEADS, *("bf16[8,8,4096,128]",) * 2, "i32[8]"),
    ("kd.library.decode_attention", *_HEADS, *_PAGES, "i32[8]", "page_table=i32[8,32]"),
    ("kd.library.mla_decode", "bf16[8,128,1,576]", "bf16[256,64,576]", "i32[8]", "i32[8,32]", "scale=0.1"),
    ("kd.library.grouped_matmul", "bf16[4096,2048]", "bf16[8,2048,4096]", "i32[8]"),
    ("kd.library.grouped_matmul_wgrad", "bf16[4096,2048]", "bf16[4096,1024]", "i32[8]"),
    ("kd.library.linear_cross_entropy", "bf16[2048,2048]", "bf16[32000,2048]", "i32[2048]"),
    ("kd.library.conv2d", "bf16[8,56,56,64]", "bf16[64,3,3,64]"),
)
EXAMPLES = (
    SOFTMAX,
    ("examples/02_vector_add.py:vector_add", "f32[16777216]", "f32[16777216]"),
    ("examples/03_layer_norm.py:rows_kernel(True)", "bf16[4096,4096]", "bf16[4096]", "bf16[4096]"),
    (
        "examples/03_layer_norm.py:backward_kernel(False)",
        "bf16[4096,4096]",
        "bf16[4096,4096]",
        "bf16[4096]",
        "f32[4096]",
    ),
    ("examples/04_transpose.py:transpose_kernel(4)", "f32[4096,4096]"),
    ("examples/05_histogram.py:histogram_kernel()", "u8[16777216]"),
    ("examples/06_prefix_sum.py:row_kernel()", "f32[1024,8192]"),
    ("examples/07_grid_sample.py:sample", "f32[16,256,256]", "f32[65536,2]"),
    ("examples/07_grid_sample.py:sample_backward", "f32[16,256,256]", "f32[65536,2]", "f32[16,65536]"),
    ("examples/08_stencil.py:spread", "f32[1024,1024]"),
    ("examples/09_quantize.py:quantize_kernel()", "bf16[4096,4096]"),
    ("examples/10_matmul_pipelined.py:matmul", "bf16[4096,4096]", "bf16[4096,4096]"),
    ("examples/11_matmul_warp_specialized.py:matmul", "bf16[4096,4096]", "bf16[4096,4096]"),
    ("examples/13_matmul_sm80.py:matmul", "bf16[4096,4096]", "bf16[4096,4096]"),
    ("examples/16_sum.py:span_sums()", "f32[16777216]"),
)

CHILD = """
import json, sys, time
import numpy as np
import kernel_dsl as kd
import importlib
from kernel_dsl.__main__ import find_kernel, parse_argument
from kernel_dsl.runtime.devices import driver
from kernel_dsl import loading
frontend = sys.modules["kernel_dsl.kernel"]
from kernel_dsl.runtime import assemble, disk_cache  # imports are not what is timed
from kernel_dsl.runtime.build import cache
from kernel_dsl.runtime.plan import binding, calls, dispatch
place, *texts = json.loads(sys.argv[1])
named = [text.partition("=") for text in texts if "=" in text]
arguments = [parse_argument(text) for text in texts if "=" not in text]
gpu = bool(driver.available())
def array(spec):
    if not isinstance(spec, kd.ShapeDtypeStruct):
        return spec
    if not gpu:
        return np.ones(spec.shape, spec.dtype.numpy)
    import torch
    return torch.ones(spec.shape, dtype=getattr(torch, spec.dtype.name), device="cuda")
arrays = [array(a) for a in arguments]
keywords = {name: array(parse_argument(text)) for name, _, text in named}
clock = time.perf_counter
traces = []
from kernel_dsl import body_trace
def timed(*arguments, trace=body_trace.trace_kernel):
    start = clock()
    traced = trace(*arguments)
    traces.append(clock() - start)
    return traced
body_trace.trace_kernel = timed
if gpu:
    import torch
    import kernel_dsl.runtime.arrays.interop.torch
    from kernel_dsl.runtime.devices.devices import cuda_device
    cuda_device()
    torch.cuda.synchronize()
else:
    from kernel_dsl import runtime
    import kernel_dsl.runtime.devices.devices
    import kernel_dsl.runtime.arrays.interop.numpy
    class Loaded:
        def __init__(self, kernel):
            self.kernel, self.outputs = kernel, kernel.outputs
        settled = staticmethod(lambda kernel: Loaded(kernel))
    class NoDevice:
        kind, index, target = "cuda", 0, kd.target.DEFAULT
        name = "NVIDIA H200"
        def load(self, assembled):
            return Loaded(assembled.kernel)
    runtime.devices.devices.pick_device = lambda interpret, views: NoDevice()
    runtime.call = lambda kernel, *rest: [np.zeros(o.shape, o.dtype.numpy) for o in kernel.kernel.outputs]
    frontend._recording = lambda: True  # which keeps it from learning a fast path
kernel = getattr(kd.library, place.rpartition(".")[2]) if place.startswith("kd.library.") else find_kernel(place)
calls = 0
def note(frame, event, argument):
    global calls
    calls += event == "call"
sys.setprofile(note if sys.argv[2] == "calls" else None)
start = clock()
kernel(*arrays, **keywords)
end = clock()
sys.setprofile(None)
disk = loading.kernel_cache().disk.counters
print(json.dumps({
    "total": end - start,
    "calls": calls,
    "trace": sum(traces),
    "hits": disk.hits, "misses": disk.misses,
}))
"""


def child(arguments: Sequence[str], folder: str, what: str = "seconds") -> dict[str, Any]:
    """One process: seconds or Python "calls" of its first call, and whether the disk had the kernel."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(arguments), what],
        env={**os.environ, "KERNEL_DSL_CACHE": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Runs with an empty folder, and with a full one, and the Python calls of such a run."""
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    calls = 0
    for number in range(COLD):
        with tempfile.TemporaryDirectory() as folder:
            folder += "/cache"
            cold.append(child(arguments, folder))
            if number == COLD - 1:
                warm = [child(arguments, folder) for _ in range(WARM)]
                calls = child(arguments, folder, "calls")["calls"]
    assert all(run["hits"] == 0 and run["misses"] for run in cold), cold
    assert all(run["hits"] and run["misses"] == 0 for run in warm), warm
    return cold, warm, calls


def report(arguments: Sequence[str]) -> bool:
    """Print a kernel's rows; whether it missed the limit."""
    cold, warm, calls = measure(arguments)
    print(*arguments)
    for name, runs in (("empty cache", cold), ("warm cache", warm)):
        times = sorted(run["total"] * 1e3 for run in runs)
        print(f"  {name:<12} {statistics.median(times):8.2f} ms ({times[0]:.2f} to {times[-1]:.2f})")
    print(f"  of it trace  {statistics.median(run['trace'] for run in warm) * 1e3:8.2f} ms")
    median = statistics.median(run["total"] for run in warm) * 1e3
    limit = LIBRARY_MS if arguments[0].startswith("kd.library.") else LIMIT_MS
    print(f"  from call to launch {median:.2f} ms of at most {limit}, {calls} Python calls", flush=True)
    return median > limit


def main() -> int:
    """Print the table; 1 where a limit is missed."""
    asked = tuple(sys.argv[1:])
    cases = {("examples",): EXAMPLES, ("library",): LIBRARY, (): LARGEST}.get(asked, (asked,))
    missed = [arguments[0] for arguments in cases if report(arguments)]
    if missed:
        print("over the limit:", *missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
