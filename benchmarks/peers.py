"""Matrix products beside Pallas and Triton: `python -m benchmarks.peers [bf16|mixed] [--json FILE] [--rounds N]`.

bf16 squares (NN, and NT where the peer takes it) beside Pallas' `hopper_matmul_mgpu`, a Triton kernel
(`triton_matmul.py`) and cuBLAS; int8 times bfloat16 beside Pallas' `hopper_mixed_type_matmul_mgpu`. Peers run with the
best of a list of configurations, timed first on the same inputs. All variants are then timed in turn, in one process, on
one clock (`kernel_clock.py`): GPU time of the call's kernels, L2 overwritten before each. Random normal data; every
result is checked against float64 on sampled rows, outputs poisoned before (JAX makes its own). A peer that can't run has
its reason in the table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # before JAX: PyTorch needs memory too

import torch

import kernel_dsl as kd

from .harness import Timing, machine, table
from .kernel_clock import Clock, Run, best_clock, interleaved, reason, settle
from .matmul import check

SIZES = (2048, 4096, 8192)
MIXED = (4096, 8192, 4096)
SWEEP = 20.0  # seconds to tune one peer on one problem

# makes a variant: how to run it, and its configuration in words
Make = Callable[[Any, Any, Any, Clock], tuple[Run, str]]


def ours(a: Any, b: Any, out: Any, clock: Clock) -> tuple[Run, str]:
    return lambda: kd.library.matmul(a, b, out=out), "chosen"


def cublas(a: Any, b: Any, out: Any, clock: Clock) -> tuple[Run, str]:
    return lambda: torch.matmul(a, b, out=out), ""


def triton(a: Any, b: Any, out: Any, clock: Clock) -> tuple[Run, str]:
    from . import triton_matmul

    found: list[tuple[float, Any, Run]] = []
    failed: list[str] = []
    for config in triton_matmul.CONFIGS:
        try:
            run = triton_matmul.matmul(a, b, out, config)
            clock.seconds(run, 1)
            found.append((clock.seconds(run, 5), config, run))
        except Exception as error:
            failed.append(reason(error))
    if not found:
        raise RuntimeError("; ".join(dict.fromkeys(failed)))
    _, config, run = min(found, key=lambda row: row[0])
    return run, f"{config} ({len(found)} timed, {len(failed)} refused)"


def pallas(a: Any, b: Any, out: Any, clock: Clock) -> tuple[Run, str]:
    from . import pallas_hopper

    make = pallas_hopper.mixed if a.dtype == torch.int8 else pallas_hopper.bf16
    return make(a, b, clock, SWEEP)


def checked(name: str, make: Make, a: Any, b: Any, clock: Clock) -> tuple[Run, str, float] | str:
    """A variant that gave the right result, and its error; or why there is none."""
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), device="cuda", dtype=torch.bfloat16)
    try:
        run, words = make(a, b, out, clock)
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        result = run()
        settle(result)
        made = torch.from_dlpack(result) if name == "pallas" else out
        return run, words, check(made, a, b, 4e-3)
    except Exception as error:
        return reason(error)


def compare(work: str, a: Any, b: Any, peers: dict[str, Make], clock: Clock, rounds: int) -> list[dict[str, Any]]:
    """Rows of the table for one problem: ours first."""
    print(f"{work}: {machine()}", flush=True)
    variants = {name: checked(name, make, a, b, clock) for name, make in {"ours": ours, **peers}.items()}
    times = interleaved(clock, {n: v[0] for n, v in variants.items() if not isinstance(v, str)}, rounds)
    flops = 2.0 * a.shape[0] * a.shape[1] * b.shape[1]
    mine = times.get("ours")
    rows: list[dict[str, Any]] = []
    for name, variant in variants.items():
        row = dict.fromkeys(("work", "variant", "us", "quartiles", "TFLOP/s", "ours over it", "error", "notes"), "-")
        row |= {"work": work, "variant": name}
        timing = times.get(name)
        if isinstance(timing, Timing) and not isinstance(variant, str):
            row["us"] = f"{timing.median * 1e6:.1f}"
            row["quartiles"] = f"{timing.low * 1e6:.1f}-{timing.high * 1e6:.1f}"
            row["TFLOP/s"] = f"{flops / timing.median * 1e-12:.0f}"
            if isinstance(mine, Timing):
                row["ours over it"] = f"{timing.median / mine.median:.3f}"
            row["error"], row["notes"] = f"{variant[2]:.1e}", variant[1]
        else:
            row["notes"] = f"failed: {variant if isinstance(variant, str) else timing}"
        rows.append(row)
    return rows


def bf16(clock: Clock, rounds: int) -> list[dict[str, Any]]:
    """Squares, NN and NT. Pallas' kernel takes B by rows only."""
    rows: list[dict[str, Any]] = []
    for n in SIZES:
        a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
        rows += compare(f"bf16 {n}^3 NN", a, b, {"pallas": pallas, "triton": triton, "cublas": cublas}, clock, rounds)
        rows += compare(f"bf16 {n}^3 NT", a, b.T, {"triton": triton, "cublas": cublas}, clock, rounds)
    return rows


def mixed(clock: Clock, rounds: int) -> list[dict[str, Any]]:
    """int8 weights of standard deviation 32, bfloat16 activations."""
    M, N, K = MIXED
    a = (torch.randn(M, K, device="cuda") * 32).round().clamp(-128, 127).to(torch.int8)
    b = torch.randn(K, N, device="cuda").bfloat16()
    return compare(f"s8 x bf16 {M}x{N}x{K}", a, b, {"pallas": pallas}, clock, rounds)


WORK = {"bf16": bf16, "mixed": mixed}


def main() -> None:
    """Run the named comparisons, by default both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WORK, []], default=[])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json")
    args = parser.parse_args()
    here = machine()
    clock = best_clock()
    print(f"{here}; {clock.name}")
    rows: list[dict[str, Any]] = []
    for name in args.names or WORK:
        rows += WORK[name](clock, args.rounds)
        table(rows, args.json)
    print(machine())


if __name__ == "__main__":
    main()
