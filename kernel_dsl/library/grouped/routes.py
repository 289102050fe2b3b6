"""The choice of a grouped product's kernel, sizes and packing of operands, by the cost model of matmul."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.errors import BadCallValue
from kernel_dsl.target import Feature, Target

from ..first_sizes import KeptConfigs
from ..latest import Launch
from ..product_kernels.lane_product import lane_kernel
from ..product_kernels.pack import pack_kernel
from ..product_kernels.tile_product import tile_kernel
from ..product_routes import fast_costs as costs
from ..product_routes import other_costs as others
from ..product_routes.any_rows import VECTOR, showing, unit_of_rows
from ..product_routes.choose import (
    ACCUMULATORS,
    ACCUMULATORS_BESIDE_MORE,
    CLUSTERS,
    SQUARE,
    TILES,
    fastest,
    scaled_tiles,
)
from ..product_routes.families import Family
from ..product_routes.fast_sizes import BARRIERS, SMEM, configure, gates, stage_bytes
from ..product_routes.packings import (
    Packings,
    fast_packings,
    laid,
    packed_clocks,
    packing,
    tile_packings,
    whole_packings,
)
from ..products.matmul_config import MatmulConfig
from ..products.operands import Operand
from ..products.problem import Problem
from .product import grouped_kernel
from .tiles import RowGroups
from .wgrad_product import wgrad_general_kernel, wgrad_kernel

BAND = 8  # tiles of M in a band that shares L2


def _typical(p: Problem, groups: RowGroups) -> Problem:
    """A batch of products in place of the groups, each with the rows of an average group."""
    return replace(p, M=max(-(-p.M // groups.count), 1), batch=(groups.count,))


def _fits(p: Problem, config: MatmulConfig, extra: int) -> MatmulConfig | None:
    """The configuration with as many stages as fit beside the tables; None if less than two fit."""
    stage = stage_bytes(p, config.tile_m, config.tile_n, config.tile_k)
    item = p.out_dtype.itemsize
    held = config.tile_m * config.epilogue_n * item * min(config.epilogue_stages, config.tile_n // config.epilogue_n)
    room = (SMEM - BARRIERS - held - extra) // stage
    return None if room < 2 else replace(config, stages=min(config.stages, room), group=max(BAND // config.cluster, 1))


@cache
def choose_grouped(
    p: Problem, typical: Problem, extra: int, blocks: int, reads: costs.Reads = costs.EVEN
) -> MatmulConfig | None:
    """The configuration of the fast kernels with the best estimate; None if none fits. `reads`: as of `costs.clocks`. Only
    where loads take longer, blocks share them in clusters.
    """
    room = ACCUMULATORS if p.plain else ACCUMULATORS_BESIDE_MORE
    tiles = scaled_tiles(p) if p.scaled else TILES
    clusters = CLUSTERS[:1] if reads == costs.EVEN or p.scaled or p.gate is not None else (*CLUSTERS, SQUARE)
    clusters = [(m, n) for m, n in clusters if n == 1 or not p.a_transposed]
    sizes = [c for c in (configure(p, *t) for t in tiles if not t[3]) if c is not None]
    shared = [replace(c, cluster=m, cluster_n=n) if m * n > 1 else c for c in sizes for m, n in clusters]
    made = [_fits(p, c, extra) for c in shared]
    fitting = [c for c in made if c is not None and c.rows * c.tile_n <= room * 128 and gates(p, c)]
    return fitting[fastest(typical, fitting, blocks, reads)] if fitting else None


def _choose_packed(
    p: Problem, a: Operand, b: Operand, how: Family, groups: RowGroups, blocks: int
) -> tuple[Packings, costs.Reads]:
    """(packings, the factors of the time of loads) of the fast kernels with the best estimate."""

    def time(choice: tuple[Packings, costs.Reads]) -> float:
        found, reads = choice
        q = laid(p, found, a, b)
        typical = _typical(q, groups)
        t = choose_grouped(q, typical, groups.bytes, blocks, reads)
        return math.inf if t is None else packed_clocks(found) + costs.clocks(typical, t, blocks, reads)

    return min(whole_packings(fast_packings(a, b, how), a, b), key=time)


def _is_fast(how: Family, target: Target) -> bool:
    return (
        how.tensor
        and how.a.itemsize == how.b.itemsize <= 2
        and target.supports(Feature.WGMMA)
        and target.supports(Feature.TMA)
    )


class GroupedProduct:
    """The kernel for a problem, `multiply(a, b[, b], sizes, *operands)`, and the packing of its operands."""

    def __init__(self, p: Problem, multiply: Any, packings: Packings = (None, None)) -> None:
        self.problem = p
        self.multiply = multiply
        self.packings = packings
        wanted = [packings[0], *[packings[1]] * (1 if p.gate is None else 2)]
        self._pack = pack_kernel(tuple(x for x in wanted if x is not None)) if any(packings) else None

    def sides(self, a: Any, rights: list[Any], launch: Launch) -> list[Any]:
        """The operands. One launch packs those that need it."""
        if self._pack is None:
            return [a, *rights]
        pairs = list(zip((a, *rights), (self.packings[0], *[self.packings[1]] * len(rights)), strict=True))
        made = launch(self._pack, [x for x, found in pairs if found is not None])
        rest = iter(made if isinstance(made, tuple) else (made,))
        return [x if found is None else next(rest) for x, found in pairs]

    def structs(self, a: Any, rights: list[Any]) -> list[Any]:
        """Descriptions of the results of `sides`."""
        found = (self.packings[0], *[self.packings[1]] * len(rights))
        return [x if pack is None else pack.out for x, pack in zip((a, *rights), found, strict=True)]


def opened_groups(p: Problem, groups: RowGroups, found: Packings) -> tuple[Problem, RowGroups, Packings] | None:
    """(the problem, the groups) for any number of rows; None if no kernel takes any number."""
    unit = unit_of_rows(p, found[0])
    whole = groups.opened(unit) if unit else None
    if whole is None:
        return None
    p, found = showing(p, found, 0)
    packed = found[0] and replace(found[0], rows=whole.rows)
    return replace(p, M=whole.rows, groups=p.groups and whole), whole, (packed, found[1])


_kept = KeptConfigs()


def grouped_product(
    p: Problem,
    a: Operand,
    b: Operand,
    how: Family,
    groups: RowGroups,
    config: MatmulConfig | None,
    target: Target,
    opened: bool = False,
) -> GroupedProduct | None:
    """The product of a problem in the dtypes of `how`; None if it has a gate and no kernel takes two matrices at once.

    `opened`: use kernels for any number of rows, if they exist.
    """
    blocks = target.limits.multiprocessors
    if not p.K:
        nothing = replace(laid(p, (None, None), a, b), dtype=how.a, b_dtype=how.b, groups=groups)
        return None if p.gate else GroupedProduct(nothing, lane_kernel(nothing, others.lane_options(nothing)[0]))
    if _is_fast(how, target):
        found, reads = fast_packings(a, b, how), costs.EVEN
        if config is None:
            found, reads = _choose_packed(p, a, b, how, groups, blocks)
        q = laid(p, found, a, b)
        if q.gate is None or not q.scaled:
            t = choose_grouped(q, _typical(q, groups), groups.bytes, blocks, reads) if config is None else config
            if config is not None and q.scaled and config.tile_k != 128:
                hint = "128: scales are by blocks of 128 of K"
                raise BadCallValue(kernel="grouped_matmul", what=f"config.tile_k={config.tile_k}", hint=hint)
            if config is not None and q.a_transposed and config.cluster_n > 1:
                hint = (
                    "1: lanes load columns of a, because groups begin anywhere, and only TMA loads for several blocks"
                )
                raise BadCallValue(kernel="grouped_matmul", what=f"config.cluster_n={config.cluster_n}", hint=hint)
            if t is not None and gates(q, t):
                general = opened_groups(q, groups, found) if opened else None
                if general is not None:
                    typical = _typical(q, groups)
                    q, groups, found = general
                    if config is None:
                        t = _kept.choose((q, groups, found), t, lambda t: costs.clocks(typical, t, blocks, reads))
                return GroupedProduct(q, grouped_kernel(q, groups, t, blocks), found)
    if p.gate is not None:
        return None
    return _general(replace(p, groups=groups), a, b, how, groups, target, blocks, opened)


def _general(
    p: Problem, a: Operand, b: Operand, how: Family, groups: RowGroups, target: Target, blocks: int, opened: bool
) -> GroupedProduct:
    """The product by mma.sync, or by lanes."""
    fitting: Any  # (configurations, their clocks, the kernel of one)
    if not how.tensor:
        found: Packings = tuple(
            None if o.dtype == to else packing(o, to, o.along_k) for o, to in ((a, how.a), (b, how.b))
        )  # type: ignore[assignment]
        q = laid(p, found, a, b)
        fitting = others.lane_options(q), others.lane_clocks, lane_kernel
    else:
        found = next(tile_packings(a, b, how, target, False, p.K))
        q = laid(p, found, a, b)
        if any(pack is not None for pack in found):
            q = replace(q, dtype=found[0].to if found[0] else a.dtype, b_dtype=found[1].to if found[1] else b.dtype)
        fitting = others.tile_options(q), others.tile_clocks, tile_kernel
    options, clocks, kernel = fitting
    typical = replace(_typical(q, groups), groups=None)
    sizes = min(options, key=lambda t: clocks(typical, t, blocks))
    general = opened_groups(q, groups, found) if opened else None
    if general is not None:
        q, _, found = general
        sizes = _kept.choose((q, found), sizes, lambda t: clocks(typical, t, blocks))
    return GroupedProduct(q, kernel(q, sizes), found)


def wgrad_product(
    p: Problem,
    a: Operand,
    b: Operand,
    groups: RowGroups,
    config: MatmulConfig | None,
    target: Target,
    opened: bool = False,
) -> tuple[Any, bool]:
    """(kernel `(a, dout, sizes) -> out`, whether it takes operands in their own order in memory, with exchanged axes).

    `opened`: the kernel takes any number of rows.
    """
    blocks = target.limits.multiprocessors
    same = p.dtype == p.b_dtype and p.dtype in (kd.bfloat16, kd.float16)
    if same and p.M and p.N and a.tma and b.tma and groups.count and _is_fast(Family(p.dtype, p.b_dtype), target):
        typical = replace(p, K=max(-(-p.K // groups.count), 1), batch=(groups.count,))
        t = choose_grouped(p, typical, groups.bytes, blocks) if config is None else config
        if t is not None:
            vector = VECTOR // p.dtype.itemsize
            along = not p.a_transposed or p.b_transposed  # rows are neighbours, so TMA needs whole vectors
            general = groups.opened(vector if along else 1) if opened and not (along and p.K % vector) else None
            if general is not None:
                p, groups = replace(p, K=general.rows), general
                if config is None:
                    t = _kept.choose((p, groups), t, lambda t: costs.clocks(typical, t, blocks))
            return wgrad_kernel(p, groups, t, blocks), True
    p = replace(p, a_transposed=True, b_transposed=False, lanes=0)
    general = groups.opened() if opened else None
    if general is not None:
        p, groups = replace(p, K=general.rows), general
    return wgrad_general_kernel(p, groups), False
