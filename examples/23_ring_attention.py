"""Attention over a sequence that GPUs share: each has a part of the queries, keys and values, and keys go from GPU to
GPU.

`kd.library.ring_attention` is one kernel: while a GPU's tensor cores use its own keys, the kernel sends these keys to
the other GPUs. Without two GPUs, it runs on two virtual ones. Run it: `python examples/23_ring_attention.py`, or with
one process for each GPU: `torchrun --nproc-per-node 2 examples/23_ring_attention.py`.
"""

from __future__ import annotations

import os

import numpy as np

import kernel_dsl as kd

DEVICES, HEADS, LENGTH, DIM = 2, 2, 128, 64  # positions of a GPU
mesh = kd.Mesh(("x",), (DEVICES,))


def attention(q: list[np.ndarray], k: list[np.ndarray], v: list[np.ndarray]) -> list[np.ndarray]:
    """The attention of the whole sequence in float64, cut into each GPU's part."""
    q64, k64, v64 = (np.concatenate([a.astype(np.float64) for a in x], axis=2) for x in (q, k, v))
    scores = q64 @ k64.swapaxes(-1, -2) * DIM**-0.5
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.split(weights / weights.sum(axis=-1, keepdims=True) @ v64, DEVICES, axis=2)


def main() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        [rng.standard_normal((1, HEADS, LENGTH, DIM)).astype(kd.bfloat16.numpy) for _ in range(DEVICES)]
        for _ in range(3)
    )
    want = attention(q, k, v)
    if "RANK" in os.environ:  # under torchrun this process has one GPU, and passes its own arrays
        from one_rank import one_rank, to_numpy

        with one_rank() as (rank, placed):
            mine = (placed(a[rank]) for a in (q, k, v))
            made = kd.library.ring_attention(*mine, mesh, causal=True, timeout=10)
            out = {rank: to_numpy(made, kd.bfloat16.numpy)}
    else:
        out = dict(enumerate(kd.library.ring_attention(q, k, v, mesh, causal=True, timeout=10)))
    for device, got in out.items():
        error = np.abs(got.astype(np.float64) - want[device]).max()
        print(f"device {device}: largest error {error:.1e}")
        assert error < 2e-2


if __name__ == "__main__":
    main()
