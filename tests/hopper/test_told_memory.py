"""Others learn from copies, asynchronous stores, signals and atomics that memory is free, and may then overwrite what lanes read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

pytestmark = pytest.mark.tma

N = 512  # four elements a lane: reversed, each is another warp's
ROW, ROWS = kd.ShapeDtypeStruct((N,), kd.int32), kd.ShapeDtypeStruct((4, N), kd.int32)
SMEM = kd.SMEM((N,), kd.int32)
TWO: dict[str, Any] = {"num_threads": 2, "thread_name": "wg"}
X = np.arange(N, dtype=np.int32)


def results(kernel: Any, interpret: Any, *args: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in kernel(*args, interpret=interpret)]


def roles(*parts: Callable[[], None]) -> None:
    """Run a part in each warpgroup. The last one stands first in the text, where no fence of the first precedes its copy."""
    wg = kd.axis_index("wg")
    for n in reversed(range(len(parts))):
        kd.when(wg == n)(parts[n])


TELL: dict[str, tuple[Any, Any]] = {
    "copy": (lambda s: kd.copy_gmem_to_smem(s["x"], s["held"], s["told"]), lambda s: kd.barrier_wait(s["told"])),
    "signal": (lambda s: kd.semaphore_signal(s["sem"]), lambda s: kd.semaphore_wait(s["sem"])),
    "signal to the block": (
        lambda s: kd.semaphore_signal(s["sem"], memory_scope="cta"),
        lambda s: kd.semaphore_wait(s["sem"], memory_scope="cta"),
    ),
    "atomic": (lambda s: kd.atomic_add(s["sem"], 1, order="release"), lambda s: kd.semaphore_wait(s["sem"])),
}


@pytest.mark.parametrize("how", TELL)
def test_copies_of_another_warpgroup_wait_for_loads(how: str, interpret: Any) -> None:
    """One warpgroup loads SMEM and GMEM, tells the other, and uses the values later; the other copies over both."""
    tell, wait = TELL[how]

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((N,), kd.int32, init=3), ROW),
        scratch_types={"a": SMEM, "b": SMEM, "held": SMEM, "full": kd.Barrier(), "again": kd.Barrier(), "told": kd.Barrier(),
            "sem": kd.SemaphoreType.REGULAR},
        **TWO,
    )  # fmt: skip
    def kernel(x: Any, out: Any, kept: Any, *, a: Any, b: Any, full: Any, again: Any, **more: Any) -> None:
        more["x"] = x

        def reads() -> None:
            kd.copy_gmem_to_smem(x, a, full)
            kd.barrier_wait(full)
            value, other = a[::-1], out[::-1]
            tell(more)
            kept[...] = value + other

        def copies() -> None:
            b[...] = x[...] + 9
            kd.commit_smem()
            wait(more)
            kd.copy_gmem_to_smem(x, a, again)
            kd.barrier_wait(again)
            kd.copy_smem_to_gmem(b, out)
            kd.wait_smem_to_gmem(0)

        roles(reads, copies)

    out, kept = results(kernel, interpret, X)
    np.testing.assert_array_equal(out, X + 9)
    np.testing.assert_array_equal(kept, X[::-1] + 3)
    if how == "copy":  # every lane's fence comes before its warp's arrival
        ptx = str(kernel.lower(X).ptx)
        fence = ptx.rindex("fence.proxy.async.shared::cta")
        assert "bar.warp.sync" in ptx[fence : ptx.index("expect_tx", fence)]


@pytest.mark.cluster
def test_a_store_to_a_peer_tells_it_of_loads(interpret: Any) -> None:
    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((N,), kd.int32, init=3), ROW),
        scratch_types={"b": SMEM, "held": SMEM, "told": kd.Barrier()},
        grid=(1,), grid_names=("g",), cluster=(2,), cluster_names=("c",),
    )  # fmt: skip
    def kernel(x: Any, out: Any, kept: Any, *, b: Any, held: Any, told: Any) -> None:
        c = kd.axis_index("c")

        @kd.when(c == 1)
        def _() -> None:
            b[...] = x[...]
            kd.commit_smem()
            kd.barrier_wait(told)
            kd.copy_smem_to_gmem(b, out)
            kd.wait_smem_to_gmem(0)

        @kd.when(c == 0)
        def _() -> None:
            value = out[::-1]
            kd.async_store_smem(x[...], held, told, cluster_dim="c", cluster_idx=1)
            kept[...] = value

    out, kept = results(kernel, interpret, X)
    np.testing.assert_array_equal(out, X)
    np.testing.assert_array_equal(kept, np.full(N, 3))


@pytest.mark.parametrize("scope", ["cta", "gpu"])
def test_a_releasing_atomic_speaks_for_all_lanes(scope: str, interpret: Any) -> None:
    @kd.kernel(out_type=(ROW, ROW), scratch_types={"a": SMEM, "sem": kd.SemaphoreType.REGULAR}, **TWO)
    def kernel(x: Any, out: Any, array: Any, *, a: Any, sem: Any) -> None:
        def stores() -> None:
            a[...] = x[...] + 1
            array[...] = x[...] + 2
            kd.atomic_add(sem, 1, order="release", scope=scope)

        def loads() -> None:
            kd.semaphore_wait(sem, memory_scope=scope)
            out[...] = a[::-1] + array[::-1]

        roles(stores, loads)

    np.testing.assert_array_equal(results(kernel, interpret, X)[0], 2 * X[::-1] + 3)


@pytest.mark.parametrize("how", TELL)
def test_a_union_told_free_is_read_by_no_copy(how: str, interpret: Any) -> None:
    tell, wait = TELL[how]

    @kd.kernel(
        out_type=(ROW, ROW),
        scratch_types={"u": kd.RefUnion(SMEM, SMEM), "held": SMEM, "again": kd.Barrier(), "told": kd.Barrier(),
            "sem": kd.SemaphoreType.REGULAR},
        **TWO,
    )  # fmt: skip
    def kernel(x: Any, out: Any, other: Any, *, u: Any, again: Any, **more: Any) -> None:
        more["x"], (first, second) = x, u

        def stores() -> None:
            first[...] = x[...] + 1
            kd.commit_smem()
            kd.copy_smem_to_gmem(first, out)
            tell(more)

        def copies() -> None:
            wait(more)
            kd.copy_gmem_to_smem(x, second, again)
            kd.barrier_wait(again)
            other[...] = second[...]

        roles(stores, copies)

    out, other = results(kernel, interpret, X)
    np.testing.assert_array_equal(out, X + 1)
    np.testing.assert_array_equal(other, X)


@pytest.mark.parametrize("where", ["GMEM", "SMEM"])
def test_a_fence_for_loads_before_a_loop_leaves_the_loops_own(where: str, interpret: Any) -> None:
    """With the fence before `z` alone, `y` would be unfenced at the end of an iteration, where the next one copies over it."""

    @kd.kernel(
        out_type=(ROWS, ROW, ROW, ROW), input_output_aliases={1: 1, 2: 2, 3: 3},
        scratch_types=[kd.SMEM((N,), kd.int32), *[SMEM] * 3, kd.Barrier()],
    )  # fmt: skip
    def kernel(g: Any, _x: Any, _y: Any, _z: Any, out: Any, x: Any, y: Any, z: Any, s: Any, *rest: Any) -> None:
        *tiles, full = rest
        s[...] = g[...]
        for tile in tiles:
            tile[...] = g[...] + 1
        kd.commit_smem()
        if where == "SMEM":
            x, y, z = tiles

        def copy(ref: Any) -> None:
            if where == "SMEM":
                kd.copy_gmem_to_smem(g, ref, full)
                kd.barrier_wait(full)
            else:
                kd.copy_smem_to_gmem(s, ref)
                kd.wait_smem_to_gmem(0)

        before = z[::-1]

        def step(i: Any, _: Any) -> Any:
            copy(y)
            first = x[::-1]
            copy(z)
            second = y[::-1]
            copy(x)
            out[i] = first + second
            return _

        kd.fori_loop(0, 3, step, 0)
        out[3] = before

    out = results(kernel, interpret, X, X + 1, X + 1, X + 1)[0]
    np.testing.assert_array_equal(out, np.stack([2 * X + 1, 2 * X, 2 * X, X + 1])[:, ::-1])


@pytest.mark.parametrize("kind", ["for", "while"])
def test_an_arrival_behind_a_loop_without_turns_has_a_fence(kind: str, interpret: Any) -> None:
    """A body stores to its block, and frees it in a loop or, where the loop has no turn, behind it."""

    @kd.kernel(out_type=(ROW,), **TWO)
    def kernel(g: Any, turns: Any, out: Any) -> None:
        def body(_: Any, block: Any, free: Any) -> None:
            block[...] = kd.full((N // 4,), 5, kd.int32)

            def arrive(j: Any, carry: Any) -> Any:
                kd.barrier_arrive(free)
                return carry

            def goes_on(j: Any) -> Any:
                block[...] = kd.full((N // 4,), 6, kd.int32)
                return j < turns

            if kind == "for":
                kd.fori_loop(0, turns, arrive, 0)
            else:
                kd.while_loop(goes_on, lambda j: arrive(j, j + 1), kd.int32(0))
            kd.when(turns == 0)(lambda: kd.barrier_arrive(free))

        kd.emit_pipeline_warp_specialized(
            body, grid=(4,), in_specs=[kd.BlockSpec((N // 4,), lambda i: (i,))], out_specs=[], max_concurrent_steps=2,
            memory_registers=40, wg_axis="wg", num_compute_wgs=1, manual_consumed_barriers=True,
        )(g)  # fmt: skip
        kd.when(kd.axis_index("wg") == 0)(lambda: out.__setitem__(..., g[...]))

    np.testing.assert_array_equal(results(kernel, interpret, X, 0)[0], X)


def test_a_copy_over_what_lanes_read_waits_for_all_lanes(interpret: Any) -> None:
    @kd.kernel(out_type=lambda x: (x, x), input_output_aliases={0: 0}, scratch_types={"tile": SMEM})
    def kernel(x: Any, out: Any, kept: Any, *, tile: Any) -> None:
        tile[...] = kd.full((N,), 7, kd.int32)
        kd.commit_smem()
        value = out[::-1]
        kd.copy_smem_to_gmem(tile, out)
        kd.wait_smem_to_gmem(0)
        kept[...] = value

    out, kept = results(kernel, interpret, X)
    np.testing.assert_array_equal(out, np.full(N, 7))
    np.testing.assert_array_equal(kept, X[::-1])
