"""The granules of a global buffer, in parts: a part has few entries, so their numbers are short.

A part is made when it is first accessed. If warps access many parts at once, as in scattered order, the parts become one,
so that an access makes one entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import discards
from .columns import FEW, Accesses
from .folding import Folding
from .numbers import Whole
from .readers import Readers, ReaderSets
from .shadow import Shadow
from .shadow_access import ShadowAccess

if TYPE_CHECKING:
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_SMALL = 1 << 26  # bytes that are taken before the machine's free memory is looked up
_AT_ONCE = 1 << 16  # granules that are looked at together
_PART = 1 << 20  # bytes of the buffer that a part has
_ENTRIES = {1: 24, 2: 20, 4: 16}  # by the bytes of a granule: with one entry for so many granules, parts may become one
_SAMPLE = 61  # one entry of so many tells whether parts have the same entries

Columns = tuple[Accesses, *tuple[Readers, ...]]


class PartedShadow(Shadow):
    """The shadow of a global buffer. While one of its `parts` is in use, `writes` and `reads` are the part's columns.

    Each of several GPUs has a column of readers of its own, so that the readers of one GPU do not displace those of another:
    a peer that nobody waits for is found among any number of peers. `readers` are these columns, and `reads` is the accessor's.
    """

    def __init__(self, run: Run, buffer: Any) -> None:
        super().__init__(len(buffer.bytes), run, run.program.site_type)
        self.buffer = buffer
        self.by_cache: Array | None = None  # for each granule the site + 1 of an ld.global.nc; made at the first one
        self.discards: bool = False  # whether a discard has thrown data away
        self.was_read: Array | None = None  # for each granule the site + 1 of a read, for the launches that follow
        self.per_part: int = 0
        self.taken: int = 0  # at least the bytes that the granules take, see `Doubts.grow`
        self.asked: int = 0  # bytes taken since the machine's free memory was last looked up
        self.looked: int = 0  # while there are at most so many entries, they are not collected again
        self.parts: dict[int, Columns] = {}  # the parts that were accessed, by number
        self.wholes: tuple[Whole, ...] = ()  # what the parts' numbers of writes and of reads lie in
        self.reads: Readers = Readers(0, self.site_type, self.check_room)
        self.readers: tuple[Readers, ...] = (self.reads,)

    def fit(self, size: int) -> None:
        if self.granule and self.granule <= size:
            return
        times = self.granule // size
        self.granule: int = min(size, 16)
        if not self.per_part:
            self.check_room(2 * self.count)  # the bytes of the numbers of writes, if the whole buffer is written
            self.asked = 0
        self.per_part = self.per_part * times or _PART // self.granule
        self.wholes = tuple(Whole(self.count) for _ in range(1 + self.run.devices))
        self.run.doubts.grow(self, 2 * self.count * len(self.wholes))  # the bytes of their numbers
        for columns in self.parts.values():
            for column, whole in zip(columns, self.wholes, strict=True):
                column.refine(times, self.count, whole)
        self.strong.refine(times)
        if self.by_cache is not None:
            self.by_cache = np.repeat(self.by_cache, times)
        if self.was_read is not None:
            self.was_read = np.repeat(self.was_read, times)
        elif self.run.program.triggers:
            self.was_read = np.zeros(self.count, self.site_type)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the granules take."""
        own = sum(column.nbytes for columns in self.parts.values() for column in columns)
        own += self.strong.before.nbytes if self.strong.before is not None else 0
        return own + sum(a.nbytes for a in (self.by_cache, self.was_read) if a is not None)

    def _use(self, number: int, device: int = 0) -> None:
        """Set `writes`, `readers` and `reads` to the columns of a part, for an access by a GPU."""
        writes, *readers = self._part(number)
        self.writes: Accesses = writes
        self.readers, self.reads = tuple(readers), readers[device]

    def _part(self, number: int) -> Columns:
        found = self.parts.get(number)
        if found is None:
            start = number * self.per_part
            size = min(self.count - start, self.per_part)
            found = self.parts[number] = self._columns(size, start)
        return found

    def _columns(self, size: int, start: int = 0) -> Columns:
        writes, *reads = self.wholes
        made = [Readers(size, self.site_type, self.check_room, start, whole) for whole in reads]
        first = Accesses(size, self.site_type, self.check_room, start, writes)
        for column in (first, *made):
            column.folding = self.folding
            most = column.usual() // 2 if size == self.count else size // _ENTRIES[1]  # parts are joined before that
            column.many = max(most, 4 * FEW)
        return first, *made

    def folding(self) -> Folding | None:
        """Return which epochs need no entry of their own now; None if that is not looked for."""
        return None

    def each(self, a: ShadowAccess, g: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
        """Yield the granules and rows of an access in each part that it touches, with that part in use."""
        if self.per_part >= self.count or int(g.min()) // self.per_part == int(g.max()) // self.per_part:
            self._use(int(g.flat[0]) // self.per_part, a.c.batch.device)
            yield g, rows
            return
        part, row, same = g // self.per_part, np.broadcast_to(rows, g.shape), a.same
        for number in np.unique(part).tolist():
            mine = part == number
            if same is not None:
                a.same = lambda mine=mine: np.broadcast_to(same(), g.shape)[mine]
            self._use(number, a.c.batch.device)
            yield g[mine], row[mine]
        a.same = same
        if self._scattered():
            self._join()

    def _join(self) -> None:
        """Merge all parts into one, because an access to several parts makes an entry in each of them."""
        old = [columns for _, columns in sorted(self.parts.items())]
        writes, *readers = joined = self._columns(self.count)
        self.parts = {0: joined}
        self.per_part = self.count
        writes.join([columns[0] for columns in old])
        for device, reads in enumerate(readers, 1):
            parts = [columns[device] for columns in old]
            for part in parts:
                assert isinstance(part, Readers)
                part.part(self.granule, always=True)
            reads.single = True
            if self.granule >= 4:
                reads.second = Accesses(self.count, self.site_type, self.check_room)
                reads.second.join(
                    [part.second for part in parts if isinstance(part, Readers) and part.second is not None]
                )
            further = [part.further for part in parts if isinstance(part, Readers) and part.further is not None]
            if further:
                reads.further = ReaderSets(self.count, self.check_room)
                reads.further.join(further)
            reads.join(parts)
        self._use(0)

    def _scattered(self) -> bool:
        """Return whether the parts have many entries, most of them in common: a single part would take less memory."""
        most = max(self.count // _ENTRIES.get(self.granule, 1), self.looked)
        columns = [column for every in self.parts.values() for column in every]
        if sum(column.count for column in columns) <= most:
            return False
        for column in columns:
            column.collect(fold=False)
        entries = sum(column.count for column in columns)
        self.looked = 2 * entries
        if entries <= self.count // _ENTRIES.get(self.granule, 1):
            return False
        every = [column.sample(_SAMPLE) for column in columns]
        return 2 * len(np.unique(np.concatenate(every))) < sum(map(len, every))

    def unwritten(self, g: Array) -> Array:
        out: Array = np.empty(g.shape, np.bool_)
        part = g // self.per_part
        for number in np.unique(part).tolist():
            mine = part == number
            writes = self._part(number)[0]
            out[mine] = self._without_data(writes, writes.get(g[mine]))
        return out

    def _without_data(self, writes: Accesses, numbers: Array) -> Array:
        """Return which entries of `writes`, by number, leave memory without data: none, or a discard."""
        never = numbers == 0
        if not self.discards:
            return never
        lost = discards.lost(self.run, writes, numbers)
        return lost if self.buffer.initialised else never | lost

    def never_written(self) -> Array:
        """Return the granules that nobody has written, or whose data was discarded, in ascending order."""
        found: list[Array] = []
        for number in range(-(-self.count // self.per_part)):
            writes = self._part(number)[0]
            for at in range(0, writes.size, _AT_ONCE):
                g = np.arange(at, min(at + _AT_ONCE, writes.size)) + writes.start
                found.append(g[self._without_data(writes, writes.get(g))])
        return np.concatenate(found)

    def written(self, first: int, count: int) -> tuple[Array, Array]:
        """Return the (epochs, sites) of the last writes of `count` granules from `first` on."""
        g = np.arange(first, first + count)
        epochs, sites = np.zeros(count, np.int64), np.zeros(count, self.site_type)
        for number in np.unique(g // self.per_part).tolist():
            mine = g // self.per_part == number
            writes = self._part(number)[0]
            numbers = writes.get(g[mine])
            epochs[mine], sites[mine] = writes.epoch[numbers], writes.site[numbers]
        return epochs, sites

    def places(self) -> tuple[Array, Array]:
        """Return (reads, writes), each (granules,): the site + 1 of the last read or write, or 0 if there is none."""
        reads, writes = np.zeros((2, self.count), np.int32)
        for columns in self.parts.values():
            part = slice(columns[0].start, columns[0].start + columns[0].size)
            writes[part] = columns[0].places()
            reads[part] = np.maximum.reduce([column.places() for column in columns[1:]])
        return reads, writes

    def forget(self, start: int, size: int) -> None:
        """Record that nobody has written or read the `size` bytes from `start` on."""
        if not self.granule:
            return
        g = np.arange(start // self.granule, -(-(start + size) // self.granule))
        for number in np.unique(g // self.per_part).tolist():
            for column in self._part(number):
                column.clear(g[g // self.per_part == number])

    def check_room(self, needed: int) -> None:
        """Raise MemoryError if this machine has fewer bytes left than needed."""
        self.asked += needed
        self.run.doubts.grow(self, needed)
        if self.asked < _SMALL:
            return
        self.asked, left = 0, memory_left()
        if left is not None and max(needed, _SMALL) > left:
            raise MemoryError(
                f"to find races in '{self.buffer.name}', of {self.size} bytes, the interpreter needs {needed} bytes more, "
                f"and this machine has {left} left: check smaller arrays, or run with InterpretParams(detect_hazards=False)"
            )


def memory_left() -> int | None:
    """Return the bytes that a process may still take, from Linux and its control group; None if they do not tell."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        found.append(int(text.split("MemAvailable:")[1].split()[0]) << 10)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        statistics = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        found.append(most - sum(int(n) for name, n in statistics if name in ("anon", "kernel", "shmem")))
    return min(found) if found else None
