"""Pipelines: depths, carries, delays, dynamic and empty grids, several warpgroups, clusters, repeated runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import assemble, random, relative, tiles

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

f32, bf16 = kd.float32, kd.bfloat16


@pytest.mark.parametrize("depth", [1, 2, 3, 16])
def test_elementwise(depth: int, interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((256, 64), f32), grid=(2,), grid_names=("i",))
    def kernel(x: Any, out: Any) -> None:
        spec = kd.BlockSpec((128, 16), lambda j: (kd.axis_index("i"), j))

        def body(index: Any, a: Any, b: Any) -> None:
            b[...] = a[...] + 1.0

        kd.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=depth)(x, out)

    x = random(rng, (256, 64), f32)
    assert np.array_equal(kernel(x, interpret=interpret), x + np.float32(1))


@pytest.mark.parametrize(("start", "stop"), [(128, 200), (0, 96), (100, 200), (8, 72)])
def test_blocks_of_a_slice(start: int, stop: int, interpret: Any, rng: Any) -> None:
    """What lies beyond the slice stays as it was, in the array and where the array ends."""

    @kd.kernel(out_type=lambda x, y: y, input_output_aliases={1: 0})
    def kernel(x: Any, y: Any, out: Any) -> None:
        def body(index: Any, a: Any, b: Any) -> None:
            b[...] = a[...] + 1.0

        spec, part = kd.BlockSpec((32, 32), lambda i, j: (i, j)), slice(start, stop)
        pipeline = kd.emit_pipeline(
            body, grid=(kd.cdiv(stop - start, 32), 2), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2
        )
        pipeline(x.at[part], out.at[part])

    x, y = random(rng, (200, 64), f32), random(rng, (200, 64), f32)
    if (stop - start) % 32 and stop < 200:
        with pytest.raises(kd.Error, match="blocks of 32 along dimension 0 of a slice"):
            kernel(x, y, interpret=interpret)
        return
    expected = y.copy()
    expected[start:stop] = x[start:stop] + np.float32(1)
    assert np.array_equal(kernel(x, y, interpret=interpret), expected)


def test_an_output_that_ignores_an_axis(interpret: Any, rng: Any) -> None:
    """Only the last step's block is stored."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((32, 16), f32))
    def kernel(x: Any, out: Any) -> None:
        def body(index: Any, a: Any, b: Any) -> None:
            b[...] = a[...] * 2.0

        ins, outs = kd.BlockSpec((32, 16), lambda i: (0, i)), kd.BlockSpec((32, 16), lambda i: (0, 0))
        kd.emit_pipeline(body, grid=(4,), in_specs=[ins], out_specs=[outs], max_concurrent_steps=2)(x, out)

    x = random(rng, (32, 64), f32)
    assert np.array_equal(kernel(x, interpret=interpret), 2 * x[:, 48:])


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
def test_a_dynamic_grid_with_a_carry(steps: int, interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), f32))
    def kernel(n: Any, x: Any, out: Any) -> None:
        spec = kd.BlockSpec((64, 64), lambda j: (j, 0))
        pipeline = kd.emit_pipeline(
            lambda index, a, total: total + a[...],
            grid=(n,),
            in_specs=[spec],
            max_concurrent_steps=2,
            init_carry=kd.zeros((64, 64), f32),
        )
        out[...] = pipeline(x)

    x = random(rng, (256, 64), f32)
    assert np.allclose(kernel(steps, x, interpret=interpret), x.reshape(4, 64, 64)[:steps].sum(0), atol=1e-5)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.sampled(4)
def test_matmul_with_a_delayed_release(transposed: Any, rng: Any) -> None:
    ta, tb = transposed
    M, N, K = 64, 64, 256

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f32), scratch_types=[kd.ACC((M, N))])
    def kernel(a: Any, b: Any, out: Any, acc: Any) -> None:
        def body(index: Any, x: Any, y: Any) -> None:
            kd.wgmma(acc, x.T if ta else x, y.T if tb else y)
            kd.wgmma_wait(1)

        options = {"transforms": tiles(kd.float16), "delay_release": 1}
        specs = [
            kd.BlockSpec((64, M) if ta else (M, 64), (lambda k: (k, 0)) if ta else (lambda k: (0, k)), **options),
            kd.BlockSpec((N, 64) if tb else (64, N), (lambda k: (0, k)) if tb else (lambda k: (k, 0)), **options),
        ]
        kd.emit_pipeline(body, grid=(K // 64,), in_specs=specs, max_concurrent_steps=2)(a, b)
        out[...] = acc[...]

    a, b = random(rng, (K, M) if ta else (M, K), kd.float16), random(rng, (N, K) if tb else (K, N), kd.float16)
    expected = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assemble(kernel, a, b)
    for schedule in ("eager", "late", "random"):
        assert relative(kernel(a, b, interpret=kd.InterpretParams(schedule=schedule)), expected) < 1e-6


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.sampled(12)
def test_warp_specialized_copies(delay: int, consumers: int, manual: bool, interpret: Any, rng: Any) -> None:
    """Two runs over a grid of two axes; outputs are written by all compute warpgroups."""
    rows = 64 // consumers

    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, 128, 64), f32), num_threads=consumers + 1, thread_name="wg")
    def kernel(x: Any, out: Any) -> None:
        part = kd.ds(kd.axis_index("wg") * rows, rows)

        def body(index: Any, a: Any, b: Any, *consumed: Any) -> None:
            b[part] = a[part] * 2.0
            for barrier in consumed:
                kd.barrier_arrive(barrier)

        def spec(**options: Any) -> Any:
            return kd.BlockSpec((None, 64, 32), lambda i, j: (0, i, j), **options)

        for half in range(2):
            kd.emit_pipeline_warp_specialized(
                body,
                grid=(2, 2),
                memory_registers=40,
                in_specs=[spec(delay_release=delay)],
                out_specs=[spec()],
                max_concurrent_steps=2,
                wg_axis="wg",
                num_compute_wgs=consumers,
                manual_consumed_barriers=manual,
            )(x.at[half : half + 1], out.at[half : half + 1])

    x = random(rng, (2, 128, 64), f32)
    assert np.array_equal(kernel(x, interpret=interpret), 2 * x)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.sampled(6)
def test_warp_specialized_matmul(cluster: int, interpret: Any, rng: Any) -> None:
    """Two consumers with accumulators around the loop; B shared over the cluster by multicast."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((128 * cluster, 64), f32),
        num_threads=3,
        thread_name="wg",
        **({"cluster": (2,), "cluster_names": ("c",)} if cluster == 2 else {}),
    )
    def kernel(a: Any, b: Any, out: Any) -> None:
        block = kd.axis_index("c") if cluster == 2 else 0
        rows = kd.ds(kd.axis_index("wg") * 64, 64)
        accs: list[Any] = []

        def body(index: Any, x: Any, y: Any, carry: Any) -> Any:
            kd.wgmma(accs[0], x.at[rows], y)
            kd.wgmma_wait(1)
            return carry + 1

        def context(pipeline: Any) -> None:
            def run(acc: Any) -> None:
                accs.append(acc)
                pipeline(0)
                out[kd.ds(block * 128 + kd.axis_index("wg") * 64, 64)] = acc[...]

            kd.run_scoped(run, kd.ACC((64, 64)))

        options = {"transforms": tiles(bf16), "delay_release": 1}
        kd.emit_pipeline_warp_specialized(
            body,
            grid=(4,),
            memory_registers=40,
            in_specs=[
                kd.BlockSpec((128, 64), lambda k: (block, k), **options),
                kd.BlockSpec((64, 64), lambda k: (k, 0), collective_axes="c" if cluster == 2 else (), **options),
            ],
            max_concurrent_steps=2,
            wg_axis="wg",
            num_compute_wgs=2,
            compute_context=context,
        )(a, b)

    a, b = random(rng, (128 * cluster, 256), bf16), random(rng, (256, 64), bf16)
    assemble(kernel, a, b)
    assert relative(kernel(a, b, interpret=interpret), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.sampled(10)
def test_chained_pipelines(manual: bool, interpret: Any, rng: Any) -> None:
    """Twice four in a chain (one static start, two steady ones in a loop, a stop) and one alone, on the same buffers."""
    n = 4
    spec = kd.BlockSpec((16, 32), lambda i, j: (i, j))

    def body(index: Any, a: Any, b: Any, out: Any, total: Any, *consumed: Any) -> None:
        out[...] = a[...] + b[...]
        total[...] = total[...] + a[...]
        for barrier in consumed:
            kd.barrier_arrive(barrier)

    def pipeline(total: Any, state: Any) -> Any:
        return kd.emit_pipeline_warp_specialized(
            lambda index, a, b, out, *rest: body(index, a, b, out, total, *rest),
            grid=(n, 2),
            memory_registers=40,
            in_specs=[spec, spec],
            out_specs=[spec],
            max_concurrent_steps=2,
            wg_axis="wg",
            num_compute_wgs=1,
            manual_consumed_barriers=manual,
            pipeline_state=state,
        )

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((16 * n, 64), kd.int32), kd.ShapeDtypeStruct((16, 32), kd.int32)],
        scratch_types=[kd.SMEM((16, 32), kd.int32)],
        num_threads=2,
        thread_name="wg",
    )
    def kernel(x: Any, y: Any, out: Any, sums: Any, total: Any) -> None:
        state = kd.PipelinePipeline
        kd.when(kd.axis_index("wg") == 0)(lambda: total.__setitem__(..., kd.zeros((16, 32), kd.int32)))

        def run(allocs: Any) -> None:
            for _ in range(2):
                pipeline(total, state.START)(x, y, out, allocations=allocs)
                kd.loop(0, 2)(lambda i: pipeline(total, kd.where(i < 2, 1, 2))(x, y, out, allocations=allocs))
                pipeline(total, state.STOP)(x, y, out, allocations=allocs)
                pipeline(total, None)(x, y, out, allocations=allocs)

        kd.run_scoped(run, pipeline(total, state.START).get_allocations(x, y, out), collective_axes="wg")
        kd.when(kd.axis_index("wg") == 0)(lambda: sums.__setitem__(..., total[...]))

    x, y = random(rng, (16 * n, 64), kd.int32), random(rng, (16 * n, 64), kd.int32)
    assemble(kernel, x, y)
    out, sums = kernel(x, y, interpret=interpret)
    assert np.array_equal(out, x + y)
    assert np.array_equal(sums, 10 * x.reshape(n, 16, 2, 32).sum((0, 2)))


def test_manual_produced_barriers_and_nested_operands(interpret: Any, rng: Any) -> None:
    """The body waits for each block itself, and releases it itself."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 32), f32), num_threads=2, thread_name="wg")
    def kernel(n: Any, x: Any, y: Any, out: Any) -> None:
        def body(index: Any, blocks: Any, sums: Any, produced: Any, consumed: Any) -> None:
            kd.barrier_wait(produced["x"])
            left = blocks["x"][...]
            kd.barrier_wait(produced["y"])
            sums[...] = left + blocks["y"][...]
            kd.barrier_arrive(consumed["x"])
            kd.barrier_arrive(consumed["y"])

        spec = kd.BlockSpec((16, 32), lambda i: (i, 0))
        kd.emit_pipeline_warp_specialized(
            body,
            grid=(n,),
            memory_registers=40,
            in_specs=[{"x": spec, "y": spec}],
            out_specs=[spec],
            wg_axis="wg",
            num_compute_wgs=1,
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
        )({"x": x, "y": y}, out)

    x, y = random(rng, (64, 32), f32), random(rng, (64, 32), f32)
    assert np.array_equal(kernel(4, x, y, interpret=interpret), x + y)


def test_a_pipeline_in_a_persistent_loop(interpret: Any, rng: Any) -> None:
    """Tiles in a loop, one set of buffers for all; the accumulator is the carry. Each role has its registers: no spills."""
    tile, depth = 64, 64
    options = {"transforms": tiles(bf16), "delay_release": 1}

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((256, 192), bf16),
        grid=(2,),
        grid_names=("sm",),
        num_threads=3,
        thread_name="wg",
    )
    def kernel(a: Any, b: Any, out: Any) -> None:
        wg = kd.axis_index("wg")

        def pipeline(body: Any, context: Any) -> Any:
            specs = [
                kd.BlockSpec((2 * tile, depth), lambda k: (0, k), **options),
                kd.BlockSpec((depth, tile), lambda k: (k, 0), **options),
            ]
            return kd.emit_pipeline_warp_specialized(
                body,
                grid=(4,),
                memory_registers=40,
                in_specs=specs,
                max_concurrent_steps=3,
                wg_axis="wg",
                num_compute_wgs=2,
                compute_context=context,
            )

        def run(allocs: Any, out_tiles: Any) -> None:
            @kd.nd_loop((2, 3), collective_axes="sm")
            def _(info: Any) -> None:
                m, n = info.index

                def context(evaluate: Any) -> None:
                    def accumulate(acc: Any) -> None:
                        evaluate(acc)
                        kd.wait_smem_to_gmem(0, wait_read_only=True)
                        out_tiles[wg] = acc[...].astype(bf16)
                        kd.commit_smem()
                        rows = kd.ds(m * 2 * tile + wg * tile, tile)
                        kd.copy_smem_to_gmem(out_tiles.at[wg], out.at[rows, kd.ds(n * tile, tile)])

                    kd.run_scoped(accumulate, kd.ACC((tile, tile)))

                def body(index: Any, x: Any, y: Any, acc: Any) -> Any:
                    kd.wgmma(acc, x.at[kd.ds(wg * tile, tile)], y)
                    kd.wgmma_wait(1)
                    return acc

                rows, columns = kd.ds(m * 2 * tile, 2 * tile), kd.ds(n * tile, tile)
                pipeline(body, context)(a.at[rows], b.at[:, columns], allocations=allocs)

        out_tiles = kd.SMEM((2, tile, tile), bf16, transforms=tiles(bf16))
        kd.run_scoped(run, pipeline(None, None).get_allocations(a, b), out_tiles, collective_axes="wg")
        kd.wait_smem_to_gmem(0)

    a, b = random(rng, (256, 256), bf16), random(rng, (256, 192), bf16)
    assemble(kernel, a, b)
    assert relative(kernel(a, b, interpret=interpret), a.astype(np.float64) @ b.astype(np.float64)) < 4e-3


@pytest.mark.parametrize("specialized", [False, True])
def test_blocks_that_stay(specialized: bool, interpret: Any, rng: Any) -> None:
    """An output that no step changes is summed up in place; such an input is loaded once; a GMEM operand as it is."""
    threads = {"num_threads": 2, "thread_name": "wg"} if specialized else {}

    @kd.kernel(out_type=kd.ShapeDtypeStruct((16, 32), f32), **threads)
    def kernel(n: Any, x: Any, scale: Any, table: Any, out: Any) -> None:
        def body(index: Any, a: Any, factor: Any, whole: Any, total: Any) -> None:
            kd.when(index[0] == 0)(lambda: total.__setitem__(..., kd.zeros((16, 32), f32)))
            total[...] += a[...] * factor[...] + whole[index[0], 1]

        specs: dict[str, Any] = {
            "grid": (n,),
            "in_specs": [
                kd.BlockSpec((16, 32), lambda i: (i, 0)),
                kd.BlockSpec((16, 32), lambda i: (0, 0)),
                kd.BlockSpec(memory_space=kd.GMEM),
            ],
            "out_specs": [kd.BlockSpec((16, 32), lambda i: (0, 0))],
            "max_concurrent_steps": 3,
        }
        if specialized:
            specs |= {"memory_registers": 40, "wg_axis": "wg", "num_compute_wgs": 1}
            kd.emit_pipeline_warp_specialized(body, **specs)(x, scale, table, out)
        else:
            kd.emit_pipeline(body, **specs)(x, scale, table, out)

    x, scale, table = random(rng, (64, 32), f32), random(rng, (16, 32), f32), random(rng, (5, 3), f32)
    assemble(kernel, 4, x, scale, table)
    # rings of three for x (and for scale, where a warpgroup loads), one buffer for what stays
    buffers = sum(r.bytes for r in kernel.lower(4, x, scale, table).kernel.names.smem if r.kind == "ref")
    assert buffers == (3 + (3 if specialized else 1) + 1) * 16 * 32 * 4
    for n in (1, 4):
        expected = (x[: 16 * n].reshape(n, 16, 32) * scale).sum(0) + table[:n, 1].sum()
        assert np.allclose(kernel(n, x, scale, table, interpret=interpret), expected, atol=1e-5)


def test_small_blocks(interpret: Any, rng: Any) -> None:
    """Blocks of 48 bytes: every buffer still starts where a copy may write."""

    @kd.kernel(out_type=[kd.ShapeDtypeStruct((48,), f32), kd.ShapeDtypeStruct((), f32)])
    def kernel(x: Any, out: Any, total: Any) -> None:
        def body(index: Any, a: Any, b: Any, sums: Any) -> Any:
            b[...] = a[...] * 2.0
            return sums + kd.sum(a[...])

        spec = kd.BlockSpec((12,), lambda i: (i,))
        pipeline = kd.emit_pipeline(
            body, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2, init_carry=0.0
        )
        total[...] = pipeline(x, out)

    x = random(rng, (48,), f32)
    out, total = kernel(x, interpret=interpret)
    assert np.array_equal(out, 2 * x) and np.allclose(total, x.sum(), atol=1e-5)


@pytest.mark.wgmma
def test_the_last_release_waits_for_products_that_some_paths_await(interpret: Any) -> None:
    """A wait in a branch that is not taken leaves the last product in flight, and the next run's copies overwrite its block."""
    transforms = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    spec = kd.BlockSpec((64, 64), lambda i: (i, 0), delay_release=1, transforms=transforms)

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.ACC((64, 64), kd.float32)],
        num_threads=2, thread_name="wg", compiler_params=kd.CompilerParams(target="sm_90a"),
    )  # fmt: skip
    def kernel(a: Any, none: Any, out: Any, acc: Any) -> None:
        def body(_: Any, block: Any) -> None:
            kd.wgmma(acc, block, block)
            kd.when(none > 0)(lambda: kd.wgmma_wait(0))
            kd.wgmma_wait(1)

        pipeline = kd.emit_pipeline_warp_specialized(
            body, grid=(3,), in_specs=[spec], out_specs=[], max_concurrent_steps=2, memory_registers=40, wg_axis="wg",
            num_compute_wgs=1,
        )  # fmt: skip

        def run(allocations: Any) -> None:
            for _ in range(2):
                pipeline(a, allocations=allocations)

        kd.run_scoped(run, pipeline.get_allocations(a), collective_axes="wg")

        @kd.when(kd.axis_index("wg") == 0)
        def _() -> None:
            kd.wgmma_wait(0)
            out[...] = acc[...]

    a = np.random.default_rng(0).integers(-2, 3, (192, 64)).astype(np.float16)
    want = sum(2 * block @ block for block in a.astype(np.float32).reshape(3, 64, 64))
    np.testing.assert_array_equal(kernel(a, 0, interpret=interpret), want)
