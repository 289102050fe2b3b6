"""Collectives on paper: a latency and a bandwidth fitted to measured figures, and what they say of 8 to 1,024 GPUs.

    python -m benchmarks.scale
    python -m benchmarks.scale --measured FILE    # lines of `python -m benchmarks.collectives`
    python -m benchmarks.scale --nic 50 --step 8  # GB/s of a GPU's network card, microseconds of a step between hosts

docs/scale.md says what the model is, and where it stops being true. It needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = 8  # GPUs of a host
MIB = 1 << 20
SIZES = (16, 64, 256)  # MiB of each GPU's input
COUNTS = (8, 16, 64, 256, 1024)

# Microseconds on two H200 of one host, over NVLink without multicast: (library, NCCL) by MiB of each GPU's input, bfloat16
MEASURED: dict[str, dict[int, tuple[float, float]]] = {
    "all_reduce": {16: (54.9, 78.5), 64: (200.3, 246.4), 256: (772.5, 895.8)},
    "all_gather": {16: (57.9, 91.3), 64: (203.4, 295.7), 256: (750.7, 1050.1)},
    "reduce_scatter": {16: (40.8, 51.8), 64: (119.1, 166.7), 256: (426.8, 585.9)},
}


def sent(name: str, size: float, n: int) -> float:
    """Return the bytes that cross a GPU's link in one direction if each of `n` GPUs has `size` bytes."""
    return {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "reduce_scatter": (n - 1) / n}[name] * size


@dataclass(frozen=True)
class Link:
    """What a collective takes: `latency` microseconds, and bytes at `bandwidth` bytes a microsecond (MB/s)."""

    latency: float
    bandwidth: float

    def time(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


def fit(points: Sequence[tuple[float, float]]) -> Link:
    """The line through (bytes, microseconds) whose relative errors have the least squares. Two different sizes at least."""
    weights = [1 / t**2 for _, t in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    over = sum(w * (x - mean_x) * (t - mean_t) for w, (x, t) in zip(weights, points, strict=True))
    under = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = over / under
    return Link(mean_t - slope * mean_x, 1 / slope)


def fitted(figures: dict[str, dict[int, tuple[float, float]]], who: int, n: int) -> dict[str, Link]:
    """A link for each collective. `who`: 0 for the library, 1 for NCCL."""
    return {
        name: fit([(sent(name, mib * MIB, n), both[who]) for mib, both in row.items()]) for name, row in figures.items()
    }


def predicted(links: dict[str, Link], name: str, size: float, n: int, nic: float, step: float) -> float:
    """Microseconds of a collective of `n` GPUs with `size` bytes each: in a host by its link, between hosts by network cards.

    `nic`: bytes a microsecond of each GPU's card; `step`: microseconds of each of log2(hosts) exchanges. Sums are made in a host
    first, copies between hosts first. `n`: up to 8, or a multiple of 8.
    """
    if n <= HOST:
        return links[name].time(sent(name, size, n))
    if n % HOST:
        raise ValueError(f"{n} GPUs are no whole hosts of {HOST}")
    hosts = n // HOST
    inside = {kind: link.time for kind, link in links.items()}
    steps = math.log2(hosts) * step
    if name == "all_gather":
        between = sent(name, size, hosts) / nic + steps
        return between + inside[name](sent(name, size * hosts, HOST))
    part = size / HOST
    scattered = inside["reduce_scatter"](sent("reduce_scatter", size, HOST))
    if name == "reduce_scatter":
        return scattered + sent(name, part, hosts) / nic + steps
    between = sent(name, part, hosts) / nic + 2 * steps
    return scattered + between + inside["all_gather"](sent("all_gather", part, HOST))


def read(path: Path) -> tuple[dict[str, dict[int, tuple[float, float]]], int]:
    """The figures of a file of lines of JSON from `benchmarks.collectives`, 4 MiB and more, and on how many GPUs."""
    figures: dict[str, dict[int, tuple[float, float]]] = {}
    devices = 2
    for line in path.read_text().splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        name, _, size = row.get("row", "").removesuffix("_KiB").rpartition("_")
        if name in MEASURED and int(size) >= 4096:
            figures.setdefault(name, {})[int(size) // 1024] = (row["ours_us"], row["nccl_us"])
            devices = row["devices"]
    short = [name for name in MEASURED if len(figures.get(name, {})) < 2]
    if short:
        raise SystemExit(f"{path} has not two sizes of {', '.join(short)}")
    return figures, devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--nic", type=float, default=50.0, help="GB/s in one direction of each GPU's network card")
    parser.add_argument("--step", type=float, default=8.0, help="microseconds of an exchange between hosts")
    options = parser.parse_args()
    figures, devices = (MEASURED, 2) if options.measured is None else read(options.measured)
    print(
        f"fitted on {devices} GPUs\n\n| collective | latency, us | GB/s in one direction | NCCL: us | GB/s | largest error |"
    )
    print("|---|---|---|---|---|---|")
    both = [fitted(figures, who, devices) for who in (0, 1)]
    for name, row in figures.items():
        ours, nccl = (links[name] for links in both)
        off = max(abs(ours.time(sent(name, mib * MIB, devices)) / us - 1) for mib, (us, _) in row.items())
        figures_of = (ours.latency, ours.bandwidth / 1e3, nccl.latency, nccl.bandwidth / 1e3)
        print(f"| {name} | {' | '.join(f'{x:.1f}' for x in figures_of)} | {off:.1%} |")
    print(f"\npredicted, us\n\n| collective | MiB a GPU | {' | '.join(f'{n} GPUs' for n in COUNTS)} |")
    print("|---|---|" + "---|" * len(COUNTS))
    for name in figures:
        for mib in SIZES:
            times = [predicted(both[0], name, mib * MIB, n, options.nic * 1e3, options.step) for n in COUNTS]
            print(f"| {name} | {mib} | {' | '.join(f'{t:.0f}' for t in times)} |")


if __name__ == "__main__":
    main()
