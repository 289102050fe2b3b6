"""A graph's inputs and outputs, on a device of NumPy functions: replays must be bitwise what eager calls give."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.graph import Graph, GraphError

from .kernels import Kernel, N, ints, like


def test_five_replays_with_new_inputs(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        y = xor(t, b)
    assert [x is y_ for x, y_ in zip(g.inputs, (a, b), strict=True)] == [True, True]
    assert len(g.outputs) == 1 and g.outputs[0] is y
    for _ in range(5):
        p, q = ints(), ints()
        got = g(p, q)
        assert got is y
        np.testing.assert_array_equal(got, (p * 2) ^ q)
    np.testing.assert_array_equal(g(), (a * 2) ^ b)


def test_inputs_may_be_views(double) -> None:
    base = ints(3 * N)
    with Graph() as g:
        y = double(base[N : 2 * N])
    np.testing.assert_array_equal(g(), base[N : 2 * N] * 2)
    np.testing.assert_array_equal(g(base[5 : 5 + N]), base[5 : 5 + N] * 2)
    strided = ints(2 * N)[::2]
    with pytest.raises(ArgumentValueError, match="strides"):
        g(strided)
    with Graph() as h:
        double(strided)
    other = ints(2 * N)
    np.testing.assert_array_equal(h(other[1::2]), other[1::2] * 2)
    assert y is not None


def test_in_place_work_accumulates(dev) -> None:
    def increment(x, out):
        out[...] = x + 1

    for dtype in (np.int32, np.int8):
        kernel = Kernel(dev, increment, like)
        x = np.zeros(8, dtype)
        with Graph() as g:
            kernel(x, out=x)
        assert g.inputs == ()
        for _ in range(5):
            g()
        np.testing.assert_array_equal(x, 5)


def test_an_output_fed_back_as_input(dev) -> None:
    """Each replay reads the last one's result, which lies where this one's will."""

    def step(x, out):
        out[...] = x[::-1] * 2 + 1

    kernel = Kernel(dev, step, like)
    x = np.arange(8, dtype=np.int64)
    with Graph() as g:
        kernel(x)
    expected, got = x, x
    for _ in range(4):
        expected = expected[::-1] * 2 + 1
        got = g(got)
        np.testing.assert_array_equal(got, expected)


def test_out_replaces_the_outputs(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        y = xor(t, b)
        z = double(b)
    mine = np.empty_like(a), np.empty_like(a)
    kept = y.copy(), z.copy()
    assert g(out=mine) is mine
    np.testing.assert_array_equal(mine[0], (a * 2) ^ b)
    np.testing.assert_array_equal(mine[1], b * 2)
    np.testing.assert_array_equal(y, kept[0])
    g()
    np.testing.assert_array_equal(y, mine[0])
    np.testing.assert_array_equal(z, mine[1])
    with pytest.raises(ArgumentTypeError, match="2 outputs"):
        g(out=mine[0])
    with pytest.raises(ArgumentValueError, match="shares memory"):
        g(out=(mine[0], mine[0]))
    with pytest.raises(ArgumentValueError, match="as recorded"):
        g(out=(mine[0], np.empty(3, np.int32)))


def test_out_that_is_an_input_works_on_a_copy(dev) -> None:
    def flip(x, out):
        for i in range(len(x)):
            out[i] = x[len(x) - 1 - i]

    kernel = Kernel(dev, flip, like)
    x = ints(16)
    with Graph() as g:
        kernel(x)
    expected = x[::-1].copy()
    y = x.copy()
    g(y, out=y)
    np.testing.assert_array_equal(y, expected)


def test_chosen_outputs_keep_their_structure(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        y = xor(t, b)
    g.outputs = {"t": t, "rest": [y]}
    got = g()
    assert got["t"] is t and got["rest"][0] is y
    np.testing.assert_array_equal(t, a * 2)
    np.testing.assert_array_equal(y, t ^ b)
    with pytest.raises(GraphError, match="before the first replay"):
        g.outputs = y


def test_outputs_may_be_chosen_in_the_block(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        g.outputs = [t]
        y = xor(t, b)
        g.outputs = (y, t)
        with pytest.raises(GraphError, match="still being recorded"):
            _ = g.nodes
    got = g()
    assert isinstance(got, tuple) and got[0] is y and got[1] is t
    np.testing.assert_array_equal(t, a * 2)
    np.testing.assert_array_equal(y, t ^ b)
    with pytest.raises(GraphError, match="only read"), Graph() as h:
        double(a)
        h.outputs = a
    np.testing.assert_array_equal(h(), a * 2)


def test_an_output_must_be_written(double) -> None:
    a = ints()
    with Graph() as g:
        double(a)
    with pytest.raises(GraphError, match="only read"):
        g.outputs = a
    np.testing.assert_array_equal(g(), a * 2)


def test_a_graph_whose_nodes_were_changed_is_nested_as_it_is(double, add) -> None:
    a, b = ints(), ints()
    with Graph() as inner:
        double(add(a, 3))
    inner.set_params(0, arrays=[b], scalars=[5])
    with Graph() as outer:
        add(inner(), 1)
    np.testing.assert_array_equal(outer(), (b + 5) * 2 + 1)


def test_duplicate_inputs_are_one(xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        y = xor(a, a)
        xor(y, b)
    assert len(g.inputs) == 2
    p, q = ints(), ints()
    np.testing.assert_array_equal(g(p, q), q)
    np.testing.assert_array_equal(g(p, p), p)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(N - 1, np.int32), "as recorded"),
        (np.zeros((N, 1), np.int32), "as recorded"),
        (np.zeros(N, np.float32), "as recorded"),
        (np.zeros(2 * N, np.int32)[::2], "strides"),
    ],
)
def test_unlike_inputs_are_errors(double, array, words) -> None:
    with Graph() as g:
        double(ints())
    with pytest.raises(ArgumentValueError, match=words):
        g(array)


def test_wrong_numbers_of_inputs_are_errors(xor) -> None:
    with Graph() as g:
        xor(ints(), ints())
    with pytest.raises(ArgumentTypeError, match="2 inputs, and got 1"):
        g(ints())


def test_a_host_constant_is_part_of_the_graph(add, xor) -> None:
    a = ints()
    with Graph() as g:
        xor(add(a, 7), np.full(N, 5, np.int32))
    np.testing.assert_array_equal(g(), (a + 7) ^ 5)


def test_scalars_keep_what_they_were(add) -> None:
    a, k = ints(), 3
    with Graph() as g:
        add(a, k)
    k = 4
    np.testing.assert_array_equal(g(), a + 3)


def test_fills_and_aliases_are_redone(dev) -> None:
    def accumulate(x, out):
        out += x

    filled = Kernel(dev, accumulate, like, fill=10)
    aliased = Kernel(dev, accumulate, like, alias=0)
    x = ints()
    with Graph() as g:
        y = filled(x)
        z = aliased(y)
    for _ in range(3):
        np.testing.assert_array_equal(g(), (x + 10) * 2)
    assert [n.kind for n in g.nodes] == ["fill", "kernel", "copy", "kernel"]
    assert z is g()


def test_zero_size_arrays(double) -> None:
    with Graph() as g:
        double(double(np.zeros((0, 3), np.int32)))
    assert g().shape == (0, 3)
