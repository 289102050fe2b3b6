"""Decoding whose batch and lengths change: the bits of the kernels for each, and few compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.decoding import opened as decode_opened
from kernel_dsl.library.first_sizes import FirstSizes

Sizes = tuple[int, int]  # batch, keys
# of some 3 splits, then of one
SIZES: tuple[Sizes, ...] = ((2, 300), (3, 500), (1, 420))
SHORT: tuple[Sizes, ...] = ((2, 40), (3, 70), (1, 100))
Call = Callable[[Any, np.random.Generator, Sizes, Any], Any]


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float16)


def lengths_of(rng: np.random.Generator, sizes: Sizes) -> np.ndarray[Any, Any]:
    batch, keys = sizes
    return np.array([keys, *rng.integers(0, keys, batch - 1)], np.int32)


def plain(decode: Any, rng: np.random.Generator, sizes: Sizes, interpret: Any, **options: Any) -> Any:
    batch, keys = sizes
    q, k, v = halves(rng, batch, 4, 1, 64), halves(rng, batch, 2, keys, 64), halves(rng, batch, 2, keys, 64)
    return decode(q, k, v, lengths_of(rng, sizes), interpret=interpret, **options)


def paged(decode: Any, rng: np.random.Generator, sizes: Sizes, interpret: Any, **options: Any) -> Any:
    """Several queries and pages of float8 that are shuffled."""
    batch, keys = sizes
    table = -(-keys // 32)
    pages = rng.permutation(batch * table + 3)[: batch * table].reshape(batch, table).astype(np.int32)
    cache = [halves(rng, batch * table + 3, 2, 32, 64).astype(ml_dtypes.float8_e4m3fn) for _ in range(2)]
    scales = {f"{n}_scale": rng.uniform(0.5, 2, (batch, 2)).astype(np.float32) for n in "kv"}
    q = halves(rng, batch, 4, 3, 64)
    return decode(q, *cache, lengths_of(rng, sizes), page_table=pages, **scales, interpret=interpret, **options)


def latent(mla: Any, rng: np.random.Generator, sizes: Sizes, interpret: Any) -> Any:
    batch, keys = sizes
    table = -(-keys // 32)
    pages = rng.permutation(batch * table).reshape(batch, table).astype(np.int32)
    q, cache = (
        rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((batch, 2, 8, 576), (batch * table, 32, 576))
    )
    return mla(q, cache, lengths_of(rng, sizes), pages, scale=0.05, return_lse=True, interpret=interpret)


CALLS: dict[str, tuple[Any, Call]] = {
    "plain": (kd.library.decode_attention, plain),
    "window": (kd.library.decode_attention, lambda *args: plain(*args, window=100, return_lse=True)),
    "two splits": (kd.library.decode_attention, lambda *args: plain(*args, splits=2)),
    "paged": (kd.library.decode_attention, paged),
    "latent": (kd.library.mla_decode, latent),
}


def bits(result: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in (result if isinstance(result, tuple) else (result,))]


CASES = [(name, sizes) for name in CALLS for sizes in (SIZES, SHORT) if name != "two splits" or sizes is SIZES]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [pytest.param(*case, marks=[] if case == ("plain", SHORT) else pytest.mark.slow) for case in CASES],
    ids=lambda x: x if type(x) is str else str(x[0][1]),
)
def test_a_third_size_compiles_nothing(
    name: str, sizes: tuple[Sizes, ...], traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of one split nor of several; and it gives the bits of the kernels that are made for it alone."""
    function, call = CALLS[name]
    rows: list[list[str]] = []
    monkeypatch.setattr(decode_opened, "_first", FirstSizes())
    shared = type(function)()
    for number, one in enumerate(sizes):
        traces.clear()
        got = call(shared, np.random.default_rng(number), one, True)
        rows.append(list(traces))
        with monkeypatch.context() as alone:
            alone.setattr(decode_opened, "_first", FirstSizes())
            assert bits(got) == bits(call(type(function)(), np.random.default_rng(number), one, True))
    assert not any(rows[2:]), rows


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("sizes", [(4, 9000), (1, 70000), (64, 900)], ids=str)
def test_bits_on_a_gpu(name: str, sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    function, call = CALLS[name]
    results: list[Any] = []
    monkeypatch.setattr(decode_opened, "_first", FirstSizes())
    shared = type(function)()
    call(shared, np.random.default_rng(0), (3, 9100 if sizes[1] > 1000 else 100), False)
    results.append(call(shared, np.random.default_rng(1), sizes, False))
    monkeypatch.setattr(decode_opened, "_first", FirstSizes())
    results.append(call(type(function)(), np.random.default_rng(1), sizes, False))
    assert bits(results[0]) == bits(results[1])
