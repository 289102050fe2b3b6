"""What a kernel of attention's backward is made of: sizes, SMEM, barriers, results."""

from __future__ import annotations

import math
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import ROWS, AttentionProblem
from ..first_sizes import declared_outputs
from .order import (
    CONSUMERS,
    EIGHT,
    GIVEN,
    KEYS,
    LINE,
    NUMBERS,
    AttentionBackwardConfig,
    most_shared,
    of_steps,
    one_block,
    shared_at_end,
    splits_dim,
    together_of,
)


class WalkBuffers:
    """Of the walk of blocks of `keys` keys.

    `tiles`, `rows`: the gradient of a step's queries has `tiles` tiles of (`rows`, 8). Consumers share its
    rows (`by_row`), or else its tiles.
    """

    registers: tuple[int, int] = (240, 24)  # of a lane of a consumer, and of the producer
    adders: bool = False  # whether a warpgroup of its own adds in turn, as the producer works as a whole

    def __init__(
        self,
        problem: AttentionProblem,
        config: AttentionBackwardConfig,
        multiprocessors: int,
        keys: int,
        tiles: int,
        rows: int,
        by_row: bool,
    ) -> None:
        p = problem
        self.p: AttentionProblem = p
        self.t: AttentionBackwardConfig = config
        self.v_dim: int = p.dim
        self.keys: int = keys
        self.opened: bool = p.opened
        self.splits: Any = config.splits
        self.splitting: bool = config.splits > 1  # whether blocks may share the steps of the same keys
        self.by_row: bool = by_row
        self.tiles: int = tiles
        self.lines: int = rows * EIGHT // LINE
        self.steps: int = kd.cdiv(p.queries, config.block_q)
        self.blocks: int = kd.cdiv(p.keys, keys)
        self.group: int = p.heads // p.kv_heads
        self.ragged: bool = self.opened or p.keys % keys != 0
        self.own_tiles: int = tiles if by_row else tiles // CONSUMERS
        self.part: int = self.own_tiles // config.dq_parts  # tiles of a copy
        # whether all blocks run at once: each finds its part by its places on the grid's axes, without a division
        self.single: bool = self.opened and p.alone
        count = splits_dim() if self.opened and self.splitting else config.splits
        self.multiprocessors: int = multiprocessors
        units = p.batch * p.kv_heads * self.blocks
        left = shared_at_end(units, config, multiprocessors)
        # whether blocks may share the last keys
        self.tailed: bool = most_shared(config, multiprocessors) > 0 and (self.opened or left > 0)
        self.grid: Any = units * count + left * (config.tail - 1) if self.tailed else units * count
        self.alone: bool = one_block(p, keys)
        # whether the first block that has a sum stores it; else all blocks add to zeros
        self.stores_first: bool = config.stores_first and not config.in_turn and not self.alone
        # whether blocks that add in turn are in no other's way: see `WalkOrder`
        self.ordered: bool = config.in_turn and not self.alone
        self.falls: bool = p.causal  # whether the blocks of later keys have fewer steps
        self.turned: bool = False  # whether the gradients of scores are in SMEM as (queries, keys)
        self.together: int = 1
        if not self.opened:
            self.together = together_of(p, config, keys, multiprocessors)

    @property
    def by_warps(self) -> bool:
        """Whether warps of the producer add to sums, or store them."""
        return (self.t.in_turn or self.stores_first) and not self.alone

    @property
    def smem_bytes(self) -> int:
        """SMEM that blocks take; those of 64 keys also take the weights."""
        p, t = self.p, self.t
        keys = self.keys * self.key_slots
        rows = keys + t.stages * t.block_q, keys + t.dout_stages * t.block_q
        tiles = (rows[0] * p.dim + rows[1] * self.v_dim + self.keys * t.block_q) * p.dtype.itemsize
        sums = t.dq_slots * ROWS * self.part * EIGHT * 4
        if self.alone:
            sums = t.block_q * p.dim // CONSUMERS * p.dtype.itemsize
        return tiles + CONSUMERS * sums + t.stages * 2 * t.block_q * 4

    def _semaphores(self) -> Any:
        """Semaphores that order the blocks of each consumer, head and step; None if all may add at any time."""
        shape = (CONSUMERS, self._sum_lines(), self.steps)
        return kd.get_global(kd.SemaphoreType.REGULAR(shape)) if self.by_warps else None

    def swizzled(self, *shape: int, row: int = 0) -> Any:
        """A buffer with the widest swizzle that divides rows of `row` elements."""
        item = self.p.dtype.itemsize
        span = math.gcd((row or shape[-1]) * item, 128)
        return kd.SMEM(
            shape, self.p.dtype, transforms=(kd.TilingTransform((8, span // item)), kd.SwizzleTransform(span))
        )

    @property
    def stays(self) -> bool:
        """Whether a block takes keys after keys; the warps that add, and the sharing of keys, are for those of one."""
        return self.t.stays and not (self.by_warps or self.splitting or self.tailed)

    @property
    def launched(self) -> Any:
        """The number of blocks of a launch."""
        if not self.stays:
            return self.grid
        return self.multiprocessors if self.opened else min(self.grid, self.multiprocessors)

    @property
    def axes(self) -> dict[str, Any]:
        """The axes of the grid and their extents."""
        if not self.single:
            return {"block": self.launched}
        sharing = {"split": splits_dim()} if self.splitting else {}
        return sharing | {"keys": self.blocks, "head": self.p.batch * self.p.kv_heads}

    @property
    def key_slots(self) -> int:
        """How many blocks' keys SMEM holds."""
        return 2 if self.stays else 1

    def own_keys(self, dim: int, row: int = 0) -> Any:
        """A buffer for the keys or values of a block, or with slots for those of several."""
        slots = [self.key_slots] * self.stays
        return self.swizzled(*slots, self.keys, dim, row=row)

    @property
    def query_tile(self) -> tuple[int, int]:
        """(queries, dimensions) of a consumer's share of a step's gradient."""
        m, dim = self.t.block_q, self.p.dim
        return (m // CONSUMERS, dim) if self.keys == KEYS and not self.by_row else (m, dim // CONSUMERS)

    def _sum_slots(self) -> Any:
        """SMEM for the gradient of the queries, in two shapes: tiles of 8 columns for stores, and lines for copies. If a
        block is alone, the gradient as it is stored.
        """
        if self.alone:
            return self.swizzled(CONSUMERS, *self.query_tile)
        slots, tiles = CONSUMERS * self.t.dq_slots, (kd.TilingTransform((8, EIGHT)),)
        return kd.RefUnion(
            kd.SMEM((slots, ROWS, self.part * EIGHT), kd.float32, transforms=tiles),
            kd.SMEM((slots, self.part, ROWS * EIGHT // LINE, LINE), kd.float32),
        )

    def _scratch(self) -> dict[str, Any]:
        """The buffers and barriers that the walk needs."""
        p, t = self.p, self.t
        made = {
            "q_smem": self.swizzled(t.stages, t.block_q, p.dim),
            "dout_smem": self.swizzled(t.dout_stages, t.block_q, self.v_dim),
            "dq_smem": self._sum_slots(),
            "stats_smem": kd.SMEM((t.stages, 2, t.block_q), kd.float32),
            "kv_loaded": kd.Barrier(num_barriers=2 * self.key_slots),
        }
        for name, loads, stages in (("q", 2, t.stages), ("dout", 1, t.dout_stages)):
            made[f"{name}_loaded"] = kd.Barrier(num_arrivals=loads, num_barriers=stages)
            made[f"{name}_consumed"] = kd.Barrier(num_arrivals=CONSUMERS, num_barriers=stages)
        if self.stays:
            made["kv_consumed"] = kd.Barrier(num_arrivals=CONSUMERS, num_barriers=self.key_slots)
        if self.by_warps:
            made["dq_stored"] = made["dq_read"] = kd.Barrier(num_barriers=CONSUMERS * t.dq_slots)
        return made

    def results(self, refs: Any) -> tuple[Any, Any, Any, Any, list[Any]]:
        """(dk, dv, the sum, the semaphores, the bias' gradient if there is one) of a kernel's results.

        dk and dv are gradients, or with splits their parts. If a block is alone, the sum is the queries' gradient.
        """
        (dk, dv, dq_sum), rest = refs[:3], list(refs[3:])
        self.tail_refs: Any = [rest.pop() for _ in range(2)][::-1] if self.tailed else None
        given = self.opened or self.ordered
        turns = rest.pop() if given and self.by_warps else None if given else self._semaphores()
        return dk, dv, dq_sum, turns, rest

    def _outputs(self) -> tuple[Any, ...]:
        """dk and dv, or parts of them, the sum or the queries' gradient, and the bias' gradient.

        For any sizes the semaphores of sums follow, if there are any.
        """
        p, like = self.p, [kd.ShapeDtypeStruct(shape, self.p.dtype) for shape in self._key_shapes()]
        lines = self._sum_lines()
        shape = lines, self.steps, self.tiles, self.lines, LINE
        sums = kd.ShapeDtypeStruct(shape, kd.float32, init=None if self.stores_first or self.ordered else 0)
        if self.alone:
            sums = kd.ShapeDtypeStruct(self._query_shape(), p.dtype)
        parts: list[Any] = []
        if self.splitting:
            count = splits_dim() if self.opened else self.t.splits
            shape = count, p.batch, p.kv_heads, p.keys
            parts = [kd.ShapeDtypeStruct((*shape, x.shape[-1]), kd.float32) for x in like]
        if not (self.opened or self.ordered):
            return *(parts or like), sums, *self._bias_outputs(), *self._tail_outputs()
        turns = kd.ShapeDtypeStruct((CONSUMERS, lines, self.steps), kd.int32, init=0)
        turns = [turns] if self.by_warps else []
        return *(parts or like), sums, *self._bias_outputs(), *turns, *self._tail_outputs()

    def _tail_outputs(self) -> list[Any]:
        """For keys that blocks share at the end: the sums so far, and semaphores that count the blocks that added."""
        if not self.tailed:
            return []
        shape = 2, most_shared(self.t, self.multiprocessors), self.keys // ROWS
        dims = ROWS, max(self.p.dim, self.v_dim)
        return [kd.ShapeDtypeStruct((*shape, *dims), kd.float32), kd.ShapeDtypeStruct(shape, kd.int32, init=0)]

    def _key_shapes(self) -> list[tuple[int, ...]]:
        """Of the gradients of keys and of values."""
        p = self.p
        return [(p.batch, p.kv_heads, p.keys, p.dim)] * 2

    def _query_shape(self) -> tuple[int, ...]:
        """Of the gradient of queries."""
        p = self.p
        return p.batch, p.heads, p.queries, p.dim

    def _sum_lines(self) -> Any:
        """The extent of the sum: heads of all sequences."""
        return self.p.batch * self.p.heads * (1 + self.ordered)

    def _bias_outputs(self) -> list[Any]:
        return []

    def _declared(self) -> dict[int, tuple[Any, ...]]:
        """`shapes=` of inputs of a kernel for any sizes."""
        p = self.p
        heads, keys = (p.batch, p.heads, p.queries, p.dim), (p.batch, p.kv_heads, p.keys, p.dim)
        return dict(enumerate((heads, keys, keys, heads, (p.batch, p.heads, 2, of_steps(self.t)))))

    def shapes(self, extras: int = 0) -> dict[int, tuple[Any, ...]] | None:
        """`shapes=` of the kernel, which takes so many arrays after the numbers."""
        if not self.opened:
            return None
        outs = declared_outputs(self._outputs(), GIVEN + NUMBERS + extras)
        return self._declared() | {GIVEN + NUMBERS - 1: (splits_dim(),)} | outs
