"""Loops that take the next piece of work from a counter: each piece is done once, by whoever is free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

pytestmark = pytest.mark.cluster

f32, i32 = kd.float32, kd.int32


def test_each_point_once(interpret: Any, rng: Any) -> None:
    """Work of very different lengths; each row is written by one block, which counts its own."""
    rows, columns = 5, 3

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((rows, columns, 64), f32), kd.ShapeDtypeStruct((rows * columns,), i32, init=0)],
        grid=(rows, columns),
        grid_names=("i", "j"),
    )
    def kernel(x: Any, out: Any, turns: Any) -> None:
        @kd.dynamic_scheduling_loop(("i", "j"), init_carry=0)
        def done(info: Any, count: Any) -> Any:
            i, j = info.index
            out[i, j] = kd.fori_loop(0, i * 3, lambda _, v: v * 1.5, x[i, j])
            return count + 1 + 0 * info.local_index

        turns[kd.axis_index(("i", "j"))] = done

    x = rng.standard_normal((rows, columns, 64)).astype(np.float32)
    for _ in range(2):  # the counter is zero again at each launch
        out, turns = kernel(x, interpret=interpret)
        scale = 1.5 ** (3 * np.arange(rows))
        np.testing.assert_allclose(out, x.astype(np.float64) * scale[:, None, None], rtol=1e-5)
        assert turns.sum() == rows * columns and (turns >= 0).all()


def test_no_mask_where_points_fit(rng: Any) -> None:
    """That a point lies inside the grid is known: nothing is masked."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((6, 128), f32), grid=(6,), grid_names=("i",))
    def kernel(x: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop("i")
        def _(info: Any) -> None:
            out[info.index[0]] = x[info.index[0]]

    x = rng.standard_normal((6, 128)).astype(np.float32)
    text = kernel.lower(x, target="sm_90a").ir_text
    assert "load(" in text and "Limit(" not in text, text


def test_other_axes_have_counters_of_their_own(interpret: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, 4), i32, init=0), grid=(2, 4), grid_names=("which", "i"))
    def kernel(out: Any) -> None:
        @kd.dynamic_scheduling_loop("i")
        def _(info: Any) -> None:
            kd.atomic_add(out.at[kd.axis_index("which"), info.index[0]], 1 + info.index[0])

    assert np.array_equal(kernel(interpret=interpret), [[1, 2, 3, 4]] * 2)


def test_batches_have_counters_of_their_own() -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((3,), f32), grid=(3,), grid_names=("i",))
    def kernel(x: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop("i")
        def _(info: Any) -> None:
            out[info.index[0]] = x[info.index[0]] + 1.0

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(kd.vmap(kernel, 0)(x, interpret=kd.InterpretParams()), x + 1)


def test_warpgroups_share_each_point(interpret: Any, rng: Any) -> None:
    """Two warpgroups hand over what they read: both must be at the same point, in each of many steps."""
    n = 7

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((n, 128), f32),
        grid=(n,),
        grid_names=("i",),
        num_threads=2,
        thread_name="wg",
        scratch_types=[kd.SMEM((128,), f32), kd.Barrier(), kd.Barrier()],
    )
    def kernel(x: Any, out: Any, tile: Any, full: Any, empty: Any) -> None:
        me = kd.axis_index("wg")

        @kd.dynamic_scheduling_loop("i", thread_axis="wg", init_carry=0)
        def _(info: Any, count: Any) -> Any:
            (i,) = info.index

            @kd.when(me == 0)
            def _() -> None:
                @kd.when(count > 0)
                def _() -> None:
                    kd.barrier_wait(empty)

                tile[...] = x[i] * 2.0
                kd.barrier_arrive(full)

            @kd.when(me == 1)
            def _() -> None:
                kd.barrier_wait(full)
                out[i] = tile[...] + x[i]
                kd.barrier_arrive(empty)

            return count + 1

    x = rng.standard_normal((n, 128)).astype(np.float32)
    np.testing.assert_allclose(kernel(x, interpret=interpret), 3 * x.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_a_cluster_share_each_point(threads: int, interpret: Any) -> None:
    """Each block and warpgroup of the cluster writes its part of each point."""
    n = 5

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((n, 2, threads), i32, init=0),
        grid=(n,),
        grid_names=("i",),
        cluster=(2,),
        cluster_names=("c",),
        num_threads=threads,
        thread_name="wg",
    )
    def kernel(out: Any) -> None:
        @kd.dynamic_scheduling_loop("i", thread_axis="wg", cluster_axes="c")
        def _(info: Any) -> None:
            (i,) = info.index
            kd.atomic_add(out.at[i, kd.axis_index("c"), kd.axis_index("wg")], i + 1)

    expected = np.broadcast_to(np.arange(1, n + 1)[:, None, None], (n, 2, threads))
    assert np.array_equal(kernel(interpret=interpret), expected)


def test_one_compile_for_every_grid(rng: Any) -> None:
    """The number of points comes from the launch: no mask, no other code for another grid."""

    @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 2), x.shape[1]), grid_names=("i", "j"))
    def kernel(x: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop(("i", "j"))
        def _(info: Any) -> None:
            i, j = info.index
            rows = kd.ds(i * 2, 2)
            out[rows, j] = x[rows, j] * 2.0 + j.astype(f32)

    for shape in ((3, 2, 64), (7, 5, 64), (1, 1, 64), (0, 3, 64), (4, 1, 64)):
        x = rng.standard_normal(shape).astype(np.float32)
        expected = x * 2 + np.arange(shape[1], dtype=np.float32)[:, None]
        np.testing.assert_array_equal(kernel(x, interpret=True), expected)
    assert len(kernel.specialisations()) == 1
    text = kernel.lower(kd.ShapeDtypeStruct((6, 3, 64), f32), target="sm_90a").ir_text
    assert text.count("Limit(") == 2, "only the last of an odd number of rows is masked"


def test_one_compile_for_every_dim(interpret: Any, rng: Any) -> None:
    """Warpgroups and blocks of a cluster share points whose number is a Dim."""
    rows = kd.Dim("rows")

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((rows, 64), f32),
        shapes={"x": (rows, 64)},
        grid=(rows,),
        grid_names=("i",),
        cluster=(2,),
        cluster_names=("c",),
        num_threads=2,
        thread_name="wg",
    )
    def kernel(x: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop("i", thread_axis="wg", cluster_axes="c")
        def _(info: Any) -> None:
            (i,) = info.index

            @kd.when((kd.axis_index("c") == 1) & (kd.axis_index("wg") == 1))
            def _() -> None:
                out[i] = x[i] * 2.0

    for n in (5, 1, 3):
        x = rng.standard_normal((n, 64)).astype(np.float32)
        np.testing.assert_array_equal(kernel(x, interpret=interpret), x * 2)
    assert len(kernel.specialisations()) == 1
    assert "Limit(" not in kernel.lower(kd.ShapeDtypeStruct((rows, 64), f32)).ir_text


def test_more_points_than_tickets() -> None:
    @kd.kernel(out_type=lambda n: kd.ShapeDtypeStruct((1,), i32, init=0), grid=lambda n: (n,), grid_names=("i",))
    def kernel(n: Any, out: Any) -> None:
        @kd.dynamic_scheduling_loop("i")
        def _(info: Any) -> None:
            kd.atomic_add(out.at[0], 1)

    assert kernel(7, interpret=True)[0] == kernel(9, interpret=True)[0] - 2 == 7
    assert len(kernel.specialisations()) == 1
    with pytest.raises(kd.errors.BadArgument, match="1073741825 points"):
        kernel(2**30 + 1, interpret=True)
