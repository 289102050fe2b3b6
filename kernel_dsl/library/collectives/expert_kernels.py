"""The three kernels of `experts.py`: they count the tokens of each expert, fetch them, and add up the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import DType
from kernel_dsl.mesh import Mesh

from .parts import BLOCKS, orders_itself, wait_for_all

CHUNK = 2048  # choices that a warpgroup counts at a time
GROUP = 1024  # choices whose places it looks up at a time
PIECE = 4096  # elements that it holds of each of a token's rows
BYTES = 16 << 10  # the bytes of a row that it holds at a time


@cache
def counting_kernel(choices: int, k: int, experts: int, mesh: Mesh) -> Any:
    """The kernel `experts -> (numbers, chosen, counts)`.

    The results are each choice's number among the choices of its expert, the choices (-1 for those without an expert),
    and the number of choices of each expert.
    """
    flat = kd.ShapeDtypeStruct((max(choices, 1),), kd.int32)

    @kd.kernel(
        out_type=(flat, flat, kd.ShapeDtypeStruct((experts,), kd.int32)),
        grid=(experts,),
        grid_names=("expert",),
        mesh=mesh,
        name=f"expert_counts_{mesh.size}",
    )
    def count(ids: Any, numbers: Any, chosen: Any, counts: Any) -> None:
        expert, flat = kd.axis_index("expert"), ids.reshape(-1)
        size = min(CHUNK, max(choices, 1))

        def chunk(i: Any, before: Any) -> Any:
            part = kd.ds(i * size, size)
            there = i * size + kd.arange(size) < choices
            ids = kd.load(flat, part, mask=there, fill=0)
            none = there & ((ids < 0) | (ids >= experts))
            own = (there & (ids == expert)).astype(kd.int32)
            kd.store(numbers, part, before + kd.cumsum(own, exclusive=True), mask=own == 1)
            kd.store(chosen, part, kd.full((size,), expert, kd.int32), mask=own == 1)

            @kd.when(expert == 0)
            def _() -> None:
                kd.store(numbers, part, kd.zeros((size,), kd.int32), mask=none)
                kd.store(chosen, part, kd.full((size,), -1, kd.int32), mask=none)

            return before + kd.sum(own)

        counts[expert] = kd.fori_loop(0, kd.cdiv(choices, size), chunk, 0)

    return orders_itself(count)


@cache
def fetching_kernel(
    shape: tuple[int, int], dtype: DType, k: int, experts: int, rows: int, mesh: Mesh, timeout: float | None
) -> Any:
    """The kernel `(x, numbers, chosen, counts) -> (received, counts of this device's experts, places)`."""
    (tokens, width), n = shape, mesh.size
    each, piece = experts // n, min(BYTES // dtype.itemsize, max(width, 1))
    most = 2 * BLOCKS  # all must run at the same time
    group = max(min(GROUP // max(k, 1), kd.cdiv(tokens, most)), 1)  # tokens
    groups = kd.cdiv(tokens, group)
    blocks, looked = max(min(groups, most), 1), max(group * k, 1)

    @kd.kernel(
        out_type=(
            kd.ShapeDtypeStruct((rows, width), dtype),
            kd.ShapeDtypeStruct((each,), kd.int32),
            kd.ShapeDtypeStruct((tokens, k), kd.int32),
        ),
        scratch_types={
            "firsts": kd.SMEM((n, experts), kd.int32),
            "here": kd.SMEM((looked,), kd.int32),
            "begin": kd.SemaphoreType.REGULAR,
            "end": kd.SemaphoreType.REGULAR,
        },
        grid=(blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"expert_dispatch_{n}",
    )
    def fetch(
        x: Any,
        numbers: Any,
        chosen: Any,
        counts: Any,
        received: Any,
        mine: Any,
        places: Any,
        firsts: Any,
        here: Any,
        begin: Any,
        end: Any,
    ) -> None:
        wait_for_all(begin, mesh, timeout)
        me, block = kd.axis_index(mesh.names), kd.axis_index("block")
        total, device = _find_firsts([kd.remote_ref(counts, rank)[...] for rank in range(n)], firsts)

        @kd.when(block == 0)
        def _() -> None:
            kd.store(mine, kd.arange(experts) - me * each, total, mask=device == me)

        for turn in range(n):  # first those of the others
            rank = kd.rem(me + 1 + turn, n)
            source, theirs = kd.remote_ref(x, rank), [kd.remote_ref(ref, rank) for ref in (numbers, chosen)]

            def some(i: Any, carry: Any, rank: Any = rank, source: Any = source, theirs: Any = theirs) -> Any:
                token = (i * blocks + block) * group
                part = kd.ds(token * k, looked)
                there = token * k + kd.arange(looked) < tokens * k
                number, expert = (kd.load(ref, part, mask=there, fill=0) for ref in theirs)
                at = kd.where(expert < 0, rows, number + firsts[rank, kd.clip(expert, 0, experts - 1)])
                kd.when(rank == me)(lambda: kd.store(places.reshape(-1), part, at, mask=there))
                here[...] = kd.where(there & (expert // each == me), at, -1)

                def row(t: Any, carry: Any) -> Any:
                    targets = [here[t * k + j] for j in range(k)]
                    _copy_row(lambda columns: source[token + t, columns], received, targets, piece)
                    return carry

                if k:
                    kd.fori_loop(0, group, row, None)
                return carry

            kd.fori_loop(0, kd.div(groups - block + blocks - 1, blocks), some, None)
        wait_for_all(end, mesh, timeout)

    return orders_itself(fetch)


def _find_firsts(of_ranks: list[Any], firsts: Any) -> tuple[Any, Any]:
    """Store the first received row of each device's tokens for each expert, (devices, experts), from the counts of each device.

    Returns (the tokens of each expert, the device of each expert).
    """
    n, experts = firsts.shape
    total = sum(of_ranks[1:], of_ranks[0])
    starts = kd.cumsum(total, exclusive=True)
    # rows begin anew on each device
    device = kd.arange(experts) // (experts // n)
    for other in range(1, n):
        starts = kd.where(device == other, starts - kd.sum(kd.where(device < other, total, 0)), starts)
    for rank, count in enumerate(of_ranks):
        firsts[rank] = starts
        starts = starts + count
    return total, device


def _copy_row(read: Callable[[Any], Any], received: Any, targets: list[Any], piece: int) -> None:
    """Copy a row to the rows `targets`, where these are not below 0; `read(columns)` gives `piece` elements at a time."""
    last: Any = targets[0]
    for target in targets[1:]:
        last = kd.maximum(last, target)

    @kd.when(last >= 0)
    def _() -> None:
        width = received.shape[1]
        for start in range(0, width, piece):
            columns = kd.ds(start, min(piece, width - start))
            value = read(columns)
            for target in targets:

                @kd.when(target >= 0)
                def _(target: Any = target, columns: Any = columns, value: Any = value) -> None:
                    received[target, columns] = value


@cache
def adding_kernel(
    shape: tuple[int, int], dtype: DType, choices: tuple[int, int], experts: int, mesh: Mesh, timeout: float | None
) -> Any:
    """The kernel `(y, experts, places, weights) -> out`."""
    (rows, width), (tokens, k), n = shape, choices, mesh.size
    blocks, piece = max(min(tokens, BLOCKS), 1), min(PIECE // 2, max(width, 1))
    wide = kd.float64 if dtype == kd.float64 else kd.float32

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((tokens, width), dtype),
        scratch_types=[kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR],
        grid=(blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"expert_combine_{n}",
    )
    def add(y: Any, ids: Any, places: Any, weights: Any, out: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, mesh, timeout)
        block = kd.axis_index("block")

        def token(i: Any, carry: Any) -> Any:
            t = i * blocks + block
            terms: list[tuple[Any, Any, Any]] = []
            for j in range(k if rows else 0):
                device = kd.minimum(kd.maximum(kd.div(ids[t, j], experts // n), 0), n - 1)
                at = places[t, j]
                weight = kd.where(at < rows, weights[t, j], 0.0)
                terms.append((kd.remote_ref(y, device), kd.minimum(at, rows - 1), weight))
            for start in range(0, width, piece):
                part = kd.ds(start, min(piece, width - start))
                total: Any = kd.zeros((min(piece, width - start),), wide)
                for ref, at, weight in terms:
                    total = total + kd.where(weight == 0, 0.0, ref[at, part].astype(wide) * weight)
                out[t, part] = total.astype(dtype)
            return carry

        kd.fori_loop(0, kd.div(tokens - block + blocks - 1, blocks), token, None)
        wait_for_all(end, mesh, timeout)

    return orders_itself(add)
