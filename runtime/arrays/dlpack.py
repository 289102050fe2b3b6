"""DLPack capsules through ctypes: read one's tensor, and make one for memory of ours.

Layouts: dlpack.h, `DLManagedTensor` (0.x) and `DLManagedTensorVersioned` (1.x).
"""

from __future__ import annotations

import ctypes
from typing import Any

from kernel_dsl import dtypes
from kernel_dsl.dtypes import DType

from ..errors import ArgumentTypeError, ArgumentValueError
from .array_view import CPU, ArrayView, row_major

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1  # a flag of the versioned struct


class _Tensor(ctypes.Structure):
    _fields_ = (
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
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# DLDataTypeCode and bits -> dtype.
_DTYPES: dict[tuple[int, int], DType] = {
    (0, 8): dtypes.int8,
    (0, 16): dtypes.int16,
    (0, 32): dtypes.int32,
    (0, 64): dtypes.int64,
    (1, 8): dtypes.uint8,
    (1, 16): dtypes.uint16,
    (1, 32): dtypes.uint32,
    (1, 64): dtypes.uint64,
    (2, 16): dtypes.float16,
    (2, 32): dtypes.float32,
    (2, 64): dtypes.float64,
    (4, 16): dtypes.bfloat16,
    (5, 64): dtypes.complex64,
    (6, 8): dtypes.bool_,
    (10, 8): dtypes.float8_e4m3fn,
    (12, 8): dtypes.float8_e5m2,
}
_CODES = {dtype.name: code for code, dtype in _DTYPES.items()}

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_New.restype = ctypes.py_object

_OLD, _NEW = b"dltensor", b"dltensor_versioned"


def read(array: Any, stream: int) -> ArrayView:
    """The view of an object with `__dlpack__`, ordered before work on `stream` (0: the legacy one).

    The capsule is kept, not consumed: it frees its memory together with the view.
    """
    try:
        capsule = _capsule(array, stream)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"a {type_of(array)} gives no DLPack tensor: {type(error).__name__}: {error}"
        ) from error
    if _api.PyCapsule_IsValid(capsule, _NEW):
        new = _Versioned.from_address(_api.PyCapsule_GetPointer(capsule, _NEW))
        return _view(new.tensor, bool(new.flags & _READ_ONLY), (array, capsule))
    if not _api.PyCapsule_IsValid(capsule, _OLD):
        raise ArgumentTypeError(
            f"a {type_of(array)} gives no DLPack tensor, or one that another array took over; pass the array itself, once"
        )
    old = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, _OLD))
    return _view(old.tensor, False, (array, capsule))


def type_of(array: Any) -> str:
    """An array's type, for an error."""
    return f"{type(array).__module__}.{type(array).__name__}"


def _capsule(array: Any, stream: int) -> Any:
    kind = int(array.__dlpack_device__()[0])
    # DLPack's own numbering: 0 is forbidden for CUDA, 1 is the legacy default stream.
    wanted = None if kind == _CPU else stream or 1
    try:
        return array.__dlpack__(stream=wanted, max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        return array.__dlpack__() if wanted is None else array.__dlpack__(stream=wanted)


def _view(tensor: _Tensor, readonly: bool, owner: Any) -> ArrayView:
    kind = int(tensor.device_type)
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise ArgumentTypeError(f"an array on DLPack device type {kind} is neither in host memory nor on a CUDA GPU")
    dtype = _DTYPES.get((int(tensor.code), int(tensor.bits)))
    if dtype is None or tensor.lanes != 1:
        raise ArgumentTypeError(
            f"a DLPack array of type code {tensor.code}, {tensor.bits} bits and {tensor.lanes} "
            "lanes is not one "
            "that a kernel can hold"
        )
    shape = tuple(int(tensor.shape[i]) for i in range(tensor.ndim))
    strides = tuple(int(tensor.strides[i]) for i in range(tensor.ndim)) if tensor.strides else row_major(shape)
    device = CPU if kind in (_CPU, _CUDA_HOST) else ("cuda", int(tensor.device_id))
    address = int(tensor.data or 0) + int(tensor.byte_offset)
    return ArrayView(address, shape, strides, dtype, device, "generic", readonly, owner)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_exported: dict[int, tuple[Any, ...]] = {}


@_DELETER
def _delete(pointer: int) -> None:
    _exported.pop(pointer, None)


_api.PyCapsule_IsValid.restype = ctypes.c_int
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    # A consumer renames a capsule that it takes over, so a capsule with its first name was never used.
    for name in (_OLD, _NEW):
        if _valid(capsule, name):
            _exported.pop(_pointer(capsule, name), None)


def export(view: ArrayView, *, versioned: bool) -> Any:
    """A capsule for `view`, which stays alive until the consumer deletes it."""
    code = _CODES.get(view.dtype.name)
    if code is None:
        raise ArgumentValueError(f"DLPack has no type for {view.dtype}")
    rank = len(view.shape)
    shape = (ctypes.c_int64 * max(rank, 1))(*view.shape)
    strides = (ctypes.c_int64 * max(rank, 1))(*view.strides)
    managed = _Versioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data = view.address
    tensor.device_type = _CPU if view.device == CPU else _CUDA
    tensor.device_id = view.device[1]
    tensor.ndim = rank
    tensor.code, tensor.bits = code
    tensor.lanes = 1
    tensor.shape = shape
    tensor.strides = strides
    if isinstance(managed, _Versioned):
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY if view.readonly else 0
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, view)
    name = _NEW if versioned else _OLD
    return _api.PyCapsule_New(address, name, ctypes.cast(_destroy, ctypes.c_void_p))
