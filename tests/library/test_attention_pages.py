"""kd.library.attention of many queries over caches in pages: every option, pages of all sizes, against float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.scored import ScoredPlan
from kernel_dsl.library.first_sizes import FirstSizes
from tests.hopper.helpers import random

from . import attention_reference as reference
from .test_attention_options import OPTIONS, check, made, one_of
from .test_decode import paged

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f32, e4m3 = kd.bfloat16, kd.float32, kd.float8_e4m3fn


def cache(
    rng: Any, lengths: Any, heads: int, dims: Any, page: int, dtype: Any, layout: str = "bhsd", bad: int = 2**30
) -> Any:
    """(keys, values) as they are, as pages, and the table. What is no key is NaN, and pages beyond a length are `bad`."""
    most = -(-(max(*lengths, 1) + 20) // page)
    pages = len(lengths) * most + 2
    ids = rng.permutation(pages)[: len(lengths) * most].reshape(-1, most).astype(np.int32)
    rows = [random(rng, (len(lengths), heads, most * page, d), dtype) for d in dims]
    kept = [paged(rng, x, lengths, page, ids, pages) for x in rows]
    for b, length in enumerate(lengths):
        ids[b, -(-length // page) :] = bad
    return rows, [np.ascontiguousarray(x.swapaxes(1, 2)) if layout == "bshd" else x for x in kept], ids


def run(
    rng: Any, names: tuple[str, ...], lengths: Any, queries: Any, page: int, dtype: Any = bf16, heads: Any = (2, 1),
    dims: Any = (64, 64), layout: str = "bhsd", interpret: Any = True, how: str = "plain", **more: Any,
) -> None:  # fmt: skip
    """Call and compare each sequence with one of its own; `queries`: an int, or ragged lengths of them."""
    (k, v), kept, ids = cache(rng, lengths, heads[1], dims, page, dtype, layout)
    batch, most = ids.shape
    ragged = not isinstance(queries, int)
    each = list(queries) if ragged else [queries] * batch
    starts = np.cumsum([0, *each]).astype(np.int32)
    q = random(rng, (sum(each), heads[0], dims[0]), dtype)
    options = made(names, rng, (batch, heads[0], 0 if ragged else queries, most * page))
    given = np.array(lengths, np.int32) if how == "plain" else np.cumsum([7, *lengths]).astype(np.int32)
    dense = q if ragged else q.reshape(batch, -1, *q.shape[1:])
    dense = dense if ragged or layout == "bshd" else np.ascontiguousarray(dense.swapaxes(1, 2))
    out, lse = kd.library.attention(
        dense, *kept, layout=layout, page_table=ids, q_seqlens=starts if ragged else None, kv_seqlens=given, **options,
        **more, return_lse=True, interpret=interpret,
    )  # fmt: skip
    for b, length in enumerate(lengths):
        if not each[b]:
            continue
        # the reference's batch is 0: functions of it are those of a batch of this number
        single = {n: of_batch(x, b) if n.endswith("_mod") else x for n, x in options.items()}
        if "bias" in options:
            single["bias"] = options["bias"][b : b + 1, ..., :length]
        expected = reference.attention(
            one_of(q, starts, b), k[b : b + 1, :, :length], v[b : b + 1, :, :length], **single
        )
        if ragged:
            here = slice(starts[b], starts[b + 1])
            got = out[here].swapaxes(0, 1)[None], lse[:, here][None]
        else:
            got = (out[b : b + 1].swapaxes(1, 2) if layout == "bshd" else out[b : b + 1]), lse[b : b + 1]
        check(got, expected, dtype)


def of_batch(function: Any, number: int) -> Any:
    """A function of scores or masks as it is for a batch."""
    return lambda *args: function(*args[:-4], args[-4] + number, *args[-3:])


@pytest.mark.parametrize("name", ["none", *OPTIONS])
@pytest.mark.sampled(84)
def test_options(name: str, interpret: Any, rng: Any) -> None:
    """Each alone; one sequence has no key, and one fewer than queries."""
    run(rng, () if name == "none" else (name,), (150, 0, 9), 70, 16, interpret=interpret)


@pytest.mark.parametrize("page", [1, 2, 3, 8, 9, 16, 24, 40, 64, 100, 128, 250, 256])
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(62)
def test_pages(page: int, dtype: Any, rng: Any) -> None:
    """Of every kind: those that steps divide, those that divide steps, and those that are laid out anew."""
    dims = (64, 64) if dtype == bf16 else (12, 20)
    lengths, queries = ((150, 17), 66) if dtype == bf16 else ((40, 3), 7)
    run(rng, ("bottom_right",), lengths, queries, page, dtype, dims=dims)


@pytest.mark.parametrize("page", [5, 16, 64])
@pytest.mark.parametrize("how", ["plain", "cumulative"])
@pytest.mark.parametrize("names", [(), ("bottom_right", "window", "sinks"), ("alibi", "documents")], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(84)
def test_ragged_queries(page: int, how: str, names: Any, dtype: Any, rng: Any) -> None:
    """Queries one behind another, each sequence over its own pages."""
    dims = (64, 64) if dtype == bf16 else (12, 8)
    run(rng, names, (130, 0, 40, 20), (70, 3, 0, 130), page, dtype, dims=dims, how=how)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("page", [3, 32])
@pytest.mark.parametrize("dims", [(72, 40), (192, 128)], ids=str)
@pytest.mark.sampled(39)
def test_layouts(layout: str, page: int, dims: Any, rng: Any) -> None:
    run(rng, ("top_left",), (90, 33), 70, page, heads=(4, 2), dims=dims, layout=layout)


@pytest.mark.parametrize("config", [AttentionConfig(1, 64, 2), AttentionConfig(2, 48, 3, turns=True)], ids=str)
@pytest.mark.sampled(30)
def test_configurations(config: Any, interpret: Any, rng: Any) -> None:
    run(rng, ("window",), (150, 30), 70, 16, interpret=interpret, config=config)


@pytest.mark.parametrize("page", [3, 16])
@pytest.mark.sampled(12)
def test_float8(page: int, rng: Any) -> None:
    (k, v), kept, ids = cache(rng, (90, 20), 1, (64, 64), page, e4m3)
    q, scale = random(rng, (2, 2, 70, 64), e4m3), np.array([[0.5], [2.0]], np.float32)
    lengths = np.array([90, 20], np.int32)
    out, lse = kd.library.attention(
        q, *kept, page_table=ids, kv_seqlens=lengths, k_scale=scale, v_scale=3.0, return_lse=True, interpret=True
    )
    for b, length in enumerate(lengths):
        one = k[b : b + 1, :, :length].astype(np.float64) * scale[b], v[b : b + 1, :, :length].astype(np.float64) * 3
        check((out[b : b + 1], lse[b : b + 1]), reference.attention(q[b : b + 1], *one), e4m3)


def test_rows_that_no_query_reads_are_no_hazard(rng: Any) -> None:
    """The copy of small pages leaves what lies far beyond a short sequence unwritten."""
    way = kd.InterpretParams(report_unwritten=True)
    run(rng, (), (300, 3), 5, 3, dims=(16, 16), interpret=way)


def test_all_keys(rng: Any) -> None:
    """Without lengths pages are full; with those of queries alone there are as many keys."""
    k, v = (random(rng, (6, 1, 16, 64), bf16) for _ in "kv")
    ids = np.array([[3, 1, 5], [0, 2, 4]], np.int32)
    q = random(rng, (2, 2, 40, 64), bf16)
    rows = [x[ids].swapaxes(1, 2).reshape(2, 1, 48, 64) for x in (k, v)]
    got = kd.library.attention(q, k, v, page_table=ids, causal="bottom_right", return_lse=True, interpret=True)
    check(got, reference.attention(q, *rows, causal="bottom_right"), bf16)
    packed, starts = np.ascontiguousarray(q.swapaxes(1, 2)).reshape(80, 2, 64), np.array([0, 40, 80], np.int32)
    out = kd.library.attention(packed, k, v, page_table=ids, q_seqlens=starts, causal=True, interpret=True)
    expected = reference.attention(q, *(x[:, :, :40] for x in rows), causal=True)
    check((out.reshape(2, 40, 2, 64).swapaxes(1, 2), expected.lse.astype(np.float32)), expected, bf16)


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("page", [16, 3])
@pytest.mark.parametrize("bad", [-1, 10**6])
@pytest.mark.sampled(21)
def test_page_out_of_range(page: int, bad: int, dtype: Any, rng: Any) -> None:
    """A page that is not in the cache is a hazard where it is needed, and only there."""
    _, kept, ids = cache(rng, (100,), 1, (64, 64), page, dtype, bad=bad)
    q, lengths = random(rng, (1, 2, 4, 64), dtype), np.array([100], np.int32)
    kd.library.attention(q, *kept, page_table=ids, kv_seqlens=lengths, interpret=True)
    ids[0, 1] = bad
    with pytest.raises(kd.HazardError) as caught:
        kd.library.attention(q, *kept, page_table=ids, kv_seqlens=lengths, interpret=True)
    assert caught.value.kind == kd.HazardKind.OUT_OF_BOUNDS


@pytest.mark.parametrize(("page", "queries", "length", "copied"), [
    (16, 600, 4096, True), (16, 500, 4096, False), (32, 600, 4096, False), (16, 600, 2**19, False), (24, 600, 4096, False),
])  # fmt: skip
def test_what_is_copied_first(page: int, queries: int, length: int, copied: bool) -> None:
    """Small pages, where many queries use the copy and it is not too large."""
    spec = kd.ShapeDtypeStruct
    q, kept = spec((2, 16, queries, 128), bf16), spec((4096, 4, page, 128), bf16)
    table = spec((2, length // page), kd.int32)
    kd.library.attention.lower(q, kept, kept, page_table=table, target="sm_90a")
    newest = list(kd.library.attention._plans.values())[-1]
    assert (newest.pages is not None) == copied


@pytest.mark.parametrize(("batch", "queries", "tile"), [(4, 512, 128), (32, 2000, 192), (4, 64, 64)])
@pytest.mark.parametrize("page", [8, 16, 64])
def test_tiles_that_end_first(page: int, batch: int, queries: int, tile: int) -> None:
    """On 132 multiprocessors, 192 tiles of 192 queries and 256 of 128 take two rounds each."""
    spec = kd.ShapeDtypeStruct
    q, kept = spec((batch, 16, queries, 64), bf16), spec((4096, 16, page, 64), bf16)
    table = spec((batch, 4096 // page), kd.int32)
    kd.library.attention.lower(q, kept, kept, page_table=table, causal="bottom_right", target="sm_90a")
    assert list(kd.library.attention._plans.values())[-1].tile == tile


def test_lengths_need_no_compile(rng: Any) -> None:
    _, kept, ids = cache(rng, (100, 100), 1, (64, 64), 16, bf16)
    q = random(rng, (2, 2, 4, 64), bf16)
    plans: list[dict[Any, Any]] = []
    for n in (100, 7):
        lengths = np.array([n, 3], np.int32)
        kd.library.attention(q, *kept, page_table=ids, kv_seqlens=lengths, interpret=True)
        plans.append(dict(kd.library.attention._plans))
    assert plans[0] == plans[1]


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(page: int, dim: int) -> None:
    spec = kd.ShapeDtypeStruct
    # many queries over pages of 16 compute over a copy
    q, kept = spec((4, 16, 200 if page == 16 else 4090, dim), bf16), spec((4096, 4, page, dim), bf16)
    more = {
        "page_table": spec((4, 8192 // page), kd.int32),
        "kv_seqlens": spec((4,), kd.int32),
        "causal": "bottom_right",
    }
    stages = kd.library.attention.lower(q, kept, kept, **more, return_lse=True, target="sm_90a")
    compiled = stages.compile()
    assert stages.name == "attention_scored" and compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("page", [1, 3, 16, 64])
@pytest.mark.parametrize("dim", [64, 72])
def test_lowered_for_any_lengths(page: int, dim: int) -> None:
    """Also where keys are copied out of their pages first, by a kernel whose results have unknown extents."""
    spec, batch, length = kd.ShapeDtypeStruct, kd.Dim("B", max=64), kd.Dim("S", max=4096)
    q, kept = spec((batch, 4, length, dim), bf16), spec((kd.Dim("P", max=2**20), 4, page, dim), bf16)
    more = {"page_table": spec((batch, kd.Dim("T", max=4096)), kd.int32), "kv_seqlens": spec((batch,), kd.int32)}
    assert kd.library.attention.lower(q, kept, kept, **more, target="sm_90a").name == "attention_scored"


@pytest.mark.parametrize("page", [8, 16, 24, 64])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.sampled(60, "machine code")
def test_no_spills_at_any_lengths(page: int, dim: int) -> None:
    """A producer that held the numbers of a step's pages in registers, at 64-bit offsets, spilled hundreds of bytes."""
    spec, batch, length = kd.ShapeDtypeStruct, kd.Dim("B", max=64), kd.Dim("S", max=4096)
    q, kept = spec((batch, 16, length, dim), bf16), spec((kd.Dim("P", max=2**20), 16, page, dim), bf16)
    more = {"page_table": spec((batch, kd.Dim("T", max=4096)), kd.int32), "kv_seqlens": spec((batch,), kd.int32)}
    compiled = kd.library.attention.lower(q, kept, kept, **more, causal="bottom_right", target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.sampled(60, "machine code")
def test_no_spills_of_linear_functions(page: int, dim: int) -> None:
    """A linear function gets the configurations of plain attention, which hold more keys than small pages leave registers for."""
    spec = kd.ShapeDtypeStruct
    q, kept = spec((2, 4, 300, dim), bf16), spec((64, 2, page, dim), bf16)
    more = {"page_table": spec((2, 16), kd.int32), "kv_seqlens": spec((2,), kd.int32), "score_mod": reference.alibi}
    compiled = kd.library.attention.lower(q, kept, kept, **more, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


# --- bad input ------------------------------------------------------------------------------------

Q, KEPT = np.ones((2, 4, 8, 64), np.float16), np.ones((5, 2, 16, 64), np.float16)
TABLE, RAGGED = np.zeros((2, 2), np.int32), np.ones((8, 4, 64), np.float16)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"k": KEPT[0]}, r"k is an ndarray of shape \(2, 16, 64\)"),
    ({"v": KEPT[:4]}, r"v is \(4, 2, 16, 64\)"),
    ({"k": KEPT[..., :32]}, r"k is \(5, 2, 16, 32\)"),
    ({"page_table": TABLE[:1]}, r"page_table is \(1, 2\)"),
    ({"page_table": TABLE.astype(np.int64)}, "page_table is int64"),
    ({"page_table": [[0, 1]]}, "page_table is a list"),
    ({"k": np.ones((5, 2, 257, 64), np.float16), "v": np.ones((5, 2, 257, 64), np.float16)}, "pages of 257 keys"),
    ({"k": KEPT[:, :, :0], "v": KEPT[:, :, :0]}, "pages of 0 keys"),
    ({"k": np.ones((5, 3, 16, 64), np.float16), "v": np.ones((5, 3, 16, 64), np.float16)}, "4 query heads and 3 key heads"),
    ({"kv_seqlens": np.array([5], np.int32)}, r"kv_seqlens is \(1,\)"),
    ({"kv_seqlens": np.array([5, 33], np.int32)}, r"kv_seqlens=\[5, 33\]"),
    ({"kv_seqlens": np.array([5, -1], np.int32)}, r"kv_seqlens=\[5, -1\]"),
    ({"kv_seqlens": np.array([5, 3, 9], np.int32)}, r"kv_seqlens=\[5, 3, 9\]"),
    ({"kv_seqlens": np.array([5, 3], np.int64)}, "kv_seqlens is int64"),
    ({"q": RAGGED}, r"q is an ndarray of shape \(8, 4, 64\)"),
    ({"q": RAGGED, "q_seqlens": np.array([0, 5, 3], np.int32)}, r"q_seqlens=\[0, 5, 3\]"),
    ({"q": RAGGED, "q_seqlens": np.array([0, 8], np.int32)}, r"page_table is \(2, 2\)"),
    ({"q": RAGGED, "q_seqlens": np.array([0, 5, 8], np.int32), "bias": np.ones((8, 32), np.float32)}, "bias with q_seqlens"),
    ({"bias": np.ones((8, 31), np.float32)}, r"bias is \(8, 31\)"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c[-1])
def test_wrong_arguments(case: Any) -> None:
    given, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.attention(**{"q": Q, "k": KEPT, "v": KEPT, "page_table": TABLE, "interpret": True} | given)


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("page", [1, 16, 24, 64, 256])
@pytest.mark.parametrize(
    "names", [("bottom_right",), ("bottom_right", "window", "sinks"), ("softcap",), ("bias",)], ids=str
)
@pytest.mark.parametrize("queries", [300, (300, 1, 0, 700)], ids=str)
def test_long_on_a_gpu(page: int, names: Any, queries: Any, rng: Any) -> None:
    """What lies beyond lengths is NaN, and pages beyond them are none."""
    if "bias" in names and queries != 300:
        pytest.skip("ragged lengths take no bias")
    run(rng, names, (1000, 1, 0, 2111), queries, page, heads=(8, 2), dims=(128, 128), interpret=False)


@pytest.mark.gpu
@pytest.mark.parametrize("page", [3, 16])
def test_page_out_of_range_on_a_gpu(page: int, rng: Any) -> None:
    """It is zeros, and nothing is touched."""
    _, kept, ids = cache(rng, (100,), 1, (64, 64), page, bf16)
    ids[0, 1:3] = [-1, 10**6]
    q, lengths = random(rng, (1, 2, 4, 64), bf16), np.array([100], np.int32)
    out = kd.library.attention(q, *kept, page_table=ids, kv_seqlens=lengths, interpret=False)
    assert np.isfinite(np.asarray(out, np.float32)).all()


@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("sizes", [(4, 512, 4096), (1, 64, 8192)], ids=["one tile a block", "shared keys"])
@pytest.mark.parametrize("page", [8, 64])
def test_page_numbers_take_32_bits(page: int, sizes: tuple[int, int, int], causal: Any, monkeypatch: Any) -> None:
    """Of any lengths, too: with small pages the producer is slower than the consumers, and 64 bits took 3 % of the time."""
    monkeypatch.setattr(FirstSizes, "comes_again", lambda *_: True)
    batch, queries, keys = sizes
    Spec = kd.ShapeDtypeStruct
    q, kept = Spec((batch, 16, queries, 64), bf16), Spec((batch * keys // page, 16, page, 64), bf16)
    lengths, table = Spec((batch,), kd.int32), Spec((batch, keys // page), kd.int32)
    options = AttentionOptions(
        "bhsd", causal, None, None, None, None, None, None, None, None, lengths, table, None, None, None
    )
    plan = ScoredPlan.of(problem_of(q, kept, kept, options, False), None, 132, "", False, [])
    assert plan.opened
    producer = plan.lower(q, kept, kept, options, "sm_90a").ptx.split("setmaxnreg.inc")[0]
    loop = producer[producer.index("mbarrier.try_wait") :]
    assert "cp.async.bulk.tensor" in loop
    assert not re.search(r"(setp\.\w+|min|max|div|rem|mul\.lo)\.[su]64", loop)
