"""Broadcasting of values, and the layouts in which several meet."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any, cast

from ..boundary import checks_itself
from ..conversion import described
from ..diagnostics import CostNote
from ..errors import (
    CannotBroadcast,
    ShapeMismatch,
)
from ..facts import Range
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..layout import Layout
from ..meet import MetPart, agree, union
from ..memory import as_shape
from ..trace import LayoutVar, current, emit, find, is_open, resolve, traced
from ..values import Array
from .cast import as_value
from .elementwise import Elementwise

__all__ = ["broadcast_to"]


class Broadcast(Op, name="broadcast"):
    """Stretch dimensions of extent 1, or spread a rank-0 value. Free: no element moves between lanes."""

    again = True
    x: Value = operand()
    shape: tuple[int, ...] = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.shape, array_type(self.x).dtype, self.layout),)

    def range(self) -> Range | None:
        return self.x.facts


class ConvertLayout(Op, name="convert_layout"):
    """Convert a value to another layout. PTX `mov`, `shfl.sync`, or `st.shared` and `ld.shared`."""

    x: Value = operand()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, t.dtype, self.layout),)

    def range(self) -> Range | None:
        return self.x.facts


class Expand(Op, name="expand_dims"):
    """New dimensions of extent 1, at `dims` of the result. Free."""

    again = True
    x: Value = operand()
    dims: tuple[int, ...] = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        shape = list(t.shape)
        for d in self.dims:
            shape.insert(d, 1)
        return (ArrayType(tuple(shape), t.dtype, self.layout),)

    def range(self) -> Range | None:
        return self.x.facts


def broadcast_shapes(shapes: Sequence[tuple[int, ...]], op: str) -> tuple[int, ...]:
    """NumPy's rule. Raises `ShapeMismatch`."""
    rank = max(map(len, shapes))
    out: list[int] = []
    for i in range(-rank, 0):
        extents = {s[i] for s in shapes if len(s) >= -i} - {1}
        if len(extents) > 1:
            raise ShapeMismatch(op=op, shapes=" and ".join(map(str, shapes)))
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def _local(layout: Any) -> Any:
    """The representative of a layout. A layout that an enclosing region left open is closed here."""
    found = find(layout)
    if isinstance(found, LayoutVar) and (found.root() is not None or found.free is not None):
        return resolve(found)
    return found


def common_layout(values: Sequence[Array], shape: tuple[int, ...]) -> Any:
    """The common layout of values: the first closed layout of `shape`, else one open variable for all of this shape.

    If no value of the shape has one, it is the union of the closed layouts, so that no value moves.
    """
    full = [v for v in values if v.shape == shape]
    small = [v for v in values if v.ndim == len(shape) and v.ndim and v.shape != shape]
    layouts = [_local(v.type.layout) for v in full]
    closed = [i for i, layout in enumerate(layouts) if isinstance(layout, Layout)]
    if closed:
        # values that are cheap to compute again adopt the layout of the others
        fixed = (i for i in closed if work_again(full[i]) is None) if len(closed) > 1 else iter(closed)
        return layouts[next(fixed, closed[0])]
    parts = _parts([v for v in small if work_again(v) is None])
    if not all(map(is_open, layouts)):  # the layout of a part was a reduction of one of these: closing it closed both
        return common_layout(values, shape)
    if not layouts:
        if parts:
            return union(parts, shape)
        open_ones = [find(v.type.layout) for v in small]
        return LayoutVar(shape, max((s.vector for s in open_ones if isinstance(s, LayoutVar)), default=0))
    first = layouts[0]
    for other in layouts[1:]:
        if other is not first and is_open(other):
            first.vector = max(first.vector, other.vector)
            if first.minor is None:
                first.minor = other.minor
            if find(other) is not first:
                other.bind(first)
    if parts and isinstance(first, LayoutVar) and not first.vector:  # no memory access needs another
        first.bind(_met(first, parts))
    return first


def _met(layout: LayoutVar, parts: Sequence[MetPart]) -> Layout:
    """The layout of a whole value, whose own is open, where it meets the parts: that of a loop's carry before the loop if
    no part moves for it, else the union of the parts.
    """
    own = layout.before
    return own if own is not None and agree(parts, own, layout.shape) else union(parts, layout.shape)


def _parts(values: Sequence[Array]) -> list[MetPart]:
    """The values whose layouts are closed."""
    found = [(v, _local(v.type.layout)) for v in values]
    return [MetPart(own, v.shape, v.dtype.bits == 64) for v, own in found if isinstance(own, Layout)]


WHOLE = 4  # the work of an op on all elements; that of an op on a row or a column is 1
MOST_AGAIN = 8 * WHOLE


def work_again(value: Value, most: int = MOST_AGAIN, size: int | None = None) -> int | None:
    """The work to compute a value again from index arrays and rank-0 values; None for other values.

    `size`: elements of the value that this is for. A mask such as `(i[:, None] > k) & (i[None] > k)` has most of its ops on
    a row and a column.
    """
    op, shape = value.op, array_type(value).shape
    if not shape:
        return 0
    size = size or prod(shape)
    total = WHOLE if 2 * prod(shape) > size else 1
    if op is None or most < total or not (op.again or (isinstance(op, Elementwise) and op.llvm and not op.math)):
        return None
    for part in op.values():
        work = work_again(part, most - total, size)
        if work is None:
            return None
        total += work
    return total


def _again(value: Value, layout: LayoutVar | Layout) -> Value:
    """A value for which `work_again` gives a number, computed again in `layout`."""
    op = value.op
    if not array_type(value).shape or op is None:
        return value
    made, own = copy(op), layout
    if isinstance(op, Broadcast) and array_type(op.x).shape:
        pairs = zip(array_type(op.x).shape, op.shape, strict=True)
        own = _reduced(layout, op.x, tuple(d for d, (a, b) in enumerate(pairs) if a != b), True)
    elif isinstance(op, Expand):
        own = _reduced(layout, op.x, op.dims, False)
    for key, _ in op.value_fields:
        setattr(made, key, _again(getattr(op, key), own))
    if "layout" in op.attr_fields:
        cast("Any", made).layout = layout
    result: Array = traced(made)
    result.facts, result.weak = value.facts, cast("Array", value).weak
    return result


def _reduced(layout: LayoutVar | Layout, x: Value, dims: tuple[int, ...], keepdims: bool) -> LayoutVar | Layout:
    """The layout that `x` needs so that stretching or inserting `dims` gives a value in `layout`."""
    if isinstance(layout, Layout):
        return layout.reduce(dims, keepdims)
    own = LayoutVar(array_type(x).shape)
    own.bind(layout, dims, keepdims)
    return own


def convert(value: Array, layout: Any) -> Array:
    """`value` in `layout`: free if its own is open or the same, else a conversion with a cost note.

    Index arrays, and results of few operations on them and on rank-0 values, are computed again instead.
    """
    own = _local(value.type.layout)
    layout = _local(layout)
    if own is layout or own == layout:
        return value
    if isinstance(own, LayoutVar):
        own.bind(layout)
        return value
    if isinstance(layout, LayoutVar):
        layout.bind(own)
        return value
    table, key = current().constants, (id(value), layout)
    found: Any = table.get(key)
    if found is None:
        found = table[key] = _converted(value, layout)
    return found


def _converted(value: Array, layout: Layout) -> Array:
    if work_again(value) is not None:
        return cast("Array", _again(value, layout))
    made = value.op
    op = emit(ConvertLayout(value, layout))
    how = described(resolve(value.type.layout), layout, value.shape, value.dtype)
    made_at = made.loc if made is not None else op.loc
    current().notes.append(CostNote(f"{value.type} changes its layout: {how}", op.loc, made_at, "made here"))
    result: Any = op.result
    return result


def broadcast_value(value: Array, shape: tuple[int, ...], layout: Any) -> Array:
    """`value` broadcast to `shape`, which may be a Ref's, in `layout` (which may be open)."""
    if value.shape == shape:
        return convert(value, layout)
    shape = tuple(shape)  # reads the extents of a Ref's: a value has ints
    if value.ndim == 0:
        return traced(Broadcast(value, shape, layout))
    if value.ndim < len(shape):
        value = expand_leading(value, len(shape))
        if value.shape == shape:
            return convert(value, layout)
    dims = tuple(i for i, (a, b) in enumerate(zip(value.shape, shape, strict=True)) if a != b)
    layout = _local(layout)
    own = find(value.type.layout)
    # closed here, it would close another value's open layout, or one that no memory access needs yet
    closes = (
        own.root() is not None if isinstance(own, LayoutVar) else isinstance(layout, LayoutVar) and not layout.vector
    )
    if closes and work_again(value) is not None:
        own = LayoutVar(value.shape)
        value = cast("Array", _again(value, own))
    if isinstance(own, LayoutVar) and own.stretches_to(layout, dims):
        return traced(Broadcast(value, shape, layout))
    own = _local(own)
    layout = _local(layout)  # it may have been closed with `own`
    if isinstance(layout, LayoutVar):
        if isinstance(own, LayoutVar):
            own.bind(layout, dims)
            return traced(Broadcast(value, shape, layout))
        if not layout.vector and work_again(value) is None:  # no memory access needs another
            layout.bind(_met(layout, _parts([value])))
        layout = resolve(layout)
    value = convert(value, layout.reduce(dims))
    return traced(Broadcast(value, shape, layout))


def expand_leading(value: Array, rank: int) -> Array:
    """`value` with dimensions of extent 1 in front, up to `rank`."""
    return expanded(value, tuple(range(rank - value.ndim)))


def expanded(value: Array, dims: tuple[int, ...]) -> Array:
    """`value` with new dimensions of extent 1 at `dims` of the result. An open layout stays open."""
    if not dims:
        return value
    own = find(value.type.layout)
    if isinstance(own, LayoutVar) and own.root() is not None and work_again(value) is not None:
        own = LayoutVar(value.shape)
        value = cast("Array", _again(value, own))
    if isinstance(own, LayoutVar) and own.root() is None and own.free is None:
        places = [d for d in range(value.ndim + len(dims)) if d not in dims]
        shape = [1] * (value.ndim + len(dims))
        for place, extent in zip(places, value.shape, strict=True):
            shape[place] = extent
        minor = places[-1 if own.minor is None else own.minor]
        layout: Any = LayoutVar(tuple(shape), own.vector, minor)
        own.bind(layout, dims, keepdims=False)
    else:
        layout = resolve(own).expand(dims)
    return traced(Expand(value, dims, layout))


def together(values: Sequence[Array], op: str) -> list[Array]:
    """All values in one shape and one layout."""
    first = values[0]
    shape = first.shape
    layout = first.type.layout
    if all(v.type.shape == shape and v.type.layout is layout for v in values):
        return list(values)
    shape = broadcast_shapes([v.shape for v in values], op)
    if all(v.shape != shape for v in values):
        values = [expand_leading(v, len(shape)) if 0 < v.ndim < len(shape) else v for v in values]
    layout = common_layout(values, shape)
    return [broadcast_value(v, shape, layout) for v in values]


@checks_itself("shape")
def broadcast_to(x: Any, shape: Sequence[int]) -> Array:
    """`x` broadcast to `shape`, as `numpy.broadcast_to`. Raises `CannotBroadcast`.

    >>> run(lambda x: kd.broadcast_to(x, (2, 2)), [1, 2])
    [[1 2]
     [1 2]]
    """
    value = as_value(x, "broadcast_to")
    to = as_shape(shape, "broadcast_to")
    pairs = list(zip(reversed(value.shape), reversed(to), strict=False))
    if value.ndim > len(to) or any(a not in (1, b) for a, b in pairs):
        raise CannotBroadcast(shape=value.shape, to=to)
    if value.shape == to:
        return value
    result = broadcast_value(value, to, LayoutVar(to))
    result.weak = False
    return result
