"""Kernel parameters of graph nodes, and the place of each address in them, so that a replay can change one address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel_dsl.compiled import LaunchAttributes, PointerParam, TensorMapParam
from kernel_dsl.launch_plan import OffsetParam

from ..arrays.array_view import ArrayView
from ..devices.cuda_device import CudaLoaded
from ..devices.launch import ParamBuffer
from .nodes import LaunchWork


@dataclass(eq=False)
class PackedKernel:
    """A kernel node's parameters: for each address, its place in the buffer, its array and its offset in the array."""

    buffer: ParamBuffer
    pointers: list[tuple[int, int, int]]
    maps: list[int]  # the arrays that have descriptors
    attributes: LaunchAttributes
    function: Any

    @property
    def early(self) -> bool:
        """Whether it starts before the kernels before it end."""
        return self.attributes.programmatic_dependent_launch

    @property
    def fixed_part(self) -> Any:
        """The part of a kernel node that an executable can't change."""
        return self.attributes.cluster, self.attributes.programmatic_dependent_launch


def pack(work: LaunchWork, loaded: CudaLoaded, arrays: Sequence[ArrayView]) -> PackedKernel:
    layout = loaded.layout
    buffer = ParamBuffer(layout.offsets, layout.nbytes)
    layout.pack(buffer.buffer, buffer.shift, *layout.values(arrays, work.scalars, loaded.encode))
    pointers: list[tuple[int, int, int]] = []
    for param, offset in zip(layout.params, layout.offsets, strict=True):
        if isinstance(param, (PointerParam, OffsetParam)):
            pointers.append((buffer.shift + offset, param.array, param.offset if isinstance(param, OffsetParam) else 0))
    maps = [param.array for param in layout.params if isinstance(param, TensorMapParam)]
    return PackedKernel(buffer, pointers, maps, work.attributes, loaded.function)


def kernel_params(cu: Any, kernel: PackedKernel) -> Any:
    """The driver's struct for a kernel node; it points into the kernel's buffer."""
    attributes = kernel.attributes
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel.function
    params.gridDimX, params.gridDimY, params.gridDimZ = attributes.grid
    params.blockDimX, params.blockDimY, params.blockDimZ = attributes.block
    params.sharedMemBytes = attributes.dynamic_smem
    params.kernelParams = kernel.buffer.address
    return params
