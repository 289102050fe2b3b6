"""The iterations of a loop that are put together: `unroll=` of `kd.loop` and `kd.fori_loop`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import dtypes as dt
from ..arguments import an_int
from ..boundary import called
from ..errors import BadArgument
from ..values import Array
from .cast import astype

__all__: list[str] = []

MAX_UNROLLED = 4096  # iterations: each repeats the whole body
WRITTEN_OUT = -1  # the number of copies of a body that stands for one for every iteration, without a loop


def unrolling(unroll: Any, lo: Any, hi: Any, step: int, op: str) -> int:
    """The number of copies of a loop's body, or `WRITTEN_OUT`; 0: one, also for the assembler. Raises `BadArgument`."""
    if unroll is None or unroll is False:
        return 1 if unroll is None else 0
    hint = f"True, or how many iterations to put together, from 1 to {MAX_UNROLLED}"
    if unroll is not True:
        return an_int(unroll, op, "unroll", low=1, high=MAX_UNROLLED, hint=hint)
    if not (isinstance(lo, int) and isinstance(hi, int)):
        what = "unroll=True, and the bounds are known only when the kernel runs"
        raise BadArgument(op=op, what=what, hint="say how many iterations to put together, such as unroll=4")
    count = len(range(lo, hi, step))
    if count > MAX_UNROLLED:
        what = f"unroll=True would write the body {count} times"
        raise BadArgument(op=op, what=what, hint=f"a loop of more than {MAX_UNROLLED} takes a number, such as unroll=8")
    return WRITTEN_OUT


def together(
    body: Callable[..., Any], count: int, step: int, check: Callable[[Any], None], op: str
) -> Callable[[Any, Any], Any]:
    """Return the body of a loop that does `count` iterations of `body` from its index on. `check` sees each carry."""

    def group(index: Any, carry: Any) -> Any:
        for i in range(count):
            carry = called(body, (index + i * step if i else index, carry), op, "body_fun", "body_fun(i, val)")
            check(carry)
        return carry

    return group


def counter_of(lo: Any, hi: Any) -> dt.DType:
    """Return the dtype of the index of a loop between these bounds, ints or values."""
    wide = any(isinstance(x, Array) and x.dtype.bits == 64 for x in (lo, hi)) or any(
        isinstance(x, int) and not -(2**31) <= x < 2**31 for x in (lo, hi)
    )
    return dt.int64 if wide else dt.int32


def end_of_groups(lo: Any, hi: Any, step: int, count: int) -> Any:
    """Return the bound of a loop over whole groups of `count` iterations: an int if both bounds are, else a value."""
    if isinstance(lo, int) and isinstance(hi, int):
        return lo + len(range(lo, hi, step)) // count * count * step
    from .compare import maximum

    low, high = (astype(x, dt.int64) if isinstance(x, Array) else x for x in (lo, hi))
    ahead: Any = maximum((high - low) if step > 0 else (low - high), 0)
    groups = (ahead + (abs(step) - 1)) // (abs(step) * count)
    return astype(low + groups * (count * step), counter_of(lo, hi))
