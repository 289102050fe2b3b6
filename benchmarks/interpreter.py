"""The interpreter beside its peers, on the CPU: `python -m benchmarks.interpreter [names] [--json FILE] [--rounds N]`.

Float16 products of 512^3 and 1024^3 by TMA and wgmma, attention of one head with 1024 queries and keys of 64, softmax and layer
norm of 128 rows, and an addition stand beside the same in Pallas' GPU interpret mode. Softmax and layer norm of 4096 rows of
1024 float32 stand beside `TRITON_INTERPRET=1` of the same algorithm. Rounds are interleaved; a row gives the median and the
spread in seconds, and the median of the seconds of the processors, with hazards looked for and without. A peer that is not
installed is left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd

os.environ.setdefault("TRITON_INTERPRET", "1")
WITH, WITHOUT = kd.InterpretParams(), kd.InterpretParams(detect_hazards=False)
LATE = kd.InterpretParams(schedule="late")
EPS = 1e-5  # of layer norms
Variants = dict[str, Callable[[], Any]]


def add_kernel() -> Any:
    @kd.kernel(out_type=lambda x, y: x, grid=lambda x, y: (x.shape[0] // 1024,), grid_names=("block",))
    def add(x: Any, y: Any, out: Any) -> None:
        part = kd.ds(kd.axis_index("block") * 1024, 1024)
        out[part] = x[part] + y[part]

    return add


def softmax_kernel() -> Any:
    @kd.kernel(out_type=lambda x: x, grid=lambda x: (x.shape[0],), grid_names=("row",))
    def softmax(x: Any, out: Any) -> None:
        row = kd.axis_index("row")
        value = x[row]
        shifted = kd.exp(value - kd.max(value, axis=0))
        out[row] = shifted / kd.sum(shifted, axis=0)

    return softmax


def layer_norm_kernel() -> Any:
    @kd.kernel(out_type=lambda x, weight, bias: x, grid=lambda x, weight, bias: (x.shape[0],), grid_names=("row",))
    def layer_norm(x: Any, weight: Any, bias: Any, out: Any) -> None:
        row = kd.axis_index("row")
        value = x[row]
        columns = x.shape[1]
        centred = value - kd.sum(value, axis=0) / columns
        scale = kd.rsqrt(kd.sum(centred * centred, axis=0) / columns + EPS)
        out[row] = centred * scale * weight[...] + bias[...]

    return layer_norm


def ours(kernel: Callable[..., Any], args: tuple[Any, ...], expected: Any, tolerance: float) -> Variants:
    """Our kernel with hazards and without, checked once."""
    error = np.abs(np.asarray(kernel(*args, interpret=WITH), np.float64) - expected).max()
    assert error <= tolerance, error
    return {
        "ours": lambda: kernel(*args, interpret=WITH),
        "ours, late": lambda: kernel(*args, interpret=LATE),
        "ours, no hazards": lambda: kernel(*args, interpret=WITHOUT),
    }


def triton_rows(name: str, x: Any, vectors: tuple[Any, ...], options: tuple[float, ...], exact: Any) -> Variants:
    """The same algorithm in Triton, a program a row: `benchmarks.triton_<name>`, checked once."""
    try:
        torch, triton = (importlib.import_module(m) for m in ("torch", "triton"))
    except ImportError:
        return {}
    kernel = getattr(importlib.import_module(f"benchmarks.triton_{name}"), name)
    given = [torch.from_numpy(a) for a in (x, *vectors)]
    out = torch.empty_like(given[0])

    def run() -> None:
        kernel[(x.shape[0],)](*given, out, x.shape[1], *options, BLOCK=triton.next_power_of_2(x.shape[1]))

    run()
    assert np.abs(out.numpy() - exact).max() < 1e-5
    return {"triton": run}


def pallas(module: str, function: str, args: tuple[Any, ...], exact: Any, tolerance: float) -> Variants:
    """The same in Pallas' GPU interpret mode, checked once."""
    try:
        found = importlib.import_module(f"benchmarks.{module}")
    except ImportError:
        return {}
    run = getattr(found, function)(*args)
    error = np.abs(np.asarray(run(), np.float64) - exact).max()
    assert error <= tolerance, error
    return {"pallas": run}


def reference_softmax(x: Any) -> Any:
    shifted = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def reference_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x.astype(np.float64) - x.mean(1, np.float64, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS) * weight + bias


def measure(variants: Variants, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each variant, one after the other in every round; `cpu` of all threads."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    used: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    for _ in range(rounds):
        for name, run in variants.items():
            start, before = time.perf_counter(), time.process_time()
            run()
            times[name].append(time.perf_counter() - start)
            used[name].append(time.process_time() - before)
    return {
        name: {"median": statistics.median(t), "low": min(t), "high": max(t), "cpu": statistics.median(used[name])}
        for name, t in times.items()
    }


def works() -> dict[str, Callable[[], Variants]]:
    rng = np.random.default_rng(0)
    q, k, head = (rng.standard_normal((1, 1, 1024, 64)).astype(np.float16) for _ in range(3))
    x = rng.standard_normal((4096, 1024), np.float32)
    weight, bias = rng.standard_normal((2, 1024), np.float32)
    u, v = rng.standard_normal((2, 1 << 22), np.float32)
    few, few_u, few_v = x[:128], u[: 1 << 18], v[: 1 << 18]

    def matmul(size: int) -> Variants:
        a, b = rng.standard_normal((2, size, size)).astype(np.float16)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        return {
            **ours(kd.library.matmul, (a, b), exact, 0.2),
            **pallas("pallas_matmul", "matmul", (a, b), exact, 0.2),
        }

    def attention() -> Variants:
        scores = q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T / 8
        weights = np.exp(scores - scores.max(1, keepdims=True))
        exact = weights / weights.sum(1, keepdims=True) @ head[0, 0].astype(np.float64)
        return {
            **ours(kd.library.attention, (q, k, head), exact[None, None], 0.01),
            **pallas("pallas_attention", "attention", (q[0, 0], k[0, 0], head[0, 0]), exact, 0.01),
        }

    def softmax(x: Any) -> Variants:
        return ours(softmax_kernel(), (x,), reference_softmax(x), 1e-5)

    def layer_norm(x: Any) -> Variants:
        return ours(layer_norm_kernel(), (x, weight, bias), reference_layer_norm(x, weight, bias), 1e-5)

    def add(u: Any, v: Any) -> Variants:
        return ours(add_kernel(), (u, v), u.astype(np.float64) + v, 1e-5)

    return {
        "matmul 512^3 float16": lambda: matmul(512),
        "matmul 1024^3 float16": lambda: matmul(1024),
        "attention 1024 x 64": attention,
        "softmax 4096 x 1024": lambda: {
            **softmax(x),
            **triton_rows("softmax", x, (), (), reference_softmax(x)),
        },
        "layer norm 4096 x 1024": lambda: {
            **layer_norm(x),
            **triton_rows("layer_norm", x, (weight, bias), (EPS,), reference_layer_norm(x, weight, bias)),
        },
        "softmax 128 x 1024": lambda: {
            **softmax(few),
            **pallas("pallas_rows", "softmax", (few,), reference_softmax(few), 1e-5),
        },
        "layer norm 128 x 1024": lambda: {
            **layer_norm(few),
            **pallas(
                "pallas_rows", "layer_norm", (few, weight, bias, EPS), reference_layer_norm(few, weight, bias), 1e-5
            ),
        },
        "add 2^18": lambda: {
            **add(few_u, few_v),
            **pallas("pallas_rows", "add", (few_u, few_v), few_u.astype(np.float64) + few_v, 1e-5),
        },
        "add 2^22": lambda: add(u, v),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of rows' names; all rows without one")
    parser.add_argument("--json", default="")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, make in works().items():
        if options.names and not name.startswith(tuple(options.names)):
            continue
        found = results[name] = measure(make(), options.rounds)
        for variant, t in found.items():
            spread = f"{t['low']:.3f} to {t['high']:.3f}"
            ratio = t["median"] / found["ours"]["median"]
            print(
                f"{name:22} {variant:18} {t['median']:8.3f} s  ({spread})  cpu {t['cpu']:8.3f} s  {ratio:6.2f} of ours"
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
