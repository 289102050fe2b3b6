"""The granules of a global buffer, part by part: entries of few bytes have short numbers.

A part is made when it is first accessed. Where warps access many parts at once, as in scattered order, the parts become one,
so that an access leaves one entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .columns import Accesses
from .readers import Readers
from .shadow import Shadow, ShadowAccess

if TYPE_CHECKING:
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_SMALL = 1 << 26  # bytes: less than this is not asked about
_PART = 1 << 20  # bytes of the buffer that have columns of their own
_ENTRIES = {
    1: 14,
    2: 10,
    4: 8,
}  # by the granule's bytes: so many granules may have one entry where there are several parts


class PartedShadow(Shadow):
    """A global buffer's shadow: while one of `parts` is in use, `writes` and `reads` are its columns."""

    def __init__(self, run: Run, buffer: Any) -> None:
        super().__init__(len(buffer.bytes), run, run.program.site_type)
        self.run = run
        self.buffer = buffer
        self.by_cache: Array | None = None  # sites + 1 of ld.global.nc of each granule, made when there is one
        self.was_read: Array | None = None  # sites + 1 of reads of each granule, for the launches that follow
        self.per_part: int = 0
        self.asked: int = 0  # bytes of memory taken since it was looked whether there is enough
        self.looked: int = 0  # entries below which it is not looked again whether they are many
        self.parts: dict[int, tuple[Accesses, Readers]] = {}  # those that were accessed, by number
        self.reads: Readers = Readers(0, self.site_type, self.check_room)

    def fit(self, size: int) -> None:
        if self.granule and self.granule <= size:
            return
        times = self.granule // size
        self.granule = min(size, 16)
        if not self.per_part:
            self.check_room(2 * self.count)  # what the numbers of writes take, if all of it is written
            self.asked = 0
        self.per_part = self.per_part * times or _PART // self.granule
        for columns in self.parts.values():
            for column in columns:
                column.refine(times)
        self.strong.refine(times)
        if self.by_cache is not None:
            self.by_cache = np.repeat(self.by_cache, times)
        if self.was_read is not None:
            self.was_read = np.repeat(self.was_read, times)
        elif self.run.program.triggers:
            self.was_read = np.zeros(self.count, self.site_type)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the granules take."""
        own = sum(column.nbytes for columns in self.parts.values() for column in columns)
        own += self.strong.before.nbytes if self.strong.before is not None else 0
        return own + sum(a.nbytes for a in (self.by_cache, self.was_read) if a is not None)

    def _use(self, number: int) -> None:
        """Let `writes` and `reads` be those of a part of the granules."""
        self.writes, self.reads = self._part(number)

    def _part(self, number: int) -> tuple[Accesses, Readers]:
        found = self.parts.get(number)
        if found is None:
            start = number * self.per_part
            size = min(self.count - start, self.per_part)
            found = self.parts[number] = (
                Accesses(size, self.site_type, self.check_room, start),
                Readers(size, self.site_type, self.check_room, start),
            )
        return found

    def each(self, a: ShadowAccess, g: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
        """The granules and rows of an access in each part that it touches, while `writes` and `reads` are those of the part."""
        if self.per_part >= self.count or int(g.min()) // self.per_part == int(g.max()) // self.per_part:
            self._use(int(g.flat[0]) // self.per_part)
            yield g, rows
            return
        part, row, same = g // self.per_part, np.broadcast_to(rows, g.shape), a.same
        for number in np.unique(part).tolist():
            mine = part == number
            if same is not None:
                a.same = lambda mine=mine: np.broadcast_to(same(), g.shape)[mine]
            self._use(number)
            yield g[mine], row[mine]
        a.same = same
        if self._scattered():
            self._join()

    def _join(self) -> None:
        """Make one part of all where each warp accesses many of them: each of these has an entry of its access."""
        writes = Accesses(self.count, self.site_type, self.check_room)
        reads = Readers(self.count, self.site_type, self.check_room)
        old = [columns for _, columns in sorted(self.parts.items())]
        self.parts = {0: (writes, reads)}
        self.per_part = self.count
        for _, readers in old:
            readers.part(self.granule, always=True)
        writes.join([column for column, _ in old])
        reads.single = True
        if self.granule >= 4:
            reads.second = Accesses(self.count, self.site_type, self.check_room)
            reads.second.join([column.second for _, column in old if column.second is not None])
        reads.join([column for _, column in old])
        self._use(0)

    def _scattered(self) -> bool:
        """Whether the parts have so many entries, of all that live, that one would take less memory."""
        most = max(self.count // _ENTRIES.get(self.granule, 1), self.looked)
        columns = [column for both in self.parts.values() for column in both]
        if sum(column.count for column in columns) <= most:
            return False
        for column in columns:
            column.collect()
        entries = sum(column.count for column in columns)
        self.looked = 2 * entries
        return 2 * entries > most

    def unwritten(self, g: Array) -> Array:
        out: Array = np.empty(g.shape, np.bool_)
        part = g // self.per_part
        for number in np.unique(part).tolist():
            mine = part == number
            out[mine] = self._part(number)[0].get(g[mine]) == 0
        return out

    def never_written(self) -> Array:
        """The granules that nobody has written, ascending."""
        found: list[Array] = []
        for number in range(-(-self.count // self.per_part)):
            writes, _ = self._part(number)
            found.append(np.flatnonzero(writes.numbers == 0) + writes.start)
        return np.concatenate(found)

    def written(self, first: int, count: int) -> tuple[Array, Array]:
        """(epochs, sites) of the last writes of `count` granules."""
        g = np.arange(first, first + count)
        epochs, sites = np.zeros(count, np.int64), np.zeros(count, self.site_type)
        for number in np.unique(g // self.per_part).tolist():
            mine = g // self.per_part == number
            writes, _ = self._part(number)
            numbers = writes.get(g[mine])
            epochs[mine], sites[mine] = writes.epoch[numbers], writes.site[numbers]
        return epochs, sites

    def places(self) -> tuple[Array, Array]:
        """(reads, writes): of each granule the site of the last one + 1, 0 without one."""
        reads, writes = np.zeros((2, self.count), np.int32)
        for columns in self.parts.values():
            part = slice(columns[0].start, columns[0].start + columns[0].size)
            writes[part], reads[part] = columns[0].places(), columns[1].places()
        return reads, writes

    def forget(self, start: int, size: int) -> None:
        """These bytes hold what nobody has written, and nobody has read."""
        if not self.granule:
            return
        g = np.arange(start // self.granule, -(-(start + size) // self.granule))
        for number in np.unique(g // self.per_part).tolist():
            for column in self._part(number):
                column.clear(g[g // self.per_part == number])

    def check_room(self, needed: int) -> None:
        """Raise MemoryError where this machine has not as many bytes left."""
        self.asked += needed
        if self.asked < _SMALL:
            return
        self.asked, left = 0, memory_left()
        if left is not None and max(needed, _SMALL) > left:
            raise MemoryError(
                f"to find races in '{self.buffer.name}', of {self.size} bytes, the interpreter needs {needed} bytes more, "
                f"and this machine has {left} left: check smaller arrays, or run with InterpretParams(detect_hazards=False)"
            )


def memory_left() -> int | None:
    """Bytes that a process may still take, as Linux and its control group say; None where they don't."""
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
