"""Peers on other hosts, whose memory is not mapped: calls of NVSHMEM's device functions (NVSHMEM's API, 'Device API').

A kernel calls them if the mesh has `hosts` axes and the table of addresses has 0 for the peer. One lane makes the call, after all
lanes of its warpgroup have stored the data to send.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .. import dtypes as dt
from ..errors import BadArgument
from ..ir import ArrayType, Effect, Op, Value, attr, operands
from ..layout import SCALAR
from ..mesh import Meshed, meshed
from ..refs import Ref
from ..trace import current, emit, traced
from ..values import Array
from .access import view_of
from .cast import as_value, astype
from .ref import as_ref
from .sync import WarpgroupBarrier

# Types of the functions' parameters and results, in LLVM's spelling.
FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "nvshmem_putmem_nbi": (("ptr", "ptr", "i64", "i32"), "void"),  # destination here, source, bytes, rank
    "nvshmem_int_atomic_add": (("ptr", "i32", "i32"), "void"),  # address here, number to add, rank
    "nvshmem_int_test": (("ptr", "i32", "i32"), "i32"),  # address, comparison, value
    "nvshmem_quiet": ((), "void"),
}
# Functions that users may call, too. All lanes get the result.
MORE: dict[str, tuple[tuple[str, ...], str]] = {
    "nvshmem_getmem_nbi": (
        ("ptr", "ptr", "i64", "i32"),
        "void",
    ),  # destination, address of the source here, bytes, rank
    "nvshmem_ptr": (("ptr", "i32"), "i64"),  # address here, rank: where it is mapped, or 0
    "nvshmem_my_pe": ((), "i32"),
    "nvshmem_n_pes": ((), "i32"),
    "nvshmem_signal_fetch": (("ptr",), "i64"),  # the value of a signal of 64 bits
}
KINDS = {"ptr": dt.int64, "i64": dt.int64, "i32": dt.int32}
AT_LEAST = 5  # NVSHMEM_CMP_GE


class NvshmemCall(Op, name="nvshmem_call", effect=Effect.READ | Effect.WRITE):
    """One lane of the warpgroup calls a function of NVSHMEM's device library. PTX `call` of an `.extern .func`."""

    args: tuple[Value, ...] = operands()
    function: str = attr()

    def infer(self) -> tuple[Any, ...]:
        return ()


class NvshmemAsk(Op, name="nvshmem_ask", effect=Effect.READ | Effect.WRITE):
    """All lanes call a function of NVSHMEM's device library, which says the same to all. PTX `call` of an `.extern .func`."""

    args: tuple[Value, ...] = operands()
    function: str = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType((), KINDS[MORE[self.function][1]], SCALAR),)


def call(function: str, *args: Any) -> None:
    """Call a function by one lane; its result is not used."""
    types, _ = (FUNCTIONS | MORE)[function]
    emit(NvshmemCall(_converted(function, types, args), function))


def ask(function: str, *args: Any) -> Array:
    """What a function says, rank 0."""
    return traced(NvshmemAsk(_converted(function, MORE[function][0], args), function))


def _converted(function: str, types: tuple[str, ...], args: tuple[Any, ...]) -> tuple[Value, ...]:
    return tuple(astype(as_value(x, function), KINDS[t]) for x, t in zip(args, types, strict=True))


def my_pe() -> Array:
    """This device's number among NVSHMEM's, an int32."""
    return ask("nvshmem_my_pe")


def n_pes() -> Array:
    """How many devices NVSHMEM has, an int32."""
    return ask("nvshmem_n_pes")


def mapped_at(ref: Any, device_id: Any) -> Array:
    """Where an array of this kernel begins on another device, as this one reaches it: an int64, 0 where it is not mapped.

    `ref` and `device_id` as `kd.remote_ref` takes them, and its errors.
    """
    op = "nvshmem_ptr"
    mesh = meshed(op)
    return ask(op, _address(mesh, as_ref(ref, op), op), mesh.number(device_id, op))


def fetched(signal: Any) -> Array:
    """What a signal is, an int64 of a symmetric array that another device's put raises: an int64."""
    op = "nvshmem_signal_fetch"
    return ask(op, _address(meshed(op), as_ref(signal, op), op))


def far(mesh: Meshed, ref: Ref, number: Any, op: str) -> Array:
    """Whether the memory of device `number` is not mapped here."""
    return mesh.peers[mesh.addresses(ref, op), number] == 0


def put(mesh: Meshed, src: Ref, dst: Ref, number: Any, op: str) -> None:
    """Copy `src` to the place of `dst`, an array of this device, on device `number`.

    Returns when the copy is complete.
    """
    _copy("nvshmem_putmem_nbi", mesh, src, dst, number, op)


def get(mesh: Meshed, src: Ref, dst: Ref, number: Any, op: str) -> None:
    """Copy from the place of `src`, an array of this device, on device `number` to `dst`; it is there when this returns."""
    _copy("nvshmem_getmem_nbi", mesh, src, dst, number, op)


def _copy(function: str, mesh: Meshed, src: Ref, dst: Ref, number: Any, op: str) -> None:
    """Copy by one lane, between barriers of the warpgroup. Both Refs have one shape and one dtype."""
    size = prod(src.shape) * src.dtype.itemsize
    addresses = [_address(mesh, ref, op) for ref in (dst, src)]
    emit(WarpgroupBarrier())
    call(function, *addresses, size, number)
    call("nvshmem_quiet")
    emit(WarpgroupBarrier())


def signal(mesh: Meshed, sem: Ref, inc: Any, number: Any, op: str) -> None:
    """Add to a semaphore of device `number`, after all data that this warpgroup sent there."""
    address = _address(mesh, sem, op)
    emit(WarpgroupBarrier())
    call("nvshmem_quiet")
    call("nvshmem_int_atomic_add", address, inc, number)


def arrived(mesh: Meshed, sem: Ref, op: str) -> None:
    """After a wait: make data that another host sent before its signal visible to later loads."""
    call("nvshmem_int_test", _address(mesh, sem, op), AT_LEAST, 0)
    emit(WarpgroupBarrier())


def _address(mesh: Meshed, ref: Ref, op: str) -> Any:
    """The first address, an int64, of a view without gaps in this device's memory. Raises `BadArgument`."""
    view, offsets = view_of(ref)
    strides, each = [0] * len(ref.type.shape), 1
    for axis in reversed(range(len(ref.type.shape))):
        strides[axis] = each
        each *= int(ref.type.shape[axis])
    expected = 1
    for dim in reversed(view.dims):
        if dim.size > 1 and (dim.axis < 0 or dim.step * strides[dim.axis] != expected):
            expected = -1
            break
        expected *= dim.size
    if expected < 0 or not ref.type.contiguous or view.masked:
        hint = "between hosts go whole rows, in bounds for all indices; pad the arrays"
        raise BadArgument(op=op, what=f"{ref!r}, which has gaps or may end early,", hint=hint)
    moving = dict(zip(view.dynamic, offsets, strict=False))
    base: Any = mesh.peers[mesh.addresses(ref, op), mesh.rank]
    for axis, start in enumerate(view.start):
        place: Any = start
        if axis in moving:
            place = astype(moving[axis], dt.int64) + start
        base = base + place * (strides[axis] * ref.dtype.itemsize)
    return base


def hosts_of(op: str) -> Meshed | None:
    """The mesh of the kernel that is being traced, if it has several hosts."""
    del op
    mesh = current().mesh
    return mesh if mesh is not None and mesh.mesh.hosts else None
