"""Planted bugs of flags, counts and buffers, each with a twin that differs in the one place and is clean."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import HazardKind as K

from . import planted as p
from .planted import COUNT, GRID, HALF, ROW, SEM, TRIO, ZEROS, after, bump, check, me, meet, peer, swapped, tell

PLANTED: dict[str, p.Planted] = {}
planted = partial(p.planted, PLANTED)


# --- flags ------------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS)
def a_flag_without_release(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    if bad:
        kd.atomic_add(kd.remote_ref(sem, peer()).at[0], 1, order="relaxed", scope="sys")
    else:
        tell(sem.at[0])
    kd.semaphore_wait(sem.at[0])
    bump(out)


@planted(K.RACE_BLOCKS)
def a_flag_before_the_data(bad: bool, x: Any, out: Any, sem: Any) -> None:
    if bad:
        tell(sem.at[0])
    kd.remote_ref(out, peer())[...] = x[...]
    if not bad:
        tell(sem.at[0])
    kd.semaphore_wait(sem.at[0])
    bump(out)


@planted(K.RACE_BLOCKS)
def data_read_before_the_wait(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    tell(sem.at[0])
    if not bad:
        kd.semaphore_wait(sem.at[0])
    value = out[...]
    if bad:
        kd.semaphore_wait(sem.at[0])
    out[...] = value * 2


@planted(K.RACE_BLOCKS)
def a_wait_of_one_gpus_scope(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    tell(sem.at[0])
    kd.semaphore_wait(sem.at[0], memory_scope="gpu" if bad else None)
    bump(out)


@planted(K.RACE_BLOCKS)
def a_signal_of_a_clusters_scope(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    tell(sem.at[0], memory_scope="cluster" if bad else None)
    kd.semaphore_wait(sem.at[0])
    bump(out)


@planted(K.RACE_BLOCKS, K.LIVELOCK, mesh=TRIO)
def a_signal_to_another_device(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, after())[...] = x[...]
    tell(sem.at[0], after(2) if bad else after())
    kd.semaphore_wait(sem.at[0])
    bump(out)


@planted(K.RACE_BLOCKS, mesh=GRID)
def a_multicast_along_another_axis(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, {"b": 1 - kd.axis_index("b")})[...] = x[...]
    meet(sem.at[0], "a" if bad else "b", 2)
    bump(out)


@planted(K.LIVELOCK, K.DEADLOCK, mesh=TRIO)
def a_rank_that_does_not_signal(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, after())[...] = x[...]
    kd.when(me() != 1 if bad else me() >= 0)(lambda: tell(sem.at[0], after()))
    kd.semaphore_wait(sem.at[0])


@planted(K.LIVELOCK, K.DEADLOCK)
def each_waits_before_it_signals(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    if bad:
        kd.semaphore_wait(sem.at[0])
        tell(sem.at[0])
    else:
        swapped(sem.at[0])


@planted(K.SEMAPHORE_LEFT, calls=2)
def a_count_that_the_next_call_finds(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    tell(sem.at[0])
    kd.semaphore_wait(sem.at[0], decrement=not bad)


# --- counts -----------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, mesh=TRIO)
def a_wait_for_one_of_two(bad: bool, x: Any, out: Any, sem: Any) -> None:
    for k in (1, 2):
        kd.remote_ref(out, after(k))[kd.ds((k - 1) * HALF, HALF)] = x[kd.ds(0, HALF)]
        tell(sem.at[0], after(k))
    kd.semaphore_wait(sem.at[0], 1 if bad else 2)
    bump(out)
    if bad:
        kd.semaphore_wait(sem.at[0])


@planted(K.RACE_BLOCKS, mesh=TRIO, seeds=range(40))
def a_signal_of_another_rank_is_counted(bad: bool, x: Any, out: Any, sem: Any) -> None:
    other = sem.at[0 if bad else 1]

    @kd.when(me() == 0)
    def _() -> None:
        kd.remote_ref(out, 1)[...] = x[...]
        tell(sem.at[0], 1)

    kd.when(me() == 2)(lambda: tell(other, 1))
    kd.when(me() != 1)(lambda: out.__setitem__(..., x[...]))

    @kd.when(me() == 1)
    def _() -> None:
        kd.semaphore_wait(sem.at[0])
        bump(out)
        kd.semaphore_wait(other)


@planted(K.RACE_BLOCKS, grid=2, seeds=range(40))
def two_blocks_take_from_one_counter(bad: bool, x: Any, out: Any, sem: Any) -> None:
    """Either block may take the signal that says that the other one's half has come."""
    half = kd.ds(kd.axis_index("block") * HALF, HALF)
    shared = kd.get_global(SEM)
    kd.remote_ref(out, peer())[half] = x[half]
    swapped(shared if bad else sem.at[0])
    out[half] = out[half] + 1


@planted(K.RACE_BLOCKS, grid=2)
def a_block_reads_another_blocks_half(bad: bool, x: Any, out: Any, sem: Any) -> None:
    block = kd.axis_index("block")
    half = kd.ds(block * HALF, HALF)
    kd.remote_ref(out, peer())[half] = x[half]
    swapped(sem.at[0])
    half = kd.ds((1 - block) * HALF, HALF) if bad else half
    out[half] = out[half] + 1


# --- buffers ----------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS)
def a_result_over_what_the_peer_still_reads(bad: bool, x: Any, out: Any, sem: Any) -> None:
    out[...] = x[...]
    swapped(sem.at[0])
    value = kd.remote_ref(out, peer())[...]
    if not bad:
        swapped(sem.at[1])
    out[...] = value


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, ROW))
def a_ring_of_one_place_without_credit(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    value = total = x[...]
    for step in range(2):
        if step and not bad:
            kd.semaphore_wait(sem.at[1])
        kd.remote_ref(place, after())[...] = value
        tell(sem.at[0], after())
        kd.semaphore_wait(sem.at[0])
        value = place[...]
        total = total + value
        if step == 0 and not bad:
            tell(sem.at[1], after(2))
    out[...] = total


@planted(K.RACE_BLOCKS, K.EQUAL_VALUE_RACE, mesh=TRIO)
def two_ranks_write_to_one_place(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.when(me() > 0 if bad else me() == 1)(lambda: kd.remote_ref(out, 0).__setitem__(..., x[...]))
    kd.when(me() > 0)(lambda: out.__setitem__(..., x[...]))
    meet(sem.at[0], "x", 3)


@planted(K.RACE_BLOCKS, out=(ROW, ZEROS))
def a_sum_that_is_not_atomic(bad: bool, x: Any, out: Any, total: Any, sem: Any) -> None:
    out[...] = x[...]
    there = kd.remote_ref(total, 0)
    if bad:
        there[...] = there[...] + x[...]
    else:
        kd.atomic_add(there, x[...], scope="sys")
    meet(sem.at[0], "x", 2)


@planted(K.RACE_BLOCKS, out=(ROW, COUNT))
def an_atomic_of_one_gpus_scope(bad: bool, x: Any, out: Any, count: Any, sem: Any) -> None:
    out[...] = x[...]
    kd.atomic_add(kd.remote_ref(count, 0).at[0], 1, scope="gpu" if bad else "sys")
    meet(sem.at[0], "x", 2)


@planted(K.UNINITIALISED, out=(ROW, ROW))
def a_peer_that_has_written_nothing(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    kd.when(me() == 0 if bad else me() >= 0)(lambda: place.__setitem__(..., x[...]))
    swapped(sem.at[0])
    out[...] = kd.remote_ref(place, peer())[...]
    swapped(sem.at[1])


@planted(K.OUT_OF_BOUNDS)
def a_device_past_the_last(bad: bool, x: Any, out: Any, sem: Any) -> None:
    kd.remote_ref(out, me() + int(bad))[...] = x[...]


@planted(K.RACE_BLOCKS, warpgroups=2)
def a_warpgroup_that_does_not_wait(bad: bool, x: Any, out: Any, sem: Any) -> None:
    @kd.when(kd.axis_index("wg") == 0)
    def _() -> None:
        kd.remote_ref(out, peer())[...] = x[...]
        swapped(sem.at[0])
        if not bad:
            kd.semaphore_signal(sem.at[1])

    @kd.when(kd.axis_index("wg") == 1)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(sem.at[1])
        bump(out)


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.sampled(4)
def test_a_bug_is_found_and_its_twin_is_clean(name: str, request: pytest.FixtureRequest) -> None:
    check(PLANTED[name], request.config.getoption("--slow"))
