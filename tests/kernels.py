"""The suite's kernels: printed, parsed, verified, compiled twice and assembled for each of their targets.

One function a kernel, with the specs it is lowered for. Elementwise ops are added by `tests/table_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.profiling import with_marks
from kernel_dsl.stages import Stages
from kernel_dsl.target import TARGETS
from tests import table_kernels

EVERYWHERE = tuple(TARGETS)
f32, bf16, i32 = kd.float32, kd.bfloat16, kd.int32
Spec = kd.ShapeDtypeStruct


@dataclass(frozen=True)
class Case:
    """A kernel, the arguments that it is lowered for, and the targets that it is assembled for."""

    name: str
    kernel: Any
    specs: tuple[Any, ...]
    targets: tuple[str, ...] = EVERYWHERE

    def lower(self, target: str | None = None) -> Stages:
        return self.kernel.lower(*self.specs, target=target)


CASES: dict[str, Case] = {}


def case(*specs: Any, targets: tuple[str, ...] = EVERYWHERE, **options: Any) -> Callable[[Callable[..., None]], None]:
    """Enter a body, with the arguments of `kd.kernel` and the specs of its inputs."""

    def enter(body: Callable[..., None]) -> None:
        name = body.__name__
        CASES[name] = Case(name, kd.kernel(body, name=name, **options), specs, targets)

    return enter


# --- memory ----------------------------------------------------------------------------------------


@case(Spec((1000,), f32), Spec((1000,), f32), out_type=Spec((1000,), f32), grid=(2,), grid_names=("i",))
def vector_add(x: Any, y: Any, out: Any) -> None:
    part = kd.ds(kd.axis_index("i") * 512, 512)
    out[part] = x[part] + y[part]


ROWS, COLUMNS = kd.Dim("M"), kd.Dim("K", max=8192, multiple_of=128)


@case(Spec((5, 256), f32), out_type=Spec((ROWS,), f32), grid=(ROWS,), shapes={"x": (ROWS, COLUMNS)})
def sums_of_any_size(x: Any, out: Any) -> None:
    def step(turn: Any, total: Any) -> Any:
        return total + x[kd.program_id(0), kd.ds(turn * 128, 128)]

    total = kd.fori_loop(0, x.shape[1] // 128, step, kd.zeros((128,), f32))
    out[kd.program_id(0)] = total.sum() / x.shape[1]


@case(Spec((5, 3), f32), out_type=Spec((ROWS, 3), f32), grid=(ROWS, 3), grid_names=("i", "j"), shapes={0: (ROWS, 3)})
def points_of_any_grid(x: Any, out: Any) -> None:
    loop = kd.dynamic_scheduling_loop(("i", "j"))
    loop(lambda info: kd.store(out, info.index, x[info.index] * 2.0))


@case(Spec((4096,), bf16), out_type=Spec((4096,), bf16), grid=(2,))
def copy_wide(x: Any, out: Any) -> None:
    part = kd.ds(kd.program_id(0) * 2048, 2048)
    out[part] = x[part]


@case(Spec((37, 21), i32), out_type=Spec((21, 37), i32))
def transposed(x: Any, out: Any) -> None:
    out[...] = x.T[...]


@case(Spec((8, 6, 10), f32), out_type=Spec((4, 1, 5), f32))
def strided(x: Any, out: Any) -> None:
    out[...] = x[::2, -1, None, 1::2]


@case(Spec((100,), f32), kd.int32(3), out_type=Spec((64,), f32))
def dynamic_slice(x: Any, start: Any, out: Any) -> None:
    out[...] = kd.load(x, kd.ds(start, 64), fill=-1.0)


@case(Spec((50,), f32), out_type=Spec((50,), f32))
def masked(x: Any, out: Any) -> None:
    v = x[...]
    kd.store(out, ..., kd.load(x, ..., mask=v > 0, fill=2.0), mask=v < 1)


@case(Spec((64, 64), f32), out_type=Spec((64, 64), f32), scratch_types=[kd.SMEM((64, 64), f32)])
def through_smem(x: Any, out: Any, buffer: Any) -> None:
    buffer[...] = x[...]
    out[...] = buffer.T[...]


@case(Spec((16, 4), i32), out_type=Spec((16, 4), f32))
def bitcast_ref(x: Any, out: Any) -> None:
    out[...] = x.bitcast(f32)[...]


@case(Spec((1000,), f32), out_type=Spec((1000,), f32), grid=(8,), compiler_params=kd.CompilerParams(bounds="promise"))
def promised(x: Any, out: Any) -> None:
    part = kd.ds(kd.multiple_of(kd.program_id(0) * 125, 125), 128)
    out[part] = x[part]


@case(Spec((60,), f32), out_type=Spec((60,), i32))
def bits_of(x: Any, out: Any) -> None:
    out[...] = kd.bitcast_convert_type(x[...], i32)


@case(Spec((48, 40), f32), Spec((40, 48), f32), out_type=Spec((40,), f32))
def layouts_meet(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...].sum(axis=0) + y[...].max(axis=1)


# --- reductions ------------------------------------------------------------------------------------


@case(Spec((64, 1000), bf16), out_type=Spec((64, 1000), bf16), grid=(64,), grid_names=("row",))
def softmax(x: Any, out: Any) -> None:
    row = kd.axis_index("row")
    v = x[row].astype(f32)
    e = kd.exp(v - v.max())
    out[row] = (e / e.sum()).astype(bf16)


@case(Spec((6, 200), f32), out_type=(Spec((6, 1), f32), Spec((200,), f32)))
def reductions(x: Any, rows: Any, columns: Any) -> None:
    rows[...] = x[...].sum(axis=1, keepdims=True)
    columns[...] = x[...].max(axis=0)


@case(
    Spec((4096,), f32),
    out_type=Spec((), f32),
    scratch_types=[kd.SMEM((4,), f32), kd.Barrier(num_arrivals=4)],
    num_threads=4,
    thread_name="wg",
)
def across_warpgroups(x: Any, out: Any, parts: Any, barrier: Any) -> None:
    wg = kd.axis_index("wg")
    parts[wg] = x[kd.ds(wg * 1024, 1024)].sum()
    kd.barrier_arrive_and_wait(barrier)

    @kd.when(wg == 0)
    def _() -> None:
        out[...] = parts[...].sum()


@case(Spec((5, 300), f32), out_type=(Spec((5,), i32), Spec((5, 300), f32)))
def scans(x: Any, where: Any, running: Any) -> None:
    v = x[...]
    where[...] = kd.argmax(v, axis=1)
    running[...] = kd.cumsum(v, axis=1)


# --- shapes and gathers ----------------------------------------------------------------------------


@case(Spec((6, 32), f32), out_type=(Spec((32, 12), f32), Spec((4, 10), f32)))
def reshapes(x: Any, wide: Any, part: Any) -> None:
    v = x[...]
    wide[...] = kd.concatenate([kd.transpose(v), kd.flip(kd.transpose(v), 1)], axis=1)
    part[...] = kd.squeeze(v[None, 1:5, 2:22:2], 0) + kd.broadcasted_iota(f32, (4, 10), 1) + np.eye(4, 10, dtype="f")


@case(Spec((50, 16), f32), Spec((20,), i32), out_type=Spec((50, 16), f32))
def rows_by_index(x: Any, rows: Any, out: Any) -> None:
    which = rows[...]
    out[which] = x[which] * 2


@case(Spec((20,), f32), out_type=(Spec((20,), f32), Spec((20,), f32)))
def exponents(x: Any, neighbours: Any, scaled: Any) -> None:
    neighbours[...] = kd.nextafter(x[...], 0.0)
    scaled[...] = kd.ldexp(x[...], 3)


# --- control flow ----------------------------------------------------------------------------------


@case(Spec((32, 100), f32), out_type=Spec((100,), f32))
def for_loop(x: Any, out: Any) -> None:
    def body(i: Any, total: Any) -> Any:
        return total + x[i]

    out[...] = kd.fori_loop(1, 32, body, x[0])


@case(Spec((), i32), out_type=Spec((), i32))
def collatz(x: Any, out: Any) -> None:
    def body(state: Any) -> Any:
        n, steps = state
        return kd.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    out[...] = kd.while_loop(lambda s: s[0] > 1, body, (x[...], kd.int32(0)))[1]


@case(Spec((), i32), Spec((40,), f32), out_type=Spec((40,), f32))
def branches(n: Any, x: Any, out: Any) -> None:
    v = x[...]
    picked = kd.switch(n[...], [lambda a: a, lambda a: a * 2, lambda a: -a], v)
    out[...] = kd.cond(n[...] > 1, lambda a: a + 1, lambda a: a - 1, picked)


@case(Spec((8, 12), i32), out_type=Spec((8, 12), i32), grid=(3,), grid_names=("sm",))
def persistent(x: Any, out: Any) -> None:
    @kd.nd_loop((8, 12), collective_axes="sm", tiling=(4, 4))
    def _(step: Any) -> None:
        i, j = step.index
        out[i, j] = x[i, j] * 2


@case(Spec((16,), f32), out_type=Spec((16,), f32))
def scoped(x: Any, out: Any) -> None:
    def body(buffer: Any) -> None:
        buffer[...] = x[...] * 2
        out[...] = buffer[...]

    kd.run_scoped(body, kd.SMEM((16,), f32))


# --- synchronisation -------------------------------------------------------------------------------


@case(Spec((300,), i32), out_type=Spec((), i32, init=0))
def atomics(x: Any, total: Any) -> None:
    kd.atomic_add(total, x[...].sum())


@case(
    Spec((256,), f32),
    out_type=Spec((256,), f32),
    scratch_types=[kd.SMEM((2, 128), f32), kd.Barrier(num_barriers=2)],
    num_threads=2,
    thread_name="wg",
)
def handoff(x: Any, out: Any, buffer: Any, ready: Any) -> None:
    @kd.when(kd.axis_index("wg") == 0)
    def _() -> None:
        for stage in range(2):
            buffer[stage] = x[kd.ds(stage * 128, 128)] * 3
            kd.barrier_arrive(ready.at[stage])

    @kd.when(kd.axis_index("wg") == 1)
    def _() -> None:
        for stage in range(2):
            kd.barrier_wait(ready.at[stage])
            out[kd.ds(stage * 128, 128)] = buffer[stage]


@case(Spec((70, 30), f32), Spec((70, 30), f32), out_type=(Spec((70, 30), f32), Spec((70, 30), f32)))
def function_scans(a: Any, b: Any, states: Any, sums: Any) -> None:
    def step(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], kd.fma(earlier[1], later[0], later[1])

    states[...] = kd.associative_scan(step, (a[...], b[...]), axis=0, reverse=True)[1]
    sums[...] = kd.cumsum(a[...], axis=1, reverse=True, exclusive=True)


@case(Spec((200,), i32), out_type=(Spec((200,), i32), Spec((200,), i32)))
def sorts(x: Any, ordered: Any, order: Any) -> None:
    ordered[...] = kd.sort(x[...])
    order[...] = kd.argsort(x[...])


@case(Spec((5, 100), f32), Spec((5, 100), bf16), out_type=(Spec((5, 100), bf16), Spec((5, 8), f32), Spec((5, 8), i32)))
def lookups(x: Any, y: Any, moved: Any, best: Any, places: Any) -> None:
    moved[...] = kd.sort(x[...], y[...], descending=True)[1]
    best[...], where = kd.top_k(x[...], 8)
    places[...] = kd.searchsorted(kd.sort(x[0]), kd.take_along_axis(x[...], where % 100)) + where


@case(Spec((512,), f32), out_type=Spec((512,), f32))
def approximate_calls(x: Any, out: Any) -> None:
    with kd.fma_contraction():
        v = x[...]
        out[...] = kd.div(kd.tanh(v, approx=True), kd.exp2(v, approx=True), approx=True) * v + kd.sin(v, approx=True)


@case(Spec((2, 20, 24), bf16), Spec((24, 8), bf16), Spec((2, 20, 24), f32), out_type=(Spec((2, 20, 8), f32),) * 2)
def batched_dots(x: Any, y: Any, z: Any, tensor: Any, lanes: Any) -> None:
    tensor[...] = kd.dot(x[...], y, acc=x[...] @ y[...])
    lanes[...] = z[...] @ y[...].astype(f32)


@case(7, out_type=(Spec((512,), kd.uint32), Spec((3, 50), f32), Spec((512,), f32)))
def random_numbers(seed: Any, words: Any, uniform: Any, normal: Any) -> None:
    words[...] = kd.random.bits(seed, (512,))
    uniform[...] = kd.random.uniform(seed, (3, 50), offset=128)
    normal[...] = kd.random.normal(seed, (512,), offset=200)


@case(Spec((64,), i32), out_type=(Spec((64,), i32, init=0), Spec((64,), i32, init=0)))
def exchanges(x: Any, once: Any, last: Any) -> None:
    kd.atomic_cas(once, 0, x[...])
    kd.atomic_xchg(last, x[...])


@case(Spec((128,), f32), out_type=Spec((128,), f32))
def debugging(x: Any, out: Any) -> None:
    total = x[...].sum()
    kd.debug_print("total {}", total)
    kd.debug_check(total == total, "the total is a number")
    out[...] = x[...]


@case(Spec((50, 30), bf16), Spec((30, 20), bf16), out_type=Spec((50, 20), f32))
def small_dot(a: Any, b: Any, out: Any) -> None:
    out[...] = kd.dot(a[...], b[...])


@case(Spec((64, 32), bf16), Spec((32, 16), bf16), out_type=Spec((64, 16), f32))
def tensor_cores(a: Any, b: Any, out: Any) -> None:
    out[...] = kd.mma(kd.zeros((64, 16), f32), a[...], b[...])


@case(Spec((256,), f32), out_type=Spec((256,), f32))
def own_instructions(x: Any, out: Any) -> None:
    v = kd.optimization_barrier(x[...])
    out[...] = kd.inline_ptx("ex2.approx.f32 $0, $1;", v, out_type=f32)


@case(Spec((256,), f32), out_type=(Spec((256,), f32), Spec((), f32)))
def own_instructions_on_registers(x: Any, out: Any, first: Any) -> None:
    out[...] = kd.inline_ptx(
        "add.f32 $0[0], $1[0], $1[1]; mov.b32 $0[1], $1[0]; mov.b32 $0[2], $1[2]; mov.b32 $0[3], $1[3];",
        x[...],
        out_type=f32,
    )
    first[...] = kd.inline_ptx("ld.global.f32 $0, [$1];", x.at[3:], out_type=f32)


@case(Spec((64, 96), kd.int4), out_type=(Spec((64, 96), bf16), Spec((64, 96), kd.uint4), Spec((64, 96), f32)))
def four_bits(x: Any, out: Any, narrow: Any, wide: Any) -> None:
    out[...] = x[...].astype(bf16)
    narrow[...] = kd.bitcast_convert_type(x[...], kd.uint4)
    wide[...] = x[...].astype(kd.float4_e2m1fn).astype(f32)


@case(
    Spec((64,), f32),
    out_type=Spec((64,), f32),
    scratch_types=[kd.GMEM((64,), f32), kd.GMEM((64,), f32, per_block=True)],
)
def scratch_in_gmem(x: Any, out: Any, one: Any, each: Any) -> None:
    one[...] = x[...] + 1
    each[...] = one[...]
    out[...] = each[...]


@case(Spec((4, 8), f32), out_type=Spec((4, 8), f32))
def warp_by_warp(x: Any, out: Any) -> None:
    @kd.warp_map
    def _(warp: Any) -> None:
        out[warp, 0] = x[warp, 0]


@case(
    Spec((128,), f32),
    out_type=Spec((128,), f32),
    scratch_types=[kd.RefUnion(kd.SMEM((128,), f32), kd.SMEM((64,), i32))],
)
def shared_memory(x: Any, out: Any, union: Any) -> None:
    floats, ints = union
    floats[...] = x[...]
    v = floats[...]
    ints[...] = v[:64].astype(i32)
    out[...] = v


@case(Spec((), i32), out_type=Spec((2,), i32), scratch_types=[kd.SemaphoreType.REGULAR], grid=(2,), grid_names=("i",))
def semaphores(x: Any, out: Any, sem: Any) -> None:
    i = kd.axis_index("i")

    @kd.when(i == 0)
    def _() -> None:
        kd.semaphore_signal(sem, 1)

    @kd.when(i == 1)
    def _() -> None:
        kd.semaphore_wait(sem, 1)

    out[i] = kd.semaphore_read(sem) + x[...]


@case(Spec((128,), f32), targets=("sm_90", "sm_90a", "sm_100a", "sm_120a"), out_type=Spec((128,), f32))
def dependents(x: Any, out: Any) -> None:
    kd.griddepcontrol_wait()
    out[...] = x[...]
    kd.griddepcontrol_launch_dependents()


# --- Hopper ----------------------------------------------------------------------------------------

HOPPER = ("sm_90a",)
_TILE = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))


@case(
    Spec((128, 128), bf16), Spec((128, 128), bf16), targets=HOPPER, out_type=Spec((128, 128), f32),
    scratch_types=[
        kd.SMEM((128, 64), bf16, transforms=_TILE), kd.SMEM((64, 128), bf16, transforms=_TILE),
        kd.ACC((128, 128), f32), kd.Barrier(num_arrivals=2),
    ],
)  # fmt: skip
def matmul(a: Any, b: Any, out: Any, a_tile: Any, b_tile: Any, acc: Any, ready: Any) -> None:
    @kd.loop(0, 2)
    def _(k: Any) -> None:
        kd.copy_gmem_to_smem(a.at[:, kd.ds(k * 64, 64)], a_tile, ready)
        kd.copy_gmem_to_smem(b.at[kd.ds(k * 64, 64)], b_tile, ready)
        kd.barrier_wait(ready)
        kd.wgmma(acc, a_tile, b_tile)
        kd.wgmma_wait(0)

    out[...] = acc[...]


@case(
    Spec((64, 64), bf16),
    Spec((2, 128), kd.uint32),
    Spec((128, 128), bf16),
    targets=HOPPER,
    out_type=Spec((64, 128), f32),
    scratch_types=[
        kd.SMEM((64, 64), bf16, transforms=_TILE),
        kd.SMEM((128, 128), bf16, transforms=_TILE),
        kd.ACC((64, 128), f32),
        kd.Barrier(num_arrivals=2),
    ],
)
def sparse_product(a: Any, meta: Any, b: Any, out: Any, a_tile: Any, b_tile: Any, acc: Any, ready: Any) -> None:
    kd.copy_gmem_to_smem(a, a_tile, ready)
    kd.copy_gmem_to_smem(b, b_tile, ready)
    kd.barrier_wait(ready)
    kd.wgmma(acc, a_tile, b_tile, sparse_meta=meta[...])
    out[...] = acc[...]


@case(
    Spec((64, 64), f32),
    targets=HOPPER,
    out_type=Spec((64, 64), f32),
    scratch_types=[kd.SMEM((64, 64), f32), kd.Barrier(), kd.Barrier()],
)
def copies(x: Any, out: Any, buffer: Any, ready: Any, freed: Any) -> None:
    kd.async_prefetch(x)
    kd.copy_gmem_to_smem(x, buffer, ready)
    kd.barrier_wait(ready)
    buffer[...] = buffer[...] * 2
    kd.barrier_arrive_and_wait(freed)
    kd.commit_smem()
    kd.copy_smem_to_gmem(buffer, out, commit_group=False)
    kd.commit_smem_to_gmem_group()
    kd.wait_smem_to_gmem(0)
    kd.commit_gmem()


@case(Spec((64, 64), f32), out_type=Spec((64, 64), f32), scratch_types=[kd.SMEM((64, 64), f32)])
def copies_without_a_barrier(x: Any, out: Any, buffer: Any) -> None:
    kd.copy_gmem_to_smem(x, buffer)
    kd.wait_gmem_to_smem(0)
    out[...] = buffer[...]


@case(
    Spec((64, 64), bf16),
    Spec((64, 64), f32),
    targets=HOPPER,
    out_type=Spec((64, 64), f32),
    scratch_types=[kd.SMEM((64, 64), bf16, transforms=_TILE), kd.ACC((64, 64), f32)],
)
def accumulator_from_a_value(x: Any, y: Any, out: Any, tile: Any, acc: Any) -> None:
    tile[...] = x[...]
    kd.commit_smem()
    acc[...] = y[...]
    kd.wgmma(acc, tile, tile)
    out[...] = kd.wgmma_accumulator_load(acc)


@case(
    Spec((64, 64), f32),
    Spec((64,), f32),
    targets=HOPPER,
    out_type=Spec((64, 64), f32),
    scratch_types=[kd.ACC((64, 64), f32)],
)
def accumulator_scaled(y: Any, factors: Any, out: Any, acc: Any) -> None:
    acc[...] = y[...]
    acc.scale_rows(factors[...])
    out[...] = acc[...]


@case(
    Spec((2, 128), f32), targets=("sm_90", "sm_90a", "sm_100a", "sm_120a"), out_type=Spec((2, 128), f32),
    cluster=(2,), cluster_names=("peer",),
    scratch_types=[kd.SMEM((128,), f32), kd.Barrier(), kd.ClusterBarrier(collective_axes="peer")],
)  # fmt: skip
def swapped_in_a_cluster(x: Any, out: Any, buffer: Any, arrived: Any, both: Any) -> None:
    me = kd.axis_index("peer")
    kd.async_store_smem(x[me], buffer, arrived, cluster_dim="peer", cluster_idx=1 - me)
    seen = kd.barrier_test(arrived)

    @kd.when(~seen)
    def _() -> None:
        kd.barrier_wait(arrived)

    out[me] = buffer[...] + kd.cluster_ref(buffer, {"peer": 1 - me})[...]
    kd.barrier_arrive_and_wait(both)


@case(
    Spec((4, 128), f32), Spec((), i32), out_type=Spec((128,), f32), mesh=kd.Mesh(("x", "y"), (2, 2)),
    scratch_types={"ready": kd.SemaphoreType.REGULAR, "done": kd.SemaphoreType.REGULAR((2,))}, grid=(2,), grid_names=("i",),
)  # fmt: skip
def peers(x: Any, which: Any, out: Any, ready: Any, done: Any) -> None:
    kd.semaphore_signal_multicast(ready, collective_axes=("x", "y"))
    kd.semaphore_wait(ready, 4, timeout=10)
    other = kd.remote_ref(x, {"y": 1 - kd.axis_index("y")})
    part = kd.ds(kd.axis_index("i") * 64, 64)
    out[part] = other[kd.axis_index("x"), part] + kd.remote_ref(x.at[3], which[...] % 4)[part]
    kd.semaphore_signal_multicast(done.at[0], collective_axes=("x", "y"))
    kd.semaphore_wait(done.at[0], 4)
    kd.atomic_add(kd.remote_ref(out, 3).at[part], 1.0, scope="sys")
    kd.semaphore_signal(done.at[1], device_id=3)

    @kd.when(kd.axis_index(("x", "y")) == 3)
    def _() -> None:
        kd.semaphore_wait(done.at[1], 4)


@case(Spec((256,), bf16), targets=HOPPER, out_type=Spec((2, 256), bf16), mesh=kd.Mesh(("x",), (2,)))
def joined(x: Any, out: Any) -> None:
    total = kd.multimem_load_reduce(x, collective_axes="x", reduction_op="add")
    kd.multimem_store(total, out.at[kd.axis_index("x")], collective_axes="x")


@case(
    Spec((64, 64), f32), Spec((3,), i32), targets=("sm_90a", "sm_100a", "sm_120a"), out_type=Spec((64, 64), f32), grid=(2,),
    scratch_types=[kd.SMEM((16, 64), f32), kd.Barrier()],
)  # fmt: skip
def rows_of_groups(x: Any, offsets: Any, out: Any, tile: Any, done: Any) -> None:
    first, end = offsets[kd.program_id(0)], offsets[kd.program_id(0) + 1]
    source = kd.make_tensor_descriptor(x, (end - first, None), (first, 0))
    target = kd.make_tensor_descriptor(out, (end - first, None), (first, 0), slots=1)

    @kd.loop(0, kd.cdiv(end - first, 16))
    def _(i: Any) -> None:
        kd.copy_gmem_to_smem(source.at[kd.ds(i * 16, 16)], tile, done)
        kd.barrier_wait(done)
        kd.copy_smem_to_gmem(tile, target.at[kd.ds(i * 16, 16)])
        kd.wait_smem_to_gmem(0)


@case(Spec((2, 128), f32), targets=HOPPER, out_type=Spec((2, 128), f32), num_threads=2, thread_name="wg")
def register_budgets(x: Any, out: Any) -> None:
    wg = kd.axis_index("wg")

    @kd.when(wg == 0)
    def _() -> None:
        kd.set_max_registers(40, action="decrease")

    @kd.when(wg == 1)
    def _() -> None:
        kd.set_max_registers(232, action="increase")

    out[wg] = x[wg]


for _name, _kernel, _specs in table_kernels.kernels():
    CASES[_name] = Case(_name, _kernel, _specs)

CASES["profiled"] = Case(
    "profiled", with_marks(CASES["vector_add"].kernel, CASES["vector_add"].specs, 64)[0], CASES["vector_add"].specs
)


@cache
def lowered(name: str, target: str = "sm_90a") -> Stages:
    """A case's stages, kept for the tests that look at the same ones."""
    return CASES[name].lower(target)
