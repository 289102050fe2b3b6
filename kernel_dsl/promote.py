"""dtype promotion: JAX's lattice but for what docs/promotion.md lists, and weak Python scalars."""

from __future__ import annotations

from . import dtypes as dt
from .dtypes import DType, Kind
from .errors import NoCommonDType


def join(a: DType, b: DType) -> DType:
    """The dtype of arithmetic between two strong dtypes. Raises `NoCommonDType` if the lattice has none."""
    if a is b or a == b:
        return a
    if Kind.OPAQUE in (a.kind, b.kind):
        raise NoCommonDType(a=a, b=b)
    if a.is_bool:
        return b
    if b.is_bool:
        return a
    if a.is_integer and b.is_integer:
        return _join_integers(a, b)
    if not (a.is_float and b.is_float):
        return a if a.is_float else b
    if a.bits == b.bits:
        if a in dt.FP8:
            raise NoCommonDType(a=a, b=b)
        return dt.float32  # float16 with bfloat16
    return a if a.bits > b.bits else b


def _join_integers(a: DType, b: DType) -> DType:
    if a.kind is b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits == 64:
        raise NoCommonDType(a=a, b=b)
    return dt.BY_NAME[f"int{unsigned.bits * 2}"]


_RANK = {Kind.BOOL: 0, Kind.UINT: 1, Kind.INT: 1, Kind.FLOAT: 2, Kind.OPAQUE: 3}


def join_weak(strong: DType, weak: DType) -> DType:
    """A strong dtype with a weakly typed scalar: the strong one, unless the scalar is of a wider kind."""
    if _RANK[weak.kind] <= _RANK[strong.kind]:
        return strong
    return weak


def promote(items: list[tuple[DType, bool]]) -> tuple[DType, bool]:
    """The common dtype of (dtype, weak) pairs in any order, and whether the result is weak itself."""
    strong = [d for d, weak in items if not weak]
    weak = [d for d, is_weak in items if is_weak]
    if not strong:
        result = weak[0]
        for d in weak[1:]:
            result = result if _RANK[result.kind] >= _RANK[d.kind] else d
        return result, True
    if len(strong) > 2:  # floats first, the widest first: two dtypes without a common one may have one with a third
        strong.sort(key=lambda d: (d.is_float, d.bits), reverse=True)
    result = strong[0]
    for d in strong[1:]:
        result = join(result, d)
    for d in weak:
        result = join_weak(result, d)
    return result, False


def true_division(dtype: DType) -> DType:
    """The dtype of `/` and of functions such as exp: floats keep theirs, ints give float32, 64-bit ints float64."""
    if dtype.is_float:
        return dtype
    return dt.float64 if dtype.bits == 64 else dt.float32


def computing(dtype: DType) -> DType:
    """The dtype that the hardware computes a float operation in; the result is rounded back."""
    if dtype.is_float and dtype.bits < 32:
        return dt.float32
    return dtype


def accumulating(dtype: DType) -> DType:
    """The dtype that sums of this dtype accumulate in."""
    if dtype.is_float:
        return computing(dtype)
    if dtype.is_bool:
        return dt.int32
    if dtype.bits < 32:
        return dt.int32 if dtype.is_signed else dt.uint32
    return dtype
