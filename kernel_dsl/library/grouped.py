"""`kd.library.grouped_matmul`: products of groups of rows as a plain function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.stages import target_named

from .arguments import alike, mixed_forms, stored
from .differentiable import host_of
from .epilogue import gate_function
from .families import family
from .first_sizes import FirstSizes, dim_of
from .grouped_arguments import (
    NAME,
    GroupedOptions,
    check_groups,
    check_numbers,
    check_options,
    check_out,
    check_pairs,
    check_rows,
    check_sides,
    out_dtype_of_groups,
    places_of,
    refuse_shape,
    scaling,
)
from .grouped_derivatives import grouped_matmul as differentiable
from .grouped_routes import GroupedProduct, grouped_product
from .grouped_rows import combine_rows_kernel, gather_kernel, list_kernel, zeros_kernel
from .grouped_tiles import MOST_ROWS, RowGroups
from .latest import UNSEEN, Latest, Launch, Unseen, launching, seen_launching
from .matmul import MANY, check_apart, known_plan, signature
from .operands import operand, turned
from .persistent_matmul import MatmulConfig
from .problem import EpilogueStep, Problem

__all__ = ["GroupedMatmul", "grouped_matmul"]

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
    if target_name is not None or any_rows is None or places > MOST_ROWS or a.shape[0] > MOST_ROWS:
        any_rows = None
    else:
        kind = _kind(p, own, o, left, right, how, groups, into)
        any_rows = any_rows if _first.comes_again(kind, (rows, a.shape[0], places)) else None
    products = _products(p, own, after, left, right, how, groups, o, into, target, any_rows is not None)
    gather = lists = combine = None
    like = ""

    def extent(n: int, name: str) -> Any:
        return n if any_rows is None else dim_of(name, MOST_ROWS)

    if gathered:
        given = extent(a.shape[0], "given")
        shapes = [(given, K), *([(given, int(math.prod(scale[1:])))] if scaled else [])]
        dtypes = (as_dtype(a.dtype), kd.float32)[: len(shapes)]
        gather = gather_kernel(extent(rows, "rows"), tuple(shapes), dtypes, scaled and len(scale) == 1)
    if o.scatter is not None:
        kind = "" if o.weights is None else "scatter" if len(o.weights.shape) == 2 else "rows"
        if any_rows is not None:
            like = "weights" if kind == "scatter" else "scatter" if places == rows else ""
        if like:
            lists = list_kernel(any_rows, extent(places, "places"), each, 2 if kind == "scatter" else 1)
            combine = combine_rows_kernel(extent(rows, "rows"), N, extent(places, "places"), out_dtype, out_dtype, kind)
        else:
            lists = list_kernel(groups, places, each)
            combine = combine_rows_kernel(rows, N, places, out_dtype, out_dtype, kind)
    turns = (not left.along_k, right.along_k)
    placed, moved = None if o.scatter is None else (places, each), tuple(s.moved for s in own)
    return GroupedPlan(products, moved, turns, gather, scaled, lists, combine, placed=placed, like=like)


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


@partial(public, name=NAME)
class GroupedMatmul:
    """`grouped_matmul(a, b, group_sizes)`: rows of a, group by group, times a matrix of each group: (rows, K), (G, K, N).

    The first `group_sizes[0]` rows are multiplied by b[0], the next `group_sizes[1]` by b[1], and so on: int32 (G,),
    read on the GPU; or `offsets`, int32 (G + 1,): group i has the rows from offsets[i] to offsets[i + 1]. Groups may be
    empty. Rows of no group are zero. One kernel serves all sizes. a and b have any strides and any dtypes that `matmul`
    takes, except complex64.

    - `indices`: int32, row i of the product is row indices[i] of a; the product has one row for each index.
    - `a_scale`: a factor for all, (rows of a,) or (rows of a, 1); for 8 bits by 8 bits also (rows of a,
      ceil(K/128)). `b_scale`: a factor for all, (G,), (G, N) or (G, 1, N); for 8 bits also (G, ceil(K/128),
      ceil(N/128)) or (G, ceil(K/128), N). Both are float32.
    - `bias`: (G, N), added to each row of a group.
    - `gated`: b is a pair, or has columns in turn, as of `matmul`; `bias` and `b_scale` are then pairs, or have
      columns in turn like b, except (G,), which both share.
    - `activation(x)`: a function of a traced value.
    - `weights`: float32 (rows,), a factor for each row of the product.
    - `scatter`: int32 (rows,): row i of the product is added to row scatter[i] of the result, which has as many
      rows as `out`, or as the product. With `weights` (places, each) the result has `places` rows; number s in
      `scatter` means row s // each, with the factor weights[s // each, s % each]. Each term is rounded to
      `out_dtype` once, and terms are added in float32, in the order of rows: the same bits each time. Numbers out
      of range are left out.

    `out_dtype`: as for `matmul`; bfloat16 for scaled or weighted bytes. `config`: a `MatmulConfig` without clusters and
    turns, for Hopper's fast kernel. `out`, `stream`, `interpret`: as for kernels.

    Raises `BadCallArgument` for wrong arrays; `BadCallValue` for shapes that don't fit, both or neither of
    `group_sizes` and `offsets`, and, if the host can read them, for sizes that are negative or more than the rows,
    offsets that decrease or exceed the rows, and impossible row numbers. On a GPU such sizes are clamped, and such rows
    are zeros. One kernel multiplies all groups, as in MegaBlocks (Gale et al., 2022), with the instructions of
    `matmul`.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, GroupedPlan] = {}  # by the signature of calls
        self._latest = Latest()

    def __repr__(self) -> str:
        return "<kd.library.grouped_matmul>"

    @checks_itself("activation", "gated", "config")
    def __call__(
        self,
        a: Any,
        b: Any,
        group_sizes: Any = None,
        *,
        offsets: Any = None,
        indices: Any = None,
        scatter: Any = None,
        weights: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        bias: Any = None,
        activation: Callable[[Any], Any] | None = None,
        gated: str | Callable[[Any, Any], Any] | None = None,
        out_dtype: Any = None,
        config: MatmulConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        o = GroupedOptions(
            group_sizes,
            offsets,
            indices,
            scatter,
            weights,
            a_scale,
            b_scale,
            bias,
            activation,
            gated,
            out_dtype,
            config,
        )
        if host := host_of(a, b, bias, weights):
            check_pairs(b, o)
            return differentiable(host, a, b, o, {"out": out, "stream": stream, "interpret": interpret})
        like = o.like(b) if interpret is None else ()
        if like:
            made = self._latest.call(like, [a, b, o], out, stream)
            if made is not UNSEEN:
                return made
        plan, rights = self._plan(a, b, o, out, None)
        if out is not None:
            check_apart(out, {"a": a, "b": rights[0], "the second part of b": rights[-1]}, NAME)
        if like and plan.zeros is None:
            self._latest.keep(like, (a, b), plan.seen)
        return plan.run(a, rights, o, out, launching(stream, interpret))

    @checks_itself("activation", "gated", "config", "target")
    def lower(
        self,
        a: Any,
        b: Any,
        group_sizes: Any = None,
        *,
        offsets: Any = None,
        indices: Any = None,
        scatter: Any = None,
        weights: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        bias: Any = None,
        activation: Callable[[Any], Any] | None = None,
        gated: str | Callable[[Any, Any], Any] | None = None,
        out_dtype: Any = None,
        config: MatmulConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that multiplies in a call with such arguments."""
        o = GroupedOptions(
            group_sizes,
            offsets,
            indices,
            scatter,
            weights,
            a_scale,
            b_scale,
            bias,
            activation,
            gated,
            out_dtype,
            config,
        )
        plan, rights = self._plan(a, b, o, None, target)
        return plan.lower(a, rights, o, target)

    def _plan(self, a: Any, b: Any, o: GroupedOptions, out: Any, target: str | None) -> tuple[GroupedPlan, list[Any]]:
        if o.gated is not None or any(isinstance(x, (tuple, list)) for x in (b, o.b_scale, o.bias)):
            check_pairs(b, o)
        rights = o.rights(b)
        own = [o.own(i) for i in range(len(rights))]
        arrays = (a, *rights, *o[:5], *(x for items in own for _, x in items), out)
        names = tuple(name for name, _ in own[0])
        options = {"activation": o.activation, "gated": o.gated, "config": o.config, "target": target}
        dtype = None if o.out_dtype is None else as_dtype(o.out_dtype)
        key = (tuple([signature(x, NAME) for x in arrays]), names, dtype, *options.values())
        found = known_plan(self._plans, key, NAME, options)
        if found is None:
            found = plan_of(a, rights, o, out, target)
            if len(self._plans) >= MANY:
                self._plans.clear()
            self._plans[key] = found
        rows = a.shape[0] if o.indices is None else o.indices.shape[0]
        check_rows(o, rows)
        if o.indices is not None:
            check_numbers(o.indices, "indices", a.shape[0])
        if o.scatter is not None:
            places, each = places_of(o, rows, out)
            check_numbers(o.scatter, "scatter", places * each)
        return found, rights


grouped_matmul: GroupedMatmul = GroupedMatmul()
