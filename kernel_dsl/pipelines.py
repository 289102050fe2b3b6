"""Software pipelines over blocks of GMEM: loads of later steps and stores of earlier ones run beside the body.

`emit_pipeline` does it within one warpgroup; warp_specialized.py gives the loads a warpgroup of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NamedTuple

from . import dtypes as dt
from .block_specs import BlockSpec, grid_of
from .compiled import Swizzle
from .diagnostics import shown
from .errors import BadArgumentType
from .errors_hopper import PipelineLimit
from .facts import any_of
from .in_place import stores_to
from .ir import ArrayType, MemorySpace, Region
from .layout import SCALAR
from .memory import Barrier, MemorySpec
from .ops.arith import add, subtract
from .ops.barrier import barrier_wait
from .ops.branches import when
from .ops.cast import constant
from .ops.compare import equal, less, not_equal
from .ops.copy import copy_gmem_to_smem, copy_smem_to_gmem
from .ops.copy_waits import commit_smem, commit_smem_to_gmem_group, wait_smem_to_gmem
from .ops.logic import logical_and, logical_or
from .ops.ref import as_ref
from .ops.scope import allocate, scope
from .packed import bytes_or_own
from .pipeline_steps import call_body, depth_of, given_refs, loop_over, slot_of, total_of, unravel
from .refs import Ref
from .storage import TMA_ALIGNMENT
from .target import DEFAULT, Feature
from .trace import current, into, new_value
from .transforms import fields_of
from .tree import flatten
from .values import Array

__all__ = ["emit_pipeline"]

_OP = "emit_pipeline"


@dataclass(eq=False, repr=False)
class Stream:
    """One operand: its spec, its GMEM Ref and its ring of buffers (None if nothing is copied).

    `single`: it has one buffer, because the block is the same at every step.
    """

    spec: BlockSpec
    gmem: Ref
    ring: Ref | None
    single: bool = False

    def slot(self, number: Any) -> Ref:
        """The Ref that the body gets at a step."""
        if self.ring is None:
            return self.gmem
        extents = [n for n in self.spec.shape_for(self.gmem) if n is not None]
        block = (slice(extents[0]),) if extents else ()
        return self.ring.slice((0 if self.single else number, *block, ...))


def invariant(spec: BlockSpec, ref: Ref, grid: Sequence[Any]) -> bool:
    """Whether a block is the same at every step: its index does not depend on the step."""
    steps = [new_value(ArrayType((), dt.int32, SCALAR)) for _ in grid]
    for step in steps:
        step.facts = any_of(dt.int32)
    with into(Region()):
        found = spec.indices(steps, ref.ndim)
    pending: list[Any] = [x for x in found if isinstance(x, Array)]
    while pending:
        value = pending.pop()
        if any(value is step for step in steps):
            return False
        if value.op is not None:
            if value.op.effect or value.op.region_list():
                return False
            pending += value.op.values()
    return True


def buffers_of(
    specs: list[BlockSpec], refs: Sequence[Any], depth: int, op: str, single: Sequence[bool] = ()
) -> list[MemorySpec | None]:
    """The specification of each operand's ring of `depth` buffers: one buffer if it is `single`, None without a copy."""
    out: list[MemorySpec | None] = []
    for number, (spec, ref) in enumerate(zip(specs, refs, strict=True)):
        gmem = as_ref(ref, op, copied=True)
        if gmem.memory_space is not MemorySpace.GMEM:
            raise BadArgumentType(op=op, what=f"operand {number} is {gmem!r}", hint="pipelines walk Refs in GMEM")
        if spec.memory_space is MemorySpace.GMEM:
            out.append(None)
            continue
        shape = tuple(n for n in spec.shape_for(gmem) if n is not None)
        tiling, swizzle = fields_of(shape, gmem.dtype, spec.transforms) if spec.transforms else ((), Swizzle.NONE)
        if shape and not tiling:
            # the first axis is padded, so that every buffer starts at an address that TMA may write
            row = prod(shape[1:]) * gmem.dtype.bits
            unit = 8 * TMA_ALIGNMENT // gcd(8 * TMA_ALIGNMENT, row) if row else 1
            shape = (-(-shape[0] // unit) * unit, *shape[1:])
        slots = 1 if number < len(single) and single[number] else depth
        out.append(MemorySpec(MemorySpace.SMEM, (slots, *shape), gmem.dtype, tiling, swizzle))
    return out


def streams_of(
    specs: list[BlockSpec], refs: Sequence[Any], depth: int, grid: Sequence[Any], op: str, first: int = 0
) -> list[Stream]:
    """The operands, with their rings allocated; `first` numbers them."""
    single = [invariant(spec, as_ref(ref, op, copied=True), grid) for spec, ref in zip(specs, refs, strict=True)]
    rings = buffers_of(specs, refs, depth, op, single)
    named = [None if r is None else allocate(r, f"{op} {first + number}") for number, r in enumerate(rings)]
    return [Stream(*parts) for parts in zip(specs, refs, named, single, strict=True)]


def specs_of(specs: Any, op: str) -> tuple[list[BlockSpec], Any]:
    leaves, structure = flatten(specs, lambda x: isinstance(x, BlockSpec))
    for leaf in leaves:
        if not isinstance(leaf, BlockSpec):
            raise BadArgumentType(
                op=op, what=f"{shown(leaf)} is no BlockSpec", hint="use `kd.BlockSpec(shape, index_map)`"
            )
    return leaves, structure


def check_outputs(specs: list[BlockSpec], op: str) -> None:
    """Raise `PipelineLimit` for options that only inputs may have."""
    if any(spec.collective_axes or spec.delay_release for spec in specs):
        why = "each block stores its own output, once the body is done with it"
        hint = "collective_axes and delay_release are for inputs"
        raise PipelineLimit(op=op, what="collective_axes or delay_release of an output", why=why, hint=hint)
    if any(spec.may_overlap for spec in specs):
        why = "blocks of two steps may overlap, and nothing orders their stores"
        hint = "count an output's blocks, by an int in its block_shape"
        raise PipelineLimit(op=op, what="kd.Element in an output's block_shape", why=why, hint=hint)


def changes(stream: Stream, step: Any, steps: Any, grid: Sequence[Any]) -> Any:
    """Whether the output's block must be stored: the next step has another block, or there is no next step."""
    now = stream.spec.indices(unravel(step, grid), stream.gmem.ndim)
    following = stream.spec.indices(unravel(add(step, 1), grid), stream.gmem.ndim)
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
    op = _OP
    ins, in_tree = specs_of(in_specs, op)
    outs, out_tree = specs_of(out_specs, op)
    grid = grid_of(grid, op)
    check_outputs(outs, op)
    if any(s.collective_axes for s in ins):
        why = "blocks of a cluster must agree on when a buffer is free"
        hint = "use emit_pipeline_warp_specialized"
        raise PipelineLimit(op=op, what="collective_axes", why=why, hint=hint)

    made = _PipelineArguments(body, grid, (ins, outs), (in_tree, out_tree), max_concurrent_steps, init_carry)

    def pipeline(*refs: Any) -> Any:
        trace = current()
        if trace.threads > 1 and not trace.depth:
            why = f"all {trace.threads} warpgroups would run it on the same buffers"
            hint = "use emit_pipeline_warp_specialized, or run it in one of them: `kd.when(wg == 0)`"
            raise PipelineLimit(op=op, what="a pipeline in every warpgroup", why=why, hint=hint)
        with scope():
            return _PipelineRun(made, refs).result()

    return pipeline


class _PipelineArguments(NamedTuple):
    """The arguments of `emit_pipeline`; pairs are of inputs and outputs."""

    body: Callable[..., Any]
    grid: Sequence[Any]
    specs: tuple[list[BlockSpec], list[BlockSpec]]
    trees: tuple[Any, Any]
    max_concurrent_steps: int
    init_carry: Any


class _PipelineRun:
    """One run of a pipeline on some Refs: buffers are loaded ahead, and stored behind the body."""

    def __init__(self, made: _PipelineArguments, refs: Sequence[Any]) -> None:
        ins, outs = made.specs
        self.made, self.grid = made, made.grid
        self.steps = total_of(made.grid)
        delay = max((s.delay_release for s in ins), default=0)
        self.depth = depth_of(self.steps, made.max_concurrent_steps, delay, _OP)
        given = given_refs(refs, len(ins) + len(outs), _OP)
        self.inputs = streams_of(ins, given[: len(ins)], self.depth, self.grid, _OP)
        self.outputs = streams_of(outs, given[len(ins) :], self.depth, self.grid, _OP, len(ins))
        self.sources = [s for s in self.inputs if s.ring is not None and not s.single]
        self.sinks = [s for s in self.outputs if s.ring is not None]
        self.loaded = allocate(Barrier(max(len(self.sources), 1), self.depth), _OP)
        load_once([s for s in self.inputs if s.ring is not None and s.single], self.steps, self.grid, _OP)

    def result(self) -> Any:
        """Run it. Returns the last carry."""
        known = isinstance(self.steps, int)
        for slot in range(min(self.depth, self.steps) if known else self.depth):
            # of a traced grid the step may not exist: then its index is outside, which is no error
            step = slot if known else constant(slot, self.steps.dtype)
            predicate = None if known else less(slot, self.steps)
            for stream in self.sources:
                self._fetch(step, slot, stream, predicate)
        result = loop_over(self.steps, self._step, self.made.init_carry)
        if self.sinks:
            wait_smem_to_gmem(0)
        return result

    def _fetch(self, step: Any, slot: Any, stream: Stream, predicate: Any) -> None:
        block = stream.spec.block(stream.gmem, unravel(step, self.grid), _OP)
        mode = stream.spec.oob_fill_mode
        copy_gmem_to_smem(block, stream.slot(slot), self.loaded.at[slot], predicate=predicate, oob_mode=mode)

    def _step(self, step: Any, carry: Any) -> Any:
        slot = slot_of(step, self.depth)
        if self.sources:
            barrier_wait(self.loaded.at[slot])
        if self.sinks:
            wait_smem_to_gmem(self.depth - 1, wait_read_only=True)
        blocks = [[s.slot(slot) for s in streams] for streams in (self.inputs, self.outputs)]
        first = len(current().region.ops)
        made, indices = self.made, unravel(step, self.grid)
        result = call_body(_OP, made.body, indices, blocks, made.trees, carry, made.init_carry)
        # a copy overwrites the body's stores: in the next steps, or when the pipeline runs again
        if self.sinks or writes_in_place(self.inputs, first):
            commit_smem()
        if self.sinks:
            self._store(step, slot)
        for stream in self.sources:
            self._refill(step, stream)
        return result

    def _store(self, step: Any, slot: Any) -> None:
        for stream in self.sinks:
            to = stream.spec.block(stream.gmem, unravel(step, self.grid), _OP)
            store = changes(stream, step, self.steps, self.grid)
            copy_smem_to_gmem(stream.slot(slot), to, predicate=store, commit_group=False)
        commit_smem_to_gmem_group()

    def _refill(self, step: Any, stream: Stream) -> None:
        """Load into the buffer of `delay_release` steps ago, which is free now."""
        delay = stream.spec.delay_release
        following = add(subtract(step, delay), self.depth)
        ready = less(following, self.steps)
        if delay:
            ready = logical_and(ready, less(delay - 1, step))
        self._fetch(following, slot_of(following, self.depth), stream, ready)


def writes_in_place(inputs: Sequence[Stream], first: int) -> bool:
    """Whether ops of the region, from number `first` on, store to blocks of inputs, which TMA fills."""
    trace = current()
    rings = [bytes_or_own(s.ring).root for s in inputs if s.ring is not None]
    return (trace.target or DEFAULT).supports(Feature.TMA) and stores_to(trace.region.ops[first:], rings)


def load_once(streams: list[Stream], steps: Any, grid: Sequence[Any], op: str) -> None:
    """Load the blocks that are the same at every step, if there is a step."""
    if not streams or (isinstance(steps, int) and not steps):
        return
    loaded = allocate(Barrier(len(streams)), op)
    some: Any = True if isinstance(steps, int) else less(0, steps)

    @when(some)
    def _() -> None:
        for stream in streams:
            first = 0 if isinstance(steps, int) else constant(0, steps.dtype)
            block = stream.spec.block(stream.gmem, unravel(first, grid), op)
            copy_gmem_to_smem(block, stream.slot(0), loaded, oob_mode=stream.spec.oob_fill_mode)
        barrier_wait(loaded)
