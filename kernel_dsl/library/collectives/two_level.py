"""Collectives on a mesh of several hosts: by peer memory inside a host, and by copies between hosts, from device to
device with the same place.

On each host the device with the same place works on the same part. It sends the sum of its host's terms, or its own
rows, to the devices of its place on other hosts, and passes the arriving data to the devices of its host. So each
element crosses between two hosts once.
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
LEAST = 256  # the fewest elements of a block, except the last
PIECE = 4096  # elements that a warpgroup holds at a time
ODD_PIECE = 1024  # the same for sums that load single elements, because each then takes a register
WHOLE = 16  # a block's elements are a multiple of this, so that vectors of any dtype are aligned


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
        """Wait until the block with this number has arrived on this host's devices, and on the devices of this place on
        other hosts.
        """
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


class _Share:
    """A block's share of `size` elements: one segment, and for the last block also the rest that even shares leave.

    Copies between hosts have a fixed number of elements, so no segment is cut by a mask.
    """

    def __init__(self, size: int) -> None:
        most = min(BLOCKS, max(size // LEAST, 1))
        even = (d for d in range(most, most // 2, -1) if size % (d * WHOLE) == 0)
        self.blocks = next(even, most)
        self.each = size // self.blocks // WHOLE * WHOLE
        self.left = size - self.blocks * self.each

    def _is_last(self) -> Any:
        return kd.axis_index("block") == self.blocks - 1

    def segments(self, work: Any) -> None:
        """Call `work(first, count)` for each segment of this block; `count` is an int."""
        if self.each:
            work(kd.axis_index("block") * self.each, self.each)
        if self.left:
            kd.when(self._is_last())(lambda: work(self.blocks * self.each, self.left))

    def pieces(self, work: Any, most: int = PIECE) -> None:
        """Call `work(first, count)` for pieces of this block's segments, of at most `most` elements."""

        def divided(first: Any, count: int) -> None:
            def step(i: Any, carry: Any) -> Any:
                work(first + i * most, most)
                return carry

            whole, rest = divmod(count, most)
            if whole:
                kd.fori_loop(0, whole, step, None)
            if rest:
                work(first + whole * most, rest)

        self.segments(divided)

    def wait(self, semaphore: Any, timeout: float | None) -> None:
        """Wait for the signals of the copies of this block's segments."""
        count = int(self.each > 0)
        signals = kd.where(self._is_last(), count + 1, count) if self.left else count
        kd.semaphore_wait(semaphore, signals, timeout=timeout)


@cache
def gather(shape: tuple[int, ...], out: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out, whole`: it copies all devices' arrays of `shape`, one after the other, to `whole`, and from
    there to `out`.

    If the arrays fill `out`, they are gathered there, and `whole` is left out.
    """
    hosts, size = _Hosts(mesh, "all_gather"), prod(shape)
    share, n = _Share(size), mesh.size
    exact = prod(out) == n * size
    result = kd.ShapeDtypeStruct(out, dtype)

    def kernel(x: Any, *refs: Any) -> None:
        out, *room, near, far, arrived, end = refs
        hosts.meet(near, far, timeout)
        mine, whole = x.reshape(-1), (out if exact else room[0]).reshape(n, size)
        me, host = kd.axis_index(mesh.names), kd.axis_index(hosts.axis)

        def send(other: int) -> None:
            def copy(first: Any, count: int) -> None:
                part = kd.ds(first, count)
                kd.async_copy(mine.at[part], whole.at[me, part], None, arrived.at[host], {hosts.axis: other})

            share.segments(copy)

        hosts.others(send)
        targets = [kd.remote_ref(whole, place) for place in hosts.places]

        def give(first: Any, count: int) -> None:
            part = kd.ds(first, count)
            value = mine[part]
            for target in targets:
                target[me, part] = value

        share.pieces(give)

        def forward(other: int) -> None:
            share.wait(arrived.at[other], timeout)
            row = hosts.number(other)

            def pass_on(first: Any, count: int) -> None:
                part = kd.ds(first, count)
                value = whole[row, part]
                for place, target in zip(hosts.places, targets, strict=True):

                    @kd.when(_elsewhere(place))
                    def _(target: Any = target) -> None:
                        target[row, part] = value

            share.pieces(pass_on)

        hosts.others(forward)
        hosts.meet_near(end, timeout)

        def take(first: Any, count: int) -> None:
            for row in range(n):
                out.reshape(-1)[kd.ds(row * size + first, count)] = whole[row, kd.ds(first, count)]

        if not exact:
            share.pieces(take)

    outs = result if exact else (result, kd.ShapeDtypeStruct((n * size,), dtype))
    return _made(kernel, outs, hosts, share, "all_gather", mesh)


def _made(body: Any, outs: Any, hosts: _Hosts, share: _Share, name: str, mesh: Mesh) -> Any:
    """The kernel of a body. Its semaphores order all accesses to other devices' arrays, so streams need no synchronisation."""
    one, each = kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR((hosts.count,))
    made: Any = kd.kernel(
        body,
        out_type=outs,
        scratch_types=[one, each, each, one],
        grid=(share.blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"{name}_hosts_{mesh.size}",
    )
    made.meets = False
    return made


def _elsewhere(place: dict[str, int]) -> Any:
    """Whether this device has another place than `place`."""
    other: Any = False
    for name, index in place.items():
        other = (kd.axis_index(name) != index) | other
    return other


@cache
def scatter(size: int, out: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out, stage, box`: the sum of all devices' arrays; each device gets its part of `size` elements.

    Elements of a part that lie beyond the end of `x` are zero. `stage`: sums for each host; `box`: sums from each host,
    both in the wide dtype.
    """
    hosts, share = _Hosts(mesh, "reduce_scatter"), _Share(size)
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype
    room = kd.ShapeDtypeStruct((hosts.count, size), wide)

    def kernel(x: Any, out: Any, stage: Any, box: Any, near: Any, far: Any, arrived: Any, end: Any) -> None:
        hosts.meet(near, far, timeout)
        terms = [kd.remote_ref(x, place).reshape(-1) for place in hosts.places]
        odd = size % WHOLE or prod(x.shape) != mesh.size * size
        host = kd.axis_index(hosts.axis)

        def added(row: Any, target: Any) -> None:
            def add(first: Any, count: int) -> None:
                values = [term[kd.ds(row * size + first, count)].astype(wide) for term in terms]
                target[kd.ds(first, count)] = sum(values[1:], values[0])

            share.pieces(add, ODD_PIECE if odd else PIECE)

        def send(other: int) -> None:
            added(hosts.number(other), stage.at[other])

            def copy(first: Any, count: int) -> None:
                part = kd.ds(first, count)
                kd.async_copy(stage.at[other, part], box.at[host, part], None, arrived.at[host], {hosts.axis: other})

            share.segments(copy)

        hosts.others(send)
        added(kd.axis_index(mesh.names), box.at[host])
        hosts.others(lambda other: share.wait(arrived.at[other], timeout))

        def finish(first: Any, count: int) -> None:
            part = kd.ds(first, count)
            total = box[0, part]
            for other in range(1, hosts.count):
                total = total + box[other, part]
            out.reshape(-1)[part] = total.astype(dtype)

        share.pieces(finish, ODD_PIECE if odd else PIECE)
        hosts.meet_near(end, timeout)

    outs = (kd.ShapeDtypeStruct(out, dtype), room, room)
    return _made(kernel, outs, hosts, share, "reduce_scatter", mesh)
