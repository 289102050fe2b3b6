"""Parts of values, and what takes them apart further: other lanes of a part's layout hold what is outside of it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

SHAPES = [(64, 64), (16, 128), (128, 8), (8, 4, 32)]
# What is done with a part of a value, with the same names in NumPy.
TAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "squeeze": lambda of, v: of.squeeze(v),
    "reshape": lambda of, v: of.reshape(v, (-1,)),
    "sum": lambda of, v: of.sum(v, axis=-1),
    "max": lambda of, v: of.max(v, axis=0),
    "broadcast": lambda of, v: of.broadcast_to(v, (2, *v.shape)),
    "transpose": lambda of, v: of.transpose(v),
    "concatenate": lambda of, v: of.concatenate([v, v], 0),
    "flip": lambda of, v: of.flip(v, 0),
    "squeezed and added": lambda of, v: of.squeeze(v) + of.sum(v),
    "cumsum": lambda of, v: of.cumsum(v, axis=0),
}


def _part(choose: random.Random, extent: int) -> slice:
    size = choose.choice([1, 1, extent // 2, extent, extent])
    start = choose.randrange(extent - size + 1)
    return slice(start, start + size)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("seed", range(16))
def test_what_is_taken_from_parts(name: str, seed: int) -> None:
    choose = random.Random(f"{name} {seed}")
    shape = choose.choice(SHAPES)
    parts = tuple(_part(choose, n) for n in shape)
    x = np.random.default_rng(seed).integers(-50, 50, shape).astype(np.float32)
    spread = choose.random() < 0.5 and shape == (64, 64)
    expected = np.asarray(TAKERS[name](np, x[parts]))

    def body(x: Any, out: Any) -> None:
        value = kd.layout_cast(x[...], kd.Layout.WGMMA) if spread else x[...]
        out[...] = TAKERS[name](kd, value[parts])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = kd.kernel(body, out_type=kd.ShapeDtypeStruct(expected.shape, kd.float32))(x, interpret=True)
    np.testing.assert_array_equal(got, expected)
