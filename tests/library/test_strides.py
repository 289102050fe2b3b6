"""Operands and results of products and attention that lie in any way: strides, addresses, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.hopper.helpers import random, relative

from . import attention_reference as reference

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16 = kd.bfloat16, kd.float16


def product(rng: Any, M: int, N: int, K: int) -> tuple[Any, Any, Any]:
    a, b = random(rng, (M, K), f16), random(rng, (K, N), f16)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("backwards", [False, True])
def test_inputs_that_tma_cannot_take(backwards: bool, rng: Any) -> None:
    """Rows in reverse, and fp8 of two kinds that are not contiguous along K: the general kernels take them."""
    a, b = random(rng, (72, 64), bf16), random(rng, (64, 64), bf16)
    a = a[::-1] if backwards else a[:, ::-1]
    got = kd.library.matmul(a, b, interpret=True)
    assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 4e-3
    a, b = random(rng, (40, 32), kd.float8_e5m2), random(rng, (32, 48), kd.float8_e4m3fn)
    a, b = (b.T, a.T) if backwards else (a, b)
    assert relative(kd.library.matmul(a, b, interpret=True), a.astype(np.float64) @ b.astype(np.float64)) < 4e-3
    q = random(rng, (1, 1, 64, 64), bf16)
    q = q[:, :, ::-1] if backwards else np.ascontiguousarray(q.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    assert relative(kd.library.attention(q, q, q, interpret=True), reference.plain(q, q, q, False)[0]) < 8e-3


def placed(kind: str, shape: tuple[int, ...], fill: Any) -> Any:
    """An array of zeros that lies as `kind` says; `fill` is what its base holds, and shall keep."""
    base = np.full((*shape[:-1], 2 * shape[-1] + 8), fill, np.float16)
    views = {
        "padded": base[..., : shape[-1]],
        "transposed": np.full((*shape[:-2], shape[-1], shape[-2]), fill, np.float16).swapaxes(-1, -2),
        "strided": base[..., : 2 * shape[-1] : 2],
        "backwards": base[..., ::-1, : shape[-1]],
        "misaligned": base[..., 1 : shape[-1] + 1],
    }
    return views[kind]


@pytest.mark.parametrize("kind", ["padded", "transposed", "strided", "backwards", "misaligned"])
@pytest.mark.sampled(4)
def test_results_that_tma_cannot_store(kind: str, rng: Any) -> None:
    """`out=` of any strides and address is filled, and nothing beside it."""
    a, b, expected = product(rng, 72, 64, 32)
    q, k, v = (random(rng, (1, 2, 40, 64), f16) for _ in range(3))
    for shape, call, right in (
        ((72, 64), lambda out: kd.library.matmul(a, b, out=out, interpret=True), expected),
        (
            (1, 2, 40, 64),
            lambda out: kd.library.attention(q, k, v, out=out, interpret=True),
            reference.plain(q, k, v, False)[0],
        ),
    ):
        out = placed(kind, shape, -7)
        base = out.base
        assert call(out) is out and relative(out, right) < 4e-3
        out[...] = -7
        assert (base == -7).all()


def test_results_in_place(interpret: Any, rng: Any) -> None:
    """c and q may be overwritten; a, b, k and v are read by other blocks, and may not."""
    a, b, expected = product(rng, 64, 64, 64)
    c = random(rng, (64, 64), f16)
    expected = expected + c
    assert relative(kd.library.matmul(a, b, c=c, out=c, interpret=interpret), expected) < 4e-3
    q, k, v = random(rng, (1, 2, 72, 64), f16), random(rng, (1, 1, 72, 64), f16), random(rng, (1, 1, 72, 64), f16)
    expected = reference.plain(q, k, v, True)[0]
    assert relative(kd.library.attention(q, k, v, causal=True, out=q, interpret=interpret), expected) < 4e-3
    k, v = random(rng, q.shape, f16), random(rng, q.shape, f16)
    for word, call in (
        ("a", lambda: kd.library.matmul(a, b, out=a, interpret=True)),
        ("b", lambda: kd.library.matmul(a, b.T, out=b, interpret=True)),
        ("k", lambda: kd.library.attention(q, k, v, out=k, interpret=True)),
        ("v", lambda: kd.library.attention(q, k, v, out=(v, np.empty((1, 2, 72), np.float32)), return_lse=True)),
    ):
        with pytest.raises(ValueError, match=f"out= is the memory of {word}"):
            call()
