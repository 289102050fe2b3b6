"""Attention forward beside cuDNN through torch: `python -m benchmarks.attention [configs] [--json FILE] [--rounds N]`.

bf16, random normal data, launches interleaved. Every result is checked against float64 on sampled queries, with outputs
poisoned before. Causal work counts half the products. `configs` times a list of configurations instead of the choice.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig

from .harness import interleaved, machine, table

SHAPES = [(1, 16, 16384, 128), (4, 16, 4096, 128), (1, 16, 16384, 64), (4, 16, 4096, 64), (1, 16, 16384, 256),
          (4, 16, 4096, 256)]  # fmt: skip

# by head dimension: consumers, keys a step, stages
CONFIGS = {
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


def check(out: Any, q: Any, k: Any, v: Any, causal: bool) -> float:
    """Relative error of sampled queries of the last head against float64."""
    rows = torch.arange(0, q.shape[2], max(1, q.shape[2] // 64), device="cuda")
    scores = q[-1, -1, rows].double() @ k[-1, -1].double().T / math.sqrt(q.shape[3])
    if causal:
        scores.masked_fill_(torch.arange(k.shape[2], device="cuda")[None] > rows[:, None], -math.inf)
    expected = torch.softmax(scores, -1) @ v[-1, -1].double()
    error = ((out[-1, -1, rows].double() - expected).norm() / expected.norm()).item()
    assert error <= 6e-3 and not out.isnan().any(), f"relative error {error:.2e}"
    return error


def described(config: AttentionConfig | None) -> str:
    """A configuration in short."""
    if config is None:
        return ""
    return f" {config.consumers}x{config.block_kv} s{config.stages}{' in turns' if config.turns else ''}"


def row(
    shape: tuple[int, int, int, int], causal: bool, rounds: int, config: AttentionConfig | None = None
) -> dict[str, Any]:
    """Time one problem; without a configuration, with the one that is chosen for it."""
    batch, heads, length, dim = shape
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    out = torch.full_like(q, float("nan"))

    def ours() -> Any:
        return kd.library.attention(q, k, v, causal=causal, config=config, out=out)

    ours()
    error = check(out, q, k, v, causal)

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    times = interleaved({"ours": ours, "cudnn": cudnn}, rounds)
    flops = 4.0 * batch * heads * length * length * dim / (2 if causal else 1)
    mine, peer = times["ours"].median, times["cudnn"].median
    return {
        "work": f"B{batch} H{heads} S{length} d{dim} {'causal' if causal else 'full'}{described(config)}",
        "us": f"{mine * 1e6:.1f}",
        "TFLOP/s": f"{flops / mine * 1e-12:.0f}",
        "cudnn": f"{flops / peer * 1e-12:.0f}",
        "of cudnn": f"{peer / mine:.3f}",
        "error": f"{error:.1e}",
    }


def main() -> None:
    """Run all problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["configs"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(machine())
    rows = [
        row(shape, causal, args.rounds, config)
        for shape in SHAPES
        for causal in (False, True)
        for config in (CONFIGS[shape[3]] if args.what else [None])
    ]
    table(rows, args.json)
    print(machine())


if __name__ == "__main__":
    main()
