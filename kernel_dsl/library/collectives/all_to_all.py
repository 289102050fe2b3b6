"""`all_to_all` on a mesh of devices: each sends some of its rows to every other device. The GPU reads the numbers of
rows.
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.arguments import an_int
from kernel_dsl.boundary import public
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import overlap

from .by_rank import Launched, by_rank
from .parts import BLOCKS, check_gapless, described, orders_itself, wait_for_all

PIECE = 4096  # a warpgroup holds at most this many elements of a row at once


@partial(public, name="all_to_all")
@by_rank
def all_to_all(
    x: Any,
    sizes: Any,
    mesh: Mesh,
    *,
    rows: int | None = None,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> tuple[Any, Any]:
    """Send rows of each device's array to all devices: `(received, counts)`.

    `x`: (m, ...) a device, of any dtype of 8 bits or more. `sizes`: int32 (n,) a device: `x`'s first sizes[0] rows go
    to device 0, the next sizes[1] to device 1, and so on; they are read on the GPU. A device receives rows in the order
    of ranks: `counts`, int32 (n,), has the number from each. The rows of `received`, (rows, ...), after these are
    uninitialised.
    Rows beyond the end of `x` are sent as zeros, and rows that do not fit into `received` are dropped. `rows`: by
    default n * m, the most that can arrive. `out`: (received, counts), preallocated. `timeout`: seconds that a device
    waits for its peers. `all_to_all(y, counts, mesh)` sends rows back to their devices.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. Devices meet by loads and stores at
    system scope (PTX ISA 8, the memory consistency model).
    """
    op = "all_to_all"
    shape, dtype = described(x, mesh, op, 1, only_moved=True)
    check_gapless(op, x=x)
    kind, number = described(sizes, mesh, op, 1)
    if kind != (mesh.size,) or number != kd.int32:
        hint = f"int32, one number for each of the {mesh.size} devices"
        raise BadArgument(op=op, what=f"sizes is {number}{list(kind)}", hint=hint)
    if out is not None and any(overlap(x, row) for row in out):
        raise BadArgument(op=op, what="out= shares memory with x", hint="give other arrays: peers still read x")
    count = shape[0] * mesh.size if rows is None else an_int(rows, op, "rows", low=0)
    given = out if out is None else tuple(out)
    launched: Any = Launched(_exchange(shape, dtype, mesh, count, timeout), (x, sizes), given)
    return launched


@cache
def _exchange(shape: tuple[int, ...], dtype: DType, mesh: Mesh, rows: int, timeout: float | None) -> Any:
    n, width = mesh.size, prod(shape[1:])
    piece = min(PIECE, max(width, 1))
    blocks = max(min(max(shape[0], 1), BLOCKS), 1)

    @kd.kernel(
        out_type=(kd.ShapeDtypeStruct((rows, *shape[1:]), dtype), kd.ShapeDtypeStruct((n,), kd.int32)),
        scratch_types=[kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR],
        grid=(blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"all_to_all_{n}",
    )
    def exchange(x: Any, sizes: Any, out: Any, counts: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, mesh, timeout)
        me, block = kd.axis_index(mesh.names), kd.axis_index("block")
        target = out.reshape(rows, width)
        at: Any = 0
        for rank in range(n):
            theirs = kd.remote_ref(sizes, rank)
            sent = [theirs[device] for device in range(n)]
            count, first = theirs[me], sum(kd.where(me > device, sent[device], 0) for device in range(n))
            source = kd.remote_ref(x, rank).reshape(shape[0], width)

            def copy(i: Any, carry: Any, source: Any = source, first: Any = first, at: Any = at) -> Any:
                row = i * blocks + block
                for start in range(0, width, piece):
                    part = kd.ds(start, min(piece, width - start))
                    target[at + row, part] = source[first + row, part]
                return carry

            kd.fori_loop(0, (count - block + blocks - 1) // blocks, copy, None)

            @kd.when(block == 0)
            def _(rank: int = rank, count: Any = count) -> None:
                counts[rank] = count

            at = at + count
        wait_for_all(end, mesh, timeout)

    return orders_itself(exchange)
