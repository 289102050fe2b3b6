"""Flash attention forward on Hopper: a producer warpgroup, and consumers that each own 64 rows of queries.

A consumer issues the next block's scores before it computes this block's softmax, so tensor cores and the exponential unit
work at the same time, and consumers fill each other's gaps. Scores and weights stay in registers.
docs/attention.md has the gain of each part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import kernel_dsl as kd

from ..kernel import identified
from .attention_sizes import (
    LOG2E,
    LOWEST,
    ROWS,
    SLACK,
    SMEM_BYTES,
    AttentionConfig,
    AttentionProblem,
    blocks_together,
    launch_registers,
    together_of,
)
from .first_sizes import declared_outputs, dim_of


@cache
def attention_kernel(problem: AttentionProblem, config: AttentionConfig, multiprocessors: int) -> Any:
    """The kernel `(q, k, v) -> out` or `-> (out, lse)`, of at most one block a multiprocessor.

    Each call gives the extents that are Dims. The kernel may then take numbers after v: those of `parts_of` if tiles share
    keys, the result of `together_of` if it is causal and blocks may have several tiles.
    """
    p, t = problem, config
    opened, shared, alone = p.opened, p.shared, p.opened and p.alone
    numbers = 2 if opened and shared else int(opened and p.causal and not alone)
    multiprocessors *= blocks_together(p.dim, t)
    tile = ROWS * t.consumers
    scale = p.scale * LOG2E
    transforms = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    ragged = opened or p.keys % t.block_kv != 0
    # The wait for values comes after the softmax. In these kernels it would split the softmax, so it comes after the
    # maximum, or if four consumers lack the registers, before. The assembler puts the wait for the product at its place,
    # and the earlier, the less runs beside the product.
    between = opened and t.consumers == 3 and p.dim <= 64
    early = opened and t.consumers > 3 and p.dim <= 64
    # The numbers of 128 columns stay in registers: one consumer gains 1 % without them, three spill, and two lose 2 %.
    tight = t.block_kv == 128 and t.consumers != 2 and p.dim <= 64

    tiles, blocks = kd.cdiv(p.queries, tile), kd.cdiv(p.keys, t.block_kv)
    groups = p.batch * p.heads * p.splits
    work = groups * tiles
    grid = multiprocessors if opened else min(work, multiprocessors)
    several = not alone if opened else grid < work  # whether a block has several tiles
    together: Any = 1
    least: Any = blocks // p.splits if shared and not opened else blocks
    if p.causal and several and not opened:
        together = together_of(p, t, multiprocessors)
        groups //= together
    # the output of a tile has its own SMEM if there is room, so that the next tile's queries can be loaded
    operands = (tile + 2 * t.stages * t.block_kv) * p.dim * 2
    apart = several and operands + tile * p.dim * 2 <= SMEM_BYTES

    def take_sizes(q: Any, k: Any, number: Any, *more: Any) -> None:
        """Set the sizes to those of the launch."""
        nonlocal p, tiles, blocks, groups, work, together, least
        sizes = {"batch": q.shape[0], "queries": q.shape[p.length_axis], "keys": k.shape[p.length_axis]}
        p = replace(problem, **sizes, splits=number if shared else 1)
        # the range of a quotient is lost where a sum could overflow; without a sign, divisions are shorter
        tiles, blocks = kd.maximum(kd.cdiv(p.queries, tile), 1), kd.cdiv(p.keys, t.block_kv)
        if shared:
            (least,) = more
        groups = p.batch * p.heads * p.splits
        work = groups * tiles
        if p.causal and several:
            together = number
            groups = kd.cond(work <= multiprocessors, lambda: groups, lambda: kd.div(groups, number))

    def grid_of(q: Any, k: Any, v: Any, *number: Any) -> tuple[int, ...]:
        splits = number[0] if shared else 1
        if alone:
            return (q.shape[0] * p.heads, *((splits,) if shared else ()), kd.cdiv(q.shape[p.length_axis], tile))
        columns, rows = kd.cdiv(q.shape[p.length_axis], tile), q.shape[0] * p.heads * splits
        return (columns, rows) if columns * rows <= multiprocessors else (multiprocessors, 1)

    def each_tile(carry: Any, body: Any) -> None:
        """`body(tile number, carry) -> carry` for the tiles of this block."""
        block = kd.axis_index("block")
        if not several:
            body(block, carry)
            return
        if opened:
            block += kd.axis_index("group") * tiles
            loop = kd.loop(block, work, step=multiprocessors, init_carry=carry)
            loop(lambda number, carry: body(kd.maximum(number, 0), carry))
            return
        rounds = work // grid + kd.where(block < work % grid, 1, 0)
        kd.loop(0, rounds, init_carry=carry)(lambda turn, carry: body(turn * grid + block, carry))

    def place(number: Any) -> tuple[Any, Any, Any, Any]:
        """(batch, head, first query, blocks of keys) of a tile, in the order of `dealt`.

        With splits the head is the results' head, and the blocks are those from `begin_of` on.
        """

        def turned(group: Any, row: Any) -> Any:
            return kd.where(kd.rem(groups - 1 - group, 2) == 0, tiles - 1 - row, row) if p.causal else row

        def divided() -> tuple[Any, Any]:
            group, rest = kd.div(number, together * tiles), kd.rem(number, together * tiles)
            return group * together + kd.rem(rest, together), turned(group, kd.div(rest, together))

        def by_grid() -> tuple[Any, Any]:
            group = kd.axis_index("group")
            if alone and shared:
                group = group * p.splits + kd.axis_index("part")
            return group, turned(group, kd.axis_index("block"))

        # divisions by a launch's sizes take longer than small problems can spare, so the grid has their quotient and rest
        if alone:
            head, row = by_grid()
        else:
            head, row = kd.cond(work <= multiprocessors, by_grid, divided) if opened else divided()
        if opened:
            head, row = kd.maximum(head, 0), kd.clip(row, 0, cast("Any", problem.queries).max // tile)
        count: Any = blocks
        if p.causal:
            count = kd.minimum(kd.cdiv((row + 1) * tile, t.block_kv), blocks)
        heads = p.heads * p.splits
        if alone and shared:
            batch = kd.div(kd.axis_index("group"), p.heads)
            head = head - batch * heads
        else:
            batch, head = kd.div(head, heads), kd.rem(head, heads)
        if shared:
            count = least + kd.where(part_of(head) < blocks - least * p.splits, 1, 0)
        return batch, head, row * tile, count

    def part_of(head: Any) -> Any:
        return kd.axis_index("part") if alone else kd.rem(head, p.splits)

    def begin_of(head: Any) -> Any:
        """The first block of keys of a head's part, where the first parts have one more than the others; 0 without splits."""
        if not shared:
            return 0
        return least * part_of(head) + kd.minimum(part_of(head), blocks - least * p.splits)

    def q_head(head: Any) -> Any:
        if alone and shared:
            return kd.rem(kd.axis_index("group"), p.heads)
        return kd.div(head, p.splits) if shared else head

    def next_slot(slot: Any) -> Any:
        return kd.where(slot == t.stages - 1, 0, slot + 1)

    def produce(q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(t.registers[1], action="decrease")

        def fetch(number: Any, carry: Any) -> Any:
            batch, head, first, count = place(number)
            kv_head, begin = kd.div(q_head(head), p.heads // p.kv_heads), begin_of(head)

            def fetch_queries(again: Any) -> None:
                for i in range(t.consumers):
                    rows = kd.ds(first + i * ROWS, ROWS)
                    if several:
                        kd.when(again)(partial(kd.barrier_wait, s["q_consumed"].at[i]))
                    view = q.at[p.rows(batch, q_head(head), rows)]
                    kd.copy_gmem_to_smem(view, s["q_smem"].at[i], s["q_loaded"].at[i])

            @kd.loop(0, count, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled = carry
                keys = kd.ds((begin + count - 1 - step) * t.block_kv, t.block_kv)
                for name, source in (("k", k), ("v", v)):
                    kd.when(filled >= t.stages)(partial(kd.barrier_wait, s[f"{name}_consumed"].at[slot]))
                    target = s[f"{name}_smem"].at[slot]
                    view = source.at[p.rows(batch, kv_head, keys)]
                    kd.copy_gmem_to_smem(view, target, s[f"{name}_loaded"].at[slot])
                    if name == "k":
                        kd.when(step == 0)(partial(fetch_queries, filled > 0))
                return next_slot(slot), kd.minimum(filled + 1, t.stages)

            return end

        each_tile((0, 0), fetch)

    def softmax(x: Any, top: Any, total: Any, wait: Any) -> tuple[Any, Any, Any, Any]:
        """(weights, the factor of earlier weights, maximum so far, sum so far) with one more block of scores.

        The maximum changes only if weights would exceed 2 ** SLACK; the division at the end corrects that. `wait` is
        called after the maximum.
        """
        new_top = kd.maximum(top, kd.max(x, axis=1))
        new_top = kd.where((new_top - top) * scale > SLACK, new_top, top)
        if wait is not None:
            new_top = kd.optimization_barrier(new_top)
            wait()
        weights = kd.exp2(kd.fma(x, scale, -(new_top * scale)[:, None]))
        # subtract first: rows without keys so far must have exactly the factor 1
        fade = kd.exp2((top - new_top) * scale)
        # each lane sums its own columns; the sums of lanes are added after the last block
        parts = [weights[:, i : i + 8] for i in range(0, t.block_kv, 8)]
        return weights, fade, new_top, sum(parts[1:], kd.fma(total, fade[:, None], parts[0]))

    def consume(me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(t.registers[0], action="increase")
        out_tile = s["out_smem"].at[me] if apart else s["q_smem"].at[me]
        if t.turns:
            kd.when(me == t.consumers - 1)(partial(pass_turn, me, s["turn"]))

        each_tile(t.stages - 1, lambda number, slot: consume_tile(me, number, slot, out, lse, out_tile, s))
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest

    def pass_turn(me: Any, turn: Any) -> None:
        kd.barrier_arrive(turn.at[kd.where(me == t.consumers - 1, 0, me + 1)])

    def consume_tile(me: Any, number: Any, start: Any, out: Any, lse: Any, out_tile: Any, s: dict[str, Any]) -> Any:
        batch, head, first, count = place(number)
        q_tile = s["q_smem"].at[me]
        row = first + me * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)

        # only blocks that reach beyond the tile's first query need a mask
        edge = kd.maximum(count - kd.div(first, t.block_kv), 1) if p.causal else 1

        def masked(x: Any, index: Any) -> Any:
            """Scores, masked for keys that a query doesn't see."""
            if not (p.causal or ragged):
                return x

            def hide(x: Any) -> Any:
                start = (begin_of(head) + count - 1 - index) * t.block_kv
                if not p.causal and (opened or shared):  # compare with one number a row, to keep no number a column
                    left = p.keys - start
                    if not tight:
                        key = kd.broadcasted_iota(kd.int32, (1, t.block_kv), 1)
                        return kd.where(key < kd.optimization_barrier(left), x, -math.inf)
                    group = kd.layout_cast(kd.broadcasted_iota(kd.int32, (ROWS, 8), 1), kd.Layout.WGMMA)
                    beyond = kd.optimization_barrier(group - left)
                    columns = range(0, t.block_kv, 8)
                    return kd.concatenate([kd.where(beyond < -i, x[:, i : i + 8], -math.inf) for i in columns], axis=1)
                key = start + column
                last = kd.minimum(row, p.keys - 1) if ragged else row  # one number a row: one comparison a key
                return kd.where(key <= last if p.causal else key < p.keys, x, -math.inf)

            return kd.cond(index < edge, hide, lambda x: x, x)

        def scores(acc: Any, slot: Any) -> None:
            kd.barrier_wait(s["k_loaded"].at[slot])
            if t.turns:
                kd.barrier_wait(s["turn"].at[me])
            kd.wgmma(acc, q_tile, s["k_smem"].at[slot].T, accumulate=False)

        def add(acc: Any, weights: Any, slot: Any) -> None:
            kd.wgmma(acc, weights, s["v_smem"].at[slot])

        def step(index: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
            """Scores of block `index`, beside the product of the block before; then the softmax of these scores."""
            slot, weights, top, total = carry
            s_acc, o_acc = accs
            following = next_slot(slot)
            scores(s_acc, following)
            # the first block has no product beside it; the step is traced once, because it dominates compilation
            kd.cond(index > 0, lambda: add(o_acc, weights, slot), lambda: kd.wgmma_wait(0))
            if t.turns:
                pass_turn(me, s["turn"])
            x = kd.wgmma_accumulator_load(s_acc, wait_n=1)
            kd.barrier_arrive(s["k_consumed"].at[following])
            x = masked(x, index)
            values_there = partial(kd.barrier_wait, s["v_loaded"].at[following])
            if early:
                values_there()
            fresh, fade, top, total = softmax(x, top, total, values_there if between else None)
            # the softmax runs beside the product, because the assembler moves no instruction across a barrier's loop
            fresh, fade, top, total = kd.optimization_barrier(fresh, fade, top, total)
            if not (early or between):
                values_there()
            kd.wgmma_wait(0)
            kd.optimization_barrier(weights)  # the product, issued under a condition, reads their registers until here
            kd.barrier_arrive(s["v_consumed"].at[slot], index > 0)
            o_acc.scale_rows(fade)
            return following, kd.optimization_barrier(fresh.astype(p.dtype)), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            kd.barrier_wait(s["q_loaded"].at[me])
            o_acc[...] = kd.zeros((ROWS, p.dim), kd.float32)
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            weights = kd.layout_cast(kd.zeros((ROWS, t.block_kv), p.dtype), kd.Layout.WGMMA)
            carry = (start, weights, top, total)
            carry = kd.loop(0, count, init_carry=carry)(partial(step, accs=(s_acc, o_acc)))
            slot, weights, top, total = carry
            if apart:
                kd.barrier_arrive(s["q_consumed"].at[me])
            add(o_acc, weights, slot)
            total = kd.sum(total, axis=1)
            value = o_acc[...]
            kd.barrier_arrive(s["v_consumed"].at[slot])
            return value, top, total, slot

        value, top, total, slot = kd.run_scoped(
            run, kd.ACC((ROWS, t.block_kv), kd.float32), kd.ACC((ROWS, p.dim), kd.float32)
        )
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        out_tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
        rows = kd.ds(first + me * ROWS, ROWS)
        kd.commit_smem()
        kd.copy_smem_to_gmem(out_tile, out.at[(batch, head, rows) if shared else p.rows(batch, head, rows)])
        if p.lse:
            lse[batch, head, rows] = (top * scale + kd.log2(total)) * (1.0 / LOG2E)
        if several and not apart:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            kd.barrier_arrive(s["q_consumed"].at[me])
        return slot

    def any_lengths(q: Any, k: Any, v: Any, *rest: Any, **scratch: Any) -> None:
        take_sizes(q, k, *rest[: max(numbers, 1)])
        body(q, k, v, *rest[numbers:], **scratch)

    def body(q: Any, k: Any, v: Any, out: Any, *rest: Any, **scratch: Any) -> None:
        me = kd.axis_index("wg")

        @kd.when(me == t.consumers)
        def _() -> None:
            produce(q, k, v, scratch)

        @kd.when(me < t.consumers)
        def _() -> None:
            consume(me, out, rest[0] if p.lse else None, scratch)

    def outputs(batch: Any, heads: Any, queries: Any) -> Any:
        shape = (batch, heads, queries, p.dim) if shared else p.shape(heads, queries)
        made = kd.ShapeDtypeStruct(shape, p.dtype)
        return (made, kd.ShapeDtypeStruct((batch, heads, queries), kd.float32)) if p.lse else made

    def outputs_of(q: Any, k: Any, v: Any, splits: Any, _: Any) -> Any:
        return outputs(q.shape[0], p.heads * splits, q.shape[p.length_axis])

    shapes: Any = None
    if opened:
        keys = p.shape(p.kv_heads, p.keys)
        shapes = {0: p.shape(p.heads, p.queries), 1: keys, 2: keys}
    if opened and shared:
        shapes |= declared_outputs(outputs(p.batch, dim_of("parts"), p.queries), 3 + numbers)
    ring = (t.stages, t.block_kv, p.dim)
    scratch = {
        "q_smem": kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms),
        "k_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
        "v_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
        "q_loaded": kd.Barrier(num_barriers=t.consumers),
    }
    for name in "kv":
        scratch[f"{name}_loaded"] = kd.Barrier(num_barriers=t.stages)
        scratch[f"{name}_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
    if several:
        scratch["q_consumed"] = kd.Barrier(num_barriers=t.consumers)
    if apart:
        scratch["out_smem"] = kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms)
    if t.turns:
        scratch["turn"] = kd.Barrier(num_barriers=t.consumers)
    names = ("block", "group") if opened else ("block",)
    if alone:  # heads first: 1 to 3 % faster than tiles first
        names = ("group", *(("part",) if shared else ()), "block")
    made = kd.kernel(
        any_lengths if opened else body,
        out_type=outputs_of if opened and shared else outputs(p.batch, p.heads * p.splits, p.queries),
        shapes=shapes,
        scratch_types=scratch,
        grid=grid_of if opened else (grid,),
        grid_names=names,
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True, max_registers=launch_registers(p.dim, t)),
        name="attention",
    )
    return identified(made, problem, config, multiprocessors)
