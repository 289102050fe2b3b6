"""Arguments of a raw launch: one for each parameter of the entry, in its order, as bytes or as memory.

An array is passed as the address of its first element, a Python int or float in the parameter's declared type, a NumPy
scalar in its own, bytes as a by-value structure, nests of arrays and numbers too, `None` as a null pointer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_dsl.diagnostics import shown

from ..arrays.array_view import ArrayView, is_array, view
from ..errors import ArgumentTypeError, ArgumentValueError, EntryArgumentError
from ..interpreter.ptx.module import Function, Var
from .structures import Structure, StructureArgument, as_structure, placed
from .tensor_maps import TensorMapArgument

_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_POINTERS = ("u64", "b64", "s64")


Slot = bytes | ArrayView | TensorMapArgument | StructureArgument


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
        what = f"argument {number} of entry {shown(entry)}, for '{p.name}' ({declared}), {why}: {fix}"
        return EntryArgumentError(what, line=p.line, column=p.column)

    if isinstance(value, TensorMapArgument):
        if p.size != 128:
            raise wrong("is a tensor map of 128 bytes", "it goes to a parameter .align 64 .b8 [128]")
        return value
    structure = value if isinstance(value, Structure) else as_structure(value)
    if structure is not None:
        if not _is_structure(p):
            raise wrong("is a structure", "give an array or a number")
        try:
            return placed(structure, p.size, p.name)
        except (ArgumentTypeError, ArgumentValueError) as error:
            what = f"argument {number} of entry {shown(entry)}, for {p.name!r}, {error.fields['message']}"
            raise EntryArgumentError(what, line=p.line, column=p.column) from None
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
        raise wrong(f"is {shown(value)}", "give an array, a number, or a structure")
    if p.size != 8 or p.elem not in (*_POINTERS, "b8"):
        raise wrong(
            "is an array", "an array goes to a 64-bit pointer; pass a number, or a tuple of the structure's fields"
        )
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
        raise wrong(f"is {shown(value)}", "give the structure: its bytes, or a tuple of its fields")
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
