"""SIMD video instructions (PTX ISA 9.7.19.2): two or four fields of a 32-bit register at once.

The forms have no masks and selectors, as CUDA's SIMD intrinsics use them: field i of a is combined with
field i of b. Every field of the result is written, so c only matters with `.add`, which adds the
fields' results to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .forms import Body, form
from .types import ORDERED, SIGNED, UNSIGNED, Array

Fields = Callable[[Array, Array], Array]


def _average(a: Array, b: Array) -> Array:
    """Return half the sum; halves are rounded up where the sum is not negative."""
    total = a + b
    return (total + (total >= 0)) >> 1


_OPERATIONS: dict[str, Fields] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": _average,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


def _fields(a: Array, width: int, type_: str) -> Array:
    """Return the fields of registers, along a new last axis, as int64."""
    field = (SIGNED if type_ == "s32" else UNSIGNED)[width]
    parts = np.ascontiguousarray(a).view(field)
    return parts.reshape(*np.shape(a), 32 // width).astype(np.int64)


def _pack(fields: Array, width: int) -> Array:
    """Put the low bits of each field back into registers."""
    unsigned: Any = UNSIGNED[width]
    return np.ascontiguousarray(fields.astype(unsigned)).view(np.uint32)[..., 0]


def _body(operation: Fields, width: int, a_type: str, b_type: str, result: str, add: bool) -> Body:
    def fn(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        a, b, c = np.broadcast_arrays(a, b, c)
        fields = operation(_fields(a, width, a_type), _fields(b, width, b_type))
        if add:
            return (c + fields.sum(axis=-1).astype(np.uint32),)
        return (_pack(fields, width),)

    return Body((a_type, b_type, result), (result,), fn)


def _limits(width: int, type_: str) -> tuple[np.int64, np.int64]:
    if type_ == "s32":
        return np.int64(-(2 ** (width - 1))), np.int64(2 ** (width - 1) - 1)
    return np.int64(0), np.int64(2**width - 1)


@form("vadd2|vsub2|vavrg2|vabsdiff2|vmin2|vmax2 u32|s32 u32|s32 u32|s32 sat|add?")
@form("vadd4|vsub4|vavrg4|vabsdiff4|vmin4|vmax4 u32|s32 u32|s32 u32|s32 sat|add?")
def simd(name: str, result: str, a_type: str, b_type: str, extra: str) -> Body:
    width = 32 // int(name[-1])
    operation = _OPERATIONS[name[:-1]]
    if extra == "sat":
        plain, (low, high) = operation, _limits(width, result)
        operation = _clamped(plain, low, high)
    return _body(operation, width, a_type, b_type, result, extra == "add")


def _clamped(plain: Fields, low: np.int64, high: np.int64) -> Fields:
    return lambda a, b: np.minimum(np.maximum(plain(a, b), low), high)


@form("vset2|vset4 u32|s32 u32|s32 eq|ne|lt|le|gt|ge add?")
def simd_set(name: str, a_type: str, b_type: str, comparison: str, add: str) -> Body:
    """Build vset: it gives 1 in each field where the comparison holds."""
    ufunc = ORDERED[comparison]

    def operation(a: Array, b: Array) -> Array:
        return ufunc(a, b).astype(np.int64)

    return _body(operation, 32 // int(name[-1]), a_type, b_type, "u32", bool(add))
