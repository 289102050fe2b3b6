"""Collectives on the GPUs of one process beside NCCL, as torch calls it there. A line of JSON a row, as it is measured.

    python -m benchmarks.collectives --rows all_reduce --seconds 120

Each row is checked against float64 before it is timed. The two take turns; a figure is the median of the turns, in
microseconds a call, from before the first of several calls to after the last on the GPU that is last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import kernel_dsl as kd
from kernel_dsl import library

KIB = (8, 64, 512, 4096, 16384, 65536, 262144)
TURNS, CALLS = 5, 20


def timed(torch: Any, call: Callable[[], Any], devices: int) -> float:
    """Microseconds a call."""
    for rank in range(devices):
        torch.cuda.synchronize(rank)
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    for rank in range(devices):
        torch.cuda.synchronize(rank)
    return (time.perf_counter() - start) * 1e6 / CALLS


def rows(torch: Any, name: str, kib: int, mesh: kd.Mesh) -> tuple[Callable[[], Any], Callable[[], Any], bool]:
    """Our call, NCCL's, and whether ours is right."""
    n, nccl = mesh.size, torch.cuda.nccl
    count = kib * 512 // n * n
    xs = [torch.randn(count, device=f"cuda:{r}").to(torch.bfloat16) for r in range(n)]
    total = sum(x.cpu().double() for x in xs)
    if name == "all_reduce":
        outs = [torch.empty_like(x) for x in xs]
        wants = [total] * n
        peer: Callable[[], Any] = lambda: nccl.all_reduce(xs, outs)  # noqa: E731
    elif name == "all_gather":
        outs = [torch.empty(count * n, dtype=x.dtype, device=x.device) for x in xs]
        wants = [torch.cat([x.cpu().double() for x in xs])] * n
        peer = lambda: nccl.all_gather(xs, outs)  # noqa: E731
    else:
        outs = [torch.empty(count // n, dtype=x.dtype, device=x.device) for x in xs]
        wants = list(total.chunk(n))
        peer = lambda: nccl.reduce_scatter(xs, outs)  # noqa: E731
    collective = getattr(library, name)

    def ours() -> Any:
        return collective(xs, mesh, out=outs)

    got = ours()
    right = all(
        ((g.cpu().double() - w).abs() <= 2.0**-8 * w.abs() + 1e-5).all() for g, w in zip(got, wants, strict=True)
    )
    return ours, peer, bool(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no row after this")
    options = parser.parse_args()
    import torch

    devices = torch.cuda.device_count()
    if devices < 2:
        raise SystemExit("needs two GPUs that reach each other")
    mesh, begun = kd.Mesh(("x",), (devices,)), time.monotonic()
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        for kib in KIB:
            row: dict[str, Any] = {"row": f"{name}_{kib}_KiB", "devices": devices}
            if options.rows not in row["row"] or time.monotonic() - begun > options.seconds:
                continue
            ours, peer, row["right"] = rows(torch, name, kib, mesh)
            timed(torch, ours, devices), timed(torch, peer, devices)
            pairs = [(timed(torch, ours, devices), timed(torch, peer, devices)) for _ in range(TURNS)]
            row["ours_us"], row["nccl_us"] = (round(statistics.median(side), 2) for side in zip(*pairs, strict=True))
            row["spread"] = round(max(a for a, _ in pairs) / min(a for a, _ in pairs), 3)
            row["ratio"] = round(row["nccl_us"] / row["ours_us"], 3)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
