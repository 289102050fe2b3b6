"""How a consumer of Hopper's fast product stores a tile: the steps on its sums, then SMEM, then TMA or lanes."""

from __future__ import annotations

from math import gcd
from typing import Any

import kernel_dsl as kd

from ..stage_ring import await_buffer
from .epilogue import Exponentials, Tile, drawn, finish, joined, store_sums
from .persistent_plan import ProductPlan
from .whole_lines import halves, in_words, store_lines

DRAWN = 16  # columns whose random words are computed at a time
CONVERTED = 32  # columns that are converted to 8 bits at a time: more would spill


def store_tile(plan: ProductPlan, value: Any, results: Any, out_smem: Any, me: Any, place: tuple[Any, ...]) -> None:
    """Finish and store the sums `value` of consumer `me`.

    `results`: (operands of steps, result, greatest magnitude, *results kept); `place`: (first row, first column, part of K,
    batch indices).
    """
    p, t, width = plan.p, plan.t, plan.width
    extra, out, peak, *kept = results
    m, n, part, batch = place
    index = (*((part,) if p.parts > 1 else ()), *batch)
    across, columns = kd.ds(m, t.rows), kd.ds(n, width)
    tile = Tile(*((columns, across) if t.swapped else (across, columns)), plan.shape, batch, t.swapped, peak)
    exponentials = Exponentials(p, tile, width, extra[-2]) if p.exponentials else None
    if p.softmax and exponentials is None:
        store_sums(value, p, extra, tile, out)
        return
    sums = value if p.gate is None else value[:, :width]
    tile = drawn(sums, plan.problem, extra, tile, min(DRAWN, t.epilogue_n))
    for number in range(plan.parts):
        first = number * t.epilogue_n
        own_tile = tile.part(first, t.epilogue_n)
        x = value[:, first : first + t.epilogue_n]
        if plan.lines:
            for half in range(2):
                _store_half(plan, x, half, out, out_smem, me, index, m, n + first)
            continue
        if p.gate is None:
            x = finish(x, plan.end_steps, extra, own_tile)
            done = (x if exponentials is None else exponentials.of(x, own_tile),)
        else:
            done = joined(x, value[:, width + first : width + first + t.epilogue_n], p, extra, own_tile)
        where = (*index, own_tile.m, own_tile.n)
        for store, (ref, x) in enumerate(zip((out, *kept), done, strict=False), number * len(done)):
            _store_part(plan, x, ref, where, out_smem.at[me * plan.buffers + store % plan.buffers], store)
    if exponentials is not None:
        exponentials.store(kept[0])


def _store_part(plan: ProductPlan, x: Any, out: Any, where: tuple[Any, ...], place: Any, number: int) -> None:
    """Store part `number` of a tile through the buffer `place`."""
    p, t = plan.p, plan.t
    filled = place.T if t.swapped else place
    if p.lanes:
        filled[...] = x.astype(p.out_dtype)
        out[where] = kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, p.lanes))
        return
    await_buffer(number, plan.stores, plan.buffers)
    filled[...] = x.astype(p.out_dtype)
    kd.commit_smem()
    kd.copy_smem_to_gmem(place, out.at[where], l2_hint=t.out_hint)


def _store_half(
    plan: ProductPlan, x: Any, half: int, out: Any, out_smem: Any, me: Any, index: tuple[Any, ...], m: Any, n: Any
) -> None:
    """Store every other eight rows of sums by whole lines, where TMA can't."""
    p, t = plan.p, plan.t
    step = t.epilogue_n if p.out_dtype.itemsize > 1 else gcd(t.epilogue_n, CONVERTED)
    for first in range(0, t.epilogue_n, step):
        columns = slice(first, first + step)
        out_smem.at[me, :, columns][...] = halves(x[:, columns])[half].astype(p.out_dtype)
    store_lines(in_words(out_smem, out, p).at[me], t.epilogue_n, out, index, m, n, p, half)
