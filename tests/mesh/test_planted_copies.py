"""Planted bugs of TMA and of copies between devices, each with a twin that differs in the one place and is clean."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import HazardKind as K

from . import planted as p
from .planted import APART, HOSTS, LOADED, ROOM, ROW, SEMS, ZEROS, bring, bump, check, me, meet, peer, swapped, tell

PLANTED: dict[str, p.Planted] = {}
planted = partial(p.planted, PLANTED)


# --- TMA --------------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, scratch=(SEMS, ROOM))
def a_tma_store_without_a_wait(bad: bool, x: Any, out: Any, sem: Any, smem: Any) -> None:
    smem[...] = x[...]
    kd.commit_smem()
    kd.copy_smem_to_gmem(smem, kd.remote_ref(out, peer()))
    if not bad:
        kd.wait_smem_to_gmem(0)
    swapped(sem.at[0])
    bump(out)


@planted(K.RACE_BLOCKS, scratch=(SEMS, ROOM))
def a_tma_store_that_has_been_read_alone(bad: bool, x: Any, out: Any, sem: Any, smem: Any) -> None:
    smem[...] = x[...]
    kd.commit_smem()
    kd.copy_smem_to_gmem(smem, kd.remote_ref(out, peer()))
    kd.wait_smem_to_gmem(0, wait_read_only=bad)
    swapped(sem.at[0])
    bump(out)


@planted(K.MISSING_PROXY_FENCE, scratch=(SEMS, ROOM))
def a_tma_store_without_a_fence(bad: bool, x: Any, out: Any, sem: Any, smem: Any) -> None:
    smem[...] = x[...]
    if not bad:
        kd.commit_smem()
    kd.copy_smem_to_gmem(smem, kd.remote_ref(out, peer()))
    kd.wait_smem_to_gmem(0)
    swapped(sem.at[0])


@planted(K.RACE_BLOCKS, scratch=(SEMS, ROOM, LOADED), out=(ROW, ROW))
def a_tma_load_of_what_has_not_come(bad: bool, x: Any, out: Any, place: Any, sem: Any, smem: Any, loaded: Any) -> None:
    kd.remote_ref(place, peer())[...] = x[...]
    tell(sem.at[0])
    if not bad:
        kd.semaphore_wait(sem.at[0])
    bring(place, smem, loaded, out)
    if bad:
        kd.semaphore_wait(sem.at[0])


@planted(K.RACE_BLOCKS, scratch=(SEMS, ROOM, LOADED), out=(ROW, ROW))
def a_tma_load_from_a_peer_that_still_writes(
    bad: bool, x: Any, out: Any, place: Any, sem: Any, smem: Any, loaded: Any
) -> None:
    place[...] = x[...] * 2
    tell(sem.at[0])
    if not bad:
        kd.semaphore_wait(sem.at[0])
    bring(kd.remote_ref(place, peer()), smem, loaded, out)
    if bad:
        kd.semaphore_wait(sem.at[0])


@planted(K.RACE_BLOCKS, scratch=(SEMS, ROOM), out=ZEROS)
def a_tma_sum_beside_the_owners_own(bad: bool, x: Any, out: Any, sem: Any, smem: Any) -> None:
    smem[...] = x[...]
    kd.commit_smem()

    @kd.when(me() == 1)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(sem.at[1])
        kd.copy_smem_to_gmem(smem, kd.remote_ref(out, 0), reduction_op="add")
        kd.wait_smem_to_gmem(0)

    @kd.when(me() == 0)
    def _() -> None:
        out[...] = out[...] + smem[...]
        if not bad:
            tell(sem.at[1], 1)

    meet(sem.at[0], "x", 2)


# --- copies between devices -------------------------------------------------------------------------


@planted(K.RACE_SHARED, scratch=(SEMS, ROOM), warpgroups=2)
def a_source_in_smem_written_before_it_was_sent(bad: bool, x: Any, out: Any, sem: Any, smem: Any) -> None:
    @kd.when(kd.axis_index("wg") == 0)
    def _() -> None:
        smem[...] = x[...]
        kd.async_copy(smem, out, sem.at[0], sem.at[1], peer())

    @kd.when(kd.axis_index("wg") == 1)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(sem.at[0])
        smem[...] = x[...] * 0
        if bad:
            kd.semaphore_wait(sem.at[0])
        kd.semaphore_wait(sem.at[1])


@planted(K.RACE_GLOBAL, mesh=HOSTS, mapped=APART, out=(ROW, ROW), warpgroups=2)
def a_source_written_before_another_host_has_it(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    @kd.when(kd.axis_index("wg") == 0)
    def _() -> None:
        place[...] = x[...]
        kd.async_copy(place, out, sem.at[0], sem.at[1], {"host": 1 - kd.axis_index("host")})

    @kd.when(kd.axis_index("wg") == 1)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(sem.at[0])
        place[...] = x[...] * 0
        if bad:
            kd.semaphore_wait(sem.at[0])
        kd.semaphore_wait(sem.at[1])


@planted(K.RACE_BLOCKS)
def a_copy_used_before_it_has_come(bad: bool, x: Any, out: Any, sem: Any) -> None:
    copy = kd.async_copy(x, out, None, sem.at[0], peer())
    if not bad:
        copy.wait_recv()
    bump(out)
    if bad:
        copy.wait_recv()


@planted(K.OUT_OF_BOUNDS, mesh=HOSTS, mapped=APART)
def an_atomic_on_another_host(bad: bool, x: Any, out: Any, sem: Any) -> None:
    there = {"host": 1 - kd.axis_index("host")}
    out[...] = x[...]
    if bad:
        kd.atomic_add(kd.remote_ref(sem, there).at[0], 1, order="release", scope="sys")
    else:
        tell(sem.at[0], there)
    kd.semaphore_wait(sem.at[0])


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.sampled(4)
def test_a_bug_is_found_and_its_twin_is_clean(name: str, request: pytest.FixtureRequest) -> None:
    check(PLANTED[name], request.config.getoption("--slow"))
