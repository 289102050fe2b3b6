"""The table of dtypes and their products. The first row that fits counts.

Tensor cores multiply few pairs of dtypes directly. An operand is widened first if a dtype of the tensor cores holds all
of its values: 16-bit floats hold bytes and fp8, and tf32 holds 16-bit floats. Lanes multiply all other dtypes, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import FP8, DType
from kernel_dsl.errors import BadCallValue
from kernel_dsl.promote import join

f16: DType = kd.float16
bf16: DType = kd.bfloat16
f32: DType = kd.float32
f64: DType = kd.float64
BYTES = (kd.int8, kd.uint8)
NARROW = (*FP8, *BYTES, kd.bool_)  # dtypes that float16 and bfloat16 hold exactly
PRECISIONS = (None, "highest", "tf32", "tf32x3")


@dataclass(frozen=True)
class Family:
    """The way to multiply two operands.

    `tensor`: by tensor cores; `thrice`: as high and low parts in tf32; `promoted`: the tensor cores' sums are regularly
    added in float32 registers.
    """

    a: DType
    b: DType
    tensor: bool = True
    thrice: bool = False
    promoted: bool = False


# (dtypes of one side, of the other, the dtype of the product's operands; None: unchanged)
_ROWS: tuple[tuple[tuple[DType, ...], tuple[DType, ...], DType | None], ...] = (
    (FP8, FP8, None),
    (BYTES, BYTES, None),
    ((kd.bool_,), (kd.int8,), kd.int8),
    ((kd.bool_,), (kd.bool_, kd.uint8), kd.uint8),
    ((f16,), (f16, kd.int8), None),
    ((bf16,), (bf16, kd.int8), None),
    ((f16,), NARROW, f16),
    ((bf16,), NARROW, bf16),
    (FP8, (*BYTES, kd.bool_), f16),
    ((f16,), (bf16,), f32),  # tf32 holds both
)


def family(a: DType, b: DType, precision: str | None) -> Family:
    """The way to compute a product of two dtypes. Raises `NoCommonDType`, and `BadCallValue` for a wrong precision."""
    row = next((r for r in _ROWS if (a in r[0] and b in r[1]) or (b in r[0] and a in r[1])), None)
    common = None if row is not None and row[2] != f32 else join(a, b)
    if precision in ("tf32", "tf32x3") and common != f32:
        what = f"precision={shown(precision)} for {a} and {b}"
        raise BadCallValue(kernel="matmul", what=what, hint="leave it out: it is for products of float32")
    if row is not None:
        a, b = (row[2], row[2]) if row[2] is not None else (a, b)
        return Family(a, b, promoted=precision == "highest" and a in FP8 and b in FP8)
    if common == f64:
        return Family(f64, f64)
    if precision in ("tf32", "tf32x3"):
        thrice = precision == "tf32x3"
        return Family(f32, f32, thrice=thrice, promoted=thrice)
    if any(dtype.is_float for dtype in (a, b)):
        return Family(f32, f32, tensor=False)
    wide = kd.int64 if max(a.itemsize, b.itemsize) == 8 else kd.int32
    return Family(wide, wide, tensor=False)


def default_out(a: DType, b: DType) -> DType:
    """bfloat16 for fp8, int32 for 8-bit integers, else the inputs' common dtype. Raises `NoCommonDType`."""
    if a in FP8 and b in FP8:
        return bf16
    common = join(a, b)
    if common in FP8:
        return bf16
    return kd.int32 if common.is_integer and a.itemsize == b.itemsize == 1 else common


def is_mixed(a: Any, b: Any) -> bool:
    """Whether tensor cores multiply two dtypes after the narrower one is widened in registers."""
    return a.itemsize != b.itemsize
