"""The two sides of a pipeline over several warpgroups: one loads blocks, the others run the body on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

from .block_specs import BlockSpec
from .boundary import Choices
from .errors import BadArgument
from .errors_hopper import PipelineLimit
from .in_flight import leaves_in_flight
from .in_place import fence_before_arrivals
from .ops.arith import subtract
from .ops.barrier import barrier_arrive, barrier_arrive_and_wait, barrier_wait
from .ops.branches import when
from .ops.compare import equal, less, not_equal, where
from .ops.control import loop
from .ops.copy import copy_gmem_to_smem, copy_smem_to_gmem
from .ops.copy_waits import commit_smem, commit_smem_to_gmem_group, wait_smem_to_gmem
from .ops.index import axis_index
from .ops.logic import logical_and, logical_or
from .ops.matrix import set_max_registers, wgmma_wait
from .ops.ref import as_ref
from .packed import bytes_or_own
from .pipeline_steps import as_args, call_body, depth_of, given_refs, loop_over, slot_of, total_of, unravel
from .pipelines import (
    Stream,
    buffers_of,
    changes,
    invariant,
    writes_in_place,
)
from .registers import shared_registers
from .trace import current
from .tree import unflatten

OP = "emit_pipeline_warp_specialized"


class PipelinePipeline(IntEnum, metaclass=Choices):
    """The position of a pipeline in a chain of pipelines on the same buffers: `START`, `STEADY` (any number), `STOP`.

    For `pipeline_state=` of a pipeline that `emit_pipeline_warp_specialized` made.
    """

    START = 0
    STEADY = 1
    STOP = 2


@dataclass(eq=False, repr=False)
class PipelineSetup:
    """The arguments of a pipeline."""

    body: Callable[..., Any]
    grid: tuple[Any, ...]
    ins: list[BlockSpec]
    outs: list[BlockSpec]
    in_tree: Any
    out_tree: Any
    wanted: int
    consumers: int
    memory: int
    memory_registers: int
    wg_axis: str
    state: Any
    manual_produced: bool
    manual_consumed: bool
    context: Callable[[Callable[[Any], Any]], None] | None

    @property
    def steps(self) -> Any:
        return total_of(self.grid)

    @property
    def depth(self) -> int:
        delay = max((s.delay_release for s in self.ins), default=0)
        return depth_of(self.steps, self.wanted, delay, OP)

    @property
    def axes(self) -> set[Any]:
        """The cluster axes along which inputs are shared: at most one set."""
        return {s.collective_axes for s in self.ins if s.collective_axes}

    @property
    def leader(self) -> int:
        """The compute warpgroup that stores the outputs."""
        return 1 if self.memory == 0 else 0

    def is_state(self, *states: PipelinePipeline) -> Any:
        """Whether this pipeline is at one of these places of a chain: a bool, or a traced bool."""
        if isinstance(self.state, int):
            return self.state in states
        found: Any = equal(self.state, int(states[0]))
        for state in states[1:]:
            found = logical_or(found, equal(self.state, int(state)))
        return found


def run_sides(s: PipelineSetup, refs: Sequence[Any], allocations: Any) -> None:
    """Run both sides, each in its warpgroups."""
    given = given_refs(refs, len(s.ins) + len(s.outs), OP)
    rings: list[Any] = list(allocations["blocks"])
    single = single_buffers(s, given)
    wanted = buffers_of([*s.ins, *s.outs], given, s.depth, OP, single)
    if [_kind(r) for r in rings] != [_kind(w) for w in wanted]:
        hint = "chain pipelines with blocks of the same shapes and dtypes"
        raise BadArgument(op=OP, what="allocations of a pipeline with other blocks", hint=hint)
    streams = [Stream(*parts) for parts in zip([*s.ins, *s.outs], given, rings, single, strict=True)]
    me = axis_index(s.wg_axis)

    @when(me == s.memory)
    def _() -> None:
        set_max_registers(s.memory_registers, action="decrease")
        _produce(s, streams[: len(s.ins)], allocations["loaded"], allocations["consumed"])

    # if the memory warpgroup is among the first, the last compute warpgroup has a number one higher
    compute = logical_and(less(me, s.consumers + (1 if s.memory < s.consumers else 0)), not_equal(me, s.memory))

    @when(compute)
    def _() -> None:
        left = shared_registers(s.consumers + 1, current().max_registers) - s.memory_registers
        set_max_registers(min(256, left // s.consumers) // 8 * 8, action="increase")
        Consumers(s, me, streams, allocations).run()


def _kind(buffer: Any) -> Any:
    return None if buffer is None else (buffer.shape, buffer.dtype)


def single_buffers(s: PipelineSetup, refs: Sequence[Any]) -> list[bool]:
    """The operands with one buffer: outputs whose block is the same at every step, for sums."""
    outputs = zip(s.outs, refs[len(s.ins) :], strict=True)
    return [False for _ in s.ins] + [invariant(spec, as_ref(ref, OP, copied=True), s.grid) for spec, ref in outputs]


def _produce(s: PipelineSetup, sources: list[Stream], loaded: list[Any], consumed: list[Any]) -> None:
    steps, depth = s.steps, s.depth

    def one(step: Any) -> None:
        slot = slot_of(step, depth)
        used: Any = less(depth - 1, step)  # used by a step of this pipeline, or of the one before it in a chain
        if s.state is not None:
            used = logical_or(used, s.is_state(PipelinePipeline.STEADY, PipelinePipeline.STOP))
        for stream, full, empty in zip(sources, loaded, consumed, strict=True):
            if stream.ring is None:
                continue

            @when(used)
            def _(empty: Any = empty) -> None:
                barrier_wait(empty.at[slot])

            block = stream.spec.block(stream.gmem, unravel(step, s.grid), OP)
            copy_gmem_to_smem(
                block,
                stream.slot(slot),
                full.at[slot],
                collective_axes=stream.spec.collective_axes or None,
                oob_mode=stream.spec.oob_fill_mode,
            )

    loop(0, steps)(one)
    if s.state is None:
        _drain(s, consumed)
    else:
        when(s.is_state(PipelinePipeline.STOP))(lambda: _drain(s, consumed))


def _drain(s: PipelineSetup, consumed: list[Any]) -> None:
    """Wait until every barrier is between phases, so that the pipeline can run again."""
    for empty in [barrier for barrier in consumed if barrier is not None]:
        for back in range(s.depth):
            step = subtract(s.steps, s.depth - back)

            @when(less(-1, step) if not isinstance(step, int) else step >= 0)
            def _(empty: Any = empty, step: Any = step) -> None:
                barrier_wait(empty.at[slot_of(step, s.depth)])


class Consumers:
    """The compute warpgroups' side."""

    def __init__(self, s: PipelineSetup, me: Any, streams: list[Stream], allocations: Any) -> None:
        self.s = s
        self.me = me
        self.streams = streams
        self.sources, outputs = streams[: len(s.ins)], streams[len(s.ins) :]
        self.sinks = [stream for stream in outputs if stream.ring is not None]
        self.loaded: list[Any] = allocations["loaded"]
        self.consumed: list[Any] = allocations["consumed"]
        self.written: Any = allocations["written"]
        self.calls = 0

    def run(self) -> None:
        s = self.s
        if s.context is None:
            self.loop(None)
        else:
            s.context(self.loop)
        if self.calls != 1:
            what = f"compute_context called the pipeline {self.calls} times"
            why = "the memory warpgroup loads every block once"
            raise PipelineLimit(op=OP, what=what, why=why, hint="call it exactly once")
        goes_on = isinstance(s.state, int) and s.state != PipelinePipeline.STOP
        if self.sinks and not goes_on:
            wait_smem_to_gmem(0)

    def loop(self, init: Any) -> Any:
        """The loop over the steps, with a carry unless `init` is None; returns the last carry."""
        self.calls += 1
        result = loop_over(self.s.steps, lambda step, carry: self.step(step, carry, init), init)
        self.release_rest()
        return result

    def step(self, step: Any, carry: Any, init: Any) -> Any:
        s = self.s
        slot = slot_of(step, s.depth)
        if not s.manual_produced:
            for barrier in self.loaded:
                if barrier is not None:
                    barrier_wait(barrier.at[slot])
        if self.sinks:
            self.free_sinks()
        blocks = [stream.slot(slot) for stream in self.streams]
        manual: list[Any] = []
        if s.manual_produced:
            manual += as_args(unflatten(s.in_tree, [None if b is None else b.at[slot] for b in self.loaded]))
        if s.manual_consumed:
            pairs = zip(self.sources, self.consumed, strict=True)
            manual += as_args(unflatten(s.in_tree, [None if b is None else self.freed(x, b, step) for x, b in pairs]))
        indices = unravel(step, s.grid)
        halves, trees = (blocks[: len(s.ins)], blocks[len(s.ins) :]), (s.in_tree, s.out_tree)
        first = len(current().region.ops)
        result = call_body(OP, s.body, indices, halves, trees, carry, init, tuple(manual))
        if writes_in_place(self.sources, first):
            self.fence(first)
        if self.sinks:
            self.store_sinks(slot, step)
        if not s.manual_consumed:
            for stream, barrier in self.releases():
                barrier_arrive(self.freed(stream, barrier, step))
        return result

    def freed(self, stream: Stream, barrier: Any, step: Any) -> Any:
        """The barrier that frees the block of `delay_release` steps ago.

        In the first steps an arrival on it has no effect.
        """
        late = stream.spec.delay_release
        guard = less(late - 1, step) if late else None
        free = where(less(step, late), 0, subtract(step, late)) if late else step
        one = barrier.at[slot_of(free, self.s.depth)]
        one.guard = guard
        return one

    def fence(self, first: int) -> None:
        """Fence the body's stores to its inputs before their release: TMA writes there next."""
        if not self.s.manual_consumed:
            if not self.sinks:  # stores of outputs have a fence already
                commit_smem()
            return
        ops = current().region.ops
        body = ops[first:]
        rings = [bytes_or_own(stream.ring).root for stream in self.sources if stream.ring is not None]
        fence_before_arrivals(body, rings, [barrier.root for barrier in self.consumed if barrier is not None])
        ops[first:] = body

    def releases(self) -> list[tuple[Stream, Any]]:
        """The inputs that are copied, with the barriers that free their buffers."""
        return [(s, b) for s, b in zip(self.sources, self.consumed, strict=True) if b is not None]

    def release_rest(self) -> None:
        """Release the blocks that `delay_release` holds at the end, which products of the last steps may still read."""
        if any(stream.spec.delay_release for stream in self.sources) and leaves_in_flight(current().region):
            wgmma_wait(0)
        for stream, barrier in self.releases():
            for back in range(stream.spec.delay_release, 0, -1):
                step = subtract(self.s.steps, back)
                good = cast("Any", step >= 0 if isinstance(step, int) else less(-1, step))
                safe = max(step, 0) if isinstance(step, int) else where(good, step, 0)

                @when(good)
                def _(barrier: Any = barrier, safe: Any = safe) -> None:
                    barrier_arrive(barrier.at[slot_of(safe, self.s.depth)])

    def free_sinks(self) -> None:
        """Wait until the copy of the next output buffer has read it."""

        # in a chain, the pipeline before stored the single buffer of an output
        chained = self.s.state is not None and any(stream.single for stream in self.sinks)

        def wait() -> None:
            wait_smem_to_gmem(0 if chained else self.s.depth - 1, wait_read_only=True)

        if self.written is None:
            wait()
            return
        when(self.me == self.s.leader)(wait)
        barrier_arrive_and_wait(self.written)

    def store_sinks(self, slot: Any, step: Any) -> None:
        """Copy the step's output blocks to GMEM: the first compute warpgroup does it, after all have written."""
        s = self.s
        commit_smem()

        def store() -> None:
            for stream in self.sinks:
                to = stream.spec.block(stream.gmem, unravel(step, s.grid), OP)
                changed = changes(stream, step, s.steps, s.grid)
                copy_smem_to_gmem(stream.slot(slot), to, predicate=changed, commit_group=False)
            commit_smem_to_gmem_group()

        if self.written is None:
            store()
            return
        barrier_arrive_and_wait(self.written)
        when(self.me == s.leader)(store)
