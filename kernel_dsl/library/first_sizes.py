"""What the library remembers of calls: the first sizes have a kernel of their own, and later ones share kernels for any sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from .. import forking
from ..tuning_file import when_tuned

MANY = 1024  # the most kinds of calls to keep
ENOUGH = 0.97  # a part of the best configuration's speed, by the cost model

Choice = TypeVar("Choice")


class Memory:
    """What is known of each kind of call of one library function, until a kernel is tuned."""

    all: ClassVar[list[Memory]] = []

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}  # by kind of call
        self._lock = forking.lock()
        when_tuned(self._forget)
        self.all.append(self)

    def _forget(self) -> None:
        with self._lock:
            self.known.clear()

    def _of(self, kind: Any, new: Any) -> Any:
        """What is known of a kind of call, `new` if nothing was. The caller holds the lock."""
        if len(self.known) >= MANY:
            self.known.clear()
        return self.known.setdefault(kind, new)


class FirstSizes(Memory):
    """The first sizes of each kind of call."""

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        """Whether calls of this kind came with other sizes before."""
        with self._lock:
            return self._of(kind, sizes) != sizes


class Kept(Memory):
    """The configurations of the kernels for any sizes that each kind of call has."""

    def choose(self, kind: Any, best: Choice, cost: Callable[[Choice], float]) -> Choice:
        """The fastest one that calls of this kind had before, if it has `ENOUGH` of the speed of `best`; else `best`.

        `cost`: the time of a call with a configuration, in any unit.
        """
        with self._lock:
            kept = self._of(kind, [])
            good = [c for c in kept if ENOUGH * cost(c) <= cost(best)]
            if not good:
                kept.append(best)
                return best
        return min(good, key=cost)
