"""The check that a user's function gives each element of its result from the same element of its arguments.

Kernels call such a function on parts of an array, and choose their sizes. `x - x.max()` would subtract the greatest
element of a part, which nobody asks for. The check traces the function once more, apart from the kernel, and notes for
each value along which axes of the part it varies. A scan's function gets parts along one axis, and may mix elements
along the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..ir import ArrayType, Op, Region, Value, array_type
from ..trace import LayoutVar, current, into, new_value
from . import broadcast, cast, control, elementwise, gather, index, join, ref, shape
from .reduce import ArgReduce, Reduce
from .scan import Scan
from .sorting import ArgSort, Sort
from .threads import OptimizationBarrier

APART = 0  # the value varies along this axis, and not as the part does
# For each axis of a value: None if all elements are equal along it, the axis of the part (-1 is the last one) whose index
# it follows, or APART.
Axes: TypeAlias = tuple[int | None, ...]
SAME = (
    elementwise.Elementwise,
    broadcast.ConvertLayout,
    cast.Cast,
    cast.Bitcast,
    index.MultipleOf,
    OptimizationBarrier,
)


class _Mixed(Exception):
    """An operation mixes elements. Its text says which."""


def mixing(function: Callable[..., Any], *args: Any) -> str | None:
    """How `function(*args)` mixes elements of its arguments, as the words after "it"; None if it does not.

    Arguments of rank 1 or more are parts of arrays that broadcast. Raises the errors of the function's trace.
    """
    notes = current().notes
    kept, walk = len(notes), _Walk()
    region = Region()
    with into(region):
        made = function(*map(walk.fresh, args))
    del notes[kept:]
    try:
        walk.ops(region)
        own = walk.of(made) if isinstance(made, Value) else ()
        if any(axis not in (None, n - len(own)) for n, axis in enumerate(own)):
            return "gives a value that does not follow the axes of its arguments"
    except _Mixed as found:
        return str(found)
    return None


def mixing_places(region: Region, axes: Sequence[int]) -> str | None:
    """How a region mixes places along an axis, as `mixing` says it. `axes`: this axis of each argument and result."""
    walk, outs = _Walk(), region.yields
    of_args = [axes[n % len(axes)] for n in range(len(region.args))]
    for x, axis in zip(region.args, of_args, strict=True):
        extents = array_type(x).shape
        walk.axes[x] = tuple(-1 if n == axis else APART if size > 1 else None for n, size in enumerate(extents))
    try:
        walk.ops(region)
        for x, axis in zip(outs, axes, strict=True):
            own = walk.of(x)
            if own[axis] == APART or any(place == -1 for n, place in enumerate(own) if n != axis):
                return "gives a value that does not follow the axis of its arguments"
    except _Mixed as found:
        return str(found)
    return None


class _Walk:
    """The axes of values. Those of values from before the function are found by `of`."""

    def __init__(self) -> None:
        self.axes: dict[Value, Axes] = {}

    def fresh(self, x: Any) -> Any:
        """An argument in place of `x`, without the operations that made `x`."""
        if not isinstance(x, Value) or not isinstance(x.type, ArrayType) or not x.type.shape:
            return x
        extents = x.type.shape
        made: Any = new_value(ArrayType(extents, x.type.dtype, LayoutVar(extents)))
        made.facts, made.weak = x.facts, getattr(x, "weak", False)
        self.axes[made] = tuple(None if size == 1 else n - len(extents) for n, size in enumerate(extents))
        return made

    def of(self, x: Value) -> Axes:
        found = self.axes.get(x)
        if found is None:
            extents = x.type.shape if isinstance(x.type, ArrayType) else ()
            found = tuple(None if size == 1 or isinstance(x.op, cast.Constant) else APART for size in extents)
        return found

    def ops(self, region: Region) -> None:
        for op in region.ops:
            if isinstance(op, (control.For, control.While)):
                self.loop(op)
            elif isinstance(op, (control.If, control.Switch)):
                self.branches(op)
            elif isinstance(op, (ref.Store, gather.Scatter)):
                if any(self.of(op.x)):
                    raise _Mixed("uses an operation that moves elements through memory")
            elif op.results and isinstance(op.results[0].type, ArrayType):
                self.axes[op.results[0]] = self.result(op)

    def loop(self, op: control.For | control.While) -> None:
        """Carries begin as the values before the loop, and may vary along more axes after each turn.

        The condition of a `while` may ask all elements: more turns leave those alone that need none, as in `kd.gcd`.
        """
        carries = [self.of(x) for x in op.inits]
        for _ in range(4):
            args = op.body.args[len(op.body.args) - len(carries) :]
            self.axes.update(zip(args, carries, strict=True))
            self.ops(op.body)
            after = [_joined(a, self.of(x)) for a, x in zip(carries, op.body.yields, strict=True)]
            if after == carries:
                break
            carries = after
        self.axes.update(zip(op.results, carries, strict=True))

    def branches(self, op: control.If | control.Switch) -> None:
        for region in op.region_list():
            self.ops(region)
        for n, result in enumerate(op.results):
            self.axes[result] = _joined(*(self.of(region.yields[n]) for region in op.region_list()))

    def result(self, op: Any) -> Axes:
        """The axes of an op's result. Raises `_Mixed`."""
        if isinstance(op, index.AxisIndex) and op.kind != "thread":
            raise _Mixed("uses the index of its block, which depends on the size of the parts")
        if isinstance(op, SAME):
            return _joined(*map(self.of, op.values()))
        rank = len(array_type(op.results[0]).shape)
        if isinstance(op, broadcast.Broadcast):
            return _joined(self.of(op.x), (None,) * rank)
        if isinstance(op, cast.Constant):
            return (None,) * rank
        moved = self.moved(op)
        if moved is not None:
            return moved
        if isinstance(op, (gather.Gather, ref.Load)):
            return self.loaded(op, rank)
        if any(axis for x in op.values() for axis in self.of(x)):
            raise _Mixed(_using(op))
        return self.of(op.results[0])

    def loaded(self, op: gather.Gather | ref.Load, rank: int) -> Axes:
        """Elements follow the arrays of indices; along other axes they are a slice of the memory."""
        indices = [array_type(x).shape for x in op.indices] if isinstance(op, gather.Gather) else []
        indexed = {n for extents in indices for n in range(-len(extents), 0) if extents[n] > 1}
        slices = tuple(
            None if n == 1 or at - rank in indexed else APART for at, n in enumerate(array_type(op.results[0]).shape)
        )
        return _joined(slices, *(self.of(x) for x in op.values() if isinstance(x.type, ArrayType)))

    def moved(self, op: Any) -> Axes | None:
        """The axes of the result of an op that moves or combines elements along some axes; None for another op."""
        if isinstance(op, broadcast.Expand):
            axes = list(self.of(op.x))
            for dim in op.dims:
                axes.insert(dim, None)
            return tuple(axes)
        if isinstance(op, shape.Squeeze):
            return _without(self.of(op.x), op.dims)
        if isinstance(op, shape.Transpose):
            axes = self.of(op.x)
            return tuple(axes[n] for n in op.permutation)
        if isinstance(op, Reduce):
            return _without(self.along(op, op.axes), op.axes)
        if isinstance(op, ArgReduce):
            return _without(self.along(op, (op.axis,)), (op.axis,))
        if isinstance(op, (Scan, Sort, ArgSort)):
            return self.along(op, (op.axis if isinstance(op, Scan) else -1,))
        if isinstance(op, join.Concatenate):
            return _joined(*(self.along(op, (op.axis,), x) for x in op.parts))
        return self.picked(op) if isinstance(op, shape.Pick) else None

    def along(self, op: Any, dims: Sequence[int], x: Value | None = None) -> Axes:
        """The axes of an operand whose elements an op mixes along `dims`. Raises `_Mixed` if these are the part's."""
        axes = list(self.of(op.x if x is None else x))
        if any(axes[dim] for dim in dims):
            raise _Mixed(_using(op))
        for dim in dims:
            axes[dim] = APART
        return tuple(axes)

    def picked(self, op: shape.Pick) -> Axes:
        """A view of a value may move the part's axes, but must keep them whole."""
        axes, extents = self.of(op.x), array_type(op.x).shape
        dims = op.view.dims
        if extents != op.root:  # a row-major array of another shape
            axes = (APART,) * len(op.root) if not any(axes) else None
        for n, axis in enumerate(axes or ()):
            whole = [d for d in dims if d.axis == n and d.step == 1 and d.size == op.root[n]]
            if axis and (len(whole) != 1 or op.view.start[n] or n in op.view.dynamic):
                axes = None
                break
        if axes is None:
            raise _Mixed(_using(op))
        return tuple(None if d.size == 1 else axes[d.axis] if d.axis >= 0 else None for d in dims)


def _without(axes: Axes, dims: Sequence[int]) -> Axes:
    gone = {dim % len(axes) for dim in dims}
    return tuple(axis for n, axis in enumerate(axes) if n not in gone)


def _joined(*parts: Axes) -> Axes:
    """The axes of a result whose elements each come from one element of every part. Raises `_Mixed`."""
    rank = max(map(len, parts), default=0)
    found: list[int | None] = []
    for n in range(-rank, 0):
        here = {part[n] for part in parts if len(part) >= -n} - {None}
        if len(here) > 1:
            raise _Mixed("combines its arguments with an array that does not follow their axes")
        found.append(here.pop() if here else None)
    return tuple(found)


def _using(op: Op) -> str:
    name = "a slice or a reshape" if isinstance(op, shape.Pick) else f"`{op.spoken()}`"
    return f"uses {f'`{op.kind.value}`' if isinstance(op, Reduce) else name}, which mixes elements"
