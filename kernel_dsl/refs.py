"""Refs: typed handles on memory, and their views. Every view is an affine map from its index to the root's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any, cast

from .arguments import static_ints
from .boundary import public
from .compiled import Swizzle
from .diagnostics import shown
from .dtypes import DType
from .ends import Bounds, End, Held, Part, Start, advance, hull, limited, open_ends
from .errors import (
    BadArgument,
    BadAxis,
    BadIndex,
    BadReshape,
    SliceOutOfRange,
    TooManyIndices,
    TracedBool,
    TracedIteration,
)
from .errors_dims import cut_along, regrouped
from .extents import Extent, is_declared, now, seen
from .indices import WHOLE, Slice, has_arrays, is_index, of_int, of_slice
from .ir import MemorySpace, RefType, Value
from .mapped import common_unit
from .no_arithmetic import NoArithmetic
from .regroup import NotAffine, regroup, splits
from .shapes import Shape, infer_shape
from .values import WITHOUT_TRUTH, Array
from .view import Access, Limit, View, ViewDim, strides_of


@public
class _At:
    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __getitem__(self, index: Any) -> Ref:
        return self._make(index)  # or `Elements`, for atomics: type checkers can't distinguish these indices


@public
class Elements(NoArithmetic):
    """`ref.at[index]` for an index with integer arrays: elements that an atomic updates.

    Elsewhere index the Ref itself.
    """

    __slots__ = ("index", "ref")

    def __init__(self, ref: Ref, index: Any) -> None:
        self.ref: Ref = ref
        self.index: Any = index

    def __repr__(self) -> str:
        return f"<elements of {self.ref!r} by index arrays>"


# Methods that are operations. ops/handles.py attaches them; type checkers read them here.
if TYPE_CHECKING:

    class RefMethods:
        __slots__ = ()

        def __getitem__(self, index: Any) -> Array: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...

        def bitcast(self, dtype: Any) -> Ref:
            """The same memory as another dtype; the last dimension's extent changes with the width."""
            ...

        def _buffer_as(self, shape: tuple[int, ...]) -> Value:
            """The contiguous buffer in another shape."""
            ...

else:
    RefMethods = object


@public
class Ref(NoArithmetic, RefMethods):
    """A handle on an array in GMEM or SMEM. `ref[...]` loads, `ref[...] = x` stores, `ref.at[...]` is a view.

    Accesses that may leave their view are masked: in GMEM a view keeps `_ranges`, the bounds of accesses along each
    axis of the root (None: other limits bound them), and `_ends`, limits that no such range can express.
    """

    __slots__ = ("_dims", "_ends", "_ranges", "_root", "_starts")

    def __init__(
        self,
        root: Value,
        dims: tuple[ViewDim, ...] | None = None,
        starts: tuple[Start, ...] | None = None,
        ranges: tuple[Held, ...] | None = None,
        ends: tuple[End, ...] = (),
    ) -> None:
        type: RefType = root.type
        self._root = root
        self._ranges = ranges if ranges is not None else tuple((0, n) for n in type.shape)
        self._ends = ends
        self._dims = dims if dims is not None else tuple(ViewDim(n, i) for i, n in enumerate(type.shape))
        self._starts = starts if starts is not None else tuple((0, None) for _ in type.shape)

    # --- attributes -------------------------------------------------------------------------------

    @property
    def root(self) -> Value:
        """The IR value of the buffer that this Ref views."""
        return self._root

    @property
    def type(self) -> RefType:
        """The buffer's type."""
        return self._root.type

    @property
    def shape(self) -> tuple[int, ...]:
        return Shape.of(tuple(d.size for d in self._dims))

    @property
    def dims(self) -> tuple[ViewDim, ...]:
        """The extent of each dimension, and its axis and step in the buffer."""
        return self._dims

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
    def _sizes(self) -> tuple[int, ...]:
        """The extents as ints. Raises `DimRead`."""
        return tuple(int(d.size) for d in self._dims)

    @property
    def memory_space(self) -> MemorySpace:
        return self.type.space

    def __len__(self) -> int:
        if not self._dims:
            raise TracedIteration(type=repr(self))
        return int(self._dims[0].size)  # raises `DimRead`: Python has `len` give an int

    def __repr__(self) -> str:
        dims = ",".join(str(seen(d.size)) for d in self._dims)
        name = f" {self.type.name}" if self.type.name else ""
        return f"<Ref{name} {self.type.space.value} {self.dtype}[{dims}]>"

    def __bool__(self) -> bool:
        raise TracedBool(type=repr(self), hint=WITHOUT_TRUTH)

    def __iter__(self) -> Any:
        raise TracedIteration(type=repr(self))

    # --- access -----------------------------------------------------------------------------------

    @property
    def at(self) -> _At:
        """`ref.at[index]`: a view of part of the Ref. Nothing is loaded. With integer arrays: elements, for atomics."""
        return _At(self._view_or_elements)

    def _view_or_elements(self, index: Any) -> Any:
        return Elements(self, index) if has_arrays(index) else self.slice(index)

    def slice(self, index: Any) -> Ref:
        """The view that `.at[index]` makes, for indices that are ints, slices, `ds`, None and Ellipsis."""
        dims: list[ViewDim] = []
        starts = list(self._starts)
        parts, cut = list[Part](), list[Part]()
        places: dict[int, int] = {}  # by dimension of this Ref: the view's dimension
        for dim, item in self.normalise(index):
            if dim is None:
                dims.append(ViewDim(1, -1))
                continue
            own = self._dims[dim]
            start, size, stride = (0, own.size, 1) if item is WHOLE else self._interval(item, dim)
            parts.append((dim, start, size, stride))
            if item is not WHOLE:
                cut.append(parts[-1])
            if own.axis >= 0:
                starts[own.axis] = advance(starts[own.axis], start, own.step)
            if size is not None:
                places[dim] = len(dims)
                dims.append(ViewDim(size, own.axis, own.step * stride))
        if self.type.space is not MemorySpace.GMEM:
            return Ref(self._root, tuple(dims), tuple(starts))
        ranges, left = limited(self._dims, self._starts, self._ranges, cut)
        ends = [end.moved(parts, places, len(dims)) for end in (*self._ends, *left)]
        return Ref(self._root, tuple(dims), tuple(starts), tuple(ranges), tuple(ends))

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
            return of_slice(item, extent)
        if isinstance(item, Slice):
            if self.type.space is MemorySpace.SMEM and isinstance(item.start, int):
                self._check_static(item, dim, extent)
            return item.start, item.size, item.stride
        if not is_index(item):
            what = f"the value {item!r}" if isinstance(item, Array) else shown(item)
            hint = "index with ints, rank-0 integer values, slices, `kd.ds`, None, `...` or integer arrays"
            raise BadIndex(what=what, hint=hint)
        if isinstance(item, Array):
            return item, None, 1
        return of_int(item, dim, extent), None, 1

    def _check_static(self, item: Slice, dim: int, extent: int) -> None:
        last = item.start + (item.size - 1) * item.stride
        low, high = min(item.start, last), max(item.start, last) + 1
        if item.size and (low < 0 or high > extent):
            raise SliceOutOfRange(start=low, stop=high, dim=dim, extent=extent, what=repr(self))

    # --- reshaping --------------------------------------------------------------------------------

    @property
    @public
    def T(self) -> Ref:  # noqa: N802 - NumPy's name
        """The view with its dimensions reversed."""
        return self.transpose()

    def transpose(self, *axes: Any) -> Ref:
        """The view with permuted dimensions, reversed by default."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else tuple(axes)
        order = order or tuple(reversed(range(self.ndim)))
        order = static_ints(order, "transpose", "axes", "name each axis once")
        if sorted(a + self.ndim if a < 0 else a for a in order) != list(range(self.ndim)):
            what = f"axes {shown(order)} are no permutation of a rank-{self.ndim} Ref"
            raise BadArgument(op="transpose", what=what, hint="name each axis once")
        return self.arranged(order)

    def arranged(self, order: Sequence[int | ViewDim]) -> Ref:
        """The view with its dimensions in another order, and new ones without an axis."""
        if any(isinstance(d, int) and not 0 <= d < self.ndim for d in order):
            what = f"order={shown(order)} names dimensions that a rank-{self.ndim} Ref lacks"
            raise BadArgument(op="arranged", what=what, hint="number its dimensions from 0")
        dims = tuple(self._dims[d] if isinstance(d, int) else d for d in order)
        ends = tuple(
            replace(e, steps=tuple(e.steps[d] if isinstance(d, int) else 0 for d in order)) for e in self._ends
        )
        return Ref(self._root, dims, self._starts, self._ranges, ends)

    def reshape(self, *shape: Any) -> Ref:
        """A view of another shape, if memory has the elements in that order. Raises `BadReshape`, `DimRead`."""
        declared = next((d.size for d in self._dims if is_declared(d.size)), None)
        if declared is not None:
            raise regrouped(cast("Any", declared).name)
        size = prod(self._sizes)
        to = infer_shape(shape, size, f"{self!r}", self.shape)
        if not size:
            return Ref(self._root, tuple(ViewDim(n, -1) for n in to), self._starts, self._ranges)
        first = self._whole_from()
        if first is not None and not splits(self.shape, to):
            root = self._buffer_as((*self.type.shape[:first], *to))
            dims = tuple(ViewDim(n, first + i) for i, n in enumerate(to))
            starts = (*self._starts[:first], *((0, None) for _ in to))
            ends = tuple(replace(e, steps=(0,) * len(to)) for e in self._ends)
            return Ref(root, dims, starts, (*self._ranges[:first], *((0, n) for n in to)), ends)
        try:
            dims, ends = regroup(self._dims, self._ends, to)
        except NotAffine:
            why = "a reshaped Ref must walk each axis of its buffer in even steps; reshape the loaded value instead"
            raise BadReshape(what=f"{self!r}", shape=self.shape, to=to, why=why) from None
        return Ref(self._root, dims, self._starts, self._ranges, ends)

    def _whole_from(self) -> int | None:
        """The buffer's axis from which on this view is all axes, in order and gapless; None if there is none."""
        type = self.type
        first = len(type.shape) - self.ndim
        if first < 0 or not type.contiguous or type.tiling or type.swizzle is not Swizzle.NONE or 0 in self._sizes:
            return None
        whole = all(d == ViewDim(type.shape[first + i], first + i) for i, d in enumerate(self._dims))
        whole = whole and all(static == 0 and value is None for static, value in self._starts[first:])
        whole = whole and all(
            r is None or r == (0, n) for r, n in zip(self._ranges[first:], type.shape[first:], strict=True)
        )
        return first if whole and not any(any(e.steps) for e in self._ends) else None

    def moved_to(self, root: Value) -> Ref:
        """The same view of another buffer of the same shape."""
        return Ref(root, self._dims, self._starts, self._ranges, self._ends)

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole buffer, and not a view of a part."""
        same = self._dims == Ref(self._root)._dims and not self._ends
        held = all(r is None or r == (0, n) for r, n in zip(self._ranges, self.type.shape, strict=True))
        return same and held and all(static == 0 and value is None for static, value in self._starts)

    # --- for the ops ------------------------------------------------------------------------------

    def view(self, promise: bool = False, own: int | None = None) -> tuple[View, tuple[Value, ...]]:
        """The view as an attribute, and the dynamic offsets. Raises `DimRead`.

        Accesses use `view_of` of ops/access.py, which widens them. `promise`: accesses stay inside, although the trace
        can't prove it. `own`: how many dimensions the access has; index arrays walk the others, whose extents the
        launch knows.
        """
        kept = self._dims[:own]
        walked = self._dims[len(kept) :]
        declared = next((d.size for d in kept if is_declared(d.size)), None)
        if declared is not None:
            raise cut_along(cast("Any", declared).name)
        size = prod([int(d.size) for d in (*kept, *(d for d in walked if not isinstance(d.size, Extent)))])
        # where index arrays walk a whole axis, each index is compared with the extent
        compared = [
            (d.axis, d.size)
            for d in walked
            if isinstance(d.size, Extent)
            and d.step == 1
            and self._starts[d.axis][0] == 0
            and self._starts[d.axis][1] is None
        ]
        dynamic = tuple(axis for axis, (_, value) in enumerate(self._starts) if value is not None)
        offsets = [value for _, value in self._starts if value is not None]
        masked: list[Limit] = []
        # SMEM is not masked: an access outside is the author's error, and the interpreter reports it
        if size and self.type.space is MemorySpace.GMEM and not promise:
            for axis, held in enumerate(self._ranges):
                known = held is not None and any(a == axis and held[0] == 0 and held[1] is n for a, n in compared)
                if held is not None and not known:
                    masked.append(Limit(axis, *open_ends(self.bounds(axis), held)))
            for end in self._ends:
                low, high = open_ends(end.bounds(self._dims), (0, end.extent))
                static, value = end.start
                if value is not None and (low is not None or high is not None):
                    offsets.append(value)
                masked.append(Limit(-1, low, high, static, value is not None, end.steps))
        masked = [m for m in masked if m.low is not None or m.high is not None]
        start = tuple(static for static, _ in self._starts)
        dims = tuple(replace(d, size=int(d.size)) if isinstance(d.size, Extent) else d for d in kept)
        return View(dims, start, dynamic, tuple(masked)), tuple(offsets)

    def start(self, axis: int) -> Start:
        """Where the view starts along an axis of the root: a static part, and a traced one. Raises `BadAxis`."""
        try:
            return self._starts[axis]
        except (IndexError, TypeError):
            raise self._no_axis(axis) from None

    def bounds(self, axis: int) -> Bounds:
        """The least and the greatest root index that an access can have along `axis`. Raises `BadAxis`."""
        try:
            start = self._starts[axis]
        except (IndexError, TypeError):
            raise self._no_axis(axis) from None
        return hull(start, [(d.step, d.size) for d in self._dims if d.axis == axis])

    def _no_axis(self, axis: Any) -> BadAxis:
        root = tuple(int(n) for n in self.type.shape)
        return BadAxis(axis=axis, shape=root, hint=f"axes of the whole array go from 0 to {len(root) - 1}")

    def vector(self) -> tuple[int, int | None]:
        """(elements that one aligned access can move, the view's dimension with unit stride in memory or None)."""
        type = self.type
        last = len(type.shape) - 1
        minor = next((i for i, d in enumerate(self._dims) if d.axis == last and d.step == 1), None)
        if (
            minor is None
            or not type.contiguous
            or any(d.axis == last and i != minor and _walks(d) and d.step % 16 for i, d in enumerate(self._dims))
        ):
            return 1, minor
        item = type.dtype.itemsize
        size: Any = self._dims[minor].size
        unit = gcd(16, type.alignment, size * item if isinstance(size, int) else 0)
        strides = strides_of([_unit(n) for n in type.shape])
        for axis in range(last, -1, -1):  # the last axes say how much of the first is asked for
            static, value = self._starts[axis]
            moves = static != 0 or value is not None or any(d.axis == axis and _walks(d) for d in self._dims)
            if axis == last:
                unit = gcd(unit, static * item)
                if value is not None:
                    assert value.facts is not None
                    unit = gcd(unit, value.facts.divisor * item)
            elif moves and any(isinstance(now(n), Extent) for n in type.shape[axis + 1 :]):
                width = max(unit // item, 1)  # elements
                unit = gcd(unit, common_unit(type.shape[axis + 1 :], width) * item)
            elif moves:
                unit = gcd(unit, strides[axis] * item)
        if unit < item:
            return 1, minor
        vector = unit // item
        while vector > 1 and size % vector:
            vector //= 2
        return vector, minor

    def access(self, view: View, offsets: Sequence[Value]) -> Access:
        """The widest access that `view` and `offsets` allow."""
        vector, minor = self.vector()
        if vector == 1 or minor is None:
            return Access(1, minor)
        return Access(vector, minor, not view.cuts(offsets, vector, minor))


def _walks(dim: ViewDim) -> bool:
    """Whether a dimension may have several elements. Index arrays may walk one whose extent the launch knows."""
    return isinstance(dim.size, Extent) or dim.size > 1


def _unit(size: Any) -> int:
    """An extent for strides. If it is not known, the strides are not used."""
    known = now(size)
    return 1 if isinstance(known, Extent) else known
