"""The dtype table: every element type a kernel can hold, with its NumPy twin and its PTX names."""

from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

from .dataclass import dataclass
from .lazy import lazy


class Kind(Enum):
    """The kind of arithmetic that a dtype takes part in."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    OPAQUE = "opaque"  # copied and sometimes converted, without arithmetic


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. It equals every name that NumPy has for the same dtype; a call makes a scalar."""

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]

    @lazy
    def itemsize(self) -> int:
        """Bytes of an element in memory. For 4-bit elements, two of which share a byte in memory, it is 1."""
        return max(self.bits // 8, 1)

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
    def only_copied(self) -> str:
        """The error's help for arithmetic on an opaque dtype."""
        if self.numpy.kind == "c":
            return "complex values are only copied"
        return f"{self.name} is for memory: convert with `.astype(...)` to a dtype for arithmetic"

    @lazy
    def is_packed(self) -> bool:
        """Whether two elements share a byte of a kernel's memory, the first in its low half."""
        return self.bits == 4

    @lazy
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    def __call__(self, value: Any) -> Any:
        try:
            if not _is_number(value):  # ml_dtypes ends the process when it converts text
                raise TypeError
            return self.numpy.type(value)
        except Exception as error:
            from .diagnostics import at_user_line, shown
            from .errors import BadArgumentType, LiteralOutOfRange

            what, hint = f"value={shown(value)}", "a number: inside a kernel convert values with `.astype(...)`"
            if isinstance(error, OverflowError):
                refused: Any = LiteralOutOfRange(value=value, dtype=self, hint="use a wider dtype")
            else:
                refused = BadArgumentType(op=f"kd.{self.name}", what=what, hint=hint)
            raise at_user_line(refused) from None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return self.name == other.name
        found = _named(other)
        return found is not None and found.name == self.name

    def __hash__(self) -> int:
        return hash(self.numpy)

    def __repr__(self) -> str:
        return f"kd.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or an array or list of them, by its class."""
    cls: type[Any] = type(value)
    if issubclass(cls, (np.ndarray, np.generic, list, tuple)):
        return not issubclass(cls, (str, bytes))
    return any(hasattr(cls, name) for name in ("__float__", "__index__", "__complex__")) and not issubclass(cls, str)


def _make(name: str, kind: Kind, scalar: Any, bits: int | None = None) -> DType:
    numpy = np.dtype(scalar)
    return DType(name, bits or numpy.itemsize * 8, kind, numpy)


bool_: DType = _make("bool", Kind.BOOL, np.bool_)
int8: DType = _make("int8", Kind.INT, np.int8)
int16: DType = _make("int16", Kind.INT, np.int16)
int32: DType = _make("int32", Kind.INT, np.int32)
int64: DType = _make("int64", Kind.INT, np.int64)
uint8: DType = _make("uint8", Kind.UINT, np.uint8)
uint16: DType = _make("uint16", Kind.UINT, np.uint16)
uint32: DType = _make("uint32", Kind.UINT, np.uint32)
uint64: DType = _make("uint64", Kind.UINT, np.uint64)
float16: DType = _make("float16", Kind.FLOAT, np.float16)
bfloat16: DType = _make("bfloat16", Kind.FLOAT, ml_dtypes.bfloat16)
float32: DType = _make("float32", Kind.FLOAT, np.float32)
float64: DType = _make("float64", Kind.FLOAT, np.float64)
float8_e4m3fn: DType = _make("float8_e4m3fn", Kind.FLOAT, ml_dtypes.float8_e4m3fn)
float8_e5m2: DType = _make("float8_e5m2", Kind.FLOAT, ml_dtypes.float8_e5m2)
complex64: DType = _make("complex64", Kind.OPAQUE, np.complex64)
int4: DType = _make("int4", Kind.OPAQUE, ml_dtypes.int4, 4)
uint4: DType = _make("uint4", Kind.OPAQUE, ml_dtypes.uint4, 4)
float4_e2m1fn: DType = _make("float4_e2m1fn", Kind.OPAQUE, ml_dtypes.float4_e2m1fn, 4)
float8_e8m0fnu: DType = _make("float8_e8m0fnu", Kind.OPAQUE, ml_dtypes.float8_e8m0fnu)

ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, complex64,
    int4, uint4, float4_e2m1fn, float8_e8m0fnu,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in ALL}

FP8 = (float8_e4m3fn, float8_e5m2)
STORAGE = (int4, uint4, float4_e2m1fn, float8_e8m0fnu)  # for memory only: `astype` makes dtypes for arithmetic


def as_dtype(value: Any) -> DType:
    """The `DType` that `value` names: a DType, a NumPy dtype or scalar type, a string, or a framework's dtype.

    Raises `UnknownDType` (a TypeError) where there is none.
    """
    if isinstance(value, DType):
        return value
    found = _named(value)
    if found is None:
        from .diagnostics import shown
        from .errors import UnknownDType

        raise UnknownDType(what=shown(value), names=", ".join(BY_NAME))
    return found


_PYTHON = ((float, float32), (int, int32), (bool, bool_))


def of_python(value: Any) -> DType | None:
    """The dtype in a kernel of a Python bool, int or float; None for all else, also NumPy's scalars."""
    if isinstance(value, np.generic):  # np.float64 is a subclass of float with a dtype of its own
        return None
    return next((dtype for python, dtype in reversed(_PYTHON) if isinstance(value, python)), None)


def _named(value: Any) -> DType | None:
    """The dtype that an object other than a `DType` names. An array or a number holds values and names none."""
    cls: type[Any] = type(value)
    if issubclass(cls, str):
        name = str.__str__(value)
        return BY_NAME.get(name) or _from_numpy(name)
    if issubclass(cls, type):
        return next((own for python, own in _PYTHON if value is python), None) or _from_numpy(value)
    if issubclass(cls, np.dtype):
        return _from_numpy(value)
    if cls.__module__ in ("torch", "mlx.core"):  # torch.float32 prints as 'torch.float32'; no framework is imported
        return BY_NAME.get(str(value).rpartition(".")[2])
    # a framework's word for a dtype, such as `jnp.float32`
    return _from_numpy(value) if cls.__module__.partition(".")[0] in ("jax", "jaxlib", "cupy", "ml_dtypes") else None


def _from_numpy(value: Any) -> DType | None:
    try:
        return _BY_NUMPY.get(np.dtype(value))
    except Exception:  # TypeError, ValueError, SyntaxError ... and what a class raises in `dtype`
        return None
