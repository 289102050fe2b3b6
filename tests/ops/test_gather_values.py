"""Values indexed by arrays of integers, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

Spec = kd.ShapeDtypeStruct
X = np.random.default_rng(0).standard_normal((5, 6, 7)).astype(np.float32)
I, J = np.array([3, 0, 2, 3], np.int32), np.array([[5], [1]], np.int32)  # noqa: E741


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i, j: x[i],
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[..., i],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, :, j],
        lambda x, i, j: x[1:4, j, 2],
        lambda x, i, j: x[2, :, i],
        lambda x, i, j: x[:, None, i, ::2],
    ],
    ids=range(8),
)
def test_as_numpy_has_it(pick: Any, interpret: Any) -> None:
    wanted = pick(X, I, J)

    def body(x: Any, i: Any, j: Any, traced: Any, static: Any) -> None:
        traced[...] = pick(x[...], i[...], j[...])
        static[...] = pick(x[...], I, J)

    out = (Spec(wanted.shape, kd.float32), Spec(wanted.shape, kd.float32))
    for got in kd.kernel(body, out_type=out, interpret=interpret)(X, I, J):
        assert (got == wanted).all()


def test_out_of_range_gives_zero(interpret: Any) -> None:
    rows, columns = np.array([0, -1, 4, 5], np.int32), np.array([6, 1, 2, 3], np.int32)

    def body(x: Any, i: Any, j: Any, one: Any, two: Any, apart: Any) -> None:
        v = x[...]
        one[...] = v[:, i[...]]
        two[...] = v[i[...], j[...]]
        apart[...] = v[i[...], :, j[...]]

    out = (Spec((5, 4, 7), kd.float32), Spec((4, 7), kd.float32), Spec((4, 6), kd.float32))
    one, two, apart = kd.kernel(body, out_type=out, interpret=interpret)(X, rows, columns)
    good = rows >= 0
    assert (one == np.where(good[None, :, None], X[:, np.where(good, rows, 0)], 0)).all()
    good = (rows >= 0) & (rows < 5) & (columns < 6)
    assert (two == np.where(good[:, None], X[np.where(good, rows, 0), np.where(good, columns, 0)], 0)).all()
    good = (rows >= 0) & (rows < 5) & (columns < 7)
    assert (apart == np.where(good[:, None], X[np.where(good, rows, 0), :, np.where(good, columns, 0)], 0)).all()


def test_an_empty_list_takes_nothing() -> None:
    """As in NumPy, where it is no array of floats; of values and of Refs."""
    shapes: list[tuple[int, ...]] = []

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), interpret=True)
    def kernel(x: Any, out: Any) -> None:
        value = x[...]
        shapes.extend(v.shape for v in (value[[]], value[:, []], x[[]], kd.take_along_axis(value[0], [])))
        out[[]] = 5.0
        out[...] = value

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(kernel(x), x)
    assert shapes == [(0, 8), (4, 0), (0, 8), (0,)]
