"""The position of a kernel instance: grid, cluster and warpgroup indices, and facts about integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod
from typing import Any

from .. import dtypes as dt
from ..diagnostics import shown
from ..errors import BadArgument, BadArgumentType, UnknownAxis
from ..extents import DimExtent, Extent, GridSize, Top, now, traces_extents
from ..facts import Range
from ..indices import ds
from ..ir import ArrayType, Op, Value, attr, operand
from ..layout import SCALAR
from ..trace import current, traced
from ..values import Array
from . import arith
from .cast import as_value, constant

__all__ = ["axis_index", "axis_size", "ds", "multiple_of", "num_programs", "program_id"]


MOST_BLOCKS = 2**31 - 1  # along the grid's largest axis


class AxisIndex(Op, name="axis_index"):
    """The index of this instance along an axis: `kind` is "grid", "cluster" or "thread". PTX `%ctaid`, `%tid`."""

    kind: str = attr()
    position: int = attr()
    size: int | GridSize = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), dt.int32, SCALAR),)

    def range(self) -> Range | None:
        if isinstance(self.size, GridSize):
            self.size.assume()
            top = self.size.top
            if top is None:
                return Range(0, MOST_BLOCKS - 1)
            return Range(0, max(min(MOST_BLOCKS, top.most) - 1, 0), 1, False, top.plus(-1))
        return Range(0, max(self.size - 1, 0))


class GridExtent(Op, name="grid_extent"):
    """The extent of a grid axis that no code reads. PTX `%nctaid`, `%nclusterid`."""

    size: GridSize = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), dt.int32, SCALAR),)

    def range(self) -> Range | None:
        top = self.size.top
        most = MOST_BLOCKS if top is None else max(min(MOST_BLOCKS, top.most), 1)
        return Range(1, most, 1, False, top)  # an empty grid launches nothing


class ExtentOf(Op, name="extent"):
    """An extent that no code reads, such as a `kd.Dim`. PTX `ld.param`."""

    extent: Extent = attr()

    @property
    def dim_name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.extent.name if isinstance(self.extent, DimExtent) else ""

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), dt.int32 if self.extent.most < 2**31 else dt.int64, SCALAR),)

    def range(self) -> Range | None:
        e = self.extent
        return Range(e.least, e.most, e.divisor, False, Top(e, 1, 1, 0))


@traces_extents(Array)
def extent_of(extent: Extent) -> Array:
    """The extent as a traced integer, weakly typed like a Python int."""
    extent.assume()
    value = traced(ExtentOf(extent.narrowed()))
    value.weak = True
    return value


class MultipleOf(Op, name="multiple_of"):
    """A promise that an integer is a multiple of `factor`. No instruction."""

    x: Value = operand()
    factor: int = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.x.type,)

    def range(self) -> Range | None:
        known = self.x.facts
        if known is None:
            return None
        return known._replace(divisor=lcm(known.divisor, self.factor), wide=False)


def axis_index(name: str | Sequence[str]) -> Array:
    """The index (int32) along a grid, cluster, warpgroup or mesh axis; of several, in row-major order. Raises `UnknownAxis`."""
    if isinstance(name, str):
        return _index(*_axis(name))
    axes = [_axis(one) for one in name]
    index: Any = constant(0, dt.int32)
    for number, (kind, position, size) in enumerate(axes):
        here = _index(kind, position, size)
        index = arith.add(arith.multiply(index, int(size)), here) if number else here
    return index


def _index(kind: str, position: int, size: Any) -> Array:
    return current().mesh.index(position) if kind == "device" else traced(AxisIndex(kind, position, size))


def axis_size(name: str | Sequence[str]) -> int:
    """The static extent of an axis, or of several together. Raises `UnknownAxis`."""
    return int(_axis(name)[2]) if isinstance(name, str) else prod(int(_axis(one)[2]) for one in name)


def grid_extent(name: str) -> Any:
    """The extent of a grid axis: an int, or a traced integer if no code has read it."""
    size = _axis(name)[2]
    if not isinstance(size, GridSize):
        return size
    size.assume()
    value = traced(GridExtent(size))
    value.weak = True
    return value


def grid_points(names: Sequence[str], most: int) -> int:
    """The number of points along axes of the grid in this call. Those that no code has read have at most `most` in others."""
    sizes = [_axis(name)[2] for name in names]
    unread = [size for size in sizes if isinstance(size, GridSize)]
    if unread and (reads := unread[0].reads) is not None:
        reads.points[tuple(current().axes[name][1] for name in names)] = most
    return prod(size.value if isinstance(size, GridSize) else size for size in sizes)


def _axis(name: Any) -> tuple[str, int, Any]:
    axes = current().axes
    if type(name) is not str or name not in axes:
        names = ", ".join(map(repr, axes)) or "none; `grid_names=` of the kernel gives them names"
        raise UnknownAxis(name=name, of="this kernel", names=names)
    kind, position, size = axes[name]
    return kind, position, now(size)


def _grid_axis(axis: int) -> tuple[int, Any]:
    trace = current()
    if isinstance(axis, bool) or not isinstance(axis, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "`program_id` counts axes from 0; `kd.axis_index` takes names"
        raise BadArgumentType(op="program_id", what=f"axis {shown(axis)} is not an int", hint=hint)
    outer = len(trace.batches)
    rank = len(trace.grid) - outer
    if not 0 <= axis < rank:
        what = f"axis {axis} of a grid with {rank} axes"
        raise BadArgument(op="program_id", what=what, hint="axes count from 0, as `grid` names them")
    return axis + outer, now(trace.grid[axis + outer])


def members() -> list[Array]:
    """The indices along the grid axes of `vmap`, which the body does not see, outermost first."""
    return [traced(AxisIndex("grid", number, size)) for number, size in enumerate(current().batches)]


def program_id(axis: int) -> Array:
    """The index (int32) along grid axis number `axis`; a grid counts clusters. Raises `BadArgument`, `BadArgumentType`."""
    position, size = _grid_axis(axis)
    return traced(AxisIndex("grid", position, size))


def num_programs(axis: int) -> int:
    """The static extent of grid axis number `axis`. Raises `BadArgument`, `BadArgumentType`."""
    return int(_grid_axis(axis)[1])


def multiple_of(x: Any, factor: int) -> Any:
    """`x`, a rank-0 integer, with the promise that it is a multiple of `factor`.

    A broken promise is undefined behaviour.

    Raises `BadArgument` for a static `x` that is no multiple, or a factor below 1; `BadArgumentType`.
    """
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op="multiple_of", what=f"factor {shown(factor)}", hint="a static int of 1 or more")
    if isinstance(x, int):
        if x % factor:
            raise BadArgument(
                op="multiple_of", what=f"{x} is not a multiple of {factor}", hint="give a factor that divides it"
            )
        return x
    value = as_value(x, "multiple_of")
    if value.ndim or not value.dtype.is_integer:
        raise BadArgumentType(op="multiple_of", what=f"{value!r}", hint="it takes a rank-0 integer")
    return traced(MultipleOf(value, factor))
