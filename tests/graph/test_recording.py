"""What a graph is made of and how it is recorded: edges and memory, steps by name, rules."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.graph import Graph, GraphError

from .kernels import Kernel, N, device, ints, like

# --- edges and memory -----------------------------------------------------------------------------


def test_independent_nodes_have_no_edges(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        p, q = double(a), double(b)
        r = xor(p, q)
        xor(r, p)
    assert [n.dependencies for n in g.nodes] == [(), (), (0, 1), (2,)]
    text = g.to_dot()
    assert text.startswith("digraph {")
    assert "n0 -> n2;" in text and "n1 -> n2;" in text and "n0 -> n3" not in text
    picture = g.to_svg()
    assert picture.count("<rect") == 4 and picture.count("<line") == 3
    assert "0: double" in picture and g._repr_svg_() == picture
    assert 'viewBox="0 0 ' in picture  # it scales


def test_intermediates_share_memory_and_are_given_up(double) -> None:
    x = ints()
    held = []
    with Graph() as g:
        y = x
        for _ in range(10):
            y = double(y)
            held.append(weakref.ref(y))
    del y
    g.instantiate()
    gc.collect()
    assert [ref() is None for ref in held] == [True] * 9 + [False]
    assert g.memory_bytes <= 2 * (x.nbytes + 256)
    np.testing.assert_array_equal(g(), x * 2**10)


def test_parallel_branches_do_not_share(double, xor) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        p = double(double(a))
        q = double(double(b))
        xor(p, q)
    np.testing.assert_array_equal(g(), (a * 4) ^ (b * 4))
    # A branch has two intermediates alive at once, and neither may lie in the other's.
    assert g.memory_bytes >= 4 * a.nbytes


def test_a_released_graph_says_so(double) -> None:
    with Graph() as g:
        double(ints())
    g()
    g.release()
    with pytest.raises(GraphError, match="nothing was recorded"):
        g()


# --- steps by name --------------------------------------------------------------------------------


def test_the_steps_are_there_by_name(add, double) -> None:
    a = ints()
    with Graph() as g:
        t = add(a, 3)
        y = double(t)
    first, second = g.nodes
    assert (first.kind, first.name, first.index) == ("kernel", "add", 0)
    assert first.grid == (1, 1, 1) and first.block == (128, 1, 1)
    assert second.dependencies == (0,)
    g.instantiate()
    g.launch()
    np.testing.assert_array_equal(y, (a + 3) * 2)
    first.set_params(scalars=[10])
    g.launch(wait=True)
    assert g.seconds is not None and g.seconds > 0
    np.testing.assert_array_equal(y, (a + 10) * 2)
    other, mine = ints(), np.empty_like(a)
    g.set_params(0, arrays=[other])
    g.set_params(second, arrays=[None, mine])
    g.launch()
    np.testing.assert_array_equal(mine, (other + 10) * 2)
    first.set_launch_dims(grid=(2, 1, 1))
    assert first.grid == (2, 1, 1)
    with pytest.raises(ArgumentValueError, match="as recorded"):
        g.set_params(0, arrays=[np.zeros(3, np.int32)])
    with pytest.raises(ArgumentValueError, match="1 scalars"):
        g.set_params(0, scalars=[1, 2])


def test_only_wait_sets_seconds(double) -> None:
    with Graph() as g:
        double(ints())
    g()
    assert g.seconds is None
    g(wait=True)
    assert g.seconds is not None and g.seconds > 0


# --- recording ------------------------------------------------------------------------------------


def test_calls_as_a_list(double, xor) -> None:
    a, b, t, y = ints(), ints(), np.empty(N, np.int32), np.empty(N, np.int32)
    g = Graph.from_calls([(double, (a,), {"out": t}), lambda: xor(t, b, out=y), (double, [y], {"out": t}), (xor, a, b)])
    g()
    np.testing.assert_array_equal(y, (a * 2) ^ b)
    np.testing.assert_array_equal(t, y * 2)
    for bad in (3, (), (a, b), None):
        with pytest.raises(ArgumentTypeError, match="a call is"):
            Graph.from_calls([bad])


def test_recording_has_its_rules(double) -> None:
    g = Graph()
    with pytest.raises(GraphError, match="nothing was recorded"):
        g()
    with g:
        double(ints())
        with pytest.raises(GraphError, match="another graph"), Graph():
            pass
        with pytest.raises(GraphError):
            g.instantiate()
    with pytest.raises(GraphError, match="recorded before"), g:
        pass
    with pytest.raises(GraphError, match=r"g\.copy"):
        g.copy(ints(), ints())


def test_an_error_while_recording_leaves_eager_calls_alone(double) -> None:
    a = ints()
    with pytest.raises(ZeroDivisionError), Graph() as g:
        double(a)
        raise ZeroDivisionError
    np.testing.assert_array_equal(double(a), a * 2)
    with pytest.raises(GraphError, match="nothing was recorded"):
        g()


def test_calls_are_checked_as_they_are_recorded(xor) -> None:
    a = ints()
    with Graph(), pytest.raises(ArgumentValueError, match="overlap"):
        xor(a[1:], a[1:], out=a[:-1])
    with Graph(), pytest.raises(ArgumentValueError, match="shape"):
        xor(a, a, out=np.empty(3, np.int32))


def test_one_graph_has_one_device(double) -> None:
    other = device()
    other.kind = "elsewhere"

    def twice(x, out):
        out[...] = x * 2

    kernel = Kernel(other, twice, like)
    with pytest.raises(GraphError, match="one device"), Graph():
        double(ints())
        kernel(ints())


def test_eighty_three_kernels(add) -> None:
    x = ints()
    with Graph() as g:
        y = x
        for i in range(83):
            y = add(y, i)
    assert len(g.nodes) == 83
    expected = x + sum(range(83))
    for _ in range(2):
        np.testing.assert_array_equal(g(), expected)
