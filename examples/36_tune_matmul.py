"""Tuning: `kd.tune` finds the tile, depth and stages of a matrix product, among configurations that a model of the GPU
ranks.

On a GPU, the first call for a shape compiles the eight best-ranked configurations in child processes, compares their
results, and times them in turn. It keeps the result beside the disk cache, so the next process measures nothing.
Without a GPU, `kd.tune` takes the best-ranked configuration, and the kernel runs in the PTX interpreter. The table
shows all that is known of each configuration.

Run it: `python examples/36_tune_matmul.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd

MULTIPROCESSORS = 132
MADS = 1024  # of mma.sync on 16-bit floats, a clock of a multiprocessor
L2_BYTES = 60  # a multiprocessor loads in a clock
STEP = 250  # clocks of a step that few stages do not hide


@dataclass(frozen=True)
class Config:
    """A tile of the result, the depth of a step along K, and how many steps are in SMEM."""

    m: int
    n: int
    k: int
    stages: int


def space() -> Iterator[Config]:
    """All configurations; `kd.tune` drops those that do not fit."""
    for sizes in itertools.product((64, 128), (64, 128, 256), (32, 64), (2, 3, 4, 6)):
        yield Config(*sizes)


def predict(config: Config, a: Any, b: Any) -> float:
    """Clocks: the rounds of tiles, times the steps of a tile, times the product or the load of a step."""
    c = config
    tiles = kd.cdiv(a.shape[0], c.m) * kd.cdiv(b.shape[1], c.n)
    step = max(c.m * c.n * c.k / MADS, (c.m + c.n) * c.k * 2 / L2_BYTES) + STEP / (c.stages - 1)
    return kd.cdiv(tiles, MULTIPROCESSORS) * (kd.cdiv(a.shape[1], c.k) + c.stages - 1) * step


def swizzle(rows: int, columns: int, stages: int, dtype: Any) -> Any:
    """Stages of a tile in SMEM, as ldmatrix reads it without conflicts."""
    span = min(columns * dtype.itemsize, 128)
    transforms = (kd.TilingTransform((8, span // dtype.itemsize)), kd.SwizzleTransform(span))
    return kd.SMEM((stages, rows, columns), dtype, transforms=transforms)


@kd.tune(space, key=lambda a, b: (a.dtype, a.shape, b.shape), predict=predict, keep=8, seconds=2.0)
def matmul(config: Config) -> kd.Kernel:
    """out = a @ b in float32, for 16-bit floats whose rows are multiples of 16 bytes."""
    c = config

    @kd.kernel(
        out_type=lambda a, b: kd.ShapeDtypeStruct((a.shape[0], b.shape[1]), kd.float32),
        grid=lambda a, b: (kd.cdiv(a.shape[0], c.m), kd.cdiv(b.shape[1], c.n)),
        grid_names=("m", "n"),
        scratch_types=lambda a, b: [swizzle(c.m, c.k, c.stages, a.dtype), swizzle(c.k, c.n, c.stages, b.dtype)],
        name=f"matmul_{c.m}x{c.n}x{c.k}_{c.stages}",
    )
    def body(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any) -> None:
        rows, columns = kd.ds(kd.axis_index("m") * c.m, c.m), kd.ds(kd.axis_index("n") * c.n, c.n)

        def fetch(step: Any) -> None:
            slot = step % c.stages if isinstance(step, int) else kd.rem(step, c.stages)
            depth = kd.ds(step * c.k, c.k)  # zeros past the end
            kd.copy_gmem_to_smem(a.at[rows, depth], a_smem.at[slot])
            kd.copy_gmem_to_smem(b.at[depth, columns], b_smem.at[slot])

        for step in range(c.stages - 1):
            fetch(step)

        @kd.loop(0, kd.cdiv(a.shape[1], c.k), init_carry=kd.zeros((c.m, c.n), kd.float32))
        def total(step: Any, acc: Any) -> Any:
            kd.wait_gmem_to_smem(2 * (c.stages - 2))
            slot = kd.rem(step, c.stages)
            x, y = a_smem[slot], b_smem[slot]
            fetch(step + c.stages - 1)
            return kd.dot(x, y, acc=acc)

        out[rows, columns] = total

    return body


def main() -> None:
    """Compare with float64, and show the table of a size that fills a GPU."""
    rng = np.random.default_rng(0)
    for m, n, k in [(64, 64, 64), (200, 136, 72)]:
        a, b = (rng.standard_normal(shape).astype(kd.bfloat16.numpy) for shape in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b.astype(np.float64)
        error = np.abs(matmul(a, b) - expected).max() / np.abs(expected).max()
        found = matmul.tune(a, b)
        print(f"{m} x {n} x {k}: {found.best}, {found.how}; worst error {error:.1e}")
        assert error < 1e-5
    large = kd.ShapeDtypeStruct((4096, 4096), kd.bfloat16)
    table = matmul.tune(large, large)
    print(table)
    times = [row.seconds for row in table.rows if row.config == table.best]
    assert (times[0] is not None) == (table.how in ("measured", "kept"))


if __name__ == "__main__":
    main()
