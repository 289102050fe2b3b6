"""`precompiled_cuda_kernel`: launches of PTX, cubins and fat binaries that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from kernel_dsl.boundary import public, unguarded
from kernel_dsl.diagnostics import at_user_line, of_kind
from kernel_dsl.dtypes import of_python

from ..arrays.array_view import ArrayView
from ..build.fatbin import is_fatbin, ptx_in_fatbin
from ..devices.images import load_image
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan.recording import made
from .calls import (
    CustomCall,
    as_input,
    check_shared_memory,
    choose_device,
    count_threads,
    launch,
    output_specs,
)
from .seen_calls import MISS, Key, SeenCalls

_SEEN = SeenCalls()
_REQUIRED = ("name", "compiled_source", "inputs", "output_shapes", "output_dtypes", "scalars", "grid", "threadgroup")


@unguarded
def precompiled_cuda_kernel(
    image: Any = None,
    /,
    *args: Any,
    name: Any = ...,
    compiled_source: Any = ...,
    inputs: Any = ...,
    output_shapes: Any = ...,
    output_dtypes: Any = ...,
    scalars: Any = ...,
    grid: Any = ...,
    threadgroup: Any = ...,
    shared_memory: int = 0,
    init_value: float | None = None,
    ensure_row_contiguous: bool = False,
    stream: Any = None,
    exact_grid: bool = False,
    interpret: Any = None,
    block: Any = None,
    cluster: Any = None,
    smem: Any = None,
    entry: str | None = None,
) -> list[Any]:
    """Launch entry `name` of `compiled_source`. Returns the outputs as a list, in the framework of the inputs.

    `compiled_source`: PTX text, a cubin or a fat binary, as bytes. On the interpreter: PTX, or a fat binary that holds
    some. Loaded once for the same content and device.

    The entry's parameters are the addresses of all `inputs`, of all outputs, and then `scalars` by value. An input is
    an array or a scalar, which becomes a rank-0 array (bool, int32 or int64, float32, complex64). A scalar of `scalars`
    is a bool (1 byte), an int (int32), a float (float32), or a NumPy scalar of any dtype: `np.int64(n)`.

    `grid` counts threads. A threadgroup larger than the grid is reduced to it. Otherwise the last threadgroup of an
    axis is full, and its extra threads run: mask them in the kernel, or pass `exact_grid=True`, which raises an error
    for a grid that the threadgroup does not divide. `shared_memory`: dynamic SMEM in bytes, which may exceed 48 KiB.
    `init_value` fills every output first; without it they are uninitialised. `ensure_row_contiguous=True` passes
    row-major copies of other inputs.

    The raw form is `precompiled_cuda_kernel(image, *args, grid=, block=, cluster=, smem=, entry=)`, with `stream` and
    `interpret`: one argument for each parameter of `entry`, in its order, as for `kd.check`; `grid` counts blocks.
    Arrays are changed in place, and returned as a list, which may be empty.

    Raises ArgumentTypeError and ArgumentValueError before the launch; LoadError, with the driver's log, for an image or
    entry that does not load; LaunchError.
    """
    if image is not None:
        keywords = (name, compiled_source, inputs, output_shapes, output_dtypes, scalars, threadgroup)
        return _call_raw(image, args, keywords, grid, block, cluster, smem, entry, stream, interpret)
    given = (
        inputs,
        output_shapes,
        output_dtypes,
        grid,
        threadgroup,
        None,
        init_value,
        ensure_row_contiguous,
        stream,
        interpret,
    )
    image = (name, compiled_source, type(shared_memory), shared_memory, exact_grid)
    if args or block is not None or cluster is not None or smem is not None or entry is not None:
        raise at_user_line(
            ArgumentTypeError("block=, cluster=, smem= and entry= are of the raw form, which takes the image first")
        )
    key, results = _SEEN.call(*given, *image, scalars=scalars)
    return results if results is not MISS else _call(key, given, image, scalars, exact_grid, ensure_row_contiguous)


@partial(public, name="precompiled_cuda_kernel")
def _call_raw(
    image: Any, args: tuple[Any, ...], keywords: tuple[Any, ...], grid: Any, block: Any, cluster: Any, smem: Any, entry: Any,
    stream: Any, interpret: Any,
) -> list[Any]:  # fmt: skip
    from .raw_image import launch_raw

    if any(value is not ... for value in keywords):
        raise ArgumentTypeError(
            "the raw form takes the image, its arguments, grid=, block=, cluster=, smem= and entry="
        )
    return made(launch_raw, image, args, None if grid is ... else grid, block, cluster, smem, entry, stream, interpret)


@partial(public, name="precompiled_cuda_kernel")
def _call(
    key: Key | None,
    given: tuple[Any, ...],
    image: tuple[Any, ...],
    scalars: Any,
    exact_grid: bool,
    ensure_row_contiguous: bool,
) -> list[Any]:
    """A call that has no fast path yet: `given` are those of `CallArguments`."""
    return made(_run, key, given, image, scalars)


def _run(key: Key | None, given: tuple[Any, ...], image: tuple[Any, ...], scalars: Sequence[Any]) -> list[Any]:
    inputs, output_shapes, output_dtypes, grid, threadgroup, _, init_value, contiguous, stream, interpret = given
    name, compiled_source, _, shared_memory, exact_grid = image
    required = (name, compiled_source, inputs, output_shapes, output_dtypes, scalars, grid, threadgroup)
    missing = [word for word, value in zip(_REQUIRED, required, strict=True) if value is ...]
    if missing:
        raise ArgumentTypeError(f"precompiled_cuda_kernel needs {', '.join(f'{word}=' for word in missing)}")
    source = _check_image(name, compiled_source)
    for what, value in (
        ("inputs", inputs),
        ("scalars", scalars),
        ("output_shapes", output_shapes),
        ("output_dtypes", output_dtypes),
    ):
        if not isinstance(value, (list, tuple)):
            raise ArgumentTypeError(f"{what}= of kernel {name!r} must be a list, and is {of_kind(value)}")
    if not output_shapes:
        raise ArgumentValueError(f"kernel {name!r} must have at least one output")
    if len(output_shapes) != len(output_dtypes):
        raise ArgumentValueError(
            f"kernel {name!r} got {len(output_shapes)} output_shapes and {len(output_dtypes)} "
            "output_dtypes: "
            "give one of each for every output"
        )
    values = [as_input(value, f"inputs[{i}]", name) for i, value in enumerate(inputs)]
    specs = output_specs(output_shapes, output_dtypes, init_value, name)
    for i, value in enumerate(scalars):
        _check_scalar(value, i, name)
    threads = count_threads(grid, threadgroup, name)
    if exact_grid and not threads.divides:
        raise ArgumentValueError(
            f"exact_grid=True, and threadgroup={threads.block} does not divide "
            f"grid={threads.grid} of kernel "
            f"{name!r}: {threads.blocks} whole threadgroups would run more threads than the grid has"
        )
    call = CustomCall(
        name,
        values,
        specs,
        threads,
        check_shared_memory(shared_memory, name),
        contiguous,
        stream,
        [f"output {i}" for i in range(len(specs))],
        read_only=False,
        scalars=scalars,
    )
    device = choose_device(interpret, values)
    if device.kind != "cuda" and is_fatbin(source):
        source = ptx_in_fatbin(source, name, name)
    results, loaded = launch(device, load_image(device, source, name), call, _pointers)
    _SEEN.note(key, loaded, inputs, scalars)
    return results


def _pointers(given: list[ArrayView], made: list[ArrayView]) -> list[ArrayView | bytes]:
    return [*given, *made]


def _check_image(name: Any, image: Any) -> bytes:
    """The image as bytes, after a check of its type and of the entry's name."""
    if not isinstance(name, str) or not name:
        raise ArgumentTypeError(f"name={name!r} must be the entry's name in the image (mangled if it is mangled there)")
    if not isinstance(image, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(
            f"compiled_source= of kernel {name!r} must be bytes, and is {of_kind(image)}; "
            "pass PTX text as text.encode()"
        )
    data = bytes(cast(Any, image))
    if not data:
        raise ArgumentValueError(f"compiled_source= of kernel {name!r} is empty")
    return data


def _check_scalar(value: Any, index: int, name: str) -> None:
    # before the test for float, because np.float64 is one
    if isinstance(value, np.generic) and value.dtype.kind not in "SUO":
        return
    dtype = of_python(value)
    if dtype is None:
        raise ArgumentTypeError(
            f"scalars[{index}]={value!r} of kernel {name!r} is {of_kind(value)}, and must be a bool, an int, a "
            "float, or a NumPy scalar such as np.int64(1)"
        )
    if dtype.is_integer and not -(2**31) <= cast(Any, value) < 2**31:
        raise ArgumentValueError(
            f"scalars[{index}]={value} of kernel {name!r} does not fit int32, which a Python int is passed as; "
            f"pass np.int64({value}) for a 64-bit parameter"
        )
