"""Software pipelines over blocks of GMEM: loads of later steps and stores of earlier ones run beside the body.

`emit_pipeline` does it within one warpgroup; `emit_pipeline_warp_specialized` gives the loads a warpgroup of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from .compiled import Swizzle
from .errors import BadArgument, BadArgumentType
from .errors_hopper import PipelineLimit
from .ir import MemorySpace
from .memory import Barrier, ClusterBarrier, MemorySpec
from .ops.arith import add, div, equal, less, multiply, not_equal, rem, subtract, where
from .ops.barrier import barrier_arrive, barrier_arrive_and_wait, barrier_wait
from .ops.control import loop, when
from .ops.copy import (
    OOBFillMode,
    commit_smem,
    commit_smem_to_gmem_group,
    copy_gmem_to_smem,
    copy_smem_to_gmem,
    wait_smem_to_gmem,
)
from .ops.index import axis_index
from .ops.logic import logical_and, logical_or
from .ops.loops import allocate
from .ops.matrix import set_max_registers
from .ops.ref import as_ref
from .refs import Ref, ds
from .trace import current
from .transforms import fields_of
from .tree import flatten, unflatten

__all__ = ["BlockSpec", "emit_pipeline", "emit_pipeline_warp_specialized"]


class BlockSpec:
    """A block of a GMEM Ref for each step: `block_shape`, and `index_map(*step indices)` giving block indices.

    An entry of None in `block_shape` picks one element and drops the axis. `transforms`: of the block's buffers in SMEM.
    `delay_release`: steps for which the body may still use an input's block after its step. `collective_axes`: cluster
    axes whose blocks load the same data together. `oob_fill_mode`: what lies beyond the array's edge.
    """

    def __init__(
        self,
        block_shape: Sequence[int | None] | None = None,
        index_map: Callable[..., Any] | None = None,
        *,
        memory_space: Any = None,
        transforms: Sequence[Any] = (),
        delay_release: int = 0,
        collective_axes: Any = (),
        oob_fill_mode: OOBFillMode = OOBFillMode.ZEROS,
    ) -> None:
        if delay_release < 0:
            raise BadArgument(op="BlockSpec", what=f"delay_release={delay_release}", hint="0 or more steps")
        self.block_shape = None if block_shape is None else tuple(block_shape)
        self.index_map = index_map
        self.memory_space = memory_space
        self.transforms = tuple(transforms)
        self.delay_release = delay_release
        self.collective_axes: Any = (collective_axes,) if isinstance(collective_axes, str) else tuple(collective_axes)
        self.oob_fill_mode = oob_fill_mode

    def shape_for(self, ref: Ref) -> tuple[int | None, ...]:
        return tuple(ref.shape) if self.block_shape is None else self.block_shape

    def indices(self, steps: Sequence[Any], rank: int) -> tuple[Any, ...]:
        """Block indices at a step."""
        if self.index_map is None:
            return tuple(steps) if self.block_shape is not None else (0,) * rank
        out: Any = self.index_map(*steps)
        return tuple(cast("Sequence[Any]", out)) if isinstance(out, (tuple, list)) else (out,)

    def block(self, ref: Ref, steps: Sequence[Any], op: str) -> Ref:
        """The block of `ref` at a step. Raises `BadArgument`."""
        shape = self.shape_for(ref)
        index = self.indices(steps, ref.ndim)
        if not len(shape) == len(index) == ref.ndim:
            what = f"a block of shape {shape} with {len(index)} indices, of a rank-{ref.ndim} Ref"
            raise BadArgument(op=op, what=what, hint="give one extent and one index an axis")
        parts = tuple(i if n is None else ds(multiply(i, n), n) for i, n in zip(index, shape, strict=True))
        return ref.slice(parts)


@dataclass
class _Stream:
    """One operand: its spec, its GMEM Ref and its ring of buffers."""

    spec: BlockSpec
    gmem: Ref
    ring: Ref

    def slot(self, number: Any) -> Ref:
        return self.ring.slice((number, ...))


def _streams(specs: list[BlockSpec], refs: Sequence[Any], depth: int, op: str) -> list[_Stream]:
    out: list[_Stream] = []
    for number, (spec, ref) in enumerate(zip(specs, refs, strict=True)):
        gmem = as_ref(ref, op)
        if gmem.memory_space is not MemorySpace.GMEM:
            raise BadArgumentType(op=op, what=f"operand {number} is {gmem!r}", hint="pipelines walk Refs in GMEM")
        shape = tuple(n for n in spec.shape_for(gmem) if n is not None)
        tiling, swizzle = fields_of(shape, gmem.dtype, spec.transforms) if spec.transforms else ((), Swizzle.NONE)
        buffer = allocate(MemorySpec(MemorySpace.SMEM, (depth, *shape), gmem.dtype, tiling, swizzle), f"{op} {number}")
        out.append(_Stream(spec, gmem, buffer))
    return out


def _specs(specs: Any, op: str) -> tuple[list[BlockSpec], Any]:
    leaves, structure = flatten(specs, lambda x: isinstance(x, BlockSpec))
    for leaf in leaves:
        if not isinstance(leaf, BlockSpec):
            raise BadArgumentType(op=op, what=f"{leaf!r} is no BlockSpec", hint="use `kd.BlockSpec(shape, index_map)`")
    return leaves, structure


def _total(grid: Sequence[Any]) -> Any:
    if all(isinstance(g, int) for g in grid):
        return prod(grid)
    total: Any = 1
    for extent in grid:
        total = multiply(total, extent)
    return total


def _unravel(step: Any, grid: Sequence[Any]) -> tuple[Any, ...]:
    """The step's index along every axis, the last running fastest."""
    out: list[Any] = []
    for extent in reversed(grid[1:]):
        out.insert(0, _rem(step, extent))
        step = _div(step, extent)
    return (step, *out) if grid else ()


def _rem(a: Any, b: Any) -> Any:
    return a % b if isinstance(a, int) and isinstance(b, int) else rem(a, b)


def _div(a: Any, b: Any) -> Any:
    return a // b if isinstance(a, int) and isinstance(b, int) else div(a, b)


def _depth(steps: Any, wanted: int, delay: int, op: str) -> int:
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op=op, what=f"max_concurrent_steps={wanted!r}", hint="a static int, 1 or more")
    depth = min(wanted, max(steps, 1)) if isinstance(steps, int) else wanted
    if delay >= depth and not (isinstance(steps, int) and steps <= depth):
        raise PipelineLimit(
            op=op,
            what=f"delay_release={delay} with {depth} buffers",
            why="every buffer would still be in use when the next load needs one",
            hint="make max_concurrent_steps larger than delay_release",
        )
    return depth


def _changes(stream: _Stream, step: Any, steps: Any, grid: Sequence[Any]) -> Any:
    """Whether the output's block is another one at the next step, or there is none: then it must be stored."""
    now = stream.spec.indices(_unravel(step, grid), stream.gmem.ndim)
    following = stream.spec.indices(_unravel(add(step, 1), grid), stream.gmem.ndim)
    changed: Any = equal(add(step, 1), steps)
    for a, b in zip(now, following, strict=True):
        if isinstance(a, int) and isinstance(b, int):
            if a != b:
                changed = logical_or(changed, True)
        else:
            changed = logical_or(changed, not_equal(a, b))
    return changed


def emit_pipeline(
    body: Callable[..., Any],
    *,
    grid: Sequence[Any],
    in_specs: Any = (),
    out_specs: Any = (),
    max_concurrent_steps: int = 1,
    init_carry: Any = None,
) -> Callable[..., Any]:
    """A pipeline within a warpgroup: `pipeline(*inputs, *outputs)` runs `body(indices, *in_refs, *out_refs)` for
    each point of `grid` (static or traced extents), with blocks in SMEM.

    With `init_carry` the body takes the carry last and returns the next; the pipeline returns the final one.
    `max_concurrent_steps`: buffers of each operand. Raises `PipelineLimit`.
    """
    op = "emit_pipeline"
    ins, in_tree = _specs(in_specs, op)
    outs, out_tree = _specs(out_specs, op)
    grid = tuple(grid)
    if any(s.collective_axes for s in ins):
        why = "blocks of a cluster must agree on when a buffer is free"
        hint = "use emit_pipeline_warp_specialized"
        raise PipelineLimit(op=op, what="collective_axes", why=why, hint=hint)

    def pipeline(*refs: Any) -> Any:
        steps = _total(grid)
        delay = max((s.delay_release for s in ins), default=0)
        depth = _depth(steps, max_concurrent_steps, delay, op)
        given = _given(refs, len(ins) + len(outs), op)
        sources, sinks = _streams(ins, given[: len(ins)], depth, op), _streams(outs, given[len(ins) :], depth, op)
        loaded = allocate(Barrier(max(len(ins), 1), depth), op)

        def fetch(step: Any, slot: Any, stream: _Stream, predicate: Any) -> None:
            block = stream.spec.block(stream.gmem, _unravel(step, grid), op)
            mode = stream.spec.oob_fill_mode
            copy_gmem_to_smem(block, stream.slot(slot), loaded.at[slot], predicate=predicate, oob_mode=mode)

        for step in range(depth):
            predicate = None if isinstance(steps, int) else less(step, steps)
            if isinstance(steps, int) and step >= steps:
                break
            for stream in sources:
                fetch(step, step, stream, predicate)

        def one(step: Any, carry: Any) -> Any:
            slot = _slot(step, depth)
            if sources:
                barrier_wait(loaded.at[slot])
            if sinks:
                wait_smem_to_gmem(depth - 1, wait_read_only=True)
            blocks = [s.slot(slot) for s in (*sources, *sinks)]
            result = _call(body, _unravel(step, grid), blocks, in_tree, out_tree, len(ins), carry, init_carry)
            if sinks:
                commit_smem()
                for stream in sinks:
                    to = stream.spec.block(stream.gmem, _unravel(step, grid), op)
                    store = _changes(stream, step, steps, grid)
                    copy_smem_to_gmem(stream.slot(slot), to, predicate=store, commit_group=False)
                commit_smem_to_gmem_group()
            for stream in sources:
                # the buffer of `delay_release` steps ago is free now
                free = subtract(step, stream.spec.delay_release)
                following = add(free, depth)
                ready = less(following, steps)
                if stream.spec.delay_release:
                    ready = logical_and(ready, less(stream.spec.delay_release - 1, step))
                fetch(following, _slot(following, depth), stream, ready)
            return result

        result = _loop(steps, one, init_carry)
        if sinks:
            wait_smem_to_gmem(0)
        return result

    return pipeline


def _slot(step: Any, depth: int) -> Any:
    return _rem(step, depth) if depth > 1 else 0


def _given(refs: Sequence[Any], count: int, op: str) -> list[Any]:
    leaves, _ = flatten(tuple(refs), lambda x: isinstance(x, Ref))
    if len(leaves) != count:
        what = f"{len(leaves)} Refs for {count} specs"
        raise BadArgument(op=op, what=what, hint="call the pipeline with one GMEM Ref for each in_spec and out_spec")
    return leaves


def _loop(steps: Any, one: Callable[[Any, Any], Any], init: Any) -> Any:
    if init is None:

        def run(step: Any) -> None:
            one(step, None)

        return loop(0, steps)(run)
    return loop(0, steps, init_carry=init)(one)


def _call(
    body: Callable[..., Any],
    indices: tuple[Any, ...],
    blocks: list[Any],
    in_tree: Any,
    out_tree: Any,
    inputs: int,
    carry: Any,
    init: Any,
    extra: tuple[Any, ...] = (),
) -> Any:
    ins, outs = unflatten(in_tree, blocks[:inputs]), unflatten(out_tree, blocks[inputs:])
    args = [*_as_args(ins), *_as_args(outs), *extra]
    return body(indices, *args, carry) if init is not None else body(indices, *args)


def _as_args(tree: Any) -> tuple[Any, ...]:
    return tuple(cast("Sequence[Any]", tree)) if isinstance(tree, (tuple, list)) else (tree,)


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
    manual_consumed_barriers: bool = False,
    compute_context: Callable[[Callable[[Any], Any]], None] | None = None,
    memory_thread_idx: int | None = None,
) -> Callable[..., None]:
    """A pipeline over several warpgroups: one loads, `num_compute_wgs` run the body on the same blocks.

    The body is `body(indices, *in_refs, *out_refs[, *consumed_barriers][, carry])`. `compute_context(pipeline)` runs in
    the compute warpgroups around the loop: `carry = pipeline(carry)`. With `manual_consumed_barriers` the body arrives
    on the barrier of each input when it no longer needs the block. `memory_registers`: a lane of the loading warpgroup;
    the others share the rest. Raises `PipelineLimit`.
    """
    op = "emit_pipeline_warp_specialized"
    ins, in_tree = _specs(in_specs, op)
    outs, out_tree = _specs(out_specs, op)
    grid = tuple(grid)
    memory = num_compute_wgs if memory_thread_idx is None else memory_thread_idx
    threads = current().threads
    if num_compute_wgs + 1 > threads or not 0 <= memory < threads:
        why = f"the kernel has {threads} warpgroups"
        what = f"{num_compute_wgs} compute warpgroups and memory warpgroup {memory}"
        raise PipelineLimit(op=op, what=what, why=why, hint="set num_threads to num_compute_wgs + 1")
    axes = {s.collective_axes for s in ins if s.collective_axes}
    if len(axes) > 1:
        why = "the buffers of a step are released together"
        hint = "use the same collective_axes, or none, for every input"
        raise PipelineLimit(op=op, what=f"different collective_axes {sorted(axes)}", why=why, hint=hint)
    registers = min(256, (512 - memory_registers) // num_compute_wgs) // 8 * 8

    def pipeline(*refs: Any) -> None:
        steps = _total(grid)
        delay = max((s.delay_release for s in ins), default=0)
        depth = _depth(steps, max_concurrent_steps, delay, op)
        given = _given(refs, len(ins) + len(outs), op)
        sources, sinks = _streams(ins, given[: len(ins)], depth, op), _streams(outs, given[len(ins) :], depth, op)
        loaded = [allocate(Barrier(1, depth), op) for _ in sources]
        consumed = [allocate(_consumed(s.spec, num_compute_wgs, depth, axes), op) for s in sources]
        written = allocate(Barrier(num_compute_wgs), op) if sinks and num_compute_wgs > 1 else None
        me = axis_index(wg_axis)

        @when(me == memory)
        def _() -> None:
            set_max_registers(memory_registers, action="decrease")
            _produce(sources, loaded, consumed, steps, grid, depth, op)

        compute = logical_and(less(me, num_compute_wgs + (1 if memory < num_compute_wgs else 0)), me != memory)

        @when(compute)
        def _() -> None:
            set_max_registers(registers, action="increase")
            leader = 1 if memory == 0 else 0

            def run(init: Any) -> Any:
                def one(step: Any, carry: Any) -> Any:
                    slot = _slot(step, depth)
                    for barrier in loaded:
                        barrier_wait(barrier.at[slot])
                    if sinks:
                        _free_sinks(me, leader, depth, written)
                    blocks = [s.slot(slot) for s in (*sources, *sinks)]
                    manual = tuple(b.at[slot] for b in consumed) if manual_consumed_barriers else ()
                    indices = _unravel(step, grid)
                    result = _call(body, indices, blocks, in_tree, out_tree, len(ins), carry, init, manual)
                    if sinks:
                        _store_sinks(sinks, slot, step, steps, grid, me, leader, written, op)
                    if not manual_consumed_barriers:
                        for stream, barrier in zip(sources, consumed, strict=True):
                            late = stream.spec.delay_release
                            go = None if not late else less(late - 1, step)
                            free = where(less(step, late), 0, subtract(step, late)) if late else step
                            barrier_arrive(barrier.at[_slot(free, depth)], predicate=go)
                    return result

                result = _loop(steps, one, init)
                if not manual_consumed_barriers:
                    _release_rest(sources, consumed, steps, depth)
                return result

            if compute_context is None:
                run(None)
            else:
                compute_context(run)
            if sinks:
                wait_smem_to_gmem(0)

    return pipeline


def _consumed(spec: BlockSpec, consumers: int, depth: int, axes: set[Any]) -> Any:
    if axes:
        (names,) = axes
        return ClusterBarrier(collective_axes=(names,), num_arrivals=consumers, num_barriers=depth)
    return Barrier(consumers, depth)


def _produce(
    sources: list[_Stream], loaded: list[Any], consumed: list[Any], steps: Any, grid: Sequence[Any], depth: int, op: str
) -> None:
    def one(step: Any) -> None:
        slot = _slot(step, depth)
        for stream, full, empty in zip(sources, loaded, consumed, strict=True):

            @when(less(depth - 1, step))
            def _(empty: Any = empty) -> None:
                barrier_wait(empty.at[slot])

            block = stream.spec.block(stream.gmem, _unravel(step, grid), op)
            copy_gmem_to_smem(
                block,
                stream.slot(slot),
                full.at[slot],
                collective_axes=stream.spec.collective_axes or None,
                oob_mode=stream.spec.oob_fill_mode,
            )

    loop(0, steps)(one)
    # leave every barrier between phases, so that the pipeline can run again
    for _stream, empty in zip(sources, consumed, strict=True):
        for back in range(depth):
            step = subtract(steps, depth - back)

            @when(less(-1, step) if not isinstance(step, int) else step >= 0)
            def _(empty: Any = empty, step: Any = step) -> None:
                barrier_wait(empty.at[_slot(step, depth)])


def _release_rest(sources: list[_Stream], consumed: list[Any], steps: Any, depth: int) -> None:
    """Release what `delay_release` held back at the end."""
    for stream, barrier in zip(sources, consumed, strict=True):
        for back in range(stream.spec.delay_release, 0, -1):
            step = subtract(steps, back)
            good = step >= 0 if isinstance(step, int) else less(-1, step)
            safe = max(step, 0) if isinstance(step, int) else where(good, step, 0)

            @when(good)
            def _(barrier: Any = barrier, safe: Any = safe) -> None:
                barrier_arrive(barrier.at[_slot(safe, depth)])


def _free_sinks(me: Any, leader: int, depth: int, written: Any) -> None:
    """Wait until the next output buffer has been read by its copy."""
    if written is None:
        wait_smem_to_gmem(depth - 1, wait_read_only=True)
        return

    @when(me == leader)
    def _() -> None:
        wait_smem_to_gmem(depth - 1, wait_read_only=True)

    barrier_arrive_and_wait(written)


def _store_sinks(
    sinks: list[_Stream],
    slot: Any,
    step: Any,
    steps: Any,
    grid: Sequence[Any],
    me: Any,
    leader: int,
    written: Any,
    op: str,
) -> None:
    """Copy the step's output blocks out: by the first compute warpgroup, once all have written."""
    commit_smem()

    def store() -> None:
        for stream in sinks:
            to = stream.spec.block(stream.gmem, _unravel(step, grid), op)
            changed = _changes(stream, step, steps, grid)
            copy_smem_to_gmem(stream.slot(slot), to, predicate=changed, commit_group=False)
        commit_smem_to_gmem_group()

    if written is None:
        store()
        return
    barrier_arrive_and_wait(written)
    when(me == leader)(store)
