"""Group norm of (batch, channels, pixels): groups of channels share a mean and a variance.

A group is too large for registers, so the kernel reads it twice: first for its sums, then to write the result. The
second read comes from L2, where the group still is. The rows of a piece are channels, so scale and shift, one a
channel, broadcast along pixels. The kernel first subtracts an estimate of the mean, the group's first element. So the
squares that it adds up stay small even if the mean is large.

Run it: `python -m examples.29_group_norm`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

EPSILON = 1e-5


@functools.cache
def group_norm_kernel(groups: int, elements: int = 2048) -> Any:
    """One block a group; pieces of `elements` elements have all channels of the group, and as many pixels as fit."""

    @kd.kernel(
        out_type=lambda x, gamma, beta: x,
        grid=lambda x, gamma, beta: (x.shape[0], groups),
        grid_names=("image", "group"),
        name=f"group_norm_{groups}",
    )
    def group_norm(x: Any, gamma: Any, beta: Any, out: Any) -> None:
        each, pixels = x.shape[1] // groups, x.shape[2]
        image, first = kd.axis_index("image"), kd.axis_index("group") * each
        channels = kd.ds(first, each)
        wide = max(128, elements // (1 << (each - 1).bit_length()))
        estimate = x[image, first, 0].astype(kd.float32)

        def piece(step: Any) -> Any:
            return (image, channels, kd.ds(step * wide, wide))

        @kd.loop(0, kd.cdiv(pixels, wide), init_carry=(kd.zeros((each, wide), kd.float32),) * 2)
        def sums(step: Any, carry: Any) -> Any:
            value = kd.load(x, piece(step)).astype(kd.float32) - estimate
            inside = kd.broadcasted_iota(kd.int32, value.shape, 1) < pixels - step * wide
            value = kd.where(inside, value, 0.0)
            return carry[0] + value, carry[1] + value * value

        count = each * pixels
        mean, square = (kd.sum(total) / count for total in sums)
        scale = kd.rsqrt(square - mean * mean + EPSILON) * gamma[channels].astype(kd.float32)
        shift = beta[channels].astype(kd.float32) - (mean + estimate) * scale

        @kd.loop(0, kd.cdiv(pixels, wide))
        def _(step: Any) -> None:
            value = kd.load(x, piece(step)).astype(kd.float32)
            out[piece(step)] = (value * scale[:, None] + shift[:, None]).astype(x.dtype)

    return group_norm


def group_norm(x: Any, groups: int, gamma: Any, beta: Any, **options: Any) -> Any:
    """x (batch, channels, pixels), gamma and beta (channels,)."""
    if x.shape[1] % groups:
        raise ValueError(f"{x.shape[1]} channels don't make {groups} groups of one size")
    return group_norm_kernel(groups)(x, gamma, beta, **options)


def main() -> None:
    """Check against NumPy in float64."""
    rng = np.random.default_rng(0)
    for shape, groups, mean in (((2, 6, 700), 2, 100.0), ((1, 8, 49), 2, 0.0)):
        x = (rng.standard_normal(shape) + mean).astype(np.float32)
        gamma, beta = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
        wide = x.astype(np.float64).reshape(shape[0], groups, -1)
        normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + EPSILON)
        expected = normal.reshape(shape) * gamma[:, None] + beta[:, None]
        error = np.max(np.abs(group_norm(x, groups, gamma, beta) - expected))
        print(f"group norm of {shape} in {groups} groups: worst error {error:.1e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
