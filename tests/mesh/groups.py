"""Groups of ranks that are threads of one process: what a process group of torch is, without torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class _Shared:
    """What the ranks of a group share: the values of each exchange by rank, and who has ended."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self.changed = threading.Condition()
        self.rounds: list[dict[int, Any]] = []
        self.ended: set[int] = set()


class ThreadGroup:
    """One rank's view of a group. `exchange` is collective."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self._rank, self._shared = rank, shared
        self._round = 0

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._shared.size

    def exchange(self, value: Any) -> list[Any]:
        shared, number = self._shared, self._round
        self._round += 1
        with shared.changed:
            if len(shared.rounds) == number:
                shared.rounds.append({})
            mine = shared.rounds[number]
            mine[self._rank] = value
            shared.changed.notify_all()
            late = shared.changed.wait_for(
                lambda: len(mine) == shared.size or shared.ended - mine.keys(), shared.seconds
            )
            if len(mine) < shared.size:
                raise ConnectionError("a rank has ended" if late else "time-out")
            return [mine[rank] for rank in range(shared.size)]


def on_ranks(size: int, work: Callable[[int, ThreadGroup], Any], seconds: float = 60) -> Sequence[Any]:
    """The results of `work(rank, group)` on all ranks, or the errors that they raised."""
    shared = _Shared(size, seconds)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, ThreadGroup(rank, shared))
        except Exception as error:
            results[rank] = error
        with shared.changed:
            shared.ended.add(rank)
            shared.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
