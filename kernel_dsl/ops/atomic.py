"""Atomic read-modify-write on GMEM and SMEM. Each element is updated once, in every layout.

The target is a Ref, a view (`ref.at[i]`), or elements selected by index arrays (`ref.at[array]`). Several elements may
have the same index: each is added, in no fixed order. Elements out of range in GMEM are dropped.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from .. import dtypes as dt
from ..attributes import attribute_type
from ..dataclass import dataclass
from ..dtypes import DType
from ..errors import BadArgument, StoreShape, UnsupportedDType
from ..ir import Effect, MemorySpace, Op, Value, array_type, attr, operand, operands, option
from ..layout import SCALAR
from ..refs import Access, Elements, View, ViewDim
from ..target import Feature
from ..trace import LayoutVar, current, traced
from ..values import Array
from .access import check_writable, mask_value, stored_value, view_of
from .broadcast import broadcast_shapes, broadcast_value
from .gather import GatherTarget
from .ref import as_ref

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
RED_ORDERS = ("relaxed", "release")  # the orders of `red`, which has no acquire
SCOPES = ("cta", "cluster", "gpu", "sys")


_NEIGHBOURS = (dt.float32, dt.float16, dt.bfloat16)  # dtypes of which one `red` adds several


class AtomicRmw(Op, name="atomic_rmw", effect=Effect.READ | Effect.WRITE):
    """Old values, exchanged for op(old, x). PTX `atom`, ISA 9.7.13.5; `red`, 9.7.13.6, if no old value is used.

    If several lanes hold an element, one of them acts; the others get the old value through SMEM if it is used.
    `indices`: index arrays that choose elements along the dimensions `walks`, as in a gather. `access`: the most
    neighbours that one `red` adds to.
    """

    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    indices: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    kind: AtomicKind = attr()
    order: str = attr("relaxed")
    scope: str = attr("gpu")
    walks: tuple[ViewDim, ...] = attr(())
    access: Access = option(Access())
    any_size = True

    def infer(self) -> tuple[Any, ...]:
        return (array_type(self.x),)

    def spoken(self) -> str:
        name = "xchg" if self.kind is AtomicKind.XCHG else self.kind.value
        return f"atomic_{name}"

    def needs(self) -> Feature:
        return Feature.CLUSTER if self.scope == "cluster" else Feature(0)


class AtomicCas(Op, name="atomic_cas", effect=Effect.READ | Effect.WRITE):
    """Old values; x replaces those that equal `compare`.

    PTX `atom.cas`, ISA 9.7.13.5. If several lanes hold an element, one of them acts; the others get the old value
    through SMEM if it is used.
    """

    ref: Value = operand()
    x: Value = operand()
    compare: Value = operand()
    offsets: tuple[Value, ...] = operands()
    indices: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    order: str = attr("relaxed")
    scope: str = attr("gpu")
    walks: tuple[ViewDim, ...] = attr(())
    any_size = True

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


@dataclass
class _Site:
    """The target and operands of an atomic: the root, the operands in one layout, offsets, index arrays, mask, view."""

    root: Value
    operands: list[Array]
    offsets: tuple[Value, ...]
    indices: tuple[Value, ...]
    mask: Array | None
    view: View
    walks: tuple[ViewDim, ...]
    access: Access


def _prepare(ref: Any, values: tuple[Any, ...], op: str, mask: Any, order: str, scope: str) -> _Site:
    """Check the arguments that all atomics take, and bring them to one layout."""
    chosen = GatherTarget(as_ref(ref.ref, op), ref.index) if isinstance(ref, Elements) else None
    target = as_ref(ref, op) if chosen is None else ref.ref
    check_writable(target)
    for word, given, allowed in (("order", order, ORDERS), ("scope", scope, SCOPES)):
        if given not in allowed:
            raise BadArgument(op=op, what=f"{word}={given!r}", hint=f"it is one of {', '.join(allowed)}")
    shape = target.shape if chosen is None else chosen.shape
    given_values = [stored_value(target.dtype, value) for value in values]
    for x in given_values:
        if len(x.shape) > len(shape) or broadcast_shapes([x.shape, shape], op) != shape:
            raise StoreShape(value=x.shape, ref=shape)
    view, offsets = view_of(target) if chosen is None else chosen.view()
    walks = () if chosen is None else chosen.walks
    arrays = [] if chosen is None else chosen.arrays
    where: Any = SCALAR if not shape else LayoutVar(shape)
    full = [a for a in arrays if a.shape == shape]
    if full:
        where = full[0].type.layout
    elif shape and chosen is None:
        vector, minor = target.vector()
        where = LayoutVar(shape, vector, minor)
    guard = None if mask is None else mask_value(mask, shape, op)
    placed: list[Array] = []
    for x in given_values:
        if shape:
            x = broadcast_value(x, shape, where)
            where = x.type.layout
        placed.append(x)
    indices = tuple(broadcast_value(a, shape, where) for a in arrays)
    if guard is not None:
        guard = broadcast_value(guard, shape, where)
    access = target.access(view, offsets) if shape and chosen is None and mask is None else Access()
    return _Site(target.root, placed, offsets, indices, guard, view, walks, access)


def _dtype(ref: Any, op: str) -> DType:
    return as_ref(ref.ref if isinstance(ref, Elements) else ref, op).dtype


def _chosen(scope: str | None, ref: Any, op: str) -> str:
    """The scope of an atomic; the default holds all that can reach the memory."""
    if scope is not None:
        return scope
    target = as_ref(ref.ref if isinstance(ref, Elements) else ref, op)
    return "sys" if current().mesh is not None and target.memory_space is MemorySpace.GMEM else "gpu"


def atomic(ref: Any, value: Any, kind: AtomicKind, op: str, mask: Any, order: str, scope: str | None) -> Array:
    """The common part of all read-modify-write atomics: the old values, in the shape of the view."""
    _check(_dtype(ref, op), kind, op)
    scope = _chosen(scope, ref, op)
    at = _prepare(ref, (value,), op, mask, order, scope)
    (x,) = at.operands
    in_gmem = at.root.type.space is MemorySpace.GMEM
    added = kind is AtomicKind.ADD and x.dtype in _NEIGHBOURS and order in RED_ORDERS
    # scope "sys" adds one element at a time: no document says how links between GPUs treat vectors
    wide = in_gmem and added and scope != "sys" and at.access.vector > 1
    access = at.access if wide else Access()
    return traced(AtomicRmw(at.root, x, at.offsets, at.indices, at.mask, at.view, kind, order, scope, at.walks, access))


def atomic_add(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Add `value` to each element of a Ref or `ref.at[...]`, atomically; returns the old values.

    They have the Ref's shape and dtype. The Ref lies in GMEM or SMEM and holds 32- or 64-bit ints, float16, bfloat16,
    float32 or float64. `value` is broadcast to it. `mask` (bool, also broadcast): elements with False stay unchanged.
    If the old values are not used, one instruction adds several neighbours of float32, float16 or bfloat16 in GMEM,
    unless `scope` is "sys". `order`: "relaxed", "acquire", "release" or "acq_rel". `scope`: "cta", "cluster", "gpu" or
    "sys"; by default "gpu", and "sys" for GMEM on a mesh, where peers may access it. PTX ISA 9.7.13.5 (atom) and
    9.7.13.6 (red). Raises `UnsupportedDType`, `StoreShape`, `StoreDType`, `BadArgument`.
    """
    return atomic(ref, value, AtomicKind.ADD, "atomic_add", mask, order, scope)


def atomic_max(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Keep the larger of each element and `value`, atomically; of NaN and a number, the number. Returns the old values.

    Dtypes, arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.MAX, "atomic_max", mask, order, scope)


def atomic_min(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Keep the smaller of each element and `value`, atomically; of NaN and a number, the number. Returns the old
    values.

    Dtypes, arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.MIN, "atomic_min", mask, order, scope)


def atomic_and(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Replace each element x of a Ref or `ref.at[...]` by x & value, atomically; returns the old values.

    For 32- and 64-bit ints; arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.AND, "atomic_and", mask, order, scope)


def atomic_or(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Replace each element x of a Ref or `ref.at[...]` by x | value, atomically; returns the old values.

    For 32- and 64-bit ints; arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.OR, "atomic_or", mask, order, scope)


def atomic_xor(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Replace each element x of a Ref or `ref.at[...]` by x ^ value, atomically; returns the old values.

    For 32- and 64-bit ints; arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.XOR, "atomic_xor", mask, order, scope)


def atomic_xchg(ref: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None) -> Array:
    """Replace each element of a Ref or `ref.at[...]` by `value`, atomically; returns the old values.

    Dtypes, arguments and errors are those of `atomic_add`.
    """
    return atomic(ref, value, AtomicKind.XCHG, "atomic_xchg", mask, order, scope)


def atomic_cas(
    ref: Any, compare: Any, value: Any, *, mask: Any = None, order: str = "relaxed", scope: str | None = None
) -> Array:
    """Replace each element that equals `compare` (bit for bit) by `value`, atomically; returns the old values.

    Dtypes, arguments and errors are those of `atomic_add`.
    """
    _check(_dtype(ref, "atomic_cas"), AtomicKind.XCHG, "atomic_cas")
    scope = _chosen(scope, ref, "atomic_cas")
    at = _prepare(ref, (compare, value), "atomic_cas", mask, order, scope)
    old, new = at.operands
    return traced(AtomicCas(at.root, new, old, at.offsets, at.indices, at.mask, at.view, order, scope, at.walks))
