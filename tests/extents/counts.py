"""How many kernels the library compiles for many sizes, as docs/extents.md gives them: `python -m tests.extents.counts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import ml_dtypes
import numpy as np

import kernel_dsl as kd
from kernel_dsl import ahead_calls

from .counting import counted, none_before

bf16 = ml_dtypes.bfloat16
PRODUCTS = ((4096, 4096), (512, 8192))  # (N, K)


def of_each_order(most: int, count: int) -> Iterator[int]:
    """Random numbers up to a power of two, as many of each order of magnitude."""
    return (int(2**x) for x in np.random.default_rng(0).uniform(0, np.log2(most), count))


def products(n: int, k: int, rows: Iterable[int]) -> list[list[str]]:
    """For each product of these numbers of rows in turn, the kernels that all so far have compiled."""
    matmul, so_far = type(kd.library.matmul)(), list[list[str]]()
    with none_before(), counted() as found:
        for m in rows:
            matmul(np.zeros((m, k), bf16), np.zeros((k, n), bf16))
            so_far.append(list(found))
    return so_far


def warm(n: int, k: int, most: int) -> int:
    """The number of kernels that `kd.warm` compiles for products of up to `most` rows."""
    rows = kd.Dim("M", max=most)
    with none_before():
        structs = kd.ShapeDtypeStruct((rows, k), kd.bfloat16), kd.ShapeDtypeStruct((k, n), kd.bfloat16)
        return len({id(kernel) for kernel, _ in ahead_calls.noted(ahead_calls.calls_of(kd.library.matmul, structs))})


def images(count: int) -> int:
    """The number of kernels that convolutions of images of random sizes compile."""
    rng, w = np.random.default_rng(0), np.zeros((64, 3, 3, 64), bf16)
    with none_before(), counted() as found:
        for _ in range(count):
            shape = (*(int(n) for n in rng.integers((1, 7, 7), (33, 113, 113))), 64)
            kd.library.conv2d(np.zeros(shape, bf16), w, padding=1)
    return len(found)


if __name__ == "__main__":
    for n, k in PRODUCTS:
        made = products(n, k, of_each_order(16384, 100))
        parts = sum("combine" in name for name in made[-1])
        print(
            f"N {n}, K {k}: {len(made[-1])} kernels for 100 M up to 16384, {parts} of them add parts of K; {len(made[9])} for the first 10"
        )
    print(f"N 1024, K 4096: kd.warm compiles {warm(1024, 4096, 8192)} kernels for all M up to 8192")
    print(f"convolutions of 3 x 3, 64 channels: {images(60)} kernels for 60 sizes of images")
