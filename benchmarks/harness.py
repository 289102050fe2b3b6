"""How speed is measured here: beside a peer, in one run, interleaved, on random data, with poisoned outputs checked.

Times are of the GPU, by events around each launch, with L2 cleared before it. A row gives the median and the spread
(25th to 75th percentile) of each, and the ratio of medians.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernel_dsl.runtime.measure import bench
from kernel_dsl.runtime.timing import device_times


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
    """Time every variant once a round, in turn, on PyTorch's stream."""
    times = device_times(variants, rounds=rounds, warmup=warmup, stream=torch.cuda.current_stream().cuda_stream)
    return {name: Timing(t.median, *t.quartiles) for name, t in times.items()}


def machine() -> str:
    """The GPU, its clocks, power and temperature, as they are now. Ends the program where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit("a GPU is needed, and PyTorch sees none")
    return bench.machine()


def attempted(name: str, make: Callable[[], Iterable[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The rows that `make` gives. If it raises, the last row says so, and the caller goes on with its next work."""
    try:
        yield from make()
    except Exception as error:  # one wrong or impossible row must not cost the others
        first = (str(error).splitlines() or [""])[0]
        yield {"work": name, "failed": f"{type(error).__name__}: {first[:200]}"}


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
