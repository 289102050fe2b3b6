"""Shapes of Refs, whose extents may be known only later, and shapes that the user gives."""

from __future__ import annotations

from math import prod
from typing import Any

from .arguments import static_ints
from .diagnostics import shown
from .errors import BadReshape
from .extents import DimExtent, Extent, Taken, is_declared, traced_extent


def _taken(extent: Extent) -> Any:
    """An extent for the user's code, which may keep it after the trace.

    A Ref of an ended kernel gives its last value.
    """
    if isinstance(extent, DimExtent):
        return extent
    return extent.value if extent.reads is None else Taken(extent)


class Shape(tuple[int, ...]):
    """A Ref's shape.

    Reading an extent gives an int, and the kernel is then for this int alone. An extent declared as a Dim is a traced
    integer.
    """

    nest = tuple  # a carry that was a shape is a tuple: its elements are values, which have no int

    @classmethod
    def of(cls, sizes: tuple[Any, ...]) -> tuple[int, ...]:
        """A shape of these sizes, some of which may be `Extent`s."""
        if not any(isinstance(n, Extent) for n in sizes):
            return sizes
        return cls(_taken(n) if isinstance(n, Extent) else n for n in sizes)

    def __getitem__(self, index: Any) -> Any:
        part: Any = super().__getitem__(index)
        return tuple(map(_known_or_traced, part)) if isinstance(index, slice) else _known_or_traced(part)

    def __iter__(self) -> Any:
        return map(_known_or_traced, super().__iter__())

    def __add__(self, other: Any) -> Any:
        return tuple(self) + other

    def __repr__(self) -> str:
        return repr(tuple(n if is_declared(n) else int(n) for n in super().__iter__()))


def _known_or_traced(size: Any) -> Any:
    """The extent for the user's code: an int, or `Taken`, or a traced integer if it is declared as a Dim."""
    if is_declared(size):
        return traced_extent(size)
    return size if isinstance(size, Taken) and size.known is None else int(size)


def infer_shape(to: tuple[Any, ...], size: int, what: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with at most one -1 filled in: ints, or one tuple or list of them. Raises `BadReshape`, `BadArgumentType`."""
    given: Any = to[0] if len(to) == 1 and isinstance(to[0], (tuple, list)) else to
    extents = static_ints(given, "reshape", "shape", "ints, one of which may be -1: shapes are static")
    known = prod(n for n in extents if n != -1)
    out = tuple(n if n != -1 else (size // known if known else 0) for n in extents)
    if extents.count(-1) > 1:
        raise BadReshape(what=what, shape=shape, to=tuple(given), why="only one extent may be -1")
    if any(n < 0 for n in out):
        raise BadReshape(what=what, shape=shape, to=tuple(given), why="extents are 0 or more; one may be -1")
    if prod(out) != size:
        raise BadReshape(what=what, shape=shape, to=tuple(given), why=f"{size} elements are not {shown(prod(out))}")
    return out
