"""CuPy arrays, in CuPy's current stream.

ml_dtypes arrays (bfloat16, fp8) are taken where CuPy holds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype

from ...errors import ArgumentTypeError
from ..array_view import ArrayView
from .numpy import element_strides

# The program has imported CuPy: this file is loaded for the first CuPy array.
cupy: Any = sys.modules["cupy"]

_DTYPES: dict[Any, DType] = {}


def dtype_of(dtype: Any) -> DType:
    """The DType of a CuPy (that is NumPy) dtype."""
    found = _DTYPES.get(dtype)
    if found is None:
        try:
            found = _DTYPES[dtype] = as_dtype(np.dtype(dtype))
        except TypeError:
            raise ArgumentTypeError(
                f"a CuPy array of {dtype} cannot be passed to a kernel: kernels lack this dtype, so convert it"
            ) from None
    return found


class _Cupy:
    name = "cupy"

    def view(self, array: Any, stream: int) -> ArrayView:
        if not isinstance(array, cupy.ndarray):
            raise ArgumentTypeError(f"{of_kind(array)} of CuPy is not a dense array; convert it first")
        dtype = dtype_of(array.dtype)
        strides = element_strides(array.strides, array.shape, dtype.itemsize)
        place = ("cuda", int(array.device.id))
        return ArrayView(array.data.ptr, array.shape, strides, dtype, place, "cupy", False, array)

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        with cupy.cuda.Device(device[1]):
            if stream == cupy.cuda.get_current_stream().ptr:
                return cupy.empty(shape, dtype.numpy)
            # CuPy's pool reuses memory in stream order: the output must belong to the stream that
            # writes it.
            with cupy.cuda.ExternalStream(stream, device[1]):
                return cupy.empty(shape, dtype.numpy)

    def current_stream(self, index: int) -> int:
        with cupy.cuda.Device(index):
            return int(cupy.cuda.get_current_stream().ptr)

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int]) -> Callable[[], Any]:
        def allocate() -> Any:
            with cupy.cuda.Device(device[1]):
                return cupy.empty(shape, dtype.numpy)

        return allocate

    def finish(self, array: Any, view: ArrayView, stream: int) -> Any:
        return array


INTEROP = _Cupy()
