"""One prepared launch: grid, block, cluster, dynamic SMEM, attributes; `cuLaunchKernel(Ex)`.

`grid` counts blocks (CTAs) here, as in CUDA. Only the compiler knows grids of clusters.
"""

from __future__ import annotations

import ctypes
from typing import Any

from kernel_dsl.compiled import LaunchAttributes
from kernel_dsl.target import Feature, Target

from ..errors import ArgumentValueError
from . import driver

_PORTABLE_CLUSTER = 8
_LARGEST_CLUSTER = 16
# Dynamic SMEM that a kernel may have without an attribute (CUDA C++ Programming Guide, 'Shared Memory 8.x').
_PLAIN_SMEM = 48 * 1024
_BLOCK = (1024, 1024, 64)


def check_attributes(attributes: LaunchAttributes, target: Target, name: str) -> None:
    """Raise ArgumentValueError for a launch beyond the limits of `target`.

    The caller skips launches with an extent of 0.
    """
    limits = target.limits
    grid, block, cluster = attributes.grid, attributes.block, attributes.cluster

    def refuse(why: str) -> ArgumentValueError:
        return ArgumentValueError(f"kernel {name!r} cannot be launched on {target}: {why}")

    for axis, extent, most in zip("xyz", grid, limits.grid, strict=True):
        if not 1 <= extent <= most:
            raise refuse(f"grid axis {axis} has {extent} blocks, and must have 1 to {most}")
    for axis, extent, most in zip("xyz", block, _BLOCK, strict=True):
        if not 1 <= extent <= most:
            raise refuse(f"block axis {axis} has {extent} threads, and must have 1 to {most}")
    threads = block[0] * block[1] * block[2]
    if threads > limits.threads_per_block:
        raise refuse(f"a block of {threads} threads is over {limits.threads_per_block}")
    size = cluster[0] * cluster[1] * cluster[2]
    if min(cluster) < 1 or size > _LARGEST_CLUSTER:
        raise refuse(f"a cluster of {cluster} blocks is not within 1 to {_LARGEST_CLUSTER}")
    if size > 1 and not target.supports(Feature.CLUSTER):
        raise refuse("it has no clusters")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise refuse(f"the grid {grid} is not a multiple of the cluster {cluster}")
    if not 0 <= attributes.dynamic_smem <= limits.smem_per_block:
        raise refuse(f"{attributes.dynamic_smem} bytes of SMEM are over the {limits.smem_per_block} a block can have")


class Launcher:
    """A function with its launch configuration, ready for `launch(stream, params)`.

    The constructor raises the function's limits (SMEM over 48 KiB, clusters over 8) and needs the function's context to
    be current.
    """

    def __init__(self, function: Any, attributes: LaunchAttributes) -> None:
        cu = driver.api()
        self.function = function
        self.attributes = attributes
        self._opt_in(cu)
        self._dims = (*attributes.grid, *attributes.block, attributes.dynamic_smem)
        self._launch = cu.cuLaunchKernel
        self._launch_ex = cu.cuLaunchKernelEx
        self._extended = attributes.cluster != (1, 1, 1) or attributes.programmatic_dependent_launch
        self._arguments: dict[int, Any] = {}

    def _opt_in(self, cu: Any) -> None:
        kind = cu.CUfunction_attribute
        smem = self.attributes.dynamic_smem
        if smem > _PLAIN_SMEM:
            key = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            # Never lowered: another launch of the same function may need more.
            if int(driver.check(cu.cuFuncGetAttribute(key, self.function))) < smem:
                driver.check(cu.cuFuncSetAttribute(self.function, key, smem))
        cluster = self.attributes.cluster
        if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
            key = kind.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            driver.check(cu.cuFuncSetAttribute(self.function, key, 1))

    def launch(self, stream: int, params: int) -> tuple[Any, ...]:
        """Issue the launch to `stream` with `params`, the address of a `void*[]`.

        Returns the driver's result tuple.
        """
        prepared = self._arguments.get(stream)
        if prepared is None:
            prepared = self._prepare(stream)
        if self._extended:
            return self._launch_ex(prepared, self.function, params, 0)
        return self._launch(*prepared, params, 0)

    def call_for(self, stream: int, params: int) -> tuple[Any, tuple[Any, ...]]:
        """The driver function and all its arguments, for a launch that is repeated unchanged."""
        prepared = self._arguments.get(stream) or self._prepare(stream)
        if self._extended:
            return self._launch_ex, (prepared, self.function, params, 0)
        return self._launch, (*prepared, params, 0)

    def _prepare(self, stream: int) -> Any:
        cu = driver.api()
        handle = cu.CUstream(stream)
        if self._extended:
            prepared = launch_config(cu, self.attributes, handle)
        else:
            prepared = (self.function, *self._dims, handle)
        if len(self._arguments) >= 64:  # programs make and destroy streams, so this can't keep all handles
            self._arguments.clear()
        self._arguments[stream] = prepared
        return prepared


def launch_config(cu: Any, attributes: LaunchAttributes, stream: Any) -> Any:
    """The `CUlaunchConfig` of a launch, with its cluster and programmatic-dependent-launch attributes."""
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = attributes.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = attributes.block
    config.sharedMemBytes = attributes.dynamic_smem
    config.hStream = stream
    listed: list[Any] = []
    if attributes.cluster != (1, 1, 1):
        value = cu.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = attributes.cluster
        listed.append(_attribute(cu, "CLUSTER_DIMENSION", value))
    if attributes.programmatic_dependent_launch:
        value = cu.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        listed.append(_attribute(cu, "PROGRAMMATIC_STREAM_SERIALIZATION", value))
    config.attrs = listed
    config.numAttrs = len(listed)
    return config


def _attribute(cu: Any, name: str, value: Any) -> Any:
    attribute = cu.CUlaunchAttribute()
    attribute.id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    attribute.value = value
    return attribute


def settle(context: Any, call: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...]) -> None:
    """Handle a launch that failed in the thread's current context.

    If that was another GPU's context, or none, launch again in `context`. Raises CudaError if that fails, too, or was
    not the reason.
    """
    cu = driver.api()
    status, now = cu.cuCtxGetCurrent()
    if int(status) == 0 and int(now) == int(context):
        driver.check(outcome)
        return
    if int(status) == 0 and not int(now):
        driver.check(cu.cuCtxSetCurrent(context))  # a new thread gets a context
        driver.check(call(*arguments))
        return
    with driver.current(context):
        driver.check(call(*arguments))


class ParamBuffer:
    """The bytes of a launch's parameters and the `void*[]` that points into them.

    One launch at a time.
    """

    def __init__(self, offsets: list[int], nbytes: int) -> None:
        # 64 extra bytes: a CUtensorMap must be aligned on the host, too.
        self.buffer: ctypes.Array[ctypes.c_char] = ctypes.create_string_buffer(nbytes + 64)
        start = ctypes.addressof(self.buffer)
        self.shift: int = -start % 64
        self._pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(start + self.shift + o for o in offsets))
        self.address: int = ctypes.addressof(self._pointers) if offsets else 0
