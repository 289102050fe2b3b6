"""Kernel parameters of graph nodes: where each address lies, so that it can be patched alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.compiled import LaunchAttributes, PointerParam, TensorMapParam

from ..arrays.array_view import ArrayView
from ..devices.launch import Launcher, ParamBuffer
from .nodes import ImageWork, KernelWork

POINTER = struct.Struct("=Q")


@dataclass(eq=False)
class PackedKernel:
    """A kernel node's parameters: where in the buffer each address lies."""

    buffer: ParamBuffer
    pointers: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    maps: list[tuple[int, TensorMapParam, int]] = field(default_factory=list[tuple[int, TensorMapParam, int]])
    attributes: LaunchAttributes | None = None
    launcher: Launcher | None = None


def early(kernel: PackedKernel) -> bool:
    return kernel.attributes is not None and kernel.attributes.programmatic_dependent_launch


def fixed_part(kernel: PackedKernel | None) -> Any:
    """What of a kernel node an executable cannot change."""
    if kernel is None or kernel.attributes is None:
        return None
    return kernel.attributes.cluster, kernel.attributes.programmatic_dependent_launch


def pack_kernel(work: KernelWork, arrays: Sequence[ArrayView]) -> PackedKernel:
    layout = work.loaded.layout
    made = PackedKernel(ParamBuffer(layout.offsets, layout.nbytes))
    values = layout.values(arrays, work.scalars, work.loaded.encode)
    layout.pack(made.buffer.buffer, made.buffer.shift, *values)
    for param, offset in zip(layout.params, layout.offsets, strict=True):
        position = made.buffer.shift + offset
        if isinstance(param, PointerParam):
            made.pointers.append((position, param.array))
        elif isinstance(param, TensorMapParam):
            made.maps.append((position, param, param.array))
    return made


def pack_image(work: ImageWork, arrays: Sequence[ArrayView]) -> PackedKernel:
    offsets: list[int] = []
    blobs: list[bytes] = []
    end = 0
    for param in work.params:
        blob = param if isinstance(param, bytes) else POINTER.pack(arrays[param].address)
        step = 64 if len(blob) >= 64 else 16
        offsets.append(-(-end // step) * step)
        end = offsets[-1] + len(blob)
        blobs.append(blob)
    made = PackedKernel(ParamBuffer(offsets, end))
    for offset, blob, param in zip(offsets, blobs, work.params, strict=True):
        position = made.buffer.shift + offset
        made.buffer.buffer[position : position + len(blob)] = blob
        if not isinstance(param, bytes):
            made.pointers.append((position, param))
    return made
