"""Parts of an axis: `kd.ds`, Python slices, ints, and what is an index."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .arguments import of_dims
from .boundary import checks_itself
from .dataclass import dataclass
from .diagnostics import shown
from .errors import BadArgument, BadArgumentType, BadIndex, DynamicSlice, IndexOutOfRange
from .errors_dims import DimRead, cut_along
from .extents import DimExtent, Taken, is_declared, traced_extent
from .values import Array


@dataclass(frozen=True)
class Slice:
    """`ds(start, size, stride)`: `size` elements from `start`, which may be a traced value."""

    start: Any
    size: int
    stride: int = 1


@checks_itself("size", "stride")
def ds(start: Any, size: int, stride: int = 1) -> Slice:
    """A slice with a static or dynamic start and a static size.

    It always has this size; in GMEM its accesses are masked.
    """
    start, size, stride = (int(n) if isinstance(n, Taken) else n for n in (start, size, stride))
    for name, value in (("size", size), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = "give a static int; a start may be traced"
            hint = of_dims(value, hint) if isinstance(cast("Any", value), Array) else hint
            raise BadArgumentType(op="ds", what=f"{name} is {shown(value)}", hint=hint)
    if size < 0 or stride == 0:
        raise BadArgument(op="ds", what=f"size {size}, stride {stride}", hint="size >= 0 and stride != 0")
    if isinstance(start, np.integer):
        start = int(start)
    if not is_index(start):
        raise BadIndex(what=f"the start {shown(start)}", hint="a start is an int or a rank-0 integer value")
    if any(isinstance(n, int) and not -LONGEST <= n < LONGEST for n in (start, size, stride)):
        what = f"start {shown(start)}, size {shown(size)}, stride {shown(stride)}"
        raise BadArgument(op="ds", what=what, hint="give smaller ints: no array is that long")
    return Slice(start, int(size), int(stride))


WHOLE: Any = object()  # an index of all of an axis, whose extent nobody needs: index arrays walk it
LONGEST = 2**48  # more elements than any array on a GPU has: an index beyond is a mistake


def of_slice(item: slice, extent: int) -> tuple[int, int, int]:
    """(start, size, step) of a Python slice. Raises `DynamicSlice`, `BadIndex`, `DimRead`."""
    traced = next((x for x in (item.start, item.stop, item.step) if isinstance(x, Array)), None)
    if traced is not None:
        raise DynamicSlice(hint=of_dims(traced, "use `kd.ds(start, size)`: a dynamic start with a static size"))
    if isinstance(extent, DimExtent) and is_declared(extent):
        if item == slice(None):
            return 0, cast("Any", extent), 1
        ends = (item.start, item.stop)
        if all(type(n) is int and 0 <= n <= extent.least for n in ends if n is not None) and item.stop is not None:
            extent = extent.least
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        if isinstance(error, DimRead):
            if isinstance(extent, DimExtent) and is_declared(extent):
                raise cut_along(extent.name) from None
            raise  # the slice itself holds a Dim
        raise BadIndex(what=shown(item), hint=f"{error}") from None
    return start, len(range(start, stop, step)), step


def of_int(item: Any, dim: int, extent: int) -> int:
    """The element number of an int index; negative ones count from the end. Raises `IndexOutOfRange`."""
    number = int(item)
    if isinstance(extent, DimExtent) and is_declared(extent):  # accesses past it are masked
        return number if number >= 0 else traced_extent(extent) + number
    if not -extent <= number < extent:
        raise IndexOutOfRange(index=number, dim=dim, extent=extent, lo=-extent, hi=extent - 1)
    return number + extent if number < 0 else number


def is_index(x: Any) -> bool:
    """An int, or a rank-0 integer value."""
    if isinstance(x, Array):
        return x.ndim == 0 and x.dtype.is_integer
    return isinstance(x, (int, np.integer, Taken)) and not isinstance(x, bool)


def array_of(item: Any) -> np.ndarray[Any, Any]:
    """An index that is a list or a NumPy array as an array; integers as int64, also those of an empty list. Raises
    `BadIndex`.
    """
    try:
        made = np.asarray(item)
    except (ValueError, TypeError, OverflowError):
        raise BadIndex(what=shown(item), hint="gather by integer arrays, or lists of ints") from None
    if made.dtype == np.uint64:
        made = np.minimum(made, np.uint64(2**63 - 1))  # past any end, too
    empty = isinstance(item, list) and not made.size
    return made.astype(np.int64) if empty or made.dtype.kind in "iu" else made


def from_start(static: np.ndarray[Any, Any], dim: int, extent: int) -> np.ndarray[Any, Any]:
    """Indices of `array_of` as numbers from 0 on: negative ones count from the end. Raises `IndexOutOfRange`."""
    out = static[(static < -extent) | (static >= extent)]
    if out.size:
        raise IndexOutOfRange(index=int(out.flat[0]), dim=dim, extent=extent, lo=-extent, hi=extent - 1)
    return np.where(static < 0, static + extent, static).astype(np.int32 if extent < 2**31 else np.int64)


def has_arrays(index: Any) -> bool:
    """Whether an index gathers: some part of it is an integer array of rank 1 or more."""
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)  # pyright: ignore[reportUnknownVariableType]
    return any((isinstance(i, (Array, np.ndarray)) and i.ndim > 0) or isinstance(i, list) for i in items)
