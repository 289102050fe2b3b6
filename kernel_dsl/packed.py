"""Arrays and buffers of 4-bit elements, two a byte: how they lie in memory, and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from . import dtypes as dt
from .compiled import OutputSpec
from .dtypes import DType, as_dtype
from .errors import BadArgument, BadCallArgument, PackedAccess
from .memory import MemorySpec, ShapeDtypeStruct
from .refs import Ref

if TYPE_CHECKING:
    from .packed_refs import PackedRef

# --- shapes --------------------------------------------------------------------------------------


def stored_shape(shape: tuple[int, ...], dtype: DType, what: str) -> tuple[int, ...]:
    """The shape in bytes of 4-bit elements. Raises `PackedAccess` where the innermost extent is odd, or there is none."""
    if not shape or shape[-1] % 2:
        extent = f"an innermost extent of {shape[-1]}" if shape else "rank 0"
        raise PackedAccess(what=f"{what} of {dtype} with {extent}", hint="two share a byte: make the last extent even")
    return (*shape[:-1], shape[-1] // 2)


def elements_shape(shape: tuple[int, ...], axis: int = -1) -> tuple[int, ...]:
    """The shape in elements of bytes that hold two along `axis`."""
    axis %= len(shape)
    return (*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])


class PackedStruct(ShapeDtypeStruct):
    """An output of 4-bit elements as it lies in memory: bytes. `packed`: what they hold."""

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
    """The 4-bit dtype of a NumPy array, whose elements take a byte each; None for all else."""
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
    """The elements, one a byte as ml_dtypes has them, of bytes that hold two."""
    codes = np.empty(elements_shape(x.shape), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = x & 15, x >> 4
    return codes.view(dtype.numpy)


def refuse_packed(kernel: str, where: str) -> NoReturn:
    """Raise `BadCallArgument` where nothing packs and unpacks arrays of 4-bit elements around each launch."""
    hint = "pass their bytes, uint8, and see them in the body by `ref.bitcast(kd.int4)`"
    raise BadCallArgument(kernel=kernel, what=f"arrays of 4-bit elements in {where}", hint=hint)


def unpacked(results: Sequence[Any], outputs: Sequence[OutputSpec], given: Sequence[Any] | None) -> list[Any]:
    """The outputs of a call, those of 4-bit elements one a byte again: in the arrays that were given for them."""
    out: list[Any] = []
    for number, (result, spec) in enumerate(zip(results, outputs, strict=True)):
        if spec.packed is not None:
            result = unpack(np.asarray(result), spec.packed)
            if given is not None:
                given[number][...] = result
                result = given[number]
        out.append(result)
    return out


# --- Refs ----------------------------------------------------------------------------------------


def seen_as(ref: Ref, dtype: DType | None) -> Ref:
    """A Ref of bytes as one of the 4-bit elements in them; others as they are."""
    if dtype is None or not dtype.is_packed:
        return ref
    from .packed_refs import PackedRef

    dims, last = ref.dims, len(ref.type.shape) - 1
    axis = next((i for i, d in enumerate(dims) if d.axis == last and d.step == 1), None)
    if axis is None or ref.type.dtype.bits != 8 or not ref.type.contiguous:
        raise BadArgument(
            op="bitcast", what=f"{ref!r} as {dtype}", hint="bitcast bytes that lie side by side along an axis"
        )
    return PackedRef(ref, dtype, axis)


def bytes_or_own(ref: Ref) -> Ref:
    """The bytes of a Ref of 4-bit elements; others as they are."""
    return cast("PackedRef", ref).stored if ref.dtype.is_packed else ref


def stored_pair(a: Ref, b: Ref) -> tuple[Ref, Ref]:
    """Both sides of a copy as bytes, where both are of one 4-bit dtype, packed along the same axis."""
    if a.dtype.is_packed and a.dtype == b.dtype and cast("PackedRef", a).axis == cast("PackedRef", b).axis:
        return bytes_or_own(a), bytes_or_own(b)
    return a, b
