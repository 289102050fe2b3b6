"""Atomic read-modify-write on GMEM and SMEM. Each element is updated once, whatever the layout."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .. import dtypes as dt
from ..dtypes import DType
from ..errors import BadArgument, StoreShape, UnsupportedDType
from ..ir import ArrayType, Effect, Op, Value, array_type, attr, attribute_type, operand, operands
from ..layout import SCALAR
from ..refs import View
from ..target import Feature
from ..trace import LayoutVar, traced
from ..values import Array
from .elementwise import broadcast_shapes, broadcast_value
from .ref import as_ref, check_writable, stored_value

__all__ = ["atomic_add"]


@attribute_type
class AtomicKind(Enum):
    """The operation of an atomic, as PTX spells it."""

    ADD = "add"
    MAX = "max"
    MIN = "min"
    AND = "and"
    OR = "or"
    XOR = "xor"
    XCHG = "exch"


ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("cta", "cluster", "gpu", "sys")


class AtomicRmw(Op, name="atomic_rmw", effect=Effect.READ | Effect.WRITE):
    """Old values, exchanged for op(old, x). PTX `atom`, ISA 9.7.13.6."""

    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    kind: AtomicKind = attr()
    order: str = attr("relaxed")
    scope: str = attr("gpu")

    def infer(self) -> tuple[Any, ...]:
        return (array_type(self.x),)

    def needs(self) -> Feature:
        needed = Feature.CLUSTER if self.scope == "cluster" else Feature(0)
        return needed


def _check(dtype: DType, kind: AtomicKind, op: str) -> None:
    wide = dtype.is_integer and dtype.bits >= 32
    floats = dtype in (dt.float16, dt.bfloat16, dt.float32, dt.float64)
    if not (wide or (floats and kind in (AtomicKind.ADD, AtomicKind.MAX, AtomicKind.MIN, AtomicKind.XCHG))):
        hint = "atomics are for 32- and 64-bit ints, float16, bfloat16, float32 and float64"
        raise UnsupportedDType(op=op, dtype=dtype, hint=hint)


def atomic(ref: Any, value: Any, kind: AtomicKind, op: str, mask: Any, order: str, scope: str) -> Array:
    """The common part of all atomics: the old values, in the shape of the view."""
    target = as_ref(ref, op)
    check_writable(target)
    _check(target.dtype, kind, op)
    for word, value_, allowed in (("order", order, ORDERS), ("scope", scope, SCOPES)):
        if value_ not in allowed:
            raise BadArgument(op=op, what=f"{word}={value_!r}", hint=f"it is one of {', '.join(allowed)}")
    x = stored_value(target.dtype, value)
    shape = target.shape
    if len(x.shape) > len(shape) or broadcast_shapes([x.shape, shape], op) != shape:
        raise StoreShape(value=x.shape, ref=shape)
    view, offsets = target.view()
    where: Any = LayoutVar(shape, *target.vector()) if shape else SCALAR
    if shape:
        x = broadcast_value(x, shape, where)
        where = x.type.layout
    guard = None
    if mask is not None:
        from .ref import mask_value

        guard = mask_value(mask, shape, op)
        assert guard is not None
        guard = broadcast_value(guard, shape, where)
    result = traced(AtomicRmw(target.root, x, offsets, guard, view, kind, order, scope))
    assert isinstance(result.type, ArrayType)
    return result


def atomic_add(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Add `value` to every element of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.ADD, "atomic_add", mask, order, scope)
