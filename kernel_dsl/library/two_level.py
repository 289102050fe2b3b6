"""Collectives on a mesh of several hosts: by peer memory inside a host, by copies between devices of the same place on two hosts.

A device of each host has the same part in hand: it adds up its own host's terms, or sends its own host's rows, to the devices of
the same index on other hosts, and shares what comes with its neighbours. So each element crosses between two hosts once.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument
from kernel_dsl.mesh import Mesh

BLOCKS = 132  # the most blocks of a device: all must run at the same time
PIECE = 4096  # elements that a warpgroup holds at a time


class _Hosts:
    """A mesh's axis of hosts, and its other axes. Raises `BadArgument` for several axes of hosts."""

    def __init__(self, mesh: Mesh, op: str) -> None:
        if len(mesh.hosts) != 1:
            what = f"hosts={mesh.hosts!r}"
            raise BadArgument(op=op, what=what, hint="give the hosts one axis of the mesh")
        self.mesh = mesh
        (self.axis,) = mesh.hosts
        position = mesh.names.index(self.axis)
        self.count, self.step = mesh.sizes[position], prod(mesh.sizes[position + 1 :])
        self.near = tuple(name for name in mesh.names if name != self.axis)
        self.places = [dict(zip(self.near, at, strict=True)) for at in product(*(map(range, self._sizes())))]

    def _sizes(self) -> list[int]:
        return [size for name, size in zip(self.mesh.names, self.mesh.sizes, strict=True) if name != self.axis]

    def others(self, work: Any) -> None:
        """Call `work(host)` for each other host."""
        for host in range(self.count):

            @kd.when(kd.axis_index(self.axis) != host)
            def _(host: int = host) -> None:
                work(host)

    def meet(self, near: Any, far: Any, timeout: float | None) -> None:
        """Wait until the block with this number has arrived on this host's devices and on this place's other devices."""
        self.meet_near(near, timeout)
        mine = far.at[kd.axis_index(self.axis)]
        self.others(lambda host: kd.semaphore_signal(mine, device_id={self.axis: host}))
        self.others(lambda host: kd.semaphore_wait(far.at[host], timeout=timeout))

    def meet_near(self, semaphore: Any, timeout: float | None) -> None:
        """Wait until the block with this number has arrived on this host's devices."""
        if self.near:
            kd.semaphore_signal_multicast(semaphore, collective_axes=self.near)
            kd.semaphore_wait(semaphore, len(self.places), timeout=timeout)

    def number(self, host: Any) -> Any:
        """The number of the device of this place on a host."""
        return kd.axis_index(self.mesh.names) + (host - kd.axis_index(self.axis)) * self.step


def _blocks(size: int) -> int:
    """The number of blocks that share `size` elements evenly, so that copies between hosts have no partial end."""
    most = min(BLOCKS, max(size // 256, 1))
    return next(d for d in range(most, 0, -1) if size % d == 0)


def _pieces(size: int, work: Any) -> None:
    """Call `work(part)` for pieces of `size` elements."""
    each = next(d for d in range(min(PIECE, size), 0, -1) if size % d == 0)

    def step(i: Any, carry: Any) -> Any:
        work(i * each, each)
        return carry

    kd.fori_loop(0, size // each, step, None)


def _semaphores(hosts: _Hosts) -> list[Any]:
    one, each = kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR((hosts.count,))
    return [one, each, each, one]


def _orders_itself(kernel: Any) -> Any:
    """Mark a kernel whose semaphores order all accesses to other devices' arrays, so that streams need no synchronisation."""
    kernel.meets = False
    return kernel


@cache
def gather(shape: tuple[int, ...], out: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out`: all devices' arrays of `shape`, one after the other."""
    hosts, size = _Hosts(mesh, "all_gather"), prod(shape)
    blocks = _blocks(size)
    each = size // blocks

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct(out, dtype), scratch_types=_semaphores(hosts), grid=(blocks,), grid_names=("block",),
        mesh=mesh, name=f"all_gather_hosts_{mesh.size}",
    )  # fmt: skip
    def kernel(x: Any, out: Any, near: Any, far: Any, arrived: Any, end: Any) -> None:
        hosts.meet(near, far, timeout)
        mine, whole = x.reshape(-1), out.reshape(mesh.size, size)
        first = kd.axis_index("block") * each
        me, host = kd.axis_index(mesh.names), kd.axis_index(hosts.axis)
        segment = kd.ds(first, each)
        hosts.others(
            lambda other: kd.async_copy(
                mine.at[segment], whole.at[me, segment], None, arrived.at[host], {hosts.axis: other}
            )
        )
        targets = [kd.remote_ref(whole, place) for place in hosts.places]

        def share(start: Any, count: int) -> None:
            part = kd.ds(first + start, count)
            value = mine[part]
            for target in targets:
                target[me, part] = value

        _pieces(each, share)

        def forward(other: int) -> None:
            kd.semaphore_wait(arrived.at[other], timeout=timeout)
            row = hosts.number(other)

            def pass_on(start: Any, count: int) -> None:
                part = kd.ds(first + start, count)
                value = whole[row, part]
                for place, target in zip(hosts.places, targets, strict=True):

                    @kd.when(_elsewhere(place))
                    def _(target: Any = target) -> None:
                        target[row, part] = value

            _pieces(each, pass_on)

        hosts.others(forward)
        hosts.meet_near(end, timeout)

    return _orders_itself(kernel)


def _elsewhere(place: dict[str, int]) -> Any:
    """Whether this device is not the one of this place."""
    other: Any = False
    for name, index in place.items():
        other = (kd.axis_index(name) != index) | other
    return other


@cache
def scatter(size: int, out: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out, stage, box`: the sum of all devices' arrays; each device gets its part of `size` elements.
    `stage`: sums for each host; `box`: sums from each host, both in the wide dtype.
    """
    hosts = _Hosts(mesh, "reduce_scatter")
    blocks = _blocks(size)
    each = size // blocks
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype
    room = kd.ShapeDtypeStruct((hosts.count, size), wide)

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct(out, dtype), room, room), scratch_types=_semaphores(hosts), grid=(blocks,),
        grid_names=("block",), mesh=mesh, name=f"reduce_scatter_hosts_{mesh.size}",
    )  # fmt: skip
    def kernel(x: Any, out: Any, stage: Any, box: Any, near: Any, far: Any, arrived: Any, end: Any) -> None:
        hosts.meet(near, far, timeout)
        first = kd.axis_index("block") * each
        terms = [kd.remote_ref(x, place).reshape(mesh.size, size) for place in hosts.places]
        host = kd.axis_index(hosts.axis)
        segment = kd.ds(first, each)

        def added(row: Any, target: Any) -> None:
            def add(start: Any, count: int) -> None:
                part = kd.ds(first + start, count)
                values = [term[row, part].astype(wide) for term in terms]
                target[part] = sum(values[1:], values[0])

            _pieces(each, add)

        def send(other: int) -> None:
            added(hosts.number(other), stage.at[other])
            kd.async_copy(
                stage.at[other, segment], box.at[host, segment], None, arrived.at[host], {hosts.axis: other}
            )  # fmt: skip

        hosts.others(send)
        added(kd.axis_index(mesh.names), box.at[host])
        hosts.others(lambda other: kd.semaphore_wait(arrived.at[other], timeout=timeout))

        def finish(start: Any, count: int) -> None:
            part = kd.ds(first + start, count)
            total = box[0, part]
            for other in range(1, hosts.count):
                total = total + box[other, part]
            out.reshape(-1)[part] = total.astype(dtype)

        _pieces(each, finish)
        hosts.meet_near(end, timeout)

    return _orders_itself(kernel)
