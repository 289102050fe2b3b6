"""Each function of the library on a mesh a thousand times on two GPUs that come late by random times: right each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernel_dsl import library

from .support import GPU
from .test_mesh import PAIR, SECONDS, tensors, torch

__all__ = ["torch"]  # the fixture

pytestmark = [*GPU, pytest.mark.several_gpus]
TIMES = 1000
HOW = {"timeout": SECONDS}

Made = Callable[[], list[Any]]  # a call's results, in the order of devices


def reductions(torch: Any, name: str) -> Made:
    xs = tensors(torch, 64, 1000)
    if name in ("all_gather", "reduce_scatter"):
        return lambda: list(getattr(library, name)(xs, PAIR, **HOW))
    outs = [torch.empty_like(x) for x in xs]
    return lambda: list(library.all_reduce(xs, PAIR, algorithm=name, out=outs, **HOW))


def products(torch: Any, name: str) -> Made:
    xs = tensors(torch, 128 if name == "all_gather_matmul" else 256, 128, dtype=torch.bfloat16)
    ws = tensors(torch, 128, 256, dtype=torch.bfloat16, seed=1)
    return lambda: list(getattr(library, name)(xs, ws, PAIR, **HOW))


def rows(torch: Any) -> Made:
    xs = tensors(torch, 96, 512, dtype=torch.bfloat16)
    sizes = [torch.tensor(s, dtype=torch.int32, device=f"cuda:{r}") for r, s in enumerate(([60, 36], [7, 89]))]
    outs = [torch.zeros(192, 512, dtype=x.dtype, device=x.device) for x in xs]
    counts = [torch.zeros_like(s) for s in sizes]
    return lambda: [y for pair in library.all_to_all(xs, sizes, PAIR, out=(outs, counts), **HOW) for y in pair]


def experts(torch: Any) -> Made:
    rng = np.random.default_rng(5)
    xs = tensors(torch, 64, 256, dtype=torch.bfloat16)
    chosen = [np.argsort(rng.random((64, 16)), 1)[:, :4].astype(np.int32) for _ in range(2)]
    ids = [torch.tensor(c).to(f"cuda:{rank}") for rank, c in enumerate(chosen)]
    weights = [torch.full((64, 4), 0.25, device=f"cuda:{rank}") for rank in range(2)]

    def call() -> list[Any]:
        received, counts, places = library.expert_dispatch(xs, ids, PAIR, num_experts=16, **HOW)
        back = library.expert_combine(received, ids, places, weights, PAIR, num_experts=16, **HOW)
        return [*back, *counts]

    return call


def attention(torch: Any, name: str) -> Made:
    q, k, v, dout = (
        [x / 8 for x in tensors(torch, 1, 2, 128, 64, dtype=torch.bfloat16, seed=seed)] for seed in range(4)
    )
    out, lse = library.ring_attention(q, k, v, PAIR, causal=True, return_lse=True, **HOW)
    if name == "ring_attention":
        return lambda: list(library.ring_attention(q, k, v, PAIR, causal=True, **HOW))
    return lambda: [
        x for row in library.ring_attention_backward(dout, q, k, v, out, lse, PAIR, causal=True, **HOW) for x in row
    ]


CASES: dict[str, Callable[[Any], Made]] = {
    **{
        name: lambda torch, name=name: reductions(torch, name)
        for name in ("words", "one-shot", "two-shot", "all_gather", "reduce_scatter")
    },
    **{
        name: lambda torch, name=name: products(torch, name)
        for name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
    },
    "all_to_all": rows,
    "experts": experts,
    "ring_attention": lambda torch: attention(torch, "ring_attention"),
    "ring_attention_backward": lambda torch: attention(torch, "ring_attention_backward"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_thousand_times_with_delays(torch: Any, name: str) -> None:
    """The first call's results are those that other tests compare with float64; all others have the same bits."""
    rng = np.random.default_rng(0)
    call = CASES[name](torch)
    first = [x.clone() for x in call()]
    wrong = [torch.zeros((), dtype=torch.int64, device=x.device) for x in first]
    for _ in range(TIMES):
        for rank in range(2):
            if rng.random() < 0.5:
                with torch.cuda.device(rank):
                    torch.cuda._sleep(int(rng.integers(1, 200_000)))
        for count, got, want in zip(wrong, call(), first, strict=True):
            count += (got != want).sum()
    assert [int(w) for w in wrong] == [0] * len(first)
