"""The last two readers of each granule of global memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import FEW, SHORT, Accesses, Column, distinct, places_of

Array = npt.NDArray[Any]
# By the bytes of a granule: there may be one pair of readers for so many granules. So the shadow takes less than 6 bytes for
# each byte of memory.
_PAIRS = {1: 24, 2: 12, 4: 8}


class Readers(Column):
    """The last two readers of each granule, from different warps: epochs `r` and `r2`, their sites, and the reach of `r`.

    Words that are read first in one order and then in another make many different pairs. Then `second` takes over the earlier
    readers. For granules below 4 bytes that would take too much memory, so the earlier readers are forgotten.
    """

    fields = ("r", "r2", "site", "site2", "reach")

    def __init__(self, size: int, site_type: Any, room: Callable[[int], None], start: int = 0) -> None:
        super().__init__(size, room, start)
        self.r: Array = np.zeros(1, np.int64)
        self.r2: Array = np.zeros(1, np.int64)
        self.site: Array = np.zeros(1, site_type)
        self.site2: Array = np.zeros(1, site_type)
        self.reach: Array = np.zeros(1, np.int8)
        self._last: tuple[Array, int, int, int] | None = None
        self._numbers: Array = np.zeros(0, np.int64)
        self._noted: tuple[int, int, Array, Array, Array] | None = None  # the last access that `note` recorded
        self.single: bool = False
        self.second: Accesses | None = None
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

    def add(self, r: Array, site: Any, r2: Any, site2: Any, reach: Any) -> Array:
        """Make entries, and return their numbers (n,)."""
        made = self.new(len(r))
        self.r[made], self.site[made], self.r2[made], self.site2[made], self.reach[made] = r, site, r2, site2, reach
        return np.arange(made.start, made.stop)

    def of(self, r: Array, site: int, reach: int) -> Array:
        """Return the numbers (n,) of entries of single readers. If the last call had the same arguments, use its entries."""
        last = self._last
        if last is None or last[1:] != (site, reach, self.collected) or not np.array_equal(last[0], r):
            self._numbers = self.add(r, site, 0, 0, reach)
            self._last = r, site, reach, self.collected
        return self._numbers

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

    def collect(self, wanted: int = 0) -> Array:
        kept = super().collect(wanted)
        if len(self._moved):
            self._moved = np.pad(self._moved, (0, int(kept[-1]) + 1))[kept]
        return kept

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
        none = np.zeros(self.count, np.int8)
        if granule >= 4:
            self.second = Accesses(self.size, self.site.dtype, self.room, self.start)
            fields, number = distinct({"epoch": self.r2[: self.count], "site": self.site2[: self.count], "reach": none})
            self.second.numbers = self._renumbered(number)
            self.second.take(fields)
        held = {"r": self.r, "r2": none, "site": self.site, "site2": none, "reach": self.reach}
        fields, number = distinct({name: field[: self.count] for name, field in held.items()})
        self.numbers = self._renumbered(number)
        self.take(fields)

    def _renumbered(self, number: Array) -> Array:
        """Return the numbers of all granules, with each number i replaced by `number[i]`."""
        if self.blank:
            return self.numbers
        made = np.zeros(self.size, np.uint16 if int(number.max()) < SHORT else np.uint32)
        for part in self.chunks():
            made[part] = number[self.numbers[part]]
        return made

    def clear(self, g: Array) -> None:
        super().clear(g)
        if self.second is not None:
            self.second.clear(g)

    def refine(self, times: int) -> None:
        super().refine(times)
        if self.second is not None:
            self.second.refine(times)

    @property
    def nbytes(self) -> int:
        return super().nbytes + (self.second.nbytes if self.second is not None else 0)

    def places(self) -> Array:
        """Return for each granule, (granules,), the site of its last reader + 1, or 0 if it has none."""
        return places_of(self.r[: self.count], self.site[: self.count])[self.numbers]
