"""Random chains of operations that rearrange values: NumPy's results, and no more registers than the elements are worth."""

from __future__ import annotations

import argparse
import random
from math import prod
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.ir import ArrayType
from kernel_dsl.ops.join import Concatenate
from kernel_dsl.ops.shape import MANY, WASTE, Pick

STEPS = (
    "half",
    "cat",
    "stack",
    "flip",
    "pad",
    "reshape",
    "transpose",
    "add",
    "outer",
    "steps",
    "swap",
    "roll",
    "index",
)


def rearranged(v: Any, xp: Any, r: random.Random, count: int) -> Any:
    """The value after some steps; `xp` is `kd` or NumPy."""
    for _ in range(count):
        axis = r.randrange(v.ndim)
        extent, size = v.shape[axis], prod(v.shape)

        def part(*bounds: Any, v: Any = v, axis: int = axis) -> Any:
            return v[(slice(None),) * axis + (slice(*bounds),)]

        step = r.choice(STEPS)
        if step == "half" and extent > 1:
            v = part(0, extent // 2) + part(extent - extent // 2, extent)
        elif step == "cat" and size < 4096:
            v = xp.concatenate([v, v * 2], axis=axis)
        elif step == "stack" and v.ndim < 4 and size < 4096:
            v = xp.stack([v, v + 1], axis=r.randrange(v.ndim + 1))
        elif step == "flip":
            v = xp.flip(v, axis)
        elif step == "pad":
            v = xp.pad(v, [(1, 2) if i == axis else (0, 0) for i in range(v.ndim)])
        elif step == "reshape":
            rows = r.choice([d for d in range(1, size + 1) if size % d == 0])
            v = v.reshape(rows, size // rows)
        elif step == "transpose":
            v = v.transpose(tuple(r.sample(range(v.ndim), v.ndim)))
        elif step == "add":
            v = v + xp.flip(v, axis)
        elif step == "outer" and v.ndim == 1 and extent <= 64:
            v = v[:, None] * v[None]
        elif step == "steps":
            v = part(None, None, 2)
        elif step == "swap" and extent % 2 == 0:
            one, other = xp.split(v, 2, axis)
            v = xp.concatenate([other, one], axis=axis)
        elif step == "roll" and extent > 1:
            v = xp.concatenate([part(1, extent), part(0, 1)], axis=axis)
        elif step == "index" and v.ndim > 1:
            v = v[(slice(None),) * axis + (r.randrange(extent),)]
    return v % 1009


def run(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.choice([8, 16, 32, 64, 100, 128, 256, 1000])
    shape = rng.choice([(n,), (n, rng.choice([1, 2, 3, 8, 16])), (rng.choice([1, 2, 4, 7]), n)])
    count, steps = rng.randrange(2, 9), rng.randrange(1 << 30)
    x = np.random.default_rng(seed).integers(0, 9, shape).astype(np.int32)
    want = rearranged(x, np, random.Random(steps), count)

    def body(x: Any, out: Any) -> None:
        out[...] = rearranged(x[...], kd, random.Random(steps), count)

    kernel = kd.kernel(body, out_type=kd.ShapeDtypeStruct(want.shape, kd.int32))
    np.testing.assert_array_equal(kernel(x, interpret=True), want, err_msg=f"seed {seed}")
    for op in kernel.lower(x).ir.walk():
        for value in op.results if isinstance(op, (Pick, Concatenate)) else ():
            if isinstance(value.type, ArrayType):
                needed = -(-prod(value.type.shape) // 128)
                assert value.type.layout.registers <= max(MANY, WASTE * needed), f"seed {seed}: {value.type}"


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.sampled(4)
def test_chains(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_chains_at_length() -> None:
    for seed in range(16, 400):
        run(seed)


def test_halves_that_are_joined_again() -> None:
    """Slices of half of an axis, joined along another: the number of registers stays that of the elements."""

    def body(x: Any, out: Any) -> None:
        v = x[...].reshape(1, 256)
        while v.shape[1] > 1:
            one, other = kd.split(v, 2, 1)
            v = kd.concatenate([one + other, one - other], axis=0)
        out[...] = v.reshape(256)

    kernel = kd.kernel(body, out_type=lambda x: x)
    x = np.random.default_rng(0).integers(-9, 9, 256).astype(np.int32)
    hadamard = np.ones((1, 1), np.int64)
    for _ in range(8):
        hadamard = np.concatenate([np.kron(hadamard, [1, 1]), np.kron(hadamard, [1, -1])])
    np.testing.assert_array_equal(np.sort(kernel(x, interpret=True)), np.sort(hadamard @ x))
    types = [v.type for op in kernel.lower(x).ir.walk() for v in op.results if isinstance(v.type, ArrayType)]
    assert max(t.layout.registers for t in types if t.shape) <= MANY


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=400)
    given = parser.parse_args()
    for number in range(given.seed, given.seed + given.count):
        run(number)
