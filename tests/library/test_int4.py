"""kd.library.pack_int4, and products with weights of 4 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig, PackedInt4
from tests.hopper.helpers import random, relative

from .packed_reference import int4_numbers as numbers
from .packed_reference import rounded, zeros_for
from .products import PLACES, place, scaled_and_rounded, scales

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Spec = kd.ShapeDtypeStruct
SMALL = MatmulConfig(64, 64, 64, 3, 1, epilogue_n=32)


@pytest.mark.parametrize("form", ["", "found", "given"])
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("shape", [(128, 64, 64), (200, 70, 128), (1, 1, 192), (65, 130, 64)], ids=str)
@pytest.mark.sampled(222)
def test_packing(form: str, dtype: Any, shape: Any, interpret: Any, rng: Any) -> None:
    """Every number is the nearest of its group, and unpacked as it is told."""
    K, N, group = shape
    w = place(random(rng, (K, N), dtype), str(rng.choice(PLACES)))
    w[:, 0] = 0  # a column that has no scale of its own
    zeros = zeros_for(form, (K, N), group, rng)
    packed = kd.library.pack_int4(w, group, zeros, interpret=interpret)
    exact, wide = numbers(packed), w.astype(np.float64)
    scale = np.repeat(packed.scales, group, 0)[:K]
    assert np.abs((exact - wide) / scale).max() < 0.50001 and not exact[:, 0].any()
    assert (packed.zeros is None) == (form == "") and packed.shape == (K, N) and packed.group == group
    most = np.repeat(np.stack([np.abs(wide[i : i + group]).max(axis=0) for i in range(0, K, group)]), group, 0)[:K]
    assert form == "given" or (scale[:, 1:] <= most[:, 1:] / 7 * 1.001).all()
    got = packed.unpacked(dtype, interpret=interpret)
    assert relative(got.astype(np.float64), exact) <= {2: 4e-3, 4: 2e-7}[got.dtype.itemsize]


def product(seed: int, interpret: Any, shape: Any = None, config: Any = None, form: str | None = None) -> None:
    """A random product with a random end, against float64 and b as it is rounded to the dtype of a."""
    rng = np.random.default_rng(seed)
    M, N, K = shape or (
        int(rng.choice((1, 7, 16, 65, 130))),
        int(rng.choice((4, 33, 64, 72, 132, 260))),
        int(rng.choice((1, 40, 64, 200, 300))),
    )
    dtype, group = (bf16, f16)[rng.integers(2)], int(rng.choice((64, 128, 192)))
    form = ("", "found", "given")[rng.integers(3)] if form is None else form
    packed = kd.library.pack_int4(
        random(rng, (K, N), f32), group, zeros_for(form, (K, N), group, rng), interpret=interpret
    )
    if form == "given" and rng.random() < 0.5:  # of others' making: zeros that are no integers
        packed = replace(packed, zeros=packed.zeros + rng.random(packed.zeros.shape).astype(np.float32))
    narrow = (
        (None, None, kd.int8, kd.uint8, kd.float8_e4m3fn, kd.float8_e5m2)[rng.integers(6)] if config is None else None
    )  # of a, which is widened before
    b = rounded(packed, bf16 if narrow else dtype)
    batch = (2,) if rng.random() < 0.2 and config is None else ()
    a = place(random(rng, (*batch, M, K), narrow or dtype), str(rng.choice(PLACES)))
    options: dict[str, Any] = {} if config is None else {"config": config}
    wide = a.astype(np.float64)
    if narrow:
        form = ("rows", "column", "blocks of a")[rng.integers(3)]
        options["a_scale"], factors = scales(rng, form, M, N, K, batch)
        by_blocks = form == "blocks of a" and K > 128
        wide = scaled_and_rounded(a, factors, bf16) if by_blocks else wide * factors
    expected = wide @ b
    if rng.random() < 0.5:
        options["b_scale"] = (rng.random(N) + 0.5).astype(np.float32)
        expected = expected * options["b_scale"]
    if rng.random() < 0.5:
        options["bias"] = random(rng, (N,), f32)
        expected = expected + options["bias"]
    if rng.random() < 0.5:
        options["out"] = place(np.full(expected.shape, 77, np.float32), str(rng.choice(PLACES)))
    got = kd.library.matmul(a, packed, out_dtype=f32, interpret=interpret, **options)
    assert relative(got.astype(np.float64), expected) < 1e-5, (
        f"seed {seed}: {dtype} {(M, N, K)} {group} {form} {options}"
    )


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.sampled(75)
def test_random_products(seed: int, interpret: Any) -> None:
    product(seed, interpret)


@pytest.mark.parametrize(
    "config", [SMALL, MatmulConfig(128, 128, 64, 2, 2, epilogue_n=32, cluster=2)], ids=["one", "cluster"]
)
@pytest.mark.parametrize("form", ["", "given"])
@pytest.mark.sampled(30)
def test_configs(config: Any, form: str, interpret: Any) -> None:
    product(3, interpret, (150, 200, 200), config, form)


@pytest.mark.parametrize("narrow", [kd.int8, kd.uint8, kd.float8_e4m3fn, kd.float8_e5m2], ids=str)
@pytest.mark.parametrize("make", [kd.library.pack_int4, kd.library.pack_mxfp4])
@pytest.mark.sampled(14)
def test_bytes_beside_4_bits(narrow: Any, make: Any, rng: Any) -> None:
    """They are exact in bfloat16, so the bits are those of such an a; factors of rows follow. Factors by blocks of K come first."""
    a, packed = random(rng, (5, 256), narrow), make(random(rng, (256, 64), f32))
    scale, blocks = ((rng.random((5, n)) + 0.5).astype(np.float32) for n in (1, 2))
    wide = a.astype(np.float32)
    got = kd.library.matmul(a, packed, a_scale=scale)
    assert got.dtype == bf16.numpy and got.shape == (5, 64)
    assert (got == kd.library.matmul(wide.astype(bf16.numpy), packed, a_scale=scale)).all()
    scaled = (wide * np.repeat(blocks, 128, 1)).astype(bf16.numpy)
    assert (kd.library.matmul(a, packed, a_scale=blocks) == kd.library.matmul(scaled, packed)).all()


@pytest.mark.parametrize("dtype", [bf16, kd.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("columns", [64, 33])
@pytest.mark.parametrize("make", [kd.library.pack_int4, kd.library.pack_mxfp4])
@pytest.mark.sampled(42)
def test_gated(make: Any, columns: int, dtype: Any, interpret: Any, rng: Any) -> None:
    """A pair of packed matrices, which share a and its scales."""
    K = 300
    a, pair = random(rng, (20, K), dtype), [make(random(rng, (K, columns), f32) / 8) for _ in range(2)]
    options: dict[str, Any] = {"bias": tuple(random(rng, (columns,), f32) for _ in pair)}
    wide = a.astype(np.float64)
    if dtype != bf16:
        options["a_scale"], factors = scales(rng, "blocks of a", 20, columns, K)
        wide = scaled_and_rounded(a, factors, bf16)
    gate, up = (wide @ x.unpacked(bf16).astype(np.float64) + b for x, b in zip(pair, options["bias"], strict=True))
    got = kd.library.matmul(a, tuple(pair), gated="reglu", out_dtype=f32, interpret=interpret, **options)
    assert relative(got, np.maximum(gate, 0) * up) < 4e-3


def test_the_smallest() -> None:
    packed = kd.library.pack_int4(np.ones((70, 8), np.float32), interpret=True)
    none = kd.library.matmul(np.ones((0, 70), np.float16), packed, interpret=True)
    assert none.shape == (0, 8) and none.dtype == np.float16


@pytest.mark.parametrize("shape", [(16, 16384, 8192), (64, 16384, 8192), (4096, 4096, 4096)], ids=str)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_100a", "sm_120a"])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(shape: Any, zeros: bool, target: str) -> None:
    M, N, K = shape
    scales = Spec((K // 128, N), f32)
    b = PackedInt4(Spec((N, K // 2), kd.int8), scales, scales if zeros else None, (K, N), 128)
    stages = kd.library.matmul.lower(Spec((M, K), bf16), b, bias=Spec((N,), f32), target=target)
    made = stages.compile()
    assert made.resources.spills == 0
    assert not [r for r in made.remarks if "C75" in r.text], made.remarks
    assert stages.name == ("matmul" if target == "sm_90a" else "matmul_general")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 4096, 2048), (300, 1028, 777), (2048, 2048, 2048)], ids=str)
def test_real_sizes(shape: Any) -> None:
    for seed in range(3):
        product(seed, False, shape)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_products(seed: int) -> None:
    for number in range(20):
        product(1000 * seed + number, kd.InterpretParams(seed=number))


W, A = np.ones((128, 8), np.float32), np.ones((4, 128), np.float16)


@pytest.mark.parametrize(
    "case",
    [
        ((W[0],), {}, "w is an ndarray of shape"),
        (([1],), {}, "w is a list"),
        ((W.astype(np.int8),), {}, "w is int8"),
        ((W[:0],), {}, r"w is \(0, 8\)"),
        ((W, 100), {}, "group=100"),
        ((W, 0), {}, "group=0"),
        ((W, 64.0), {}, "group=64.0"),
        ((W, 64), {"zeros": W[:1]}, r"zeros is \(1, 8\)"),
        ((W, 64), {"zeros": 8}, "zeros is an int"),
        ((W, 64), {"zeros": np.full((2, 8), 15.5, np.float32)}, r"zeros has 15\.5"),
        ((W, 64), {"zeros": np.full((2, 8), np.nan, np.float32)}, "zeros has nan"),
    ],
    ids=lambda case: case[2],
)
def test_what_is_refused(case: Any) -> None:
    args, options, words = case
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.pack_int4(*args, interpret=True, **options)


@pytest.mark.parametrize(
    "case",
    [
        (A.astype(np.float32), {}, "a is float32 beside integers of 4 bits"),
        (A[:, :64], {}, r"a is \(4, 64\) and b is \(128, 8\)"),
        (A, {"gated": "swiglu"}, "gated, and b is a PackedInt4"),
        (A, {"a_scale": np.ones((4, 2), np.float32)}, r"a_scale is \(4, 2\)"),
        (A, {"precision": "tf32"}, "precision='tf32' beside"),
        (A, {"precision": 7}, r"precision=7\n"),
        (A, {"config": MatmulConfig(64, 64, 256, 3, 1, epilogue_n=32)}, "config.tile_k=256"),
        (A, {"bias": np.ones(5, np.float32)}, r"bias is \(5,\)"),
        (3, {}, "a is an int"),
    ],
    ids=lambda case: case[2],
)
def test_products_that_are_refused(case: Any) -> None:
    a, options, words = case
    packed = kd.library.pack_int4(W, interpret=True)
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.matmul(a, packed, interpret=True, **options)


def test_pairs_that_are_refused() -> None:
    packed, wide = kd.library.pack_int4(W), kd.library.pack_int4(W, 64)
    cases: list[tuple[Any, Any, str]] = [
        ((packed, W.astype(np.float16)), "swiglu", "a pair of PackedInt4 and ndarray"),
        ((packed, kd.library.pack_mxfp4(W)), "swiglu", "a pair of PackedInt4 and PackedMxfp4"),
        ((packed, wide), "swiglu", "in groups of 128 and .* in groups of 64"),
        ((packed, kd.library.pack_int4(W, zeros=True)), "swiglu", "zeros for both or for none"),
        ((packed, packed), None, "b is a tuple"),
        ((packed,) * 3, "swiglu", "b is a tuple"),
    ]
    for b, gated, words in cases:
        with pytest.raises(kd.Error, match=words):
            kd.library.matmul(A, b, gated=gated)
    with pytest.raises(kd.Error, match="b_scale by blocks of K for numbers of 4 bits"):
        deep = kd.library.pack_int4(np.ones((256, 8), np.float32))
        kd.library.matmul(np.ones((4, 256), np.float16), deep, b_scale=np.ones((2, 8), np.float32))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("int4", {"group": 100}),
    ("int4", {"group": 0}),
    ("int4", {"group": 64}),
    ("int4", {"shape": (128, 9)}),
    ("int4", {"shape": (192, 8)}),
    ("mxfp4", {"group": 64}),
    ("mxfp4", {"zeros": W[:1]}),
    ("mxfp4", {"shape": (192, 8)}),
    ("sparse", {"shape": (7, 128)}),
    ("sparse", {"shape": (8, 124)}),
]
PARTS = [("int4", "data"), ("int4", "scales"), ("int4", "zeros"), ("mxfp4", "data"), ("mxfp4", "scales"),
         ("sparse", "values"), ("sparse", "meta")]  # fmt: skip


def refused(kind: str, changes: dict[str, Any], words: str) -> None:
    matrix = packed_or_sparse(kind)
    sides = (replace(matrix, **changes), A.T) if kind == "sparse" else (A, replace(matrix, **changes))
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.matmul(*sides, interpret=True)


def packed_or_sparse(kind: str) -> Any:
    if kind == "sparse":
        return kd.library.sparse_compress(W.T.astype(np.float16), prune=True, interpret=True)
    return (
        kd.library.pack_mxfp4(W, interpret=True)
        if kind == "mxfp4"
        else kd.library.pack_int4(W, zeros=True, interpret=True)
    )


@pytest.mark.parametrize(("kind", "changes"), WRONG)
def test_matrices_that_say_another_form(kind: str, changes: dict[str, Any]) -> None:
    refused(kind, changes, "group=|zeros is|a is|data is|scales is|values is")


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_matrices_of_other_arrays(kind: str, name: str) -> None:
    """A matrix may be put together from saved arrays: each must have its dtype and its shape."""
    x = getattr(packed_or_sparse(kind), name)
    for wrong in (x[:-1], x[:, :-1], x.astype(np.float64), [1], *([] if name == "zeros" else [None])):
        refused(kind, {name: wrong}, f"{name} is")
