"""The launches of a grouped product: the kernels that a call needs, and how its arrays go through them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import kernel_dsl as kd
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.stages import target_named

from ..activations import gate_function
from ..first_sizes import FirstSizes, dim_of, is_closed
from ..latest import Launch, Unseen, seen_launching
from ..product_routes.families import family
from ..products.arguments import alike, stored
from ..products.matmul import check_apart
from ..products.matmul_options import mixed_forms
from ..products.operands import operand, turned
from ..products.problem import EpilogueStep, Problem
from .arguments import (
    NAME,
    GroupedOptions,
    check_groups,
    check_options,
    check_out,
    check_sides,
    out_dtype_of_groups,
    places_of,
    refuse_shape,
    scaling,
)
from .routes import GroupedProduct, grouped_product
from .rows import combine_rows_kernel, gather_kernel, list_kernel, zeros_kernel
from .tiles import MOST_ROWS, RowGroups

_first = FirstSizes()


@dataclass(frozen=True)
class Turned:
    """A gate that takes the gated value first. It gets products of integers as floats, as in `join`."""

    function: Callable[..., Any]

    def __call__(self, value: Any, gate: Any) -> Any:
        return self.function(gate, value if value.dtype.is_float else value.astype(kd.float32))


@dataclass(frozen=True)
class GroupedPlan:
    """The launches of a grouped product.

    `products`: one, or one for each part of a gated product; the second takes the first one's result. `moved`: for each
    part, the operands that are scales by blocks of K. `turns`: whether kernels get a and b with their last axes
    exchanged. `gather`, `lists`, `combine`: the kernels before and after the product, or None; `scaled`: the first
    operand has a's scales of rows, which are gathered, too. `zeros` makes the result if there is nothing to multiply.
    """

    products: tuple[GroupedProduct, ...] = ()
    moved: tuple[tuple[int, ...], ...] = ()
    turns: tuple[bool, bool] = (False, False)
    gather: Any = None
    scaled: bool = False
    lists: Any = None
    combine: Any = None
    zeros: Any = None
    placed: tuple[int, int] | None = None  # the result of `places_of`, if rows are added up
    like: str = ""  # for any number of rows: the array whose extent is the number of places

    def operands(self, own: list[list[Any]], number: int) -> list[Any]:
        """The operands of a product's kernel after the sizes, without those that all parts share."""
        if not any(own):
            return []
        parts = own if len(self.products) == 1 else [own[number]]
        moved = self.moved if len(self.products) == 1 else (self.moved[number],)
        first = [x[i] for x, places in zip(parts, moved, strict=True) for i in places]
        return [
            *first,
            *(v for x, places in zip(parts, moved, strict=True) for i, v in enumerate(x) if i not in places),
        ]

    def seen(self, inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result for a, b and options like an earlier call's on a GPU; raises `Unseen` for others."""
        a, b, o = inputs
        rights = o.rights(b)
        rows = a.shape[0] if o.indices is None else o.indices.shape[0]
        if self.placed is not None and places_of(o, rows, out) != self.placed:
            raise Unseen
        if out is not None:
            check_apart(out, {"a": a, "b": rights[0], "the second part of b": rights[-1]}, NAME)
        return self.run(a, rights, o, out, seen_launching(stream))

    def run(self, a: Any, rights: list[Any], o: GroupedOptions, out: Any, launch: Launch) -> Any:
        """Launch the kernels."""
        if self.zeros is not None:
            return launch(self.zeros, (), out)
        own = [[x for _, x in o.own(i)] for i in range(len(rights))]
        if self.gather is not None:
            made = launch(self.gather, (o.indices, a, *((o.a_scale,) if self.scaled else ())))
            a, *scales = made if isinstance(made, tuple) else (made,)
            own = [[*scales, *x[len(scales) :]] for x in own]
        left = turned(a) if self.turns[0] else a
        sides = [turned(b) for b in rights] if self.turns[1] else rights
        after = [] if o.scatter is not None or o.weights is None else [o.weights]
        last = None if self.combine is not None else out
        if len(self.products) == 1:
            product = self.products[0]
            given = product.sides(left, sides, launch)
            result = launch(product.multiply, (*given, o.given, *self.operands(own, 0), *after), last)
        else:
            gate, value = self.products
            given = gate.sides(left, sides[:1], launch)
            sums = launch(gate.multiply, (*given, o.given, *self.operands(own, 0)))
            given = [given[0], value.sides(left, sides[1:], launch)[1]]
            result = launch(value.multiply, (*given, o.given, *self.operands(own, 1), sums, *after), last)
        if self.combine is None:
            return out if out is not None else result
        like = (getattr(o, self.like),) if self.like else ()
        heads, following = launch(self.lists, (o.given, o.scatter, *like))
        numbers = [] if o.weights is None else [o.weights]
        if o.weights is not None and len(o.weights.shape) == 2:
            numbers = [o.scatter, o.weights.reshape(-1)]
        return launch(self.combine, (heads, following, result, *numbers), out)

    def lower(self, a: Any, rights: list[Any], o: GroupedOptions, target: str | None) -> Any:
        """The stages of the multiplying kernel; for a gated product with two of them, the stages of the first."""
        if self.zeros is not None:
            return self.zeros.lower(target=target)
        own = [[x for _, x in o.own(i)] for i in range(len(rights))]
        if self.gather is not None:
            rows = o.indices.shape[0]
            a = kd.ShapeDtypeStruct((rows, a.shape[1]), a.dtype)
            if self.scaled:
                own = [[kd.ShapeDtypeStruct((rows, *x[0].shape[1:]), x[0].dtype), *x[1:]] for x in own]
        sides = [turned(b) for b in rights] if self.turns[1] else rights
        product = self.products[0]
        given = product.structs(turned(a) if self.turns[0] else a, sides if len(self.products) == 1 else sides[:1])
        after = [] if o.scatter is not None or o.weights is None or len(self.products) > 1 else [o.weights]
        return product.multiply.lower(*given, o.given, *self.operands(own, 0), *after, target=target)


def plan_of(a: Any, rights: list[Any], o: GroupedOptions, out: Any, target_name: str | None) -> GroupedPlan:
    """The launches of a call. Raises `BadCallArgument`, `BadCallValue`, `NoCommonDType`."""
    check_options(o)
    rows = check_sides(a, rights, o)
    count = check_groups(o, rights[0].shape[0], rows)
    _, K, N = rights[0].shape
    groups = RowGroups(count, rows, o.group_sizes is None)
    target = target_named(target_name)
    gathered = o.indices is not None
    left = operand(kd.ShapeDtypeStruct((rows, K), a.dtype) if gathered else a, rows_last=False)
    right = alike([operand(b, rows_last=True) for b in rights])
    how = family(left.dtype, right.dtype, None)
    out_dtype = out_dtype_of_groups(o, left.dtype, right.dtype)
    own = [scaling(o.own(i), a.shape[0], count, N, K, (how.a.itemsize, how.b.itemsize)) for i in range(len(rights))]
    if own[0].b_scaled != own[-1].b_scaled:
        raise refuse_shape(*mixed_forms(o.b_scale))
    places, each = places_of(o, rows, out)
    check_out(out, (places, N), out_dtype)
    if not (rows and N and count and places):
        return GroupedPlan(zeros=zeros_kernel((places, N), out_dtype))
    p = Problem(
        rows, N, K, how.a, how.b, out_dtype, b_batch=right.batch, a_scaled=own[0].a_scaled, b_scaled=own[0].b_scaled
    )
    after = [EpilogueStep("activation", function=o.activation)] if o.activation is not None else []
    if o.weights is not None and o.scatter is None:
        after.append(EpilogueStep("multiply", (("m",),)))
    into = out if o.scatter is None else None
    scale: tuple[int, ...] = tuple(getattr(o.a_scale, "shape", ()))
    scaled = gathered and scale[:1] == (a.shape[0],)
    any_rows = groups.opened()
    if is_closed(target_name) or any_rows is None or places > MOST_ROWS or a.shape[0] > MOST_ROWS:
        any_rows = None
    else:
        kind = _kind(p, own, o, left, right, how, groups, into)
        any_rows = any_rows if _first.comes_again(kind, (rows, a.shape[0], places)) else None
    products = _products(p, own, after, left, right, how, groups, o, into, target, any_rows is not None)
    sizes = _Sizes(rows, a.shape[0], places, any_rows is not None)
    gather = _gather(a, K, sizes, scale if scaled else None) if gathered else None
    lists, combine, like = None, None, ""
    if o.scatter is not None:
        like = _like(o, sizes)
        sizes = sizes if like else sizes._replace(opened=False)
        lists, combine = _adding(o, N, out_dtype, any_rows if like else groups, sizes, each)
    turns = (not left.along_k, right.along_k)
    placed, moved = None if o.scatter is None else (places, each), tuple(s.moved for s in own)
    return GroupedPlan(products, moved, turns, gather, scaled, lists, combine, placed=placed, like=like)


class _Sizes(NamedTuple):
    """The sizes that calls change: rows of the product and of a, places. `opened`: kernels take any of them."""

    rows: int
    given: int
    places: int
    opened: bool

    def extent(self, name: str) -> Any:
        """One of the sizes, as an extent of a kernel's array."""
        return dim_of(name, MOST_ROWS) if self.opened else getattr(self, name)


def _gather(a: Any, K: int, sizes: _Sizes, scale: tuple[int, ...] | None) -> Any:
    """The kernel that gathers rows of a, and of scales of this shape."""
    given = sizes.extent("given")
    shapes = ((given, K),) if scale is None else ((given, K), (given, int(math.prod(scale[1:]))))
    dtypes = (as_dtype(a.dtype), kd.float32)[: len(shapes)]
    return gather_kernel(sizes.extent("rows"), shapes, dtypes, scale is not None and len(scale) == 1)


def _weights(o: GroupedOptions) -> str:
    """The form of `weights`: "rows" with one weight a row, "scatter" with one a number in `scatter`, or ""."""
    return "" if o.weights is None else "scatter" if len(o.weights.shape) == 2 else "rows"


def _like(o: GroupedOptions, sizes: _Sizes) -> str:
    """`GroupedPlan.like`: the array that shows the number of places to kernels for any sizes; "" if there is none."""
    if not sizes.opened:
        return ""
    return "weights" if _weights(o) == "scatter" else "scatter" if sizes.places == sizes.rows else ""


def _adding(o: GroupedOptions, N: int, out_dtype: Any, groups: Any, sizes: _Sizes, each: int) -> tuple[Any, Any]:
    """(the kernel that lists the rows of each place, the kernel that adds them up)."""
    kind, places = _weights(o), sizes.extent("places")
    lists = list_kernel(groups, places, each, 2 if sizes.opened and kind == "scatter" else 1)
    return lists, combine_rows_kernel(sizes.extent("rows"), N, places, out_dtype, out_dtype, kind)


def _kind(
    p: Problem, own: list[Any], o: GroupedOptions, left: Any, right: Any, how: Any, groups: RowGroups, into: Any
) -> Any:
    """The kind of a call: all of it except its numbers of rows."""
    steps = tuple((x.steps, x.moved) for x in own)
    forms = tuple(None if x is None else len(x.shape) for x in (o.indices, o.scatter, o.weights))
    options = o.activation, o.gated, o.config, None if o.out_dtype is None else as_dtype(o.out_dtype)
    sides = tuple((x.dtype, x.along_k, x.tma, x.contiguous) for x in (left, right))
    return replace(p, M=0), steps, forms, options, sides, how, replace(groups, rows=0), into is None


def _products(
    p: Problem, own: list[Any], after: list[EpilogueStep], left: Any, right: Any, how: Any, groups: RowGroups,
    o: GroupedOptions, into: Any, target: Any, opened: bool,
) -> tuple[GroupedProduct, ...]:  # fmt: skip
    """The product, or the two products of a gated one."""

    def made(q: Problem) -> GroupedProduct | None:
        return grouped_product(q, left, right, how, groups, o.config, target, opened)

    if o.gated is None:
        found = made(stored(replace(p, steps=(*own[0].steps, *after)), into, False))
        assert found is not None
        return (found,)
    function = o.gated if callable(o.gated) else None
    gate = EpilogueStep("gate", function=function, word="" if function else str(o.gated))
    whole = replace(p, gate=gate, gated=(own[0].steps, own[1].steps), steps=tuple(after))
    found = made(stored(whole, into, False))
    if found is not None:
        return (found,)
    join = EpilogueStep("function", (("m", "n"),), Turned(function or gate_function(str(o.gated))))
    sums = p.wide if p.wide.is_float else kd.float32  # the steps made floats of integers
    first = made(stored(replace(p, out_dtype=sums, steps=own[0].steps), None, False))
    second = made(stored(replace(p, steps=(*own[1].steps, join, *after)), into, False))
    assert first is not None and second is not None
    return first, second
