"""Where operands meet: small ones in the union of their layouts, index arrays anew in any, one conversion for all uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import Layout
from tests.language.test_convert import random_layout
from tests.ops.harness import INTERPRET, random

Spec = kd.ShapeDtypeStruct
SHAPE = (64, 64)


def kernel_of(body: Callable[..., None], dtype: Any = kd.float32, shape: tuple[int, ...] = SHAPE) -> Any:
    return kd.kernel(body, out_type=Spec(shape, dtype), interpret=INTERPRET)


def cost(stages: Any) -> tuple[int, int]:
    """(stores to SMEM, barriers)."""
    return stages.ptx.count("st.shared"), stages.ptx.count("bar.sync")


LAYOUTS = [Layout.WG_STRIDED(SHAPE, 4), Layout.WGMMA, Layout.MMA_ACC, Layout.WGMMA_TRANSPOSED]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["strided", "wgmma", "mma", "transposed"])
def test_a_product_of_reductions_moves_nothing(layout: Any) -> None:
    """`v - r * c` costs what `(v - r) - c` does: the reductions' own exchange."""

    def product(x: Any, out: Any) -> None:
        v = kd.load(x, layout=layout)
        out[...] = v - v.max(axis=1, keepdims=True) * v.max(axis=0)[None]

    def control(x: Any, out: Any) -> None:
        v = kd.load(x, layout=layout)
        out[...] = (v - v.max(axis=1, keepdims=True)) - v.max(axis=0)[None]

    x = random(SHAPE, "float32")
    kernel = kernel_of(product)
    stages = kernel.lower(x)
    assert not stages.notes and cost(stages) <= cost(kernel_of(control).lower(x))
    wanted = x - x.max(axis=1, keepdims=True) * x.max(axis=0)[None]
    np.testing.assert_array_equal(kernel(x), wanted)


@pytest.mark.parametrize("factor_first", [False, True])
def test_a_carry_keeps_its_layout_where_its_rows_agree(factor_first: bool) -> None:
    """A factor for each row, in the layout of the rows of the carry, moves nothing, though rows fit other layouts, too."""
    whole = Layout.WG_STRIDED((8, 64), 4)

    def body(x: Any, f: Any, out: Any) -> None:
        def step(i: Any, v: Any) -> Any:
            factor = kd.load(f, i, layout=whole.reduce(1, keepdims=False))[:, None]
            v = factor * v if factor_first else v * factor
            return v + kd.load(x, layout=whole)

        out[...] = kd.fori_loop(0, 3, step, kd.layout_cast(kd.zeros((8, 64), kd.float32), whole))

    x, f = random((8, 64), "float32"), random((3, 8), "float32", seed=1)
    kernel = kernel_of(body, shape=(8, 64))
    stages = kernel.lower(x, f)
    assert not stages.notes and cost(stages) == (0, 0)
    wanted = np.zeros_like(x)
    for row in f:
        wanted = wanted * row[:, None] + x
    np.testing.assert_array_equal(kernel(x, f), wanted)


def indices(which: str) -> Callable[[Any], Any]:
    def causal(m: Any) -> Any:
        return (m.arange(64)[:, None] >= m.arange(64)[None]).astype(m.int32)

    def one_array_twice(m: Any) -> Any:
        i = m.arange(64)
        return (i[:, None] >= i[None]).astype(m.int32)

    def linear(m: Any) -> Any:
        i = m.arange(64)
        return i[:, None] * 64 + i

    def of_chains(m: Any) -> Any:
        i = m.arange(64) * 3 + 1
        return m.where(i[:, None] > i, i[None] - 7, i[:, None])

    def after_use(m: Any) -> Any:
        i = m.arange(64)
        total = i.sum()
        return i[None] + total * i[:, None]

    return locals()[which]


@pytest.mark.parametrize("which", ["causal", "one_array_twice", "linear", "of_chains", "after_use"])
def test_index_arrays_meet_without_a_barrier(which: str) -> None:
    made = indices(which)

    def body(out: Any) -> None:
        out[...] = made(kd)

    kernel = kernel_of(body, kd.int32)
    stages = kernel.lower()
    if which != "after_use":  # a sum over warps has an exchange of its own
        assert cost(stages) == (0, 0)
    assert not stages.notes
    np.testing.assert_array_equal(kernel(), made(np))


def test_index_arrays_follow_the_values_that_they_mask() -> None:
    """An index array that has a layout does not impose it on a value that would have to move."""

    def body(x: Any, out: Any) -> None:
        v = kd.load(x, layout=Layout.WGMMA)
        i = kd.broadcasted_iota(kd.int32, SHAPE, 1, layout=Layout.WG_STRIDED(SHAPE, 4))
        out[...] = kd.where(i > 3, v, 0.0)

    x = random(SHAPE, "float32")
    kernel = kernel_of(body)
    assert cost(kernel.lower(x)) == (0, 0)
    np.testing.assert_array_equal(kernel(x), np.where(np.arange(64) > 3, x, 0))


def test_a_carry_that_is_expanded_takes_the_layout_of_its_next_value() -> None:
    def body(out: Any) -> None:
        def step(_: Any, i: Any) -> Any:
            return (i[:, None] + i[None]).max(axis=1) - 50

        out[...] = kd.fori_loop(0, 3, step, kd.arange(64))

    wanted = np.arange(64)
    for _ in range(3):
        wanted = (wanted[:, None] + wanted[None]).max(axis=1) - 50
    np.testing.assert_array_equal(kernel_of(body, kd.int32, (64,))(), wanted)


@pytest.mark.parametrize("seed", range(24))
def test_random_layouts_meet(seed: int) -> None:
    """Parts of a full shape in layouts of their own: whatever the union is, every element is right."""
    rng = np.random.default_rng(seed)
    shape = [(8, 16), (5, 24), (64, 8), (3, 4, 10), (16, 3)][seed % 5]
    shapes = [tuple(n if rng.integers(2) else 1 for n in shape) for _ in range(2 + seed % 2)]
    shapes = [s if max(s) > 1 else shape for s in shapes]
    layouts = [random_layout(s, rng) if rng.integers(4) else None for s in shapes]
    full = np.broadcast_shapes(*shapes)

    def body(*refs: Any) -> None:
        *ins, out = refs
        a, *rest = [kd.load(r, layout=layout) for r, layout in zip(ins, layouts, strict=True)]
        for b in rest:
            a = a * 2.0 - b
        out[...] = a

    xs = [random(s, "float32", seed=seed + i) for i, s in enumerate(shapes)]
    wanted = xs[0]
    for b in xs[1:]:
        wanted = wanted * np.float32(2) - b
    warnings.simplefilter("ignore", RuntimeWarning)
    np.testing.assert_array_equal(kernel_of(body, shape=full)(*xs), wanted, err_msg=f"{shapes} {layouts}")


def test_one_conversion_serves_all_uses_in_a_region() -> None:
    def body(x: Any, t: Any, out: Any) -> None:
        v = kd.load(x, layout=Layout.WGMMA)
        w = kd.load(t, layout=Layout.WG_STRIDED(SHAPE, 4))
        v = v * w + (v + 1) * w

        def step(_: Any, v: Any) -> Any:
            return v * w - w  # a region of its own: once in it

        out[...] = kd.fori_loop(0, 2, step, v)

    x, t = random(SHAPE, "float32"), random(SHAPE, "float32", seed=1)
    kernel = kernel_of(body)
    stages = kernel.lower(x, t)
    assert stages.ir_text.count("convert_layout(") == len(stages.notes) == 2
    wanted = x * t + (x + 1) * t
    for _ in range(2):
        wanted = wanted * t - t
    np.testing.assert_array_equal(kernel(x, t), wanted)


ROWS = Layout(2, ((1, 32, 1),), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16)))
BATCH = Layout(3, ((2, 32, 1),), ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16)), ((0, 1), (0, 2)))


def cholesky(a: Any) -> Any:
    """The factor of matrices in the last two dimensions, columns one after the other."""
    i = kd.arange(32)
    for k in range(32):
        column = kd.sum(kd.where(i == k, a, 0.0), axis=-1)
        pivot = kd.sum(kd.where(i == k, column, 0.0), axis=-1, keepdims=True)
        column = kd.where(i >= k, column * kd.rsqrt(pivot), 0.0)
        rest = kd.where(i > k, column[..., None] * column[..., None, :], 0.0)
        a = kd.where(i == k, column[..., None], a - rest)
    return a


@pytest.mark.parametrize("layout", [ROWS, BATCH], ids=["one", "one a warp"])
@pytest.mark.sampled(2)
def test_cholesky_by_one_warp(layout: Layout) -> None:
    """32 x 32 by one warp, a row a lane, as it is written on paper: no barrier, and registers for one matrix."""
    shape = (4, 32, 32)[3 - layout.rank :]

    def body(x: Any, out: Any) -> None:
        out[...] = cholesky(kd.load(x, layout=layout))

    x = random((4, 32, 32), "float32")
    x = (x @ x.transpose(0, 2, 1) + 32 * np.eye(32, dtype=np.float32))[: shape[0] if layout.rank == 3 else 1]
    x = x.reshape(shape)
    kernel = kernel_of(body, shape=shape)
    stages = kernel.lower(x)
    assert cost(stages) == (0, 0)
    resources = stages.compile().resources
    assert resources.registers <= 60 and resources.spills == 0
    np.testing.assert_allclose(np.tril(kernel(x)), np.linalg.cholesky(x.astype(np.float64)), atol=1e-5)


def masked(a: Any) -> Any:
    """The rest of the matrix by a mask of rows and columns, whose parts are computed again in the matrix's layout."""
    i = kd.arange(32)
    rows, columns = i[:, None], i[None]
    for k in range(32):
        column = kd.sum(kd.where(columns == k, a, 0.0), axis=1)
        column = kd.where(i >= k, column * kd.rsqrt(kd.sum(kd.where(i == k, column, 0.0))), 0.0)
        rest = kd.where(columns == k, column[:, None], a)
        a = kd.where((rows > k) & (columns > k), a - column[:, None] * column[None], rest)
    return a


def into_zeros(a: Any) -> Any:
    """Columns by static indices, into a factor that starts as zeros without a layout."""
    i = kd.arange(32)
    factor = kd.zeros((32, 32), kd.float32)
    for k in range(32):
        column = kd.where(i >= k, a[:, k] * kd.rsqrt(a[k, k]), 0.0)
        factor = kd.where(i[None] == k, column[:, None], factor)
        a = a - column[:, None] * column[None]
    return factor


def by_loop(a: Any) -> Any:
    """The matrix as a loop's carry, which keeps its layout."""
    i = kd.arange(32)

    def step(k: Any, a: Any) -> Any:
        column = kd.sum(kd.where(i[None] == k, a, 0.0), axis=1)
        column = kd.where(i >= k, column * kd.rsqrt(kd.sum(kd.where(i == k, column, 0.0))), 0.0)
        rest = kd.where(i[None] > k, a - column[:, None] * column[None], a)
        return kd.where(i[None] == k, column[:, None], rest)

    return kd.fori_loop(0, 32, step, a)


@pytest.mark.parametrize(("function", "registers"), [(masked, 60), (into_zeros, 60), (by_loop, 72)])
def test_cholesky_in_other_words(function: Any, registers: int) -> None:
    """No word of the algorithm takes the matrix away from its warp."""
    x = random((32, 32), "float32")
    x = x @ x.T + 32 * np.eye(32, dtype=np.float32)
    kernel = kernel_of(lambda x, out: out.__setitem__(..., function(kd.load(x, layout=ROWS))), shape=(32, 32))
    stages = kernel.lower(x)
    assert cost(stages) == (0, 0)
    assert stages.compile().resources.registers <= registers
    np.testing.assert_allclose(np.tril(kernel(x)), np.linalg.cholesky(x.astype(np.float64)), atol=1e-5)


def any_words(seed: int) -> tuple[Callable[[Any], Any], int]:
    """A Cholesky factor in words drawn by `seed`: masks, the update, and whether the factor is kept apart; and the most
    registers, which are more where all columns are updated at each step, those of the factor, too.
    """
    rng = np.random.default_rng(seed)
    pivot, root, update, kept, end = (int(n) for n in rng.integers((2, 3, 4, 4, 2)))

    def factor_of(a: Any) -> Any:
        i = kd.arange(32)
        row, column = i[:, None], i[None]
        factor = kd.zeros_like(a)
        for k in range(32):
            c = kd.sum(kd.where(column == k, a, 0.0), axis=-1)
            top = kd.sum(kd.where(i == k, c, 0.0), axis=-1, keepdims=True) if pivot else c[..., k : k + 1]
            d = kd.sqrt(top)
            c = (c * kd.rsqrt(top), c / d, kd.where(i == k, d, c / d))[root]
            c = kd.where(i >= k, c, 0.0)
            across, both = c[..., :, None], c[..., :, None] * c[..., None, :]
            if update == 0:
                rest = a - both
            elif update == 1:
                rest = a - kd.where(i > k, both, 0.0)
            elif update == 2:
                rest = kd.where((row > k) & (column > k), a - both, a)
            else:
                rest = kd.where(row > k, kd.where(column > k, a - both, a), a)
            if kept == 0:
                rest = kd.where(column == k, across, rest)
            else:
                mask = (column == k) & (row >= k) if kept == 1 else column == k
                factor = factor + kd.where(mask, across, 0.0) if kept == 3 else kd.where(mask, across, factor)
            a = rest
        made = factor if kept else a
        return kd.where(row >= column, made, 0.0) if end else made

    return factor_of, 72 if update == kept == 0 else 60


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("layout", [ROWS, BATCH], ids=["one", "one a warp"])
@pytest.mark.sampled(24)
def test_cholesky_in_any_words(layout: Layout, seed: int) -> None:
    """Masks that live long take no registers, and an open value that a mask meets keeps the matrix in its warp."""
    shape = (4, 32, 32)[3 - layout.rank :]
    function, most = any_words(seed)
    x = random((4, 32, 32), "float32")
    x = (x @ x.transpose(0, 2, 1) + 32 * np.eye(32, dtype=np.float32))[: shape[0] if layout.rank == 3 else 1].reshape(
        shape
    )
    kernel = kernel_of(lambda x, out: out.__setitem__(..., function(kd.load(x, layout=layout))), shape=shape)
    stages = kernel.lower(x)
    assert cost(stages) == (0, 0)
    resources = stages.compile().resources
    assert resources.registers <= most and resources.spills == 0
    np.testing.assert_allclose(np.tril(kernel(x)), np.linalg.cholesky(x.astype(np.float64)), atol=1e-5)


MASKS: list[Callable[[Any, Any], Any]] = [
    lambda r, c: (r + 2 * c) % 3 == 0,
    lambda r, c: ((r + c) * (r - c) + r) > 5,
    lambda r, c: (r // 5 + c) % 4 > 1,
]


@pytest.mark.parametrize("mask", MASKS)
def test_an_index_array_of_a_mask_and_of_data(mask: Callable[[Any, Any], Any]) -> None:
    """The mask takes the data's layout, even if it is too much work to compute it again and if its parts were used before."""

    def body(x: Any, out: Any) -> None:
        value, i = x[...], kd.arange(64)
        rows, columns = i[:, None], i[None]
        held = mask(rows, columns)
        out[...] = kd.where(held, value * rows, value - columns)

    x, i = random((64, 64), "float32"), np.arange(64)
    kernel = kernel_of(body, shape=(64, 64))
    assert cost(kernel.lower(x)) == (0, 0)
    rows, columns = i[:, None], i[None]
    wanted = np.where(mask(rows, columns), x * rows.astype("f4"), x - columns.astype("f4"))
    np.testing.assert_array_equal(kernel(x), wanted)


def test_gathered_rows_keep_neighbours_in_neighbouring_lanes() -> None:
    """Row numbers that have a layout do not spread the columns of a gather, nor of a scatter."""

    def body(table: Any, x: Any, out: Any) -> None:
        rows = kd.load(table, layout=Layout(1, (), ((0, 1), (0, 2), (0, 4), (0, 8), None)))
        out[rows] = kd.load(x, rows) * 2.0

    table, x = np.random.default_rng(5).permutation(16).astype(np.int32), random((16, 256), "float32")
    kernel = kernel_of(body, shape=(16, 256))
    gathers = [op for op in kernel.lower(table, x).ir.walk() if op.op_name == "gather"]
    assert [op.result.type.layout.lanes for op in gathers] == [((1, 1), (1, 2), (1, 4), (1, 8), (1, 16))]
    np.testing.assert_array_equal(kernel(table, x), 2 * x)


def test_what_all_lanes_hold_leaves_the_work_shared() -> None:
    """A few sums that every lane has meet columns: each lane computes a share, as if they had no layout."""

    def body(x: Any, out: Any) -> None:
        out[...] = kd.sum(kd.load(x, layout=Layout.WG_STRIDED((4, 32))), axis=1)[:, None] * kd.arange(32)[None]

    def splat(x: Any, out: Any) -> None:
        rows = kd.load(x, (slice(None), 0), layout=Layout.WG_SPLAT((4,)))
        out[...] = rows[:, None] / kd.arange(32).astype(kd.float32)[None]

    x = np.arange(128, dtype=np.float32).reshape(4, 32) + 1
    np.testing.assert_array_equal(kernel_of(body, shape=(4, 32))(x), x.sum(axis=1)[:, None] * np.arange(32))
    stages = kernel_of(splat, shape=(4, 32)).lower(x)
    assert [note.text.partition(": ")[2] for note in stages.notes] == ["registers alone"]
    assert [op.result.type.layout.registers for op in stages.ir.walk() if op.op_name == "div"] == [1]


def test_copies_share_the_stores_of_a_conversion() -> None:
    """Twelve registers that lanes have copies of, of which no factor of two takes all: three stores each."""

    def body(x: Any, out: Any) -> None:
        rows = kd.load(x, layout=Layout(1, ((0, 12, 2),), warps=((0, 1), None)))
        out[...] = kd.layout_cast(rows, Layout(1, ((0, 2, 1),), ((0, 2), (0, 4), (0, 8), (0, 16), None)))

    x = random((24,), "float32")
    kernel = kernel_of(body, shape=(24,))
    np.testing.assert_array_equal(kernel(x), x)
    assert kernel.lower(x).ptx.count("st.shared") == 3
