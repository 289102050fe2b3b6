"""Attention's gradients whose batch and lengths change: the bits of the kernels for each size, and one compile more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.sizes import AttentionProblem
from kernel_dsl.library.attention_gradients.plans import number_structs
from kernel_dsl.library.latest import results_of

from . import test_attention as forward
from .counting import none_before

SIZES = ((2, 64, 72), (3, 72, 48), (2, 88, 120), (1, 80, 100))  # keys of one block, and few queries
GPU_SIZES = ((1, 300, 400), (40, 500, 520))


def captured(rng: np.random.Generator, sizes: Any) -> dict[str, Any]:
    names = np.sort(rng.integers(0, 4, (sizes[0], max(sizes[1:])))).astype(np.int32)
    return {"mask_mod": lambda b, h, i, j: names[b, i] == names[b, j]}


def each_score(rng: np.random.Generator, sizes: Any) -> dict[str, Any]:
    batch, queries, keys = sizes
    return {"bias": rng.standard_normal((batch, forward.HEADS, queries, keys)).astype(np.float32)}


OPTIONS: dict[str, Any] = {
    name: forward.CALLS[name] for name in ("bias", "ragged", "window", "masked", "masked ragged")
}
OPTIONS |= {
    "plain": lambda *_: {},
    "causal": lambda *_: {"causal": True},
    "in order": lambda *_: {"causal": True, "deterministic": True},
    "ragged in order": lambda rng, sizes: {**forward.ragged(rng, sizes), "deterministic": True},
    "captured": captured,
    "bias of each score": each_score,
    "softcap": lambda *_: {"softcap": 5.0, "causal": True, "layout": "bshd"},
    "sinks": lambda rng, _: {"sinks": rng.standard_normal(forward.HEADS).astype(np.float32)},
    "float32": lambda *_: {"window": 50},
    "ragged float32": forward.ragged,
}


def call_of(name: str, rng: np.random.Generator, sizes: Any) -> tuple[list[Any], dict[str, Any]]:
    """The first arrays and the options of a call of the forward."""
    with mock.patch.dict(forward.CALLS, {name: OPTIONS[name]}):
        arrays, options = forward.call_of(name, rng, sizes)
    return [x.astype(np.float32) for x in arrays] if "float32" in name else arrays, options


def gradients(function: Any, name: str, sizes: Any, interpret: bool) -> Any:
    rng = np.random.default_rng(sum(sizes))
    arrays, options = call_of(name, rng, sizes)
    given = {word: x for word, x in options.items() if word not in ("return_lse", "deterministic")}
    out, lse = kd.library.attention(*arrays, **given, return_lse=True, interpret=interpret)
    dout = rng.standard_normal(out.shape).astype(out.dtype)
    options.pop("return_lse", None)
    return function(dout, *arrays, out, lse, **options, interpret=interpret)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beyond", [0, 128])
def test_a_third_size_compiles_nothing(beyond: int, name: str, traces: list[str]) -> None:
    """`beyond`: so many keys more, which make two blocks. Heads of one block and of several, few queries and many have kernels of their own."""
    function, later = type(kd.library.attention_backward)(), list[list[str]]()

    def counting(*args: Any, **how: Any) -> Any:
        traces.clear()
        result = function(*args, **how)
        later.append(list(traces))
        return result

    with none_before():
        for number, sizes in enumerate((*first, keys + beyond) for *first, keys in SIZES):
            got = gradients(counting, name, sizes, True)
            if number:
                with none_before():
                    assert forward.same(got, gradients(type(function)(), name, sizes, True))
    assert later[1], "kernels for any sizes follow those of the first"
    assert later[2:] == [[], []], "and serve all that come"


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "captured"])
@pytest.mark.parametrize("sizes", GPU_SIZES, ids=str)
def test_gradients_on_a_gpu(name: str, sizes: Any) -> None:
    """Sums in no fixed order differ by their rounding."""
    function = type(kd.library.attention_backward)()
    with none_before():
        gradients(function, name, SIZES[0], False)
        got = gradients(function, name, sizes, False)
    with none_before():
        want = gradients(type(function)(), name, sizes, False)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.02, atol=0.02)


def test_keys_of_one_block_have_a_kernel_for_any_sizes() -> None:
    """It stores the gradients of queries, as the kernel of one such size does; the kernel before it is that of all sizes."""
    function = type(kd.library.attention_backward)()

    def made(batch: int, queries: int, keys: int, dim: int) -> Any:
        p = AttentionProblem(batch, 4, 4, queries, keys, dim, kd.bfloat16, False, 0.1, False)
        return function._fast(p, False, None, 132, False)

    for dim, most in ((64, 128), (256, 64)):
        with none_before():
            first, second, third, long = (
                made(1, 500, 50, dim), made(2, 600, most, dim), made(3, 700, 40, dim), made(3, 700, most + 1, dim)
            )  # fmt: skip
        assert first.sizes is None and first.finish is None
        assert second.finish is None and second.main is third.main is not first.main
        assert long.finish is not None and long.main is not second.main
        assert long.stats is second.stats


def test_gradients_of_one_wave_find_their_keys_by_the_grid() -> None:
    """Their kernel for any sizes divides by none to find them. Where blocks follow one another, a kernel divides."""

    def text(batch: int) -> str:
        function = type(kd.library.attention_backward)()
        q, lse = (
            kd.ShapeDtypeStruct((batch, 16, 57, 128), kd.bfloat16),
            kd.ShapeDtypeStruct((batch, 16, 57), kd.float32),
        )
        k = kd.ShapeDtypeStruct((batch, 16, 184, 128), kd.bfloat16)
        p = AttentionProblem(batch, 16, 16, 57, 184, 128, kd.bfloat16, False, 0.1, False)
        with none_before():
            function._fast(replace(p, batch=7), False, None, 132, False)
            made = function._fast(p, False, None, 132, False)
        (stats,) = results_of(made.stats, q, q, lse)
        return made.main.lower(q, k, k, q, stats, *number_structs(made.sizes, stats), target="sm_90a").ptx

    assert "div." not in text(2)
    assert "div." in text(8)
