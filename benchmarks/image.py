"""What a call of a kernel that was not traced costs the host: PTX and CUDA C++, beside other launchers.

    python -m benchmarks.image

One process, one table, medians over interleaved rounds. The kernel adds two vectors of 1024 float32, so that the GPU is
never what is waited for. Each of our calls makes a new output, as CuPy's row with a new output does; the others write
one that is given. Every row's output is checked first, in memory that held NaN. Without a GPU it says so and exits with 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.timing import Timing, host_times

from .launch import CUDA_C, PTX, THREADS, N

Runs = dict[str, Callable[[], Any]]

# What a call may cost, as a multiple of CuPy's RawKernel with a new output.
LIMIT = 1.5
PEER = "CuPy RawKernel, new output"
OURS = ("precompiled_cuda_kernel", "cuda_kernel")


def our_runs(torch: Any, x: Any, y: Any) -> Runs:
    """`precompiled_cuda_kernel` and `cuda_kernel` on torch tensors."""
    import kernel_dsl as kd

    image = PTX.encode()
    kernel = kd.cuda_kernel("sum", ["x", "y"], ["o"], "int i = blockIdx.x * 128 + threadIdx.x; o[i] = x[i] + y[i];")

    def precompiled() -> Any:
        return kd.precompiled_cuda_kernel(
            name="add",
            compiled_source=image,
            inputs=[x, y],
            output_shapes=[(N,)],
            output_dtypes=[torch.float32],
            scalars=[],
            grid=(N, 1, 1),
            threadgroup=(THREADS, 1, 1),
        )[0]

    def compiled() -> Any:
        return kernel(
            inputs=[x, y],
            output_shapes=[(N,)],
            output_dtypes=[torch.float32],
            grid=(N, 1, 1),
            threadgroup=(THREADS, 1, 1),
        )[0]

    runs: Runs = {OURS[0]: precompiled}
    try:
        compiled()
        runs[OURS[1]] = compiled
    except kd.Error as error:  # no NVRTC
        print(f"left out: cuda_kernel: {error}")
    return runs


def bare_run(torch: Any, x: Any, y: Any, out: Any) -> Runs:
    """A prepacked cuLaunchKernel of the same PTX."""
    from kernel_dsl.runtime.devices.devices import cuda_device
    from kernel_dsl.runtime.devices.launch import ParamBuffer

    device = cuda_device()
    with driver.current(device.context):
        function = device.load_image(PTX, "add").function
    params = ParamBuffer([0, 8, 16], 24)
    for i, tensor in enumerate((x, y, out)):
        at = params.shift + 8 * i
        params.buffer[at : at + 8] = tensor.data_ptr().to_bytes(8, "little")
    cu = driver.api()
    stream, pointers = cu.CUstream(torch.cuda.current_stream().cuda_stream), params.address

    def prepacked(keep: Any = params) -> Any:
        cu.cuLaunchKernel(function, N // THREADS, 1, 1, THREADS, 1, 1, 0, stream, pointers, 0)
        return out

    return {"bare cuLaunchKernel": prepacked}


def cupy_runs(x: Any, y: Any, out: Any) -> Runs:
    """CuPy's RawKernel on CuPy arrays over the same memory."""
    try:
        import cupy
    except ImportError:
        print("left out: CuPy is not installed")
        return {}
    kernel = cupy.RawKernel(CUDA_C, "add")
    a, b, o = map(cupy.from_dlpack, (x, y, out))
    given = (a, b, o)

    def old() -> Any:
        kernel((N // THREADS,), (THREADS,), given)
        return out

    def new() -> Any:
        made = cupy.empty(N, cupy.float32)
        kernel((N // THREADS,), (THREADS,), (a, b, made))
        return made

    return {"CuPy RawKernel": old, PEER: new}


def check(torch: Any, name: str, run: Callable[[], Any], out: Any, expected: Any) -> None:
    """Raise unless the run writes its whole output, which held NaN: a new one lies where one was freed a moment ago."""
    for _ in range(3):  # the first calls take the slow path, the third does not
        out.fill_(float("nan"))
        torch.full((N,), float("nan"), device="cuda")
        if "cupy" in sys.modules:
            sys.modules["cupy"].full(N, float("nan"), "float32")
        result = run()
        torch.cuda.synchronize()
        found = torch.from_dlpack(result).cpu() if not isinstance(result, torch.Tensor) else result.cpu()
        if not torch.equal(found, expected):
            raise RuntimeError(f"{name} is wrong")


def measure(rounds: int = 40) -> dict[str, Timing]:
    """Host time of one call of each kind."""
    import torch

    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    out = torch.empty_like(x)
    runs = {**bare_run(torch, x, y, out), **cupy_runs(x, y, out), **our_runs(torch, x, y)}
    expected = x.cpu() + y.cpu()
    for name, run in runs.items():
        check(torch, name, run, out, expected)
    return host_times(runs, rounds=rounds, between=torch.cuda.synchronize)


def main() -> int:
    """Print the table; 1 where the limit is missed."""
    state = driver.available()
    if not state:
        print(f"a GPU is needed: {state.reason}")
        return 2
    from kernel_dsl.runtime.devices.devices import cuda_device

    print(cuda_device())
    times = measure()
    base, peer = times["bare cuLaunchKernel"].median, times.get(PEER)
    missed = 0
    print(f"{'call':<28}{'median us':>10}{'25%':>8}{'75%':>8}{'x bare':>8}{'x CuPy':>8}")
    for name, timing in times.items():
        low, high = (q * 1e6 for q in timing.quartiles)
        ratio = None if peer is None else timing.median / peer.median
        missed += ratio is not None and name in OURS and ratio > LIMIT
        print(
            f"{name:<28}{timing.median * 1e6:>10.2f}{low:>8.2f}{high:>8.2f}{timing.median / base:>8.2f}"
            f"{'' if ratio is None else f'{ratio:.2f}':>8}"
        )
    print(f"our calls cost at most {LIMIT} of CuPy's with a new output: {'missed' if missed else 'yes'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
