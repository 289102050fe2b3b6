"""`kd.library.rms_norm` and `kd.library.layer_norm`: norms of rows, with their gradients.

A block holds a row in registers. It reads longer rows in parts, once for each sum and once for the result. Backward,
blocks that stay add their rows' terms of the parameters' gradients in float32, and a small kernel adds the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from numbers import Real
from typing import Any, cast

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype

from .differentiable import Derivative, check_plain, host_of
from .refusals import Refusals

DTYPES = (kd.float16, kd.bfloat16, kd.float32)
WIDTH = 4096  # columns that a block holds at a time
BLOCKS = 264  # of a backward pass: two for each multiprocessor of an H200
MOST = 2**31 - 1 - BLOCKS  # rows that an int32 counts
f32, Spec = kd.float32, kd.ShapeDtypeStruct


def row_of(number: Any, ref: Any, own: int) -> tuple[Any, ...]:
    """The indices of a row, in a body, from its number. `own`: how many of the last axes of `ref` belong to a row.

    The first extent is not read, so that one compile serves them all.
    """
    index: list[Any] = []
    for axis in range(ref.ndim - own - 1, 0, -1):
        index.append(kd.rem(number, ref.shape[axis]))
        number = kd.div(number, ref.shape[axis])
    return (*([number] if ref.ndim > own else []), *reversed(index))


@dataclass
class _Row:
    """The row at `at` of arrays with `columns` columns, in a body."""

    at: tuple[Any, ...]
    columns: int
    _read: dict[int, Any] = field(default_factory=dict[int, Any])

    @property
    def whole(self) -> bool:
        """Whether the row is one part, which stays in registers."""
        return self.columns <= WIDTH

    def each(self, body: Callable[[Any, Any], Any], carry: Any = 0.0) -> Any:
        """`carry = body(where, carry)` for each part."""
        if self.whole:
            return body(kd.ds(0, self.columns), carry)
        count = kd.cdiv(self.columns, WIDTH)
        return kd.fori_loop(0, count, lambda i, c: body(kd.ds(i * WIDTH, WIDTH), c), carry)

    def sum(self, part: Callable[[Any], Any]) -> Any:
        """The mean over the row's columns of `part(where)`."""
        zero = 0.0 if self.whole else kd.full((), 0, f32)
        return self.each(lambda where, total: total + kd.sum(part(where)), zero) * (1 / self.columns)

    def read(self, ref: Any, where: Any, at: tuple[Any, ...] | None = None) -> Any:
        """A part in float32, 0 past the row's end."""
        place = (*(self.at if at is None else at), where)
        if not self.whole:
            return kd.load(ref, place).astype(f32)
        if id(ref) not in self._read:
            self._read[id(ref)] = ref[place].astype(f32)
        return self._read[id(ref)]

    def centred(self, value: Any, mean: Any, where: Any) -> Any:
        """value - mean, 0 past the row's end."""
        if self.whole:
            return value - mean
        return kd.where(kd.iota(kd.int32, WIDTH) < self.columns - where.start, value - mean, 0.0)


@dataclass(frozen=True)
class Norm:
    """A norm: `centred` subtracts the mean and adds a bias."""

    name: str
    centred: bool
    eps: float

    def moments(self, row: _Row, x: Any) -> tuple[Callable[[Any], Any], Any]:
        """A row's values without their mean, part by part, and the reciprocal of its deviation."""
        mean = row.sum(lambda where: row.read(x, where)) if self.centred else None

        def value(where: Any) -> Any:
            found = row.read(x, where)
            return found if mean is None else row.centred(found, mean, where)

        return value, kd.rsqrt(row.sum(lambda where: value(where) * value(where)) + self.eps)

    def write(self, x: Any, parameters: Sequence[Any], out: Any) -> None:
        """The body of the forward pass."""
        row = _Row(row_of(kd.program_id(0), x, 1), x.shape[-1])
        value, scale = self.moments(row, x)

        def write(where: Any, carry: Any) -> Any:
            made = value(where) * scale * row.read(parameters[0], where, ())
            if self.centred:
                made = made + row.read(parameters[1], where, ())
            out[(*row.at, where)] = made.astype(out.dtype)
            return carry

        row.each(write)

    def write_gradients(self, x: Any, weight: Any, dy: Any, dx: Any, sums: Sequence[Any]) -> None:
        """The body of the backward pass of x (rows, columns): dx, and each block's sums for the parameters."""
        columns, block, blocks = x.shape[-1], kd.program_id(0), sums[0].shape[0]

        def one(number: Any, totals: Any) -> Any:
            row = _Row((number,), columns)
            value, scale = self.moments(row, x)

            def wanted(where: Any) -> Any:
                return row.read(dy, where) * row.read(weight, where, ())

            along = row.sum(lambda where: wanted(where) * value(where)) * scale
            across = row.sum(wanted) if self.centred else 0.0

            def terms(where: Any) -> list[Any]:
                g = row.read(dy, where)
                return [g * value(where) * scale, *([g] if self.centred else [])]

            def write(where: Any, carry: Any) -> Any:
                found = (wanted(where) - value(where) * scale * along - across) * scale
                dx[(*row.at, where)] = found.astype(dx.dtype)
                if not row.whole:
                    for total, term in zip(sums, terms(where), strict=True):
                        total[block, where] = total[block, where] + term
                return carry

            row.each(write)
            return tuple(a + b for a, b in zip(totals, terms(kd.ds(0, columns)), strict=True)) if totals else ()

        held, count = columns <= WIDTH, x.shape[0]
        steps = kd.div(count - block + blocks - 1, blocks)
        if not held:
            kd.fori_loop(0, steps, lambda i, carry: (one(block + i * blocks, ()), carry)[1], kd.full((), 0, kd.int32))
            return
        zeros = tuple(kd.zeros((columns,), f32) for _ in sums)
        for total, found in zip(
            sums, kd.fori_loop(0, steps, lambda i, t: one(block + i * blocks, t), zeros), strict=True
        ):
            total[block] = found


def rows_of(x: Any, own: int) -> int:
    """The number of rows of an input, whose last `own` axes belong to a row. One axis stays what it is: any size."""
    before = x.shape[: len(x.shape) - own]
    return before[0] if len(before) == 1 else prod(before)


def any_rows(*own: int, names: Sequence[str]) -> dict[str, Any]:
    """`shapes=` of a kernel whose parameters `names` have any number of rows, and `own` axes after these."""
    rows = kd.Dim("rows", min=0, max=MOST)
    return {name: (rows, *[None] * count) for name, count in zip(names, own, strict=True)}


@cache
def norm_kernel(norm: Norm, flat: bool = True) -> Any:
    """The kernel `(x, weight[, bias]) -> y`. `flat`: x is (rows, columns), and one compile serves any number of rows."""
    how: dict[str, Any] = {
        "out_type": lambda x, *_: Spec(x.shape, x.dtype),
        "grid": lambda x, *_: (rows_of(x, 1),),
        "shapes": any_rows(1, 1, names=("x", "out")) if flat else None,
    }
    if norm.centred:
        return kd.kernel(lambda x, weight, bias, out: norm.write(x, (weight, bias), out), name="layer_norm", **how)
    return kd.kernel(lambda x, weight, out: norm.write(x, (weight,), out), name="rms_norm", **how)


def _run(norm: Norm, arrays: Sequence[Any], how: dict[str, Any]) -> Any:
    x, *parameters = arrays
    shape = tuple(x.shape)
    if len(shape) == 2 or how["out"] is not None:  # whose other views may be copies
        return norm_kernel(norm, len(shape) == 2)(*arrays, **how)
    return norm_kernel(norm)(x.reshape(-1, shape[-1]), *parameters, **how).reshape(shape)


@cache
def gradients_kernel(norm: Norm) -> Any:
    """The kernel `(x, weight, dy) -> (dx, sums for the weight[, sums for the bias])` for x and dy (any rows, columns).

    Sums are (BLOCKS, columns).
    """

    def shapes(x: Any, *_: Any) -> tuple[Any, ...]:
        columns = x.shape[-1]
        sums = Spec((BLOCKS, columns), f32, **({} if columns <= WIDTH else {"init": 0}))
        return (Spec(x.shape, x.dtype), *[sums] * (1 + norm.centred))

    def centred(x: Any, weight: Any, dy: Any, dx: Any, dw: Any, db: Any) -> None:
        norm.write_gradients(x, weight, dy, dx, (dw, db))

    def plain(x: Any, weight: Any, dy: Any, dx: Any, dw: Any) -> None:
        norm.write_gradients(x, weight, dy, dx, (dw,))

    given = any_rows(1, 1, 1, names=("x", "dy", "dx"))
    how: dict[str, Any] = {"out_type": shapes, "grid": (BLOCKS,), "shapes": given}
    if norm.centred:
        return kd.kernel(centred, name="layer_norm_gradients", **how)
    return kd.kernel(plain, name="rms_norm_gradients", **how)


@cache
def column_sums(dtype: Any) -> Any:
    """The kernel `(rows, columns) -> (columns,)` of the sums down each column, in order, as `dtype`."""

    @kd.kernel(
        out_type=lambda x: Spec(x.shape[1:], dtype), grid=lambda x: (kd.cdiv(x.shape[1], 32),), name="column_sums"
    )
    def sums(x: Any, out: Any) -> None:
        across = kd.ds(kd.program_id(0) * 32, 32)
        out[across] = kd.sum(x[:, across], axis=0).astype(dtype)

    return sums


def _differentiable(host: str, norm: Norm, arrays: Sequence[Any], how: dict[str, Any]) -> Any:
    check_plain(norm.name, how)
    interpret = how["interpret"]

    def backward(gradient: Any, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        x, weight = given[:2]
        rows = x.reshape(-1, x.shape[-1]), weight, gradient.reshape(-1, x.shape[-1])
        dx, *sums = gradients_kernel(norm)(*rows, interpret=interpret)
        pairs = zip(sums, given[1:], strict=True)
        return [dx.reshape(x.shape), *(column_sums(as_dtype(p.dtype))(s, interpret=interpret) for s, p in pairs)]

    return Derivative(
        norm.name,
        (norm.eps, interpret),
        lambda *given: (_run(norm, given, how),),
        backward,
        lambda x, *_: [(tuple(x.shape), as_dtype(x.dtype))],
        (True,) * len(arrays),
    )(host, arrays)


def array(check: Refusals, name: str, x: Any) -> tuple[int, ...]:
    """The shape of a float array. Raises `BadCallArgument`, `LibraryDType`."""
    if not is_leaf(x):
        raise check.argument(f"{name} is {of_kind(x)}", "pass an array")
    if as_dtype(x.dtype) not in DTYPES:
        raise check.bad_dtype(f"{name} is {as_dtype(x.dtype)}", "float16, bfloat16 or float32")
    return tuple(x.shape)


def _norm(name: str, x: Any, parameters: dict[str, Any], eps: Any, how: dict[str, Any]) -> Any:
    check = Refusals(name)
    if isinstance(eps, bool) or not isinstance(eps, Real) or not 0 <= cast("Any", eps) < 2.0**128:
        raise check.value(f"eps={shown(eps)}", "give a number of 0 or more")
    shape = array(check, "x", x)
    if not shape or shape[-1] == 0:
        raise check.bad_shape(f"x is {shape}", "its last axis has one element or more")
    for word, p in parameters.items():
        if (found := array(check, word, p)) != shape[-1:]:
            raise check.bad_shape(f"{word} is {found} for x of {shape}", f"{word} has one element for each column of x")
    norm, arrays = Norm(name, len(parameters) == 2, float(eps)), [x, *parameters.values()]
    host = host_of(*arrays)
    return _differentiable(host, norm, arrays, how) if host else _run(norm, arrays, how)


@partial(public, name="rms_norm")
@checks_itself("eps")
def rms_norm(
    x: Any, weight: Any, *, eps: Any = 1e-5, out: Any = None, stream: Any = None, interpret: Any = None
) -> Any:
    """x / sqrt(mean(x * x) + eps) * weight along the last axis, with gradients of x and weight under JAX and PyTorch.

    x (..., columns) and weight (columns,) are float16, bfloat16 or float32. The result has x's shape and dtype; it is
    computed in float32. Arrays have any strides. `out`, `stream`, `interpret`: as for kernels. Raises
    `BadCallArgument`, `BadCallValue`, `LibraryDType`, `LibraryShape`.
    """
    return _norm("rms_norm", x, {"weight": weight}, eps, {"out": out, "stream": stream, "interpret": interpret})


@partial(public, name="layer_norm")
@checks_itself("eps")
def layer_norm(
    x: Any, weight: Any, bias: Any, *, eps: Any = 1e-5, out: Any = None, stream: Any = None, interpret: Any = None
) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias along the last axis; x, weight and bias have gradients.

    Mean and variance (of all columns, not less one) are those of each row. bias is (columns,), as weight is. Arguments,
    dtypes and errors are otherwise those of `rms_norm`.
    """
    given = {"weight": weight, "bias": bias}
    return _norm("layer_norm", x, given, eps, {"out": out, "stream": stream, "interpret": interpret})
