"""All-gather and product in one kernel: rows are multiplied as they arrive.

The warpgroup that loads also sends this device's rows to the peers, part after part, every few of its loads. A semaphore for
each tile of rows counts the parts that have arrived, and the loads of a tile wait for it. Tiles of this device's rows
come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..collectives.parts import wait_for_all
from .shared import HALF, PARTS, PIECE, TILE_M, UNROLLED, Besides, MeshProduct, sender, take_back

SHARE = 0.75  # of the time of this device's tiles, in which its rows are sent: all at once would hold up the loads


@dataclass(frozen=True)
class Sends(Besides):
    """Sends a piece of this device's rows after every `every` steps. The state: (pieces sent, steps until the next one).

    `send`, `send_all`: of `sender`; `wait(place)`: wait for the rows of a tile, or None if all rows are this device's.
    """

    every: int
    send: Callable[[Any], Any]
    send_all: Callable[[Any], Any]
    wait: Callable[[Any], None] | None
    initial: Any = (0, 0)

    def start(self, place: Any, state: Any) -> Any:
        wait, (count, left) = self.wait, state
        if wait is None:
            return state

        def late() -> Any:
            sent = self.send_all(count)  # send the parts that peers wait for first
            wait(place)
            return sent

        return kd.cond(place[0] > 0, late, lambda: count), left

    def between(self, index: Any, step: Any, state: Any) -> Any:
        count, left = state
        count = kd.cond(left == 0, lambda: self.send(count), lambda: count)
        return count, kd.where(left == 0, self.every - 1, left - 1)


@cache
def gathering_kernel(p: MeshProduct) -> Any:
    """The kernel `(x, w) -> (out, gathered)`: x (M / n, K) and w (K, N) a device, out (M, N), gathered (M, K)."""
    n, (tiles_m, _), own = p.mesh.size, p.tiles, p.own
    size = TILE_M // PARTS * p.K  # elements of a part

    def body(x: Any, w: Any, out: Any, gathered: Any, **smem: Any) -> None:
        me = kd.axis_index(p.mesh.names)
        flags = kd.get_global(kd.SemaphoreType.REGULAR((n, tiles_m)))
        peers = [kd.rem(me + 1 + i, n) for i in range(n - 1 if n <= UNROLLED else 0)]
        flat, there = x.reshape(-1), [kd.remote_ref(gathered, peer).reshape(-1) for peer in peers]

        def each(work: Callable[[Any, Any], None]) -> None:
            """Call `work(peer, its rows)` for each peer."""
            for peer, rows in zip(peers, there, strict=True):
                work(peer, rows)
            if n > UNROLLED:

                def one(i: Any, carry: None) -> None:
                    peer = kd.rem(me + 1 + i, n)
                    work(peer, kd.remote_ref(gathered, peer).reshape(-1))

                kd.fori_loop(0, n - 1, one, None)

        def move(unit: Any, at: Any) -> None:
            value = flat.at[kd.ds(unit * size, size)][at]

            def store(peer: Any, rows: Any) -> None:
                rows.at[kd.ds(me * (own * p.K) + unit * size, size)][at] = value

            each(store)

        def tell(unit: Any) -> None:
            def signal(peer: Any, rows: Any) -> None:
                kd.semaphore_signal(flags.at[me, kd.div(unit, PARTS)], device_id=peer)

            each(signal)

        send, send_all = sender(tiles_m * PARTS if n > 1 else 0, size, p.blocks, move, tell)

        def source(shard: Any) -> Any:
            return kd.rem(me + shard, n)

        def wait(place: Any) -> None:
            kd.semaphore_wait(flags.at[source(place[0]), place[1]], PARTS, decrement=False, timeout=p.timeout)

        def copy_a(shard: Any, m: Any, k: Any, to: Any, barrier: Any) -> None:
            here = x.at[kd.ds(m * TILE_M, TILE_M), k]
            came = gathered.at[kd.ds(kd.multiple_of(source(shard) * own + m * TILE_M, TILE_M), TILE_M), k]
            kd.copy_gmem_to_smem(here, to, barrier, predicate=shard == 0)
            kd.copy_gmem_to_smem(came, to, barrier, predicate=shard > 0)

        def load() -> None:
            wait_for_all(smem["begin"], p.mesh, p.timeout)
            pieces = kd.cdiv(tiles_m * PARTS, p.blocks) * kd.cdiv(size, PIECE)  # of a block
            steps = kd.cdiv(p.count, p.blocks) * p.steps  # of this device's tiles
            every = max(int(SHARE * steps) // pieces, 1)
            send_all(p.load(copy_a, w, smem, Sends(every, send, send_all, wait if n > 1 else None))[0])
            take_back(flags, [(source(shard), True) for shard in range(1, n)], PARTS, p.blocks, p.timeout)

        def multiply(number: Any) -> None:
            def store(value: Any, shard: Any, m: Any, column: Any, before: Any) -> Any:
                rows = kd.ds(kd.multiple_of(source(shard) * own + m * TILE_M + number * HALF, HALF), HALF)
                p.put(value, number, smem, lambda at: out.at[rows, kd.ds(column * p.tile_n + at, p.width)])
                return before

            p.multiply(number, smem, store)

        p.roles(load, multiply)

    return p.kernel(body, [(p.M, p.N), (p.M, p.K)], "all_gather_matmul")
