"""Product and reduce-scatter, or all-reduce, in one kernel. Finished tiles go to the device that owns their rows.

Tiles of this device's rows are computed last. While such a tile is in registers, the peers' sums are added to it. A
semaphore for each half of a tile counts their arrival.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from .mesh_product import CONSUMERS, HALF, TILE_M, MeshProduct


@cache
def scattering_kernel(p: MeshProduct, everywhere: bool) -> Any:
    """The kernel `(x, w) -> (out, parts)`: x (M, K) and w (K, N) a device, parts (n, M / n, N).

    out: the sum of the products' rows of this device, (M / n, N), or with `everywhere` all rows, (M, N). The first term
    is this device's, then come those of the devices after it.
    """
    n, own = p.mesh.size, p.own

    def body(x: Any, w: Any, out: Any, parts: Any, **smem: Any) -> None:
        me = kd.axis_index(p.mesh.names)
        flags = kd.get_global(kd.SemaphoreType.REGULAR((*p.tiles, CONSUMERS)))
        outs, first = [out], 0
        if everywhere:
            outs, first = [kd.remote_ref(out, kd.rem(me + i, n)) for i in range(n)], me * own

        def owner(shard: Any) -> Any:
            return kd.rem(me + 1 + shard, n)

        def copy_a(shard: Any, m: Any, k: Any, to: Any, barrier: Any) -> None:
            first = kd.multiple_of(owner(shard) * own + m * TILE_M, TILE_M)
            kd.copy_gmem_to_smem(x.at[kd.ds(first, TILE_M), k], to, barrier)

        def tell(number: Any, before: Any) -> None:
            """Signal that the previous tile has arrived. Its store had the time of one tile to end."""

            @kd.when(before >= 0)
            def _() -> None:
                kd.wait_smem_to_gmem(0)
                shard, tile = kd.div(before, p.count), kd.rem(before, p.count)
                flag = flags.at[kd.div(tile, p.tiles[1]), kd.rem(tile, p.tiles[1]), number]
                kd.semaphore_signal(flag, device_id=owner(shard))

        def multiply(number: Any) -> None:
            def store(value: Any, shard: Any, m: Any, column: Any, before: Any) -> Any:
                rows = kd.ds(m * TILE_M + number * HALF, HALF)

                def columns(at: int, width: int) -> Any:
                    return kd.ds(column * p.tile_n + at, width)

                def came(at: int, width: int) -> Any:
                    there = [parts.at[kd.rem(me + i, n)] for i in range(1, n)]
                    terms = [ref[rows, columns(at, width)] for ref in there]
                    return sum((term.astype(kd.float32) for term in terms[1:]), terms[0].astype(kd.float32))

                def send() -> Any:
                    there = kd.remote_ref(parts, owner(shard)).at[me]
                    p.put(value, number, smem, lambda c, w: [there.at[rows, columns(c, w)]])
                    return shard * p.count + m * p.tiles[1] + column

                def finish() -> Any:
                    if n > 1:
                        kd.semaphore_wait(flags.at[m, column, number], n - 1, timeout=p.timeout)
                    add = came if n > 1 else None
                    own_rows = kd.ds(kd.multiple_of(first + m * TILE_M + number * HALF, HALF), HALF)
                    p.put(value, number, smem, lambda c, w: [o.at[own_rows, columns(c, w)] for o in outs], add)
                    return -1

                tell(number, before)
                return kd.cond(shard < n - 1, send, finish)

            tell(number, p.multiply(number, smem, store))
            if everywhere:
                kd.wait_smem_to_gmem(0)
                kd.semaphore_signal_multicast(smem["end"], collective_axes=p.mesh.names)
                kd.when(number == 0)(lambda: kd.semaphore_wait(smem["end"], CONSUMERS * n, timeout=p.timeout))

        def load() -> None:
            p.load(copy_a, w, smem, between=p.begin(smem["begin"]))

        p.roles(load, multiply)

    rows = p.M if everywhere else own
    return p.kernel(body, [(rows, p.N), (n, own, p.N)], "matmul_all_reduce" if everywhere else "matmul_reduce_scatter")
