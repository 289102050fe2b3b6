"""Loads and stores by integer arrays, as NumPy's advanced indexing broadcasts them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes as dt
from ..errors import BadIndex, StoreShape
from ..indices import WHOLE, array_of, from_start, is_index
from ..ir import ArrayType, Effect, MemorySpace, Op, Value, array_type, attr, operand, operands, option
from ..layout import SCALAR
from ..layouts import resolve_rule
from ..refs import Ref, View, ViewDim
from ..trace import LayoutVar, emit, traced
from ..values import Array
from ..view import Access
from .access import check_writable, fill_value, mask_value, stored_value, view_of, widen
from .broadcast import broadcast_shapes, broadcast_value
from .cast import as_value, astype
from .compare import where
from .shape import expand_dims

__all__: list[str] = []


class Gather(Op, name="gather", effect=Effect.READ):
    """Elements at a view's index plus, along `axes` of the root, index values. PTX `ld.global`, `ld.shared`.

    `access`: the most elements along a slice that one access can move, where the index values are the same for all.
    """

    any_size = True
    ref: Value = operand()
    offsets: tuple[Value, ...] = operands()
    indices: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    fill: Value | None = operand()
    view: View = attr()
    walks: tuple[ViewDim, ...] = attr()
    checked: bool = attr()
    layout: Any = attr()
    access: Access = option(Access())

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.view.shape, self.ref.type.dtype, self.layout),)


class Scatter(Op, name="scatter", effect=Effect.WRITE):
    """Store elements at an index as of `Gather`; of duplicates one is kept. PTX `st.global`, `st.shared`."""

    any_size = True
    ref: Value = operand()
    x: Value = operand()
    offsets: tuple[Value, ...] = operands()
    indices: tuple[Value, ...] = operands()
    mask: Value | None = operand()
    view: View = attr()
    walks: tuple[ViewDim, ...] = attr()
    checked: bool = attr()


class GatherTarget:
    """An index with arrays in it: the result's shape, the view without the arrays, and the arrays.

    `walks`: the dimensions that the arrays index. In the view's limits, steps along them follow the steps along its own
    dimensions.
    """

    def __init__(self, ref: Ref, index: Any) -> None:
        entries = ref.normalise(index)
        arrays = [_index_array(ref, item, dim) for dim, item in entries if dim is not None and _is_array(item)]
        common = broadcast_shapes([a.shape for a in arrays], "gather")
        # adjacent arrays and integers put their dimensions in their place; separated ones put them first (NumPy's rule)
        places = [i for i, (_, item) in enumerate(entries) if _is_array(item) or is_index(item)]
        together = places == list(range(places[0], places[0] + len(places)))
        plain = tuple(WHOLE if _is_array(item) else (item if dim is not None else None) for dim, item in entries)
        rest = ref.slice(plain)
        kept = [item for dim, item in entries if dim is None or _is_array(item) or not is_index(item)]
        walked = [i for i, item in enumerate(kept) if _is_array(item)]
        others = [i for i in range(rest.ndim) if i not in walked]
        before = places[0] if together else 0
        new = [ViewDim(n, -1) for n in common]
        self._ref = rest.arranged([*others[:before], *new, *others[before:], *walked])
        self._slices: bool = bool(others)
        rank = len(others) + len(new)
        self.shape: tuple[int, ...] = self._ref.shape[:rank]
        self.walks: tuple[ViewDim, ...] = self._ref.dims[rank:]
        self.arrays: list[Array] = [self._aligned(a, len(others) - before) for a in arrays]

    def open_layout(self) -> Any:
        """The open layout of the result.

        Neighbours along a slice go to neighbouring lanes, whatever the arrays' layouts are.
        """
        return LayoutVar(self.shape, int(self._slices)) if self.shape else SCALAR

    def view(self, promise: bool = False) -> tuple[View, tuple[Value, ...]]:
        """The view and its offsets (see `Ref.view`)."""
        return view_of(self._ref, promise, len(self.shape))

    def access(self, view: View) -> Access:
        """The widest access along a slice of GMEM that no limit cuts."""
        last = len(self._ref.type.shape) - 1
        sliced = any(d.axis == last and d.step == 1 for d in self._ref.dims[: len(self.shape)])
        if self._ref.type.space is not MemorySpace.GMEM or not sliced:
            return Access()
        vector, minor = self._ref.vector()
        return Access() if minor is None or any(view.steps(n)[minor] for n in view.masked) else Access(vector, minor)

    def _aligned(self, index: Array, after: int) -> Array:
        """The index array with trailing dimensions, so that it broadcasts to the result."""
        return expand_dims(index, tuple(range(index.ndim, index.ndim + after))) if after and index.ndim else index


def _is_array(item: Any) -> bool:
    return (isinstance(item, (Array, np.ndarray)) and item.ndim > 0) or isinstance(item, list)


def _index_array(ref: Ref, item: Any, dim: int) -> Array:
    if not isinstance(item, Array):
        extent = ref.shape[dim]
        static = array_of(item)
        if static.dtype.kind not in "iu":
            raise BadIndex(what=f"an array of {static.dtype}", hint="gather by integer arrays; mask with `mask=`")
        if isinstance(extent, Array):  # of a `kd.Dim`: as an index of one element, it is checked in each call
            index = as_value(static, "gather")
            return where(index < 0, index + extent, index) if (static < 0).any() else index
        return as_value(from_start(static, dim, extent), "gather")
    if not item.dtype.is_integer:
        raise BadIndex(what=f"a {item.dtype} value", hint="gather by integer values; mask with `mask=`")
    wide: Any = widen(item)
    return astype(wide, dt.int32) if wide.dtype.bits < 32 else wide


def gather(ref: Ref, index: Any, *, layout: Any, mask: Any, fill: Any, promise: bool) -> Array:
    """`load` for an index with integer arrays; out-of-range elements give `fill`, and dynamic indices never wrap."""
    target = GatherTarget(ref, index)
    view, offsets = target.view(promise)
    shape = target.shape
    full = [a for a in target.arrays if a.shape == shape]
    if layout is not None and shape:
        layout = resolve_rule(layout, shape, "load")
    else:
        layout = full[0].type.layout if full else target.open_layout()
    indices = tuple(broadcast_value(a, shape, layout) for a in target.arrays)
    extra = [mask_value(mask, shape, "load"), fill_value(fill, shape, ref.dtype, "load")]
    placed = [None if e is None else broadcast_value(e, shape, layout) for e in extra]
    checked = not promise and ref.type.space is MemorySpace.GMEM
    access = target.access(view)
    return traced(Gather(ref.root, offsets, indices, placed[0], placed[1], view, target.walks, checked, layout, access))


def scatter(ref: Ref, index: Any, value: Any, *, mask: Any, promise: bool) -> None:
    """`store` for an index with integer arrays; out-of-range elements are dropped."""
    check_writable(ref)
    target = GatherTarget(ref, index)
    x = stored_value(ref.dtype, value)
    shape = target.shape
    if x.ndim > len(shape) or broadcast_shapes([x.shape, shape], "store") != shape:
        raise StoreShape(value=x.shape, ref=shape)
    view, offsets = target.view(promise)
    layout: Any = x.type.layout if x.shape == shape else target.open_layout()
    x = broadcast_value(x, shape, layout)
    indices = tuple(broadcast_value(a, shape, layout) for a in target.arrays)
    guard = mask_value(mask, shape, "store")
    if guard is not None:
        guard = broadcast_value(guard, shape, layout)
    checked = not promise and ref.type.space is MemorySpace.GMEM
    emit(Scatter(ref.root, x, offsets, indices, guard, view, target.walks, checked))
    assert array_type(x).shape == shape
