"""Random kernels under `kd.vmap`: each member of a batch, along any axis of each input, has the bits of a call of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.fuzz.__main__ import same_bits
from tests.fuzz.choose import Choices
from tests.fuzz.generate import generate


def check(seed: int, interpret: bool) -> None:
    program, c = generate(seed), Choices(seed + 10**6)
    members, axes, batches, parts = c.between(1, 3), list[int | None](), list[np.ndarray](), list[list[np.ndarray]]()
    for number, (source, shared) in enumerate(zip(program.inputs, program.arrays(), strict=True)):
        if number and c.chance(0.3):
            axes.append(None)
            batches.append(shared)
            parts.append([shared] * members)
            continue
        axis = c.between(0, shared.ndim)
        parts.append([source.data(shared.shape, seed + number + 1000 * n) for n in range(members)])
        batch = np.stack(parts[-1], axis)
        batches.append(np.asfortranarray(batch) if c.chance(0.3) else batch)
        axes.append(axis - batch.ndim if c.chance(0.3) else axis)
    if not axes:
        return
    kernel = program.kernel()
    alone: list[Any] = [kernel(*(x[n] for x in parts), interpret=interpret) for n in range(members)]
    for number, got in enumerate(kd.vmap(kernel, tuple(axes))(*batches, interpret=interpret)):
        wanted = np.stack([np.asarray(results[number]) for results in alone])
        made = np.asarray(got)
        same = made.shape == wanted.shape and made.dtype == wanted.dtype and same_bits(made, wanted)
        assert same, f"output {number} of seed {seed}, in_axes {axes}\n{program.source()}"


@pytest.mark.filterwarnings("ignore:.*encountered in cast")
def test_members_have_the_bits_of_calls_of_their_own() -> None:
    for seed in range(25):
        check(seed, True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*encountered in cast")
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_members_have_the_bits_of_calls_of_their_own_long(first: int) -> None:
    for seed in range(first, first + 500):
        check(seed, True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*encountered in cast")
def test_members_have_the_bits_of_calls_of_their_own_on_a_gpu() -> None:
    for seed in range(30):
        check(seed, False)
