"""Attention with options beside torch's attention, where that has them, and beside our own kernel without options.

python -m benchmarks.attention options [forward] [backward] [configs] [--rows TEXT] [--seconds S] [--json FILE]

With `configs` the configurations that a row lists are measured beside the choice. Each row is checked against float64 first:
the last key head, whole, or the last sequence. "of plain" compares TFLOP/s of the pairs that see each other with those of the
kernel without options at the same head dimension, full or causal. "per tile" compares those of all pairs in the tiles that
both kernels compute, which hold a pair that sees each other. Both are of runs in turn, which share a clock rate. "alone" is
"of plain" when each runs alone for a while: at the power limit the GPU then has another clock rate for each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, AttentionConfig

from .attention_decode import paged
from .attention_tiles import pairs_in_tiles, tile_of
from .harness import attempted, interleaved

DOCUMENT = 1024
LENGTHS = (512, 1024, 2048, 4096, 8192, 512, 3000, 5000)
LARGEST = 1.2e-2  # relative error in the norm


def alibi(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A slope for each head."""
    return x - (i - j) * ((h + 1) * 0.001)


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Of 1024 tokens each."""
    return i // DOCUMENT == j // DOCUMENT


def causal_documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    """The same, and no key after its query."""
    return (i // DOCUMENT == j // DOCUMENT) & (i >= j)


@dataclass(frozen=True)
class Row:
    """One problem: (batch, heads, key heads, queries, keys, dim, dim of values) and options; ragged where there are `lengths`."""

    name: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    dtype: Any = torch.bfloat16
    configs: tuple[Any, ...] = ()
    page: int = 0


_Forward, _Backward = AttentionConfig, AttentionBackwardConfig
S = 8192
ROWS = [
    Row("window 1024", (1, 64, 8, S, S, 64, 64), {"causal": True, "window": 1024}),
    Row("softcap", (1, 32, 8, S, S, 128, 128), {"causal": True, "softcap": 30.0},
        configs=(*(_Forward(3, 80, 3, polynomial=n) for n in (5, 3, 2)), _Forward(3, 80, 3, True, 3),
                 _Forward(2, 128, 2, True), _Forward(2, 128, 2, True, 3))),
    Row("alibi", (1, 32, 8, S, S, 128, 128), {"causal": True, "score_mod": alibi},
        configs=(_Forward(2, 128, 2), _Forward(3, 64, 3), _Forward(2, 128, 2, True, 5))),
    Row("alibi by array", (1, 32, 8, S, S, 128, 128), {"causal": True, "score_mod": "array"}),
    Row("documents", (1, 32, 8, S, S, 128, 128), {"mask_mod": documents},
        configs=(_Forward(2, 128, 2, True), _Forward(3, 80, 3), _Forward(3, 64, 3))),
    Row("documents by array", (1, 32, 8, S, S, 128, 128), {"mask_mod": "array"}),
    Row("causal documents", (1, 32, 8, S, S, 128, 128), {"mask_mod": causal_documents}),
    Row("causal documents by array", (1, 32, 8, S, S, 128, 128), {"mask_mod": "causal array"}),
    Row("bottom right", (1, 32, 8, 2048, S, 128, 128), {"causal": "bottom_right"}),
    Row("bias", (1, 16, 16, 4096, 4096, 128, 128), {"bias": "full"},
        configs=(_Forward(2, 128, 2, True), _Forward(2, 96, 2), _Forward(3, 64, 2))),
    Row("sinks window 128", (1, 64, 8, S, S, 64, 64), {"causal": True, "window": 128, "sinks": "heads"}),
    Row("ragged", (8, 32, 8, sum(LENGTHS), sum(LENGTHS), 128, 128), {"causal": True}, LENGTHS),
    Row("d72", (1, 16, 16, 4096, 4096, 72, 72), {"causal": True}),
    Row("d80", (1, 16, 16, 4096, 4096, 80, 80), {"causal": True}),
    Row("d96", (1, 16, 16, 4096, 4096, 96, 96), {"causal": True}),
    Row("d192/128", (1, 16, 16, S, S, 192, 128), {"causal": True},
        configs=(_Backward(64, stages=3, dout_stages=3), _Backward(64, dq_parts=2, dq_slots=2), _Backward(64, dq_parts=3))),
    Row("d192/128 full", (4, 16, 16, 4096, 4096, 192, 128), {},
        configs=(_Backward(64, stages=3, dout_stages=3), _Backward(64, dq_parts=2, dq_slots=2), _Backward(64, dq_parts=3))),
    *(Row(f"pages of {n}", (4, 32, 8, 2048, 4096, 128, 128), {"causal": "bottom_right"}, page=n) for n in (64, 16, 1)),
    Row("bshd", (4, 16, 16, 4096, 4096, 128, 128), {"layout": "bshd"}),
    Row("e4m3", (1, 16, 16, 16384, 16384, 128, 128), {}, (), torch.float8_e4m3fn),
]  # fmt: skip


def with_arrays(row: Row) -> Row:
    """The row with functions that close over arrays of the GPU where it says so."""
    options = dict(row.options)
    if options.get("score_mod") == "array":
        slopes = torch.arange(1, row.shape[1] + 1, device="cuda") * 0.001
        options["score_mod"] = lambda x, b, h, i, j: x - (i - j) * slopes[h]
    numbers = (torch.arange(row.shape[4], device="cuda") // DOCUMENT).int()
    if options.get("mask_mod") == "array":
        options["mask_mod"] = lambda b, h, i, j: numbers[i] == numbers[j]
    if options.get("mask_mod") == "causal array":
        options["mask_mod"] = lambda b, h, i, j: (numbers[i] == numbers[j]) & (i >= j)
    return replace(row, options=options)


# --- the reference --------------------------------------------------------------------------------


def visible(row: Row, queries: int, keys: int) -> Any:
    """Which queries see which keys."""
    i, j = torch.arange(queries, device="cuda")[:, None], torch.arange(keys, device="cuda")[None]
    causal, window = row.options.get("causal"), row.options.get("window")
    at = i + (keys - queries if causal == "bottom_right" else 0)
    mask = (j <= at) if causal else torch.ones_like(j <= at)
    if window:
        mask = mask & (at - j < window) & (causal is not None or j - at < window)
    if "mask_mod" in row.options:
        mask = mask & row.options["mask_mod"](0, 0, i, j)
    return mask


def reference(row: Row, head: int, q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> Any:
    """The output of one head in float64, all (length, dim)."""
    i, j = torch.arange(len(q), device="cuda")[:, None], torch.arange(len(k), device="cuda")[None]
    x = q @ k.T / math.sqrt(row.shape[5])
    if "softcap" in row.options:
        x = row.options["softcap"] * torch.tanh(x / row.options["softcap"])
    if bias is not None:
        x = x + bias
    if "score_mod" in row.options:
        x = row.options["score_mod"](x, 0, head, i, j)
    x = x.masked_fill(~visible(row, len(q), len(k)), -math.inf)
    if sinks is not None:
        x = torch.cat([x, sinks[head].double().expand(len(q), 1)], 1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    return torch.softmax(x, 1) @ v


def heads_of(row: Row, x: Any, head: int) -> Any:
    """The last sequence's rows of a head in float64."""
    if row.lengths:
        return x[-row.lengths[-1] :, head].double()
    return (x[-1, :, head] if row.options.get("layout") == "bshd" else x[-1, head]).double()


def check(row: Row, arrays: dict[str, Any], out: Any, grads: Any) -> float:
    """The largest relative error of the last key head. Raises AssertionError beyond `LARGEST`."""
    heads, kv_heads = row.shape[1:3]
    group, bias = heads // kv_heads, arrays.get("bias")
    k, v = (heads_of(row, arrays[name], kv_heads - 1).requires_grad_() for name in "kv")
    errors: list[float] = []

    def compare(got: Any, expected: Any) -> None:
        errors.append(((got - expected).norm() / expected.norm()).item())
        assert errors[-1] < LARGEST, f"{row.name}: {errors}"

    for head in range(heads - group, heads):
        q = heads_of(row, arrays["q"], head).requires_grad_()
        expected = reference(row, head, q, k, v, None if bias is None else bias[-1, head].double(), arrays.get("sinks"))
        compare(heads_of(row, out, head), expected.detach())
        if grads is not None:
            expected.backward(heads_of(row, arrays["dout"], head))
            compare(heads_of(row, grads[0], head), q.grad)
    for got, x in zip(grads[1:3] if grads is not None else (), (k, v), strict=False):
        compare(heads_of(row, got, kv_heads - 1), x.grad)
    return max(errors)


# --- what is timed --------------------------------------------------------------------------------


def made(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, options of a call)."""
    batch, heads, kv_heads, queries, keys, dim, v_dim = row.shape

    def array(h: int, length: int, d: int) -> Any:
        shape = (length, h, d) if row.lengths else (batch, length, h, d)
        x = torch.randn(shape, device="cuda").to(row.dtype)
        return x if row.lengths or row.options.get("layout") == "bshd" else x.transpose(1, 2).contiguous()

    arrays = {"q": array(heads, queries, dim), "k": array(kv_heads, keys, dim), "v": array(kv_heads, keys, v_dim)}
    arrays["dout"] = array(heads, queries, v_dim)
    options = dict(row.options)
    if "bias" in options:
        options["bias"] = arrays["bias"] = torch.randn(batch, heads, queries, keys, device="cuda").bfloat16()
    if "sinks" in options:
        options["sinks"] = arrays["sinks"] = torch.randn(heads, device="cuda")
    if row.page:
        count = row.shape[4] // row.page
        options["page_table"] = torch.randperm(batch * count, device="cuda").int().reshape(batch, count)
    if row.lengths:
        ends = torch.tensor([0, *row.lengths], device="cuda").cumsum(0).int()
        options["q_seqlens"] = options["kv_seqlens"] = ends
    return arrays, options


def pairs_of(row: Row) -> float:
    """Pairs that see each other, of a head of all batches."""
    if row.lengths:
        return sum(float(visible(row, n, n).sum()) for n in row.lengths)
    return row.shape[0] * float(visible(row, *row.shape[3:5]).sum())


def pairs_computed(row: Row, tile: tuple[int, int]) -> float:
    """Pairs in the tiles that hold one that sees each other, of a head of all batches."""
    if row.lengths:
        return sum(pairs_in_tiles(visible(row, n, n), tile) for n in row.lengths)
    return row.shape[0] * pairs_in_tiles(visible(row, *row.shape[3:5]), tile)


def plain_run(row: Row, backward: bool) -> tuple[Callable[[], Any], float, float]:
    """(our kernel without options, at the same size but for what is none of its own; its operations; the pairs in its tiles
    for each pair that sees each other).
    """
    _, heads, kv_heads, _, _, dim, _ = row.shape
    dim, length = next(n for n in (64, 128, 192, 256) if n >= dim), 8192
    q, dout = (torch.randn(1, heads, length, dim, device="cuda").bfloat16() for _ in range(2))
    k, v = (torch.randn(1, kv_heads, length, dim, device="cuda").bfloat16() for _ in range(2))
    causal = bool(row.options.get("causal"))
    flops = 4.0 * heads * length * length * dim * (0.5 if causal else 1) * (2.5 if backward else 1)
    seen = visible(Row("", row.shape, {"causal": causal}), length, length)
    tiles = pairs_in_tiles(seen, tile_of(q, k, v, {"causal": causal}, backward)) / float(seen.sum())
    if not backward:
        return (lambda: kd.library.attention(q, k, v, causal=causal)), flops, tiles
    out, lse = kd.library.attention(q, k, v, causal=causal, return_lse=True)
    return (lambda: kd.library.attention_backward(dout, q, k, v, out, lse, causal=causal)), flops, tiles


def torch_run(row: Row, backend: Any, arrays: dict[str, Any], backward: bool) -> Callable[[], Any] | None:
    """torch's attention, where it has the options."""
    if (
        set(row.options) - {"causal", "layout"}
        or row.lengths
        or row.page
        or row.options.get("causal") == "bottom_right"
    ):
        return None
    if row.dtype != torch.bfloat16:
        return None
    swapped = row.options.get("layout") == "bshd"
    q, k, v, dout = (
        (x.transpose(1, 2) if swapped else x).detach() for x in (arrays[n] for n in ("q", "k", "v", "dout"))
    )
    inputs = [x.requires_grad_(backward) for x in (q, k, v)]

    def forward() -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                *inputs, is_causal=bool(row.options.get("causal")), enable_gqa=row.shape[1] != row.shape[2]
            )

    try:
        out = forward()
        if not backward:
            return forward
        torch.autograd.grad(out, inputs, dout, retain_graph=True)
        return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)
    except RuntimeError:
        return None


def alone(run: Callable[[], Any], seconds: float = 0.3) -> float:
    """Seconds of a call of which many follow one another, for so long that the clock rate settles."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def each(count: int) -> float:
        start.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3 / count

    return each(max(int(seconds / each(3)), 3))


def timed(row: Row, backward: bool, seconds: float, configs: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
    """A row, checked and measured: with the configuration that is chosen, and with others."""
    row = with_arrays(row)
    arrays, options = made(row)
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    if row.page:
        k, v = (paged(x, row.page, options["page_table"]) for x in (k, v))
    runs: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for config in (None, *configs):
        name = "ours" if config is None else str(config)

        def forward(config: Any = None if backward else config, **more: Any) -> Any:
            return kd.library.attention(q, k, v, **options, config=config, **more)

        out, lse = forward(return_lse=True)
        runs[name], grads = forward, None
        if backward:

            def gradients(config: Any = config, out: Any = out, lse: Any = lse) -> Any:
                return kd.library.attention_backward(dout, q, k, v, out, lse, **options, config=config)

            runs[name], grads = gradients, gradients()
        errors[name] = check(row, arrays, out, grads)
    pairs = pairs_of(row)
    flops = 2.0 * row.shape[1] * pairs * sum(row.shape[5:]) * (2.5 if backward else 1)
    runs["plain"], plain_flops, plain_tiles = plain_run(row, backward)
    tiles: dict[str, float] = {}  # pairs that are computed for each that sees each other
    for config in (None, *configs):
        tile = tile_of(q, k, v, options, backward, config)
        tiles["ours" if config is None else str(config)] = pairs_computed(row, tile) / pairs
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        run = torch_run(row, backend, arrays, backward)
        if run is not None:
            runs[name] = run
    torch.cuda.synchronize()
    start = time.perf_counter()
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    once = time.perf_counter() - start + 1e-4 * len(runs)
    times = {name: t.median for name, t in interleaved(runs, min(max(int(seconds / once), 3), 50), 1).items()}
    plain_alone = plain_flops / alone(runs["plain"])
    for name, error in errors.items():
        speed, plain = flops * 1e-12 / times[name], plain_flops * 1e-12 / times["plain"]
        yield {
            "work": f"{row.name} {'backward' if backward else 'forward'}",
            "config": name,
            "us": round(times[name] * 1e6, 1),
            "TFLOP/s": round(speed),
            "of plain": round(speed / plain, 3),
            "per tile": round(speed * tiles[name] / (plain * plain_tiles), 3),
            "alone": round(flops / alone(runs[name]) / plain_alone, 3),
            **{f"of {peer}": round(times[peer] / times[name], 3) for peer in ("cudnn", "flash") if peer in times},
            "error": f"{error:.1e}",
        }


def rows(texts: list[str] | None, seconds: float, what: set[str]) -> Iterator[dict[str, Any]]:
    """Rows whose name holds one of `texts`: `forward`, `backward`, both where neither is named; with `configs` those of each."""
    for backward in (False, True):
        if what & {"forward", "backward"} and ("forward", "backward")[backward] not in what:
            continue
        kind = AttentionBackwardConfig if backward else AttentionConfig
        for row in ROWS:
            configs = tuple(c for c in row.configs if "configs" in what and isinstance(c, kind))
            left_out = (backward and (row.dtype != torch.bfloat16 or row.page)) or ("configs" in what and not configs)
            if not left_out and (not texts or any(text in row.name for text in texts)):
                torch.cuda.empty_cache()
                name = f"{row.name} {'backward' if backward else 'forward'}"
                yield from attempted(name, partial(timed, row, backward, seconds, configs))
