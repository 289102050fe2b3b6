"""The Ref of 4-bit elements, two a byte: the bytes' own Ref, counted in elements along the axis where they share them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from . import dtypes as dt
from .boundary import public
from .diagnostics import shown
from .dtypes import DType, as_dtype
from .errors import BadReshape, PackedAccess
from .ir import MemorySpace
from .packed import elements_shape
from .refs import Ref, Slice, infer_shape, is_index, of_slice
from .values import Array
from .view import View, ViewDim


@public
class PackedRef(Ref):
    """A Ref of 4-bit elements. Loads, stores, copies and views take it; what needs an address takes `ref.bitcast(kd.uint8)`.

    `axis`: the dimension along which two share a byte. Slices start at even indices along it, and have even sizes.
    """

    __slots__ = ("_axis", "_bytes", "_kind")

    def __init__(self, stored: Ref, dtype: DType, axis: int) -> None:
        self._bytes = stored
        self._kind = dtype
        self._axis = axis

    @property
    def stored(self) -> Ref:
        """The bytes."""
        return self._bytes

    @property
    def axis(self) -> int:
        """The dimension along which two elements share a byte."""
        return self._axis

    @property
    def shape(self) -> tuple[int, ...]:
        return elements_shape(tuple(self._bytes.shape), self._axis)

    @property
    def dtype(self) -> DType:
        return self._kind

    @property
    def ndim(self) -> int:
        return self._bytes.ndim

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def memory_space(self) -> MemorySpace:
        return self._bytes.memory_space

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        name = f" {self._bytes.type.name}" if self._bytes.type.name else ""
        return f"<Ref{name} {self.memory_space.value} {self._kind}[{dims}]>"

    # --- views ------------------------------------------------------------------------------------

    def slice(self, index: Any) -> PackedRef:
        return self._of(self._bytes.slice(self.in_bytes(index)), index)

    def _of(self, stored: Ref, index: Any) -> PackedRef:
        place = 0
        for dim, item in self._bytes.normalise(index):
            if dim == self._axis:
                break
            place += dim is None or not is_index(item)
        return PackedRef(stored, self._kind, place)

    def in_bytes(self, index: Any) -> tuple[Any, ...]:
        """An index of elements as one of bytes. Raises `PackedAccess`."""
        return tuple(self._halved(item) if dim == self._axis else item for dim, item in self._bytes.normalise(index))

    def _halved(self, item: Any) -> Any:
        extent = self.shape[self._axis]
        if isinstance(item, slice):
            start, size, step = of_slice(item, extent)
            if start % 2 or size % 2 or (size and step != 1):
                self._refuse(f"the slice {shown(item)} of {extent}")
            return slice(start // 2, (start + size) // 2)
        if isinstance(item, Slice):
            start: Any = item.start
            even = (
                start.facts is not None and start.facts.divisor % 2 == 0 if isinstance(start, Array) else not start % 2
            )
            if item.size % 2 or item.stride != 1 or not even:
                hint = (
                    "; say `kd.multiple_of(start, 2)` of a traced start that is even"
                    if isinstance(start, Array)
                    else ""
                )
                self._refuse(f"`kd.ds` of {shown(start)}, {item.size}, {item.stride}", hint)
            return Slice(start >> 1 if isinstance(start, Array) else start // 2, item.size // 2)
        return self._refuse(f"one element, or some by index, along axis {self._axis}")

    def _refuse(self, what: str, more: str = "") -> NoReturn:
        hint = f"two share a byte: slices start at even indices along that axis, with even sizes and no step{more}"
        raise PackedAccess(what=f"{what}, of {self!r}", hint=hint)

    def transpose(self, *axes: Any) -> PackedRef:
        marked = self._bytes.transpose(*axes)
        given: Any = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = [a % self.ndim for a in given] or list(reversed(range(self.ndim)))
        return PackedRef(marked, self._kind, order.index(self._axis))

    def arranged(self, order: Sequence[int | ViewDim]) -> PackedRef:
        return PackedRef(self._bytes.arranged(order), self._kind, list(order).index(self._axis))

    def reshape(self, *shape: Any) -> PackedRef:
        to = infer_shape(shape, self.size, f"{self!r}", self.shape)
        if self._axis != self.ndim - 1 or not to or to[-1] % 2:
            why = "the last extent, along which two share a byte, stays even, and the last"
            raise BadReshape(what=repr(self), shape=self.shape, to=to, why=why)
        return PackedRef(self._bytes.reshape((*to[:-1], to[-1] // 2)), self._kind, len(to) - 1)

    def bitcast(self, dtype: Any) -> Ref:
        to = as_dtype(dtype)
        if to.is_packed:
            return PackedRef(self._bytes, to, self._axis)
        return self._bytes if to == dt.uint8 else self._bytes.bitcast(to)

    # --- what asks for an address -----------------------------------------------------------------

    def _no_address(self) -> NoReturn:
        raise PackedAccess(
            what=f"an operation that takes whole elements, on {self!r}", hint="`ref.bitcast(kd.uint8)` is its bytes"
        )

    @property
    def root(self) -> NoReturn:
        self._no_address()

    @property
    def type(self) -> NoReturn:
        self._no_address()

    @property
    def dims(self) -> NoReturn:
        self._no_address()

    def view(self, promise: bool = False) -> NoReturn:
        self._no_address()

    def vector(self) -> NoReturn:
        self._no_address()

    def access(self, view: View, offsets: Sequence[Any]) -> NoReturn:
        self._no_address()
