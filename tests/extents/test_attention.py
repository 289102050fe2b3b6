"""Attention whose batch and lengths change: the bits of the kernels for each, and one compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.attention_forward import opened as attention_opened
from kernel_dsl.library.attention_forward import scored as attention_scored
from kernel_dsl.library.attention_forward.kernel import attention_kernel
from kernel_dsl.library.attention_forward.opened import opened, plain_plan
from kernel_dsl.library.attention_forward.scored_kernel import scored_kernel
from kernel_dsl.library.attention_forward.sizes import AttentionConfig, AttentionProblem, parts_of, together_of
from kernel_dsl.library.first_sizes import FirstSizes, dim_of

from .counting import none_before

Sizes = tuple[int, int, int]  # batch, queries, keys
SMALL = AttentionConfig(1, 64, 2)
HEADS, KV_HEADS, DIM = 2, 1, 64


def heads_of(rng: np.random.Generator, sizes: Sizes) -> list[np.ndarray[Any, Any]]:
    batch, queries, keys = sizes
    shapes = ((HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys))
    return [rng.standard_normal((batch, *shape, DIM)).astype(np.float16) for shape in shapes]


def far(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A mask that leaves one key of two."""
    return (i - j) % 2 == 0


def same(got: Any, want: Any) -> bool:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True)
    return all(np.asarray(one).tobytes() == np.asarray(other).tobytes() for one, other in pairs)


@pytest.mark.parametrize(
    ("causal", "sizes"),
    [(False, ((2, 130, 100), (1, 100, 70))), (True, ((1, 200, 130), (1, 170, 70)))],
)
def test_one_kernel_attends_to_any_lengths(causal: bool, sizes: tuple[Sizes, ...]) -> None:
    """Bit-equal with the kernel that is made for each, tiles in its order; also if each block has one tile."""
    rng = np.random.default_rng(0)
    p = AttentionProblem(1, HEADS, KV_HEADS, 64, 64, DIM, kd.float16, causal, DIM**-0.5, True)
    kernel = attention_kernel(opened(p), SMALL, 3)
    for batch, queries, keys in sizes:
        own = replace(p, batch=batch, queries=queries, keys=keys)
        arrays = heads_of(rng, (batch, queries, keys))
        together = [np.int32(together_of(own, SMALL, 3))] if causal else []
        got = kernel(*arrays, *together, interpret=True)
        assert same(got, attention_kernel(own, SMALL, 3)(*arrays, interpret=True))
    assert len(kernel.specialisations()) == 1


@pytest.mark.parametrize(("causal", "splits"), [(False, 1), (True, 1), (False, 3)])
def test_lengths_of_one_wave_have_a_block_for_each_tile(causal: bool, splits: int) -> None:
    """Such a kernel finds its tile by the grid, without a division, a loop over tiles or a barrier for the next one."""
    rng = np.random.default_rng(0)
    p = AttentionProblem(1, HEADS, KV_HEADS, 64, 64, DIM, kd.float16, causal, DIM**-0.5, True)
    own = [replace(p, batch=2, queries=130, keys=200), replace(p, batch=1, queries=64, keys=310)]
    dims = replace(opened(p), splits=splits if splits == 1 else dim_of("splits", least=2), alone=True)
    kernel = attention_kernel(dims, SMALL, 132)
    for one in own:
        arrays = heads_of(rng, (one.batch, one.queries, one.keys))
        one = replace(one, splits=splits)
        numbers = parts_of(one, SMALL) if splits > 1 else ()
        want = attention_kernel(one, SMALL, 132)(*arrays, interpret=True)
        assert same(kernel(*arrays, *numbers, interpret=True), want)
    assert len(kernel.specialisations()) == 1
    text = kernel.lower(*arrays, *numbers, target="sm_90a").compile().ptx
    assert not re.search(r"\b(div|rem)\.[su]", text)
    each = attention_kernel(own[0], SMALL, 132).lower(*arrays, target="sm_90a").compile().ptx
    if splits == 1:
        assert text.count("mbarrier.init") == each.count("mbarrier.init")


def test_few_tiles_of_later_lengths_have_a_block_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels serve all lengths: one for those whose tiles all run at once, one for the others."""
    monkeypatch.setattr(attention_opened, "_first", FirstSizes())
    p = AttentionProblem(2, 8, 8, 300, 300, 128, kd.bfloat16, True, 0.1, False)
    plans = [plain_plan(replace(p, queries=n, keys=n), SMALL, 132) for n in (300, 200, 500, 4000, 5000)]
    kernels = [getattr(plan, "kernel", plan) for plan in plans]
    assert kernels[0] is not kernels[1] is kernels[2] is not kernels[3] is kernels[4]
    assert [hasattr(plan, "numbers") for plan in plans] == [False, False, False, True, True]


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_are_found_without_divisions_of_64_bits(causal: bool) -> None:
    """A warp needs hundreds of clocks for one, which small launches would notice."""
    p = AttentionProblem(1, HEADS, KV_HEADS, 64, 64, DIM, kd.float16, causal, DIM**-0.5, True)
    like = [kd.ShapeDtypeStruct((2, heads, 300, DIM), kd.float16) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    stages = attention_kernel(opened(p), SMALL, 132).lower(*like, *[np.int32(1)] * causal, target="sm_90a")
    assert re.search(r"\bdiv\.[su]32", stages.compile().ptx)
    assert not re.search(r"\b(div|rem)\.[su]64", stages.compile().ptx)


@pytest.mark.parametrize("config", [SMALL, AttentionConfig(2, 128, 2), AttentionConfig(3, 80, 3)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_any_length_have_the_layout_of_scores(causal: bool, config: AttentionConfig) -> None:
    """Through SMEM they took a tenth of a short problem. Kernels of one length that share keys have such a mask, too."""
    p = AttentionProblem(1, HEADS, KV_HEADS, 64, 600, 128, kd.float16, causal, 0.1, True)
    like = [
        kd.ShapeDtypeStruct((1, heads, n, 128), kd.float16)
        for heads, n in ((HEADS, 64), (KV_HEADS, 600), (KV_HEADS, 600))
    ]
    made = [attention_kernel(opened(p), config, 132).lower(*like, *[np.int32(1)] * causal, target="sm_90a")]
    if not causal:
        made.append(attention_kernel(replace(p, splits=2), config, 132).lower(*like, target="sm_90a"))
    for stages in made:
        assert not any("layout" in note.text for note in stages.notes)


def biased(rng: np.random.Generator, sizes: Sizes) -> dict[str, Any]:
    batch, queries, keys = sizes
    return {"bias": rng.standard_normal((batch, 1, queries, keys)).astype(np.float32), "softcap": 3.0}


def tiled(rng: np.random.Generator, sizes: Sizes) -> dict[str, Any]:
    """A bias whose rows TMA can load, of any length: with gaps."""
    batch, queries, keys = sizes
    return {"bias": rng.standard_normal((batch, 1, queries, (keys // 8 + 1) * 8)).astype(np.float16)[..., :keys]}


def whole(rng: np.random.Generator, sizes: Sizes) -> dict[str, Any]:
    """And without gaps."""
    return {"bias": rng.standard_normal(sizes[1:]).astype(np.float32)}


def ragged(rng: np.random.Generator, sizes: Sizes) -> dict[str, Any]:
    batch, queries, keys = sizes
    ends = [np.sort(rng.integers(0, n, batch - 1)) for n in (queries, keys)]
    lengths = [np.array([0, *end, n], np.int32) for end, n in zip(ends, (queries, keys), strict=True)]
    return {"q_seqlens": lengths[0], "kv_seqlens": lengths[1], "causal": True}


def scaled(rng: np.random.Generator, sizes: Sizes) -> dict[str, Any]:
    """Of float8: a factor for each head, one for all, and a number."""
    each = rng.uniform(0.5, 2, (sizes[0], KV_HEADS)).astype(np.float32)
    return {"q_scale": each, "k_scale": np.array(0.5, np.float32), "v_scale": 2.0}


def paged(rng: np.random.Generator, sizes: Sizes, **options: Any) -> dict[str, Any]:
    """Pages of 16 keys; `call_of` lays keys out in them."""
    batch, _, keys = sizes
    table = -(-keys // 16)
    pages = rng.permutation(batch * table).reshape(batch, table).astype(np.int32)
    return {"page_table": pages, "kv_seqlens": rng.integers(1, keys, batch).astype(np.int32), **options}


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return kd.div(i, 40) == kd.div(j, 40)


def of_heads(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i + j) % (2 + h + b) != 0


def nearer(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score - 0.1 * kd.abs(i - j).astype(kd.float32)


def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score - 0.25 * (i - j)


Options = Callable[[np.random.Generator, Sizes], dict[str, Any]]
CALLS: dict[str, Options] = {
    "bias": biased,
    "tiled": tiled,
    "whole": whole,
    "ragged": ragged,
    "plain": lambda *_: {},
    "causal": lambda *_: {"causal": True, "return_lse": True},
    "window": lambda *_: {"causal": "bottom_right", "window": 40},
    "linear": lambda *_: {"score_mod": alibi, "causal": True, "window": 64},
    "scaled": scaled,
    "masked": lambda *_: {"mask_mod": documents, "causal": True},
    "masked by head": lambda *_: {"mask_mod": of_heads, "layout": "bshd", "return_lse": True},
    "masked ragged": lambda rng, sizes: {**ragged(rng, sizes), "mask_mod": documents},
    "paged": paged,
    "paged causal": lambda rng, sizes: paged(rng, sizes, causal="bottom_right", window=90),
    "score": lambda *_: {"score_mod": nearer, "layout": "bshd"},
}
PLAIN = ("plain", "causal")  # which another kernel takes, whose tiles no counter deals


def call_of(name: str, rng: np.random.Generator, sizes: Sizes) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    """Arrays and options of a call."""
    options, arrays = CALLS[name](rng, sizes), heads_of(rng, sizes)
    if options.get("layout") == "bshd":
        arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays]
    if "q_scale" in options:
        arrays = [x.astype(ml_dtypes.float8_e4m3fn) for x in arrays]
    if "page_table" in options:
        shape = (options["page_table"].size, KV_HEADS, 16, DIM)
        arrays[1:] = [rng.standard_normal(shape).astype(np.float16) for _ in "kv"]
    if "q_seqlens" in options:
        arrays = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in arrays]
    return arrays, options


def sizes_of(name: str) -> tuple[Sizes, ...]:
    """Those of three calls."""
    return ((2, 64, 72), (3, 70, 48), (2, 90, 132)) if name == "whole" else ((2, 64, 70), (3, 70, 50), (2, 90, 130))


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    ("name", "blocks"), [(name, blocks) for name in CALLS for blocks in ((132,) if name in PLAIN else (2, 4, 132))]
)
def test_a_third_length_compiles_nothing(
    name: str, blocks: int, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives the bits of the kernels that are made for it alone.

    Two blocks share the tiles of the second and third sizes; four those of the second, and the third have a block each.
    Many give each tile one, and the kernel need not know whether tiles are left.
    """
    if blocks < 132:
        monkeypatch.setattr(attention_scored, "few_tiles", lambda *_: False)
    monkeypatch.setattr(
        attention_scored, "scored_kernel", lambda p, t, _, promise: scored_kernel(p, t, blocks, promise)
    )
    rng, attention, later = np.random.default_rng(1), type(kd.library.attention)(), list[list[str]]()
    monkeypatch.setattr(attention_opened, "_first", FirstSizes())
    for number, sizes in enumerate(sizes_of(name)):
        arrays, options = call_of(name, rng, sizes)
        traces.clear()
        got = attention(*arrays, config=SMALL, interpret=True, **options)
        later.append(list(traces))
        if number:
            monkeypatch.setattr(attention_opened, "_first", FirstSizes())
            assert same(got, type(attention)()(*arrays, config=SMALL, interpret=True, **options))
            monkeypatch.setattr(attention_opened, "_first", _Other())
    assert later[0], "the first sizes are compiled for"
    assert later[1], "a kernel for any follows"
    assert not later[2], "and serves all that come"


LOOKS_BACK = ("causal", "window", "linear", "masked", "masked ragged", "softcap")  # their queries need as many keys


@pytest.mark.parametrize("name", ["tiled", *(name for name in CALLS if name != "tiled" and "paged" not in name)])
@pytest.mark.sampled(4)
def test_lengths_of_one(name: str) -> None:
    """Of a batch, of queries and of keys, before and after others: an extent of 1 looks like one that broadcasts."""
    function, rng = type(kd.library.attention)(), np.random.default_rng(6)
    with none_before():
        for batch, queries, keys in ((1, 32, 1), (2, 40, 72), (1, 33, 1), (3, 1, 1), (1, 1, 24)):
            sizes = batch, queries, max(keys, queries) if name in LOOKS_BACK else keys
            arrays, options = call_of(name, rng, sizes)
            got = function(*arrays, **options, interpret=True)
            with none_before():
                assert same(got, type(function)()(*arrays, **options, interpret=True)), sizes


@pytest.mark.parametrize("together", [1, 2, 4])
def test_heads_that_go_together_in_any_number(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal tiles differ in length, so heads take turns: long tiles of several heads come first. The bits are the same."""
    monkeypatch.setattr(attention_opened, "_first", _Other())
    monkeypatch.setattr(attention_scored, "scored_together", lambda *_: together)
    arrays = heads_of(np.random.default_rng(3), (2, 150, 130))
    got = type(kd.library.attention)()(*arrays, causal=True, window=60, config=SMALL, interpret=True)
    monkeypatch.undo()
    monkeypatch.setattr(attention_opened, "_first", FirstSizes())
    want = type(kd.library.attention)()(*arrays, causal=True, window=60, config=SMALL, interpret=True)
    assert same(got, want)


@pytest.mark.parametrize(("options", "counts"), [({}, [1, 2, 2]), ({"causal": True, "mask_mod": far}, [2, 4, 4])])
def test_it_lists_its_compiled_kernels(options: dict[str, Any], counts: list[int]) -> None:
    """A call with a function as its mask has a kernel of its own that lists blocks."""
    attention, found = type(kd.library.attention)(), list[int]()
    with none_before():
        for batch, length in ((1, 64), (2, 80), (3, 48)):
            x = np.ones((batch, 1, length, 64), np.float16)
            attention(x, x, x, config=SMALL, interpret=True, **options)
            found.append(len(attention.specialisations()))
    assert found == counts


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("sizes", [(1, 300, 400), (40, 500, 520)], ids=str)
def test_bits_on_a_gpu(name: str, sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few tiles, and of more than multiprocessors take at once."""
    arrays, options = call_of(name, np.random.default_rng(2), sizes)
    results: list[Any] = []
    for first in (_Other(), FirstSizes()):
        monkeypatch.setattr(attention_opened, "_first", first)
        results.append(type(kd.library.attention)()(*arrays, config=SMALL, **options))
    assert same(*results)


class _Other(FirstSizes):
    """Sizes of every kind came before."""

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        return True
