"""Pipelines over several warpgroups: one loads blocks, the others run the body on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .arguments import a_function
from .block_specs import grid_of
from .boundary import checks_itself, public
from .errors import BadArgument, BadArgumentType
from .errors_hopper import PipelineLimit
from .ir import MemorySpace
from .memory import Barrier, ClusterBarrier
from .ops.scope import allocate_tree, scope
from .pipeline_sides import OP, PipelinePipeline, PipelineSetup, run_sides, single_buffers
from .pipeline_steps import given_refs
from .pipelines import (
    buffers_of,
    check_outputs,
    specs_of,
)
from .trace import current

__all__ = ["PipelinePipeline", "emit_pipeline_warp_specialized"]


@public
class _Pipeline:
    """`pipeline(*inputs, *outputs, allocations=None)` runs it; `get_allocations` is for `kd.run_scoped`."""

    def __init__(self, setup: PipelineSetup) -> None:
        self._setup = setup

    def get_allocations(self, *refs: Any) -> dict[str, Any]:
        """The scratch of the pipeline on these GMEM Refs: specifications for `kd.run_scoped`."""
        s = self._setup
        count, depth = len(s.ins), s.depth
        given = given_refs(refs, count + len(s.outs), OP)
        copied = [spec.memory_space is not MemorySpace.GMEM for spec in s.ins]
        consumed: Any = Barrier(s.consumers, depth)
        if s.axes:
            (names,) = s.axes
            consumed = ClusterBarrier(collective_axes=(names,), num_arrivals=s.consumers, num_barriers=depth)
        return {
            "blocks": buffers_of([*s.ins, *s.outs], given, depth, OP, single_buffers(s, given)),
            "loaded": [Barrier(1, depth) if c else None for c in copied],
            "consumed": [consumed if c else None for c in copied],
            "written": Barrier(s.consumers) if s.outs and s.consumers > 1 else None,
        }

    def __call__(self, *refs: Any, allocations: Any = None) -> None:
        """Run the pipeline in its own scratch, or in `allocations`, which `kd.run_scoped` made from `get_allocations`."""
        s = self._setup
        if allocations is not None:
            run_sides(s, refs, allocations)
            return
        if s.state is not None:
            hint = "give all of the chain the same `allocations=`: see `get_allocations`"
            why = "a chained pipeline continues in the buffers of the one before"
            raise PipelineLimit(op=OP, what="a pipeline_state without allocations", why=why, hint=hint)
        with self._scope():
            run_sides(s, refs, allocate_tree(self.get_allocations(*refs), OP))

    def _scope(self) -> scope:
        s = self._setup
        if s.axes:  # another block may still be in an earlier scope when this block's copies write to its SMEM
            return scope(smem=False)
        return scope(collective=current().threads == s.consumers + 1)


@checks_itself("body")
def emit_pipeline_warp_specialized(
    body: Callable[..., Any],
    *,
    grid: Sequence[Any],
    memory_registers: int,
    in_specs: Any = (),
    out_specs: Any = (),
    max_concurrent_steps: int = 2,
    wg_axis: str,
    num_compute_wgs: int,
    pipeline_state: Any = None,
    manual_produced_barriers: bool = False,
    manual_consumed_barriers: bool = False,
    compute_context: Callable[[Callable[[Any], Any]], None] | None = None,
    memory_thread_idx: int | None = None,
) -> _Pipeline:
    """A pipeline over several warpgroups: one loads, `num_compute_wgs` run the body on the same blocks.

    The body is `body(indices, *in_refs, *out_refs[, *produced_barriers][, *consumed_barriers][, carry])`.
    `compute_context(pipeline)` runs in the compute warpgroups around the loop: `carry = pipeline(carry)`. With
    `manual_produced_barriers` the body waits for the barrier of each input before it reads the block. With
    `manual_consumed_barriers` it arrives on another barrier when it no longer needs the block. For an input with
    `delay_release` that is, once in each step, the block of so many steps ago; the last blocks are released after the
    loop. `memory_registers`: registers of a lane of the loading warpgroup; the others share the rest. `pipeline_state`
    (a `PipelinePipeline`, or a traced int32) chains pipelines with one shape of grid without draining the buffers in
    between. All pipelines of a chain take the same `allocations`, which `kd.run_scoped` makes from
    `pipeline.get_allocations(*refs)`. Raises `PipelineLimit`.
    """
    if body is not None:  # None if only its allocations are needed
        a_function(body, OP, "body", "it is called as `body(indices, *refs)`")
    ins, in_tree = specs_of(in_specs, OP)
    outs, out_tree = specs_of(out_specs, OP)
    setup = PipelineSetup(
        body,
        grid_of(grid, OP),
        ins,
        outs,
        in_tree,
        out_tree,
        max_concurrent_steps,
        num_compute_wgs,
        num_compute_wgs if memory_thread_idx is None else memory_thread_idx,
        memory_registers,
        wg_axis,
        pipeline_state,
        manual_produced_barriers,
        manual_consumed_barriers,
        compute_context,
    )
    _check(setup)
    return _Pipeline(setup)


# --- what can't be -------------------------------------------------------------------------------


def _check(s: PipelineSetup) -> None:
    """Raise `PipelineLimit`, `BadArgument` for an impossible pipeline."""
    trace = current()
    threads = trace.threads
    if isinstance(s.consumers, bool) or not isinstance(s.consumers, int) or s.consumers < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op=OP, what=f"num_compute_wgs={s.consumers!r}", hint="a static int, 1 or more")
    if isinstance(s.memory, bool) or not isinstance(s.memory, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op=OP, what=f"memory_thread_idx={s.memory!r}", hint="the number of a warpgroup, or None")
    if s.wg_axis != trace.thread_name:
        hint = "name it in the kernel's `thread_name`, with `num_threads` warpgroups"
        raise BadArgument(op=OP, what=f"wg_axis={s.wg_axis!r} is not the axis of the warpgroups", hint=hint)
    if s.consumers + 1 > threads or not 0 <= s.memory < threads:
        why = f"the kernel has {threads} warpgroups"
        what = f"{s.consumers} compute warpgroups and memory warpgroup {s.memory}"
        raise PipelineLimit(op=OP, what=what, why=why, hint="set num_threads to num_compute_wgs + 1")
    if len(s.axes) > 1:
        why = "the buffers of a step are released together"
        hint = "use the same collective_axes, or none, for every input"
        raise PipelineLimit(op=OP, what=f"different collective_axes {sorted(s.axes)}", why=why, hint=hint)
    check_outputs(s.outs, OP)
    delayed = any(spec.delay_release for spec in s.ins)
    if s.state is not None:
        _check_chained(s, delayed)


def _check_chained(s: PipelineSetup, delayed: bool) -> None:
    """Raise `PipelineLimit` unless a pipeline can continue in the buffers of another one of this kind."""
    if isinstance(s.state, int) and s.state not in tuple(PipelinePipeline):
        hint = "use `kd.PipelinePipeline.START`, `.STEADY` or `.STOP`"
        raise BadArgumentType(op=OP, what=f"pipeline_state={s.state!r}", hint=hint)
    why = "each pipeline of a chain starts at the first buffer and uses all of them"
    if not isinstance(s.steps, int):
        hint = "give it static extents, or no pipeline_state"
        raise PipelineLimit(op=OP, what="a pipeline_state with a dynamic grid", why=why, hint=hint)
    if s.steps % s.depth or not s.steps:
        hint = "make max_concurrent_steps a divisor of the number of steps"
        what = f"a pipeline_state with {s.steps} steps in {s.depth} buffers"
        raise PipelineLimit(op=OP, what=what, why=why, hint=hint)
    if delayed:
        hint = "leave one of them out"
        raise PipelineLimit(op=OP, what="a pipeline_state with a delay_release", why=why, hint=hint)
