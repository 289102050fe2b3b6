"""Kernels in other people's programs, beside what they are called by there: `python -m benchmarks.hosts`, on one GPU.

* `generate`: milliseconds of a processor to make the host code of a kernel, for C and for XLA; needs no GPU. At most 15.
* `c`: a call of the exported C function beside a hand-written `cuLaunchKernel` whose parameters are packed, both in a loop of C
  (by a C compiler, or by LLVM where there is none). At most 1.02.
* `jax`: the time that one call more adds to a program of `jax.jit`, beside XLA's own softmax. At most 1.1.
* `jax_gil`: a program of many calls runs while another thread holds Python's lock: what is left of its time after that. A Python
  callback in the same place, whose time is left whole, shows that the lock is held. At most 0.1.
* `torch`: a region of `torch.compile` with our op, made by Python (`as_torch_op`) and by a library (`export(torch_op=)`), beside
  the same region with a Triton op (`triton_op`) and with one behind `custom_op`. At most 1.05 of the first.
* `threads`: calls a second from Python by 1 and by 32 threads, each with a stream and arrays of its own.

`--rows TEXT` keeps the rows whose name has it, `--seconds N` begins no row after that time, `--json FILE` is written after each
row. Results are checked before anything is timed. A row that fails or that lacks a package is told, and the others go on.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kernel_dsl as kd

N, THREADS = 1024, 128
ROWS, COLUMNS = 64, 1000
Spec = kd.ShapeDtypeStruct
Row = dict[str, Any]


@kd.kernel(out_type=Spec((N,), kd.float32), grid=(N // THREADS,), name="add")
def add(x: Any, y: Any, o: Any) -> None:
    at = kd.ds(kd.program_id(0) * THREADS, THREADS)
    o[at] = x[at] + y[at]


@kd.kernel(out_type=lambda x: Spec(x.shape, x.dtype), grid=lambda x: (x.shape[0],), name="softmax")
def softmax(x: Any, o: Any) -> None:
    row = kd.program_id(0)
    e = kd.exp(x[row] - kd.max(x[row]))
    o[row] = e / kd.sum(e)


@kd.kernel(out_type=lambda x: Spec(x.shape, x.dtype), grid=lambda x: (kd.cdiv(x.shape[0], N),), name="twice")
def twice(x: Any, o: Any) -> None:
    at = kd.ds(kd.program_id(0) * N, N)
    o[at] = x[at] * 2.0


def medians(runs: dict[str, Callable[[], float]], seconds: float = 2.0, most: int = 200) -> dict[str, float]:
    """The median of what each run returns, in turn, until the time is over."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    begin = time.perf_counter()
    while not found or (time.perf_counter() - begin < seconds and len(next(iter(found.values()))) < most):
        for name, run in runs.items():
            found[name].append(run())
    return {name: statistics.median(x) for name, x in found.items()}


def per_call(run: Callable[[], Any], wait: Callable[[], Any], calls: int) -> Callable[[], float]:
    """Microseconds of the host for one of several calls in a row; then the GPU is waited for, unmeasured."""

    def sample() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        took = time.perf_counter() - begin
        wait()
        return 1e6 * took / calls

    return sample


# --- host code ------------------------------------------------------------------------------------


def generate() -> Row:
    from kernel_dsl.hosting import arguments_of
    from kernel_dsl.launch_plan import plan_of
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_entries import FFI, add_c_entry, add_ffi_entry
    from kernel_dsl.lowering.llvm import host_addresses, host_object

    product = kd.library.matmul.lower(*[Spec((4096, 4096), kd.bfloat16)] * 2, target="sm_90a")
    vector = [Spec((N,), kd.float32)] * 2
    row: Row = {}
    for stages in (add.lower(*vector, target="sm_90a"), softmax.lower(Spec((ROWS, COLUMNS), kd.float32)), product):
        made = stages.compile()
        kernel, arguments = made.assembled.kernel, arguments_of(stages.ir)
        code = ctypes.create_string_buffer(made.cubin)

        def c(made: Any = made, kernel: Any = kernel, arguments: Any = arguments) -> None:
            host = Host(kernel, plan_of(kernel), made.cubin)
            add_c_entry(host, "made", arguments)
            host_object(str(host))

        def xla(code: Any = code, kernel: Any = kernel) -> None:
            host = Host(kernel, plan_of(kernel), ctypes.addressof(code))
            add_ffi_entry(host, 0)
            host_addresses(str(host), [FFI])

        for name, run in (("c", c), ("xla", xla)):
            took: list[float] = []
            for _ in range(15):
                begin = time.process_time()
                run()
                took.append(1e3 * (time.process_time() - begin))
            row[f"{stages.name}_{name}_ms"] = round(statistics.median(took), 2)
    row["worst_ms"] = max(row.values())
    row["bar"], row["met"] = 15.0, row["worst_ms"] <= 15.0
    return row


# --- C --------------------------------------------------------------------------------------------

C_LOOPS = """
#include "add.h"
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int ours(int calls, CUstream stream, const DLTensor *x, const DLTensor *y, const DLTensor *o) {
  int code = 0;
  for (int i = 0; i < calls; i++) code |= add(stream, x, y, o);
  return code;
}
int peer(int calls, Launch launch, void *function, unsigned grid, unsigned block, void *stream, void **params) {
  int code = 0;
  for (int i = 0; i < calls; i++) code |= launch(function, grid, 1, 1, block, 1, 1, 0, stream, params, 0);
  return code;
}
"""
_LOOP = """
define i32 @{name}(i32 %calls, {taken}) {{
  br label %top
top:
  %i = phi i32 [ 0, %0 ], [ %j, %top ]
  %code = phi i32 [ 0, %0 ], [ %both, %top ]
  %one = call i32 {called}
  %both = or i32 %code, %one
  %j = add i32 %i, 1
  %more = icmp slt i32 %j, %calls
  br i1 %more, label %top, label %end
end:
  ret i32 %both
}}
"""
LLVM_LOOPS = _LOOP.format(
    name="ours",
    taken="ptr %s, ptr %x, ptr %y, ptr %o",
    called="@add(ptr %s, ptr %x, ptr %y, ptr %o)",
) + _LOOP.format(
    name="peer",
    taken="ptr %launch, ptr %f, i32 %g, i32 %b, ptr %s, ptr %p",
    called="%launch(ptr %f, i32 %g, i32 1, i32 1, i32 %b, i32 1, i32 1, i32 0, ptr %s, ptr %p, ptr null)",
)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Driver:
    """The driver, called as a program in C does; all values are addresses."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = self.out("cuDevicePrimaryCtxRetain", 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*(ctypes.c_void_p(a) if type(a) is int else a for a in arguments))
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def out(self, name: str, *arguments: Any) -> int:
        made = ctypes.c_void_p()
        self(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def array(self, values: Any) -> int:
        address = self.out("cuMemAlloc_v2", values.nbytes)
        self("cuMemcpyHtoD_v2", address, ctypes.c_void_p(values.ctypes.data), values.nbytes)
        return address


def _loops(made: Any, stages: Any, folder: str) -> tuple[Any, Any, str]:
    """`ours` and `peer`, and by what they were compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler:
        made.export("add", folder=folder, c=True)
        source = Path(folder, "loops.c")
        source.write_text(C_LOOPS)
        command = [
            compiler,
            "-O2",
            "-shared",
            "-fPIC",
            "-o",
            f"{folder}/loops.so",
            str(source),
            f"{folder}/add.o",
            "-ldl",
        ]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(f"{folder}/loops.so")
        return library.ours, library.peer, compiler
    from kernel_dsl.hosting import arguments_of
    from kernel_dsl.launch_plan import plan_of
    from kernel_dsl.lowering.host import Host
    from kernel_dsl.lowering.host_entries import add_c_entry
    from kernel_dsl.lowering.llvm import host_addresses

    host = Host(made.assembled.kernel, plan_of(made.assembled.kernel), made.cubin)
    add_c_entry(host, "add", arguments_of(stages.ir))
    text = str(host).replace("internal thread_local global", "internal global")  # which LLVM's JIT has not
    address = "call ptr @llvm.threadlocal.address.p0(ptr @kd.message)"
    text = text.replace(address, "getelementptr i8, ptr @kd.message, i64 0")
    addresses = host_addresses(text + LLVM_LOOPS, ["ours", "peer"])
    ours, peer = (ctypes.CFUNCTYPE(ctypes.c_int)(a) for a in addresses)
    return ours, peer, "LLVM"


def c(calls: int = 200) -> Row:
    driver = Driver()
    stages = add.lower(*[Spec((N,), kd.float32)] * 2)
    made = stages.compile()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(N, np.float32) for _ in range(2))
    addresses = [driver.array(a) for a in (x, y, np.full(N, np.nan, np.float32))]
    shape = (ctypes.c_int64 * 1)(N)
    tensors = [DLTensor(a, 2, 0, 1, 2, 32, 1, ctypes.addressof(shape), None, 0) for a in addresses]
    with tempfile.TemporaryDirectory() as folder:
        ours, peer, compiler = _loops(made, stages, folder)
    library = driver.out("cuLibraryLoadData", ctypes.c_char_p(made.cubin), 0, 0, 0, 0, 0, 0)
    kernel = driver.out("cuLibraryGetKernel", library, ctypes.c_char_p(made.assembled.kernel.entry.encode()))
    function = ctypes.c_void_p(driver.out("cuKernelGetFunction", kernel))
    launch = ctypes.cast(driver.library.cuLaunchKernel, ctypes.c_void_p)
    words = (ctypes.c_uint64 * 3)(*addresses)
    params = (ctypes.c_void_p * 3)(*(ctypes.addressof(words) + 8 * i for i in range(3)))
    attributes = made.assembled.kernel.launch
    pointers = [ctypes.byref(t) for t in tensors]

    def loop(which: str, count: int) -> None:
        if which == "ours":
            code = ours(count, None, *pointers)
        else:
            code = peer(count, launch, function, attributes.grid[0], attributes.block[0], None, params)
        if code:
            raise RuntimeError(f"{which}: error {code}")

    for which in ("ours", "peer"):
        got = np.full(N, np.nan, np.float32)
        driver("cuMemcpyHtoD_v2", addresses[2], ctypes.c_void_p(got.ctypes.data), got.nbytes)
        loop(which, 1)
        driver("cuCtxSynchronize")
        driver("cuMemcpyDtoH_v2", ctypes.c_void_p(got.ctypes.data), addresses[2], got.nbytes)
        np.testing.assert_array_equal(got, x + y)

    def sample(which: str) -> float:
        begin = time.perf_counter()
        loop(which, calls)
        took = time.perf_counter() - begin
        driver("cuCtxSynchronize")
        return 1e6 * took / calls

    found = medians({w: lambda w=w: sample(w) for w in ("ours", "peer")}, most=2000)
    return _judged({"compiler": compiler, "ours_us": found["ours"], "peer_us": found["peer"]}, 1.02)


def _judged(row: Row, bar: float, ours: str = "ours_us", peer: str = "peer_us") -> Row:
    row["ratio"] = row[ours] / row[peer]
    row["bar"], row["met"] = bar, row["ratio"] <= bar
    return row


# --- JAX ------------------------------------------------------------------------------------------


def _jax() -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if jax.default_backend() != "gpu":
        raise RuntimeError("JAX has no GPU here")
    return jax


def jax(chain: int = 32) -> Row:
    """Microseconds that one softmax more takes in a program, on arrays that fit L2 and on large ones."""
    lib = _jax()
    ours = kd.jax.call(softmax)
    row: Row = {}

    def program(one: Callable[[Any], Any], count: int) -> Any:
        def chained(x: Any) -> Any:
            for _ in range(count):
                x = lib.lax.optimization_barrier(one(x))
            return x

        return lib.jit(chained)

    for name, shape in (("small", (ROWS, COLUMNS)), ("large", (8192, 4096))):
        x = lib.random.normal(lib.random.key(0), shape, np.float32)

        ways = {"ours": ours, "peer": lambda x: lib.nn.softmax(x, axis=-1)}
        made = {(w, n): program(one, n) for w, one in ways.items() for n in (1, chain)}
        wide = np.asarray(x, np.float64)
        wide = np.exp(wide - wide.max(-1, keepdims=True))
        for which in ways:
            np.testing.assert_allclose(made[which, 1](x), wide / wide.sum(-1, keepdims=True), rtol=2e-5, atol=1e-7)
            made[which, chain](x).block_until_ready()

        def sample(run: Any, x: Any = x) -> float:
            begin = time.perf_counter()
            for _ in range(10):
                made = run(x)
            made.block_until_ready()
            return 1e6 * (time.perf_counter() - begin) / 10

        found = medians({f"{w}_{n}": lambda run=run: sample(run) for (w, n), run in made.items()}, seconds=4.0)
        for which in ways:
            row[f"{name}_{which}_us"] = (found[f"{which}_{chain}"] - found[f"{which}_1"]) / (chain - 1)
            row[f"{name}_{which}_program_of_one_us"] = found[f"{which}_1"]
        row[f"{name}_ratio"] = row[f"{name}_ours_us"] / row[f"{name}_peer_us"]
    row["bar"], row["met"] = 1.1, max(row["small_ratio"], row["large_ratio"]) <= 1.1
    return row


def jax_gil(seconds: float = 0.5) -> Row:
    """A loop in one program, of our call and of a Python callback, while this thread keeps Python's lock.

    It keeps it for longer than the loop takes alone. What is left of the loop when the lock is given back is a part of that.
    """
    lib = _jax()
    x = lib.numpy.ones((ROWS, COLUMNS), np.float32)
    ours = kd.jax.call(softmax)
    shape = lib.ShapeDtypeStruct(x.shape, x.dtype)

    def called_back(x: Any) -> Any:
        return lib.pure_callback(lambda a: np.asarray(a) + 1, shape, x)

    row: Row = {}
    for name, one in (("ours", ours), ("python_callback", called_back)):
        run = lib.jit(lambda x, n, one=one: lib.lax.fori_loop(0, n, lambda _, y: one(y), x))

        def alone(count: int, run: Any = run) -> float:
            begin = time.perf_counter()
            run(x, count).block_until_ready()
            return time.perf_counter() - begin

        alone(2)
        count = 64
        while (whole := alone(count)) < seconds:
            count = max(2 * count, int(count * seconds / whole))
        ends: list[float] = []
        started = threading.Event()

        def other(run: Any = run, count: int = count, ends: list[float] = ends, started: Any = started) -> None:
            made = run(x, count - 1)  # dispatched before the lock is taken: JAX is Python until then
            started.set()
            made.block_until_ready()
            ends.append(time.perf_counter())

        thread = threading.Thread(target=other)
        begin = time.perf_counter()
        thread.start()
        hold = ctypes.PyDLL(None).usleep  # a C function under the lock: no other thread runs Python until it returns
        if name == "ours":
            started.wait(whole / 4)
        else:
            started.wait(whole / 8)
        held_from = time.perf_counter()
        hold(ctypes.c_uint(int(2e6 * whole)))
        released = time.perf_counter()
        thread.join()
        row[f"{name}_calls"], row[f"{name}_alone_ms"] = count, 1e3 * whole
        row[f"{name}_before_ms"], row[f"{name}_held_ms"] = 1e3 * (held_from - begin), 1e3 * (released - held_from)
        row[f"{name}_left"] = (ends[0] - released) / whole
    row["bar"], row["met"] = 0.1, row["ours_left"] <= 0.1 < 0.25 <= row["python_callback_left"]
    return row


# --- PyTorch --------------------------------------------------------------------------------------


def _library_op(torch: Any, x: Any) -> Any:
    """The op of a library made of the exported object file; None where there is no linker."""
    linker = shutil.which("cc") or shutil.which("gcc")
    if not linker:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = twice.lower(x).export("twice", folder=folder, c=True, torch_op="bench_hosts::twice_c")[0]
        subprocess.run([linker, "-shared", "-o", f"{folder}/twice.so", str(path)], check=True)
        torch.ops.load_library(f"{folder}/twice.so")
    torch.library.register_fake("bench_hosts::twice_c", torch.empty_like)
    return torch.ops.bench_hosts.twice_c


def torch() -> Row:
    """Microseconds of the host for a call of `op(x + 1) * 3`, compiled, and of host and GPU for one in a CUDA graph."""
    import torch as lib

    from . import triton_twice

    x = lib.randn(64 * N, device="cuda")
    ops = {"ours": twice.as_torch_op("bench_hosts::twice"), "ours_library": _library_op(lib, x), **triton_twice.ops(N)}
    row: Row = {}
    for mode in ("default", "reduce-overhead"):
        regions: dict[str, Any] = {}
        lib._dynamo.reset()  # the regions are one code to it, of which it compiles 8 at most
        for name, op in ops.items():
            if op is None:
                continue
            regions[name] = lib.compile(lambda x, op=op: op(x + 1) * 3, fullgraph=True, mode=mode)
            for _ in range(4):
                made = regions[name](x)
            lib.testing.assert_close(made, (x + 1) * 6, rtol=0, atol=0)
        wait = lib.cuda.synchronize
        found = medians({n: per_call(lambda r=r: r(x), wait, 100) for n, r in regions.items()}, seconds=4.0)
        short = "graph" if mode != "default" else "region"
        row |= {f"{short}_{n}_us": t for n, t in found.items()}
        row |= {f"{short}_{n}_ratio": found[n] / found["triton_op"] for n in found if n.startswith("ours")}
    row["bar"] = 1.05
    row["met"] = max(row["region_ours_ratio"], row["graph_ours_ratio"]) <= 1.05
    return row


# --- threads --------------------------------------------------------------------------------------


def threads(seconds: float = 1.5) -> Row:
    """Calls with a stream and arrays of the thread's own; each thread checks its results at the end."""
    import torch as lib

    row: Row = {}
    wrong: list[str] = []
    for count in (1, 32):
        done = [0] * count
        slowest = [0.0] * count
        gate = threading.Barrier(count + 1)

        def work(me: int, count: int = count, done: Any = done, slowest: Any = slowest, gate: Any = gate) -> None:
            generator = lib.Generator("cuda").manual_seed(me)
            x, y = (lib.randn(N, device="cuda", generator=generator) for _ in range(2))
            out, stream = lib.full_like(x, float("nan")), lib.cuda.Stream()
            lib.cuda.synchronize()
            add(x, y, out=out, stream=stream)  # compiles, before the time begins
            gate.wait()
            end, calls = time.perf_counter() + seconds, 0
            before = time.perf_counter()
            while before < end:
                add(x, y, out=out, stream=stream)
                now = time.perf_counter()
                slowest[me] = max(slowest[me], now - before)
                before, calls = now, calls + 1
            done[me] = calls
            stream.synchronize()
            if not lib.equal(out, x + y):
                wrong.append(f"thread {me} of {count}")

        def guarded(me: int, work: Any = work, gate: Any = gate) -> None:
            try:
                work(me)
            except Exception as error:
                wrong.append(repr(error).splitlines()[0])
                gate.abort()

        workers = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
        for worker in workers:
            worker.start()
        try:
            gate.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError(wrong[0]) from None
        finally:
            for worker in workers:
                worker.join()
        row[f"{count}_calls_a_second"] = sum(done) / seconds
        row[f"{count}_slowest_ms"] = 1e3 * max(slowest)
    row["ratio"] = row["32_calls_a_second"] / row["1_calls_a_second"]
    row["wrong"], row["met"] = len(wrong), not wrong
    return row


WORK: dict[str, Callable[[], Row]] = {
    "generate": generate, "c": c, "jax": jax, "jax_gil": jax_gil, "torch": torch, "threads": threads,
}  # fmt: skip


def rows(text: str, seconds: float) -> Iterator[Row]:
    begin = time.monotonic()
    for name, work in WORK.items():
        if text not in name:
            continue
        if time.monotonic() - begin > seconds:
            yield {"row": name, "failed": f"--seconds {seconds:g} are over"}
            continue
        started = time.monotonic()
        try:
            found = {k: round(x, 4) if type(x) is float else x for k, x in work().items()}
        except Exception as error:  # a row that can't be measured here must not cost the others
            found = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        yield {"row": name, **found, "took_s": round(time.monotonic() - started, 1)}


def main() -> int:
    """Print a line of JSON a row; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json")
    options = parser.parse_args()
    made: list[Row] = []
    for row in rows(options.rows, options.seconds):
        print(json.dumps(row), flush=True)
        made.append(row)
        if options.json:
            Path(options.json).write_text(json.dumps({"gpu": _gpu(), "rows": made}, indent=1))
    return 1 if any(not row.get("met", True) for row in made) else 0


def _gpu() -> str:
    from kernel_dsl.runtime.measure import bench

    try:
        return bench.machine()
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        return f"none: {error}"


if __name__ == "__main__":
    sys.exit(main())
