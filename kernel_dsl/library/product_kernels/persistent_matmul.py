"""The fast matrix product on Hopper: persistent, warp-specialised, TMA in and out.

One warpgroup loads tiles into a ring of SMEM stages; the others multiply. Each block computes its share of the output
tiles in an order that reuses L2. Accumulators go through SMEM to GMEM by TMA, while the loads of the next tile are
already in flight.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..activations import Function
from ..product_routes.any_rows import declared, open_sizes
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from ..stage_ring import StageRing
from .consumer_product import ConsumerProduct
from .epilogue import outputs
from .fed_scales import in_pairs
from .low_tiles import pass_over
from .persistent_loads import ProductOperands, produce
from .persistent_plan import ProductPlan, plan_of
from .persistent_stores import store_tile
from .streamed_tiles import Pieces


@cache
def matmul_kernel(
    problem: Problem, config: MatmulConfig, blocks: int, activation: Function | None = None, early: bool = False
) -> Any:
    """The kernel `(a, b[, bias][, c], *operands of the steps) -> out` for a problem, on `blocks` multiprocessors.

    With a `gate` b is given twice, and half of a tile's columns are products of each; the configuration then has no
    clusters and is not `swapped`. With `keeps` both products are results after `out`. Each call gives the extents of
    the problem that are Dims. `early`: the kernel starts while the kernel before it ends.
    """
    plan = plan_of(problem, config, blocks, activation)
    p, t = plan.p, plan.t

    def body(a: Any, *refs: Any, **buffers: Any) -> None:
        if early:
            kd.griddepcontrol_wait()
        here = plan.at_launch(a, refs[0]) if open_sizes(problem) else plan
        operands, results = _split(here, a, refs)
        if p.exponentials:
            here = here.skipping(results[0][-1])
        me = kd.axis_index("wg")
        out_smem = buffers.pop("out_smem", None)
        pieces = Pieces(buffers.pop("pieces"), t) if t.streamed else None
        ring = StageRing(**buffers)

        @kd.when(me == t.consumers)
        def _() -> None:
            produce(here, operands, ring)

        @kd.when(me < t.consumers)
        def _() -> None:
            _consume(here, me, operands.scales, results, ring, out_smem, pieces)

    known = isinstance(plan.total, int)
    made = kd.kernel(
        body,
        out_type=problem.results(
            *((p.parts,) if p.parts > 1 else ()), tiles=plan.tiles_n * t.cluster_n if problem.softmax else 0
        ),
        shapes=declared(problem),
        scratch_types=plan.scratch(),
        grid=(plan.clusters,) if known or t.streamed else plan.grid_of,
        grid_names=plan.grid_names,
        cluster=tuple(size for size in (t.cluster, t.cluster_n) if size > 1),
        cluster_names=plan.axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="matmul",
    )
    return identified(made, problem, config, blocks, early) if p.named and activation is None else made


def _split(plan: ProductPlan, a: Any, refs: tuple[Any, ...]) -> tuple[ProductOperands, tuple[Any, ...]]:
    """(the operands, (operands of the steps, result, greatest magnitude, *results kept)) of a kernel's arguments."""
    p, count = plan.p, 1 if plan.p.gate is None else 2
    packs, rest = p.packs_of(refs[count:])
    scales, rest = p.scales_of(rest)
    kept, rest = p.kept_of(rest)
    left, rights = (refs[0], (a,)) if plan.t.swapped else (a, refs[:count])
    return ProductOperands(left, rights, packs, scales), (*outputs(p, rest), *kept)


def _consume(
    plan: ProductPlan, me: Any, scales: tuple[Any, Any], results: tuple[Any, ...], ring: StageRing, out_smem: Any,
    pieces: Pieces | None,
) -> None:  # fmt: skip
    """Multiply and store the tiles of consumer `me`."""
    p, t, low = plan.p, plan.t, plan.low
    kd.set_max_registers(plan.registers[1], action="increase")
    if plan.feed is not None:
        kd.commit_smem()  # orders the other role's stores for the trace, or lanes would meet at each stage's factors
    turn, share = (me, 0) if t.ping_pong else (0, me)
    work = plan.work_of(turn)
    products = ConsumerProduct(p, t, plan.steps, share, turn, ring, scales, plan.feed)

    @work.loop(turn * (plan.steps % t.stages) if plan.turns > 1 else 0)
    def _(number: Any, slot: Any) -> Any:
        item = work.item(number)
        m, n, part, batch = plan.place_of(item.tile)

        def gathered(sums: Any) -> Any:
            return sums if pieces is None else work.gather(item, pieces, me, sums)

        def compute() -> Any:
            way = products.of(item, (m, n, part, batch), slot, gathered)

            def product(acc: Any, *other: Any) -> Any:
                if pieces is not None and not p.scaled:
                    gathered(acc)
                return way(acc, *other)

            sums = kd.ACC((t.rows, t.tile_n), p.accumulator)
            value, slot_after = kd.run_scoped(product, *[sums] * (2 if in_pairs(p, t.tile_m, t.tile_n) else 1))

            def store() -> None:
                store_tile(plan, value, results, out_smem, me, (m + share * t.rows, n, part, batch))

            store() if pieces is None else work.give(item, value, pieces, me, store)
            return slot_after

        if low is None:
            return plan.after_others(compute())
        low.share(m, share, compute, lambda: pass_over(item.count, t.stages, ring.loaded, ring.consumed))
        return slot

    kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes
