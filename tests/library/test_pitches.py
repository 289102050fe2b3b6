"""Rows that begin within a sector of 32 bytes: what operands and packings say of it, and the clusters that it asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import choose
from kernel_dsl.library.matmul_config import MatmulConfig
from kernel_dsl.library.operands import operand
from kernel_dsl.library.pack import Packing
from kernel_dsl.library.problem import Problem
from tests.hopper.helpers import random, relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, s8 = kd.bfloat16, kd.int8
BLOCKS = 132


@pytest.mark.parametrize(("columns", "pitch"), [(24, 16), (40, 16), (48, 32), (32, 64), (64, 128), (1000, 16)])
def test_of_operands(columns: int, pitch: int) -> None:
    """The pitch of rows of 16-bit numbers at an aligned address; a transposed operand has the same."""
    space = np.zeros(16 * columns + 64, np.float16)
    x = space[-space.ctypes.data % 128 // 2 :][: 16 * columns].reshape(16, columns)
    assert operand(x, False).pitch == operand(x.T, True).pitch == operand(x.T, False).pitch == pitch
    assert operand(x[:1], False).pitch == 128  # no row follows
    assert operand(x[:, 8:], False).pitch == 16  # the first row begins there


@pytest.mark.parametrize("columns", [5, 24, 40, 4999, 5000, 5008])
def test_of_packings(columns: int) -> None:
    """Packed rows that are longer than a vector begin with sectors, long ones with lines."""
    packing = Packing(10, columns, bf16, bf16)
    assert packing.width >= columns
    assert packing.width * 2 <= (16 if columns <= 8 else columns * 2 + (127 if columns > 1000 else 31))
    assert packing.pitch >= (16 if columns <= 8 else 128 if columns > 1000 else 32)


def test_choice() -> None:
    """Blocks share what they load where loads take longer; other problems keep their configurations."""
    for size in (3000, 4104, 5000, 8200):
        for right in (True, False):
            p = Problem(size, size, size, bf16, bf16, bf16, b_transposed=right)
            slow = choose.reads_of(16, 16)
            before, now = choose.choose(p, BLOCKS), choose.choose(p, BLOCKS, True, slow)
            assert now.blocks > 1
            assert choose.clocks(p, now, BLOCKS, slow) < 0.75 * choose.clocks(p, before, BLOCKS, slow)
    assert choose.reads_of(64, 128) == choose.EVEN


def test_chosen_by_a_call() -> None:
    """The strides of a call's own operands count."""
    spec = kd.ShapeDtypeStruct
    for size, clusters in ((5000, True), (5056, False)):
        text = kd.library.matmul.lower(spec((size, size), bf16), spec((size, size), bf16), target="sm_90a").ptx
        assert (".reqnctapercluster" in text) == clusters, size


@pytest.mark.parametrize("dtype", [bf16, s8, kd.float32], ids=str)
def test_squares_of_blocks(dtype: Any, interpret: Any, rng: Any) -> None:
    """Four blocks share both sides, at edges of the result and of K."""
    M, N, K = 300, 200, 296 // dtype.itemsize
    config = MatmulConfig(128, 64, 128 // dtype.itemsize, 2, epilogue_n=32, cluster=2, cluster_n=2)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype).T
    more = {"precision": "tf32"} if dtype == kd.float32 else {}
    got = kd.library.matmul(a, b, config=config, interpret=interpret, **more)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert relative(got.astype(np.float64), expected) <= {bf16: 4e-3, s8: 0}.get(dtype, 1e-3)
