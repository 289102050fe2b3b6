"""Calls of the library on a driver without a GPU: see `cuda_cases.py`."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl.library import decode, decode_mla

from . import fake_cupy
from .fake import Player, player

__all__ = ["player"]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return fake_cupy.install(monkeypatch)


def zeros(shape: Any, dtype: Any = np.float16) -> Any:
    return fake_cupy.ndarray(np.zeros(shape, dtype))


def launched(player: Player, run: Any) -> list[str]:
    """The names of the kernels that a call launches."""
    before = len(player.launches)
    run()
    return [launch.name for launch in player.launches[before:]]


def refuse(*_: Any) -> None:
    raise AssertionError("the call was looked at anew")


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("given", [False, True])
def test_repeated_decode(splits: int, given: bool, player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call like the latest one is its launches: nothing is described again, and parts are one array."""
    q, k, lengths = zeros((1, 8, 1, 128)), zeros((1, 2, 4096, 128)), zeros((1,), np.int32)
    out = zeros(q.shape) if given else None

    def call(**more: Any) -> Any:
        return kd.library.decode_attention(q, k, k, lengths, **{"splits": splits, "out": out} | more)

    names = launched(player, call)
    assert names == ["decode_attention", "decode_combine"][: min(splits, 2)]
    call()
    fake_cupy.MADE.clear()
    with monkeypatch.context() as patch:
        patch.setattr(decode, "signature", refuse)
        assert launched(player, call) == names
        assert len(fake_cupy.MADE) == (splits > 1) + (not given)
        others = {"softcap": 2.0}, {"splits": 2}, {"causal": False}, {"window": 9}, {"return_lse": True, "out": None}
        for other in others:
            with pytest.raises(AssertionError, match="anew"):
                call(**other)
    for wrong in ({"splits": True}, {"softcap": np.ones(2)}, {"out": k}):
        with pytest.raises(kd.Error):
            call(**wrong)


def test_scales_are_told_apart(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls whose arrays are the same, but belong to other options."""
    q, lengths = zeros((1, 8, 1, 128)), zeros((1,), np.int32)
    k = zeros((1, 2, 512, 128), kd.float8_e4m3fn.numpy)
    for _ in range(3):
        kd.library.decode_attention(q, k, k, lengths, k_scale=2.0, splits=1)
    monkeypatch.setattr(decode, "signature", refuse)
    kd.library.decode_attention(q, k, k, lengths, k_scale=3.0, splits=1)
    with pytest.raises(AssertionError, match="anew"):
        kd.library.decode_attention(q, k, k, lengths, v_scale=2.0, splits=1)


def test_repeated_latent_decode(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = kd.bfloat16.numpy
    q, cache = zeros((1, 1, 16, 576), bf16), zeros((40, 64, 576), bf16)
    lengths, table = zeros((1,), np.int32), zeros((1, 32), np.int32)

    def call(scale: float = 0.1) -> Any:
        return kd.library.mla_decode(q, cache, lengths, table, scale=scale)

    names = launched(player, call)
    call()
    monkeypatch.setattr(decode_mla, "signature", refuse)
    assert launched(player, call) == names == ["mla_decode", "decode_combine"]
    with pytest.raises(AssertionError, match="anew"):
        call(0.2)


def test_repeated_attention(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    q = zeros((1, 2, 256, 64))

    def call(**more: Any) -> Any:
        return kd.library.attention(q, q, q, **{"causal": True} | more)

    call()
    call()
    monkeypatch.setattr(type(kd.library.attention), "_plan", refuse)
    assert launched(player, call) == ["attention"]
    for other in ({"causal": False}, {"window": 9}, {"scale": 0.5}, {"return_lse": True}, {"layout": "bshd"}):
        with pytest.raises(AssertionError, match="anew"):
            call(**other)
    with pytest.raises(kd.Error):
        kd.library.attention(zeros(q.shape), q, q, causal=True, out=q)
