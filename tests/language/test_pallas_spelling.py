"""Names that Pallas has, and what they do here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.layouts import mma_rhs

Spec = kd.ShapeDtypeStruct
f32 = kd.float32


def run(body: Any, out: Any, *args: Any, interpret: Any = True, **options: Any) -> Any:
    return kd.kernel(body, out_type=out, interpret=interpret, **options)(*args)


@pytest.mark.dsmem
def test_a_barrier_that_the_leader_tracks(interpret: Any) -> None:
    """All blocks arrive at the first one's barrier, which waits alone, twice over."""

    def body(x: Any, out: Any, buffer: Any, arrived: Any, read: Any) -> None:
        me = kd.axis_index("c")
        there = kd.cluster_ref(buffer, {"c": 0})
        for turn in range(2):
            there[me] = x[me] + turn
            kd.barrier_arrive(arrived)

            @kd.when(me == 0)
            def _(turn: int = turn) -> None:
                kd.barrier_wait(arrived)
                out[turn] = buffer[0] + 10 * buffer[3]

            kd.barrier_arrive_and_wait(read)

    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    got = run(
        body, Spec((2, 32), f32), x, interpret=interpret, cluster=(4,), cluster_names=("c",),
        scratch_types=[
            kd.SMEM((4, 32), f32),
            kd.ClusterBarrier(collective_axes=("c",), leader_tracked=True),
            kd.ClusterBarrier(collective_axes=("c",)),
        ],
    )  # fmt: skip
    assert (got == np.stack([x[0] + 10 * x[3] + 11 * turn for turn in range(2)])).all()


def test_only_the_leader_may_wait() -> None:
    def body(out: Any, arrived: Any) -> None:
        kd.barrier_arrive(arrived)
        kd.barrier_wait(arrived)
        out[...] = 1.0

    with pytest.raises(kd.HazardError) as caught:
        run(
            body, Spec((2,), f32), cluster=(2,), cluster_names=("c",),
            scratch_types=[kd.ClusterBarrier(collective_axes=("c",), leader_tracked=True)],
        )  # fmt: skip
    assert caught.value.kind == kd.HazardKind.DEADLOCK


def test_options_of_pallas(tmp_path: Path) -> None:
    x = np.arange(64, dtype=np.float32)
    params = kd.CompilerParams(profile_space=16, profile_dir=str(tmp_path), reduction_scratch_bytes=0)

    def body(x: Any, out: Any) -> None:
        out[...] = kd.sum(x[...])

    assert run(body, Spec((), f32), x, compiler_params=params) == x.sum()


def test_products_that_are_skipped() -> None:
    """Sums of floats are infinite; sums of ints, and all else, are what they are."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    w = np.ones((64, 64), np.int8)
    tiles = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))

    def body(x: Any, w: Any, warps: Any, ints: Any, group: Any, plain: Any, left: Any, right: Any, ready: Any) -> None:
        warps[...] = kd.dot(x[...], x[...])
        ints[...] = kd.dot(w[...], w[...])
        plain[...] = x[...].astype(f32) * 2
        kd.copy_gmem_to_smem(x, left, ready)
        kd.copy_gmem_to_smem(x, right, ready)
        kd.barrier_wait(ready)

        def multiply(acc: Any) -> Any:
            kd.wgmma(acc, left, right)
            kd.wgmma_wait(0)
            return acc[...]

        group[...] = kd.run_scoped(multiply, kd.ACC((64, 64)))

    square = Spec((64, 64), f32)
    warps, ints, group, plain = run(
        body, (square, Spec((64, 64), kd.int32), square, square), x, w,
        interpret=kd.InterpretParams(skip_floating_point_ops=True),
        scratch_types=[*[kd.SMEM((64, 64), kd.float16, transforms=tiles)] * 2, kd.Barrier(2)],
    )  # fmt: skip
    assert np.isinf(warps).all()
    assert np.isinf(group).all()
    assert (ints == 64).all()
    assert (plain == x.astype(np.float32) * 2).all()


def test_squeezed_and_traced_blocks(interpret: Any) -> None:
    """`kd.squeezed` drops an axis; indices and starts come from an array, and blocks overlap."""
    rng = np.random.default_rng(1)
    x, starts = rng.standard_normal((3, 64, 32)).astype(np.float32), np.array([3, 0, 56, 17], np.int32)

    def body(x: Any, starts: Any, out: Any) -> None:
        def step(_: Any, window: Any, made: Any) -> None:
            made[...] = window[0:8] + window[2:10]

        kd.emit_pipeline(
            step,
            grid=(3, 4),
            in_specs=[kd.BlockSpec((kd.squeezed, kd.Element(10, (1, 1)), 32), lambda i, j: (i, starts[j], 0))],
            out_specs=[kd.BlockSpec((None, 8, 32), lambda i, j: (i, j, 0))],
            max_concurrent_steps=2,
        )(x, out)

    got = run(body, Spec((3, 32, 32), f32), x, starts, interpret=interpret)
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    wanted = np.concatenate([padded[:, s : s + 8] + padded[:, s + 2 : s + 10] for s in starts], axis=1)
    assert (got == wanted).all()


@pytest.mark.tma
@pytest.mark.parametrize("delay", [1, 2])
def test_delayed_release_by_hand(delay: int, interpret: Any) -> None:
    """The body frees the block of `delay` steps ago before it reads its own, and uses what it still has of the last."""
    x = np.random.default_rng(2).standard_normal((6, 16, 64)).astype(np.float32)

    def body(x: Any, out: Any) -> None:
        def step(_: Any, block: Any, freed: Any, carry: Any) -> Any:
            kd.barrier_arrive(freed)
            return carry + block[...]

        def around(pipeline: Any) -> None:
            out[...] = pipeline(kd.zeros((16, 64), f32))

        kd.emit_pipeline_warp_specialized(
            step, grid=(6,), memory_registers=40, max_concurrent_steps=3, wg_axis="wg", num_compute_wgs=1,
            in_specs=[kd.BlockSpec((None, 16, 64), lambda i: (i, 0, 0), delay_release=delay)],
            manual_consumed_barriers=True, compute_context=around,
        )(x)  # fmt: skip

    got = run(body, Spec((16, 64), f32), x, interpret=interpret, num_threads=2, thread_name="wg")
    wanted = np.zeros((16, 64), np.float32)
    for part in x:
        wanted += part
    assert (got == wanted).all()


def test_inline_ptx_on_refs(interpret: Any) -> None:
    x = np.arange(64, dtype=np.float32)

    def body(x: Any, near: Any, far: Any, buffer: Any) -> None:
        block = kd.program_id(0)
        buffer[...] = x[...]
        near[block] = kd.inline_ptx("ld.shared.f32 $0, [$1+4];", buffer.at[block * 3], out_type=f32)
        text = "{ .reg .b64 a; mad.wide.u32 a, $2, 4, $1; ld.global.f32 $0, [a]; }"
        far[block] = kd.inline_ptx(text, x.at[kd.ds(block, 32)], kd.arange(32), out_type=f32)

    near, far = run(
        body,
        (Spec((4,), f32), Spec((4, 32), f32)),
        x,
        interpret=interpret,
        grid=(4,),
        scratch_types=[kd.SMEM((64,), f32)],
    )
    assert (near == np.arange(4) * 3 + 1).all()
    assert (far == np.arange(4)[:, None] + np.arange(32)).all()


def test_inline_ptx_on_registers(interpret: Any) -> None:
    """A product of fragments by hand: 16-bit elements go two to a register."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 16), (16, 8)))
    text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0[*]}, {$1[0], $1[2], $1[1], $1[3]}, {$2[*]}, {$3[*]};"

    def body(a: Any, b: Any, out: Any, twice: Any) -> None:
        left = kd.layout_cast(a[...], kd.Layout.WGMMA)
        right = kd.layout_cast(b[...], mma_rhs((64, 8, 16), 2))
        zeros = kd.layout_cast(kd.zeros((64, 8), f32), kd.Layout.WGMMA)
        made = kd.inline_ptx(text, left, right, zeros, out_type=Spec((64, 8), f32), layout=kd.Layout.WGMMA)
        out[...] = made
        add = "add.f32 $0[0], $1[0], $1[0]; add.f32 $0[1], $1[1], $1[1]; mov.b32 $0[2], $1[2]; mov.b32 $0[3], $1[3];"
        twice[...] = kd.inline_ptx(add, made, out_type=f32, pure=True)

    got, twice = run(body, (Spec((64, 8), f32), Spec((64, 8), f32)), a, b, interpret=interpret)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    assert (got == wanted).all()
    rows = np.arange(64)[:, None] % 16 < 8  # registers 0 and 1 hold the upper eight rows of each sixteen
    assert (twice == np.where(rows, 2 * wanted, wanted)).all()
