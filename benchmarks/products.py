"""Products of every layout, dtype, shape and epilogue beside torch: `python -m benchmarks.products [groups]`.

Groups: layouts exact odd thin deep batches steps scaled grouped entropy int4 sparse conv random configs; all but `configs` by
default.
`--rows TEXT` keeps the rows whose name has it, `--seconds N` stops after that time, `--json FILE` is written after each row.
Outputs are poisoned and checked against float64 before anything is timed; a row that fails is told, and the others go on.
Where torch refuses a layout or an odd size, its row is its product of operands that are padded and stored along K, with its
own copies to them. `random` walks over shapes from 1 to 32768 (or `--sides LEAST MOST`), layouts, dtypes and alignments, and
ends with the rows that are slower than torch, the slowest first, the worst and the geometric mean. `--routes N` also measures,
where a row is below 0.85 of torch, the best N ways of each kernel by the model of costs: a faster one is the model's error,
else a kernel is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernel_dsl.library import MatmulConfig

from . import conv_rows, entropy_rows, grouped_rows, int4_rows, sparse_rows
from .epilogue_rows import scaled, scaled_row, steps
from .harness import clear_l2, machine
from .product_rows import F8, LAYOUTS, Row, Run, batches, deep, exact, layouts, odd, product, thin

SLOW = 0.85  # of torch
AHEAD = 250_000  # clocks that the GPU waits, in which the host prepares a call
ATTEMPTS = 4  # the last of them with eight times as many


def configs() -> Iterator[Callable[[], Row]]:
    """Sizes beside each other, where the model is least sure: what to measure in a short run."""
    blocks = MatmulConfig(tile_k=128, epilogue_n=32, group=16)
    tiles = [replace(blocks, tile_n=n, stages=s) for n, s in ((192, 4), (160, 5), (128, 6))]
    tiles += [replace(t, cluster=2) for t in tiles]
    for shape in ((4096, 4096, 7168), (8192, 8192, 8192)):
        for t in tiles:
            yield lambda s=shape, t=t: scaled_row(*s, "squares", t)
    turned = MatmulConfig(tile_k=32, epilogue_n=32, group=16)
    for t in (turned, replace(turned, tile_m=256, tile_n=128), replace(turned, group=8), replace(turned, cluster=2)):
        for layout in ("NN", "TT"):
            swapped = replace(t, swapped=layout == "NN")
            yield lambda x=layout, t=swapped: _named(
                product("tf32", 4096, 4096, 4096, torch.float32, x, "tf32", config=t), t
            )

    yield from (*int4_rows.candidates(), *sparse_rows.candidates(), *conv_rows.candidates())


def _named(row: Row, t: MatmulConfig) -> Row:
    return replace(row, name=f"{row.name} {t.tile_m}x{t.tile_n} s{t.stages} g{t.group} c{t.cluster}")


def walk(seed: int, sides: Sequence[int]) -> Iterator[Callable[[], Row]]:
    """Random shapes, layouts, dtypes and alignments. `sides`: the least and the greatest extent."""
    rng, orders = random.Random(seed), [math.log2(n) for n in sides]
    kinds = [(torch.bfloat16, None), (torch.float16, None), (F8, None), (torch.int8, None), (torch.float32, "tf32")]
    while True:
        dtype, precision = rng.choice(kinds)
        M, N, K = (int(2 ** rng.uniform(*orders)) for _ in range(3))
        kind, vector = rng.randrange(3), 16 // dtype.itemsize
        if kind == 0:
            M, N, K = (max(n // 16, 1) * 16 for n in (M, N, K))
        if kind == 1:  # rows that TMA takes, half of which begin within a sector of 32 bytes
            M, N, K = (n // (2 * vector) * 2 * vector + vector for n in (M, N, K))
        if max(M * K, K * N, M * N) > 1 << 29 or M * N * K > 1 << 39:
            continue
        shifts = (rng.choice((0, 0, 1)), rng.choice((0, 0, 1)))
        name, layout = str(dtype).removeprefix("torch."), rng.choice(LAYOUTS)
        words = f"{name}{' ' + precision if precision else ''}{' shifted' if any(shifts) else ''}"
        yield lambda w=words, s=(M, N, K), d=dtype, x=layout, p=precision, h=shifts: product(w, *s, d, x, p, h)


GROUPS: dict[str, Callable[[], Iterator[Callable[[], Row]]]] = {
    "layouts": layouts, "exact": exact, "odd": odd, "thin": thin, "deep": deep, "batches": batches, "steps": steps,
    "scaled": scaled, "grouped": grouped_rows.works, "entropy": entropy_rows.works, "int4": int4_rows.works,
    "sparse": sparse_rows.works, "conv": conv_rows.works, "configs": configs,
}  # fmt: skip


# --- measuring -----------------------------------------------------------------------------------


def launched(run: Run, ahead: int) -> tuple[Any, Any]:
    """Events before and after a call that the GPU begins `ahead` clocks later, with nothing in L2."""
    clear_l2()
    torch.cuda._sleep(ahead)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    return start, stop


def median(variants: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of each variant: events around a call after L2 was cleared, in turn. The host is ahead: its time is not in them.

    Where the GPU began before the host had launched the call, the time doesn't count, and the call is made again.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-2, rounds):
        pairs: list[tuple[str, Any, Any]] = []
        for name, run in variants.items():
            start, stop = launched(run, AHEAD)
            for attempt in range(1, ATTEMPTS):
                if not start.query():
                    break
                start, stop = launched(run, AHEAD << attempt)
            pairs.append((name, start, stop))
        torch.cuda.synchronize()
        if number >= 0:
            for name, start, stop in pairs:
                times[name].append(start.elapsed_time(stop) * 1e-3)
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def routed(row: Row, count: int, rounds: int) -> Iterator[str]:
    """What the ways to compute a product take, the fastest first."""
    assert row.ways is not None
    found = list(row.ways(count))
    times = median({words: run for words, _, run in found}, rounds)
    for words, model, _ in sorted(found, key=lambda x: times[x[0]]):
        yield f"    {times[words] * 1e6:.1f} us, by the model {model * 1e6:.1f}: {words}"


def measured(make: Callable[[], Row], rounds: int, routes: int = 0, wanted: str = "") -> dict[str, Any] | None:
    """Check a row, and time it; tell of its ways, `routes` of each kernel, if it is slow. None if its name lacks `wanted`."""
    row = make()
    if wanted not in row.name:
        return None
    error = row.check()
    if not error <= row.bound:
        raise AssertionError(f"{row.name}: relative error {error:.2e} over {row.bound:.0e}")
    variants = {"ours": row.ours}
    if row.peer is not None:
        variants["torch"] = row.peer
    times = median(variants, rounds)
    out: dict[str, Any] = {
        "work": row.name,
        "us": round(times["ours"] * 1e6, 1),
        "TFLOP/s": round(row.flops / times["ours"] * 1e-12),
    }
    if row.bytes:
        out["TB/s"] = round(row.bytes / times["ours"] * 1e-12, 2)
    if "torch" in times:
        out |= {"torch us": round(times["torch"] * 1e6, 1), "of torch": round(times["torch"] / times["ours"], 3)}
        if routes and row.ways is not None and out["of torch"] < SLOW:
            print(f"{row.name}, {out['of torch']} of torch:", *routed(row, routes, rounds), sep="\n", flush=True)
    return {**out, "error": f"{error:.0e}"}


def main() -> None:
    """Run the named groups, by default all but `configs` and `random`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*GROUPS, "random", []], default=[])
    parser.add_argument("--rows", default="", help="only rows whose name has this text")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sides", type=int, nargs=2, default=(1, 32768), help="the extents of random products")
    parser.add_argument("--routes", type=int, default=0, help="ways of each kernel to measure where a row is slow")
    parser.add_argument("--json")
    args = parser.parse_args()
    begun, rows = time.perf_counter(), list[dict[str, Any]]()
    print(machine())
    for name in args.names or [n for n in GROUPS if n != "configs"]:
        for make in walk(args.seed, args.sides) if name == "random" else GROUPS[name]():
            if time.perf_counter() - begun > args.seconds:
                print(f"stopped after {args.seconds:.0f} s, in {name}")
                break
            try:
                found = measured(make, args.rounds, args.routes, args.rows)
                if found is None:
                    continue
                rows.append({"group": name, **found})
                print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
            except Exception as error:  # the others go on, whatever it was
                lines = str(error).splitlines() or [repr(error)]
                rows.append({"group": name, "failed": f"{type(error).__name__}: {lines[0][:200]}"})
                print(f"FAILED in {name}: {type(error).__name__}: {lines[0][:200]}", flush=True)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump({"machine": machine(), "rows": rows}, file, indent=1)
            torch.cuda.empty_cache()
    for name in {r["group"] for r in rows}:
        ratios = [r["of torch"] for r in rows if r["group"] == name and "of torch" in r]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            for row in sorted(
                (r for r in rows if r["group"] == name and r.get("of torch", 1.0) < 1.0), key=lambda r: r["of torch"]
            ):
                print(f"  {row['of torch']}  {row['work']}")
            print(f"{name}: geometric mean of torch {mean:.3f}, worst {min(ratios):.3f}, {len(ratios)} rows")
    print(machine())


if __name__ == "__main__":
    main()
