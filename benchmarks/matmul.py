"""Matrix products beside cuBLAS: `python -m benchmarks.matmul [bf16|fp8|int8|configs|tuned|sustained|dynamic] [--rounds N]`.

Random normal data, inputs rotated over several copies, launches interleaved. Every result is checked against a
float64-accumulated product of sampled rows, with outputs poisoned before. `configs` times a list of configurations; `tuned` times
all of that list in one run with what tuning chose after 8 measurements: "of the best" is what that reaches of the fastest of the
list. What it measured is kept, as by the command `tune`, and later products take it. `sustained` runs each of two products
for `--seconds`, with clocks and power. `dynamic`: kernels for any M beside specialised ones. `--rows TEXT` keeps the rows whose
name has it; `--json F` is written after each row. Other layouts, dtypes and shapes: `benchmarks.products`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig
from kernel_dsl.library.product_routes.routes import routes
from kernel_dsl.library.product_routes.tuned_matmul import choice_of
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.stages import target_named
from kernel_dsl.tune_command import add_options, matmul_tuning

from . import dynamic_rows
from .harness import interleaved, machine, table

SHAPES = [
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 8192, 4096),
    (8192, 8192, 512),
    (4096, 4096, 16384),
    (128, 8192, 8192),
    (16, 16384, 8192),
]
IN_TURNS = MatmulConfig(tile_n=192, epilogue_n=32, ping_pong=True)
FIVE_STAGES = replace(IN_TURNS, stages=5, epilogue_stages=1)
SQUARE = [
    MatmulConfig(),
    MatmulConfig(group=16),
    MatmulConfig(tile_m=256, tile_n=128, epilogue_n=32),
    MatmulConfig(tile_n=224, epilogue_n=32, group=16),
    MatmulConfig(cluster=2),
    MatmulConfig(cluster_n=2),
    MatmulConfig(tile_n=128, stages=5, ping_pong=True),
    IN_TURNS,
    FIVE_STAGES,
    replace(FIVE_STAGES, cluster=2),
]
WEIGHTS_128 = MatmulConfig(tile_m=64, tile_n=128, stages=8, consumers=1, group=1)
ROWS_16 = [
    WEIGHTS_128,
    *(replace(WEIGHTS_128, stages=stages, b_hint="evict_first") for stages in (4, 6, 8)),
    *(MatmulConfig(tile_n=16, stages=stages, epilogue_n=16, a_hint="evict_first", swapped=True) for stages in (8, 12)),
]
ROWS_128 = [
    MatmulConfig(tile_n=64, stages=8, epilogue_stages=1, group=1),
    MatmulConfig(tile_n=64, stages=8, epilogue_stages=1, group=1, b_hint="evict_first"),
    replace(WEIGHTS_128, cluster=2, b_hint="evict_first"),
]
CONFIGS = {
    (2048, 2048, 2048): SQUARE,
    (4096, 4096, 4096): SQUARE,
    (8192, 8192, 8192): SQUARE,
    (4096, 8192, 4096): SQUARE,
    (8192, 8192, 512): SQUARE,
    (128, 8192, 8192): ROWS_128,
    (16, 16384, 8192): ROWS_16,
}


class Rows(list[dict[str, Any]]):
    """Measured rows. Each is kept in a file as soon as it is there."""

    def __init__(self, wanted: str, path: str | None, seconds: float) -> None:
        super().__init__()
        self._wanted, self._path, self.seconds = wanted, path, seconds

    def wants(self, name: str) -> bool:
        """Whether a row is asked for."""
        return self._wanted in name

    def append(self, row: dict[str, Any]) -> None:
        super().append(row)
        if self._path is not None:
            with open(self._path, "w") as file:
                json.dump({"machine": machine(), "rows": list(self)}, file, indent=1)


def rotating(make: Callable[[], Any], bytes_: int) -> Callable[[], Any]:
    """A new copy of the inputs at each call, together more than twice what L2 holds."""
    copies = max(2, min(8, math.ceil(120e6 / bytes_)))
    wheel = itertools.cycle([make() for _ in range(copies)])
    return lambda: next(wheel)


def check(out: Any, a: Any, b: Any, tolerance: float) -> float:
    """Relative error of sampled rows against float64."""
    rows = torch.arange(0, a.shape[0], max(1, a.shape[0] // 64), device="cuda")
    expected = a[rows].double() @ b.double()
    error = ((out[rows].double() - expected).norm() / expected.norm()).item()
    assert error <= tolerance and not out.double().isnan().any(), f"relative error {error:.2e} over {tolerance:.0e}"
    return error


def _row(name: str, flops: float, times: dict[str, Any], error: float) -> dict[str, Any]:
    ours = times["ours"].median
    row: dict[str, Any] = {"work": name, "us": f"{ours * 1e6:.1f}", "TFLOP/s": f"{flops / ours * 1e-12:.0f}"}
    for peer, timing in times.items():
        if peer != "ours":
            row[peer] = f"{flops / timing.median * 1e-12:.0f}"
            row[f"of {peer}"] = f"{timing.median / ours:.3f}"
    return {**row, "error": f"{error:.1e}"}


def bf16(rows: Rows, rounds: int) -> None:
    """bf16 in NN and NT."""
    ratios: list[float] = []
    for (M, N, K), transposed in itertools.product(SHAPES, (False, True)):
        name = f"bf16 {M}x{N}x{K} {'NT' if transposed else 'NN'}"
        if not rows.wants(name):
            continue

        def make(M: int = M, N: int = N, K: int = K, t: bool = transposed) -> Any:
            a = torch.randn(M, K, device="cuda").bfloat16()
            b = torch.randn(N, K, device="cuda").bfloat16().T if t else torch.randn(K, N, device="cuda").bfloat16()
            return a, b

        inputs = rotating(make, 2 * (M * K + N * K))
        out = torch.full((M, N), float("nan"), device="cuda", dtype=torch.bfloat16)
        peer = torch.empty_like(out)
        a, b = inputs()
        kd.library.matmul(a, b, out=out)
        error = check(out, a, b, 4e-3)
        times = interleaved(
            {
                "ours": lambda i=inputs, o=out: kd.library.matmul(*i(), out=o),
                "cublas": lambda i=inputs, o=peer: torch.matmul(*i(), out=o),
            },
            rounds,
        )
        ratios.append(times["cublas"].median / times["ours"].median)
        rows.append(_row(name, 2.0 * M * N * K, times, error))
    if ratios:
        print(f"geometric mean of cuBLAS: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


def fp8(rows: Rows, rounds: int) -> None:
    """e4m3, B contiguous along K."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    out = torch.full((n, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    kd.library.matmul(a, b.T, out=out)
    error = check(out, a.float(), b.T.float(), 3e-2)
    times = interleaved(
        {
            "ours": lambda: kd.library.matmul(a, b.T, out=out),
            "cublas": lambda: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        },
        rounds,
    )
    rows.append(_row(f"e4m3 {n}^3", 2.0 * n**3, times, error))


def int8(rows: Rows, rounds: int) -> None:
    """s8, B contiguous along K."""
    n = 8192
    a, b = (torch.randint(-128, 128, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
    out = torch.zeros((n, n), device="cuda", dtype=torch.int32)
    kd.library.matmul(a, b.T, out=out)
    assert torch.equal(out, torch._int_mm(a, b.T))
    times = interleaved(
        {"ours": lambda: kd.library.matmul(a, b.T, out=out), "cublas": lambda: torch._int_mm(a, b.T)}, rounds
    )
    rows.append(_row(f"s8 {n}^3", 2.0 * n**3, times, 0.0))


def configs(rows: Rows, rounds: int) -> None:
    """Configurations of the bf16 kernel beside each other."""
    for ((M, N, K), listed), transposed in itertools.product(CONFIGS.items(), (False, True)):
        a = torch.randn(M, K, device="cuda").bfloat16()
        b = torch.randn(N, K, device="cuda").bfloat16().T if transposed else torch.randn(K, N, device="cuda").bfloat16()
        out = torch.empty((M, N), device="cuda", dtype=torch.bfloat16)
        peer = torch.empty_like(out)
        for config in listed:
            name = f"{M}x{N}x{K} {'NT' if transposed else 'NN'} {described(config)}"
            if not rows.wants(name):
                continue
            out.fill_(float("nan"))
            kd.library.matmul(a, b, out=out, config=config)
            error = check(out, a, b, 4e-3)
            times = interleaved(
                {
                    "ours": lambda a=a, b=b, o=out, c=config: kd.library.matmul(a, b, out=o, config=c),
                    "cublas": lambda a=a, b=b, o=peer: torch.matmul(a, b, out=o),
                },
                rounds,
            )
            rows.append(_row(name, 2.0 * M * N * K, times, error))


KEEP = 8  # configurations that tuning measures


def tuned(rows: Rows, rounds: int) -> None:
    """The best of all configurations of `configs`, in one run with what tuning chose, and what is chosen untuned."""
    for ((M, N, K), listed), transposed in itertools.product(CONFIGS.items(), (False, True)):
        name = f"tuned {M}x{N}x{K} {'NT' if transposed else 'NN'}"
        if not rows.wants(name):
            continue
        a = torch.randn(M, K, device="cuda").bfloat16()
        b = torch.randn(N, K, device="cuda").bfloat16().T if transposed else torch.randn(K, N, device="cuda").bfloat16()
        out = torch.empty((M, N), device="cuda", dtype=torch.bfloat16)
        options = tuner_options(f"{M}x{N}x{K}", "NT" if transposed else "NN")
        asked = request(a, b, MatmulOptions(), None)
        blocks = target_named(None).limits.multiprocessors
        every = routes(asked.problem, asked.left, asked.right, asked.family, target_named(None))
        table_of = matmul_tuning(options, kd.bfloat16)
        measured = [row for row in table_of.rows if row.seconds is not None]
        assert len(measured) <= KEEP, "more than it may measure"
        plan = plan_by(asked, next(r for _, r in every if choice_of(r) == table_of.best), blocks)
        chosen = plan_by(asked, min(every, key=lambda option: option[0])[1], blocks)
        runs: dict[str, Callable[[], Any]] = {
            "ours": lambda p=plan, a=a, b=b, o=out: p.run(a, [b], [], o, None, None),
            "untuned": lambda p=chosen, a=a, b=b, o=out: p.run(a, [b], [], o, None, None),
        }
        for config in listed:
            runs[described(config)] = functools.partial(kd.library.matmul, a, b, out=out, config=config)
        out.fill_(float("nan"))
        runs["ours"]()
        error = check(out, a, b, 4e-3)
        times = interleaved(runs, rounds)
        best = min((described(config) for config in listed), key=lambda word: times[word].median)
        ours = times["ours"].median
        rows.append(
            {
                "work": name,
                "us": f"{ours * 1e6:.1f}",
                "best of the list": f"{times[best].median * 1e6:.1f}",
                "of the best": f"{times[best].median / ours:.3f}",
                "of untuned": f"{times['untuned'].median / ours:.3f}",
                "measured": len(measured),
                "of": len(table_of.rows),
                "found": f"{table_of.best.kernel} {table_of.best.parts} {described(table_of.best.config)}"
                if table_of.best.kernel == "fast"
                else table_of.best.kernel,
                "best": best,
                "error": f"{error:.1e}",
            }
        )


def tuner_options(sizes: str, layout: str) -> argparse.Namespace:
    """The options of `python -m kernel_dsl tune matmul`, which measures anew."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(["matmul", sizes, "bf16", "--layout", layout, "--keep", str(KEEP), "--again"])


def described(c: MatmulConfig) -> str:
    """A configuration in short."""
    words = f"{c.tile_m}x{c.tile_n}x{c.tile_k} s{c.stages} g{c.group} c{c.cluster}x{c.cluster_n}"
    words += " in turns" if c.ping_pong else ""
    words += " swapped" if c.swapped else ""
    return words + (" weights once" if c.a_hint or c.b_hint else "")


def sustained(rows: Rows, rounds: int) -> None:
    """Products one after another for `--seconds` each, ours and cuBLAS': what heat and power leave of the speed."""
    for n, transposed in itertools.product((4096, 8192), (False, True)):
        a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
        b = b.T if transposed else b
        out = torch.empty((n, n), device="cuda", dtype=torch.bfloat16)
        runs: dict[str, Callable[[], Any]] = {
            "ours": functools.partial(kd.library.matmul, a, b, out=out),
            "cublas": functools.partial(torch.matmul, a, b, out=out),
        }
        batch = max(1, int(0.05 / (2.0 * n**3 / 7e14)))  # a twentieth of a second
        speeds: dict[str, float] = {}
        for peer, run in runs.items():
            name = f"sustained bf16 {n}^3 {'NT' if transposed else 'NN'} {peer}"
            if not rows.wants(name):
                continue
            times, states, begun = list[float](), list[str](), time.perf_counter()
            while time.perf_counter() - begun < rows.seconds:
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(batch):
                    run()
                stop.record()
                if len(times) % 20 == 10:
                    states.append(machine())
                stop.synchronize()
                times.append(start.elapsed_time(stop) * 1e-3 / batch)
            late = sorted(times[len(times) // 2 :])  # the first half warms up
            speeds[peer] = 2.0 * n**3 / late[len(late) // 2] * 1e-12
            row = {"work": name, "TFLOP/s": f"{speeds[peer]:.0f}", "state": states[-1] if states else machine()}
            rows.append({**row, "of cublas": f"{speeds['ours'] / speeds[peer]:.3f}" if "ours" in speeds else ""})


def dynamic(rows: Rows, rounds: int) -> None:
    """Kernels for any M and batch beside those for these sizes."""
    for found in (dynamic_rows.products, dynamic_rows.rows):
        for row in found(rows.wants, rounds):
            rows.append(row)


WORK = {
    "bf16": bf16, "fp8": fp8, "int8": int8, "configs": configs, "tuned": tuned, "sustained": sustained, "dynamic": dynamic,
}  # fmt: skip


def main() -> None:
    """Run the named benchmarks, by default all but `configs`, `tuned`, `sustained` and `dynamic`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WORK, []], default=[])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--rows", default="", help="only rows whose name has this text")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row of `sustained`")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = Rows(args.rows, args.json, args.seconds)
    print(machine())
    for name in args.names or ["bf16", "fp8", "int8"]:
        WORK[name](rows, args.rounds)
        for keys in dict.fromkeys(tuple(row) for row in rows):  # rows of one kind make a table
            table([row for row in rows if tuple(row) == keys])
    print(machine())


if __name__ == "__main__":
    main()
