"""Products that differ only in M and in the batch: kernels for the first sizes, and kernels for any sizes after that.

The first sizes get specialised code, because most programs have one. From the second on M and a batch axis are
`kd.Dim`s. New sizes use a configuration that is already compiled if the cost model predicts about the best speed for
it, so they seldom need a compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import Any

from ..blocks import clusters_at_once, grid_of, tiles_of
from ..first_sizes import FirstSizes, KeptConfigs, dim_of, is_later, is_open
from ..products.problem import Problem

ROWS, ROWS_OF_MANY = 2**24, 2**16  # the greatest M of one product, and of each product of a batch
BATCH = 2**16
DEPTH = 2**30  # the greatest K
TILES = 2**30  # indices of tiles are 32 bits wide
PARTS = 64  # the most parts of K
SMALLEST = (8, 64)  # a tile
VECTOR = 16  # bytes of one load along M
# The time of a kernel that divides to find its tiles, for a size that has one tile or one wave, of that of a kernel that
# knows this.
UNKNOWN_TILES = 1.08
SHORT = 30_000  # clocks: of products that take longer, kernels for all sizes have 0.97 of the speed of those for one
STORED = 16  # columns that lanes store at a time where N is a Dim: more would spill
Limit = tuple[int, int]  # the greatest M, or N, and the greatest batch of a kernel; 0: the greatest possible
ANY: Limit = (0, 0)
# the fields of a problem that change with the batch
BATCHES = ("batch", "a_batch", "b_batch", "a_scale_batch", "b_scale_batch")

_first = FirstSizes()
_kept = KeptConfigs()


def open_sizes(p: Problem) -> bool:
    """Whether each call gives some of the sizes."""
    return is_open(*p.batch, p.M, p.N, p.K)


def opened(p: Problem, unit: int = 1, side: str = "M", limit: Limit = ANY) -> Problem | None:
    """The problem with Dims for `side`, M or N, and for the first batch axis; None if no kernel takes other sizes.

    `unit`: a divisor of M, or of N; `limit`: the greatest sizes that the kernel shall take.
    """
    if p.groups or p.b_scale_batch is None:
        return None  # groups of rows, or two right sides with different scales
    axis = next((i for i, n in enumerate(p.batch) if n > 1), None)
    size, other = (p.M, p.N) if side == "M" else (p.N, p.M)
    rest = (
        (1 if p.parts == 1 else PARTS) * -(-other // SMALLEST[1]) * prod(n for i, n in enumerate(p.batch) if i != axis)
    )
    steps = (*p.gated[0], *p.gated[1], *p.all_steps)
    most, several = ROWS if axis is None else ROWS_OF_MANY, BATCH
    if axis is None and any(step.kind == "dropout" for step in steps) and p.M * p.N * prod(p.batch) <= 1 << 31:
        most = min(most, (1 << 31) // (other * prod(p.batch)))  # so that 32 bits count the elements
    if axis is None:
        most = min(most, TILES // rest * SMALLEST[0])
    else:
        several = min(several, TILES // rest // (most // SMALLEST[0]))
    most, several = (min(n, own or n) for n, own in zip((most, several), limit, strict=True))
    if most < size or (axis is not None and p.batch[axis] > several):
        return None
    made = replace(p, **{side: dim_of(side, most // unit * unit, unit)})
    if axis is None:
        return made

    def with_dim(extents: tuple[int, ...]) -> tuple[Any, ...]:
        own = axis - len(p.batch) + len(extents)
        if own < 0 or extents[own] == 1:
            return extents
        return (*extents[:own], dim_of("batch", several), *extents[own + 1 :])

    return replace(made, **{name: with_dim(getattr(p, name)) for name in BATCHES})


def declared(p: Problem, sums: bool = False, grouped: bool = False) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel for the problem.

    `sums`: the kernel takes sums of parts in place of a and b; `grouped`: sizes of groups come after b.
    """
    if not open_sizes(p):
        return None
    found, first = _declared_sums(p) if sums else _declared_sides(p, grouped)
    outer = p.b_batch if grouped else p.batch
    sizes: dict[str, Any] = {"m": p.M, "n": p.N, "-": 1} | {str(i): n for i, n in enumerate(outer)}
    steps = (*p.gated[0], *p.gated[1], *p.all_steps)
    for axes in (axes for step in steps for axes in step.operands):
        if axes:
            found[first] = tuple(sizes[name] for name in axes)
        first += 1
    if p.softmax and not sums:
        if p.exponentials:
            found |= {first: (p.M,), first + 2: (*p.batch, p.M, p.N)}
            first += 3
        found[first] = (p.softmax, None, p.M)
    return found | {first: (p.M, p.N)} if grouped else found


def _declared_sums(p: Problem) -> tuple[dict[int, tuple[Any, ...]], int]:
    """(the shapes of the sums of parts, the number of the parameter after them)."""
    count = 1 if p.gate is None else 2
    shape = (*((p.parts,) if p.parts > 1 else ()), *p.batch, p.M, p.N)
    return dict.fromkeys(range(count), shape), count


def _declared_sides(p: Problem, grouped: bool) -> tuple[dict[int, tuple[Any, ...]], int]:
    """(the shapes of a, b and what belongs to them: metadata and scales; the number of the parameter after them)."""
    count = 1 if p.gate is None else 2
    height, width, depth = (n if is_open(n) else None for n in (p.M, p.N, p.K))  # packed operands are longer
    found = {0: (*p.a_batch, depth, height) if p.a_transposed else (*p.a_batch, height, depth)}
    right = (*p.b_batch, width, depth) if p.b_transposed else (*p.b_batch, depth, width)
    found |= dict.fromkeys(range(1, 1 + count), right)
    first = 1 + count + ((1 + p.int4_zeros) if p.int4 else 0) + grouped
    if p.sparse and is_open(p.M):
        found[first] = (None, dim_of("metadata", 2 * ROWS, 128))
    first += p.sparse
    if p.a_scaled:
        found[first] = (*p.a_scale_batch, p.M, None)
    first += p.a_scaled
    if p.b_scaled and p.b_scale_batch and not grouped:
        found[first] = (*p.b_scale_batch, None, None)
    return found, first + bool(p.b_scaled)


def at_launch(p: Problem, a: Any, b: Any) -> Problem:
    """In a body: the problem with the launch's sizes, from operands in their own order."""
    if not open_sizes(p):
        return p

    def extent(number: int) -> Any:
        for ref, own in ((a, p.a_batch), (b, p.b_batch)):
            at = number - len(p.batch) + len(own)
            there: Any = own[at] if at >= 0 else 1
            if is_open(there):
                return ref.shape[at]
        return p.batch[number]

    places = {"M": (a, p.a_transposed), "N": (b, not p.b_transposed), "K": (a, not p.a_transposed)}
    sizes = {side: ref.shape[-1 if last else -2] for side, (ref, last) in places.items() if is_open(getattr(p, side))}
    groups = p.groups and replace(p.groups, rows=sizes.get("M", p.M))
    return replace(p, **sizes, groups=groups, batch=tuple(extent(i) for i in range(len(p.batch))))


def grid_for(p: Problem, t: Any) -> Any:
    """The grid of a general kernel by the configuration `t`: of ints, or a function of the operands of a launch."""
    if p.groups is not None or not is_open(*p.batch, p.M, p.N):
        return (tiles_of(p, t),)
    return lambda a, b, *_: grid_of(at_launch(p, a, b), t)


def of_sums(p: Problem, sums: Any) -> Problem:
    """In a body: the problem with the launch's sizes, from sums (*parts, *batch, M, N)."""
    if not open_sizes(p):
        return p
    sizes = {side: sums.shape[axis] for side, axis in (("M", -2), ("N", -1)) if is_open(getattr(p, side))}
    return replace(p, **sizes, batch=tuple(sums.shape[len(sums.shape) - 2 - len(p.batch) : -2]))


def unit_of_rows(p: Problem, left: Any) -> int:
    """A divisor of M of a kernel for any M; 0 if there is none. `left`: the packing of a, or None."""
    vector = VECTOR // p.dtype.itemsize
    widths = p.K * p.dtype.itemsize, p.N * p.out_dtype.itemsize
    if p.M == 1 and (p.sparse or any(width % VECTOR for width in widths)):
        return 0  # TMA takes a single row with any stride, but needs aligned strides for several rows
    turned = p.a_transposed or (left is not None and left.turned)
    return vector if turned and p.M % vector == 0 else 1


def opened_route(route: Any, limit: Limit = ANY) -> Any:
    """The route with kernels that take any M and batch, or None. `limit`: as of `opened`."""
    p = route.problem
    if 0 in (*p.batch, p.M, p.N, p.K) or (p.softmax and getattr(route.config, "swapped", False)):
        return None
    if route.kernel == "vector" and not route.config.of_a:
        return None  # the rows of a are the vectors
    left = route.packings[0]
    unit = unit_of_rows(p, left)
    if left is not None and (route.kernel != "lane" or p.M * left.to.itemsize % VECTOR):
        route = _showing(route, 0)
    across = "columns" if route.problem.a_transposed else "rows"
    return _with_dims(route, unit, "M", across, limit) if unit else None


def showing(p: Problem, packings: Any, side: int) -> tuple[Problem, Any]:
    """A problem and its packings with a (0) or b (1), if it is packed, along K.

    Rows that are packed along M or N are padded to whole vectors, so their extents are not M or N.
    """
    pack = packings[side]
    if pack is None or (p.b_transposed if side else not p.a_transposed):
        return p, packings
    across = bool(pack.scaled) and not pack.across
    turned = replace(pack, rows=pack.columns, columns=pack.rows, turned=not pack.turned, across=across)
    if side:
        return replace(p, b_transposed=True), (packings[0], turned)
    return replace(p, a_transposed=False), (turned, packings[1])


def _showing(route: Any, side: int) -> Any:
    """The route whose kernels see M (side 0) or N (1) by packed operands."""
    p, packings = showing(route.problem, route.packings, side)
    lies = {"a_transposed": p.a_transposed, "b_transposed": p.b_transposed}
    return replace(route, problem=p, packings=packings, whole=route.whole and replace(route.whole, **lies))


def widened_route(route: Any, limit: Limit = ANY) -> Any:
    """The route with kernels that take any N and batch, or None: for products in which b has a call's rows.

    `limit`: as of `opened`.

    If the rows of the result are no multiples of 16 bytes, lanes store it, and b is packed along K, because packed rows
    along N would be padded.
    """
    p = route.problem
    if 0 in (*p.batch, p.M, p.N, p.K) or 1 in (p.M, p.N):
        return None
    route = _showing(route, 1)
    p, (left, right) = route.problem, route.packings
    along = not p.b_transposed or (right is not None and right.turned)
    unit = VECTOR // p.b_dtype.itemsize if along and p.N * p.b_dtype.itemsize % VECTOR == 0 else 1
    stored = VECTOR // p.out_dtype.itemsize
    unit = max(unit, stored if p.lanes == 0 and p.N % stored == 0 else 1)
    config = route.config
    if p.lanes and route.kernel == "fast":
        config = replace(config, epilogue_n=min(config.epilogue_n, STORED))
    whole = route.whole and replace(route.whole, lanes=0)  # it does not depend on them
    problem = replace(p, lanes=min(p.lanes, 1))
    made = replace(route, problem=problem, config=config, packings=(left, right), whole=whole)
    return _with_dims(made, unit, "N", "rows", limit)


def _with_dims(route: Any, unit: int, side: str, across: str, limit: Limit) -> Any:
    """The route with Dims for `side`, M or N, and for the batch, or None. `across`: the axis of that side's packing."""
    general = opened(route.problem, unit, side, limit)
    whole = None if route.whole is None else opened(route.whole, unit, side, limit)
    if general is None or (route.whole is not None and whole is None):
        return None
    if whole is not None:  # parts of K may have other bounds
        general = replace(general, **{name: getattr(whole, name) for name in (side, *BATCHES)})
    sizes = ({across: getattr(general, side)}, {})
    packings = tuple(
        pack and replace(pack, batch=own, **more)
        for pack, own, more in zip(
            route.packings, (general.a_batch, general.b_batch), sizes if side == "M" else sizes[::-1], strict=True
        )
    )
    return replace(route, problem=general, packings=packings, whole=whole)


def deepened_route(route: Any, _: Limit = ANY) -> Any:
    """The route with kernels that take any K, or None. It serves sums over the outer axis of both sides, such as
    gradients of weights.

    Some kernels need operands along K. Packed operands then show K rounded up to whole vectors.
    """
    p = route.problem
    if (
        p.groups
        or p.sparse
        or p.scaled
        or p.int4
        or p.thrice
        or p.promoted
        or 0 in (*p.batch, p.M, p.N, p.K)
        or p.K > DEPTH
    ):
        return None
    along, unit = (not p.a_transposed, p.b_transposed), 1
    for pack, its_own, single in zip(route.packings, along, (p.M == 1, False), strict=True):
        vector = VECTOR // (p.dtype if pack is None else pack.to).itemsize
        if its_own and (not single if pack is None else not pack.turned or p.K % vector):
            return None
        unit = max(unit, vector) if its_own and p.K % vector == 0 else unit
    K = dim_of("K", DEPTH // unit * unit, unit)
    packings = tuple(
        pack and replace(pack, **{"columns" if its_own else "rows": K})
        for pack, its_own in zip(route.packings, along, strict=True)
    )
    whole = route.whole and replace(route.whole, K=1)  # it does not depend on K
    config = route.config
    if route.kernel == "tile":  # few steps have a stage each, but for any number of steps the stages are used in turn
        config = replace(config, stages=type(config).stages)
    return replace(route, problem=replace(p, K=K), config=config, packings=packings, whole=whole)


def tile_alone(route: Any, side: str) -> int:
    """The greatest size along `side`, M or N, of which Hopper's fast product makes a single tile; 0 if others make it."""
    t = route.config
    if route.kernel != "fast" or t.streamed:
        return 0
    if (side == "M") != t.swapped:
        return t.tile_m * t.cluster
    return t.tile_n * t.cluster_n // (1 if route.problem.gate is None else 2)


def limit_of(route: Any, side: str, blocks: int, short: bool) -> Limit:
    """The greatest sizes of the kernel that is compiled for sizes like these: for a single tile along `side`, M or N, or, of a
    `short` product, for as many tiles as Hopper's fast one computes at once on `blocks` multiprocessors. Others have `ANY`.

    With a batch either size may be as large as the other one allows: the kernel takes more tiles than these, but slower.
    """
    p, t, tile = route.problem, route.config, tile_alone(route, side)
    if not (tile and side):
        return ANY
    size, several = getattr(p, side), prod(p.batch)
    single = size <= tile
    if single and several == 1:
        return tile, 0
    other = -(-(p.N if side == "M" else p.M) // tile_alone(route, "N" if side == "M" else "M")) * p.parts
    at_once = clusters_at_once(blocks, t.blocks) // other if short and not (t.ping_pong or p.exponentials) else 0
    if several == 1:
        return (at_once * tile, 0) if size <= at_once * tile else ANY
    if p.parts == 1 and -(-size // tile) * several <= at_once and several == max(p.batch):
        return at_once * tile, at_once
    return (tile, 0) if single else ANY


def serving(route: Any, cost: Callable[[Any], float], flipped: bool, blocks: int) -> Any:
    """The route with kernels that take any sizes.

    It is `route` itself for the first sizes, and if no kernel takes any sizes. `cost` gives the clocks of a route, or
    infinity if it can't have its parts. `flipped`: the rows of a call are those of b; `blocks`: multiprocessors.

    Sizes that fit a single tile have kernels that take only such sizes: these know the number of their tiles, so their
    code is that of one size. So have sizes whose tiles are all computed at once, each by a block of its own.
    """
    p = route.problem
    changing = flipped or p.sparse  # whether b has a call's rows
    # the parts of the key that do not depend on sizes and kernels
    closed = {**dict.fromkeys(BATCHES, ()), "parts": 1, "out_dtype": (route.whole or p).out_dtype, "lanes": 0}
    sides = {"a_transposed": False, "b_transposed": False}
    ways: list[tuple[Any, str, dict[str, Any], Any]] = [
        (opened_route, "M", {"M": 0, **sides}, (p.batch, p.M)),
        *([(widened_route, "N", {"N": 0, **sides}, (p.batch, p.N))] if changing else []),
        (deepened_route, "", {"K": 0, "batch": p.batch}, p.K),
    ]
    for way, side, own, sizes in ways:
        found = way(route)
        if found is not None and _first.comes_again((replace(p, **(closed | own)), len(p.batch)), sizes):
            return _with_kept(route, way, side, cost, found, blocks)
    return route


def _with_kept(route: Any, way: Any, side: str, cost: Callable[[Any], float], found: Any, blocks: int) -> Any:
    """The route of `way` with a configuration and parts that calls of other sizes had, if they are about as fast here.

    `side`: "M" or "N", whose sizes may have a `limit_of`, or none; `found`: the route of `way`.
    """
    size = getattr(route.problem, side) if side else 0

    def limit_for(made: Any) -> Limit:
        return limit_of(made, side, blocks, cost(made) < SHORT)

    def time(choice: Any) -> float:
        *cut, (rows, several) = choice
        made = route.cut_in(*cut)
        if (rows and size > rows) or (
            several and -(-size // tile_alone(made, side)) * prod(route.problem.batch) > several
        ):
            return inf
        return cost(made) * (1 if rows or limit_for(made) == ANY else UNKNOWN_TILES)

    whole = way(route.cut_in(1, route.config))
    kind = replace(found if whole is None else whole, config=None)
    best = route.problem.parts, route.config, ANY if is_later() else limit_for(route)
    *cut, limit = _kept.choose(kind, best, time)
    made = way(route.cut_in(*cut), limit)
    return found if made is None else made
