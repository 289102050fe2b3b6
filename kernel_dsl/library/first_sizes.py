"""The memory of earlier calls: the first sizes have their own kernel, and later sizes share kernels for any sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, ClassVar, TypeVar

import kernel_dsl as kd

from .. import forking
from ..tuning_file import when_tuned

MANY = 1024  # the most kinds of calls to keep
# The part of the best configuration's speed, by the cost model, that is enough to use a kernel again: where there are
# that many kernels or more already. The more a kind of call has, the more another one must gain.
ENOUGH = {0: 0.97, 4: 0.94, 6: 0.9, 8: 0.85}

Choice = TypeVar("Choice")


@cache
def dim_of(name: str, most: int | None = None, unit: int = 1, least: int = 1) -> Any:
    """The Dim of an extent from `least` to `most`, a multiple of `unit`. Calls return the same object, because kernels
    are kept by it.
    """
    return kd.Dim(name, min=least, max=most, multiple_of=unit)


def is_open(*extents: Any) -> bool:
    """Whether some extents are Dims, whose values each call gives."""
    return not all(isinstance(n, int) for n in extents)


def declared_outputs(structs: Any, first: int) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of outputs, the kernel's parameters from number `first` on, whose extents may be computed from Dims."""

    def extent(n: Any, *place: int) -> Any:
        return n if isinstance(n, (int, kd.Dim)) else dim_of("out_{}_{}".format(*place), least=0)

    return {
        first + i: tuple(extent(n, i, axis) for axis, n in enumerate(struct.shape)) for i, struct in enumerate(structs)
    }


class Memory:
    """The memory of each kind of call of one library function. Tuning a kernel clears it."""

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
        """The entry of a kind of call, `new` if there was none. The caller holds the lock."""
        if len(self.known) >= MANY:
            self.known.clear()
        return self.known.setdefault(kind, new)


class FirstSizes(Memory):
    """The first sizes of each kind of call."""

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        """Whether calls of this kind came with other sizes before."""
        with self._lock:
            return self._of(kind, sizes) != sizes

    def sizes(self, kind: Any, most: int, **sizes: tuple[int, int]) -> list[Any]:
        """Sizes, or Dims of these names if calls of this kind came with others before and these are from 1 to `most`.

        `sizes`: for each name, the size and a number that divides it in all calls.
        """
        given = [n for n, _ in sizes.values()]
        if not 0 < min(given) <= max(given) <= most or not self.comes_again(kind, given):
            return given
        return [dim_of(name, most, unit) for name, (_, unit) in sizes.items()]


class KeptConfigs(Memory):
    """The configurations of the kernels for any sizes that each kind of call has."""

    def choose(self, kind: Any, best: Choice, cost: Callable[[Choice], float]) -> Choice:
        """The fastest one that calls of this kind had before, if it has `ENOUGH` of the speed of `best`; else `best`.

        `cost`: the time of a call with a configuration, in any unit.
        """
        with self._lock:
            kept = self._of(kind, [])
            least = cost(best) / next(part for count, part in reversed(ENOUGH.items()) if len(kept) >= count)
            time, found = min(((cost(c), number) for number, c in enumerate(kept)), default=(inf, 0))
            if time <= least:
                return kept[found]
            kept.append(best)
            return best
