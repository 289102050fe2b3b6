"""The fast matrix product: persistent blocks, a producer, consumers, and stores that overlap the next tile.

The kernel is `kernel_dsl/library/product_kernels/persistent_matmul.py`, which `kd.library.matmul` runs; docs/matmul.md
explains its speed. This example calls it for every dtype and transpose, with an epilogue, and with clusters of two
blocks that share tiles of B by multicast.

Run it: `python examples/12_matmul_persistent.py`. Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

SMALL = kd.library.MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32)
SHARED = kd.library.MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32, cluster=2)


def gelu(x: Any) -> Any:
    """The activation of the epilogue, on accumulators in registers."""
    return 0.5 * x * (1.0 + kd.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def operand(rng: Any, shape: tuple[int, int], dtype: Any, transposed: bool) -> Any:
    """Random data of a shape, stored by columns where `transposed`."""
    stored = shape[::-1] if transposed else shape
    if dtype.is_float:
        x = rng.standard_normal(stored).astype(dtype.numpy)
    else:
        x = rng.integers(-9 if dtype.is_signed else 0, 10, stored).astype(dtype.numpy)
    return x.T if transposed else x


def check(what: str, got: Any, expected: Any, tolerance: float) -> None:
    """Print and assert the worst error, of the largest magnitude."""
    error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
    print(f"{what}: worst error {error:.1e}")
    assert error <= tolerance


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    for ta in (False, True):
        for tb in (False, True):
            a, b = operand(rng, (200, 136), kd.bfloat16, ta), operand(rng, (136, 72), kd.bfloat16, tb)
            words = f"bfloat16 {'T' if ta else 'N'}{'T' if tb else 'N'}"
            check(words, kd.library.matmul(a, b, config=SMALL), a.astype(np.float64) @ b.astype(np.float64), 5e-3)
    for dtype in (kd.float16, kd.float8_e4m3fn, kd.float8_e5m2, kd.int8, kd.uint8):
        a, b = operand(rng, (128, 128), dtype, False), operand(rng, (128, 64), dtype, True)
        got = kd.library.matmul(a, b)
        check(f"{dtype} to {kd.dtypes.as_dtype(got.dtype)}", got, a.astype(np.float64) @ b.astype(np.float64), 5e-3)
    a, b = operand(rng, (256, 128), kd.bfloat16, False), operand(rng, (128, 64), kd.bfloat16, True)
    bias = rng.standard_normal(64).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    check("a cluster of two", kd.library.matmul(a, b, config=SHARED), exact, 5e-3)
    got = kd.library.matmul(a, b, bias=bias, activation=gelu, out_dtype=kd.float32, config=SMALL)
    y = exact + bias
    check("bias and gelu", got, 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y**3))), 1e-5)


if __name__ == "__main__":
    main()
