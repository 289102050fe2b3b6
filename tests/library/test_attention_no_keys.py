"""kd.library.attention of no keys at all: zeros, a logarithm of -inf or the sink, and no gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.hopper.helpers import random

from .test_attention_options import OPTIONS, inputs, made

bf16, f16, f32, f64, e4m3 = kd.bfloat16, kd.float16, kd.float32, kd.float64, kd.float8_e4m3fn


def zeros(x: Any, shape: tuple[int, ...]) -> bool:
    return x.shape == shape and not x.astype(f64).any()


@pytest.mark.parametrize("names", [(), *((name,) for name in OPTIONS), ("bottom_right", "sinks", "bias")], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f16, f32, f64, e4m3], ids=str)
@pytest.mark.sampled(12)
def test_no_keys(names: tuple[str, ...], dtype: Any, rng: Any, interpret: Any) -> None:
    """Of a dense call, as of a ragged one: rows that see no key."""
    q, k, v = inputs(rng, 2, 4, 2, 70, 0, 64, 80, dtype)
    options = made(names, rng, (2, 4, 70, 0))
    out, lse = kd.library.attention(q, k, v, **options, return_lse=True, interpret=interpret)
    sinks = options.get("sinks", np.full(4, -np.inf, np.float32))
    assert zeros(out, (2, 4, 70, 80)) and (lse == sinks[None, :, None]).all()
    if dtype != e4m3:
        dout = random(rng, out.shape, dtype)
        grads = kd.library.attention_backward(dout, q, k, v, out, lse, **options, interpret=interpret)
        extras = [options[name].shape for name in ("sinks", "bias") if name in options]
        assert all(zeros(x, s) for x, s in zip(grads, (q.shape, k.shape, v.shape, *extras), strict=True))


@pytest.mark.parametrize("pages", [0, 3])
def test_no_pages(pages: int, rng: Any, interpret: Any) -> None:
    """A table without columns, with and without pages that it could name."""
    q, k, v = inputs(rng, 2, 4, 2, 5, 16, 64, 64, bf16)
    table = np.zeros((2, 0), np.int32)
    kept = (np.concatenate([x, x])[:pages] for x in (k, v))
    out, lse = kd.library.attention(q, *kept, page_table=table, return_lse=True, interpret=interpret)
    assert zeros(out, q.shape) and np.isneginf(lse).all()
