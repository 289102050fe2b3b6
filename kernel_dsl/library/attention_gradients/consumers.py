"""The consumer warpgroups of attention's backward, with and without options.

A `Walk` gives the queries of a block and the weight of a score (`Walk.weights`). This file alone sets the order of the
products, which docs/attention.md explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import ROWS, SMEM_BYTES
from .order import CONSUMERS, KEYS
from .walk import Walk, WalkStep


def pass_turn(walk: Walk, me: Any, s: dict[str, Any]) -> None:
    """Allow the other consumer to begin its step."""
    if walk.t.turns:
        kd.barrier_arrive(s["turn"].at[CONSUMERS - 1 - me])


def gradients_of(
    walk: Walk,
    weights: Any,
    slope: Any,
    dp: Any,
    step: WalkStep,
    s: dict[str, Any],
    place: tuple[Any, Any] | None = None,
) -> Any:
    """The gradients of scores: the weights times (their gradients minus the row's sum), times the slopes.

    `place`: (block, first key), so that the walk can store them.
    """
    delta = kd.load(s["stats_smem"], (step.slot, 1), layout=kd.Layout.WGMMA_COL)
    ds = weights * (dp - delta[None])
    ds = ds if slope is None else ds * slope
    if place is not None:
        walk.keep_scores(ds, *place, step, s)
    return ds.astype(walk.p.dtype)


def softmax(
    walk: Walk, me: Any, block: Any, key: Any, own: Any, accs: tuple[Any, Any, Any], step: WalkStep, s: dict[str, Any]
) -> tuple[Any, Any]:
    """The weights and the gradients of scores, from `key` on. The weights' product with dout is still running."""
    (k_own, v_own), (s_acc, dp_acc, dv_acc), dtype = own, accs, walk.p.dtype
    q_tile, dout_tile = s["q_smem"].at[step.slot], s["dout_smem"].at[step.dout_slot]
    kd.barrier_wait(s["q_loaded"].at[step.slot])
    if walk.t.turns:
        kd.barrier_wait(s["turn"].at[me])
    kd.wgmma(s_acc, k_own, q_tile.T, accumulate=False)
    ahead = walk.ahead(s_acc, block, step, key, s)
    if walk.t.apart:
        kd.wgmma_wait(0)
        weights, slope = walk.weights(s_acc, block, step, key, ahead)
        left = kd.optimization_barrier(weights.astype(dtype))
        pass_turn(walk, me, s)
        kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
        kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
        kd.wgmma(dv_acc, left, dout_tile)
        dp = kd.wgmma_accumulator_load(dp_acc, wait_n=1)
        return left, kd.optimization_barrier(
            gradients_of(walk, left.astype(kd.float32), slope, dp, step, s, (block, key))
        )
    kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
    kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
    kd.wgmma_wait(1)
    weights, slope = walk.weights(s_acc, block, step, key, ahead)
    if slope is None:
        left, weights = None, kd.optimization_barrier(weights)
    else:  # 16 bits of each weight, and its product with the slope, take fewer registers than weight and slope
        left, weights = kd.optimization_barrier(weights.astype(dtype), weights * slope)
    pass_turn(walk, me, s)
    dp = kd.wgmma_accumulator_load(dp_acc)
    left, ds = kd.optimization_barrier(
        weights.astype(dtype) if left is None else left, gradients_of(walk, weights, None, dp, step, s, (block, key))
    )
    kd.wgmma(dv_acc, left, dout_tile)
    return left, ds


def narrow_consumers(walk: Walk, dim: int, free: int) -> tuple[Callable[..., None], dict[str, Any]]:
    """(the consumers of blocks of 128 keys, the SMEM that they need beside the walk's). Each consumer owns 64 keys.

    Scores are computed transposed, keys by queries, so that weights and the gradients of scores are left operands in
    registers. Each consumer computes a part of a step's transposed gradient of the queries: 64 rows of `dim`, or half
    of the queries if `dim` is 64. `free`: the registers for accumulators and left operands, out of a consumer's 240.
    """
    m, by_dim = walk.t.block_q, walk.by_row
    width = m if by_dim else m // CONSUMERS
    # whether the product for the queries beside the two before it needs too many registers
    tight = dim + m // 2 + width // 2 > free

    def consume(me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        if walk.stays:
            release_all(walk, s)
        walk.each_block(s, partial(consume_block, me, dk, dv, dq_sum, s))

    def consume_block(me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any], block: Any) -> None:
        mine, key = kd.ds(me * ROWS, ROWS), block.key + me * ROWS
        k_smem, v_smem = walk.key_smem(s, block), walk.value_smem(s, block)
        own = k_own, v_own = k_smem.at[mine], v_smem.at[mine]
        k_part = k_smem.at[:, mine].T if by_dim else k_smem.T
        ds_smem = s["ds_smem"].T if walk.turned else s["ds_smem"]
        ds_part = ds_smem if by_dim else ds_smem.at[:, kd.ds(me * width, width)]

        def run(s_acc: Any, dp_acc: Any, dq_acc: Any, dk_acc: Any, dv_acc: Any) -> tuple[Any, Any]:
            dk_acc[...] = kd.zeros(dk_acc.shape, kd.float32)
            dv_acc[...] = kd.zeros(dv_acc.shape, kd.float32)
            kd.barrier_arrive(s["ds_read"])  # nothing is there yet
            if walk.t.turns:
                kd.when(me == CONSUMERS - 1)(lambda: pass_turn(walk, me, s))
            _wait_for_keys(walk, block, s)

            def one(step: WalkStep) -> None:
                left, ds = softmax(walk, me, block, key, own, (s_acc, dp_acc, dv_acc), step, s)
                kd.barrier_wait(s["ds_read"])
                ds_smem[mine] = ds
                kd.commit_smem()
                if walk.turned:
                    walk.send_scores(s["ds_smem"].at[:, mine], block, key, step, s)
                kd.barrier_arrive(s["ds_stored"])
                kd.wgmma(dk_acc, ds, s["q_smem"].at[step.slot])
                if tight:
                    kd.wgmma_wait(0)
                    _release(step, s, left, ds)
                kd.barrier_wait(s["ds_stored"])
                kd.wgmma(dq_acc, k_part, ds_part, accumulate=False)
                if not tight:
                    kd.wgmma_wait(1)
                    _release(step, s, left, ds)
                kd.wgmma_wait(0)
                if walk.turned:
                    kd.wait_smem_to_gmem(0, wait_read_only=True)
                kd.barrier_arrive(s["ds_read"])
                walk.add(me, dq_acc, block, step, dq_sum, s)

            walk.each_step(block, one)
            return dk_acc[...], dv_acc[...]

        accs = [kd.ACC((ROWS, n), kd.float32) for n in (m, m, width, dim, dim)]
        dk_value, dv_value = kd.run_scoped(run, *accs)
        kd.barrier_wait(s["ds_read"])  # then the other consumer has also read all keys
        walk.store(dk_value * walk.p.scale, k_own, dk, block, key)
        walk.store(dv_value, v_own, dv, block, key, 1)
        leave(walk, block, s)

    scratch = {
        "k_smem": walk.own_keys(dim),
        "v_smem": walk.own_keys(dim),
        "ds_smem": walk.swizzled(m, KEYS, row=ROWS) if walk.turned else walk.swizzled(KEYS, m, row=width),
        "ds_stored": kd.Barrier(num_arrivals=CONSUMERS),
        "ds_read": kd.Barrier(num_arrivals=CONSUMERS),
    }
    if walk.t.turns:
        scratch["turn"] = kd.Barrier(num_barriers=CONSUMERS)
    return consume, scratch


def wide_consumers(walk: Walk, dim: int, tight: bool = False) -> tuple[Callable[..., None], dict[str, Any]]:
    """(the consumers of blocks of 64 keys, the SMEM that they need beside the walk's): for head dimensions beyond 128.

    There the gradients of 64 keys take all registers of a warpgroup. One consumer computes the weights and the gradient of
    the values, the other the gradients of the scores and of the keys. What goes from the first to the second are the
    weights times the slopes of their scores, which is all that it needs of either.

    Unless registers are `tight`, and if SMEM has room, the gradient of the queries is computed a step later, so that no
    consumer waits for what the other has just computed.
    """
    # the weights, and one more slot
    spare = SMEM_BYTES - walk.smem_bytes - 2 * ROWS * walk.t.block_q * walk.p.dtype.itemsize
    made = _WideConsumers(walk, dim, not tight and not walk.stays and spare >= 0)
    return made.consume, made.scratch()


@dataclass(frozen=True)
class _WideConsumers:
    """Both consumers. `behind`: whether they compute the gradient of the queries a step later."""

    walk: Walk
    dim: int
    behind: bool

    @property
    def slots(self) -> int:
        """Of the gradients of scores."""
        return 2 if self.behind else 1

    @property
    def width(self) -> int:
        """The dims of a consumer's share of the queries' gradient."""
        return self.dim // CONSUMERS

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of both."""
        walk, m = self.walk, self.walk.t.block_q
        return {
            "k_smem": walk.own_keys(self.dim, row=self.width),
            "v_smem": walk.own_keys(walk.v_dim),
            "weights_smem": walk.swizzled(ROWS, m),
            "ds_smem": walk.swizzled(self.slots, ROWS, m),
            "weights_stored": kd.Barrier(),
            "weights_read": kd.Barrier(),
            "ds_stored": kd.Barrier(num_barriers=self.slots),
            "ds_read": kd.Barrier(num_arrivals=CONSUMERS, num_barriers=self.slots),
            "finished": kd.Barrier(num_arrivals=CONSUMERS),
        }

    def consume(self, me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        """The body of consumer `me`."""
        walk = self.walk
        if walk.stays:
            release_all(walk, s)
            kd.barrier_arrive(s["ds_read"].at[0])
            kd.when(me == 1)(partial(kd.barrier_arrive, s["weights_read"]))
        walk.each_block(s, partial(self._consume_block, me, dk, dv, dq_sum, s))

    def _consume_block(self, me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any], block: Any) -> None:
        walk, dim, v_dim = self.walk, self.dim, self.walk.v_dim
        most = max(dim, v_dim)

        def part(acc: Any, columns: int) -> Any:
            return acc if columns == most else acc.at[:, kd.ds(0, columns)]

        def of_width(value: Any, columns: int) -> Any:
            return value if columns == most else value[:, :columns]

        def run(acc: Any, dq_acc: Any, sum_acc: Any) -> Any:
            sum_acc[...] = kd.zeros(sum_acc.shape, kd.float32)
            if not walk.stays:  # nothing is there yet: the second consumer waits before it stores
                kd.barrier_arrive(s["ds_read"].at[0])
            _wait_for_keys(walk, block, s)
            kd.when(me == 0)(lambda: self._values(block, acc, dq_acc, part(sum_acc, v_dim), dq_sum, s))
            kd.when(me == 1)(lambda: self._scores(block, acc, dq_acc, part(sum_acc, dim), dq_sum, s))
            return sum_acc[...]

        value = kd.run_scoped(run, *(kd.ACC((ROWS, n), kd.float32) for n in (walk.t.block_q, self.width, most)))
        kd.barrier_arrive_and_wait(s["finished"])  # the other consumer reads keys and values, too
        k_smem, v_smem = walk.key_smem(s, block), walk.value_smem(s, block)
        kd.when(me == 0)(lambda: walk.store(of_width(value, v_dim), v_smem, dv, block, block.key, 1))
        kd.when(me == 1)(lambda: walk.store(of_width(value, dim) * walk.p.scale, k_smem, dk, block, block.key))
        leave(walk, block, s)

    def _values(self, block: Any, acc: Any, dq_acc: Any, dv_acc: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        """The first consumer: it computes the weights, and from them the gradient of the values."""
        walk = self.walk

        def one(step: WalkStep, *before: Any) -> Any:
            kd.barrier_wait(s["q_loaded"].at[step.slot])
            kd.wgmma(acc, walk.key_smem(s, block), s["q_smem"].at[step.slot].T, accumulate=False)
            kd.wgmma_wait(0)
            weights, slope = walk.weights(acc, block, step, block.key, s)
            left, sloped = _with_slope(weights, slope, walk.p.dtype)
            kd.barrier_wait(s["weights_read"])
            s["weights_smem"][...] = sloped
            kd.barrier_arrive(s["weights_stored"])
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(dv_acc, left, s["dout_smem"].at[step.dout_slot])
            return self._finish_one(0, dq_acc, left, block, step, before, dq_sum, s)

        self._each_step(0, one, dq_acc, block, dq_sum, s)

    def _scores(self, block: Any, acc: Any, dq_acc: Any, dk_acc: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        """The second consumer: it computes the gradients of the scores, and from them the gradient of the keys."""
        walk, behind = self.walk, self.behind
        if not walk.stays:
            kd.barrier_arrive(s["weights_read"])  # nothing is there yet
        if behind:
            nothing = s["ds_smem"].at[1]  # of the step before the first one
            nothing[...] = kd.zeros(nothing.shape, walk.p.dtype)
            kd.commit_smem()
            kd.barrier_arrive(s["ds_stored"].at[1])

        def one(step: WalkStep, *before: Any) -> Any:
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(acc, walk.value_smem(s, block), s["dout_smem"].at[step.dout_slot].T, accumulate=False)
            kd.barrier_wait(s["q_loaded"].at[step.slot])
            kd.barrier_wait(s["weights_stored"])
            weights = kd.load(s["weights_smem"], layout=kd.Layout.WGMMA)
            kd.barrier_arrive(s["weights_read"])
            dp = kd.wgmma_accumulator_load(acc)
            left = kd.optimization_barrier(gradients_of(walk, weights.astype(kd.float32), None, dp, step, s))
            slot = step.number & 1 if behind else 0
            kd.barrier_wait(s["ds_read"].at[slot])
            s["ds_smem"].at[slot][...] = left
            kd.commit_smem()
            kd.barrier_arrive(s["ds_stored"].at[slot])
            kd.wgmma(dk_acc, left, s["q_smem"].at[step.slot])
            return self._finish_one(1, dq_acc, left, block, step, before, dq_sum, s)

        self._each_step(1, one, dq_acc, block, dq_sum, s)

    def _each_step(
        self, me: Any, one: Callable[..., Any], dq_acc: Any, block: Any, dq_sum: Any, s: dict[str, Any]
    ) -> None:
        before = self.walk.each_step(block, one, (0, 0) if self.behind else ())

        def rest() -> None:
            self._finish(me, dq_acc, block, WalkStep(block.count - 1, 0, 0, *before), dq_sum, s, lambda: None)

        if self.behind:
            kd.when(block.count > 0)(rest)

    def _finish_one(
        self, me: Any, dq_acc: Any, left: Any, block: Any, step: WalkStep, before: Any, dq_sum: Any, s: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Finish `step`, or the one before it, while its product with `left` is still running; what the next one carries."""

        def free() -> None:
            kd.wgmma_wait(1)
            _release(step, s, left)

        last = replace(step, number=step.number - 1, head=before[0], index=before[1]) if self.behind else step
        self._finish(me, dq_acc, block, last, dq_sum, s, free)
        return (step.head, step.index) if self.behind else ()

    def _finish(
        self, me: Any, dq_acc: Any, block: Any, step: WalkStep, dq_sum: Any, s: dict[str, Any], free: Callable[[], None]
    ) -> None:
        """The half of `dim` that is this consumer's of a step's gradient of the queries; `free` is called beside its product."""
        slot, mine = step.number & 1 if self.behind else 0, kd.ds(me * self.width, self.width)
        kd.barrier_wait(s["ds_stored"].at[slot])
        keys = self.walk.key_smem(s, block).at[:, mine]
        kd.wgmma(dq_acc, s["ds_smem"].at[slot].T, keys, accumulate=False)
        free()
        kd.wgmma_wait(0)
        kd.barrier_arrive(s["ds_read"].at[slot])
        add = partial(self.walk.add, me, dq_acc, block, step, dq_sum, s)
        kd.when(step.number >= 0)(add) if self.behind else add()


def release_all(walk: Walk, s: dict[str, Any]) -> None:
    """Tell the producer that nothing is in the slots of keys and values yet."""
    for slot in range(walk.key_slots):
        kd.barrier_arrive(s["kv_consumed"].at[slot])


def leave(walk: Walk, block: Any, s: dict[str, Any]) -> None:
    """Wait until stores have read a block's results from the SMEM of its keys and values, which is free then. The kernel's
    end waits for the rest.
    """
    kd.wait_smem_to_gmem(0, wait_read_only=True)
    if walk.stays:
        kd.when(block.count > 0)(partial(kd.barrier_arrive, s["kv_consumed"].at[block.visit.slot]))


def _with_slope(weights: Any, slope: Any, dtype: Any) -> tuple[Any, Any]:
    """(the weights in `dtype`, the weights times their slopes)."""
    if slope is None:
        left = kd.optimization_barrier(weights.astype(dtype))
        return left, left
    return kd.optimization_barrier(weights.astype(dtype), (weights * slope).astype(dtype))


def _wait_for_keys(walk: Walk, block: Any, s: dict[str, Any]) -> None:
    """Wait for keys and values; a block without steps has none."""

    def wait() -> None:
        for number in range(2):
            kd.barrier_wait(walk.keys_loaded(s, block, number))

    kd.when(block.count > 0)(wait)


def _release(step: WalkStep, s: dict[str, Any], *operands: Any) -> None:
    """Give the step's queries and gradients back; until then products read the registers of `operands`."""
    kd.optimization_barrier(*operands)
    kd.barrier_arrive(s["dout_consumed"].at[step.dout_slot])
    kd.barrier_arrive(s["q_consumed"].at[step.slot])
