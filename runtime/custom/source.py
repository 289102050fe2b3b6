"""`cuda_kernel`: bodies in CUDA C++ with a generated signature, compiled by NVRTC for the device that runs them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernel_dsl.boundary import public, unguarded
from kernel_dsl.dtypes import FP8, DType

from ..arrays.array_view import ArrayView
from ..plan.recording import made
from .body import GRID, CustomBody, check_body, identifier, mentions
from .body_calls import (
    BodySpecialisation,
    CallArguments,
    Images,
    TemplateValue,
    axis_parameters,
    grid_bytes,
    prepare,
)
from .calls import check_shared_memory, launch
from .compile_options import DEFAULT, CompileOptions
from .compile_options import compile_options as checked_options
from .nvrtc import HEADERS_END
from .seen_calls import MISS, Key, SeenCalls

INCLUDE = str(Path(__file__).parent / "include")

_CTYPES = {
    "bool": "bool",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "complex64_t",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
} | {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}

# Headers that kernels written for MLX include; the prelude has their contents.
_KNOWN_HEADERS = dict.fromkeys(
    ("mlx/backend/cuda/device/utils.cuh", "mlx/backend/cuda/device/atomic_ops.cuh"),
    "#include <kd_cuda.h>\n",
) | {"stdint.h": "#include <kd_cuda.h>\n", "cstdint": "#include <kd_cuda.h>\n"}


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
    exact_grid: bool = False,
    compile_options: Sequence[str] | Mapping[str, str] | None = None,
) -> CudaKernel:
    """A kernel whose body is CUDA C++; the signature is generated at each call from the arrays' dtypes.

    `source` is the body. It sees every input as `const T* <name>` (also a scalar or rank-0 array) and, if it mentions
    them, `<name>_shape`, `<name>_strides` (in elements) and `<name>_ndim`; every output as `T* <name>`; and the
    template arguments as constants and type names. `header` comes before it, at file scope. Available without an
    include: half and bfloat16, `complex64_t`, `elem_to_loc`, `atomic_add` and similar functions, cooperative_groups as
    `cg`, and cuda::std. `ensure_row_contiguous`: other inputs are copied to row-major memory first. `shared_memory`:
    dynamic SMEM in bytes. `exact_grid`: threads beyond the grid return at once (otherwise the last threadgroup of an
    axis is full, and its extra threads run the body). `compile_options`: a list of NVRTC's options, such as
    `["--use_fast_math", "-DTILE=32"]` (this package sets the target, the kind of output and precompiled headers), or
    `{"math_mode": "safe" | "relaxed" | "fast"}` as for `metal_kernel`. See `CudaKernel.__call__` for the call.

    Raises ArgumentTypeError and ArgumentValueError for bad arguments. The call raises CompileError for an option that
    NVRTC does not have.
    """
    body = check_body("cuda_kernel", name, input_names, output_names, source, header)
    check_shared_memory(shared_memory, name)
    options = checked_options("cuda_kernel", name, compile_options)
    return CudaKernel(body, ensure_row_contiguous, shared_memory, exact_grid, options)


@public
class CudaKernel:
    """A kernel that `cuda_kernel` returned. Call it with arrays."""

    def __init__(
        self,
        body: CustomBody,
        ensure_row_contiguous: bool,
        shared_memory: int,
        exact_grid: bool,
        options: CompileOptions = DEFAULT,
    ) -> None:
        self.body = body
        self.name: str = body.name
        self._contiguous = ensure_row_contiguous
        self._shared_memory = shared_memory
        self._exact = exact_grid
        self._options = options
        self._images = Images(_KNOWN_HEADERS, [f"--include-path={INCLUDE}", *options.flags])
        self._seen = SeenCalls()

    def __repr__(self) -> str:
        return self.body.shown("cuda_kernel")

    @unguarded
    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
        exact_grid: bool | None = None,
        interpret: Any = None,
    ) -> list[Any]:
        """Compile (once for these dtypes and template arguments) and launch. Returns the outputs as a list.

        `grid` counts threads. `template`: (name, value) pairs, a value being a dtype, an int or a bool. `init_value`
        fills the outputs first. `verbose` prints the generated source. Raises ArgumentTypeError and ArgumentValueError
        for bad arguments, CompileError at the lines of `source`.
        """
        exact = self._exact if exact_grid is None else exact_grid
        given = (
            inputs,
            output_shapes,
            output_dtypes,
            grid,
            threadgroup,
            template,
            init_value,
            self._contiguous,
            stream,
            interpret,
        )
        key, results = self._seen.call(*given, exact) if verbose is False else (None, MISS)
        return results if results is not MISS else self._call(key, given, verbose, exact)

    @public
    def _call(self, key: Key | None, given: tuple[Any, ...], verbose: bool, exact_grid: bool) -> list[Any]:
        """A call that has no fast path yet; `given` are those of `CallArguments`."""
        return made(self._run, key, given, verbose, exact_grid)

    def _run(self, key: Key | None, given: tuple[Any, ...], verbose: bool, exact: bool) -> list[Any]:
        special, ready, device = prepare(self.body, CallArguments(*given), self._shared_memory)
        write = partial(generate, self.body, special, exact, self._options)
        image = self._images.get(self.body, special, device, exact, write, verbose)
        extra = [grid_bytes(ready.threads)] if exact else []

        def parameters(inputs: list[ArrayView], outputs: list[ArrayView]) -> Sequence[ArrayView | bytes]:
            return [*axis_parameters(self.body, inputs), *outputs, *extra]

        results, loaded = launch(device, image, ready, parameters)
        self._seen.note(key, loaded, given[0])
        return results


def generate(
    body: CustomBody, special: BodySpecialisation, exact: bool, options: CompileOptions = DEFAULT
) -> tuple[str, str]:
    """The entry's name and the whole text that NVRTC compiles."""
    entry = identifier("custom_kernel_" + body.name + "".join(f"_{v.label}" for v in special.template))
    lines = [*_includes(body, special), *([] if options.own_headers else [HEADERS_END]), *options.lines]
    if body.header:
        lines += [body.begin(body.header_file), body.header]
    lines += ['#line 1 "generated"', "namespace mlx::core::cu {"]
    lines.append(f'extern "C" __global__ void {entry}({", ".join(_signature(body, special, exact))}) {{')
    if exact:
        lines.append(
            "  if ("
            + " || ".join(
                f"(unsigned long long)blockIdx.{a} * blockDim.{a} + threadIdx.{a} >= {GRID}.{a}" for a in "xyz"
            )
            + ") return;"
        )
    lines += [f"  {_template_line(value)}" for value in special.template]
    lines += [
        body.begin(body.source_file),
        body.source,
        "}",
        "}  // namespace mlx::core::cu",
        "",
    ]
    return entry, "\n".join(lines)


def _includes(body: CustomBody, special: BodySpecialisation) -> list[str]:
    text = body.header + body.source
    lines: list[str] = []
    if re.search(r"\bcuda\s*::", text):
        lines.append("#define KD_USE_STD")
    lines.append("#include <kd_cuda.h>")
    if re.search(r"\bcg\b|cooperative_groups", text):
        lines += ["#include <cooperative_groups.h>", "namespace cg = cooperative_groups;"]
    if any(dtype in FP8 for dtype in special.dtypes) or "__nv_fp8" in text:
        lines.append("#include <cuda_fp8.h>")
    return lines


def ctype(dtype: DType) -> str:
    """The CUDA C++ type of a dtype's elements."""
    return _CTYPES[dtype.name]


def _signature(body: CustomBody, special: BodySpecialisation, exact: bool) -> list[str]:
    params: list[str] = []
    for name, item in zip(special.input_names, special.inputs, strict=True):
        params.append(f"const {ctype(item.dtype)}* {name}")
        for suffix, kind in (("shape", "Shape"), ("strides", "Strides"), ("ndim", "int")):
            if mentions(body.source, f"{name}_{suffix}"):
                params.append(f"const __grid_constant__ {kind} {name}_{suffix}")
    for name, dtype in zip(special.output_names, special.output_dtypes, strict=True):
        params.append(f"{ctype(dtype)}* {name}")
    if exact:
        params.append(f"const __grid_constant__ ::ulonglong3 {GRID}")
    return params


def _template_line(value: TemplateValue) -> str:
    if isinstance(value.value, DType):
        return f"using {value.name} = {ctype(value.value)};"
    if isinstance(value.value, bool):
        return f"constexpr bool {value.name} = {'true' if value.value else 'false'};"
    return f"constexpr int {value.name} = {value.value};"
