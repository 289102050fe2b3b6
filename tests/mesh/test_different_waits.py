"""Blocks that wait at different lines: the run ends, or the report says for each block what it waits for."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

Plan = list[list[tuple[str, int]]]  # for each block, what it does: ("signal", semaphore) or ("wait", semaphore)


def make(rng: random.Random, blocks: int) -> Plan:
    """A plan in which block b alone waits for semaphore b, so that what happens does not depend on the order of blocks."""
    events: list[tuple[int, str, int]] = []  # (block, what it does, semaphore), in an order in which all go on
    for sem in range(blocks):
        for _ in range(rng.randint(1, 2)):
            at = rng.randint(0, len(events))
            events.insert(at, (rng.randrange(blocks), "signal", sem))
            events.insert(rng.randint(at + 1, len(events)), (sem, "wait", sem))
    change = rng.choice(["none", "none", "forget", "early"])
    if change == "forget":
        events.remove(rng.choice([e for e in events if e[1] == "signal"]))
    elif change == "early":  # which may make blocks wait for each other
        wait = rng.choice([e for e in events if e[1] == "wait"])
        events.remove(wait)
        events.insert(0, wait)
    plan: Plan = [[] for _ in range(blocks)]
    for block, what, sem in events:
        plan[block].append((what, sem))
    return plan


def waiting(plan: Plan) -> dict[int, int]:
    """The blocks that wait for ever, with the number of the wait among what the block does."""
    counts, at = [0] * len(plan), [0] * len(plan)
    moved = True
    while moved:
        moved = False
        for b, does in enumerate(plan):
            while at[b] < len(does):
                what, sem = does[at[b]]
                if what == "wait" and not counts[sem]:
                    break
                counts[sem] += 1 if what == "signal" else -1
                at[b] += 1
                moved = True
    return {b: at[b] for b, does in enumerate(plan) if at[b] < len(does)}


def kernel(plan: Plan, mesh: kd.Mesh | None) -> Any:
    blocks = len(plan)
    keywords: dict[str, Any] = {} if mesh is None else {"mesh": mesh}

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((blocks,), kd.int32, init=0),
        grid=(blocks,),
        grid_names=("b",),
        **keywords,
    )
    def waits(x, out):  # type: ignore[no-untyped-def]
        sems = kd.get_global(kd.SemaphoreType.REGULAR((blocks,)))

        def block(b: int) -> None:
            for what, sem in plan[b]:
                (kd.semaphore_signal if what == "signal" else kd.semaphore_wait)(sems.at[sem])
            out[b] = x[b] + 1

        for b in range(blocks):
            kd.when(kd.axis_index("b") == b)(lambda b=b: block(b))

    return waits


def check(number: int, blocks: int, devices: int, **how: Any) -> str:
    plan = make(random.Random(number), blocks)
    stuck = waiting(plan)
    mesh = kd.Mesh(("x",), (devices,)) if devices > 1 else None
    each = [np.arange(blocks, dtype=np.int32) for _ in range(devices)]
    call = kernel(plan, mesh)
    params = kd.InterpretParams(**how)
    if not stuck:
        got = call(each if mesh else each[0], interpret=params)
        for one in got if mesh else [got]:
            np.testing.assert_array_equal(one, np.arange(blocks) + 1)
        return "ends"
    with pytest.raises(kd.HazardError) as caught:
        call(each if mesh else each[0], interpret=params)
    report = str(caught.value)
    assert caught.value.kind in ("deadlock", "livelock"), report
    for b in stuck:
        assert f"block ({b}, 0, 0)" in report, (b, stuck, report)
    for b in set(range(blocks)) - set(stuck):
        assert f"block ({b}, 0, 0)" not in report, (b, stuck, report)
    return "stuck"


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_blocks_wait_at_lines_of_their_own(devices: int) -> None:
    ends = [
        check(number, 2 + number % 6, devices, **how)
        for number, how in enumerate([{}, {"schedule": "late"}, {"seed": 1}, {"seed": 2}] * 2, 6)
    ]
    assert {"ends", "stuck"} <= set(ends)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_many_plans(devices: int) -> None:
    for number in range(200):
        check(number, 2 + number % 6, devices, seed=number)
