"""Programs of blocks on several devices that write, read, signal and wait: generators of them, and their truth.

`outcomes` follows a program through every order of its signals and waits, with vector clocks. The interpreter's verdict under
each schedule must be one of these outcomes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

WRITE, READ, SIGNAL, WAIT = range(4)
CELLS, SEMAPHORES = 4, 6  # of each device
MOST = 24  # events of a block
Clock = tuple[int, ...]
State = tuple[Clock, tuple[Clock, ...], Clock, tuple[tuple[Clock, ...], ...]]


@dataclass(frozen=True)
class Event:
    """`place`: a cell or a semaphore of `device`. `count`: of a signal or a wait. `narrow`: it has the scope of a GPU."""

    kind: int
    place: int
    device: int
    count: int = 1
    narrow: bool = False

    def __str__(self) -> str:
        name = ("write", "read", "signal", "wait")[self.kind]
        return f"{name} {self.place}@{self.device}" + f" x{self.count}" * (self.count > 1) + " gpu" * self.narrow


@dataclass(frozen=True)
class Program:
    """`events[a]`: what block a % blocks of device a // blocks does, in order."""

    devices: int
    blocks: int
    events: tuple[tuple[Event, ...], ...]

    def __str__(self) -> str:
        return "\n".join(
            f"device {a // self.blocks}, block {a % self.blocks}: {'; '.join(map(str, events))}"
            for a, events in enumerate(self.events)
        )


class TooLongError(Exception):
    """A program has more orders than the search looks at."""


# --- the truth --------------------------------------------------------------------------------------


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events
        self.n = len(program.events)
        self.device = [a // program.blocks for a in range(self.n)]
        places = sorted({(e.device, e.place) for es in self.events for e in es if e.kind >= SIGNAL})
        self.number = {place: i for i, place in enumerate(places)}
        # An actor's own clock at each event: signals and waits advance it.
        self.epoch = [[1 + sum(e.kind >= SIGNAL for e in es[:i]) for i in range(len(es))] for es in self.events]

    def start(self) -> State:
        """Positions, clocks, counts, and what each semaphore knows: released to all, then to each device."""
        none = (0,) * self.n
        clocks = tuple(tuple(int(i == a) for i in range(self.n)) for a in range(self.n))
        held = tuple((none,) * (1 + self.program.devices) for _ in self.number)
        return none, clocks, (0,) * len(self.number), held

    def races(self, at: Clock | list[int], a: int, e: Event, known: Clock) -> bool:
        """Whether an event of actor `a` races with one before: of data, or of semaphores with too narrow a scope."""
        for b in range(self.n):
            if b == a:
                continue
            for i in range(min(at[b] + 1, len(self.events[b]))):
                o = self.events[b][i]
                if i == at[b] and o.kind != WAIT:  # a wait reads before it ends
                    continue
                if (o.place, o.device, o.kind < SIGNAL) != (e.place, e.device, e.kind < SIGNAL):
                    continue
                if e.kind >= SIGNAL and not ((o.narrow or e.narrow) and self.device[a] != self.device[b]):
                    continue
                if not o.kind == e.kind == READ and known[b] < self.epoch[b][i]:
                    return True
        return False

    def data(self, at: list[int], clocks: tuple[Clock, ...]) -> bool:
        """Move all actors up to their next signal or wait; whether there was a race."""
        for a, events in enumerate(self.events):
            while at[a] < len(events) and events[at[a]].kind != SIGNAL:
                if self.races(at, a, events[at[a]], clocks[a]):
                    return True
                if events[at[a]].kind == WAIT:
                    break
                at[a] += 1
        return False

    def step(self, a: int, at: list[int], state: State) -> State | None:
        """The state after actor `a` has signalled or waited; None if that is a race."""
        _, clocks, counts, held = state
        e = self.events[a][at[a]]
        s, own, clock = self.number[e.device, e.place], 1 + self.device[a], clocks[a]
        levels = list(held[s])
        if e.kind == WAIT:
            clock = _join(clock, levels[own] if e.narrow else _join(levels[0], levels[own]))
        if self.races(at, a, e, clock):
            return None
        if e.kind == SIGNAL:
            levels[0] = levels[0] if e.narrow else _join(levels[0], clock)
            levels[own] = _join(levels[own], clock)
        clock = tuple(c + (i == a) for i, c in enumerate(clock))
        change = e.count if e.kind == SIGNAL else -e.count
        return (
            _set(tuple(at), a, at[a] + 1),
            _set(clocks, a, clock),
            _set(counts, s, counts[s] + change),
            _set(held, s, tuple(levels)),
        )


def outcomes(program: Program, limit: int = 5_000) -> frozenset[str]:
    """Which of 'race', 'stuck', 'left' (a semaphore that is not zero) and 'clean' some order ends with; a race ends an order.

    Raises `TooLongError` after `limit` states.
    """
    search = _Search(program)
    found: set[str] = set()
    seen: set[State] = set()
    left = [search.start()]
    while left:
        state = left.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > limit:
            raise TooLongError
        at, counts = list(state[0]), state[2]
        if search.data(at, state[1]):
            found.add("race")
            continue
        waiting = [(a, es[at[a]]) for a, es in enumerate(program.events) if at[a] < len(es)]
        able = [a for a, e in waiting if e.kind == SIGNAL or counts[search.number[e.device, e.place]] >= e.count]
        for a in able:
            after = search.step(a, at, state)
            if after is None:
                found.add("race")
            else:
                left.append(after)
        if not able:
            found.add("stuck" if waiting else "left" if any(counts) else "clean")
    return frozenset(found)


def _join(a: Clock, b: Clock) -> Clock:
    return tuple(map(max, a, b))


def _set(row: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*row[:at], value, *row[at + 1 :])


# --- generators -------------------------------------------------------------------------------------


def scattered(pick: random.Random) -> Program:
    """Accesses of random cells. A block waits for a signal of each block whose earlier access would race with its own."""
    devices, blocks = pick.choice([2, 2, 3, 4]), pick.choice([1, 2, 3])
    n = devices * blocks
    events: list[list[Event]] = [[] for _ in range(n)]
    clock = [[0] * n for _ in range(n)]  # of each block, how many events of each other one it knows
    past: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    own = pick.random() < 0.5  # whether pairs of blocks have semaphores of their own, as far as there are any
    semaphores: dict[tuple[int, int], int] = {}
    free = [list(range(SEMAPHORES)) for _ in range(devices)]
    for _ in range(pick.randrange(3, 12)):
        a, kind, cell = pick.randrange(n), pick.choice([WRITE, READ, READ]), pick.randrange(3)
        device, home = pick.randrange(devices), a // blocks
        before = past.setdefault((cell, device), [])
        needed = {b for b, at, k in before if b != a and WRITE in (k, kind) and clock[a][b] < at}
        for b in sorted(needed):
            if own and (a, b) not in semaphores and free[home]:
                semaphores[a, b] = free[home].pop()
            sem = semaphores.get((a, b), pick.randrange(3))
            events[b].append(Event(SIGNAL, sem, home))
            clock[b][b] = len(events[b])
            events[a].append(Event(WAIT, sem, home))
            clock[a] = list(map(max, clock[a], clock[b]))
            clock[a][a] = len(events[a])
        events[a].append(Event(kind, cell, device))
        clock[a][a] = len(events[a])
        before.append((a, len(events[a]), kind))
    return Program(devices, blocks, tuple(map(tuple, events)))


def ring(pick: random.Random) -> Program:
    """Each device passes a place on to its right, which must have been read before it is written again."""
    n, steps = pick.choice([2, 3]), 2
    made: list[tuple[Event, ...]] = []
    for d in range(n):
        right, left = (d + 1) % n, (d - 1) % n
        events: list[Event] = []
        for step in range(steps):
            events += [Event(WAIT, 1, d)] * (step > 0)
            events += [Event(WRITE, 0, right), Event(SIGNAL, 0, right), Event(WAIT, 0, d), Event(READ, 0, d)]
            events += [Event(SIGNAL, 1, left)] * (step < steps - 1)
        made.append(tuple(events))
    return Program(n, 1, tuple(made))


def tree(pick: random.Random) -> Program:
    """The other devices write a cell each on device 0, which reads all and answers."""
    n = pick.choice([2, 3, 4])
    first = [Event(WAIT, 0, 0, n - 1), *(Event(READ, d, 0) for d in range(1, n))]
    first += [e for d in range(1, n) for e in (Event(WRITE, 0, d), Event(SIGNAL, 1, d))]
    others = [
        (Event(WRITE, d, 0), Event(SIGNAL, 0, 0), Event(WAIT, 1, d), Event(READ, 0, d), Event(WRITE, 0, d))
        for d in range(1, n)
    ]
    return Program(n, 1, (tuple(first), *others))


def butterfly(pick: random.Random) -> Program:
    """Two exchanges of four devices, with partners at distance 1 and 2."""
    del pick
    made = [
        tuple(
            e
            for k, partner in enumerate((d ^ 1, d ^ 2))
            for e in (Event(WRITE, k, partner), Event(SIGNAL, k, partner), Event(WAIT, k, d), Event(READ, k, d))
        )
        for d in range(4)
    ]
    return Program(4, 1, tuple(made))


def halo(pick: random.Random) -> Program:
    """Devices in a row read the edges of their neighbours, and write their own edges anew when both have been read."""
    n = pick.choice([2, 3])
    made: list[tuple[Event, ...]] = []
    for d in range(n):
        near = [b for b in (d - 1, d + 1) if 0 <= b < n]
        events = [Event(WRITE, 0, d), *(Event(SIGNAL, 0, b) for b in near), Event(WAIT, 0, d, len(near))]
        events += [e for b in near for e in (Event(READ, 0, b), Event(SIGNAL, 1, b))]
        made.append((*events, Event(WAIT, 1, d, len(near)), Event(WRITE, 0, d)))
    return Program(n, 1, tuple(made))


def everyone(pick: random.Random) -> Program:
    """Each device writes a cell of its own on all devices, in two blocks that share the work or in one."""
    n, blocks = pick.choice([(2, 1), (2, 2), (3, 1)])
    made: list[tuple[Event, ...]] = []
    for d in range(n):
        for block in range(blocks):
            sends = [e for b in range(n) for e in (Event(WRITE, d * blocks + block, b), Event(SIGNAL, block, b))]
            reads = [Event(READ, b * blocks + block, d) for b in range(n)]
            made.append((*sends, Event(WAIT, block, d, n), *reads))
    return Program(n, blocks, tuple(made))


def double_buffer(pick: random.Random) -> Program:
    """A producer fills two places of a consumer in turn, each when it is empty again."""
    steps = pick.choice([3, 4])
    producer: list[Event] = []
    consumer: list[Event] = []
    for k in range(steps):
        place = k % 2
        producer += [Event(WAIT, 2 + place, 0)] * (k >= 2)
        producer += [Event(WRITE, place, 1), Event(SIGNAL, place, 1)]
        consumer += [Event(WAIT, place, 1), Event(READ, place, 1)]
        consumer += [Event(SIGNAL, 2 + place, 0)] * (k + 2 < steps)
    return Program(2, 1, (tuple(producer), tuple(consumer)))


PATTERNS = (ring, tree, butterfly, halo, everyone, double_buffer)


def mutants(program: Program, pick: random.Random) -> Iterator[tuple[str, Program]]:
    """Endless programs with one change each, and what the change is."""
    every = [(a, i) for a, es in enumerate(program.events) for i in range(len(es))]
    while True:
        a, i = pick.choice(every)
        events = [list(es) for es in program.events]
        e, own = events[a][i], events[a]
        changes = ["swapped", "another device", "dropped"]
        changes += ["another place"] if e.kind < SIGNAL else ["narrow", "count", "another place"]
        change = pick.choice(changes)
        if change == "dropped":
            del own[i]
        elif change == "swapped" and i + 1 < len(own):
            own[i], own[i + 1] = own[i + 1], own[i]
        elif change == "another device" and e.kind != WAIT:
            own[i] = replace(e, device=(e.device + pick.randrange(1, program.devices)) % program.devices)
        elif change == "another place":
            own[i] = replace(e, place=(e.place + 1) % (CELLS if e.kind < SIGNAL else SEMAPHORES))
        elif change == "narrow":
            own[i] = replace(e, narrow=True)
        elif change == "count":
            own[i] = replace(e, count=e.count + 1)
        else:
            continue
        yield change, replace(program, events=tuple(map(tuple, events)))
