"""Tensor parallelism: each device has a part of the heads, the hidden columns and the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

import kernel_dsl as kd

from . import at_work, data, kernels, model

library = kd.library
NOISE = (
    2.0**-6
)  # of the greatest logit: sums of parts are rounded to bfloat16 once, as whole ones are, and in another order
TIMEOUT = 20  # seconds that a device waits for its peers


class Ranks:
    """The devices: `cuda:0` and the next ones, or virtual ones. A failure of one is a `RefusedError` that names it."""

    def __init__(self, count: int, device: str, dies: int | None) -> None:
        have = torch.cuda.device_count() if device != "cpu" else count
        if have < count:
            raise model.RefusedError(f"--devices {count}, and there are {have} GPUs: --device cpu has virtual ones")
        self.mesh = kd.Mesh(("model",), (count,))
        self.devices = [f"cuda:{rank}" if device != "cpu" else "cpu" for rank in range(count)]
        self.interpret = True if device == "cpu" else None
        self.dies = dies

    def each(self, what: str, work: Callable[..., Any], *rows: Iterable[Any]) -> list[Any]:
        """`work(rank, *parts)` of every rank."""
        made: list[Any] = []
        for rank, parts in enumerate(zip(*rows, strict=True)):
            try:
                if rank == self.dies and what == "layer 1":
                    raise RuntimeError("it was told to, by --dies")
                made.append(work(rank, *parts))
            except (RuntimeError, MemoryError, kd.Error) as error:
                raise model.RefusedError(f"rank {rank} died in {what}: {str(error).splitlines()[0]}") from error
        return made

    def total(self, rows: list[Any]) -> list[Any]:
        return library.all_reduce(rows, self.mesh, timeout=TIMEOUT, interpret=self.interpret)

    def together(self, rows: list[Any]) -> list[Any]:
        return library.all_gather(rows, self.mesh, timeout=TIMEOUT, interpret=self.interpret)


def part_of(weights: model.Weights, sizes: model.Sizes, rank: int, count: int, device: str) -> model.Weights:
    """A rank's weights: columns of the products into heads and hidden columns, rows of those out of them, classes."""
    made: model.Weights = {}
    heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    for name, w in model.rounded(weights).items():
        kind = name.split(".")[-1]
        if kind == "qkv":
            parts = w.reshape(len(w), -1, sizes.dim).split(heads, 1)
            w = torch.cat([p.chunk(count, 1)[rank] for p in parts], 1).reshape(len(w), -1)
        elif kind in ("gate", "up"):
            w = w.chunk(count, 1)[rank]
        elif kind in ("out", "down", "head"):
            w = w.chunk(count, 0)[rank]
        made[name] = w.contiguous().to(device)
    return made


def logits(ranks: Ranks, weights: model.Weights, sizes: model.Sizes, tokens: Any) -> list[Any]:
    """float32 (vocab, batch * length) on each device, for tokens (batch, length)."""
    count, (batch, length) = ranks.mesh.size, tokens.shape
    ws = [part_of(weights, sizes, r, count, d) for r, d in enumerate(ranks.devices)]
    turns = [model.angles(sizes, d) for d in ranks.devices]
    positions = [torch.arange(length, dtype=torch.int32, device=d).repeat(batch) for d in ranks.devices]
    xs = [
        kernels.embed(w["embed"], tokens.reshape(-1).to(torch.int32).to(d))
        for w, d in zip(ws, ranks.devices, strict=True)
    ]
    heads = (sizes.heads // count, sizes.kv_heads // count)

    def attended(rank: int, w: model.Weights, x: Any, layer: int) -> Any:
        h = library.rms_norm(x, w[f"{layer}.norm1"])
        qkv = library.matmul(h, w[f"{layer}.qkv"]).reshape(len(x), -1, sizes.dim)
        parts = library.rope(qkv, positions[rank], *turns[rank], heads=heads)
        q, k, v = (y.reshape(batch, length, -1, sizes.dim) for y in parts)
        y = library.attention(q, k, v, layout="bshd", causal=True).reshape(len(x), -1)
        return library.matmul(y, w[f"{layer}.out"], out_dtype="float32")

    def gated(rank: int, w: model.Weights, x: Any, layer: int) -> Any:
        h = library.rms_norm(x, w[f"{layer}.norm2"])
        between = library.matmul(h, (w[f"{layer}.gate"], w[f"{layer}.up"]), gated="swiglu")
        return library.matmul(between, w[f"{layer}.down"], out_dtype="float32")

    def added(rank: int, x: Any, total: Any) -> Any:
        return (x.float() + total).to(x.dtype)

    def classes(rank: int, w: model.Weights, x: Any) -> Any:
        return library.matmul(w["head"], library.rms_norm(x, w["norm"]).T, out_dtype="float32")

    for n in data.progress(range(sizes.layers), sizes.layers, "layers"):
        for part in (attended, gated):
            sums = ranks.total(ranks.each(f"layer {n}", part, ws, xs, [n] * count))
            xs = ranks.each(f"layer {n}", added, xs, sums)
    return list(ranks.together(ranks.each("the head", classes, ws, xs)))


def parallel(options: Any, sizes: model.Sizes, weights: model.Weights) -> int:
    """Compare the logits of several devices with those of one."""
    count = options.devices
    for name, n in (("key heads", sizes.kv_heads), ("hidden columns", sizes.hidden), ("classes", sizes.vocab)):
        if n % count:
            raise model.RefusedError(f"{n} {name} can't be shared by {count} devices")
    if options.length > sizes.length:
        raise model.RefusedError(f"--length {options.length} is more than the {sizes.length} positions of the weights")
    tokens = data.tokens_of(options.tokens, sizes.vocab, options.batch * options.length)
    tokens = tokens.reshape(options.batch, options.length).to(options.device)
    with torch.no_grad():
        ranks = Ranks(count, options.device, options.dies)
        with at_work(f"logits of {count} devices, and kernels are compiled"):
            several = logits(ranks, weights, sizes, tokens)
        with at_work("logits of one device"):
            w = model.rounded(weights)
            x = model.ours(w, tokens, sizes, model.angles(sizes, options.device))
            one = library.matmul(w["head"], x.T, out_dtype="float32")
    same = all(torch.equal(several[0].cpu(), y.cpu()) for y in several[1:])
    error = ((several[0].to(one.device) - one).abs().max() / one.abs().max()).item()
    print(f"{count} devices have {'the same' if same else 'different'} logits {tuple(one.shape)}")
    print(f"largest difference from one device: {error:.1e} of the greatest logit")
    return 0 if same and error <= NOISE else 1
