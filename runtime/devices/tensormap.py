"""TMA descriptors, which the driver encodes from a kernel's recipe and an array, checked by the rules of `tma.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kernel_dsl import tma
from kernel_dsl.compiled import OobFill, ScratchMapParam, Swizzle, TensorMapParam
from kernel_dsl.launch_plan import LaunchPlan

from ..arrays.array_view import ArrayView
from ..errors import ArgumentValueError
from . import driver
from .failures import array_name, where

BYTES = 128


@dataclass(frozen=True)
class TensorMapPlan(tma.Tiled):
    """A descriptor's fields in the form that the driver takes."""

    l2_promotion: int = 0


def array_of(param: TensorMapParam, plan: LaunchPlan) -> str:
    """The name of a descriptor's array, for an error."""
    return f"{array_name(plan, param.array)} of kernel {plan.name!r}{where(plan)}"


def plan(param: TensorMapParam, view: ArrayView, name: str = "the array") -> TensorMapPlan | None:
    """The descriptor of `view` by the recipe `param`; None for an array without elements.

    Raises ArgumentValueError if TMA can't address the array.
    """
    if view.size == 0:
        return None
    if isinstance(param, ScratchMapParam):
        lying = zip(*param.sizes, strict=True)
        view = ArrayView(view.address, next(lying), next(lying), param.dtype, view.device, "", owner=view.owner)
    extents, steps, start = _dimensions(param, view, name)
    item = param.dtype.itemsize
    if len(param.box) != len(extents):
        raise _refusal(name, f"the box {param.box} has {len(param.box)} extents for {len(extents)} dimensions")
    if steps and steps[-1] != 1 and extents[-1] != 1:
        raise _refusal(
            name,
            f"its innermost axis has a stride of {steps[-1]} elements, and TMA needs neighbours (stride 1). "
            "Pass a contiguous copy",
        )
    strides: list[int] = []
    gapless = extents[-1] * item if extents else 0
    for extent, step in zip(reversed(extents[:-1]), reversed(steps[:-1]), strict=True):
        # The stride of an axis of extent 1 is not used, so any legal one is right.
        stride = step * item if extent > 1 else -(-gapless // tma.UNIT) * tma.UNIT
        strides.append(stride)
        gapless = stride * extent
    made = TensorMapPlan(
        view.address + start * item,
        param.dtype,
        tuple(reversed(extents)),
        tuple(strides),
        tuple(reversed(param.box)),
        (1,) * len(extents),
        param.swizzle,
        param.oob_fill,
        l2_promotion=param.l2_promotion,
    )
    wrong = tma.map_rule_broken(made)
    if wrong is not None:
        raise _refusal(name, wrong)
    return made


def refusal(param: TensorMapParam, view: ArrayView) -> str | None:
    """The reason why TMA can't address the array; None if it can."""
    try:
        plan(param, view)
    except ArgumentValueError as error:
        return str(error)
    return None


def _dimensions(param: TensorMapParam, view: ArrayView, name: str) -> tuple[list[int], list[int], int]:
    """Extents and element strides of the tensor's dimensions, outermost first, and its first element."""
    split = dict(param.split)
    window = {axis: (low, high) for axis, low, high in param.window}
    extents: list[int] = []
    steps: list[int] = []
    start = 0
    for axis in param.axes if param.axes is not None else range(len(view.shape)):
        low, high = window.get(axis, (0, view.shape[axis]))
        if not 0 <= low < high <= view.shape[axis]:
            raise _refusal(name, f"elements {low} to {high} of axis {axis} of extent {view.shape[axis]}")
        extent, step = high - low, view.strides[axis]
        start += low * step
        factor = split.get(axis)
        if factor is None:
            extents.append(extent)
            steps.append(step)
            continue
        if extent % factor:
            raise _refusal(name, f"axis {axis} of extent {extent} does not split into tiles of {factor}")
        extents += [extent // factor, factor]
        steps += [step * factor, step]
    return extents, steps, start


def _refusal(name: str, why: str) -> ArgumentValueError:
    return ArgumentValueError(f"{name} cannot be copied by TMA: {why}")


_SWIZZLES = {Swizzle.NONE: "NONE", Swizzle.B32: "32B", Swizzle.B64: "64B", Swizzle.B128: "128B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
_FILLS = {OobFill.ZEROS: "NONE", OobFill.NAN: "NAN_REQUEST_ZERO_FMA"}


@lru_cache(maxsize=4096)
def _around(plan: TensorMapPlan) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The driver's arguments before and after the address, of which `plan` has none."""
    cu = driver.api()
    wide, narrow, rank = cu.cuuint64_t, cu.cuuint32_t, len(plan.extents)
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tma.MAP_TYPES[plan.dtype.name]}")
    return (kind, rank), (
        [wide(n) for n in plan.extents],
        [wide(n) for n in plan.strides or (0,)],  # one dimension has no strides, and the driver wants a pointer
        [narrow(n) for n in plan.box],
        [narrow(1)] * rank,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[plan.swizzle]}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[plan.l2_promotion]}"),
        getattr(cu.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{_FILLS[plan.oob_fill]}"),
    )


def encode_cuda(plan: TensorMapPlan, address: int) -> bytes:
    """The 128 bytes of a `CUtensorMap` at `address`, by the driver. `plan` has the address 0."""
    before, after = _around(plan)
    encoded = driver.check(driver.api().cuTensorMapEncodeTiled(*before, address, *after))
    return ctypes.string_at(int(encoded.getPtr()), BYTES)


class TensorMaps:
    """A cache of encoded descriptors, by recipe and array.

    The same array again gets the kept descriptor. An array of the same geometry at another address skips the checks, and is only
    encoded. A descriptor holds an address and a geometry and owns nothing, so it stays right for memory that was freed and then
    allocated again.
    """

    CAPACITY = 4096
    ALIGNED = 128  # bytes: no rule looks at more of an address

    def __init__(self, encode: Callable[[TensorMapPlan, int], bytes]) -> None:
        self._encode = encode
        self._known: dict[Any, bytes] = {}
        self._alike: dict[
            Any, tuple[TensorMapPlan, int] | None
        ] = {}  # fields, and bytes from the array to its descriptor's

    def get(self, param: TensorMapParam, view: ArrayView, launch: LaunchPlan | None = None) -> bytes:
        """The descriptor of `view`; 128 zero bytes for an array without elements, from which nothing is copied.
        `launch`: the launch of the array, for an error.
        """
        key = (param, view.address, view.shape, view.strides)
        found = self._known.get(key)
        if found is None:
            fields = self._fields(param, view, launch)
            found = bytes(BYTES) if fields is None else self._encode(fields[0], view.address + fields[1])
            if len(self._known) >= self.CAPACITY:
                self._known.clear()
            self._known[key] = found
        return found

    def _fields(
        self, param: TensorMapParam, view: ArrayView, launch: LaunchPlan | None
    ) -> tuple[TensorMapPlan, int] | None:
        key = (param, view.address % self.ALIGNED, view.shape, view.strides, view.dtype)
        if key not in self._alike:
            name = f"a {view.dtype}{list(view.shape)} array" if launch is None else array_of(param, launch)
            made = plan(param, view, name)
            if len(self._alike) >= self.CAPACITY:
                self._alike.clear()
            self._alike[key] = None if made is None else (replace(made, address=0), made.address - view.address)
        return self._alike[key]
