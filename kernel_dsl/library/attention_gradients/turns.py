"""The order of steps of blocks that add to sums in turn: each begins where no other block adds at that time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from .keys import WalkKeys
from .order import MOST_STEPS


@dataclass(frozen=True)
class WalkStep:
    """A step of the walk: its number, the stages that it uses, the query head, and its number within the head."""

    number: Any
    slot: Any
    dout_slot: Any
    head: Any
    index: Any


class WalkOrder(WalkKeys):
    """The walk of blocks that add in turn, by the number of their keys.

    Steps have numbers: from the last queries to the first, those of all heads of a group one after the other; of
    blocks that share them, each has every so manyth. If all blocks of a head began with step 0, the sum of each
    step would get all of them at the same time, and the last block would begin when all others have added. Instead each
    block has done one step more than the block after it: it begins with its last steps, as many as are missing, and goes
    on with step 0. The steps that it begins with have a second sum, or these would come before those of earlier blocks.
    So a block waits for blocks of earlier keys alone, which began before it, and for these seldom.
    """

    @property
    def pieces(self) -> Any:
        """How many blocks share the steps of the same keys."""
        return self.splits if self.splitting else 1

    def ahead_of(self, block: Any) -> tuple[Any, Any]:
        """(the steps of a block of the first keys, how many fewer of them each later block has in the first sum)."""
        most = kd.cdiv(self.steps * self.group - block.split, self.pieces)
        fewer = kd.cdiv(self.keys * self.group, self.t.block_q * self.pieces) if self.falls else 0
        return most, fewer + 1

    def lead(self, block: Any) -> Any:
        """The number of steps that a block begins with: its last ones."""
        most, apart = self.ahead_of(block)
        return block.count - kd.maximum(most - kd.div(block.key, self.keys) * apart, 0)

    def others_before(self, block: Any, step: Any) -> Any:
        """The number of blocks of earlier keys that add to the other sum of a step."""
        (most, apart), lead = self.ahead_of(block), self.lead(block)
        first = kd.cdiv(most - (block.count - lead + step.number), apart)
        return kd.where(step.number < lead, first, 0)

    def second(self, block: Any, step: Any) -> Any:
        """The lines from the sum of a step to the one that a block adds to."""
        return kd.where(step.number < self.lead(block), self.p.batch * self.p.heads, 0)

    def last_step(self, block: Any) -> Any:
        """The number of the last step that a block has of a head."""
        return self.steps - 1

    def step_at(self, block: Any, index: Any, where: tuple[Any, Any, Any, Any]) -> WalkStep:
        """The step number `index` of a head; `where`: its number among the block's, its stages and its query head."""
        return WalkStep(*where, index)

    def each_in_order(self, block: Any, body: Callable[..., Any], carried: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """As `each_step`."""
        lead, last = self.lead(block), self.last_step(block)
        begin = block.start + kd.where(lead > 0, block.count - lead, 0) * self.pieces

        end = block.start + block.count * self.pieces

        @kd.loop(0, block.count, init_carry=(*self.first_slots(block), begin, *carried))
        def after(number: Any, carry: Any) -> Any:
            slot, dout_slot, place, *own = carry
            head, index = block.kv_head * self.group + kd.rem(place, self.group), last - kd.div(place, self.group)
            where = self.numbered(block, number), slot, dout_slot, head
            made = body(self.step_at(block, index & MOST_STEPS if self.single else index, where), *own)
            following = kd.where(place + self.pieces >= end, block.start, place + self.pieces)
            return *self.following_slots(slot, dout_slot), following, *(made or ())

        return tuple(after[3:])
