"""Products of complex64, as one real product of twice the depth and twice the columns.

The pairs (re, im) of a along K, times [[re, im], [-im, re]] for each element of b, give the pairs (re, im) of the
result along N. So a and the result are viewed as float32, and a kernel copies b into this form. A product of complex
numbers is then exactly four real products.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, LibraryDType, LibraryShape
from kernel_dsl.kernel import identified

from ..blocks import spread
from ..first_sizes import FirstSizes, is_open
from .checks import check_array, refuse, shapes_together
from .operands import element_strides, is_transposed, turned

TILE_M, TILE_N = 16, 64
VECTOR = 4  # floats that are stored together
MOST = 2**24  # the greatest extent of a kernel for any sizes
_first = FirstSizes()
LIKE_RESULT = ("bias", "c", "residual")  # operands that are viewed as float32, like the result
TAKEN = (*LIKE_RESULT, "scale", "out_scale")


def is_complex(x: Any) -> bool:
    """Whether an argument is an array of complex64."""
    return hasattr(x, "dtype") and isinstance(getattr(x, "shape", None), tuple) and as_dtype(x.dtype) == kd.complex64


def pairs(x: Any) -> Any:
    """An array of complex64 as float32 (..., 2), the same memory."""
    if isinstance(x, kd.ShapeDtypeStruct):
        return kd.ShapeDtypeStruct((*x.shape, 2), kd.float32)
    if callable(getattr(x, "stride", None)):
        return sys.modules["torch"].view_as_real(x.resolve_conj())  # the caller has imported torch: x is a tensor
    return x[..., None].view(np.float32)


def along(x: Any) -> Any:
    """An array of complex64 as float32, with real and imaginary parts alternating along its last axis.

    None if memory has another order.
    """
    strides, shape = element_strides(x), (*x.shape[:-1], 2 * x.shape[-1])
    gapless = strides is None or strides[-1] == 1 or x.shape[-1] == 1 or 0 in x.shape
    if isinstance(x, kd.ShapeDtypeStruct):
        return kd.ShapeDtypeStruct(shape, kd.float32)
    return pairs(x).reshape(shape) if gapless else None


def parts_kernel(batch: tuple[int, ...], rows: int, columns: int, form: str) -> Any:
    """The kernel that copies pairs (*batch, rows, columns, 2) into another order; from the second size on one for all sizes."""
    outer = {f"batch_{axis}": (n, 1) for axis, n in enumerate(batch)}
    unit = VECTOR if columns % VECTOR == 0 else 1
    sizes = _first.sizes((form, len(batch)), MOST, **outer, rows=(rows, 1), columns=(columns, unit))
    return _parts_kernel(tuple(sizes[:-2]), *sizes[-2:], form)


@cache
def _parts_kernel(batch: tuple[Any, ...], rows: Any, columns: Any, form: str) -> Any:
    """The kernel of these sizes, of which Dims are each call's own.

    `form` "left": (*batch, rows, 2, columns), real parts of a row, then imaginary ones. "right": (*batch, rows, 2,
    columns, 2), a matrix of two by two for each element; "turned": the same for the transposed operand. "copy":
    unchanged pairs, into a result of any strides.
    """
    shape = {"left": (rows, 2, columns), "copy": (rows, columns, 2)}.get(form, (rows, 2, columns, 2))
    opened = is_open(*batch, rows, columns)

    def tiles_of(*batch: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
        return (*batch, kd.cdiv(rows, TILE_M), kd.cdiv(columns, TILE_N))

    def body(source: Any, out: Any) -> None:
        if not opened and 0 in out.shape:
            return
        *outer, height, width, _ = source.shape
        *index, m, n = spread(kd.program_id(0), tiles_of(*outer, rows=height, columns=width))
        m, n = kd.ds(m * TILE_M, TILE_M), kd.ds(n * TILE_N, TILE_N)
        re, im = (source[(*index, m, n, part)] for part in (0, 1))
        if form in ("left", "copy"):
            for part, x in enumerate((re, im)):
                out[(*index, m, part, n) if form == "left" else (*index, m, n, part)] = x
            return
        lower, upper = (im, -im) if form == "turned" else (-im, im)
        for row, column, x in ((0, 0, re), (0, 1, upper), (1, 0, lower), (1, 1, re)):
            out[(*index, m, row, n, column)] = x

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((*batch, *shape), kd.float32),
        shapes={0: (*batch, rows, columns, 2)} if opened else None,
        grid=(prod(tiles_of(*batch, rows=rows, columns=columns)) if opened or 0 not in (*batch, rows, columns) else 1,),
        name="matmul_complex",
    )
    return identified(made, batch, rows, columns, form)


@dataclass(frozen=True)
class ComplexPlan:
    """A product of complex64 as a call of the real `multiply`. `names`: the names of the steps' operands."""

    multiply: Any
    names: tuple[str, ...]
    precision: str | None

    def run(self, a: Any, rights: list[Any], extra: list[Any], out: Any, stream: Any, interpret: Any) -> Any:
        """Launch the kernels."""
        how = {"stream": stream, "interpret": interpret}
        (b,) = rights
        if hasattr(out, "is_conj") and out.is_conj():
            raise refuse("out is lazily conjugated", "pass the tensor itself, and conjugate it afterwards")
        into = None if out is None else along(out)
        left, right = self._left(a, how), self._right(b, how)
        made = self.multiply(left, right, precision=self.precision, out=into, **self.steps(extra), **how)
        if out is not None and into is None:
            batch, rows, columns = tuple(out.shape[:-2]), *out.shape[-2:]
            made = made.reshape((*batch, rows, columns, 2))
            parts_kernel(batch, rows, columns, "copy")(made, out=pairs(out), **how)
        if out is not None:
            return out
        if hasattr(made, "view_as"):
            return sys.modules["torch"].view_as_complex(made.reshape(*made.shape[:-1], -1, 2))
        return made.view(np.complex64)

    def steps(self, extra: list[Any]) -> dict[str, Any]:
        """The options of the real product."""
        named = dict(zip(self.names, extra, strict=True))
        return {name: along(x) if name in LIKE_RESULT else x for name, x in named.items()}

    def lower(self, a: Any, rights: list[Any], extra: list[Any], target: str | None) -> Any:
        """The stages of the kernel that multiplies."""
        (b,) = rights
        left = kd.ShapeDtypeStruct((*a.shape[:-1], 2 * a.shape[-1]), kd.float32)
        right = kd.ShapeDtypeStruct((*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1]), kd.float32)
        return self.multiply.lower(left, right, precision=self.precision, target=target, **self.steps(extra))

    def _left(self, a: Any, how: dict[str, Any]) -> Any:
        found = along(a)
        if found is not None:
            return found
        batch, columns, rows = tuple(a.shape[:-2]), *a.shape[-2:]
        made = parts_kernel(batch, rows, columns, "left")(pairs(turned(a)), **how)
        return turned(made.reshape((*batch, 2 * rows, columns)))

    def _right(self, b: Any, how: dict[str, Any]) -> Any:
        turn = is_transposed(b)
        lying = turned(b) if turn else b
        batch, rows, columns = tuple(lying.shape[:-2]), *lying.shape[-2:]
        made = parts_kernel(batch, rows, columns, "turned" if turn else "right")(pairs(lying), **how)
        made = made.reshape((*batch, 2 * rows, 2 * columns))
        return turned(made) if turn else made


def complex_plan(
    multiply: Any, a: Any, b: Any, o: Any, names: tuple[str, ...], extra: list[Any], out: Any
) -> ComplexPlan:
    """The plan of a product of complex64.

    Raises `BadCallArgument`, `BadCallValue` for options that such a product can't have.
    """
    for name, x in (("a", a), ("b", b)):
        if not is_complex(x):
            what = f"{name} is {as_dtype(x.dtype)}" if hasattr(x, "dtype") else f"{name} is {of_kind(x)}"
            raise BadCallArgument(kernel="matmul", what=what, hint="the other operand is complex64, so both must be")
        check_array(x, name, "a is (..., M, K) and b is (..., K, N)", real=False)
    if out is not None and not is_leaf(out):
        raise BadCallArgument(kernel="matmul", what=f"out is {of_kind(out)}", hint="pass a complex64 array")
    shape = (*shapes_together(tuple(a.shape), tuple(b.shape)), a.shape[-2], b.shape[-1])
    for name, value in (("out_dtype", o.out_dtype and as_dtype(o.out_dtype)), ("out", out)):
        dtype = as_dtype(value.dtype) if name == "out" and value is not None else value
        if dtype not in (None, kd.complex64):
            raise LibraryDType(
                kernel="matmul", what=f"{name} is {dtype}", hint="a product of complex64 is complex64: leave it out"
            )
    if out is not None and tuple(out.shape) != shape:
        raise LibraryShape(kernel="matmul", what=f"out is {tuple(out.shape)}", hint=f"its shape is {shape}")
    asked = {name for name in ("activation", "epilogue", "gated", "dropout", "config") if getattr(o, name) is not None}
    asked |= {"absmax"} if o.absmax else set()
    refused = sorted({*asked, *names} - {*TAKEN})
    if refused:
        hint = f"a product of complex64 takes {', '.join(sorted(TAKEN))}"
        raise BadCallArgument(kernel="matmul", what=f"{refused[0]} for complex64", hint=hint)
    for name, x in zip(names, extra, strict=True):
        if name not in LIKE_RESULT:
            continue
        if not is_complex(x):
            raise BadCallArgument(
                kernel="matmul", what=f"{name} is no array of complex64", hint="convert it: it is added to complex64"
            )
        if not x.shape or x.shape[-1] != shape[-1] or along(x) is None:
            raise refuse(f"{name} is {tuple(x.shape)}", f"for complex64 it has {shape[-1]} contiguous columns")
    return ComplexPlan(multiply, names, o.precision)
