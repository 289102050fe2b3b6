"""2:4 sparsity: `kd.wgmma(sparse_meta=)`, kd.library.sparse_compress, sparse_decompress and sparse_matmul."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors_hopper import TransformConflict, UnreadAccumulator, WgmmaShape, WgmmaType
from kernel_dsl.library import MatmulConfig, SparseMatrix
from kernel_dsl.library.product_routes.routes import sparse_goes_fast
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.operands import turned
from kernel_dsl.stages import target_named
from tests.hopper.helpers import assemble, random, relative
from tests.hopper.test_wgmma import FP8_ON_A_GPU

from .products import PLACES, Call, place
from .sparse_reference import compressed, group_of, pruned

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

f32, f16, bf16, i32 = kd.float32, kd.float16, kd.bfloat16, kd.int32
e4m3, e5m2, s8, u8 = kd.float8_e4m3fn, kd.float8_e5m2, kd.int8, kd.uint8
DTYPES = (bf16, f16, f32, e4m3, e5m2, s8, u8)
Spec = kd.ShapeDtypeStruct


def product(a_type: Any, b_type: Any, total: Any, turn: bool, M: int, N: int, K: int, registers: bool) -> Any:
    """A kernel of one sparse product; b is stored by columns where `turn`."""
    rule = {1: kd.Layout.WGMMA_8BIT, 2: kd.Layout.WGMMA, 4: kd.Layout.WGMMA_TF32}[a_type.itemsize]

    @kd.kernel(
        out_type=Spec((M, N), total),
        scratch_types=[
            kd.SMEM((M, K // 2), a_type),
            kd.SMEM((N, K) if turn else (K, N), b_type),
            kd.ACC((M, N), total),
            kd.Barrier(2),
        ],
    )
    def kernel(a: Any, meta: Any, b: Any, out: Any, a_tile: Any, b_tile: Any, acc: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(a, a_tile, ready)
        kd.copy_gmem_to_smem(b, b_tile, ready)
        kd.barrier_wait(ready)
        left = kd.load(a_tile, layout=rule) if registers else a_tile
        kd.wgmma(acc, left, b_tile.T if turn else b_tile, sparse_meta=meta[...])
        out[...] = acc[...]

    return kernel


# (a, b, accumulator, b stored by columns, M, N, K, a in registers, tolerance)
PRODUCTS = [
    (bf16, bf16, f32, True, 64, 128, 64, False, 1e-6),
    (bf16, bf16, f32, False, 64, 64, 192, False, 1e-6),
    (f16, f16, f32, False, 128, 96, 128, False, 1e-6),
    (f16, f16, f16, True, 64, 40, 64, False, 5e-3),
    (bf16, bf16, f32, False, 64, 320, 64, True, 1e-6),
    (f16, f16, f32, True, 128, 24, 128, True, 1e-6),
    (f32, f32, f32, True, 64, 32, 32, False, 2e-3),
    (f32, f32, f32, True, 128, 32, 96, True, 2e-3),
    (e4m3, e5m2, f32, True, 64, 64, 128, False, 1e-6),
    (e5m2, e4m3, f16, True, 64, 64, 64, False, 5e-3),
    (e4m3, e4m3, f32, True, 64, 32, 64, True, 1e-6),
    (s8, s8, i32, True, 64, 64, 64, False, 0),
    (u8, s8, i32, True, 128, 40, 128, False, 0),
    (s8, u8, i32, True, 64, 264, 64, True, 0),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda c: " ".join(map(str, c[:-1])))
@pytest.mark.sampled(57)
def test_products_of_the_instruction(case: Any, interpret: Any, rng: Any) -> None:
    a_type, b_type, total, turn, M, N, K, registers, tolerance = case
    kernel = product(a_type, b_type, total, turn, M, N, K, registers)
    a = pruned(random(rng, (M, K), a_type), a_type)
    values, meta = compressed(a, a_type)
    b = random(rng, (N, K) if turn else (K, N), b_type)
    expected = a.astype(np.float64) @ (b.T if turn else b).astype(np.float64)
    assemble(kernel, values, meta, b)
    if interpret is False and a_type in (e4m3, e5m2):
        tolerance = max(tolerance, FP8_ON_A_GPU)
    assert relative(kernel(values, meta, b, interpret=interpret), expected) <= tolerance


def looped(wait: int) -> Any:
    """A kernel that multiplies with other metadata in each turn, and waits until `wait` products are in flight."""

    @kd.kernel(
        out_type=Spec((64, 64), f32),
        scratch_types=[kd.SMEM((64, 32), bf16), kd.SMEM((64, 64), bf16), kd.ACC((64, 64)), kd.Barrier(2)],
    )
    def kernel(a: Any, meta: Any, b: Any, out: Any, a_tile: Any, b_tile: Any, acc: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(a, a_tile, ready)
        kd.copy_gmem_to_smem(b, b_tile, ready)
        kd.barrier_wait(ready)

        @kd.loop(0, 4)
        def _(i: Any) -> None:
            kd.wgmma(acc, a_tile, b_tile, sparse_meta=meta[kd.ds(i, 1)])
            kd.wgmma_wait(wait)

        out[...] = acc[...]

    return kernel


def test_a_product_in_flight_keeps_its_metadata() -> None:
    """Metadata that a loop makes anew while a product reads it is refused; bits that say nothing are reported."""
    a, b, meta = np.ones((64, 32), bf16.numpy), np.ones((64, 64), bf16.numpy), np.full((4, 128), 0x44444444, np.uint32)
    with pytest.raises(UnreadAccumulator, match="computed again"):
        looped(1)(a, meta, b, interpret=True)
    assert (looped(0)(a, meta, b, interpret=True) == 128).all()
    meta[2, 77] = 0x44444445  # the element at 1, twice
    with pytest.raises(kd.errors.Error, match="does not name which elements are stored"):
        looped(0)(a, meta, b, interpret=True)


def test_one_half_of_a_swizzled_row_is_too_short() -> None:
    def kernel(out: Any, a: Any, b: Any, acc: Any) -> None:
        kd.wgmma(acc, a, b.T, sparse_meta=kd.full((1, 128), 0x44444444, kd.uint32))

    rows = [kd.TilingTransform((8, 16)), kd.SwizzleTransform(32)]
    scratch = [kd.SMEM((64, 32), bf16), kd.SMEM((64, 64), bf16, transforms=rows), kd.ACC((64, 64))]
    made = kd.kernel(kernel, out_type=Spec((8,), f32), scratch_types=scratch)
    with pytest.raises(TransformConflict, match="64 bytes along K"):
        made(interpret=True)


META = np.zeros((1, 128), np.uint32)


@pytest.mark.parametrize(
    "case",
    [
        (META.astype(np.int32), "sparse_meta of int32", WgmmaType),
        (META[:, :64], r"sparse_meta \(1, 64\)", WgmmaShape),
        (META[0], r"sparse_meta \(128,\)", WgmmaShape),
    ],
    ids=lambda case: case[1],
)
def test_metadata_that_is_refused(case: Any) -> None:
    given, words, error = case

    @kd.kernel(
        out_type=Spec((8,), f32), scratch_types=[kd.SMEM((64, 32), bf16), kd.SMEM((64, 64), bf16), kd.ACC((64, 64))]
    )
    def kernel(meta: Any, out: Any, a: Any, b: Any, acc: Any) -> None:
        kd.wgmma(acc, a, b, sparse_meta=meta[...])

    with pytest.raises(error, match=words):
        kernel(given, interpret=True)


# --- the library --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (128, 192), (1, 4), (70, 132), (65, 8)], ids=str)
@pytest.mark.sampled(276)
def test_compress_and_decompress(dtype: Any, shape: Any, interpret: Any, rng: Any) -> None:
    """Values and metadata are those of the host; what is pruned is what was kept."""
    a = place(random(rng, shape, dtype), str(rng.choice(PLACES)))
    expected = pruned(np.ascontiguousarray(a), dtype)
    made = kd.library.sparse_compress(a, prune=True, interpret=interpret)
    assert made.shape == shape and made.values.shape == (shape[0], shape[1] // 2) and made.dtype == dtype
    again = kd.library.sparse_compress(expected, interpret=interpret)
    for one in (made, again):
        whole = kd.library.sparse_decompress(one, interpret=interpret)
        assert whole.shape == shape and (whole.astype(np.float64) == expected.astype(np.float64)).all()
    if shape[0] % 64 == shape[1] % 64 == 0:
        values, meta = compressed(expected, dtype)
        assert (made.values.astype(np.float64) == values.astype(np.float64)).all() and (made.meta == meta).all()


def test_what_is_kept() -> None:
    a = np.array([[np.nan, 1, -np.inf, 5], [-3, 3, 3, -3], [0, -0.0, 0, 1e-7]], np.float16)
    kept = kd.library.sparse_compress(a, prune=True, interpret=True)
    expected = [[np.nan, 0, -np.inf, 0], [-3, 3, 0, 0], [0, 0, 0, a[2, 3]]]
    np.testing.assert_array_equal(kd.library.sparse_decompress(kept, interpret=True), expected)
    least = kd.library.sparse_compress(np.array([[-128, 127, -127, 3]], np.int8), prune=True, interpret=True)
    assert kd.library.sparse_decompress(least, interpret=True).tolist() == [[-128, 127, 0, 0]]


def multiplied(seed: int, interpret: Any, shape: Any = None, config: Any = None, dtype: Any = None) -> None:
    """A random product with a random end, against float64."""
    rng = np.random.default_rng(seed)
    M, N, K = shape or (
        int(rng.choice((1, 7, 64, 130))),
        int(rng.choice((4, 33, 64, 132, 260))),
        4 * int(rng.integers(1, 90)),
    )
    dtype = DTYPES[rng.integers(len(DTYPES))] if dtype is None else dtype
    other = {e4m3: e5m2, e5m2: e4m3, s8: u8, u8: s8}.get(dtype, dtype) if rng.random() < 0.5 else dtype
    a = pruned(random(rng, (M, K), dtype), dtype)
    matrix = kd.library.sparse_compress(a, interpret=interpret)
    batch = (2,) if rng.random() < 0.2 and config is None else ()
    gated = rng.random() < 0.2
    b = [place(random(rng, (*batch, K, N), other), str(rng.choice(PLACES))) for _ in range(2 if gated else 1)]
    if gated:
        b = [np.ascontiguousarray(x) for x in b]
    sums = [a.astype(np.float64) @ x.astype(np.float64) for x in b]
    options: dict[str, Any] = {} if config is None else {"config": config}
    tolerance = 2e-5
    if dtype == f32 and rng.random() < 0.7:
        options["precision"], tolerance = "tf32", 4e-3
    if interpret is False and dtype in (e4m3, e5m2):
        tolerance = 4e-3
    expected = sums[0]
    if gated:
        options["gated"], tolerance = lambda x, y: kd.maximum(x, 0.0) * y, 2 * tolerance
        expected = np.maximum(sums[0], 0) * sums[1]
    if rng.random() < 0.5 and not gated:
        options["b_scale"] = (rng.random(N) + 0.5).astype(np.float32)
        expected = expected * options["b_scale"]
    if rng.random() < 0.5 and not gated:
        options["bias"] = random(rng, (N,), f32)
        expected = expected + options["bias"]
    if rng.random() < 0.5:
        options["residual"] = random(rng, expected.shape, f32)
        expected = expected + options["residual"]
    if rng.random() < 0.5:
        options["out"] = place(np.full(expected.shape, 77, np.float32), str(rng.choice(PLACES)))
    got = kd.library.sparse_matmul(matrix, tuple(b) if gated else b[0], out_dtype=f32, interpret=interpret, **options)
    said = f"seed {seed}: {dtype} {other} {(M, N, K)} {options}"
    assert relative(got.astype(np.float64), expected) < tolerance, said


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(138)
def test_random_products(seed: int, interpret: Any) -> None:
    multiplied(seed, interpret)


CONFIGS = [
    MatmulConfig(64, 64, 64, 3, 1, epilogue_n=32),
    MatmulConfig(128, 128, 64, 2, 2, epilogue_n=32, cluster=2),
    MatmulConfig(128, 64, 128, 2, 2, epilogue_n=32, cluster_n=2),
    MatmulConfig(64, 64, 64, 3, 2, epilogue_n=32, ping_pong=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["one", "cluster", "cluster_n", "turns"])
@pytest.mark.parametrize("K", [64, 128, 192, 500])
@pytest.mark.sampled(111)
def test_configs(config: Any, K: int, interpret: Any) -> None:
    """Stages in all numbers: one, two, odd and even."""
    multiplied(3, interpret, (150, 200, K), config, bf16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_products(seed: int) -> None:
    for number in range(20):
        multiplied(1000 * seed + number, kd.InterpretParams(seed=number))


def test_the_smallest() -> None:
    for shape in ((0, 8), (8, 0)):
        matrix = kd.library.sparse_compress(np.ones(shape, np.float16), interpret=True)
        assert kd.library.sparse_decompress(matrix, interpret=True).shape == shape
        made = kd.library.sparse_matmul(matrix, np.ones((shape[1], 5), np.float16), interpret=True)
        assert made.shape == (shape[0], 5) and not made.any()


def described(M: int, K: int, dtype: Any) -> SparseMatrix:
    step = 16 * group_of(dtype)
    return SparseMatrix(Spec((M, K // 2), dtype), Spec((K // step, 2 * M), kd.uint32), (M, K))


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (64, 4096, 4096), (8192, 16, 8192), (512, 512, 8192)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32, e4m3, s8], ids=str)
@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(shape: Any, dtype: Any, turn: bool, target: str) -> None:
    M, N, K = shape
    b = turned(Spec((N, K), dtype)) if turn else Spec((K, N), dtype)
    options = {"precision": "tf32"} if dtype == f32 else {}
    stages = kd.library.matmul.lower(described(M, K, dtype), b, bias=Spec((N,), f32), target=target, **options)
    made = stages.compile()
    assert made.resources.spills == 0
    assert not [r for r in made.remarks if "C75" in r.text], made.remarks
    assert ("wgmma.mma_async.sp" in stages.ptx) == (target == "sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 1028, 780), (2048, 2048, 2048), (64, 4096, 8192)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_sizes(shape: Any, dtype: Any) -> None:
    for seed in range(3):
        multiplied(seed, False, shape, None, dtype)


A, B = np.ones((4, 8), np.float16), np.ones((8, 4), np.float16)


@pytest.mark.parametrize(
    "case",
    [
        (A[0], "a is an ndarray of shape"),
        ([1], "a is a list"),
        (A.astype(np.float64), "a is float64"),
        (A[:, :6], r"a is \(4, 6\) of float16"),
        (A.astype(np.float32)[:, :7], r"a is \(4, 7\) of float32"),
        (A, "8 of 8 groups of 4 neighbours have more than two numbers"),
        (A.astype(np.float32), "16 of 16 groups of 2 neighbours have more than one number"),
    ],
    ids=lambda case: case[1],
)
def test_what_is_refused(case: Any) -> None:
    a, words = case
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.sparse_compress(a, interpret=True)


@pytest.mark.parametrize(
    "case",
    [
        (B[:4], {}, r"a is \(4, 8\) and b is \(4, 4\)"),
        (3, {}, "b is an int"),
        (B, {"precision": "tf32"}, "precision='tf32'"),
        (B, {"bias": np.ones(5, np.float32)}, r"bias is \(5,\)"),
        (B, {"config": MatmulConfig(64, 64, 32, 3, 1, epilogue_n=32)}, "config.tile_k=32"),
        (B, {"config": MatmulConfig(64, 64, 64, 3, 1, epilogue_n=32, swapped=True)}, "config.swapped=True"),
        (kd.library.pack_int4(np.ones((8, 4), np.float32), interpret=True), {}, "b is a PackedInt4"),
    ],
    ids=lambda case: case[2],
)
def test_products_that_are_refused(case: Any) -> None:
    b, options, words = case
    matrix = kd.library.sparse_compress(A, prune=True, interpret=True)
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.sparse_matmul(matrix, b, interpret=True, **options)
    for call in (lambda: kd.library.sparse_matmul(A, B), lambda: kd.library.sparse_decompress(A)):
        with pytest.raises(kd.errors.BadCallArgument, match="compressed is an ndarray"):
            call()


@pytest.mark.parametrize("dtype", [s8, e4m3], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 64, 256), (256, 1, 256), (256, 128, 256), (64, 200, 300), (64, 256, 128)], ids=str
)
@pytest.mark.parametrize("forms", [("blocks of a", "row"), ("column", "squares"), ("rows", "blocks of b")], ids=str)
@pytest.mark.sampled(12)
def test_scales_by_blocks(dtype: Any, shape: Any, forms: Any, interpret: Any) -> None:
    """Also where one of them has the numbers of a single row, column or square: a sparse product takes none of these."""
    steps = ("a_scale", "b_scale")
    places = ("plain", "plain")
    call = Call(a_dtype=dtype, b_dtype=dtype, shape=shape, places=places, steps=steps, forms=forms, packed="sparse")
    call.run(1, interpret=interpret)


@pytest.mark.parametrize("scale", [(), (1,), (72,), (1, 72), (3, 1, 72), (1, 1)], ids=str)
def test_scales_that_keep_the_zeros_skipped(scale: tuple[int, ...]) -> None:
    """Scales of columns, of each product of a batch too, are the epilogue's; those by blocks of K are not."""
    matrix = kd.library.sparse_compress(np.ones((64, 512), np.int8), prune=True, interpret=True)
    b = Spec((3, 512, 72), s8)
    options = [MatmulOptions(b_scale=Spec(shape, f32)) for shape in (scale, (4, 72), (3, 4, 1))]
    assert [sparse_goes_fast(matrix, b, o, target_named("sm_90a")) for o in options] == [True, False, False]
