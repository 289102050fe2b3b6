"""Checks of a `CompiledKernel` from a file: its parts must fit each other.

`serialize.unpack` ensures that every field has its type. No check can tell whether the kernel computes the right values.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, cast

from .compiled import (
    ANY,
    Assembled,
    CompiledKernel,
    PointerParam,
    Resources,
    ScalarParam,
    ScratchMapParam,
    ShapeParam,
    StrideParam,
    TensorMapParam,
)
from .target import TARGETS

_MOST_BYTES = 1 << 48  # more than a GPU can address
_MOST_BLOCKS = 2**31 - 1
_DEEPEST = 64  # nests of a result


def problem(compiled: Assembled | CompiledKernel) -> str:
    """A short description of what is wrong with a kernel whose fields have their types; None if it can be launched."""
    kernel = compiled.kernel if isinstance(compiled, Assembled) else compiled
    parts = [_code(kernel), _arrays(kernel), _params(kernel), _launch(kernel), _result(kernel)]
    if isinstance(compiled, Assembled):
        parts.append(_machine_code(compiled.cubin, compiled.resources))
    return next((words for part in parts for words in part), "")


def _code(kernel: CompiledKernel) -> Iterator[str]:
    if kernel.target not in TARGETS:
        yield f"its target is {kernel.target!r}"
    if not _is_name(kernel.entry):
        yield f"its entry is called {kernel.entry!r}"
        return
    count = _parameters(kernel)
    if count is None:
        yield f"its PTX has no entry {kernel.entry!r}"
    elif count != len(kernel.params):
        yield f"its entry takes {count} parameters, and {len(kernel.params)} are listed"
    if kernel.max_registers is not None and not 16 <= kernel.max_registers <= 255:
        yield f"it has {kernel.max_registers} registers a lane at most"
    if min(kernel.lines, default=1) < 1:
        yield "its map of lines has a line before the first"


def _is_name(entry: str) -> bool:
    """Whether it is an identifier of PTX. A regular expression takes a hundred times as long to compile."""
    rest = entry[1:].replace("$", "_")
    return entry.isascii() and (entry[:1].isalpha() or entry[:1] in ("_", "$", "%")) and f"_{rest}".isidentifier()


def _parameters(kernel: CompiledKernel) -> int | None:
    """The number of parameters that the entry takes in the PTX; None where the PTX has no such entry."""
    ptx, at = kernel.ptx, -1
    while (at := ptx.find(".entry", at + 1)) >= 0:
        start = _after_spaces(ptx, at + len(".entry"))
        if start > at + len(".entry") and ptx.startswith(kernel.entry, start):
            listed = _after_spaces(ptx, start + len(kernel.entry))
            end = ptx.find(")", listed) if ptx.startswith("(", listed) else -1
            return 0 if end < 0 else ptx.count(".param", listed, end)
    return None


def _after_spaces(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _arrays(kernel: CompiledKernel) -> Iterator[str]:
    count, inputs = len(kernel.arrays), kernel.inputs
    for array in kernel.arrays:
        if not _is_size(array.shape, array.dtype.itemsize, _takes_sizes(kernel)):
            yield f"an array has the shape {array.shape}"
        if array.alignment < 1 or array.alignment & (array.alignment - 1):
            yield f"an array is aligned to {array.alignment} bytes"
    if not 0 <= inputs <= count or len(kernel.outputs) != count - inputs:
        yield f"{inputs} inputs and {len(kernel.outputs)} outputs are not its {count} arrays"
        return
    for array, output in zip(kernel.arrays[inputs:], kernel.outputs, strict=True):
        if (array.shape, array.dtype) != (output.shape, output.dtype):
            yield "an output is not the array that is written"
        if output.alias is not None:
            good = 0 <= output.alias < inputs
            source = kernel.arrays[output.alias] if good else None
            if source is None or (source.shape, source.dtype) != (output.shape, output.dtype):
                yield "an output starts as an input that is not like it"
    if any(not 0 <= index < count for pair in kernel.overlaps for index in pair):
        yield "arrays overlap that it has not"
    for space in kernel.workspaces:
        if not 0 <= space.bytes <= _MOST_BYTES or space.alignment < 1:
            yield f"a workspace has {space.bytes} bytes"


def _is_size(shape: tuple[int, ...], itemsize: int, unread: bool = False) -> bool:
    """`unread`: whether the kernel takes sizes from the launch, so that some may be `ANY`."""
    known = [n for n in shape if n != ANY] if unread else shape
    return all(n >= 0 for n in known) and prod(known) * itemsize <= _MOST_BYTES


def _takes_sizes(kernel: CompiledKernel) -> bool:
    """Whether a part of a kernel depends on the sizes of a call."""
    of_calls = any(isinstance(p, ShapeParam) for p in kernel.params) or any(n == ANY for _, n in kernel.names.grid_axes)
    return of_calls or bool(kernel.conditions)


def _params(kernel: CompiledKernel) -> Iterator[str]:
    shapes = [array.shape for array in kernel.arrays] + [(space.bytes,) for space in kernel.workspaces]
    for param in kernel.params:
        if isinstance(param, ScalarParam):
            good = 0 <= param.scalar < len(kernel.params)
        elif not 0 <= param.array < len(shapes):
            good = False
        elif isinstance(param, (ShapeParam, StrideParam)):
            good = 0 <= param.axis < len(shapes[param.array])
        else:
            rank = len(param.sizes if isinstance(param, ScratchMapParam) else shapes[param.array])
            good = isinstance(param, PointerParam) or _is_map(param, rank)
        if not good:
            yield f"a parameter is {param!r}"


def _is_map(param: TensorMapParam, rank: int) -> bool:
    axes = tuple(range(rank)) if param.axes is None else param.axes
    dimensions = len(axes) + len(param.split)
    return (
        all(0 <= axis < rank for axis in axes)
        and all(axis in axes and factor >= 1 for axis, factor in param.split)
        and 1 <= len(param.box) == dimensions
        and all(n >= 1 for n in param.box)
    )


def _launch(kernel: CompiledKernel) -> Iterator[str]:
    launch = kernel.launch
    least = 0 if launch.empty else 1
    if not all(least <= n <= _MOST_BLOCKS for n in launch.grid):
        yield f"its grid is {launch.grid}"
    if not all(n >= 1 for n in launch.block) or prod(launch.block) > 1024:
        yield f"its blocks are {launch.block}"
    if not all(1 <= n <= 16 for n in launch.cluster):
        yield f"its clusters are {launch.cluster}"
    if not 0 <= launch.dynamic_smem < 1 << 20:
        yield f"it has {launch.dynamic_smem} bytes of SMEM"


def _result(kernel: CompiledKernel) -> Iterator[str]:
    leaves: list[Any] = []
    depth = 0
    level: list[Any] = [kernel.output_tree]
    while level and depth <= _DEEPEST:
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner += cast("dict[Any, Any]", node).values()
            elif isinstance(node, (tuple, list)):
                inner += cast("tuple[Any, ...]", node)
            elif node is not None:
                leaves.append(node)
        level, depth = inner, depth + 1
    if level or any(type(leaf) is not int or not 0 <= leaf < len(kernel.outputs) for leaf in leaves):
        yield "its result is not made of its outputs"


def _machine_code(cubin: bytes, resources: Resources) -> Iterator[str]:
    if cubin and not cubin.startswith(b"\x7fELF"):
        yield "its machine code is none"
    if min(vars(resources).values()) < 0:
        yield f"its resources are {resources}"
