"""Parts of a memory access: wide offsets, masks, and values in the Ref's dtype."""

from __future__ import annotations

from copy import copy
from math import lcm
from typing import Any

from .. import dtypes as dt
from ..diagnostics import CostNote
from ..dtypes import DType
from ..ends import Bounds, Start
from ..errors import BadArgument, BadArgumentType, ReadOnlyRef, RefAsValue, StoreDType
from ..extents import DimExtent
from ..ir import Value, buffer_of
from ..memory import MemorySpace
from ..refs import Ref
from ..source import here
from ..trace import current, emit
from ..values import Array
from ..view import View
from . import arith, compare
from .arith import Select
from .broadcast import Broadcast, ConvertLayout, Expand, broadcast_shapes
from .cast import Cast, as_value, constant, item_type
from .index import MultipleOf

_WIDENED = (
    arith.Add,
    arith.Sub,
    arith.Mul,
    arith.Div,
    arith.Rem,
    arith.FloorDiv,
    arith.FloorMod,
    compare.Min,
    compare.Max,
    arith.Neg,
    arith.And,
    arith.ShiftLeft,
    arith.ShiftRight,
)


_MOST_ROUNDED = 2**16  # the largest block of whose size a note asks an extent to be a multiple


def view_of(ref: Ref, promise: bool = False, own: int | None = None) -> tuple[View, tuple[Value, ...]]:
    """A Ref's view and its dynamic offsets, in int64 if int32 could overflow. `promise` and `own`: see `Ref.view`."""
    view, offsets = ref.view(promise, own)
    for limit in view.masked:
        if isinstance(limit.high, DimExtent) and limit.axis >= 0:
            _note_mask(ref.bounds(limit.axis), ref.start(limit.axis), limit.high)
    return view, tuple(widen(value) for value in offsets)


def _note_mask(bounds: Bounds, start: Start, extent: DimExtent) -> None:
    """Note the fact of `extent`, if there is one, that would prove that indices within `bounds` are below it."""
    fact = _removes(bounds, start, extent)
    if fact:
        name = f'kd.Dim("{extent.name}", {fact})'
        note = CostNote(f"a mask ends this access at {extent.name}: `{name}` would remove it", here())
        notes = current().notes
        if all((other.text, other.loc) != (note.text, note.loc) for other in notes):
            notes.append(note)


def _removes(bounds: Bounds, start: Start, extent: DimExtent) -> str:
    top = bounds.top
    static, value = start
    if top is None or top.extent != extent or value is None:
        return f"min={bounds.high + 1}" if bounds.high < min(extent.most, _MOST_ROUNDED) else ""
    block = top.const // top.den + 2  # the most elements past the end, plus one
    divisor = 1 if value.facts is None else value.facts.divisor
    # a start below the end is then at least a block before it
    whole = top.num == top.den and not static and 1 < block < _MOST_ROUNDED and divisor % block == 0
    return f"multiple_of={lcm(block, extent.divisor)}" if whole else ""


def widen(value: Value) -> Value:
    """The index, computed again in int64 from its parts if int32 arithmetic could have overflowed."""
    facts = value.facts
    return _widen(value, {}) if facts is not None and facts.wide else value


def _widen(value: Value, done: dict[int, Value]) -> Value:
    found = done.get(id(value))
    if found is None:
        found = done[id(value)] = _computed_again(value, done)
    return found


def _computed_again(value: Value, done: dict[int, Value]) -> Value:
    facts, op = value.facts, value.op
    assert facts is not None
    if facts.constant is not None and not value.type.shape:
        return constant(facts.constant, dt.int64)
    if facts.wide:
        if isinstance(op, _WIDENED):
            again: Any = type(op)
            return emit(again(*[_widen(v, done) for v in op.values()])).result
        if isinstance(op, Select):
            return emit(Select(op.predicate, _widen(op.x, done), _widen(op.y, done))).result
        if isinstance(op, MultipleOf):
            return emit(MultipleOf(_widen(op.x, done), op.factor)).result
        if isinstance(op, Cast):
            return _widen(op.x, done)
        if isinstance(op, (Broadcast, Expand, ConvertLayout)):
            moved = copy(op)
            moved.x = _widen(op.x, done)
            return emit(moved).result
    if value.type.dtype == dt.int64:
        return value
    made = emit(Cast(value, dt.int64, True)).result
    made.facts = facts._replace(wide=False)
    return made


def mask_value(x: Any, shape: tuple[int, ...], op: str) -> Array | None:
    """The mask, checked: it is bool and broadcasts to the accessed shape. None stays None."""
    if x is None:
        return None
    value = as_value(x, op)
    if not value.dtype.is_bool:
        raise BadArgumentType(op=op, what=f"the mask has dtype {value.dtype}", hint="a mask is bool")
    return _fitting(value, shape, op)


def fill_value(x: Any, shape: tuple[int, ...], dtype: DType, op: str) -> Array | None:
    """The value of masked elements in the Ref's dtype; Python numbers are converted. None stands for zero."""
    if x is None:
        return None
    own, weak = item_type(x, op)
    if own != dtype and (not weak or (own.is_float and not dtype.is_float)):
        raise BadArgumentType(op=op, what=f"`fill` is {own}", hint=f"convert it to {dtype}")
    return _fitting(as_value(x, op, dtype), shape, op)


def _fitting(value: Array, shape: tuple[int, ...], op: str) -> Array:
    if value.ndim > len(shape) or broadcast_shapes([value.shape, shape], op) != shape:
        raise BadArgument(op=op, what=f"a {value!r} does not broadcast to {shape}", hint="match the loaded shape")
    return value


def stored_value(dtype: DType, value: Any) -> Array:
    """`value` in a Ref's dtype. Python numbers are converted; an array of another dtype raises `StoreDType`."""
    if isinstance(value, Ref):
        raise RefAsValue(op="store", ref=repr(value))
    own, weak = item_type(value, "store")
    if own == dtype:
        return as_value(value, "store")
    if not weak or (own.is_float and not dtype.is_float):
        raise StoreDType(value=own, ref=dtype)
    return as_value(value, "store", dtype)


def check_writable(ref: Ref) -> None:
    """Raise `ReadOnlyRef` for a store to an input that is not also an output."""
    # a Ref of a peer's memory is writable if the argument is
    if ref.type.space is MemorySpace.GMEM and not buffer_of(ref.root).type.written:
        hint = "write to an output Ref; for in-place work use `input_output_aliases`"
        raise ReadOnlyRef(name=f"the input {ref.type.name or ref!r}", hint=hint)
