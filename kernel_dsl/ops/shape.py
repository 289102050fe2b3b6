"""Rearranging values: reshapes, slices, joins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..arguments import refuse, static_int, static_ints
from ..diagnostics import CostNote, of_kind, shown
from ..errors import BadArgument, BadAxis, BadIndex
from ..facts import Range
from ..indices import is_index
from ..ir import ArrayType, MemorySpace, Op, RefType, Value, array_type, attr, operand, operands
from ..layout import SCALAR, Layout
from ..memory import as_shape
from ..refs import Ref, View, ViewDim
from ..relabel import reshaped, sliced
from ..shapes import infer_shape
from ..trace import LayoutVar, current, resolve, traced
from ..values import Array
from ..view import Limit
from .access import view_of
from .axes import axes_of, normalise_axes, one_axis
from .broadcast import Broadcast, convert, expanded
from .cast import as_value

__all__ = ["expand_dims", "flip", "pad", "reshape", "split", "squeeze", "swapaxes", "transpose"]

MANY, WASTE = 32, 8  # registers of a lane that are no waste, and times as many as the elements need


class Transpose(Op, name="transpose"):
    """Permuted dimensions. Free: the layout is permuted with them."""

    x: Value = operand()
    permutation: tuple[int, ...] = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(tuple(t.shape[p] for p in self.permutation), t.dtype, self.layout),)

    def range(self) -> Range | None:
        return self.x.facts


class Squeeze(Op, name="squeeze"):
    """Removes dimensions of extent 1. Free."""

    x: Value = operand()
    dims: tuple[int, ...] = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        shape = tuple(n for i, n in enumerate(t.shape) if i not in self.dims)
        return (ArrayType(shape, t.dtype, self.layout),)

    def range(self) -> Range | None:
        return self.x.facts


class Pick(Op, name="pick"):
    """The elements of a view of a value, seen as a row-major array of shape `root`; outside it, `fill` or zero.

    In registers if every element stays in its lane, else through SMEM. PTX `mov`, or `st.shared` and `ld.shared`.
    """

    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    fill: Value | None = operand()
    root: tuple[int, ...] = attr()
    view: View = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.view.shape, array_type(self.x).dtype, self.layout),)


# --- reshaping -----------------------------------------------------------------------------------


def transpose(x: Any, axes: Any = None) -> Array:
    """Permuted dimensions, reversed by default.

    >>> run(kd.transpose, [[1, 2], [3, 4]])
    [[1 3]
     [2 4]]
    """
    value = as_value(x, "transpose")
    order = tuple(reversed(range(value.ndim))) if axes is None else axes_of(axes, value.ndim, value.shape)
    if len(order) != value.ndim:
        raise BadAxis(axis=axes, shape=value.shape, hint=f"name all {value.ndim} axes, each once")
    if order == tuple(range(value.ndim)):
        return value
    return traced(Transpose(value, order, resolve(value.type.layout).transpose(order)))


def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    """Two dimensions exchanged.

    >>> run(lambda x: kd.swapaxes(x, 0, 1), [[1, 2], [3, 4]])
    [[1 3]
     [2 4]]
    """
    value = as_value(x, "swapaxes")
    a, b = (one_axis(axis, value.ndim, value.shape) for axis in (axis1, axis2))
    order = list(range(value.ndim))
    order[a], order[b] = b, a
    return transpose(value, tuple(order))


def expand_dims(x: Any, axis: Any) -> Array:
    """New dimensions of extent 1 at `axis` (an int or several) of the result.

    >>> run(lambda x: kd.expand_dims(x, 0), [1, 2])
    [[1 2]]
    """
    value = as_value(x, "expand_dims")
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    dims = axes_of(axis, value.ndim + count, value.shape)
    return expanded(value, tuple(sorted(dims)))


def squeeze(x: Any, axis: Any = None) -> Array:
    """The value without dimensions of extent 1: all of them, or those in `axis`.

    >>> run(kd.squeeze, [[1, 2]])
    [1 2]
    """
    value = as_value(x, "squeeze")
    dims = normalise_axes(axis, value) if axis is not None else tuple(i for i, n in enumerate(value.shape) if n == 1)
    if any(value.shape[d] != 1 for d in dims):
        what = f"axis {axis} of shape {value.shape} is longer than 1"
        raise BadArgument(op="squeeze", what=what, hint="only dimensions of extent 1 can go")
    if not dims:
        return value
    # if a slice left its other elements in other lanes, these lanes get the element first
    value = convert(value, resolve(value.type.layout).reduce(dims))
    return traced(Squeeze(value, dims, resolve(value.type.layout).reduce(dims, keepdims=False)))


def reshape(x: Any, *shape: Any) -> Array:
    """The elements in row-major order in another shape; one extent may be -1. Raises `BadReshape`.

    >>> run(lambda x: kd.reshape(x, 2, -1), [1, 2, 3, 4])
    [[1 2]
     [3 4]]
    """
    value = as_value(x, "reshape")
    to = infer_shape(shape, value.size, "a value", value.shape)
    if to == value.shape:
        return value
    if [n for n in to if n != 1] == [n for n in value.shape if n != 1]:
        flat = squeeze(value)
        return expanded(flat, tuple(i for i, n in enumerate(to) if n == 1))
    view = View(tuple(ViewDim(n, i) for i, n in enumerate(to)), (0,) * len(to))
    layout = LayoutVar(to)
    stay = reshaped(resolve(value.type.layout), value.shape, to)
    op = Pick(value, (), None, to, view, layout)
    result = moved(op, stay is None)
    if stay is not None:
        layout.free = stay, _note(op)
    return result


def moved(op: Op, moves: bool, how: str = "") -> Array:
    """The result of an op, with a cost note if its elements move: through SMEM, or by the method `how`."""
    result: Array = traced(op)
    if moves and 0 not in array_type(op.result).shape:
        current().notes.append(_note(op, how))
    return result


def _note(op: Op, how: str = "") -> CostNote:
    size = sum(prod(array_type(v).shape) * array_type(v).dtype.itemsize for v in op.values() if array_type(v).shape)
    how = how or f"through SMEM: {size} bytes written and read, and a barrier"
    return CostNote(f"{op.result.type} takes its elements from other lanes: {how}", op.loc)


def wastes(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether elements that stay in their lanes take so many registers that a trip through SMEM costs less.

    Slices leave lanes without elements, and what is joined to them takes more registers of the others: a chain of both,
    as of an FFT, would end with each element in a register of one lane.
    """
    return layout.registers > max(MANY, WASTE * -(-prod(shape) // 128))


# --- slices of values ----------------------------------------------------------------------------


def _as_root(value: Array) -> Ref:
    """The value as a Ref, for the functions that index Refs."""
    type = RefType(MemorySpace.GMEM, value.shape, value.dtype, name="value")
    return Ref(Value(type))


def getitem(value: Array, index: Any) -> Array:
    """`value[index]` for ints (static or traced), slices, `ds`, None, Ellipsis. Traced starts must be in range.

    Arrays of integers gather elements through SMEM, with NumPy's broadcasting; traced indices out of range give 0.
    """
    items = index if isinstance(index, tuple) else (index,)
    for item in items:
        bad = isinstance(item, (Array, np.ndarray)) and not is_index(item)
        if bad or isinstance(item, (list, str, float)):
            hint = "values are indexed by integers, slices and arrays of integers"
            raise BadIndex(what=of_kind(item), hint=hint)
    root = _as_root(value)
    part = root.slice(index)
    view, offsets = view_of(part)
    plain = all(d.axis == i and d.step == 1 for i, d in enumerate(view.dims)) and not any(view.start)
    if plain and not offsets and view.shape == value.shape:
        return value
    kept = [d for d in view.dims if d.axis >= 0]
    whole = not offsets and not any(view.start) and all(d.step == 1 and (d.size == value.shape[d.axis]) for d in kept)
    gone = tuple(a for a in range(value.ndim) if a not in {d.axis for d in kept})
    if whole and all(value.shape[a] == 1 for a in gone):
        small = squeeze(value, gone) if gone else value
        return expanded(small, tuple(i for i, d in enumerate(view.dims) if d.axis < 0))
    ones = tuple(i for i, d in enumerate(view.dims) if d.axis >= 0 and d.size == 1 < value.shape[d.axis])
    if (
        ones and not offsets and sliced(resolve(value.type.layout), view) is None
    ):  # a shuffle brings one element to all lanes
        single = view.kept([i for i in range(len(view.dims)) if i not in ones])
        return expanded(pick(value, value.shape, single, offsets, None), ones)
    return pick(value, value.shape, view, offsets, None)


def pick(value: Array, root: tuple[int, ...], view: View, offsets: tuple[Value, ...], fill: Any) -> Array:
    """A view of a value, in the value's own layout if the elements can stay in their lanes.

    `fill`: the value outside.
    """
    found = sliced(resolve(value.type.layout), view) if root == value.shape and not offsets else None
    if found is not None and wastes(found.layout, view.shape):
        found = None
    open_one: Any = LayoutVar(view.shape) if view.shape else SCALAR
    layout = open_one if found is None else found.layout
    other = None if fill is None else traced(Broadcast(fill, view.shape, layout))
    op = Pick(value, offsets, other, root, view, layout)
    if found is not None and found.mask:
        count = found.layout.registers * (2 if value.dtype.bits == 64 else 1)
        return moved(op, True, f"{count} shuffles a lane")
    return moved(op, found is None)


def flip(x: Any, axis: Any = None) -> Array:
    """Reversed along `axis`: an int, several, or all by default.

    >>> run(kd.flip, [1, 2, 3])
    [3 2 1]
    """
    value = as_value(x, "flip")
    axes = normalise_axes(axis, value)
    index = tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(value.ndim))
    return getitem(value, index)


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Array:
    """NumPy's pad with a constant: `pad_width` is an int, (before, after), or such a pair for each axis.

    >>> run(lambda x: kd.pad(x, (1, 2)), [1, 2])
    [0 1 2 0 0]
    """
    value = as_value(x, "pad")
    if mode != "constant":
        raise BadArgument(op="pad", what=f"mode={shown(mode)}", hint='only "constant" is there')
    widths = _widths(pad_width, value.ndim)
    sizes = as_shape([n + a + b for n, (a, b) in zip(value.shape, widths, strict=True)], "pad")
    dims = tuple(ViewDim(n, i) for i, n in enumerate(sizes))
    starts = tuple(-int(a) for a, _ in widths)
    masked = tuple(
        Limit(i, 0 if a else None, n if b else None)
        for i, (n, (a, b)) in enumerate(zip(value.shape, widths, strict=True))
        if a or b
    )
    if not masked:
        return value
    fill = as_value(constant_values, "pad", value.dtype)
    return pick(value, value.shape, View(dims, starts, (), masked), (), fill)


def _widths(given: Any, rank: int) -> list[tuple[int, int]]:
    """(before, after) for each axis. Raises `BadArgumentType`, `BadArgument`."""
    pairs: Sequence[Any] = given if isinstance(given, (tuple, list)) else ((given, given),)
    if all(not isinstance(part, (tuple, list)) for part in pairs):  # (before, after), or (both,)
        pairs = (tuple(pairs) * (2 if len(pairs) == 1 else 1),)
    if len(pairs) == 1:
        pairs = tuple(pairs) * rank
    hint = "give an int, (before, after), or such a pair for each axis"
    out: list[tuple[int, int]] = []
    for part in pairs:
        both = [static_int(n) for n in part] if isinstance(part, (tuple, list)) else []
        if len(both) != 2 or len(pairs) != rank or both[0] is None or both[1] is None:
            refuse(given, "pad", "pad_width", hint)
        if min(both[0], both[1]) < 0:
            raise BadArgument(op="pad", what=f"pad_width={given} is negative", hint="slice the value instead")
        out.append((both[0], both[1]))
    return out


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """NumPy's split: equal parts, or cut before each of the indices.

    >>> run(lambda x: kd.split(x, 2)[1], [1, 2, 3, 4])
    [3 4]
    """
    value = as_value(x, "split")
    dim = one_axis(axis, value.ndim, value.shape)
    extent = value.shape[dim]
    sections = static_int(indices_or_sections)
    if sections is not None:
        if sections < 1 or extent % sections:
            what = f"an extent of {extent} in {sections} parts"
            raise BadArgument(op="split", what=what, hint="the parts must be equal; or give indices")
        step = extent // sections
        cuts = [step * i for i in range(1, sections)]
    else:
        hint = "an int, or a list of ints to cut before"
        cuts = list(static_ints(indices_or_sections, "split", "indices_or_sections", hint))
    edges = [0, *cuts, extent]
    lead = (slice(None),) * dim
    return [getitem(value, (*lead, slice(a, b))) for a, b in itertools.pairwise(edges)]
