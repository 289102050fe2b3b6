"""Library calls of random options, each with four sizes: the third and the fourth compile nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import attention_opened, decode_opened
from kernel_dsl.library.first_sizes import FirstSizes

from .counting import counted

Array = np.ndarray[Any, Any]
bf16, f8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
Call = Callable[[int, int, int], Any]  # of a batch and two lengths


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return kd.div(i, 100) == kd.div(j, 100)


def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score - 0.25 * (i - j)


def pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def attention(rng: np.random.Generator) -> tuple[str, Call]:
    """Layouts, groups of heads, head dimensions, masks, scores, scales, ragged and paged arrays."""
    kind = pick(rng, "plain", "plain", "float8", "ragged", "paged")
    layout = pick(rng, "bhsd", "bshd") if kind != "ragged" else "bhsd"
    dim, group = pick(rng, 64, 80, 128), pick(rng, 1, 4)
    o: dict[str, Any] = {"causal": pick(rng, False, True, "bottom_right"), "return_lse": pick(rng, False, True)}
    o |= {"window": 70} if rng.random() < 0.3 else {}
    o |= {"softcap": 20.0} if rng.random() < 0.3 else {}
    if kind != "paged":
        o |= pick(rng, {}, {"mask_mod": documents}, {"score_mod": alibi})
    by_head = bool(rng.integers(2))

    def call(batch: int, queries: int, keys: int) -> Any:
        more: dict[str, Any] = {}

        def array(heads: int, length: int) -> Array:
            shape = (length, heads) if kind == "ragged" else (batch, heads, length)
            shape = (batch, length, heads) if layout == "bshd" and kind != "ragged" else shape
            return np.zeros((*shape, dim), f8 if kind == "float8" else bf16)

        arrays = [array(4, queries), array(4 // group, keys), array(4 // group, keys)]
        if kind == "float8":
            scale: Any = np.ones((batch, 4 // group), np.float32) if by_head else 0.5
            more = {f"{x}_scale": scale for x in "qkv"}
        elif kind == "ragged":
            ends = [np.linspace(0, n, batch + 1).astype(np.int32) for n in (queries, keys)]
            more = {"q_seqlens": ends[0], "kv_seqlens": ends[1]}
        elif kind == "paged":
            table = -(-keys // 64)
            page = (64, 4 // group) if layout == "bshd" else (4 // group, 64)
            arrays[1:] = [np.zeros((batch * table + 5, *page, dim), bf16) for _ in "kv"]
            more = {"page_table": np.zeros((batch, table), np.int32)}
        return kd.library.attention(*arrays, layout=layout, **more, **o)

    return f"attention {kind} {layout} {dim} {group} {o}", call


def decode(rng: np.random.Generator) -> tuple[str, Call]:
    page, queries, cache = pick(rng, 0, 16, 64), pick(rng, 1, 3), pick(rng, bf16, f8)
    o: dict[str, Any] = {"return_lse": pick(rng, False, True)} | pick(rng, {}, {"window": 99}, {"softcap": 9.0})
    o |= {} if cache is bf16 or rng.random() < 0.3 else {"k_scale": 0.5}

    def call(batch: int, _: int, keys: int) -> Any:
        keys *= 20  # so many that they are shared in each call
        q, lengths = np.zeros((batch, 8, queries, 128), bf16), np.full(batch, keys, np.int32)
        if not page:
            k, more = np.zeros((batch, 2, keys, 128), cache), {}
        else:
            table = -(-keys // page)
            k, more = np.zeros((batch * table, 2, page, 128), cache), {"page_table": np.zeros((batch, table), np.int32)}
        return kd.library.decode_attention(q, k, k.copy(), lengths, **more, **o)

    return f"decode {page} {queries} {cache.__name__} {o}", call


def latent(rng: np.random.Generator) -> tuple[str, Call]:
    queries, lse = pick(rng, 1, 2), pick(rng, False, True)

    def call(batch: int, _: int, keys: int) -> Any:
        table = -(-keys * 20 // 64)
        cache, q = np.zeros((batch * table, 64, 576), bf16), np.zeros((batch, queries, 64, 576), bf16)
        lengths, pages = np.full(batch, keys * 20, np.int32), np.zeros((batch, table), np.int32)
        return kd.library.mla_decode(q, cache, lengths, pages, scale=0.1, return_lse=lse)

    return f"mla {queries} {lse}", call


FAMILIES = {"attention": attention, "decode": decode, "latent": latent}


def compiles(call: Call) -> list[list[str]]:
    """What each of four calls compiles, of sizes that no call came with before."""
    made: list[list[str]] = []
    firsts = [mock.patch.object(module, "_first", FirstSizes()) for module in (attention_opened, decode_opened)]
    with counted() as found, firsts[0], firsts[1]:
        for sizes in ((2, 256, 320), (3, 500, 700), (1, 1024, 900), (5, 130, 264)):
            found.clear()
            call(*sizes)
            made.append(list(found))
    return made


def _check(family: str, seed: int) -> None:
    name, call = FAMILIES[family](np.random.default_rng(seed))
    made = compiles(call)
    assert not made[2] and not made[3], (name, made)


@pytest.mark.parametrize(("family", "seed"), [("attention", 3), ("attention", 7), ("decode", 1), ("latent", 0)])
def test_a_third_size_compiles_nothing(family: str, seed: int) -> None:
    _check(family, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_of_many_options(family: str) -> None:
    for seed in range(60 if family == "attention" else 12):
        _check(family, seed)
