"""Shapes and grids of variables: one recording serves every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import VariableUse

from .kernels import Kernel, device
from .symbolic_programs import check, compute, shape_of

S = kd.ShapeDtypeStruct


def fake_kernel(dev: Any) -> Any:
    def call(kind: str, extents: Any, x: Any, scalar: Any, out: Any) -> Any:
        def body(x, out, *scalars):
            compute(kind, x, scalars[0] if scalars else None, out)

        body.__name__ = kind
        kernel = Kernel(
            dev,
            body,
            lambda arrays: [(shape_of(kind, extents, arrays[0].shape), np.int32)],
            scalars=int(scalar is not None),
        )
        return kernel(x, *([] if scalar is None else [scalar]), out=out)

    return call


def test_random_programs_beside_numpy() -> None:
    for seed in range(60):
        check(seed, fake_kernel(device()), lambda v: v, lambda a: a)


@pytest.mark.slow
def test_many_random_programs_beside_numpy() -> None:
    for seed in range(60, 2000):
        check(seed, fake_kernel(device()), lambda v: v, lambda a: a, nested=bool(seed % 2))


def test_random_programs_in_another_graph() -> None:
    for seed in range(40):
        check(seed, fake_kernel(device()), lambda v: v, lambda a: a, nested=True)


def test_an_extent_that_grows_where_a_variable_falls_is_refused() -> None:
    a = kd.Variable("a", 1, 6)
    x = np.arange(8, dtype=np.int32)
    with kd.Graph() as g:
        fake_kernel(device())("make", (7 - a,), x, None, None)
    assert g(a=6).shape == (1,)
    with pytest.raises(kd.Error, match="does not fit the int32"):
        g(a=3)


# --- traced kernels -------------------------------------------------------------------------------


def traced_kernel(interpret: Any) -> Any:
    def body(kind: str):
        def run(x, *rest):
            out = rest[-1]
            if kind == "make":
                out[...] = kd.arange(out.size).reshape(out.shape) * 3 + x[0]
            elif kind == "shift":
                out[...] = x[...] + rest[0]
            elif kind == "turn":
                out[...] = x[...].T
            elif kind == "flat":
                out[...] = x[...].reshape(-1)
            elif kind == "twice":
                out[...] = kd.concatenate([x[...], x[...] + 1])
            elif kind == "total":
                out[...] = x[...].sum(axis=0)
            elif kind == "rows":
                out[...] = x[...] + kd.broadcasted_iota(kd.int32, x.shape, 0)
            else:
                out[...] = x[...] * 2 - 1

        return run

    def call(kind: str, extents: Any, x: Any, scalar: Any, out: Any) -> Any:
        def out_type(x, *scalars):
            return S(shape_of(kind, extents, x.shape), kd.int32)

        scalars = [] if scalar is None else [scalar]
        return kd.kernel(body(kind), out_type=out_type, name=kind, interpret=interpret)(x, *scalars, out=out)

    return call


def test_random_programs_of_traced_kernels() -> None:
    for seed in range(5):
        check(seed, traced_kernel(True), lambda v: v, lambda a: a, nested=bool(seed % 2))


@pytest.mark.slow
def test_many_random_programs_of_traced_kernels() -> None:
    for seed in range(5, 120):
        check(seed, traced_kernel(True), lambda v: v, lambda a: a, nested=bool(seed % 2))


@pytest.mark.gpu
def test_random_programs_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    for seed in range(40):
        check(
            seed,
            traced_kernel(None),
            lambda v: torch.from_numpy(v).cuda(),
            lambda a: a.cpu().numpy(),
            nested=bool(seed % 2),
        )


@pytest.mark.gpu
def test_random_programs_on_a_gpu_with_arrays_of_the_host() -> None:
    for seed in range(12):
        check(seed, traced_kernel(False), lambda v: v, lambda a: a, nested=bool(seed % 2))


X = np.arange(1024, dtype=np.float32)
N = kd.Variable("n", 1, 8)
GRIDS: list[tuple[Any, int, Any]] = [
    ((N,), 1, lambda n: n), (N, 1, lambda n: n), ([N * 2 // 2], 1, lambda n: n), ((kd.cdiv(N, 1),), 1, lambda n: n),
    (lambda x: (N,), 1, lambda n: n), (lambda x: N, 1, lambda n: n), (lambda x: [8 - N + 1], 1, lambda n: 9 - n),
    (lambda x: (kd.cdiv(N * 128, x.shape[0] // 8),), 1, lambda n: n), (lambda x: (int(N),), 1, lambda n: n),
    (lambda x: (kd.cdiv(N, 3), 2), 2, lambda n: 2 * -(-n // 3)), ((1, N, 1), 3, lambda n: n), (lambda x: (min(N, 5), 1), 2, lambda n: min(n, 5)),
    ((N - 1,), 1, lambda n: n - 1),
]  # fmt: skip


@pytest.mark.parametrize("interpret", [True, pytest.param(False, marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("grid", "rank", "blocks"), GRIDS)
def test_grids_that_are_variables_or_functions_of_them(grid: Any, rank: int, blocks: Any, interpret: bool) -> None:
    def body(x, out):
        index: Any = 0
        for axis in range(rank):
            index = index * kd.num_programs(axis) + kd.program_id(axis)
        at = kd.ds(index * 128, 128)
        out[at] = x[at] * 2

    kernel = kd.kernel(body, out_type=lambda x: x, grid=grid, interpret=interpret)
    out = np.zeros_like(X)
    with kd.Graph() as g:
        kernel(X, out=out)
    for n in (8, 3, 5, 2, 3, 1):
        out[...] = 0
        if not blocks(n):  # an empty grid is no step of a graph that was recorded with one
            with pytest.raises(kd.Error, match="does other launches"):
                g(n=n)
            continue
        g(n=n)
        np.testing.assert_array_equal(out, np.where(np.arange(1024) < 128 * blocks(n), X * 2, 0))
        assert np.prod(g.nodes[0].grid) == blocks(n)


@pytest.mark.parametrize("interpret", [True, pytest.param(False, marks=pytest.mark.gpu)])
def test_shapes_may_be_said_before_there_is_a_graph(interpret: bool) -> None:
    def body(x, out, pair, tile):
        tile[...] = x[: tile.shape[0]]
        out[...] = tile[...].reshape(out.shape)
        pair[0][...] = kd.sum(tile[...])

    kernel = kd.kernel(
        body,
        out_type=(S((N, 4), kd.float32), [S((), kd.float32, init=0)]),
        scratch_types=[kd.SMEM((N * 4,), kd.float32)],
        interpret=interpret,
    )
    with kd.Graph() as g:
        kernel(X)
    for n in (8, 1, 5):
        out, total = g(n=n)
        np.testing.assert_array_equal(out, X[: 4 * n].reshape(n, 4))
        assert total == X[: 4 * n].sum()


def test_structs_of_variables() -> None:
    struct = S((N, 4), kd.float32)
    assert (
        struct == S((N, 4), kd.float32)
        and hash(struct) == hash(S((N, 4), kd.float32))
        and struct != S((3, 4), kd.float32)
    )
    assert "Variable('n', 1, 8)" in repr(struct) and struct.ndim == 2
    kernel = kd.kernel(lambda x, out: None, out_type=struct)
    for act in (
        lambda: kernel(X),
        lambda: kernel.lower(X),
        lambda: kernel.bind(X),
        lambda: kernel(X, out=np.zeros((3, 4), np.float32)),
    ):
        with pytest.raises(VariableUse, match="has no value here"):
            act()
    with pytest.raises(VariableUse):
        kd.kernel(lambda x, out: None, out_type=lambda x: x).lower(struct)


@pytest.mark.parametrize("interpret", [True, pytest.param(False, marks=pytest.mark.gpu)])
def test_what_a_body_asks_for_picks_its_code(interpret: bool) -> None:
    """Each call of the same kernel is made again, also one whose trace was found."""

    def body(x, out):
        for i in range(N):
            out[i] = x[i] + int(N)

    kernel = kd.kernel(body, out_type=lambda x: x, interpret=interpret)
    one, other = np.zeros(8, np.float32), np.zeros(8, np.float32)
    x = X[:8]
    with kd.Graph() as g:
        kernel(x, out=one)
        kernel(x, out=other)
    for n in (8, 3, 8, 5, 3):
        one[...] = other[...] = 0
        g(n=n)
        for out in (one, other):
            np.testing.assert_array_equal(out, np.where(np.arange(8) < n, x + n, 0))


def test_a_body_that_asks_for_more_on_one_way() -> None:
    m = kd.Variable("m", 0, 4)

    def body(x, out):
        out[...] = x[...] + (int(m) if int(N) > 4 else 100)

    kernel = kd.kernel(body, out_type=lambda x: x, interpret=True)
    with kd.Graph() as g:
        kernel(X)
    for n, k in ((8, 4), (8, 1), (2, 1), (2, 3), (7, 3), (8, 4), (2, 3)):
        np.testing.assert_array_equal(g(n=n, m=k), X + (k if n > 4 else 100))


def test_a_graph_in_a_graph_gives_arrays_of_their_shape() -> None:
    rows = kd.kernel(
        lambda x, out: out.__setitem__(..., x[: out.size].reshape(out.shape)),
        out_type=S((4, N), kd.float32),
        interpret=True,
    )
    double = kd.kernel(lambda x, out: out.__setitem__(..., x[...] * 2), out_type=lambda x: x, interpret=True)
    with kd.Graph() as inner:
        double(rows(X))
    m = kd.Variable("m", 1, 4)
    with kd.Graph() as middle:
        double(inner(n=m * 2))
    with kd.Graph() as outer:
        double(middle(m=N // 2 + 0))
    for n in (8, 2, 7):
        got = outer(n=n)
        columns = n // 2 * 2
        np.testing.assert_array_equal(got, X[: 4 * columns].reshape(4, columns) * 8)


def test_what_a_replay_returns_is_made_again_for_another_shape_alone() -> None:
    rows = kd.kernel(
        lambda x, s, out: out.__setitem__(..., x[: out.size].reshape(out.shape) * s),
        out_type=lambda x, s: S((4, N), kd.float32),
        interpret=True,
    )
    s = kd.Variable("s", 1, 9)
    with kd.Graph() as g:
        g.outputs = {"rows": rows(X, s)}
    with kd.Graph() as h:
        pair = rows(X, s), rows(X, s)
    assert len(pair) == 2
    first = h(n=3, s=2)
    assert h(n=3, s=5) is first and h(n=4, s=5) is not first
    for n, factor in ((3, 2), (3, 4), (5, 4), (3, 4), (3, 1)):
        np.testing.assert_array_equal(g(n=n, s=factor)["rows"], X[: 4 * n].reshape(4, n) * factor)
        for got in h(n=n, s=factor):
            np.testing.assert_array_equal(got, X[: 4 * n].reshape(4, n) * factor)


def test_custom_kernels_have_outputs_of_their_shape() -> None:
    from kernel_dsl.runtime.custom import nvrtc

    if nvrtc.unavailable():
        pytest.skip(nvrtc.unavailable())
    fill = kd.cuda_kernel(
        "fill", ["x"], ["out"], "int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = x[i];", exact_grid=True
    )
    double = kd.kernel(lambda x, out: out.__setitem__(..., x[...] * 2), out_type=lambda x: x, interpret=True)
    with kd.Graph() as g:
        (made,) = fill(
            inputs=[X],
            output_shapes=[(3, N)],
            output_dtypes=[np.float32],
            grid=(3 * N, 1, 1),
            threadgroup=(32, 1, 1),
            interpret=True,
        )
        double(made)
    for n in (8, 3, 1):
        np.testing.assert_array_equal(g(n=n), X[: 3 * n].reshape(3, n) * 2)


def test_a_dim_of_0_names_the_kernel() -> None:
    """Its launch is recorded, and a grid of nothing has none."""
    rows = kd.Dim("rows", min=0, max=64)

    @kd.kernel(out_type=kd.ShapeDtypeStruct((rows, 8), kd.float32), grid=(rows,), shapes={"out": (rows, 8)})
    def threes(out: Any) -> None:
        out[kd.program_id(0)] = kd.full((8,), 3.0, kd.float32)

    with kd.Graph() as graph:
        threes(interpret=True)
    np.testing.assert_array_equal(graph(rows=5), np.full((5, 8), 3.0, np.float32))
    with pytest.raises(kd.Error, match=r"^\[graph\] threes does other launches for these values of \['rows'\]"):
        graph(rows=0)
