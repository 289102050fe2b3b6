"""Adds up the partial products over parts of K, in a fixed order, and applies the epilogue's steps."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.kernel import identified

from ..blocks import spread
from ..first_sizes import dim_of, is_open, most_of
from ..part_sums import loads_first, sum_of_parts
from ..product_routes.any_rows import declared, of_sums, open_sizes, opened
from ..products.problem import Problem
from .epilogue import Tile, drawn, finish, joined, outputs

TILE_M, TILE_N = 8, 128
ANY_M = 4  # where calls give M, and K has parts: low enough for few rows, and as fast as eight for many
IN_FLIGHT = 128  # sums of a lane whose loads are in flight at once
FEW = 132  # tiles: with fewer, lower tiles keep more multiprocessors busy, and more parts in flight
MOST = 64  # parts in flight
# the rows of a Dim with a tile for each row: 100 rows of 2048 take 2.2 us so, 1.7 by tiles of eight rows
ROWS = 64
LOW = 1  # the most rows of a tile in which a lane has one element of a row: loads of up to 64 parts are then in flight


def height_for(products: int, M: int, N: int) -> int:
    """The number of rows of a tile, for so many products of (M, N)."""
    tile_m, columns = TILE_M, products * -(-N // TILE_N)
    while tile_m > 1 and -(-M // tile_m) * columns < FEW:
        tile_m //= 2
    return tile_m


def few_rows(p: Problem) -> bool:
    """Whether M is a Dim whose values make few tiles."""
    return is_open(p.M) and most_of(p.M) <= ROWS and not is_open(*p.batch, p.N)


def height_of(p: Problem) -> int:
    """The number of rows of a tile."""
    if few_rows(p):
        return 1
    if is_open(*p.batch, p.M, p.N):
        return TILE_M if p.parts == 1 else ANY_M
    return height_for(prod(p.batch), p.M, p.N)


def in_flight(parts: int, tile_m: int = TILE_M) -> int:
    """The number of parts that are loaded together: the largest divisor of `parts` whose sums fit."""
    return max(n for n in range(1, min(IN_FLIGHT // tile_m, MOST) + 1) if parts % n == 0)


def _shared_rows(p: Problem) -> Any:
    """The Dim of M: sums of products that take few M are those of products that take all, or of few rows."""
    if few_rows(p):
        return dim_of("M", ROWS)
    rows: Any = p.M
    general = opened(changed(p, M=1), rows.multiple_of)
    return rows if general is None else general.M


@cache
def combine_kernel(problem: Problem, early: bool = False) -> Any:
    """The kernel `(partial sums (parts, *batch, M, N), *operands of the steps) -> out`.

    With one part the sums have no axis of parts. Two products that share a have their sums one after the other. Each
    call gives the extents that are Dims. `early`: the kernel starts while the kernel before it ends.
    """
    if open_sizes(problem) and not is_open(problem.K) and problem.K != 1:
        return combine_kernel(changed(problem, K=1), early)  # one for each K
    if is_open(problem.M) and not is_open(*problem.batch, problem.N) and (M := _shared_rows(problem)) != problem.M:
        return combine_kernel(changed(problem, M=M), early)
    count, tile_m = 1 if problem.gate is None else 2, height_of(problem)

    lanes = kd.Layout.WG_STRIDED((tile_m, TILE_N), 1)
    few = few_rows(problem)  # a row is then a number of the grid's second axis, so no mask is needed

    def tiles_of(p: Problem) -> tuple[Any, ...]:
        return (*p.batch, 1 if few else kd.cdiv(p.M, tile_m), kd.cdiv(p.N, TILE_N))

    def body(*refs: Any) -> None:
        if early:
            kd.griddepcontrol_wait()
        p = of_sums(problem, refs[0])
        kept, rest = p.kept_of(refs[count:])
        extra, out, peak = outputs(p, rest)
        *batch, m, n = spread(kd.program_id(0), tiles_of(p))
        m = kd.program_id(1) if few else m
        rows, columns = kd.ds(m * tile_m, tile_m), kd.ds(n * TILE_N, TILE_N)

        def whole(partial: Any) -> Any:
            def part(number: Any) -> Any:
                sums = partial.at[(number, *batch, rows, columns)]
                return kd.load(sums, layout=lanes) if tile_m <= LOW else sums[...]

            if p.parts == 1:
                return partial[(*batch, rows, columns)]

            return sum_of_parts(part, p.parts, in_flight(p.parts, tile_m))

        sums = [whole(partial) for partial in refs[:count]]
        tile = drawn(sums[0], p, extra, Tile(rows, columns, (*p.batch, p.M, p.N), tuple(batch), peak=peak), TILE_N)
        if p.gate is None:
            made = (finish(sums[0], p.all_steps, extra, tile),)
        else:
            made = joined(sums[0], sums[1], p, extra, tile)
        for ref, x in zip((out, *kept), made, strict=False):
            ref[(*batch, rows, columns)] = x.astype(p.out_dtype)

    made = kd.kernel(
        body,
        out_type=problem.results(),
        shapes=declared(problem, sums=True),
        grid=(prod(tiles_of(problem)), *((problem.M,) if few else ())),
        compiler_params=loads_first() if problem.parts > 1 else None,
        name="matmul_combine",
    )
    return identified(made, problem, early) if problem.named else made


def partial_problem(p: Problem, parts: int) -> Problem:
    """The problem whose result `combine_kernel` adds up."""
    nothing = {"steps": (), "gate": None, "gated": ((), ()), "keeps": False}
    plain = changed(p, bias=False, accumulate=False, lanes=0, **nothing)  # the scales stay
    return changed(plain, out_dtype=p.wide, parts=parts)
