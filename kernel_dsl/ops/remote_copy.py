"""Copies to another device's memory, with a semaphore here and one there."""

from __future__ import annotations

from math import prod
from typing import Any

from ..boundary import public
from ..dtypes import int32
from ..errors import BadArgument, BadArgumentType
from ..errors_hopper import CopyMismatch, CopySpaces
from ..indices import ds
from ..ir import MemorySpace
from ..refs import Ref
from ..trace import emit
from . import nvshmem
from .atomic import atomic_add
from .branches import cond
from .cast import astype
from .control import fori_loop, while_loop
from .copy import copy_smem_to_gmem
from .copy_waits import commit_smem, wait_smem_to_gmem
from .ref import as_ref, check_writable
from .remote import RemoteRef, remote_ref
from .semaphore import Deadline, semaphore_signal, semaphore_wait
from .sync import WarpgroupBarrier

__all__ = ["async_copy", "make_async_remote_copy"]

PIECE = 4096  # elements that a warpgroup holds at a time


@public
class RemoteCopy:
    """A copy that `make_async_remote_copy` described. `start` sends the data; the waits return when it has arrived."""

    def __init__(self, src: Ref, dst: Ref, own: Ref, send: Any, receive: Any, device_id: Any) -> None:
        self._src, self._dst, self._own = src, dst, own
        self._send, self._receive = send, receive
        self._device = device_id

    def start(self) -> None:
        """Send the data: this warpgroup copies it, and signals both semaphores when it has arrived.

        The warpgroup is busy until then, because no engine of a GPU signals another GPU's semaphore. Other warpgroups
        of the block, and the receiver, continue.
        """
        if self._src.memory_space is MemorySpace.SMEM:
            commit_smem()
            copy_smem_to_gmem(self._src, self._dst)
            wait_smem_to_gmem(0)
        else:
            self._from_gmem()
        if self._receive is not None:
            semaphore_signal(self._receive, device_id=self._device)
        if self._send is not None:
            semaphore_signal(self._send)

    def _from_gmem(self) -> None:
        mesh = nvshmem.hosts_of("async_copy")
        if mesh is None:
            _by_lanes(self._src, self._dst)
            return
        op = "async_copy"
        far_src = self._src.root.op
        if isinstance(far_src, RemoteRef):  # from there to here
            own, number = self._src.moved_to(far_src.ref), far_src.device
            cond(
                nvshmem.far(mesh, own, number, op),
                lambda: nvshmem.get(mesh, own, self._own, number, op),
                lambda: _by_lanes(self._src, self._dst),
            )
            return
        number = mesh.number(self._device, op)

        def send() -> None:
            nvshmem.put(mesh, self._src, self._own, number, op)

        cond(nvshmem.far(mesh, self._own, number, op), send, lambda: _by_lanes(self._src, self._dst))

    def wait_send(self, *, timeout: float | None = None) -> None:
        """Wait until the sent data has been read here. Raises `BadArgument` for a copy without `send_sem`."""
        semaphore_wait(self._of(self._send, "send_sem", "wait_send"), timeout=timeout)

    def wait_recv(self, *, timeout: float | None = None) -> None:
        """Wait until this device has the data of its peer's copy.

        Raises `BadArgument` for a copy without `recv_sem`.
        """
        semaphore_wait(self._of(self._receive, "recv_sem", "wait_recv"), timeout=timeout)

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait for each semaphore that the copy has."""
        if self._send is not None:
            self.wait_send(timeout=timeout)
        if self._receive is not None:
            self.wait_recv(timeout=timeout)

    def _of(self, semaphore: Any, name: str, op: str) -> Any:
        if semaphore is None:
            raise BadArgument(op=op, what=f"a copy without {name}=", hint=f"give the copy a semaphore as {name}=")
        return semaphore


def make_async_remote_copy(
    src_ref: Any, dst_ref: Any, send_sem: Any = None, recv_sem: Any = None, device_id: Any = None
) -> RemoteCopy:
    """A copy of `src_ref`, here, to `dst_ref` in the memory of `device_id`. Its `start()` sends the data.

    `src_ref`: SMEM (by TMA) or GMEM (by the lanes); `dst_ref`: an input or output, as `kd.remote_ref` takes it, of the
    same shape and dtype. `send_sem`: this device's semaphore, which gets 1 when `src_ref` may be written again;
    `recv_sem`: the semaphore of `device_id`, which gets 1 when the data has arrived in `dst_ref`. `device_id`: as of
    `kd.remote_ref`. If `src_ref` is a `kd.remote_ref` and `device_id` is None, the copy is from that device to this one,
    and both semaphores are this device's. Raises `CopyMismatch`, `CopySpaces`, `BadArgumentType`, and the errors of
    `kd.remote_ref` and `kd.copy_smem_to_gmem`.
    """
    op = "make_async_remote_copy"
    src, dst = as_ref(src_ref, op), as_ref(dst_ref, op)
    if dst.memory_space is not MemorySpace.GMEM:
        got = f"{src.memory_space.name} to {dst.memory_space.name}"
        hint = "a peer is reached in GMEM: copy to an argument of the kernel"
        raise CopySpaces(op=op, src="SMEM or GMEM", dst="GMEM", got=got, hint=hint)
    if src.shape != dst.shape or src.dtype != dst.dtype:
        raise CopyMismatch(op=op, src=repr(src), dst=repr(dst), hint="slice the larger one with `.at[...]`")
    check_writable(dst)
    if device_id is None:
        if not isinstance(src.root.op, RemoteRef):
            raise BadArgumentType(op=op, what="device_id is None", hint="give the device that the copy goes to")
        return RemoteCopy(src, dst, dst, send_sem, recv_sem, None)
    return RemoteCopy(src, remote_ref(dst, device_id), dst, send_sem, recv_sem, device_id)


def async_copy(
    src_ref: Any, dst_ref: Any, send_sem: Any = None, recv_sem: Any = None, device_id: Any = None
) -> RemoteCopy:
    """Make a copy as `make_async_remote_copy` does, and start it.

    Returns the copy, which has `wait_send`, `wait_recv` and `wait`. Arguments and errors are those of
    `make_async_remote_copy`.
    """
    made = make_async_remote_copy(src_ref, dst_ref, send_sem, recv_sem, device_id)
    made.start()
    return made


def signal_wait(signal: Any, value: Any, timeout: float | None = None) -> None:
    """Wait until a signal of NVSHMEM's, an int64 of a symmetric array, is at least `value`; what came before it is there then.

    The loop is the kernel's own, so that it can end after `timeout` seconds: a wait inside NVSHMEM can't.
    """
    late = None if timeout is None else Deadline(f"waited for {timeout} s for a signal of another host", timeout)

    def peek() -> Any:
        return atomic_add(signal, 0, order="acquire", scope="sys")

    def again(seen: Any) -> Any:
        if late is not None:
            late.check(astype(seen, int32), lambda: seen < value)
        return peek()

    while_loop(lambda seen: seen < value, again, peek())
    nvshmem.fetched(signal)
    emit(WarpgroupBarrier())


def _by_lanes(src: Ref, dst: Ref) -> None:
    """Copy through registers, piece by piece."""
    shape = src.shape
    if prod(shape) <= PIECE or not shape:
        dst[...] = src[...]
        return
    long = len(shape) == 1
    each = PIECE if long else 1
    count = -(-shape[0] // each)

    def step(i: Any, carry: Any) -> Any:
        part = ds(i * each, each) if long else i
        _by_lanes(src.at[part], dst.at[part])
        return carry

    fori_loop(0, count, step, None)
