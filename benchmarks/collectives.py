"""Collectives on the GPUs of one process beside NCCL, as torch calls it there. A line of JSON a row, as it is measured.

    python -m benchmarks.collectives --seconds 450
    python -m benchmarks.collectives --rows all_reduce
    python -m benchmarks.collectives --dry    # every row with small arrays in the interpreter, without a GPU; no figures

Products with their collectives stand beside the product alone, which is their bound, and beside NCCL's collective with torch's
product. Each row is checked against float64 before it is timed, by a call with a time-out; calls that are timed have none. All
take turns. The first rows are those that matter most. A row that fails says why, and the next one begins. A figure is the median
of the turns, in microseconds a call, from before the first of several calls to after the last on the GPU that is last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import kernel_dsl as kd
from kernel_dsl import library as whole_library

KIB = (8, 64, 512, 4096, 16384, 65536, 262144)
FIRST = (16384, 65536, 262144, 4096)  # which the first rows have
TURNS, CALLS = 5, 20
HEADS = 16  # of attention
# M, N, K of the product on each GPU, where M counts the rows of all
PRODUCTS = {
    "all_gather_matmul": ((8192, 8192, 8192), (16384, 8192, 8192), (4096, 4096, 4096)),
    "matmul_reduce_scatter": ((8192, 8192, 4096), (16384, 8192, 4096), (4096, 4096, 2048)),
    "matmul_all_reduce": ((8192, 8192, 4096), (4096, 4096, 2048)),
}


class Rehearsable:
    """Where the rows run: on GPUs, or for a rehearsal in the interpreter, with small arrays and sums of torch for NCCL."""

    dry = False

    def nccl(self, torch: Any) -> Any:
        return Rehearsed(torch) if self.dry else torch.cuda.nccl

    def __getattr__(self, name: str) -> Any:
        """A function of the library."""
        found = getattr(whole_library, name)
        return partial(found, interpret=True) if self.dry else found

    def small(self, size: int, least: int = 256) -> int:
        return least if self.dry else size


class Rehearsed:
    """The calls of `torch.cuda.nccl` that rows make, on the CPU."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def all_reduce(self, xs: Any, outs: Any) -> None:
        total = sum(x.float() for x in xs)
        for out in outs:
            out.copy_(total)

    def all_gather(self, xs: Any, outs: Any) -> None:
        for out in outs:
            out.copy_(self.torch.cat(xs))

    def reduce_scatter(self, xs: Any, outs: Any) -> None:
        for out, part in zip(outs, sum(x.float() for x in xs).chunk(len(xs)), strict=True):
            out.copy_(part)


library = Rehearsable()


def place(rank: int) -> str:
    """Torch's name of a GPU."""
    return "cpu" if library.dry else f"cuda:{rank}"


def finish(torch: Any, devices: int) -> None:
    """Wait for all GPUs."""
    for rank in range(0 if library.dry else devices):
        torch.cuda.synchronize(rank)


def timed(torch: Any, call: Callable[[], Any], devices: int) -> float:
    """Microseconds a call."""
    finish(torch, devices)
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    finish(torch, devices)
    return (time.perf_counter() - start) * 1e6 / CALLS


def rows(torch: Any, name: str, kib: int, mesh: kd.Mesh) -> tuple[Callable[[], Any], Callable[[], Any], bool]:
    """Our call, NCCL's, and whether ours is right."""
    n, nccl = mesh.size, library.nccl(torch)
    count = library.small(kib * 512) // n * n
    xs = [torch.randn(count, device=place(r)).to(torch.bfloat16) for r in range(n)]
    near = [x.to(place(0)) for x in xs]  # which checks the results, as the CPU would take minutes
    total = sum(x.double() for x in near)
    if name == "all_reduce":
        outs = [torch.empty_like(x) for x in xs]
        wants = [total] * n
        peer: Callable[[], Any] = lambda: nccl.all_reduce(xs, outs)  # noqa: E731
    elif name == "all_gather":
        outs = [torch.empty(count * n, dtype=x.dtype, device=x.device) for x in xs]
        wants = [torch.cat(near)] * n
        peer = lambda: nccl.all_gather(xs, outs)  # noqa: E731
    else:
        outs = [torch.empty(count // n, dtype=x.dtype, device=x.device) for x in xs]
        wants = list(total.chunk(n))
        peer = lambda: nccl.reduce_scatter(xs, outs)  # noqa: E731
    collective = getattr(library, name)

    def ours() -> Any:
        return collective(xs, mesh, out=outs)

    got = collective(xs, mesh, out=outs, timeout=20)
    right = all(
        ((g.to(place(0)).double() - w).abs() <= 2.0**-8 * w.abs() + 1e-5).all() for g, w in zip(got, wants, strict=True)
    )
    return ours, peer, bool(right)


Row = tuple[dict[str, Callable[[], Any]], bool]


def products(torch: Any, name: str, sizes: tuple[int, int, int], mesh: kd.Mesh) -> Row:
    """Calls by name, and whether ours is right. `sizes`: M, N, K of each GPU's product, where M are the rows of all.

    "alone" is the product without what is sent, "nccl" the product with NCCL's collective before or after it.
    """
    n, nccl = mesh.size, library.nccl(torch)
    m, columns, depth = (128 * n, 64, 64) if library.dry else sizes
    gathers = name == "all_gather_matmul"

    def random(rows: int, width: int, rank: int) -> Any:
        return (torch.randn(rows, width, device=place(rank)) / depth**0.25).to(torch.bfloat16)

    xs = [random(m // n if gathers else m, depth, r) for r in range(n)]
    ws = [random(depth, columns, r) for r in range(n)]
    whole = [torch.empty(m, depth, dtype=x.dtype, device=x.device) for x in xs] if gathers else xs
    full = [torch.empty(m, columns, dtype=x.dtype, device=x.device) for x in xs]
    outs = full if name != "matmul_reduce_scatter" else [f[: m // n].clone() for f in full]

    def alone() -> None:
        for a, b, out in zip(whole, ws, full, strict=True):
            torch.mm(a, b, out=out)

    def peer() -> None:
        if gathers:
            nccl.all_gather(xs, whole)
        alone()
        if name == "matmul_reduce_scatter":
            nccl.reduce_scatter(full, outs)
        elif not gathers:
            nccl.all_reduce(full, full)

    mine = [torch.empty_like(o) for o in outs]
    call = getattr(library, name)
    ours = lambda: call(xs, ws, mesh, out=mine)  # noqa: E731
    call(xs, ws, mesh, out=mine, timeout=20)  # one that ends, whatever is wrong
    picked = torch.arange(0, mine[0].shape[0], max(mine[0].shape[0] // 64, 1))
    right = True
    for rank in range(n):
        at = picked + (rank * (m // n) if name == "matmul_reduce_scatter" else 0)
        if gathers:
            want = torch.cat([x.cpu() for x in xs])[at].double() @ ws[rank].cpu().double()
        else:
            want = sum(x.cpu()[at].double() @ w.cpu().double() for x, w in zip(xs, ws, strict=True))
        right &= bool(((mine[rank].cpu()[picked].double() - want).abs() <= 2.0**-6 * want.abs().max()).all())
    return {"ours": ours, "nccl": peer, "alone": alone}, right


def attention(torch: Any, length: int, causal: bool, mesh: kd.Mesh) -> Row:
    """Ring attention of 16 heads of 128, `length` positions a GPU; "alone" is the library's attention to a GPU's own keys."""
    n, length = mesh.size, library.small(length, 128)
    q, k, v = (
        [torch.randn(1, library.small(HEADS, 1), length, 128, device=place(r)).to(torch.bfloat16) for r in range(n)]
        for _ in range(3)
    )
    outs = [torch.empty_like(x) for x in q]
    library.ring_attention(q, k, v, mesh, causal=causal, out=outs, timeout=20)
    right = True
    keys, values = (torch.cat([x.cpu() for x in xs], 2)[:, :1].double() for xs in (k, v))
    for rank in range(n):
        rows = torch.arange(0, length, max(length // 32, 1))
        scores = q[rank].cpu()[:, :1, rows].double() @ keys.transpose(-1, -2) * 128**-0.5
        if causal:
            hidden = torch.arange(n * length)[None] > (rank * length + rows)[:, None]
            scores = scores.masked_fill(hidden, -float("inf"))
        want = torch.softmax(scores, -1) @ values
        right &= bool(((outs[rank].cpu()[:, :1, rows].double() - want).abs() <= 2e-2).all())

    def alone() -> None:
        for a, b, c, out in zip(q, k, v, outs, strict=True):
            library.attention(a, b, c, causal=causal, out=out)

    return {"ours": lambda: library.ring_attention(q, k, v, mesh, causal=causal, out=outs), "alone": alone}, right


def gradients(torch: Any, length: int, causal: bool, mesh: kd.Mesh) -> Row:
    """Those of `attention`'s row; "alone" is the library's gradients for a GPU's own keys, once."""
    n, length = mesh.size, library.small(length, 128)
    q, k, v, dout = (
        [torch.randn(1, library.small(HEADS, 1), length, 128, device=place(r)).to(torch.bfloat16) for r in range(n)]
        for _ in range(4)
    )
    out, lse = library.ring_attention(q, k, v, mesh, causal=causal, return_lse=True, timeout=20)
    grads = tuple([torch.empty_like(x) for x in row] for row in (q, k, v))
    library.ring_attention_backward(dout, q, k, v, out, lse, mesh, causal=causal, grads=grads, timeout=20)
    Q, K, V, D, Y, logs = (torch.cat([x.cpu() for x in xs], 2)[0, 0].double() for xs in (q, k, v, dout, out, lse))
    means, all_rows = (D * Y).sum(-1), torch.arange(n * length)

    def slopes(rows: Any, keys: Any) -> tuple[Any, Any]:
        """Weights of some queries for some keys, and the gradients of their scores."""
        weights = torch.exp(Q[rows] @ K[keys].T * 128**-0.5 - logs[rows][:, None])
        if causal:
            weights = weights.masked_fill(keys[None] > rows[:, None], 0)
        return weights, weights * (D[rows] @ V[keys].T - means[rows][:, None]) * 128**-0.5

    right = True
    for rank in range(n):
        at = torch.arange(0, length, max(length // 32, 1))
        some = rank * length + at
        weights, scores = slopes(all_rows, some)
        wants = (slopes(some, all_rows)[1] @ K, scores.T @ Q, weights.T @ D)
        for got, want in zip(grads, wants, strict=True):
            right &= bool(((got[rank].cpu()[0, 0, at].double() - want).abs() <= 2e-2 * want.abs().max()).all())

    def alone() -> None:
        for rank in range(n):
            given = (dout[rank], q[rank], k[rank], v[rank], out[rank], lse[rank])
            library.attention_backward(*given, causal=causal, deterministic=True)

    def ours() -> Any:
        return library.ring_attention_backward(dout, q, k, v, out, lse, mesh, causal=causal, grads=grads)

    return {"ours": ours, "alone": alone}, right


def autograd(torch: Any, length: int, causal: bool, mesh: kd.Mesh) -> Row:
    """Ring attention and its gradients by autograd; "alone" is the library's attention to a GPU's own keys, as often."""
    n, length = mesh.size, library.small(length, 128)
    q, k, v = (
        [
            torch.randn(1, library.small(HEADS, 1), length, 128, device=place(r)).to(torch.bfloat16).requires_grad_()
            for r in range(n)
        ]
        for _ in range(3)
    )
    douts = [torch.randn_like(x) for x in q]

    def ours(**how: Any) -> list[Any]:
        outs = library.ring_attention(q, k, v, mesh, causal=causal, **how)
        return torch.autograd.grad(list(outs), [*q, *k, *v], douts)

    def alone() -> None:
        for rank in range(n):
            given = (q[rank], k[rank], v[rank])
            torch.autograd.grad(library.attention(*given, causal=causal), given, douts[rank])

    with torch.no_grad():
        out, lse = library.ring_attention(q, k, v, mesh, causal=causal, return_lse=True, timeout=20)
        wants = library.ring_attention_backward(douts, q, k, v, out, lse, mesh, causal=causal, timeout=20)
    flat = [x for row in wants for x in row]  # which the row of gradients compares with float64
    right = all(torch.equal(got, want) for got, want in zip(ours(timeout=20), flat, strict=True))
    return {"ours": ours, "alone": alone}, right


def experts(torch: Any, mesh: kd.Mesh) -> Row:
    """Dispatch and combine of 4,096 tokens of 7,168 bfloat16 a GPU to 8 of 256 experts."""
    n, tokens, width, k, count = mesh.size, library.small(4096, 8), library.small(7168, 64), 8, 256
    xs = [torch.randn(tokens, width, device=place(r)).to(torch.bfloat16) for r in range(n)]
    ids = [torch.rand(tokens, count, device=place(r)).topk(k).indices.to(torch.int32) for r in range(n)]
    weights = [torch.full((tokens, k), 1 / k, device=place(r)) for r in range(n)]

    def ours(timeout: float | None = None) -> Any:
        received, _, places = library.expert_dispatch(xs, ids, mesh, num_experts=count, timeout=timeout)
        return library.expert_combine(received, ids, places, weights, mesh, num_experts=count, timeout=timeout)

    got = ours(timeout=20)
    right = all(bool(((g - x).abs() <= 2.0**-7 * x.abs() + 1e-6).all()) for g, x in zip(got, xs, strict=True))
    return {"ours": ours}, right


def cases(torch: Any, mesh: kd.Mesh) -> dict[str, Callable[[], Row]]:
    """What makes each row, by its name; the most important ones first."""
    made: dict[str, Callable[[], Row]] = {}

    def collective(kib: int) -> None:
        for name in ("all_reduce", "all_gather", "reduce_scatter"):

            def plain(name: str = name) -> Row:
                ours, peer, right = rows(torch, name, kib, mesh)
                return {"ours": ours, "nccl": peer}, right

            made[f"{name}_{kib}_KiB"] = plain

    for kib in FIRST:
        collective(kib)
    for turn in range(max(map(len, PRODUCTS.values()))):
        for name, every in PRODUCTS.items():
            for sizes in every[turn : turn + 1]:
                made[f"{name}_{'x'.join(map(str, sizes))}"] = partial(products, torch, name, sizes, mesh)
    made["experts_4096x7168"] = partial(experts, torch, mesh)
    for kib in KIB:
        if kib not in FIRST:
            collective(kib)
    for causal in (False, True):
        word = "_causal" if causal else ""
        made[f"ring_attention_8192{word}"] = partial(attention, torch, 8192, causal, mesh)
        made[f"ring_attention_backward_8192{word}"] = partial(gradients, torch, 8192, causal, mesh)
        made[f"ring_attention_autograd_8192{word}"] = partial(autograd, torch, 8192, causal, mesh)
    return made


def measured(torch: Any, make: Callable[[], Row], devices: int) -> dict[str, Any]:
    """A row's figures. In a rehearsal, each call is made once."""
    row: dict[str, Any] = {}
    calls, row["right"] = make()
    for call in calls.values():
        call() if library.dry else timed(torch, call, devices)
    if library.dry:
        return row
    turns = [{who: timed(torch, call, devices) for who, call in calls.items()} for _ in range(TURNS)]
    for who in calls:
        row[f"{who}_us"] = round(statistics.median(turn[who] for turn in turns), 2)
    row["spread"] = round(max(t["ours"] for t in turns) / min(t["ours"] for t in turns), 3)
    for who in calls:
        if who != "ours":
            row[f"{who}_over_ours"] = round(row[f"{who}_us"] / row["ours_us"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    parser.add_argument("--seconds", type=float, default=450.0, help="begin no row after this")
    parser.add_argument("--dry", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--devices", type=int, default=2, help="with --dry: how many")
    options = parser.parse_args()
    import torch

    Rehearsable.dry = options.dry
    devices = options.devices if options.dry else torch.cuda.device_count()
    if devices < 2:
        raise SystemExit("needs two GPUs that reach each other")
    mesh, begun, failed = kd.Mesh(("x",), (devices,)), time.monotonic(), False
    for name, make in cases(torch, mesh).items():
        if options.rows not in name or time.monotonic() - begun > options.seconds:
            continue
        row: dict[str, Any] = {"row": name, "devices": devices}
        try:
            row |= measured(torch, make, devices)
        except Exception as error:  # the other rows are worth their time
            row["error"] = f"{type(error).__name__}: {error}"[:500]
        failed |= not row.get("right", False)
        print(json.dumps(row), flush=True)
        if not options.dry:
            torch.cuda.empty_cache()
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
