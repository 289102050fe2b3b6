"""What is set by hand between replays: taken where it can be launched, refused and forgotten where not."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom.nvrtc import unavailable

X = np.arange(8, dtype=np.float32)
Y = np.full(8, 10, np.float32)


@kd.kernel(out_type=lambda x, s: x, interpret=True)
def scale(x: Any, s: Any, out: Any) -> None:
    out[...] = x[...] * s


@kd.kernel(out_type=lambda x, y: x, interpret=True)
def add(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] + y[...]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda g: g.set_params(5), ValueError, "no node 5"),
        (lambda g: g.set_params("first"), TypeError, "its number"),
        (lambda g: g.set_params(0, scalars=[1, 2]), ValueError, "takes 1 scalars"),
        (lambda g: g.set_params(0, scalars=["a"]), TypeError, "'a' is not a scalar of int32"),
        (lambda g: g.set_params(0, scalars=[2.5]), TypeError, "recorded with a scalar of int32"),
        (lambda g: g.set_params(0, scalars=[2**40]), ValueError, "does not fit int32"),
        (lambda g: g.set_params(0, arrays=[Y[:2]]), ValueError, "as recorded"),
        (lambda g: g.set_params(0, arrays=[Y, Y, Y]), ValueError, "works on 2 arrays"),
        (lambda g: g.set_params(0, arrays=[Y, Y]), ValueError, "share memory"),
        (lambda g: g.set_params(0, arrays=[Y], scalars=["a"]), TypeError, "not a scalar"),
        (lambda g: g.set_launch_dims(0, grid=(0, 1, 1)), ValueError, "grid axis x has 0 blocks"),
        (lambda g: g.set_launch_dims(0, grid=(1, 1)), TypeError, "three integers"),
        (lambda g: g.set_launch_dims(0, grid=4), TypeError, "three integers"),
        (lambda g: g.set_launch_dims(0, block=(2048, 1, 1)), ValueError, "2048 threads"),
        (lambda g: g.set_launch_dims(0, dynamic_smem=10**7), ValueError, "10000000 bytes"),
        (lambda g: g.set_launch_dims(0, dynamic_smem=1.5), TypeError, "in bytes"),
    ],
)
def test_a_refused_change_leaves_the_graph_as_it_was(change, error, says):
    with kd.Graph() as g:
        add(scale(X, 3), Y)
    with pytest.raises(error, match=says):
        change(g)
    np.testing.assert_array_equal(g(), X * 3 + Y)


@pytest.mark.skipif(bool(unavailable()), reason="no NVRTC")
def test_dims_and_scalars_of_a_kernel_that_makes_arrays_of_its_own():
    """A scalar input is an array that the call makes, and a strided one is copied at each replay."""
    count = kd.cuda_kernel(
        "count", ["x", "step"], ["out"], "atomicAdd(&out[threadIdx.x], int(x[threadIdx.x] * step[0]));"
    )
    wide = np.arange(8, dtype=np.float32)
    with kd.Graph() as g:
        count(
            inputs=[wide[::2], 2.0],
            grid=(4, 1, 1),
            threadgroup=(4, 1, 1),
            output_shapes=[(4,)],
            output_dtypes=[np.int32],
            init_value=0,
            interpret=True,
        )
    np.testing.assert_array_equal(g(), [0, 4, 8, 12])
    kernel = next(node for node in g.nodes if node.kind == "kernel")
    kernel.set_launch_dims(grid=(3, 1, 1))
    np.testing.assert_array_equal(g(), [0, 12, 24, 36])
    np.testing.assert_array_equal(g((wide + 1)[::2]), [6, 18, 30, 42])


def test_arrays_without_elements_are_inputs_too():
    empty = np.zeros((0, 3), np.float32)
    with kd.Graph() as g:
        a = scale(empty, 2)
        b = scale(X, 2)
        c = scale(a, 3)
    assert [array is known for array, known in zip(g.inputs, (empty, X), strict=True)] == [True, True]
    assert g.outputs[0] is b and g.outputs[1] is c
    out, none = g(np.ones((0, 3), np.float32), Y)
    assert none.shape == (0, 3)
    np.testing.assert_array_equal(out, Y * 2)


def test_torch_tensors_without_elements_are_told_apart():
    """All of them lie at address 0."""
    torch = pytest.importorskip("torch")
    first, second = torch.zeros(0), torch.zeros(0)
    with kd.Graph() as g:
        scale(first, 2)
        scale(second, 2)
    assert [a is b for a, b in zip(g.inputs, (first, second), strict=True)] == [True, True]


def test_a_variable_equals_no_number_until_it_has_a_value():
    k = kd.Variable("k", 0, 9)
    for question in (lambda: k == 3, lambda: k != 3, lambda: k * 2 == 6):
        with pytest.raises(TypeError, match="has no value here"):
            question()
    assert k == k and k != kd.Variable("k", 0, 9) and k in {k: 1}


def test_variables_may_be_called_what_a_method_calls_its_own():
    k = kd.Variable("self", 0, 9)
    with kd.Graph() as g:
        scale(X, k)
    np.testing.assert_array_equal(g(self=4), X * 4)
    for name in ("class", "wait", "1", 3):
        with pytest.raises(ValueError):
            kd.Variable(name, 0, 1)


def test_a_nested_graph_wants_every_variable():
    with kd.Graph() as inner:
        scale(X, kd.Variable("k", 0, 9))
    with kd.Graph() as outer:
        with pytest.raises(TypeError, match="give \\['k'\\] too"):
            inner()
        inner(k=3)
    np.testing.assert_array_equal(outer(), X * 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g.set_params("first", [X]), "one of g.nodes or its number"),
        (lambda g: g.set_params(0.5, [X]), "one of g.nodes or its number"),
        (lambda g: g.set_params(0, arrays=X), "arrays= is a list"),
        (lambda g: g.set_params(0, arrays={0: X}), "arrays= is a list"),
        (lambda g: g.set_params(0, scalars=3), "scalars= is a list"),
        (lambda g: g.set_params(0, scalars=[None]), "was recorded with a scalar"),
        (lambda g: g.set_params(0, scalars=[1j]), "was recorded with a scalar"),
        (lambda g: kd.Graph.from_calls(3), "a list of calls"),
    ],
)
def test_what_cannot_be_set_is_our_error_at_the_users_line(change, says):
    with kd.Graph() as g:
        scale(X, 3)
    with pytest.raises(kd.Error, match=says) as caught:
        change(g)
    assert isinstance(caught.value, TypeError)
    assert caught.traceback[-1].path == Path(__file__)
    np.testing.assert_array_equal(g(), X * 3)


def test_errors_of_properties_and_of_the_block_end_at_the_users_line():
    def outputs_set_late():
        with kd.Graph() as g:
            scale(X, 3)
        g()
        g.outputs = X

    def read_too_early():
        with kd.Graph() as g:
            _ = g.inputs

    def one_in_another():
        with kd.Graph(), kd.Graph():
            pass

    for misuse in (outputs_set_late, read_too_early, one_in_another, lambda: kd.Graph().to_dot()):
        with pytest.raises(kd.Error) as caught:
            misuse()
        assert caught.traceback[-1].path == Path(__file__), misuse


def test_a_node_looked_at_before_the_outputs_were_set_is_the_same_node():
    with kd.Graph() as g:
        a = scale(X, 3)
        b = scale(Y, 2)
    first = g.nodes[0]
    g.outputs = (b, a)
    first.set_params(scalars=[5])
    np.testing.assert_array_equal(g()[1], X * 5)


def test_a_node_whose_graph_is_gone_says_so():
    node = kd.Graph.from_calls([(scale, X, 3)]).nodes[0]
    gc.collect()
    for change in (node.set_params, node.set_launch_dims):
        with pytest.raises(kd.Error, match="was deleted: keep a reference") as caught:
            change()
        assert caught.traceback[-1].path == Path(__file__)


def test_a_graph_is_not_copied():
    """A copy would share what the first replay gives up."""
    g = kd.Graph.from_calls([(scale, X, 3)])
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(kd.Error, match="be copied or pickled"):
            way(g)
    assert len(g.nodes) == 1
    np.testing.assert_array_equal(g(), X * 3)


def test_a_copy_to_a_broadcast_array_is_refused():
    target = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (3,), (0,))
    with kd.Graph() as g, pytest.raises(kd.Error, match="several elements of the target of a copy share memory"):
        g.copy(target, np.ones(3, np.float32))


def test_a_copy_within_itself_is_refused():
    """A GPU copies in no fixed order."""
    x = np.arange(8, dtype=np.float32)
    with kd.Graph() as g:
        for target, source in ((x[1:], x[:-1]), (x, x[::-1])):
            with pytest.raises(kd.Error, match="share some of their memory") as caught:
                g.copy(target, source)
            assert isinstance(caught.value, ValueError)
        g.copy(x[::2], x[1::2])
    g()
    np.testing.assert_array_equal(x, [1, 1, 3, 3, 5, 5, 7, 7])
