"""Clusters: barriers shared by blocks, other blocks' SMEM, and asynchronous stores to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ..diagnostics import shown
from ..errors import BadArgument, BadArgumentType, StoreDType, StoreShape, UnsupportedDType
from ..errors_hopper import ClusterUse, CopySpaces, WgmmaShape
from ..indices import is_index
from ..ir import BarrierType, Effect, MemorySpace, Op, RefType, Value, attr, layout_of, operand, operands, option
from ..memory import ClusterBarrier
from ..refs import Access, Ref, View
from ..target import Feature
from ..trace import LayoutVar, current, emit
from ..values import Array
from .access import stored_value, view_of
from .barrier import BarrierRef, as_barrier
from .broadcast import broadcast_shapes, broadcast_value
from .cast import as_value
from .copy import cluster_positions
from .ref import AllocBarrier, as_ref, check_own_block

__all__ = ["async_store_smem", "cluster_ref"]


class PeerRef(Op, name="peer_ref", requires=Feature.DSMEM):
    """The same SMEM buffer of another block of the cluster. PTX `mapa`.

    `indices`: the block's index along the axes `axes`; along others it is this block's own.
    """

    remote = True

    ref: Value = operand()
    indices: tuple[Value, ...] = operands()
    axes: tuple[int, ...] = attr()
    type: RefType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)

    def spoken(self) -> str:
        return "cluster_ref"


class AsyncStoreSmem(Op, name="async_store_smem", effect=Effect.SYNC, requires=Feature.DSMEM):
    """Store a value to another block's SMEM, completing on that block's barrier.

    PTX `st.async`. `atomic`: "add" adds it, element by element. PTX `red.async`.
    """

    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    barrier: Value = operand()
    index: Value = operand()
    block: Value = operand()
    view: View = attr()
    access: Access = attr()
    axis: int = attr()
    atomic: str = option("")

    @property
    def layout(self) -> Any:
        return layout_of(self.x)


def cluster_barrier(spec: ClusterBarrier, name: str) -> BarrierRef:
    """Allocate one. Raises `ClusterUse`."""
    groups = tuple(cluster_positions(g, "ClusterBarrier") for g in spec.groups)
    if not groups or any(not g for g in groups):
        hint = "name the cluster axes of the blocks that arrive on it"
        raise ClusterUse(op="ClusterBarrier", what="no collective axes", hint=hint)
    used = [p for g in groups for p in g]
    if len(set(used)) != len(used):
        raise ClusterUse(op="ClusterBarrier", what="an axis in two groups", hint="name each axis once")
    sizes = {p: size for kind, p, size in current().axes.values() if kind == "cluster"}
    blocks = 1 + sum(prod(sizes[p] for p in g) - 1 for g in groups)
    if spec.leader_tracked and len(groups) > 1:
        hint = "name the axes of one group, as a tuple"
        raise ClusterUse(op="ClusterBarrier", what="leader_tracked with several groups of axes", hint=hint)
    type = BarrierType(spec.num_arrivals * blocks, spec.shape, name, groups, bool(spec.leader_tracked))
    return BarrierRef(emit(AllocBarrier(type)).result)


def cluster_ref(ref: Any, index: Mapping[str, Any]) -> Ref:
    """`ref` in the SMEM of another block: {axis: index} along cluster axes, this block's own along the others.

    Loads and stores access that SMEM directly; a `ClusterBarrier` orders them. Indices are ints or rank-0 integers.
    Raises `CopySpaces` for a Ref in GMEM, `ClusterUse` for an axis or a block that the cluster does not have,
    `BadArgumentType`.
    """
    op = "cluster_ref"
    own = as_ref(ref, op)
    if own.memory_space is not MemorySpace.SMEM:
        hint = "GMEM is the same for all blocks"
        raise CopySpaces(op=op, src="SMEM", dst="registers", got=own.memory_space.name, hint=hint)
    if not isinstance(index, Mapping) or not index:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"index={shown(index)}", hint="a dict of cluster axis names and indices")
    names = sorted(index, key=lambda n: cluster_positions(n, op)[0])
    axes = cluster_positions(tuple(names), op)
    values: list[Value] = []
    for name in names:
        _check_block(name, index[name], op)
        values.append(as_value(index[name], op))
    current().aliased.add(own.root)
    made = emit(PeerRef(own.root, tuple(values), axes, own.type)).result
    return own.moved_to(made)


def _check_block(name: str, index: Any, op: str) -> None:
    """Raise `BadArgumentType` for an object that is no index, `ClusterUse` for a static index beyond the cluster."""
    if not is_index(index):
        raise BadArgumentType(op=op, what=f"{name}={shown(index)}", hint="an int or a rank-0 integer value")
    size = current().axes[name][2]
    if not isinstance(index, Array) and not 0 <= index < size:
        hint = f"blocks along {name!r} are numbered from 0 to {size - 1}"
        raise ClusterUse(op=op, what=f"block {index} of {size} along {name!r}", hint=hint)


def async_store_smem(
    x: Any, ref: Any, barrier: Any, *, cluster_dim: str, cluster_idx: Any, atomic: str | None = None
) -> None:
    """Store `x` to `ref` in the block `cluster_idx` along `cluster_dim`; the store arrives once, with its bytes, on
    that block's `barrier`. Values are stored in units of 4, 8 or 16 bytes.

    `atomic="add"` adds `x` to the buffer, each element atomically, so that several blocks may add to one buffer. Its
    dtype is a 32- or 64-bit int. All of them must see the initial data: wait at a `ClusterBarrier` first.

    `x` is broadcast to the SMEM Ref, and has its dtype. Raises `CopySpaces`, `StoreDType`, `BadArgument`,
    `BadArgumentType`, `UnsupportedDType`, `WgmmaShape` for smaller units, `ClusterUse` (also for a `cluster_ref`: `ref`
    is this block's, and `cluster_idx` picks the other block).
    """
    op = "async_store_smem"
    target = as_ref(ref, op)
    if target.memory_space is not MemorySpace.SMEM:
        raise CopySpaces(op=op, src="registers", dst="SMEM", got=target.memory_space.name, hint="pass a Ref in SMEM")
    value = stored_value(target.dtype, x)
    if value.dtype != target.dtype:
        raise StoreDType(value=value.dtype, ref=target.dtype)
    if atomic not in (None, "add"):
        raise BadArgument(op=op, what=f"atomic={shown(atomic)}", hint='None or "add"')
    if atomic and not (target.dtype.is_integer and target.dtype.bits >= 32):
        hint = "the hardware adds 32- and 64-bit ints there; add floats by `kd.atomic_add` to a `kd.cluster_ref`"
        raise UnsupportedDType(op=op, dtype=target.dtype, hint=hint)
    if not target.shape:
        target = target.slice((None,))
    check_own_block(target, op)
    one = as_barrier(barrier, op)
    if not isinstance(cluster_dim, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"cluster_dim={shown(cluster_dim)}", hint="the name of one cluster axis")
    (axis,) = cluster_positions(cluster_dim, op)
    _check_block(cluster_dim, cluster_idx, op)
    view, offsets = view_of(target)
    vector, minor = target.vector()
    if vector * target.dtype.itemsize < 4:
        why = "st.async stores 4, 8 or 16 aligned bytes"
        raise WgmmaShape(
            op=op,
            what=f"{target!r} is stored 1 or 2 bytes at a time",
            why=why,
            hint="align the slice to 4 bytes",
        )
    if value.ndim > target.ndim or broadcast_shapes([value.shape, target.shape], op) != target.shape:
        raise StoreShape(value=value.shape, ref=target.shape)
    value = broadcast_value(value, target.shape, LayoutVar(target.shape, vector, minor))
    emit(
        AsyncStoreSmem(
            target.root,
            value,
            offsets,
            one.root,
            one.linear(op),
            as_value(cluster_idx, op),
            view,
            target.access(view, offsets),
            axis,
            atomic or "",
        )
    )
