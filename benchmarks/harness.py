"""How speed is measured here: beside a peer, in one run, interleaved, on random data, with poisoned outputs checked.

Times are of the GPU, by events around each launch, with L2 cleared before it. A row gives the median and the spread
(25th to 75th percentile) of each, and the ratio of medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Timing:
    """Seconds: the median and the quartiles of one variant."""

    median: float
    low: float
    high: float


def clear_l2(buffer: list[Any] = []) -> None:  # noqa: B006 - the one buffer is kept on purpose
    """Overwrite more memory than L2 holds."""
    if not buffer:
        buffer.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    buffer[0].zero_()


def interleaved(variants: dict[str, Callable[[], Any]], rounds: int = 25, warmup: int = 3) -> dict[str, Timing]:
    """Time every variant once a round, in turn."""
    for run in variants.values():
        for _ in range(warmup):
            run()
    torch.cuda.synchronize()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            clear_l2()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    out: dict[str, Timing] = {}
    for name, pairs in events.items():
        times = sorted(a.elapsed_time(b) * 1e-3 for a, b in pairs)
        n = len(times)
        out[name] = Timing(statistics.median(times), times[n // 4], times[3 * n // 4])
    return out


def machine() -> str:
    """The GPU, its clocks and its power draw, as they are now. Ends the program where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit("a GPU is needed, and PyTorch sees none")
    query = "name,clocks.sm,clocks.mem,power.draw"
    line = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return line.stdout.strip()


def table(rows: list[dict[str, Any]], path: str | None = None) -> None:
    """Print rows of one shape as columns, and keep them as JSON where a path is given."""
    if not rows:
        return
    keys = list(rows[0])
    cells = [[str(r[k]) for k in keys] for r in rows]
    widths = [max(len(k), *(len(c[i]) for c in cells)) for i, k in enumerate(keys)]
    print("  ".join(k.ljust(w) for k, w in zip(keys, widths, strict=True)))
    for c in cells:
        print("  ".join(x.ljust(w) for x, w in zip(c, widths, strict=True)))
    sys.stdout.flush()
    if path is not None:
        with open(path, "w") as file:
            json.dump({"machine": machine(), "rows": rows}, file, indent=1)
