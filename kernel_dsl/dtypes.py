"""The dtype table: every element type a kernel can hold, with its NumPy twin and its PTX names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from .lazy import lazy
from .boundary import public


class Kind(Enum):
    """What arithmetic a dtype takes part in."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    OPAQUE = "opaque"  # copied, never computed with


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. Compares equal to anything NumPy calls the same dtype; calling it makes a scalar."""

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]

    @lazy
    def itemsize(self) -> int:
        """Bytes an element takes in memory."""
        return self.bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, so that `np.dtype(kd.float32)` works."""
        return self.numpy

    @lazy
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @lazy
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is neither."""
        return self.kind in (Kind.INT, Kind.UINT)

    @lazy
    def is_signed(self) -> bool:
        return self.kind is Kind.INT

    @lazy
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @public
    def __call__(self, value: Any) -> Any:
        return self.numpy.type(value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return self.name == other.name
        try:
            return as_dtype(other).name == self.name
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.numpy)

    def __repr__(self) -> str:
        return f"kd.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


def _make(name: str, kind: Kind, scalar: Any) -> DType:
    numpy = np.dtype(scalar)
    return DType(name, numpy.itemsize * 8, kind, numpy)


bool_ = _make("bool", Kind.BOOL, np.bool_)
int8 = _make("int8", Kind.INT, np.int8)
int16 = _make("int16", Kind.INT, np.int16)
int32 = _make("int32", Kind.INT, np.int32)
int64 = _make("int64", Kind.INT, np.int64)
uint8 = _make("uint8", Kind.UINT, np.uint8)
uint16 = _make("uint16", Kind.UINT, np.uint16)
uint32 = _make("uint32", Kind.UINT, np.uint32)
uint64 = _make("uint64", Kind.UINT, np.uint64)
float16 = _make("float16", Kind.FLOAT, np.float16)
bfloat16 = _make("bfloat16", Kind.FLOAT, ml_dtypes.bfloat16)
float32 = _make("float32", Kind.FLOAT, np.float32)
float64 = _make("float64", Kind.FLOAT, np.float64)
float8_e4m3fn = _make("float8_e4m3fn", Kind.FLOAT, ml_dtypes.float8_e4m3fn)
float8_e5m2 = _make("float8_e5m2", Kind.FLOAT, ml_dtypes.float8_e5m2)
complex64 = _make("complex64", Kind.OPAQUE, np.complex64)

ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, complex64,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in ALL}

FP8 = (float8_e4m3fn, float8_e5m2)


def as_dtype(value: Any) -> DType:
    """The `DType` that `value` names: a DType, a NumPy dtype or scalar type, a string, or a framework's dtype.

    Raises `UnknownDType` (a TypeError) where there is none.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    if value is float:
        return float32
    if value is int:
        return int32
    if value is bool:
        return bool_
    # torch.float32 prints as 'torch.float32'; no framework is imported to find out.
    text = str(value)
    if text.startswith("torch.") and text[6:] in BY_NAME:
        return BY_NAME[text[6:]]
    try:
        return _BY_NUMPY[np.dtype(value)]
    except (TypeError, KeyError):
        from .errors import UnknownDType

        raise UnknownDType(what=repr(value), names=", ".join(BY_NAME)) from None
