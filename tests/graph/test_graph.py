"""Graphs on a device of NumPy functions: replays must be bitwise what eager calls give."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from kernel_dsl.errors import VariableUse, VariableValue
from runtime.errors import ArgumentTypeError, ArgumentValueError
from runtime.graph import Graph, GraphError, Variable

from .kernels import Kernel, device, like
from .programs import Program, check

N = 4096
rng = np.random.default_rng(0)


def ints(n=N):
    return rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)


@pytest.fixture
def dev():
    return device()


@pytest.fixture
def xor(dev):
    def xor(a, b, out):
        np.bitwise_xor(a, b, out=out)

    return Kernel(dev, xor, like)


@pytest.fixture
def xor3(dev):
    def xor3(a, b, c, out):
        out[...] = a ^ b ^ c

    return Kernel(dev, xor3, like)


@pytest.fixture
def double(dev):
    def double(x, out):
        out[...] = x * 2

    return Kernel(dev, double, like)


@pytest.fixture
def add(dev):
    def add(x, out, k):
        out[...] = x + k

    return Kernel(dev, add, like, scalars=1)


# --- order: what kernels do to each other's memory ------------------------------------------------


def same_as_eager(calls, arrays):
    """Run `calls(g, *arrays)` eagerly and in five fresh graphs; compare all memory."""
    start = [a.copy() for a in arrays]
    calls(None, *arrays)
    expected = [a.copy() for a in arrays]
    for _ in range(5):
        for a, s in zip(arrays, start, strict=True):
            a[...] = s
        with Graph() as g:
            calls(g, *arrays)
        for a, s in zip(arrays, start, strict=True):
            np.testing.assert_array_equal(a, s)  # recording runs nothing
        for _ in range(3):
            for a, s in zip(arrays, start, strict=True):
                a[...] = s
            g()
            for a, e in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(a, e)


def copy(g, target, source):
    if g is None:
        target[...] = source
    else:
        g.copy(target, source)


def test_two_kernels_write_one_output(xor) -> None:
    def calls(g, a, b, c, y):
        xor(a, b, out=y)
        xor(a, c, out=y)

    same_as_eager(calls, [ints() for _ in range(4)])


def test_read_then_write(xor) -> None:
    def calls(g, a, b, c, y):
        xor(a, b, out=y)
        xor(b, c, out=a)

    same_as_eager(calls, [ints() for _ in range(4)])


def test_write_then_read(xor) -> None:
    def calls(g, a, b, c, y):
        xor(a, b, out=c)
        xor(c, b, out=y)

    same_as_eager(calls, [ints() for _ in range(4)])


def test_kernel_then_copy(xor) -> None:
    def calls(g, a, b, c, y):
        xor(a, b, out=c)
        copy(g, y, c)

    same_as_eager(calls, [ints() for _ in range(4)])


def test_copy_then_kernel(xor) -> None:
    def calls(g, a, b, c, y):
        copy(g, c, a)
        xor(c, b, out=y)

    same_as_eager(calls, [ints() for _ in range(4)])


def test_parts_of_one_array(xor) -> None:
    def calls(g, a, b, c, y):
        half = N // 2
        xor(a[:half], b[:half], out=y[:half])
        xor(y[:half], c[:half], out=y[half:])
        copy(g, a[10:20], y[N - 10 :])
        xor(a[:half], y[half:], out=c[:half])

    same_as_eager(calls, [ints() for _ in range(4)])


def test_three_graphs_share_buffers(xor, xor3) -> None:
    a, b, c, d = (ints() for _ in range(4))
    start = [x.copy() for x in (a, b, c, d)]
    makers = [
        lambda: (xor(a, b, out=c), xor(c, d, out=a)),
        lambda: (xor3(a, b, c, out=d), xor(d, a, out=b)),
        lambda: (xor(b, c, out=d), xor3(b, c, d, out=a)),
    ]
    for make in makers:
        make()
    expected = [x.copy() for x in (a, b, c, d)]
    for x, s in zip((a, b, c, d), start, strict=True):
        x[...] = s
    graphs = []
    for make in makers:
        with Graph() as g:
            make()
        graphs.append(g)
    for g in graphs:
        g()
    for x, e in zip((a, b, c, d), expected, strict=True):
        np.testing.assert_array_equal(x, e)


def test_random_programs(xor, xor3, add) -> None:
    """Kernels and copies on random views of a few buffers, in random order."""
    for seed in range(25):
        choose = np.random.default_rng(seed)
        arrays = [ints(64) for _ in range(4)]

        def part(choose=choose, arrays=arrays):
            start = int(choose.integers(0, 5)) * 8
            return arrays[choose.integers(4)], start, start + 24

        steps = [(int(choose.integers(3)), [part() for _ in range(3)]) for _ in range(12)]

        def calls(g, *arrays, steps=steps):
            for kind, parts in steps:
                v = [a[lo:hi] for a, lo, hi in parts]
                if any(np.shares_memory(v[i], v[2]) for i in (0, 1)):
                    continue
                if kind == 0:
                    xor(v[0], v[1], out=v[2])
                elif kind == 1:
                    copy(g, v[2], v[0])
                else:
                    add(v[0], 3, out=v[2])

        start = [a.copy() for a in arrays]
        calls(None, *arrays)
        expected = [a.copy() for a in arrays]
        for a, s in zip(arrays, start, strict=True):
            a[...] = s
        with Graph() as g:
            calls(g, *arrays)
        if g.nodes:
            g()
        for a, e in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(a, e)


# --- inputs and outputs ---------------------------------------------------------------------------


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


# --- variables ------------------------------------------------------------------------------------


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
    with pytest.raises(ArgumentValueError, match="two variables of one graph"), Graph():
        add(ints(), k)
        add(ints(), Variable("k", 0, 6))


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


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_with_intermediates(dev, xor, seed) -> None:
    """Results, parts of results, arrays written twice: what the graph's own memory must get right."""

    def minus(a, b, out):
        out[...] = a - 3 * b

    def fold(a, b, out):
        out += a ^ (b << 1)

    kernels = [xor, Kernel(dev, minus, like), Kernel(dev, fold, like, fill=5), Kernel(dev, fold, like, alias=0)]

    def part(array, half):
        length = len(array) // 2
        return array[half * length : (half + 1) * length]

    check(Program(seed, kernels, lambda v: v, part), lambda a: a, seed * 10)
