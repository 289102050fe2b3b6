"""All-reduce of longer arrays: each device sends the parts of its array to their owners, which add them up and store
the sums on all devices.

Devices only store to their peers. A load from a peer waits for the way there and back, and reaches a seventh less
bandwidth. The library keeps memory for the data that arrives: a few places for each block. The sender's block with the
same number may write to a place again when it has received the sums of the data in that place. So no device waits for
the others to begin or to end.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.mesh import ROOM, Mesh, meshed

LANES = 128
BLOCKS = 264  # the most blocks of a device: all must run at the same time
EACH = 64  # bytes of a lane in a chunk; twice as many if each block still has a chunk. A signal ends each chunk
PLACES = 4  # a block has room for this many chunks of each device
AHEAD = 2  # a block sends this many chunks before it adds up the first


@cache
def two_shot_kernel(shape: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out`: the sum over devices, in the order of ranks. `x` may lie in any memory, and `out` may be
    `x`.
    """
    size, n = prod(shape), mesh.size
    chunk = LANES * EACH // dtype.itemsize
    if size >= n * 2 * chunk * BLOCKS:
        chunk *= 2
    part = max(-(-size // (n * chunk)), 1)  # chunks that a device adds up; those of the last device may pass the end
    blocks = min(part, BLOCKS)
    places = min(-(-part // blocks), PLACES)
    senders = n if n > 2 else 1  # a sum of two has no order, so a device need not send to itself
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype

    def body(x: Any, out: Any, came: Any, summed: Any) -> None:
        me, block = kd.axis_index(mesh.names), kd.axis_index("block")
        mine, own = x.reshape(-1), meshed("all_reduce").kept((places, blocks, senders, chunk), dtype)
        others = [kd.rem(me + k, n) for k in range(1, n)]
        ranks = [*others, me] if n > 2 else others
        there = [kd.remote_ref(own, rank) for rank in ranks]
        outs = [kd.remote_ref(out, rank).reshape(-1) for rank in (*others, me)]
        count = kd.div(part - block + blocks - 1, blocks)

        def elements(rank: Any, i: Any) -> Any:
            return kd.ds((rank * part + i * blocks + block) * chunk, chunk)

        def send(i: Any) -> None:
            @kd.when(i >= places)
            def _() -> None:
                for rank in others:
                    kd.semaphore_wait(summed.at[rank], timeout=timeout)

            values = [mine[elements(rank, i)] for rank in ranks]
            for ref, value in zip(there, values, strict=True):
                ref[kd.rem(i, places), block, me if n > 2 else 0] = value
            for rank in others:
                kd.semaphore_signal(came.at[me], device_id=rank)

        def add(i: Any) -> None:
            first = [mine[elements(me, i)]] if n <= 2 else []
            for rank in others:
                kd.semaphore_wait(came.at[rank], timeout=timeout)
            terms = [*first, *(own[kd.rem(i, places), block, k] for k in range(senders if n > 1 else 0))]
            total = terms[0].astype(wide)
            for term in terms[1:]:
                total = total + term.astype(wide)
            result = total.astype(dtype)
            for ref in outs:
                ref[elements(me, i)] = result
            for rank in others:
                kd.semaphore_signal(summed.at[me], device_id=rank)

        ahead = min(AHEAD, max(places - 1, 1))
        for i in range(ahead):
            kd.when(i < count)(lambda i=i: send(i))

        def step(i: Any, carry: Any) -> Any:
            kd.when(i + ahead < count)(lambda: send(i + ahead))
            add(i)
            return carry

        kd.fori_loop(0, count, step, None)
        for rank in others:
            kd.semaphore_wait(summed.at[rank], kd.minimum(count, places), timeout=timeout)

    made: Any = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, dtype),
        scratch_types=[kd.SemaphoreType.REGULAR((n,)), kd.SemaphoreType.REGULAR((n,))],
        grid=(blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"all_reduce_two_shot_{n}",
    )
    made.meets = False
    made.room = ROOM + places * blocks * senders * chunk * dtype.itemsize // 4 + 4
    return made
