"""DLTensors as C sees them, made of NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

from kernel_dsl.dtypes import DType
from kernel_dsl.lowering.host_tensors import DL_CODES


class Tensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, version 1."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def tensor(array: Any, dtype: DType, device: tuple[int, int] = (2, 0)) -> Tensor:
    """A tensor on a GPU over the memory of a NumPy array."""
    words = ctypes.c_int64 * max(array.ndim, 1)
    strides = [n // dtype.itemsize for n in array.strides]
    return Tensor(
        array.ctypes.data, *device, array.ndim, DL_CODES[dtype.name], dtype.bits, 1,
        words(*array.shape), words(*strides), 0,
    )  # fmt: skip
