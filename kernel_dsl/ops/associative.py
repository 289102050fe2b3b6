"""Scans by a user's function, which must be associative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import facts
from ..boundary import called
from ..errors import BadArgument, BadArgumentType, CarryMismatch, ShapeMismatch
from ..ir import ArrayType, Effect, Op, Region, Value, attr, operands, region, walk_region
from ..layout import Bit, Layout
from ..refs import Ref
from ..source import of_function
from ..trace import emit, end_region, into, new_value, resolve
from ..tree import flatten, pictured, unflatten
from ..values import Array
from .axes import one_axis
from .broadcast import common_layout, convert
from .cast import as_value, rounded
from .pointwise import mixing_places

__all__ = ["associative_scan"]


class AssociativeScan(Op, name="associative_scan"):
    """Each element combined with those before it along an axis, of several values at once. PTX `shfl.sync.bfly`, SMEM.

    The region's arguments are blocks of every value, those of the earlier place and then those of the later one: what a
    lane's registers hold at one place along the axis. Registers are combined first, then lanes, then warps, in a fixed
    order. `reverse`: the scan begins at the end of the axis.
    """

    xs: tuple[Value, ...] = operands()
    axes: tuple[int, ...] = attr()
    reverse: bool = attr()
    combine: Region = region()

    def infer(self) -> tuple[Any, ...]:
        return tuple(x.type for x in self.xs)


def digits(layout: Layout, axis: int) -> list[tuple[int, str, int]]:
    """The factors of an index along an axis, smallest first: (stride, "reg", size) or (stride, "bit", bit's number)."""
    found = [(stride, "reg", size) for dim, size, stride in layout.regs if dim == axis]
    found += [(b[1], "bit", i) for i, b in enumerate(layout.bits) if b is not None and b[0] == axis]
    return sorted(found)


def of_block(layout: Layout, axis: int) -> Layout:
    """The layout of the block of elements that lanes hold in one register each along the axis."""
    order = [which for _, where, which in digits(layout, axis) if where == "bit"]

    def place(bit: Bit, number: int) -> Bit:
        return bit if bit is None or bit[0] != axis else (axis, 1 << order.index(number))

    bits = [place(b, i) for i, b in enumerate(layout.bits)]
    lanes = len(layout.lanes)
    regs = tuple(r for r in layout.regs if r[0] != axis)
    return Layout(layout.rank, regs, tuple(bits[:lanes]), tuple(bits[lanes:]))


def associative_scan(fn: Callable[..., Any], tree: Any, axis: Any = 0, *, reverse: bool = False) -> Any:
    """Every element along `axis` combined with all before it by `fn(earlier, later)`, an associative function.

    `tree` is a value or a nest of values with one extent along `axis`; `fn` takes two such nests and returns a third.
    `fn` gets blocks: the elements that lanes hold at some places along the axis, with all of the other dimensions. It
    must treat all places alike, as elementwise functions do. It returns the dtypes of its arguments, and neither loads
    nor stores. `reverse`: start at the end, so that `earlier` holds the elements further along. The order in which
    elements are combined is fixed, so results are the same each time. Raises `CarryMismatch`, `ShapeMismatch`,
    `BadAxis`, and `BadArgument` for a function that mixes places or has an effect.

    >>> run(lambda x: kd.associative_scan(lambda a, b: a * b, x), [1, 2, 3, 4])
    [ 1  2  6 24]
    >>> run(lambda x: kd.associative_scan(kd.maximum, x, reverse=True), [1, 5, 2, 3])
    [5 5 3 3]
    """
    op = "associative_scan"
    leaves, structure = flatten(tree, lambda x: isinstance(x, (Array, Ref)))
    if not leaves:
        raise BadArgumentType(op=op, what="a tree without values", hint="scan at least one")
    values = [as_value(leaf, op) for leaf in leaves]
    values = [rounded(v, v.dtype) for v in values]
    axes = [one_axis(axis, v.ndim, v.shape) for v in values]
    if len({v.shape[a] for v, a in zip(values, axes, strict=True)}) > 1:
        raise ShapeMismatch(op=op, shapes=" and ".join(str(v.shape) for v in values))
    if any(0 in v.shape for v in values):
        return unflatten(structure, list(values))
    xs = _spread_alike(values, axes)
    combine = _traced(fn, xs, axes, structure)
    return unflatten(structure, list(emit(AssociativeScan(tuple(xs), tuple(axes), reverse, combine)).results))


def _spread_alike(values: list[Array], axes: list[int]) -> list[Array]:
    """The values in layouts that spread the axis as the largest value's layout does."""
    number = max(range(len(values)), key=lambda i: values[i].size)
    largest, axis = values[number], axes[number]
    same = [v for v, a in zip(values, axes, strict=True) if v.shape == largest.shape and a == axis]
    layout = resolve(common_layout(same, largest.shape))
    return [convert(v, _like(v, a, largest, axis, layout)) for v, a in zip(values, axes, strict=True)]


def _like(value: Array, own: int, largest: Array, axis: int, layout: Layout) -> Layout:
    """A layout of a value whose axis `own` is spread as axis `axis` of the largest one."""
    shape = largest.shape
    if value.ndim == len(shape) and own == axis:
        if value.shape == shape:
            return layout
        if all(n in (1, m) for n, m in zip(value.shape, shape, strict=True)):
            return layout.reduce([i for i, n in enumerate(value.shape) if n != shape[i]])
    along = layout.reduce([i for i in range(len(shape)) if i != axis], keepdims=False)
    spread = along.expand([i for i in range(value.ndim) if i != own])
    held = [(i, n, 1) for i, n in enumerate(value.shape) if i != own]  # the other dimensions, in each lane
    return Layout(value.ndim, (*spread.regs, *held), spread.lanes, spread.warps)


def _traced(fn: Callable[..., Any], xs: list[Array], axes: list[int], structure: Any) -> Region:
    """The region of `fn` on blocks. Raises `CarryMismatch`, `BadArgument`."""
    op = "associative_scan"
    types: list[ArrayType] = []
    for x, axis in zip(xs, axes, strict=True):
        layout = of_block(resolve(x.type.layout), axis)
        count = 1 << sum(b is not None and b[0] == axis for b in layout.bits)
        shape = tuple(count if i == axis else n for i, n in enumerate(x.shape))
        types.append(ArrayType(shape, x.dtype, layout))
    made = Region()
    where = of_function(fn)
    with into(made):
        args: list[Any] = [new_value(t) for t in (*types, *types)]
        for arg in args:
            arg.facts = facts.any_of(arg.dtype)
        made.args = tuple(args)
        pair = (unflatten(structure, args[: len(xs)]), unflatten(structure, args[len(xs) :]))
        result = called(fn, pair, op, "fn", "fn(earlier, later)")
        leaves, got = flatten(result, lambda x: isinstance(x, (Array, Ref)))
        if repr(got) != repr(structure):
            what, hint = "the function changes the structure", "return the same nesting of tuples, lists and dicts"
            raise CarryMismatch(op=op, what=what, a=pictured(structure), b=pictured(got), hint=hint, other=where)
        outs = [_as_given(as_value(leaf, op), t, where) for leaf, t in zip(leaves, types, strict=True)]
        end_region(made, tuple(outs))
    for inner in walk_region(made):
        if inner.effect is not Effect.PURE:
            what = f"the function has an effect: `{inner.spoken()}`"
            hint = "load before the scan and store after it; products of values go through SMEM"
            raise BadArgument(loc=inner.loc, op=op, what=what, hint=hint)
    mixed = mixing_places(made, axes)
    if mixed is not None:
        hint = "it gets some of the places along the axis at a time, and must treat them alike"
        raise BadArgument(op=op, what=f"the function {mixed}", hint=hint, other=where)
    return made


def _as_given(out: Array, t: ArrayType, where: Any) -> Array:
    """A result of the function, in the layout of its argument. Raises `CarryMismatch`."""
    out = rounded(out, t.dtype) if out.weak else out
    if out.shape != t.shape or out.dtype != t.dtype:
        raise CarryMismatch(
            op="associative_scan",
            what="the function changes a type",
            a=f"{t.dtype}{list(t.shape)}",
            b=f"{out.dtype}{list(out.shape)}",
            hint="return the shapes and dtypes of its arguments: convert before the scan, or in the function with `.astype`",
            other=where,
        )
    return convert(out, t.layout)
