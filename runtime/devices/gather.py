"""Row-major copies of strided arrays by a kernel: one launch for any strides."""

from __future__ import annotations

from functools import cache

import numpy as np

from ..arrays.array_view import ArrayView
from .device import Device
from .images import load_image

_THREADS = 256
_ENTRY = "gather"


def gather(device: Device, target: ArrayView, source: ArrayView, stream: int) -> None:
    """Copy `source` into the row-major `target`, of the same shape and dtype, in `stream`'s order.

    Both lie where `device` can reach them.
    """
    count = source.size
    if not count:
        return
    axes = merged_axes(source)
    wide = count >= 2**31
    item = source.dtype.itemsize
    extent = np.uint64 if wide else np.uint32
    params: list[ArrayView | bytes] = [source, target, extent(count).tobytes()]
    for size, stride in axes:
        params += [extent(size).tobytes(), np.int64(stride * item).tobytes()]
    load_image(device, gather_ptx(len(axes), item, wide), _ENTRY).launch(
        params, grid=(-(-count // _THREADS), 1, 1), block=(_THREADS, 1, 1), stream=stream
    )


def merged_axes(source: ArrayView) -> list[tuple[int, int]]:
    """(extent, stride in elements) of the fewest axes that visit the array in row-major order."""
    merged: list[tuple[int, int]] = []
    for extent, stride in zip(source.shape, source.strides, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == stride * extent:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return merged


@cache
def gather_ptx(axes: int, itemsize: int, wide: bool) -> bytes:
    """PTX of the copy: one thread for each element, which splits its index from the last axis on.

    `wide`: 64-bit indices.
    """
    index = "u64" if wide else "u32"
    r = "%l" if wide else "%i"  # registers of the index's width
    params = [f".param .u64 {_ENTRY}_source", f".param .u64 {_ENTRY}_target"]
    params.append(f".param .{index} {_ENTRY}_count")
    for axis in range(axes):
        params.append(f".param .{index} {_ENTRY}_extent{axis}")
        params.append(f".param .s64 {_ENTRY}_stride{axis}")
    lines = [
        f"mov.u32 %i0, %ctaid.x; mov.u32 %i1, %tid.x; mul.wide.u32 %l0, %i0, {_THREADS};",
        "cvt.u64.u32 %l1, %i1; add.u64 %l0, %l0, %l1;",
        "" if wide else "cvt.u32.u64 %i0, %l0;",
        f"ld.param.{index} {r}2, [{_ENTRY}_count];",
        f"setp.ge.{index} %p0, {r}0, {r}2;",
        "@%p0 ret;",
        f"mul.lo.u64 %l9, %l0, {itemsize};",
        f"ld.param.u64 %l3, [{_ENTRY}_source];",
    ]
    for axis in reversed(range(axes)):
        lines += [
            f"ld.param.{index} {r}4, [{_ENTRY}_extent{axis}];",
            f"ld.param.s64 %l5, [{_ENTRY}_stride{axis}];",
            f"rem.{index} {r}6, {r}0, {r}4;",
            f"div.{index} {r}0, {r}0, {r}4;",
            "" if wide else "cvt.u64.u32 %l6, %i6;",
            "mad.lo.s64 %l3, %l6, %l5, %l3;",
        ]
    value = {1: "%h0", 2: "%h0", 4: "%i7", 8: "%l7"}[itemsize]
    kind = f"{'u' if itemsize == 1 else 'b'}{8 * itemsize}"
    lines += [
        f"ld.param.u64 %l8, [{_ENTRY}_target]; add.u64 %l8, %l8, %l9;",
        "cvta.to.global.u64 %l3, %l3; cvta.to.global.u64 %l8, %l8;",
        f"ld.global.{kind} {value}, [%l3];",
        f"st.global.{kind} [%l8], {value};",
        "ret;",
    ]
    body = "\n    ".join(line for line in lines if line)
    text = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry {_ENTRY}({", ".join(params)})
{{
    .reg .pred %p<1>;
    .reg .b16 %h<1>;
    .reg .b32 %i<8>;
    .reg .b64 %l<10>;
    {body}
}}
"""
    return text.encode()
