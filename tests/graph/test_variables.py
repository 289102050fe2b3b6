"""Variables of a graph, and graphs in graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import VariableUse, VariableValue
from kernel_dsl.runtime.custom.source import cuda_kernel
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.graph import Graph, Variable

from .kernels import Kernel, ints, like


def test_a_variable_in_the_arguments(add) -> None:
    k = Variable("k", -5, 100)
    a = ints()
    with Graph() as g:
        t = add(a, k)
        add(t, k * 2 + 1)
    for value in (-5, 0, 7, 100):
        np.testing.assert_array_equal(g(k=value), a + 3 * value + 1)
    b = ints()
    np.testing.assert_array_equal(g(b, k=2), b + 7)
    for wrong in (-6, 101):
        with pytest.raises(VariableValue, match="from -5 to 100"):
            g(k=wrong)
    with pytest.raises(ArgumentTypeError, match="give \\['k'\\] too"):
        g()
    with pytest.raises(ArgumentTypeError, match="no \\['n'\\]"):
        g(k=1, n=1)


def test_only_nodes_of_changed_variables_are_made_again(add, dev) -> None:
    k, m = Variable("k", 0, 9), Variable("m", 0, 9)
    a = ints()
    with Graph() as g:
        add(a, k)
        add(a, m)
        add(a, 1)
    g(k=1, m=1)
    loads = dev.loads
    g(k=1, m=1)
    assert dev.loads == loads
    g(k=2, m=1)
    assert dev.loads == loads + 1


def test_a_variable_in_the_grid(dev) -> None:
    def blocks(x, out):
        out[...] = x

    n = Variable("n", 1, 1000)
    kernel = Kernel(dev, blocks, like, grid=((n + 127) // 128, 1, 1))
    x = ints()
    with Graph() as g:
        kernel(x)
    for value, expected in ((1, 1), (128, 1), (129, 2), (1000, 8)):
        np.testing.assert_array_equal(g(n=value), x)
        assert g.nodes[0].grid == (expected, 1, 1)


@pytest.mark.parametrize("wanted", [(1, 2), (4, 3), (2, 4)])
def test_one_recording_serves_several_sizes(dev, wanted) -> None:
    """An output of the variables' size lies at the start of memory for the largest."""
    rows, columns = Variable("rows", 1, 10), Variable("columns", 1, 10)

    def outer(x, y, out, r, c):
        out[:r, :c] = np.outer(x[:r], y[:c])

    kernel = Kernel(dev, outer, [((10, 10), np.int64)], scalars=2)
    x, y = np.arange(1, 11), np.arange(11, 21)
    with Graph() as g:
        kernel(x, y, rows, columns)
    r, c = wanted
    got = g(rows=r, columns=c)
    np.testing.assert_array_equal(got[:r, :c], np.outer(x[:r], y[:c]))
    assert len(g.nodes) == 1


def test_a_variable_without_a_graph_is_an_error(add) -> None:
    k = Variable("k", 0, 5)
    with pytest.raises(VariableUse, match=r"Variable\('k', 0, 5\) has no value here"):
        int(k)
    with pytest.raises(VariableUse), Graph():
        range(k + 1)
    for bad in (("k", 5, 4), ("not a name", 0, 1), ("out", 0, 1)):
        with pytest.raises(VariableValue):
            Variable(*bad)
    with pytest.raises(ArgumentValueError, match="a graph has one Variable"), Graph():
        add(ints(), k)
        add(ints(), Variable("k", 0, 6))


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (Variable("n", 1, 4) * 8, 1, 1)},
        {"threadgroup": (Variable("n", 1, 4), 1, 1)},
        {"output_shapes": [(Variable("n", 1, 4),)]},
        {"inputs": [np.zeros(8, np.float32), Variable("n", 1, 4)]},
    ],
)
def test_a_variable_in_a_call_of_a_custom_kernel_without_a_graph(change) -> None:
    arguments = {
        "inputs": [np.zeros(8, np.float32), 2],
        "output_shapes": [(8,)],
        "output_dtypes": ["float32"],
        "grid": (8, 1, 1),
        "threadgroup": (8, 1, 1),
    }
    with pytest.raises(VariableUse, match="has no value here"):
        cuda_kernel("k", ["x", "n"], ["o"], "o[0] = x[0];")(**(arguments | change))


def test_a_variable_among_the_inputs_of_a_traced_kernel_without_a_graph() -> None:
    kernel = kd.kernel(lambda x, n, out: None, out_type=lambda x, n: x)
    with pytest.raises(VariableUse, match="has no value here"):
        kernel(np.zeros(8, np.float32), Variable("n", 1, 4))


def test_a_range_of_integers() -> None:
    for lo, hi in ((0.5, 2), (0, "3"), (None, None)):
        with pytest.raises(VariableValue, match="stands for an integer"):
            Variable("n", lo, hi)


def test_arithmetic_of_variables() -> None:
    k = Variable("k", 1, 50)
    values = {"k": 17}
    for expression, expected in [
        (k + 1, 18), (1 + k, 18), (k - 3, 14), (3 - k, -14), (k * 2, 34), (2 * k, 34),
        (k // 4, 4), (100 // k, 5), (k % 5, 2), (100 % k, 15), (-k, -17), (-(-k // 4), 5),
    ]:  # fmt: skip
        assert expression.evaluate(values) == expected, expression


# --- graphs in graphs -----------------------------------------------------------------------------


def test_a_graph_in_a_graph(double, xor, dev) -> None:
    a, b = ints(), ints()
    with Graph() as inner:
        t = double(a)
        xor(t, b)
    with Graph() as outer:
        p = inner(a, b)
        q = inner(p, a)
        xor(p, q)
    assert len(outer.nodes) == 5

    def f(x, y):
        return (x * 2) ^ y

    for _ in range(2):
        np.testing.assert_array_equal(outer(), f(a, b) ^ f(f(a, b), a))
        c, d = ints(), ints()
        np.testing.assert_array_equal(outer(c, d), f(c, d) ^ f(f(c, d), c))
        np.testing.assert_array_equal(inner(c, d), f(c, d))


def test_a_nested_graph_with_out_and_variables(add, double) -> None:
    k = Variable("k", 0, 100)
    a = ints()
    with Graph() as inner:
        add(double(a), k)
    m = Variable("m", 0, 10)
    mine = np.empty_like(a)
    with Graph() as outer:
        inner(a, k=m * 10, out=mine)
        inner(mine, k=4)
    for value in (0, 10, 3):
        got = outer(m=value)
        np.testing.assert_array_equal(mine, a * 2 + value * 10)
        np.testing.assert_array_equal(got, mine * 2 + 4)
    with pytest.raises(VariableValue, match="from 0 to 100"), Graph():
        inner(a, k=101)


def test_arithmetic_that_has_no_integer_is_our_error(add) -> None:
    v = Variable("v", 0, 8)
    with pytest.raises(kd.Error, match="on the other side of") as caught:
        _ = v + 1.5
    assert isinstance(caught.value, TypeError)
    with pytest.raises(kd.Error, match=r'(?s)`f"\{v\} rows"`'):
        _ = "rows " + v
    with kd.Graph() as g:
        add(np.zeros(4, np.int32), 8 // (v - 4))
    assert (g(v=8) == 2).all()
    with pytest.raises(kd.Error, match="divides by 0 where v = 4") as caught:
        g(v=4)
    assert isinstance(caught.value, ValueError) and caught.traceback[-1].path == Path(__file__)
    assert (g(v=0) == -2).all()


@pytest.mark.parametrize("dims", [False, True])
def test_scalars_that_decide_grids_and_outputs(dims: bool) -> None:
    """A variable as a scalar argument that functions of shapes read, alone and beside a variable that they close over."""
    k, n, rows = Variable("k", 1, 16), Variable("n", 1, 4), kd.Dim("rows", max=64)
    row = kd.program_id

    def body(x, k, out):
        out[row(0), row(1)] = x[row(1)] * k

    def alone(x, k, out):
        out[row(0)] = x[row(0) % x.shape[0]] + k

    shapes = {"x": (rows, 4)} if dims else None
    wide = kd.kernel(
        alone,
        grid=lambda x, k: (k * 2,),
        out_type=lambda x, k: kd.ShapeDtypeStruct((2 * k, 4), kd.float32),
        shapes=shapes,
    )
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    with Graph() as g:
        wide(x, k)
    for value in (3, 16, 1):
        np.testing.assert_array_equal(g(k=value), x[np.arange(2 * value) % 16] + value)
    if not dims:
        both = kd.kernel(
            body, grid=lambda x, k: (n, k), out_type=lambda x, k: kd.ShapeDtypeStruct((n, k, 4), kd.float32)
        )
        with Graph() as g:
            both(x, k)
        for value, count in ((2, 3), (16, 1)):
            np.testing.assert_array_equal(g(k=value, n=count), np.stack([x[:value] * value] * count))
