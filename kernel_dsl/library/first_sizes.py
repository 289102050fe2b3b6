"""The sizes with which each kind of call came first: they have a kernel of their own, and later sizes share one."""

from __future__ import annotations

from typing import Any

from .. import forking
from ..tuning_file import when_tuned

MANY = 1024  # kinds of calls that are kept


class FirstSizes:
    """What one function of the library remembers of its calls."""

    def __init__(self) -> None:
        self._first: dict[Any, Any] = {}  # sizes by all else of a call
        self._lock = forking.lock()
        when_tuned(self._forget)

    def _forget(self) -> None:
        """Take the next sizes for the first ones."""
        with self._lock:
            self._first.clear()

    def comes_again(self, kind: Any, sizes: Any) -> bool:
        """Whether calls of this kind came with other sizes before."""
        with self._lock:
            if len(self._first) >= MANY:
                self._first.clear()
            return self._first.setdefault(kind, sizes) != sizes
