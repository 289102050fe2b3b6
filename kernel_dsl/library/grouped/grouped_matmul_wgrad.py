"""`kd.library.grouped_matmul_wgrad`: the gradients of grouped weights as a plain function."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import LibraryDType
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named

from ..first_sizes import FirstSizes, is_closed, is_later, takes_dims
from ..latest import UNSEEN, Latest, seen_launching
from ..product_routes.families import family
from ..products.arguments import stored
from ..products.matmul import MANY, check_apart, known_plan, signature
from ..products.matmul_config import MatmulConfig
from ..products.operands import operand, turned
from ..products.problem import Problem
from .arguments import WGRAD, check_array, check_config, check_groups, check_out, check_rows, refuse_shape
from .routes import wgrad_product
from .tiles import RowGroups

__all__ = ["GroupedMatmulWgrad", "grouped_matmul_wgrad"]

_first = FirstSizes()


class WgradOptions:
    """The sizes or offsets of a call."""

    def __init__(self, group_sizes: Any, offsets: Any) -> None:
        self.group_sizes: Any = group_sizes
        self.offsets: Any = offsets
        self.given: Any = offsets if group_sizes is None else group_sizes


@partial(public, name=WGRAD)
class GroupedMatmulWgrad(Named):
    """`grouped_matmul_wgrad(a, dout, group_sizes)`: for each group a.T @ dout over its rows; (rows, K), (rows, N) to (G, K, N).

    It is the gradient of b in `grouped_matmul(a, b, group_sizes)`. Sizes, int32 (G,), and `offsets`, int32 (G + 1,),
    are those of `grouped_matmul`; a group without rows gives zeros. `out_dtype`: by default float32, float64 if an
    operand is float64, int32 for bytes. a and dout have any strides and any dtypes that `dot` multiplies. `config`: a
    `MatmulConfig` without clusters and turns, for Hopper's fast kernel. `out`, `stream`, `interpret`: as for kernels.
    Raises the errors of `grouped_matmul`. The instructions are those of `matmul`.
    """

    _called = "library.grouped_matmul_wgrad"

    def __init__(self) -> None:
        self._plans: dict[Any, tuple[Any, bool]] = {}
        self._latest = Latest()

    @checks_itself("config")
    def __call__(
        self,
        a: Any,
        dout: Any,
        group_sizes: Any = None,
        *,
        offsets: Any = None,
        out_dtype: Any = None,
        config: MatmulConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        if out is not None:
            check_apart(out, {"a": a, "dout": dout}, WGRAD)
        like = group_sizes is None, offsets is None, out_dtype, config
        if interpret is None:
            made = self._latest.call(like, [a, dout, group_sizes if offsets is None else offsets], out, stream)
            if made is not UNSEEN:
                return made
        (kernel, as_they_lie), o = self._plan(a, dout, group_sizes, offsets, out_dtype, config, out, None)
        sides = self._sides(a, dout) if as_they_lie else (a, dout)
        turns = tuple(x is not y for x, y in zip(sides, (a, dout), strict=True))
        self._latest.keep(like, (a, dout), partial(self._seen, kernel, turns))
        return kernel(*sides, o.given, out=out, stream=stream, interpret=interpret)

    @checks_itself("config", "target")
    @takes_dims(WGRAD, lambda _: {"a": (-1,), "dout": (-1,), "group_sizes": (0,), "offsets": (0,)})
    def lower(
        self,
        a: Any,
        dout: Any,
        group_sizes: Any = None,
        *,
        offsets: Any = None,
        out_dtype: Any = None,
        config: MatmulConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel in a call with such arguments. The number of rows may be a Dim."""
        (kernel, as_they_lie), o = self._plan(a, dout, group_sizes, offsets, out_dtype, config, None, target)
        return kernel.lower(*(self._sides(a, dout) if as_they_lie else (a, dout)), o.given, target=target)

    @staticmethod
    def _seen(kernel: Any, turns: tuple[bool, ...], inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result for a, dout and sizes like an earlier call's on a GPU; raises `Unseen` for others."""
        a, dout, given = inputs
        args = turned(a) if turns[0] else a, turned(dout) if turns[1] else dout, given
        return seen_launching(stream)(kernel, args, out)

    @staticmethod
    def _sides(a: Any, dout: Any) -> tuple[Any, Any]:
        """The operands, each with its last axes in the order of memory."""
        left, right = operand(a, rows_last=True), operand(dout, rows_last=True)
        return turned(a) if left.along_k else a, turned(dout) if right.along_k else dout

    def _plan(
        self,
        a: Any,
        dout: Any,
        group_sizes: Any,
        offsets: Any,
        out_dtype: Any,
        config: Any,
        out: Any,
        target: str | None,
    ) -> tuple[tuple[Any, bool], WgradOptions]:
        o = WgradOptions(group_sizes, offsets)
        dtype = None if out_dtype is None else as_dtype(out_dtype)
        options = {"config": config, "target": target}
        key = (
            tuple([signature(x, WGRAD) for x in (a, dout, group_sizes, offsets, out)]),
            dtype,
            *options.values(),
            is_later(),
        )
        found = known_plan(self._plans, key, WGRAD, options)
        if found is None:
            found = self._made(a, dout, o, dtype, config, out, target)
            if len(self._plans) >= MANY:
                self._plans.clear()
            self._plans[key] = found
        check_rows(o, a.shape[0], WGRAD)
        return found, o

    @staticmethod
    def _made(
        a: Any, dout: Any, o: WgradOptions, dtype: Any, config: Any, out: Any, target: str | None
    ) -> tuple[Any, bool]:
        check_config(config, WGRAD)
        check_array(a, "a", 2, "a is (rows, K)", kernel=WGRAD)
        check_array(dout, "dout", 2, "dout is (rows, N)", kernel=WGRAD)
        (rows, K), N = a.shape, dout.shape[1]
        if dout.shape[0] != rows:
            what = f"a is {tuple(a.shape)} and dout is {tuple(dout.shape)}"
            raise refuse_shape(what, "they need the same rows", WGRAD)
        groups = RowGroups(check_groups(o, None, rows, WGRAD), rows, o.group_sizes is None)
        left, right = operand(a, rows_last=True), operand(dout, rows_last=True)
        how = family(left.dtype, right.dtype, None)
        p = Problem(
            K, N, rows, how.a, how.b, kd.float32, a_transposed=not left.along_k, b_transposed=right.along_k,
            batch=(groups.count,),
        )  # fmt: skip
        sums = p.accumulator
        if dtype is not None and dtype.name.startswith("complex"):
            raise LibraryDType(kernel=WGRAD, what=f"out_dtype is {dtype}", hint="groups are of real numbers")
        p = replace(p, out_dtype=dtype or sums)
        check_out(out, (groups.count, K, N), p.out_dtype, WGRAD)
        p = replace(stored(p, out, False), batch=())
        same = left.dtype == right.dtype == how.a
        q = p if same else replace(p, dtype=how.a, b_dtype=how.b)
        if not same:
            left = replace(left, tma=False)  # widened in registers
        kind = replace(q, K=0), replace(groups, rows=0), left.tma, right.tma, config
        opened = not is_closed(target) and _first.comes_again(kind, rows)
        return wgrad_product(q, left, right, groups, config, target_named(target), opened)


grouped_matmul_wgrad: GroupedMatmulWgrad = GroupedMatmulWgrad()
