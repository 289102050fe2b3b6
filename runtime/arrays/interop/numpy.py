"""NumPy arrays (and ml_dtypes ones): host memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kernel_dsl.dtypes import DType, as_dtype

from ...errors import ArgumentTypeError, ArgumentValueError
from ..array_view import CPU, ArrayView, Streamless

_DTYPES: dict[np.dtype[Any], DType] = {}


def _dtype(dtype: np.dtype[Any]) -> DType:
    found = _DTYPES.get(dtype)
    if found is None:
        if not dtype.isnative:
            raise ArgumentTypeError(
                f"a NumPy array of {dtype} has foreign byte order; convert it with .astype({dtype.name!r})"
            )
        try:
            found = _DTYPES[dtype] = as_dtype(dtype)
        except TypeError:
            raise ArgumentTypeError(
                f"a NumPy array of {dtype} cannot be passed to a kernel: kernels lack this dtype, so convert it"
            ) from None
    return found


def element_strides(strides: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides as element strides. Raises ArgumentValueError for a stride that is no whole number of elements."""
    if all(s % itemsize == 0 for s in strides):
        return tuple(s // itemsize for s in strides)
    if all(s % itemsize == 0 for s, n in zip(strides, shape, strict=True) if n > 1):
        return tuple(s // itemsize if n > 1 else 0 for s, n in zip(strides, shape, strict=True))
    raise ArgumentValueError(
        f"an array with byte strides {strides} and {itemsize}-byte elements cannot be passed to a "
        "kernel: a stride "
        "is not a whole number of elements. Copy it first, for example with numpy.ascontiguousarray"
    )


class _Numpy(Streamless):
    name = "numpy"

    def view(self, array: Any, stream: int) -> ArrayView:
        # naming numpy.ma imports it, which takes 15 ms; unless it is imported there are no masked arrays
        if type(array) is not np.ndarray and "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):
            raise ArgumentTypeError(
                "a masked array cannot be passed to a kernel, which would ignore its mask; pass .filled()"
            )
        dtype = _dtype(array.dtype)
        data: tuple[int, bool] = array.__array_interface__["data"]
        strides = element_strides(array.strides, array.shape, dtype.itemsize)
        return ArrayView(data[0], array.shape, strides, dtype, CPU, "numpy", data[1], array)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        return np.empty(shape, dtype.numpy)


INTEROP = _Numpy()
