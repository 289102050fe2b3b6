"""What the library's functions refuse: an error at the caller's line, before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig, MatmulConfig
from kernel_dsl.library.products.matmul import array_address

A, B = np.ones((16, 32), np.float16), np.ones((32, 24), np.float16)
Q = np.ones((1, 2, 8, 64), np.float16)


@dataclass
class Scaled:
    """An activation that compares by value and may change, so that Python gives it no hash."""

    factor: float

    def __call__(self, x: Any) -> Any:
        return x * self.factor


MATMULS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, B, {"bias": [1.0] * 24}, "bias is a list"),
    (A, B, {"bias": 1.0}, "bias is a float"),
    (A, B, {"bias": np.ones((1, 24), np.float16)}, r"bias is \(1, 24\)"),
    (A, B, {"bias": np.ones(24, np.complex64)}, "bias is complex64"),
    (A, B, {"c": [1]}, "c is a list"),
    (A, B, {"c": np.ones((24, 16), np.float16)}, r"c is \(24, 16\)"),
    (A.astype(np.complex64), B, {}, "b is float16"),
    (A.astype(np.complex128), B, {}, "complex128"),
    (A, B, {"out_dtype": np.complex64}, "out_dtype is complex64"),
    (A, B, {"precision": "fast"}, "precision='fast'"),
    (A, B, {"activation": "relu"}, "activation is a str"),
    (A, B, {"activation": lambda x: x.sum()}, "the activation made"),
    (A, B, {"activation": lambda x: None}, "the activation made None"),
    (A.astype(np.float32), B.astype(np.float32), {"activation": lambda x: x[:1]}, "the activation made"),
    (A, B, {"config": "fast"}, "config is a str"),
    (A, B, {"config": {}}, "config is a dict, which can't be hashed"),
    (A, B, {"config": MatmulConfig(stages=1)}, "config.stages=1"),
    (A, B, {"config": MatmulConfig(stages=0)}, "config.stages=0"),
    (A, B, {"config": MatmulConfig(tile_m=0)}, "config.tile_m=0"),
    (A, B, {"config": MatmulConfig(group=-1)}, "config.group=-1"),
    (A, B, {"config": MatmulConfig(tile_k="64")}, "config.tile_k='64'"),  # type: ignore[arg-type]
    (A, B, {"config": MatmulConfig(tile_m=64)}, "config.tile_m=64 is shared by 2 consumers"),
    (A, B, {"config": MatmulConfig(tile_m=96, ping_pong=True)}, "config.tile_m=96 is shared by 1 consumers"),
    (A, B, {"config": MatmulConfig(epilogue_n=512)}, "config.epilogue_n=512 of config.tile_n=256"),
    (A, B, {"config": MatmulConfig(tile_n=96, epilogue_n=64)}, "config.epilogue_n=64 of config.tile_n=96"),
    (A, B, {"activation": Scaled(2.0)}, "activation is a Scaled, which can't be hashed"),
    (A, B, {"out": np.ones((16, 32), np.float16)}, r"`matmul`: out is \(16, 32\)"),
    (A, B, {"out": np.ones((16, 24), np.float32)}, "`matmul`: out is float32"),
    (
        A,
        B,
        {"out": (np.ones((16, 24), np.float32), np.ones((), np.float32)), "absmax": True},
        "`matmul`: out is float32",
    ),
    (kd.library.PackedInt4(B, B, None, (32, 24), 64), B, {}, "a is a PackedInt4"),
]
ATTENTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (Q, {"scale": "x"}, "scale='x'"),
    (Q, {"scale": 0}, "scale=0"),
    (Q, {"config": 3}, "config is an int"),
    (Q, {"config": [3]}, "config is a list, which can't be hashed"),
    (Q, {"config": AttentionConfig(consumers=0)}, "config.consumers=0"),
    (Q, {"config": AttentionConfig(stages=1)}, "config.stages=1"),
    (Q, {"config": AttentionConfig(block_kv=72)}, "config.block_kv=72"),
    (Q, {"config": AttentionConfig(consumers=5)}, "config.consumers=5"),
    (
        np.ones((1, 1, 8, 128), np.float16),
        {"config": AttentionConfig(3, 256, 4)},
        "config.block_kv=256, config.stages=4",
    ),
    (Q.astype(np.complex64), {}, "complex64"),
]


@pytest.mark.parametrize("case", MATMULS, ids=lambda c: c[-1])
def test_matmul(case: Any) -> None:
    a, b, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.matmul(a, b, interpret=True, **options)


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda c: c[-1])
def test_attention(case: Any) -> None:
    q, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.attention(q, q, q, interpret=True, **options)


@pytest.mark.parametrize("target", ["sm_75", "hopper", 90])
def test_targets(target: Any) -> None:
    """The error that kernels have."""
    with pytest.raises(kd.Error, match="unknown-target"):
        kd.library.matmul.lower(A, B, target=target)
    with pytest.raises(kd.Error, match="unknown-target"):
        kd.library.attention.lower(Q, Q, Q, target=target)


@pytest.mark.parametrize("lse", [False, True])
def test_heads_without_dimensions(lse: bool) -> None:
    """Every score is zero: nothing to weigh, and the logarithm of the number of keys."""
    q, k = np.ones((1, 2, 3, 0), np.float16), np.ones((1, 1, 5, 0), np.float16)
    result = kd.library.attention(q, k, k, return_lse=lse, interpret=True)
    assert (result[0] if lse else result).shape == q.shape
    if lse:
        assert np.allclose(result[1], np.log(5.0))


def test_sparse_tensors() -> None:
    torch = pytest.importorskip("torch")
    dense = torch.zeros(16, 16)
    for call in (
        lambda: kd.library.matmul(torch.eye(16).to_sparse(), dense),
        lambda: kd.library.matmul(dense, dense, bias=torch.zeros(16).to_sparse()),
        lambda: kd.library.attention(dense[None, None].to_sparse(), dense[None, None], dense[None, None]),
    ):
        with pytest.raises(TypeError, match="sparse_coo tensor"):
            call()


def test_addresses() -> None:
    """Of arrays that are no NumPy arrays and no tensors: CuPy's way to say it, and a struct's lack of one."""

    class Memory:
        ptr = 4098

    class Array:
        data = Memory()

    assert array_address(Array()) == 4098
    assert array_address(kd.ShapeDtypeStruct((2, 2), kd.float32)) == 0
