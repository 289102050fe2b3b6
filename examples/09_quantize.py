"""Quantisation to 8 bits: each group of 128 neighbours gets a float32 scale, and its elements become float8_e4m3fn.

The scale maps the group's largest magnitude to the largest finite e4m3 number, 448. A block computes several groups.
Sixteen lanes of a warp hold a group, so its maximum takes four shuffles and no SMEM.

Run it: `python -m examples.09_quantize`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

GROUP = 128
LARGEST = 448.0  # finite number of e4m3


def spread(groups: int) -> Any:
    """A (groups, 128) block of 16-bit elements: eight neighbours a lane, sixteen lanes a group, two groups a warp."""
    lanes = ((1, 8), (1, 16), (1, 32), (1, 64), (0, 1))
    return kd.Layout(2, ((0, groups // 8, 8), (1, 8, 1)), lanes, ((0, 2), (0, 4)))


@functools.cache
def quantize_kernel(groups: int = 32) -> Any:
    """The kernel whose blocks compute `groups` groups each, a multiple of 8."""

    @kd.kernel(
        out_type=lambda x: (
            kd.ShapeDtypeStruct(x.shape, kd.float8_e4m3fn),
            kd.ShapeDtypeStruct((*x.shape[:-1], x.shape[-1] // GROUP), kd.float32),
        ),
        grid=lambda x: (kd.cdiv(x.size // GROUP, groups),),
        grid_names=("block",),
        name=f"quantize_{groups}_groups",
    )
    def quantize(x: Any, out: Any, scales: Any) -> None:
        block = kd.ds(kd.axis_index("block") * groups, groups)
        count = x.size // GROUP
        value = kd.load(x.reshape(count, GROUP), block, layout=spread(groups)).astype(kd.float32)
        largest = kd.max(kd.abs(value), axis=1)
        inverse = kd.where(largest > 0, LARGEST / largest, 0.0)
        out.reshape(count, GROUP)[block] = (value * inverse[:, None]).astype(kd.float8_e4m3fn)
        scales.reshape(count)[block] = largest * (1 / LARGEST)

    return quantize


def quantize(x: Any, **options: Any) -> Any:
    """(values, scales) of an array whose last axis is a multiple of 128: x is approximately values * scales."""
    return quantize_kernel()(x, **options)


def reference(x: Any) -> tuple[Any, Any]:
    """Scaled values and scales in float64, the values not rounded."""
    groups = x.astype(np.float64).reshape(*x.shape[:-1], -1, GROUP)
    scales = np.abs(groups).max(-1) / LARGEST
    return (groups / np.where(scales > 0, scales, 1)[..., None]).reshape(x.shape), scales


def main() -> None:
    """Check values to half a unit in the last place of e4m3, and scales to float32's precision."""
    rng = np.random.default_rng(0)
    for shape in [(4, 128), (9, 384), (16, 1024)]:
        x = (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, shape))).astype(kd.bfloat16.numpy)
        x[0, :128] = 0  # a group of zeros: scale 0, no NaN
        values, scales = quantize(x)
        exact, exact_scales = reference(x)
        got = values.astype(np.float64)
        place = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-9))), -6) - 3)
        worst = np.max(np.abs(got - exact) / place)
        assert np.max(np.abs(scales - exact_scales) / np.maximum(exact_scales, 1e-30)) < 1e-6
        assert worst <= 0.5001
        print(f"quantize {shape}: within {worst:.3f} units in the last place")


if __name__ == "__main__":
    main()
