"""A nested graph works on the outer one's arrays: it keeps them, names them, and counts those without elements."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import kernel_dsl as kd
from tests.graph.kernels import N, ints


@pytest.fixture
def inner(xor, double):
    a, b = ints(), ints()
    with kd.Graph() as g:
        xor(double(a), double(b))
    return g


def test_the_outer_graph_keeps_and_names_what_a_nested_one_reads(inner) -> None:
    a, b = ints(), ints()
    with kd.Graph() as g:
        inner(a, b)
    assert [x is y for x, y in zip(g.inputs, (a, b), strict=True)] == [True, True]
    want, kept = (a * 2) ^ (b * 2), weakref.ref(a)
    del a
    g()
    gc.collect()
    assert kept() is not None  # nodes hold its address
    np.testing.assert_array_equal(g(), want)


def test_out_of_a_nested_graph_is_replaced_at_a_replay(inner) -> None:
    a, b, recorded, mine = ints(), ints(), np.zeros(N, np.int32), np.zeros(N, np.int32)
    with kd.Graph() as g:
        inner(a, b, out=recorded)
    assert g(out=mine) is mine
    np.testing.assert_array_equal(mine, (a * 2) ^ (b * 2))
    assert not recorded.any()


def none() -> np.ndarray:
    return np.zeros((0, 3), np.int32)


def test_an_output_without_elements_is_replaced_by_out(double) -> None:
    with kd.Graph() as g:
        double(double(none()))
    mine = none()
    assert g(none(), out=mine) is mine
    assert g() is g.outputs[0]


@pytest.mark.parametrize("played", [False, True])
def test_graphs_of_arrays_without_elements_nest(double, xor, played: bool) -> None:
    with kd.Graph() as g:
        double(double(none()))
    if played:
        g()
    a, b, mine = none(), none(), none()
    with kd.Graph() as outer:
        x, y = g(a), g(b)
        g(a, out=mine)
    assert [i is j for i, j in zip(outer.inputs, (a, b), strict=True)] == [True, True]
    assert [i is j for i, j in zip(outer.outputs, (x, y, mine), strict=True)] == [True] * 3
    assert [o.shape for o in outer(none(), none())] == [(0, 3)] * 3
    with kd.Graph() as chain:
        last = xor(g(g(a)), b)
    assert len(chain.inputs) == 2 and chain() is last
