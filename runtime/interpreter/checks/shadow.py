"""Shadow memory: the last writer and readers of each granule, and their order (FastTrack, vectorised).

A granule is as large as the smallest access seen so far. An epoch packs the agent (`clocks.py`) in bits 32 and up, the
atomic flag in bit 31 and the agent's clock in bits 0 to 30; zero means that there was no access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Instruction
from .columns import Accesses, Column, rows_at, run_heads
from .kinds import HazardKind
from .poison import LOADS, fresh
from .shadow_access import ShadowAccess, adds_nothing, generic_access
from .strong import ATOMIC, StrongPairs
from .wording import AccessSide, conflict

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run

Array = npt.NDArray[Any]
CLOCK = np.int64((1 << 31) - 1)
SHARED_READ = np.int64(1 << 62)
AGENT = np.int64((1 << 30) - 1)


def row_of(span: slice) -> Array:
    """Return the (1, k) granules of a stretch."""
    return np.arange(span.start, span.stop, dtype=np.int64).reshape(1, -1)


def agent_of(epoch: Array) -> Array:
    return (epoch >> np.int64(32)) & AGENT


class Shadow:
    """The shadow of one array of bytes. Subclasses define which agents are comparable and how texts name them."""

    place: tuple[Any, ...] = ()  # the key of this memory in synchronisation events
    wraps: bool = False  # whether two agents may have one name
    in_blocks: bool = True  # whether it is the memory of a batch's blocks, whose clusters number their agents alike

    def __init__(self, size: int, run: Run, site_type: Any = np.int32) -> None:
        self.size = size
        self.run = run
        self.strong: StrongPairs = StrongPairs(run)
        self.site_type = site_type
        self.granule: int = 0
        self.stores: int = 0  # writes so far, without atomic additions of nothing
        self.writes: Accesses = Accesses(0, site_type, self.check_room)
        self.reads: Any = None  # a `Column`, whose entries the subclass defines

    # --- granules ------------------------------------------------------------------------------

    def fit(self, size: int) -> None:
        """Make granules at most `size` bytes."""
        if self.granule and self.granule <= size:
            return
        if not self.granule:
            self.granule = min(size, 16)
            n = -(-self.size // self.granule)
            self.writes = Accesses(n, self.site_type, self.check_room)
            self.reads = self._made(n)
            return
        times = self.granule // size
        self.granule = size
        self.writes.refine(times)
        self.reads.refine(times)
        self.strong.refine(times)
        self._refined(times)

    @property
    def identity(self) -> Any:
        """Return what tells this memory from any other of its run."""
        return self.place

    @property
    def count(self) -> int:
        """Return the number of granules."""
        return -(-self.size // self.granule)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the granules take."""
        return self.writes.nbytes + self.reads.nbytes if self.granule else 0

    def check_room(self, needed: int) -> None:
        """Raise MemoryError if this machine has fewer bytes left than needed."""

    def _made(self, n: int) -> Column:
        """Return the column of readers for `n` granules, which are made for the first time."""
        raise AssertionError("each shadow keeps its own readers")

    def _refined(self, times: int) -> None:
        """React to the split of each granule into `times`."""

    def granules(self, index: Array, size: int, count: int) -> Array:
        """Return the granule indices, (rows, lanes) or (rows, lanes, k), of word indices (rows, lanes).

        Accesses of `count` words are aligned to their whole width.
        """
        width = size * count
        self.fit(min(width, 16))
        if count > 1:
            index = index // count
        k = width // self.granule
        return index if k == 1 else (index * k)[..., None] + np.arange(k)

    # --- accesses by lanes ---------------------------------------------------------------------

    def read(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction,
        form: Any,
    ) -> None:  # fmt: skip
        self.run.accesses += 1
        if self.run.doubts.known:
            self.run.doubts.refine(self)
        granules = self.granules(index, size, count)
        g, rows = self.select(granules, mask)
        if g.size:
            access = generic_access(c, ins, form.strong)
            access.reach = getattr(form, "reach", 0)
            if ins.opcode[0] in LOADS:
                access.loaded = granules, mask, count
            if form.strong:
                self._tell(access, g, rows, "read")
            self.on_read(access, g, rows)

    def write(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction,
        form: Any, same: Any = None,
    ) -> ShadowAccess | None:  # fmt: skip
        """Check and record a write.

        `same()` returns the lanes (rows, 32) that write the value that memory already holds.
        """
        access = generic_access(c, ins, form.strong)
        access.reach = getattr(form, "reach", 0)
        return self.note_write(access, self.granules(index, size, count), mask, same)

    def note_write(self, a: ShadowAccess, granules: Array, mask: Array | None, same: Any) -> ShadowAccess | None:
        """Check and record a write of lanes to granules (rows, 32) or (rows, 32, k); `same` as in `write`."""
        self.run.accesses += 1
        g, rows = self.select(granules, mask)
        if not g.size:
            return None
        if same is not None:
            shape = granules.shape
            a.same = lambda: self.select(
                np.broadcast_to(same().reshape(*shape[:2], *([1] * (len(shape) - 2))), shape), mask
            )[0]
        if a.strong:
            self._tell(a, g, rows, "write")
        self.on_write(a, g, rows)
        if not a.strong:
            self.check_clash(a, g, rows)
        return a

    def _tell(self, a: ShadowAccess, g: Array, rows: Array, kind: str) -> None:
        """Record strong accesses if the order of synchronisation is explored; mbarriers record their own."""
        batch = a.c.batch
        order = batch.run.order
        if order is None or a.ins.opcode[0] == "mbarrier":
            return
        pairs = np.unique(np.stack([np.broadcast_to(rows, g.shape).reshape(-1), g.reshape(-1)]), axis=1)
        places = [(*self.place, int(at) * self.granule) for at in pairs[1]]
        order.warps(batch, a.c.rows[pairs[0]], lambda i: places[i], kind, lambda i: 0)

    def settle_clash(self, a: ShadowAccess) -> None:
        """Report warps that wrote different values to one place by the same instruction, once memory is written."""
        self.run.accesses += 1
        *what, a.same = a.clash
        self.report_writes(a, *what)

    def check_clash(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Set `a.clash` if warps that run as one vector have written the same granule by this instruction."""
        if a.c.n == 1:
            return
        w = self.writes.get(g)
        if (w == self.writes.of(self.epoch(a), a.site, a.reach)[rows]).all():  # as `on_write` left them
            return
        lost = self.writes.epoch[w] != self.epoch(a)[rows]
        if lost.any():
            a.clash = (g, rows, lost, self.writes.epoch[w], self.writes.site[w], a.same)

    def atomic(self, c: Group, index: Array, size: int, mask: Array | None, ins: Instruction, form: Any) -> None:
        self.run.accesses += 1
        g, rows = self.select(self.granules(index, size, 1), mask)
        if g.size:
            access = generic_access(c, ins, True)
            access.reach = form.reach
            self.check_initialised(access, g, rows)
            self._tell(access, g, rows, "add" if ins.opcode[0] == "red" else "read" if form.fails else "write")
            self.on_write(access, g, rows)

    @staticmethod
    def select(g: Array, mask: Array | None) -> tuple[Array, Array]:
        """Return the flat granule indices of active lanes, and the row of each."""
        n = g.shape[0]
        rows: Array = np.arange(n, dtype=np.int64)
        if mask is None:
            column: Array = np.expand_dims(rows, 1)
            return g.reshape(n, -1), column
        spread: Array = np.broadcast_to(np.expand_dims(rows, tuple(range(1, g.ndim))), g.shape)
        flat: Array = spread[mask].reshape(-1)
        return g[mask].reshape(-1), flat

    # --- the checks ----------------------------------------------------------------------------

    def on_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        w = self.writes.get(g)
        self.check_initialised(a, g, rows, w)
        doubts = self.run.doubts
        if doubts.known and a.loaded is not None:
            g, rows = doubts.without(self, a, g, rows)
            if not g.size:
                return
            w = self.writes.get(g)
        bad = self._after_writes(a, g, rows, w)
        if bad is not None:
            self.report(a, g, rows, bad, self.writes.epoch[w], self.writes.site[w], False)
        elif a.strong:
            self.strong.check(self, a, g, rows, self.writes.held(w), False, False)
        else:
            self.strong.check_before(self, a, g, rows, False)
        self.note_read(a, g, rows)

    def on_write(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        self.stores += not adds_nothing(a.ins)
        w = self.writes.get(g)
        bad = self._after_writes(a, g, rows, w)
        if bad is not None:
            self.report_writes(a, g, rows, bad, self.writes.epoch[w], self.writes.site[w])
        elif not a.strong:
            self.strong.check_before(self, a, g, rows, True)
        if a.strong:
            self.strong.check(self, a, g, rows, self.writes.held(w), True, False)
            self.strong.displaces(self, a, g, rows, self.writes.held(w))
        self.after_readers(a, g, rows)
        self.writes.put(g, self.writes.of(self.epoch(a), a.site, a.reach)[rows])
        if a.strong and len(a.agent) > 1:
            self._with_others(a, g, rows)

    def _after_writes(self, a: ShadowAccess, g: Array, rows: Array, w: Array) -> Array | None:
        """Return which granules' last writes, by number, are unordered with the access; None if there are none."""
        bad = self._judge(w, rows, lambda n, r: self.unordered(a, self.writes.epoch[n], r))
        return None if bad is None else self.strong.unobserved(self, a, g, rows, bad, self.writes.epoch[w])

    def last_readers(self, g: Array) -> Iterator[Array]:
        """Yield epochs of readers of granules (n,) since their last writes."""
        yield self.reads.r[self.reads.get(g)]

    def after_readers(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Check a write against the readers of its granules, which are forgotten then."""
        if self.reads.blank:
            return
        r = self.reads.get(g)
        if a.strong:
            self.strong.check(self, a, g, rows, self.reads.held(r), True, True)
        if r.any():
            self.check_readers(a, g, rows, r)
            self.reads.clear(g)

    def _with_others(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Check strong writes of warps that run as one vector against the last of them, which shadow memory has."""
        last, mine = self.writes.get(g), self.epoch(a)[rows]
        lost = self.writes.epoch[last] != mine
        if lost.any():
            some, row = g[lost], np.broadcast_to(rows, g.shape)[lost]
            self.strong.check(self, a, some, row, self.writes.held(last[lost]), True, False)
            if a.ins.opcode[0] == "st":
                before = np.broadcast_to(mine, g.shape)[lost]
                self.strong.displaced(self, some, before, np.full(len(some), a.site))

    @staticmethod
    def _judge(numbers: Array, rows: Array, test: Callable[[Array, Array], Array | None]) -> Array | None:
        """Return `test(numbers, rows)`: which elements are bad, or None. Where entries repeat, test one of each run first."""
        at = run_heads(numbers, rows)
        if at is not None and test(numbers.reshape(-1)[at], rows_at(rows, numbers.shape, at)) is None:
            return None
        return test(numbers, rows)

    def epoch(self, a: ShadowAccess) -> Array:
        """Return the epochs, (rows,), that this access stores."""
        mine = (self.name_agent(a) << np.int64(32)) | a.clock
        return mine | ATOMIC if a.strong else mine

    def name_agent(self, a: ShadowAccess) -> Array:
        return a.agent.astype(np.int64)

    def far(self, a: ShadowAccess, epochs: Array, rows: Array, reach: Array) -> Array:
        """Return which agents of `epochs` are outside the `reach` (`ShadowAccess.reach`) of the accessing agent."""
        raise AssertionError("each shadow names its own agents")

    def is_queue(self, agent: Array) -> Array:
        """Return which agents are asynchronous queues; the others are warps."""
        raise AssertionError("each shadow names its own agents")

    @staticmethod
    def agent_of(epoch: Array) -> Array:
        return agent_of(epoch)

    def unordered(self, a: ShadowAccess, epochs: Array, rows: Array) -> Array | None:
        """Return which `epochs` are not ordered before the access; None if all are."""
        if not epochs.any():
            return None
        agent = agent_of(epochs)
        mine = self.name_agent(a)[rows]
        other = agent != mine
        if a.queue:  # operations of one queue are unordered, except after an operation that was waited for
            other |= (epochs & CLOCK) != a.clock[rows]
        if a.strong:
            other &= (epochs & ATOMIC) == 0
        other &= epochs != 0
        return self.unordered_of(other, a, epochs, rows)

    def unordered_of(self, some: Array, a: ShadowAccess, epochs: Array, rows: Array) -> Array | None:
        """Return which of the epochs that `some` selects are not ordered before the access; None if all of these are."""
        if not some.any():
            return None
        at = np.nonzero(some)
        row = (rows if rows.shape == epochs.shape else np.broadcast_to(rows, epochs.shape))[at]
        ordered = self.ordered(a, row, agent_of(epochs[at]), epochs[at] & CLOCK)
        if ordered.all():
            return None
        bad = np.zeros(epochs.shape, np.bool_)
        bad[tuple(i[~ordered] for i in at)] = True
        return bad

    def ordered(self, a: ShadowAccess, row: Array, agent: Array, clock: Array) -> Array:
        """Return whether (agent, clock) is ordered before the access of `row`."""
        return a.known[row, 0, agent] >= clock

    def check_initialised(self, a: ShadowAccess, g: Array, rows: Array, w: Array | None = None) -> None:
        """Report granules that nobody has written; a load gets poison from them. `w`: the granules' entries."""
        w = self.writes.get(g) if w is None else w
        if w.all():
            return
        where = tuple(int(i[0]) for i in np.nonzero(w == 0))
        row = int(np.broadcast_to(rows, g.shape)[where])
        what = f"{self.name(a, row, int(g[where]))} is read {self.missing(g[where])}"
        what = self.origin_of(what, int(g[where]))
        if a.loaded is None:
            a.c.batch.run.reporter.defer(HazardKind.UNINITIALISED, what, a.ins, (self.who(a, row),))
            return
        granules, mask, count = a.loaded
        bad = self.unwritten(granules)
        if bad.ndim == 3:
            bad = np.any(bad.reshape(*bad.shape[:2], count if bad.shape[2] % count == 0 else 1, -1), axis=3)
            bad = bad if bad.shape[2] == count > 1 else np.any(bad, axis=2)
        if mask is not None:
            bad &= mask if bad.ndim == 2 else mask[..., None]
        fresh(a.c, bad, what)

    def unwritten(self, g: Array) -> Array:
        """Return which granules nobody has written."""
        return self.writes.get(g) == 0

    def missing(self, granule: int) -> str:
        """Return why a granule has no data."""
        return "before anything was written to it"

    def origin_of(self, what: str, granule: int) -> str:
        """Return what is unwritten, in words: by default `what`."""
        return what

    def who(self, a: ShadowAccess, row: int) -> str:
        """Return the text of the accessing agent."""
        raise AssertionError("each shadow names its own agents")

    def check_readers(self, a: ShadowAccess, g: Array, rows: Array, r: Array) -> None:
        """Report readers that a write is not ordered after. `r`: the granules' entries."""
        raise AssertionError("each shadow keeps its own readers")

    def note_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        raise AssertionError("each shadow keeps its own readers")

    # --- reporting -----------------------------------------------------------------------------

    def report_writes(
        self, a: ShadowAccess, g: Array, rows: Array, bad: Array, w: Array, sites: Array, fence: bool = False
    ) -> None:
        """Report writes not ordered after earlier ones. Writes of the value that memory already holds are a kind of their
        own. Which lane wins, where several of one warp write one place, is open in any order: one of them must write that value.
        """
        same: Array = np.zeros(bad.shape, np.bool_)
        if a.same is not None:
            a.c.batch.engine.land()  # the earlier write must have taken effect before memory is compared
            same = np.broadcast_to(a.same(), bad.shape)
            if (bad & ~same).any() and same.any():
                same = _by_any_lane(same, g, np.broadcast_to(rows, g.shape))
        for some, equal in ((bad & ~same, False), (bad & same, True)):
            if some.any():
                self.report(a, g, rows, some, w, sites, True, fence=fence, equal=equal)

    def report(
        self, a: ShadowAccess, g: Array, rows: Array, bad: Array, epochs: Array, sites: Array, writes: bool,
        earlier_reads: bool = False, fix: str = "", fence: bool = False, equal: bool = False,
    ) -> None:  # fmt: skip
        if not (fence or fix or equal):
            bad = self.run.doubts.put_off(self, a, g, rows, bad, epochs, sites, earlier_reads)
            if not bad.any():
                return
        where = tuple(int(i[0]) for i in np.nonzero(bad))
        granule = int(g[where])
        row = int(np.broadcast_to(rows, g.shape)[where])
        epoch = int(epochs[where])
        conflict(self, a, row, granule, epoch, int(sites[where]), writes, earlier_reads, fence, fix, equal)

    def side(self, a: ShadowAccess, row: int, epoch: int, site: int, writes: bool) -> AccessSide:
        """Return the text of the earlier access."""
        raise AssertionError("each shadow names its own agents")

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        raise AssertionError("each shadow names its own memory")


def _by_any_lane(same: Array, g: Array, rows: Array) -> Array:
    """Return for each access whether one of its warp's accesses to its granule is True in `same`."""
    _, of = np.unique(rows * (int(g.max()) + 1) + g, return_inverse=True)
    of = of.reshape(same.shape)
    return np.bincount(of[same], minlength=int(of.max()) + 1)[of] > 0
