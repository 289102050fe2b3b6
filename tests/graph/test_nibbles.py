"""Arrays of 4-bit elements in graphs and in `bind`, beside plain calls."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .nibble_programs import ADD, DTYPES, WIDENED, numbers, same, sums

add, widened = ADD[kd.int4], WIDENED[kd.int4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_replays_give_what_calls_give(dtype: kd.DType) -> None:
    add, widened = ADD[dtype], WIDENED[dtype]
    x, y = numbers(dtype, 0), numbers(dtype, 1)
    with kd.Graph() as g:
        z = add(x, y)
        wide = widened(add(z, x))
        g.outputs = {"z": z, "wide": wide}
    assert [a is b for a, b in zip(g.inputs, (x, y), strict=True)] == [True, True]
    assert g.outputs["z"] is z
    for a, b in ((x, y), (numbers(dtype, 2), numbers(dtype, 3)[::-1]), (x, y)):
        result = g() if a is x else g(a, b)
        assert result["z"] is z
        same(add(a, b), sums(a, b))
        same(z, sums(a, b))
        same(result["wide"], widened(sums(z, a)))
    x[...] = numbers(dtype, 4)
    same(g()["z"], sums(x, y))


def test_a_random_program_is_its_calls() -> None:
    """Calls of arrays and parts of them, in place too, in a graph and one after another."""
    for seed in range(4):
        ends: list[list[Any]] = []
        for graph in (False, True):
            rng = random.Random(seed)
            pool = [numbers(kd.int4, i) for i in range(3)]
            if graph:
                with kd.Graph() as g:
                    g.outputs = _run(rng, pool)
                g()
            else:
                _run(rng, pool)
            ends.append(pool)
        for a, b in zip(*ends, strict=True):
            same(a, b)


def _run(rng: random.Random, pool: list[Any]) -> list[Any]:
    made: list[Any] = []
    for x in pool:
        add(x, x, out=x)
    for _ in range(5):
        a, b, out = rng.choice(pool), rng.choice(pool), rng.choice([None, *pool[:3]])
        if out is not None and out is not a:
            add(a[:4], b[:4], out=out[4:])
        made.append(add(a, b, out=out))
        pool.append(made[-1])
    return made


def test_out_and_copies() -> None:
    x, y = numbers(kd.int4, 0), numbers(kd.int4, 1)
    kept, target = np.zeros_like(x), np.zeros_like(x)
    with kd.Graph() as g:
        z = add(x, y)
        add(z, x, out=kept)
        g.copy(target, kept)
        g.outputs = z
    g()
    same(kept, sums(sums(x, y), x))
    same(target, kept)
    other = np.zeros_like(x)
    before = z.copy()
    assert g(y, y, out=other) is other
    same(other, sums(y, y))
    same(z, before)
    same(kept, sums(other, y))
    assert g(z, z) is z  # an input in memory that the replay writes
    same(z, sums(before, before))


def test_variables_change_shapes() -> None:
    n = kd.Variable("n", 1, 8)
    x = numbers(kd.int4, 0)
    rows = kd.kernel(
        lambda x, out: out.__setitem__(..., x.at[0 : out.shape[0]][...]),
        out_type=lambda x: kd.ShapeDtypeStruct((n, 32), kd.int4),
        interpret=True,
    )
    with kd.Graph() as g:
        z = add(rows(x), rows(x))
    for count in (8, 3):
        result = g(n=count)
        same(result, sums(x[:count], x[:count]))
    mine = numbers(kd.int4, 7)
    with kd.Graph() as outer:
        w = widened(g(mine, n=n))
    for count in (8, 2):
        same(outer(n=count), 2 * sums(mine[:count], mine[:count]).astype(np.float32))
    assert w.shape == (8, 32) and z.shape == (8, 32)


def test_a_graph_in_a_graph() -> None:
    x, y, kept = numbers(kd.int4, 0), numbers(kd.int4, 1), np.zeros((8, 32), ml_dtypes.int4)
    with kd.Graph() as inner:
        z = add(x, y)
        add(z, y, out=kept)
        inner.outputs = z
    with kd.Graph() as outer:
        first = inner()
        second = inner(first, x)
        third = add(second, kept)
        outer.outputs = first, second, third
    assert [a is b for a, b in zip(outer.inputs, (x, y), strict=True)] == [True, True]
    results = outer()
    one = sums(x, y)
    two = sums(one, x)
    same(results[0], one)
    same(results[1], two)
    same(kept, sums(two, x))
    same(results[2], sums(two, kept))
    mine, into = numbers(kd.int4, 5), np.zeros_like(kept)
    with kd.Graph() as last:
        inner(mine, x, out=into)
        wide = widened(into)
    last()
    same(into, sums(mine, x))
    same(kept, sums(into, x))
    same(wide, 2 * into.astype(np.float32))


def test_a_node_takes_other_arrays() -> None:
    x, y, other = (numbers(kd.int4, i) for i in range(3))
    with kd.Graph() as g:
        add(x, y)
    g.set_params(0, [other, None, None])
    same(g(), sums(other, y))
    target = np.zeros_like(x)
    g.set_params(0, [None, None, target])
    g.launch()
    same(target, sums(other, y))
    with kd.Graph() as outer:
        g(x, x)
    assert [a is b for a, b in zip(outer.inputs, (other, x), strict=True)] == [True, True]
    target[...] = 0
    outer()
    same(target, sums(other, x))
    with pytest.raises(kd.Error, match=r"operand 0 of .* is of int4, and got"):
        g.set_params(0, [other.view(ml_dtypes.uint4), None, None])


def test_what_a_graph_refuses() -> None:
    x, y = numbers(kd.int4, 0), numbers(kd.int4, 1)
    for part in (x[0:4], x[:, 1:5]):
        with pytest.raises(kd.Error, match="share memory, one of which a graph writes"), kd.Graph():
            add(part, part)
            add(y, y, out=x)
    with pytest.raises(kd.Error, match="share memory, one of which a graph writes"), kd.Graph():
        add(y, y, out=x)
        add(x[:, 1:5], y[:, 1:5])
    half, into = numbers(kd.int4, 2, (8, 16)), numbers(kd.int4, 3)
    with kd.Graph() as inner:
        add(half, half, out=half)
    with pytest.raises(kd.Error, match="is a part with gaps"), kd.Graph():
        add(y, y, out=into)
        inner(out=into[:, 16:])
    with kd.Graph() as g:
        add(x, y)
        add(y, x)
    with pytest.raises(kd.Error, match=r"an input of the graph must be .*int4"):
        g(x.view(np.uint8), y)
    with pytest.raises(kd.Error, match="has 2 inputs"):
        g(x)
    with pytest.raises(kd.Error, match="shares memory"):
        g(out=(y, y))
    x.flags.writeable = False
    with pytest.raises(kd.Error, match="is read-only"), kd.Graph():
        add(y, y, out=x)
    with pytest.raises(kd.Error, match="is read-only"):
        g(out=(x, y))


@pytest.mark.parametrize("given", [False, True])
def test_bind(given: bool) -> None:
    x, y, z = (numbers(kd.int4, i) for i in range(3))
    out = np.zeros_like(x) if given else None
    bound = add.bind(x, y, out=out)
    result = bound()
    same(result, sums(x, y))
    assert result is bound() is bound.result is bound.outputs[0] and (out is None or result is out)
    x[...] = z
    same(bound(), sums(z, y))
    with kd.Graph() as g:
        bound()
        last = widened(result)
    y[...] = z
    g()
    same(last, 2 * sums(z, z).astype(np.float32))
    same(result, sums(z, z))


def test_what_a_kernel_does_not_write_stays() -> None:
    def body(x: Any, out: Any) -> None:
        out[0:4] = x[0:4]

    x = numbers(kd.int4, 0)
    half = kd.kernel(body, out_type=kd.ShapeDtypeStruct((8, 32), kd.int4), interpret=True)
    outs = [numbers(kd.int4, 1) for _ in range(3)]
    half(x, out=outs[0])
    half.bind(x, out=outs[1])()
    with kd.Graph() as g:
        half(x, out=outs[2])
    g()
    same(outs[0], np.concatenate([x[:4], numbers(kd.int4, 1)[4:]]))
    same(outs[0], outs[1])
    same(outs[0], outs[2])


def test_results_beside_tensors() -> None:
    torch = pytest.importorskip("torch")
    kernel = _both()
    x = torch.arange(256, dtype=torch.float32).reshape(8, 32) % 8
    with kd.Graph() as g:
        narrow, wide = kernel(x)
        g.outputs = narrow, wide, add(narrow, narrow)
    bound = kernel.bind(x)
    for _ in range(2):
        expected = x.numpy().astype(ml_dtypes.int4)
        results, others = g(), bound()
        assert results[0] is narrow and results[1] is wide and others[1] is bound.outputs[1]
        same(narrow, expected)
        same(others[0], expected)
        same(results[2], sums(expected, expected))
        assert torch.equal(wide, 2 * x) and torch.equal(others[1], 2 * x)
        x = x.sub_(1)


def test_results_beside_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    kernel = _both()
    x = jnp.arange(256, dtype=jnp.float32).reshape(8, 32) % 8
    narrow, wide = kernel.bind(x)()
    same(narrow, np.asarray(x).astype(ml_dtypes.int4))
    assert (wide == 2 * x).all()
    with pytest.raises(kd.Error, match="4-bit elements in a graph of JAX's arrays"), kd.Graph():
        kernel(x)


def _both() -> kd.Kernel:
    def body(x: Any, narrow: Any, wide: Any) -> None:
        narrow[...] = x[...].astype(kd.int4)
        wide[...] = x[...] * 2

    types = kd.ShapeDtypeStruct((8, 32), kd.int4), kd.ShapeDtypeStruct((8, 32), kd.float32)
    return kd.kernel(body, out_type=types, interpret=True)


def test_parts_strides_and_no_elements() -> None:
    x, y, empty = numbers(kd.int4, 0, (32, 8)).T, numbers(kd.int4, 1), numbers(kd.int4, 0, (0, 32))
    buffer, steps = np.zeros((8, 64), ml_dtypes.int4), np.zeros((8, 64), ml_dtypes.int4)
    with kd.Graph() as g:
        z = add(x, y)
        add(z, y, out=buffer[:, :32])
        add(z, buffer[:, :32], out=buffer[:, 32:])
        add(z, y, out=steps[:, ::2])
        g.outputs = z[2:6], widened(z[4:]), add(empty, empty)
    for a in (x, numbers(kd.int4, 2)):
        part, wide, none = g() if a is x else g(a, y)
        expected = sums(a, y)
        same(part, expected[2:6])
        same(wide, 2 * expected[4:].astype(np.float32))
        same(buffer[:, :32], sums(expected, y))
        same(buffer[:, 32:], sums(expected, buffer[:, :32]))
        same(steps[:, ::2], sums(expected, y))
        assert not steps[:, 1::2].any() and none.shape == (0, 32)
