"""Library calls of random options, each with five sizes: those after the second compile nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.split import SMALL

from .counting import counted, none_before

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


def backward(rng: np.random.Generator) -> tuple[str, Call]:
    """Dense and ragged gradients, of tensor cores and of lanes, in one order or in none."""
    kind = pick(rng, "plain", "plain", "bias", "ragged", "float32")
    layout = pick(rng, "bhsd", "bshd") if kind != "ragged" else "bhsd"
    dim, group = pick(rng, 64, 80, 128, 256), pick(rng, 1, 4)
    o: dict[str, Any] = {"causal": pick(rng, False, True, "bottom_right"), "deterministic": bool(rng.integers(2))}
    o |= {"window": 70} if rng.random() < 0.3 else {}
    o |= {"softcap": 20.0} if rng.random() < 0.3 else {}
    o |= {"sinks": np.zeros(4, np.float32)} if rng.random() < 0.3 else {}
    o |= pick(rng, {}, {"mask_mod": documents}, {"score_mod": alibi})

    def call(batch: int, queries: int, keys: int) -> Any:
        more: dict[str, Any] = {}

        def array(heads: int, length: int) -> Array:
            shape = (length, heads) if kind == "ragged" else (batch, heads, length)
            shape = (batch, length, heads) if layout == "bshd" and kind != "ragged" else shape
            return np.zeros((*shape, dim), np.float32 if kind == "float32" else bf16)

        q, k = array(4, queries), array(4 // group, keys)
        if kind == "ragged":
            ends = [np.linspace(0, n, batch + 1).astype(np.int32) for n in (queries, keys)]
            more = {"q_seqlens": ends[0], "kv_seqlens": ends[1]}
        elif kind == "bias":
            more = {"bias": np.zeros((4, queries, keys), np.float32)}
        lse = np.zeros((4, queries) if kind == "ragged" else (batch, 4, queries), np.float32)
        return kd.library.attention_backward(q, q, k, k.copy(), q.copy(), lse, layout=layout, **more, **o)

    return f"backward {kind} {layout} {dim} {group} {o}", call


def grouped(rng: np.random.Generator) -> tuple[str, Call]:
    """Grouped products and the gradients of their weights, of other rows and sizes each time."""
    kind, dtype = (
        pick(rng, "sizes", "offsets", "gather", "scatter", "weights", "wgrad"),
        pick(rng, bf16, f8, np.float32),
    )
    gated, groups = kind == "sizes" and bool(rng.integers(2)), pick(rng, 4, 16)
    by_columns, odd = bool(rng.integers(2)), int(rng.integers(2))

    def call(batch: int, queries: int, keys: int) -> Any:
        rows = (queries + keys) // 16 * 16 + odd
        sizes = np.full(groups, rows // groups // batch, np.int32)
        a, more = np.zeros((256, rows), dtype).T if by_columns else np.zeros((rows, 256), dtype), {}
        if kind == "wgrad":
            return kd.library.grouped_matmul_wgrad(a, np.zeros((rows, 128), dtype), sizes)
        b = np.zeros((groups, 128 * (1 + gated), 256), dtype).swapaxes(1, 2)
        if kind == "offsets":
            ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            return kd.library.grouped_matmul(a, b, offsets=ends, bias=np.zeros((groups, 128), np.float32))
        if kind == "gather":
            more = {"indices": np.zeros(rows, np.int32), "weights": np.zeros(rows, np.float32)}
            a = a[: rows // 2]
        elif kind in ("scatter", "weights"):
            more = {"scatter": np.zeros(rows, np.int32)}
            more |= {"weights": np.zeros((rows // 2, 2), np.float32)} if kind == "weights" else {}
        return kd.library.grouped_matmul(a, b, sizes, gated="swiglu" if gated else None, **more)

    return f"grouped {kind} {dtype.__name__} {gated} {groups} {by_columns} {odd}", call


def entropy(rng: np.random.Generator) -> tuple[str, Call]:
    """Of other numbers of tokens each time."""
    dtype, bias, lse = pick(rng, bf16, np.float16, np.float32), bool(rng.integers(2)), bool(rng.integers(2))
    o = {"label_smoothing": pick(rng, 0.0, 0.1), "reduction": pick(rng, "mean", "sum", "none")}

    def call(batch: int, queries: int, keys: int) -> Any:
        count = 8 * (queries + keys)
        x, weight = np.zeros((count, 512), dtype), np.zeros((32768, 512), dtype)
        more = {"bias": np.zeros(32768, np.float32)} if bias else {}
        targets = np.zeros(count, np.int32)
        return kd.library.linear_cross_entropy(x, weight, targets, return_lse=lse, **o, **more)

    return f"entropy {dtype.__name__} {bias} {lse} {o}", call


def images(rng: np.random.Generator) -> tuple[str, Call]:
    """Convolutions and their gradients, of other images each time: with a stride also of other sizes."""
    kind, dtype = pick(rng, "forward", "dgrad", "wgrad"), pick(rng, bf16, np.float32)
    o = {"padding": pick(rng, 0, 1), "stride": pick(rng, 1, 1, 2), "groups": pick(rng, 1, 1, 2)}

    def call(batch: int, queries: int, keys: int) -> Any:
        height, width = (34, 34) if o["stride"] == 1 else (30 + queries // 16, 31 + keys // 32)
        x, w = np.zeros((64 * batch, height, width, 128), dtype), np.zeros((128, 3, 3, 128 // o["groups"]), dtype)
        sides = [(n + 2 * o["padding"] - 3) // o["stride"] + 1 for n in (height, width)]
        dout = np.zeros((64 * batch, *sides, 128), dtype)
        if kind == "forward":
            return kd.library.conv2d(x, w, **o)
        if kind == "dgrad":
            return kd.library.conv2d_dgrad(dout, w, x.shape, **o)
        return kd.library.conv2d_wgrad(x, dout, 3, **o)

    return f"images {kind} {dtype.__name__} {o}", call


def lying(rng: np.random.Generator) -> tuple[str, Call]:
    """Dense products of operands and results in any order of memory, with gaps, of odd and even sizes."""
    dtype = pick(rng, bf16, np.float16, f8, np.float32, np.float64, np.int8, np.int16, np.complex64)
    other = pick(rng, dtype, np.int8) if dtype in (bf16, np.float16) else dtype
    out = bf16 if dtype is f8 else np.int32 if dtype is np.int8 else dtype
    orders, gaps = [bool(n) for n in rng.integers(0, 2, 3)], [bool(n) for n in rng.random(3) < 0.25]
    odd, many, steps = int(rng.integers(2)), bool(rng.integers(2)), bool(rng.integers(2)) and dtype is not np.complex64
    n, k = pick(rng, (256, 512), (255, 512), (256, 511), (1, 512))
    precision = pick(rng, None, "tf32", "tf32x3") if dtype is np.float32 else None

    def array(kind: Any, number: int, *shape: int) -> Array:
        *batch, rows, columns = shape
        if orders[number]:
            rows, columns = columns, rows
        found = np.zeros((*batch, rows, columns + 9 * gaps[number]), kind)[..., :columns]
        return found.swapaxes(-1, -2) if orders[number] else found

    def call(batch: int, queries: int, keys: int) -> Any:
        rows = 16384 + (queries + keys) // 16 * 16 + odd
        outer = (batch + 1,) if many else ()
        a, b = array(dtype, 0, *outer, rows, k), array(other, 1, k, n)
        more = {"bias": np.zeros(n, out), "residual": np.zeros((*outer, rows, n), out)} if steps else {}
        more |= {"precision": precision} if precision else {}
        into = array(out, 2, *outer, rows, n) if orders[2] or gaps[2] else None
        return kd.library.matmul(a, b, out=into, **more)

    return f"lying {dtype.__name__} {other.__name__} {orders} {gaps} {odd} {many} {steps} {(n, k)} {precision}", call


def products(rng: np.random.Generator) -> tuple[str, Call]:
    """Of sparse matrices, with scales of a batch, of weights of 4 bits; sums over many rows; and what packs operands."""
    kind = pick(
        rng, "sparse rows", "sparse columns", "sparse batch", "scaled", "int4", "mxfp4", "sums", "pack", "compress"
    )
    dtype, odd, group = pick(rng, bf16, f8), int(rng.integers(2)), pick(rng, 64, 128)
    by_columns, wide, zeros = (bool(n) for n in rng.integers(0, 2, 3))

    def call(batch: int, queries: int, keys: int) -> Any:
        rows, batch = (queries + keys) // 16 * 16, batch + 1  # one product is no batch
        rows += 2048 if kind in ("int4", "mxfp4") else 16384  # so many that one configuration is good for all
        if kind == "scaled":
            a, b = np.zeros((batch, rows, 512), f8), np.zeros((batch, 256, 512), f8).swapaxes(1, 2)
            left = np.zeros((batch, rows, 4) if by_columns else (rows, 4), np.float32)
            right = np.zeros((batch, 4, 256) if wide else (4, 2), np.float32)
            return kd.library.matmul(a, b, a_scale=left, b_scale=right)
        if kind == "sums":
            how = {"out_dtype": "float32"} if dtype is f8 else {}
            x, dout = np.zeros((rows, 512 + odd), dtype), np.zeros((rows, 256 - odd), dtype)
            return kd.library.matmul(x.T, dout, **how)
        if kind == "pack":
            pack = kd.library.pack_mxfp4 if odd else kd.library.pack_int4
            return pack(np.zeros((rows, 8 * batch), bf16)).unpacked(bf16)
        if kind in ("int4", "mxfp4"):
            w = np.zeros((512, 256), bf16)
            more = {"group": group, "zeros": True if zeros else None} if kind == "int4" else {}
            packed = kd.library.pack_mxfp4(w) if kind == "mxfp4" else kd.library.pack_int4(w, **more)
            return kd.library.matmul(np.zeros((rows, 512), np.int8 if odd else bf16), packed)
        if kind == "compress":
            return kd.library.sparse_compress(np.zeros((rows, 64 * batch), dtype), prune=True).dense()
        a = kd.library.sparse_compress(np.zeros((rows if kind == "sparse rows" else 4096, 512), dtype), prune=True)
        columns = rows if kind == "sparse columns" else 2048
        shape = (*([batch] if kind == "sparse batch" else []), columns, 512)
        b = np.zeros(shape, dtype).swapaxes(-1, -2) if by_columns else np.zeros((*shape[:-2], 512, columns), dtype)
        return kd.library.sparse_matmul(a, b)

    return f"products {kind} {dtype.__name__} {odd} {group} {by_columns} {wide} {zeros}", call


FAMILIES = {
    "attention": attention, "decode": decode, "latent": latent, "backward": backward, "grouped": grouped,
    "entropy": entropy, "images": images, "lying": lying, "products": products,
}  # fmt: skip


def compiles(call: Call) -> list[list[str]]:
    """What each of five calls compiles, of sizes that no call came with before."""
    made: list[list[str]] = []
    with counted() as found, none_before():
        for sizes in ((2, 256, 320), (3, 500, 700), (1, 1024, 904), (5, 130, 264), (4, 700, 360)):
            found.clear()
            call(*sizes)
            made.append(list(found))
    return made


def _check(family: str, seed: int) -> None:
    name, call = FAMILIES[family](np.random.default_rng(seed))
    made = compiles(call)
    later = [kernel for kernels in made[2:] for kernel in kernels]
    if family == "backward" and any(
        "attention_backward_sum" in m or "attention_backward_scored_sum" in m for m in made
    ):
        # kernels whose blocks share keys are others, and come with the first size that is so small, or so large; where they
        # also take the place of zeros for the sums, kernels before and after them are others, too
        assert len(set(later)) == len(later) <= 4, (name, made)
    elif family == "lying" or name.startswith("attention plain"):  # another configuration may be clearly faster
        assert sum(map(bool, made[2:])) <= 1, (name, made)
    else:
        assert not later, (name, made)


CHECKED = [("attention", 3), ("attention", 7), ("decode", 1), ("latent", 0), ("backward", 2), ("grouped", 1)]


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        *CHECKED,
        ("entropy", 0),
        ("images", 1),
        ("lying", 0),
        ("lying", 4),
        ("lying", 12),
        ("products", 0),
        ("products", 4),
    ],
)
def test_a_third_size_compiles_nothing(family: str, seed: int) -> None:
    _check(family, seed)


@pytest.mark.parametrize(("family", "seed"), [("decode", 1), ("latent", 0), ("grouped", 5), ("entropy", 0)])
def test_a_process_that_has_the_kernels_counts_the_same(family: str, seed: int) -> None:
    """So that no count depends on the tests before it."""
    _, call = FAMILIES[family](np.random.default_rng(seed))
    first = compiles(call)
    assert any(first) and compiles(call) == first


@pytest.mark.parametrize("heads, queries, dim", [(8, 128, 128), (8, 128, 64), (32, 64, 128), (4, 300, 64)])
def test_few_queries_over_more_and_more_keys(heads: int, queries: int, dim: int) -> None:
    """More tiles share more keys, by one kernel. A configuration that is clearly faster is compiled once, or twice: with
    and without shared keys."""

    def call(keys: int) -> None:
        q, k = np.zeros((1, heads, queries, dim), bf16), np.zeros((1, heads, keys, dim), bf16)
        kd.library.attention(q, k, k)

    with counted() as found, none_before():
        for keys in (1000, 3000, 9000, 16000, 5000, 12000, 31000, 40, 600, 2000):
            call(keys)
        assert found.count("attention") <= 1 + 2 * len(SMALL[dim]), found
        found.clear()
        for keys in (1500, 11000, 7000, 50, 640, 20000, 4321, 33333):
            call(keys)
        assert not found


def test_parts_of_shared_keys_are_combined_by_one_kernel() -> None:
    """Of any batch and number of queries, after the first sizes."""

    def call(batch: int, queries: int, keys: int) -> None:
        q, k = np.zeros((batch, 4, queries, 64), bf16), np.zeros((batch, 4, keys, 64), bf16)
        kd.library.attention(q, k, k)

    with counted() as found, none_before():
        for sizes in ((3, 500, 3000), (2, 400, 3500)):
            call(*sizes)
        assert "attention_combine" in found
        found.clear()
        for sizes in ((1, 400, 3500), (1, 512, 3000), (3, 501, 3000), (3, 130, 3000)):
            call(*sizes)
        assert "attention_combine" not in found


@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}])
@pytest.mark.parametrize("backward", [False, True])
def test_a_new_configuration_is_compiled_once(backward: bool, options: dict[str, Any]) -> None:
    """After the first sizes, each configuration has one set of kernels, for any sizes."""
    lib = kd.library

    def call(number: int, keys: int) -> None:
        q, k = np.zeros((1, 2, 200, 64), bf16), np.zeros((1, 2, keys, 64), bf16)
        if backward:
            lse, config = np.zeros(q.shape[:3], np.float32), lib.AttentionBackwardConfig(16 * number)
            lib.attention_backward(q, q, k, k, q, lse, config=config, **options)
        else:
            lib.attention(q, k, k, config=lib.AttentionConfig(2, 16 * number), **options)

    names = {"attention", "attention_scored", "attention_backward", "attention_backward_scored"}
    with counted() as found, none_before():
        numbers: list[int] = []
        for i, number in enumerate([4, 4, 2, 2, 6, 4]):
            found.clear()
            call(number, 150 + 20 * i)  # too few keys for tiles to share them
            numbers.append(sum(name in names for name in found))
        assert numbers == [1, 1, 1, 0, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_of_many_options(family: str) -> None:
    for seed in range(60 if family in ("attention", "backward") else 24):
        _check(family, seed)
