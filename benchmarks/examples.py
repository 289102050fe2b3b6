"""The tutorials among the examples beside torch, eager and compiled: `python -m benchmarks.examples`.

`--rows TEXT` keeps the kernels whose name has it (softmax, dropout, recurrence, top_k, radix_sort, convolution, group_norm, fft,
int4, compaction, cholesky, scan), `--seconds N` starts no row after that time, `--json FILE` is written after each row.

Outputs are poisoned, and checked against float64, before anything is timed; then all calls of a row take turns, with a copy of as
many bytes as the kernel has to move. "of best" is the time of the better of torch's two over ours; the target of the running sum
is of the copy's speed, that of the radix sort of CUB's (by CuPy, where there is one). A row that fails is told, and the others
go on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import traceback
from typing import Any

import torch

from .example_rows import Row, rows
from .harness import Timing, interleaved, machine, table
from .memory import poison

ROUNDS = 15


def ready(row: Row) -> float:
    """The relative error of the poisoned and then written outputs. Raises where it is too large."""
    poison(tuple(row.outputs))
    row.ours()
    torch.cuda.synchronize()
    error = row.check()
    assert error <= row.bound, f"relative error {error:.1e} over {row.bound:.0e}"
    return error


def runs_of(row: Row, target: Any, source: Any) -> dict[str, Any]:
    """Ours, a copy, and the peers that work."""
    found: dict[str, Any] = {"ours": row.ours, "copy": lambda: target.copy_(source)}
    peers = dict(row.peers)
    if row.compiled:
        peers["compile"] = torch.compile(row.peers["eager"])
    for name, peer in peers.items():
        try:
            peer()
            torch.cuda.synchronize()
            found[name] = peer
        except Exception as error:  # not everything can be compiled, nor fits
            print(f"{row.name}: the peer {name} fails with {type(error).__name__}")
    return found


def told(row: Row, times: dict[str, Timing], moved: float, error: float) -> dict[str, Any]:
    """The columns of a row."""
    own = times["ours"].median
    torchs = [times[name].median for name in ("eager", "compile") if name in times]
    copy = times["copy"].median * row.bytes / moved
    best = min(torchs, default=float("nan"))
    reference = {"torch": best, "copy": copy}
    if row.against in times and row.against not in reference:
        reference[row.against] = times[row.against].median
    ratio = reference.get(row.against, float("nan")) / own
    micro = {name: f"{times[name].median * 1e6:.1f}" if name in times else "-" for name in ("eager", "compile", "cub")}
    return {
        "kernel": row.name,
        "us": f"{own * 1e6:.1f}",
        "spread": f"{times['ours'].low * 1e6:.1f}-{times['ours'].high * 1e6:.1f}",
        **{f"{name} us": value for name, value in micro.items()},
        "of best": f"{best / own:.2f}",
        "of copy": f"{copy / own:.2f}",
        "Gelem/s": f"{row.count / own * 1e-9:.1f}" if row.count else "-",
        "target": f"{row.target:.2f} of {row.against}{'' if ratio >= row.target else ' MISSED'}",
        "error": f"{error:.0e}",
    }


def measured(row: Row) -> dict[str, Any]:
    """Check a row, then time it."""
    error = ready(row)
    moved = max(16, int(row.bytes) // 32 * 16)
    source = torch.randint(0, 255, (moved,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return told(row, interleaved(runs_of(row, target, source), ROUNDS), 2.0 * moved, error)


def main() -> None:
    """Run the named rows, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json")
    args = parser.parse_args()
    print(machine())
    begun, made = time.perf_counter(), []
    for name, make in rows():
        if args.rows not in name:
            continue
        if time.perf_counter() - begun > args.seconds:
            print(f"out of time before {name}")
            break
        try:
            made.append(measured(make()))
            print(*made[-1].values(), sep="  ", flush=True)
            if args.json:
                with contextlib.redirect_stdout(io.StringIO()):
                    table(made, args.json)
        except Exception as error:  # the others go on, whatever it was
            print(f"FAILED {name}: {str(error).splitlines()[0] if str(error) else error!r}")
            if not isinstance(error, AssertionError):
                traceback.print_exc(limit=-3)
        torch.cuda.empty_cache()
    print()
    table(made, args.json)
    print(machine(), f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
