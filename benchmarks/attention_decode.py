"""Decoding beside torch's attention: `python -m benchmarks.attention decode [--rows TEXT] [--seconds S] [--json FILE]`.

Caches in pages are compared with torch on a contiguous cache of the same numbers. Every result is checked against float64 first:
the last head of the first and last sequence. Bytes are those of keys and values. Lengths stand on the GPU, and `graph`
is the time of a call in a graph of ten.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import kernel_dsl as kd

from .harness import attempted, interleaved

LARGEST = 6e-3  # relative error in the norm


@dataclass(frozen=True)
class Decode:
    """One problem: contiguous without a `page`; `latent`: keys of 576 elements with values of 512, of one head."""

    batch: int
    heads: int
    kv_heads: int
    keys: int
    dim: int = 128
    page: int = 0
    queries: int = 1
    float8: bool = False
    latent: bool = False
    splits: int | None = None

    @property
    def name(self) -> str:
        heads = f"H{self.heads}" if self.latent else f"{self.heads}/{self.kv_heads}"
        words = [f"decode B{self.batch} {heads} KV{self.keys} d{self.dim}"]
        words += [f"page {self.page}"] * bool(self.page) + [f"{self.queries} queries"] * (self.queries > 1)
        words += [f"{self.splits} splits"] * (self.splits is not None)
        return " ".join(words + ["e4m3"] * self.float8 + ["latent"] * self.latent)

    @property
    def bytes(self) -> float:
        """Of keys and values, read once."""
        rows = self.batch * self.kv_heads * self.keys * self.dim * (1 if self.float8 else 2)
        return rows if self.latent else 2 * rows

    @property
    def flops(self) -> float:
        columns = 576 + 512 if self.latent else 2 * self.dim
        return 2.0 * self.batch * self.queries * self.heads * self.keys * columns


ROWS = [
    Decode(32, 32, 8, 4096),
    Decode(1, 32, 4, 262144),
    Decode(8, 64, 8, 32768),
    Decode(1, 32, 4, 4096),
    Decode(1, 32, 4, 1024),
    *(Decode(64, 32, 8, 8192, page=page) for page in (16, 64, 256, 1)),
    *(Decode(64, 32, 8, 8192, page=64, splits=n) for n in (2, 4, 17)),
    *(Decode(1, 32, 4, 262144, splits=n) for n in (33, 60, 64, 66, 132)),
    Decode(8, 64, 8, 32768, float8=True),
    *(Decode(64, 32, 8, 8192, page=page, float8=True) for page in (16, 1)),
    Decode(64, 16, 2, 8192, dim=64, float8=True),
    Decode(32, 32, 8, 4096, queries=4),
    Decode(32, 32, 8, 8192, dim=64),
    Decode(16, 16, 4, 8192, dim=256),
    Decode(32, 32, 8, 4096, float8=True),
    Decode(64, 32, 8, 8192, page=64, float8=True),
    Decode(128, 128, 1, 4096, dim=576, page=64, latent=True),
    Decode(128, 16, 1, 4096, dim=576, page=64, latent=True),
    Decode(4, 128, 1, 32768, dim=576, page=64, latent=True),
]


def paged(x: Any, page: int, table: Any) -> Any:
    """(batch, heads, keys, dim) as (pages, heads, page, dim), in the order of a table."""
    batch, heads, keys, dim = x.shape
    cut = x.reshape(batch, heads, keys // page, page, dim).transpose(1, 2).reshape(-1, heads, page, dim)
    made = torch.empty_like(cut)
    made[table.flatten().long()] = cut
    return made


def expected(work: Decode, q: Any, k: Any, v: Any, scale: float) -> Any:
    """float64 results of one head's queries (queries, dim)."""
    scores = q.double() @ k.double().T * scale
    at = torch.arange(work.queries, device="cuda")[:, None] + work.keys - work.queries
    scores.masked_fill_(torch.arange(work.keys, device="cuda")[None] > at, -math.inf)
    return torch.softmax(scores, 1) @ v.double()


def check(work: Decode, out: Any, q: Any, k: Any, v: Any, scale: float) -> float:
    """The largest relative error of two heads; arrays are (batch, heads, length, dim). Raises AssertionError beyond a bound."""
    worst = 0.0
    for b in {0, work.batch - 1}:
        wanted = expected(work, q[b, -1], k[b, -1], v[b, -1], scale)
        worst = max(worst, ((out[b, -1].double() - wanted).norm() / wanted.norm()).item())
    assert worst <= LARGEST and not out.isnan().any(), f"{work.name}: relative error {worst:.2e}"
    return worst


def table_of(work: Decode) -> Any:
    """Pages in a random order."""
    pages = work.keys // work.page
    return torch.randperm(work.batch * pages, device="cuda").to(torch.int32).reshape(work.batch, pages)


def latent_runs(work: Decode, lengths: Any) -> tuple[dict[str, Callable[[], Any]], float]:
    """(what to time, the error) of latent keys; torch on contiguous ones."""
    scale = work.dim**-0.5
    q = torch.randn(work.batch, work.queries, work.heads, work.dim, device="cuda").bfloat16()
    rows = torch.randn(work.batch, 1, work.keys, work.dim, device="cuda").bfloat16()
    table = table_of(work)
    cache = paged(rows, work.page, table)[:, 0].contiguous()
    out = torch.full((*q.shape[:3], 512), math.nan, device="cuda", dtype=torch.bfloat16)

    def ours() -> Any:
        return kd.library.mla_decode(q, cache, lengths, table, scale=scale, out=out)

    ours()
    heads = q.transpose(1, 2)
    error = check(work, out.transpose(1, 2), heads, rows, rows[..., :512], scale)

    def peer() -> Any:
        weights = torch.softmax((q[:, 0] @ rows[:, 0].transpose(1, 2)) * scale, -1)
        return weights @ rows[:, 0, :, :512]

    return {"ours": ours, "torch": peer}, error


def runs_of(work: Decode) -> tuple[dict[str, Callable[[], Any]], float]:
    """(what to time, the error)."""
    lengths = torch.full((work.batch,), work.keys, device="cuda", dtype=torch.int32)
    if work.latent:
        return latent_runs(work, lengths)
    scale = work.dim**-0.5
    q = torch.randn(work.batch, work.heads, work.queries, work.dim, device="cuda").bfloat16()
    shape = work.batch, work.kv_heads, work.keys, work.dim
    k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    out = torch.full_like(q, math.nan)
    options: dict[str, Any] = {"out": out, "splits": work.splits}
    inputs = [k, v]
    if work.float8:
        inputs = [x.to(torch.float8_e4m3fn) for x in inputs]
        k, v = (x.bfloat16() for x in inputs)
        options |= {"k_scale": 1.0, "v_scale": 1.0}
    if work.page:
        options["page_table"] = table_of(work)
        inputs = [paged(x, work.page, options["page_table"]) for x in inputs]

    def ours() -> Any:
        return kd.library.decode_attention(q, inputs[0], inputs[1], lengths, **options)

    ours()
    error = check(work, out, q, k, v, scale)
    mask = None
    if work.queries > 1:
        at = torch.arange(work.queries, device="cuda")[:, None] + work.keys - work.queries
        mask = torch.arange(work.keys, device="cuda")[None] <= at

    def peer() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return {"ours": ours, "torch": peer}, error


def in_graph(run: Callable[[], Any]) -> float:
    """Seconds of a call in a graph of ten of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-4


def rows(texts: list[str] | None, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each problem whose name holds one of `texts`."""
    for work in ROWS:
        if texts and not any(text in work.name for text in texts):
            continue
        torch.cuda.empty_cache()
        yield from attempted(work.name, partial(timed, work, seconds))


def timed(work: Decode, seconds: float) -> Iterator[dict[str, Any]]:
    """The row of a problem."""
    variants, error = runs_of(work)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for run in variants.values():
        run()
    torch.cuda.synchronize()
    once = time.perf_counter() - start + 1e-4 * len(variants)  # L2 is cleared before each
    times = interleaved(variants, min(max(int(seconds / once), 3), 50), 1)
    ours, peer = times["ours"].median, times["torch"].median
    yield {
        "work": work.name,
        "us": round(ours * 1e6, 1),
        "TB/s": round(work.bytes / ours * 1e-12, 2),
        "TFLOP/s": round(work.flops / ours * 1e-12),
        "graph us": round(in_graph(variants["ours"]) * 1e6, 1),
        "torch us": round(peer * 1e6, 1),
        "of torch": round(peer / ours, 3),
        "error": f"{error:.1e}",
    }
