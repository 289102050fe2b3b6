"""Arrays and buffers of 4-bit elements, two a byte: how they lie in memory, and on the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NoReturn, cast

import numpy as np

from . import dtypes as dt
from .boundary import public
from .diagnostics import shown
from .dtypes import DType, as_dtype
from .errors import BadArgument, BadCallArgument, BadReshape, PackedAccess
from .indices import Slice, is_index, of_slice
from .memory import MemorySpace, MemorySpec, ShapeDtypeStruct
from .refs import Ref
from .shapes import infer_shape
from .values import Array
from .view import View, ViewDim

# --- shapes --------------------------------------------------------------------------------------


def stored_shape(shape: tuple[int, ...], dtype: DType, what: str) -> tuple[int, ...]:
    """The shape in bytes of 4-bit elements. Raises `PackedAccess` if the innermost extent is odd or missing."""
    if not shape or shape[-1] % 2:
        extent = f"an innermost extent of {shape[-1]}" if shape else "rank 0"
        raise PackedAccess(
            what=f"{what} of {dtype} with {extent}", hint="make the last extent even: two elements share a byte"
        )
    return (*shape[:-1], shape[-1] // 2)


def elements_shape(shape: tuple[int, ...], axis: int = -1) -> tuple[int, ...]:
    """The shape in elements of bytes that hold two along `axis`."""
    axis %= len(shape)
    return (*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])


class PackedStruct(ShapeDtypeStruct):
    """An output of 4-bit elements, as bytes in memory. `packed`: the dtype of the elements."""

    __slots__ = ("packed",)

    def __init__(self, struct: ShapeDtypeStruct) -> None:
        init = None if struct.init is None else _code(struct.init, struct.dtype) * 0x11
        super().__init__(stored_shape(struct.shape, struct.dtype, "an output"), dt.uint8, init)
        self.packed: DType = struct.dtype


def stored_struct(struct: ShapeDtypeStruct | None) -> ShapeDtypeStruct | None:
    """An output as it lies in memory."""
    return PackedStruct(struct) if struct is not None and struct.dtype.is_packed else struct


def stored_spec(spec: MemorySpec) -> MemorySpec:
    """Scratch as it lies in memory."""
    if not spec.dtype.is_packed:
        return spec
    tiling = (*spec.tiling[:-1], spec.tiling[-1] // 2) if spec.tiling else ()
    return replace(spec, shape=stored_shape(spec.shape, spec.dtype, "a buffer"), dtype=dt.uint8, tiling=tiling)


def _code(value: Any, dtype: DType) -> int:
    return int(np.asarray(value).astype(dtype.numpy).view(np.uint8)) & 15


# --- arrays of the host --------------------------------------------------------------------------


def packed_dtype(x: Any) -> DType | None:
    """The dtype of a NumPy array of 4-bit elements (NumPy has one in each byte); None for all else."""
    if not isinstance(x, np.ndarray) or x.dtype.itemsize != 1 or x.dtype.kind != "V":
        return None
    try:
        found = as_dtype(x.dtype)
    except TypeError:
        return None
    return found if found.is_packed else None


def pack(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The bytes, uint8, of an array of 4-bit elements. Raises `PackedAccess`."""
    stored_shape(x.shape, dtype, "an array")
    codes = np.asarray(x).view(np.uint8) & 15 if x.flags.c_contiguous else np.ascontiguousarray(x).view(np.uint8) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The elements of bytes that hold two, as an array of ml_dtypes, which has one in each byte."""
    codes = np.empty(elements_shape(x.shape), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = x & 15, x >> 4
    return codes.view(dtype.numpy)


def refuse_packed(kernel: str, where: str, dtype: DType = dt.int4) -> NoReturn:
    """Raise `BadCallArgument` for 4-bit elements in a call that can't pack and unpack them around each launch."""
    hint = f"pass their bytes, uint8, and read them in the body by `ref.bitcast(kd.{dtype.name})`"
    raise BadCallArgument(kernel=kernel, what=f"arrays of 4-bit elements in {where}", hint=hint)


def stored(arrays: Sequence[Any], nibbles: Any, written: bool = False) -> tuple[list[Any], list[DType | None]]:
    """The arrays of a call in the form that kernels take, and the dtypes of those that were packed.

    Raises `PackedAccess`. `nibbles`: the packed arrays of a recording graph, which has its own bytes for each array;
    else None.
    """
    kinds = [packed_dtype(x) for x in arrays]
    as_bytes = pack if nibbles is None else functools.partial(nibbles.stored, written=written)
    return [x if kind is None else as_bytes(x, kind) for x, kind in zip(arrays, kinds, strict=True)], kinds


def on_host(result: Any, kernel: str) -> Any:
    """Bytes that a kernel wrote, as a NumPy array.

    Raises `BadCallArgument` if they lie on a GPU and the framework won't copy.
    """
    try:
        found = np.asarray(result)
    except TypeError:
        found = None
    if found is None or found.dtype != np.uint8:  # an object that NumPy can't convert
        refuse_packed(kernel, "a call on arrays of a GPU")
    return found


def unpacked(results: Sequence[Any], prepared: Any, nibbles: Any) -> list[Any]:
    """The outputs of a call; 4-bit elements are unpacked, into the arrays of `out=` if there are any.

    `nibbles`: the packed arrays of a recording graph, which unpacks them later; else None.
    """
    out: list[Any] = []
    given, kernel = prepared.given, prepared.kernel
    for number, (result, spec) in enumerate(zip(results, kernel.outputs, strict=True)):
        if spec.packed is not None and nibbles is not None:
            out.append(nibbles.made(result, spec.packed, kernel.name) if given is None else given[number])
        elif spec.packed is not None:
            made = unpack(on_host(result, kernel.name), spec.packed)
            if given is not None:
                given[number][...] = made
            out.append(made if given is None else given[number])
        else:
            out.append(result)
    return out


# --- Refs ----------------------------------------------------------------------------------------


@public
class PackedRef(Ref):
    """A Ref of 4-bit elements.

    Loads, stores, copies and views take it; operations that need an address take `ref.bitcast(kd.uint8)`. `axis`: the
    dimension along which two elements share a byte. Slices start at even indices along it, and have even sizes.
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
        """An index of elements as an index of bytes. Raises `PackedAccess`."""
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
                hint = "; mark an even traced start by `kd.multiple_of(start, 2)`" if isinstance(start, Array) else ""
                self._refuse(f"`kd.ds` of {shown(start)}, {item.size}, {item.stride}", hint)
            return Slice(start >> 1 if isinstance(start, Array) else start // 2, item.size // 2)
        return self._refuse(f"one element, or some by index, along axis {self._axis}")

    def _refuse(self, what: str, more: str = "") -> NoReturn:
        hint = f"slice with even starts and sizes and no step along that axis: two elements share a byte{more}"
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

    def view(self, promise: bool = False, own: int | None = None) -> NoReturn:
        self._no_address()

    def vector(self) -> NoReturn:
        self._no_address()

    def access(self, view: View, offsets: Sequence[Any]) -> NoReturn:
        self._no_address()


def seen_as(ref: Ref, dtype: DType | None) -> Ref:
    """A Ref of bytes as a Ref of the 4-bit elements in them; other Refs unchanged."""
    if dtype is None or not dtype.is_packed:
        return ref
    dims, last = ref.dims, len(ref.type.shape) - 1
    axis = next((i for i, d in enumerate(dims) if d.axis == last and d.step == 1), None)
    if axis is None or ref.type.dtype.bits != 8 or not ref.type.contiguous:
        raise BadArgument(
            op="bitcast", what=f"{ref!r} as {dtype}", hint="bitcast bytes that lie side by side along an axis"
        )
    return PackedRef(ref, dtype, axis)


def bytes_or_own(ref: Ref) -> Ref:
    """The bytes of a Ref of 4-bit elements; other Refs unchanged."""
    return cast("PackedRef", ref).stored if ref.dtype.is_packed else ref


def stored_pair(a: Ref, b: Ref) -> tuple[Ref, Ref]:
    """Both sides of a copy as bytes, if both have the same 4-bit dtype and are packed along the same axis."""
    if a.dtype.is_packed and a.dtype == b.dtype and cast("PackedRef", a).axis == cast("PackedRef", b).axis:
        return bytes_or_own(a), bytes_or_own(b)
    return a, b
