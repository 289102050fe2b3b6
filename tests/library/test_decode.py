"""kd.library.decode_attention: every option alone and in pairs, pages of all sizes, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.decoding.general import decode_general
from kernel_dsl.library.decoding.kernel import DecodeConfig, decode_kernel, decode_steps, split_count
from kernel_dsl.library.decoding.problem import DecodeProblem
from tests.hopper.helpers import random, relative

from . import attention_reference as reference

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f16, f32, e4m3 = kd.bfloat16, kd.float16, kd.float32, kd.float8_e4m3fn
BOUNDS = {bf16: 8e-3, f16: 2e-3}
Spec = kd.ShapeDtypeStruct

OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"causal": False},
    "window": {"window": 30},
    "softcap": {"softcap": 1.5},
    "splits": {"splits": 3},
    "page": {"page": 16},
    "float8": {"cache": e4m3, "k_scale": 0.5, "v_scale": "array"},
    "queries": {"queries": 5},
}
PAIRS = list(itertools.combinations(OPTIONS, 2))


def expected(q: Any, k: Any, v: Any, lengths: Any, causal: bool, window: int | None, softcap: float | None) -> Any:
    """(out, lse) in float64, a sequence at a time."""
    outs: list[Any] = []
    sums: list[Any] = []
    for b, length in enumerate(lengths):
        shift = length - q.shape[2]

        def seen(_b: Any, _h: Any, i: Any, j: Any, shift: int = shift) -> Any:
            near = np.ones_like(i + j, bool) if window is None else (i + shift - j < window)
            if causal:
                return near & (j <= i + shift)
            return near if window is None else near & (j - i - shift < window)

        part = [x[b : b + 1, :, :length] for x in (k, v)]
        made = reference.attention(q[b : b + 1], *part, softcap=softcap, mask_mod=seen)
        outs.append(made.out[0])
        sums.append(made.lse[0])
    return np.stack(outs), np.stack(sums)


def paged(rng: Any, x: Any, lengths: Any, page: int, ids: Any, pages: int) -> Any:
    """The keys of `x` in pages; NaN where there is none."""
    made = np.full((pages, x.shape[1], page, x.shape[3]), np.nan, np.float32).astype(x.dtype)
    for b, length in enumerate(lengths):
        for start in range(0, int(length), page):
            part = x[b, :, start : min(start + page, int(length))]
            made[ids[b, start // page], :, : part.shape[1]] = part
    return made


def case(
    rng: Any, lengths: tuple[int, ...], heads: tuple[int, int], dim: int, dtype: Any, *, queries: int = 1, page: int = 0,
    cache: Any = None, k_scale: Any = None, v_scale: Any = None, causal: bool = True, window: int | None = None,
    softcap: float | None = None, splits: int | None = None, keys: int = 0,
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:  # fmt: skip
    """(arrays, options, expected results). What lies beyond a length is NaN, and pages beyond it are none."""
    B, (H, G), S = len(lengths), heads, keys or max(*lengths, 1) + 20
    cache = cache or dtype
    q = random(rng, (B, H, queries, dim), dtype)
    k, v = (random(rng, (B, G, S, dim), cache) for _ in "kv")
    shapes: dict[Any, tuple[int, ...]] = {"array": (B, G), "tensor": ()}
    k_scale, v_scale = (
        np.asarray(rng.uniform(0.5, 2, shapes[x]), np.float32) if isinstance(x, str) else x for x in (k_scale, v_scale)
    )
    wide = []
    for x, scale in ((k, k_scale), (v, v_scale)):
        scale = np.asarray(1 if scale is None else scale, np.float64)
        wide.append(x.astype(np.float64) * (scale if scale.ndim == 0 else scale[:, :, None, None]))
    found = expected(q, *wide, lengths, causal, window, softcap)
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap, "splits": splits}
    options |= {"k_scale": k_scale, "v_scale": v_scale}
    if page:
        most = -(-S // page)
        pages = B * most + 2
        ids = rng.permutation(pages)[: B * most].reshape(B, most).astype(np.int32)
        k, v = (paged(rng, x, lengths, page, ids, pages) for x in (k, v))
        for b, length in enumerate(lengths):
            ids[b, -(-length // page) :] = 2**30
        options["page_table"] = ids
    else:
        for b, length in enumerate(lengths):
            k[b, :, length:] = v[b, :, length:] = np.nan
    return (q, k, v, np.array(lengths, np.int32)), options, found


def check(got: Any, wanted: Any, dtype: Any) -> None:
    """Compare outputs and logarithms; rows that see nothing are exact."""
    out, lse = (np.asarray(x) for x in got)
    assert out.shape == wanted[0].shape and lse.shape == wanted[1].shape and lse.dtype == np.float32
    assert out.dtype == dtype.numpy and relative(out, wanted[0]) < BOUNDS[dtype]
    none = np.isneginf(wanted[1])
    assert np.array_equal(np.isneginf(lse), none) and not np.asarray(out[none], np.float64).any()
    assert np.abs(lse[~none] - wanted[1][~none]).max(initial=0) < 4e-3


def run(interpret: Any, dtype: Any, *args: Any, **options: Any) -> None:
    arrays, options, wanted = case(*args, dtype, **options)
    check(kd.library.decode_attention(*arrays, **options, return_lse=True, interpret=interpret), wanted, dtype)


def options_of(names: tuple[str, ...]) -> dict[str, Any]:
    return {k: x for name in names for k, x in OPTIONS[name].items()}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.sampled(60)
def test_options(name: str, interpret: Any, rng: Any) -> None:
    """Each alone, under each schedule; one sequence has no key, and one fewer than there are queries."""
    run(interpret, bf16, rng, (130, 0, 3), (4, 2), 64, **options_of((name,)))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.sampled(34)
def test_pairs(pair: tuple[str, str], rng: Any) -> None:
    """At lengths, dtypes and head dimensions that differ from pair to pair."""
    n = PAIRS.index(pair)
    heads = [(4, 2), (3, 1), (2, 2), (8, 1)][n % 4]
    schedule = kd.InterpretParams(schedule=("late", "random", "eager")[n % 3], report_unwritten=True)
    lengths = (40 + 37 * (n % 5), n % 4)
    run(schedule, (bf16, f16)[n % 2], rng, lengths, heads, (64, 128, 80, 16, 48)[n % 5], **options_of(pair))


def test_the_general_kernel_does_not_spill() -> None:
    """With the most queries of the widest rows."""
    p = DecodeProblem(1, 2, 1, 8, 100, 256, bf16, bf16)
    specs = [Spec((1, 2, 8, 256), bf16), *[Spec((1, 1, 100, 256), bf16)] * 2, Spec((1,), kd.int32)]
    compiled = decode_general(p, False).lower(*specs, target="sm_90a").compile()
    assert compiled.resources.spills == 0


@pytest.mark.parametrize("dim", [16, 24, 40, 72, 96, 120, 128, 136, 192, 248, 256])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.sampled(39)
def test_head_dimensions(dim: int, cache: Any, rng: Any) -> None:
    run(True, bf16, rng, (90,), (2, 1), dim, cache=cache, splits=2)


@pytest.mark.parametrize("page", [1, 2, 3, 8, 9, 16, 20, 24, 40, 64, 100, 128, 192, 250, 256])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.sampled(78)
def test_pages(page: int, cache: Any, rng: Any) -> None:
    """Of every kind: those that steps divide, those that divide steps, and others."""
    run(True, bf16, rng, (150, 17), (2, 1), 64, page=page, cache=cache, queries=2)


@pytest.mark.parametrize("heads", [(1, 1), (7, 1), (72, 1), (128, 2)], ids=str)
@pytest.mark.parametrize("queries", [1, 8])
@pytest.mark.sampled(26)
def test_rows(heads: tuple[int, int], queries: int, rng: Any) -> None:
    """Groups of any size, more rows than a tile has among them."""
    run(True, bf16, rng, (70,), heads, 32, queries=queries, splits=2)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_queries_of_any_size_over_float8(size: float, rng: Any) -> None:
    """Products are of float16, which holds less than bfloat16: rows of queries are scaled, and those of zeros stay so."""
    (q, k, v, lengths), options, _ = case(rng, (90, 40), (4, 2), 64, bf16, cache=e4m3, k_scale=1 / size, splits=1)
    q[0, 1], q[1, 0, 0, 3:] = 0, 0
    wanted = expected(q, k.astype(np.float64), v.astype(np.float64), lengths, True, None, None)
    scaled = (q.astype(np.float64) * size).astype(bf16.numpy)
    check(kd.library.decode_attention(scaled, k, v, lengths, **options, return_lse=True, interpret=True), wanted, bf16)


def test_values_that_are_no_numbers(rng: Any) -> None:
    """NaN and infinities of queries, and NaN of a float8 cache, reach the rows that see them, and no others."""
    (q, k, v, lengths), options, _ = case(rng, (90, 40), (4, 2), 64, bf16, cache=e4m3, splits=1)
    q[0, 0, 0, 5], q[0, 1, 0, 7], v[1, 1, 3, 9] = np.nan, np.inf, np.nan
    out = kd.library.decode_attention(q, k, v, lengths, **options, interpret=True).astype(np.float32)
    assert np.isnan(out[0, :2]).all() and np.isfinite(out[0, 2:]).all() and np.isfinite(out[1, :2]).all()
    assert np.isnan(out[1, 2:, :, 9]).all() and np.isfinite(np.delete(out[1, 2:], 9, axis=2)).all()


def test_same_bits(rng: Any) -> None:
    """Whatever the order in which blocks run."""
    arrays, options, _ = case(rng, (300, 77), (4, 2), 64, bf16, splits=4)
    made = [
        kd.library.decode_attention(
            *arrays, **options, interpret=kd.InterpretParams(schedule="random", seed=seed, report_unwritten=True)
        )
        for seed in (1, 2)
    ]
    assert np.array_equal(made[0].view(np.uint16), made[1].view(np.uint16))


@pytest.mark.parametrize(("blocks", "slots", "steps", "splits"), [
    (4, 264, 4096, 64),  # 64 steps each; 60 blocks would have 69
    (24, 264, 64, 11), (64, 264, 512, 4), (300, 264, 64, 4),
    (512, 264, 128, 1), (256, 264, 64, 1),  # whole waves
    (4, 264, 64, 32), (4, 264, 16, 8), (1, 264, 3, 1),  # two steps or more
    (256, 132, 64, 1), (8, 132, 512, 16),  # latent keys
], ids=str)  # fmt: skip
def test_how_many_blocks_share_keys(blocks: int, slots: int, steps: int, splits: int) -> None:
    """As many as end earliest, and no more."""
    assert split_count(blocks, slots, steps) == splits


def test_lengths_need_no_compile(rng: Any) -> None:
    """Other lengths and pages run the same kernels."""
    arrays, options, _ = case(rng, (100, 30), (2, 1), 64, bf16, page=16, keys=128)
    kd.library.decode_attention(*arrays, **options, interpret=True)
    before = dict(kd.library.decode_attention._plans)
    other, options, wanted = case(rng, (5, 128), (2, 1), 64, bf16, page=16, keys=128)
    out = kd.library.decode_attention(*other, **options, interpret=True)
    assert before == kd.library.decode_attention._plans and relative(out, wanted[0]) < 8e-3


@pytest.mark.parametrize("page", [16, 3])
@pytest.mark.parametrize("bad", [-1, 10**6])
def test_page_out_of_range(page: int, bad: int, rng: Any) -> None:
    """A page that is not in the cache is a hazard where it is needed."""
    arrays, options, _ = case(rng, (100,), (2, 1), 64, bf16, page=page)
    options["page_table"][0, 1] = bad
    with pytest.raises(kd.HazardError) as caught:
        kd.library.decode_attention(*arrays, **options, interpret=True)
    assert caught.value.kind == kd.HazardKind.OUT_OF_BOUNDS


@pytest.mark.parametrize("bad", [-1, 97, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("form", ["whole", "pages", "by lanes"])
@pytest.mark.sampled(6)
def test_length_out_of_range(form: str, bad: int, rng: Any) -> None:
    """A length below 0 or beyond the keys of a cache is a hazard that says so. A length of all keys is none."""
    page = 16 if form == "pages" else 0
    (q, *kv, lengths), options, _ = case(rng, (50, 96), (2, 1), 64, bf16, page=page, keys=96)
    if form == "by lanes":
        kv = [np.repeat(x, 2, axis=3)[..., ::2] for x in kv]
    kd.library.decode_attention(q, *kv, lengths, **options, interpret=True)
    lengths[0] = bad
    with pytest.raises(kd.HazardError, match="lengths of sequences are from 0 to the keys of their cache") as caught:
        kd.library.decode_attention(q, *kv, lengths, **options, interpret=True)
    assert caught.value.kind == kd.HazardKind.ASSERTION


def test_strides_and_out(rng: Any) -> None:
    """Caches by position, and results into arrays that are given."""
    (q, k, v, lengths), _, wanted = case(rng, (60, 33), (4, 2), 64, bf16, queries=2)
    k, v = (np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v))
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
    for splits in (1, 2):
        got = kd.library.decode_attention(
            q, k, v, lengths, splits=splits, return_lse=True, out=(out, lse), interpret=True
        )
        assert got[0] is out and got[1] is lse
        check(got, wanted, bf16)
        out[...], lse[...] = np.nan, np.nan


@pytest.mark.parametrize("page", [0, 3, 16])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.sampled(3)
def test_caches_with_gaps(page: int, cache: Any, rng: Any) -> None:
    """Heads in turn, and rows with room between them: words of such a cache are no array."""
    (q, *kv, lengths), options, wanted = case(rng, (40, 0), (4, 2), 64, bf16, page=page, cache=cache)
    for k, v in (
        [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in kv],
        [np.repeat(x, 2, axis=3)[..., ::2] if cache == bf16 else np.concatenate([x, x], 3)[..., :64] for x in kv],
    ):
        check(kd.library.decode_attention(q, k, v, lengths, **options, return_lse=True, interpret=True), wanted, bf16)


@pytest.mark.parametrize("k_scale", [0.0, -0.7])
def test_scales_of_any_sign(k_scale: float, rng: Any) -> None:
    """Masked scores count for nothing, whatever they would be multiplied by."""
    arrays, options, wanted = case(rng, (40, 9), (4, 2), 64, bf16, queries=2, cache=e4m3, k_scale=k_scale)
    check(kd.library.decode_attention(*arrays, **options, return_lse=True, interpret=True), wanted, bf16)


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
def test_heads_last(page: int, cache: Any) -> None:
    """Caches whose heads follow positions are loaded by vectors, as others are."""
    q, shape = np.zeros((2, 4, 1, 128), bf16.numpy), (64, 16, 2, 128) if page else (2, 512, 2, 128)
    k, v = (np.zeros(shape, cache.numpy).swapaxes(1, 2) for _ in range(2))
    options = {"page_table": np.zeros((2, 32), np.int32)} if page else {}
    stages = kd.library.decode_attention.lower(q, k, v, np.zeros(2, np.int32), **options, target="sm_90a")
    ptx = stages.compile().ptx
    assert stages.name == "decode_attention"
    assert ptx.count("ld.global.nc.v4.b32") >= 24 and "ld.global.nc.b16" not in ptx and "ld.global.nc.b8" not in ptx


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.sampled(4)
def test_general(page: int, cache: Any, rng: Any) -> None:
    """Caches whose elements are no neighbours take the kernel for anything."""
    more = {"k_scale": 0.5, "v_scale": "array"} if cache == e4m3 else {}
    (q, *kv, lengths), options, wanted = case(
        rng, (40, 0), (4, 2), 24, bf16, page=page, cache=cache, queries=3, window=9, softcap=2.0, **more
    )
    k, v = (np.repeat(x, 2, axis=3)[..., ::2] for x in kv)
    assert kd.library.decode_attention.lower(q, k, v, lengths, **options).name == "decode_general"
    check(kd.library.decode_attention(q, k, v, lengths, **options, return_lse=True, interpret=True), wanted, bf16)


def test_without_wgmma() -> None:
    """Targets without wgmma take the general kernel."""
    specs = Spec((1, 2, 1, 64), bf16), *[Spec((1, 1, 128, 64), bf16)] * 2, Spec((1,), kd.int32)
    assert kd.library.decode_attention.lower(*specs, target="sm_80").name == "decode_general"
    assert kd.library.decode_attention.lower(*specs, target="sm_90a").name == "decode_attention"


# --- what is refused ------------------------------------------------------------------------------

Q, K = np.ones((2, 4, 1, 64), np.float16), np.ones((2, 2, 32, 64), np.float16)
LENGTHS, TABLE = np.full(2, 32, np.int32), np.zeros((2, 4), np.int32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": Q[0]}, "q is an ndarray of shape"),
    ({"q": np.ones((2, 4, 9, 64), np.float16)}, "q has 9 queries"),
    ({"q": np.ones((2, 4, 0, 64), np.float16)}, "q has 0 queries"),
    ({"q": np.ones((2, 3, 1, 64), np.float16)}, "3 query heads and 2 key heads"),
    ({"q": Q.astype(np.float32)}, "q is float32"),
    ({"k": K.astype(bf16.numpy)}, "k is bfloat16"),
    ({"v": K.astype(e4m3.numpy)}, "v is float8_e4m3fn"),
    ({"k": K[:1]}, r"k is \(1, 2, 32, 64\)"),
    ({"v": K[:, :, :5]}, r"v is \(2, 2, 5, 64\)"),
    ({"q": Q[..., :12], "k": K[..., :12], "v": K[..., :12]}, "a head dimension of 12"),
    ({"q": Q[..., :8], "k": K[..., :8], "v": K[..., :8]}, "a head dimension of 8"),
    ({"lengths": [32, 32]}, "lengths is a list"),
    ({"lengths": LENGTHS.astype(np.int64)}, "lengths is int64"),
    ({"lengths": LENGTHS[:1]}, r"lengths is \(1,\)"),
    ({"page_table": TABLE[:1]}, r"page_table is \(1, 4\)"),
    ({"page_table": TABLE.astype(np.float32)}, "page_table is float32"),
    ({"page_table": TABLE, "k": np.ones((2, 2, 257, 64), np.float16), "v": np.ones((2, 2, 257, 64), np.float16)},
     "pages of 257 keys"),
    ({"page_table": TABLE, "k": K[:, :, :0], "v": K[:, :, :0]}, "pages of 0 keys"),
    ({"k_scale": 1.0}, "k_scale with float16"),
    ({"k": K.astype(e4m3.numpy), "v": K.astype(e4m3.numpy), "v_scale": np.ones(2, np.float32)}, r"v_scale is \(2,\)"),
    ({"k": K.astype(e4m3.numpy), "v": K.astype(e4m3.numpy), "v_scale": "x"}, "v_scale is a str"),
    ({"k": K.astype(e4m3.numpy), "v": K.astype(e4m3.numpy), "k_scale": True}, "k_scale is a bool"),
    ({"splits": 0}, "splits=0"),
    ({"splits": 1.5}, "splits=1.5"),
    ({"splits": True}, "splits=True"),
    ({"window": 0}, "window=0"),
    ({"softcap": -1.0}, "softcap=-1.0"),
    ({"softcap": "x"}, "softcap='x'"),
    ({"softcap": 1e50}, r"softcap=1e\+50"),
    ({"out": K}, "out"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[-1])
def test_refused(case: Any) -> None:
    """At the caller's line, before anything is compiled."""
    given, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.decode_attention(**{"q": Q, "k": K, "v": K, "lengths": LENGTHS, "interpret": True} | given)


@pytest.mark.parametrize("shape", [(0, 2, 1, 64), (2, 0, 1, 64)], ids=str)
def test_nothing_to_do(shape: Any) -> None:
    """Batches and heads of none."""
    q = np.ones(shape, np.float16)
    k = np.ones((shape[0], 2, 8, 64), np.float16)
    assert kd.library.decode_attention(q, k, k, np.full(shape[0], 8, np.int32), interpret=True).shape == shape


def test_no_room() -> None:
    """A cache without room for a key."""
    k = K[:, :, :0]
    out, lse = kd.library.decode_attention(Q, k, k, np.zeros_like(LENGTHS), return_lse=True, interpret=True)
    assert not out.any() and np.isneginf(lse).all()


# --- machine code ---------------------------------------------------------------------------------


def kernel_of(dim: int, page: int, cache: Any, **more: Any) -> tuple[Any, list[Any]]:
    """The kernel for Hopper of a usual problem, and its inputs."""
    pages = {"page": page, "pages": 4096, "table": 4096 // page} if page else {}
    scales = "kv" if cache == e4m3 else ""
    p = DecodeProblem(
        8, 32, 8, more.pop("queries", 1), 4096, dim, bf16, cache, scales=scales, lse=True, **pages, **more
    )
    chunk, block = decode_steps(p)
    kv = Spec((4096, 8, page, dim) if page else (8, 8, 4096, dim), cache)
    table = [Spec((8, p.table), kd.int32)] * bool(page)
    inputs = [Spec((8, 32, p.queries, dim), bf16), kv, kv, Spec((8,), kd.int32), *table]
    return decode_kernel(p, DecodeConfig(block, chunk, 2, 2), False), inputs + [Spec((8, 8), f32) for _ in scales]


@pytest.mark.parametrize("dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("page", [0, 1, 16, 64])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.parametrize("more", [{}, {"softcap": 3.0, "window": 100, "queries": 4}], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_machine_code(dim: int, page: int, cache: Any, more: Any) -> None:
    """No spills, products that are not serialised, loads of 16 bytes, and two blocks a multiprocessor up to 128."""
    kernel, inputs = kernel_of(dim, page, cache, **more)
    compiled = kernel.lower(*inputs, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and compiled.resources.blocks_per_multiprocessor >= (2 if dim <= 128 else 1)
    assert not [r for r in compiled.remarks if "C75" in r.text]
    # those of a step, and of the first before the loop; rows of other than a power of 2 are gathered half as many at a time
    keys = 32 if page == 1 and dim & (dim - 1) else 64
    assert compiled.ptx.count("ld.global.nc.v4") >= 2 * 2 * keys * dim * cache.itemsize // (128 * 16)


def does_not_spill(dim: int, page: int, cache: Any) -> None:
    kernel, inputs = kernel_of(dim, page, cache)
    resources = kernel.lower(*inputs, target="sm_90a").compile().resources
    assert resources.spills == 0 and resources.blocks_per_multiprocessor >= (2 if dim <= 128 else 1)


@pytest.mark.parametrize("dim", [16, 24, 40, 48, 64, 80, 96, 112, 128, 136, 256])
@pytest.mark.parametrize("page", [1, 3, 6, 8, 10, 24, 40, 48, 56, 96, 100, 192, 256])
@pytest.mark.parametrize("cache", [bf16, e4m3], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_pages_of_any_size_do_not_spill(dim: int, page: int, cache: Any) -> None:
    does_not_spill(dim, page, cache)


@pytest.mark.parametrize("dim, page, cache", [(64, 8, bf16), (64, 8, e4m3), (128, 24, e4m3), (48, 16, e4m3)], ids=str)
def test_many_small_parts_do_not_spill(dim: int, page: int, cache: Any) -> None:
    """Parts fill lanes unevenly: the producer spilled up to 6,800 bytes with more of them in a step."""
    does_not_spill(dim, page, cache)


# --- on a GPU -------------------------------------------------------------------------------------

LARGE: list[dict[str, Any]] = [
    {"lengths": (4096,) * 8, "heads": (32, 8), "dim": 128},
    {"lengths": (65536,), "heads": (32, 4), "dim": 128},
    {"lengths": (5000, 1, 0, 8191), "heads": (32, 8), "dim": 128, "page": 16},
    {"lengths": (5000, 1, 0, 8191), "heads": (32, 8), "dim": 128, "page": 64, "queries": 4},
    {"lengths": (3000, 777), "heads": (16, 2), "dim": 64, "page": 1, "window": 500},
    {"lengths": (3000, 777), "heads": (16, 2), "dim": 256, "cache": e4m3, "k_scale": 0.5, "v_scale": "array"},
    {"lengths": (3000, 777), "heads": (16, 2), "dim": 96, "page": 256, "softcap": 5.0, "causal": False},
]


@pytest.mark.gpu
@pytest.mark.parametrize("what", LARGE, ids=str)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_real_sizes(what: dict[str, Any], dtype: Any, rng: Any) -> None:
    """Twice the same bits, and pages that are not there are not touched."""
    more = {k: x for k, x in what.items() if k not in ("lengths", "heads", "dim")}
    arrays, options, wanted = case(rng, what["lengths"], what["heads"], what["dim"], dtype, **more)
    both = [kd.library.decode_attention(*arrays, **options, return_lse=True, interpret=False) for _ in range(2)]
    check(both[0], wanted, dtype)
    assert np.array_equal(np.asarray(both[0][0]).view(np.uint16), np.asarray(both[1][0]).view(np.uint16))


@pytest.mark.gpu
def test_page_out_of_range_on_a_gpu(rng: Any) -> None:
    """It is zeros, and nothing is touched."""
    arrays, options, _ = case(rng, (100,), (2, 1), 64, bf16, page=16)
    options["page_table"][0, 1:3] = [-1, 10**6]
    out = kd.library.decode_attention(*arrays, **options, interpret=False)
    assert np.isfinite(np.asarray(out, np.float32)).all()
