"""kd.library.matmul: every dtype, transpose, edge and extra."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_kernels.persistent_matmul import Problem, matmul_kernel
from kernel_dsl.library.product_routes.choose import choose
from kernel_dsl.library.product_routes.fast_sizes import configure
from kernel_dsl.library.products.matmul_config import MatmulConfig
from tests.hopper.helpers import assemble, random, relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
SMALL = MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32)


def operands(rng: Any, M: int, N: int, K: int, dtype: Any, ta: bool, tb: bool) -> tuple[Any, Any, Any]:
    a = random(rng, (K, M), dtype).T if ta else random(rng, (M, K), dtype)
    b = random(rng, (N, K), dtype).T if tb else random(rng, (K, N), dtype)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.sampled(6)
def test_transposes_and_edges(ta: bool, tb: bool, interpret: Any, rng: Any) -> None:
    a, b, expected = operands(rng, 200, 136, 136, bf16, ta, tb)
    got = kd.library.matmul(a, b, config=SMALL, interpret=interpret)
    assert got.dtype == bf16 and relative(got, expected) < 4e-3


@pytest.mark.parametrize("dtype", [f16, kd.float8_e4m3fn, kd.float8_e5m2, kd.int8, kd.uint8], ids=str)
@pytest.mark.sampled(2)
def test_dtypes(dtype: Any, rng: Any) -> None:
    a, b, expected = operands(rng, 128, 64, 256, dtype, False, True)
    got = kd.library.matmul(a, b, interpret=True)
    assert got.dtype == (kd.int32 if dtype.is_integer else f16 if dtype == f16 else bf16)
    assert relative(got, expected) <= (0 if dtype.is_integer else 4e-3)


def test_extras(interpret: Any, rng: Any) -> None:
    """bias, addend, activation, out_dtype."""
    a, b, expected = operands(rng, 128, 64, 64, bf16, False, True)
    bias, c = random(rng, (64,), f32), random(rng, (128, 64), f32)
    got = kd.library.matmul(a, b, bias=bias, c=c, activation=relu, out_dtype=f32, config=SMALL, interpret=interpret)
    assert got.dtype == f32 and relative(got, np.maximum(expected + bias + c, 0)) < 1e-5


def relu(x: Any) -> Any:
    return kd.maximum(x, 0.0)


@pytest.mark.parametrize("kind", [bf16, f32], ids=str)  # float32 goes to the kernel that takes anything
def test_places(kind: Any) -> None:
    """Ops of the library's are at the line that calls it, and those of a function that it was given at that one's."""
    left, right = kd.ShapeDtypeStruct((256, 64), kind), kd.ShapeDtypeStruct((64, 256), kind)  # K has one part
    stages = kd.library.matmul.lower(left, right, activation=relu)
    line = inspect.currentframe().f_lineno - 1  # pyright: ignore[reportOptionalMemberAccess]
    own = relu.__code__.co_firstlineno + 1
    places = {(op.loc.file, op.loc.line) for op in stages.ir.walk()}
    assert places == {(__file__, line), (__file__, own)}
    assert {op.loc.line for op in stages.ir.walk() if op.op_name == "max"} == {own}


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.sampled(15)
def test_persistence(blocks: int, cluster: int, interpret: Any, rng: Any) -> None:
    """Few blocks walk many tiles; clusters share B."""
    a, b, expected = operands(rng, 384, 192, 128, bf16, False, False)
    config = MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=64, cluster=cluster, group=2)
    problem = Problem(384, 192, 128, bf16, bf16, bf16)
    kernel = matmul_kernel(problem, config, blocks * cluster)
    assert relative(kernel(a, b, interpret=interpret), expected) < 4e-3


def described(c: MatmulConfig) -> str:
    """A configuration in short."""
    words = f"{c.tile_m}x{c.tile_n} s{c.stages} g{c.group}"
    words += f" c{c.cluster}x{c.cluster_n}" if c.blocks > 1 else ""
    words += " in turns" if c.ping_pong else ""
    words += " swapped" if c.swapped else ""
    return words + (" b once" if c.b_hint else " a once" if c.a_hint else "")


SHARED = [
    MatmulConfig(tile_m=128, tile_n=64, stages=3, ping_pong=True),
    MatmulConfig(tile_m=64, tile_n=64, stages=2, ping_pong=True, epilogue_n=32),
    MatmulConfig(tile_m=128, tile_n=64, stages=2, ping_pong=True, cluster=2),
    MatmulConfig(tile_m=64, tile_n=64, stages=2, consumers=1, cluster_n=2, b_hint="evict_first"),
    MatmulConfig(tile_m=64, tile_n=64, stages=2, consumers=1, cluster=2, cluster_n=2, out_hint="evict_first"),
    # three parts of a tile on their way out through two buffers
    MatmulConfig(tile_m=128, tile_n=96, stages=2, epilogue_n=32),
    MatmulConfig(tile_m=64, tile_n=96, stages=3, epilogue_n=32, epilogue_stages=1, ping_pong=True),
    MatmulConfig(tile_m=128, tile_n=224, stages=2, epilogue_n=32),
    MatmulConfig(tile_m=64, tile_n=64, stages=2, consumers=1, cluster=2, swapped=True, a_hint="evict_first"),
    MatmulConfig(tile_m=128, tile_n=64, stages=2, cluster_n=2, epilogue_n=32, swapped=True),
]


@pytest.mark.parametrize("config", SHARED, ids=described)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.sampled(96)
def test_turns_and_clusters(config: MatmulConfig, transposed: bool, interpret: Any, rng: Any) -> None:
    """Consumers with tiles of their own, an odd number of them; clusters along N and both ways; tiles past the edges."""
    a, b, expected = operands(rng, 328, 200, 264, bf16, transposed, transposed)
    problem = Problem(328, 200, 264, bf16, bf16, bf16, transposed, transposed)
    kernel = matmul_kernel(problem, config, 2 * config.blocks)
    assert relative(kernel(a.T if transposed else a, b.T if transposed else b, interpret=interpret), expected) < 4e-3


@pytest.mark.parametrize("extra", [f32, f16, kd.float64, kd.int64], ids=str)
@pytest.mark.parametrize("dtype", [kd.int8, kd.uint8, kd.int32, kd.int64], ids=str)
@pytest.mark.parametrize("K", [48, 50])
@pytest.mark.sampled(156)
def test_integers_keep_what_is_added_whole(extra: Any, dtype: Any, K: int, interpret: Any, rng: Any) -> None:
    """Products of integers plus floats, or plus integers of more bits: nothing is cut off before the sum."""
    a, b, expected = operands(rng, 64, 48, K, dtype, False, True)
    bias, c = (random(rng, shape, extra) for shape in ((48,), (64, 48)))
    if extra == kd.int64:
        bias, c = bias << 33, c << 34
    out_dtype = extra if extra.itemsize == 8 else f32
    got = kd.library.matmul(a, b, bias=bias, c=c, out_dtype=out_dtype, interpret=interpret)
    assert got.dtype == out_dtype
    assert relative(got, expected + bias + c) < (1e-15 if extra.itemsize == 8 else 3e-7)


@pytest.mark.parametrize("shape", [(70, 50, 33), (1, 3, 2), (4, 0, 3), (3, 5, 0)], ids=str)
@pytest.mark.parametrize("dtype", [f32, kd.float64, kd.int32, bf16], ids=str)
@pytest.mark.sampled(3)
def test_what_the_fast_kernel_refuses(shape: Any, dtype: Any, rng: Any) -> None:
    a, b, expected = operands(rng, *(shape[0], shape[1], shape[2]), dtype, True, False)
    got = kd.library.matmul(a, b, interpret=True)
    by_lanes = {"matmul_general", *(["matmul_vector"] if 1 in shape[:2] else [])}
    assert kd.library.matmul.lower(a, b).name in by_lanes
    assert got.shape == expected.shape
    assert not expected.size or relative(got, expected) < (5e-3 if dtype == bf16 else 1e-5)


THIN = MatmulConfig(tile_m=128, tile_n=16, stages=3, epilogue_n=16, swapped=True)


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("rows", [1, 13, 16, 24])
@pytest.mark.sampled(42)
def test_swapped_operands(rows: int, ta: bool, tb: bool, interpret: Any, rng: Any) -> None:
    """The transposed product: edges, more tiles than blocks, and all that is added on the way out."""
    stored = rows if not ta else -(-rows // 8) * 8  # TMA wants rows of 16 bytes
    a, b, expected = operands(rng, stored, 264, 136, bf16, ta, tb)
    bias, c = random(rng, (264,), f32), random(rng, (stored, 264), f32)
    problem = Problem(stored, 264, 136, bf16, bf16, bf16, ta, tb, bias=True, accumulate=True)
    kernel = matmul_kernel(problem, THIN, 2, relu)
    got = kernel(a.T if ta else a, b.T if tb else b, bias, c, interpret=interpret)
    assert relative(got, np.maximum(expected + bias + c, 0)) < 4e-3


@pytest.mark.parametrize("dtype", [f16, kd.float8_e4m3fn, kd.int8], ids=str)
@pytest.mark.parametrize("shape", [(16, 272, 272), (272, 16, 272), (32, 144, 80), (144, 32, 80)], ids=str)
@pytest.mark.sampled(24)
def test_thin_dtypes(dtype: Any, shape: Any, interpret: Any, rng: Any) -> None:
    """What is chosen for a thin side, of a or of b."""
    a, b, expected = operands(rng, *shape, dtype, False, True)
    config = choose(kd.library.matmul.describe(a, b, None, None, None)[0], 132)
    assert config.tile_n == min(shape[:2]) and config.swapped == (shape[0] < shape[1])
    got = kd.library.matmul(a, b, interpret=interpret)
    assert relative(got, expected) <= (0 if dtype.is_integer else 4e-3)


def problem_of(shape: Any, dtype: Any, transposed: bool, b_dtype: Any = None) -> Problem:
    out = kd.int32 if dtype == b_dtype == kd.int8 else bf16
    return Problem(*shape, dtype, b_dtype or dtype, out, b_transposed=transposed)


# M, N, K: choices for B as (K, N) and as (N, K)
CHOICES = {
    (2048, 2048, 2048): ("128x256 s4 g8",) * 2,
    (4096, 4096, 4096): ("128x256 s4 g16",) * 2,
    (8192, 8192, 8192): ("128x192 s5 g16 in turns",) * 2,
    (4096, 8192, 4096): ("128x256 s4 g16",) * 2,
    (8192, 8192, 512): ("128x192 s5 g8 in turns",) * 2,
    (4096, 4096, 16384): ("128x256 s4 g16",) * 2,
    (128, 8192, 8192): ("64x128 s8 g1 c2x1 b once",) * 2,
    (16, 16384, 8192): ("128x16 s6 g8 swapped a once",) * 2,
}


@pytest.mark.parametrize("shape", CHOICES, ids=str)
def test_choices(shape: Any) -> None:
    """The best configurations that were measured, or for 4096 x 8192 and the thinnest, what the model says."""
    chosen = tuple(described(choose(problem_of(shape, bf16, t), 132)) for t in (False, True))
    assert chosen == CHOICES[shape]


def test_other_choices() -> None:
    n = (8192, 8192, 8192)
    assert described(choose(problem_of(n, kd.float8_e4m3fn, True), 132)) == "128x192 s5 g16 in turns"
    assert described(choose(problem_of(n, kd.int8, True, kd.int8), 132)) == "128x192 s4 g16 in turns"
    for transposed in (False, True):
        mixed = problem_of((4096, 8192, 4096), kd.int8, transposed, bf16)
        assert described(choose(mixed, 132)) == "128x256 s4 g16"
        assert configure(mixed, 128, 128, 2, ping_pong=True) is None
    short = problem_of((8192, 8192, 512), bf16, True)
    assert choose(short, 132, plain=False).tile_n == 128  # room for an epilogue's arithmetic


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (4096, 8192, 4096), (16, 16384, 8192)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, kd.float8_e4m3fn, kd.int8], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_the_chosen_kernels_do_not_spill(shape: Any, dtype: Any) -> None:
    M, N, K = shape
    a, b = kd.ShapeDtypeStruct((M, K), dtype), kd.ShapeDtypeStruct((N, K), dtype)
    for transposed in (True, False) if dtype == bf16 else (True,):
        problem = problem_of(shape, dtype, transposed, dtype)
        kernel = matmul_kernel(problem, choose(problem, 132), 132)
        assemble(kernel, a, b if transposed else kd.ShapeDtypeStruct((K, N), dtype))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.sampled(60, "machine code")
def test_consumers_in_turns_do_not_spill(plain: bool) -> None:
    M, N, K = 8192, 8192, 512
    problem = Problem(M, N, K, bf16, bf16, bf16, bias=not plain, accumulate=not plain)
    config = choose(problem, 132, plain)
    assert config.ping_pong
    shapes = [(M, K), (K, N)] if plain else [(M, K), (K, N), (N,), (M, N)]
    assemble(
        matmul_kernel(problem, config, 132, None if plain else relu), *[kd.ShapeDtypeStruct(s, bf16) for s in shapes]
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_the_large_kernel(transposed: bool) -> None:
    """The registers of the record configuration: 168 at launch, no spills, nothing serialised."""
    n = 8192
    kernel = matmul_kernel(Problem(n, n, n, bf16, bf16, bf16, b_transposed=transposed), MatmulConfig(), 132)
    spec = kd.ShapeDtypeStruct((n, n), bf16)
    assert assemble(kernel, spec, spec).resources.registers == 168


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.sampled(15)
def test_mixed(transposed: bool, interpret: Any, rng: Any) -> None:
    """int8 by bfloat16: A is widened in registers."""
    a = random(rng, (136, 144), kd.int8)
    b = random(rng, (72, 144), bf16).T if transposed else random(rng, (144, 72), bf16)
    got = kd.library.matmul(a, b, interpret=interpret)
    assert got.dtype == bf16 and relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 4e-3
    assemble(kd.library.matmul, a, b)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.sampled(21)
def test_mixed_the_other_way_round(dtype: Any, transposed: bool, interpret: Any, rng: Any) -> None:
    """b is int8: the transposed product."""
    a = random(rng, (144, 136), dtype).T if transposed else random(rng, (136, 144), dtype)
    b = random(rng, (72, 144), kd.int8).T
    bias = random(rng, (72,), f32)
    got = kd.library.matmul(a, b, bias=bias, interpret=interpret)
    assert got.dtype == dtype and relative(got, a.astype(np.float64) @ b.astype(np.float64) + bias) < 4e-3
    assert "wgmma" in kd.library.matmul.lower(a, b).ptx
    assemble(kd.library.matmul, a, b)


@pytest.mark.parametrize(("left", "right", "expected"), [
    (f32, bf16, f32), (bf16, f16, f32), (f16, kd.float8_e4m3fn, f16), (kd.int8, f32, f32), (kd.float64, f32, kd.float64),
    (kd.int32, kd.int8, kd.int32), (kd.int8, kd.int64, kd.int64), (kd.uint8, kd.int8, kd.int32), (bf16, kd.int32, bf16),
    (f16, kd.int8, f16), (kd.int8, bf16, bf16), (kd.int8, kd.float8_e5m2, bf16), (kd.float8_e4m3fn, kd.uint8, bf16),
    (kd.int8, kd.bool_, kd.int32), (kd.bool_, kd.uint8, kd.int32),
], ids=str)  # fmt: skip
@pytest.mark.sampled(84)
def test_dtypes_that_differ(left: Any, right: Any, expected: Any, interpret: Any, rng: Any) -> None:
    """What no instruction multiplies goes to the general kernel, in the dtype that both promote to, or that follows it."""
    a, b = random(rng, (37, 50), left), random(rng, (50, 23), right)
    got = kd.library.matmul(a, b, interpret=interpret)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 0 if expected.is_integer else {2: 4e-3, 4: 1e-5, 8: 1e-13}[expected.itemsize]
    assert got.dtype == expected and relative(got, exact) <= bound


def test_dtypes_without_a_common_one() -> None:
    a, b = kd.ShapeDtypeStruct((8, 8), kd.uint64), kd.ShapeDtypeStruct((8, 8), kd.int64)
    with pytest.raises(TypeError, match="uint64"):
        kd.library.matmul.lower(a, b)


@pytest.mark.parametrize("depth", [48, 64, 320])
def test_mixed_depths(depth: int, interpret: Any, rng: Any) -> None:
    """One step of K, a part of one, and more than the ring holds."""
    a = rng.integers(-128, 128, (64, depth)).astype(np.int8)
    b = random(rng, (depth, 64), bf16)
    got = kd.library.matmul(a, b, interpret=interpret)
    assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 4e-3


def test_mixed_keeps_a_product_in_flight() -> None:
    """Bytes are widened without the conversion unit, and no wait within the loop is for all products."""
    a, b = kd.ShapeDtypeStruct((4096, 4096), kd.int8), kd.ShapeDtypeStruct((4096, 8192), bf16)
    stages = kd.library.matmul.lower(a, b, target="sm_90a")
    assert "cvt.rn.bf16" not in stages.ptx.replace("cvt.rn.bf16x2.f32", "")  # those are of the result
    words = [w for line in stages.ptx.splitlines() for w in line.split()[:2]]
    waits = [words[i + 1] for i, w in enumerate(words) if w == "wgmma.wait_group.sync.aligned"]
    assert waits == ["1;", "1;", "1;", "0;"]
    compiled = stages.compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1000, 1016, 1032), (4096, 4096, 512), (128, 8192, 1024), (16, 4096, 2048)], ids=str)
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
def test_large_products_on_a_gpu(shape: Any, ta: bool, tb: bool, rng: Any) -> None:
    """The chosen configurations at full size, against float32 products of the same inputs."""
    M, N, K = shape
    a = random(rng, (K, M), bf16).T if ta else random(rng, (M, K), bf16)
    b = random(rng, (N, K), bf16).T if tb else random(rng, (K, N), bf16)
    got = kd.library.matmul(a, b, interpret=False)
    assert relative(got, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)) < 4e-3
