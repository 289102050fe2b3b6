"""How blocks of attention's backward store gradients: those of keys and values once, those of queries by adding to a sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import ROWS
from .buffers import WalkBuffers
from .order import KEYS

STORED = 1 << 20  # what the first block adds to the semaphore of a sum that it has stored; tickets are fewer


class WalkResults(WalkBuffers):
    """The results of the walk, whose SMEM and sizes `WalkBuffers` gives."""

    def add_or_store(self, me: Any, copy: Callable[[int, bool], None], turn: Any, s: dict[str, Any]) -> None:
        """Store consumer `me`'s gradient of a step's queries if no other block has stored one; else add it to that.

        `copy(part, add)` starts a copy. The semaphore `turn` counts blocks, and from `STORED` on the first is done. A
        block takes its ticket when it has the gradient, so no block waits for one that waits.
        """
        t, ticket = self.t, kd.int32(0)
        for i in range(t.dq_parts):
            place = me * t.dq_slots + i % t.dq_slots
            kd.barrier_wait(s["dq_stored"].at[place])
            if i == 0:
                ticket = kd.atomic_add(turn, 1, order="acquire")
                others = (ticket > 0) & (ticket < STORED)
                kd.when(others)(partial(kd.semaphore_wait, turn, STORED, decrement=False))
            kd.when(ticket == 0)(partial(copy, i, False))
            kd.when(ticket > 0)(partial(copy, i, True))
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            kd.barrier_arrive(s["dq_read"].at[place])

        @kd.when(ticket == 0)
        def _() -> None:
            kd.wait_smem_to_gmem(0)
            kd.semaphore_signal(turn, STORED)

    def store_queries(self, me: Any, acc: Any, block: Any, step: Any, dq: Any, s: dict[str, Any]) -> None:
        """Store consumer `me`'s share of the gradient of a step's queries, which is in no other block."""
        tile, (rows, columns) = s["dq_smem"].at[me], self.query_tile
        value = (kd.wgmma_accumulator_load(acc, wait_n=None) * self.p.scale).astype(self.p.dtype)
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # of the step before
        turned = tile.T if self.keys == KEYS else tile
        turned[...] = value
        kd.commit_smem()
        by_row = rows < self.t.block_q
        row, column = (me * rows, 0) if by_row else (0, me * columns)
        here = kd.ds(step.index * self.t.block_q + row, rows), kd.ds(column, columns)
        kd.copy_smem_to_gmem(tile, dq.at[self.query_place(block, step, *here)])

    def query_place(self, block: Any, step: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
        """The index of some queries of a step's head."""
        return block.batch, step.head, rows, columns

    def store(self, value: Any, tile: Any, out: Any, block: Any, key: Any, which: int = 0) -> None:
        """Store a gradient of 64 keys from `key` on, through SMEM that nothing else uses any more. `which`: 0 for that of
        the keys, 1 for that of the values.
        """
        here = block.batch, block.kv_head, kd.ds(key, ROWS)

        def copy() -> None:
            tile[...] = value.astype(self.p.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, out.at[here])

        if block.tail is not None:
            self.store_shared(value, tile, out.at[here], block, key, which)
            return
        self.store_either(copy, lambda: out.at[(block.split, *here)], value)

    def store_shared(self, value: Any, tile: Any, target: Any, block: Any, key: Any, which: int) -> None:
        """Add to the sum of the blocks before that share these keys. The last one stores the gradient to `target`."""
        tail, (sums, turns) = block.tail, self.tail_refs
        piece, last = tail.piece, tail.piece == tail.pieces - 1
        place = which, tail.keys, kd.div(key - block.key, ROWS)
        turn, kept = turns.at[place], sums.at[(*place, slice(None), kd.ds(0, value.shape[1]))]
        kd.when(piece > 0)(lambda: kd.semaphore_wait(turn, piece, decrement=False))
        value = kd.cond(piece > 0, lambda x: x + kept[...], lambda x: x, value)

        @kd.when(last)
        def _() -> None:
            tile[...] = value.astype(self.p.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, target)

        @kd.when(~last)
        def _() -> None:
            kept[...] = value
            kd.semaphore_signal(turn)

    def store_either(self, copy: Callable[[], None], part: Callable[[], Any], value: Any) -> None:
        """Store a gradient by `copy`, or as a part of a sum."""
        if self.splitting:
            part()[...] = value
        else:
            copy()
