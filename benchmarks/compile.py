"""Cold compiles, from a body to machine code: `python -m benchmarks.compile [--rounds N] [--json FILE] [NAME ...]`.

Each in a process of its own, with nothing cached and the modules imported: tracing, lowering, LLVM and ptxas. Needs no
GPU. Where Triton and a GPU are there, Triton's kernels of the same kind are compiled beside.
Milliseconds of wall clock, the median of each part, the processor time of all, and "own", that of the compiler without
ptxas, which is a process of its own. Processor time is the same on a busy machine, so bounds are on it, and on the ratio of
"own" to Triton's in the same run. Exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import kernel_dsl as kd

# milliseconds
BOUNDS = {"matmul": 350, **{f"attention {dim} {kind}": 600 for dim in (64, 128, 256) for kind in ("full", "causal")}}
# of the processor time of Triton without ptxas: (Triton's kernel, at most)
RATIOS = {
    "vector add": ("triton vector add", 0.5),
    "softmax": ("triton softmax", 0.5),
    "matmul": ("triton matmul", 0.8),
    **{
        f"attention {dim} {kind}": (f"triton attention 128 {kind}", 1.3)
        for dim in (64, 128, 256)
        for kind in ("full", "causal")
    },
}
PHASES = ("trace", "ptx", "cubin", "total", "processor", "own")


def vector_add() -> Any:
    spec = kd.ShapeDtypeStruct((1 << 24,), kd.float32)
    return importlib.import_module("examples.02_vector_add").vector_add.lower(spec, spec)


def softmax() -> Any:
    spec = kd.ShapeDtypeStruct((8192, 8192), kd.bfloat16)
    return importlib.import_module("examples.01_softmax").softmax_for(8192).lower(spec)


def matmul() -> Any:
    spec = kd.ShapeDtypeStruct((8192, 8192), kd.bfloat16)
    return kd.library.matmul.lower(spec, spec)


def attention(dim: int, causal: bool) -> Any:
    spec = kd.ShapeDtypeStruct((1, 16, 4096, dim), kd.bfloat16)
    return kd.library.attention.lower(spec, spec, spec, causal=causal)


KERNELS: dict[str, Callable[[], Any]] = {
    "vector add": vector_add,
    "softmax": softmax,
    "matmul": matmul,
    **{
        f"attention {dim} {kind}": partial(attention, dim, kind == "causal")
        for dim in (64, 128, 256)
        for kind in ("full", "causal")
    },
}


def spent() -> float:
    """Seconds of processor time of this process and of the assemblers that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def own() -> float:
    """Seconds of processor time of this process alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ours(name: str) -> dict[str, float]:
    """Milliseconds of one compile in this process, by phase."""
    for module in (
        "kernel_dsl.lowering",
        "kernel_dsl.lowering.math",
        "kernel_dsl.runtime.assemble",
        "examples.01_softmax",
        "examples.02_vector_add",
    ):
        importlib.import_module(module)
    assert kd.library.matmul is not None
    clock = time.perf_counter
    used, mine = spent(), own()
    start = clock()
    stages = KERNELS[name]()
    traced = clock()
    assert stages.ptx
    lowered = clock()
    assert stages.compile().cubin
    end = clock()
    times = (traced - start, lowered - traced, end - lowered, end - start, spent() - used, own() - mine)
    return {phase: t * 1e3 for phase, t in zip(PHASES, times, strict=True)}


def triton_vector_add() -> None:
    import torch

    from . import triton_add

    triton_add.run(*(torch.empty(1 << 24, device="cuda") for _ in range(3)), 1 << 24, 1024)()
    torch.cuda.synchronize()


def triton_matmul() -> None:
    import torch

    from . import triton_matmul

    a, b, out = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    triton_matmul.matmul(a, b, out, triton_matmul.CONFIGS[0])()
    torch.cuda.synchronize()


def triton_softmax() -> None:
    import torch

    from .triton_softmax import softmax as rows

    x, out = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows[(8192,)](x, out, 8192, 8192, num_warps=8)
    torch.cuda.synchronize()


def triton_attention(causal: bool) -> None:
    import torch

    from . import triton_attention as peer

    arrays = [torch.empty(1, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    peer.run(*arrays, causal)
    torch.cuda.synchronize()


TRITON: dict[str, Callable[[], None]] = {
    "triton vector add": triton_vector_add,
    "triton softmax": triton_softmax,
    "triton matmul": triton_matmul,
    **{f"triton attention 128 {kind}": partial(triton_attention, kind == "causal") for kind in ("full", "causal")},
}


def triton(name: str) -> dict[str, float]:
    """The same of Triton, its compiler and the GPU's context made first."""
    import torch

    importlib.import_module("triton.compiler")
    torch.zeros(1, device="cuda")
    used, mine, start = spent(), own(), time.perf_counter()
    TRITON[name]()
    end = time.perf_counter()
    return {"total": (end - start) * 1e3, "processor": (spent() - used) * 1e3, "own": (own() - mine) * 1e3}


def child(name: str) -> dict[str, float]:
    """One compile in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.compile", "--child", name],
            env={**os.environ, "KERNEL_DSL_CACHE": folder, "TRITON_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def has_triton() -> bool:
    """Whether Triton and a GPU are there."""
    try:
        import torch

        importlib.import_module("triton")
        return torch.cuda.is_available()
    except ImportError:
        return False


def main() -> int:
    """Print the table; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        print(json.dumps((triton if args.child in TRITON else ours)(args.child)))
        return 0
    found: dict[str, list[dict[str, float]]] = {}
    missed = 0
    for name in args.names or [*KERNELS, *(TRITON if has_triton() else ())]:
        runs = found[name] = [child(name) for _ in range(args.rounds)]
        parts = [f"{p} {statistics.median(r[p] for r in runs):7.1f}" for p in PHASES if p in runs[0]]
        used = [r["processor"] for r in runs]
        bound = BOUNDS.get(name)
        missed += bound is not None and statistics.median(used) > bound
        limit = f", at most {bound}" if bound else ""
        print(f"{name:<20} {'  '.join(parts)} ms ({min(used):.0f} to {max(used):.0f}{limit})", flush=True)
    for name, (peer, most) in RATIOS.items():
        if name in found and peer in found:
            mine, other = (statistics.median(r["own"] for r in found[n]) for n in (name, peer))
            missed += mine > most * other
            print(f"{name:<20} {mine / other:.2f} of the {peer}, at most {most}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
