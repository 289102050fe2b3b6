"""SMEM that is used again, or ends, while the author's stores or copies still go on: the compiler's fences and waits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks.hazards import HazardError

from .helpers import random

pytestmark = pytest.mark.tma

f32, i32 = kd.float32, kd.int32
Spec = kd.ShapeDtypeStruct
TILE = kd.SMEM((16, 32), f32)


def fences(ptx: str) -> int:
    return ptx.count("fence.proxy.async")


def waits(ptx: str) -> int:
    return len(re.findall(r"cp\.async\.bulk\.wait_group", ptx))


BODIES: dict[str, Any] = {
    "reads": lambda b: None,
    "store": lambda b: b.__setitem__(..., b[...] * 2),
    "part": lambda b: b.__setitem__(3, b[3] * 2),
    "view": lambda b: b.T.__setitem__(kd.ds(0, 4), b.T[:4] * 2),
    "atomic": lambda b: kd.atomic_add(b, 1.0),
    "scatter": lambda b: b.__setitem__((kd.arange(4), kd.arange(4)), kd.full((4,), 5.0, f32)),
    "bitcast": lambda b: b.bitcast(i32).__setitem__(0, b.bitcast(i32)[1]),
    "branch": lambda b: kd.when(b[0, 0] > 0)(lambda: b.__setitem__(..., b[...] * 2)),
    "loop": lambda b: kd.loop(0, 2)(lambda i: b.__setitem__(i, b[i] * 2)),
}


def changed(name: str, x: np.ndarray) -> np.ndarray:
    """What a body makes of a block, all of them run in NumPy."""
    x = x.copy()
    match name:
        case "store":
            x *= 2
        case "part":
            x[3] *= 2
        case "view":
            x[:, :4] *= 2
        case "atomic":
            x += 1
        case "scatter":
            x[np.arange(4), np.arange(4)] = 5
        case "bitcast":
            x[0] = x[1]
        case "branch":
            x *= 2 if x[0, 0] > 0 else 1
        case "loop":
            x[:2] *= 2
        case _:
            pass
    return x


def pipeline(name: str, specialised: bool, manual: bool = False, out: bool = False) -> Any:
    """Sums up the blocks of x that a body has changed."""
    options: Any = {"num_threads": 2, "thread_name": "wg"} if specialised else {}

    @kd.kernel(out_type=(Spec((16, 32), f32), Spec((96, 32), f32)), scratch_types=[TILE], **options)
    def kernel(x: Any, total: Any, blocks: Any, acc: Any) -> None:
        def body(index: Any, b: Any, *rest: Any) -> None:
            BODIES[name](b)
            if out:
                rest[0][...] = b[...]
            acc[...] = acc[...] + b[...]
            if manual:
                kd.barrier_arrive(rest[-1])

        spec = kd.BlockSpec((16, 32), lambda i: (i, 0))
        common: Any = {"grid": (6,), "in_specs": [spec], "out_specs": [spec] if out else [], "max_concurrent_steps": 2}
        refs = (x, blocks) if out else (x,)

        def mine(f: Any) -> None:
            kd.when(kd.axis_index("wg") == 0)(f) if specialised else f()

        mine(lambda: acc.__setitem__(..., kd.zeros((16, 32), f32)))
        if specialised:
            kd.emit_pipeline_warp_specialized(
                body, wg_axis="wg", num_compute_wgs=1, memory_registers=40, manual_consumed_barriers=manual, **common
            )(*refs)
        else:
            kd.emit_pipeline(body, **common)(*refs)
        mine(lambda: total.__setitem__(..., acc[...]))
        if not out:
            mine(lambda: blocks.__setitem__(..., kd.zeros((96, 32), f32)))

    return kernel


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.sampled(20)
def test_pipelines_whose_body_writes_its_input(
    name: str, specialised: bool, manual: bool, interpret: Any, rng: Any
) -> None:
    """A fence stands before the next load, after the body's stores and after its loads: an arrival doesn't wait for loads."""
    if manual and not specialised:
        pytest.skip("one warpgroup has no barriers to arrive on")
    kernel = pipeline(name, specialised, manual)
    x = np.round(random(rng, (96, 32), f32) * 8)
    total, _ = kernel(x, interpret=interpret)
    np.testing.assert_array_equal(total, sum(changed(name, b) for b in x.reshape(6, 16, 32)))
    assert fences(kernel.lower(x).ptx) == 1


@pytest.mark.parametrize("specialised", [False, True])
def test_outputs_need_no_further_fence(specialised: bool, interpret: Any, rng: Any) -> None:
    """What is stored out is fenced already."""
    kernel = pipeline("store", specialised, out=True)
    x = np.round(random(rng, (96, 32), f32) * 8)
    total, blocks = kernel(x, interpret=interpret)
    np.testing.assert_array_equal(blocks, x * 2)
    np.testing.assert_array_equal(total, (x * 2).reshape(6, 16, 32).sum(0))
    assert fences(kernel.lower(x).ptx) == fences(pipeline("reads", specialised, out=True).lower(x).ptx) == 1


def test_a_pipeline_in_a_loop_loads_its_one_block_anew(interpret: Any, rng: Any) -> None:
    """Written in place at every step, and loaded again in the loop's next turn."""

    @kd.kernel(out_type=Spec((3, 16, 32), f32))
    def kernel(x: Any, out: Any) -> None:
        @kd.loop(0, 3)
        def _(turn: Any) -> None:
            def body(index: Any, b: Any) -> None:
                b[...] = b[...] + 1
                kd.when(index[0] == 3)(lambda: out.__setitem__(turn, b[...]))

            kd.emit_pipeline(body, grid=(4,), in_specs=[kd.BlockSpec((16, 32), lambda i: (0, 0))])(
                x.at[kd.ds(turn * 16, 16)]
            )

    x = np.round(random(rng, (48, 32), f32))
    assert np.array_equal(kernel(x, interpret=interpret), x.reshape(3, 16, 32) + 4)
    assert fences(kernel.lower(x).ptx) == 1


def product(steps: int, delay: int) -> Any:
    """A tile of a @ b by the tensor cores of `mma.sync`: TMA loads blocks that lanes read by ldmatrix, many at a time."""

    @kd.kernel(out_type=Spec((64 * 16, 64 * 16), f32), grid=(16, 16), grid_names=("i", "j"))
    def kernel(a: Any, b: Any, out: Any) -> None:
        i, j = kd.axis_index("i"), kd.axis_index("j")
        blocks = [
            kd.BlockSpec((64, 64), lambda k: (i, k), delay_release=delay),
            kd.BlockSpec((64, 64), lambda k: (k, j), delay_release=delay),
        ]
        out[kd.ds(i * 64, 64), kd.ds(j * 64, 64)] = kd.emit_pipeline(
            lambda _, left, right, total: total + kd.dot(left[...], right[...]),
            grid=(steps,),
            in_specs=blocks,
            max_concurrent_steps=2 + delay,
            init_carry=kd.zeros((64, 64), f32),
        )(a, b)

    return kernel


@pytest.mark.parametrize("delay", [0, 1])
def test_loads_end_before_the_next_copy(delay: int) -> None:
    """Each lane passes a proxy fence between its reads and the barrier; without TMA there is none."""
    kernel = product(8, delay)
    specs = Spec((1024, 512), kd.float16), Spec((512, 1024), kd.float16)
    ptx = kernel.lower(*specs, target="sm_90a").ptx
    loop = ptx[ptx.index("ldmatrix") :]
    assert loop.index("fence.proxy.async.shared::cta") < loop.index("bar.sync") < loop.index("cp.async.bulk.tensor")
    assert not fences(kernel.lower(*specs, target="sm_80").ptx)


def lane_copies(steps: int, stages: int) -> Any:
    """The sum of `steps` tiles that lanes copy to a ring of SMEM by `cp.async`, read across the order of their copies."""

    @kd.kernel(out_type=Spec((64, 64), f32), scratch_types=[kd.SMEM((stages, 64, 64), f32)])
    def kernel(x: Any, out: Any, ring: Any) -> None:
        for step in range(stages - 1):
            kd.copy_gmem_to_smem(x.at[step], ring.at[step])

        @kd.loop(0, steps, init_carry=kd.zeros((64, 64), f32))
        def total(step: Any, total: Any) -> Any:
            kd.wait_gmem_to_smem(stages - 2)
            kd.copy_gmem_to_smem(x.at[kd.rem(step + stages - 1, steps)], ring.at[kd.rem(step + stages - 1, stages)])
            return total + ring.at[kd.rem(step, stages)].T[...]

        out[...] = total

    return kernel


def test_copies_by_lanes_need_no_fence(interpret: Any, rng: Any) -> None:
    """They belong to the proxy of the loads before them, with TMA, too: one barrier a step orders both."""
    steps, stages = 8, 3
    kernel, x = lane_copies(steps, stages), random(rng, (steps, 64, 64), f32)
    counts = []
    for target in ("sm_80", "sm_90a"):
        ptx = kernel.lower(x, target=target).ptx
        loop = ptx[ptx.index("$L__BB0_1:") : ptx.rindex("bra")]
        counts.append(loop.count("bar.sync"))
        assert not fences(ptx)
    assert counts == [1, 1]
    np.testing.assert_allclose(kernel(x, interpret=interpret), x.sum(0).T, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("delay", [0, 1])
def test_loads_end_before_the_next_copy_on_a_gpu(delay: int, rng: Any) -> None:
    """Bank conflicts keep loads waiting: without the fence, half of the elements were wrong."""
    kernel = product(64, delay)
    for _ in range(4):
        a, b = random(rng, (1024, 4096), kd.float16), random(rng, (4096, 1024), kd.float16)
        want = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(kernel(a, b), want, atol=0.05, rtol=1e-3)


# --- ends ----------------------------------------------------------------------------------------


def stored(tile: Any, x: Any, out: Any, **options: Any) -> None:
    tile[...] = x[...]
    kd.commit_smem()
    kd.copy_smem_to_gmem(tile, out, **options)


def test_a_block_waits_for_its_copies(interpret: Any, rng: Any) -> None:
    """At its end: for a group, for one that was not closed, in a branch; and not where it did so itself."""

    def make(end: Any, **options: Any) -> Any:
        @kd.kernel(out_type=Spec((16, 32), f32), scratch_types=[TILE])
        def kernel(x: Any, out: Any, tile: Any) -> None:
            kd.when(x[0, 0] == x[0, 0])(lambda: stored(tile, x, out, **options))
            end()

        return kernel

    x = random(rng, (16, 32), f32)
    forgotten = make(lambda: None), make(lambda: None, commit_group=False)
    done = make(lambda: kd.wait_smem_to_gmem(0)), make(lambda: kd.wait_smem_to_gmem(0, wait_read_only=True))
    for kernel in (*forgotten, *done):
        ptx = kernel.lower(x).ptx
        assert waits(ptx) == 1 and ptx.count("commit_group") == 1
        assert np.array_equal(kernel(x, interpret=interpret), x)


def test_later_groups_may_still_be_read(interpret: Any, rng: Any) -> None:
    """A wait that leaves one group in flight is none for the last one."""

    @kd.kernel(out_type=Spec((3, 16, 32), f32), scratch_types=[kd.SMEM((3, 16, 32), f32)])
    def kernel(x: Any, out: Any, tiles: Any) -> None:
        for n in range(3):
            stored(tiles.at[n], x.at[n], out.at[n])
        kd.wait_smem_to_gmem(1)

    x = random(rng, (3, 16, 32), f32)
    assert waits(kernel.lower(x).ptx) == 2
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize("waiting", [0, 1])
def test_each_warpgroup_waits_for_its_own(waiting: int, interpret: Any, rng: Any) -> None:
    """The one that stores waits in its branch, or not: the others' branches say nothing of it."""

    @kd.kernel(out_type=Spec((16, 32), f32), num_threads=2, thread_name="wg", scratch_types=[TILE])
    def kernel(x: Any, out: Any, tile: Any) -> None:
        kd.when(kd.axis_index("wg") == 0)(lambda: stored(tile, x, out))
        kd.when(kd.axis_index("wg") == waiting)(lambda: kd.wait_smem_to_gmem(0))

    x = random(rng, (16, 32), f32)
    assert waits(kernel.lower(x).ptx) == 1 + waiting
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize("looped", [False, True])
def test_scopes_end_while_copies_read(looped: bool, interpret: Any, rng: Any) -> None:
    """The next scope's memory, and the next turn's, is free once the copies have read it."""

    @kd.kernel(out_type=Spec((4, 16, 32), f32))
    def kernel(x: Any, out: Any) -> None:
        def one(i: Any) -> None:
            kd.run_scoped(lambda tile: stored(tile, x.at[i], out.at[i]), TILE)

        if looped:
            kd.loop(0, 4)(one)
        else:
            for i in range(4):
                one(i)

    x = random(rng, (4, 16, 32), f32)
    assert waits(kernel.lower(x).ptx) == (2 if looped else 4)
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_a_scope_that_copies_fill_anew(interpret: Any, rng: Any) -> None:
    """Written by lanes in one turn, by a copy in the next: between two turns, no one uses the scope's memory."""

    @kd.kernel(out_type=Spec((4, 16, 32), f32))
    def kernel(x: Any, out: Any) -> None:
        @kd.loop(0, 4)
        def _(i: Any) -> None:
            def use(tile: Any, ready: Any) -> None:
                kd.copy_gmem_to_smem(x.at[i], tile, ready)
                kd.barrier_wait(ready)
                tile[...] = tile[...] * 2
                out[i] = tile[...]

            kd.run_scoped(use, TILE, kd.Barrier())

    x = random(rng, (4, 16, 32), f32)
    assert fences(kernel.lower(x).ptx) == 1
    assert np.array_equal(kernel(x, interpret=interpret), x * 2)


@pytest.mark.parametrize("first", ["lanes", "store"])
@pytest.mark.parametrize("second", ["lanes", "load"])
def test_members_of_a_union(first: str, second: str, interpret: Any, rng: Any) -> None:
    """One member after the other in the same bytes: fenced where a copy overwrites stores, waited for where one reads."""

    @kd.kernel(
        out_type=Spec((2, 16, 32), f32), scratch_types=[kd.RefUnion(TILE, (kd.SMEM((32,), f32), TILE)), kd.Barrier()]
    )
    def kernel(x: Any, out: Any, members: Any, ready: Any) -> None:
        one, (_, other) = members
        if first == "lanes":
            one[...] = x[0]
            out[0] = one[...]
        else:
            stored(one, x.at[0], out.at[0])
        if second == "lanes":
            other[...] = x[1]
        else:
            kd.copy_gmem_to_smem(x.at[1], other, ready)
            kd.barrier_wait(ready)
        out[1] = other[...]

    x = random(rng, (2, 16, 32), f32)
    ptx = kernel.lower(x).ptx
    assert waits(ptx) == (first == "store")
    assert fences(ptx) == (first == "store" or second == "load")
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize("first", ["lanes", "store"])
def test_members_of_a_union_in_two_warpgroups(first: str, interpret: Any, rng: Any) -> None:
    """One warpgroup is done with a member and arrives; another one loads into the other member by a copy."""

    @kd.kernel(
        out_type=Spec((2, 16, 32), f32),
        num_threads=2,
        thread_name="wg",
        scratch_types=[kd.RefUnion(TILE, TILE), kd.Barrier(), kd.Barrier()],
    )
    def kernel(x: Any, out: Any, members: Any, free: Any, ready: Any) -> None:
        @kd.when(kd.axis_index("wg") == 0)
        def _() -> None:
            if first == "lanes":
                members[0][...] = x[0]
                out[0] = members[0][...]
            else:
                stored(members[0], x.at[0], out.at[0])
            kd.barrier_arrive(free)

        @kd.when(kd.axis_index("wg") == 1)
        def _() -> None:
            kd.barrier_wait(free)
            kd.copy_gmem_to_smem(x.at[1], members[1], ready)
            kd.barrier_wait(ready)
            out[1] = members[1][...]

    x = random(rng, (2, 16, 32), f32)
    ptx = kernel.lower(x).ptx
    assert (fences(ptx), waits(ptx)) == (1, int(first == "store"))
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_the_author_fences_his_own(interpret: Any) -> None:
    """Between his stores to a buffer and his copy over it nothing is put in: the interpreter says what is missing."""

    def make(fenced: bool) -> Any:
        @kd.kernel(out_type=Spec((16, 32), f32), scratch_types=[TILE, kd.Barrier()])
        def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
            tile[...] = x[...] * 2
            if fenced:
                kd.commit_smem()
            kd.copy_gmem_to_smem(x, tile, ready)
            kd.barrier_wait(ready)
            out[...] = tile[...]

        return kernel

    x = np.ones((16, 32), np.float32)
    assert fences(make(False).lower(x).ptx) == 0
    assert np.array_equal(make(True)(x, interpret=interpret), x)
    if interpret:
        with pytest.raises(HazardError, match=r"missing_proxy_fence: 'tile'.* is written through the async proxy"):
            make(False)(x, interpret=interpret)


def test_a_copy_that_nobody_waits_for() -> None:
    """The last turn loads ahead: the interpreter says so, where the trace can't."""

    @kd.kernel(out_type=Spec((4, 16, 32), f32), scratch_types=[kd.SMEM((2, 16, 32), f32), kd.Barrier(1, 2)])
    def kernel(x: Any, last: Any, out: Any, tiles: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x.at[0], tiles.at[0], ready.at[0])

        @kd.loop(0, 4)
        def _(i: Any) -> None:
            kd.copy_gmem_to_smem(x.at[i + 1], tiles.at[(i + 1) % 2], ready.at[(i + 1) % 2], predicate=i < last)
            kd.barrier_wait(ready.at[i % 2])
            out[i] = tiles[i % 2]

    x = np.ones((5, 16, 32), np.float32)
    assert kernel(x, 3, interpret=True).all()
    with pytest.raises(HazardError, match=r"unawaited_copy: block .* ends while this copy may still write"):
        kernel(x, 4, interpret=True)


@pytest.mark.parametrize("index", [10, 11, 200])
def test_leaving_a_buffer_is_told(index: int) -> None:
    """SMEM is not masked; what lies behind a buffer, nothing or another one, is not its."""

    @kd.kernel(out_type=Spec((2,), f32), scratch_types=[kd.SMEM((10,), f32), kd.SMEM((300,), f32)])
    def kernel(j: Any, out: Any, small: Any, large: Any) -> None:
        large[...] = kd.zeros((300,), f32)
        small[...] = kd.ones((10,), f32)
        out[0] = large[j]
        out[1] = small[j]

    assert kernel(9, interpret=True).tolist() == [0, 1]
    with pytest.raises(HazardError, match=r"out_of_bounds: an access of 4 bytes leaves 'small' of shape \(10,\)"):
        kernel(index, interpret=True)


def test_loops_in_loops_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_dsl.lowering.passes.finish_copies import Finish

    real, calls = Finish.region, [0]

    def region(self: Finish, *given: Any) -> Any:
        calls[0] += 1
        return real(self, *given)

    monkeypatch.setattr(Finish, "region", region)

    def visits(depth: int) -> int:
        def kernel(n: Any, out: Any, tile: Any) -> None:
            def nest(level: int) -> None:
                if level:
                    kd.loop(0, n)(lambda i: nest(level - 1))
                    return
                tile[...] = kd.ones((16, 32), f32)
                kd.commit_smem()
                kd.copy_smem_to_gmem(tile, out)

            nest(depth)

        calls[0] = 0
        ptx = kd.kernel(kernel, out_type=Spec((16, 32), f32), scratch_types=[TILE]).lower(3, target="sm_90a").ptx
        assert waits(ptx) == 1
        return calls[0]

    assert visits(12) <= 2 * visits(6) + 12


@pytest.mark.parametrize("apart", [True, False])
def test_slots_of_other_warpgroups_need_no_wait(apart: bool) -> None:
    """Where each warpgroup stores to a slot of its own, an arrival waits for no copy; where it stores to the other's, it does."""

    def body(x: Any, out: Any, both: Any, read: Any) -> None:
        me = kd.axis_index("wg")
        as_stored, as_copied = both
        slot = me if apart else 1 - me

        @kd.loop(0, 4)
        def _(step: Any) -> None:
            as_stored[slot] = x[step]
            kd.commit_smem()
            kd.copy_smem_to_gmem(as_copied.at[slot], out.at[step, me])
            kd.barrier_arrive(read)
            kd.barrier_wait(read)
            as_stored[me] = x[step] * 2
            kd.wait_smem_to_gmem(0, wait_read_only=True)

    union = kd.RefUnion(kd.SMEM((2, 32, 32), kd.float32), kd.SMEM((2, 8, 128), kd.float32))
    kernel = kd.kernel(
        body, out_type=kd.ShapeDtypeStruct((4, 2, 8, 128), kd.float32), scratch_types=[union, kd.Barrier(num_arrivals=2)],
        num_threads=2, thread_name="wg",
    )  # fmt: skip
    ptx = kernel.lower(np.zeros((4, 32, 32), np.float32), target="sm_90a").ptx
    arrival = ptx.index("mbarrier.arrive")
    copy = ptx.index("cp.async.bulk.global") if "cp.async.bulk.global" in ptx else ptx.index("cp.async.bulk.tensor")
    assert copy < arrival
    assert ("wait_group.read" in ptx[copy:arrival]) == (not apart)
