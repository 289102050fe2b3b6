"""Arguments of a raw launch: one for each parameter of the entry, in its order, as bytes or as memory.

An array is passed as the address of its first element, a Python int or float in the parameter's declared type, a NumPy
scalar in its own, bytes as a by-value structure, `None` as a null pointer.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_dsl.compiled import OobFill, Swizzle, TensorMapParam
from kernel_dsl.diagnostics import shown

from ..arrays.array_view import ArrayView, is_array, view
from ..devices.interpreter_device import encode_interpreter
from ..devices.tensormap import plan
from ..errors import ArgumentTypeError, ArgumentValueError, EntryArgumentError
from ..interpreter.machine.im2col import encode_im2col_map
from ..interpreter.ptx.module import Function, Var

_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_POINTERS = ("u64", "b64", "s64")


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map of the user's `array`, for a parameter of 128 bytes."""

    array: Any
    recipe: TensorMapParam

    def encoded(self, view: ArrayView) -> bytes:
        """The 128 bytes for the array at its address. Raises ArgumentValueError if TMA can't address it."""
        fields = plan(self.recipe, view, "the array of a tensor map")
        return bytes(128) if fields is None else encode_interpreter(fields)


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
        if view.size == 0:
            return bytes(128)
        c, item = self.columns, view.dtype.itemsize
        if view.strides[-1] != 1:
            raise ArgumentValueError("an im2col map needs an array whose innermost axis has stride 1")
        steps = [s * item for s in reversed(view.strides[:-1])]
        return encode_im2col_map(
            view.address, view.dtype, view.shape[::-1], steps, c.lower, c.upper, c.channels, c.pixels, c.strides,
            c.swizzle, c.oob_fill,
        )  # fmt: skip


Slot = bytes | ArrayView | TensorMapArgument


def slots(entry: Function, args: Sequence[Any]) -> list[Slot]:
    """The argument of each parameter of the entry. Raises EntryArgumentError at the parameter's place in the PTX."""
    if len(args) != len(entry.params):
        wanted = ", ".join(
            f".{p.elem} {p.name}" if not _is_structure(p) else f"{p.size} bytes {p.name}" for p in entry.params
        )
        what = f"entry {entry.name!r} takes {len(entry.params)} parameters ({wanted or 'none'}), and got {len(args)} arguments"
        raise EntryArgumentError(what, line=entry.line, column=entry.column)
    return [_slot(p, i, a, entry.name) for i, (p, a) in enumerate(zip(entry.params, args, strict=True))]


def _is_structure(p: Var) -> bool:
    return p.elem == "b8" and p.size != 1


def _slot(p: Var, number: int, value: Any, entry: str) -> Slot:
    declared = f"{p.size} bytes" if _is_structure(p) else f".{p.elem}"

    def wrong(why: str, fix: str) -> EntryArgumentError:
        what = f"argument {number} of entry {entry!r}, for '{p.name}' ({declared}), {why}: {fix}"
        return EntryArgumentError(what, line=p.line, column=p.column)

    if isinstance(value, TensorMapArgument):
        if p.size != 128:
            raise wrong("is a tensor map of 128 bytes", "it goes to a parameter .align 64 .b8 [128]")
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        if len(data) != p.size:
            raise wrong(f"has {len(data)} bytes", f"give {p.size}")
        return data
    if value is None:
        if p.size != 8:
            raise wrong("is None", "None is a null pointer, of 8 bytes")
        return bytes(8)
    if isinstance(value, np.generic):
        return _numpy_scalar(p, value, wrong)
    if isinstance(value, (bool, int, float)):
        return _python_scalar(p, value, wrong)
    if not is_array(value):
        raise wrong(f"is {shown(value)}", "give an array, a number, or the bytes of a structure")
    if p.size != 8 or p.elem not in (*_POINTERS, "b8"):
        raise wrong("is an array", "an array goes to a 64-bit pointer; pass a number, or the bytes of a structure")
    return view(value)


def _numpy_scalar(p: Var, value: np.generic, wrong: Any) -> bytes:
    data = value.tobytes()
    if len(data) != p.size:
        raise wrong(f"is a NumPy {value.dtype}, of {len(data)} bytes", f"give one of {p.size}, or a Python number")
    kind = value.dtype.kind
    if (kind == "f" and p.elem[0] in "us") or (kind in "iub" and p.elem[0] == "f"):
        raise wrong(f"is a NumPy {value.dtype}", "convert it, or give a Python number")
    return data


def _python_scalar(p: Var, value: float, wrong: Any) -> bytes:
    if _is_structure(p):
        raise wrong(f"is {shown(value)}", "give the structure's bytes")
    real = p.elem[0] == "f" or (p.elem[0] == "b" and isinstance(value, float))
    if p.elem in ("bf16", "bf16x2", "f16x2") or (real and p.size not in _FLOATS):
        raise wrong(f"is {shown(value)}", "give its bytes, or a NumPy scalar of that size")
    if real:
        try:
            with np.errstate(over="ignore"):
                return struct.pack(_FLOATS[p.size], _rounded(float(value), p.size))
        except OverflowError:
            raise wrong(f"is {shown(value)}", f"which .{p.elem} can't hold") from None
    if isinstance(value, float):
        raise wrong(f"is the float {value!r}", "give an int")
    bits = 8 * p.size
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise wrong(f"is {shown(value)}", f"which does not fit {bits} bits")
    return (int(value) % (1 << bits)).to_bytes(p.size, "little")


def _rounded(value: float, size: int) -> float:
    """The float of `size` bytes nearest to `value`; it may be infinite."""
    return float(np.dtype(f"f{size}").type(value))


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
    return TensorMapArgument(array, TensorMapParam(0, seen.dtype, sizes, _swizzle(swizzle), _fill(fill_nan)))


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
    made = Im2colArgument(array, recipe, columns)
    made.encoded(ArrayView(0, seen.shape, seen.strides, seen.dtype, seen.device, ""))  # what a driver would refuse
    return made


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
