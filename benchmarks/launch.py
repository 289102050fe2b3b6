"""What a launch costs the host: bound, plain and fresh calls beside other launchers.

    python -m benchmarks.launch

One process, one table, medians over interleaved rounds. The kernel adds two vectors of 1024
float32, so that the GPU is never what is waited for. Peers that are not installed are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kernel_dsl import runtime
from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    PointerParam,
)
from kernel_dsl.dtypes import float32
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.devices.launch import ParamBuffer
from kernel_dsl.runtime.plan.dispatch import FastCalls, first
from kernel_dsl.runtime.timing import Timing, host_times

N, THREADS = 1024, 128

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 px, .param .u64 py, .param .u64 po)
{
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [px];
  ld.param.u64 %rd2, [py];
  ld.param.u64 %rd3, [po];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.s32 %r3, %r1, 128, %r2;
  mul.wide.s32 %rd4, %r3, 4;
  add.s64 %rd5, %rd1, %rd4;
  add.s64 %rd6, %rd2, %rd4;
  add.s64 %rd7, %rd3, %rd4;
  ld.global.f32 %f1, [%rd5];
  ld.global.f32 %f2, [%rd6];
  add.rn.f32 %f3, %f1, %f2;
  st.global.f32 [%rd7], %f3;
  ret;
}
"""

CUDA_C = """
extern "C" __global__ void add(const float* x, const float* y, float* o) {
  int i = blockIdx.x * 128 + threadIdx.x;
  o[i] = x[i] + y[i];
}
"""


def add_kernel() -> CompiledKernel:
    """The kernel, as the compiler would hand it over."""

    def array(name: str, written: bool) -> ArrayAssumption:
        return ArrayAssumption((N,), float32, True, 16, written, name)

    return CompiledKernel(
        name="add",
        entry="add",
        ptx=PTX,
        target="sm_80",
        params=(PointerParam(0), PointerParam(1), PointerParam(2)),
        arrays=(array("x", False), array("y", False), array("out", True)),
        inputs=2,
        outputs=(OutputSpec((N,), float32),),
        output_tree=0,
        launch=LaunchAttributes((N // THREADS, 1, 1), (THREADS, 1, 1)),
    )


Runs = dict[str, Callable[[], Any]]


def our_runs(torch: Any, x: Any, y: Any, out: Any) -> Runs:
    """A prepacked cuLaunchKernel, and the runtime's three kinds of call of the same function."""
    kernel = add_kernel()
    device = cuda_device()
    loaded = device.load(kernel)
    bound = runtime.bind(loaded, [x, y], [], out=[out])
    fast = FastCalls()
    fast.learn((x, y), None, loaded, first)
    fast.learn((x, y), out, loaded, first)

    cu = driver.api()
    stream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
    params = ParamBuffer(loaded.layout.offsets, loaded.layout.nbytes)
    addresses = [t.data_ptr() for t in (x, y, out)]
    loaded.layout.pack(params.buffer, params.shift, *addresses)
    pointers = params.address
    function, blocks = loaded.function, N // THREADS

    def prepacked(keep: Any = params) -> None:
        cu.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointers, 0)

    if fast((x, y), out) is not out or fast((x, y)) is fast.miss:
        raise RuntimeError("the fast path was not taken: the figures would be of something else")

    def slow() -> Any:
        return runtime.call(loaded, [x, y], [], [out])

    return {
        "prepacked cuLaunchKernel": prepacked,
        "bound()": bound,
        "plain call, out=": lambda: fast((x, y), out),
        "plain call, fresh output": lambda: fast((x, y)),
        "runtime.call, out=": slow,
    }


def kernel_runs(x: Any, y: Any, out: Any) -> Runs:
    """The whole `kd.kernel` object, with its tracing front end."""
    try:
        import kernel_dsl as kd

        @kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), grid=(N // THREADS,), name="add_kd")
        def add(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
            at = kd.ds(kd.program_id(0) * THREADS, THREADS)
            o_ref[at] = x_ref[at] + y_ref[at]

        bound = add.bind(x, y, out=out)
    except ImportError:
        return {}
    return {
        "kd.kernel bound()": bound,
        "kd.kernel(x, y, out=)": lambda: add(x, y, out=out),
        "kd.kernel(x, y)": lambda: add(x, y),
    }


def triton_runs(x: Any, y: Any, out: Any) -> Runs:
    """Triton's launcher, output given."""
    try:
        from . import triton_add
    except ImportError:
        return {}
    return {"Triton, out=": triton_add.run(x, y, out, N, THREADS)}


def cupy_runs() -> Runs:
    """CuPy's RawKernel on CuPy arrays."""
    try:
        import cupy
    except ImportError:
        return {}
    kernel = cupy.RawKernel(CUDA_C, "add")
    x, y, out = (cupy.ones(N, cupy.float32) for _ in range(3))
    arguments = (x, y, out)
    return {"CuPy RawKernel, out=": lambda: kernel((N // THREADS,), (THREADS,), arguments)}


def core_runs(torch: Any, x: Any, y: Any, out: Any) -> Runs:
    """cuda.core.launch with integer pointers."""
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch
    except ImportError:
        return {}
    Device(x.get_device()).set_current()
    kernel = ObjectCode.from_ptx(PTX.encode()).get_kernel("add")
    stream = Stream.from_handle(torch.cuda.current_stream().cuda_stream)
    config = LaunchConfig(grid=N // THREADS, block=THREADS)
    a, b, c = (t.data_ptr() for t in (x, y, out))
    return {"cuda.core.launch": lambda: launch(stream, config, kernel, a, b, c)}


def jax_runs() -> Runs:
    """jax.jit of the same sum: a fresh output each time."""
    try:
        import jax

        if jax.default_backend() != "gpu":
            return {}
    except (ImportError, RuntimeError):
        return {}
    add = jax.jit(lambda a, b: a + b)
    x = jax.numpy.ones(N, jax.numpy.float32)
    return {"jax.jit, fresh output": lambda: add(x, x)}


def torch_runs(torch: Any, x: Any, y: Any, out: Any) -> Runs:
    """torch.add, for scale."""
    return {
        "torch.add, out=": lambda: torch.add(x, y, out=out),
        "torch.add, fresh output": lambda: torch.add(x, y),
    }


# What each kind of call may cost, as a multiple of the prepacked launch.
LIMITS = {
    "bound()": 1.05,
    "plain call, out=": 1.5,
    "plain call, fresh output": 1.9,
    "kd.kernel bound()": 1.05,
    "kd.kernel(x, y, out=)": 1.5,
    "kd.kernel(x, y)": 1.9,
}


def measure(rounds: int = 40) -> dict[str, Timing]:
    """Host time of one call of each kind."""
    import torch

    x = torch.randn(N, device="cuda")
    y = torch.randn(N, device="cuda")
    out = torch.empty_like(x)
    runs = our_runs(torch, x, y, out)
    runs["bound()"]()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), (x + y).cpu().numpy())
    peers: tuple[Callable[[], Runs], ...] = (
        lambda: kernel_runs(x, y, out),
        lambda: triton_runs(x, y, out),
        lambda: core_runs(torch, x, y, out),
        cupy_runs,
        lambda: torch_runs(torch, x, y, out),
        jax_runs,
    )
    for peer in peers:
        try:
            made = peer()
            for run in made.values():
                run()
        except Exception as error:  # a peer that is broken here must not cost the table
            print(f"left out: {type(error).__name__}: {error}")
        else:
            runs |= made
    return host_times(runs, rounds=rounds, between=torch.cuda.synchronize)


def main() -> int:
    """Print the table; 1 where a limit is missed."""
    state = driver.available()
    if not state:
        print(f"a GPU is needed: {state.reason}")
        return 2
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    print(cuda_device())
    times = measure()
    base = times["prepacked cuLaunchKernel"].median
    missed = 0
    print(f"{'call':<28}{'median us':>10}{'25%':>8}{'75%':>8}{'ratio':>8}{'limit':>8}")
    for name, timing in times.items():
        low, high = (q * 1e6 for q in timing.quartiles)
        ratio = timing.median / base
        limit = LIMITS.get(name)
        missed += limit is not None and ratio > limit
        print(
            f"{name:<28}{timing.median * 1e6:>10.2f}{low:>8.2f}{high:>8.2f}{ratio:>8.2f}"
            f"{limit if limit is not None else '':>8}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
