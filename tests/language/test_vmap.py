"""Kernels over a batch: a leading axis of the grid, of which the body knows nothing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadArgument, BadArgumentType, KernelValue
from tests.ops.harness import random

Spec = kd.ShapeDtypeStruct


@kd.kernel(
    out_type=lambda x, y: Spec(x.shape, x.dtype), grid=lambda x, y: (kd.cdiv(x.shape[0], 128),), grid_names=("i",)
)
def add(x: Any, y: Any, out: Any) -> None:
    assert kd.num_programs(0) == kd.axis_size("i") == -(-x.shape[0] // 128)
    part = kd.ds(kd.program_id(0) * 128, 128)
    out[part] = x[part] + y[part] * kd.axis_index("i")


def added(x: Any, y: Any) -> Any:
    return x + y * (np.arange(len(x)) // 128).astype(np.float32)


@pytest.mark.parametrize(("in_axes", "x_shape", "y_shape"), [
    (0, (5, 300), (5, 300)), ((0, None), (5, 300), (300,)), ((-1, 0), (300, 5), (5, 300)), ([None, 1], (300,), (300, 5)),
])  # fmt: skip
def test_a_member_has_its_part(in_axes: Any, x_shape: Any, y_shape: Any, interpret: Any) -> None:
    x, y = random(x_shape, "float32"), random(y_shape, "float32", seed=1)
    axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes, in_axes)
    xs, ys = (np.moveaxis(a, d, 0) if d is not None else [a] * 5 for a, d in zip((x, y), axes, strict=True))
    got = kd.vmap(add, in_axes)(x, y, interpret=interpret)
    np.testing.assert_array_equal(got, [added(a, b) for a, b in zip(xs, ys, strict=True)])


def test_maps_of_maps(interpret: Any) -> None:
    x, y = random((2, 3, 140), "float32"), random((140, 3), "float32", seed=1)
    got = kd.vmap(kd.vmap(add, (0, 1)), (0, None))(x, y, interpret=interpret)
    np.testing.assert_array_equal(got, [[added(x[i, j], y[:, j]) for j in range(3)] for i in range(2)])


def test_nests_scratch_and_semaphores(interpret: Any) -> None:
    """A nest maps all its arrays; scratch is of one member; members count by themselves."""

    @kd.kernel(
        out_type=[Spec((64,), kd.float32), Spec((4,), kd.int32)],
        scratch_types=lambda pair, n: [kd.SMEM(pair["a"].shape, kd.float32)],
        grid=(4,),
    )
    def kernel(pair: Any, n: Any, out: Any, turns: Any, s: Any) -> None:
        s[...] = pair["a"][...] + n
        count = kd.get_global(kd.SemaphoreType.REGULAR)
        turns[kd.program_id(0)] = kd.atomic_add(count, 1)
        kd.when(kd.program_id(0) == 0)(lambda: kd.store(out, ..., s[...] * pair["b"][...]))

    a, b = random((3, 64), "float32"), random((3, 64), "float32", seed=1)
    out, turns = kd.vmap(kernel, (0, None))({"a": a, "b": b}, np.float32(2.0), interpret=interpret)
    np.testing.assert_array_equal(out, (a + 2) * b)
    np.testing.assert_array_equal(np.sort(turns, axis=1), np.tile(np.arange(4), (3, 1)))


def test_axes_of_the_arrays_of_a_nest(interpret: Any) -> None:
    f32 = kd.float32

    @kd.kernel(out_type=lambda named, listed: {"sum": Spec(named["x"].shape, f32), "dot": Spec((), f32)})
    def kernel(named: Any, listed: Any, out: Any) -> None:
        out["sum"][...] = named["x"][...] + named["shift"][...] * listed[1][0][...]
        out["dot"][...] = kd.sum(named["x"][...]) + kd.sum(listed[0][...])

    rng = np.random.default_rng(0)
    x, shift, more, factor = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 40), 40, (4, 3), 40))
    for listed in ((1, [None]), (1, None)):
        mapped = kd.vmap(kernel, ({"x": 0, "shift": None}, listed))
        made = mapped({"x": x, "shift": shift}, (more, [factor]), interpret=interpret)
        np.testing.assert_allclose(made["sum"], x + shift * factor, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(made["dot"], x.sum(1, dtype=float) + more.sum(0), rtol=1e-5, atol=1e-5)


def test_a_map_is_pickled_as_one() -> None:
    x, y = random((2, 3, 140), "float32"), random((140, 3), "float32", seed=1)
    mapped = kd.vmap(kd.vmap(add, (0, 1)), (0, None))
    again = pickle.loads(pickle.dumps(mapped))
    np.testing.assert_array_equal(again(x, y, interpret=True), mapped(x, y, interpret=True))


def test_no_mask_comes_of_the_batch() -> None:
    x = np.zeros((5, 256), np.float32)
    one, all_five = add.lower(x[0], x[0]).ptx, kd.vmap(add).lower(x, x).ptx
    assert one.count("setp") == all_five.count("setp") == 1  # the lanes of a block that have no element


@pytest.mark.parametrize(("in_axes", "shapes", "said"), [
    (0, ((5, 8), (4, 8)), "batches of 5 and 4"), ((0, 0, 0), ((5, 8), (5, 8)), "3 in_axes for 2 inputs"),
    ((0, 1), ((5, 8), (8,)), r"axis 1 of an input of shape \(8,\)"),
    (((0, 0), 0), ((5, 8), (5, 8)), r"in_axes has \(0, 0\) for an input that is value"),
])  # fmt: skip
def test_batches_that_differ_are_refused(in_axes: Any, shapes: Any, said: str) -> None:
    with pytest.raises(KernelValue, match=said):
        kd.vmap(add, in_axes)(*(np.ones(s, np.float32) for s in shapes), interpret=True)


def test_what_is_no_axis_is_refused() -> None:
    for axes in ("0", True, (0, 1.5), {"x": 0}, (0, [True])):
        with pytest.raises(BadArgumentType, match="in_axes"):
            kd.vmap(add, axes)
    for nothing in (None, (None, None)):
        with pytest.raises(BadArgument, match="mapped axis"):
            kd.vmap(add, nothing)
    with pytest.raises(BadArgumentType, match="is no kernel"):
        kd.vmap(len)
