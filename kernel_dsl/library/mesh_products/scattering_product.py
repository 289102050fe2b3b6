"""Product and reduce-scatter, or all-reduce, in one kernel. Finished tiles go to the device that owns their rows.

Tiles of this device's rows are computed last. While such a tile is in registers, the peers' sums are added to it. A
semaphore for each tile counts their arrival. The warpgroup that loads sends the tiles (`paced_tiles.py`).
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import kernel_dsl as kd

from .paced_tiles import Pace, hold
from .shared import HALF, TILE_M, UNROLLED, MeshProduct


@cache
def scattering_kernel(p: MeshProduct, everywhere: bool) -> Any:
    """The kernel `(x, w) -> (out, parts)`: x (M, K) and w (K, N) a device, parts (n, M / n, N). `p.sends` is True.

    out: the sum of the products' rows of this device, (M / n, N), or with `everywhere` all rows, (M, N). The first term
    is this device's, then come those of the devices after it.
    """
    n, own = p.mesh.size, p.own

    def body(x: Any, w: Any, out: Any, parts: Any, **smem: Any) -> None:
        me = kd.axis_index(p.mesh.names)
        flags = kd.get_global(kd.SemaphoreType.REGULAR(p.tiles))
        outs, first = [out], 0
        if everywhere:
            outs, first = [kd.remote_ref(out, kd.rem(me + i, n)) for i in range(n)], me * own

        def owner(shard: Any) -> Any:
            return kd.rem(me + 1 + shard, n)

        def copy_a(shard: Any, m: Any, k: Any, to: Any, barrier: Any) -> None:
            first = kd.multiple_of(owner(shard) * own + m * TILE_M, TILE_M)
            kd.copy_gmem_to_smem(x.at[kd.ds(first, TILE_M), k], to, barrier)

        def begin() -> None:
            kd.semaphore_wait(smem["begin"], n, timeout=p.timeout)

        def store(source: Any, place: Any, rows: Any, columns: Any) -> None:
            def send() -> None:
                target = kd.remote_ref(parts, owner(place[0])).at[me, rows, columns]
                kd.copy_smem_to_gmem(source, target, commit_group=False)

            def finish() -> None:
                own_rows = kd.ds(kd.multiple_of(first + rows.start, rows.size), rows.size)
                for target in outs:
                    kd.copy_smem_to_gmem(source, target.at[own_rows, columns], commit_group=False)

            kd.cond(place[0] < n - 1, send, finish) if n > 1 else finish()
            kd.commit_smem_to_gmem_group()

        def tell(place: Any) -> None:
            @kd.when(place[0] < n - 1)
            def _() -> None:
                kd.semaphore_signal(flags.at[place[1:]], device_id=owner(place[0]))

        def wait(place: Any) -> None:
            if n > 1:
                kd.semaphore_wait(flags.at[place[1:]], n - 1, timeout=p.timeout)

        def term(rows: Any, columns: Any) -> Any:
            return parts.at[kd.rem(me + 1, n), rows, columns]

        def load() -> None:
            kd.semaphore_signal_multicast(smem["begin"], collective_axes=p.mesh.names)
            pace = Pace(p, smem, begin, store, tell, wait, term)
            pace.drain(p.load(copy_a, w, smem, pace))
            if everywhere:
                kd.semaphore_signal_multicast(smem["end"], collective_axes=p.mesh.names)
                kd.semaphore_wait(smem["end"], n, timeout=p.timeout)

        def multiply(number: Any) -> None:
            def held(value: Any, shard: Any, m: Any, column: Any, before: Any) -> Any:
                rows = kd.ds(m * TILE_M + number * HALF, HALF)

                def add(came: Any, at: int) -> Any:
                    columns = kd.ds(column * p.tile_n + at, p.width)

                    def plus(i: Any, total: Any) -> Any:
                        return total + parts[kd.rem(me + i, n), rows, columns].astype(kd.float32)

                    total = came.astype(kd.float32)
                    if n > UNROLLED:
                        return kd.fori_loop(2, n, plus, total)
                    return reduce(lambda total, i: plus(i, total), range(2, n), total)

                def finish() -> Any:
                    return hold(p, smem, value, number, before, add if n > 1 else None)

                return kd.cond(shard < n - 1, lambda: hold(p, smem, value, number, before), finish)

            p.multiply(number, smem, held)

        p.roles(load, multiply)

    rows = p.M if everywhere else own
    return p.kernel(body, [(rows, p.N), (n, own, p.N)], "matmul_all_reduce" if everywhere else "matmul_reduce_scatter")
