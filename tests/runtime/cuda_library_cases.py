"""Calls of the library on a driver without a GPU: see `cuda_cases.py`."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, PackedInt4
from kernel_dsl.library.convolutions import conv2d as conv
from kernel_dsl.library.decoding import decode_attention as decode
from kernel_dsl.library.decoding import mla_decode as decode_mla
from kernel_dsl.library.first_sizes import FirstSizes
from kernel_dsl.library.grouped import grouped_matmul as grouped
from kernel_dsl.library.grouped import grouped_matmul_wgrad as grouped_wgrad

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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("again", [False, True], ids=["these sizes", "any sizes"])
def test_repeated_gradients(
    splits: int, again: bool, player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these sizes, or of any; keys of another length, and arrays of another dtype, are looked at anew."""
    monkeypatch.setattr(FirstSizes, "comes_again", lambda *_: again)
    q, k, lse = zeros((1, 4, 256, 64)), zeros((1, 2, 384, 64)), zeros((1, 4, 256), np.float32)
    run, config = type(kd.library.attention_backward)(), AttentionBackwardConfig(128, splits=splits)

    def call(k: Any = k, out: Any = q, **more: Any) -> Any:
        return run(q, q, k, k, out, lse, **{"causal": True, "config": config} | more)

    names = launched(player, call)
    call()
    results = call()
    assert [x.shape for x in results] == [q.shape, k.shape, k.shape]
    monkeypatch.setattr(type(run), "_plan", refuse)
    assert launched(player, call) == names and len(names) == 3 + (splits > 1)
    others = {"causal": False}, {"window": 9}, {"scale": 0.5}, {"deterministic": True}, {"layout": "bshd"}
    for other in (*others, {"k": zeros((1, 2, 512, 64))}, {"out": zeros(q.shape, np.float32)}):
        with pytest.raises(AssertionError, match="anew"):
            call(**other)


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i // 64 == j // 64


def alibi(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return x - (i - j) * 0.5


def by_array(numbers: Any) -> Any:
    """A mask that closes over an array."""
    return lambda b, h, i, j: numbers[i] == numbers[j]


OPTIONS: dict[str, Any] = {
    "window": lambda: {"causal": True, "window": 64, "softcap": 30.0},
    "mask": lambda: {"mask_mod": documents},
    "mask by array": lambda: {"mask_mod": by_array(zeros((256,), np.int32))},
    "score": lambda: {"score_mod": alibi},
    "bias": lambda: {"bias": zeros((1, 1, 256, 256))},
    "bias of keys": lambda: {"bias": zeros((1, 1, 1, 256))},
    "sinks": lambda: {"sinks": zeros((4,), np.float32)},
    "by position": lambda: {"layout": "bshd"},
    "ragged": lambda: {"q_seqlens": zeros((3,), np.int32)},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("again", [False, True], ids=["these sizes", "any sizes"])
@pytest.mark.parametrize("name", OPTIONS)
def test_repeated_options(name: str, again: bool, player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with options, each with new arrays and functions, launch what the first ones did, and nothing is looked up."""
    monkeypatch.setattr(FirstSizes, "comes_again", lambda *_: again)
    form = {"ragged": lambda h: (256, h, 64), "by position": lambda h: (1, 256, h, 64)}.get(name)
    shapes = [(form or (lambda h: (1, h, 256, 64)))(heads) for heads in (4, 2)]
    lse = (4, 256) if name == "ragged" else (1, 4, 256)
    forward, backward = type(kd.library.attention)(), type(kd.library.attention_backward)()

    def gradients(**more: Any) -> Any:
        q, k = (zeros(shape) for shape in shapes)
        return backward(q, q, k, k, q, zeros(lse, np.float32), **(OPTIONS[name]() | more))

    def results(**more: Any) -> Any:
        q, k = (zeros(shape) for shape in shapes)
        return forward(q, k, k, **(OPTIONS[name]() | more))

    for run, function, other in (
        (results, forward, {"return_lse": True}),
        (gradients, backward, {"deterministic": True}),
    ):
        run()
        names = launched(player, run)
        run()
        with monkeypatch.context() as patch:
            patch.setattr(type(function), "_plan", refuse)
            assert launched(player, run) == names
            for change in ({"scale": 0.25}, other):
                with pytest.raises(AssertionError, match="anew"):
                    run(**change)


bf16 = kd.bfloat16.numpy
matmul_module = sys.modules["kernel_dsl.library.products.matmul"]


def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call fail that the latest one does not decide."""
    for module in (matmul_module, grouped, grouped_wgrad):
        monkeypatch.setattr(module, "signature", refuse)
    monkeypatch.setattr(conv, "ConvCheck", refuse)


def settled(player: Player, call: Any) -> list[str]:
    """The kernels of a call that was made often enough to be known."""
    names = launched(player, call)
    call()
    call()
    return names


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = {  # shapes, options, launches
    "plain": ((256, 128), (128, 256), {}, 1),
    "deep": ((64, 8192), (8192, 64), {}, 2),
    "dot": ((1, 32768), (32768, 1), {}, 2),
    "batch": ((2, 64, 128), (128, 256), {"scale": 2.0}, 1),
    "odd": ((1030, 2047), (2047, 1030), {}, 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_repeated_matmul(name: str, player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call like the latest one is its launches; other arrays and options are looked at anew."""
    left, right, options, count = PRODUCTS[name]
    a, b = zeros(left, bf16), zeros(right, bf16)
    shape = (*left[:-1], right[-1])
    names = settled(player, lambda: kd.library.matmul(a, b, **options))
    assert len(names) == count
    refusing(monkeypatch)
    fake_cupy.MADE.clear()
    made = kd.library.matmul(a, zeros(right, bf16), **options)
    assert made.shape == shape and len(fake_cupy.MADE) >= len(names)  # one launch may give two arrays
    assert launched(player, lambda: kd.library.matmul(a, b, **options)) == names
    wider = zeros((*right[:-1], right[-1] + 8), bf16)
    for other in (
        {"b": wider}, {"a": zeros(left), "b": zeros(right)}, {"activation": kd.relu}, {"scale": 3}, {"absmax": True},
        {"bias": zeros(right[-1:], np.float32)}, {"precision": "highest"}, {"out_dtype": kd.float32},
        {"dropout": (0.5, 1)}, {"gated": "swiglu"}, {"precision": np.ones(3)}, {"out_dtype": "no dtype"},
    ):  # fmt: skip
        with pytest.raises((AssertionError, kd.Error), match=r"anew|out_dtype|precision|gated"):
            kd.library.matmul(**({"a": a, "b": b} | options | other))


def test_repeated_matmul_into_out(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, out = zeros((256, 256), bf16), zeros((256, 256), bf16)
    settled(player, lambda: kd.library.matmul(a, a, out=out))
    with pytest.raises(kd.Error, match="memory of a"):
        kd.library.matmul(a, a, out=a)
    refusing(monkeypatch)
    assert kd.library.matmul(a, a, out=out) is out
    with pytest.raises(AssertionError, match="anew"):  # for the words
        kd.library.matmul(a, a, out=a)
    with pytest.raises(AssertionError, match="anew"):
        kd.library.matmul(a, a, out=zeros((256, 256), np.float32))


def test_repeated_int4(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(group: int) -> PackedInt4:
        return PackedInt4(zeros((128, 64), np.int8), zeros((1, 128), np.float32), None, (128, 128), group)

    a, b = zeros((16, 128), bf16), packed(128)
    names = settled(player, lambda: kd.library.matmul(a, b))
    refusing(monkeypatch)
    assert launched(player, lambda: kd.library.matmul(a, packed(128))) == names
    with pytest.raises(AssertionError, match="anew"):
        kd.library.matmul(a, packed(256))


def test_repeated_groups(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, sizes = zeros((256, 64), bf16), zeros((2, 64, 128), bf16), zeros((2,), np.int32)
    rows, weights = zeros((256,), np.int32), zeros((64, 4), np.float32)
    ways: list[dict[str, Any]] = [{}, {"gated": "swiglu"}, {"indices": rows, "scatter": rows, "weights": weights}]
    for way in ways:
        names = settled(player, lambda way=way: kd.library.grouped_matmul(a, b, sizes, **way))
        with monkeypatch.context() as patch:
            refusing(patch)
            assert launched(player, lambda way=way: kd.library.grouped_matmul(a, b, sizes, **way)) == names
            others: list[dict[str, Any]] = [{"activation": kd.relu}, {"a_scale": zeros((1,), np.float32)}]
            if "weights" in way:
                others.append({"weights": zeros((128, 2), np.float32)})
            for other in others:
                with pytest.raises(AssertionError, match="anew"):
                    kd.library.grouped_matmul(a, b, sizes, **way | other)
    names = settled(player, lambda: kd.library.grouped_matmul_wgrad(a, a, sizes))
    refusing(monkeypatch)
    assert launched(player, lambda: kd.library.grouped_matmul_wgrad(a, a, sizes)) == names
    for odd in ({"out_dtype": kd.bfloat16}, {"group_sizes": None, "offsets": zeros((3,), np.int32)}):
        with pytest.raises(AssertionError, match="anew"):
            kd.library.grouped_matmul_wgrad(a, a, **{"group_sizes": sizes} | odd)


def test_repeated_convolutions(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = zeros((1, 16, 16, 64), bf16), zeros((64, 3, 3, 64), bf16)
    calls = [
        lambda **how: kd.library.conv2d(x, w, **{"padding": 1} | how),
        lambda **how: kd.library.conv2d_dgrad(x, w, x.shape, **{"padding": 1} | how),
        lambda **how: kd.library.conv2d_wgrad(x, x, 3, **{"padding": 1} | how),
    ]
    names = [settled(player, call) for call in calls]
    refusing(monkeypatch)
    assert [launched(player, call) for call in calls] == names
    for call in calls:
        for odd in ({"padding": True}, {"padding": (1, True)}, {"dilation": 2}):
            with pytest.raises(AssertionError, match="anew"):
                call(**odd)


def test_sizes_by_the_values_of_scalars(player: Player, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with the values of the two before it is a launch; others have a grid and outputs of their own."""

    @kd.kernel(
        grid=lambda x, n: (int(n),), grid_names=("i",), out_type=lambda x, n: kd.ShapeDtypeStruct((int(n), 8), x.dtype)
    )
    def rows(x: Any, n: Any, o: Any) -> None:
        o[kd.axis_index("i")] = x[...] + n

    x, looked, slow = zeros((8,), np.float32), list[int](), type(rows)._slow_call
    monkeypatch.setattr(
        type(rows), "_slow_call", lambda self, args, *more: looked.append(args[1]) or slow(self, args, *more)
    )
    for n in (3, 3, 3, 5, 5, 3, 5, 3, 7, 3):
        assert rows(x, n).shape == (n, 8)
        assert player.launches[-1].grid == (n, 1, 1)
    assert looked == [3, 3, 5, 5, 7]
    for n in (4.0, 4.0, 4):  # equal, and not of one type
        rows(x, n)
    assert looked[5:] == [4.0, 4.0, 4]
