"""Memory-bound kernels beside `Tensor.copy_`.

`python -m benchmarks.memory [names] [--variants] [--compile] [--json FILE]`

The floor of each is the time of a `Tensor.copy_` that moves as many bytes, read and written together, in the same
rounds: "of copy" is 1.000 there. Outputs are poisoned, and checked against float64 on random inputs, before anything is
timed. Torch eager stands beside; `--compile` adds torch.compile, and `--variants` other tunings of each kernel. A kernel
that fails is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import traceback
from typing import Any

import torch

from .harness import Timing, interleaved, machine, table
from .memory_cases import CASES, Case, Variant


def poison(outputs: tuple[Any, ...]) -> None:
    """Fill outputs with what no right answer has."""
    for out in outputs:
        if out.element_size() == 1:
            out.view(torch.uint8).fill_(0x7F)  # NaN in float8_e4m3fn
        elif out.dtype.is_floating_point:
            out.fill_(float("nan"))
        else:
            out.view(torch.int32).fill_(77)


def ready(case: Case, variant: Variant) -> tuple[float, str, int]:
    """(relative error, registers, spilled bytes) of a variant that gives the right result. Raises otherwise."""
    poison(variant.outputs())
    variant.run()
    torch.cuda.synchronize()
    error = case.check(variant.outputs())
    resources = variant.lowered()
    return error, "+".join(str(r.registers) for r in resources), sum(r.spills for r in resources)


def rows_of(case: Case, variants: bool, compiled: bool) -> list[dict[str, Any]]:
    """Check and time one case; a row for each variant that works."""
    good: dict[str, tuple[Variant, float, str, int]] = {}
    for variant in case.variants if variants else case.variants[:1]:
        try:
            good[variant.name] = (variant, *ready(case, variant))
        except Exception as error:  # the others go on, whatever it was
            print(f"FAILED {case.name} [{variant.name}]: {str(error).splitlines()[0] if str(error) else error!r}")
            if not isinstance(error, AssertionError):
                traceback.print_exc(limit=-2)
    if not good:
        return []
    moved = int(case.bytes) // 32 * 16  # as many bytes read as written, in whole vectors
    source = torch.randint(0, 255, (moved,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    runs: dict[str, Any] = {name: found[0].run for name, found in good.items()}
    runs["(copy)"] = lambda: target.copy_(source)
    peers: dict[str, Any] = {"(torch)": case.peer}
    if compiled:
        peers["(compile)"] = torch.compile(case.peer)
    for name, peer in peers.items():
        try:
            peer()
            runs[name] = peer
        except Exception as error:  # not everything can be compiled
            print(f"{case.name}: the peer {name} fails with {type(error).__name__}")
    times = interleaved(runs, rounds=15)
    copy = 2 * moved / times["(copy)"].median
    return [_row(case, name, found, times, copy) for name, found in good.items()]


def _microseconds(timing: Timing | None) -> str:
    return "-" if timing is None else f"{timing.median * 1e6:.1f}"


def _row(
    case: Case, name: str, found: tuple[Variant, float, str, int], times: dict[str, Timing], copy: float
) -> dict[str, Any]:
    _, error, registers, spills = found
    own = times[name]
    ratio = case.bytes / own.median / copy
    row: dict[str, Any] = {
        "kernel": case.name,
        "variant": name,
        "us": f"{own.median * 1e6:.1f}",
        "spread": f"{own.low * 1e6:.1f}-{own.high * 1e6:.1f}",
        "of copy": f"{ratio:.3f}",
        "target": f"{case.target:.2f}{'' if ratio >= case.target else ' MISSED'}",
        "copy TB/s": f"{copy * 1e-12:.2f}",
        **{f"{peer[1:-1]} us": _microseconds(times.get(peer)) for peer in ("(torch)", "(compile)")},
        "regs": registers,
        "spills": spills,
        "error": f"{error:.0e}",
    }
    return row


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--variants", action="store_true", help="time other tunings, too")
    parser.add_argument("--compile", action="store_true", help="time torch.compile, too")
    parser.add_argument("--json")
    args = parser.parse_args()
    for name in args.names:
        if name not in CASES:
            parser.error(f"{name!r} is none of {', '.join(CASES)}")
    rows: list[dict[str, Any]] = []
    begun = time.perf_counter()
    print(machine())
    for name in args.names or CASES:
        try:
            for case in CASES[name]():
                rows += rows_of(case, args.variants, args.compile)
                if args.json:
                    with contextlib.redirect_stdout(io.StringIO()):
                        table(rows, args.json)
        except Exception as error:  # out of memory, or a peer that is missing: the others go on
            print(f"FAILED {name}: {error!r}")
            traceback.print_exc(limit=-2)
        torch.cuda.empty_cache()
    table(rows, args.json)
    print(machine(), f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
