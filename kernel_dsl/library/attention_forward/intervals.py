"""Whether a mask hides a whole block or shows all of it, from intervals of what it compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from kernel_dsl.ir import Effect, Op, Value, array_type
from kernel_dsl.ops import arith, broadcast, cast, compare
from kernel_dsl.trace import current

Interval = tuple[Any, Any]  # int64 rank-0 values: the least and the largest, of bools 0 and 1
ALONG = (broadcast.Broadcast, broadcast.ConvertLayout, broadcast.Expand)


def decided(seen: Callable[[], Any], lines: dict[Value, Interval], pairs: int) -> tuple[Any, Any] | None:
    """(whether any of `pairs` pairs may be seen, whether all surely are), as rank-0 bools; None for a mask without such an
    answer.

    `seen()` gives the mask as bools. `lines`: int arrays of fewer elements that it reads, with their least and largest.
    Other arrays of fewer elements than pairs, such as a document's number for each query, are reduced. Then intervals
    stand for all pairs.
    """
    trace = current()
    ops, constants = trace.region.ops, dict(trace.constants)
    start = len(ops)
    mask = seen()
    walk, end = _Intervals(lines, pairs), len(ops)
    if all(not op.region_list() and op.effect in (Effect.PURE, Effect.READ) for op in ops[start:]):
        for op in ops[start:end]:
            walk.see(op)
        found = walk.of(mask)
        if found is not None:
            ops[start:end] = [op for op in ops[start:end] if not walk.is_wide(op)]
            return found[1] > 0, found[0] > 0
    del ops[start:]  # the mask is traced again for each pair
    trace.constants = constants  # later ops must not use those of the removed ones
    return None


class _Intervals:
    """Intervals of values. Those of arrays with as many elements as pairs follow from their ops."""

    def __init__(self, lines: dict[Value, Interval], pairs: int) -> None:
        self.found: dict[Any, Interval | None] = {x: (_wide(low), _wide(high)) for x, (low, high) in lines.items()}
        self.pairs = pairs

    def is_wide(self, op: Op) -> bool:
        """Whether a result has as many elements as there are pairs."""
        return any(math.prod(array_type(x).shape) >= self.pairs for x in op.results)

    def of(self, x: Any) -> Interval | None:
        """The interval of a value; None if it isn't known."""
        if x not in self.found:
            made = array_type(x)
            known = math.prod(made.shape) < self.pairs and (made.dtype.is_integer or made.dtype == kd.bool_)
            self.found[x] = self.reduced(x) if known else None
        return self.found[x]

    def reduced(self, x: Any) -> Interval:
        """The least and the largest element."""
        x = x.astype(kd.int32) if array_type(x).dtype == kd.bool_ else x
        low, high = (kd.min(x), kd.max(x)) if array_type(x).shape else (x, x)
        return _wide(low), _wide(high)

    def see(self, op: Op) -> None:
        """Note the interval of a wide result."""
        if len(op.results) == 1 and self.is_wide(op):
            found = self.interval(op)
            self.found[op.results[0]] = None if found is None else _within(found, array_type(op.results[0]).dtype)

    def interval(self, op: Any) -> Interval | None:
        """The interval of an op's exact result; None if there is no rule."""
        if isinstance(op, (*ALONG, cast.Cast, cast.Bitcast)):
            x, of, to = self.of(op.x), array_type(op.x).dtype, array_type(op.results[0]).dtype
            ints = all(t.is_integer or t == kd.bool_ for t in (of, to))
            same = not isinstance(op, cast.Bitcast) or of.itemsize == to.itemsize
            if x is None or not ints or not same or (to == kd.bool_ and of != kd.bool_):
                return None
            if of != to and to.is_integer and not to.is_signed:  # negative numbers are the largest ones
                more = kd.where(x[1] < 0, _wide(2 ** (8 * to.itemsize)), _wide(0))
                return x[0] + more, x[1] + more
            return x
        if isinstance(op, arith.Not):
            x = self.of(op.x)
            return None if x is None or array_type(op.x).dtype != kd.bool_ else (1 - x[1], 1 - x[0])
        if isinstance(op, arith.Neg):
            x = self.of(op.x)
            return None if x is None else (-x[1], -x[0])
        if isinstance(op, arith.Select):
            which, x, y = self.of(op.predicate), self.of(op.x), self.of(op.y)
            if which is None or x is None or y is None:
                return None
            low = kd.where(which[0] > 0, x[0], kd.where(which[1] > 0, kd.minimum(x[0], y[0]), y[0]))
            return low, kd.where(which[0] > 0, x[1], kd.where(which[1] > 0, kd.maximum(x[1], y[1]), y[1]))
        rule = RULES.get(type(op))
        if rule is None:
            return None
        x, y = self.of(op.x), self.of(op.y)
        if x is None or y is None or (type(op) in LOGIC and array_type(op.x).dtype != kd.bool_):
            return None
        return rule(x, y)


def _wide(x: Any) -> Any:
    return x.astype(kd.int64) if hasattr(x, "astype") else kd.int64(x)


def _flags(sure: Any, possible: Any) -> Interval:
    return _wide(sure.astype(kd.int32)), _wide(possible.astype(kd.int32))


def _equal(x: Interval, y: Interval) -> Interval:
    return _flags((x[0] == y[1]) & (x[1] == y[0]), (x[0] <= y[1]) & (y[0] <= x[1]))


def _unequal(x: Interval, y: Interval) -> Interval:
    same = _equal(x, y)
    return 1 - same[1], 1 - same[0]


def _least(x: Interval, y: Interval) -> Interval:
    return kd.minimum(x[0], y[0]), kd.minimum(x[1], y[1])


def _largest(x: Interval, y: Interval) -> Interval:
    return kd.maximum(x[0], y[0]), kd.maximum(x[1], y[1])


LOGIC = (arith.And, arith.Or)
RULES: dict[type[Op], Callable[[Interval, Interval], Interval]] = {
    arith.Add: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    arith.Sub: lambda x, y: (x[0] - y[1], x[1] - y[0]),
    arith.And: _least,
    arith.Or: _largest,
    compare.Min: _least,
    compare.Max: _largest,
    compare.Equal: _equal,
    compare.NotEqual: _unequal,
    compare.Less: lambda x, y: _flags(x[1] < y[0], x[0] < y[1]),
    compare.LessEqual: lambda x, y: _flags(x[1] <= y[0], x[0] <= y[1]),
}


def _within(x: Interval, dtype: Any) -> Interval:
    """The interval in a dtype that an exact result may leave."""
    if dtype == kd.bool_ or not dtype.is_integer:
        return x
    bits = 8 * dtype.itemsize
    least, most = (0, 2**bits - 1) if not dtype.is_signed else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits == 64:
        return x
    fits = (x[0] >= least) & (x[1] <= most)
    return kd.where(fits, x[0], _wide(least)), kd.where(fits, x[1], _wide(most))
