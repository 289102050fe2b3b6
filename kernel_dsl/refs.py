"""Refs: typed handles on memory, and their views. Every view is an affine map from its index to the root's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import numpy as np

from .compiled import Swizzle
from .dtypes import DType, as_dtype
from .errors import (
    BadArgument,
    BadArgumentType,
    BadIndex,
    BadReshape,
    DynamicSlice,
    IndexOutOfRange,
    SliceOutOfRange,
    TooManyIndices,
)
from .ir import MemorySpace, RefType, Value, attribute_type
from .no_arithmetic import NoArithmetic
from .values import Array


@dataclass(frozen=True)
class Slice:
    """`ds(start, size, stride)`: `size` elements from `start`, which may be a traced value."""

    start: Any
    size: int
    stride: int = 1


def ds(start: Any, size: int, stride: int = 1) -> Slice:
    """A slice with a static or dynamic start and a static size; it always has its size, and is masked in GMEM."""
    for name, value in (("size", size), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
            what = f"{name} is {value!r}"
            raise BadArgumentType(op="ds", what=what, hint=f"{name} must be a static int")
    if size < 0 or stride == 0:
        raise BadArgument(op="ds", what=f"size {size}, stride {stride}", hint="size >= 0 and stride != 0")
    if isinstance(start, np.integer):
        start = int(start)
    if not is_index(start):
        raise BadIndex(what=f"the start {start!r}", hint="a start is an int or a rank-0 integer value")
    return Slice(start, int(size), int(stride))


def is_index(x: Any) -> bool:
    """An int, or a rank-0 integer value."""
    if isinstance(x, Array):
        return x.ndim == 0 and x.dtype.is_integer
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


@attribute_type
@dataclass(frozen=True)
class ViewDim:
    """A dimension of a view: its extent, and the root axis it walks with which step (axis -1: none)."""

    size: int
    axis: int
    step: int = 1


@attribute_type
@dataclass(frozen=True)
class View:
    """Which elements of the root a view holds. Root index along axis a = start[a] + sum of step * index.

    `dynamic`: root axes with a dynamic part of the start, in the order of the op's offset operands.
    `masked`: (root axis, can be negative, can reach the extent) where an access may leave the array.
    """

    dims: tuple[ViewDim, ...]
    start: tuple[int, ...]
    dynamic: tuple[int, ...] = ()
    masked: tuple[tuple[int, bool, bool], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)


@attribute_type
@dataclass(frozen=True)
class Access:
    """How wide the accesses of a view may be: `vector` aligned elements along the view's dimension `minor`.

    `whole`: a mask never cuts through such a vector.
    """

    vector: int = 1
    minor: int | None = None
    whole: bool = True


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        out[i] = out[i + 1] * shape[i + 1]
    return tuple(out)


class _At:
    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitem__(self, index: Any) -> Any:
        return self._make(index)


def has_arrays(index: Any) -> bool:
    """Whether an index gathers: some part of it is an integer array of rank 1 or more."""
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)  # pyright: ignore[reportUnknownVariableType]
    return any((isinstance(i, (Array, np.ndarray)) and i.ndim > 0) or isinstance(i, list) for i in items)


class Elements(NoArithmetic):
    """`ref.at[index]` where the index has integer arrays: what an atomic updates. Elsewhere index the Ref itself."""

    __slots__ = ("index", "ref")

    def __init__(self, ref: Ref, index: Any) -> None:
        self.ref = ref
        self.index = index

    def __repr__(self) -> str:
        return f"<elements of {self.ref!r} by index arrays>"


class Ref(NoArithmetic):
    """A handle on an array in GMEM or SMEM. `ref[...]` loads, `ref[...] = x` stores, `ref.at[...]` is a view."""

    __slots__ = ("_dims", "_dtype", "_root", "_starts")
    __hash__ = object.__hash__

    def __init__(
        self,
        root: Value,
        dims: tuple[ViewDim, ...] | None = None,
        starts: tuple[tuple[int, Value | None], ...] | None = None,
    ) -> None:
        type: RefType = root.type
        self._root = root
        self._dims = dims if dims is not None else tuple(ViewDim(n, i) for i, n in enumerate(type.shape))
        self._starts = starts if starts is not None else tuple((0, None) for _ in type.shape)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def root(self) -> Value:
        """The IR value of the buffer that this is a view of."""
        return self._root

    @property
    def type(self) -> RefType:
        """The buffer's type."""
        return self._root.type

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self._dims)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self._dims)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def memory_space(self) -> MemorySpace:
        return self.type.space

    def __len__(self) -> int:
        if not self._dims:
            raise TypeError("len() of a rank-0 Ref")
        return self._dims[0].size

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        name = f" {self.type.name}" if self.type.name else ""
        return f"<Ref{name} {self.type.space.value} {self.dtype}[{dims}]>"

    def __bool__(self) -> bool:
        from .errors import TracedBool

        raise TracedBool(type=repr(self))

    def __iter__(self) -> Any:
        from .errors import TracedIteration

        raise TracedIteration(type=repr(self))

    # --- access -----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Array:
        from .ops.ref import load

        return load(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from .ops.ref import store

        store(self, index, value)

    @property
    def at(self) -> Any:
        """`ref.at[index]`: a view of part of the Ref. Nothing is loaded. With integer arrays: elements, for atomics."""
        return _At(self._view_or_elements)

    def _view_or_elements(self, index: Any) -> Any:
        return Elements(self, index) if has_arrays(index) else self.slice(index)

    def slice(self, index: Any) -> Ref:
        """The view that `.at[index]` makes, for indices that are ints, slices, `ds`, None and Ellipsis."""
        dims: list[ViewDim] = []
        starts = list(self._starts)
        for dim, item in self.normalise(index):
            if dim is None:
                dims.append(ViewDim(1, -1))
                continue
            own = self._dims[dim]
            start, size, stride = self._interval(item, dim)
            if own.axis >= 0:
                starts[own.axis] = _advance(starts[own.axis], start, own.step)
            if size is not None:
                dims.append(ViewDim(size, own.axis, own.step * stride))
        return Ref(self._root, tuple(dims), tuple(starts))

    def normalise(self, index: Any) -> list[tuple[int | None, Any]]:
        """One entry a dimension (None for a new one), Ellipsis expanded. Raises `TooManyIndices`."""
        items = list(index) if isinstance(index, tuple) else [index]
        used = sum(1 for i in items if i is not None and i is not Ellipsis)
        if used > self.ndim:
            raise TooManyIndices(count=used, what="Ref", rank=self.ndim, shape=self.shape)
        if sum(1 for i in items if i is Ellipsis) > 1:
            raise BadIndex(what="more than one Ellipsis", hint="use one `...`")
        if not any(i is Ellipsis for i in items):
            items.append(Ellipsis)
        out: list[tuple[int | None, Any]] = []
        dim = 0
        for item in items:
            if item is Ellipsis:
                for _ in range(self.ndim - used):
                    out.append((dim, slice(None)))
                    dim += 1
            elif item is None:
                out.append((None, None))
            else:
                out.append((dim, item))
                dim += 1
        return out

    def _interval(self, item: Any, dim: int) -> tuple[Any, int | None, int]:
        """(start, size or None for an int, stride) of one index."""
        extent = self._dims[dim].size
        if isinstance(item, slice):
            if any(isinstance(x, Array) for x in (item.start, item.stop, item.step)):
                raise DynamicSlice()
            try:
                start, stop, step = item.indices(extent)
            except (TypeError, ValueError) as error:
                raise BadIndex(what=f"{item}", hint=f"{error}") from None
            return start, len(range(start, stop, step)), step
        if isinstance(item, Slice):
            if self.type.space is MemorySpace.SMEM and isinstance(item.start, int):
                self._check_static(item, dim, extent)
            return item.start, item.size, item.stride
        if not is_index(item):
            what = f"the value {item!r}" if isinstance(item, Array) else f"{item!r}"
            hint = "indices are ints, rank-0 integer values, slices, `kd.ds`, None, `...` and integer arrays"
            raise BadIndex(what=what, hint=hint)
        if isinstance(item, Array):
            return item, None, 1
        number = int(item)
        if not -extent <= number < extent:
            raise IndexOutOfRange(index=number, dim=dim, extent=extent, lo=-extent, hi=extent - 1)
        return number + extent if number < 0 else number, None, 1

    def _check_static(self, item: Slice, dim: int, extent: int) -> None:
        last = item.start + (item.size - 1) * item.stride
        low, high = min(item.start, last), max(item.start, last) + 1
        if item.size and (low < 0 or high > extent):
            raise SliceOutOfRange(start=low, stop=high, dim=dim, extent=extent, what=repr(self))

    def ends_with_array(self, dim: int) -> bool:
        """Whether elements beyond the end of a dimension would lie outside of the array too, as far as tracing knows."""
        own = self._dims[dim]
        if own.axis < 0:
            return True
        start, unknown = self._starts[own.axis]
        beyond = start + own.size * own.step
        return unknown is None and not 0 <= beyond < self.type.shape[own.axis]

    # --- reshaping --------------------------------------------------------------------------------

    @property
    def T(self) -> Ref:  # noqa: N802 - NumPy's name
        """The view with its dimensions reversed."""
        return self.transpose()

    def transpose(self, *axes: Any) -> Ref:
        """The view with permuted dimensions, reversed by default."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else tuple(axes)
        order = order or tuple(reversed(range(self.ndim)))
        if sorted(a + self.ndim if a < 0 else a for a in order) != list(range(self.ndim)):
            what = f"axes {order} are no permutation of a rank-{self.ndim} Ref"
            raise BadArgument(op="transpose", what=what, hint="name each axis once")
        return Ref(self._root, tuple(self._dims[a] for a in order), self._starts)

    def reshape(self, *shape: Any) -> Ref:
        """A view of another shape, where the elements are in that order in memory. Raises `BadReshape`."""
        to = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else tuple(shape)
        to = infer_shape(to, self.size, f"{self!r}", self.shape)
        if not self.size:
            return Ref(self._root, tuple(ViewDim(n, -1) for n in to), self._starts)
        first = self._whole_from()
        if first is not None and not _splits(self.shape, to):
            from .ops.ref import reshape_root

            root = reshape_root(self._root, (*self.type.shape[:first], *to))
            dims = tuple(ViewDim(n, first + i) for i, n in enumerate(to))
            return Ref(root, dims, (*self._starts[:first], *((0, None) for _ in to)))
        return Ref(self._root, _regroup(self, to), self._starts)

    def _whole_from(self) -> int | None:
        """The buffer's axis from which on this view is all of them, in order and gapless; None where it is not."""
        type = self.type
        first = len(type.shape) - self.ndim
        if first < 0 or not type.contiguous or type.tiling or type.swizzle is not Swizzle.NONE or not self.size:
            return None
        whole = all(d == ViewDim(type.shape[first + i], first + i) for i, d in enumerate(self._dims))
        return first if whole and all(s == (0, None) for s in self._starts[first:]) else None

    def bitcast(self, dtype: Any) -> Ref:
        """The same memory as another dtype; the last dimension's extent changes with the width."""
        from .ops.ref import bitcast_ref

        return bitcast_ref(self, as_dtype(dtype))

    def moved_to(self, root: Value) -> Ref:
        """The same view of another buffer of the same type."""
        return Ref(root, self._dims, self._starts)

    # --- for the ops ------------------------------------------------------------------------------

    def view(self) -> tuple[View, tuple[Value, ...]]:
        """The view as an attribute, and the dynamic offsets, widened to int64 where int32 could overflow."""
        from .ops.index import widen

        type = self.type
        masked: list[tuple[int, bool, bool]] = []
        dynamic: list[int] = []
        offsets: list[Value] = []
        for axis, (_static, value) in enumerate(self._starts):
            if value is not None:
                dynamic.append(axis)
                offsets.append(widen(value))
            low, high = self.bounds(axis)
            # SMEM is not masked: leaving it is the author's error, and the interpreter's to report
            open_ended = self.size and type.space is MemorySpace.GMEM
            if open_ended and (low < 0 or high >= type.shape[axis]):
                masked.append((axis, low < 0, high >= type.shape[axis]))
        start = tuple(static for static, _ in self._starts)
        return View(self._dims, start, tuple(dynamic), tuple(masked)), tuple(offsets)

    def bounds(self, axis: int) -> tuple[int, int]:
        """The least and the greatest root index that the view can touch along `axis`."""
        static, value = self._starts[axis]
        low = high = static
        if value is not None:
            facts = value.facts
            assert facts is not None
            low, high = low + facts.lo, high + facts.hi
        for d in self._dims:
            if d.axis == axis:
                reach = d.step * (d.size - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def vector(self) -> tuple[int, int | None]:
        """(elements that one aligned access can move, the view's dimension with unit stride in memory or None)."""
        type = self.type
        last = len(type.shape) - 1
        minor = next((i for i, d in enumerate(self._dims) if d.axis == last and d.step == 1), None)
        if (
            minor is None
            or not type.contiguous
            or any(d.axis == last and i != minor and d.size > 1 and d.step % 16 for i, d in enumerate(self._dims))
        ):
            return 1, minor
        item = type.dtype.itemsize
        unit = gcd(16, type.alignment)
        for axis, stride in enumerate(strides_of(type.shape)):
            static, value = self._starts[axis]
            moves = static != 0 or value is not None or any(d.axis == axis and d.size > 1 for d in self._dims)
            if axis == last:
                unit = gcd(unit, static * item)
                if value is not None:
                    assert value.facts is not None
                    unit = gcd(unit, value.facts.divisor * item)
            elif moves:
                unit = gcd(unit, stride * item)
        if unit < item:
            return 1, minor
        size = self._dims[minor].size
        vector = unit // item
        while vector > 1 and size % vector:
            vector //= 2
        return vector, minor

    def access(self) -> Access:
        """How wide an access of this view may be."""
        vector, minor = self.vector()
        if vector == 1:
            return Access(1, minor)
        last = len(self.type.shape) - 1
        low, high = self.bounds(last)
        masked = low < 0 or high >= self.type.shape[last]
        # the start is a multiple of the vector, or it would not be aligned
        return Access(vector, minor, not masked or self.type.shape[last] % vector == 0)


def _advance(start: tuple[int, Value | None], by: Any, step: int) -> tuple[int, Value | None]:
    static, value = start
    if isinstance(by, int):
        return static + by * step, value
    from .ops.arith import add, multiply

    if by.facts is not None and by.facts.constant is not None:
        return static + by.facts.constant * step, value
    moved: Any = multiply(by, step) if step != 1 else by
    return static, moved if value is None else add(value, moved)


def infer_shape(to: tuple[Any, ...], size: int, what: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with at most one -1 filled in. Raises `BadReshape`."""
    known = prod(int(n) for n in to if n != -1)
    holes = sum(1 for n in to if n == -1)
    out = tuple(int(n) if n != -1 else (size // known if known else 0) for n in to)
    if holes > 1 or prod(out) != size or any(n < 0 for n in out):
        raise BadReshape(what=what, shape=shape, to=to, why=f"{size} elements are not {prod(out)}")
    return out


def _regroup(ref: Ref, to: tuple[int, ...]) -> tuple[ViewDim, ...]:
    """The dimensions of a reshaped view: split and merge where memory order allows."""
    pool = [d for d in ref._dims if d.size != 1]  # pyright: ignore[reportPrivateUsage]
    out: list[ViewDim] = []
    position = 0
    current: ViewDim | None = None
    for extent in to:
        if extent == 1:
            out.append(ViewDim(1, -1))
            continue
        need = extent
        taken: list[ViewDim] = []
        while need > 1:
            if current is None:
                current = pool[position]
                position += 1
            if current.size <= need:
                if need % current.size:
                    raise _not_affine(ref, to)
                taken.append(current)
                need //= current.size
                current = None
            else:
                if current.size % need:
                    raise _not_affine(ref, to)
                rest = current.size // need
                taken.append(ViewDim(need, current.axis, current.step * rest))
                current = replace(current, size=rest)
                need = 1
        out.append(_merge(ref, taken, to))
    return tuple(out)


def _splits(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether every dimension of `shape` is one or several of `to`: then the buffer can stay as it is."""
    left = [n for n in to if n != 1]
    for extent in shape:
        while extent > 1:
            if not left or extent % left[0]:
                return False
            extent //= left.pop(0)
    return not left


def _merge(ref: Ref, parts: list[ViewDim], to: tuple[int, ...]) -> ViewDim:
    merged = parts[-1]
    for major in reversed(parts[:-1]):
        if major.axis != merged.axis or major.step != merged.step * merged.size:
            raise _not_affine(ref, to)
        merged = ViewDim(major.size * merged.size, merged.axis, merged.step)
    return merged


def _not_affine(ref: Ref, to: tuple[int, ...]) -> BadReshape:
    why = "a reshaped Ref must walk each axis of its buffer in even steps; reshape the loaded value instead"
    return BadReshape(what=f"{ref!r}", shape=ref.shape, to=to, why=why)
