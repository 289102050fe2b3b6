"""`kd.library.matmul`: the product of matrices as a plain function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.memory import ShapeDtypeStruct
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named
from kernel_dsl.tuning_file import when_tuned

from ..differentiable import host_of
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest, compiled_for
from ..product_routes.packings import laid
from ..product_routes.routes import goes_fast, sparse_goes_fast
from .arguments import request
from .checks import check_options, check_packed, check_pairs, check_sparse
from .complex_product import ComplexPlan, complex_plan, is_complex
from .derivatives import matmul as differentiable
from .int4 import PackedInt4, widened_dtype
from .matmul_config import MatmulConfig, check_counts, check_tiles
from .matmul_options import MatmulOptions
from .mxfp4 import check_packing
from .operands import (
    array_address,
    check_apart,
    element_strides,
    is_transposed,
    known_plan,
    out_refusal,
    signature,
    turned,
)
from .plan import MatmulPlan, plan_of
from .problem import Problem
from .sparse import SparseMatrix, check_stored

__all__ = [
    "MANY",
    "Matmul",
    "array_address",
    "check_apart",
    "check_counts",
    "check_tiles",
    "element_strides",
    "is_transposed",
    "known_plan",
    "matmul",
    "out_refusal",
    "signature",
]

MANY = 1024  # the most plans to keep


def check_packings(a: Any, b: Any, o: MatmulOptions) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for packed or sparse operands that the rest of a call excludes."""
    if isinstance(a, PackedInt4):
        hint = "numbers of 4 bits can only be b: multiply the transposed matrices"
        raise BadCallArgument(kernel="matmul", what=f"a is {of_kind(a)}", hint=hint)
    if isinstance(a, SparseMatrix):
        check_sparse(b, o)
        check_stored(a, "matmul")
    elif any(isinstance(x, SparseMatrix) for x in (b if isinstance(b, (tuple, list)) else (b,))):
        hint = "only a can be sparse: multiply the transposed matrices"
        raise BadCallArgument(kernel="matmul", what="b is a SparseMatrix", hint=hint)
    elif packed := packed_of(b):
        check_packed(a, b, o)
        for x in packed:
            check_packing(x, "matmul")


def packed_of(b: Any) -> tuple[PackedInt4, ...]:
    """The matrices of 4-bit numbers that b is, or has as a pair; empty if there are none."""
    found = tuple(cast("Sequence[Any]", b)) if isinstance(b, (tuple, list)) else (b,)
    return found if any(isinstance(x, PackedInt4) for x in found) else ()


def _converts(x: Any, extra: list[Any]) -> bool:
    """Whether the numbers among the operands become float64, like the product's sums."""
    return any(isinstance(n, float) for n in extra) and hasattr(x, "dtype") and as_dtype(x.dtype).name == "float64"


@partial(public, name="matmul")
class Matmul(Named):
    """`matmul(a, b)`: a (..., M, K) times b (..., K, N), in any strides, in float32, float64 or integer sums.

    Leading axes broadcast as in NumPy. Tensor cores multiply 16-bit floats, fp8 and 8-bit integers of any two kinds,
    float64, and float32 by `precision`. Lanes multiply all other dtypes with a common dtype, exactly. complex64 is
    multiplied only by complex64, as float32 is; it takes `scale`, `bias`, `c`, `residual` and `out_scale` of the
    following; added arrays are complex64 and have N contiguous columns.

    These steps are applied to the sums, in this order:

    - `a_scale`: a factor for all, or (M,) or (M, 1) for each row; `b_scale`: for all, or (N,) or (1, N) for each
      column; `scale`: a number or an array of one. Arrays are float32. Operands of 8 bits may also have a factor for
      each 128 of K: `a_scale` (M, ceil(K/128)), `b_scale` (ceil(K/128), ceil(N/128)) or (ceil(K/128), N). For 8 bits
      by 8 bits sums are float32 from one 128 to the next. Beside a wider float, or 4-bit numbers, the operand is
      multiplied by its factors before the product, and rounded once, to the dtype that it is widened to.
    - `bias`: (N,), added to each row; `c`: broadcast to the result and added.
    - `gated`: b is a pair of matrices (K, N), or one (K, 2 N) whose columns belong to the two matrices in turn, and
      the result is gate(a @ b[0]) * (a @ b[1]): "swiglu", "geglu" (with erf), "reglu", "glu", or a function of the
      two products. `bias` and `b_scale` are then pairs, or have columns in turn like b.
    - `epilogue(x, *operands)`: a function of traced values, which gets parts of the product and of its operands:
      numbers, or arrays that broadcast to the result. It uses operations of each element by itself.
    - `activation(x)`: a function of a traced value.
    - `dropout=(rate, seed)`: elements are zero at that rate, and the others divided by 1 - rate. Element i of the
      result is kept where bits 8 to 31 of word i % 4 of Philox-4x32-10 at counter i // 4, times 2**-24, are at
      least the rate.
    - `residual`: broadcast to the result and added.
    - `absmax=True`: the result is a pair; the second item is the greatest magnitude so far, float32 ().
    - `out_scale`: a number or an array of one, a factor.

    `out_dtype`: by default the inputs' common dtype; bfloat16 for fp8, for 16-bit floats with `a_scale` or `b_scale`,
    and for 8-bit integers that are scaled or gated; int32 for other 8-bit integers. b may be a `PackedInt4` or
    `PackedMxfp4`, or with `gated` a pair of such in one form, beside a of float16 or bfloat16: its numbers are widened
    in registers, rounded to the dtype of a. A `config` then has `tile_k=64`, or 128 if `group` is a multiple of that.
    An a of int8, uint8 or float8 is first widened to bfloat16, which holds it exactly. a may be a `SparseMatrix`: see
    `sparse_matmul`. `precision`: float32 products are exact by default; "tf32" rounds operands to tf32, "tf32x3"
    multiplies high and low parts of them in tf32, and an infinite element gives NaN. Hopper's tensor cores keep 14 bits
    of fp8 products, and errors grow with K; with "highest", sums are added in float32 after every 256 elements of K.
    `config`: a `MatmulConfig` for Hopper's fast kernel, in place of the chosen one. `out`, `stream`, `interpret`: as
    for kernels; `out` may be `c` or `residual`, and may be stored by columns. Operands that TMA and wgmma can't read
    are first copied to a workspace. Under autograd and JAX a, b, `bias`, `c`, `residual` and `operands` have gradients;
    factors are constants: to differentiate by them is an error, `jax.lax.stop_gradient(x)` or `x.detach()` prevents it.

    Raises `BadCallArgument` for wrong arrays, `BadCallValue` for shapes that don't fit, an `out` that is `a` or `b`,
    and a precision that the product can't have, and `NoCommonDType`. On Hopper wgmma (PTX ISA 9.7.15) and TMA
    (9.7.9.27) compute it, elsewhere mma.sync (9.7.14.5) or multiply-adds of lanes. Philox is that of Salmon et al.
    (2011).
    """

    _called = "library.matmul"

    def __init__(self) -> None:
        self._plans: dict[Any, MatmulPlan | ComplexPlan] = {}  # by the signature of calls
        self._latest = Latest()
        when_tuned(self._forget)

    def _forget(self) -> None:
        """Forget all plans."""
        self._plans.clear()
        self._latest.forget()

    @checks_itself("activation", "precision", "config", "epilogue", "gated", "dropout", "operands")
    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        out_dtype: Any = None,
        bias: Any = None,
        c: Any = None,
        activation: Callable[[Any], Any] | None = None,
        precision: str | None = None,
        scale: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        epilogue: Callable[..., Any] | None = None,
        operands: Sequence[Any] = (),
        gated: str | Callable[[Any, Any], Any] | None = None,
        dropout: tuple[float, int] | None = None,
        residual: Any = None,
        out_scale: Any = None,
        absmax: bool = False,
        config: MatmulConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        o = MatmulOptions(
            out_dtype, bias, c, activation, precision, scale, a_scale, b_scale, epilogue, operands, gated, dropout, residual,
            out_scale, absmax, config,
        )  # fmt: skip
        host = "" if absmax else host_of(a, b, bias, c, residual, operands, scale, a_scale, b_scale, out_scale)
        like = (
            o.like(b)
            if not host and dropout is None and interpret is None and not isinstance(a, SparseMatrix)
            else None
        )
        if like is not None:
            made = self._latest.call(like, [a, b, o], out, stream)
            if made is not UNSEEN:
                return made
        check_packings(a, b, o)
        if host:
            return differentiable(host, a, b, o, {"out": out, "stream": stream, "interpret": interpret})
        given = b
        if isinstance(a, SparseMatrix):
            if not sparse_goes_fast(a, b, o, target_named(None)):
                a = a.dense(stream=stream, interpret=interpret)
        elif (packed := packed_of(b)) and not all(goes_fast(a, x, target_named(None)) for x in packed):
            made = tuple(x.unpacked(widened_dtype(a.dtype), stream=stream, interpret=interpret) for x in packed)
            b = made[0] if gated is None else made
        plan, rights, extra = self._plan(a, b, o, None, out)
        if out is not None:
            result = out[0] if absmax else out
            for right in rights:
                check_apart(result, {"a": a, "b": right}, "matmul")
        converted = any(_converts(x, extra) for x in (a, *rights))
        if like is not None and b is given and isinstance(plan, MatmulPlan) and not converted:
            self._latest.keep(like, (a, b), plan.seen)
        return plan.run(a, rights, extra, out, stream, interpret)

    @checks_itself("activation", "precision", "config", "epilogue", "gated", "dropout", "operands", "target")
    @takes_dims("matmul", lambda given: {"a": (-1,), "b": (-1, -2), "bias": (-1,)})
    def lower(
        self,
        a: Any,
        b: Any,
        *,
        out_dtype: Any = None,
        bias: Any = None,
        c: Any = None,
        activation: Callable[[Any], Any] | None = None,
        precision: str | None = None,
        scale: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        epilogue: Callable[..., Any] | None = None,
        operands: Sequence[Any] = (),
        gated: str | Callable[[Any, Any], Any] | None = None,
        dropout: tuple[float, int] | None = None,
        residual: Any = None,
        out_scale: Any = None,
        absmax: bool = False,
        config: MatmulConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that multiplies in a call with such arguments. M and leading axes may be Dims: then
        those of a kernel for any M, of the sizes that are best for about 1024.
        """
        o = MatmulOptions(
            out_dtype, bias, c, activation, precision, scale, a_scale, b_scale, epilogue, operands, gated, dropout, residual,
            out_scale, absmax, config,
        )  # fmt: skip
        check_packings(a, b, o)
        if isinstance(a, SparseMatrix):
            if not sparse_goes_fast(a, b, o, target_named(target)):
                a = ShapeDtypeStruct(a.shape, a.dtype)
        elif (packed := packed_of(b)) and not all(goes_fast(a, x, target_named(target)) for x in packed):
            made = tuple(turned(ShapeDtypeStruct(x.shape[::-1], widened_dtype(a.dtype))) for x in packed)
            b = made[0] if gated is None else made
        plan, rights, extra = self._plan(a, b, o, target_named(target).name)
        return plan.lower(a, rights, extra, target)

    def specialisations(self) -> list[Any]:
        """The compiled kernels of this process for all called products: see `Kernel.specialisations`."""
        return compiled_for(self._plans.values())

    def with_sums(self, a: Any, b: Any, o: MatmulOptions, interpret: Any) -> tuple[Any, Any, Any]:
        """(a gated product, the two products that its gate joined, in the dtype of the result), for its gradient."""
        plan, rights, extra = self._plan(a, b, o, None, keeps=True)
        return plan.run(a, rights, extra, None, None, interpret)

    def describe(self, a: Any, b: Any, out_dtype: Any, bias: Any, c: Any) -> tuple[Problem, list[Any]]:
        """(the product of operands in their own order in memory, the arrays of its kernel)."""
        r = request(a, b, MatmulOptions(out_dtype=out_dtype, bias=bias, c=c), None)
        sides = [turned(x) if turn else x for x, turn in zip((a, b), r.turns, strict=True)]
        return laid(r.problem, (None, None), r.left, r.right), [*sides, *(x for x in (bias, c) if x is not None)]

    def _plan(
        self, a: Any, b: Any, o: MatmulOptions, target: str | None, out: Any = None, keeps: bool = False
    ) -> tuple[MatmulPlan | ComplexPlan, list[Any], list[Any]]:
        """(the plan of a call, its right sides, the operands of its steps)."""
        if o.gated is not None or isinstance(b, (tuple, list)) or isinstance(o.b_scale, (tuple, list)):
            check_pairs(b, o)
        if o.dropout is not None or not isinstance(o.operands, tuple) or o.operands or o.gated is not None:
            check_options(o)
        rights = o.rights(b)
        first, rest = o.items()
        extra = o.extra()
        if any(_converts(x, extra) for x in (a, *rights)):
            extra = [np.float64(x) if isinstance(x, float) else x for x in extra]
        given = [a, *rights, *extra]
        if out is not None:
            given += out if o.absmax and isinstance(out, (tuple, list)) else [out]
        described = tuple([signature(x, "matmul") for x in given])
        names = tuple([name for items in (*first, rest) for name, _ in items])
        options = {
            "activation": o.activation, "precision": o.precision, "config": o.config, "target": target,
            "epilogue": o.epilogue, "gated": o.gated,
        }  # fmt: skip
        key = (
            described,
            names,
            out is None,
            None if o.out_dtype is None else as_dtype(o.out_dtype),
            o.absmax,
            keeps,
            is_later(),
            *options.values(),
        )
        found = known_plan(self._plans, key, "matmul", options)
        if found is None:
            check_options(o)
            result = out[0] if o.absmax and out is not None else out
            if is_complex(a) or is_complex(b):
                found = complex_plan(self, a, b, o, names, extra, result)
            else:
                r = request(a, b, o, result)
                found = plan_of(replace(r, problem=replace(r.problem, keeps=True)) if keeps else r, o.config, target)
            if len(self._plans) >= MANY:
                self._plans.clear()
            self._plans[key] = found
        return found, rights, extra


matmul: Matmul = Matmul()
