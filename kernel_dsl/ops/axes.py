"""Axes that users name, as numbers from 0."""

from __future__ import annotations

from typing import Any

from ..arguments import static_int
from ..errors import BadAxis, RepeatedAxis
from ..values import Array


def axes_of(axis: Any, rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes as non-negative ints, in the order given. Raises `BadAxis`, `RepeatedAxis`."""
    out: list[int] = []
    for a in axis if isinstance(axis, (tuple, list)) else (axis,):
        number = static_int(a)
        if number is None or not -rank <= number < rank:
            raise BadAxis(axis=axis, shape=shape, hint=_axes_there_are(rank))
        if number % rank in out:
            raise RepeatedAxis(axis=axis, shape=shape)
        out.append(number % rank)
    return tuple(out)


def normalise_axes(axis: Any, value: Array) -> tuple[int, ...]:
    """Axes as sorted non-negative ints; all for None. Raises `BadAxis`, `RepeatedAxis`."""
    return tuple(range(value.ndim)) if axis is None else tuple(sorted(axes_of(axis, value.ndim, value.shape)))


def one_axis(axis: Any, rank: int, shape: tuple[int, ...]) -> int:
    """One axis as a non-negative int. Raises `BadAxis`."""
    if isinstance(axis, (tuple, list)):
        raise BadAxis(axis=axis, shape=shape, hint=f"give one int; {_axes_there_are(rank)}")
    return axes_of(axis, rank, shape)[0]


def _axes_there_are(rank: int) -> str:
    return f"axes go from {-rank} to {rank - 1}" if rank else "a rank-0 value has no axes"
