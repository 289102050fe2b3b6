"""Tensor maps as arguments of a check: what the driver's cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col make."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from kernel_dsl.compiled import OobFill, Swizzle, TensorMapParam
from kernel_dsl.diagnostics import shown

from ..arrays.array_view import ArrayView, is_array, view
from ..devices.interpreter_device import encode_interpreter
from ..devices.tensormap import plan
from ..errors import ArgumentTypeError, ArgumentValueError
from ..interpreter.machine.im2col import encode_im2col_map


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map of the user's `array`, for a parameter of 128 bytes."""

    array: Any
    recipe: TensorMapParam

    def encoded(self, view: ArrayView) -> bytes:
        """The 128 bytes for the array at its address. Raises ArgumentValueError if TMA can't address it."""
        fields = plan(self.recipe, view, "the array of a tensor map")
        assert fields is not None  # the array has elements
        return encode_interpreter(fields)


@dataclass(frozen=True)
class Im2colRecipe:
    """What an im2col map says beside its array: all innermost first, without channels and batch."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    strides: tuple[int, ...]
    swizzle: Swizzle
    oob_fill: OobFill


@dataclass(frozen=True)
class Im2colArgument(TensorMapArgument):
    """A tensor map of im2col mode over an array."""

    columns: Im2colRecipe

    def encoded(self, view: ArrayView) -> bytes:
        c, item = self.columns, view.dtype.itemsize
        if view.strides[-1] != 1:
            raise ArgumentValueError("an im2col map needs an array whose innermost axis has stride 1")
        steps = [s * item for s in reversed(view.strides[:-1])]
        return encode_im2col_map(
            view.address, view.dtype, view.shape[::-1], steps, c.lower, c.upper, c.channels, c.pixels, c.strides,
            c.swizzle, c.oob_fill,
        )  # fmt: skip


def tensor_map(array: Any, box: Any, swizzle: Any, fill_nan: bool) -> TensorMapArgument:
    """Implements `kd.check.tensor_map`. Raises ArgumentTypeError and ArgumentValueError."""
    if not is_array(array):
        raise ArgumentTypeError(f"tensor_map takes an array, and got {shown(array)}")
    seen = view(array)
    extents = box if isinstance(box, (tuple, list)) else (box,)
    try:
        sizes = tuple(operator.index(b) for b in extents)
    except TypeError:
        raise ArgumentTypeError(f"box={shown(box)} must be ints, one for each axis of the array") from None
    if len(sizes) != len(seen.shape):
        raise ArgumentValueError(f"box={shown(box)} has {len(sizes)} extents, and the array {len(seen.shape)} axes")
    made = TensorMapArgument(array, TensorMapParam(0, seen.dtype, sizes, _swizzle(swizzle), _fill(fill_nan)))
    return _legal(made, seen)


def _legal(made: TensorMapArgument, seen: ArrayView) -> Any:
    """Return a map that a driver would make wherever the array lies. Raises ArgumentValueError for another one."""
    if not seen.size:
        raise ArgumentValueError(f"the array of a tensor map has the shape {seen.shape}, and TMA wants elements")
    made.encoded(ArrayView(0, seen.shape, seen.strides, seen.dtype, seen.device, ""))
    return made


def _swizzle(given: Any) -> Swizzle:
    if given not in (0, 32, 64, 128):
        raise ArgumentValueError(f"swizzle={shown(given)} must be 0, 32, 64 or 128 bytes")
    return Swizzle(given)


def _fill(fill_nan: bool) -> OobFill:
    return OobFill.NAN if fill_nan else OobFill.ZEROS


def im2col_map(
    array: Any, pixels: Any, channels: Any, lower: Any, upper: Any, strides: Any, swizzle: Any, fill_nan: bool
) -> Im2colArgument:
    """What `kd.check.im2col_map` gives. Raises ArgumentTypeError and ArgumentValueError."""
    if not is_array(array):
        raise ArgumentTypeError(f"im2col_map takes an array, and got {shown(array)}")
    seen = view(array)
    count = len(seen.shape) - 2
    if not 1 <= count <= 3:
        raise ArgumentValueError(f"im2col_map takes an array of 3 to 5 axes, and got one of {count + 2}")
    corners = [_ints(name, given, count) for name, given in (("lower", lower), ("upper", upper), ("strides", strides))]
    sizes = [_ints(name, given, 1)[0] for name, given in (("pixels", pixels), ("channels", channels))]
    box = (*(1,) * (count + 1), sizes[1])
    columns = Im2colRecipe(corners[0], corners[1], sizes[1], sizes[0], corners[2], _swizzle(swizzle), _fill(fill_nan))
    recipe = TensorMapParam(0, seen.dtype, box, columns.swizzle, columns.oob_fill)
    return _legal(Im2colArgument(array, recipe, columns), seen)


def _ints(name: str, given: Any, count: int) -> tuple[int, ...]:
    """`count` ints, innermost first; an int stands for equal ones."""
    values = given if isinstance(given, (tuple, list)) else (given,) * count
    try:
        found = tuple(operator.index(v) for v in values)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={shown(given)} must be ints, one for each axis between batch and channels"
        ) from None
    if len(found) != count:
        raise ArgumentValueError(f"{name}={shown(given)} has {len(found)} ints, and {count} are wanted")
    return found[::-1]
