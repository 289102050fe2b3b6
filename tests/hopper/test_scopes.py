"""Scratch that ends: SMEM shared by scopes that are never open together, and what that must not break."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import assemble, random, tiles

pytestmark = pytest.mark.tma

f32, bf16 = kd.float32, kd.bfloat16


def test_one_after_another(interpret: Any, rng: Any) -> None:
    """In a loop: written by lanes and read by a copy, then written by a copy and read by lanes, in the same bytes."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, 3, 64, 128), f32))
    def kernel(x: Any, out: Any) -> None:
        def by_lanes(i: Any, tile: Any) -> None:
            tile[...] = x[i]
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, out.at[0, i])
            kd.wait_smem_to_gmem(0)

        def by_copies(i: Any, tile: Any, ready: Any) -> None:
            kd.copy_gmem_to_smem(x.at[i], tile, ready)
            kd.barrier_wait(ready)
            out[1, i] = tile[...].T.T

        @kd.loop(0, 3)
        def _(i: Any) -> None:
            kd.run_scoped(functools.partial(by_lanes, i), kd.SMEM((64, 128), f32))
            kd.run_scoped(functools.partial(by_copies, i), kd.SMEM((64, 128), f32), kd.Barrier())

    x = random(rng, (3, 64, 128), f32)
    assert kernel.lower(x).kernel.launch.dynamic_smem < 2 * 64 * 128 * 4
    assert np.array_equal(kernel(x, interpret=interpret), np.stack([x, x]))


def test_nests(interpret: Any, rng: Any) -> None:
    """A scope keeps its memory while scopes inside it come and go."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4, 64, 64), f32))
    def kernel(x: Any, out: Any) -> None:
        def outer(kept: Any) -> None:
            kept[...] = x[0]
            for i in range(1, 3):

                def inner(tile: Any, i: int = i) -> None:
                    tile[...] = x[i]
                    out[i] = tile[...].T

                kd.run_scoped(inner, kd.SMEM((64, 64), f32))
            out[0] = kept[...].T

        def last(tile: Any) -> None:
            tile[...] = x[3]
            out[3] = tile[...].T

        kd.run_scoped(outer, kd.SMEM((64, 64), f32))
        kd.run_scoped(last, kd.SMEM((64, 64), f32))

    x = random(rng, (4, 64, 64), f32)
    refs = {r.offset for r in kernel.lower(x).kernel.names.smem if r.kind == "ref"}
    assert len(refs) == 2
    assert {line.file for line in kernel.lower(x).kernel.lines.values()} == {__file__}
    assert np.array_equal(kernel(x, interpret=interpret), x.transpose(0, 2, 1))


@pytest.mark.parametrize("collective", [False, True])
def test_warpgroups_share_only_together(collective: bool, interpret: Any, rng: Any) -> None:
    """In a branch of its own, each warpgroup has its own memory; where all of them come, they meet first."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4, 128), f32), num_threads=2, thread_name="wg")
    def kernel(x: Any, out: Any) -> None:
        wg = kd.axis_index("wg")

        def mine(tile: Any, ready: Any, row: Any) -> None:
            kd.copy_gmem_to_smem(x.at[row], tile, ready)
            kd.barrier_wait(ready)
            out[row] = tile[...]

        for i in range(2):
            if collective:

                def all_of_us(tiles: Any, ready: Any, i: int = i) -> None:
                    mine(tiles.at[wg], ready.at[wg], i * 2 + wg)

                types = kd.SMEM((2, 128), f32), kd.Barrier(num_barriers=2)
                kd.loop(0, 1)(lambda _, f=all_of_us, t=types: kd.run_scoped(f, *t, collective_axes="wg"))
            else:
                for number in range(2):
                    one = functools.partial(mine, row=i * 2 + number)
                    kd.when(wg == number)(lambda f=one: kd.run_scoped(f, kd.SMEM((128,), f32), kd.Barrier()))

    x = random(rng, (4, 128), f32)
    offsets = {r.offset for r in kernel.lower(x).kernel.names.smem if r.kind == "ref"}
    assert len(offsets) == (1 if collective else 4)
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_pipelines_one_after_another(interpret: Any, rng: Any) -> None:
    """Three pipelines need the memory of one; products of the first may be in flight when the second starts."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), f32), scratch_types=[kd.ACC((64, 64))])
    def kernel(a: Any, b: Any, out: Any, acc: Any) -> None:
        def body(index: Any, x: Any, y: Any) -> None:
            kd.wgmma(acc, x, y)
            kd.wgmma_wait(1)

        options = {"transforms": tiles(bf16), "delay_release": 1}
        for _ in range(3):
            kd.emit_pipeline(
                body,
                grid=(4,),
                in_specs=[
                    kd.BlockSpec((64, 64), lambda k: (0, k), **options),
                    kd.BlockSpec((64, 64), lambda k: (k, 0), **options),
                ],
                max_concurrent_steps=4,
            )(a, b)
        out[...] = acc[...]

    a, b = random(rng, (64, 256), bf16), random(rng, (256, 64), bf16)
    assert assemble(kernel, a, b).resources.shared_bytes < 80 * 1024
    expected = 3 * (a.astype(np.float64) @ b.astype(np.float64))
    assert np.allclose(kernel(a, b, interpret=interpret), expected, atol=1e-3)


def test_run_state_with_an_accumulator(interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), f32), scratch_types=[kd.SMEM((64, 64), bf16)])
    def kernel(x: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()

        def square(state: Any) -> None:
            kd.wgmma(state["acc"], tile, tile)
            state["rows"][...] = kd.sum(tile[...].astype(f32), axis=1)

        init = {"acc": kd.ACC.init(kd.full((64, 64), 2.0, f32)), "rows": kd.zeros((64,), f32)}
        end = kd.run_state(square)(init)
        out[...] = end["acc"] + end["rows"][:, None]

    x = random(rng, (64, 64), bf16).astype(np.float64)
    expected = x @ x + 2 + x.sum(1, keepdims=True)
    assert np.allclose(kernel(x.astype(bf16.numpy), interpret=interpret), expected, atol=1e-3)


def test_a_barrier_for_each_warpgroup(interpret: Any, rng: Any) -> None:
    """Every warpgroup runs one line, on its own buffer and barrier; scopes in a row share memory once all have met."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, 3, 128), f32), num_threads=2, thread_name="wg")
    def kernel(x: Any, out: Any) -> None:
        wg = kd.axis_index("wg")
        for i in range(3):

            def run(tile: Any, ready: Any, i: int = i) -> None:
                kd.copy_gmem_to_smem(x.at[wg, i], tile.at[wg], ready.at[wg])
                kd.barrier_wait(ready.at[wg])
                out[wg, i] = tile[wg]

            kd.run_scoped(run, kd.SMEM((2, 128), f32), kd.Barrier(num_barriers=2))

    x = random(rng, (2, 3, 128), f32)
    assert kernel.lower(x).kernel.launch.dynamic_smem < 2 * 2 * 128 * 4
    kernel.lower(x).compile()
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_more_barriers_than_bits_in_a_word(interpret: Any, rng: Any) -> None:
    """100 barriers, two phases each, by a dynamic index."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 100, 32), f32),
        scratch_types=[kd.SMEM((100, 32), f32), kd.Barrier(num_barriers=(4, 25))],
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        for phase in range(2):

            @kd.loop(0, 100)
            def _(i: Any, phase: int = phase) -> None:
                kd.copy_gmem_to_smem(x.at[phase, i], tile.at[i], ready.at[i // 25, i % 25])

            @kd.loop(0, 100)
            def _(i: Any, phase: int = phase) -> None:
                kd.barrier_wait(ready.at[i // 25, i % 25])
                out[phase, i] = tile[i]

    x = random(rng, (2, 100, 32), f32)
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.wgmma
@pytest.mark.parametrize("waits", ["in a branch", "in a loop", "behind the next scope"])
def test_products_that_some_paths_await(waits: str, interpret: Any) -> None:
    """The wait in a scope is skipped, or comes in a later turn, and the next scope stores to the memory of the product's data."""
    f16, turns = kd.float16, 2 if waits == "behind the next scope" else 1

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((64, 64), f32), kd.ShapeDtypeStruct((64, 64), f16)),
        scratch_types=[kd.ACC((64, 64), f32)],
        compiler_params=kd.CompilerParams(target="sm_90a"),
    )
    def kernel(a: Any, none: Any, out: Any, doubled: Any, acc: Any) -> None:
        def product(tile: Any) -> None:
            tile[...] = a[...]
            kd.commit_smem()
            kd.wgmma(acc, tile, tile)
            if waits == "in a branch":
                kd.when(none > 0)(lambda: kd.wgmma_wait(0))
            elif waits == "in a loop":
                kd.fori_loop(0, none, lambda i, c: (kd.wgmma_wait(0), c)[1], 0)

        def store(tile: Any) -> None:
            tile[...] = a[...] * 2
            doubled[...] = tile[...]

        scoped = kd.SMEM((64, 64), f16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128)))

        @kd.loop(0, turns)
        def _(i: Any) -> None:
            if turns > 1:
                kd.run_scoped(store, scoped)
                kd.wgmma_wait(0)
            kd.run_scoped(product, scoped)
            if turns == 1:
                kd.run_scoped(store, scoped)

        kd.wgmma_wait(0)
        out[...] = acc[...]

    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    out, doubled = kernel(a, 0, interpret=interpret)
    np.testing.assert_array_equal(out, turns * (a.astype(np.float32) @ a.astype(np.float32)))
    np.testing.assert_array_equal(doubled, a * 2)


@pytest.mark.wgmma
@pytest.mark.parametrize("warpgroups", [1, 2])
@pytest.mark.parametrize("how", ["scope", "union", "copied union"])
def test_products_that_are_in_flight_when_memory_is_used_again(how: str, warpgroups: int, interpret: Any) -> None:
    """The same scope opens again in a loop, or a member of a union is written over another: the compiler waits."""
    f16 = kd.float16
    tile = kd.SMEM((64, 64), f16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128)))
    options: Any = {} if warpgroups == 1 else {"num_threads": 2, "thread_name": "wg"}

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), f32),
        scratch_types=[kd.ACC((64, 64), f32), kd.RefUnion(tile, tile), kd.Barrier()],
        compiler_params=kd.CompilerParams(target="sm_90a"),
        **options,
    )
    def kernel(a: Any, out: Any, acc: Any, union: Any, barrier: Any) -> None:
        def product(tile: Any) -> None:
            tile[...] = a[...]
            kd.commit_smem()
            kd.wgmma(acc, tile, tile)

        def body() -> None:
            if how == "scope":
                kd.loop(0, 3)(lambda i: kd.run_scoped(product, tile))
            else:
                product(union[0])
                if how == "union":
                    union[1][...] = a[...]
                else:
                    kd.copy_gmem_to_smem(a, union[1], barrier)
                    kd.barrier_wait(barrier)
            total = acc[...]
            out[...] = total if how == "scope" else total + union[1][...]

        kd.when(kd.axis_index("wg") == 0)(body) if warpgroups > 1 else body()

    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    square = a.astype(np.float32) @ a.astype(np.float32)
    np.testing.assert_array_equal(kernel(a, interpret=interpret), 3 * square if how == "scope" else square + a)


@pytest.mark.wgmma
def test_an_operand_that_a_loop_carries_is_refused_before_a_wait() -> None:
    """Its registers change at the loop's next turn, while a wgmma may read them."""

    def made(wait: bool) -> Any:
        @kd.kernel(
            out_type=kd.ShapeDtypeStruct((64, 64), f32),
            scratch_types=[
                kd.ACC((64, 64), f32),
                kd.SMEM((64, 64), kd.float16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))),
            ],
            compiler_params=kd.CompilerParams(target="sm_90a"),
        )
        def kernel(a: Any, out: Any, acc: Any, tile: Any) -> None:
            tile[...] = a[...]
            kd.commit_smem()

            def step(i: Any, left: Any) -> Any:
                kd.wgmma(acc, left, tile)
                if wait:
                    kd.wgmma_wait(0)
                return left * 2

            kd.fori_loop(0, 3, step, a[...])
            out[...] = acc[...]

        return kernel

    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    square = a.astype(np.float32) @ a.astype(np.float32)
    np.testing.assert_array_equal(made(True)(a, interpret=True), 7 * square)
    with pytest.raises(kd.Error, match="computed again before a wait"):
        made(False)(a, interpret=True)
