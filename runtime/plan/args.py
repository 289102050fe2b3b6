"""Kernel parameters:

what a launch checks of its arrays, and how arrays and scalars become the bytes of a launch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    Param,
    PointerParam,
    ScalarParam,
    ShapeParam,
    StrideParam,
    TensorMapParam,
)
from kernel_dsl.dtypes import DType

from ..arrays.array_view import ArrayView, overlap
from ..errors import ArgumentTypeError, ArgumentValueError, array_name, where


@dataclass(frozen=True)
class ConstantParam:
    """A parameter that is the same in each launch, as bytes: the geometry that an untraced kernel is told."""

    data: bytes


@dataclass(frozen=True)
class PlacedParam:
    """The address of scalar number `scalar`, which each launch puts in the device's memory.

    It is how an untraced kernel takes a scalar among its inputs. `dtype` is what lies there.
    """

    scalar: int
    dtype: DType


AnyParam = Param | ConstantParam | PlacedParam
Encode = Callable[[TensorMapParam, ArrayView], bytes]


def check_arrays(kernel: CompiledKernel, arrays: Sequence[ArrayView]) -> None:
    """Raise where `arrays` (inputs, then outputs) are not what the compiled code assumes."""
    if len(arrays) != len(kernel.arrays):
        raise ArgumentTypeError(
            f"kernel {kernel.name!r} takes {kernel.inputs} input arrays and "
            f"{len(kernel.arrays) - kernel.inputs} "
            ""
            ""
            f"outputs, and got {len(arrays)} arrays{where(kernel)}"
        )
    for index, (view, assumed) in enumerate(zip(arrays, kernel.arrays, strict=True)):
        problem = _mismatch(view, assumed)
        if problem:
            raise ArgumentValueError(f"{array_name(kernel, index)} of kernel {kernel.name!r} {problem}{where(kernel)}")
    check_overlaps(kernel, arrays)


def _mismatch(view: ArrayView, assumed: ArrayAssumption) -> str:
    if view.dtype != assumed.dtype:
        return f"must hold {assumed.dtype}, and holds {view.dtype}"
    if tuple(view.shape) != tuple(assumed.shape):
        return f"must have shape {tuple(assumed.shape)}, and has {tuple(view.shape)}"
    if assumed.written and view.readonly:
        return "is written by the kernel, and is read-only. Pass a writable array, or let the call allocate the output"
    if view.size == 0:
        return ""
    if assumed.contiguous and not view.contiguous:
        return f"must be row-major without gaps, and has strides {view.strides} (in elements)"
    # Host memory may lie anywhere: what runs on a GPU is a copy.
    alignment = max(assumed.alignment, min(view.dtype.itemsize, 8) if view.device[0] == "cuda" else 1)
    if view.address % alignment:
        return f"must be {alignment}-byte aligned, and lies at {view.address:#x}"
    if assumed.written and view.broadcast:
        return "is written by the kernel, and is broadcast: several of its elements share memory"
    return ""


def find_overlaps(arrays: Sequence[ArrayView]) -> tuple[tuple[int, int], ...]:
    """The pairs (i, j), i < j, of arrays that share memory:

    what a compile is told as `CompiledKernel.overlaps`.
    """
    return tuple((i, j) for j in range(len(arrays)) for i in range(j) if overlap(arrays[i], arrays[j]))


def check_overlaps(kernel: CompiledKernel, arrays: Sequence[ArrayView]) -> None:
    """Raise where memory that the kernel writes is shared in a way that it was not compiled for."""
    for i, j in find_overlaps(arrays):
        if not (kernel.arrays[i].written or kernel.arrays[j].written):
            continue
        pair = f"{array_name(kernel, i)} and {array_name(kernel, j)} of kernel {kernel.name!r}"
        if i >= kernel.inputs:
            raise ArgumentValueError(f"{pair} share memory: each output needs its own{where(kernel)}")
        if j >= kernel.inputs and not arrays[i].same_memory(arrays[j]):
            raise ArgumentValueError(
                f"{pair} overlap in memory. For work in place pass the very same array as input "
                "and in out=; "
                f"otherwise pass a copy{where(kernel)}"
            )
        if not told(kernel, i, j):
            raise ArgumentValueError(f"{pair} share memory, which this kernel was not compiled for{where(kernel)}")


def told(kernel: CompiledKernel, i: int, j: int) -> bool:
    """Whether the compiled code knows that arrays i and j may be one memory: directly, or by way of others."""
    pairs = list(kernel.overlaps)
    pairs += [(o.alias, kernel.inputs + n) for n, o in enumerate(kernel.outputs) if o.alias is not None]
    reached, size = {i}, 0
    while size != len(reached):
        size = len(reached)
        for pair in pairs:
            if not reached.isdisjoint(pair):
                reached.update(pair)
    return j in reached


def scalar_bytes(value: Any, dtype: DType) -> bytes:
    """`value` as `dtype`'s bytes, little endian.

    Raises ArgumentValueError where an int does not fit.
    """
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


class ParamLayout:
    """Where each parameter of a kernel lies in one buffer, and how to write them all at once.

    `offsets` and `sizes` are in bytes; `pack` is the bound `struct.Struct.pack_into`, taking
    `values(...)`.
    """

    def __init__(self, params: Sequence[AnyParam]) -> None:
        self.params: tuple[AnyParam, ...] = tuple(params)
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        form = "="  # native order, no padding but our own
        end = 0
        for param in self.params:
            size, alignment, code = _slot(param)
            start = -(-end // alignment) * alignment
            form += f"{start - end}x{code}" if start > end else code
            self.offsets.append(start)
            self.sizes.append(size)
            end = start + size
        self.nbytes = end
        self.struct: struct.Struct = struct.Struct(form)
        self.pack: Callable[..., None] = self.struct.pack_into

    def values(self, arrays: Sequence[ArrayView], scalars: Sequence[Any], encode: Encode) -> list[Any]:
        """One value a parameter:

        `arrays` are inputs, outputs and workspaces; `encode` makes TMA descriptors.
        """
        return [_value(param, arrays, scalars, encode) for param in self.params]

    def split(self, values: Sequence[Any]) -> list[bytes]:
        """The values as one bytes object a parameter."""
        buffer = self.struct.pack(*values)
        return [buffer[o : o + n] for o, n in zip(self.offsets, self.sizes, strict=True)]


def _slot(param: AnyParam) -> tuple[int, int, str]:
    """Size, alignment and struct code of a parameter."""
    if isinstance(param, ConstantParam):
        size = len(param.data)
        return size, 16, f"{size}s"
    if isinstance(param, TensorMapParam):
        return 128, 64, "128s"
    if isinstance(param, (PointerParam, PlacedParam)):
        return 8, 8, "Q"
    if isinstance(param, ScalarParam):
        size = param.dtype.itemsize
        return size, size, f"{size}s"
    return 8, 8, "q"


def _value(param: AnyParam, arrays: Sequence[ArrayView], scalars: Sequence[Any], encode: Encode) -> Any:
    if isinstance(param, ConstantParam):
        return param.data
    if isinstance(param, PointerParam):
        return arrays[param.array].address
    if isinstance(param, ShapeParam):
        return arrays[param.array].shape[param.axis]
    if isinstance(param, StrideParam):
        return arrays[param.array].strides[param.axis]
    if isinstance(param, ScalarParam):
        return scalar_bytes(scalars[param.scalar], param.dtype)
    if isinstance(param, PlacedParam):
        return 0  # each launch has its own
    return encode(param, arrays[param.array])
