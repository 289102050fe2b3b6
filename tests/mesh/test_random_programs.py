"""The interpreter's verdicts of random programs and their mutants, compared with all that may happen.

One kernel reads what each block does from a table, so blocks of a GPU are at one instruction as in a collective.
"""

from __future__ import annotations

import functools
import random
from itertools import islice
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .sync_programs import (
    CELLS,
    MOST,
    PATTERNS,
    READ,
    SEMAPHORES,
    SIGNAL,
    WAIT,
    WRITE,
    Event,
    Program,
    TooLongError,
    mutants,
    outcomes,
    scattered,
)  # fmt: skip

LANES = 128
KINDS = {"race_blocks": "race", "livelock": "stuck", "deadlock": "stuck", "semaphore_left": "left"}
SCHEDULES: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}, {"schedule": "late"}, {"schedule": "eager"}]


@functools.cache
def player(devices: int, blocks: int) -> Any:
    @kd.kernel(
        out_type=(
            kd.ShapeDtypeStruct((CELLS, LANES), kd.int32, init=0),
            kd.ShapeDtypeStruct((blocks, LANES), kd.int32),
        ),
        mesh=kd.Mesh(("x",), (devices,)),
        grid=(blocks,),
        grid_names=("block",),
    )
    def play(table: Any, cells: Any, sums: Any) -> None:
        sem = kd.get_global(kd.SemaphoreType.REGULAR((SEMAPHORES,)))
        block = kd.axis_index("block")
        actor = kd.axis_index("x") * blocks + block

        def step(i: Any, total: Any) -> Any:
            kind, place, device, count = (table[actor, i, k] for k in range(4))

            def write(total: Any) -> Any:
                kd.remote_ref(cells, device)[place] = kd.full((LANES,), actor * MOST + i + 1, kd.int32)
                return total

            def read(total: Any) -> Any:
                return total + kd.remote_ref(cells, device)[place]

            def signal(total: Any, scope: str | None = None) -> Any:
                kd.semaphore_signal(sem.at[place], count, device_id=device, memory_scope=scope)
                return total

            def wait(total: Any, scope: str | None = None) -> Any:
                kd.semaphore_wait(sem.at[place], count, memory_scope=scope)
                return total

            narrow = [functools.partial(signal, scope="gpu"), functools.partial(wait, scope="gpu")]
            return kd.switch(kind, [write, read, signal, wait, *narrow], total)

        sums[block] = kd.fori_loop(0, table[actor, 0, 4], step, kd.zeros((LANES,), kd.int32))

    return play


def told(program: Program, **how: Any) -> str:
    """What the interpreter says of a program under one schedule."""
    table = np.zeros((len(program.events), MOST, 5), np.int32)
    for a, events in enumerate(program.events):
        table[a, :, 4] = len(events)
        for i, e in enumerate(events):
            table[a, i, :4] = e.kind + 2 * e.narrow, e.place, e.device, e.count
    tables = [table.copy() for _ in range(program.devices)]
    try:
        player(program.devices, program.blocks)(tables, interpret=kd.InterpretParams(**how))
    except kd.HazardError as error:
        return KINDS.get(str(error.kind), str(error))
    return "clean"


def compare(program: Program) -> None:
    """Each verdict is an outcome that some order has; where no order is clean, no verdict is."""
    if max(map(len, program.events)) > MOST:
        return
    try:
        truth = outcomes(program)
    except TooLongError:
        return
    for how in SCHEDULES:
        verdict = told(program, **how)
        assert verdict in truth, f"{verdict} under {how}, but {sorted(truth)}:\n{program}"


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 4 else ()) for seed in range(300)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed: int) -> None:
    pick = random.Random(seed)
    program = scattered(pick)
    compare(program)
    if any(program.events):
        for _, mutant in islice(mutants(program, pick), 1):
            compare(mutant)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s >= 1 else ()) for s in range(20)])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda f: f.__name__)
def test_patterns_and_mutants(pattern: Any, seed: int) -> None:
    pick = random.Random(seed)
    program: Program = pattern(pick)
    assert outcomes(program) == {"clean"}
    if seed < 2:
        assert told(program, seed=seed) == "clean"
    for _, mutant in islice(mutants(program, pick), 1):
        compare(mutant)


def _at(kind: int, place: int, device: int = 0) -> Event:
    return Event(kind, place, device)


@pytest.mark.parametrize(("devices", "blocks"), [(4, 1), (1, 4), (2, 3), (1, 7)])
@pytest.mark.sampled(4)
def test_each_reader_is_waited_for(devices: int, blocks: int) -> None:
    """Blocks of one or several devices read one place, at once or some later, and the writer has waited for all but one."""
    readers, pick = range(1, devices * blocks), random.Random(devices)
    for forgotten in readers:
        owner = [Event(WAIT, 0, 0, len(readers) - 1), _at(WRITE, 0)]
        before = [(_at(READ, 1),) * pick.choice([0, 0, 1, 2]) for _ in readers]
        others = [
            (*b, _at(READ, 0), _at(SIGNAL, 1 if a == forgotten else 0)) for a, b in zip(readers, before, strict=True)
        ]
        program = Program(devices, blocks, ((*owner, Event(WAIT, 1, 0)), *others))
        if len(readers) < 5:
            assert outcomes(program) == {"race"}
        assert {told(program, seed=seed) for seed in range(4)} == {"race"}


def test_a_place_that_is_read_before_and_after_a_wait_is_no_livelock() -> None:
    """Two signals of one counter are taken one by one, while another block of that device waits for both to be gone."""
    first = (_at(WAIT, 0, 1), _at(READ, 0), _at(SIGNAL, 1, 0), _at(SIGNAL, 1, 1))
    second = (_at(WAIT, 3, 1), _at(WAIT, 3, 1), _at(READ, 0), _at(READ, 2))
    third = (_at(WRITE, 0), _at(SIGNAL, 0, 1), _at(SIGNAL, 0, 0), _at(WAIT, 1, 1), _at(WAIT, 2, 1), _at(WRITE, 0),
             _at(READ, 2, 1), _at(SIGNAL, 3, 1), _at(WAIT, 2, 1), _at(WRITE, 0, 1))  # fmt: skip
    far = (_at(WAIT, 0, 0), _at(WAIT, 1, 0), _at(WRITE, 0), _at(SIGNAL, 2, 1), _at(READ, 0, 1), _at(SIGNAL, 3, 1))
    program = Program(2, 3, ((_at(WRITE, 1),), (*far, _at(SIGNAL, 2, 1)), (), first, second, third))
    assert outcomes(program) == {"clean"}
    for seed in range(5):
        assert told(program, seed=seed) == "clean"
