"""`kd.library.grouped_matmul`: products of groups of rows as a plain function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.named import Named

from ..differentiable import host_of
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest, launching
from ..products.matmul import MANY, check_apart, known_plan, signature
from ..products.matmul_config import MatmulConfig
from .arguments import (
    NAME,
    GroupedOptions,
    check_numbers,
    check_pairs,
    check_rows,
    places_of,
)
from .derivatives import grouped_matmul as differentiable
from .plan import GroupedPlan, plan_of

__all__ = ["GroupedMatmul", "grouped_matmul"]


@partial(public, name=NAME)
class GroupedMatmul(Named):
    """`grouped_matmul(a, b, group_sizes)`: rows of a, group by group, times a matrix of each group: (rows, K), (G, K,
    N).

    The first `group_sizes[0]` rows are multiplied by b[0], the next `group_sizes[1]` by b[1], and so on: int32 (G,),
    read on the GPU; or `offsets`, int32 (G + 1,): group i has the rows from offsets[i] to offsets[i + 1]. Groups may be
    empty. Rows of no group are zero. One kernel serves all sizes. a and b have any strides and any dtypes that `matmul`
    takes, except complex64.

    - `indices`: int32, row i of the product is row indices[i] of a; the product has one row for each index.
    - `a_scale`: a factor for all, (rows of a,) or (rows of a, 1); for 8 bits by 8 bits also (rows of a,
      ceil(K/128)). `b_scale`: a factor for all, (G,), (G, N) or (G, 1, N); for 8 bits also (G, ceil(K/128),
      ceil(N/128)) or (G, ceil(K/128), N). Both are float32.
    - `bias`: (G, N), added to each row of a group.
    - `gated`: b is a pair, or has columns in turn, as in `matmul`; `bias` and `b_scale` are then pairs, or have columns
      in turn like b, except (G,), which both share.
    - `activation(x)`: a function of a traced value.
    - `weights`: float32 (rows,), a factor for each row of the product.
    - `scatter`: int32 (rows,): row i of the product is added to row scatter[i] of the result, which has as many
      rows as `out`, or as the product. With `weights` (places, each) the result has `places` rows; number s in
      `scatter` means row s // each, with the factor weights[s // each, s % each]. Each term is rounded to
      `out_dtype` once, and terms are added in float32, in the order of rows: the same bits each time. Numbers out
      of range are left out.

    `out_dtype`: as for `matmul`; bfloat16 for scaled or weighted bytes. `config`: a `MatmulConfig` without turns, for
    Hopper's fast kernel. `out`, `stream`, `interpret`: as for kernels.

    Raises `BadCallArgument` for wrong arrays; `BadCallValue` for shapes that don't fit, both or neither of
    `group_sizes` and `offsets`, and, if the host can read them, for sizes that are negative or more than the rows,
    offsets that decrease or exceed the rows, and impossible row numbers. On a GPU such sizes are clamped, and such rows
    are zeros. One kernel multiplies all groups, as in MegaBlocks (Gale et al., 2022), with the instructions of
    `matmul`.
    """

    _called = "library.grouped_matmul"

    def __init__(self) -> None:
        self._plans: dict[Any, GroupedPlan] = {}  # by the signature of calls
        self._latest = Latest()

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
        if host := host_of(a, b, bias, weights, a_scale, b_scale):
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
    @takes_dims(NAME, lambda _: {"a": (-1,), "b": (-1, -2, -3), "group_sizes": (0,), "offsets": (0,)})
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
        """The stages of the kernel that multiplies in a call with such arguments. Numbers of rows may be Dims."""
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
        key = (tuple([signature(x, NAME) for x in arrays]), names, dtype, *options.values(), is_later())
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
