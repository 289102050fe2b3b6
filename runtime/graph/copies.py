"""Copies and fills of arrays of any strides, as parameters of CUDA graph nodes."""

from __future__ import annotations

from typing import Any

from ..arrays.array_view import CPU, ArrayView
from ..devices import memory


def copy_params(cu: Any, target: ArrayView, source: ArrayView) -> list[tuple[Any, bool]]:
    """`CUDA_MEMCPY3D`s that copy `source` to `target`, and whether each has one dimension."""
    rows = memory.walk((target, source), target.dtype.itemsize)
    made: list[tuple[Any, bool]] = []
    host, device = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    for to, of in rows.starts():
        params = cu.CUDA_MEMCPY3D()
        if target.device == CPU:
            params.dstMemoryType, params.dstHost = host, target.address + to
        else:
            params.dstMemoryType, params.dstDevice = device, target.address + to
        if source.device == CPU:
            params.srcMemoryType, params.srcHost = host, source.address + of
        else:
            params.srcMemoryType, params.srcDevice = device, source.address + of
        params.WidthInBytes, params.Height, params.Depth = rows.width, rows.height, 1
        params.dstPitch, params.srcPitch = rows.pitches
        params.dstHeight = params.srcHeight = rows.height
        made.append((params, rows.height == 1))
    return made


def fill_params(cu: Any, target: ArrayView, value: Any) -> list[tuple[Any, bool]]:
    """`CUDA_MEMSET_NODE_PARAMS` that fill `target`, and whether each has one dimension."""
    pattern = memory.fill_pattern(value, target.dtype)
    rows = memory.walk((target,), target.dtype.itemsize)
    made: list[tuple[Any, bool]] = []
    word = pattern[:1] if len(set(pattern)) == 1 else pattern
    for (start,) in rows.starts():
        if len(word) <= 4:
            width = rows.width // len(word)
            address = target.address + start
            made.append((_memset(cu, address, rows.pitches[0], word, width, rows.height), rows.height == 1))
            continue
        # There is no memset of 8 bytes: low and high words are two columns.
        for row in range(rows.height):
            address = target.address + start + row * rows.pitches[0]
            for at in range(0, len(word), 4):
                count = rows.width // len(word)
                made.append((_memset(cu, address + at, len(word), word[at : at + 4], 1, count), False))
    return made


def _memset(cu: Any, address: int, pitch: int, word: bytes, width: int, height: int) -> Any:
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.pitch = address, pitch
    params.value, params.elementSize = int.from_bytes(word, "little"), len(word)
    params.width, params.height = width, height
    return params
