"""`ring_attention`: each device has a part of the sequence, and its queries see the keys of all.

Hopper has one kernel: blocks are persistent, two warpgroups have 64 queries each, and a third loads keys and values.
Between its loads it sends this device's keys and values to the peers, head by head. A tile begins with its own device's
keys, and continues with those of the devices before it as they arrive. So at any time each device uses the keys of a
different peer, as in a ring.

Other inputs use a kernel of lanes that reads keys in place: `ring_attention_general.py`.
"""

from __future__ import annotations

import math
from functools import cache, partial
from operator import itemgetter
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import public
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import gapless, overlap, target_of
from kernel_dsl.target import Feature, Target

from .attention_kernel import LOG2E, LOWEST, ROWS
from .by_rank import Fresh, Launched, by_rank, scratch
from .collectives import BLOCKS, described, orders_itself, wait_for_all
from .mesh_product import sender, take_back
from .ring_attention_general import ROWS_OF_TILE as TILE
from .ring_attention_general import RingProblem, ring_general
from .stage_product import following_slot

CONSUMERS, STAGES, PARTS = 2, 2, 16
REGISTERS = (224, 56)  # of a lane that multiplies, and of one that loads


@partial(public, name="ring_attention")
@by_rank
def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    mesh: Mesh,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """softmax(q k^T * scale) v over a sequence that devices share: part i, in the order of ranks, is on device i.

    q (batch, heads, length, dim), k and v (batch, kv_heads, length, dim) a device, row-major, of one float dtype; query heads
    share key heads evenly. The result is as q. `causal`: a query sees the keys up to its own place in the whole sequence.
    `scale`: by default dim ** -0.5. `return_lse`: the result is (out, lse), with the natural logarithm of each query's sum of
    exponentials, float32 (batch, heads, length). `out`: preallocated, in other memory, (out, lse) with `return_lse`; `timeout`:
    seconds that a device waits for its peers. Sums go in one order: calls give the same bits.

    On Hopper float16 and bfloat16 of dim 64 or 128 and a length that is a multiple of 128 are the fast kernel, which holds the
    keys and values of all devices; other arrays take a slow one.

    Raises `BadArgument`, `BadArgumentType`, and what a call of a kernel on a mesh raises.
    """
    op = "ring_attention"
    p, target = ring_problem(op, q, k, v, mesh, causal, scale, timeout, interpret, bool(return_lse))
    if p.lse and out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2):
        raise BadArgumentType(op=op, what="out= is one array a device", hint="pass (out, lse)")
    outs: Any = out if p.lse else (out,)
    if out is not None and any(overlap(x, y) for x in (q, k, v) for y in outs):
        raise BadArgument(
            op=op, what="out= shares memory with q, k or v", hint="give other arrays: peers still read them"
        )
    hopper = target.supports(Feature.WGMMA | Feature.TMA | Feature.SETMAXNREG)
    if p.fast and hopper and gapless(q, k, v, *(outs or ())):
        there = [scratch(q, (mesh.size, *k[0].shape), p.dtype, mesh, f"ring {name}") for name in "kv"]
        if out is None:
            outs = [Fresh(x.shape, x.dtype, mesh) for x in p.results]
        take = itemgetter(0, 3) if p.lse else itemgetter(0)
        return Launched(_ring(p), (q, k, v), (outs[0], *there, *outs[1:]), take)
    return Launched(ring_general(p), (q, k, v), outs if p.lse and out is not None else out)


def ring_problem(
    op: str, q: Any, k: Any, v: Any, mesh: Mesh, causal: bool, scale: float | None, timeout: float | None, interpret: Any,
    lse: bool = False,
) -> tuple[RingProblem, Target]:  # fmt: skip
    """What a call computes, and what for. Raises `BadArgument`, `BadArgumentType`."""
    (shape, dtype), (keys, kind), values = described(q, mesh, op), described(k, mesh, op), described(v, mesh, op)
    if dtype != kind or values[1] != dtype or not dtype.is_float:
        what = f"q is {dtype}, k {kind} and v {values[1]}"
        raise BadArgumentType(op=op, what=what, hint="pass floats of one dtype")
    fits = len(shape) == len(keys) == 4 and (shape[0], *shape[2:]) == (keys[0], *keys[2:]) and keys == values[0]
    if not fits or 0 in (*shape, *keys) or shape[1] % keys[1]:
        what = f"q is {list(shape)}, k {list(keys)} and v {list(values[0])} on a device"
        hint = "q is (batch, heads, length, dim), k and v (batch, kv_heads, length, dim), heads a multiple of kv_heads"
        raise BadArgument(op=op, what=what, hint=hint)
    target = target_of(q, interpret)
    most, factor = min(BLOCKS, target.limits.multiprocessors), shape[3] ** -0.5 if scale is None else scale
    p = RingProblem(mesh, shape[0], shape[1], shape[2], shape[3], keys[1], dtype, causal, factor, most, timeout, lse)
    return p, target


@cache
def _ring(p: RingProblem) -> Any:
    """The kernel `(q, k, v) -> (out, k_there, v_there)`, the latter with the parts of all other devices, and lse if wanted."""
    n, each = p.mesh.size, p.length // p.block  # steps of a peer's keys
    blocks = min(p.work, p.most)
    size = p.length * p.dim // PARTS

    def steps(me: Any, first: Any) -> tuple[Any, Any]:
        """Steps over this device's keys, and over all."""
        if not p.causal:
            return each, n * each
        own = kd.div(first + TILE + p.block - 1, p.block)
        return own, own + me * each

    def load(me: Any, q: Any, mine: tuple[Any, Any], there: tuple[Any, Any], s: dict[str, Any]) -> None:
        flags = kd.get_global(kd.SemaphoreType.REGULAR((n, p.pairs)))
        ends = [(x.reshape(-1), y) for x, y in zip(mine, there, strict=True)]
        peers = [kd.rem(me + 1 + i, n) for i in range(n - 1)]

        def to_each(work: Any) -> None:
            """`work(peer)` for the peers that want this device's keys."""
            for peer in peers:
                kd.when(peer > me)(partial(work, peer)) if p.causal else work(peer)

        def move(unit: Any, at: Any) -> None:
            for flat, target in ends:
                value = flat.at[kd.ds(unit * size, size)][at]

                def put(peer: Any, target: Any = target, value: Any = value) -> None:
                    whole = kd.remote_ref(target, peer).reshape(-1)
                    whole.at[kd.ds((me * p.pairs * PARTS + unit) * size, size)][at] = value

                to_each(put)

        def tell(unit: Any) -> None:
            to_each(lambda peer: kd.semaphore_signal(flags.at[me, kd.div(unit, PARTS)], device_id=peer))

        send, send_all = sender(p.pairs * PARTS if n > 1 else 0, size, blocks, move, tell)
        wait_for_all(s["begin"], p.mesh, p.timeout)

        @kd.loop(kd.axis_index("block"), p.work, step=blocks, init_carry=(0, 0, 0))
        def end(number: Any, carry: Any) -> Any:
            batch, head, first = p.place(number)
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
                shard, rest = kd.div(step - own, each) + 1, kd.rem(kd.maximum(step - own, 0), each)
                device = kd.where(here, me, kd.rem(me - shard + n, n))

                def arrived() -> Any:
                    all_sent = send_all(sent)  # what the peers wait for goes first
                    number = batch * p.kv_heads + group
                    kd.semaphore_wait(flags.at[device, number], PARTS, decrement=False, timeout=p.timeout)
                    return all_sent

                if n > 1:
                    sent = kd.cond(~here & (rest == 0), arrived, lambda: sent)
                keys = kd.ds(kd.where(here, step, rest) * p.block, p.block)
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
        take_back(flags, before, PARTS, blocks, p.timeout)

    def attend(me: Any, number: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        tile = s["q_smem"].at[number]
        row = number * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, p.block), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, p.block), 1)
        scale = p.scale * LOG2E

        @kd.loop(kd.axis_index("block"), p.work, step=blocks, init_carry=0)
        def _(index: Any, start: Any) -> Any:
            batch, head, first = p.place(index)
            own, total_steps = steps(me, first)

            def step(i: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
                slot, top, total = carry
                scores, sums = accs
                kd.barrier_wait(s["k_loaded"].at[slot])
                kd.wgmma(scores, tile, s["k_smem"].at[slot].T, accumulate=False)
                x = kd.wgmma_accumulator_load(scores, wait_n=0)
                kd.barrier_arrive(s["k_consumed"].at[slot])
                if p.causal:
                    hidden = lambda x: kd.where(i * p.block + column <= first + row, x, -math.inf)  # noqa: E731
                    x = kd.cond(i < own, hidden, lambda x: x, x)
                new_top = kd.maximum(top, kd.max(x, axis=1))
                weights = kd.exp2(kd.fma(x, scale, -(new_top * scale)[:, None]))
                fade = kd.exp2((top - new_top) * scale)
                total = total * fade + kd.sum(weights, axis=1)
                kd.barrier_wait(s["v_loaded"].at[slot])
                sums.scale_rows(fade)
                kd.wgmma(sums, weights.astype(p.dtype), s["v_smem"].at[slot])
                kd.wgmma_wait(0)
                kd.barrier_arrive(s["v_consumed"].at[slot])
                return following_slot(slot, STAGES), new_top, total

            def run(scores: Any, sums: Any) -> Any:
                kd.barrier_wait(s["q_loaded"].at[number])
                sums[...] = kd.zeros((ROWS, p.dim), kd.float32)
                top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
                total = kd.layout_cast(kd.zeros((ROWS,), kd.float32), kd.Layout.WGMMA_ROW)
                carry = (start, top, total)
                slot, top, total = kd.loop(0, total_steps, init_carry=carry)(partial(step, accs=(scores, sums)))
                return sums[...], top, total, slot

            value, top, total, slot = kd.run_scoped(
                run, kd.ACC((ROWS, p.block), kd.float32), kd.ACC((ROWS, p.dim), kd.float32)
            )
            tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, out.at[batch, head, kd.ds(first + number * ROWS, ROWS)])
            if p.lse:
                logs = (top * scale + kd.log2(total)) * (1.0 / LOG2E)
                lse[batch, head, kd.ds(first + number * ROWS, ROWS)] = logs
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            kd.barrier_arrive(s["q_consumed"].at[number])
            return slot

    def body(q: Any, k: Any, v: Any, out: Any, k_there: Any, v_there: Any, *lse: Any, **s: Any) -> None:
        me, wg = kd.axis_index(p.mesh.names), kd.axis_index("wg")

        @kd.when(wg == CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[1], action="decrease")
            load(me, q, (k, v), (k_there, v_there), s)

        @kd.when(wg < CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[0], action="increase")
            attend(me, wg, out, lse[0] if p.lse else None, s)

    swizzled = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    scratch: dict[str, Any] = {"q_smem": kd.SMEM((CONSUMERS, ROWS, p.dim), p.dtype, transforms=swizzled)}
    for name in "kv":
        scratch[f"{name}_smem"] = kd.SMEM((STAGES, p.block, p.dim), p.dtype, transforms=swizzled)
        scratch[f"{name}_loaded"] = kd.Barrier(num_barriers=STAGES)
        scratch[f"{name}_consumed"] = kd.Barrier(num_arrivals=CONSUMERS, num_barriers=STAGES)
    scratch |= {f"q_{word}": kd.Barrier(num_barriers=CONSUMERS) for word in ("loaded", "consumed")}
    there = kd.ShapeDtypeStruct((n, p.batch, p.kv_heads, p.length, p.dim), p.dtype)
    made = kd.kernel(
        body,
        out_type=(p.results[0], there, there, *p.results[1:]),
        scratch_types={**scratch, "begin": kd.SemaphoreType.REGULAR},
        grid=(blocks,),
        grid_names=("block",),
        num_threads=CONSUMERS + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        mesh=p.mesh,
        name=f"ring_attention_{n}",
    )
    return orders_itself(made)
