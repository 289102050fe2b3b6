"""Blocks of a grid, and compiled kernels with the sizes of one call filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from .compiled import ANY, CompiledKernel, LaunchAttributes, TensorMapParam
from .errors import GridLimit
from .errors_dims import DimOutOfRange
from .source import Loc
from .target import TARGETS
from .tma import COORDINATE_END, MARGIN


def grid_dims(sizes: Sequence[int], limits: tuple[int, int, int]) -> tuple[int, int, int]:
    """Extents for x, y, z: the last axis is x, the one before y, the others z; all in x where that is too large."""
    x = sizes[-1] if sizes else 1
    y = sizes[-2] if len(sizes) > 1 else 1
    z = prod(sizes[:-2])
    if y > limits[1] or z > limits[2]:
        return prod(sizes), 1, 1
    return x, y, z


def placed(
    launch: LaunchAttributes, sizes: Sequence[int], limits: tuple[int, int, int], loc: Loc | None
) -> LaunchAttributes:
    """A launch of a grid of these sizes, as CUDA counts it. Raises `GridLimit`."""
    cluster = launch.cluster
    empty = prod(sizes) == 0
    dims = (1, 1, 1) if empty else grid_dims(sizes, limits)
    grid = (dims[0] * cluster[0], dims[1] * cluster[1], dims[2] * cluster[2])
    if grid[0] > limits[0]:
        hint = f"a launch has at most {limits[0]} blocks along x; loop inside the kernel"
        raise GridLimit(loc=loc, what=f"a grid of {prod(sizes)} is too large", hint=hint)
    return replace(launch, grid=grid, empty=empty)


def is_free(kernel: CompiledKernel) -> bool:
    """Whether some sizes of a kernel come from each call."""
    return any(ANY in a.shape for a in kernel.arrays) or any(size == ANY for _, size in kernel.names.grid_axes)


def settle(kernel: CompiledKernel, shapes: Sequence[tuple[int, ...]], grid: Sequence[int]) -> CompiledKernel:
    """The kernel for a call's shapes (inputs, then outputs) and grid. Raises `GridLimit`."""
    if not is_free(kernel):
        return kernel
    where = kernel.source
    loc = None if where is None else Loc(where.file, where.line, function=where.function)
    mapped = {p.array for p in kernel.params if type(p) is TensorMapParam}
    for number in mapped:
        free = [n for n, known in zip(shapes[number], kernel.arrays[number].shape, strict=True) if known == ANY]
        if any(n > COORDINATE_END - MARGIN for n in free):
            what = (
                f"an axis of {kernel.arrays[number].name!r} has {max(free)} elements, and the kernel copies it by TMA"
            )
            raise DimOutOfRange(loc=loc, what=what, hint="the coordinates of TMA are signed 32-bit integers")
    arrays = tuple(replace(a, shape=shape) for a, shape in zip(kernel.arrays, shapes, strict=True))
    outputs = tuple(replace(o, shape=a.shape) for o, a in zip(kernel.outputs, arrays[kernel.inputs :], strict=True))
    names = replace(
        kernel.names, grid_axes=tuple((n, s) for (n, _), s in zip(kernel.names.grid_axes, grid, strict=True))
    )
    launch = placed(kernel.launch, grid, TARGETS[kernel.target].limits.grid, loc)
    return replace(kernel, arrays=arrays, outputs=outputs, names=names, launch=launch)
