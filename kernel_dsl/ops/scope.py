"""Scratch: what allocates it, and scopes that end it, so that SMEM of scopes that are never open together is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import dtypes as dt
from ..accumulator import AccRef, AccSpec
from ..boundary import called
from ..compiled import Swizzle
from ..diagnostics import shown
from ..dtypes import DType
from ..errors import BadArgumentType, BodyReturned
from ..errors_dims import DimRead, of_scratch
from ..errors_hopper import ClusterUse
from ..ir import BarrierType, Effect, MemorySpace, Op, RefType, attr
from ..memory import Barrier, ClusterBarrier, MemorySpec, RefUnion, settled
from ..packed import bytes_or_own, seen_as, stored_spec
from ..refs import Ref
from ..storage import SWIZZLED_ALIGNMENT, transformed
from ..trace import Scratch, current, emit, traced
from ..tree import flatten, unflatten
from ..variables import variables
from .barrier import BarrierRef
from .cast import as_value
from .index import AxisIndex
from .ref import AllocBarrier, AllocSmem
from .semaphore import SemaphoreSpec, SemaphoreType, allocate_gmem, allocate_semaphore
from .threads import alias

__all__ = ["run_scoped", "run_state"]


class EnterScope(Op, name="enter_scope", effect=Effect.SYNC):
    """Separates two uses of the same SMEM: all accesses of the earlier scope are done.

    PTX `barrier.cta.sync`, `fence.proxy.async`.

    `scope`: the scope, as its number in each scope around it. `block`: all warpgroups execute this op. `in_flight`: a
    wgmma may still read the earlier data, as `check_accumulators` finds. No instruction if no other scope shares the memory.
    """

    scope: tuple[int, ...] = attr()
    block: bool = attr(False)
    in_flight: bool = attr(False)


class scope:  # noqa: N801 - used as a statement: `with scope():`
    """Scratch allocated inside ends with it; `smem`: some of it may be in SMEM.

    Scopes share SMEM if warpgroups can't be in two of them at the same time: the block has a single warpgroup, or all
    warpgroups enter the scope (`collective`, or outside of all branches and loops).
    """

    def __init__(self, collective: bool = False, smem: bool = True) -> None:
        self._collective = collective
        self._smem = smem
        self._outer: tuple[tuple[int, ...], Scratch | None] = ((), None)
        self._scratch = Scratch()

    def __enter__(self) -> None:
        trace = current()
        self._outer = trace.scope, trace.scratch
        together = trace.threads > 1 and (self._collective or not trace.depth)
        if self._smem and ((trace.threads == 1 and not trace.in_warps) or together):
            trace.scopes += 1
            trace.scope = (*trace.scope, trace.scopes)
            emit(EnterScope(trace.scope, together, False))
        trace.scratch = self._scratch
        self._scratch.open = trace

    def __exit__(self, *error: object) -> None:
        self._scratch.open = None
        trace = current()
        trace.scope, trace.scratch = self._outer


def allocate(spec: Any, name: str = "") -> Any:
    """The Ref or barrier for one scratch specification.

    Raises `DimRead` for a shape with Dims.
    """
    spec = _settled(spec)
    if isinstance(spec, MemorySpec):
        if spec.space is MemorySpace.GMEM:
            return allocate_gmem(spec, name)
        if spec.space is MemorySpace.REGS:
            hint = "carry values through loops, or use SMEM"
            raise BadArgumentType(op="scratch", what="registers have no Ref", hint=hint)
        return _own(seen_as(Ref(_buffer(smem_type(spec, name))), spec.dtype))
    if isinstance(spec, Barrier):
        return BarrierRef(emit(AllocBarrier(BarrierType(spec.num_arrivals, spec.shape, name))).result)
    if isinstance(spec, SemaphoreType):
        spec = spec()
    if isinstance(spec, SemaphoreSpec):
        return allocate_semaphore(spec, name)
    if isinstance(spec, RefUnion):
        return _allocate_union(spec, name)
    if isinstance(spec, ClusterBarrier):
        from .cluster import cluster_barrier

        return cluster_barrier(spec, name)
    if isinstance(spec, AccSpec):
        from .matrix import allocate_acc

        return allocate_acc(spec, name)
    what = f"{shown(spec)} is not a scratch specification"
    raise BadArgumentType(op="scratch", what=what, hint="use `kd.SMEM(shape, dtype)` or `kd.Barrier(...)`")


def _settled(spec: Any) -> Any:
    """The specification with a shape of ints (see `memory.settled`)."""
    if not isinstance(spec, (MemorySpec, SemaphoreSpec, Barrier, ClusterBarrier)):
        return spec
    try:
        shape = settled(spec.shape, "scratch")
    except DimRead:
        names = " and ".join(f"the Dim {name!r}" for name in sorted(variables(spec.shape)))
        if isinstance(spec, SemaphoreSpec):
            raise of_scratch(names, "GMEM", "kd.ShapeDtypeStruct(shape, kd.int32, init=0)") from None
        if isinstance(spec, MemorySpec) and spec.space is MemorySpace.GMEM:
            raise of_scratch(names, "GMEM", f"kd.ShapeDtypeStruct(shape, kd.{spec.dtype})") from None
        raise of_scratch(names, "SMEM", None) from None
    if shape is spec.shape or isinstance(spec, (Barrier, ClusterBarrier)):
        return spec
    return replace(spec, shape=shape)


def _buffer(type: RefType) -> Any:
    return emit(AllocSmem(type, current().scope)).result


def _own(ref: Ref) -> Ref:
    """The Ref, which ends with the scope that made it."""
    scratch = current().scratch
    if scratch is not None:
        bytes_or_own(ref).root.home = scratch
    return ref


def _allocate_union(union: RefUnion, name: str) -> tuple[Any, ...]:
    """The trees of a union. Each has its Refs one after another, from the same start."""
    plans: list[tuple[Any, list[tuple[int, RefType, DType]]]] = []
    total = 0
    for tree in union.trees:
        leaves, structure = flatten(tree, is_spec)
        end = 0
        placed: list[tuple[int, RefType, DType]] = []
        for leaf in leaves:
            leaf = _settled(leaf)
            type = smem_type(leaf, name)
            start = -(-end // type.alignment) * type.alignment
            placed.append((start, type, leaf.dtype))
            end = start + leaf.bytes
        total = max(total, end)
        plans.append((structure, placed))
    whole = RefType(MemorySpace.SMEM, (total,), dt.uint8, alignment=SWIZZLED_ALIGNMENT, name=name)
    root = Ref(_buffer(whole))
    return tuple(
        unflatten(structure, [_own(seen_as(alias(root, at, t), d)) for at, t, d in placed])
        for structure, placed in plans
    )


def smem_type(spec: MemorySpec, name: str) -> RefType:
    """The type of a buffer for a specification."""
    spec = stored_spec(spec)
    # 128 bytes: the alignment that TMA needs of SMEM (PTX ISA, cp.async.bulk.tensor)
    type = RefType(MemorySpace.SMEM, spec.shape, spec.dtype, alignment=128, name=name)
    if spec.tiling or spec.swizzle is not Swizzle.NONE:
        type = transformed(type, spec.tiling, spec.swizzle)
    return type


def allocate_own(shape: tuple[int, ...], dtype: DType, name: str) -> Ref:
    """A buffer in SMEM for this warpgroup alone: the allocation has one for each warpgroup."""
    threads = current().threads
    if threads == 1:
        return allocate(MemorySpec(MemorySpace.SMEM, shape, dtype), name)
    every = allocate(MemorySpec(MemorySpace.SMEM, (threads, *shape), dtype), name)
    return every.at[traced(AxisIndex("thread", 0, threads))]


def is_spec(x: Any) -> bool:
    """Whether `x` is one scratch specification rather than a nest of them."""
    return isinstance(x, (MemorySpec, Barrier, ClusterBarrier, AccSpec, RefUnion, SemaphoreSpec, SemaphoreType))


def allocate_tree(tree: Any, name: str = "") -> Any:
    """The scratch of a nest of specifications, in its structure."""
    leaves, structure = flatten(tree, is_spec)
    return unflatten(structure, [allocate(leaf, name) for leaf in leaves])


def run_scoped(f: Callable[..., Any], *types: Any, collective_axes: str | Sequence[str] = (), **kw_types: Any) -> Any:
    """Call `f` with scratch made from the specifications, and return its result. The scratch ends with the call.

    Scopes that are never open together share their SMEM. In a kernel of several warpgroups, sharing requires that all
    of them make this call: say so by the name of the thread axis in `collective_axes`. Copies and products that use the
    scratch must be complete when `f` returns.
    """
    trace = current()
    names = (collective_axes,) if isinstance(collective_axes, str) else tuple(collective_axes)
    for name in names:
        if name != trace.thread_name:
            hint = f"the thread axis is {trace.thread_name!r}" if trace.thread_name else "leave it out: there is none"
            what = f"collective_axes={shown(collective_axes)}: {name!r} is not the axis of the block's warpgroups"
            raise ClusterUse(op="run_scoped", what=what, hint=hint)
    leaves, _ = flatten((types, kw_types), is_spec)
    with scope(bool(names), smem=any(isinstance(leaf, (MemorySpec, RefUnion)) for leaf in leaves)):
        args = tuple(allocate_tree(t) for t in types)
        keywords = {k: allocate_tree(t) for k, t in kw_types.items()}
        return called(f, args, "run_scoped", "f", f"f({', '.join(['*refs', *keywords])})", keywords)


def run_state(f: Callable[..., None]) -> Callable[[Any], Any]:
    """`run_state(f)(init)`: `f` gets Refs with the leaves of the pytree `init`; returns their final contents.

    A leaf is a value, which gets a buffer in SMEM, or `kd.ACC.init(value)` for an accumulator. `f` takes one argument,
    the nest of Refs, and returns None. Raises `BodyReturned` if it returns anything else.
    """

    def run(init: Any) -> Any:
        leaves, structure = flatten(init, is_spec)
        with scope():
            refs = [_state(leaf) for leaf in leaves]
            returned = called(f, (unflatten(structure, list(refs)),), "run_state", "f", "f(refs)")
            if returned is not None:
                hint = "write results to the Refs: `ref[...] = value`"
                raise BodyReturned(
                    what="the body of `kd.run_state`", got=f"a value ({type(returned).__name__})", hint=hint
                )
            return unflatten(structure, [ref[...] for ref in refs])

    return run


def _state(leaf: Any) -> Ref | AccRef:
    """The Ref of one leaf of a state."""
    if isinstance(leaf, AccSpec):
        return allocate(leaf, "run_state")
    value = as_value(leaf, "run_state")
    ref = allocate_own(value.shape, value.dtype, "run_state")
    ref[...] = value
    return ref
