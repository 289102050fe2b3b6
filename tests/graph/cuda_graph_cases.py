"""Graphs on a driver without a GPU: see `cuda_played.py`."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from kernel_dsl.compiled import LaunchAttributes
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.errors import ArgumentValueError, LaunchError
from kernel_dsl.runtime.graph import Graph, GraphError, Variable

from .cuda_played import (
    DOUBLE,
    EXECS,
    GRAPHS,
    INSTANTIATIONS,
    LAUNCHES,
    LIB,
    PLUS,
    UPDATES,
    XOR,
    CudaKernel,
    DeviceArray,
    N,
    blocks,
    graphs,
    host,
    on_device,
    rng,
)
from .kernels import like
from .programs import GraphProgram, check

CAPTURED = 0xC0DE  # the stream that the driver says is being captured


def test_a_graph_is_what_eager_calls_are_in_any_order() -> None:
    for seed in range(20):
        choose = np.random.default_rng(seed)
        arrays = [on_device(48) for _ in range(4)]

        def part(choose=choose) -> tuple[int, int]:
            return int(choose.integers(4)), int(choose.integers(4)) * 8

        steps = [(int(choose.integers(3)), [part() for _ in range(3)]) for _ in range(10)]

        def calls_(g, arrays=arrays, steps=steps) -> None:
            for kind, parts in steps:
                v = [DeviceArray(arrays[i].data[s : s + 24]) for i, s in parts]
                if any(np.shares_memory(v[i].data, v[2].data) for i in (0, 1)):
                    continue
                if kind == 0:
                    XOR(v[0], v[1], out=v[2])
                elif kind == 1:
                    DOUBLE(v[0], out=v[2])
                elif g is None:
                    v[2].data[...] = v[0].data
                else:
                    g.copy(v[2], v[0])

        start = [a.data.copy() for a in arrays]
        calls_(None)
        expected = [a.data.copy() for a in arrays]
        with Graph() as g:
            calls_(g)
        for _ in range(4):
            for a, s in zip(arrays, start, strict=True):
                a.data[...] = s
            g()
            for a, e in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(a.data, e)


def test_new_inputs_patch_the_nodes_that_read_them() -> None:
    a, b = on_device(), on_device()
    with Graph() as g:
        t = DOUBLE(a)
        y = XOR(t, b)
        z = DOUBLE(b)
    g()
    np.testing.assert_array_equal(host(y), (a.data * 2) ^ b.data)
    for changed, nodes in (((a, on_device()), 2), ((on_device(), on_device()), 3)):
        before = graphs(UPDATES)
        got = g(*changed)
        assert got[0] is y and got[1] is z
        np.testing.assert_array_equal(host(y), (changed[0].data * 2) ^ changed[1].data)
        np.testing.assert_array_equal(host(z), changed[1].data * 2)
        assert graphs(UPDATES) - before == nodes
    before = graphs(UPDATES)
    g(*changed)
    assert graphs(UPDATES) == before
    g()
    np.testing.assert_array_equal(host(y), (a.data * 2) ^ b.data)
    assert graphs(UPDATES) - before == 3
    out = on_device(), on_device()
    g(out=out)
    np.testing.assert_array_equal(out[0].data, host(y))
    np.testing.assert_array_equal(out[1].data, host(z))


def test_moves_that_come_again_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third move of the same inputs looks at no node; after each change of nodes or template, the first two do."""
    a, b, other = on_device(), on_device(), on_device()
    with Graph() as g:
        t = DOUBLE(a)
        y = XOR(t, b)

    def patches(count: int) -> list[bool]:
        """Which of this many replays with new inputs took the slow path."""
        found = []
        for _ in range(count):
            before, updates = len(slow), graphs(UPDATES)
            new, second = on_device(), on_device()
            g(new, second)
            np.testing.assert_array_equal(host(y), (new.data * 2) ^ (second if free else other).data)
            assert graphs(UPDATES) - updates == 1 + free
            found.append(len(slow) > before)
        return found

    slow: list[int] = []
    free = True
    g()
    executable, patch = type(g._exec), type(g._exec)._patch
    monkeypatch.setattr(executable, "_patch", lambda self, slots: slow.append(1) or patch(self, slots))
    assert patches(4) == [True, False, False, False]
    g(on_device(), b)  # other slots move, then all of them
    g()
    assert patches(3) == [True, False, False]
    g._exec._update_template()  # as a capture by another graph does
    assert patches(3) == [True, False, False]
    g.set_params(1, [None, other])
    free = False
    assert patches(3) == [True, False, False]


def test_an_output_fed_back_is_copied_first() -> None:
    def reverse(x, out):
        for i in range(len(x)):
            out[i] = x[len(x) - 1 - i] + 1

    kernel = CudaKernel(reverse, like)
    x = on_device()
    with Graph() as g:
        kernel(x)
    expected = x.data
    got: Any = x
    for _ in range(4):
        expected = expected[::-1] + 1
        got = g(got)
        np.testing.assert_array_equal(host(got), expected)


def test_host_arrays_go_there_and_back() -> None:
    a, b = (rng.integers(0, 1 << 30, N).astype(np.int32) for _ in range(2))
    with Graph() as g:
        t = DOUBLE(a)
        y = XOR(t, b)
    for _ in range(2):
        assert g() is y
        np.testing.assert_array_equal(y, (a * 2) ^ b)
        p, q = b.copy(), a.copy()
        np.testing.assert_array_equal(g(p, q), (p * 2) ^ q)
    x = np.arange(N, dtype=np.int32)
    with Graph() as g:
        DOUBLE(x, out=x)
    g()
    g()
    np.testing.assert_array_equal(x, np.arange(N) * 4)


def test_fills_and_copies_of_all_widths() -> None:
    def accumulate(x, out):
        out += x

    cases = [
        (np.int32, 7),
        (np.int32, 0),
        (np.int8, 3),
        (np.float16, 1.5),
        (np.float64, 2.5),
        (np.int64, -3),
    ]
    for dtype, value in cases:
        kernel = CudaKernel(accumulate, like, fill=value)
        x = DeviceArray(rng.integers(0, 9, N).astype(dtype))
        with Graph() as g:
            kernel(x)
        other = DeviceArray(rng.integers(0, 9, N).astype(dtype))
        for given in ((), (other,), ()):
            got = g(*given)
            np.testing.assert_array_equal(host(got), (given or (x,))[0].data + dtype(value))
        mine = DeviceArray(np.zeros(N, dtype))
        g(out=mine)
        np.testing.assert_array_equal(mine.data, x.data + dtype(value))
    aliased = CudaKernel(accumulate, like, alias=0)
    x = on_device()
    with Graph() as g:
        aliased(x)
    for given in (x, on_device(), x):
        np.testing.assert_array_equal(host(g(given)), given.data * 2)


def test_strided_copies_are_made_anew() -> None:
    base, y = on_device(4 * N), on_device(N)
    with Graph() as g:
        g.copy(y, DeviceArray(base.data[::4]))
    g()
    np.testing.assert_array_equal(y.data, base.data[::4])
    other, made = on_device(4 * N), graphs(INSTANTIATIONS)
    g(DeviceArray(other.data[::4]))
    np.testing.assert_array_equal(y.data, other.data[::4])
    assert graphs(INSTANTIATIONS) == made + 1  # the driver updates flat copies only


def test_scalars_variables_and_grids() -> None:
    k, n = Variable("k", 0, 99), Variable("n", 1, 1000)

    def rows(x, out):
        out[...] = x * 2

    grid = CudaKernel(rows, like, grid=((n + 127) // 128, 1, 1))
    a = on_device()
    with Graph() as g:
        t = PLUS(a, k)
        y = grid(t)
        PLUS(a, 1)
    for value in (1, 5, 5):
        before = graphs(UPDATES)
        g(k=value, n=300)
        np.testing.assert_array_equal(host(y), (a.data + value) * 2)
        assert graphs(UPDATES) - before <= 2
    assert graphs(UPDATES) == before
    LAUNCHES.clear()
    g(k=5, n=129)
    assert [launch["dims"][0] for launch in LAUNCHES if launch["name"].startswith("rows")] == [2]


def test_steps_by_name() -> None:
    a = on_device()
    with Graph() as g:
        y = PLUS(a, 3)
    node = g.nodes[0]
    node.set_params(scalars=[10])
    node.set_launch_dims(grid=(3, 1, 1), block=(64, 1, 1), dynamic_smem=100_000)
    g.launch(wait=True)
    np.testing.assert_array_equal(host(y), a.data + 10)
    assert LAUNCHES[-1]["dims"] == (3, 1, 1, 64, 1, 1) and LAUNCHES[-1]["smem"] == 100_000
    assert g.seconds == 1e-3  # what the driver without a GPU says
    other = on_device()
    node.set_params(arrays=[other])
    g.launch()
    np.testing.assert_array_equal(host(y), other.data + 10)
    with pytest.raises(ArgumentValueError, match="cannot be launched"):
        node.set_launch_dims(block=(2048, 1, 1))


def test_a_captured_replay_is_a_child_with_todays_arrays() -> None:
    a, b = on_device(), on_device()
    with Graph() as g:
        y = XOR(a, b)
    p, q = on_device(), on_device()
    LAUNCHES.clear()
    g(p, q, stream=CAPTURED)
    with Graph() as h:
        z = DOUBLE(y)
    h(stream=CAPTURED)
    assert len(LAUNCHES) == 0
    assert LIB.fake_end_capture() == 0
    np.testing.assert_array_equal(host(y), p.data ^ q.data)
    np.testing.assert_array_equal(host(z), host(y) * 2)
    with pytest.raises(GraphError, match="wait=True"):
        g(stream=CAPTURED, wait=True)
    with Graph() as on_host:
        DOUBLE(np.zeros(N, np.int32))
    with pytest.raises(GraphError, match="host memory"):
        on_host(stream=CAPTURED)


def test_a_failed_replay_says_what_failed() -> None:
    with Graph() as g:
        DOUBLE(on_device())
    g()
    try:
        LIB.fake_fail(700)
        with pytest.raises(LaunchError, match=r"graph of 1 nodes \(double\)") as caught:
            g(on_device())
    finally:
        LIB.fake_fail(0)
    assert caught.value.status == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert not caught.value.context_survives


def test_nothing_leaks() -> None:
    gc.collect()
    before = [graphs(GRAPHS), graphs(EXECS), blocks()]
    for _ in range(20):
        with Graph() as g:
            y: Any = on_device()
            for _ in range(4):
                y = DOUBLE(y)
        g()
        g(on_device())
        del y, g  # no cycle keeps it: memory is back before Python collects any
    assert [graphs(GRAPHS), graphs(EXECS), blocks()] == before


def test_intermediates_lie_in_the_graphs_own_memory() -> None:
    x = on_device(1024)
    with Graph() as g:
        y: Any = x
        for _ in range(6):
            y = DOUBLE(y)
    before = blocks()
    g.instantiate()
    gc.collect()
    assert blocks() == before - 5 + 1  # five intermediates became one block
    assert g.memory_bytes == 8192
    np.testing.assert_array_equal(host(g()), x.data * 64)


def test_an_empty_grid_is_no_node() -> None:
    def nothing(x, out):
        raise AssertionError

    kernel = CudaKernel(nothing, like, {"grid": (1, 1, 1), "empty": True})
    with Graph() as g:
        kernel(on_device())
    assert g.nodes == ()
    g()


def test_attributes_are_checked_before_the_driver() -> None:
    def tall(x, out):
        raise AssertionError

    kernel = CudaKernel(tall, like, {"grid": (1, 70000, 1)})
    with pytest.raises(ArgumentValueError, match="grid axis y"), Graph():
        kernel(on_device())
    assert LaunchAttributes((1, 1, 1), (1, 1, 1)).empty is False


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(2)
def test_random_programs_with_intermediates(seed: int) -> None:
    """In any order that the edges allow, with the graph's own memory shared as planned."""

    def minus_(a, b, out):
        out[...] = a - 3 * b

    def fold_(a, b, out):
        out += a ^ (b << 1)

    def refold_(a, b, out):
        out += a ^ (b << 1)

    kernels = [
        XOR, CudaKernel(minus_, like), CudaKernel(fold_, like, fill=5), CudaKernel(refold_, like, alias=0),
    ]  # fmt: skip

    def part(array: Any, half: int) -> Any:
        if isinstance(array, DeviceArray):
            n = len(array.data) // 2
            return DeviceArray(array.data[half * n : (half + 1) * n])
        n = array.shape[0] // 2
        there = view(array)
        raw = (ctypes.c_char * (4 * n)).from_address(there.address + half * 4 * n)
        made = DeviceArray(np.frombuffer(raw, np.int32))
        made.owner = array
        return made

    check(GraphProgram(seed, kernels, DeviceArray, part), host, seed * 10)
