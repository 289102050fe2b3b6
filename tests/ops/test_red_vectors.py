"""Sums into GMEM whose old values nobody reads: several neighbours an instruction, each added once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

f16, bf16, f32 = kd.float16, kd.bfloat16, kd.float32
DEVICES = [pytest.param(True, id="interpreter"), pytest.param(False, id="cuda", marks=pytest.mark.gpu)]


def adder(dtype: Any, n: int, start: int = 0, size: int = 1024, **options: Any) -> Any:
    """Four blocks add to out[start : start + n]."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((size,), dtype, init=0), grid=(4,), grid_names=("i",))
    def kernel(x: Any, out: Any) -> None:
        kd.atomic_add(out.at[kd.ds(start, n)], x[kd.axis_index("i")], **options)

    return kernel


def reds(kernel: Any, *args: Any, target: str = "sm_90a") -> set[str]:
    return set(re.findall(r"\b(?:red|atom)\.[\w.:]+", kernel.lower(*args, target=target).compile().ptx))


@pytest.mark.parametrize(
    ("dtype", "n", "start", "size", "form"),
    [
        (f32, 512, 0, 1024, "add.v4.f32"),
        (f32, 256, 4, 1024, "add.v4.f32"),
        (f32, 512, 2, 1024, "add.v2.f32"),
        (f32, 512, 1, 1024, "add.f32"),
        (f32, 512, 512, 768, "add.v4.f32"),
        (f32, 512, 512, 770, "add.f32"),
        (f16, 1024, 0, 1024, "add.noftz.v4.f16x2"),
        (f16, 512, 4, 1024, "add.noftz.v2.f16x2"),
        (bf16, 1024, 0, 1024, "add.noftz.v4.bf16x2"),
        (bf16, 256, 2, 1024, "add.noftz.bf16x2"),
        (bf16, 256, 1, 1024, "add.noftz.bf16"),
        (kd.int32, 512, 0, 1024, "add.s32"),
    ],
)
@pytest.mark.parametrize("interpret", DEVICES)
def test_neighbours_are_added_at_once(
    dtype: Any, n: int, start: int, size: int, form: str, interpret: bool, rng: Any
) -> None:
    x = rng.integers(-8, 9, (4, n)).astype(dtype.numpy)  # sums are exact, in any order
    kernel = adder(dtype, n, start, size)
    assert reds(kernel, x) == {f"red.relaxed.gpu.global.{form}"}
    expected = np.zeros(size)
    kept = min(n, size - start)
    expected[start : start + kept] = x.astype(np.float64).sum(0)[:kept]
    np.testing.assert_array_equal(kernel(x, interpret=interpret).astype(np.float64), expected)


@pytest.fixture
def rng() -> Any:
    return np.random.default_rng(3)


def test_what_is_added_one_by_one(rng: Any) -> None:
    """Masks, orders that `red` lacks, targets without vectors, and old values that are used."""
    x = rng.integers(-8, 9, (4, 512)).astype(np.float32)
    assert reds(adder(f32, 512), x, target="sm_80") == {"red.relaxed.gpu.global.add.f32"}
    assert reds(adder(f32, 512, order="acquire"), x) == {"atom.acquire.gpu.global.add.f32"}
    assert reds(adder(f32, 512, order="release"), x) == {"red.release.gpu.global.add.v4.f32"}
    assert reds(adder(f32, 512, scope="sys"), x) == {"red.relaxed.sys.global.add.f32"}
    assert reds(adder(f32, 512, mask=np.arange(512) % 3 == 0), x) == {"red.relaxed.gpu.global.add.f32"}


def test_tiles(rng: Any) -> None:
    """Rows and columns of a matrix, in the layout of a product."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), f32, init=0), grid=(3,), interpret=True)
    def kernel(x: Any, out: Any) -> None:
        kd.atomic_add(out, x[...] @ x[...].T)
        kd.atomic_add(out.at[8:24, 16:48], x[8:24].astype(f32))

    x = rng.integers(-4, 5, (64, 32)).astype(bf16.numpy)
    wide = x.astype(np.float64)
    expected = 3 * (wide @ wide.T)
    expected[8:24, 16:48] += 3 * wide[8:24]
    np.testing.assert_array_equal(kernel(x), expected)
