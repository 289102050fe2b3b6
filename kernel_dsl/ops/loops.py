"""Iteration spaces shared between blocks, tile orders, and scoped scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .. import dtypes as dt
from ..accumulator import AccSpec
from ..compiled import Swizzle
from ..dtypes import DType
from ..errors import BadArgument, BadArgumentType
from ..ir import BarrierType, MemorySpace, RefType
from ..memory import Barrier, ClusterBarrier, MemorySpec, RefUnion
from ..refs import Ref
from ..trace import current, emit, traced
from ..transforms import SWIZZLED_ALIGNMENT, transformed
from ..tree import flatten, unflatten
from .arith import add, div, equal, less, multiply, rem, subtract, where
from .barrier import BarrierRef
from .control import loop
from .elementwise import as_value
from .index import AxisIndex, axis_index, axis_size
from .ref import AllocBarrier, AllocSmem
from .semaphore import SemaphoreSpec, SemaphoreType, allocate_semaphore
from .threads import alias

__all__ = ["NDLoopInfo", "nd_loop", "planar_snake", "run_scoped", "run_state"]


@dataclass(frozen=True)
class NDLoopInfo:
    """Where an `nd_loop` stands: the index in the grid, and its number among `num_local_steps` of this instance."""

    index: tuple[Any, ...]
    local_index: Any
    num_local_steps: Any


def _linear(axes: Sequence[str]) -> tuple[Any, int]:
    index: Any = 0
    size = 1
    for name in axes:
        index = add(multiply(index, axis_size(name)), axis_index(name)) if size > 1 else axis_index(name)
        size *= axis_size(name)
    return index, size


def nd_loop(
    grid: Sequence[Any],
    *,
    collective_axes: str | Sequence[str],
    tiling: Sequence[int] | None = None,
    init_carry: Any = None,
) -> Callable[[Callable[..., Any]], Any]:
    """`@kd.nd_loop(grid, collective_axes="sm")`: the grid's points, dealt in turn to the instances along the axes.

    The body takes an `NDLoopInfo` (and the carry, with `init_carry`). `tiling`: go through tiles of this shape one
    after another, row-major inside a tile; the tile must divide the grid.
    """
    extents = tuple(grid)
    axes = (collective_axes,) if isinstance(collective_axes, str) else tuple(collective_axes)
    if tiling is not None and (
        len(tiling) != len(extents) or any(isinstance(g, int) and g % t for g, t in zip(extents, tiling, strict=False))
    ):
        what = f"tiling {tuple(tiling)} does not divide the grid {extents}"
        raise BadArgument(op="nd_loop", what=what, hint="give one tile extent a grid axis, each dividing it")

    def decorate(body: Callable[..., Any]) -> Any:
        me, count = _linear(axes)
        total: Any = 1
        for extent in extents:
            total = total * extent
        steps = div(add(subtract(total, me), count - 1), count)

        def run(step: Any, carry: Any = None) -> Any:
            index = _unravel(add(multiply(step, count), me), extents, tiling)
            info = NDLoopInfo(index, step, steps)
            return body(info, carry) if init_carry is not None else body(info)

        return loop(0, steps, init_carry=init_carry)(run)

    return decorate


def _unravel(linear: Any, extents: Sequence[Any], tiling: Sequence[int] | None) -> tuple[Any, ...]:
    if tiling is None:
        return _split(linear, extents)
    outer = tuple(div(g, t) if not isinstance(g, int) else g // t for g, t in zip(extents, tiling, strict=True))
    tile, inside = div(linear, prod(tiling)), rem(linear, prod(tiling))
    pairs = zip(_split(tile, outer), tiling, _split(inside, tiling), strict=True)
    return tuple(add(multiply(o, t), i) for o, t, i in pairs)


def _split(linear: Any, extents: Sequence[Any]) -> tuple[Any, ...]:
    out: list[Any] = []
    for extent in reversed(extents[1:]):
        out.append(rem(linear, extent))
        linear = div(linear, extent)
    return (linear, *reversed(out))


def planar_snake(lin_idx: Any, shape: tuple[Any, Any], minor_dim: int, tile_width: int) -> tuple[Any, Any]:
    """A 2-D index from a linear one, in an order that reuses L2.

    The minor dimension is cut into strips of `tile_width`; within a strip the minor index runs fastest, and every other
    strip walks the major dimension backwards. The last strip may be narrower.
    """
    if minor_dim not in (0, 1):
        raise BadArgument(op="planar_snake", what=f"minor_dim {minor_dim!r}", hint="0 or 1")
    major, minor = shape[1 - minor_dim], shape[minor_dim]
    strip = div(lin_idx, tile_width * major)

    def place(offset: Any, width: Any) -> tuple[Any, Any]:
        along = rem(div(offset, width), major)
        back = equal(rem(strip, 2), 1)
        along = where(back, subtract(subtract(major, 1), along), along)
        return add(multiply(strip, tile_width), rem(offset, width)), along

    full = div(minor, tile_width) if not isinstance(minor, int) else minor // tile_width
    elements = multiply(full, tile_width * major) if not isinstance(full, int) else full * tile_width * major
    rest = subtract(minor, multiply(full, tile_width)) if not isinstance(full, int) else minor - full * tile_width
    inside = place(lin_idx, tile_width)
    if isinstance(rest, int) and rest == 0:
        chosen = inside
    else:
        edge = place(subtract(lin_idx, elements), rest)
        whole = less(lin_idx, elements)
        chosen = tuple(where(whole, a, b) for a, b in zip(inside, edge, strict=True))
    return (chosen[0], chosen[1]) if minor_dim == 0 else (chosen[1], chosen[0])


# --- scoped scratch ------------------------------------------------------------------------------


def allocate(spec: Any, name: str = "") -> Any:
    """The Ref or barrier for one scratch specification."""
    if isinstance(spec, MemorySpec):
        if spec.space is MemorySpace.GMEM:
            hint = "scratch in GMEM is an output that you don't use"
            raise BadArgumentType(op="scratch", what="GMEM can't be scratch", hint=hint)
        if spec.space is MemorySpace.REGS:
            hint = "carry values through loops, or use SMEM"
            raise BadArgumentType(op="scratch", what="registers have no Ref", hint=hint)
        type = smem_type(spec, name)
        return Ref(emit(AllocSmem(type)).result)
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
    what = f"{spec!r} is no scratch specification"
    raise BadArgumentType(op="scratch", what=what, hint="use `kd.SMEM(shape, dtype)` or `kd.Barrier(...)`")


def _allocate_union(union: RefUnion, name: str) -> tuple[Any, ...]:
    """The trees of a union, each with its Refs one after another from the same start."""
    plans: list[tuple[Any, list[tuple[int, RefType]]]] = []
    total = 0
    for tree in union.trees:
        leaves, structure = flatten(tree, is_spec)
        end = 0
        placed: list[tuple[int, RefType]] = []
        for leaf in leaves:
            if not isinstance(leaf, MemorySpec) or leaf.space is not MemorySpace.SMEM:
                hint = "barriers and accumulators can't share memory"
                raise BadArgumentType(op="RefUnion", what=f"{leaf!r} is no SMEM specification", hint=hint)
            type = smem_type(leaf, name)
            start = -(-end // type.alignment) * type.alignment
            placed.append((start, type))
            end = start + leaf.bytes
        total = max(total, end)
        plans.append((structure, placed))
    whole = RefType(MemorySpace.SMEM, (total,), dt.uint8, alignment=SWIZZLED_ALIGNMENT, name=name)
    root = Ref(emit(AllocSmem(whole)).result)
    return tuple(unflatten(structure, [alias(root, at, t) for at, t in placed]) for structure, placed in plans)


def smem_type(spec: MemorySpec, name: str) -> RefType:
    """The type of a buffer for a specification."""
    # 128 bytes: the alignment that TMA needs of SMEM (PTX ISA, cp.async.bulk.tensor)
    type = RefType(MemorySpace.SMEM, spec.shape, spec.dtype, alignment=128, name=name)
    if spec.tiling or spec.swizzle is not Swizzle.NONE:
        type = transformed(type, spec.tiling, spec.swizzle)
    return type


def allocate_own(shape: tuple[int, ...], dtype: DType, name: str) -> Ref:
    """A buffer in SMEM that only this warpgroup uses: one of as many as there are warpgroups."""
    threads = current().threads
    if threads == 1:
        return allocate(MemorySpec(MemorySpace.SMEM, shape, dtype), name)
    every = allocate(MemorySpec(MemorySpace.SMEM, (threads, *shape), dtype), name)
    return every.at[traced(AxisIndex("thread", 0, threads))]


def is_spec(x: Any) -> bool:
    """Whether `x` is one scratch specification rather than a nest of them."""
    return isinstance(x, (MemorySpec, Barrier, ClusterBarrier, AccSpec, RefUnion, SemaphoreSpec, SemaphoreType))


def run_scoped(f: Callable[..., Any], *types: Any, **kw_types: Any) -> Any:
    """Call `f` with scratch made from the specifications; returns what it returns. The scratch ends with the call."""
    current()

    def make(tree: Any) -> Any:
        leaves, structure = flatten(tree, is_spec)
        return unflatten(structure, [allocate(leaf) for leaf in leaves])

    return f(*(make(t) for t in types), **{k: make(t) for k, t in kw_types.items()})


def run_state(f: Callable[..., None]) -> Callable[[Any], Any]:
    """`run_state(f)(init)`: `f` gets Refs that start as the values of the pytree `init`; returns what they end as."""

    def run(init: Any) -> Any:
        leaves, structure = flatten(init)
        values = [as_value(leaf, "run_state") for leaf in leaves]
        refs = [allocate_own(v.shape, v.dtype, "run_state") for v in values]
        for ref, value in zip(refs, values, strict=True):
            ref[...] = value
        f(unflatten(structure, list(refs)))
        return unflatten(structure, [ref[...] for ref in refs])

    return run
