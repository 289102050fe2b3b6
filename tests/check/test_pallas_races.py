"""The race tests of Pallas' Mosaic GPU interpreter (JAX, tests/pallas/gpu_pallas_interpret_race_detection_test.py), in our
language: each with all of its parameters, and Pallas' verdict.

Buffers have 64 elements, so that each copy is one of TMA. Data that Pallas' tests leave unwritten is an argument or is written
first, or `uninitialised` is ignored, so that races alone decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

N = 64
ROW = kd.SMEM((N,), kd.int32)
OUT = kd.ShapeDtypeStruct((N,), kd.int32)
X = np.arange(N, dtype=np.int32)
TESTS: dict[str, list[tuple[str, Callable[[], tuple[Any, ...]], bool]]] = {}
IGNORE = ("uninitialised",)


def flags(count: int) -> Iterator[tuple[bool, ...]]:
    return itertools.product((False, True), repeat=count)


def case(test: str, kernel: Any, *args: Any, race: bool, name: Any = "") -> None:
    TESTS.setdefault(test, []).append((f"{test} {name}".strip(), lambda: (kernel, *(a.copy() for a in args)), race))


def two(body: Callable[..., None], out: Any = OUT, **scratch: Any) -> Any:
    """A kernel of two warpgroups."""
    return kd.kernel(out_type=out, scratch_types=scratch, num_threads=2, thread_name="t")(body)


def commit(wanted: bool) -> None:
    if wanted:
        kd.commit_smem()


def not_visible_unless_synchronized(wait: bool) -> Any:
    @kd.kernel(out_type=OUT, scratch_types={"s": ROW, "b": kd.Barrier()})
    def kernel(out, *, s, b):
        kd.copy_gmem_to_smem(out, s, b)
        if wait:
            kd.barrier_wait(b)
        kd.commit_smem()
        out[...] = kd.full((N,), 42, kd.int32)
        if not wait:
            kd.barrier_wait(b)

    return kernel


for wait in (False, True):
    case(
        "async gmem ops not visible unless synchronized",
        not_visible_unless_synchronized(wait),
        race=not wait,
        name=wait,
    )


def later_load(a: bool, b: bool, c: bool, d: bool) -> Any:
    @kd.kernel(out_type=OUT, scratch_types={"s": ROW, "full": kd.Barrier()})
    def kernel(x, out, *, s, full):
        commit(a)
        s[...] = kd.full((N,), 100, kd.int32)
        commit(b)
        kd.copy_gmem_to_smem(x, s, full)
        commit(c)
        kd.barrier_wait(full)
        commit(d)
        out[...] = s[...]

    return kernel


for f in flags(4):
    case("single thread, later gmem to smem copy", later_load(*f), X, race=not f[1], name=f)


def earlier_load(wait: bool) -> Any:
    @kd.kernel(out_type=OUT, scratch_types={"s": ROW, "full": kd.Barrier()})
    def kernel(x, out, *, s, full):
        kd.copy_gmem_to_smem(x, s, full)
        if wait:
            kd.barrier_wait(full)
        s[...] = kd.full((N,), 42, kd.int32)
        out[...] = s[...]
        if not wait:
            kd.barrier_wait(full)

    return kernel


for wait in (False, True):
    case("single thread, earlier gmem to smem copy", earlier_load(wait), X, race=not wait, name=wait)


def load_of_the_writer(a: bool, b: bool, c: bool, d: bool, e: bool, f: bool) -> Any:
    def kernel(x, out, *, s, told, full):
        @kd.when(kd.axis_index("t") == 0)
        def _():
            commit(a)
            s[...] = kd.full((N,), 100, kd.int32)
            commit(b)
            kd.copy_gmem_to_smem(x, s, full)
            commit(c)
            kd.barrier_arrive(told)

        @kd.when(kd.axis_index("t") == 1)
        def _():
            commit(d)
            kd.barrier_wait(told)
            commit(e)
            kd.barrier_wait(full)
            commit(f)
            out[...] = s[...]

    return two(kernel, s=ROW, told=kd.Barrier(), full=kd.Barrier())


def load_of_the_other(a: bool, b: bool, c: bool, d: bool, e: bool, f: bool) -> Any:
    def kernel(x, out, *, s, told, full):
        @kd.when(kd.axis_index("t") == 0)
        def _():
            commit(a)
            s[...] = kd.full((N,), 100, kd.int32)
            commit(b)
            kd.barrier_arrive(told)

        @kd.when(kd.axis_index("t") == 1)
        def _():
            commit(c)
            kd.barrier_wait(told)
            commit(d)
            kd.copy_gmem_to_smem(x, s, full)
            commit(e)
            kd.barrier_wait(full)
            commit(f)
            out[...] = s[...]

    return two(kernel, s=ROW, told=kd.Barrier(), full=kd.Barrier())


for f in flags(6):
    case("multi thread gmem to smem copy", load_of_the_writer(*f), X, race=not f[1], name=f)
    case("cross thread gmem to smem copy", load_of_the_other(*f), X, race=not (f[1] or f[3]), name=f)


def store(a: bool, b: bool, c: bool) -> Any:
    @kd.kernel(out_type=(OUT, OUT), scratch_types=[ROW])
    def kernel(out, g, s):
        commit(a)
        s[...] = kd.full((N,), 42, kd.int32)
        commit(b)
        kd.copy_smem_to_gmem(s, g)
        commit(c)
        kd.wait_smem_to_gmem(0)
        out[...] = g[...]

    return kernel


for f in flags(3):
    case("single thread smem to gmem copy", store(*f), race=not f[1], name=f)


@kd.kernel(out_type=(OUT, OUT, OUT), scratch_types=[ROW, ROW])
def waits_for_one(out, g1, g2, s1, s2):
    s1[...] = kd.full((N,), 1, kd.int32)
    s2[...] = kd.full((N,), 2, kd.int32)
    kd.commit_smem()
    kd.copy_smem_to_gmem(s1, g1)
    kd.copy_smem_to_gmem(s2, g2)
    kd.wait_smem_to_gmem(1)
    out[...] = g1[...] + g2[...]
    kd.wait_smem_to_gmem(0)


case("non fully waited smem to gmem copy", waits_for_one, race=True)

ROWS = kd.SMEM((3, N), kd.int32)


@kd.kernel(out_type=(OUT, kd.ShapeDtypeStruct((3, N), kd.int32)), scratch_types=[ROWS])
def waits_again(x, out, g, s):
    s[...] = x[...]
    kd.commit_smem()
    for i in range(3):
        kd.copy_smem_to_gmem(s.at[i], g.at[i])
    kd.wait_smem_to_gmem(1)
    kd.wait_smem_to_gmem(2)
    out[...] = g[0] + g[1]
    kd.wait_smem_to_gmem(0)
    out[...] = g[0] + g[1] + g[2]


case("rewaiting smem to gmem copies", waits_again, np.arange(3 * N, dtype=np.int32).reshape(3, N), race=False)


def reads_only(once: bool, where: int) -> Any:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((2, N), kd.int32), scratch_types=[kd.SMEM((2, N), kd.int32)])
    def kernel(x, out, s):
        s[...] = x[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(s.at[0], out.at[0])
        kd.copy_smem_to_gmem(s.at[1], out.at[1])
        kd.wait_smem_to_gmem(1, wait_read_only=True)
        if not once:
            kd.wait_smem_to_gmem(1)
        (s.at[0], out.at[0], s.at[1], out.at[1])[where][...] = kd.full((N,), 3, kd.int32)
        kd.wait_smem_to_gmem(0, wait_read_only=True)

    return kernel


for once, where in itertools.product((False, True), range(4)):
    # Pallas skips (True, 1): it has no clocks of GMEM there. The write of the first copy is not waited for, so it races.
    fine = where == 0 or (not once and where == 1)
    case("waits for reads of smem to gmem copies", reads_only(once, where), np.arange(2 * N, dtype=np.int32).reshape(2, N),
        race=not fine, name=(once, where))  # fmt: skip


def waits_of_another(smem: bool) -> Any:
    def kernel(out, *, s, told, done):
        @kd.when(kd.axis_index("t") == 0)
        def _():
            s[...] = kd.full((N,), 1, kd.int32)
            kd.commit_smem()
            kd.copy_smem_to_gmem(s, out)
            kd.barrier_arrive(told)
            kd.barrier_wait(done)
            kd.wait_smem_to_gmem(0)

        @kd.when(kd.axis_index("t") == 1)
        def _():
            kd.barrier_wait(told)
            kd.wait_smem_to_gmem(0)
            (s if smem else out)[...] = kd.full((N,), 43, kd.int32)
            kd.barrier_arrive(done)

    return two(kernel, s=ROW, told=kd.Barrier(), done=kd.Barrier())


for smem in (False, True):
    case("wait smem to gmem isolated per thread", waits_of_another(smem), race=True, name=smem)


def tells_another(out, g, *, s, told):
    @kd.when(kd.axis_index("t") == 0)
    def _():
        s[...] = kd.full((N,), 42, kd.int32)
        kd.commit_smem()
        kd.copy_smem_to_gmem(s, g)
        kd.wait_smem_to_gmem(0)
        kd.barrier_arrive(told)

    @kd.when(kd.axis_index("t") == 1)
    def _():
        kd.barrier_wait(told)
        out[...] = g[...]


# Pallas' file has this one without the prefix that would let it run.
case(
    "properly waited smem to gmem visible across threads",
    two(tells_another, (OUT, OUT), s=ROW, told=kd.Barrier()),
    race=False,
)


def load_twice(wait: bool) -> Any:
    @kd.kernel(out_type=OUT, scratch_types={"s": ROW, "full": kd.Barrier(num_arrivals=1 if wait else 2)})
    def kernel(x, out, *, s, full):
        kd.commit_smem()
        kd.copy_gmem_to_smem(x, s, full)
        if wait:
            kd.barrier_wait(full)
        kd.copy_gmem_to_smem(x, s, full)
        kd.barrier_wait(full)
        out[...] = s[...]

    return kernel


for wait in (False, True):
    case("gmem to smem visible in async if awaited", load_twice(wait), X, race=not wait, name=wait)


@kd.kernel(out_type=OUT, scratch_types=[ROW])
def store_twice(g, s):
    s[...] = kd.full((N,), 1, kd.int32)
    kd.commit_smem()
    kd.copy_smem_to_gmem(s, g)
    kd.copy_smem_to_gmem(s, g)
    kd.wait_smem_to_gmem(0)


case("double smem to gmem", store_twice, race=True)


def unawaited(wait: bool) -> Any:
    """Pallas raises an error where the reads are not waited for. Our compiler waits for them at the end of the block."""

    @kd.kernel(out_type=OUT, scratch_types=[ROW])
    def kernel(out, s):
        s[...] = kd.full((N,), 1, kd.int32)
        kd.commit_smem()
        kd.copy_smem_to_gmem(s, out)
        if wait:
            kd.wait_smem_to_gmem(0, wait_read_only=True)

    return kernel


case("unawaited smem to gmem", unawaited(False), race=False)
case("unawaited smem to gmem, write side", unawaited(True), race=False)


def in_cluster(asynchronous: bool, out: bool) -> Any:
    @kd.kernel(out_type=OUT, scratch_types={"s": ROW, "full": kd.Barrier()}, cluster=(2,), cluster_names=("c",))
    def kernel(x, o, *, s, full):
        if out:
            s[...] = x[...] + kd.axis_index("c")
            kd.commit_smem()
            if asynchronous:
                kd.copy_smem_to_gmem(s, o)
                kd.wait_smem_to_gmem(0)
            else:
                o[...] = s[...]
        elif asynchronous:
            kd.copy_gmem_to_smem(x, s, full)
            kd.barrier_wait(full)
        else:
            s[...] = x[...]

    return kernel


case("async copy smem to gmem in cluster", in_cluster(True, True), X, race=True)
case("async copy gmem to smem in cluster", in_cluster(True, False), X, race=False)
case("sync copy smem to gmem in cluster", in_cluster(False, True), X, race=True)
case("sync copy gmem to smem in cluster", in_cluster(False, False), X, race=False)


@kd.kernel(out_type=OUT, scratch_types={"s": ROW}, cluster=(2,), cluster_names=("c",), num_threads=2, thread_name="t")
def each_its_own(o, *, s):
    for block, thread in ((0, 0), (1, 1)):

        @kd.when((kd.axis_index("c") == block) & (kd.axis_index("t") == thread))
        def _(block=block):
            s[...] = kd.full((N,), 42 + block, kd.int32)


case("smem across clusters", each_its_own, race=False)
CASES = [c for found in TESTS.values() for c in found]


def test_all_of_pallas_race_tests_are_here() -> None:
    """19 tests that run, and one that does not."""
    assert len(TESTS) == 20


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name,made,race", CASES, ids=[c[0] for c in CASES])
def test_the_verdict_is_that_of_pallas(name: str, made: Any, race: bool) -> None:
    kernel, *args = made()
    report = kd.check(kernel, *args, schedules=("eager", "late", "random:2"), ignore=IGNORE)
    assert bool(report.hazards) == race, (name, str(report))
    if race:
        assert all({"eager", "late"} <= set(h.schedules) for h in report.hazards[:1]), str(report)
