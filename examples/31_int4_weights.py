"""A linear layer whose weights have 4 bits: packed once, multiplied many times, a quarter of bfloat16's memory.

`kd.library.pack_int4` rounds weights to 4 bits, with one scale for each group of 128 rows of a column, and stores them
in the order that tensor cores read. `kd.library.matmul` takes the result in place of an array. With few rows, a product
takes the time that its weights take to be read, so 4 bits are up to four times as fast. They cost accuracy, which this
example measures, too.

Run it: `python -m examples.31_int4_weights`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd


def swish(v: Any) -> Any:
    """x * sigmoid(x). The function is defined once: a new function in each call would be compiled in each call."""
    return v * kd.sigmoid(v)


def linear(x: Any, weights: Any, bias: Any, **options: Any) -> Any:
    """silu(x @ weights + bias): x (rows, K) of 16-bit floats, weights the result of `pack_int4` for (K, N)."""
    return kd.library.matmul(x, weights, bias=bias, activation=swish, **options)


def silu(x: np.ndarray[Any, Any]) -> Any:
    """The same in NumPy."""
    return x / (1 + np.exp(-x))


def main() -> None:
    """Check the product of the rounded weights to bfloat16's precision, and measure the error of the rounding."""
    rng = np.random.default_rng(0)
    rows, N, K = 8, 64, 256
    x = rng.standard_normal((rows, K)).astype(kd.bfloat16.numpy)
    w = (rng.standard_normal((K, N)) / np.sqrt(K)).astype(np.float32)
    bias = rng.standard_normal(N).astype(kd.bfloat16.numpy)
    packed = kd.library.pack_int4(w, zeros=True)
    got = linear(x, packed, bias).astype(np.float64)
    wide, offset = x.astype(np.float64), bias.astype(np.float64)
    rounded = silu(wide @ packed.unpacked(kd.bfloat16).astype(np.float64) + offset)
    exact = silu(wide @ w.astype(np.float64) + offset)
    error, loss = (np.linalg.norm(got - e) / np.linalg.norm(e) for e in (rounded, exact))
    print(f"int4 linear layer of {rows} x {N} x {K}: error {error:.1e}, and {loss:.2f} by rounding weights to 4 bits")
    assert error < 5e-3 and loss < 0.15


if __name__ == "__main__":
    main()
