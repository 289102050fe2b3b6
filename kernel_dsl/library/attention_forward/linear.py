"""Functions of scores that add a term that is linear in the numbers of the query and the key, as ALiBi does.

Such a term needs no arithmetic for each score: its part for the query is one number a row, and its part for the key is
one multiply-add a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import called
from kernel_dsl.ir import Effect, Op, Value, array_type
from kernel_dsl.ops import arith, broadcast, cast
from kernel_dsl.trace import current

from .captured import SCORE_MOD, function_of, reading
from .opened import most_of
from .problem import ScoredProblem
from .score import Score, refuse_mixing

EXACT = 2**24  # float32 holds every int up to this
ALONG = (broadcast.Broadcast, broadcast.ConvertLayout, broadcast.Expand, cast.Cast)
Place = tuple[int, int, int]  # factors of the query's number and the key's number, and a constant


@dataclass(frozen=True)
class Linear:
    """The score plus the sum of `terms`: each is a number, or a rank-0 value, times a `Place`."""

    terms: tuple[tuple[Any, Place], ...]

    def at(self, query: Any, key: Any) -> Any:
        """The added value, from int32 indices.

        Ints with one factor are subtracted first, so that nothing is rounded.
        """
        total: Any = 0.0
        for factor, (i, j, more) in self.terms:
            place = _scaled(query, i) + _scaled(key, j) + more
            total = total + factor * (place.astype(kd.float32) if hasattr(place, "astype") else float(place))
        return total

    @property
    def by_query(self) -> Any:
        """The added value's increase from one query to the next."""
        return self._along(0)

    @property
    def by_key(self) -> Any:
        """The added value's increase from one key to the next."""
        return self._along(1)

    def _along(self, axis: int) -> Any:
        total: Any = 0.0
        for factor, place in self.terms:
            total = total + factor * float(place[axis]) if place[axis] else total
        return total


def _scaled(x: Any, by: int) -> Any:
    return 0 if not by else x if by == 1 else x * by


@dataclass(frozen=True)
class _PlaceForm:
    """The form of a value: `x` times the score, plus `terms`; for ints, `place`."""

    x: int = 0
    terms: tuple[tuple[Any, Place], ...] = ()
    place: Place | None = None


def linear_of(function: Callable[..., Any], x: Any, place: tuple[Any, Any, Any, Any], lengths: tuple[int, int]) -> Any:
    """The linear form that `function`, a `score_mod`, adds to scores like `x`; None if the function is not of this
    kind. `lengths`: bounds of the numbers of queries and keys. Its ops in the trace are removed.
    """
    trace = current()
    ops, constants = trace.region.ops, dict(trace.constants)
    start = len(ops)
    made = called(function, (x, *place), "attention", "score_mod", SCORE_MOD)
    walk = _PlaceWalk(lengths)
    walk.forms[x], walk.forms[place[2]], walk.forms[place[3]] = (
        _PlaceForm(1),
        _PlaceForm(place=(1, 0, 0)),
        _PlaceForm(place=(0, 1, 0)),
    )
    pure = all(not op.region_list() and op.effect in (Effect.PURE, Effect.READ) for op in ops[start:])
    for op in ops[start:] if pure else []:
        walk.see(op)
    found = walk.forms.get(made) if isinstance(made, Value) else None
    if found is None or found.x != 1 or found.place is not None:
        del ops[start:]  # they are traced again at the scores
        trace.constants = constants  # later ops must not use those of the removed ones
        return None
    refuse_mixing(function, (x, *place), "attention", "score_mod", SCORE_MOD)
    return Linear(found.terms)


def is_linear(p: ScoredProblem, captured: Sequence[Any]) -> bool:
    """Whether `score_mod`, which closed over those arrays, adds something linear."""
    if p.score.score_mod is None:
        return False
    alone = replace(p, batch=1, queries=1, keys=1, score=Score(score_mod=p.score.score_mod))
    structs = tuple([kd.ShapeDtypeStruct(tuple(x.shape), x.dtype) for x in captured])
    return _is_linear(alone, most_of(p.queries, p.keys), structs[: len(alone.score.captured)])


@lru_cache(64)
def _is_linear(p: ScoredProblem, most: int, structs: tuple[Any, ...]) -> bool:
    found: list[Any] = []

    def body(out: Any, *arrays: Any) -> None:
        i, j = (kd.broadcasted_iota(kd.int32, (16, 16), axis) for axis in (0, 1))
        head = out[0]
        with reading(dict(zip(p.score.captured, arrays, strict=False))):
            x = kd.zeros(i.shape, kd.float32)
            found.append(linear_of(function_of(p.score.score_mod), x, (head, head, i, j), (most, most)))

    probe = kd.kernel(body, out_type=(), name="attention_score_probe")
    try:
        _ = probe.lower(kd.ShapeDtypeStruct((1,), kd.int32), *structs, target="sm_90a").ir
    except Exception:  # the kernel's trace reports the exceptions of the user's function
        return False
    return found[-1] is not None


class _PlaceWalk:
    """The forms of values. A value without a form is not linear."""

    def __init__(self, lengths: tuple[int, int]) -> None:
        self.lengths = lengths
        self.forms: dict[Value, _PlaceForm] = {}

    def see(self, op: Op) -> None:
        """Note the form of an op's result."""
        if len(op.results) != 1:
            return
        rank = len(array_type(op.results[0]).shape)
        form = self.form(op) if rank or isinstance(op, cast.Constant) else None  # other rank-0 values are terms
        if form is not None:
            self.forms[op.results[0]] = form

    def form(self, op: Any) -> _PlaceForm | None:
        if isinstance(op, cast.Constant):
            if op.dtype.is_float:
                return _PlaceForm(terms=((float(op.value), (0, 0, 1)),))
            return _PlaceForm(place=(0, 0, int(op.value))) if op.dtype.is_integer else None
        if isinstance(op, ALONG):
            return self.along(op)
        if isinstance(op, arith.Neg):
            return _times(self.of(op.x), -1)
        if isinstance(op, (arith.Add, arith.Sub)):
            return self.sum(self.of(op.x), self.of(op.y), -1 if isinstance(op, arith.Sub) else 1)
        if isinstance(op, arith.Mul):
            return self.product(op.x, op.y) or self.product(op.y, op.x)
        if isinstance(op, arith.Fma):
            return self.sum(self.product(op.x, op.y) or self.product(op.y, op.x), self.of(op.z), 1)
        return None

    def of(self, x: Any) -> _PlaceForm | None:
        """The form of an operand. A rank-0 operand is a term."""
        found = self.forms.get(x)
        if found is None and not array_type(x).shape and array_type(x).dtype == kd.float32:
            return _PlaceForm(terms=((x, (0, 0, 1)),))
        return found

    def along(self, op: Any) -> _PlaceForm | None:
        form, dtype = self.of(op.x), array_type(op.results[0]).dtype
        if not isinstance(op, cast.Cast) or form is None:
            return form
        if form.place is None or dtype != kd.float32:
            return form if form.place is None and dtype == kd.float32 else None
        i, j, more = form.place
        most = abs(i) * self.lengths[0] + abs(j) * self.lengths[1] + abs(more)
        return _PlaceForm(terms=((1.0, form.place),)) if most <= EXACT else None

    def sum(self, a: _PlaceForm | None, b: _PlaceForm | None, sign: int) -> _PlaceForm | None:
        b = _times(b, sign)
        if a is None or b is None or (a.place is None) != (b.place is None):
            return None
        if a.place is not None and b.place is not None:
            i, j, more = (m + n for m, n in zip(a.place, b.place, strict=True))
            return _PlaceForm(place=(i, j, more))
        return _PlaceForm(a.x + b.x, _merged(a.terms + b.terms))

    def product(self, x: Any, factor: Any) -> _PlaceForm | None:
        """`x` times a rank-0 value."""
        form, by = self.of(x), self.of(factor)
        if form is None or by is None or form.x or form.place is not None or by.x or len(by.terms) != 1:
            return None
        number, place = by.terms[0]
        if place[:2] != (0, 0):
            return None
        number = number if place[2] == 1 else number * float(place[2])
        return _PlaceForm(terms=tuple((_both(number, factor), place) for factor, place in form.terms))


def _both(a: Any, b: Any) -> Any:
    return b if isinstance(a, float) and a == 1.0 else a if isinstance(b, float) and b == 1.0 else a * b


def _times(form: _PlaceForm | None, by: int) -> _PlaceForm | None:
    """A form, or its negative."""
    if form is None or by == 1:
        return form
    place = None if form.place is None else (-form.place[0], -form.place[1], -form.place[2])
    return _PlaceForm(-form.x, tuple((factor, (-i, -j, -more)) for factor, (i, j, more) in form.terms), place)


def _merged(terms: tuple[tuple[Any, Place], ...]) -> tuple[tuple[Any, Place], ...]:
    """Terms with the same factor as one: the ints of each are subtracted before anything is rounded."""
    made: list[tuple[Any, Place]] = []
    for factor, place in terms:
        at = next((n for n, (have, _) in enumerate(made) if _same(have, factor)), None)
        if at is None:
            made.append((factor, place))
        else:
            i, j, more = (m + n for m, n in zip(made[at][1], place, strict=True))
            made[at] = factor, (i, j, more)
    return tuple(made)


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, float) and isinstance(b, float) and a == b)
