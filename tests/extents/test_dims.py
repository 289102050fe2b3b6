"""Extents that are declared by `kd.Dim`: traced integers in the body, right at every size, and one compile for all."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.text import show
from kernel_dsl.text_parser import parse

Spec = kd.ShapeDtypeStruct


def limits(stages: Any) -> list[int]:
    """How many limits each access of a kernel is masked by."""
    names = {"load": "view", "store": "view", "copy_gmem_to_smem": "src_view", "copy_smem_to_gmem": "dst_view"}
    return [len(getattr(op, names[op.op_name]).masked) for op in stages.ir.walk() if op.op_name in names]


def scaled(m: Any, k: Any = 64) -> Any:
    @kd.kernel(out_type=lambda a: a, grid=lambda a: (kd.cdiv(a.shape[0], 4),), shapes={"a": (m, k)})
    def scale(a: Any, out: Any) -> None:
        rows = kd.ds(kd.program_id(0) * 4, 4)
        out[rows] = a[rows] * a.shape[0]

    return scale


def test_an_extent_is_a_traced_integer() -> None:
    kernel = scaled(kd.Dim("M"))
    rng = np.random.default_rng(0)
    for rows in (3, 8, 17):
        x = rng.standard_normal((rows, 64)).astype(np.float32)
        np.testing.assert_array_equal(kernel(x, interpret=True), x * np.float32(rows))
    assert len(kernel.specialisations()) == 1


@pytest.mark.parametrize("made", ["of Dims", "by a function"])
def test_grids_and_outputs_by_the_larger_and_the_smaller_extent(made: str) -> None:
    m, n = kd.Dim("M"), kd.Dim("N")
    size: Any = kd.maximum(m, n) if made == "of Dims" else lambda x, y: kd.maximum(x.shape[0], y.shape[0])
    grid: Any = (size,) if made == "of Dims" else lambda x, y: (kd.minimum(size(x, y), 5),)
    out: Any = Spec((size,), kd.float32, 0) if made == "of Dims" else lambda x, y: Spec((size(x, y),), kd.float32, 0)

    @kd.kernel(out_type=out, grid=grid, shapes={"x": (m,), "y": (n,)})
    def both(x: Any, y: Any, out: Any) -> None:
        i = kd.program_id(0)
        out[i] = kd.where(i < x.shape[0], x[i], 0.0) + kd.where(i < y.shape[0], y[i], 0.0)

    rng = np.random.default_rng(5)
    for rows, others in rng.integers(1, 10, (6, 2)).tolist():
        x, y = (rng.standard_normal(count).astype(np.float32) for count in (rows, others))
        want = np.zeros(max(rows, others), np.float32)
        want[:rows] += x
        want[:others] += y
        if made != "of Dims":
            want[5:] = 0
        np.testing.assert_array_equal(both(x, y, interpret=True), want)
    assert len(both.specialisations()) == 1
    assert (kd.maximum(3, 4), kd.minimum(3, 4), repr(kd.minimum(m, 4))) == (4, 3, "min(Dim('M', min=1), 4)")


def test_the_width_of_an_index_follows_the_maximum() -> None:
    for most, bits in ((None, 64), (2**31 - 1, 32), (2**31, 64)):
        (op,) = [
            op
            for op in scaled(kd.Dim("M", max=most)).lower(Spec((8, 64), kd.float32)).ir.walk()
            if op.op_name == "extent"
        ]
        assert op.result.type.dtype.bits == bits
        assert op.result.facts.lo == 1 and op.result.facts.hi == (most or 2**48)


def test_facts_remove_masks() -> None:
    assert limits(scaled(kd.Dim("M")).lower(Spec((8, 64), kd.float32))) == [1, 1]
    assert limits(scaled(kd.Dim("M", multiple_of=4)).lower(Spec((8, 64), kd.float32))) == [0, 0]

    @kd.kernel(out_type=Spec((64,), kd.float32), shapes={"a": (kd.Dim("M", min=64),)})
    def head(a: Any, out: Any) -> None:
        out[...] = a[kd.ds(0, 64)]

    assert limits(head.lower(Spec((100,), kd.float32))) == [0, 0]


def row_sums() -> Any:
    m, k = kd.Dim("M"), kd.Dim("K", max=4096, multiple_of=32)

    @kd.kernel(out_type=Spec((m,), kd.float32), grid=(m,), shapes={"a": (m, k)})
    def row_sum(a: Any, out: Any) -> None:
        row = kd.program_id(0)

        def step(turn: Any, total: Any) -> Any:
            return total + a[row, kd.ds(turn * 32, 32)]

        out[row] = kd.fori_loop(0, a.shape[1] // 32, step, kd.zeros((32,), kd.float32)).sum()

    return row_sum


def test_a_dim_tells_its_facts() -> None:
    for given in ({}, {"min": 0, "max": 10, "multiple_of": 4}, {"min": 3}):
        dim, facts = kd.Dim("M", **given), {"min": 1, "max": None, "multiple_of": 1} | given
        assert {name: getattr(dim, name) for name in facts} == facts and dim.name == "M"


@pytest.mark.parametrize("dtype", [kd.int4, kd.uint4, kd.float4_e2m1fn], ids=str)
def test_dims_of_4_bit_elements(dtype: Any) -> None:
    """Along the last axis two share a byte, and a launch tells bytes: no Dim may be there, of an input or an output."""
    m, n, fits, wide = kd.Dim("M", min=0), kd.Dim("N", multiple_of=8), (kd.Dim("M", min=0), None), kd.int32
    for shapes, made in (({"x": fits}, dtype), ({"x": fits, "out": fits}, dtype), ({"x": (m, 24)}, wide)):

        @kd.kernel(out_type=lambda x, made=made: Spec(x.shape, made), grid=lambda x: (x.shape[0],), shapes=shapes)
        def copy(x: Any, out: Any) -> None:
            here = kd.program_id(0), kd.ds(0, 32)
            out[here] = x[here] if out.dtype == x.dtype else x[here].astype(kd.int32)

        for rows in (3, 0, 5):
            x = (np.arange(rows * 24).reshape(rows, 24) % 7).astype(np.float32).astype(dtype.numpy)
            got = copy(x, interpret=True)
            np.testing.assert_array_equal(got.astype(np.float32), x.astype(np.float32))
        assert len(copy.specialisations()) == 1
    x = np.zeros((3, 24), dtype.numpy)
    for shapes, taken in (({"x": (m, n)}, x), ({"out": (m, n)}, x), ({"x": (m, n), "out": (m, n)}, x.astype(np.int32))):
        kernel = kd.kernel(lambda x, out: None, out_type=lambda x: Spec(x.shape, dtype), grid=(1,), shapes=shapes)
        with pytest.raises(kd.Error, match=r"the last axis of '(x|out)' is N, of 4-bit elements"):
            kernel(taken, interpret=True)


def test_dims_at_other_axes_of_lower() -> None:
    m, n = kd.Dim("M"), kd.Dim("N")
    kernel = kd.kernel(lambda x, out: None, out_type=lambda x: x, grid=(1,), shapes={"x": (m, n)})
    for shape in ((m, n), (m, 5), (7, n)):
        assert kernel.lower(Spec(shape, kd.float32)).ptx
    for shape in ((n, m), (m, m), (n, 5)):
        with pytest.raises(kd.Error, match=r"axis \d of 'x' is [MN], and `shapes` says [MN]"):
            kernel.lower(Spec(shape, kd.float32))


@pytest.mark.parametrize("shape", [(4, 0), (0, 8), (0, 0)], ids=str)
def test_a_tma_copy_of_nothing_says_so(shape: tuple[int, int]) -> None:
    """A driver makes no descriptor of an array without elements."""
    m, n = kd.Dim("M", min=0), kd.Dim("N", min=0, multiple_of=4)

    @kd.kernel(
        out_type=Spec((8, 32), kd.float32),
        grid=(1,),
        shapes={"x": (m, n)},
        scratch_types=(kd.SMEM((8, 32), kd.float32), kd.Barrier()),
    )
    def copy(x: Any, out: Any, tile: Any, loaded: Any) -> None:
        kd.copy_gmem_to_smem(x.at[kd.ds(0, 8), kd.ds(0, 32)], tile, loaded)
        kd.barrier_wait(loaded)
        out[...] = tile[...]

    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(copy(x, interpret=True)[:3, :4], x)
    with pytest.raises(kd.HazardError, match="one of an array without elements") as caught:
        copy(np.ones(shape, np.float32), interpret=True)
    assert "copy only where no extent is 0" in str(caught.value)


def test_loops_outputs_and_grids_by_dims() -> None:
    kernel = row_sums()
    rng = np.random.default_rng(1)
    for shape in ((3, 64), (8, 32), (5, 128)):
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(kernel(x, interpret=True), x.sum(1), rtol=1e-5, atol=1e-5)
    assert len(kernel.specialisations()) == 1
    stages = kernel.lower(Spec((17, 64), kd.float32))
    assert limits(stages) == [0, 0]
    assert show(parse(stages.ir_text)) == stages.ir_text


def test_stages_name_extents_in_words() -> None:
    """What is printed has the Dims' names, or an array's axis, in place of the records that the key has."""

    def plain(x: Any, out: Any) -> None:
        row = kd.program_id(0)
        out[row] = x[row] * 2.0

    spec = Spec((16, 32), kd.float32)
    unread = kd.kernel(plain, out_type=lambda x: x, grid=lambda x: (x.shape[0],)).lower(spec)
    named = row_sums().lower(Spec((17, 64), kd.float32))
    for stages, words in ((unread, ("extent 0 of array 0", "grid axis 0")), (named, ("(M, K)", "(M)", "grid axis 0"))):
        assert all(word in str(stages) for word in words), str(stages)
        assert not re.search(r"Extent\(|GridSize\(|Top\(", str(stages)), str(stages)
        assert "Extent(" in stages.ir_text and show(parse(stages.ir_text)) == stages.ir_text


def test_a_grid_of_one_less() -> None:
    """Each of the differences of neighbours has a block."""
    rows = kd.Dim("M", min=2)

    def body(x: Any, out: Any) -> None:
        i = kd.program_id(0)
        out[i] = x[i + 1] - x[i]

    less = kd.ShapeDtypeStruct((rows - 1,), kd.float32)
    kernel = kd.kernel(body, out_type=less, grid=(rows - 1,), shapes={"x": (rows,)})
    for n in (2, 5, 9):
        x = np.arange(n, dtype=np.float32) ** 2
        np.testing.assert_array_equal(kernel(x, interpret=True), np.diff(x))
    assert len(kernel.specialisations()) == 1


def product(pipeline: bool, m: Any, k: Any, n: Any, dims: bool = True) -> Any:
    """a @ b by tiles of 64; with a pipeline of TMA copies, or by loads."""

    def body(a: Any, b: Any, out: Any) -> None:
        i, j = kd.axis_index("i"), kd.axis_index("j")

        def step(turn: Any, total: Any) -> Any:
            part = kd.ds(turn * 64, 64)
            return total + kd.dot(a[kd.ds(i * 64, 64), part], b[part, kd.ds(j * 64, 64)])

        zero, steps = kd.zeros((64, 64), kd.float32), a.shape[1] // 64
        if pipeline:
            total = kd.emit_pipeline(
                lambda _, left, right, total: total + kd.dot(left[...], right[...]),
                grid=(steps,),
                in_specs=[kd.BlockSpec((64, 64), lambda k: (i, k)), kd.BlockSpec((64, 64), lambda k: (k, j))],
                max_concurrent_steps=2,
                init_carry=zero,
            )(a, b)
        else:
            total = kd.fori_loop(0, steps, step, zero)
        out[kd.ds(i * 64, 64), kd.ds(j * 64, 64)] = total

    return kd.kernel(
        body,
        out_type=lambda a, b: Spec((a.shape[0], b.shape[1]), kd.float32),
        grid=lambda a, b: (kd.cdiv(a.shape[0], 64), b.shape[1] // 64),
        grid_names=("i", "j"),
        shapes={0: (m, k), 1: (k, n), "out": (m, n)} if dims else None,
    )


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_matmul_of_every_size(pipeline: bool) -> None:
    m, k, n = kd.Dim("M", max=2**20), kd.Dim("K", multiple_of=64), kd.Dim("N", multiple_of=64)
    kernel, exact = product(pipeline, m, k, n), product(pipeline, 0, 0, 0, dims=False)
    rng = np.random.default_rng(2)
    for rows, depth, columns in ((70, 128, 64), (5, 64, 128)):
        a = rng.standard_normal((rows, depth)).astype(np.float16)
        b = rng.standard_normal((depth, columns)).astype(np.float16)
        found = kernel(a, b, interpret=True)
        np.testing.assert_array_equal(found, exact(a, b, interpret=True))
        np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-2)
    assert len(kernel.specialisations()) == 1 and len(exact.specialisations()) == 2


def test_specialise_compiles_for_each_value() -> None:
    m, n = kd.Dim("M"), kd.Dim("N")
    seen: list[Any] = []

    @kd.kernel(out_type=lambda a: Spec(a.shape[1:], a.dtype), shapes={"a": (m, n)})
    def column_sums(a: Any, out: Any) -> None:
        columns = kd.specialise(a.shape[1])
        seen.append((columns, a.shape[1], kd.specialise(n) + 1))
        zero = kd.zeros((columns,), kd.float32)
        out[...] = kd.fori_loop(0, a.shape[0], lambda i, total: total + a[i], zero)

    for shape, compiles in (((3, 8), 1), ((5, 8), 1), ((5, 16), 2), ((2, 8), 2)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(column_sums(x, interpret=True), x.sum(0))
        assert len(column_sums.specialisations()) == compiles
    assert seen == [(8, 8, 9), (16, 16, 17)]


def test_functions_of_shapes_see_ints_in_a_call_and_dims_in_lower() -> None:
    m = kd.Dim("M", multiple_of=8)
    seen: list[Any] = []

    def grid(a: Any) -> Any:
        seen.append(a.shape[0])
        return (a.shape[0] // 8,)

    @kd.kernel(out_type=lambda a: a, grid=grid, shapes={"a": (m,)})
    def double(a: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 8, 8)
        out[part] = a[part] * 2

    x = np.arange(24, dtype=np.float32)
    double(x, interpret=True)
    assert seen[0] == 24 and type(seen[0]) is int
    seen.clear()
    stages = double.lower(Spec((m,), kd.float32))
    assert all(n is m for n in seen) and seen
    assert stages.ptx == double.lower(Spec((64,), kd.float32)).ptx


def test_outputs_and_grids_depend_on_values_of_scalars() -> None:
    @kd.kernel(out_type=lambda x, n: Spec((n,), x.dtype), grid=lambda x, n: (kd.cdiv(n, 8),))
    def repeated(x: Any, n: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 8, 8)
        out[part] = kd.full((8,), (x[0] + n).astype(kd.int32))

    x = np.ones(4, np.int32)
    for n in (5, 24, 5, np.int64(3)):
        np.testing.assert_array_equal(repeated(x, n, interpret=True), np.full(int(n), n + 1))
    assert len(repeated.specialisations()) == 2  # int32 and int64


@pytest.mark.parametrize(
    ("x", "word"),
    [(np.int32(-1), r"\(-1,\) has a negative extent"), (np.float32(2.5), r"\(2.5,\) is not made of ints")],
)
def test_an_output_by_a_scalar_that_is_no_extent_shows_its_value(x: Any, word: str) -> None:
    kernel = kd.kernel(lambda n, out: None, out_type=lambda n: Spec((n,), kd.float32), grid=(1,))
    with pytest.raises(kd.Error, match=word):
        kernel(x, interpret=True)


def test_a_grid_of_a_scalar_itself_compiles_once() -> None:
    """As of an expression of it: no size of the grid is a constant of the code."""

    @kd.kernel(out_type=lambda x, n: Spec((n, x.shape[0]), x.dtype), grid=lambda x, n: (n, x.shape[0]))
    def rows(x: Any, n: Any, out: Any) -> None:
        i, j = kd.program_id(0), kd.program_id(1)
        out[i, j] = x[j] + n * i

    x = np.arange(8, dtype=np.int32)
    for n, size in ((1, 4), (3, 4), (7, 8), (2, 1)):
        np.testing.assert_array_equal(rows(x[:size], n, interpret=True), x[:size] + n * np.arange(n)[:, None])
    assert len(rows.specialisations()) == 1


def test_notes_say_which_fact_removes_a_mask() -> None:
    """What a note asks for is enough: with it the mask is gone, and so is the note."""

    def kernel(m: Any) -> Any:
        @kd.kernel(out_type=lambda a: a, grid=lambda a: (kd.cdiv(a.shape[0], 24),), shapes={"a": (m,)})
        def copy(a: Any, out: Any) -> None:
            part = kd.ds(kd.program_id(0) * 24, 24)
            out[part] = a[part] + a[8]

        return copy.lower(Spec((48,), kd.float32))

    notes = [note.text for note in kernel(kd.Dim("M")).notes]
    assert len(notes) == 3 and sum('kd.Dim("M", multiple_of=24)' in n for n in notes) == 2
    assert any('kd.Dim("M", min=9)' in n for n in notes)
    assert [len(kernel(kd.Dim("M", multiple_of=24)).notes), len(kernel(kd.Dim("M", min=9)).notes)] == [0, 2]


def test_graphs_give_dims_their_values() -> None:
    """A Dim that no input has is a variable of the graph; one that an input has is compiled for once."""
    n, m = kd.Dim("N", max=64, multiple_of=8), kd.Dim("M")

    @kd.kernel(out_type=Spec((n,), kd.float32), grid=(n // 8,), shapes={"out": (n,)})
    def ramp(out: Any) -> None:
        start = kd.program_id(0) * 8
        out[kd.ds(start, 8)] = (kd.arange(8) + start).astype(kd.float32) + out.shape[0]

    @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 16),), shapes={"x": (m,)})
    def scale(x: Any, out: Any) -> None:
        part = kd.ds(kd.program_id(0) * 16, 16)
        out[part] = x[part] * x.shape[0]

    with kd.Graph() as graph:
        result = scale(ramp(interpret=True), interpret=True)
    graph.outputs = result
    for size in (8, 40, 64):
        found = np.asarray(graph(N=size))[:size]
        np.testing.assert_array_equal(found, (np.arange(size, dtype=np.float32) + size) * size)
    with pytest.raises(kd.Error, match="multiple of 8"):
        graph(N=12)
    assert len(ramp.specialisations()) == len(scale.specialisations()) == 1


def test_a_grid_that_compares_dims_in_a_graph() -> None:
    """A kernel that a graph's recording compiles keeps its Dims to itself."""

    @kd.kernel(
        out_type=lambda x: x, grid=lambda x: (max(min(kd.cdiv(x.shape[0], 2), 4), 1),), shapes={"x": (kd.Dim("M"), 64)}
    )
    def rows(x: Any, out: Any) -> None:
        first, blocks = kd.program_id(0), kd.num_programs(0)

        @kd.loop(0, (x.shape[0] - first + blocks - 1) // blocks)
        def _(step: Any) -> None:
            out[first + step * blocks] = x[first + step * blocks] * 2.0

    x = np.arange(7 * 64, dtype=np.float32).reshape(7, 64)
    with kd.Graph() as graph:
        graph.outputs = rows(x, interpret=True)
    np.testing.assert_array_equal(np.asarray(graph()), x * 2)


def test_vmap_and_arrays_of_other_orders() -> None:
    kernel = scaled(kd.Dim("M"))
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 5, 64)).astype(np.float32)
    np.testing.assert_array_equal(kd.vmap(kernel)(x, interpret=True), x * np.float32(5))
    gaps = rng.standard_normal((9, 128)).astype(np.float32)[::3, ::2]
    np.testing.assert_array_equal(kernel(gaps, interpret=True), gaps * np.float32(3))
    assert len(kernel.specialisations()) == 1  # of arrays with gaps


def test_a_shape_is_a_nest_of_values() -> None:
    """As the carry of a loop and as the result of branches."""

    def body(x: Any, out: Any) -> None:
        rows, columns = kd.fori_loop(0, 3, lambda _, shape: (shape[0] + 1, shape[1]), x.shape)
        more, _ = kd.cond(x[0, 0] > 0, lambda: x.shape, lambda: (kd.int64(0), 0))
        for place, value in enumerate((rows, columns, more)):
            out[place] = kd.astype(value, kd.int32)

    kernel = kd.kernel(body, out_type=Spec((3,), kd.int32), shapes={"x": (kd.Dim("M"), 16)}, interpret=True)
    for rows in (1, 5):
        assert kernel(np.ones((rows, 16), np.float32)).tolist() == [rows + 3, 16, rows]
    assert len(kernel.specialisations()) == 1


STATIC: dict[str, Any] = {
    "a stop": lambda x, v, n: x[:n],
    "a start": lambda x, v, n: x.at[n:],
    "a step": lambda x, v, n: x[:, ::n],
    "a slice of a value": lambda x, v, n: v[:n],
    "a slice of a static axis": lambda x, v, n: x[:, :n],
    "a size": lambda x, v, n: kd.ds(0, n),
    "a bound": lambda x, v, n: kd.arange(n),
    "a shape": lambda x, v, n: kd.zeros((n, 2)),
    "a reshape": lambda x, v, n: v.reshape(n, -1),
    "a broadcast": lambda x, v, n: kd.broadcast_to(v[0], (n, 16)),
    "a padding": lambda x, v, n: kd.pad(v, n),
    "a count": lambda x, v, n: kd.top_k(v, n),
    "random numbers": lambda x, v, n: kd.random.bits(1, (n,)),
    "a block": lambda x, v, n: kd.BlockSpec((n, 16)),
    "an element": lambda x, v, n: kd.Element(n),
    "scratch": lambda x, v, n: kd.SMEM((n,), kd.float32),
    "a layout": lambda x, v, n: kd.Layout.WG_STRIDED((n, 16), 4),
    "an unrolling": lambda x, v, n: kd.fori_loop(0, 2, lambda _, c: c, 0, unroll=n),
    "a loop of Python": lambda x, v, n: list(range(n)),
    "an index of Python": lambda x, v, n: [1, 2][n],
    "a condition": lambda x, v, n: 1 if n > 3 else 2,
    "an int": lambda x, v, n: int(n),
    "a float": lambda x, v, n: float(n),
    "a text": lambda x, v, n: f"{n:d}",
}


@pytest.mark.parametrize("use", STATIC)
def test_where_an_int_is_needed_the_error_names_specialise(use: str) -> None:
    """`kd.specialise` is the way out wherever a body needs the int of an extent that is a Dim."""

    def body(x: Any, out: Any) -> None:
        STATIC[use](x, x[kd.ds(0, 8)], x.shape[0] // 2)

    kernel = kd.kernel(body, out_type=Spec((4,), kd.float32), shapes={"x": (kd.Dim("M"), 16)})
    with pytest.raises(kd.Error, match=r"kd\.specialise"):
        kernel.lower(Spec((8, 16), kd.float32))


@pytest.mark.parametrize("use", [use for use in STATIC if use not in ("scratch", "a text")])
def test_a_dim_itself_is_no_extent_of_an_array(use: str) -> None:
    """In a body, the `kd.Dim` in the place of an array's extent is an error of the user's, which says what to write."""
    m = kd.Dim("M")
    kernel = kd.kernel(
        lambda x, out: STATIC[use](x, x[kd.ds(0, 8)], m), out_type=Spec((4,), kd.float32), shapes={"x": (m, 16)}
    )
    with pytest.raises(kd.Error, match=r"x\.shape\[0\]|give a static int"):
        kernel.lower(Spec((8, 16), kd.float32))


def test_a_dim_beside_an_extent_says_what_to_write() -> None:
    m = kd.Dim("M")
    kernel = kd.kernel(lambda x, out: m + x.shape[0], out_type=Spec((4,), kd.float32), shapes={"x": (m,)})
    with pytest.raises(kd.Error, match=r"x\.shape\[0\]"):
        kernel.lower(Spec((8,), kd.float32))


DIM = kd.Dim("M")


@pytest.mark.parametrize(
    ("x", "y", "word"), [("3", DIM, "x='3'"), (DIM, "3", "y='3'"), (DIM, 0, "y=0"), (True, DIM, "x=True")]
)
def test_a_quotient_of_a_dim_and_what_is_no_int(x: Any, y: Any, word: str) -> None:
    with pytest.raises(kd.Error, match=word) as caught:
        kd.cdiv(x, y)
    assert caught.value.loc.file == __file__


@pytest.mark.parametrize(("declared", "compiles"), [(False, 3), (True, 1)])
def test_an_output_of_arithmetic_compiles_once_by_a_dim_of_its_own(declared: bool, compiles: int) -> None:
    """Else for each power of two, up to the width of an access, that divides it."""
    m, n = kd.Dim("M"), kd.Dim("N")
    shapes = {"x": (m, n)} | ({"out": (m, kd.Dim("O"))} if declared else {})

    @kd.kernel(out_type=Spec((m, n + 1), kd.float32), grid=(m, kd.cdiv(n, 64)), shapes=shapes)
    def copied(x: Any, out: Any) -> None:
        columns = kd.ds(kd.program_id(1) * 64, 64)
        out[kd.program_id(0), columns] = x[kd.program_id(0), columns]

    for size in (7, 8, 64, 65, 2, 100):
        x = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        np.testing.assert_array_equal(copied(x, interpret=True)[:, :size], x)
    assert len(copied.specialisations()) == compiles
