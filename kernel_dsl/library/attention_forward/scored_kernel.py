"""Attention with every option on Hopper: the loop of `attention_kernel`, with the scores' functions and masks in registers.

Blocks take tiles of queries until none is left, long ones first, and loop over the blocks of keys that some query of a tile
sees. Blocks of keys that all queries see have no mask. docs/attention.md has more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..first_sizes import declared_outputs, dim_of
from .captured import reading
from .opened import at_launch, declared, takes_number
from .problem import ScoredProblem
from .scored_config import blocks_of, extras, tiles_of
from .scored_forward import ScoredForward
from .sizes import AttentionConfig, launch_registers


@cache
def scored_kernel(problem: ScoredProblem, config: AttentionConfig, multiprocessors: int, promise: bool = False) -> Any:
    """The kernel `(q, k, v, *extras) -> out` or `-> (out, lse)`; `extras` names the arrays between.

    `promise`: that pages are in the cache, which the interpreter checks. Each call gives the extents that are Dims; the
    kernel may then take a number before the extras: see `takes_number`.
    """
    p, t, names = problem, config, extras(problem)
    static = ScoredForward(p, t, multiprocessors, promise)

    def body(q: Any, k: Any, v: Any, *rest: Any, **scratch: Any) -> None:
        number, rest = (rest[0], rest[1:]) if p.opened and takes_number(p) else (None, rest)
        me, s = kd.axis_index("wg"), scratch | dict(zip(names, rest, strict=False))
        if static.counted:
            s["tickets"] = kd.get_global(kd.SemaphoreType.REGULAR)
        if static.shared is not None:
            s["shared_turns"] = kd.get_global(kd.SemaphoreType.REGULAR((static.shared.count, t.consumers)))
        out, *lse = rest[len(names) :]

        def launched() -> ScoredForward:
            """The roles for these sizes. Computed before the branches, numbers of tiles live in the producer's few registers
            until the consumers begin.
            """
            return static.at_launch(q, k, s.get("page_table"), s.get("table"), number) if p.opened else static

        def produce() -> None:
            launched().produce(q, k, v, s)

        def consume() -> None:
            launched().consume(me, out, lse[0] if lse else None, s)

        with reading(s):
            if p.page:
                # in one branch: nothing of the consumers lives in the registers of a producer that needs them all
                kd.cond(me == t.consumers, produce, consume)
            else:
                kd.when(me == t.consumers)(produce)
                kd.when(me < t.consumers)(consume)

    def outputs(splits: Any, batch: Any, queries: Any) -> Any:
        parts = batch, p.heads * splits, queries
        made = kd.ShapeDtypeStruct((*parts, p.v_dim) if p.shared else p.out_shape, p.out_dtype)
        return (made, kd.ShapeDtypeStruct(parts if p.shared else p.lse_shape, kd.float32)) if p.lse else made

    def outputs_of(q: Any, k: Any, v: Any, splits: Any, *rest: Any) -> Any:
        return outputs(splits, q.shape[0], q.shape[1 if p.layout == "bshd" else 2])

    shapes = declared(p, names) if p.opened else None
    if shapes is not None and p.shared:
        # the heads of parts are as many as a call's number of splits says
        shapes |= declared_outputs(outputs(dim_of("parts"), p.batch, p.queries), 4 + len(names))

    def blocks_for(work: Any) -> Any:
        return work if p.alone else blocks_of(work, multiprocessors)

    def grid_of(q: Any, k: Any, v: Any, *rest: Any) -> tuple[int, ...]:
        if p.ragged:  # the table has a line for each tile
            return (blocks_for(rest[names.index("table")].shape[0] * p.heads),)
        given = rest[takes_number(p) :]
        lengths = at_launch(p, q, k, given[names.index("page_table")] if p.page else None)
        heads, tiles = lengths.batch * p.heads, tiles_of(lengths, t)
        if static.by_groups:
            return (heads // rest[0], tiles, rest[0])
        parts = (rest[0],) if p.shared else ()
        return (heads, *parts, tiles) if p.alone else (blocks_for(tiles * heads),)

    def closed_grid() -> tuple[int, ...]:
        return (p.batch * p.heads, p.splits, static.tiles) if p.shared else (static.grid,)

    axes = ("block", "tile") if p.alone and not p.ragged else ("block",)
    axes = ("block", "part", "tile") if p.shared else ("block", "tile", "head") if static.by_groups else axes
    made = kd.kernel(
        body,
        out_type=outputs_of if p.opened and p.shared else outputs(p.splits, p.batch, p.queries),
        shapes=shapes,
        scratch_types=static.scratch(),
        grid=grid_of if p.opened else closed_grid(),
        grid_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True, max_registers=launch_registers(static.v_dim, t)),
        name="attention_scored",
    )
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors, promise)
