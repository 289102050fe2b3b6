"""`expert_dispatch` and `expert_combine`: tokens go to the devices that have their experts, and come back summed up.

There are three kernels. The first counts, for each expert, the tokens of its own device, and numbers them. The second reads the
counts of all devices and computes where its own rows begin; it fetches each token that one of its experts gets, once, and stores
it for each of these. The third reads the results in place and adds them up in the order of a token's experts, so calls give
the same bits.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.arguments import an_int
from kernel_dsl.boundary import public
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, is_symmetric, made_like, overlap

from .by_rank import Launched, by_rank
from .collectives import BLOCKS, described, orders_itself, wait_for_all

CHUNK = 2048  # choices that a warpgroup counts at a time
GROUP = 1024  # choices of which it looks up the places at a time
PIECE = 4096  # elements of a row that it holds of each of a token's rows
BYTES = 16 << 10  # of a row that it holds, where it holds one


@partial(public, name="expert_dispatch")
@by_rank
def expert_dispatch(
    x: Any,
    experts: Any,
    mesh: Mesh,
    *,
    num_experts: int,
    rows: int | None = None,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> tuple[Any, Any, Any]:
    """Send each device's tokens to the devices of their experts: `(received, counts, places)`.

    `x`: (tokens, width) a device. `experts`: int32 (tokens, k) a device, from 0 to num_experts - 1, of which each
    device has num_experts / n, in order; they are read on the GPU. A choice of another number, such as -1, has no
    expert: it is sent nowhere, and its place is `rows`. A device receives rows by expert, within an expert by rank, and
    within a rank by token: `counts`, int32 (num_experts / n,), has the number of rows of each expert, as
    `kd.library.grouped_matmul` takes them. The rows of `received`, (rows, width), after these are uninitialised.
    `places`, int32 (tokens, k): the row of each choice there, for `expert_combine`. `rows`: by default n * tokens * k,
    the most that can arrive; rows that do not fit are dropped. `out`: (received, counts, places), preallocated. Raises
    `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh.
    """
    op = "expert_dispatch"
    shape, dtype, k = _tokens(x, experts, mesh, num_experts, op)
    if out is not None and any(overlap(a, row) for a in (x, experts) for row in out):
        raise BadArgument(op=op, what="out= shares memory with x or experts", hint="give other arrays")
    most = mesh.size * shape[0] * k if rows is None else an_int(rows, op, "rows", low=0)
    choices: Any = max(shape[0] * k, 1)
    known = None
    if isinstance(x, OfRank):  # peers read these, and combining reads what is received
        x = _reachable(x, shape, dtype, mesh)
        sizes = (("numbers", choices), ("experts", choices), ("counts", num_experts))
        known = tuple(made_like(x, (size,), kd.int32, mesh, f"expert {name}") for name, size in sizes)
        if out is None:
            others = [((num_experts // mesh.size,), kd.int32), ((shape[0], k), kd.int32)]
            out = (made_like(x, (most, shape[1]), dtype, mesh), *(_plain(x, *other) for other in others))
    known = _counting(shape[0] * k, k, num_experts, mesh)(experts, out=known, interpret=interpret)
    fetch = _fetching(shape, dtype, k, num_experts, most, mesh, timeout)
    received, mine, places = fetch(x, *known, out=out, interpret=interpret)
    return received, mine, places


def _reachable(x: OfRank, shape: tuple[int, int], dtype: DType, mesh: Mesh) -> OfRank:
    """This rank's rows, where peers can read them: copied, if they lie elsewhere."""
    if is_symmetric(x[0]):
        return x
    there: Any = made_like(x, shape, dtype, mesh, "expert rows")
    there[0][...] = x[0]
    return there


def _plain(x: OfRank, shape: tuple[int, ...], dtype: DType) -> OfRank:
    """An array of this rank, which no peer reaches."""
    return OfRank(made_like([x[0]], shape, dtype, None), x.mesh)


@partial(public, name="expert_combine")
@by_rank
def expert_combine(
    y: Any,
    experts: Any,
    places: Any,
    weights: Any,
    mesh: Mesh,
    *,
    num_experts: int,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """Bring the rows of `expert_dispatch` back: token t is the sum over j of weights[t, j] * the row of its choice j.

    `y`: (rows, width) a device, the results for its received rows; `experts` and `places` are those of the dispatch;
    `weights`: float32 (tokens, k). Sums are float32, rounded once to y's dtype, or float64 for
    float64. A choice whose row was dropped, or that has no expert, adds nothing. `out`: (tokens, width). Raises
    `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh.
    """
    op = "expert_combine"
    shape, dtype, _ = _tokens(y, None, mesh, num_experts, op)
    (ids, id_dtype), (at, at_dtype), (w, w_dtype) = (described(a, mesh, op, 2) for a in (experts, places, weights))
    if ids != at or ids != w or len(ids) != 2 or id_dtype != kd.int32 or at_dtype != kd.int32 or w_dtype != kd.float32:
        what = f"experts is {id_dtype}{list(ids)}, places {at_dtype}{list(at)}, weights {w_dtype}{list(w)}"
        raise BadArgument(op=op, what=what, hint="int32, int32 and float32, all (tokens, k)")
    if out is not None and any(overlap(a, out) for a in (y, experts, places, weights)):
        raise BadArgument(op=op, what="out= shares memory with an input", hint="give another array")
    return Launched(_adding(shape, dtype, ids, num_experts, mesh, timeout), (y, experts, places, weights), out)


def _tokens(x: Any, experts: Any, mesh: Mesh, num_experts: Any, op: str) -> tuple[tuple[int, int], DType, int]:
    """The shape and dtype of a device's rows, and the choices of a token. Raises `BadArgument`, `BadArgumentType`."""
    shape, dtype = described(x, mesh, op)
    if len(shape) != 2 or not dtype.is_float:
        raise BadArgumentType(op=op, what=f"rows are {dtype}{list(shape)}", hint="pass floats, (rows, width)")
    if an_int(num_experts, op, "num_experts", low=1) % mesh.size:
        what = f"num_experts={num_experts}, for {mesh.size} devices"
        raise BadArgument(op=op, what=what, hint="each device has as many experts")
    if experts is None:
        return (shape[0], shape[1]), dtype, 0
    ids, kind = described(experts, mesh, op)
    if kind != kd.int32 or len(ids) != 2 or ids[0] != shape[0]:
        what = f"experts is {kind}{list(ids)}, for {shape[0]} tokens"
        raise BadArgument(op=op, what=what, hint="int32, (tokens, k)")
    return (shape[0], shape[1]), dtype, ids[1]


# --- kernels --------------------------------------------------------------------------------------


@cache
def _counting(choices: int, k: int, experts: int, mesh: Mesh) -> Any:
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
def _fetching(
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
        of_ranks = [kd.remote_ref(counts, rank)[...] for rank in range(n)]
        total = sum(of_ranks[1:], of_ranks[0])
        starts = kd.cumsum(total, exclusive=True)
        # rows begin anew on each device
        device = kd.arange(experts) // each
        for other in range(1, n):
            starts = kd.where(device == other, starts - kd.sum(kd.where(device < other, total, 0)), starts)
        for rank, count in enumerate(of_ranks):
            firsts[rank] = starts
            starts = starts + count

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
                    last: Any = targets[0]
                    for target in targets[1:]:
                        last = kd.maximum(last, target)

                    @kd.when(last >= 0)
                    def _() -> None:
                        for start in range(0, width, piece):
                            columns = kd.ds(start, min(piece, width - start))
                            value = source[token + t, columns]
                            for target in targets:

                                @kd.when(target >= 0)
                                def _(target: Any = target, columns: Any = columns, value: Any = value) -> None:
                                    received[target, columns] = value

                    return carry

                if k:
                    kd.fori_loop(0, group, row, None)
                return carry

            kd.fori_loop(0, kd.div(groups - block + blocks - 1, blocks), some, None)
        wait_for_all(end, mesh, timeout)

    return orders_itself(fetch)


@cache
def _adding(
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
