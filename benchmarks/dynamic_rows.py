"""Kernels for any sizes beside the specialised ones: `dynamic` of `benchmarks.matmul` and of `benchmarks.attention`.

Both kernels have the same configuration, and launches alternate. "Of specialised" is the speed of the kernel for any sizes
relative to the other's; their results must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import kernel_dsl as kd
from kernel_dsl.library.any_rows import opened_route
from kernel_dsl.library.arguments import MatmulOptions, request
from kernel_dsl.library.attention_kernel import AttentionProblem, attention_kernel, default_config, together_of
from kernel_dsl.library.attention_opened import opened
from kernel_dsl.library.matmul import plan_by
from kernel_dsl.library.routes import route
from kernel_dsl.stages import target_named

from .harness import interleaved

Run = Callable[[], Any]
# (batch, M, N, K), dtype, options
PRODUCTS: list[tuple[tuple[int, int, int, int], Any, dict[str, Any]]] = [
    *(((1, *shape), torch.bfloat16, {}) for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (1000, 4096, 4096))),
    *(((1, *shape), torch.bfloat16, {}) for shape in ((16, 16384, 8192), (128, 8192, 8192), (8192, 8192, 512))),
    ((1, 4096, 4096, 4096), torch.bfloat16, {"bias": True}),
    ((1, 4096, 4096, 4096), torch.float8_e4m3fn, {}),
    ((1, 2048, 2048, 2048), torch.float32, {}),
    ((1, 2048, 2048, 2048), torch.float32, {"precision": "tf32x3"}),
    ((16, 1024, 1024, 1024), torch.bfloat16, {}),
    ((256, 512, 128, 512), torch.bfloat16, {}),
]


def _row(name: str, runs: dict[str, Run], rounds: int) -> dict[str, Any]:
    """A row of two runs that give the same bits."""
    one, other = (run().clone().view(torch.uint8) for run in runs.values())
    assert torch.equal(one, other), f"{name}: other bits"
    times = interleaved(runs, rounds)
    whole, any_size = (times[word].median for word in ("specialised", "dynamic"))
    return {
        "work": f"dynamic {name}",
        "us": f"{any_size * 1e6:.1f}",
        "specialised us": f"{whole * 1e6:.1f}",
        "of specialised": f"{whole / any_size:.3f}",
    }


def products(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each product whose name is wanted."""
    machine = target_named(None)
    blocks = machine.limits.multiprocessors
    for (batch, M, N, K), dtype, given in PRODUCTS:
        words = " ".join(f"{word}={value}" for word, value in given.items())
        name = f"{str(dtype)[6:]} {batch}x{M}x{N}x{K} {words}".strip()
        if not wants(f"dynamic {name}"):
            continue
        outer = (batch,) if batch > 1 else ()
        a = torch.randn(*outer, M, K, device="cuda").to(dtype)
        b = torch.randn(*outer, N, K, device="cuda").to(dtype).transpose(-1, -2)
        extra = [torch.randn(N, device="cuda").to(dtype)] if "bias" in given else []
        asked = request(a, b, MatmulOptions(precision=given.get("precision"), bias=extra[0] if extra else None), None)
        found = route(asked.problem, asked.left, asked.right, asked.family, None, machine)
        runs: dict[str, Run] = {}
        for word, how in (("specialised", found), ("dynamic", opened_route(found))):
            plan = plan_by(asked, how, blocks)
            runs[word] = lambda plan=plan, a=a, b=b, x=extra: plan.run(a, [b], list(x), None, None, None)
        yield _row(name, runs, rounds)


def attention(wants: Callable[[str], bool], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each problem whose name is wanted."""
    blocks = target_named(None).limits.multiprocessors
    shapes = ((1, 16, 16384, 128), (4, 16, 4096, 128), (1, 16, 16384, 64), (4, 16, 4096, 64), (4, 16, 1000, 128))
    for batch, heads, length, dim in (*shapes, (2, 8, 300, 128), (4, 16, 4096, 256)):
        for causal in (False, True):
            name = f"B{batch} H{heads} S{length} d{dim} {'causal' if causal else 'full'}"
            if not wants(f"dynamic {name}"):
                continue
            p = AttentionProblem(batch, heads, heads, length, length, dim, kd.bfloat16, causal, dim**-0.5, False)
            arrays = [torch.randn(batch, heads, length, dim, device="cuda").bfloat16() for _ in range(3)]
            config = default_config(p)
            more = [np.int32(together_of(p, config, blocks))] if causal else []
            own, general = attention_kernel(p, config, blocks), attention_kernel(opened(p), config, blocks)
            runs: dict[str, Run] = {
                "specialised": lambda k=own, x=arrays: k(*x),
                "dynamic": lambda k=general, x=arrays, more=more: k(*x, *more),
            }
            yield _row(name, runs, rounds)
