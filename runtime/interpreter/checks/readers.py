"""The readers of each granule of global memory: the last two, and the earlier ones that a later write may race with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import FEW, Accesses, Column, distinct, of_granules, places_of, sample_of
from .numbers import Whole

Array = npt.NDArray[Any]
# By the bytes of a granule: there may be one pair of readers for so many granules. So the shadow takes less than 6 bytes for
# each byte of memory.
_PAIRS = {1: 24, 2: 12, 4: 8}
_MOST = 64  # readers of a granule beside the last two; further ones are forgotten
_CHANGES = 128  # sets that one access changes; it forgets the readers of other granules
_AGENT = 32  # the lowest bit of an epoch's agent
ONE = ("r", "site", "reach")
TWO = ("r", "r2", "site", "site2", "reach")


class ReaderSets(Column):
    """Sets of readers of granules: `members` holds a tuple of (epoch, site) for each entry."""

    fields: tuple[str, ...] = ("members",)

    def __init__(self, size: int, room: Callable[[int], None], start: int = 0) -> None:
        super().__init__(size, room, start)
        self.members: Array = np.empty(1, object)
        self.members[0] = ()

    def keep(self, g: Array, epochs: Array, sites: Array) -> None:
        """Add a reader to the set of each granule, in place of the same agent's earlier read; all are (n,)."""
        for _ in range(_MOST):
            given = self._add(g, epochs, sites)
            other = (given != 0) & (self.get(g) != given)  # a granule with several readers has got the last one
            if not other.any():
                return
            g, epochs, sites = g[other], epochs[other], sites[other]

    def _add(self, g: Array, epochs: Array, sites: Array) -> Array:
        """Add one reader to the set of each granule. Return the numbers of the sets, (n,), or 0 where nothing changes."""
        had = self.get(g)
        order = np.lexsort((sites, epochs, had))
        fields = [field[order] for field in (had, epochs, sites)]
        new = np.zeros(len(order), np.bool_)
        new[0] = True
        for field in fields:
            new[1:] |= field[1:] != field[:-1]
        given = np.zeros(len(order), np.int64)
        made: dict[Any, list[int]] = {}
        for i, at in enumerate(np.flatnonzero(new)[:_CHANGES].tolist()):
            members, epoch = self.members[fields[0][at]], int(fields[1][at])
            if len(members) < _MOST and all(epoch != other for other, _ in members):
                others = tuple(m for m in members if m[0] >> _AGENT != epoch >> _AGENT)
                made.setdefault((*others, (epoch, int(fields[2][at]))), []).append(i)
        if not made:
            return given
        place = self.new(len(made))
        numbers: Array = np.zeros(int(new.sum()), np.int64)
        for number, (members, changed) in enumerate(made.items(), place.start):
            self.members[number] = members
            numbers[changed] = number
        given[order] = numbers[np.cumsum(new) - 1]
        self.put(g[given > 0], given[given > 0])
        return given

    def table(self, numbers: Array) -> list[tuple[Array, Array]]:
        """Return the (epochs, sites) of the first members of sets, of the second ones, and so on; 0 where a set has fewer."""
        kinds, which = np.unique(numbers, return_inverse=True)
        sets = [self.members[kind] for kind in kinds.tolist()]
        found: list[tuple[Array, Array]] = []
        for i in range(max(map(len, sets))):
            pairs = np.array([members[i] if i < len(members) else (0, 0) for members in sets], np.int64)
            found.append((pairs[which.reshape(numbers.shape), 0], pairs[which.reshape(numbers.shape), 1]))
        return found

    def join(self, others: Sequence[Column]) -> None:
        """Take over the granules of columns of this kind, which may lie anywhere within this one, a new one."""
        self.numbers.make(self.room)
        self.numbers.fit(sum(other.count for other in others), self.room)
        for other in others:
            assert isinstance(other, ReaderSets)
            first = self.new(other.count).start
            self.members[first : self.count] = other.members[: other.count]
            number = np.arange(first, self.count)
            number[0] = 0
            self.renumber(other, number)


class Readers(Column):
    """The last two readers of each granule, from different warps: epochs `r` and `r2`, their sites, and the reach of `r`.

    Words that are read first in one order and then in another make many different pairs. Then `second` takes over the earlier
    readers. For granules below 4 bytes that would take too much memory, so all earlier readers are forgotten. `further`
    has earlier readers that no later one is ordered after, if there are any.
    """

    def __init__(
        self, size: int, site_type: Any, room: Callable[[int], None], start: int = 0, whole: Whole | None = None
    ) -> None:  # fmt: skip
        super().__init__(size, room, start, whole)
        self.fields: tuple[str, ...] = ONE  # `TWO` as soon as a granule has two readers
        self.epochs: tuple[str, ...] = ("r",)
        self.r: Array = np.zeros(1, np.int64)
        self.r2: Array = np.zeros(1, np.int64)
        self.site: Array = np.zeros(1, site_type)
        self.site2: Array = np.zeros(1, site_type)
        self.reach: Array = np.zeros(1, np.int8)
        self._noted: tuple[int, int, Array, Array, Array] | None = None  # the last access that `note` recorded
        self.single: bool = False
        self.second: Accesses | None = None
        self.further: ReaderSets | None = None
        self._moved: Array = np.zeros(0, np.int64)  # for each entry, the number of its reader in `second`
        self._moved_at: int = -1  # the value of `second.collected` for which `_moved` is valid

    def held(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Return the (epochs, sites, reach) of the last readers of entries."""
        return self.r[numbers], self.site[numbers], self.reach[numbers]

    def repeats(self, site: int, epochs: Array, g: Array, rows: Array) -> bool:
        """Return whether this access is the one that was recorded last, as in a loop that waits."""
        noted = self._noted
        if noted is None or noted[:2] != (self.changes, site):
            return False
        return all(np.array_equal(a, b) for a, b in zip(noted[2:], (epochs, g, rows), strict=True))

    def note(self, site: int, epochs: Array, g: Array, rows: Array) -> None:
        self._noted = self.changes, site, epochs, g, rows

    def before(self, numbers: Array) -> tuple[Array, Array]:
        """Return the (epochs, sites) of the earlier readers of entries, as far as entries have them."""
        if self.fields is ONE:
            return np.zeros(numbers.shape, np.int64), np.zeros(numbers.shape, self.site.dtype)
        return self.r2[numbers], self.site2[numbers]

    def add(self, r: Array, site: Any, r2: Array, site2: Any, reach: Any) -> Array:
        """Make entries, and return their numbers (n,)."""
        if self.fields is ONE and r2.any():
            self.r2, self.site2 = np.zeros(len(self.r), np.int64), np.zeros(len(self.r), self.site.dtype)
            self.fields, self.epochs = TWO, ("r", "r2")
        made = self.new(len(r))
        self.r[made], self.site[made], self.reach[made] = r, site, reach
        if self.fields is TWO:
            self.r2[made], self.site2[made] = r2, site2
        return np.arange(made.start, made.stop)

    def of(self, r: Array, site: int, reach: int) -> Array:
        """Return the numbers (n,) of entries of single readers. A site's last entries serve again for the same arguments."""
        made = self.same_as_before(r, site, reach)
        return self.keep_made(r, site, reach, self.add(r, site, np.zeros(1), 0, reach)) if made is None else made

    def earlier(self, second: Accesses, numbers: Array) -> Array:
        """Move the readers of entries `numbers` (n,) to `second`, since others follow them. Return their numbers there."""
        found = np.unique(numbers)
        second.make_room(len(found))
        if self._moved_at != second.collected:
            self._moved, self._moved_at = np.zeros(len(self.r), np.int64), second.collected
        self._moved = np.pad(self._moved, (0, len(self.r) - len(self._moved)))
        missing = found[self._moved[found] == 0]
        if len(missing):
            self._moved[missing] = second.add(self.r[missing], self.site[missing], 0)
        return self._moved[numbers]

    def keep(self, g: Array, epochs: Array, sites: Array) -> None:
        """Keep readers of granules (n,) beside the last two."""
        if self.further is None:
            self.further = ReaderSets(self.size, self.room, self.start)
        self.further.keep(g, epochs, sites)

    def _fold(self, used: Array) -> Array | None:
        alike = super()._fold(used)
        if alike is not None:
            self._moved = np.zeros(0, np.int64)  # an entry stands for several readers now
        return alike

    def collect(self, wanted: int = 0, fold: bool = True) -> Array:
        used = super().collect(wanted, fold)
        if len(self._moved):
            self._moved = np.pad(self._moved, (0, len(used)))[: len(used)][used]
        return used

    def part(self, granule: int, always: bool = False) -> None:
        """Keep second readers in `second`, or forget them, if there are too many pairs for granules of this many bytes.

        `always`: do this for any number of pairs.
        """
        most = 0 if always else max(self.size // _PAIRS.get(granule, 1), 2 * FEW)
        if self.single or self.count <= most:
            return
        self.collect()
        if self.count <= most:
            return
        self.single = True
        count = self.count
        if granule >= 4:
            self.second = Accesses(self.size, self.site.dtype, self.room, self.start)
            epochs, sites = self.before(np.arange(count))
            none = np.zeros(count, np.int8)
            fields, number = distinct({"epoch": epochs, "site": sites, "reach": none})
            self.second.numbers.fit(len(fields["epoch"]), self.room)
            self.second.renumber(self, number)
            self.second.take(fields)
        else:
            self.further = None
        self.fields, self.epochs = ONE, ("r",)
        self.r2, self.site2 = self.r2[:1].copy(), self.site2[:1].copy()
        fields, number = distinct({name: getattr(self, name)[:count] for name in ONE})
        self.renumber(self, number)
        self.take(fields)

    def clear(self, g: Array) -> None:
        super().clear(g)
        for column in self._others():
            column.clear(g)

    def refine(self, times: int, end: int | None = None, whole: Whole | None = None) -> None:
        super().refine(times, end, whole)
        for column in self._others():
            column.refine(times, end)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(column.nbytes for column in self._others())

    def _others(self) -> list[Column]:
        return [column for column in (self.second, self.further) if column is not None]

    def sample(self, one_of: int) -> Array:
        """Return one of so many entries as numbers, which are equal for equal entries."""
        return sample_of(self.r[: self.count], self.site[: self.count], one_of)

    def places(self) -> Array:
        """Return for each granule, (granules,), the site of its last reader + 1, or 0 if it has none."""
        return of_granules(self, places_of(self.r[: self.count], self.site[: self.count]))
