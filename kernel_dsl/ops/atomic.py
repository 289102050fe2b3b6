"""Atomic read-modify-write on GMEM and SMEM. Each element is updated once, whatever the layout."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .. import dtypes as dt
from ..dtypes import DType
from ..errors import BadArgument, StoreShape, UnsupportedDType
from ..ir import Effect, Op, Value, array_type, attr, attribute_type, operand, operands
from ..layout import SCALAR
from ..refs import View
from ..target import Feature
from ..trace import LayoutVar, traced
from ..values import Array
from .elementwise import broadcast_shapes, broadcast_value
from .ref import as_ref, check_writable, mask_value, stored_value

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
]


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

    def spoken(self) -> str:
        name = "xchg" if self.kind is AtomicKind.XCHG else self.kind.value
        return f"atomic_{name}"

    def needs(self) -> Feature:
        return Feature.CLUSTER if self.scope == "cluster" else Feature(0)


class AtomicCas(Op, name="atomic_cas", effect=Effect.READ | Effect.WRITE):
    """Old values; where one equals `compare` it is exchanged for x. PTX `atom.cas`, ISA 9.7.13.6."""

    ref: Value = operand()
    x: Value = operand()
    compare: Value = operand()
    offsets: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    order: str = attr("relaxed")
    scope: str = attr("gpu")

    def infer(self) -> tuple[Any, ...]:
        return (array_type(self.x),)

    def needs(self) -> Feature:
        return Feature.CLUSTER if self.scope == "cluster" else Feature(0)


def _check(dtype: DType, kind: AtomicKind, op: str) -> None:
    wide = dtype.is_integer and dtype.bits >= 32
    floats = dtype in (dt.float16, dt.bfloat16, dt.float32, dt.float64)
    if not (wide or (floats and kind in (AtomicKind.ADD, AtomicKind.MAX, AtomicKind.MIN, AtomicKind.XCHG))):
        hint = "atomics are for 32- and 64-bit ints, float16, bfloat16, float32 and float64"
        raise UnsupportedDType(op=op, dtype=dtype, hint=hint)


def _prepare(
    ref: Any, values: tuple[Any, ...], op: str, mask: Any, order: str, scope: str
) -> tuple[Value, list[Array], tuple[Value, ...], Array | None, View]:
    """What all atomics check and place: the root, the operands in one layout, offsets, mask and view."""
    target = as_ref(ref, op)
    check_writable(target)
    for word, given, allowed in (("order", order, ORDERS), ("scope", scope, SCOPES)):
        if given not in allowed:
            raise BadArgument(op=op, what=f"{word}={given!r}", hint=f"it is one of {', '.join(allowed)}")
    shape = target.shape
    operands_ = [stored_value(target.dtype, value) for value in values]
    for x in operands_:
        if len(x.shape) > len(shape) or broadcast_shapes([x.shape, shape], op) != shape:
            raise StoreShape(value=x.shape, ref=shape)
    view, offsets = target.view()
    where: Any = LayoutVar(shape, *target.vector()) if shape else SCALAR
    guard = mask_value(mask, shape, op)
    placed: list[Array] = []
    for x in operands_:
        if shape:
            x = broadcast_value(x, shape, where)
            where = x.type.layout
        placed.append(x)
    if guard is not None:
        guard = broadcast_value(guard, shape, where)
    return target.root, placed, offsets, guard, view


def atomic(ref: Any, value: Any, kind: AtomicKind, op: str, mask: Any, order: str, scope: str) -> Array:
    """The common part of all read-modify-write atomics: the old values, in the shape of the view."""
    _check(as_ref(ref, op).dtype, kind, op)
    root, (x,), offsets, guard, view = _prepare(ref, (value,), op, mask, order, scope)
    return traced(AtomicRmw(root, x, offsets, guard, view, kind, order, scope))


def atomic_add(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Add `value` to every element of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.ADD, "atomic_add", mask, order, scope)


def atomic_max(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Keep the larger of every element and `value` (NaN gives way), atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.MAX, "atomic_max", mask, order, scope)


def atomic_min(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Keep the smaller of every element and `value` (NaN gives way), atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.MIN, "atomic_min", mask, order, scope)


def atomic_and(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """And every element with `value` of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.AND, "atomic_and", mask, order, scope)


def atomic_or(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Or every element with `value` of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.OR, "atomic_or", mask, order, scope)


def atomic_xor(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Exclusive-or every element with `value` of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.XOR, "atomic_xor", mask, order, scope)


def atomic_xchg(
    ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Exchange every element for `value` of a Ref or `ref.at[...]`, atomically; returns the old values."""
    return atomic(ref, value, AtomicKind.XCHG, "atomic_xchg", mask, order, scope)


def atomic_cas(
    ref: Any, compare: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str = "gpu"
) -> Array:
    """Where an element equals `compare` (bit for bit), exchange it for `value`; returns the old values."""
    dtype = as_ref(ref, "atomic_cas").dtype
    _check(dtype, AtomicKind.XCHG, "atomic_cas")
    root, (old, new), offsets, guard, view = _prepare(ref, (compare, value), "atomic_cas", mask, order, scope)
    return traced(AtomicCas(root, new, old, offsets, guard, view, order, scope))
