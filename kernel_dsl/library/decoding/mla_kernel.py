"""Decoding with latent keys on Hopper: 64 heads of a query loop over a part of the keys. The first part of a key is its
value.

A block has two consumers, each with half of the output's dimensions, because one warpgroup can't hold all. The first
computes scores and weights, passes the weights on through SMEM, and multiplies; the second multiplies, beside the first
one's softmax. docs/attention.md has more.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..attention_forward.problem import clear_rows
from ..attention_forward.scored_config import swizzled
from ..attention_forward.sizes import LOG2E, LOWEST, ROWS
from ..attention_forward.step import softmax_step
from ..stage_product import following_slot
from ..stage_ring import await_release
from .kernel import split_count
from .opened import at_launch, declared, of_call
from .problem import DIM, SUMS, V_DIM, MlaProblem, parts_type

HALF = V_DIM // 2
STAGES = 2
MOST_KEYS = 64  # the most keys of a step
REGISTERS = (240, 24)  # registers a lane: (of a consumer, of the producer)


@dataclass(frozen=True)
class MlaConfig:
    """Sizes of the kernel for latent keys.

    A step has `block` keys, loaded `chunk` at a time; `splits` blocks share the keys of a sequence.
    With `splits` 0, each call gives their number, 2 or more.
    """

    block: int
    chunk: int
    splits: int


class _Mla:
    """The common parts of the roles."""

    def __init__(self, p: MlaProblem, t: MlaConfig, promise: bool) -> None:
        self.p, self.t, self.promise = p, t, promise
        self.tiles = kd.cdiv(p.heads, ROWS)

    def place(self, s: dict[str, Any]) -> None:
        """Put into `s` this block's query, first head, part of the keys and the number of those that it sees."""
        p, t = self.p, self.t
        block = kd.axis_index("block")
        tile, rest = kd.rem(block, self.tiles), kd.div(block, self.tiles)
        splits = s.get("splits", t.splits)
        split, unit = kd.rem(rest, splits), kd.div(rest, splits)
        keys = p.keys(s["lengths"], unit, self.promise)
        steps = kd.cdiv(keys, t.block)
        share = kd.cdiv(steps, splits)
        count = kd.maximum(kd.minimum(share, steps - split * share), 0)
        s.update(unit=unit, batch=kd.div(unit, p.queries), query=kd.rem(unit, p.queries), head=tile * ROWS)
        s.update(split=split, keys=keys, begin=split * share, count=count)

    # --- the producer -----------------------------------------------------------------------------

    def produce(self, q: Any, cache: Any, s: dict[str, Any]) -> None:
        t = self.t
        kd.set_max_registers(REGISTERS[1], action="decrease")
        kd.copy_gmem_to_smem(q.at[s["batch"], s["query"], kd.ds(s["head"], ROWS)], s["q_smem"], s["q_loaded"])

        @kd.loop(0, s["count"], init_carry=0)
        def _(step: Any, slot: Any) -> Any:
            await_release(s["consumed"], slot, step >= STAGES)
            first = (s["begin"] + step) * t.block
            left = s["keys"] - first
            kd.when(left >= t.block)(partial(self.fetch, cache, first, slot, s["loaded"].at[slot], s))
            kd.when(left < t.block)(partial(self.fetch_tail, cache, first, left, slot, s))
            return following_slot(slot, STAGES)

    def fetch(self, cache: Any, first: Any, slot: Any, loaded: Any, s: dict[str, Any]) -> None:
        """Load the keys of a step. Pages beyond the last key are not looked up, and a missing page gives zeros."""
        p, t = self.p, self.t
        for start in range(0, t.block, t.chunk):
            key = first + start
            number = kd.minimum(key, kd.maximum(s["keys"] - 1, 0))
            page = s["page_table"][s["batch"], kd.div(number, p.page)]
            rows = kd.ds(kd.multiple_of(kd.rem(key, p.page), t.chunk), t.chunk)
            if self.promise:  # the interpreter reports missing pages
                kd.optimization_barrier(kd.load(cache, (page, 0, 0), bounds="promise"))
            target = s["kv_smem"].at[slot, kd.ds(start, t.chunk)]
            kd.copy_gmem_to_smem(cache.at[page, rows], target, loaded)

    def fetch_tail(self, cache: Any, first: Any, count: Any, slot: Any, s: dict[str, Any]) -> None:
        """Load the last step's keys. The first `count` exist; the following may be NaN, so they are
        replaced by zeros.
        """
        self.fetch(cache, first, slot, s["tail_loaded"], s)
        kd.barrier_wait(s["tail_loaded"])
        clear_rows(s["kv_smem"].at[slot], count)
        for _ in range(self.t.block // self.t.chunk):
            kd.barrier_arrive(s["loaded"].at[slot])

    # --- consumers --------------------------------------------------------------------------------

    def score(self, out: Any, sums: Any, s: dict[str, Any]) -> None:
        """The first consumer: scores, weights, and the first half of the output."""
        p, t = self.p, self.t
        kd.set_max_registers(REGISTERS[0], action="increase")
        unit = p.scale * LOG2E
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block), 1)

        def step(number: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
            slot, top, total = carry
            s_acc, o_acc = accs
            tile = s["kv_smem"].at[slot]
            kd.barrier_wait(s["loaded"].at[slot])
            kd.wgmma(s_acc, s["q_smem"], tile.T, accumulate=False)
            kd.wgmma_wait(0)
            left = s["keys"] - (s["begin"] + number) * t.block
            x = kd.cond(left >= t.block, lambda x: x, lambda x: kd.where(column < left, x, -math.inf), s_acc[...])
            weights, fade, top, total = softmax_step(x, top, total, unit)
            weights = weights.astype(p.dtype)
            kd.when(number > 0)(partial(kd.barrier_wait, s["weights_taken"]))
            s["weights"][...] = weights
            s["factors"][...] = fade
            kd.commit_smem()
            kd.barrier_arrive(s["weights_there"])
            o_acc.scale_rows(fade)
            kd.wgmma(o_acc, weights, tile.at[:, kd.ds(0, HALF)])
            kd.wgmma_wait(0)  # before the next scores: this releases the place for the keys after the next early
            kd.barrier_arrive(s["consumed"].at[slot])
            return following_slot(slot, STAGES), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            kd.barrier_wait(s["q_loaded"])
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            _, top, total = kd.loop(0, s["count"], init_carry=(0, top, total))(partial(step, accs=(s_acc, o_acc)))
            return o_acc[...], top * unit, kd.sum(total, axis=1)

        value, top, total = kd.run_scoped(run, kd.ACC((ROWS, t.block), kd.float32), kd.ACC((ROWS, HALF), kd.float32))
        factor = kd.where(total == 0, 0.0, 1.0 / total)
        kd.when(s["count"] > 0)(partial(kd.barrier_wait, s["weights_taken"]))
        s["factors"][...] = factor
        kd.barrier_arrive(s["weights_there"])
        logs = kd.where(total == 0, -math.inf, top + kd.log2(total))
        heads = kd.ds(s["head"], ROWS)
        if t.splits != 1:
            kd.store(out.at[s["unit"], s["split"], :, V_DIM], (heads,), logs)
        elif p.lse:
            kd.store(sums.at[s["batch"], :, s["query"]], (heads,), logs * (1.0 / LOG2E))
        self.finish(0, value * factor[:, None], out, s)

    def multiply(self, out: Any, s: dict[str, Any]) -> None:
        """The second consumer: the second half of the output."""
        kd.set_max_registers(REGISTERS[0], action="increase")

        def step(_: Any, slot: Any, o_acc: Any) -> Any:
            kd.barrier_wait(s["weights_there"])
            o_acc.scale_rows(kd.load(s["factors"], ..., layout=kd.Layout.WGMMA_ROW))
            kd.wgmma(o_acc, s["weights"], s["kv_smem"].at[slot, :, kd.ds(HALF, HALF)])
            kd.wgmma_wait(0)
            kd.barrier_arrive(s["weights_taken"])
            kd.barrier_arrive(s["consumed"].at[slot])
            return following_slot(slot, STAGES)

        def run(o_acc: Any) -> Any:
            kd.loop(0, s["count"], init_carry=0)(partial(step, o_acc=o_acc))
            return o_acc[...]

        value = kd.run_scoped(run, kd.ACC((ROWS, HALF), kd.float32))
        kd.barrier_wait(s["weights_there"])
        factor = kd.load(s["factors"], ..., layout=kd.Layout.WGMMA_ROW)
        self.finish(1, value * factor[:, None], out, s)

    def finish(self, half: int, value: Any, out: Any, s: dict[str, Any]) -> None:
        """Store half of the dimensions through the SMEM of the queries, which have all been read by then."""
        heads, columns = kd.ds(s["head"], ROWS), kd.ds(half * HALF, HALF)
        if self.t.splits != 1:
            kd.when(s["count"] > 0)(lambda: kd.store(out.at[s["unit"], s["split"], :, :V_DIM], (heads, columns), value))
            return
        tile = s["q_smem"].at[:, columns]
        tile[...] = value.astype(self.p.dtype)
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[s["batch"], s["query"], heads, columns])
        kd.wait_smem_to_gmem(0, wait_read_only=True)


def mla_splits(p: MlaProblem, block: int, multiprocessors: int) -> int:
    """The number of blocks that share the keys of a sequence."""
    steps = kd.cdiv(p.table * p.page, block)
    return split_count(p.units * kd.cdiv(p.heads, ROWS), multiprocessors, steps)


@cache
def mla_kernel(problem: MlaProblem, config: MlaConfig, promise: bool, multiprocessors: int = 0) -> Any:
    """The kernel `(q, cache, lengths, page_table) -> results`, of one split, else `-> parts` for `decode_combine`.

    If calls give the number of splits, it is `mla_splits` for `multiprocessors`.
    """
    p, t = problem, config
    whole = _Mla(p, t, promise)
    shapes = declared(p)
    if shapes is not None and t.splits == 0:
        shapes[4] = (kd.Dim("units"), kd.Dim("splits", max=2**20), p.heads, V_DIM + SUMS)

    def parts(q: Any, cache: Any, _: Any, page_table: Any) -> tuple[int, int]:
        """(queries of all sequences, splits)."""
        own = of_call(p, q, cache, page_table)
        return own.units, t.splits or mla_splits(own, t.block, multiprocessors)

    def grid(*structs: Any) -> tuple[Any]:
        units, splits = parts(*structs)
        return (units * whole.tiles * splits,)

    def out_type(*structs: Any) -> Any:
        return parts_type(*parts(*structs), p.heads, V_DIM)

    def body(q: Any, cache: Any, lengths: Any, page_table: Any, *results: Any, **scratch: Any) -> None:
        s = scratch | {"lengths": lengths, "page_table": page_table}
        kernel = copy(whole)
        kernel.p = at_launch(p, cache, page_table)
        if not t.splits:
            s["splits"] = results[0].shape[1]
        kernel.place(s)
        me = kd.axis_index("wg")
        kd.when(me == 2)(lambda: kernel.produce(q, cache, dict(s)))
        kd.when(me == 0)(lambda: kernel.score(results[0], results[-1], dict(s)))
        kd.when(me == 1)(lambda: kernel.multiply(results[0], dict(s)))

    arrivals = t.block // t.chunk
    made = kd.kernel(
        body,
        out_type=p.out_type if t.splits == 1 else out_type,
        scratch_types={
            "q_smem": swizzled(p.dtype, ROWS, DIM),
            "kv_smem": swizzled(p.dtype, STAGES, t.block, DIM),
            "weights": swizzled(p.dtype, ROWS, t.block),
            "factors": kd.SMEM((ROWS,), kd.float32),
            "q_loaded": kd.Barrier(),
            "loaded": kd.Barrier(num_arrivals=arrivals, num_barriers=STAGES),
            "tail_loaded": kd.Barrier(num_arrivals=arrivals),
            "consumed": kd.Barrier(num_arrivals=2, num_barriers=STAGES),
            "weights_there": kd.Barrier(),
            "weights_taken": kd.Barrier(),
        },
        grid=grid if t.splits == 0 else (p.units * whole.tiles * t.splits,),
        shapes=shapes,
        grid_names=("block",),
        num_threads=3,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="mla_decode",
    )
    return identified(made, problem, config, promise, multiprocessors)
