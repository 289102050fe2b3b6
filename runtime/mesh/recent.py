"""The kinds of calls that a kernel on a mesh had last: of one process (`fast.py`), and of a rank (`rank_fast.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from kernel_dsl import forking

from ..plan import recording
from ..plan.dispatch import forgets_in_child
from ..plan.unroll import MISS

_MOST = 8  # kinds that a kernel keeps


class Like(Protocol):
    """One kind of call. It holds no array."""

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result of a call of this kind, or MISS if nothing was done."""


Kind = TypeVar("Kind", bound=Like)


class RecentCalls(Generic[Kind]):
    """The fast calls of one kernel. Subclasses `learn` them."""

    miss = MISS
    recording = recording

    def __init__(self) -> None:
        self.recent: tuple[Kind, ...] = ()
        self._lock = forking.lock()
        forgets_in_child(self)

    def forget(self) -> None:
        """Send the next calls to the slow path."""
        self.recent = ()

    def remember(self, kind: Kind) -> None:
        with self._lock:
            self.recent = (kind, *self.recent)[:_MOST]

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the call's result, or MISS if nothing was done."""
        recent = self.recent
        for number, like in enumerate(recent):
            result = like(args, out, stream)
            if result is not MISS:
                if number:  # the next call is like this one, as a rule
                    self.recent = (like, *recent[:number], *recent[number + 1 :])
                return result
        return MISS
