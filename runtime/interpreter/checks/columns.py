"""Columns of shadow memory: each granule has the number of an entry, and many granules share an entry.

An access of a warp makes one entry for all its lanes. So a granule takes a number of 2 or 4 bytes, instead of an epoch and a
site. Entry 0 means that nobody has accessed the granule. Entries that no granule refers to any more are dropped from time to
time, and the others get new numbers: a number is valid until the next call of `new`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FEW = 1024  # no entries are dropped while a column has at most so many
_PER_ENTRY = 32  # nor while it has at most one entry for so many granules, the lanes of a warp
_CHUNK = 1 << 16  # granules that are read at a time
SHORT = 1 << 16  # up to so many entries, numbers take 2 bytes


class Column:
    """The `numbers` (granules,) of granules, and the fields of entries: arrays (entries, ...) that subclasses name and make.

    Its first granule is `start`. It calls `room(bytes)` before it takes memory in proportion to granules or entries.
    """

    fields: tuple[str, ...] = ()

    def __init__(self, size: int, room: Callable[[int], None], start: int = 0) -> None:
        self.size: int = size
        self.room = room
        self.start: int = start
        self.numbers: Array = blank(size, np.uint16)
        self.count: int = 1
        self.limit: int = FEW
        self.collected: int = 0  # how often entries have got new numbers
        self.changes: int = 0  # how often granules have got other entries

    @property
    def blank(self) -> bool:
        """Return whether no granule has got an entry yet."""
        return is_blank(self.numbers)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the column takes."""
        own = 0 if self.blank else self.numbers.nbytes
        return own + sum(getattr(self, name).nbytes for name in self.fields)

    def get(self, g: Array) -> Array:
        return self.numbers[g - self.start if self.start else g]

    def put(self, g: Array, numbers: Any) -> None:
        if self.blank:
            self._make(self.numbers.dtype)
        self.changes += 1
        self.numbers[g - self.start if self.start else g] = numbers

    def clear(self, g: Array) -> None:
        if not self.blank:
            self.changes += 1
            self.numbers[g - self.start if self.start else g] = 0

    def make_room(self, count: int) -> None:
        """Make sure that numbers stay valid while `count` more entries are made."""
        if self.count + count > self.limit:
            self.collect(count)

    def new(self, count: int) -> slice:
        """Return the places of `count` new entries, whose fields the caller fills in."""
        self.make_room(count)
        first = self.count
        self.count += count
        if self.count > len(getattr(self, self.fields[0])):
            self._reserve(max(self.count, min(self.count * 3 // 2, self.limit)))
        return slice(first, self.count)

    def _reserve(self, capacity: int) -> None:
        more = capacity - len(getattr(self, self.fields[0]))
        self.room(more * sum(getattr(self, name)[:1].nbytes for name in self.fields))
        for name in self.fields:
            old: Array = getattr(self, name)
            made: Array = np.zeros((capacity, *old.shape[1:]), old.dtype)
            made[: len(old)] = old
            setattr(self, name, made)

    def _make(self, dtype: Any) -> None:
        """Give the numbers this dtype, and memory of their own."""
        self.room(self.size * np.dtype(dtype).itemsize)
        self.numbers = np.zeros(self.size, dtype) if self.blank else self.numbers.astype(dtype)

    def chunks(self) -> list[slice]:
        return [slice(at, at + _CHUNK) for at in range(0, 0 if self.blank else self.size, _CHUNK)]

    def collect(self, wanted: int = 0) -> Array:
        """Drop entries that no granule refers to, and make room for `wanted` more.

        Return the old numbers of the entries that stay.
        """
        used = np.zeros(self.count, np.bool_)
        used[0] = True
        for part in self.chunks():
            used[self.numbers[part]] = True
        kept = np.flatnonzero(used)
        if len(kept) < self.count:
            number = (np.cumsum(used) - 1).astype(self.numbers.dtype)
            for part in self.chunks():
                self.numbers[part] = number[self.numbers[part]]
            for name in self.fields:
                field: Array = getattr(self, name)
                field[: len(kept)] = field[kept]
            self.count = len(kept)
            self.collected += 1
        self.limit = max(FEW, self.size // _PER_ENTRY, self.count * 3 // 2, self.count + wanted)
        if self.limit > SHORT and self.numbers.dtype.itemsize == 2:
            if self.count * 3 // 2 <= SHORT >= self.count + wanted:
                self.limit = SHORT
            elif self.blank:
                self.numbers = blank(self.size, np.uint32)
            else:
                self._make(np.uint32)
        return kept

    def join(self, others: Sequence[Column]) -> None:
        """Take over the granules and entries of columns of this kind, and leave those empty. This column is a new one."""
        tables = {name: np.concatenate([getattr(o, name)[: o.count] for o in others]) for name in self.fields}
        firsts = np.cumsum([0] + [o.count for o in others])
        fields, number = distinct(tables)
        for other in others:
            other._drop_fields()
        if any(not other.blank for other in others):
            self._make(np.uint16 if len(fields[self.fields[0]]) <= SHORT else np.uint32)
        for first, other in zip(firsts.tolist(), others, strict=False):
            for part in other.chunks():
                self.numbers[other.start :][: other.size][part] = number[first + other.numbers[part].astype(np.int64)]
            other.numbers = blank(other.size, np.uint16)
        self.take(fields)

    def take(self, fields: dict[str, Array]) -> None:
        """Replace the entries by those of `fields`."""
        for name in self.fields:
            setattr(self, name, fields[name])
        self.count = len(fields[self.fields[0]])
        self.collected += 1
        self.collect()

    def _drop_fields(self) -> None:
        for name in self.fields:
            setattr(self, name, getattr(self, name)[:1].copy())
        self.count = 1
        self.collected += 1

    def refine(self, times: int) -> None:
        """Split each granule into `times`."""
        self.size *= times
        self.start *= times
        self.changes += 1
        if self.blank:
            self.numbers = blank(self.size, self.numbers.dtype)
        else:
            self.room(self.size * self.numbers.dtype.itemsize)
            self.numbers = np.repeat(self.numbers, times)


class Accesses(Column):
    """One access of each granule: its `epoch`, its `site`, and the `reach` of a strong one (`ShadowAccess.reach`)."""

    fields: tuple[str, ...] = ("epoch", "site", "reach")

    def __init__(self, size: int, site_type: Any, room: Callable[[int], None], start: int = 0) -> None:
        super().__init__(size, room, start)
        self.epoch: Array = np.zeros(1, np.int64)
        self.site: Array = np.zeros(1, site_type)
        self.reach: Array = np.zeros(1, np.int8)
        self._last: tuple[Array, int, int, int] | None = None
        self._numbers: Array = np.zeros(0, np.int64)

    def held(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Return the (epochs, sites, reach) of entries."""
        return self.epoch[numbers], self.site[numbers], self.reach[numbers]

    def add(self, epoch: Array, site: Any, reach: Any) -> Array:
        """Make entries, and return their numbers (n,)."""
        made = self.new(len(epoch))
        self.epoch[made], self.site[made], self.reach[made] = epoch, site, reach
        return np.arange(made.start, made.stop)

    def of(self, epoch: Array, site: int, reach: int) -> Array:
        """Return the numbers (n,) of entries of these epochs. If the last call had the same arguments, use its entries."""
        last = self._last
        if last is None or last[1:] != (site, reach, self.collected) or not np.array_equal(last[0], epoch):
            self._numbers = self.add(epoch, site, reach)
            self._last = epoch, site, reach, self.collected
        return self._numbers

    def places(self) -> Array:
        """Return for each granule, (granules,), the site of its access + 1, or 0 if it has none."""
        return places_of(self.epoch[: self.count], self.site[: self.count])[self.numbers]


def places_of(epoch: Array, site: Array) -> Array:
    return np.where(epoch != 0, site.astype(np.int32) + 1, 0).astype(np.int32)


def distinct(fields: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the fields of the different entries, the first of them nobody's, and for each given entry its number there."""
    order = np.lexsort(tuple(reversed(list(fields.values()))))
    new: Array = np.zeros(len(order), np.bool_)
    for field in fields.values():
        ranked = field[order]
        new[1:] |= ranked[1:] != ranked[:-1]
    number: Array = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new)
    new[0] = True
    return {name: field[order[new]] for name, field in fields.items()}, number


def blank(size: int, dtype: Any) -> Array:
    """Return zeros that take no memory and can only be read."""
    return np.broadcast_to(np.zeros(1, dtype), (size,))


def is_blank(array: Array) -> bool:
    return not array.flags.writeable


def run_heads(numbers: Array, rows: Array) -> Array | None:
    """Return the flat positions at which runs of one number and one row begin; None if runs are too short to save time.

    `rows` are as `Shadow.select` returns them: one for each row (n, 1), or one for each element.
    """
    if numbers.size < 256:
        return None
    flat = numbers.reshape(-1)
    begins: Array = np.empty(len(flat), np.bool_)
    begins[0] = True
    np.not_equal(flat[1:], flat[:-1], out=begins[1:])
    if numbers.ndim == 2:
        begins[:: numbers.shape[1]] = True
    else:
        begins[1:] |= rows[1:] != rows[:-1]
    at = np.flatnonzero(begins)
    return at if len(at) * 4 <= len(flat) else None


def runs(numbers: Array, rows: Array) -> tuple[Array, Array]:
    """Return the flat (numbers, rows) of runs of one number and one row, or of all elements if runs are too short."""
    at = run_heads(numbers, rows)
    if at is None:
        return numbers.reshape(-1), np.broadcast_to(rows, numbers.shape).reshape(-1)
    return numbers.reshape(-1)[at], rows_at(rows, numbers.shape, at)


def rows_at(rows: Array, shape: tuple[int, ...], at: Array) -> Array:
    """Return the rows of the elements at flat positions."""
    if len(shape) == 1:
        return rows[at]
    return np.broadcast_to(rows, (shape[0], 1))[at // shape[1], 0]


def over_runs(values: Array, at: Array | None, shape: tuple[int, ...]) -> Array:
    """Repeat the value of each run for its elements. Without `at`, each element has a value.

    The result has one column if each row is one run.
    """
    if at is None:
        return values.reshape(shape)
    if len(shape) == 2 and len(at) == shape[0]:
        return values[:, None]
    size = 1
    for n in shape:
        size *= n
    return np.repeat(values, np.diff(at, append=size)).reshape(shape)
