"""Columns of shadow memory: each granule has the number of an entry, and many granules share an entry.

An access of a warp makes one entry for all its lanes. So a granule takes a number of some 2 bytes (`numbers.py`), instead of
an epoch and a site. Entry 0 means that nobody has accessed the granule. Entries that no granule refers to any more are dropped
from time to time, and the others get new numbers: a number is valid until the next call of `new`. Where very many are left,
those that no later access can tell apart become one (`folding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .folding import Folding, folded
from .numbers import SHARE, SHORT, Numbers, Whole

Array = npt.NDArray[Any]
FEW = 1024  # no entries are dropped while a column has at most so many
_PER_ENTRY = 32  # nor while it has at most one entry for so many granules, the lanes of a warp
_LONG = 1 << 13  # a column with more entries grows by small steps
_AT_ONCE = 1 << 14  # entries that are moved at a time
_SITES = 64  # sites whose last entries a column knows
_MOST = 2.9  # bytes of a column for each granule, if entries can be joined: two columns take less than 6
_ENTRY = 11  # bytes of an entry


class Column:
    """The `numbers` of granules, and the fields of entries: arrays (entries, ...) that subclasses name and make.

    Its first granule is `start`. It calls `room(bytes)` before it takes memory in proportion to granules or entries.
    """

    fields: tuple[str, ...] = ()
    epochs: tuple[str, ...] = ()  # the fields that are epochs

    def __init__(self, size: int, room: Callable[[int], None], start: int = 0, whole: Whole | None = None) -> None:
        self.size: int = size
        self.room = room
        self.folding: Callable[[], Folding | None] | None = None
        self.many: int = 0  # with more entries in use, those that no later access can tell apart become one
        self.start: int = start
        self.numbers: Numbers = Numbers(size, whole, start)
        self.count: int = 1
        self.limit: int = FEW
        self.collected: int = 0  # how often entries have got new numbers
        self.changes: int = 0  # how often granules have got other entries
        self._made: dict[
            tuple[int, int], tuple[Array, int, Array]
        ] = {}  # by site and first epoch: epochs, reach, entries
        self._made_at: int = 0  # the value of `collected` for which `_made` is valid

    @property
    def blank(self) -> bool:
        """Return whether no granule has got an entry yet."""
        return self.numbers.blank

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the column takes."""
        return self.numbers.nbytes + sum(getattr(self, name).nbytes for name in self.fields)

    def get(self, g: Array) -> Array:
        return self.numbers.get(g - self.start if self.start else g)

    def put(self, g: Array, numbers: Any) -> None:
        self.numbers.make(self.room)
        self.changes += 1
        self.numbers.put(g - self.start if self.start else g, numbers)

    def clear(self, g: Array) -> None:
        if not self.blank:
            self.changes += 1
            self.numbers.put(g - self.start if self.start else g, 0)

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
            self._reserve(max(self.count, min(self.count + self.count // (2 if self.count < _LONG else 8), self.limit)))
        return slice(first, self.count)

    def same_as_before(self, epoch: Array, site: int, reach: int) -> Array | None:
        """Return the entries (n,) that a site made for these epochs when it last made some; None if these were others."""
        if self._made_at != self.collected:
            self._made.clear()
        made = self._made.get((site, int(epoch[0])))
        return made[2] if made and made[1] == reach and np.array_equal(made[0], epoch) else None

    def keep_made(self, epoch: Array, site: int, reach: int, numbers: Array) -> Array:
        if self._made_at != self.collected or len(self._made) >= _SITES:
            self._made.clear()
            self._made_at = self.collected
        self._made[site, int(epoch[0])] = epoch, reach, numbers
        return numbers

    def _reserve(self, capacity: int) -> None:
        more = capacity - len(getattr(self, self.fields[0]))
        self.room(more * sum(getattr(self, name)[:1].nbytes for name in self.fields))
        for name in self.fields:
            old: Array = getattr(self, name)
            made: Array = np.zeros((capacity, *old.shape[1:]), old.dtype)
            made[: len(old)] = old
            setattr(self, name, made)

    def collect(self, wanted: int = 0, fold: bool = True) -> Array:
        """Drop entries that no granule refers to, and make room for `wanted` more. Return which of the old entries stay.

        `fold`: where too many are left, join those that no later access can tell apart.
        """
        used = np.zeros(self.count, np.bool_)
        used[0] = True
        for _, numbers in self.numbers.chunks():
            used[numbers] = True
        alike = self._fold(used) if fold and self.folding and np.count_nonzero(used) > self.many else None
        if not used.all():
            number = np.cumsum(used, dtype=np.uint32)
            np.subtract(number, 1, out=number)
            if alike is not None:  # in place, as those that stand for others come before them
                for at in range(0, len(used), _AT_ONCE):
                    number[at : at + _AT_ONCE] = number[alike[at : at + _AT_ONCE]]
            self.renumber(self, number)
            for name in self.fields:
                compress(getattr(self, name), used)
            self.count = int(np.count_nonzero(used))
            self.collected += 1
        self.limit = max(FEW, self.usual(), grown(self.count), self.count + wanted)
        most = self.numbers.most
        if self.limit > most:
            if self.count + max(self.count // 16, wanted) <= most:
                self.limit = most  # longer numbers would take more than the entries that are dropped in time
            else:
                self.numbers.fit(self.limit, self.room)
        if alike is not None and len(getattr(self, self.fields[0])) > self.limit:
            for name in self.fields:
                setattr(self, name, getattr(self, name)[: self.count].copy())
        return used

    def usual(self) -> int:
        """Return how many entries there may be without a look at which are in use."""
        per = _PER_ENTRY
        while self.folding and per < self.size:
            planes = max(0, (self.size // per - 1).bit_length() - (SHORT - 1).bit_length())
            if 2 + planes / SHARE + _ENTRY / per <= _MOST:
                break
            per *= 2
        return self.size // per

    def _fold(self, used: Array) -> Array | None:
        """Let the first of the `used` entries that no later access can tell apart stand for all; the others are not used then.

        Return for each entry the one that stands for it, or None if nothing is joined.
        """
        folding = self.folding() if self.folding else None
        if folding is None:
            return None
        return folded(folding, {name: getattr(self, name)[: self.count] for name in self.fields}, self.epochs, used)

    def renumber(self, source: Column, number: Array) -> None:
        """Replace each number n that `source` has for a granule of this column by `number[n]`."""
        first = source.start - self.start
        for span, numbers in source.numbers.chunks():
            self.numbers.make(self.room)
            self.numbers.fill(first + span.start, number[numbers])

    def join(self, others: Sequence[Column]) -> None:
        """Take over the granules and entries of columns of this kind, and leave those empty. This column is a new one.

        It takes some columns at a time, so that few entries are here twice.
        """
        fields = {name: getattr(self, name)[:1] for name in self.fields}
        left = list(others)
        while left:
            some: list[Column] = []
            most = max(len(fields[self.fields[0]]), SHORT)
            while left and (not some or sum(o.count for o in some) + left[0].count <= most):
                some.append(left.pop(0))
            more = {name: np.concatenate([getattr(o, name)[: o.count] for o in some]) for name in self.fields}
            fields, number = with_entries(fields, more)
            self.numbers.fit(len(fields[self.fields[0]]), self.room)
            first = 0
            for other in some:
                self.renumber(other, number[first : first + other.count])
                first += other.count
                other.numbers.drop()
                other._drop_fields()
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

    def refine(self, times: int, end: int | None = None, whole: Whole | None = None) -> None:
        """Split each granule into `times`. The numbers lie in `whole` then, if that is given.

        `end`: the granules of the buffer. The last granule before may have reached past the buffer, so a column ends there.
        """
        self.start *= times
        self.size = self.size * times if end is None else min(self.size * times, end - self.start)
        self.numbers = self.numbers.refined(times, self.size, whole, self.room)
        self.changes += 1


class Accesses(Column):
    """One access of each granule: its `epoch`, its `site`, and the `reach` of a strong one (`ShadowAccess.reach`)."""

    fields: tuple[str, ...] = ("epoch", "site", "reach")
    epochs: tuple[str, ...] = ("epoch",)

    def __init__(
        self, size: int, site_type: Any, room: Callable[[int], None], start: int = 0, whole: Whole | None = None
    ) -> None:  # fmt: skip
        super().__init__(size, room, start, whole)
        self.epoch: Array = np.zeros(1, np.int64)
        self.site: Array = np.zeros(1, site_type)
        self.reach: Array = np.zeros(1, np.int8)

    def held(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Return the (epochs, sites, reach) of entries."""
        return self.epoch[numbers], self.site[numbers], self.reach[numbers]

    def add(self, epoch: Array, site: Any, reach: Any) -> Array:
        """Make entries, and return their numbers (n,)."""
        made = self.new(len(epoch))
        self.epoch[made], self.site[made], self.reach[made] = epoch, site, reach
        return np.arange(made.start, made.stop)

    def of(self, epoch: Array, site: int, reach: int) -> Array:
        """Return the numbers (n,) of entries of these epochs. A site's last entries serve again for the same arguments."""
        made = self.same_as_before(epoch, site, reach)
        return self.keep_made(epoch, site, reach, self.add(epoch, site, reach)) if made is None else made

    def sample(self, one_of: int) -> Array:
        """Return one of so many entries as numbers, which are equal for equal entries."""
        return sample_of(self.epoch[: self.count], self.site[: self.count], one_of)

    def places(self) -> Array:
        """Return for each granule, (granules,), the site of its access + 1, or 0 if it has none."""
        return of_granules(self, places_of(self.epoch[: self.count], self.site[: self.count]))


def sample_of(epoch: Array, site: Array, one_of: int) -> Array:
    key = (epoch ^ (site.astype(np.int64) << 20)) * 0x2545F4914F6CDD1D
    return key[(key >> 33) % one_of == 0]


def compress(field: Array, kept: Array) -> None:
    """Move the elements that `kept` selects to the front, some at a time so that few are here twice."""
    to = 0
    for at in range(0, len(kept), _AT_ONCE):
        some = field[at : at + _AT_ONCE][: len(kept) - at][kept[at : at + _AT_ONCE]]
        field[to : to + len(some)] = some
        to += len(some)


def of_granules(column: Column, values: Array) -> Array:
    """Return for each granule, (granules,), the value of its entry."""
    made = np.full(column.size, values[0])
    for span, numbers in column.numbers.chunks():
        made[span] = values[numbers]
    return made


def places_of(epoch: Array, site: Array) -> Array:
    return np.where(epoch != 0, site.astype(np.int32) + 1, 0).astype(np.int32)


def distinct(fields: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the fields of the different entries, the first of them nobody's, and for each given entry its number there."""
    return with_entries({name: field[:1] for name, field in fields.items()}, fields)


def with_entries(held: dict[str, Array], more: dict[str, Array]) -> tuple[dict[str, Array], Array]:
    """Return the fields of `held` and of the entries of `more` that are not among them, and the number of each of `more`."""
    both = {name: np.concatenate([held[name], more[name]]) for name in held}
    n = len(next(iter(held.values())))
    order, new = ranked(both)
    first = order[new]  # the sort is stable, so this is one of `held` if there is one
    added = first >= n
    number: Array = np.empty(len(order), np.int64)
    number[order] = np.where(added, n + np.cumsum(added) - 1, first)[np.cumsum(new) - 1]
    return {name: np.concatenate([held[name], both[name][first[added]]]) for name in held}, number[n:]


def ranked(fields: dict[str, Array]) -> tuple[Array, Array]:
    """Return the order in which entries ascend, and which of them, in this order, differ from the one before."""
    order = np.lexsort(tuple(reversed(list(fields.values()))))
    new: Array = np.zeros(len(order), np.bool_)
    new[0] = True
    for field in fields.values():
        inorder = field[order]
        new[1:] |= inorder[1:] != inorder[:-1]
    return order, new


def grown(count: int) -> int:
    """Return how many entries there may be before the next collection, if one has left `count`."""
    return count + count // (2 if count < _LONG else 4)


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
    if rows.shape != (shape[0], 1):  # the call takes longer than all else here
        rows = np.broadcast_to(rows, (shape[0], 1))
    return rows[at // shape[1], 0]


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
