"""Products that multiply more than once: float32 as high and low parts in tf32, and blocks of K with scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import dtypes as dt
from ..errors import BadArgument
from ..layouts import mma_lhs, mma_rhs
from ..refs import Ref
from ..values import Array
from .bits import bitcast_convert_type
from .broadcast import convert
from .cast import astype
from .compare import where
from .create import arange
from .numeric import isfinite

RUN = 256  # elements of K after which sums leave the tensor core, whose accumulator truncates low bits
SCALED = 128  # elements of K with one scale; also of N for square blocks
_RUNS = (SCALED, 64, 32, 16)  # lengths of the parts of K that may have a scale each: 32 in MX formats, 16 in NVFP4

_TF32_BITS = 13  # bits of a float32's mantissa that tf32 lacks

Product = Callable[[Any, Any], Array]


def thrice(x: Array, y: Array, product: Callable[[Any, Any, Any], Array]) -> Array:
    """x (M, K) @ y (K, N) of float32 values: low x high, high x low, high x high, by `product(total, a, b)` in tf32.

    The parts have tf32's precision, and their sum is x within a factor of 2^-23. Infinity becomes NaN.
    """
    total: Any = None
    for start in range(0, x.shape[1], RUN):
        part = slice(start, start + RUN)
        left, right = (x, y) if x.shape[1] <= RUN else (x[:, part], y[part])
        shape = (left.shape[0], right.shape[1], left.shape[1])
        sides = [_parts(convert(left, mma_lhs(shape, 4))), _parts(convert(right, mma_rhs(shape, 4)))]
        sums: Any = None
        for a, b in ((1, 0), (0, 1), (0, 0)):
            sums = product(sums, sides[0][a], sides[1][b])
        total = sums if total is None else total + sums
    return total


def _parts(x: Array) -> tuple[Array, Array]:
    """Two numbers of tf32's precision whose sum is nearly x."""
    high = _rounded(x)
    return high, where(isfinite(high), _rounded(x - high), 0.0)


def _rounded(x: Array) -> Array:
    """float32 to the nearest number of tf32's precision; ties to even."""
    bits = bitcast_convert_type(x, dt.uint32)
    bits = (bits + ((bits >> _TF32_BITS) & 1) + ((1 << (_TF32_BITS - 1)) - 1)) >> _TF32_BITS << _TF32_BITS
    return where(isfinite(x), bitcast_convert_type(bits, dt.float32), x)


def check_scales(a: tuple[int, ...], b: tuple[int, ...], a_scale: Any, b_scale: Any) -> None:
    """Raise `BadArgument` for scales that do not fit the operands' shapes."""
    op = "dot"
    if len(a) != 2 or len(b) != 2:
        raise BadArgument(op=op, what=f"scales for operands of shapes {a} and {b}", hint="scales are for matrices")
    (M, K), N = a, b[1]
    counts = [-(-K // run) for run in _RUNS]
    by_rows = [(M, n) for n in counts]
    by_columns = [(counts[0], -(-N // SCALED)), *((n, N) for n in counts)]
    for name, scale, fits in (
        ("a_scale", a_scale, ((), (M,), (M, 1), *by_rows)),
        ("b_scale", b_scale, ((), (N,), (1, N), *by_columns)),
    ):
        if scale is None:
            continue
        if scale.dtype != dt.float32:
            raise BadArgument(op=op, what=f"{name} of {scale.dtype}", hint="scales are float32, or float8_e8m0fnu")
        if scale.shape not in fits:
            what = f"{name} of shape {scale.shape} for a product of {a} and {b}"
            raise BadArgument(op=op, what=what, hint=f"it is one of {', '.join(map(str, dict.fromkeys(fits)))}")


def _run_of(scale: Ref | None, axis: int, K: int) -> int:
    """The elements of K that have one factor: at least K if all have one."""
    if scale is None or scale.ndim < 2 or scale.shape[axis] == 1:
        return max(K, SCALED)
    return next(run for run in _RUNS if -(-K // run) == scale.shape[axis])


def scaled(x: Any, y: Any, total: Array | None, a_scale: Ref | None, b_scale: Ref | None, product: Product) -> Array:
    """`total` + the products of parts of K, in float32, times their scales: Refs from `check_scales`."""
    K, N = x.shape[1], y.shape[1]
    runs = _run_of(a_scale, 1, K), _run_of(b_scale, 0, K)
    sums: Any = total
    for start in range(0, K, min(runs)):
        left, right = x, y
        if min(runs) < K:
            part = slice(start, min(start + min(runs), K))
            left = x.at[:, part] if isinstance(x, Ref) else x[:, part]
            right = y.at[part] if isinstance(y, Ref) else y[part]
        made = astype(product(left, right), dt.float32)
        if a_scale is not None:
            made = made * _rows(a_scale, start // runs[0])
        if b_scale is not None:
            made = made * _columns(b_scale, start // runs[1], N)
        sums = made if sums is None else sums + made
    return sums


def _rows(scale: Ref, run: int) -> Array:
    """The factors of the rows at one part of K."""
    if not scale.shape:
        return scale[...]
    return (scale[:, run] if scale.ndim == 2 else scale[...])[:, None]


def _columns(scale: Ref, run: int, N: int) -> Array:
    """The factors of the columns at one part of K."""
    if not scale.shape:
        return scale[...]
    if scale.ndim == 1:
        return scale[...][None]
    if scale.shape[1] == N:
        return scale[run][None]
    columns = scale[run, 0]
    for block in range(1, scale.shape[1]):
        columns = where(arange(N) >= block * SCALED, scale[run, block], columns)
    return columns[None] if columns.ndim else columns
