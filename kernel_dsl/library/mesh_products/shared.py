"""Products on a mesh of devices that send tiles while they compute others: Hopper's kernels of 16-bit floats.

Blocks are persistent, as in `persistent_matmul.py`: one warpgroup loads, two multiply. When gathering, the warpgroup
that loads also sends this device's rows to the peers, between its loads (`gathering_product.py`). When scattering,
finished tiles go to the device that owns their rows (`scattering_product.py`, `paced_tiles.py`). This file has the
common parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd
from kernel_dsl.mesh import ROOM, Mesh

from ..blocks import tile_of
from ..collectives.parts import orders_itself
from ..products.problem import Problem
from ..stage_product import stage_product
from ..stage_ring import await_release, fill_stages, swizzled

CONSUMERS, TILE_M, TILE_K, EPILOGUE = 2, 128, 64, 64
HALF = TILE_M // CONSUMERS  # rows of a consumer
PARTS = 16  # parts in which a tile of rows is sent
PIECE = 2048  # elements that a warpgroup sends at a time
GROUP = 8
UNROLLED = 4  # devices up to which stores to all peers, or loads of their terms, are unrolled: more would spill
REGISTERS = {"multiply": 224, "load": 56}  # registers a lane; three warpgroups have 504


class Besides:
    """What the warpgroup that loads does besides. A state passes through all calls; each returns it for the next one.

    A place is that of `MeshProduct.place`.
    """

    initial: Any = 0

    def start(self, place: Any, state: Any) -> Any:
        """Before the loads of a tile."""
        return state

    def between(self, index: Any, step: Any, state: Any) -> Any:
        """After the loads of a step of tile number `index`."""
        return state

    def end(self, index: Any, place: Any, state: Any) -> Any:
        """After all loads of a tile."""
        return state


@dataclass(frozen=True)
class MeshProduct:
    """(M, K) @ (K, N) on each device, in tiles of TILE_M x `tile_n`. Each device owns M // devices of the rows."""

    M: int
    N: int
    K: int
    dtype: Any
    mesh: Mesh
    tile_n: int
    stages: int
    blocks: int
    timeout: float | None = None
    sends: bool = False  # whether whole tiles wait in SMEM until the warpgroup that loads has sent them

    @property
    def own(self) -> int:
        """The number of rows of a device."""
        return self.M // self.mesh.size

    @property
    def tiles(self) -> tuple[int, int]:
        """The number of tiles of a device's rows."""
        return self.own // TILE_M, kd.cdiv(self.N, self.tile_n)

    @property
    def count(self) -> int:
        return self.tiles[0] * self.tiles[1]

    @property
    def steps(self) -> int:
        return kd.cdiv(self.K, TILE_K)

    @property
    def room(self) -> bool:
        """Whether there are enough semaphores for the tiles."""
        return max(self.mesh.size, CONSUMERS) * self.count + 2 + 2 * self.blocks < ROOM

    @property
    def width(self) -> int:
        """The number of columns of a part of a tile."""
        return min(EPILOGUE, self.tile_n)

    @property
    def parts(self) -> int:
        """The number of parts of a consumer's half of a tile."""
        return self.tile_n // self.width

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """(the device of the rows, counted from this one; tile along M within them; tile along N) of number `index`."""
        problem = Problem(self.own, self.N, self.K, self.dtype, self.dtype, self.dtype)
        m, n, _, _ = tile_of(kd.rem(index, self.count), problem, self.tiles, GROUP)
        return kd.div(index, self.count), m, n

    @property
    def scratch(self) -> dict[str, Any]:
        return {
            "a_smem": swizzled(TILE_M, TILE_K, self.dtype, self.stages),
            "b_smem": swizzled(TILE_K, self.tile_n, self.dtype, self.stages),
            "out_smem": swizzled(HALF, self.width, self.dtype, CONSUMERS * (self.parts if self.sends else 1)),
            "loaded": kd.Barrier(num_arrivals=2, num_barriers=self.stages),
            "consumed": kd.Barrier(num_arrivals=CONSUMERS, num_barriers=self.stages),
            "begin": kd.SemaphoreType.REGULAR,
            "end": kd.SemaphoreType.REGULAR,
            **(self._turns if self.sends else {}),
        }

    @property
    def _turns(self) -> dict[str, Any]:
        """The barriers of the tile in SMEM: a peer's term is there, the tile is there, the tile has been sent."""
        return {
            "terms": kd.Barrier(num_arrivals=CONSUMERS * self.parts),
            "held": kd.Barrier(num_arrivals=CONSUMERS),
            "free": kd.Barrier(num_arrivals=1),
        }

    def kernel(self, body: Any, outs: Sequence[tuple[int, ...]], name: str) -> Any:
        made = kd.kernel(
            body,
            out_type=tuple(kd.ShapeDtypeStruct(shape, self.dtype) for shape in outs),
            scratch_types=self.scratch,
            grid=(self.blocks,),
            grid_names=("block",),
            num_threads=CONSUMERS + 1,
            thread_name="wg",
            mesh=self.mesh,
            name=f"{name}_{self.mesh.size}",
        )
        return orders_itself(made)

    # --- what warpgroups do -----------------------------------------------------------------------

    def load(self, copy_a: Callable[..., None], b: Any, smem: dict[str, Any], besides: Besides) -> Any:
        """Load all tiles. `copy_a(shard, m, k, to, barrier)` starts a load of A. Returns the last state of `besides`."""
        loaded, consumed = smem["loaded"], smem["consumed"]

        @kd.loop(
            kd.axis_index("block"), self.mesh.size * self.count, step=self.blocks, init_carry=(0, 0, besides.initial)
        )
        def end(index: Any, carry: Any) -> Any:
            place = shard, m, n = self.place(index)
            slot, filled, state = carry
            state = besides.start(place, state)

            def fill(step: Any, slot: Any, filled: Any, state: Any) -> tuple[Any]:
                await_release(consumed, slot, filled >= self.stages)
                k = kd.ds(step * TILE_K, TILE_K)
                copy_a(shard, m, k, smem["a_smem"].at[slot], loaded.at[slot])
                columns = kd.ds(n * self.tile_n, self.tile_n)
                kd.copy_gmem_to_smem(b.at[k, columns], smem["b_smem"].at[slot], loaded.at[slot])
                return (besides.between(index, step, state),)

            *end, state = fill_stages(self.steps, self.stages, (slot, filled, state), fill)
            return *end, besides.end(index, place, state)

        return end[2]

    def multiply(self, me: Any, smem: dict[str, Any], store: Callable[..., Any]) -> Any:
        """Compute the products of all tiles.

        `store(value, shard, m, n, before)` stores a consumer's half; `before` is its last result.
        """

        def left(slot: Any) -> Any:
            return smem["a_smem"].at[slot, kd.ds(me * HALF, HALF)]

        def product(acc: Any, slot: Any) -> Any:
            right, loaded = smem["b_smem"].at.__getitem__, smem["loaded"].at.__getitem__
            return stage_product(acc, slot, self.steps, self.stages, left, right, loaded, smem["consumed"])

        @kd.loop(kd.axis_index("block"), self.mesh.size * self.count, step=self.blocks, init_carry=(0, -1))
        def end(index: Any, carry: Any) -> Any:
            slot, before = carry
            shard, m, n = self.place(index)
            value, after = kd.run_scoped(lambda acc: product(acc, slot), kd.ACC((HALF, self.tile_n), kd.float32))
            return after, store(value, shard, m, n, before)

        return end[1]

    def put(self, value: Any, me: Any, smem: dict[str, Any], target: Callable[[int], Any]) -> None:
        """Store a consumer's half of a tile to GMEM by TMA. `target(at)`: the Ref for the columns from `at` on."""
        for at in range(0, self.tile_n, self.width):
            x, place = value[:, at : at + self.width], smem["out_smem"].at[me]
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            place[...] = x.astype(self.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(place, target(at), commit_group=False)
            kd.commit_smem_to_gmem_group()

    def roles(self, load: Callable[[], None], multiply: Callable[[Any], None]) -> None:
        me = kd.axis_index("wg")

        @kd.when(me == CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS["load"], action="decrease")
            load()

        @kd.when(me < CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS["multiply"], action="increase")
            multiply(me)


def sender(
    units: int, size: int, blocks: int, move: Callable[[Any, Any], None], tell: Callable[[Any], None]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Two functions that send this block's share of `units` of `size` elements.

    The first sends one piece, the second all remaining pieces. Both take the number of pieces sent so far, and return
    it. `move(unit, slice)` sends a piece, `tell(unit)` signals that a unit is complete.
    """
    block, pieces = kd.axis_index("block"), kd.cdiv(size, PIECE)
    count_of_all = kd.div(units - block + blocks - 1, blocks) * pieces

    def send(count: Any) -> Any:
        @kd.when(count < count_of_all)
        def _() -> None:
            unit, piece = kd.div(count, pieces) * blocks + block, kd.rem(count, pieces)
            move(unit, kd.ds(piece * min(PIECE, size), min(PIECE, size)))
            kd.when(piece == pieces - 1)(lambda: tell(unit))

        return kd.minimum(count + 1, count_of_all)

    def send_all(count: Any) -> Any:
        return kd.while_loop(lambda count: count < count_of_all, send, count)

    return send, send_all


def take_back(flags: Any, numbers: Sequence[Any], count: int, blocks: int, timeout: float | None) -> None:
    """Reset `flags`: after all blocks have waited, the last one subtracts `count` from the flags with these
    `numbers`.
    """
    done = kd.get_global(kd.SemaphoreType.REGULAR)
    kd.semaphore_signal(done)

    @kd.when(kd.axis_index("block") == blocks - 1)
    def _() -> None:
        kd.semaphore_wait(done, blocks, timeout=timeout)
        for number, here in numbers:

            def take(i: Any, carry: Any, number: Any = number) -> Any:
                kd.semaphore_wait(flags.at[number, i], count, timeout=timeout)
                return carry

            kd.when(here)(lambda take=take: kd.fori_loop(0, flags.shape[1], take, None))
