"""The latest calls of a library function: a look-up before arrays are examined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..kernel import Kernel

UNSEEN: Any = object()
Launch = Callable[..., Any]  # `(kernel, args, out=None) -> results`


class Unseen(Exception):
    """A launch of a call that resembles the latest one is new: the slow path takes the whole call."""


def seen_call(kernel: Kernel, args: Sequence[Any], out: Any, stream: Any) -> Any:
    """The result of a call whose like the kernel has seen on a GPU; `UNSEEN` for any other, and nothing was done then."""
    fast = kernel._fast  # pyright: ignore[reportPrivateUsage]
    if fast is None:
        return UNSEEN
    if stream is None and not fast.recording.active:
        result = fast.latest(args, out, None)
        if result is not fast.miss:
            return result
    result = fast(args, out, stream)
    return UNSEEN if result is fast.miss else result


def launching(stream: Any, interpret: Any) -> Launch:
    """Plain calls of kernels."""
    return lambda kernel, args, out=None: kernel(*args, out=out, stream=stream, interpret=interpret)


def seen_launching(stream: Any) -> Launch:
    """Calls whose like kernels have seen on a GPU. They raise `Unseen` for any other."""

    def launch(kernel: Kernel, args: Sequence[Any], out: Any = None) -> Any:
        made = seen_call(kernel, args, out, stream)
        if made is UNSEEN:
            raise Unseen
        return made

    return launch


class Latest:
    """The options of the latest call, and what launches its kernels for arrays that they have seen the like of."""

    def __init__(self) -> None:
        self._known: tuple[Any, Callable[[list[Any], Any, Any], Any]] | None = None

    def keep(self, key: tuple[Any, ...], seen: Callable[[list[Any], Any, Any], Any]) -> None:
        """`seen(inputs, out, stream)` gives the result, or `UNSEEN`. `key`: all options, and the types of numbers among them."""
        self._known = key, seen

    def forget(self) -> None:
        """Send the next call the slow path."""
        self._known = None

    def call(self, key: tuple[Any, ...], inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result if the latest call had those options, and kernels have seen such arrays; else `UNSEEN`.

        Then no array of the caller's was written.
        """
        if self._known is None:
            return UNSEEN
        known, seen = self._known
        try:
            return seen(inputs, out, stream) if known == key else UNSEEN
        except (Unseen, TypeError, ValueError):  # an option that is an array, or no dtype: the slow path has words
            return UNSEEN
