"""Products of the library whose M and batch change: right at every size, and compiled for few."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.definition import output_structs
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.kernel import Kernel
from kernel_dsl.library.product_kernels.combine import combine_kernel
from kernel_dsl.library.product_kernels.lane_product import LaneConfig, lane_kernel
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes.any_rows import opened
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import target_named
from kernel_dsl.tree import unflatten

from .counting import counted, none_before

SMALL = MatmulConfig(64, 64, 64, stages=2, consumers=1, epilogue_n=64, epilogue_stages=1)
Struct = kd.ShapeDtypeStruct


def floats(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(dtype)


def test_one_kernel_multiplies_any_number_of_rows() -> None:
    """Bit-equal with the kernel that is made for each, also where the transposed product is computed."""
    rng = np.random.default_rng(0)
    for config, lengths in ((SMALL, (130, 1)), (replace(SMALL, swapped=True), (72,))):
        p = Problem(1, 128, 64, kd.float16, kd.float16, kd.float16, b_transposed=config.swapped)
        kernel = matmul_kernel(opened(p), config, 4)
        b = floats(rng, np.float16, *((128, 64) if config.swapped else (64, 128)))
        for m in lengths:
            a = floats(rng, np.float16, m, 64)
            exact = matmul_kernel(replace(p, M=m), config, 4)
            np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
        assert len(kernel.specialisations()) == 1


def test_a_kernel_for_sizes_of_one_tile_has_the_code_of_one_size() -> None:
    """It takes all sizes of a tile and no others, and calls of such sizes get it. Short products of 300 rows share one, too,
    whose tiles run at once.
    """
    machine, a, b = target_named("sm_90a"), kd.bfloat16, Struct((2048, 256), kd.bfloat16)
    with none_before():
        for m in (40, 3, 20, 61, 12, 300, 30000):
            asked = request(Struct((m, 2048), a), b, MatmulOptions(), None)
            own = route(asked.problem, asked.left, asked.right, asked.family, None, machine)
            found = own.serving(132)
            if m in (3, 61):
                texts = [
                    made.multiply(132).lower(Struct((m, 2048), a), b, target="sm_90a").ptx for made in (own, found)
                ]
                bodies = [re.sub("(?s).*?[.]reqntid|[.]file.*", "", text) for text in texts]
                assert bodies[0] == bodies[1], m
            most = {40: None, 3: 16, 20: 32, 61: 64, 12: 16, 300: 320}.get(m, 0)
            hi = getattr(found.problem.M, "hi", None)
            assert hi == most if most != 0 else hi > 100000, (m, hi)


@pytest.mark.parametrize("clusters", [(1, 1), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_sizes_of_one_wave_have_a_block_for_each_tile(swapped: bool, clusters: tuple[int, int]) -> None:
    """Of parts of K, too. Its code has no loop over tiles, divides by no size, and is shorter than that for all sizes."""
    rng = np.random.default_rng(3)
    config = replace(SMALL, swapped=swapped, cluster=clusters[0], cluster_n=clusters[1])
    p = Problem(1, 128, 128, kd.float16, kd.float16, kd.float32, b_transposed=swapped, parts=2)
    kernel, whole = (matmul_kernel(opened(p, limit=(most, 0)), config, 16) for most in (192, 0))
    b = floats(rng, np.float16, 128, 128)
    for m in (130, 192, 1):
        a = floats(rng, np.float16, m, 128)
        exact = matmul_kernel(replace(p, M=m), config, 16)
        np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
    assert len(kernel.specialisations()) == 1
    short, long = (made.lower(a, b, target="sm_90a").ptx for made in (kernel, whole))
    assert len(short.splitlines()) < 0.9 * len(long.splitlines())
    assert "div." not in short


def test_a_batch_of_one_wave_has_a_block_for_each_tile() -> None:
    """Its kernel takes any batch and M that may have one wave, divides by no size, and is right where there are more tiles."""
    rng, sides = np.random.default_rng(3), {"a_batch": (3,), "b_batch": (3,)}
    p = Problem(1, 128, 128, kd.float16, kd.float16, kd.float16, batch=(3,), **sides)
    kernel = matmul_kernel(opened(p, limit=(512, 8)), SMALL, 16)
    for batch, m in ((3, 130), (8, 40), (2, 200), (5, 140), (1, 512)):
        a, b = floats(rng, np.float16, batch, m, 128), floats(rng, np.float16, batch, 128, 128)
        exact = matmul_kernel(replace(p, M=m, **dict.fromkeys(("batch", *sides), (batch,))), SMALL, 16)
        np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
    assert len(kernel.specialisations()) == 1
    assert (
        "div."
        not in kernel.lower(Struct((2, 200, 128), kd.float16), Struct((2, 128, 128), kd.float16), target="sm_90a").ptx
    )
    with none_before():
        served(77, (2,), 512, 1024, kd.bfloat16)
        for batch, m in ((4, 100), (16, 40), (2, 500)):
            assert "max=16)" in served(m, (batch,), 512, 1024, kd.bfloat16), (batch, m)
        assert "max=16)" not in served(300, (4,), 512, 1024, kd.bfloat16)


@pytest.mark.parametrize("parts", [1, 2])
def test_low_products_of_the_general_kernels_find_their_tiles_by_the_grid(parts: int) -> None:
    """Whether they have few tiles along M, whose columns are rows of the grid, or many."""
    rng, sides = np.random.default_rng(5), {"a_batch": (3,), "b_batch": (3,)}
    p = Problem(1, 70, 48, kd.float32, kd.float32, kd.float32, batch=(3,), parts=parts, **sides)
    kernel = lane_kernel(opened(p), LaneConfig(32, 32, group=2))
    for batch, m in ((2, 40), (3, 100), (1, 7), (4, 64)):
        a, b = floats(rng, np.float32, batch, m, 48), floats(rng, np.float32, batch, 48, 70)
        exact = lane_kernel(replace(p, M=m, **dict.fromkeys(("batch", *sides), (batch,))), LaneConfig(32, 32, group=2))
        np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
    assert len(kernel.specialisations()) == 1


def test_sums_of_parts_of_few_rows_share_a_kernel() -> None:
    p = Problem(1, 256, 64, kd.float32, kd.float32, kd.float16, parts=3)
    kernels = [combine_kernel(opened(p, limit=(most, 0))) for most in (16, 32, 64)]
    assert kernels[0] is kernels[1] is kernels[2] is not combine_kernel(opened(p))
    assert (
        combine_kernel(opened(p, limit=(192, 0)))
        is combine_kernel(opened(p, limit=(320, 0)))
        is combine_kernel(opened(p))
    )
    rng = np.random.default_rng(4)
    for m in (1, 9, 64):
        sums = floats(rng, np.float32, 3, m, 256)
        want = (sums[0] + sums[1] + sums[2]).astype(np.float16)
        np.testing.assert_array_equal(kernels[0](sums, interpret=True), want)
    assert len(kernels[0].specialisations()) == 1


def test_few_tiles_find_their_places_in_the_grid() -> None:
    """Of parts of K and of a batch too, with one wave and with several."""
    rng = np.random.default_rng(3)
    p = Problem(1, 128, 128, kd.float16, kd.float16, kd.float32, parts=2, batch=(3,), a_batch=(3,), b_batch=(3,))
    kernel = matmul_kernel(opened(p), SMALL, 13)
    for batch, m in ((3, 40), (3, 130), (1, 70), (4, 70)):
        a, b = floats(rng, np.float16, batch, m, 128), floats(rng, np.float16, batch, 128, 128)
        sizes = {"batch": (batch,), "a_batch": (batch,), "b_batch": (batch,)}
        exact = matmul_kernel(replace(p, M=m, **sizes), SMALL, 13)
        np.testing.assert_array_equal(kernel(a, b, interpret=True), exact(a, b, interpret=True))
    assert len(kernel.specialisations()) == 1


def test_tiles_of_a_thin_side_serve_no_others() -> None:
    """Nor do others serve a thin side, whatever the order."""
    machine = target_named("sm_90a")

    def columns(m: int, n: int) -> int:
        asked = request(Struct((m, 4096), kd.bfloat16), Struct((4096, n), kd.bfloat16), MatmulOptions(), None)
        found = route(asked.problem, asked.left, asked.right, asked.family, None, machine).serving(132)
        return int(found.config.tile_n) if found.config.swapped else 0

    for sizes in ((2, 24, 40, 24), (2, 40, 24, 40)):
        with none_before():
            assert [columns(m, 4096) for m in sizes] == [{2: 16, 24: 32, 40: 0}[m] for m in sizes]
    with none_before():
        assert [columns(m, 1024) for m in (2, 40, 24)] == [16, 0, 32]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(2)
def test_results_have_the_rows_of_every_size(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of sizes that come later, of operands that are laid out anew first. Nothing is run."""

    def call(kernel: Kernel, *args: Any, out: Any = None, **_: Any) -> Any:
        arrays = [Struct(x.shape, as_dtype(x.dtype)) for x in args]
        made, structure = output_structs(kernel._definition, tuple(arrays))
        assert out is None or [tuple(out.shape)] == [o.shape for o in made], kernel.name
        return unflatten(structure, [np.empty(o.shape, o.dtype.numpy) for o in made])

    monkeypatch.setattr(Kernel, "__call__", call)
    rng = np.random.default_rng(seed)
    for _ in range(25):
        dtype = np.dtype(rng.choice([ml_dtypes.bfloat16, np.float32, np.int8]))
        by_columns, n, k = rng.integers(0, 2, 2), *(int(size) for size in rng.choice([768, 1000, 4096, 8192], 2))
        with none_before():
            for m in (8192, int(rng.integers(1, 9000)), int(rng.integers(1, 9000)), 1105):
                a, b = (
                    np.empty(shape[::-1], dtype).T if turned else np.empty(shape, dtype)
                    for shape, turned in zip(((m, k), (k, n)), by_columns, strict=True)
                )
                result = kd.library.matmul(a, b)
                assert result.shape == (m, n), (dtype, by_columns, m, n, k)
                assert kd.library.matmul(a, b, out=np.empty_like(result)).shape == (m, n)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8], ids=lambda d: d.__name__)
@pytest.mark.parametrize(("k", "n"), [(59, 16), (64, 59), (64, 16)])
@pytest.mark.sampled(12)
def test_one_row_comes_before_several(k: int, n: int, dtype: Any) -> None:
    """A single row has any stride: what its kernel may do, one for more rows may not."""
    rng = np.random.default_rng(k + n)
    b = rng.integers(-3, 4, (k, n)).astype(dtype)
    with none_before():
        for m in (5, 1, 20, 1, 7):
            a = rng.integers(-3, 4, (m, k)).astype(dtype)
            np.testing.assert_array_equal(kd.library.matmul(a, b), a.astype(np.int64) @ b.astype(np.int64))


def relu(x: Any) -> Any:
    return kd.maximum(x, 0)


def _all_steps(rng: np.random.Generator, m: int) -> dict[str, Any]:
    half = partial_half(rng)
    return {
        "bias": half(72), "c": half(m, 72), "a_scale": floats(rng, np.float32, m), "activation": relu,
        "residual": half(m, 72), "absmax": True, "out_scale": 0.5,
    }  # fmt: skip


def partial_half(rng: np.random.Generator) -> Callable[..., Any]:
    return lambda *shape: floats(rng, np.float16, *shape)


def fp8(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return floats(rng, np.float32, *shape).astype(ml_dtypes.float8_e4m3fn)


Made = Callable[[np.random.Generator, int, int], tuple[Any, Any, dict[str, Any]]]
# what (generator, batch, M) give: a, b, options
PRODUCTS: dict[str, Made] = {
    "epilogue": lambda rng, _, m: (floats(rng, "f2", m, 64), floats(rng, "f2", 64, 72), _all_steps(rng, m)),
    "batch": lambda rng, n, m: (floats(rng, "f2", n, m, 64), floats(rng, "f2", n, 64, 72), {}),
    "lanes": lambda rng, _, m: (floats(rng, "f4", m, 64), floats(rng, "f4", 64, 40), {}),
    "packed": lambda rng, _, m: (floats(rng, "f4", m, 64), floats(rng, "f4", 64, 72), {"precision": "tf32x3"}),
    "cut": lambda rng, _, m: (floats(rng, "f2", m, 2048), floats(rng, "f2", 2048, 16), {"bias": floats(rng, "f2", 16)}),
    "gated": lambda rng, _, m: (floats(rng, "f2", m, 64), floats(rng, "f2", 64, 128), {"gated": "swiglu"}),
    "dropout": lambda rng, _, m: (floats(rng, "f2", m, 64), floats(rng, "f2", 64, 72), {"dropout": (0.5, 7)}),
    "batch of steps": lambda rng, n, m: (
        floats(rng, "f2", n, 2, m, 64),
        floats(rng, "f2", n, 2, 64, 72),
        {"c": floats(rng, "f2", n, 1, m, 72), "residual": floats(rng, "f2", m, 72), "dropout": (0.5, 7)},
    ),
    "by columns": lambda rng, _, m: (floats(rng, "f2", 64, m).T, floats(rng, "f2", 64, 72), {}),
    "by odd columns": lambda rng, _, m: (floats(rng, "f2", 512, 2 * m + 1).T, floats(rng, "f2", 512, 72), {}),
    "int8 by odd columns": lambda rng, _, m: (
        rng.integers(-99, 99, (64, 2 * m + 1)).astype(np.int8).T,
        rng.integers(-99, 99, (64, 72)).astype(np.int8),
        {},
    ),
    "weights by odd columns": lambda rng, _, m: (
        floats(rng, "f2", 64, 2 * m + 1).T,
        rng.integers(-99, 99, (64, 72)).astype(np.int8),
        {"bias": floats(rng, "f2", 72)},
    ),
    "packed by odd columns": lambda rng, _, m: (
        floats(rng, "f4", 64, 2 * m + 1).T,
        floats(rng, "f4", 64, 72),
        {"precision": "tf32x3"},
    ),
    "into columns": lambda rng, _, m: (
        floats(rng, "f2", m, 64),
        floats(rng, "f2", 64, 72),
        {"out": np.full((72, m), 99, "f2").T, "c": floats(rng, "f2", 72, m).T, "scale": 0.5},
    ),
    "into odd columns": lambda rng, _, m: (
        floats(rng, "f2", 64, 2 * m + 1).T,
        floats(rng, "f2", 64, 71),
        {"out": np.full((71, 2 * m + 1), 99, "f2").T, "bias": floats(rng, "f2", 71)},
    ),
    "parts into columns": lambda rng, _, m: (
        floats(rng, "f2", m, 2048),
        floats(rng, "f2", 2048, 16),
        {"out": np.full((16, m), 99, "f2").T},
    ),
    "batch into columns": lambda rng, n, m: (
        floats(rng, "f2", n, m, 64),
        floats(rng, "f2", n, 64, 72),
        {"out": np.full((n, 72, m), 99, "f2").swapaxes(1, 2), "dropout": (0.5, 7)},
    ),
    "lanes into columns": lambda rng, _, m: (
        floats(rng, "f4", m, 64),
        floats(rng, "f4", 64, 40),
        {"out": np.full((40, m), 99, "f4").T, "residual": floats(rng, "f4", m, 40)},
    ),
    "float64 into columns": lambda rng, _, m: (
        floats(rng, "f8", 2 * m + 1, 64),
        floats(rng, "f8", 64, 40),
        {"out": np.full((40, 2 * m + 1), 99, "f8").T},
    ),
    "one column": lambda rng, _, m: (
        floats(rng, "f2", m, 64),
        floats(rng, "f2", 64, 1),
        {"out": np.full((1, m), 99, "f2").T},
    ),
    "complex": lambda rng, _, m: (
        (floats(rng, "f4", 64, m) + 1j * floats(rng, "f4", 64, m)).astype("c8").T,
        (floats(rng, "f4", 64, 40) + 1j * floats(rng, "f4", 64, 40)).astype("c8"),
        {"out": np.full((40, m), 99, "c8").T},
    ),
    "odd columns": lambda rng, _, m: (floats(rng, "f2", m, 64), floats(rng, "f2", 64, 71), {}),
    "float64": lambda rng, _, m: (floats(rng, "f8", m, 64), floats(rng, "f8", 64, 40), {}),
    "int8": lambda rng, _, m: (
        rng.integers(-99, 99, (m, 64)).astype(np.int8),
        rng.integers(-99, 99, (64, 72)).astype(np.int8),
        {},
    ),
    "int8 weights": lambda rng, _, m: (
        floats(rng, "f2", m, 64),
        rng.integers(-99, 99, (64, 72)).astype(np.int8),
        {},
    ),
    "fp8": lambda rng, _, m: (fp8(rng, m, 512), fp8(rng, 72, 512).T, {"precision": "highest"}),
    "fp8 by blocks": lambda rng, _, m: (
        fp8(rng, m, 256),
        fp8(rng, 72, 256).T,
        {"a_scale": floats(rng, "f4", m, 2), "b_scale": floats(rng, "f4", 2, 1)},
    ),
}
SIZES = ((2, 40), (3, 33), (5, 35), (4, 34))


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_third_size_compiles_nothing(name: str, traces: list[str]) -> None:
    """And gives the bits of the kernels that are made for it alone."""
    check(PRODUCTS[name], traces)


@pytest.mark.slow
@pytest.mark.parametrize("pack", [kd.library.pack_int4, kd.library.pack_mxfp4], ids=["int4", "mxfp4"])
def test_weights_of_4_bits_compile_once(pack: Any, traces: list[str]) -> None:
    rng = np.random.default_rng(3)
    w = pack(floats(rng, np.float16, 128, 128), interpret=True)
    check(lambda rng, _, m: (floats(rng, np.float16, m, 128), w, {}), traces)


def check(made: Made, traces: list[str]) -> None:
    rng, matmul, later = np.random.default_rng(4), type(kd.library.matmul)(), list[list[str]]()
    with none_before():
        for number, sizes in enumerate(SIZES):
            a, b, options = made(rng, *sizes)
            traces.clear()
            got = [x.tobytes() for x in arrays(matmul(a, b, interpret=True, **options))]
            later.append(list(traces))
            if number in (1, 2):
                options |= {"out": np.full_like(options["out"], 99)} if "out" in options else {}
                with none_before():
                    want = type(kd.library.matmul)()(a, b, interpret=True, **options)
                assert got == [x.tobytes() for x in arrays(want)]
    assert later[0], "the first sizes are compiled for"
    assert later[1], "kernels for any sizes follow"
    assert later[2:] == [[], []], "and serve all that come"


def arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]


def served(m: int, batch: tuple[int, ...], n: int, k: int, dtype: Any) -> str:
    """The kernels of a product on an H200, as text."""
    machine = target_named("sm_90a")
    r = request(Struct((*batch, m, k), dtype), Struct((*batch, k, n), dtype), MatmulOptions(), None)
    found = route(r.problem, r.left, r.right, r.family, None, machine).serving(132)
    return repr((found.kernel, found.problem, found.config, found.packings, found.whole))


@pytest.mark.parametrize(
    ("n", "k", "dtype", "batches", "most"),
    [(4096, 4096, kd.bfloat16, 1, 13), (4096, 4096, kd.float32, 1, 8), (1024, 128, kd.bfloat16, 37, 14)],
)
def test_few_kernels_serve_many_sizes(n: int, k: int, dtype: Any, batches: int, most: int) -> None:
    """Of 200 sizes few make kernels, and by the cost model each has 0.97 of the speed of the best."""
    rng, made, late = np.random.default_rng(1), set[str](), 0
    with none_before():
        for number, m in enumerate(int(x) for x in rng.integers(1, 16384 // batches, 200)):
            kernels = served(m, (m % batches + 1,) if batches > 1 else (), n, k, dtype)
            late += number >= 100 and kernels not in made
            made.add(kernels)
    assert len(made) <= most and late <= 4


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=lambda d: d.__name__)
def test_parts_of_k_share_kernels(dtype: Any) -> None:
    """Sizes of every order, whose K is cut in many ways, take few kernels."""
    for n, k, most in ((512, 8192, 15), (64, 8192, 14)):
        rng, matmul = np.random.default_rng(n), type(kd.library.matmul)()
        with none_before(), counted() as found:
            for m in (77, 9000, *(int(2**x) for x in rng.uniform(0, 14, 20))):
                matmul(np.zeros((m, k), dtype), np.zeros((k, n), dtype))
                if m == 9000:
                    found.clear()
        assert len(found) <= most, (n, found)


def test_a_matmul_of_lengths_that_come_one_after_another() -> None:
    matmul = type(kd.library.matmul)()
    rng = np.random.default_rng(2)
    b = rng.standard_normal((64, 64)).astype(np.float16)
    counts: list[int] = []
    for m in (40, 33, 35, 34):
        a = rng.standard_normal((m, 64)).astype(np.float16)
        want = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_allclose(matmul(a, b, interpret=True), want, rtol=2e-2, atol=2e-2)
        counts.append(len(matmul.specialisations()))
    assert counts == [1, 2, 2, 2]
