"""The order of synchronisation events: recorded in a run, and steered in the next one.

Vector clocks find races independently of the order in which warps run, as long as synchronisation has the same order.
Its order may change where two events at one object (a named barrier, an mbarrier, a word of atomics or strong accesses) are
unordered and do not commute. `Order` holds a warp, or a copy in flight, before one event until another has happened, and
reports such pairs of the run that it steered.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.engine import Pending
    from ..machine.group import Group

Array = npt.NDArray[Any]
Actor = tuple[Any, ...]  # ("warp", launch, block, warp), or ("copy", launch, number)
Step = tuple[Actor, int]  # an actor and the number of its event, from 1
Hold = tuple[Step, Step]  # the first waits for the second
_MOST = 30_000  # events of a run that are kept
_WINDOW = 48  # earlier events of an object that an event is compared with


@dataclass(frozen=True, slots=True)
class SyncEvent:
    """One event at an object.

    `kind`: arrive, saw, took (seen by a test that does not wait), missed (mbarriers); meet (named barriers); read, write, add
    (memory). `phase`: the barrier's phase.
    """

    step: Step
    kind: str
    phase: int
    agent: int
    clock: int
    known: Array  # (columns,): the clocks that the actor knew before
    team: int


class Order:
    """Steers the launches of one run by `holds`, and records their synchronisation events."""

    def __init__(self, holds: frozenset[Hold] = frozenset()) -> None:
        self.holds: dict[Step, Step] = dict(holds)
        self.done: dict[Actor, int] = {}
        self.events: dict[Any, list[SyncEvent]] = {}
        self.launch: int = 0
        self.copies: int = 0
        self.recorded: int = 0
        self.found: list[Hold] | None = None
        self.performing: Actor | None = None
        self.issuers: dict[
            tuple[int, int, int], Array
        ] = {}  # (cluster, queue, clock) of a copy -> the clocks that its warp knew
        self.held: list[tuple[Batch, Group]] = []
        self.kept: list[tuple[Pending, Hold]] = []
        self.open: bool = False  # whether some orders cannot be explored: events do not show them, or a hold failed

    def begin(self) -> None:
        """Begin another launch."""
        self.launch += 1
        self.copies = 0

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs to go back to this moment, at which nothing is held."""
        return _copied(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to the moment at which `state` was taken."""
        vars(self).update(_copied(state))

    # --- steering ------------------------------------------------------------------------------

    def _blocked(self, actor: Actor) -> Hold | None:
        step = actor, self.done.get(actor, 0) + 1
        until = self.holds.get(step)
        if until is None or self.done.get(until[0], 0) >= until[1]:
            return None
        return step, until

    def admit(self, batch: Batch, g: Group) -> Group | None:
        """Return the warps of `g` that may synchronise now; hold the others."""
        if not self.holds:
            return g
        stop = np.array([self._blocked(self._warp(batch, row)) is not None for row in g.rows.tolist()])
        if not stop.any():
            return g
        self.held.append((batch, g.subset(g.pc, stop)))
        return None if stop.all() else g.subset(g.pc, ~stop)

    def _warp(self, batch: Batch, row: int) -> Actor:
        return "warp", self.launch, batch.first + int(batch.row_cta[row]), int(batch.row_warp[row])

    def release(self, forced: bool = False) -> bool:
        """Release the groups whose holds have ended.

        `forced`: nothing else can go on, so release one group in any case.
        """
        kept, self.held = self.held, []
        freed = False
        for batch, g in kept:
            stop = np.array([self._blocked(self._warp(batch, row)) is not None for row in g.rows.tolist()])
            if forced and not freed:
                for row in g.rows.tolist():
                    self.holds.pop((self._warp(batch, row), self.done.get(self._warp(batch, row), 0) + 1), None)
                stop[:] = False
            if not stop.all():
                freed = True
                batch.push(g.subset(g.pc, ~stop))
            if stop.any():
                self.held.append((batch, g.subset(g.pc, stop)))
        copies, self.kept = self.kept, []
        for op, hold in copies:
            if self.done.get(hold[1][0], 0) >= hold[1][1] or (forced and not freed):
                freed = True
                op.now()
            else:
                self.kept.append((op, hold))
        return freed

    def copy(self, op: Pending) -> None:
        """Let an issued copy take effect now, or when its hold ends."""
        self.copies += 1
        actor: Actor = ("copy", self.launch, self.copies)
        perform = op.perform

        def steered() -> None:
            self.performing = actor
            perform()
            self.performing = None
            self.done[actor] = 1

        op.perform = steered
        hold = self._blocked(actor)
        if hold is None:
            op.now()
        else:
            self.kept.append((op, hold))

    # --- recording -----------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Return whether this run has shown that some orders cannot be explored."""
        self.reversals()
        return self.open

    def issued(self, batch: Batch, team: int, agent: int, queue: int, clock: int) -> None:
        """Record that a warp is about to issue a copy."""
        self.issuers[team + batch.first // batch.cluster, queue, clock] = batch.clocks.known[team, agent, 0].copy()

    def warps(
        self, batch: Batch, rows: Array, place: Callable[[int], Any], kind: str, phase: Callable[[int], int]
    ) -> None:
        """Record one event of each warp in `rows` (numbers in the batch).

        It is at `place(i)`, in `phase(i)` of the object there.
        """
        clocks = batch.clocks
        if clocks is None:
            return
        if self.recorded > _MOST and not self.holds:
            self.open = True
            return
        self.recorded += len(rows)
        for i, row in enumerate(rows.tolist()):
            actor = self._warp(batch, row)
            events = self.events.setdefault((self.launch, place(i)), [])
            if kind == "read" and events and events[-1].kind == kind and events[-1].step[0] == actor:
                continue  # the warp polls, and no other agent had an event here since
            self.open |= bool(self.holds) and self._blocked(actor) is not None
            self.done[actor] = self.done.get(actor, 0) + 1
            team, agent = int(batch.row_team[row]), int(batch.row_agent[row])
            known = clocks.known[team, agent, 0].copy()
            team += batch.first // batch.cluster
            events.append(SyncEvent((actor, self.done[actor]), kind, phase(i), agent, int(known[agent]), known, team))

    def completed(self, batch: Batch, cta: int, offset: int, phase: int, queue: int, clock: int) -> None:
        """Record that a copy has completed on an mbarrier."""
        if self.performing is None or batch.clocks is None:
            return
        team = cta // batch.cluster + batch.first // batch.cluster
        known = self.issuers.get((team, queue, clock))
        event = SyncEvent(
            (self.performing, 1), "arrive", phase, queue, clock, np.zeros(0) if known is None else known, team
        )
        place = "mbarrier", batch.first + cta, offset
        self.events.setdefault((self.launch, place), []).append(event)

    def signature(self) -> Any:
        """Return the events at each object in order: equal for runs that synchronise in the same order."""
        return frozenset(
            (place, tuple((e.step, e.kind, e.phase) for e in events)) for place, events in self.events.items()
        )

    # --- what else might have happened ----------------------------------------------------------

    def reversals(self) -> list[Hold]:
        """Return holds that reverse pairs of events which are unordered and do not commute. Call this after the run."""
        if self.found is not None:
            return self.found
        self.found = found = list[Hold]()
        for (_, place), events in self.events.items():
            for at, later in enumerate(events):
                window = events[max(0, at - _WINDOW) : at]
                self.open |= at > _WINDOW
                for earlier in reversed(window):
                    if earlier.step[0] == later.step[0] or not _conflict(earlier, later):
                        continue
                    if earlier.team != later.team or place[0] == "global":
                        self.open = True  # the order of blocks, and of memory that they share, is not explored
                    elif not _before(earlier, later):
                        found.append((earlier.step, later.step))
        return found


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    made = {name: copy(value) for name, value in state.items()}
    return made | {"events": {place: list(events) for place, events in state["events"].items()}}


def _before(a: SyncEvent, b: SyncEvent) -> bool:
    """Return whether `a` is ordered before `b` by the clocks that `b`'s actor knew."""
    return a.agent < len(b.known) and int(b.known[a.agent]) >= a.clock


def _conflict(a: SyncEvent, b: SyncEvent) -> bool:
    """Return whether the order of two events of one object, `a` first, changes the outcome."""
    if a.kind == "meet":
        return a.phase != b.phase
    if a.kind in ("read", "write", "add"):
        return not (a.kind == b.kind and a.kind != "write")
    if a.kind == "arrive":  # a test before the arrival finds the phase incomplete
        return (b.kind == "arrive" and a.phase != b.phase) or (b.kind == "took" and a.phase == b.phase)
    if a.kind in ("saw", "took"):  # in the other order, the waiter may find that the next phase is complete, too
        return b.kind == "arrive" and b.phase > a.phase
    return b.kind == "arrive"  # missed: a test found the phase incomplete
