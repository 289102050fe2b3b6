"""The sizes with which each kind of call came first: they have a kernel of their own, and later sizes share one."""

from __future__ import annotations

from typing import Any

from .. import forking
from ..tuning_file import when_tuned

MANY = 1024  # the most kinds of calls to keep


class FirstSizes:
    """The first sizes of each kind of call of one library function."""

    def __init__(self) -> None:
        self._first: dict[Any, Any] = {}  # sizes by the other parts of a call
        self._lock = forking.lock()
        when_tuned(self._forget)

    def _forget(self) -> None:
        """Forget all: the next sizes count as the first ones."""
        with self._lock:
            self._first.clear()

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        """Whether calls of this kind came with other sizes before."""
        with self._lock:
            if len(self._first) >= MANY:
                self._first.clear()
            return self._first.setdefault(kind, sizes) != sizes
