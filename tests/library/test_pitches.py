"""Rows that begin within a sector of 32 bytes: what operands and packings say of it, and the clusters that it asks for."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.blocks import clusters_at_once
from kernel_dsl.library.convolutions.kernel import config_of
from kernel_dsl.library.convolutions.problem import ConvProblem
from kernel_dsl.library.grouped import routes as grouped_routes
from kernel_dsl.library.product_kernels.pack import Packing, pack_kernel
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes import fast_costs
from kernel_dsl.library.product_routes.routes import route, routes
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.operands import operand
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

from .grouped import grouped
from .routed import routed

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f32, s8 = kd.bfloat16, kd.float32, kd.int8


@pytest.mark.parametrize(("columns", "pitch"), [(24, 16), (40, 16), (48, 32), (32, 64), (64, 128), (1000, 16)])
def test_of_operands(columns: int, pitch: int) -> None:
    """The pitch of rows of 16-bit numbers; a transposed operand has the same."""
    x = np.zeros((16, columns), np.float16)
    assert operand(x, False).pitch == operand(x.T, True).pitch == operand(x.T, False).pitch == pitch
    assert operand(x[:1], False).pitch == 128  # no row follows
    assert operand(x[:, 8:], False).pitch == operand(x[3:], False).pitch == pitch


@pytest.mark.parametrize("columns", [5, 24, 40, 4999, 5000, 5008])
def test_of_packings(columns: int) -> None:
    """Packed rows begin with sectors, long ones with lines."""
    packing = Packing(10, columns, bf16, bf16)
    assert packing.width >= columns
    assert packing.width * 2 <= columns * 2 + (127 if columns > 1000 else 31)
    assert packing.width * 2 % (128 if columns > 1000 else 32) == 0


@pytest.mark.parametrize("columns", [5, 24, 40, 300, 5000])
def test_copies_of_rows(columns: int) -> None:
    """A warp copies up to 512 neighbouring bytes of a row, and no more of a row than there is; with scales a tile has 128 columns
    at most.
    """
    plain, scaled = Packing(1000, columns, bf16, bf16), Packing(1000, columns, bf16, bf16, scaled="rows")
    width = plain.width * 2
    run = sum(stride * 2 for dim, stride in plain.layout.lanes if dim == 1) + 16
    assert run == min(512, 1 << (width - 1).bit_length())
    assert all(size <= 128 for size in scaled.layout.padded)


def chosen(size: int, form: str, dtype: Any = bf16) -> Any:
    """The route of a square product of contiguous operands: "n" is row-major."""
    a, b = (np.empty((size, size), dtype.numpy) for _ in range(2))
    r = request(a.T if form[0] == "t" else a, b.T if form[1] == "t" else b, MatmulOptions(), None)
    return route(r.problem, r.left, r.right, r.family, None, target_named("sm_90a"))


@pytest.mark.parametrize("size", [2000, 3000, 4104, 5000, 8200])
def test_choice(size: int) -> None:
    """Broken rows, along K and across it, are copied, or loaded for several blocks at once; others remain as they are."""
    broken = size % 16 != 0
    for form in ("nt", "nn", "tn", "tt"):
        found = chosen(size, form)
        copied = [x is not None for x in found.packings]
        slower = fast_costs.BROKEN if broken else fast_costs.UNEVEN_PITCH if size % 32 else 1.0
        assert found.reads == tuple(1.0 if c else slower for c in copied), form
        assert not broken or all(copied) or found.config.blocks > 1, form
        assert broken or not any(copied), form


@pytest.mark.parametrize(
    ("images", "channels", "cluster", "depth"),
    [(64, 264, 2, 64), (64, 256, 1, 64), (1, 264, 1, 64), (64, 96, 2, 32), (64, 112, 1, 64), (1, 96, 1, 64)],
)
def test_of_convolutions(images: int, channels: int, cluster: int, depth: int) -> None:
    """Two blocks load filters together where channels begin within sectors, or leave half of a stage, and there are many tiles."""
    p = ConvProblem(images, 56, 56, channels, 264, (3, 3), (1, 1), (1, 1), (1, 1), 1, bf16)
    assert (config_of(p).cluster, config_of(p).depth) == (cluster, depth)


@pytest.mark.parametrize(
    ("blocks", "size", "count"), [(132, 1, 132), (132, 2, 66), (132, 4, 29), (132, 8, 10), (6, 4, 1)]
)
def test_clusters_at_once(blocks: int, size: int, count: int) -> None:
    """A persistent kernel has no more clusters than surely run at once: the rest would run after them."""
    assert clusters_at_once(blocks, size) == count
    if blocks == 132 and size in (1, 2, 4):
        config = MatmulConfig(cluster=max(size // 2, 1), cluster_n=min(size, 2))
        problem = request(
            np.empty((9000, 64), bf16.numpy), np.empty((64, 9000), bf16.numpy), MatmulOptions(), None
        ).problem
        x = kd.ShapeDtypeStruct((9000, 64), bf16), kd.ShapeDtypeStruct((64, 9000), bf16)
        stages = matmul_kernel(problem, config, blocks).lower(*x, target="sm_90a")
        assert prod(stages.kernel.launch.grid) == count * size


def test_copies_are_right(interpret: Any, rng: Any) -> None:
    """A copy has zeros after its rows, which are longer than K."""
    M, N, K = 140, 72, 1000
    a, b = random(rng, (M, K), bf16), random(rng, (N, K), bf16).T
    r = request(a, b, MatmulOptions(out_dtype=kd.float32), None)
    found = routes(r.problem, r.left, r.right, r.family, target_named("sm_90a"))
    copied = next(x for _, x in sorted(found, key=lambda pair: pair[0]) if x.kernel == "fast" and all(x.packings))
    made = plan_by(r, copied, 132).run(a, [b], [], None, None, interpret)
    assert relative(made, a.astype(np.float64) @ b.astype(np.float64)) < 1e-5


@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
def test_copies_along_k_are_right(layout: str, interpret: Any, rng: Any) -> None:
    """wgmma reads 32 bits along K only: a copy along K spares registers the transposition of each step."""
    M, N, K = 68, 36, 100
    a, b = (
        random(rng, (K, M) if layout[0] == "T" else (M, K), f32),
        random(rng, (N, K) if layout[1] == "T" else (K, N), f32),
    )
    a, b = a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b
    r = request(a, b, MatmulOptions(precision="tf32"), None)
    found = routes(r.problem, r.left, r.right, r.family, target_named("sm_90a"))
    across = not r.left.along_k, not r.right.along_k
    copied = [x for _, x in found if x.kernel == "fast" and not (x.problem.a_transposed or not x.problem.b_transposed)]
    assert copied and all(
        p is not None and p.turned for x in copied for p, turned in zip(x.packings, across, strict=True) if turned
    )
    made = plan_by(r, copied[0], 132).run(a, [b], [], None, None, interpret)
    assert relative(made, a.astype(np.float64) @ b.astype(np.float64)) < 2e-3


@pytest.mark.parametrize(
    ("shape", "layout", "side"),
    [((20504, 1544, 11880), "TN", 1), ((792, 5320, 7992), "TN", 0), ((29944, 408, 3928), "NN", 1)],
    ids=str,
)
def test_copies_along_k_have_tiles_of_any_width(shape: Any, layout: str, side: int) -> None:
    """16 bits across K have tiles of 64, 128, 192 or 256 columns. 1544 columns make seven of 224 beside a copy along K."""
    found = routed(*shape, bf16, layout[0] == "T", layout[1] == "T")
    copy, t = found.packings[side], found.config
    assert copy is not None and copy.turned and not found.packings[1 - side]
    assert t.tile_n % 64 and t.swapped == (side == 0)


@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize("columns", [136, 101])
@pytest.mark.sampled(2)
def test_all_copies_of_16_bits_are_right(layout: str, columns: int, rng: Any) -> None:
    """Of sides that TMA reads, too, and of those that it can't; each possible pair of copies once."""
    M, N, K = 104, columns, 520
    a = random(rng, (K, M), bf16).T if layout[0] == "T" else random(rng, (M, K), bf16)
    b = random(rng, (N, K), bf16).T if layout[1] == "T" else random(rng, (K, N), bf16)
    r = request(a, b, MatmulOptions(out_dtype=f32), None)
    found = sorted(routes(r.problem, r.left, r.right, r.family, target_named("sm_90a")), key=lambda pair: pair[0])
    ways = {x.packings: x for _, x in reversed(found) if x.kernel == "fast"}
    turned = {tuple(p is not None and p.turned for p in pair) for pair in ways}
    across = not r.left.along_k, not r.right.along_k
    assert turned == set(product(*((False, True) if side else (False,) for side in across)))
    for made in ways.values():
        got = plan_by(r, made, 132).run(a, [b], [], None, None, True)
        assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 1e-5, made.packings


def test_of_groups(monkeypatch: pytest.MonkeyPatch, interpret: Any, rng: Any) -> None:
    """Grouped products copy broken rows, too, with any number of rows."""
    made: list[Any] = []
    monkeypatch.setattr(fast_costs, "BROKEN", 1000.0)  # so that small products copy
    monkeypatch.setattr(grouped_routes, "pack_kernel", lambda found: made.append(found) or pack_kernel(found))
    # kernels that were made are kept
    k = {"eager": 72, "late": 88, "random": 104}[interpret.schedule] if interpret else 120
    b = random(rng, (3, 40, k), bf16).swapaxes(1, 2)
    for rows, sizes in ((101, [50, 0, 51]), (203, [3, 100, 99])):
        a = random(rng, (rows, k), bf16)
        got = kd.library.grouped_matmul(a, b, np.int32(sizes), out_dtype=kd.float32, interpret=interpret)
        assert relative(got, grouped(a, b, np.cumsum([0, *sizes]))) < 1e-5
        assert len(made[-1]) == 2 and not any(p.turned for p in made[-1])


@pytest.mark.parametrize("dtype", [bf16, s8, kd.float32], ids=str)
def test_squares_of_blocks(dtype: Any, interpret: Any, rng: Any) -> None:
    """Four blocks share both sides, at edges of the result and of K."""
    M, N, K = 300, 200, 296 // dtype.itemsize
    config = MatmulConfig(128, 64, 128 // dtype.itemsize, 2, epilogue_n=32, cluster=2, cluster_n=2)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype).T
    more = {"precision": "tf32"} if dtype == kd.float32 else {}
    got = kd.library.matmul(a, b, config=config, interpret=interpret, **more)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert relative(got.astype(np.float64), expected) <= {bf16: 4e-3, s8: 0}.get(dtype, 1e-3)


@pytest.mark.parametrize("M", [8, 24])
@pytest.mark.parametrize("ta", [False, True])
def test_thin_sides_beside_broken_rows(M: int, ta: bool) -> None:
    """Parts of 128 bytes of broken rows across K take 1.4 of the time, if they are read from DRAM. By cp.async they don't."""
    found = routed(M, 6456, 22600, bf16, ta, False)
    t, p = found.config, found.problem
    wide = t.tile_m if found.kernel == "fast" and t.swapped else t.tile_n
    assert wide >= 128 and p.parts > 1
    even = routed(M, 6464, 22600, bf16, ta, False)
    assert even.kernel == "fast" and even.config.swapped


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.sampled(3)
def test_slender_tiles(transposed: tuple[bool, bool], turned: bool, rng: Any) -> None:
    """Sides of 17 to 32 have a tile of their own by mma.sync, so the other side is read once."""
    M, N, K = (200, 21, 328) if turned else (24, 200, 328)
    ta, tb = transposed
    a = random(rng, (K, M), bf16).T if ta else random(rng, (M, K), bf16)
    b = random(rng, (N, K), bf16).T if tb else random(rng, (K, N), bf16)
    r = request(a, b, MatmulOptions(out_dtype=kd.float32), None)
    found = routes(r.problem, r.left, r.right, r.family, target_named("sm_90a"))
    tile = (128, 32) if turned else (32, 128)
    made = next(x for _, x in found if x.kernel == "tile" and (x.config.tile_m, x.config.tile_n) == tile)
    got = plan_by(r, made, 132).run(a, [b], [], None, None, True)
    assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 1e-5
