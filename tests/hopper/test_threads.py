"""Warps on their own, PTX by hand, dependent launches, shared buffers, register budgets, barrier tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import random

pytestmark = [pytest.mark.griddepcontrol, pytest.mark.setmaxnreg]

f32 = kd.float32


def test_warps_copy_on_their_own(interpret: Any, rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((4, 128), f32),
        scratch_types=[kd.SMEM((4, 128), f32), kd.Barrier(num_barriers=4)],
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            kd.copy_gmem_to_smem(x.at[warp], tile.at[warp], ready.at[warp])

        for i in range(4):
            kd.barrier_wait(ready.at[i])

        @kd.warp_map
        def _(warp: Any) -> None:
            @kd.when(warp % 2 == 0)
            def _() -> None:
                @kd.loop(0, 2)
                def _(i: Any) -> None:
                    kd.copy_smem_to_gmem(tile.at[warp + i], out.at[warp + i])

            kd.wait_smem_to_gmem(0)

    x = random(rng, (4, 128), f32)
    kernel.lower(x).compile()
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_each_warp_stores_for_itself(interpret: Any, rng: Any) -> None:
    """Rank-0 stores, atomics and barrier tests inside warp_map are each warp's own."""

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((4, 3), f32), kd.ShapeDtypeStruct((4,), kd.int32)],
        scratch_types=[kd.SMEM((4, 32), f32), kd.SMEM((4,), kd.int32), kd.SMEM((), kd.int32), kd.Barrier(1, 4)],
    )
    def kernel(x: Any, out: Any, order: Any, tile: Any, seen: Any, count: Any, ready: Any) -> None:
        count[...] = 0

        @kd.warp_map
        def _(warp: Any) -> None:
            kd.copy_gmem_to_smem(x.at[warp], tile.at[warp], ready.at[warp])
            seen[kd.atomic_add(count, 1)] = warp
            kd.while_loop(lambda done: ~done, lambda done: kd.barrier_test(ready.at[warp]), kd.bool_(False))
            kd.loop(0, 3)(lambda i: out.__setitem__((warp, i), tile[warp, i] * 2.0))

        order[...] = seen[...]

    x = random(rng, (4, 32), f32)
    kernel.lower(x).compile()
    out, order = kernel(x, interpret=interpret)
    assert np.array_equal(out, 2 * x[:, :3]) and sorted(order) == [0, 1, 2, 3]


def test_warps_arrive_for_the_warpgroup(interpret: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((), kd.int32), scratch_types=[kd.Barrier(num_arrivals=3)])
    def kernel(out: Any, met: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            kd.when(warp != 2)(lambda: kd.barrier_arrive(met))

        kd.barrier_wait(met)
        out[...] = 1

    assert kernel(interpret=interpret) == 1


def test_inline_ptx_and_optimization_barrier(rng: Any) -> None:
    @kd.kernel(out_type=[kd.ShapeDtypeStruct((100,), f32), kd.ShapeDtypeStruct((100,), kd.int32)])
    def kernel(x: Any, sums: Any, signs: Any) -> None:
        hidden = kd.optimization_barrier(x[...])
        total, sign = kd.inline_ptx(
            "add.rn.f32 $0, $2, $3; { .reg .pred p; setp.lt.f32 p, $2, 0f00000000; selp.b32 $1, 1, 0, p; }",
            hidden,
            1.0,
            out_type=(f32, kd.int32),
        )
        sums[...] = total
        signs[...] = sign

    x = random(rng, (100,), f32)
    kernel.lower(x).compile()
    sums, signs = kernel(x, interpret=True)
    assert np.array_equal(sums, x + np.float32(1)) and np.array_equal(signs, x < 0)


def test_dependent_launch_attribute() -> None:
    @kd.kernel(out_type=lambda x: x)
    def first(x: Any, out: Any) -> None:
        out[...] = x[...] + 1
        kd.griddepcontrol_launch_dependents()

    @kd.kernel(out_type=lambda x: x)
    def second(x: Any, out: Any) -> None:
        kd.griddepcontrol_wait()
        out[...] = x[...] * 2

    x = np.arange(64, dtype=np.float32)
    assert not first.lower(x).kernel.launch.programmatic_dependent_launch
    assert second.lower(x).kernel.launch.programmatic_dependent_launch
    assert np.array_equal(second(first(x, interpret=True), interpret=True), (x + 1) * 2)


def test_a_union_takes_the_larger_tree(rng: Any) -> None:
    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((128,), f32), kd.ShapeDtypeStruct((64,), kd.int32)],
        scratch_types=[kd.RefUnion(kd.SMEM((128,), f32), (kd.SMEM((64,), kd.int32), kd.SMEM((96,), kd.int32)))],
    )
    def kernel(x: Any, out: Any, numbers: Any, union: Any) -> None:
        floats, (one, two) = union
        one[...] = kd.arange(64)
        two[...] = kd.arange(96)
        numbers[...] = one[...] + two[:64]
        floats[...] = x[...]
        out[...] = floats[...]

    x = random(rng, (128,), f32)
    out, numbers = kernel(x, interpret=True)
    assert np.array_equal(out, x) and np.array_equal(numbers, 2 * np.arange(64))
    assert sum(r.bytes for r in kernel.lower(x).kernel.names.smem if r.kind == "ref") == 256 + 384


def test_testing_a_barrier(interpret: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2,), kd.int32), num_threads=2, thread_name="wg", scratch_types=[kd.Barrier()]
    )
    def kernel(out: Any, met: Any) -> None:
        wg = kd.axis_index("wg")

        @kd.when(wg == 0)
        def _() -> None:
            kd.barrier_arrive(met)
            out[0] = 1

        @kd.when(wg == 1)
        def _() -> None:
            kd.while_loop(lambda done: ~done, lambda done: kd.barrier_test(met), kd.bool_(False))
            out[1] = 2

    kernel.lower().compile()
    assert list(kernel(interpret=interpret)) == [1, 2]


@pytest.mark.parametrize("low_first", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "most", "good"),
    [
        (40, 232, None, True),
        (24, 240, None, True),
        (200, 240, None, False),
        (40, 240, None, False),
        (40, 232, 160, False),
        (40, 168, 128, True),
        (40, 176, 128, False),
        (40, 168, 127, False),
    ],
)
def test_register_budget(low: int, high: int, most: int | None, good: bool, low_first: bool) -> None:
    """512 registers a lane for the warpgroups together, or those that they start with, whichever comes first in the body."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((3,), kd.int32),
        num_threads=3,
        thread_name="wg",
        compiler_params=kd.CompilerParams(max_registers=most),
    )
    def kernel(out: Any) -> None:
        wg = kd.axis_index("wg")
        for lower in (low_first, not low_first):
            if lower:
                kd.when(wg == 2)(lambda: kd.set_max_registers(low, action="decrease"))
            else:
                kd.when(wg < 2)(lambda: kd.set_max_registers(high, action="increase"))
        out[wg] = wg

    if good:
        kernel.lower().compile()
        return
    with pytest.raises(kd.Error, match="register"):
        kernel.lower()


@pytest.mark.parametrize("use", ["warp_map", "set_max_registers", "wgmma_wait"])
def test_what_warps_do_only_together(use: str) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int32))
    def kernel(out: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            @kd.when(warp == 0)
            def _() -> None:
                if use == "warp_map":
                    kd.warp_map(lambda inner: out.__setitem__(inner, inner))
                elif use == "wgmma_wait":
                    kd.wgmma_wait(0)
                else:
                    kd.set_max_registers(40, action="decrease")

    with pytest.raises(kd.Error, match=f"`{use}` inside `kd.warp_map`"):
        kernel.lower()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("with_barrier", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("shape", [(16, 64), (8, 5), (4,)], ids=str)
def test_a_warp_copies_all_of_a_block(
    target: str, with_barrier: bool, alone: bool, shape: Any, interpret: Any, rng: Any
) -> None:
    """Where lanes do the copying, those of one warp do what a warpgroup's would; alone, or each warp its rows."""
    if with_barrier and target == "sm_90a" and shape != (16, 64):
        pytest.skip("no rows for TMA")

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct(shape, kd.float32),
        scratch_types=[kd.SMEM(shape, kd.float32), kd.Barrier(1 if alone else 4)],
        compiler_params=kd.CompilerParams(target=target),
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            def copy(rows: Any) -> None:
                kd.copy_gmem_to_smem(x.at[rows], tile.at[rows], ready if with_barrier else None)
                if not with_barrier:
                    kd.wait_gmem_to_smem(0)

            count = shape[0] // 4
            if alone:
                kd.when(warp == 2)(lambda: copy(...))
            else:
                copy(kd.ds(kd.multiple_of(warp * count, count), count))

        if with_barrier:
            kd.barrier_wait(ready)
        out[...] = tile[...]

    x = random(rng, shape, kd.float32)
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_slices_of_barriers(interpret: Any, rng: Any) -> None:
    """Slices, with steps and traced starts, name the barriers that NumPy's indices name."""
    numbers = np.arange(24).reshape(4, 6)

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((5, 128), f32),
        scratch_types=[kd.SMEM((5, 128), f32), kd.Barrier(num_barriers=(4, 6)), kd.Barrier()],
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any, single: Any) -> None:
        two = x[0, 0].astype(kd.int32) * 0 + 2  # a value
        picked = [
            (ready.at[1:3].at[1, ::2].at[2], numbers[1:3][1, ::2][2]),
            (ready.at[two, 4:0:-1].at[two - 1], numbers[2, 4:0:-1][1]),
            (ready.at[:, kd.ds(two, 2, 3)].at[two + 1].at[1], numbers[:, 2::3][3][1]),
            (ready.at[kd.ds(1, 3)].at[-1].at[0], numbers[1:4][-1][0]),
        ]
        for row, (barrier, number) in enumerate(picked):
            kd.copy_gmem_to_smem(x.at[row], tile.at[row], barrier)
            kd.barrier_wait(ready.at[int(number) // 6, int(number) % 6])
        kd.copy_gmem_to_smem(x.at[4], tile.at[4], single.at[0:1].at[0])
        kd.barrier_wait(single)
        out[...] = tile[...]

    x = random(rng, (5, 128), f32)
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize("dtype", [kd.float8_e4m3fn, kd.int8, kd.uint8], ids=str)
def test_four_bytes_share_a_register(dtype: Any, rng: Any) -> None:
    """Across blocks and barriers; they took a register each."""

    def body(x: Any, n: Any, out: Any) -> None:
        bytes_of_x = kd.load(x, layout=kd.Layout.WG_STRIDED((64, 128), 4)).astype(dtype)

        @kd.loop(0, n[...], init_carry=bytes_of_x)
        def end(i: Any, y: Any) -> Any:
            y = kd.optimization_barrier(y)
            return kd.cond(i == 1, lambda y: (y.astype(f32) + 1).astype(dtype), lambda y: y, y)

        out[...] = end

    kernel = kd.kernel(body, out_type=kd.ShapeDtypeStruct((64, 128), dtype), name="bytes")
    x = rng.integers(0, 9, (64, 128)).astype(np.float32)
    got = np.asarray(kernel(x, np.int32(3), interpret=True)).astype(np.float32)
    assert np.array_equal(got, x + 1)
    stages = kernel.lower(kd.ShapeDtypeStruct(x.shape, f32), kd.ShapeDtypeStruct((), kd.int32), target="sm_90a")
    assert stages.compile().resources.registers < 64  # of 64 bytes a lane


@pytest.mark.parametrize("count", [32, 33, 65])
def test_phases_of_many_barriers(count: int) -> None:
    """Each barrier has its own: its test is false before its arrival, by known and by computed indices, twice."""

    def body(out: Any, barriers: Any) -> None:
        def check(place: Any, i: Any) -> None:
            out[place] = kd.where(kd.barrier_test(barriers.at[i]), 1, 0)
            kd.barrier_arrive(barriers.at[i])
            kd.barrier_wait(barriers.at[i])

        @kd.loop(0, 2 * count)
        def _(turn: Any) -> None:
            check(turn, kd.rem(turn * 7, count))

        for place in (2 * count, 2 * count + 1):
            check(place, count - 1)

    out_type = kd.ShapeDtypeStruct((2 * count + 2,), kd.int32)
    kernel = kd.kernel(body, out_type=out_type, scratch_types=[kd.Barrier(num_barriers=count)])
    kernel.lower(target="sm_90a").compile()
    assert np.array_equal(kernel(interpret=True), np.zeros(2 * count + 2, np.int32))
