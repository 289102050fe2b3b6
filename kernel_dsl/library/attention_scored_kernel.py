"""Attention with every option on Hopper: the loop of `attention_kernel`, with the scores' functions and masks in registers.

Blocks take tiles of queries until none is left, long ones first, and loop over the blocks of keys that some query of a tile
sees. Blocks of keys that all queries see have no mask. docs/attention.md has more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_captured import reading
from .attention_opened import at_launch, declared
from .attention_problem import ScoredProblem
from .attention_scored_config import blocks_of, extras, takes_together, tiles_of
from .attention_scored_forward import ScoredForward
from .attention_sizes import AttentionConfig


@cache
def scored_kernel(problem: ScoredProblem, config: AttentionConfig, multiprocessors: int, promise: bool = False) -> Any:
    """The kernel `(q, k, v, *extras) -> out` or `-> (out, lse)`; `extras` names the arrays between.

    `promise`: that pages are in the cache, which the interpreter checks. Each call gives the extents that are Dims; the
    kernel may then take `scored_together` of its sizes before the extras.
    """
    p, t, names = problem, config, extras(problem)
    static = ScoredForward(p, t, multiprocessors, promise)

    def body(q: Any, k: Any, v: Any, *rest: Any, **scratch: Any) -> None:
        shared = static
        if p.opened:
            together, rest = (rest[0], rest[1:]) if takes_together(p) else (None, rest)
            table = rest[names.index("table")] if p.ragged else None
            shared = static.at_launch(q, k, rest[names.index("page_table")] if p.page else None, table, together)
        me, s = kd.axis_index("wg"), scratch | dict(zip(names, rest, strict=False))
        if shared.counted:
            s["tickets"] = kd.get_global(kd.SemaphoreType.REGULAR)
        if shared.shared is not None:
            s["shared_turns"] = kd.get_global(kd.SemaphoreType.REGULAR((shared.shared.count, t.consumers)))
        out, *lse = rest[len(names) :]
        with reading(s):
            kd.when(me == t.consumers)(lambda: shared.produce(q, k, v, s))
            kd.when(me < t.consumers)(lambda: shared.consume(me, out, lse[0] if lse else None, s))

    out_type: Any = kd.ShapeDtypeStruct(p.out_shape, p.out_dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct(p.lse_shape, kd.float32))

    def blocks_for(work: Any) -> Any:
        return work if p.alone else blocks_of(work, multiprocessors)

    def grid_of(q: Any, k: Any, v: Any, *rest: Any) -> tuple[int, ...]:
        if p.ragged:  # the table has a line for each tile
            return (blocks_for(rest[names.index("table")].shape[0] * p.heads),)
        given = rest[takes_together(p) :]
        lengths = at_launch(p, q, k, given[names.index("page_table")] if p.page else None)
        heads = lengths.batch * p.heads
        return (heads, tiles_of(lengths, t)) if p.alone else (blocks_for(tiles_of(lengths, t) * heads),)

    made = kd.kernel(
        body,
        out_type=out_type,
        shapes=declared(p, names) if p.opened else None,
        scratch_types=static.scratch(),
        grid=grid_of if p.opened else (static.grid,),
        grid_names=("block", "tile") if p.alone and not p.ragged else ("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="attention_scored",
    )
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors, promise)
