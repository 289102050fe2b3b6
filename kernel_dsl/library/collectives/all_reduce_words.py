"""All-reduce of small arrays: each device stores its own into the memory of all others, in words that hold the number
of the call.

A word of 8 bytes has 4 bytes of data and the number of the call. Hardware writes a word at once, so a block that reads
the expected number also has the data. Therefore the kernel needs no semaphore, no fence and no meeting of devices. The
memory has two halves, and calls use them in turn. A device writes to a half again when it has received its peers' words
of the call before: the peers sent these after they had read that half. Each block counts its own calls, so the count
continues when a graph is replayed.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.mesh import COUNT, ROOM, Mesh, meshed
from kernel_dsl.ops.semaphore import Deadline

BLOCKS = 132  # the most blocks of a device: all must run at the same time
EACH = 8  # bytes of data that a lane sends in one store
LANES = 128
SEND = (
    "{ .reg .b64 low, high; %s mov.b64 low, {%s, $2[0]}; mov.b64 high, {%s, $2[0]}; "
    "st.relaxed.sys.global.v2.b64 [$0[0]], {low, high}; }"
)
TAKE = (
    "{ .reg .b64 low, high; ld.relaxed.sys.global.v2.b64 {low, high}, [$3[0]]; "
    "mov.b64 {%s, $1[0]}, low; mov.b64 {%s, $2[0]}, high; %s }"
)


def _shared(size: int, dtype: DType) -> tuple[int, int]:
    """(the blocks that share an array, the stores of each of their lanes)."""
    units = max(-(-size * dtype.itemsize // (LANES * EACH)), 1)
    rounds = -(-units // BLOCKS)
    return -(-units // rounds), rounds


@cache
def words_kernel(shape: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    """The kernel `x -> out`: the sum over devices, in the order of ranks. `x` may lie in any memory, and `out` may be
    `x`.
    """
    size, n = prod(shape), mesh.size
    blocks, rounds = _shared(size, dtype)
    chunk, units = LANES * EACH // dtype.itemsize, blocks * rounds
    lanes, data = kd.Layout.WG_STRIDED((LANES,), 1), kd.Layout.WG_STRIDED((chunk,), EACH // dtype.itemsize)
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype
    flag = kd.ShapeDtypeStruct((LANES,), kd.int32)
    send, take = _templates(dtype)

    def body(x: Any, out: Any) -> None:
        known, block, me = meshed("all_reduce"), kd.axis_index("block"), kd.axis_index(mesh.names)
        room = known.kept((2, n, units, 2 * LANES), dt.int64)
        counts = known.kept((blocks,), dt.int32)
        mine, target = x.reshape(-1), out.reshape(-1)
        # issue all loads before waiting for the count
        places = [(block + i * blocks, kd.ds((block + i * blocks) * chunk, chunk)) for i in range(rounds)]
        own = [kd.layout_cast(mine[part], data) for _, part in places]
        row = known.addresses(room, "all_reduce")
        pair = n == 2  # two terms need no order, so a device adds its own at once
        bases = [known.peers[row, kd.rem(me + k, n)] + 4 * ROOM for k in range(n)]  # this device's, then the others'
        count = counts[block] + 1
        number = kd.layout_cast(kd.broadcast_to(count, (LANES,)), lanes)
        half = kd.rem(count, 2).astype(kd.int64) * n
        lane = kd.layout_cast(kd.broadcasted_iota(kd.int64, (LANES,), 0), lanes) * (2 * EACH)

        def address(base: Any, rank: Any, unit: Any) -> Any:
            """The address of each lane's part of a rank's unit."""
            place = (half + rank) * units + unit.astype(kd.int64)
            return base + place * (2 * EACH * LANES) + lane

        for base in bases[pair:]:
            for (unit, _), value in zip(places, own, strict=True):
                kd.inline_ptx(send, address(base, me, unit), value, number)
        ranks = [1 - me] if pair else range(n)
        here = [[address(bases[0], rank, unit) for rank in ranks if n > 1] for unit, _ in places]

        def peek() -> tuple[Any, list[list[Any]]]:
            """(1 + the last rank with missing words, or 0; the data that has arrived)."""
            missing: Any = 0
            found: list[list[Any]] = []
            for addresses in here:
                found.append([])
                for rank, one in zip(ranks, addresses, strict=False):
                    value, *numbers = kd.inline_ptx(
                        take, one, out_type=(kd.ShapeDtypeStruct((chunk,), dtype), flag, flag), layout=(data, lanes, lanes)
                    )  # fmt: skip
                    found[-1].append(value)
                    for x in numbers:
                        missing = kd.where(x != number, rank + 1, missing)
            return kd.max(missing), found

        late = None if timeout is None else Deadline(f"waited for {timeout} s for the words of rank {COUNT}", timeout)

        def again(state: Any) -> Any:
            if late is not None:
                late.check(state[0] - 1, lambda: state[0] > 0)
            return peek()

        came = kd.while_loop(lambda state: state[0] > 0, again, peek())[1] if n > 1 else [[] for _ in own]
        for (_, part), value, others in zip(places, own, came, strict=True):
            first, *rest = [x.astype(wide) for x in (others if n > 2 else [value, *others])]
            target[part] = sum(rest, first).astype(dtype)
        counts[block] = count

    made: Any = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, dtype),
        grid=(blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"all_reduce_words_{n}",
    )
    made.meets = False  # each device's stream orders all accesses except those to the words
    made.room = ROOM + 2 * n * units * LANES * 2 * EACH // 4 + -(-blocks // 4) * 4
    return made


def _templates(dtype: DType) -> tuple[str, str]:
    """(PTX that stores a lane's 8 bytes with the number of the call, PTX that loads them)."""
    if dtype.itemsize < 8:
        return SEND % ("", "$1[0]", "$1[1]"), TAKE % ("$0[0]", "$0[1]", "")
    parts = ".reg .b32 first, second;"
    send = SEND % (f"{parts} mov.b64 {{first, second}}, $1[0];", "first", "second")
    return send, f"{{ {parts} {TAKE % ('first', 'second', 'mov.b64 $0[0], {first, second};')} }}"
