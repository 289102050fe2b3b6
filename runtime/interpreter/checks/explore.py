"""Verdicts over many schedules: several of the interpreter's own, or the order of synchronisation events explored.

explore(lambda: run(module, "k", params, ...), limit=64)
over_schedules(lambda p: kernel(x, interpret=p), ("eager", "late", "random:8"))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from kernel_dsl.interpret_params import InterpretParams

from .hazards import HazardError
from .order import Hold, Order

EXPLORED: ContextVar[Order | None] = ContextVar("EXPLORED", default=None)


@dataclass(frozen=True)
class Exploration:
    """What a search among schedules found.

    `schedules`: how many were run. `hazard`: the first one. `complete`: no other order of synchronisation exists.
    """

    schedules: int
    hazard: HazardError | None = None
    complete: bool = False

    @property
    def verdict(self) -> str:
        """Return 'found', 'none', or 'none up to N schedules'."""
        if self.hazard is not None:
            return "found"
        return "none" if self.complete else f"none up to {self.schedules} schedules"


def explore(call: Callable[[], Any], limit: int = 64) -> Exploration:
    """Run `call`, which launches what is to be checked on fresh arguments, in up to `limit` orders of its events.

    The first run finds the pairs of events of named barriers, mbarriers and shared memory that are unordered and do not
    commute. A further run reverses each pair, and may find more pairs. If no pairs are left, the verdict is 'none', for
    these arguments. Pairs in global memory are not reversed: if there are such pairs, or pairs that cannot be reversed,
    the verdict is 'none up to N schedules'.
    """
    search = OrderSearch(limit)
    for order in search:
        with explored(order):
            try:
                call()
            except HazardError as error:
                return Exploration(search.count, error)
    return Exploration(search.count, None, search.complete)


@contextmanager
def explored(order: Order) -> Generator[None]:
    """Steer and record the launches inside by this order."""
    token = EXPLORED.set(order)
    try:
        yield
    finally:
        EXPLORED.reset(token)


class OrderSearch:
    """Iterates over the orders to run in, up to `limit`; each must have been run before the next one is asked for.

    `count`: how many there were. `complete`, at the end: no other order of synchronisation exists.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit}: at least one schedule")
        self.limit = limit
        self.count: int = 0
        self.complete: bool = False

    def __iter__(self) -> Iterator[Order]:
        waiting: deque[frozenset[Hold]] = deque([frozenset()])
        seen = {frozenset[Hold]()}
        ways: set[Any] = set()
        complete = True
        while waiting and self.count < self.limit:
            order = Order(holds := waiting.popleft())
            self.count += 1
            yield order
            complete &= not order.open
            if (way := order.signature()) in ways:
                continue  # the first run with this signature has given its reversals
            ways.add(way)
            asked = {step for step, _ in holds}
            for step, until in order.reversals():
                more = holds | {(step, until)}
                if step not in asked and more not in seen:
                    seen.add(more)
                    waiting.append(more)
            complete &= not order.open  # the reversals report it too
        self.complete = complete and not waiting


def schedules_of(words: Iterable[str], params: InterpretParams | None = None) -> list[InterpretParams]:
    """Return the schedules of these names: "eager", "late", "random" (the seed of `params`), and "random:8", seeds 0 to 7.

    Raises ValueError for other words.
    """
    base, found = params or InterpretParams(), list[InterpretParams]()
    for word in words:
        name, colon, number = word.partition(":")
        if name not in ("eager", "late", "random") or (
            colon and (name != "random" or not number.isdigit() or not int(number))
        ):
            raise ValueError(f"schedule {word!r}: it is 'eager', 'late', 'random', or 'random:' and how many seeds")
        seeds = range(int(number)) if colon else (base.seed,)
        found += [replace(base, schedule=name, seed=seed) for seed in seeds]
    return found


def over_schedules(
    call: Callable[[InterpretParams], Any],
    schedules: Iterable[str] = ("eager", "late", "random:8"),
    params: InterpretParams | None = None,
) -> Exploration:
    """Run `call(params)` under each schedule, up to the first hazard."""
    count = 0
    for one in schedules_of(schedules, params):
        count += 1
        try:
            call(one)
        except HazardError as error:
            return Exploration(count, error)
    return Exploration(count)
