"""The NumPy dtypes of PTX types.

A register array holds bit patterns, in the *storage* dtype of its type: bool for .pred, uint16 for
8- and 16-bit types, uint32 and uint64 for the others; .b128 is uint64 with a last axis of 2 (low
half first). The *value* dtype is the type that the bits mean, if NumPy has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# An elementwise function of one to three arrays: the arities are spelled out so that lambdas'
# parameters take their types from here.
AnyMap = Callable[..., Array]
Map = Callable[[Array], Array] | Callable[[Array, Array], Array] | Callable[[Array, Array, Array], Array]


def spreadable(fn: Map) -> AnyMap:
    """Return `fn` with a type that lets callers spread a tuple of operands."""
    return cast(AnyMap, fn)


DTypeClass = Any  # a NumPy scalar class, called to make constants

#: NumPy's comparisons by their names in PTX.
ORDERED: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

#: Width in bits of each PTX type, packed types included.
BITS: dict[str, int] = {
    "pred": 1,
    "cc": 1,  # the carry flag of the condition code
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "f32x2": 64,
    "u16x2": 32,
    "s16x2": 32,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "e2m3x2": 16,
    "e3m2x2": 16,
    "e2m1x2": 8,
    "ue8m0x2": 16,
    "u8x4": 32,
    "s8x4": 32,
}

_STORAGE_OF_WIDTH: dict[int, DTypeClass] = {
    1: np.bool_,
    8: np.uint16,
    16: np.uint16,
    32: np.uint32,
    64: np.uint64,
    128: np.uint64,
}

#: The dtype of a register array of each PTX type.
STORAGE: dict[str, DTypeClass] = {name: _STORAGE_OF_WIDTH[bits] for name, bits in BITS.items()}

#: The dtype that the bits of a scalar type mean; the same width as its storage.
VALUE: dict[str, DTypeClass] = {
    "pred": np.bool_,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}

#: The integer dtypes by width, for bit work.
UNSIGNED: dict[int, DTypeClass] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, DTypeClass] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}

WIDER: dict[str, str] = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}

CANONICAL_NAN_F32 = np.uint32(0x7FFFFFFF)
CANONICAL_NAN_F64 = np.uint64(0xFFF8000000000000)


def narrow(bits: Array, type_name: str) -> Array:
    """Cut `bits` of any register width to the storage of `type_name` (PTX ISA 9.4.1)."""
    storage = STORAGE[type_name]
    return bits if bits.dtype == storage else bits.astype(storage)
