"""Converts arrays and scalars to the bytes of a launch's parameters."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import PointerParam, ScalarParam, ShapeParam, StrideParam, TensorMapParam
from kernel_dsl.dtypes import DType, complex64, int64, of_python
from kernel_dsl.launch_plan import AnyParam, ConstantParam, OffsetParam, slot

from ..arrays.array_view import ArrayView
from ..errors import ArgumentTypeError, ArgumentValueError

Encode = Callable[[TensorMapParam, ArrayView], bytes]


def scalar_bytes(value: Any, dtype: DType) -> bytes:
    """`value` as `dtype`'s bytes, little endian. Raises ArgumentValueError for an int that does not fit."""
    if isinstance(value, (bytes, bytearray)):
        if len(value) != dtype.itemsize:
            raise ArgumentValueError(f"a scalar of {dtype} takes {dtype.itemsize} bytes, and got {len(value)}")
        return bytes(value)
    if dtype.is_integer and isinstance(value, int):
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            wider = "np.int64" if -(2**63) <= value < 2**63 else "np.uint64"
            raise ArgumentValueError(
                f"the scalar {value} does not fit {dtype} ({info.min} to {info.max}), for which the kernel was "
                f"compiled; compile or record it with {wider}({value})"
            )
    try:
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(dtype.numpy).reshape(()).tobytes()
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{value!r} is not a scalar of {dtype}") from None


def own_bytes(value: Any) -> bytes:
    """A scalar as the bytes of a custom kernel's parameter: 1 of a bool, 4 of an int or float, a NumPy scalar's own.

    Raises ArgumentValueError for an int of more than 32 bits, ArgumentTypeError for an object that is no scalar.
    """
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.tobytes()
    dtype = of_python(value)
    if dtype is None:
        raise ArgumentTypeError(f"{value!r} is not a scalar: pass a bool, an int, a float or a NumPy scalar")
    if dtype.is_integer and not -(2**31) <= value < 2**31:
        raise ArgumentValueError(f"{value} does not fit int32; pass np.int64({value})")
    return scalar_bytes(value, dtype)


# NumPy has no struct code for bfloat16 and fp8, and Python scalars are never of those types.
_CODES = {"bool": "?", "int32": "i", "int64": "q", "uint32": "I", "uint64": "Q", "float32": "f", "float64": "d"}
# The errors of a packer for a value of another type.
PACK_ERRORS = (struct.error, OverflowError)
_PAIR = struct.Struct("=ff")
_WIDE = struct.Struct("=q")


def packer(value: Any, dtype: DType, narrow: bool = False) -> Callable[[Any], bytes] | None:
    """The fastest function from scalars of `value`'s type to `dtype`'s bytes; None if only `scalar_bytes` can do it.
    `narrow`: the scalar is an array in memory with the value's own dtype: an int is int64 only if needed.
    """
    if isinstance(value, np.generic):
        same = np.asarray(cast("Any", value)).dtype == dtype.numpy
        return methodcaller("tobytes") if same else None
    if narrow and dtype == int64:
        return _wide
    if isinstance(value, complex):
        return _pair if dtype == complex64 else None
    code = _CODES.get(dtype.name)
    return None if code is None else struct.Struct("=" + code).pack


def _wide(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        raise OverflowError
    return _WIDE.pack(value)


def _pair(value: complex) -> bytes:
    return _PAIR.pack(value.real, value.imag)


class ParamLayout:
    """The place of each parameter of a kernel in one buffer, and a function that writes all of them.

    `offsets` and `sizes` are in bytes; `pack` is the bound `struct.Struct.pack_into`, taking `values(...)`.
    """

    def __init__(self, params: Sequence[AnyParam]) -> None:
        self.params: tuple[AnyParam, ...] = tuple(params)
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        form = "="  # native order, no padding but our own
        end = 0
        for param in self.params:
            size, alignment = slot(param)
            start = -(-end // alignment) * alignment
            code = "Q" if isinstance(param, (PointerParam, OffsetParam)) else "q" if _is_extent(param) else f"{size}s"
            form += f"{start - end}x{code}" if start > end else code
            self.offsets.append(start)
            self.sizes.append(size)
            end = start + size
        self.nbytes = end
        self.struct: struct.Struct = struct.Struct(form)
        self.pack: Callable[..., None] = self.struct.pack_into

    def values(self, arrays: Sequence[ArrayView], scalars: Sequence[Any], encode: Encode) -> list[Any]:
        """One value a parameter: `arrays` are inputs, outputs and scratch; `encode` makes TMA descriptors."""
        return [_value(param, arrays, scalars, encode) for param in self.params]

    def split(self, values: Sequence[Any]) -> list[bytes]:
        """The values as one bytes object a parameter."""
        buffer = self.struct.pack(*values)
        return [buffer[o : o + n] for o, n in zip(self.offsets, self.sizes, strict=True)]


def _is_extent(param: AnyParam) -> bool:
    return isinstance(param, (ShapeParam, StrideParam))


def _value(param: AnyParam, arrays: Sequence[ArrayView], scalars: Sequence[Any], encode: Encode) -> Any:
    if isinstance(param, ConstantParam):
        return param.data
    if isinstance(param, PointerParam):
        return arrays[param.array].address
    if isinstance(param, OffsetParam):
        return arrays[param.array].address + param.offset
    if isinstance(param, ShapeParam):
        return arrays[param.array].shape[param.axis]
    if isinstance(param, StrideParam):
        return arrays[param.array].strides[param.axis]
    if isinstance(param, ScalarParam):
        return scalar_bytes(scalars[param.scalar], param.dtype)
    return encode(param, arrays[param.array])
