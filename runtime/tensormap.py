"""TMA descriptors: the rules of `cuTensorMapEncodeTiled` in words, and the encoding on CUDA.

Rules: CUDA driver API, 'Tensor Map Object Managment'; PTX ISA 5.5, 'Tensors'.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel_dsl.compiled import CompiledKernel, OobFill, Swizzle, TensorMapParam
from kernel_dsl.dtypes import DType

from . import driver
from .arrays import ArrayView
from .errors import ArgumentValueError, array_name, where

BYTES = 128
_MAX_RANK = 5
_MAX_EXTENT = 2**32
_MAX_STRIDE = 2**40
_MAX_BOX = 256
_ALIGNMENT = 16


@dataclass(frozen=True)
class TensorMapPlan:
    """A descriptor's fields as the driver takes them: innermost dimension first, strides in bytes.

    `strides` has one entry fewer than `extents`: the innermost dimension is contiguous.
    """

    address: int
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle
    oob_fill: OobFill
    l2_promotion: int


def array_of(param: TensorMapParam, kernel: CompiledKernel) -> str:
    """What the array of a descriptor is called in an error."""
    return f"{array_name(kernel, param.array)} of kernel {kernel.name!r}{where(kernel)}"


def plan(param: TensorMapParam, view: ArrayView, name: str = "the array") -> TensorMapPlan | None:
    """The descriptor of `view` by the recipe `param`; None for an array without elements.

    Raises ArgumentValueError where TMA cannot address the array.
    """
    if view.size == 0:
        return None
    extents, steps = _dimensions(param, view, name)
    _check_box(param, extents, name)
    item = param.dtype.itemsize
    if view.address % _ALIGNMENT:
        raise _refusal(name, f"its address {view.address:#x} is not a multiple of {_ALIGNMENT} bytes")
    if steps[-1] != 1 and extents[-1] != 1:
        raise _refusal(
            name,
            f"its innermost axis has a stride of {steps[-1]} elements, and TMA needs neighbours (stride 1). "
            "Pass a contiguous copy",
        )
    strides: list[int] = []
    gapless = extents[-1] * item
    for extent, step in zip(reversed(extents[:-1]), reversed(steps[:-1]), strict=True):
        # The stride of an axis of extent 1 is never used, so any legal one will do.
        stride = step * item if extent > 1 else -(-gapless // _ALIGNMENT) * _ALIGNMENT
        if stride % _ALIGNMENT or not 0 <= stride < _MAX_STRIDE:
            fix = f"Pad the row to a multiple of {_ALIGNMENT} bytes" if stride >= 0 else "Pass a contiguous copy"
            raise _refusal(
                name,
                f"an axis of extent {extent} has a stride of {stride} bytes, and TMA needs a "
                f"non-negative multiple of {_ALIGNMENT} below 2**40. {fix}",
            )
        strides.append(stride)
        gapless = stride * extent
    for extent in extents:
        if extent > _MAX_EXTENT:
            raise _refusal(name, f"an extent of {extent} is over 2**32")
    return TensorMapPlan(
        view.address,
        param.dtype,
        tuple(reversed(extents)),
        tuple(strides),
        tuple(reversed(param.box)),
        param.swizzle,
        param.oob_fill,
        param.l2_promotion,
    )


def _dimensions(param: TensorMapParam, view: ArrayView, name: str) -> tuple[list[int], list[int]]:
    """Extents and element strides of the tensor's dimensions, outermost first."""
    split = dict(param.split)
    extents: list[int] = []
    steps: list[int] = []
    for axis in param.axes if param.axes is not None else range(len(view.shape)):
        extent, step = view.shape[axis], view.strides[axis]
        factor = split.get(axis)
        if factor is None:
            extents.append(extent)
            steps.append(step)
            continue
        if extent % factor:
            raise _refusal(name, f"axis {axis} of extent {extent} does not split into tiles of {factor}")
        extents += [extent // factor, factor]
        steps += [step * factor, step]
    if not 1 <= len(extents) <= _MAX_RANK:
        raise _refusal(name, f"it would have {len(extents)} dimensions, and TMA takes 1 to {_MAX_RANK}")
    return extents, steps


def _check_box(param: TensorMapParam, extents: list[int], name: str) -> None:
    item = param.dtype.itemsize
    if len(param.box) != len(extents):
        raise _refusal(name, f"the box {param.box} has {len(param.box)} extents for {len(extents)} dimensions")
    if any(not 1 <= n <= _MAX_BOX for n in param.box):
        raise _refusal(name, f"the box {param.box} has an extent outside 1 to {_MAX_BOX}")
    inner = param.box[-1] * item
    if inner % _ALIGNMENT:
        raise _refusal(
            name,
            f"the box's innermost extent is {inner} bytes, and TMA needs a multiple of {_ALIGNMENT}",
        )
    if param.swizzle is not Swizzle.NONE and inner > param.swizzle.value:
        raise _refusal(
            name,
            f"the box's innermost extent is {inner} bytes, over the swizzle's span of {param.swizzle.value}",
        )
    if param.oob_fill is OobFill.NAN and param.dtype.name not in _NAN_FILL:
        raise _refusal(name, f"filling with NaN needs a 16-, 32- or 64-bit float dtype, not {param.dtype}")


def _refusal(name: str, why: str) -> ArgumentValueError:
    return ArgumentValueError(f"{name} cannot be copied by TMA: {why}")


_NAN_FILL = frozenset({"float16", "bfloat16", "float32", "float64"})
# CUtensorMapDataType has no int8, int16, bool, fp8 or complex: TMA moves them as unsigned of the
# same size.
_TYPES = {
    "bool": "UINT8",
    "int8": "UINT8",
    "uint8": "UINT8",
    "float8_e4m3fn": "UINT8",
    "float8_e5m2": "UINT8",
    "int16": "UINT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "complex64": "UINT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}
_SWIZZLES = {Swizzle.NONE: "NONE", Swizzle.B32: "32B", Swizzle.B64: "64B", Swizzle.B128: "128B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_FILLS = {OobFill.ZEROS: "NONE", OobFill.NAN: "NAN_REQUEST_ZERO_FMA"}


def encode_cuda(plan: TensorMapPlan) -> bytes:
    """The 128 bytes of a `CUtensorMap`, by the driver."""
    cu = driver.api()
    rank = len(plan.extents)
    wide = cu.cuuint64_t
    narrow = cu.cuuint32_t
    encoded = driver.check(
        cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[plan.dtype.name]}"),
            rank,
            plan.address,
            [wide(n) for n in plan.extents],
            [wide(n) for n in plan.strides or (0,)],  # one dimension has no strides, and the driver wants a pointer
            [narrow(n) for n in plan.box],
            [narrow(1)] * rank,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[plan.swizzle]}"),
            getattr(
                cu.CUtensorMapL2promotion,
                f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[plan.l2_promotion]}",
            ),
            getattr(cu.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{_FILLS[plan.oob_fill]}"),
        )
    )
    return ctypes.string_at(int(encoded.getPtr()), BYTES)


class TensorMaps:
    """Encoded descriptors, kept by what they describe: the same arrays again encode nothing.

    A descriptor holds an address and a geometry, no ownership: one for memory that was freed and
    given out again is as good as new.
    """

    CAPACITY = 4096

    def __init__(self, encode: Callable[[TensorMapPlan], bytes]) -> None:
        self._encode = encode
        self._known: dict[Any, bytes] = {}

    def get(self, param: TensorMapParam, view: ArrayView, kernel: CompiledKernel | None = None) -> bytes:
        """The descriptor of `view`; 128 zero bytes for an array without elements, from which
        nothing is copied. `kernel` is whose array it is, for an error.
        """
        key = (param, view.address, view.shape, view.strides)
        found = self._known.get(key)
        if found is None:
            name = f"a {view.dtype}{list(view.shape)} array" if kernel is None else array_of(param, kernel)
            fields = plan(param, view, name)
            found = bytes(BYTES) if fields is None else self._encode(fields)
            if len(self._known) >= self.CAPACITY:
                self._known.clear()
            self._known[key] = found
        return found
