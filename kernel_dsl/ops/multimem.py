"""Multimem: one address for the same place in the memory of all devices, where a switch of the network joins them.

A load from it brings the elements of all devices, reduced on the way; a store to it reaches all of them. The devices need
NVLink multicast, and the arrays an allocator that asks for it; nothing of the library depends on either.
"""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..arguments import strings
from ..diagnostics import shown
from ..dtypes import DType
from ..errors import BadArgument, StoreShape, UnknownAxis, UnsupportedDType
from ..ir import ArrayType, Effect, Op, Value, attr, operand, operands
from ..layout import SCALAR
from ..mesh import meshed, written
from ..refs import Access, Ref, View
from ..target import Feature
from ..trace import LayoutVar, current, emit, traced
from ..values import Array
from .access import check_writable, stored_value, view_of
from .broadcast import broadcast_shapes, broadcast_value
from .cast import as_value, astype
from .ref import as_ref
from .remote import RemoteRef

__all__ = ["multimem_load_reduce", "multimem_store"]

REDUCTIONS = ("add", "min", "max", "and", "or", "xor")
HALVES = (dt.float16, dt.bfloat16)


class MultimemLoadReduce(Op, name="multimem_load_reduce", effect=Effect.READ, requires=Feature.MULTIMEM):
    """The elements of a view of a multicast address, reduced over the devices. PTX `multimem.ld_reduce`."""

    ref: Value = operand()
    offsets: tuple[Value, ...] = operands()
    view: View = attr()
    layout: Any = attr()
    access: Access = attr()
    kind: str = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.view.shape, self.ref.type.dtype, self.layout),)


class MultimemStore(Op, name="multimem_store", effect=Effect.WRITE, requires=Feature.MULTIMEM):
    """Store a value to a view of a multicast address. PTX `multimem.st`."""

    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    view: View = attr()
    access: Access = attr()


def multimem_load_reduce(ref: Any, *, collective_axes: Any, reduction_op: str) -> Array:
    """The elements of `ref` on all devices, reduced by the network's switch: one load, whatever the number of devices.

    `ref`: an input, an output, or a view of one, as `kd.remote_ref` takes it. `collective_axes`: all axes of the mesh.
    `reduction_op`: "add" (float32, float64, float16 and bfloat16, which are added in float32; int32, uint32, int64,
    uint64), "min", "max" (16-bit floats and these ints), "and", "or", "xor" (these ints). The switch decides the order
    in which floats are added. It needs sm_90 or later, NVLink multicast, and arrays that their allocator made for it.

    Raises `NoMesh`, `NotSymmetric`, `UnknownAxis`, `BadArgument`, `UnsupportedDType`; and `Unsupported` for other targets.
    """
    op = "multimem_load_reduce"
    own = _target(ref, collective_axes, op)
    if reduction_op not in REDUCTIONS:
        what = f"reduction_op={shown(reduction_op)}"
        raise BadArgument(op=op, what=what, hint=f"it is one of {', '.join(REDUCTIONS)}")
    _check(own.dtype, reduction_op, op)
    view, offsets, access, where = _place(own, op)
    return traced(MultimemLoadReduce(_joined(own, op), offsets, view, where, access, reduction_op))


def multimem_store(value: Any, ref: Any, *, collective_axes: Any) -> None:
    """Store `value`, broadcast to `ref`, to the same place on all devices, this one included: one store to the switch.

    `ref`, `collective_axes` and the required hardware are those of `multimem_load_reduce`. The dtype has 32 or 64 bits, or
    fewer if elements fill whole words. Raises `StoreShape`, `StoreDType`, and the errors of `multimem_load_reduce`.
    """
    op = "multimem_store"
    own = _target(ref, collective_axes, op)
    check_writable(own)
    if own.dtype.itemsize < 4 and own.dtype not in HALVES:
        raise UnsupportedDType(op=op, dtype=own.dtype, hint="it stores float16, bfloat16, and dtypes of 32 and 64 bits")
    x = stored_value(own.dtype, value)
    if len(x.shape) > len(own.shape) or broadcast_shapes([x.shape, own.shape], op) != own.shape:
        raise StoreShape(value=x.shape, ref=own.shape)
    view, offsets, access, where = _place(own, op)
    if own.shape:
        x = broadcast_value(x, own.shape, where)
    emit(MultimemStore(_joined(own, op), x, offsets, view, access))


def _target(ref: Any, axes: Any, op: str) -> Ref:
    """The Ref. Raises an error unless `axes` are all axes of the mesh."""
    mesh = meshed(op)
    own = as_ref(ref, op)
    mesh.addresses(own, op)
    names = strings(axes, op, "collective_axes")
    unknown = [name for name in names if name not in mesh.mesh.names]
    if unknown:
        raise UnknownAxis(name=unknown[0], of="the mesh", names=", ".join(map(repr, mesh.mesh.names)))
    missing = [name for name in mesh.mesh.names if name not in names]
    if missing:
        what = f"collective_axes leaves out {missing[0]!r}"
        raise BadArgument(op=op, what=what, hint="a multicast address is of all devices: name all axes of the mesh")
    return own


def _check(dtype: DType, kind: str, op: str) -> None:
    integer = dtype.is_integer and dtype.bits >= 32 and not (dtype == dt.int64 and kind == "add")
    if kind == "add" and dtype == dt.int64:
        raise UnsupportedDType(op=op, dtype=dtype, hint="add it as uint64: `ref.bitcast(kd.uint64)`")
    floats = {"add": (*HALVES, dt.float32, dt.float64), "min": HALVES, "max": HALVES}.get(kind, ())
    if not integer and dtype not in floats:
        hint = f"{kind!r} is for {', '.join(map(str, floats)) + ', and ' if floats else ''}ints of 32 and 64 bits"
        raise UnsupportedDType(op=op, dtype=dtype, hint=hint)


def _place(own: Ref, op: str) -> tuple[View, tuple[Value, ...], Access, Any]:
    """View, offsets, access and layout. 16-bit elements go in pairs: raises `BadArgument` if a pair could be cut."""
    view, offsets = view_of(own)
    vector, minor = own.vector()
    access = own.access(view, offsets)
    if own.dtype in HALVES and (vector < 2 or minor is None or (view.masked and not access.whole)):
        what = f"{own!r}, whose elements can't be taken two by two"
        raise BadArgument(
            op=op, what=what, hint="16-bit floats need a last axis, and starts, that are even and in bounds"
        )
    return view, offsets, access, LayoutVar(own.shape, vector, minor) if own.shape else SCALAR


def _joined(own: Ref, op: str) -> Value:
    """The buffer at its multicast address."""
    mesh = meshed(op)
    current().aliased.add(own.root)
    address = mesh.multicast(mesh.addresses(own, op))
    nobody = astype(as_value(0, op), dt.int32)
    return emit(RemoteRef(own.root, address, nobody, written(own.type), mesh.mesh.size)).result
