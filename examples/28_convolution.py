"""A causal convolution along time for each channel, by a pipeline whose blocks overlap by a halo.

out[c, t] = sum over j of w[c, j] * x[c, t - TAPS + 1 + j], so a block of outputs also needs inputs before it.
`kd.Element(size, padding)` is an extent of a block whose index counts elements, so that blocks may start anywhere and
overlap. `padding` puts zeros before the array, so the first block is not a special case. The halo is 16 bytes wide,
more than the taps need, because copies by TMA start at multiples of 16 bytes; other blocks are copied by lanes.

Run it: `python -m examples.28_convolution`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

TAPS = 4


@functools.cache
def convolution_kernel(channels: int = 8, wide: int = 256) -> Any:
    """(channels, time) and (channels, TAPS) to (channels, time), by blocks of `channels` x `wide` with the halo."""

    @kd.kernel(
        out_type=lambda x, w: x,
        grid=lambda x, w: (kd.cdiv(x.shape[0], channels),),
        grid_names=("channels",),
        name=f"causal_convolution_{channels}x{wide}",
    )
    def convolution(x: Any, w: Any, out: Any) -> None:
        block = kd.axis_index("channels")
        halo = 16 // x.dtype.itemsize
        spread = kd.Layout.WG_STRIDED((channels, wide - halo), 2)
        times = wide - halo  # up to 256 elements a row are one box of TMA
        weights = kd.load(w, (kd.ds(block * channels, channels),)).astype(kd.float32)

        def step(_: Any, block_in: Any, result: Any) -> None:
            total = kd.zeros((channels, times), kd.float32)
            for tap in range(TAPS):
                start = (
                    halo - TAPS + 1 + tap
                )  # all taps load in one layout; without it, each alignment would have its own
                shifted = kd.load(block_in, (slice(None), slice(start, start + times)), layout=spread)
                total = total + weights[:, tap : tap + 1] * shifted.astype(kd.float32)
            result[...] = total.astype(x.dtype)

        kd.emit_pipeline(
            step,
            grid=(kd.cdiv(x.shape[1], times),),
            in_specs=[kd.BlockSpec((channels, kd.Element(wide, (halo, 0))), lambda t: (block, t * times))],
            out_specs=[kd.BlockSpec((channels, times), lambda t: (block, t))],
            max_concurrent_steps=4,
        )(x, out)

    return convolution


def convolution(x: Any, w: Any, **options: Any) -> Any:
    """x (channels, time) of any float dtype, w (channels, TAPS)."""
    return convolution_kernel()(x, w, **options)


def main() -> None:
    """Check against NumPy in float64."""
    rng = np.random.default_rng(0)
    kernel = convolution_kernel(8, 128)
    for shape, dtype, tolerance in (((13, 300), np.dtype(np.float32), 1e-5), ((8, 256), kd.bfloat16.numpy, 4e-2)):
        x = rng.standard_normal(shape).astype(dtype)
        w = rng.standard_normal((shape[0], TAPS)).astype(dtype)
        padded = np.pad(x.astype(np.float64), [(0, 0), (TAPS - 1, 0)])
        expected = sum(w[:, j : j + 1].astype(np.float64) * padded[:, j : j + shape[1]] for j in range(TAPS))
        error = np.max(np.abs(kernel(x, w).astype(np.float64) - expected))
        print(f"causal convolution of {shape} {dtype.name}: worst error {error:.1e}")
        assert error < tolerance


if __name__ == "__main__":
    main()
