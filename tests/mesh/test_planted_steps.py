"""Planted bugs of kernels with several steps, such as rings, exchanges by halves and locks, each with a clean twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import HazardKind as K

from . import planted as p
from .planted import COUNT, GRID, HALF, ROW, TRIO, ZEROS, N, after, bump, check, me, meet, peer, tell

PLANTED: dict[str, p.Planted] = {}
planted = partial(p.planted, PLANTED)

QUAD = kd.Mesh(("x",), (4,))
THIRDS, FOURTHS = (kd.ShapeDtypeStruct((n, N), kd.float32) for n in (3, 4))
INTS = kd.ShapeDtypeStruct((8,), kd.int32, init=0)
LONG = range(30)


def ahead(k: int = 1) -> Any:
    return kd.rem(me() + k, 4)


def raised(flag: Any, order: str) -> None:
    """Store 1 into a flag, by one lane and after all lanes."""
    kd.inline_ptx(f"bar.sync 0; st.{order}.sys.global.b32 [$0], 1;", flag)


def lowered_by(flag: Any, load: str) -> None:
    """Wait until a flag is 1."""

    def look() -> Any:
        return kd.inline_ptx(f"ld.{load}.global.b32 $0, [$1];", flag, out_type=kd.int32)

    kd.while_loop(lambda seen: seen == 0, lambda seen: look(), look())


# --- rings ------------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, K.EQUAL_VALUE_RACE, K.UNINITIALISED, mesh=TRIO, out=(ROW, THIRDS))
def a_ring_that_passes_the_next_row_on(bad: bool, x: Any, out: Any, rows: Any, sem: Any) -> None:
    """It sends a row in each step: the one that came last, or by mistake the one that comes next."""
    rows[me()] = x[...]
    for step in range(2):
        at = kd.rem(me() + 3 - step - bad, 3)
        kd.remote_ref(rows, after())[at] = rows[at]
        tell(sem.at[step], after())
        kd.semaphore_wait(sem.at[step])
    out[...] = rows[0] + rows[1] + rows[2]


@planted(K.RACE_BLOCKS, mesh=QUAD, out=(ROW, FOURTHS), seeds=LONG)
def a_ring_whose_steps_share_a_count(bad: bool, x: Any, out: Any, rows: Any, sem: Any) -> None:
    """All rows come from one neighbour, so one count is enough for steps in order, but not for the last row alone."""
    rows[me()] = x[...]
    for step in range(3):
        at = kd.rem(me() + 4 - step, 4)
        kd.remote_ref(rows, ahead())[at] = rows[at]
        tell(sem.at[0], ahead())
        if step < 2 or not bad:
            kd.semaphore_wait(sem.at[0])
    out[...] = rows[kd.rem(me() + 1, 4)]
    if bad:
        kd.semaphore_wait(sem.at[0])


@planted(K.RACE_BLOCKS, mesh=QUAD, out=(ROW, kd.ShapeDtypeStruct((2, N), kd.float32)), seeds=LONG)
def a_ring_of_two_places_without_credit(bad: bool, x: Any, out: Any, places: Any, sem: Any) -> None:
    value = total = x[...]
    for step in range(3):
        if step == 2 and not bad:
            kd.semaphore_wait(sem.at[2])
        kd.remote_ref(places, ahead())[step % 2] = value
        tell(sem.at[step % 2], ahead())
        kd.semaphore_wait(sem.at[step % 2])
        value = places[step % 2]
        total = total + value
        if step == 0 and not bad:
            tell(sem.at[2], ahead(3))
    out[...] = total


@planted(K.RACE_BLOCKS, K.SEMAPHORE_LEFT, mesh=TRIO, out=(ROW, ROW), seeds=LONG)
def a_credit_that_is_given_twice(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    value = total = x[...]
    for step in range(3):
        if step:
            kd.semaphore_wait(sem.at[1])
        kd.remote_ref(place, after())[...] = value
        tell(sem.at[0], after())
        kd.semaphore_wait(sem.at[0])
        value = place[...]
        total = total + value
        if step < 2:
            tell(sem.at[1], after(2), inc=2 if bad and step == 0 else 1)
    out[...] = total


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, ROW))
def a_credit_before_the_value_is_read(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    kd.remote_ref(place, after())[...] = x[...]
    tell(sem.at[0], after())
    kd.semaphore_wait(sem.at[0])
    if bad:
        tell(sem.at[1], after(2))
    out[...] = place[...]
    if not bad:
        tell(sem.at[1], after(2))
    kd.semaphore_wait(sem.at[1])
    kd.remote_ref(place, after())[...] = x[...] * 2
    tell(sem.at[0], after())
    kd.semaphore_wait(sem.at[0])


@planted(K.LIVELOCK, K.RACE_BLOCKS, mesh=TRIO)
def a_device_that_sends_the_other_way(bad: bool, x: Any, out: Any, sem: Any) -> None:
    target = kd.where(me() == 1, after(2), after()) if bad else after()
    kd.remote_ref(out, target)[...] = x[...]
    tell(sem.at[0], target)
    kd.semaphore_wait(sem.at[0])
    bump(out)


# --- halves, one partner a step -----------------------------------------------------------------------


def partner(step: int) -> Any:
    return me() ^ (1 << step)


@planted(K.RACE_BLOCKS, K.UNINITIALISED, mesh=QUAD, out=(ROW, kd.ShapeDtypeStruct((2, N), kd.float32)), seeds=LONG)
def steps_with_two_partners_and_one_count(bad: bool, x: Any, out: Any, places: Any, sem: Any) -> None:
    value = x[...]
    for step in range(2):
        count = sem.at[0 if bad else step]
        kd.remote_ref(places, partner(step))[step] = value
        tell(count, partner(step))
        kd.semaphore_wait(count)
        value = value + places[step]
    out[...] = value


@planted(K.RACE_BLOCKS, mesh=QUAD)
def a_sum_in_place_that_the_partner_still_reads(bad: bool, x: Any, out: Any, sem: Any) -> None:
    out[...] = x[...]
    for step in range(2):
        tell(sem.at[2 * step], partner(step))
        kd.semaphore_wait(sem.at[2 * step])
        theirs = kd.remote_ref(out, partner(step))[...]
        if not bad:
            tell(sem.at[2 * step + 1], partner(step))
            kd.semaphore_wait(sem.at[2 * step + 1])
        out[...] = out[...] + theirs


# --- two collectives ------------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, THIRDS), seeds=LONG)
def two_gathers_through_one_room(bad: bool, x: Any, out: Any, rows: Any, sem: Any) -> None:
    total = x[...]
    for turn in range(2):
        for k in range(3):
            kd.remote_ref(rows, after(k))[me()] = total
        meet(sem.at[2 * turn], "x", 3)
        total = rows[0] + rows[1] + rows[2]
        if not bad and turn == 0:
            meet(sem.at[1], "x", 3)
    out[...] = total


@planted(K.LIVELOCK, K.DEADLOCK)
def two_meetings_in_another_order(bad: bool, x: Any, out: Any, sem: Any) -> None:
    """Device 1 comes to the second meeting before it has been at the first one."""
    out[...] = x[...]
    swap = (me() == 1) & bad
    for turn in range(2):
        at = kd.where(swap, 1 - turn, turn)
        tell(sem.at[at])
        kd.semaphore_wait(sem.at[at])


@planted(K.LIVELOCK, K.DEADLOCK, mesh=TRIO)
def a_device_that_leaves_before_the_last_meeting(bad: bool, x: Any, out: Any, sem: Any) -> None:
    out[...] = x[...]
    meet(sem.at[0], "x", 3)
    kd.when(me() != 2 if bad else me() >= 0)(lambda: meet(sem.at[1], "x", 3))


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, THIRDS), seeds=LONG)
def a_count_of_the_first_meeting_at_the_second(bad: bool, x: Any, out: Any, rows: Any, sem: Any) -> None:
    """The first wait takes nothing away, so the second one passes at once."""
    kd.semaphore_signal_multicast(sem.at[0], collective_axes="x")
    kd.semaphore_wait(sem.at[0], 3, decrement=not bad)
    for k in range(3):
        kd.remote_ref(rows, after(k))[me()] = x[...]
    kd.semaphore_signal_multicast(sem.at[0], collective_axes="x")
    kd.semaphore_wait(sem.at[0], 3)
    out[...] = rows[0] + rows[1] + rows[2]
    if bad:
        kd.semaphore_wait(sem.at[0], 3)


# --- flags of the author's own ----------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, out=(ROW, INTS))
def a_flag_stored_without_release(bad: bool, x: Any, out: Any, flags: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    raised(kd.remote_ref(flags, peer()).at[0], "relaxed" if bad else "release")
    lowered_by(flags.at[0], "acquire.sys")
    bump(out)


@planted(K.RACE_BLOCKS, out=(ROW, INTS))
def a_flag_loaded_without_acquire(bad: bool, x: Any, out: Any, flags: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    raised(kd.remote_ref(flags, peer()).at[0], "release")
    lowered_by(flags.at[0], "volatile" if bad else "acquire.sys")
    bump(out)


@planted(K.RACE_BLOCKS, out=(ROW, INTS))
def a_flag_loaded_at_one_gpus_scope(bad: bool, x: Any, out: Any, flags: Any, sem: Any) -> None:
    kd.remote_ref(out, peer())[...] = x[...]
    raised(kd.remote_ref(flags, peer()).at[0], "release")
    lowered_by(flags.at[0], "acquire.gpu" if bad else "acquire.sys")
    bump(out)


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, COUNT, THIRDS), seeds=LONG)
def the_last_to_come_adds_without_order(bad: bool, x: Any, out: Any, count: Any, rows: Any, sem: Any) -> None:
    """Device 0 has the rows and the count; who finds all the others there adds them up."""
    kd.remote_ref(rows, 0)[me()] = x[...]
    there = kd.remote_ref(count, 0).at[0]
    kd.inline_ptx("bar.sync 0;")
    if bad:
        came = kd.atomic_add(there, 1, order="relaxed", scope="sys")
    else:
        came = kd.atomic_add(there, 1, order="acq_rel", scope="sys")
    theirs = kd.remote_ref(rows, 0)

    @kd.when(came == 2)
    def _() -> None:
        out[...] = theirs[0] + theirs[1] + theirs[2]

    kd.when(came != 2)(lambda: out.__setitem__(..., x[...]))


@planted(K.RACE_BLOCKS, mesh=TRIO, out=(ROW, COUNT, ZEROS), seeds=LONG)
def a_lock_without_acquire(bad: bool, x: Any, out: Any, lock: Any, total: Any, sem: Any) -> None:
    out[...] = x[...]
    there, sums = kd.remote_ref(lock, 0).at[0], kd.remote_ref(total, 0)

    def attempt() -> Any:
        return kd.atomic_cas(there, 0, 1, order="relaxed" if bad else "acquire", scope="sys")

    kd.while_loop(lambda seen: seen != 0, lambda seen: attempt(), attempt())
    sums[...] = sums[...] + x[...]
    kd.inline_ptx("bar.sync 0;")
    kd.atomic_add(there, -1, order="release", scope="sys")


# --- blocks and warpgroups ----------------------------------------------------------------------------------


@planted(K.RACE_BLOCKS, grid=2, seeds=LONG)
def a_block_signals_for_both(bad: bool, x: Any, out: Any, sem: Any) -> None:
    """Both halves are announced by block 0, which waits for block 1 only in the twin; the flag in between is of the GPU."""
    block = kd.axis_index("block")
    ready, both = kd.get_global(p.SEM), kd.get_global(p.SEM)
    half = kd.ds(block * HALF, HALF)
    kd.remote_ref(out, peer())[half] = x[half]
    kd.when(block == 1)(lambda: kd.semaphore_signal(ready, memory_scope="gpu"))

    @kd.when(block == 0)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(ready, memory_scope="gpu")
        tell(both)
        kd.semaphore_wait(both)
        bump(out)
        if bad:
            kd.semaphore_wait(ready, memory_scope="gpu")


@planted(K.RACE_BLOCKS, grid=2, seeds=LONG)
def a_flag_between_gpus_passed_on_at_a_gpus_scope(bad: bool, x: Any, out: Any, sem: Any) -> None:
    """Block 0 waits for the peer, and tells block 1. The scope of a GPU is enough for the second flag alone."""
    block = kd.axis_index("block")
    came, passed = kd.get_global(p.SEM), kd.get_global(p.SEM)

    @kd.when(block == 0)
    def _() -> None:
        kd.remote_ref(out, peer())[...] = x[...]
        tell(came, memory_scope="gpu" if bad else "sys")
        kd.semaphore_wait(came, memory_scope="sys")
        kd.semaphore_signal(passed, memory_scope="gpu")

    @kd.when(block == 1)
    def _() -> None:
        kd.semaphore_wait(passed, memory_scope="gpu")
        bump(out)


@planted(K.RACE_BLOCKS, warpgroups=2)
def a_warpgroup_signals_before_the_other_has_stored(bad: bool, x: Any, out: Any, sem: Any) -> None:
    wg = kd.axis_index("wg")
    half = kd.ds(wg * HALF, HALF)
    kd.remote_ref(out, peer())[half] = x[half]
    kd.when(wg == 1)(lambda: kd.semaphore_signal(sem.at[1]))

    @kd.when(wg == 0)
    def _() -> None:
        if not bad:
            kd.semaphore_wait(sem.at[1])
        tell(sem.at[0])
        kd.semaphore_wait(sem.at[0])
        bump(out)
        if bad:
            kd.semaphore_wait(sem.at[1])


# --- rows of different lengths, axes, tiles -------------------------------------------------------------------


@planted(K.RACE_BLOCKS, K.EQUAL_VALUE_RACE, mesh=TRIO, out=(ROW, ZEROS))
def rows_placed_by_the_senders_own_counts(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    """Rank r sends 16 * (r + 1) elements to device 0. They begin after those of the ranks before it, or half way by mistake."""
    first = 0
    for rank in range(3):
        size = 16 * (rank + 1)
        begin = first // 2 if bad else first

        @kd.when(me() == rank)
        def _(begin: int = begin, size: int = size) -> None:
            kd.remote_ref(place, 0)[kd.ds(begin, size)] = x[kd.ds(0, size)]

        first += size
    out[...] = x[...]
    meet(sem.at[0], "x", 3)


@planted(K.RACE_BLOCKS, K.UNINITIALISED, mesh=GRID, out=(ROW, ROW))
def a_neighbour_along_the_other_axis(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    """It signals the neighbour along one axis, and by mistake reads the one along the other."""
    place[...] = x[...]
    tell(sem.at[0], {"a": 1 - kd.axis_index("a")})
    kd.semaphore_wait(sem.at[0])
    axis = "b" if bad else "a"
    out[...] = kd.remote_ref(place, {axis: 1 - kd.axis_index(axis)})[...]
    meet(sem.at[1], ("a", "b"), 4)


@planted(K.RACE_BLOCKS, seeds=LONG)
def a_tile_used_at_the_signal_of_another(bad: bool, x: Any, out: Any, sem: Any) -> None:
    for tile in range(4):
        part = kd.ds(tile * 64, 64)
        kd.remote_ref(out, peer())[part] = x[part]
        tell(sem.at[tile])
    for tile in range(4):
        kd.semaphore_wait(sem.at[tile])
        part = kd.ds((tile + bad) % 4 * 64, 64)
        out[part] = out[part] + 1


@planted(K.SEMAPHORE_LEFT, K.LIVELOCK)
def more_arrivals_than_tiles(bad: bool, x: Any, out: Any, sem: Any) -> None:
    for tile in range(4):
        part = kd.ds(tile * 64, 64)
        kd.remote_ref(out, peer())[part] = x[part]
        tell(sem.at[0], inc=2 if bad and tile == 3 else 1)
    kd.semaphore_wait(sem.at[0], 4)
    bump(out)


# --- copies ---------------------------------------------------------------------------------------------------


@planted(K.LIVELOCK, K.DEADLOCK, out=(ROW, ROW))
def a_receive_without_a_send(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    """Only device 0 sends, and both wait."""
    send = kd.make_async_remote_copy(x, place, sem.at[0], sem.at[1], device_id=peer())

    @kd.when(me() == 0 if bad else me() >= 0)
    def _() -> None:
        send.start()
        send.wait_send()

    send.wait_recv()
    out[...] = x[...]


@planted(K.RACE_BLOCKS, out=(ROW, ROW), seeds=LONG)
def two_copies_and_a_wait_for_one(bad: bool, x: Any, out: Any, place: Any, sem: Any) -> None:
    halves = [kd.ds(0, HALF), kd.ds(HALF, HALF)]
    copies = [
        kd.make_async_remote_copy(x.at[h], place.at[h], sem.at[0], sem.at[1 + i], device_id=peer())
        for i, h in enumerate(halves)
    ]
    for copy in copies:
        copy.start()
        copy.wait_send()
    copies[0].wait_recv()
    if not bad:
        copies[1].wait_recv()
    out[...] = place[...]
    if bad:
        copies[1].wait_recv()


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.sampled(18)
def test_a_bug_is_found_and_its_twin_is_clean(name: str, request: pytest.FixtureRequest) -> None:
    check(PLANTED[name], request.config.getoption("--slow"))
