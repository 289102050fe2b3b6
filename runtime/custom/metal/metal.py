"""`metal_kernel`: bodies in Metal Shading Language, run as CUDA C++ through the headers kd_metal*.h."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernel_dsl.boundary import public, unguarded
from kernel_dsl.dtypes import DType

from ...arrays.array_view import ArrayView
from ...errors import ArgumentTypeError, ArgumentValueError
from ...plan.recording import made
from ..body import CustomBody, check_body, check_name
from ..body_calls import (
    BodySpecialisation,
    CallArguments,
    Images,
    axis_parameters,
    bounds_bytes,
    grid_bytes,
    prepare,
)
from ..calls import Threads, launch
from ..compile_options import CompileOptions
from ..compile_options import compile_options as checked_options
from ..seen_calls import MISS, Key, SeenCalls
from ..source import INCLUDE
from .entry import ATTRIBUTES, TYPES, checked, generate

_INCLUDES = [f"--include-path={folder}" for folder in (Path(__file__).parent / "include", INCLUDE)]

# Words of Metal that are rewritten or have a meaning, so they can't name an array.
_RESERVED = frozenset(("device", "constant", "thread", "threadgroup", "kernel", "half", "bfloat", *ATTRIBUTES))

# Headers that Metal code includes; the prelude has their contents.
_KNOWN_HEADERS: dict[str, str] = dict.fromkeys(
    [
        "metal_stdlib",
        "metal_atomic",
        "metal_common",
        "metal_compute",
        "metal_config",
        "metal_geometric",
        "metal_integer",
        "metal_limits",
        "metal_math",
        "metal_numeric",
        "metal_pack",
        "metal_quadgroup",
        "metal_relational",
        "metal_simdgroup",
        "metal_types",
        "metal_type_traits",
        "metal_uniform",
        "mlx/backend/metal/kernels/utils.h",
        "mlx/backend/metal/kernels/atomic.h",
    ],
    "",
)

# Features of Metal that a body can't use here, as patterns of the names that are then unknown to the compiler.
_ABSENT: dict[str, str] = {
    r"(?:texture|depth)(?:1d|2d|3d|cube|_buffer)\w*|sampler|metal_texture": "metal_kernel has no textures and samplers",
    r"simdgroup_(?:matrix|load|store|multiply\w*|\w+\dx\d)|make_filled_simdgroup_matrix|metal_simdgroup_matrix": (
        "metal_kernel has no SIMD-group matrices"
    ),
    r"raytracing|metal_raytracing|intersect\w*|\w*acceleration_structure|visible_function_table": (
        "metal_kernel has no ray tracing"
    ),
    r"dfdx|dfdy|fwidth|discard_fragment|metal_graphics": "metal_kernel has no functions of graphics stages",
}


def metal_kernel(
    name: str,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    source: str | None = None,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, str] | None = None,
) -> MetalKernel:
    """A kernel whose body is Metal Shading Language; the signature is generated at each call.

    `source` is the body. It sees every input as `const device T* <name>` (a scalar or rank-0 array as `const constant
    T& <name>`) and, if it mentions them, `<name>_shape`, `<name>_strides` (in elements) and `<name>_ndim`; every output
    as `device T* <name>`, or `device atomic<T>*` with `atomic_outputs=True`; the template arguments as template
    parameters; and every attribute of the Metal specification's table 5.8 under its own name. `header` comes before it,
    at namespace scope.

    Exactly `grid` threads run, as with Metal's dispatchThreads. A SIMD-group is a warp of 32. An element of an input
    that the body reads by index, `x[i]`, is 0 outside the array.

    The older form leaves out the names, `metal_kernel(name, source)`: the call then takes and returns dicts, and the
    arrays come in the alphabetical order of their names. `compile_options={"math_mode": "safe" | "relaxed" | "fast"}`:
    "fast" is NVRTC's fast math, and defines `__FAST_MATH__`, as Metal's compiler does; the others are IEEE arithmetic.
    Kernels of one name and several modes live side by side.
    """
    if isinstance(input_names, str) and source is None:  # metal_kernel(name, source), the older positional form
        source, input_names = input_names, None
    if source is None:
        raise ArgumentTypeError(f"metal_kernel {name!r} needs source=, the kernel's body")
    if (input_names is None) != (output_names is None):
        raise ArgumentTypeError(
            f"metal_kernel {name!r}: give both input_names and output_names, or neither for the form with dicts"
        )
    body = check_body("metal_kernel", name, input_names, output_names, source, header)
    _check_reserved(name, (*(body.input_names or ()), *(body.output_names or ())))
    options = checked_options("metal_kernel", name, compile_options)
    return MetalKernel(body, ensure_row_contiguous, atomic_outputs, options)


def _check_reserved(name: str, names: Sequence[str]) -> None:
    for each in names:
        if each in _RESERVED:
            raise ArgumentValueError(f"metal_kernel {name!r}: {each!r} is a word of Metal, and cannot name an array")


@public
class MetalKernel:
    """A kernel that `metal_kernel` returned. Call it with arrays."""

    def __init__(
        self, body: CustomBody, ensure_row_contiguous: bool, atomic_outputs: bool, options: CompileOptions
    ) -> None:
        self.body = body
        self.name: str = body.name
        self._contiguous = ensure_row_contiguous
        self._atomic = atomic_outputs
        self._options = options
        flags = [*_INCLUDES, "--diag-suppress=83", *options.flags]
        self._images = Images(_KNOWN_HEADERS, flags, _ABSENT)
        self._seen = SeenCalls()

    def __repr__(self) -> str:
        return self.body.shown("metal_kernel")

    @unguarded
    def __call__(
        self,
        *,
        inputs: Sequence[Any] | Mapping[str, Any],
        output_shapes: Sequence[Sequence[int]] | Mapping[str, Sequence[int]],
        output_dtypes: Sequence[Any] | Mapping[str, Any],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | Mapping[str, Any] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
        ensure_row_contiguous: bool | None = None,
        interpret: Any = None,
    ) -> Any:
        """Compile (once for these dtypes and template arguments) and launch.

        `inputs`, `output_shapes` and `output_dtypes` are lists in the order of the factory's names, and the result is a
        list; or all are dicts by name, and so is the result. `grid` counts threads. `template`: dtypes, ints and bools
        by name. `init_value` fills the outputs first. `verbose` prints the generated source. Raises ArgumentTypeError
        and ArgumentValueError for bad arguments, CompileError at the lines of `source`.
        """
        contiguous = self._contiguous if ensure_row_contiguous is None else ensure_row_contiguous
        given = (
            inputs,
            output_shapes,
            output_dtypes,
            grid,
            threadgroup,
            template,
            init_value,
            contiguous,
            stream,
            interpret,
        )
        key, results = self._seen.call(*given) if verbose is False else (None, MISS)
        return results if results is not MISS else self._call(key, given, contiguous, verbose)

    @public
    def _call(self, key: Key | None, given: tuple[Any, ...], ensure_row_contiguous: bool, verbose: bool) -> Any:
        """A call that has no fast path yet; `given` are those of `CallArguments`."""
        body, inputs = self.body, given[0]
        if isinstance(inputs, Mapping):
            body, *arrays = _by_name(body, inputs, given[1], given[2])
            results = made(self._run, None, body, (*arrays, *given[3:]), verbose)
            return dict(zip(body.output_names or (), results, strict=True))
        if body.input_names is None:
            raise ArgumentTypeError(
                f"metal_kernel {self.name!r} was made without input_names and output_names: its "
                "inputs=, "
                "output_shapes= and output_dtypes= must be dicts by name"
            )
        return made(self._run, key, body, given, verbose)

    def _run(self, key: Key | None, body: CustomBody, given: tuple[Any, ...], verbose: bool) -> list[Any]:
        special, ready, device = prepare(body, CallArguments(*given), 0)
        _check_metal(body.name, special, ready.threads)
        write = partial(generate, body, special, self._atomic, self._options)
        image = self._images.get(body, special, device, None, write, verbose)

        def parameters(inputs: list[ArrayView], outputs: list[ArrayView]) -> Sequence[ArrayView | bytes]:
            held = checked(body, special)
            bounds = [bounds_bytes(v) for n, v in zip(special.input_names, inputs, strict=True) if n in held]
            return [*axis_parameters(body, inputs), *outputs, *bounds, grid_bytes(ready.threads)]

        results, loaded = launch(device, image, ready, parameters)
        self._seen.note(key, loaded, given[0])
        return results


def _by_name(
    body: CustomBody, inputs: Any, shapes: Any, dtypes: Any
) -> tuple[CustomBody, list[Any], list[Any], list[Any]]:
    """The dict form as the list form: in the factory's order, or alphabetical if the factory named nothing."""
    for what, value in (("output_shapes", shapes), ("output_dtypes", dtypes)):
        if not isinstance(value, Mapping):
            raise ArgumentTypeError(f"{what}= of kernel {body.name!r} must be a dict by name, as inputs= is")
    if set(shapes) != set(dtypes):
        raise ArgumentValueError(
            f"output_shapes= of kernel {body.name!r} names {sorted(shapes)}, and output_dtypes= {sorted(dtypes)}"
        )
    for each in (*inputs, *shapes):
        check_name(each, f"inputs= or output_shapes= of kernel {body.name!r}")
    names = body.input_names or tuple(sorted(inputs))
    results = body.output_names or tuple(sorted(shapes))
    for what, expected, given in (("inputs", names, inputs), ("output_shapes", results, shapes)):
        if set(expected) != set(given):
            raise ArgumentValueError(
                f"{what}= of kernel {body.name!r} names {sorted(given)}, and {sorted(expected)} are expected"
            )
    if not results:
        raise ArgumentValueError(f"kernel {body.name!r} must have at least one output")
    _check_reserved(body.name, (*names, *results))
    for each in names:
        if each in results:
            raise ArgumentValueError(f"kernel {body.name!r}: the name {each!r} is given twice")
    named = dataclasses.replace(body, input_names=names, output_names=results)
    return (
        named,
        [inputs[n] for n in names],
        [shapes[n] for n in results],
        [dtypes[n] for n in results],
    )


def _check_metal(name: str, special: BodySpecialisation, threads: Threads) -> None:
    held = [(f"input {n!r}", item.dtype) for n, item in zip(special.input_names, special.inputs, strict=True)]
    held += [(f"output {n!r}", d) for n, d in zip(special.output_names, special.output_dtypes, strict=True)]
    held += [(f"template argument {v.name!r}", v.value) for v in special.template if isinstance(v.value, DType)]
    for what, dtype in held:
        if dtype.name not in TYPES:
            fix = "; use float32" if dtype.name == "float64" else ""
            raise ArgumentTypeError(f"{what} of kernel {name!r} is {dtype}, which Metal has no type for{fix}")
    if max(threads.grid) >= 2**32:
        raise ArgumentValueError(f"grid={threads.grid} of kernel {name!r} does not fit Metal's 32-bit positions")
