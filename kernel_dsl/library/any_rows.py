"""Products that differ only in M and in the batch: kernels for the first sizes, and kernels for any sizes after that.

The first sizes get specialised code, because most programs have one. From the second on M and a batch axis are `kd.Dim`s. A
configuration that is compiled already is used if the cost model predicts about the best speed, so new sizes seldom need a
compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd

from .first_sizes import FirstSizes, Kept
from .problem import Problem

ROWS, ROWS_OF_MANY = 2**24, 2**16  # the greatest M: of one product, and of each of a batch
BATCH = 2**16
DEPTH = 2**30  # the greatest K
TILES = 2**30  # indices of tiles are 32 bits wide
SMALLEST = (8, 64)  # a tile
VECTOR = 16  # bytes that are read at once along M

_first = FirstSizes()
_kept = Kept()


@cache
def _dim(name: str, most: int, unit: int = 1) -> Any:
    return kd.Dim(name, max=most, multiple_of=unit)


def open_sizes(p: Problem) -> bool:
    """Whether some sizes come from each call."""
    extents: tuple[Any, ...] = (*p.batch, p.M, p.N, p.K)
    return not all(isinstance(n, int) for n in extents)


def opened(p: Problem, unit: int = 1) -> Problem | None:
    """The problem with Dims for M and for the first batch axis; None if no kernel takes other sizes.

    `unit`: a divisor of M.
    """
    if p.groups or p.sparse or (p.scaled and p.batch):
        return None  # grouped rows; metadata and scales whose axes the problem does not describe
    axis = next((i for i, n in enumerate(p.batch) if n > 1), None)
    rest = p.parts * -(-p.N // SMALLEST[1]) * prod(n for i, n in enumerate(p.batch) if i != axis)
    steps = (*p.gated[0], *p.gated[1], *p.all_steps)
    rows, several = ROWS if axis is None else ROWS_OF_MANY, BATCH
    if axis is None and any(step.kind == "dropout" for step in steps) and p.M * p.N * prod(p.batch) <= 1 << 31:
        rows = min(rows, (1 << 31) // (p.N * prod(p.batch)))  # 32 bits count the elements if they are enough
    if axis is None:
        rows = min(rows, TILES // rest * SMALLEST[0])
    else:
        several = min(several, TILES // rest // (rows // SMALLEST[0]))
    if rows < p.M or (axis is not None and p.batch[axis] > several):
        return None
    made = replace(p, M=_dim("M", rows // unit * unit, unit))
    if axis is None:
        return made

    def with_dim(extents: tuple[int, ...]) -> tuple[Any, ...]:
        own = axis - len(p.batch) + len(extents)
        if own < 0 or extents[own] == 1:
            return extents
        return (*extents[:own], _dim("batch", several), *extents[own + 1 :])

    return replace(made, batch=with_dim(p.batch), a_batch=with_dim(p.a_batch), b_batch=with_dim(p.b_batch))


def declared(p: Problem, sums: bool = False, grouped: bool = False) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel for the problem.

    `sums`: the kernel takes sums of parts in place of a and b; `grouped`: sizes of groups come after b.
    """
    if not open_sizes(p):
        return None
    count = 1 if p.gate is None else 2
    if sums:
        shape = (*((p.parts,) if p.parts > 1 else ()), *p.batch, p.M, p.N)
        found: dict[int, tuple[Any, ...]] = dict.fromkeys(range(count), shape)
        first = count
    else:
        depth = None if isinstance(p.K, int) else p.K  # pyright: ignore[reportUnnecessaryIsInstance]
        found = {0: (*p.a_batch, depth, p.M) if p.a_transposed else (*p.a_batch, p.M, depth)}
        right = (*p.b_batch, None, depth) if p.b_transposed else (*p.b_batch, depth, None)
        found |= dict.fromkeys(range(1, 1 + count), right)
        first = 1 + count + ((1 + p.int4_zeros) if p.int4 else 0) + grouped
        if p.a_scaled:
            found[first] = (p.M, None)
        first += p.a_scaled + bool(p.b_scaled)
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


def at_launch(p: Problem, a: Any, b: Any) -> Problem:
    """In a body: the problem with the launch's sizes, from operands in their own order."""
    if not open_sizes(p):
        return p

    def extent(number: int) -> Any:
        for ref, own in ((a, p.a_batch), (b, p.b_batch)):
            at = number - len(p.batch) + len(own)
            there: Any = own[at] if at >= 0 else 1
            if not isinstance(there, int):
                return ref.shape[at]
        return p.batch[number]

    own: tuple[Any, ...] = (p.M, p.K)
    M, K = (
        n if isinstance(n, int) else a.shape[-1 if p.a_transposed == (axis == 0) else -2] for axis, n in enumerate(own)
    )
    groups = p.groups and replace(p.groups, rows=M)
    return replace(p, M=M, K=K, groups=groups, batch=tuple(extent(i) for i in range(len(p.batch))))


def of_sums(p: Problem, sums: Any) -> Problem:
    """In a body: the problem with the launch's sizes, from sums (*parts, *batch, M, N)."""
    if not open_sizes(p):
        return p
    return replace(p, M=sums.shape[-2], batch=tuple(sums.shape[len(sums.shape) - 2 - len(p.batch) : -2]))


def opened_route(route: Any) -> Any:
    """The route with kernels that take any sizes, or None."""
    p = route.problem
    if 0 in (*p.batch, p.M, p.N, p.K) or (p.softmax and getattr(route.config, "swapped", False)):
        return None
    left = route.packings[0]
    if p.M == 1 and (p.K * p.dtype.itemsize % VECTOR or p.N * p.out_dtype.itemsize % VECTOR):
        return None  # TMA takes a single row with any stride, but not several rows
    vector = VECTOR // p.dtype.itemsize
    if left is not None and p.a_transposed and (route.kernel != "lane" or p.M % vector):
        return None  # packed rows along M are padded to whole vectors, so they don't show M
    turned = p.a_transposed if left is None else left.turned or p.a_transposed
    unit = vector if turned and p.M % vector == 0 else 1
    general = opened(p, unit)
    whole = None if route.whole is None else opened(route.whole, unit)
    if general is None or (route.whole is not None and whole is None):
        return None
    if whole is not None and (whole.M, *whole.batch) != (general.M, *general.batch):
        general = replace(general, M=whole.M, batch=whole.batch, a_batch=whole.a_batch, b_batch=whole.b_batch)
    across = "columns" if p.a_transposed else "rows"
    packings = tuple(
        pack and replace(pack, batch=own, **({across: general.M} if side == 0 else {}))
        for side, (pack, own) in enumerate(zip(route.packings, (general.a_batch, general.b_batch), strict=True))
    )
    return replace(route, problem=general, packings=packings, whole=whole)


def deepened_route(route: Any) -> Any:
    """The route with kernels that take any K, or None: for sums over the outer axis of both sides, as of gradients of weights."""
    p = route.problem
    outer = not p.b_transposed and (p.a_transposed or p.M == 1)
    special = p.groups or p.sparse or p.scaled or p.int4 or p.thrice or p.promoted or any(route.packings)
    if not outer or special or 0 in (*p.batch, p.M, p.N, p.K) or p.K > DEPTH:
        return None
    vector = VECTOR // p.dtype.itemsize
    unit = 1 if p.a_transposed or p.K % vector else vector
    whole = route.whole and replace(route.whole, K=1)  # nobody asks for it
    config = route.config
    if route.kernel == "tile":  # few steps have a stage each, and any number takes turns
        config = replace(config, stages=type(config).stages)
    return replace(route, problem=replace(p, K=_dim("K", DEPTH // unit * unit, unit)), config=config, whole=whole)


def serving(route: Any, cost: Callable[[Problem, Any], float]) -> Any:
    """The route with kernels that take any sizes.

    It is `route` itself for the first sizes, and if there are no such kernels. `cost`: in clocks.
    """
    p, found, deep = route.problem, opened_route(route), deepened_route(route)
    if found is None and deep is None:
        return route
    # the parts of a key that all sizes and kernels share
    closed = {"M": 0, "batch": (), "a_batch": (), "b_batch": (), "parts": 1, "out_dtype": (route.whole or p).out_dtype}
    family = replace(p, **closed, lanes=0, a_transposed=False, b_transposed=False), len(p.batch)
    other_rows = _first.comes_again(family, (p.batch, p.M))
    family = replace(p, **(closed | {"M": p.M, "batch": p.batch}), K=0, lanes=0), len(p.batch)
    other_depth = deep is not None and _first.comes_again(family, p.K)
    found = found if other_rows and found is not None else deep if other_depth else None
    if found is None:
        return route
    return replace(found, config=_kept.choose(replace(found, config=None), found.config, lambda t: cost(p, t)))
