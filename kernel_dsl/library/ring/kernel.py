"""The kernel of ring attention on Hopper: attention's loop over the keys of all devices, and a producer that sends this
device's keys.

Blocks are persistent. A consumer issues the next block's scores before it computes this block's softmax, as in
`attention_step.py`. Between its loads, the producer sends keys and values to the peers: TMA brings a piece to SMEM
and takes it from there to the peer. So it waits only for a copy that it started one step earlier. A tile begins with
its own device's keys, and continues with the keys of the devices before it as they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import LOG2E, ROWS
from ..attention_forward.step import StepPlan
from ..collectives.parts import orders_itself, wait_for_all
from ..mesh_products.shared import take_back
from ..stage_ring import await_release, fill_stages
from .general import RingProblem
from .sender import sender

CONSUMERS, STAGES = 3, 3
TILE = CONSUMERS * ROWS  # queries of a block
REGISTERS = (152, 56)  # registers of a lane that multiplies, of a lane that loads


@dataclass(frozen=True)
class RingPlan:
    """The tiles of a kernel with `blocks` blocks, and its steps over `block` keys."""

    p: RingProblem
    block: int
    blocks: int

    @property
    def each(self) -> int:
        """The steps over a device's keys."""
        return kd.cdiv(self.p.length, self.block)

    @property
    def tiles(self) -> int:
        """The tiles of a head."""
        return kd.cdiv(self.p.length, TILE)

    @property
    def pairs(self) -> int:
        return self.p.batch * self.p.heads

    @property
    def piece(self) -> int:
        """The keys that are sent at a time."""
        return 64 * 64 // self.p.dim

    @property
    def parts(self) -> int:
        """Pieces of a head."""
        return self.p.length // self.piece

    def place(self, number: Any) -> tuple[Any, Any, Any]:
        """(batch, head, first query) of a tile: heads one after the other, or the long tiles of all heads first."""
        p, tiles, pairs = self.p, self.tiles, self.pairs
        if p.causal:
            head, tile = kd.rem(number, pairs), tiles - 1 - kd.div(number, pairs)
        else:
            head, tile = kd.div(number, tiles), kd.rem(number, tiles)
        return kd.div(head, p.heads), kd.rem(head, p.heads), tile * TILE

    def steps(self, me: Any, first: Any) -> tuple[Any, Any]:
        """(steps over this device's keys, steps over all keys)."""
        if not self.p.causal:
            return self.each, self.p.mesh.size * self.each
        own = kd.minimum(kd.cdiv(first + TILE, self.block), self.each)
        return own, own + me * self.each

    def at(self, step: Any, own: Any) -> Any:
        """The block of its device's keys in a step. If a mask hides some keys, the last block comes first."""
        each = self.each
        return kd.where(step < own, own - 1 - step, each - 1 - kd.rem(kd.maximum(step - own, 0), each))

    def each_tile(self, carry: Any) -> Any:
        """A decorator that calls `body(tile number, carry)` for the tiles of this block."""
        return kd.loop(kd.axis_index("block"), self.pairs * self.tiles, step=self.blocks, init_carry=carry)


@cache
def ring_kernel(p: RingProblem) -> Any:
    """The kernel `(q, k, v) -> (out, k_there, v_there[, lse])`; `k_there` and `v_there` hold the parts of all other
    devices.
    """
    n, tiles = p.mesh.size, kd.cdiv(p.length, TILE)
    plan = RingPlan(p, 112 if p.dim == 64 else 80, min(p.batch * p.heads * tiles, p.most))

    def body(q: Any, k: Any, v: Any, out: Any, k_there: Any, v_there: Any, *lse: Any, **s: Any) -> None:
        me, wg = kd.axis_index(p.mesh.names), kd.axis_index("wg")

        @kd.when(wg == CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[1], action="decrease")
            _produce(plan, me, q, (k, v), (k_there, v_there), s)

        @kd.when(wg < CONSUMERS)
        def _() -> None:
            kd.set_max_registers(REGISTERS[0], action="increase")
            _consume(plan, me, wg, out, lse[0] if p.lse else None, s)

    there = kd.ShapeDtypeStruct((n, p.batch, p.kv_heads, p.length, p.dim), p.dtype)
    made = kd.kernel(
        body,
        out_type=(p.results[0], there, there, *p.results[1:]),
        scratch_types=_scratch(p, plan.block, plan.piece),
        grid=(plan.blocks,),
        grid_names=("block",),
        num_threads=CONSUMERS + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        mesh=p.mesh,
        name=f"ring_attention_{n}",
    )
    return orders_itself(made)


@dataclass(frozen=True)
class _Sent:
    """What the producer of device `me` sends: pieces of its keys and values `mine`, to `there` on `peers`, if they need them."""

    plan: RingPlan
    me: Any
    mine: tuple[Any, Any]
    there: tuple[Any, Any]
    flags: Any
    peers: list[Any]
    s: dict[str, Any]

    def load(self, unit: Any) -> None:
        """Bring a piece to SMEM."""
        for i, x in enumerate(self.mine):
            kd.copy_gmem_to_smem(self._piece(x, unit), self.s["send_smem"].at[i], self.s["send_loaded"])

    def store(self, unit: Any) -> None:
        """Copy a piece from SMEM to the peers."""
        kd.barrier_wait(self.s["send_loaded"])

        def put(peer: Any) -> None:
            for i, y in enumerate(self.there):
                target = self._piece(kd.remote_ref(y, peer).at[self.me], unit)
                kd.copy_smem_to_gmem(self.s["send_smem"].at[i], target, commit_group=False)

        self._to_each(put)
        kd.commit_smem_to_gmem_group()

    def tell(self, unit: Any) -> None:
        """Signal that a piece has arrived."""
        pair = self.plan.parts
        self._to_each(lambda peer: kd.semaphore_signal(self.flags.at[self.me, kd.div(unit, pair)], device_id=peer))

    def _to_each(self, send_to: Callable[[Any], None]) -> None:
        """Call `send_to(peer)` for the peers that need this device's keys."""
        for peer in self.peers:
            kd.when(peer > self.me)(partial(send_to, peer)) if self.plan.p.causal else send_to(peer)

    def _piece(self, x: Any, unit: Any) -> Any:
        plan, p = self.plan, self.plan.p
        pair = kd.div(unit, plan.parts)
        keys = kd.ds(kd.rem(unit, plan.parts) * plan.piece, plan.piece)
        return x.at[kd.div(pair, p.kv_heads), kd.rem(pair, p.kv_heads), keys]


def _produce(plan: RingPlan, me: Any, q: Any, mine: tuple[Any, Any], there: tuple[Any, Any], s: dict[str, Any]) -> None:
    """Load the queries of each tile, and keys and values of all devices as they arrive; send this device's in between."""
    p, n, each = plan.p, plan.p.mesh.size, plan.each
    flags = kd.get_global(kd.SemaphoreType.REGULAR((n, p.pairs)))
    peers = [kd.rem(me + 1 + i, n) for i in range(n - 1)]
    sent = _Sent(plan, me, mine, there, flags, peers, s)
    send, send_all = sender(p, p.pairs * plan.parts if n > 1 else 0, sent.load, sent.store, sent.tell)
    wait_for_all(s["begin"], p.mesh, p.timeout)

    @plan.each_tile((0, 0, 0))
    def end(number: Any, carry: Any) -> Any:
        batch, head, first = plan.place(number)
        group = kd.div(head, p.heads // p.kv_heads)
        own, total = plan.steps(me, first)

        def queries(again: Any) -> None:
            for i in range(CONSUMERS):
                await_release(s["q_consumed"], i, again)
                rows = kd.ds(first + i * ROWS, ROWS)
                kd.copy_gmem_to_smem(q.at[batch, head, rows], s["q_smem"].at[i], s["q_loaded"].at[i])

        def fill(step: Any, slot: Any, filled: Any, sent: Any) -> tuple[Any]:
            here = step < own
            shard = kd.div(kd.maximum(step - own, 0), each) + 1
            device = kd.where(here, me, kd.rem(me - shard + n, n))

            def arrived() -> Any:
                all_sent = send_all(sent)  # send the keys that peers wait for first
                pair = batch * p.kv_heads + group
                kd.semaphore_wait(flags.at[device, pair], plan.parts, decrement=False, timeout=p.timeout)
                return all_sent

            if n > 1:
                sent = kd.cond(~here & (kd.rem(step - own, each) == 0), arrived, lambda: sent)
            keys = kd.ds(plan.at(step, own) * plan.block, plan.block)
            for name, x, y in zip("kv", mine, there, strict=True):
                await_release(s[f"{name}_consumed"], slot, filled >= STAGES)
                to, full = s[f"{name}_smem"].at[slot], s[f"{name}_loaded"].at[slot]
                kd.copy_gmem_to_smem(x.at[batch, group, keys], to, full, predicate=here)
                kd.copy_gmem_to_smem(y.at[device, batch, group, keys], to, full, predicate=~here)
                if name == "k":
                    kd.when(step == 0)(partial(queries, filled > 0))
            return (send(sent),)

        return fill_stages(total, STAGES, carry, fill)

    send_all(end[2])
    before = [(kd.rem(me - shard + n, n), me >= shard if p.causal else True) for shard in range(1, n)]
    take_back(flags, before, plan.parts, plan.blocks, p.timeout)


def _consume(plan: RingPlan, me: Any, number: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
    """Compute the rows of consumer `number` of each tile, on device `me`."""
    p, tile = plan.p, s["q_smem"].at[number]
    steps = StepPlan(p.dim, p.dtype, plan.block, STAGES, CONSUMERS, p.dim == 64, p.scale * LOG2E)
    column = kd.broadcasted_iota(kd.int32, (ROWS, plan.block), 1)
    own_row = number * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, plan.block), 0)
    if steps.turns:
        kd.when(number == CONSUMERS - 1)(partial(steps.pass_turn, number, s))

    @plan.each_tile(STAGES - 1)
    def _(index: Any, start: Any) -> Any:
        batch, head, first = plan.place(index)
        own, count = plan.steps(me, first)

        def masked(x: Any, step: Any) -> Any:
            return _masked(plan, x, step, first, own, own_row, column)

        value, top, total, slot = steps.attend(number, tile, start, count, masked, s)
        rows = kd.ds(first + number * ROWS, ROWS)
        tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[batch, head, rows])
        if p.lse:
            lse[batch, head, rows] = (top * steps.scale + kd.log2(total)) * (1.0 / LOG2E)
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        kd.barrier_arrive(s["q_consumed"].at[number])
        return slot


def _masked(plan: RingPlan, x: Any, step: Any, first: Any, own: Any, own_row: Any, column: Any) -> Any:
    """The scores of a step, masked for keys that a query doesn't see.

    `first`: the tile's first query; `own_row`: each score's query after it; `column`: its key within the block.
    """
    p, block, ragged = plan.p, plan.block, plan.p.length % plan.block != 0
    if not (p.causal or ragged):
        return x
    edge = own - kd.div(first, block) if p.causal else 1
    last = kd.rem(kd.maximum(step - own, 0), plan.each) == 0

    def hide(x: Any) -> Any:
        key = plan.at(step, own) * block + column
        seen = key < p.length
        if p.causal:
            seen = seen & ((key <= first + own_row) | (step >= own))
        return kd.where(seen, x, -math.inf)

    return kd.cond((step < edge) | ((step >= own) & last) if ragged else step < edge, hide, lambda x: x, x)


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
