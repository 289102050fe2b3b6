"""The kernel of ring attention on Hopper: attention's loop over the keys of all devices, and a producer that sends this
device's keys.

Blocks are persistent. A consumer issues the next block's scores before it computes this block's softmax, as in
`attention_kernel.py`. Between its loads, the producer sends keys and values to the peers: TMA brings a piece to SMEM
and takes it from there to the peer. So it waits only for a copy that it started one step earlier. A tile begins with
its own device's keys, and continues with the keys of the devices before it as they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import kernel_dsl as kd

from .attention_sizes import LOG2E, LOWEST, ROWS, SLACK
from .collective_parts import orders_itself, wait_for_all
from .mesh_product import take_back
from .ring_attention_general import RingProblem
from .ring_sender import sender
from .stage_product import following_slot

CONSUMERS, STAGES = 3, 3
TILE = CONSUMERS * ROWS  # queries of a block
REGISTERS = (152, 56)  # registers of a lane that multiplies, of a lane that loads


def _keys(p: RingProblem) -> int:
    """The number of keys of a step."""
    return 112 if p.dim == 64 else 80


@cache
def ring_kernel(p: RingProblem) -> Any:
    """The kernel `(q, k, v) -> (out, k_there, v_there[, lse])`; `k_there` and `v_there` hold the parts of all other
    devices.
    """
    n, block = p.mesh.size, _keys(p)
    each, tiles, pairs = kd.cdiv(p.length, block), kd.cdiv(p.length, TILE), p.batch * p.heads
    ragged, work = p.length % block != 0, pairs * tiles
    blocks, scale = min(work, p.most), p.scale * LOG2E
    piece = 64 * 64 // p.dim  # keys that are sent at a time
    parts = p.length // piece  # pieces of a head

    def place(number: Any) -> tuple[Any, Any, Any]:
        """(batch, head, first query) of a tile: heads one after the other, or the long tiles of all heads first."""
        if p.causal:
            head, tile = kd.rem(number, pairs), tiles - 1 - kd.div(number, pairs)
        else:
            head, tile = kd.div(number, tiles), kd.rem(number, tiles)
        return kd.div(head, p.heads), kd.rem(head, p.heads), tile * TILE

    def steps(me: Any, first: Any) -> tuple[Any, Any]:
        """(steps over this device's keys, steps over all keys)."""
        if not p.causal:
            return each, n * each
        own = kd.minimum(kd.cdiv(first + TILE, block), each)
        return own, own + me * each

    def at(step: Any, own: Any) -> Any:
        """The block of its device's keys in a step. If a mask hides some keys, the last block comes first."""
        return kd.where(step < own, own - 1 - step, each - 1 - kd.rem(kd.maximum(step - own, 0), each))

    def produce(me: Any, q: Any, mine: tuple[Any, Any], there: tuple[Any, Any], s: dict[str, Any]) -> None:
        flags = kd.get_global(kd.SemaphoreType.REGULAR((n, p.pairs)))
        peers = [kd.rem(me + 1 + i, n) for i in range(n - 1)]

        def to_each(send_to: Callable[[Any], None]) -> None:
            """Call `send_to(peer)` for the peers that need this device's keys."""
            for peer in peers:
                kd.when(peer > me)(partial(send_to, peer)) if p.causal else send_to(peer)

        def part_of(x: Any, unit: Any) -> Any:
            pair = kd.div(unit, parts)
            keys = kd.ds(kd.rem(unit, parts) * piece, piece)
            return x.at[kd.div(pair, p.kv_heads), kd.rem(pair, p.kv_heads), keys]

        def load(unit: Any) -> None:
            for i, x in enumerate(mine):
                kd.copy_gmem_to_smem(part_of(x, unit), s["send_smem"].at[i], s["send_loaded"])

        def store(unit: Any) -> None:
            kd.barrier_wait(s["send_loaded"])

            def put(peer: Any) -> None:
                for i, y in enumerate(there):
                    target = part_of(kd.remote_ref(y, peer).at[me], unit)
                    kd.copy_smem_to_gmem(s["send_smem"].at[i], target, commit_group=False)

            to_each(put)
            kd.commit_smem_to_gmem_group()

        def tell(unit: Any) -> None:
            to_each(lambda peer: kd.semaphore_signal(flags.at[me, kd.div(unit, parts)], device_id=peer))

        send, send_all = sender(p, p.pairs * parts if n > 1 else 0, load, store, tell)
        wait_for_all(s["begin"], p.mesh, p.timeout)

        @kd.loop(kd.axis_index("block"), work, step=blocks, init_carry=(0, 0, 0))
        def end(number: Any, carry: Any) -> Any:
            batch, head, first = place(number)
            group = kd.div(head, p.heads // p.kv_heads)
            own, total = steps(me, first)

            def queries(again: Any) -> None:
                for i in range(CONSUMERS):
                    kd.when(again)(partial(kd.barrier_wait, s["q_consumed"].at[i]))
                    rows = kd.ds(first + i * ROWS, ROWS)
                    kd.copy_gmem_to_smem(q.at[batch, head, rows], s["q_smem"].at[i], s["q_loaded"].at[i])

            @kd.loop(0, total, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled, sent = carry
                here = step < own
                shard = kd.div(kd.maximum(step - own, 0), each) + 1
                device = kd.where(here, me, kd.rem(me - shard + n, n))

                def arrived() -> Any:
                    all_sent = send_all(sent)  # send the keys that peers wait for first
                    pair = batch * p.kv_heads + group
                    kd.semaphore_wait(flags.at[device, pair], parts, decrement=False, timeout=p.timeout)
                    return all_sent

                if n > 1:
                    sent = kd.cond(~here & (kd.rem(step - own, each) == 0), arrived, lambda: sent)
                keys = kd.ds(at(step, own) * block, block)
                for name, x, y in zip("kv", mine, there, strict=True):
                    kd.when(filled >= STAGES)(partial(kd.barrier_wait, s[f"{name}_consumed"].at[slot]))
                    to, full = s[f"{name}_smem"].at[slot], s[f"{name}_loaded"].at[slot]
                    kd.copy_gmem_to_smem(x.at[batch, group, keys], to, full, predicate=here)
                    kd.copy_gmem_to_smem(y.at[device, batch, group, keys], to, full, predicate=~here)
                    if name == "k":
                        kd.when(step == 0)(partial(queries, filled > 0))
                return following_slot(slot, STAGES), kd.minimum(filled + 1, STAGES), send(sent)

            return end

        send_all(end[2])
        before = [(kd.rem(me - shard + n, n), me >= shard if p.causal else True) for shard in range(1, n)]
        take_back(flags, before, parts, blocks, p.timeout)

    def softmax(x: Any, top: Any, total: Any) -> tuple[Any, Any, Any, Any]:
        """(weights, the factor of earlier weights, maximum so far, sum so far) with one more block of scores."""
        new_top = kd.maximum(top, kd.max(x, axis=1))
        new_top = kd.where((new_top - top) * scale > SLACK, new_top, top)
        weights = kd.exp2(kd.fma(x, scale, -(new_top * scale)[:, None]))
        fade = kd.exp2((top - new_top) * scale)  # exactly 1 for rows without keys so far
        added = [weights[:, i : i + 8] for i in range(0, block, 8)]
        return weights, fade, new_top, sum(added[1:], kd.fma(total, fade[:, None], added[0]))

    def attend(me: Any, number: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        tile = s["q_smem"].at[number]
        column = kd.broadcasted_iota(kd.int32, (ROWS, block), 1)
        own_row = number * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, block), 0)

        def masked(x: Any, step: Any, first: Any, own: Any) -> Any:
            """Scores, masked for keys that a query doesn't see."""
            if not (p.causal or ragged):
                return x
            edge = own - kd.div(first, block) if p.causal else 1
            last = kd.rem(kd.maximum(step - own, 0), each) == 0

            def hide(x: Any) -> Any:
                key = at(step, own) * block + column
                seen = key < p.length
                if p.causal:
                    seen = seen & ((key <= first + own_row) | (step >= own))
                return kd.where(seen, x, -math.inf)

            return kd.cond((step < edge) | ((step >= own) & last) if ragged else step < edge, hide, lambda x: x, x)

        def one(index: Any, start: Any) -> Any:
            batch, head, first = place(index)
            own, count = steps(me, first)

            def step(i: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
                """Scores of block `i` beside the product of the block before; then the former's softmax."""
                slot, weights, top, total = carry
                scores, sums = accs
                following = following_slot(slot, STAGES)
                kd.barrier_wait(s["k_loaded"].at[following])
                if p.dim == 64:
                    kd.barrier_wait(s["turn"].at[number])
                kd.wgmma(scores, tile, s["k_smem"].at[following].T, accumulate=False)
                kd.cond(i > 0, lambda: kd.wgmma(sums, weights, s["v_smem"].at[slot]), lambda: kd.wgmma_wait(0))
                if p.dim == 64:
                    pass_turn(number, s)
                x = kd.wgmma_accumulator_load(scores, wait_n=1)
                kd.barrier_arrive(s["k_consumed"].at[following])
                fresh, fade, top, total = kd.optimization_barrier(*softmax(masked(x, i, first, own), top, total))
                kd.barrier_wait(s["v_loaded"].at[following])
                kd.wgmma_wait(0)
                kd.optimization_barrier(weights)  # the product read their registers until here
                kd.barrier_arrive(s["v_consumed"].at[slot], i > 0)
                sums.scale_rows(fade)
                return following, kd.optimization_barrier(fresh.astype(p.dtype)), top, total

            def run(scores: Any, sums: Any) -> Any:
                kd.barrier_wait(s["q_loaded"].at[number])
                sums[...] = kd.zeros((ROWS, p.dim), kd.float32)
                top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
                total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
                weights = kd.layout_cast(kd.zeros((ROWS, block), p.dtype), kd.Layout.WGMMA)
                carry = (start, weights, top, total)
                carry = kd.loop(0, count, init_carry=carry)(partial(step, accs=(scores, sums)))
                slot, weights, top, total = carry
                kd.wgmma(sums, weights, s["v_smem"].at[slot])
                total = kd.sum(total, axis=1)
                value = sums[...]
                kd.barrier_arrive(s["v_consumed"].at[slot])
                return value, top, total, slot

            value, top, total, slot = kd.run_scoped(
                run, kd.ACC((ROWS, block), kd.float32), kd.ACC((ROWS, p.dim), kd.float32)
            )
            rows = kd.ds(first + number * ROWS, ROWS)
            tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, out.at[batch, head, rows])
            if p.lse:
                lse[batch, head, rows] = (top * scale + kd.log2(total)) * (1.0 / LOG2E)
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            kd.barrier_arrive(s["q_consumed"].at[number])
            return slot

        if p.dim == 64:
            kd.when(number == CONSUMERS - 1)(partial(pass_turn, number, s))
        kd.loop(kd.axis_index("block"), work, step=blocks, init_carry=STAGES - 1)(one)

    def pass_turn(number: Any, s: dict[str, Any]) -> None:
        kd.barrier_arrive(s["turn"].at[kd.where(number == CONSUMERS - 1, 0, number + 1)])

    def body(q: Any, k: Any, v: Any, out: Any, k_there: Any, v_there: Any, *lse: Any, **s: Any) -> None:
        me, wg = kd.axis_index(p.mesh.names), kd.axis_index("wg")

        @kd.when(wg == CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[1], action="decrease")
            produce(me, q, (k, v), (k_there, v_there), s)

        @kd.when(wg < CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[0], action="increase")
            attend(me, wg, out, lse[0] if p.lse else None, s)

    there = kd.ShapeDtypeStruct((n, p.batch, p.kv_heads, p.length, p.dim), p.dtype)
    made = kd.kernel(
        body,
        out_type=(p.results[0], there, there, *p.results[1:]),
        scratch_types=_scratch(p, block, piece),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=CONSUMERS + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        mesh=p.mesh,
        name=f"ring_attention_{n}",
    )
    return orders_itself(made)


def _scratch(p: RingProblem, block: int, piece: int) -> dict[str, Any]:
    swizzled = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    made: dict[str, Any] = {"q_smem": kd.SMEM((CONSUMERS, ROWS, p.dim), p.dtype, transforms=swizzled)}
    for name in "kv":
        made[f"{name}_smem"] = kd.SMEM((STAGES, block, p.dim), p.dtype, transforms=swizzled)
        made[f"{name}_loaded"] = kd.Barrier(num_barriers=STAGES)
        made[f"{name}_consumed"] = kd.Barrier(num_arrivals=CONSUMERS, num_barriers=STAGES)
    made |= {f"q_{word}": kd.Barrier(num_barriers=CONSUMERS) for word in ("loaded", "consumed")}
    if p.dim == 64:
        made["turn"] = kd.Barrier(num_barriers=CONSUMERS)
    made |= {"send_smem": kd.SMEM((2, piece, p.dim), p.dtype), "send_loaded": kd.Barrier(num_arrivals=2)}
    return made | {"begin": kd.SemaphoreType.REGULAR}
