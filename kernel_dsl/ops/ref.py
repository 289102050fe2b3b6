"""Loads and stores through Refs, scratch allocations, and views that change the element type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..diagnostics import of_kind, shown
from ..dtypes import DType, as_dtype, uint8
from ..errors import (
    BadArgument,
    BadArgumentType,
    BadReshape,
    StoreShape,
)
from ..errors_hopper import ClusterUse, DescriptorUse
from ..indices import has_arrays
from ..ir import ArrayType, BarrierType, Effect, Op, RefType, Value, attr, operand, operands
from ..layout import SCALAR, Layout
from ..layouts import resolve_rule
from ..packed import bytes_or_own, seen_as
from ..refs import Access, Elements, Ref, View
from ..trace import LayoutVar, current, emit, find, traced
from ..values import Array
from .access import check_writable, fill_value, mask_value, stored_value, view_of
from .broadcast import broadcast_shapes, broadcast_value
from .gather import gather, scatter
from .shape import reshape

__all__ = ["load", "store"]


class AllocSmem(Op, name="alloc_smem"):
    """A buffer in the block's dynamic SMEM, shared by its warpgroups. No instruction.

    `scope`: the scope that ends it (scope.py), as its number in each scope around it; () lasts as long as the kernel.
    """

    type: RefType = attr()
    scope: tuple[int, ...] = attr(())

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


class AllocBarrier(Op, name="alloc_barrier", effect=Effect.SYNC):
    """mbarriers in SMEM, initialised at the start of the kernel. PTX `mbarrier.init`."""

    type: BarrierType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


class BitcastRef(Op, name="bitcast_ref"):
    """The same memory as a buffer of another dtype or shape. No instruction."""

    any_dim = True
    ref: Value = operand()
    type: RefType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


class Load(Op, name="load", effect=Effect.READ):
    """The elements of a view; `fill` or zero for elements that are masked or out of range.

    PTX `ld.global`, `ld.shared`.
    """

    any_size = True
    ref: Value = operand()
    offsets: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    fill: Value | None = operand()
    view: View = attr()
    layout: Any = attr()
    access: Access = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.view.shape, self.ref.type.dtype, self.layout),)


class Store(Op, name="store", effect=Effect.WRITE):
    """Store a value to a view; elements that are masked or out of range are dropped. PTX `st.global`, `st.shared`."""

    any_size = True
    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    access: Access = attr()


def as_ref(ref: Any, op: str, copied: bool = False) -> Ref:
    """`ref`. Raises `BadArgumentType` for an object that is no Ref, `DescriptorUse` for one for copies, unless it is `copied`."""
    if isinstance(ref, Elements):
        hint = "only atomics take `ref.at[array]`; load with `ref[array]` and store with `ref[array] = x`"
        raise BadArgumentType(op=op, what="elements selected by index arrays are not a view", hint=hint)
    if not isinstance(ref, Ref):
        what = f"{of_kind(ref)} is not a Ref"
        raise BadArgumentType(op=op, what=what, hint="pass a kernel argument or scratch, or `ref.at[...]`")
    current()
    if not copied and is_copied_only(ref):
        raise DescriptorUse(op=op, ref=repr(ref))
    return ref


def is_copied_only(ref: Ref) -> bool:
    """Whether a Ref is one of `kd.make_tensor_descriptor`, which asynchronous copies alone may access."""
    made = bytes_or_own(ref).root.op
    return made is not None and made.copies_only


def _bounds(bounds: str | None, op: str) -> bool:
    """Whether the author promises that accesses are in bounds."""
    if bounds not in (None, "mask", "promise"):
        raise BadArgument(op=op, what=f"bounds={shown(bounds)}", hint='it is "mask" or "promise"')
    return bounds == "promise" or (bounds is None and current().promise_bounds)


_packed: list[Callable[..., Any]] = []  # the load and the store of 4-bit elements; packed.py enters them


def enter(*functions: Callable[..., Any]) -> None:
    """Enter the functions that load and store 4-bit elements."""
    _packed[:] = functions


def load(
    ref: Any,
    index: Any = ...,
    *,
    layout: Any = None,
    mask: Any = None,
    fill: Any = None,
    bounds: str | None = None,
) -> Array:
    """The elements of `ref` at `index`, as a value.

    `mask` (bool, broadcastable): false elements are not read. `fill`: the value of masked and out-of-range elements, 0
    by default. `layout`: the layout of the value. `bounds="promise"`: you promise that the access stays inside the
    array. Raises `BadIndex`, `TooManyIndices`, `IndexOutOfRange`, `SliceOutOfRange`, `DynamicSlice`.
    """
    ref = as_ref(ref, "load")
    if ref.dtype.is_packed:
        return _packed[0](ref, index, layout, mask, fill, bounds)
    if has_arrays(index):
        return gather(ref, index, layout=layout, mask=mask, fill=fill, promise=_bounds(bounds, "load"))
    target = ref if index is ... else ref.slice(index)
    return load_view(target, layout=layout, mask=mask, fill=fill, promise=_bounds(bounds, "load"))


def load_view(target: Ref, *, layout: Any = None, mask: Any = None, fill: Any = None, promise: bool = False) -> Array:
    """Load all of a view."""
    view, offsets = view_of(target, promise)
    shape = view.shape
    where: Any = layout
    if not shape:
        where = SCALAR
    elif layout is None:
        vector, minor = target.vector()
        where = LayoutVar(shape, vector, minor)
    else:
        where = resolve_rule(layout, shape, "load")
    extra = [mask_value(mask, shape, "load"), fill_value(fill, shape, target.dtype, "load")]
    placed: list[Array | None] = []
    for value in extra:
        if value is not None and shape and value.shape == shape and isinstance(find(where), LayoutVar):
            where = _adopt(value, where)
    for value in extra:
        placed.append(None if value is None else broadcast_value(value, shape, where))
    return traced(Load(target.root, offsets, placed[0], placed[1], view, where, target.access(view, offsets)))


def _adopt(value: Array, where: Any) -> Any:
    own = find(value.type.layout)
    return own if isinstance(own, Layout) else where


def store(ref: Any, index: Any, value: Any, *, mask: Any = None, bounds: str | None = None) -> None:
    """Store `value`, broadcast to the slice, to `ref` at `index`.

    Raises `StoreDType` if the dtypes differ (Python numbers are converted), `StoreShape` if the shapes don't fit.
    """
    ref = as_ref(ref, "store")
    if ref.dtype.is_packed:
        _packed[1](ref, index, value, mask, bounds)
        return
    if has_arrays(index):
        scatter(ref, index, value, mask=mask, promise=_bounds(bounds, "store"))
        return
    target = ref if index is ... else ref.slice(index)
    check_writable(target)
    x = stored_value(target.dtype, value)
    shape = target.shape
    squeezed = x.shape
    while len(squeezed) > len(shape) and squeezed[0] == 1:
        squeezed = squeezed[1:]
    try:
        fits = len(squeezed) <= len(shape) and broadcast_shapes([squeezed, shape], "store") == shape
    except ValueError:
        fits = False
    if not fits:
        raise StoreShape(value=x.shape, ref=shape)
    if squeezed != x.shape:
        x = reshape(x, squeezed)
    view, offsets = view_of(target, _bounds(bounds, "store"))
    vector, minor = target.vector()
    where: Any = SCALAR if not shape else LayoutVar(shape, vector, minor)
    guard = mask_value(mask, shape, "store")
    if shape:
        own = find(x.type.layout) if x.shape == shape else where
        if isinstance(own, LayoutVar) and own is not where and own.root() is None:
            _gathered(own, x.dtype, vector, minor)
            own.vector, own.minor = max(own.vector, vector), own.minor if own.minor is not None else minor
        x = broadcast_value(x, shape, where)
        where = x.type.layout
    if guard is not None:
        guard = broadcast_value(guard, shape, where)
    emit(Store(target.root, x, offsets, guard, view, target.access(view, offsets)))


def is_peer(ref: Ref) -> bool:
    """Whether a Ref is in the SMEM of another block: one that `kd.cluster_ref` made, or a view of it."""
    op = ref.root.op
    while op is not None and not op.remote:
        op = op.ref.op if "ref" in op.fields else None  # type: ignore[attr-defined]
    return op is not None


def check_own_block(ref: Ref, op: str) -> None:
    """Raise an error for a Ref in another block's SMEM, which only loads, stores and atomics can access."""
    if is_peer(ref):
        hint = "use only loads, stores and atomics on a `kd.cluster_ref`; the other block can do the rest on its buffer"
        raise ClusterUse(op=op, what=f"{ref!r} is in another block's SMEM", hint=hint)


def bitcast_ref(ref: Ref, dtype: Any) -> Ref:
    """`Ref.bitcast`: a whole buffer as another dtype, or any view as one of the same width."""
    dtype = as_dtype(dtype)
    own = ref.type
    if dtype.is_packed:
        return seen_as(ref if own.dtype.bits == 8 else bitcast_ref(ref, uint8), dtype)
    if not own.contiguous or not (ref.is_whole or dtype.bits == own.dtype.bits):
        raise BadReshape(what=repr(ref), shape=ref.shape, to=dtype, why="only a whole, contiguous Ref can be bitcast")
    if dtype.bits == own.dtype.bits:
        shape = own.shape
    else:
        if not own.shape or (own.shape[-1] * own.dtype.itemsize) % dtype.itemsize:
            why = f"the last dimension's bytes are not a multiple of {dtype.itemsize}"
            raise BadReshape(what=repr(ref), shape=ref.shape, to=dtype, why=why)
        shape = (*own.shape[:-1], own.shape[-1] * own.dtype.itemsize // dtype.itemsize)
    tiling = own.tiling
    if tiling:
        columns = tiling[-1] * own.dtype.itemsize
        if columns % dtype.itemsize:
            why = f"its tiles have rows of {columns} bytes, not a multiple of {dtype.itemsize}"
            raise BadReshape(what=repr(ref), shape=ref.shape, to=dtype, why=why)
        tiling = (*tiling[:-1], columns // dtype.itemsize)
    _check_not_copied_only(ref, "bitcast")
    current().aliased.add(ref.root)
    made = emit(BitcastRef(ref.root, replace(own, shape=shape, dtype=dtype, tiling=tiling))).result
    return Ref(made) if ref.is_whole else ref.moved_to(made)


def buffer_as(ref: Ref, shape: tuple[int, ...]) -> Value:
    """A Ref's contiguous buffer in another shape."""
    _check_not_copied_only(ref, "reshape")
    current().aliased.add(ref.root)
    return emit(BitcastRef(ref.root, replace(ref.type, shape=shape))).result


def _check_not_copied_only(ref: Ref, op: str) -> None:
    if is_copied_only(ref):
        raise DescriptorUse(op=op, ref=repr(ref))


def _gathered(layout: LayoutVar, dtype: DType, vector: int, minor: int | None) -> None:
    """Give up a reshape's free layout, with a note, if lanes would store less than 32 bits each and could store more."""
    if layout.free is not None:
        free, note = layout.free
        side = free.vector_length(len(layout.shape) - 1 if minor is None else minor)
        if side < vector and side * dtype.bits < 32:
            layout.free = None
            current().notes.append(note)
