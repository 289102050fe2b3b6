"""Other devices' memory: Refs on the peers' arrays."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..ir import Op, RefType, Value, attr, operand
from ..mesh import meshed, written
from ..refs import Ref
from ..trace import current, emit
from .cast import as_value, astype
from .ref import as_ref

__all__ = ["remote_ref"]


class RemoteRef(Op, name="remote_ref"):
    """The same buffer of another device, number `device` (int32) of `devices`, where it lies at `address` (int64).

    No instruction.
    """

    ref: Value = operand()
    address: Value = operand()
    device: Value = operand()
    type: RefType = attr()
    devices: int = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


def remote_ref(ref: Any, device_id: Any) -> Ref:
    """`ref` in the memory of another device of the mesh, for loads, stores, atomics and asynchronous copies.

    `ref`: an input, an output, a semaphore, or a view of one. `device_id`: the device's number, an int or a traced int,
    or a dict {axis of the mesh: index}, with this device's own index along the axes that it leaves out. It may be this
    device. Order accesses of two devices by `kd.semaphore_signal` and `kd.semaphore_wait`, or by atomics with
    `scope="sys"`.

    Raises `NoMesh`, `NotSymmetric`, `NoSuchDevice` and `BadArgumentType`.
    """
    op = "remote_ref"
    mesh = meshed(op)
    own = as_ref(ref, op)
    row = mesh.addresses(own, op)
    number = mesh.number(device_id, op)
    device = astype(as_value(number, op), dt.int32)
    address = mesh.peers[row, device]
    current().aliased.add(own.root)
    return own.moved_to(emit(RemoteRef(own.root, address, device, written(own.type), mesh.mesh.size)).result)
