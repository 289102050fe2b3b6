"""The order in which batches run under each schedule, and the number of batches of a GPU's first blocks.

All warps of a batch that are at one instruction run together, so the blocks of one batch hardly run ahead of each other. For
kernels on several GPUs, some seeds cut the blocks of each GPU into several batches, and some of these seeds let one batch run as
far as it can before another one runs. So a batch may come to a semaphore long before or after the others, as happens on GPUs.
On one GPU, odd seeds do so for kernels whose blocks may wait for each other. A batch that
has looked twice at the same memory lets others go on, and keeps its rank: it goes on as soon as an atomic or a strong store has
changed memory, while those with lower ranks may still be far behind. On one GPU it interrupts them, so that it sees each of their
values, as a reader does that is fast.

`python -m tests.mesh.schedules` measures the mix, with programs that are wrong in some orders alone. In 60 programs with 16 seeds
each, 42 % of the runs found the defect with ranks in half of the schedules or in three quarters, and 39 % without ranks. With
ranks in half, some seed found each of the 60, and without ranks 43 of them.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import Batch
    from .launch import Run

_TURN = 1 / 2  # the probability that another batch goes on after an instruction that synchronises
_APART = 1 / 4  # the probability that the first blocks of a GPU are two batches that take turns
_RANKED = 1 / 2  # the probability that they are up to `_PARTS` batches, of which the one with the highest rank goes on
_PARTS = 4
_FALL = 1 / 16  # the probability that the batch with the highest rank gets the lowest, after such an instruction


class BatchTurns:
    """The turns of one launch. `taken`: whether a batch may lose its turn before all of its warps wait."""

    def __init__(self, run: Run) -> None:
        self.run = run
        several = run.devices > 1
        alone = run.rng is not None and run.config.seed % 2 == 1 and run.teams > 1 and run.program.waits_for_blocks
        self.taken: bool = several or alone
        self.rng: random.Random | None = run.rng if self.taken else None
        self.ranked: bool = alone if not several else self.rng is not None and self.rng.random() < _RANKED
        self.interrupts: bool = alone  # whether batches of higher ranks interrupt those that store what they poll
        self.due: bool = False  # whether another batch should go on
        self._turn = 0
        self._ranks: dict[int, float] = {}
        self._lowest = 0

    def first_sizes(self, count: int) -> list[int]:
        """Return the sizes, in clusters, of the batches that the first `count` clusters of a GPU make."""
        rng = self.rng
        if rng is None or count < 2:
            return [count]
        most = min(count, _PARTS)
        parts = rng.randint(2, most) if self.ranked else 1 + (rng.random() < _APART / (1 - _RANKED))
        cuts = [0, *sorted(rng.sample(range(1, count), parts - 1)), count]
        return [end - begin for begin, end in pairwise(cuts)]

    def pick(self, able: list[Batch]) -> Batch:
        """Return the batch of `able` that goes on."""
        run = self.run
        if run.devices > 1 and run.rng is None:  # the batches alternate
            self._turn += 1
            return able[self._turn % len(able)]
        if run.rng is None or len(able) == 1:
            return able[0]
        if self.ranked:  # of those that have not looked twice at memory as it is
            return max([b for b in able if b.spun_when < run.atomics] or able, key=self._rank)
        return run.rng.choice(able)

    def after(self, batch: Batch) -> bool:
        """Return whether another batch goes on after `batch` has synchronised."""
        rng = self.rng
        if rng is None:
            return self.due
        if not self.ranked:
            self.due = self.due or rng.random() < _TURN
        elif rng.random() < _FALL:
            self._lowest -= 1
            self._ranks[batch.first] = self._lowest
            self.due = True
        elif self.interrupts and not self.due:  # a batch of a higher rank may see what this one has just stored
            self.due = any(self._overtakes(b, batch) for b in self.run.resident)
        return self.due

    def _overtakes(self, other: Batch, batch: Batch) -> bool:
        return other is not batch and other.may_look(self.run.atomics) and self._rank(other) > self._rank(batch)

    def _rank(self, batch: Batch) -> float:
        found = self._ranks.get(batch.first)
        if found is None:
            assert self.rng is not None
            found = self._ranks[batch.first] = self.rng.random()
        return found
