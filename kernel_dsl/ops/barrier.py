"""mbarriers: arrive and wait. The phase that a wait expects is tracked for each warpgroup, as in Pallas."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from .. import dtypes as dt
from ..boundary import public
from ..diagnostics import of_kind
from ..errors import BadArgumentType, BadIndex, SliceOutOfRange, TooManyIndices
from ..indices import Slice, is_index, of_int, of_slice
from ..ir import ArrayType, BarrierType, Effect, Op, Value, operand
from ..layout import SCALAR
from ..target import Feature
from ..trace import current, emit, traced
from ..values import Array
from ..view import strides_of
from .arith import add, multiply
from .cast import as_value

__all__ = ["barrier_arrive", "barrier_arrive_and_wait", "barrier_test", "barrier_wait"]


class BarrierArrive(Op, name="barrier_arrive", effect=Effect.SYNC, requires=Feature.MBARRIER):
    """One arrival by this warpgroup, after all its lanes got here. PTX `mbarrier.arrive`."""

    barrier: Value = operand()
    index: Value = operand()
    predicate: Value | None = operand()


class BarrierWait(Op, name="barrier_wait", effect=Effect.SYNC, requires=Feature.MBARRIER):
    """Wait for the barrier's next phase. PTX `mbarrier.try_wait.parity` (`test_wait` on sm_80)."""

    barrier: Value = operand()
    index: Value = operand()


class BarrierTest(Op, name="barrier_test", effect=Effect.SYNC, requires=Feature.MBARRIER):
    """Whether the barrier's next phase has completed. A completed phase counts as waited for. PTX `mbarrier.test_wait`.
    One lane tests; the others read the answer in SMEM.
    """

    barrier: Value = operand()
    index: Value = operand()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), dt.bool_, SCALAR),)


@public
class BarrierRef:
    """A barrier, or an array of them: `barrier.at[i]` or `barrier.at[i, j]` picks one; the index may be traced.

    `barrier.at[1:3]` and `barrier.at[kd.ds(i, 2)]` are arrays of some of them. A single barrier can be indexed, too: it
    is number 0.
    """

    __slots__ = ("_index", "_root", "_shape", "_strides", "guard")

    def __init__(
        self, root: Value, shape: tuple[int, ...] | None = None, index: Any = 0, strides: tuple[int, ...] | None = None
    ) -> None:
        self._root = root
        self._shape: tuple[int, ...] = root.type.shape if shape is None else shape
        self._strides: tuple[int, ...] = strides_of(self._shape) if strides is None else strides
        self._index = index
        self.guard: Any = None  # a predicate: arrivals happen only if it holds, for a pipeline's first steps

    @property
    def root(self) -> Value:
        return self._root

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this array of barriers; () for one barrier."""
        return self._shape

    @property
    def type(self) -> BarrierType:
        return self._root.type

    @property
    def at(self) -> _BarrierAt:
        return _BarrierAt(self)

    def __repr__(self) -> str:
        return f"<{self._root.type}>"

    def __getitem__(self, index: Any) -> NoReturn:
        # not an IndexError, which Python would take as the end of an iteration
        raise BadArgumentType(op="[]", what=f"{self!r} holds no values", hint="pick one with `barrier.at[i]`")

    def pick(self, index: Any) -> BarrierRef:
        """Index the leading dimensions. Raises `TooManyIndices`, `IndexOutOfRange`, `SliceOutOfRange`, `BadIndex`."""
        items: tuple[Any, ...] = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
        one = not self._root.type.shape and len(items) == 1  # a single barrier is an array of one, too
        extents, strides = ((1,), (0,)) if one else (self._shape, self._strides)
        if len(items) > len(extents):
            raise TooManyIndices(count=len(items), what="barrier", rank=len(self._shape), shape=self._shape)
        at: Any = self._index
        kept: list[tuple[int, int]] = []
        for dim, (item, extent, stride) in enumerate(zip(items, extents, strides, strict=False)):
            start, size, step = _part(item, dim, extent, repr(self))
            if size is not None:
                kept.append((size, step * stride))
            if isinstance(start, int) and isinstance(at, int):
                at += start * stride
            elif stride and not (isinstance(start, int) and start == 0):
                along = start if stride == 1 else multiply(start, stride)
                at = along if isinstance(at, int) and at == 0 else add(at, along)
        rest = [*kept, *zip(extents[len(items) :], strides[len(items) :], strict=True)]
        made = BarrierRef(self._root, tuple(n for n, _ in rest), at, tuple(s for _, s in rest))
        made.guard = self.guard
        return made

    def linear(self, op: str) -> Array:
        """The number of this barrier. Raises `BadArgumentType` for an array of several."""
        if self._shape:
            what = f"an array of barriers of shape {self._shape}"
            raise BadArgumentType(op=op, what=what, hint="pick one with `barrier.at[i]`")
        return as_value(self._index, op)


@public
class _BarrierAt:
    def __init__(self, barrier: BarrierRef) -> None:
        self._barrier = barrier

    def __getitem__(self, index: Any) -> BarrierRef:
        return self._barrier.pick(index)


def _part(item: Any, dim: int, extent: int, what: str) -> tuple[Any, int | None, int]:
    """(start, size or None for one barrier, step) of one index of barriers."""
    if isinstance(item, slice):
        return of_slice(item, extent)
    if isinstance(item, Slice):
        if isinstance(item.start, int) and item.size:
            last = item.start + (item.size - 1) * item.stride
            low, high = min(item.start, last), max(item.start, last) + 1
            if low < 0 or high > extent:
                raise SliceOutOfRange(start=low, stop=high, dim=dim, extent=extent, what=what)
        return item.start, item.size, item.stride
    if not is_index(item):
        hint = "barriers are indexed by integers, slices and `kd.ds`"
        raise BadIndex(what=of_kind(item), hint=hint)
    if isinstance(item, Array):
        return item, None, 1
    return of_int(item, dim, extent), None, 1


def as_barrier(barrier: Any, op: str) -> BarrierRef:
    """`barrier`. Raises `BadArgumentType` for an object that is no barrier."""
    if not isinstance(barrier, BarrierRef):
        what = f"{of_kind(barrier)} is not a barrier"
        raise BadArgumentType(op=op, what=what, hint="allocate one with `kd.Barrier(...)` in `scratch_types`")
    current()
    return barrier


def barrier_arrive(barrier: Any, predicate: Any = None) -> None:
    """Arrive once on one barrier, as this warpgroup. With a rank-0 bool `predicate`, arrive only if it holds.

    Raises `BadArgumentType` for an object that is no barrier, `PredicateNotScalar`.
    """
    one = as_barrier(barrier, "barrier_arrive")
    guard = None
    if predicate is not None:
        from .control import as_predicate

        guard = as_predicate(predicate, "barrier_arrive")
    if one.guard is not None:
        from .logic import logical_and

        guard = one.guard if guard is None else logical_and(one.guard, guard)
    emit(BarrierArrive(one.root, one.linear("barrier_arrive"), guard))


def barrier_wait(barrier: Any) -> None:
    """Wait for the next phase of one barrier: the first that this warpgroup has not waited for.

    Raises `BadArgumentType` for an object that is no barrier.
    """
    one = as_barrier(barrier, "barrier_wait")
    emit(BarrierWait(one.root, one.linear("barrier_wait")))


def barrier_arrive_and_wait(barrier: Any) -> None:
    """`barrier_arrive`, then `barrier_wait`, with their errors."""
    barrier_arrive(barrier)
    barrier_wait(barrier)


def barrier_test(barrier: Any) -> Array:
    """Whether the next phase has completed (a rank-0 bool), without a wait. A completed phase counts as waited for.

    Raises `BadArgumentType` for an object that is no barrier.
    """
    one = as_barrier(barrier, "barrier_test")
    return traced(BarrierTest(one.root, one.linear("barrier_test")))
