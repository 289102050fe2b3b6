"""What kernels and copies do to each other's memory: replays must be bitwise what eager calls give."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.graph import Graph

from .kernels import Kernel, N, ints, like
from .programs import GraphProgram, check


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


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(2)
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

    check(GraphProgram(seed, kernels, lambda v: v, part), lambda a: a, seed * 10)
