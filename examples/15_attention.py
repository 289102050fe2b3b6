"""Flash attention forward: causal and full, grouped heads, any length, with the log-sum-exp of each row.

The kernel is `kernel_dsl/library/attention_forward/kernel.py`, which `kd.library.attention` runs. Scores, weights and output
stay in registers, and keys and values go through SMEM. The kernel computes the next block's scores during this block's
softmax. docs/attention.md explains its speed.

Run it: `python examples/15_attention.py`. Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd


def reference(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Output and log-sum-exp in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights / total, v), (top + np.log(total))[..., 0]


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    cases = [(1, 2, 2, 128, 128, 64), (1, 4, 2, 200, 200, 128), (1, 1, 1, 130, 70, 256)]
    for batch, heads, groups, queries, keys, dim in cases:
        for causal in (False, True):
            q = rng.standard_normal((batch, heads, queries, dim)).astype(kd.bfloat16.numpy)
            k, v = (rng.standard_normal((batch, groups, keys, dim)).astype(kd.bfloat16.numpy) for _ in range(2))
            got, lse = kd.library.attention(q, k, v, causal=causal, return_lse=True)
            expected, sums = reference(q, k, v, causal)
            error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
            words = f"{heads} heads on {groups}, {queries} queries, {keys} keys, dim {dim}"
            print(f"{words}, {'causal' if causal else 'full'}: worst error {error:.1e}")
            assert error < 8e-3 and np.abs(lse - sums).max() < 1e-4


if __name__ == "__main__":
    main()
