"""Dropout and its gradient, without a mask in memory: both make the same random numbers from the same seed.

`kd.random` is Philox: a number depends only on the seed and on its place. Element i of the array takes number i, in
whichever block it is. A block passes its place by `offset`, which counts groups of four numbers. The seed is a scalar
of the launch, so another seed needs no compile.

Run it: `python -m examples.24_dropout`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

BLOCK = 4096


@functools.cache
def dropout_kernel(rate: float) -> Any:
    """x (or its gradient) with elements set to zero with probability `rate`, and the others divided by 1 - rate."""

    @kd.kernel(
        out_type=lambda x, seed: x,
        grid=lambda x, seed: (kd.cdiv(x.shape[0], BLOCK),),
        grid_names=("block",),
        name="dropout",
    )
    def dropout(x: Any, seed: Any, out: Any) -> None:
        block = kd.axis_index("block")
        part = kd.ds(block * BLOCK, BLOCK)
        keep = kd.random.uniform(seed, (BLOCK,), offset=block * (BLOCK // 4)) >= rate
        value = x[part].astype(kd.float32) * (1 / (1 - rate))
        out[part] = kd.where(keep, value, 0.0).astype(x.dtype)

    return dropout


def philox(seed: int, count: int) -> Any:
    """The first `count` words of Philox-4x32-10, in NumPy: the reference."""
    groups = np.arange(-(-count // 4), dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    c = [groups & low, groups >> np.uint64(32), np.zeros_like(groups), np.zeros_like(groups)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        one, two = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [two >> np.uint64(32) ^ c[1] ^ np.uint64(keys[0]), two & low,
             one >> np.uint64(32) ^ c[3] ^ np.uint64(keys[1]), one & low]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).reshape(-1)[:count]


def main() -> None:
    """Compare the numbers with Philox in NumPy, and check that the gradient is zero where the result is."""
    rng, rate = np.random.default_rng(0), 0.25
    kernel = dropout_kernel(rate)
    for length, seed in ((4096, 7), (10_001, 2**40 + 3)):
        x, g = (rng.standard_normal(length).astype(np.float32) for _ in range(2))
        keep = (philox(seed, length) >> np.uint64(8)).astype(np.float64) / 2**24 >= rate
        for given in (x, g):  # the gradient is the same kernel: it makes the mask anew
            got = kernel(given, np.uint64(seed))
            assert np.max(np.abs(got - np.where(keep, given.astype(np.float64) / (1 - rate), 0))) < 1e-6
        print(f"dropout of {length} elements: kept {keep.mean():.3f}, as Philox says")
    assert len(kernel.specialisations()) == 1  # one kernel for all seeds and lengths


if __name__ == "__main__":
    main()
