"""The fast matrix product on Hopper: persistent, warp-specialised, TMA in and out.

One warpgroup loads tiles into a ring of SMEM stages; the others multiply. Each block computes its share of the output
tiles in an order that reuses L2. Accumulators go through SMEM to GMEM by TMA, while the loads of the next tile are
already in flight.
"""

from __future__ import annotations

from functools import cache
from math import gcd, prod
from typing import Any

import kernel_dsl as kd

from ..dataclass import changed
from ..kernel import identified
from ..layouts import meta_step
from .any_rows import at_launch, declared, open_sizes
from .blocks import clusters_at_once, own, spread, start_of, steps_of, tile_of
from .consumer_product import ConsumerProduct
from .epilogue import Exponentials, Function, Tile, drawn, finish, joined, outputs, store_sums
from .fed_scales import FedScales, fed_loads, feeds, in_pairs
from .first_sizes import is_open, most_of
from .low_tiles import LowTiles, check_low_tiles, pass_over
from .matmul_config import MatmulConfig
from .problem import EpilogueStep, Problem
from .stage_product import following_slot
from .streamed_tiles import OneTile, Pieces, StreamedTiles, WholeTiles, check_streams, pieces_of
from .whole_lines import halves, in_words, pitch, short_part, store_lines, stores_lines

DRAWN = 16  # columns whose random words are computed at a time
CONVERTED = 32  # columns that are converted to 8 bits at a time: more would spill


def swizzled(rows: int, columns: int, dtype: Any, stages: int) -> Any:
    """Stages of a tile whose rows are contiguous, in the widest swizzle."""
    swizzle = kd.find_swizzle(columns * dtype.bits)
    tile = (8, swizzle // dtype.itemsize)
    return kd.SMEM((stages, rows, columns), dtype, transforms=(kd.TilingTransform(tile), kd.SwizzleTransform(swizzle)))


def registers_of(t: MatmulConfig, fed: bool) -> tuple[int, int]:
    """Registers of a lane of the warpgroup that loads, and of those that multiply. `fed`: factors come with the stages."""
    if t.consumers > 2:
        warpgroups = t.consumers + 1
        return 56, (65536 // (128 * warpgroups) // 8 * 8 * warpgroups - 56) // t.consumers // 8 * 8
    if fed and t.consumers == 2:
        return (24, 240) if t.ping_pong else (56, 224)
    return 24 if t.ping_pong else 40, 232 if t.consumers == 2 and not t.ping_pong else 240


@cache
def matmul_kernel(
    problem: Problem, config: MatmulConfig, blocks: int, activation: Function | None = None, early: bool = False
) -> Any:
    """The kernel `(a, b[, bias][, c], *operands of the steps) -> out` for a problem, on `blocks` multiprocessors.

    With a `gate` b is given twice, and half of a tile's columns are products of each; the configuration then has no
    clusters and is not `swapped`. With `keeps` both products are results after `out`. Each call gives the extents of
    the problem that are Dims. `early`: the kernel starts while the kernel before it ends.
    """
    p, t = problem.swapped if config.swapped else problem, config
    if t.swapped and p.lanes:
        t = changed(t, epilogue_n=short_part(t.epilogue_n, t.rows, p))
    check_streams(p, t)
    check_low_tiles(p, t)
    end_steps = (*p.all_steps, *(() if activation is None else (EpilogueStep("activation", function=activation),)))
    rows = t.rows
    width = t.tile_n if p.gate is None else t.tile_n // 2  # columns of the result
    leading = (p.parts,) if p.parts > 1 else ()

    # whether a cluster has all tiles along M and N, so that no extent of a launch is needed to find a tile
    sizes = (p.M, t.tile_m * t.cluster), (p.N, width * t.cluster_n)
    alone = tuple(is_open(n) and most_of(n) <= most for n, most in sizes)

    at_once = clusters_at_once(blocks, t.blocks)
    # whether all tiles of any launch run at once, each by a block of its own
    single = not (t.streamed or t.ping_pong or p.exponentials or is_open(*p.batch) or not is_open(p.M, p.N))
    single = single and prod(-(-most_of(n) // most) for n, most in sizes) * prod((*leading, *p.batch)) <= at_once

    def clusters_of(p: Problem) -> tuple[Any, Any, Any]:
        """The numbers of clusters of tiles along M, along N, and of all products."""
        tiles_m = 1 if alone[0] else kd.cdiv(kd.cdiv(p.M, t.tile_m), t.cluster)
        tiles_m = t.high_tiles(p.M) + t.low_tiles if t.low_tiles else tiles_m
        tiles_n = 1 if alone[1] else kd.cdiv(kd.cdiv(p.N, width), t.cluster_n)
        return tiles_m, tiles_n, tiles_m * tiles_n * prod((*leading, *p.batch))

    tiles_m, tiles_n, total = clusters_of(p)
    shape: tuple[Any, ...] = (*p.batch, problem.M, problem.N)
    steps: Any = steps_of(p, t.tile_k)
    held = 2 if p.int4 or p.sparse else 1  # elements of K for each stored element of a
    marks = t.tile_k // meta_step(p.dtype) if p.sparse else 0  # rows of metadata in a stage
    a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k // held)
    b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
    low = LowTiles(t, t.high_tiles(p.M), tiles_n) if t.low_tiles else None
    known = isinstance(total, int)
    skipped: Any = 0
    single = single and not known
    clusters = max(min(total, at_once), 1) if known and not t.streamed else at_once

    def grid_of(a: Any, b: Any, *_: Any) -> tuple[int]:
        here = at_launch(problem, a, b)
        count = clusters_of(here.swapped if t.swapped else here)[2]
        return (count if single else max(min(count, clusters), 1),)

    producer = t.consumers
    turns = t.consumers if t.ping_pong else 1  # consumers with different tiles
    releases = t.consumers // turns  # consumers that release a stage
    axes = tuple(name for name, size in (("cluster", t.cluster), ("cluster_n", t.cluster_n)) if size > 1)
    parts = width // t.epilogue_n  # parts in which a tile is stored
    stores = parts * (3 if p.keeps else 1)
    ring = min(t.epilogue_stages, stores)
    lines = stores_lines(p, t) and activation is None
    out_shape = (t.epilogue_n, rows) if t.swapped else (rows, t.epilogue_n)
    factors = (1 + p.int4_zeros) if p.int4 else 0  # rows of scales and zeros that come with a stage
    feed = FedScales(p, t.tile_m, t.tile_n) if feeds(p, t.tile_m) else None
    arrivals = (2 if p.gate is None else 3) + factors + p.sparse + (feed is not None)
    scratch = {
        "a_smem": swizzled(*a_shape, p.dtype, t.stages),
        "b_smem": swizzled(*b_shape, p.b_dtype, t.stages),
        **(
            {}
            if p.softmax and not p.exponentials
            else {"out_smem": kd.SMEM((t.consumers, rows // 2, pitch(t.epilogue_n, p.out_dtype)), p.out_dtype)}
            if lines
            else {"out_smem": swizzled(*out_shape, p.out_dtype, t.consumers * ring)}
        ),
        # one barrier for each consumer with its own tiles, because a waiter must see every phase
        "loaded": kd.Barrier(num_arrivals=arrivals, num_barriers=turns * t.stages),
        "consumed": kd.ClusterBarrier(collective_axes=axes, num_arrivals=releases, num_barriers=t.stages)
        if axes
        else kd.Barrier(num_arrivals=releases, num_barriers=t.stages),
        **({"factors_smem": kd.SMEM((factors, t.stages, t.tile_m), kd.float32)} if factors and not p.mxfp4 else {}),
        **({"factors_smem": kd.SMEM((t.stages, 2, t.tile_m), kd.uint8)} if p.mxfp4 else {}),
        **({"factors_smem": kd.SMEM((t.stages, marks, 2 * t.tile_m), kd.uint32)} if marks else {}),
        **({"factors_smem": kd.SMEM((t.stages, feed.length), kd.float32)} if feed else {}),
        **({"pieces": pieces_of(t, clusters, p.wide)} if t.streamed else {}),
    }

    def take_sizes(a: Any, b: Any) -> None:
        """Set the sizes to those of the launch."""
        nonlocal p, shape, tiles_m, tiles_n, total, steps
        here = at_launch(problem, a, b)
        p, shape = here.swapped if t.swapped else here, (*here.batch, here.M, here.N)
        tiles_m, tiles_n, total = clusters_of(p)
        steps = steps_of(p, t.tile_k)

    def do_nothing_unless(flag: Any) -> None:
        """Compute no tiles if the flag is 0. Blocks begin behind the last tile then, so that no loop keeps the flag."""
        nonlocal skipped
        skipped = kd.where(flag[...] != 0, 0, clusters_of(p)[2])

    def place_of(index: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        if single:  # blocks that share a tile of b run side by side: with an axis of the grid each, products took 1.2 of the time
            block = kd.axis_index("block")
            m, rest = kd.rem(block, tiles_m), kd.div(block, tiles_m)
            part, *batch = spread(kd.div(rest, tiles_n), (p.parts, *p.batch))
            n = kd.rem(rest, tiles_n)
        elif low is not None:
            m, n = low.place(index)
            return m, n * width, 0, ()
        else:
            m, n, part, batch = tile_of(index, p, (tiles_m, tiles_n), t.group)
        if t.cluster > 1:
            m = m * t.cluster + kd.axis_index("cluster")
        if t.cluster_n > 1:
            n = n * t.cluster_n + kd.axis_index("cluster_n")
        return m * t.tile_m, n * width, part, tuple(batch)

    def work_of(turn: Any = None) -> Any:
        """The work of this block, or of the consumers whose turn is `turn`."""
        if single:
            return OneTile(steps)
        first = kd.axis_index("block")
        if p.exponentials:
            first = first + skipped
        if t.streamed:
            return StreamedTiles(total, steps, clusters, first)
        if turn is None:
            return WholeTiles(total, steps, clusters, first)
        return WholeTiles(total, steps, turns * clusters, first + turn * clusters)

    def skip_others(slot: Any) -> Any:
        """The slot after the tiles of the other consumers."""
        if turns == 1:
            return slot
        ahead = (turns - 1) * steps % t.stages
        if not isinstance(ahead, int):
            return kd.rem(slot + ahead, t.stages)
        return kd.where(slot >= t.stages - ahead, slot - (t.stages - ahead), slot + ahead) if ahead else slot

    def produce(
        a: Any, rights: Any, packs: Any, scales: Any, a_smem: Any, b_smem: Any, loaded: Any, consumed: Any,
        factors_smem: Any = None,
    ) -> None:  # fmt: skip
        kd.set_max_registers(registers_of(t, feed is not None)[0], action="decrease")
        work = work_of()

        @work.loop((0, 0, 0))
        def _(number: Any, carry: Any) -> Any:
            item = work.item(number)
            m, n, part, batch = place_of(item.tile)
            a_own, *b_own = a.at[own(batch, p.a_batch)], *(b.at[own(batch, p.b_batch)] for b in rights)
            *carry, turn = carry

            def scales_at(step: Any) -> list[Any]:
                assert feed is not None
                block = kd.minimum(step, item.count - 1) + (part * steps if p.parts > 1 else item.first)
                return feed.loaded(scales, m, n, batch, block)

            def fill(step: Any, slot: Any, again: Any, found: list[Any]) -> None:
                @kd.when(again)
                def _() -> None:
                    kd.barrier_wait(consumed.at[slot])

                at = item.first + step if t.streamed else step if p.parts == 1 else part * steps + step
                k = kd.ds(start_of(p, at, t.tile_k, 0), t.tile_k)
                b_k = kd.ds(start_of(p, at, t.tile_k, 1), t.tile_k) if p.thrice else k
                m_slice, n_slice = kd.ds(m, t.tile_m), kd.ds(n, width)
                a_k = kd.ds(at * (t.tile_k // held), t.tile_k // held) if held > 1 else k
                a_tile = a_own.at[k, m_slice] if p.a_transposed else a_own.at[m_slice, a_k]
                b_tiles = [b.at[n_slice, b_k] if p.b_transposed else b.at[b_k, n_slice] for b in b_own]
                full = loaded.at[turn * t.stages + slot]
                shares_a, shares_b = ("cluster_n" if t.cluster_n > 1 else None), ("cluster" if t.cluster > 1 else None)

                def copy_left(tile: Any, place: Any) -> None:
                    kd.copy_gmem_to_smem(tile, place, full, collective_axes=shares_a, l2_hint=t.a_hint)

                copy_left(a_tile, a_smem.at[slot]) if low is None else low.copy(m, a_tile, a_smem.at[slot], copy_left)
                for number, pack in enumerate(packs):
                    if p.sparse or p.mxfp4:
                        of_step = pack.at[kd.ds(at * 2, 2), m_slice]
                        if p.sparse:
                            of_step = pack.at[kd.ds(at * marks, marks), kd.ds(m * 2, 2 * t.tile_m)]
                        kd.copy_gmem_to_smem(of_step, factors_smem.at[slot], full)
                        continue
                    of_group = pack.at[kd.div(at, p.int4 // t.tile_k), m_slice]
                    kd.copy_gmem_to_smem(of_group, factors_smem.at[number, slot], full)
                for number, b_tile in enumerate(b_tiles):
                    place = b_smem.at[slot]
                    if len(b_tiles) > 1:
                        half = slice(number * width, (number + 1) * width)
                        place = place.at[half] if p.b_transposed else place.at[:, half]
                    kd.copy_gmem_to_smem(b_tile, place, full, collective_axes=shares_b, l2_hint=t.b_hint)
                if feed is not None:
                    feed.store(found, factors_smem.at[slot])
                    kd.barrier_arrive(full)

            def next_turn() -> Any:
                return kd.where(turn == turns - 1, 0, turn + 1) if turns > 1 else turn

            if feed is not None:
                return carry[0], fed_loads(item.count, t.stages, carry[1], scales_at, fill), next_turn()

            @kd.loop(0, item.count, init_carry=tuple(carry))
            def end(step: Any, carry: Any) -> Any:
                slot, count = carry
                fill(step, slot, count >= t.stages, [])
                return following_slot(slot, t.stages), kd.minimum(count + 1, t.stages)

            return *end, next_turn()

    def consume(
        me: Any, scales: Any, refs: Any, a_smem: Any, b_smem: Any, out_smem: Any, loaded: Any, consumed: Any,
        factors_smem: Any = None, pieces: Any = None,
    ) -> None:  # fmt: skip
        kd.set_max_registers(registers_of(t, feed is not None)[1], action="increase")
        if feed is not None:
            kd.commit_smem()  # orders the other role's stores for the trace, or lanes would meet at each stage's factors
        turn, share = (me, 0) if t.ping_pong else (0, me)
        work = work_of(turn)

        products = ConsumerProduct(
            p, t, steps, share, turn, a_smem, b_smem, loaded, consumed, factors_smem, scales, feed
        )

        @work.loop(turn * (steps % t.stages) if turns > 1 else 0)
        def _(number: Any, slot: Any) -> Any:
            item = work.item(number)
            m, n, part, batch = place_of(item.tile)

            def compute() -> Any:
                def gathered(sums: Any) -> Any:
                    return sums if pieces is None else work.gather(item, pieces, me, sums)

                way = products.of(item, (m, n, part, batch), slot, gathered)

                def product(acc: Any, *other: Any) -> Any:
                    if pieces is not None and not p.scaled:
                        gathered(acc)
                    return way(acc, *other)

                sums = kd.ACC((rows, t.tile_n), p.accumulator)
                value, slot_after = kd.run_scoped(product, *[sums] * (2 if in_pairs(p, t.tile_m, t.tile_n) else 1))

                def store() -> None:
                    store_tile(value, refs, out_smem, me, m + share * rows, n, part, batch)

                store() if pieces is None else work.give(item, value, pieces, me, store)
                return slot_after

            if low is None:
                return skip_others(compute())
            low.share(m, share, compute, lambda: pass_over(item.count, t.stages, loaded, consumed))
            return slot

        kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes

    def store_tile(value: Any, refs: Any, out_smem: Any, me: Any, m: Any, n: Any, part: Any, batch: Any) -> None:
        extra, out, peak, *kept = refs
        index = (*((part,) if p.parts > 1 else ()), *batch)
        across, columns = kd.ds(m, rows), kd.ds(n, width)
        tile = Tile(*((columns, across) if t.swapped else (across, columns)), shape, batch, t.swapped, peak)
        exponentials = Exponentials(p, tile, width, extra[-2]) if p.exponentials else None
        if p.softmax and exponentials is None:
            store_sums(value, p, extra, tile, out)
            return
        tile = drawn(value if p.gate is None else value[:, :width], problem, extra, tile, min(DRAWN, t.epilogue_n))
        for number in range(parts):
            first = number * t.epilogue_n
            own_tile = tile.part(first, t.epilogue_n)
            where = own_tile.m, own_tile.n
            x = value[:, first : first + t.epilogue_n]
            if lines:
                for half in range(2):
                    store_half(x, half, out, out_smem, me, index, m, n + first)
                continue
            if p.gate is None:
                x = finish(x, end_steps, extra, own_tile)
                done = (x if exponentials is None else exponentials.of(x, own_tile),)
            else:
                done = joined(x, value[:, width + first : width + first + t.epilogue_n], p, extra, own_tile)
            for store, (ref, x) in enumerate(zip((out, *kept), done, strict=False), number * len(done)):
                place = out_smem.at[me * ring + store % ring]
                filled = place.T if t.swapped else place
                if p.lanes:
                    filled[...] = x.astype(p.out_dtype)
                    ref[(*index, *where)] = kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, p.lanes))
                    continue
                # a tile starts with the first buffer, which the tile before may have used last
                kd.wait_smem_to_gmem(0 if store == 0 and stores % ring else ring - 1, wait_read_only=True)
                filled[...] = x.astype(p.out_dtype)
                kd.commit_smem()
                kd.copy_smem_to_gmem(place, ref.at[(*index, *where)], l2_hint=t.out_hint)
        if exponentials is not None:
            exponentials.store(kept[0])

    def store_half(x: Any, half: int, out: Any, out_smem: Any, me: Any, index: Any, m: Any, n: Any) -> None:
        """Store every other eight rows of sums by whole lines, where TMA can't."""
        step = t.epilogue_n if p.out_dtype.itemsize > 1 else gcd(t.epilogue_n, CONVERTED)
        for first in range(0, t.epilogue_n, step):
            columns = slice(first, first + step)
            out_smem.at[me, :, columns][...] = halves(x[:, columns])[half].astype(p.out_dtype)
        store_lines(in_words(out_smem, out, p).at[me], t.epilogue_n, out, index, m, n, p, half)

    def body(a: Any, *refs: Any, **buffers: Any) -> None:
        if early:
            kd.griddepcontrol_wait()
        count = 1 if p.gate is None else 2
        packs, rest = p.packs_of(refs[count:])
        rights, scales, rest = refs[:count], *p.scales_of(rest)
        kept, rest = p.kept_of(rest)
        results = (*outputs(p, rest), *kept)
        left, rights = (rights[0], (a,)) if t.swapped else (a, rights)
        if open_sizes(problem):
            take_sizes(a, refs[0])
        if p.exponentials:
            do_nothing_unless(results[0][-1])
        me = kd.axis_index("wg")
        out_smem = buffers.pop("out_smem", None)
        pieces = Pieces(buffers.pop("pieces"), t) if t.streamed else None

        @kd.when(me == producer)
        def _() -> None:
            produce(left, rights, packs, scales, **buffers)

        @kd.when(me < producer)
        def _() -> None:
            consume(me, scales, results, out_smem=out_smem, pieces=pieces, **buffers)

    made = kd.kernel(
        body,
        out_type=problem.results(*leading, tiles=tiles_n * t.cluster_n if problem.softmax else 0),
        shapes=declared(problem),
        scratch_types=scratch,
        grid=(clusters,) if known or t.streamed else grid_of,
        grid_names=("block",),
        cluster=tuple(size for size in (t.cluster, t.cluster_n) if size > 1),
        cluster_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="matmul",
    )
    return identified(made, problem, config, blocks, early) if p.named and activation is None else made
