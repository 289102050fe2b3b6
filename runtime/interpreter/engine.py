"""The asynchronous engines of a batch: operations that were issued and have not taken effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import Batch


@dataclass(slots=True)
class Pending:
    """An operation in flight: `perform` makes it take effect."""

    perform: Callable[[], None]
    what: str
    done: bool = False

    def now(self) -> None:
        if not self.done:
            self.done = True
            self.perform()


class Engine:
    """Decides when operations take effect: at once ("eager"), when nothing else can go on ("late"), or by the seed."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.pending: list[Pending] = []
        self.schedule = batch.run.config.schedule

    def issue(self, perform: Callable[[], None], what: str) -> Pending:
        """Put an operation in flight; under the eager schedule it takes effect now."""
        op = Pending(perform, what)
        if self.schedule == "eager":
            op.now()
            self.batch.run.progress += 1
        else:
            self.pending.append(op)
        return op

    def force(self, ops: list[Pending]) -> None:
        """Make these take effect: their completion is being observed."""
        for op in ops:
            op.now()
        if self.pending:
            self.pending = [p for p in self.pending if not p.done]
        self.batch.run.progress += 1

    def stepped(self) -> None:
        """Called between groups: under the random schedule some operations take effect."""
        rng = self.batch.run.rng
        if rng is None or not self.pending:
            return
        while self.pending and rng.random() < 0.5:
            self.force([self.pending[rng.randrange(len(self.pending))]])

    def unblock(self) -> bool:
        """Nothing in the batch can go on: let one operation take effect. False if there is none."""
        self.pending = [p for p in self.pending if not p.done]
        if not self.pending:
            return False
        rng = self.batch.run.rng
        at = 0 if rng is None else rng.randrange(len(self.pending))
        self.force([self.pending[at]])
        return True

    def drain(self) -> None:
        """The blocks have exited: what is in flight still takes effect."""
        while self.pending:
            self.force([self.pending[0]])

    def at_exit(self) -> None:
        """Checks when all blocks of the batch have exited."""
