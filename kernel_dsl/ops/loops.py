"""Iteration spaces shared between blocks, and tile orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..arguments import an_int
from ..boundary import called
from ..dataclass import dataclass
from ..diagnostics import shown
from ..errors import BadArgument
from ..indices import is_index
from ..values import Array
from .arith import add, div, multiply, rem, subtract
from .compare import equal, less, maximum, where
from .control import loop
from .index import axis_index, axis_size

__all__ = ["NDLoopInfo", "nd_loop", "planar_snake"]


@dataclass(frozen=True)
class NDLoopInfo:
    """The position of an `nd_loop`: the index in the grid, and the step among `num_local_steps` of this instance."""

    index: tuple[Any, ...]
    local_index: Any
    num_local_steps: Any


def _linear(axes: Sequence[str]) -> tuple[Any, int]:
    index: Any = 0
    size = 1
    for name in axes:
        index = add(multiply(index, axis_size(name)), axis_index(name)) if size > 1 else axis_index(name)
        size *= axis_size(name)
    return index, size


def nd_loop(
    grid: Sequence[Any],
    *,
    collective_axes: str | Sequence[str],
    tiling: Sequence[int] | None = None,
    init_carry: Any = None,
) -> Callable[[Callable[..., Any]], Any]:
    """`@kd.nd_loop(grid, collective_axes="sm")`: distributes the grid's points over the instances along the axes.

    The body takes an `NDLoopInfo` (and the carry, with `init_carry`). `tiling`: go through tiles of this shape one
    after another, row-major inside a tile; the tile must divide the grid. Raises `BadArgument`, `BadArgumentType`,
    `UnknownAxis`, `BodyReturned` and `CarryMismatch`.
    """
    extents = tuple(_extent(g) for g in grid)
    axes = (collective_axes,) if isinstance(collective_axes, str) else tuple(collective_axes)
    if tiling is not None and (
        len(tiling) != len(extents)
        or any(t < 1 or (isinstance(g, int) and g % t) for g, t in zip(extents, tiling, strict=False))
    ):
        what = f"tiling {tuple(tiling)} does not divide the grid {extents}"
        raise BadArgument(
            op="nd_loop", what=what, hint="give one tile extent for each grid axis; each must divide its axis"
        )

    def decorate(body: Callable[..., Any]) -> Any:
        me, count = _linear(axes)
        total: Any = 1
        for extent in extents:
            total = total * extent
        steps = div(add(subtract(total, me), count - 1), count)

        def run(step: Any, carry: Any = None) -> Any:
            index = _unravel(add(multiply(step, count), me), extents, tiling)
            info = NDLoopInfo(index, step, steps)
            if init_carry is not None:
                return called(body, (info, carry), "nd_loop", "body", "body(info, carry)")
            return called(body, (info,), "nd_loop", "body", "body(info)")

        return loop(0, steps, init_carry=init_carry)(run)

    return decorate


def _extent(extent: Any) -> Any:
    """An extent of a grid: an int of 0 or more, or a rank-0 integer value. Raises `BadArgumentType`, `BadArgument`."""
    if is_index(extent) and isinstance(extent, Array):
        return extent
    hint = "extents are ints of 0 or more, or rank-0 integer values"
    return an_int(extent, "nd_loop", "grid", low=0, hint=hint)


def _unravel(linear: Any, extents: Sequence[Any], tiling: Sequence[int] | None) -> tuple[Any, ...]:
    if tiling is None:
        return split(linear, extents)
    outer = tuple(div(g, t) if not isinstance(g, int) else g // t for g, t in zip(extents, tiling, strict=True))
    tile, inside = div(linear, prod(tiling)), rem(linear, prod(tiling))
    pairs = zip(split(tile, outer), tiling, split(inside, tiling), strict=True)
    return tuple(add(multiply(o, t), i) for o, t, i in pairs)


def split(linear: Any, extents: Sequence[Any]) -> tuple[Any, ...]:
    """The index of a point from its number in row-major order."""
    out: list[Any] = []
    for extent in reversed(extents[1:]):
        out.append(rem(linear, extent))
        linear = div(linear, extent)
    return (linear, *reversed(out))


def planar_snake(lin_idx: Any, shape: tuple[Any, Any], minor_dim: int, tile_width: int) -> tuple[Any, Any]:
    """A 2-D index from a linear one, in an order that reuses L2.

    The minor dimension is cut into strips of `tile_width`; within a strip the minor index runs fastest, and every other
    strip walks the major dimension backwards. The last strip may be narrower.
    """
    if minor_dim not in (0, 1):
        raise BadArgument(op="planar_snake", what=f"minor_dim {shown(minor_dim)}", hint="0 or 1")
    an_int(tile_width, "planar_snake", "tile_width", low=1)
    if len(shape) != 2:
        raise BadArgument(op="planar_snake", what=f"a shape of {len(shape)} extents", hint="give both, (rows, columns)")
    shape = (_part(shape[0], "shape"), _part(shape[1], "shape"))
    lin_idx = _part(lin_idx, "lin_idx")
    major, minor = shape[1 - minor_dim], shape[minor_dim]
    strip = div(lin_idx, tile_width * major)

    def place(offset: Any, width: Any) -> tuple[Any, Any]:
        along = rem(div(offset, width), major)
        back = equal(rem(strip, 2), 1)
        along = where(back, subtract(subtract(major, 1), along), along)
        return add(multiply(strip, tile_width), rem(offset, width)), along

    full = div(minor, tile_width) if not isinstance(minor, int) else minor // tile_width
    elements = multiply(full, tile_width * major) if not isinstance(full, int) else full * tile_width * major
    rest = rem(minor, tile_width) if not isinstance(full, int) else minor - full * tile_width
    inside = place(lin_idx, tile_width)
    if isinstance(rest, int) and rest == 0:
        chosen = inside
    else:
        offset = subtract(lin_idx, elements)
        if not isinstance(rest, int):  # without a sign, divisions are shorter
            offset, rest = maximum(offset, 0), maximum(rest, 1)
        edge = place(offset, rest)
        whole = less(lin_idx, elements)
        chosen = tuple(where(whole, a, b) for a, b in zip(inside, edge, strict=True))
    return (chosen[0], chosen[1]) if minor_dim == 0 else (chosen[1], chosen[0])


def _part(value: Any, name: str) -> Any:
    """An int, or a rank-0 integer value. Raises `BadArgumentType`."""
    if isinstance(value, Array) and is_index(value):
        return value
    return an_int(value, "planar_snake", name, hint="an int, or a rank-0 integer value")
