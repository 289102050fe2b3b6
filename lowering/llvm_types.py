"""How LLVM spells types and constants of the language's dtypes."""

from __future__ import annotations

import struct
from typing import Any

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType, Kind

_TYPES = {
    "bool": "i1",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "i8",
    "float8_e5m2": "i8",
    "complex64": "i64",
    "int4": "i8",  # its code, from 0 to 15, as for all 4-bit dtypes
    "uint4": "i8",
    "float4_e2m1fn": "i8",
    "float8_e8m0fnu": "i8",
}
_INTEGERS = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}
_SUFFIXES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def llvm_type(dtype: DType) -> str:
    """The LLVM type that holds one element in a register."""
    return _TYPES.get(dtype.name) or f"i{dtype.bits}"


def suffix(type: str) -> str:
    """The name of an LLVM type in an overloaded intrinsic: f32, i16, bf16."""
    return _SUFFIXES.get(type, type)


def integer_type(type: str) -> str:
    """The integer type with the same number of bits."""
    return _INTEGERS.get(type, type)


def kind_letter(dtype: DType) -> str:
    """The key of an op's `llvm` table: "f", "i", "u" or "b"."""
    kind = dtype.kind
    if kind is Kind.FLOAT:
        return "f"
    if kind is Kind.BOOL:
        return "b"
    return "i" if kind is Kind.INT else "u"


def float_bits(value: float) -> str:
    """A float or double in LLVM text: the 64 bits of a double, for both types."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def literal(value: Any, dtype: DType) -> str:
    """A constant as LLVM text, exactly."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype in dt.STORAGE:
        import numpy as np

        code = np.asarray(value).astype(dtype.numpy).view(np.uint8)
        return str(int(code) & 15 if dtype.is_packed else int(code.view(np.int8)))
    if not dtype.is_float:
        number = int(value)
        if number >= 1 << dtype.bits - 1:  # printed as signed
            number -= 1 << dtype.bits
        return str(number)
    if dtype == dt.float64:
        return float_bits(float(value))
    import numpy as np

    if dtype in dt.FP8:
        return str(int(np.asarray(value, dtype.numpy).view(np.int8)))
    with np.errstate(over="ignore"):  # a large number is an infinity
        rounded = np.asarray(value, np.float64).astype(dtype.numpy)
    if dtype == dt.float32:
        return float_bits(float(rounded))
    bits = int(rounded.view(np.uint16))
    return f"0x{'H' if dtype == dt.float16 else 'R'}{bits:04X}"
