"""`lazy`: an attribute that is computed at its first use; `once`: a function that a process runs one time, in any thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from . import forking

P = ParamSpec("P")
T = TypeVar("T")


def once(function: Callable[P, T]) -> Callable[P, T]:
    """As `functools.cache`, but while one thread computes the result, other threads wait for it."""
    cached: Any = functools.cache(function)
    guard = forking.lock()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with guard:
            return cached(*args, **kwargs)

    vars(call)["cache_clear"] = cached.cache_clear
    return call


class lazy(Generic[T]):  # noqa: N801
    """A method whose result becomes an attribute of its object at the first use.

    `functools.cached_property` of Python 3.11 has one lock for all objects of a class: threads that compile would wait
    for each other, and a child that is forked meanwhile would wait for ever. Here two threads may both compute the
    result.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.func = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        made = instance.__dict__[self._name] = self.func(instance)
        return made
