"""Fourier transforms of rows of complex numbers by Stockham's algorithm: no bit reversal, and SMEM between the steps.

A row has radix ** 2 or radix ** 3 numbers. Each step makes small transforms of `radix` numbers, which one lane holds in
its registers. They are a Python list of values, so the small transform is plain Python, and the trace unrolls it.
Between steps, numbers go through SMEM, in rows of radix + 1 numbers. The last number of each row is unused; without it,
all lanes would access the same bank.

complex64 arrays come as float32 with a last axis of two, real and imaginary: a view in NumPy and in torch.

Run it: `python -m examples.30_fft`.
"""

from __future__ import annotations

import cmath
import functools
import math
from typing import Any

import numpy as np

import kernel_dsl as kd


def times(a: Any, b: Any) -> Any:
    """The product of complex numbers, as pairs."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def small(numbers: list[Any]) -> list[Any]:
    """The transform of a short list of complex numbers."""
    n = len(numbers)
    if n == 1:
        return numbers
    even, odd = small(numbers[0::2]), small(numbers[1::2])
    for k in range(1, n // 2):
        w = cmath.exp(-2j * math.pi * k / n)
        odd[k] = (odd[k][1], -odd[k][0]) if 4 * k == n else times(odd[k], (w.real, w.imag))
    pairs = list(zip(even, odd, strict=True))
    return [(a[0] + b[0], a[1] + b[1]) for a, b in pairs] + [(a[0] - b[0], a[1] - b[1]) for a, b in pairs]


def twisted(numbers: list[Any], place: Any, period: int) -> list[Any]:
    """Number k times exp(-2 pi i * k * place / period). Few products give the powers, so these are accurate."""
    angle = place.astype(kd.float32) * (-2 * math.pi / period)
    powers: list[Any] = [None, (kd.cos(angle), kd.sin(angle))]
    for k in range(2, len(numbers)):
        powers.append(times(powers[k // 2], powers[k - k // 2]))
    return [numbers[0], *(times(number, power) for number, power in zip(numbers[1:], powers[1:], strict=True))]


@functools.cache
def fft_kernel(radix: int, steps: int) -> Any:
    """(rows, radix ** steps, 2) float32, a row a warpgroup. `steps` is 2 or 3."""
    size = radix**steps
    rows = size // radix // radix  # a step's small transforms: (rows, radix) of them

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (x.shape[0],),
        grid_names=("row",),
        scratch_types=[kd.SMEM((size // radix, radix + 1), kd.float32) for _ in range(2)],
        name=f"fft_{size}",
    )
    def fft(x: Any, out: Any, real: Any, imaginary: Any) -> None:
        row = kd.axis_index("row")
        row_in, row_out = (ref.at[row].reshape(radix, rows, radix, 2) for ref in (x, out))
        pairs = [row_in[k] for k in range(radix)]
        numbers = small([(pair[..., 0], pair[..., 1]) for pair in pairs])
        column, line = (kd.broadcasted_iota(kd.int32, (rows, radix), axis) for axis in (1, 0))
        for step in range(1, steps):
            for k, number in enumerate(numbers):  # number k of transform (i, j) has place k behind the steps done
                for part, ref in zip(number, (real, imaginary), strict=True):
                    if step == 1:
                        ref[:, k] = part.reshape(size // radix)
                    else:
                        ref[k::radix, :radix] = part
            lines = [(slice(k * rows, (k + 1) * rows), slice(radix)) for k in range(radix)]
            taken = [(real[at], imaginary[at]) for at in lines]
            place = column if step == 1 else line * radix + column
            numbers = small(twisted(taken, place, radix ** (step + 1)))
        for k, (re, im) in enumerate(numbers):
            row_out[k] = kd.stack([re, im], axis=-1)

    return fft


def fft(x: Any, **options: Any) -> Any:
    """The transform of each row of (rows, n, 2) float32; n is the square or the cube of 4, 8 or 16."""
    n = x.shape[1]
    found = next(((r, s) for s in (2, 3) for r in (4, 8, 16) if r**s == n), None)
    if found is None:
        raise ValueError(f"rows of {n} numbers are no square or cube of 4, 8 or 16")
    return fft_kernel(*found)(x, **options)


def main() -> None:
    """Check against NumPy's transform in complex128."""
    rng = np.random.default_rng(0)
    for shape in ((3, 64), (2, 512)):
        x = rng.standard_normal((*shape, 2)).astype(np.float32)
        got = fft(x).astype(np.float64).view(np.complex128)[..., 0]
        expected = np.fft.fft(x.astype(np.float64).view(np.complex128)[..., 0])
        error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        print(f"FFT of {shape}: relative error {error:.1e}")
        assert error < 5e-7


if __name__ == "__main__":
    main()
