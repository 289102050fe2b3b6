"""Random kernels over random sizes, each through what it was compiled for first, against NumPy."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

SIZES = (0, 1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100)
DTYPES = ("float32", "int8", "float16", "int64")


def make(rng: np.random.Generator) -> tuple[Any, int]:
    """A kernel of (x, y) of one shape, and their rank: out is x + y where it is whole, tile by tile."""
    rank = int(rng.integers(1, 4))
    tile = (*(int(rng.choice([1, 4, 8])) for _ in range(rank - 1)), int(rng.choice([8, 32, 64])))
    ways = [str(rng.choice(["cdiv", "opaque", "loop"])) for _ in range(rank)]
    shift = int(rng.choice([0, 0, 3]))

    def count(n: Any, size: int, way: str) -> Any:
        return max(-(-int(n) // size), 0) if way == "opaque" else kd.cdiv(n, size)

    def grid(x: Any, y: Any) -> tuple[Any, ...]:
        return tuple(2 if w == "loop" else count(n, t, w) for n, t, w in zip(x.shape, tile, ways, strict=True))

    def body(x: Any, y: Any, out: Any) -> None:
        def at(axis: int, index: list[Any]) -> None:
            if axis == rank:
                where = tuple(index)
                # what lies before it too, of which a part may lie before the array
                early = (kd.ds(where[0].start - shift, tile[0]), *where[1:])
                out[where] = x[where] + kd.load(y, where, fill=1) + x[early] * 0
            elif ways[axis] == "loop":

                @kd.loop(0, kd.cdiv(max(SIZES), 2 * tile[axis]))
                def _(turn: Any) -> None:
                    start = (turn * 2 + kd.program_id(axis)) * tile[axis]
                    at(axis + 1, [*index, kd.ds(start, tile[axis])])
            else:
                start = kd.program_id(axis) * tile[axis]
                at(axis + 1, [*index, kd.ds(start, tile[axis])])

        at(0, [])

    return kd.kernel(body, out_type=lambda x, y: x, grid=grid, name="tiles"), rank


def arrays(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Two arrays, now and then with gaps, in another order, or off by an element."""
    out: list[np.ndarray[Any, Any]] = []
    for _ in range(2):
        data = rng.integers(0, 50, size=(2, *shape)).astype(dtype)
        kind = int(rng.integers(0, 5))
        if kind == 1:
            array = np.asfortranarray(data[0])
        elif kind == 2:
            array = np.repeat(data[0], 2, axis=-1)[..., ::2]
        elif kind == 3:
            flat = np.zeros(data[0].size + 16, dtype)
            array = flat[1 : 1 + data[0].size].reshape(shape)
            array[...] = data[0]
        else:
            array = data[0]
        out.append(array)
    return out


def run(seed: int, calls: int = 5) -> None:
    rng = np.random.default_rng(seed)
    kernel, rank = make(rng)
    dtype = np.dtype(str(rng.choice(DTYPES)))
    signatures: set[Any] = set()
    for _ in range(calls):
        shape = tuple(int(n) for n in rng.choice(SIZES, size=rank))
        if np.prod(shape) > 20000:
            continue
        x, y = arrays(rng, shape, dtype)
        np.testing.assert_array_equal(kernel(x, y, interpret=True), x + y, err_msg=f"seed {seed}, {shape}")
        width = 16 // dtype.itemsize
        signatures.add(
            (*((a.flags.c_contiguous, a.ctypes.data % 16 if a.size else 0) for a in (x, y)),
             tuple(np.gcd(n, width) for n in shape[1:]))
        )  # fmt: skip
    assert len(kernel.specialisations()) <= len(signatures), f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(4)
def test_random_kernels(seed: int) -> None:
    run(seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    for number in range(given.seed, given.seed + given.count):
        run(number, 8)
