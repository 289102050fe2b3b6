"""What warps know of other clusters, compared with a list of everything that they have learnt."""

from __future__ import annotations

import random

import numpy as np

from kernel_dsl.runtime.interpreter.checks.foreign import Foreign, History

PLANES, COLUMNS, AGENTS, TEAMS = 2, 8, 3, 2
Learnt = list[tuple[int, int, int, int, np.ndarray]]  # team, agent, clock, other cluster, clocks


def expected(learnt: Learnt, team: int, known: np.ndarray) -> dict[int, np.ndarray]:
    """The clocks (planes, columns) of each other cluster that a warp of `team` knows, if it knows `known` of its own."""
    every: dict[int, np.ndarray] = {}
    for where, agent, clock, other, what in learnt:
        if where == team and known[agent] >= clock:
            held = every.setdefault(other, np.zeros((PLANES, COLUMNS), np.uint32))
            held[:, : what.shape[1]] = np.maximum(held[:, : what.shape[1]], what)
    return every


def test_what_a_warp_knows() -> None:
    for seed in range(20):
        pick, rng = random.Random(seed), np.random.default_rng(seed)
        foreign, learnt, clocks = Foreign(), [], np.ones((TEAMS, AGENTS), np.int64)
        for _ in range(60):
            team, agent = pick.randrange(TEAMS), pick.randrange(AGENTS)
            clocks[team, agent] += pick.randrange(2)
            what = rng.integers(0, 1 + pick.randrange(1, 9), (PLANES, pick.choice([4, COLUMNS]))).astype(np.uint32)
            one = team, agent, int(clocks[team, agent]), pick.randrange(2, 5), what
            learnt.append(one)
            foreign.add(*one)
            asks, known = pick.randrange(TEAMS), np.array([pick.randrange(int(c) + 1) for c in clocks[team]])
            want = expected(learnt, asks, known)
            got = dict(foreign.known(asks, known))
            assert got.keys() == want.keys()
            for other, clock in want.items():
                found = np.zeros_like(clock)
                found[:, : got[other].shape[1]] = got[other]
                assert (found == clock).all()
            other, column, plane, clock = pick.randrange(2, 5), pick.randrange(COLUMNS), pick.randrange(PLANES), 3
            knows = other in want and want[other][plane, column] >= clock
            assert foreign.knows(asks, known, other, column, clock, plane) == knows


def test_a_warp_that_polls_keeps_one_entry() -> None:
    """Each look at a counter acquires the same clocks: thousands of looks must not make later checks slower."""
    history, what = History(), np.ones((PLANES, COLUMNS), np.uint32)
    for clock in range(100):
        history.add(clock + 1, what.copy())
    assert history.clocks == [1]
    history.add(101, what + 1)
    assert history.clocks == [1, 101]
