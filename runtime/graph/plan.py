"""Dependencies of nodes, by the bytes they access, and the memory of intermediates."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class _Segment:
    """Bytes [start, end) with one history: the last writer, and the readers since then."""

    start: int
    end: int
    writer: int | None = None
    readers: list[int] = field(default_factory=list[int])


class Dependencies:
    """Read-after-write, write-after-read and write-after-write, by byte ranges of one memory.

    A write of part of a range splits it: the rest keeps its history.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._starts: list[int] = []

    def access(
        self,
        node: int,
        reads: Iterable[tuple[int, int]],
        writes: Iterable[tuple[int, int]],
    ) -> set[int]:
        """Add the accesses of `node`. Returns the earlier nodes that it must wait for."""
        waits: set[int] = set()
        reads, writes = list(reads), list(writes)
        for start, end in reads:
            for segment in self._cover(start, end):
                if segment.writer is not None:
                    waits.add(segment.writer)
                segment.readers.append(node)
        for start, end in writes:
            touched = self._cover(start, end)
            for segment in touched:
                waits.update(segment.readers)
                if segment.writer is not None:
                    waits.add(segment.writer)
            self._replace(touched, _Segment(start, end, node))
        waits.discard(node)
        return waits

    def _cover(self, start: int, end: int) -> list[_Segment]:
        """Segments that make up [start, end) exactly, splitting and adding where needed."""
        if start >= end:
            return []
        self._split(start)
        self._split(end)
        found: list[_Segment] = []
        at = start
        index = bisect_left(self._starts, start)
        while at < end:
            inside = index < len(self._segments) and self._segments[index].start < end
            stop = self._segments[index].start if inside else end
            if stop > at:
                self._insert(index, _Segment(at, stop))
            found.append(self._segments[index])
            at = found[-1].end
            index += 1
        return found

    def _split(self, at: int) -> None:
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return
        segment = self._segments[index]
        if segment.start < at < segment.end:
            rest = _Segment(at, segment.end, segment.writer, list(segment.readers))
            segment.end = at
            self._insert(index + 1, rest)

    def _insert(self, index: int, segment: _Segment) -> None:
        self._segments.insert(index, segment)
        self._starts.insert(index, segment.start)

    def _replace(self, old: list[_Segment], new: _Segment) -> None:
        if not old:
            return
        index = bisect_left(self._starts, old[0].start)
        self._segments[index : index + len(old)] = [new]
        self._starts[index : index + len(old)] = [new.start]


def ancestors(waits: Sequence[Iterable[int]], early: Sequence[bool]) -> list[int]:
    """For each node, a bit for each node that has ended before it starts.

    Nodes wait for earlier ones. `early` nodes (programmatic dependent launches) start when the nodes that they wait for
    have started, so only the nodes before those have ended.
    """
    above: list[int] = []
    for deps, ahead in zip(waits, early, strict=True):
        mask = 0
        for dep in deps:
            mask |= above[dep] | (0 if ahead else 1 << dep)
        above.append(mask)
    return above


def needed(waits: Sequence[set[int]], above: Sequence[int]) -> list[tuple[int, ...]]:
    """The edges that do not follow from other edges."""
    kept: list[tuple[int, ...]] = []
    for deps in waits:
        implied = 0
        for dep in deps:
            implied |= above[dep]
        kept.append(tuple(sorted(d for d in deps if not implied >> d & 1)))
    return kept


ALIGNMENT = 256


@dataclass
class MemoryBlock:
    """Memory that some nodes use. `alone`: it shares its place with no other block."""

    nbytes: int
    users: frozenset[int]
    alone: bool = False
    offset: int = 0


def place(blocks: Sequence[MemoryBlock], above: Sequence[int]) -> int:
    """Give each block its offset in one allocation.

    Returns the allocation's bytes. Two blocks may share bytes if every user of one ends before any user of the other
    starts. Largest first, each at the lowest offset that is free: within a few percent of the best for the shapes that
    networks have.
    """
    placed: list[tuple[MemoryBlock, int, int]] = []
    total = 0
    for block in sorted(blocks, key=lambda b: -b.nbytes):
        users, before = 0, -1  # as bits: its users, and the nodes that end before any of them starts
        for user in block.users:
            users |= 1 << user
            before &= above[user]
        rivals = sorted(
            (other.offset, other.offset + max(other.nbytes, 1))
            for other, its_users, its_before in placed
            if block.alone or other.alone or not (users & ~its_before == 0 or its_users & ~before == 0)
        )
        offset = 0
        for start, end in rivals:
            if offset + block.nbytes <= start:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        block.offset = offset
        placed.append((block, users, before))
        total = max(total, offset + block.nbytes)
    return total
