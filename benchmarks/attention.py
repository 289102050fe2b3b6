"""Attention beside torch's: `python -m benchmarks.attention [WORD ...] [options]`, of the words below.

bf16, random normal data, launches interleaved. Every result is checked against float64 on sampled queries and keys before
it is timed. Causal work counts half the products, and gradients two and a half times those of the forward.

* `forward`, `backward`: the fixed rows, beside cuDNN. Both where nothing is named.
* `configs`, `configs backward`: a list of configurations of each head dimension in place of the choice.
* `options`, with the words above: rows with options, beside the kernel without (`benchmarks/attention_options.py`).
* `decode`: a few queries over long caches (`benchmarks/attention_decode.py`).
* `few`: few queries, or few over many keys, and their gradients, beside the best of torch's backends.
* `dynamic`: the kernel for any lengths beside those for these (`benchmarks/dynamic_rows.py`).
* `random`: shapes, strides and options at random until `--seconds` are over, beside the best of torch's backends.

`--rows TEXT` takes the rows whose name holds TEXT (several: any of them); `--seconds S` is for a row's timing, and for all
of `random`; `--json FILE` is written after each row; `--seed N` is that of `random`. A row that fails is told, the others go on,
and the script ends with 1.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, AttentionConfig

from . import attention_decode, attention_options, dynamic_rows
from .attention_work import Work, bias_of, check_backward, check_forward, laid, tensor
from .harness import attempted, interleaved, machine

Run = Callable[[], Any]
CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
EFFICIENT = SDPBackend.EFFICIENT_ATTENTION


def plain(
    batch: int, heads: int, length: int, dim: int, causal: bool, backward: bool = False, kv_heads: int = 0
) -> Work:
    return Work(batch, heads, kv_heads or heads, length, length, dim, causal, backward)


WHAT = ("forward", "backward", "configs", "options", "decode", "few", "dynamic", "random")
BOTH = (False, True)
FORWARD = [
    plain(*shape, causal)
    for shape in ((1, 16, 16384, 128), (4, 16, 4096, 128), (1, 16, 16384, 64), (4, 16, 4096, 64), (1, 16, 16384, 256),
                  (4, 16, 4096, 256))
    for causal in BOTH
]  # fmt: skip
BACKWARD = [
    *(plain(1, 16, 16384, 128, causal, True) for causal in BOTH),
    *(plain(4, 16, 4096, 128, causal, True) for causal in BOTH),
    *(plain(1, 64, 8192, 128, causal, True, 8) for causal in BOTH),
    *(plain(1, 32, 16384, 64, causal, True) for causal in BOTH),
    *(plain(1, 8, 16384, 256, causal, True) for causal in BOTH),
    Work(1, 16, 16, 16384, 16384, 128, True, True, deterministic=True),
]

OVER_MANY = ((1, 8, 64, 16384), (1, 8, 1, 16384), (4, 8, 16, 4096), (1, 8, 400, 16384), (8, 16, 64, 1024))
SHORT = ((32, 16, 64, False), (32, 16, 128, True), (16, 16, 197, False), (16, 16, 256, True), (8, 16, 400, False))
FEW = [
    *(Work(b, h, h, q, k, d, False, value_dim=dv)
      for d, dv in ((64, 0), (80, 0), (128, 0), (200, 0), (256, 0), (192, 128)) for b, h, q, k in OVER_MANY),
    *(Work(b, h, h, q, k, 64, False, bias="heads") for b, h, q, k in OVER_MANY),
    *(Work(b, h, h, n, n, d, causal, back)
      for back in BOTH for d in (64, 80, 128, 160, 256) for b, h, n, causal in SHORT),
    *(Work(b, 16, 16, q, k, d, False, True, value_dim=dv)
      for d, dv in ((32, 0), (64, 0), (80, 0), (128, 0), (192, 0), (256, 0), (192, 128))
      for b, q, k in ((8, 64, 1024), (1, 64, 16384), (4, 128, 4096), (8, 197, 1024))),
    Work(4, 8, 8, 64, 333, 80, False, True),
    *(Work(b, h, g, n, n, d, causal, True)
      for b, h, g, n, d, causal in ((32, 16, 4, 1000, 128, True), (32, 8, 4, 1024, 128, True), (8, 16, 2, 2048, 128, True),
                                    (2, 8, 1, 197, 128, True), (4, 16, 4, 197, 64, False), (8, 1, 1, 256, 80, False),
                                    (1, 8, 4, 197, 256, True), (1, 16, 2, 1024, 64, True), (4, 8, 1, 400, 128, False))),
    Work(2, 32, 4, 4096, 4096, 128, True, True, deterministic=True),
    *(Work(b, h, g, n, n, d, True, True, value_dim=dv)
      for b, h, g, n, d, dv in ((2, 64, 4, 1500, 192, 128), (3, 128, 8, 822, 192, 128), (4, 64, 8, 700, 192, 128),
                                (4, 64, 8, 1000, 192, 0), (4, 64, 8, 1000, 256, 0), (4, 32, 8, 1200, 192, 128))),
    *(Work(4, 32, 4, 8192, k, d, False, True) for d in (64, 80, 128, 192, 256) for k in (64, 128, 256)),
]  # fmt: skip

FORWARD_CONFIGS = {
    64: [
        AttentionConfig(2, 192, 2, turns=True),
        AttentionConfig(3, 128, 3),
        AttentionConfig(3, 128, 3, turns=True),
        AttentionConfig(4, 64, 4),
    ],
    128: [
        AttentionConfig(2, 128, 2),
        AttentionConfig(2, 160, 2),
        AttentionConfig(3, 80, 2),
        AttentionConfig(3, 80, 2, turns=True),
        AttentionConfig(3, 80, 3),
    ],
    256: [AttentionConfig(2, 64, 2), AttentionConfig(2, 80, 2)],
}
_Backward = AttentionBackwardConfig
BACKWARD_CONFIGS = {
    64: [_Backward(128), _Backward(128, apart=True), _Backward(128, turns=True)],
    128: [
        _Backward(64),
        _Backward(64, turns=True),
        _Backward(64, stages=3, dout_stages=3),
        _Backward(64, stages=3, dout_stages=3, turns=True),
        _Backward(64, stages=3, dout_stages=3, dq_parts=2, dq_slots=2),
        _Backward(80),
        _Backward(80, turns=True),
        _Backward(80, apart=True),
    ],
    256: [
        _Backward(64, dout_stages=1, dq_parts=2),
        _Backward(64, dout_stages=1, dq_parts=4, dq_slots=2),
        _Backward(64, dout_stages=1, dq_parts=4, dq_slots=3),
    ],
}


# --- what is timed --------------------------------------------------------------------------------


def torch_run(work: Work, backend: Any, q: Any, k: Any, v: Any, dout: Any, bias: Any = None) -> Run:
    """torch's attention, or its gradients."""

    def forward(*inputs: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                *inputs, bias, is_causal=work.causal, enable_gqa=work.heads != work.kv_heads
            )

    if not work.backward:
        return lambda: forward(q, k, v)
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = forward(*inputs)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def forward_run(work: Work, config: Any, q: Any, k: Any, v: Any, result: Any, bias: Any = None) -> Run:
    options = {"layout": layout_of(work), "causal": work.causal, "bias": bias, "config": config}
    q, k, v, result = (laid(work, x) for x in (q, k, v, result))
    return lambda: kd.library.attention(q, k, v, **options, out=result)


def layout_of(work: Work) -> str:
    return "bshd" if work.memory == "bshd" else "bhsd"


def gradients_run(work: Work, config: Any, arrays: tuple[Any, ...]) -> Run:
    options = {"causal": work.causal, "deterministic": work.deterministic, "config": config}
    given = [laid(work, x) for x in arrays]
    return lambda: kd.library.attention_backward(*given, **options, layout=layout_of(work))


def variants_of(work: Work, configs: list[Any], backends: dict[str, Any]) -> tuple[dict[str, Run], float]:
    """What to time, checked, and the largest error of ours."""
    q = tensor(work, work.heads, work.queries)
    k, v = (tensor(work, work.kv_heads, work.keys, dim) for dim in (work.dim, work.v_dim))
    dout, bias = tensor(work, work.heads, work.queries, work.v_dim), bias_of(work)
    given, options = [laid(work, x) for x in (q, k, v)], {"causal": work.causal, "bias": bias, "return_lse": True}
    out, lse = kd.library.attention(*given, **options, layout=layout_of(work))
    out = laid(work, out)
    error = check_forward(work, out, q, k, v, bias)
    variants: dict[str, Run] = {}
    for config in configs:
        if work.backward:
            run = gradients_run(work, config, (dout, q, k, v, out, lse))
            first = run()
            found = [laid(work, x) for x in first]
            error = max(error, check_backward(work, found, dout, q, k, v, out, lse))
            again = [run() for _ in range(2)] if work.deterministic else []
            assert all(torch.equal(a, b) for other in again for a, b in zip(first, other, strict=True)), "other bits"
        else:
            result = torch.full_like(dout, float("nan"))
            run = forward_run(work, config, q, k, v, result, bias)
            run()
            error = max(error, check_forward(work, result, q, k, v, bias))
        variants["ours" if config is None else described(config)] = run
    torch.use_deterministic_algorithms(work.deterministic, warn_only=True)
    for name, backend in backends.items():
        try:
            run = torch_run(work, backend, q, k, v, dout, bias)
            run()
            variants[name] = run
        except RuntimeError as wrong:
            print(f"  {name}: {str(wrong).splitlines()[0][:100]}")
    return variants, error


def described(config: Any) -> str:
    """A configuration in short: what differs from the class' defaults, its first field always."""
    fields = config.__dataclass_fields__
    words = [
        f"{n}={getattr(config, n)}" for n, f in fields.items() if getattr(config, n) != f.default or n[:5] == "block"
    ]
    return " ".join(words)


def timed(work: Work, configs: list[Any], backends: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each configuration."""
    variants, error = variants_of(work, configs, backends)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for run in variants.values():
        run()
    torch.cuda.synchronize()
    once = time.perf_counter() - start + 1e-4 * len(variants)  # L2 is cleared before each
    times = interleaved(variants, min(max(int(seconds / once), 3), 50), 1)
    torch.use_deterministic_algorithms(False)
    peers = {name: times[name].median for name in backends if name in times}
    best = min(peers.values(), default=math.nan)
    for name, t in times.items():
        if name in backends:
            continue
        yield {
            "work": work.name,
            "config": name,
            "us": round(t.median * 1e6, 1),
            "spread": round((t.high - t.low) / t.median, 3),
            "TFLOP/s": round(work.flops / t.median * 1e-12),
            **{f"{peer} TFLOP/s": round(work.flops / seconds * 1e-12) for peer, seconds in peers.items()},
            "of torch": round(best / t.median, 3),
            "error": f"{error:.1e}",
        }


# --- rows -----------------------------------------------------------------------------------------


def random_works(seed: int) -> Iterator[Work]:
    """Shapes, strides and options without end."""
    rng = random.Random(seed)
    while True:
        kv_heads, group = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 1, 1, 2, 4, 8))
        queries = rng.choice((64, 128, 197, 256, 400, 512, 1000, 1024, 2048, 4096, 8192))
        keys = queries if rng.random() < 0.6 else rng.choice((128, 333, 1024, 4096, 16384))
        batch = rng.choice((1, 2, 4, 8, 32, 64))
        pairs = batch * kv_heads * group * queries * keys
        backward, bias = rng.random() < 0.5, ""
        causal = queries == keys and rng.random() < 0.5
        dim, value_dim = rng.choice((64, 128, 128, 192, 256)), 0
        if rng.random() < 0.3:  # those that few kernels are written for
            dim, value_dim = rng.choice((*((8 * n, 0) for n in range(2, 32)), (192, 128)))
        if not causal and not backward and keys % 8 == 0 and rng.random() < 0.3:
            bias = rng.choice(("full", "heads"))
        memory = rng.choice(("strided", "packed", "bshd")) if rng.random() < 0.3 else ""
        if pairs <= (2**31 if bias else 2**33):
            shape = batch, kv_heads * group, kv_heads, queries, keys, dim
            yield Work(*shape, causal, backward, memory=memory, value_dim=value_dim, bias=bias)


def jobs(args: Any) -> Iterator[tuple[Work, list[Any], dict[str, Any]]]:
    """(work, configurations, torch's backends) of what is asked for."""
    what = set(args.what)
    every = {"cudnn": CUDNN, "flash": FLASH, "efficient": EFFICIENT}
    for work in chain(FEW if "few" in what else [], random_works(args.seed) if "random" in what else []):
        yield work, [None], every
    forward, backward = (word in what or not what - {"configs"} for word in ("forward", "backward"))
    if "configs" in what:
        forward = forward and "backward" not in what
        backward = "backward" in what
    for wanted, works, configs in ((forward, FORWARD, FORWARD_CONFIGS), (backward, BACKWARD, BACKWARD_CONFIGS)):
        for work in works if wanted else []:
            if "configs" not in what:
                yield work, [None], {"cudnn": CUDNN}
            elif work.queries == 16384 and not work.deterministic:
                yield work, configs[work.dim], {"cudnn": CUDNN}


def note(rows: list[dict[str, Any]], row: dict[str, Any], path: str | None) -> None:
    """Add a row to the others, print it, and write all to the file at `path`."""
    rows.append(row)
    print("  ".join(f"{k} {v}" if k != "work" else f"{v:44}" for k, v in row.items()), flush=True)
    if path:
        with open(path, "w") as file:
            json.dump({"machine": machine(), "rows": rows}, file, indent=1)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="|".join(WHAT))
    parser.add_argument("--rows", action="append")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--json")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if set(args.what) - set(WHAT):
        parser.error(f"{' '.join(args.what)}: take from {', '.join(WHAT)}")
    print(machine(), flush=True)
    rows: list[dict[str, Any]] = []
    end = time.perf_counter() + (args.seconds or 60) if "random" in args.what else math.inf
    if "decode" in args.what:
        for row in attention_decode.rows(args.rows, args.seconds or 1.0):
            note(rows, row, args.json)
    if "dynamic" in args.what:

        def wants(name: str) -> bool:
            return not args.rows or any(text in name for text in args.rows)

        made = (rows_of(wants, 25) for rows_of in (dynamic_rows.attention, dynamic_rows.paged, dynamic_rows.backward))
        for row in chain.from_iterable(made):
            note(rows, row, args.json)
    if "options" in args.what:
        for row in attention_options.rows(args.rows, args.seconds or 1.0, set(args.what)):
            note(rows, row, args.json)
    for work, configs, backends in [] if "options" in args.what else jobs(args):
        if time.perf_counter() > end:
            break
        if args.rows and not any(text in work.name for text in args.rows):
            continue
        seconds = 0.2 if "random" in args.what else args.seconds or (0.1 if "few" in args.what else 1.0)
        for row in attempted(work.name, functools.partial(timed, work, configs, backends, seconds)):
            note(rows, row, args.json)
    compared = [row for row in rows if "of torch" in row]
    if "random" in args.what and compared:
        worst = sorted(compared, key=lambda r: r["of torch"])[:8]
        print("\nweakest:", *(f"{r['of torch']} {r['work']}" for r in worst), sep="\n  ")
    print(machine(), flush=True)
    if any("failed" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
