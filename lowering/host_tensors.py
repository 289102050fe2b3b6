"""DLTensors in numbers: kinds of devices, codes of dtypes, strides. From `dlpack.h`, version 1."""

from __future__ import annotations

from collections.abc import Sequence

CUDA, MANAGED = 2, 13  # DLDeviceType
# DLDataTypeCode
DL_CODES = {
    "bool": 6, "int8": 0, "int16": 0, "int32": 0, "int64": 0, "uint8": 1, "uint16": 1, "uint32": 1, "uint64": 1,
    "float16": 2, "float32": 2, "float64": 2, "bfloat16": 4, "complex64": 5, "float8_e4m3fn": 10, "float8_e5m2": 12,
    "float8_e8m0fnu": 14,
}  # fmt: skip


def on_gpu(device: int) -> int:
    """The DLDevice of a GPU, as a word."""
    return CUDA | device << 32


def gapless(shape: Sequence[int]) -> list[int]:
    """The strides of a row-major array, in elements."""
    made = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        made[axis] = made[axis + 1] * shape[axis + 1]
    return made
