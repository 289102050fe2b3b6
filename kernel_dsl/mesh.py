"""`kd.Mesh`: devices along named axes; and the data of a mesh in a kernel's trace.

A kernel on a mesh has three hidden arguments: the number of its device (`rank`, int32), the
addresses of every array on every device (`peers`, int64 of arrays x devices), and the semaphores (int32), which lie in
memory that the peers reach and keep their counts from launch to launch. The row after those of arrays has the addresses to
which devices write the reason of their end (`Meshed.end`). The rows after it have the multicast address of each array.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

from .arguments import an_int
from .dataclass import dataclass
from .diagnostics import shown
from .dtypes import int32
from .errors import BadArgumentType
from .errors_mesh import MeshArgument, MeshValue, NoMesh, NoSuchDevice, NotSymmetric
from .indices import ds, is_index
from .ir import MemorySpace, RefType, Value, buffer_of
from .refs import Ref
from .trace import current
from .values import Array

ROOM = 1 << 14  # semaphores of a kernel; behind them lies what it keeps between launches
# The message of a kernel that ends because a wait lasted too long: texts of so many bytes, in memory that the host reads.
# The last 32 bytes are eight int32: the grid's x and y, two unused ones, the count, the wanted value, the number of the
# semaphore in its buffer, and the number of the block. The last four are stored at once, so they belong together.
TEXTS, TEXT_BYTES, NUMBERS_BYTES = 32, 256, 32
COUNT = "{count}"  # the count's place in a text; without it the count follows the text
VALUE = "{value}"  # the place of the wanted value
BLOCK = "{block}"  # the place of the block
_TOO_MANY = "waited too long for a semaphore"


def _cut(name: str, room: int) -> str:
    """A kernel's name in at most `room` bytes, 8 at least: a report says what the kernel waits for after the name."""
    whole = name.encode()
    return name if len(whole) <= room else f"{whole[: max(room, 8) - 3].decode(errors='ignore')}..."


@dataclass(frozen=True)
class Mesh:
    """GPUs along named axes: `kd.Mesh(("x",), (4,))`. They are numbered row by row: the last axis runs fastest.

    `names`: the axes, which `kd.axis_index` and `kd.axis_size` take; `sizes`: how many devices each has, 1 or more.
    `group`: with one process a GPU, whose processes these are: a process group of torch, or an object with `rank()`,
    `size()` and `exchange(value)`, which returns the values of all ranks. By default torch's world. `hosts`: axes along
    which devices are on other hosts, whose memory may not be mapped. `kd.async_copy` from GMEM and signals then go
    there by NVSHMEM. Raises `MeshArgument` and `MeshValue` for impossible arguments.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    group: Any = field(default=None, repr=False)
    hosts: Any = ()

    def __post_init__(self) -> None:
        names: Any = (self.names,) if isinstance(self.names, str) else self.names
        given: Any = self.sizes
        sizes: Any = given if isinstance(given, (tuple, list)) else (given,)
        hint = 'give the axes and the number of devices of each: `kd.Mesh(("x",), (2,))`'
        if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
            raise MeshArgument(what=f"the axes' names of a mesh are {shown(names)}", hint=hint)
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in sizes):
            raise MeshArgument(what=f"the sizes of a mesh are {shown(sizes)}", hint=hint)
        if len(names) != len(sizes) or not names:
            raise MeshValue(what=f"a mesh of {len(names)} names and {len(sizes)} sizes", hint=hint)
        if len(set(names)) != len(names) or min(sizes) < 1:
            what = f"a mesh of axes {shown(tuple(names))} and sizes {shown(tuple(sizes))}"
            raise MeshValue(what=what, hint="each axis has a name of its own, and 1 device or more")
        if self.group is not None and not is_group(self.group):
            hint = "a process group of torch, or an object with rank(), size() and exchange(value)"
            raise MeshArgument(what=f"group={shown(self.group)}", hint=hint)
        if self.group is not None and self.group.size() != prod(sizes):
            what = f"a mesh of {prod(sizes)} devices for a group of {self.group.size()} ranks"
            raise MeshValue(what=what, hint="give each rank a device")
        hosts: Any = (self.hosts,) if isinstance(self.hosts, str) else self.hosts
        if not isinstance(hosts, (tuple, list)) or any(name not in names for name in hosts):
            raise MeshArgument(
                what=f"hosts={shown(hosts)}", hint=f"name axes of the mesh: {', '.join(map(repr, names))}"
            )
        object.__setattr__(self, "hosts", tuple(hosts))
        object.__setattr__(self, "names", tuple(str.__str__(n) for n in names))
        object.__setattr__(self, "sizes", tuple(sizes))

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))
        return f"a mesh of {self.size} devices ({axes})"

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.sizes)


def is_group(x: Any) -> bool:
    """Whether something is a process group of torch, or like one (`Mesh.group`)."""
    return not isinstance(x, (type, Mesh)) and all(callable(getattr(x, name, None)) for name in ("rank", "size"))


def has_ranks(mesh: Mesh) -> bool:
    """Whether a mesh's devices can be the ranks of a group: its own, or torch's world."""
    torch: Any = sys.modules.get("torch.distributed")
    return mesh.group is not None or (torch is not None and torch.is_available() and torch.is_initialized())


@dataclass
class SemaphoreSet:
    """Semaphores of one name: those from number `first` to `end`, `shape` for each block, or for the whole `grid` if it is ().

    `grid`: the extents of the grid's axes, in the author's order.
    """

    first: int
    end: int
    name: str
    shape: tuple[int, ...]
    grid: tuple[int, ...]

    def called(self, number: int) -> str:
        """The name, the index and the block of a semaphore."""
        size = max(prod(self.shape), 1)
        block, number = divmod(number - self.first, size)
        index = str(unravelled(number, self.shape)) if size > 1 else ""
        if not self.grid:
            return f"{self.name!r}{index}"
        where = tuple((*reversed(unravelled(block, self.grid)), 0, 0)[:3])  # the last axis is CUDA's x
        return f"{self.name!r}{index} of block {where}"


def unravelled(number: int, shape: Sequence[int]) -> list[int]:
    """The index of element `number` of a row-major array."""
    index: list[int] = []
    for extent in reversed(shape):
        number, at = divmod(number, extent)
        index.insert(0, at)
    return index


@dataclass
class Reach:
    """The arrays that a kernel uses on its peers, by their rows of `peers`, whether it uses multicast addresses, and its
    semaphores.
    """

    remote: set[int] = field(default_factory=set)
    multicast: bool = False
    semaphores: list[SemaphoreSet] = field(default_factory=list)

    def semaphore_called(self, number: int) -> str:
        """What a report calls the semaphore with this number."""
        return next((s.called(number) for s in self.semaphores if number < s.end), f"semaphore {number}")


class Meshed:
    """The data of a trace on a mesh: this device's rank, and the addresses of its arrays on the peers.

    `numbers`: for each array, the row of `peers` with its addresses. `blocks`: the sizes of the grid's and the
    cluster's axes.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: Array,
        peers: Ref,
        numbers: dict[Value, int],
        semaphores: Ref,
        blocks: Sequence[tuple[str, int, int]],
        kernel: str,
    ) -> None:
        self.mesh = mesh
        self.rank = rank
        self.peers = peers
        self.numbers = numbers
        self._semaphores = semaphores
        self._blocks = blocks
        self._kernel = kernel
        self.reach: Reach = Reach()
        self._arrays = max(numbers.values(), default=-1) + 1
        self._taken = 0
        self._kept = 4 * ROOM  # bytes: where what `kept` gives begins
        self._texts: list[str] = []

    def index(self, position: int) -> Any:
        """This device's index along an axis of the mesh, a rank-0 int32."""
        from .ops.arith import floor_divide, remainder

        size, step = self.mesh.sizes[position], _step(self.mesh, position)
        rank = floor_divide(self.rank, step) if step > 1 else self.rank
        return remainder(rank, size)  # the remainder shows the trace that the index is within the axis

    def number(self, device_id: Any, op: str) -> Any:
        """A device's number, from a number or from indices along axes, this device's own along the others.

        Raises `BadArgumentType`, `NoSuchDevice`.
        """
        if not isinstance(device_id, Mapping):
            return _checked(device_id, self.mesh.size, "", op)
        unknown = [name for name in device_id if name not in self.mesh.names]  # pyright: ignore[reportUnknownVariableType]
        if unknown:
            what = f"the mesh has no axis {shown(unknown[0])}"
            raise NoSuchDevice(op=op, what=what, hint=f"its axes are {', '.join(map(repr, self.mesh.names))}")
        total: Any = 0
        for position, (name, size) in enumerate(zip(self.mesh.names, self.mesh.sizes, strict=True)):
            own = name not in device_id
            index: Any = self.index(position) if own else _checked(device_id[name], size, f" along {name!r}", op)
            total = total + index * _step(self.mesh, position)
        return total

    def addresses(self, ref: Ref, op: str) -> int:
        """The row of `peers` for a Ref's buffer. Raises `NotSymmetric`."""
        if ref.type.space is not MemorySpace.GMEM:
            hint = "pass an argument of the kernel, an output, or a semaphore of its scratch; copy SMEM to one of them first"
            raise NotSymmetric(op=op, what=repr(ref), hint=hint)
        found = self.numbers.get(buffer_of(ref.root))
        if found is None:
            raise NotSymmetric(op=op, what=repr(ref), hint="pass an argument of the kernel, an output, or a semaphore")
        self.reach.remote.add(found)
        return found

    def multicast(self, row: int) -> Any:
        """The address, an int64, by which one access reaches an array on all devices; `row` is from `addresses`."""
        size = self.mesh.size
        self.reach.multicast = True
        return self.peers[self._arrays + 1 + row // size, row % size]

    def semaphore(self, shape: tuple[int, ...], everywhere: bool, name: str) -> Ref:
        """Semaphores that exist on the peers, too: of this block, or of the whole grid. Raises `MeshValue`."""
        from .ops.index import AxisIndex
        from .trace import traced

        size = prod(shape)
        blocks = [] if everywhere else [b for b in self._blocks if b[2] > 1]
        start = self._taken
        self._taken += size * prod(n for _, _, n in blocks)
        plain = len(self._blocks) <= 3 and all(kind == "grid" for kind, _, _ in self._blocks)
        grid = tuple(n for _, _, n in self._blocks) if blocks and plain else ()
        self.reach.semaphores.append(SemaphoreSet(start, self._taken, name or "semaphore", shape, grid))
        if self._taken > ROOM:
            what = f"the kernel's semaphores take {self._taken} counters"
            hint = f"there is room for {ROOM}; pass a symmetric int32 array, which can be a semaphore too"
            raise MeshValue(what=what, hint=hint)
        block: Any = 0
        for kind, position, extent in blocks:
            block = block * extent + traced(AxisIndex(kind, position, extent))
        every = self._semaphores.slice(ds(start, self._taken - start))
        at = block * size
        return every.slice(at) if not shape else every.slice(ds(at, size)).reshape(*shape)

    def kept(self, shape: tuple[int, ...], dtype: Any) -> Ref:
        """Memory that the kernel keeps between launches on the same streams, and that peers can access. At first it is zero.

        `MeshKernel.room` is its size. Raises `MeshValue` if that is too small.
        """
        size = prod(shape)
        whole = self._semaphores.bitcast(dtype)
        start = self._kept // dtype.itemsize
        self._kept += -(-size * dtype.itemsize // 16) * 16
        if self._kept > 4 * self._semaphores.shape[0]:
            what = f"the kernel keeps {self._kept} bytes between launches"
            raise MeshValue(what=what, hint="set `room` of the kernel to as many words of 4 bytes")
        return whole.slice(ds(start, size)).reshape(*shape)

    def end(self, text: str, count: Any, value: Any = 0, semaphore: Ref | None = None) -> None:
        """End the kernel with a text and int32 numbers, which the host reports: stores, then a trap.

        The text may have `COUNT`, `VALUE` and the place of `semaphore` (`name_of`). (Printing and asserting need calls, and
        ptxas serialises the wgmma instructions of a kernel with a call, remark C7510.)
        """
        from .ops.cast import astype
        from .ops.inline import address_of, inline_ptx

        room = TEXT_BYTES - NUMBERS_BYTES - len(f"kernel '' in block {BLOCK} {text}".encode())
        text = f"kernel {_cut(self._kernel, room)!r} in block {BLOCK} {text}"
        data = text.encode()[: TEXT_BYTES - NUMBERS_BYTES]
        if text not in self._texts and len(self._texts) >= TEXTS - 1:
            text, data = _TOO_MANY, _TOO_MANY.encode()
        if text not in self._texts:
            self._texts.append(text)
        data += b"\0" * (-len(data) % 8)
        first = TEXT_BYTES * self._texts.index(text)
        numbers = first + TEXT_BYTES - NUMBERS_BYTES
        number: Any = 0
        if semaphore is not None:
            number = (address_of(semaphore, "end") - address_of(Ref(semaphore.root), "end")) // semaphore.dtype.itemsize
        store = "st.relaxed.sys.global"
        words = [
            "{ .reg .b32 nx, ny, block, z; mov.u32 nx, %nctaid.x; mov.u32 ny, %nctaid.y; mov.u32 block, %ctaid.x;",
            "mov.u32 z, %ctaid.z; mul.lo.u32 z, z, ny; mov.u32 ny, %ctaid.y; add.u32 z, z, ny; mov.u32 ny, %nctaid.y;",
            "mad.lo.u32 block, z, nx, block;",
            f"{store}.v2.u32 [$0+{numbers}], {{nx, ny}};",
            f"{store}.v4.u32 [$0+{numbers + 16}], {{$1, $2, $3, block}}; }}",
        ]
        for at in range(0, len(data), 8):
            word = int.from_bytes(data[at : at + 8], "little")
            words.append(f"{store}.u64 [$0+{first + at}], {word:#x};")
        given = [astype(x, int32) for x in (count, value, number)]
        inline_ptx(" ".join([*words, "fence.sc.sys; trap;"]), self.peers[self._arrays, self.rank], *given)

    def name_of(self, ref: Ref, place: bool = False) -> str:
        """The author's name for a semaphore; with `place`, in quotes and with a placeholder for its indices.

        The placeholder is `{[FIRST:SHAPE]}`: the number of the first semaphore in the buffer, and the shape of the set or array.
        """
        named = ref.type.name or "semaphore"
        first, shape = 0, ref.root.type.shape
        if buffer_of(ref.root) is self._semaphores.root and ref.root.type.shape == self._semaphores.shape:
            at = ref.start(0)[0]
            found = next((s for s in self.reach.semaphores if at < s.end), None)
            if found is not None:
                named, first, shape = found.name, found.first, found.shape
        if not place:
            return named
        where = f"{{[{first}:{'x'.join(map(str, shape))}]}}" if prod(shape) > 1 and ref.root.type.contiguous else ""
        return f"{named!r}{where}"


def table_rows(arrays: int, size: int) -> int:
    """The number of rows of `peers` for `arrays` arrays and the semaphores, on `size` devices."""
    return arrays + 1 + -(-arrays // size)


def _step(mesh: Mesh, position: int) -> int:
    """The difference between the numbers of neighbours along an axis."""
    return prod(mesh.sizes[position + 1 :])


def _checked(index: Any, size: int, where: str, op: str) -> Any:
    if not is_index(index):
        hint = "an int, a rank-0 integer value, or a dict of mesh axes and indices"
        raise BadArgumentType(op=op, what=f"device_id is {shown(index)}", hint=hint)
    facts = index.facts if isinstance(index, Array) else None
    known = facts.constant if facts is not None else None
    number = known if isinstance(index, Array) else an_int(index, op, "device_id")
    if number is not None and not 0 <= number < size:
        hint = f"devices{where} are numbered from 0 to {size - 1}"
        raise NoSuchDevice(op=op, what=f"there is no device {number}{where}", hint=hint)
    return index


def meshed(op: str) -> Meshed:
    """The mesh of the kernel that is being traced. Raises `NoMesh`."""
    found = current().mesh
    if found is None:
        raise NoMesh(op=op)
    return found


def written(type: RefType) -> RefType:
    """The type of a peer's array: the peer may write it at any time."""
    return replace(type, written=True)
