"""The CUDA C++ of a Metal body for one call: its signature, and the entry that computes each thread's position."""

from __future__ import annotations

from kernel_dsl.dtypes import DType

from ..body import GRID, CustomBody, identifier, mentions
from ..body_calls import BodySpecialisation, TemplateValue
from ..compile_options import DEFAULT, CompileOptions
from ..nvrtc import HEADERS_END
from .msl import bounds_name, reads, translate

TYPES = {
    "bool": "bool",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "complex64": "complex64_t",
} | {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}

# Metal Shading Language Specification, table 5.8, 'Attributes for kernel function input arguments':
# type and value.
ATTRIBUTES: dict[str, tuple[str, str]] = {
    "dispatch_quadgroups_per_threadgroup": ("uint", "kd_place.dispatched_groups(4)"),
    "dispatch_simdgroups_per_threadgroup": ("uint", "kd_place.dispatched_groups(32)"),
    "dispatch_threads_per_threadgroup": ("uint3", "kd_place.dispatched()"),
    "grid_origin": ("uint3", "kd_place.origin()"),
    "grid_size": ("uint3", "kd_place.grid"),
    "quadgroup_index_in_threadgroup": ("uint", "kd_place.index() / 4"),
    "quadgroups_per_threadgroup": ("uint", "kd_place.groups_of(4)"),
    "simdgroup_index_in_threadgroup": ("uint", "kd_place.index() / 32"),
    "simdgroups_per_threadgroup": ("uint", "kd_place.groups_of(32)"),
    "stage_in_grid_origin": ("uint3", "kd_place.origin()"),
    "stage_in_grid_size": ("uint3", "kd_place.grid"),
    "thread_execution_width": ("uint", "32u"),
    "thread_index_in_quadgroup": ("uint", "kd_place.index() % 4"),
    "thread_index_in_simdgroup": ("uint", "kd_place.index() % 32"),
    "thread_index_in_threadgroup": ("uint", "kd_place.index_in_threadgroup()"),
    "thread_position_in_grid": ("uint3", "kd_place.global()"),
    "thread_position_in_threadgroup": ("uint3", "kd_place.local()"),
    "threadgroup_position_in_grid": ("uint3", "kd_place.group()"),
    "threadgroups_per_grid": ("uint3", "kd_place.groups()"),
    "threads_per_grid": ("uint3", "kd_place.grid"),
    "threads_per_simdgroup": ("uint", "32u"),
    "threads_per_threadgroup": ("uint3", "kd_place.size()"),
}


def generate(
    body: CustomBody, special: BodySpecialisation, atomic: bool, options: CompileOptions = DEFAULT
) -> tuple[str, str]:
    """The entry's name and the whole text that NVRTC compiles.

    The body becomes a function template. The entry computes the thread's position, returns if that is outside the grid,
    and calls the template.
    """
    entry = identifier("custom_kernel_" + body.name + "".join(f"_{v.label}" for v in special.template))
    text = body.header + body.source
    small = any(d.name in ("float16", "bfloat16") for d in special.dtypes) or mentions(text, "half") or "bfloat" in text
    attributes = [name for name in ATTRIBUTES if mentions(body.source, name)]
    function, kernel, arguments = _parameters(body, special, atomic)
    function += [f"{ATTRIBUTES[name][0]} {name}" for name in attributes]
    arguments += [ATTRIBUTES[name][1] for name in attributes]
    lines = [
        "#include <kd_metal.h>",
        HEADERS_END,
        *options.lines,
        "namespace metal {",
        "namespace kd_kernel {",
        "using namespace metal;",
    ]
    if body.header:
        lines += [body.begin(body.header_file), translate(body.header, small)]
    lines.append('#line 1 "generated"')
    if special.template:
        lines.append(f"template <{', '.join(map(_template_parameter, special.template))}>")
    lines.append(f"__forceinline__ void {entry}_body({', '.join(function)}) {{")
    lines += [
        body.begin(body.source_file),
        translate(body.source, small, checked(body, special)),
        "}",
        '#line 1 "generated"',
    ]
    bound = f"<{', '.join(map(_template_argument, special.template))}>" if special.template else ""
    lines += [
        f'extern "C" __global__ void {entry}({", ".join(kernel)}) {{',
        f"  const detail::Place kd_place(uint({GRID}.x), uint({GRID}.y), uint({GRID}.z));",
        "  if (kd_place.outside()) return;",
        f"  {entry}_body{bound}({', '.join(arguments)});",
        "}",
        "}  // namespace kd_kernel",
        "}  // namespace metal",
        "",
    ]
    return entry, "\n".join(lines)


def _parameters(body: CustomBody, special: BodySpecialisation, atomic: bool) -> tuple[list[str], list[str], list[str]]:
    """The parameters of the body and of the entry, and the arguments that the entry passes to the body."""
    function: list[str] = []
    kernel: list[str] = []
    arguments: list[str] = []
    for name, item in zip(special.input_names, special.inputs, strict=True):
        kind = TYPES[item.dtype.name]
        kernel.append(f"const {kind}* {name}")
        function.append(f"const {kind}{'*' if item.shape else '&'} {name}")
        arguments.append(name if item.shape else f"*{name}")
        for suffix, element in (("shape", "int"), ("strides", "int64_t")):
            if mentions(body.source, f"{name}_{suffix}"):
                kernel.append(f"const __grid_constant__ PerAxis<{element}> {name}_{suffix}")
                function.append(f"const {element}* {name}_{suffix}")
                arguments.append(f"{name}_{suffix}.values")
        if mentions(body.source, f"{name}_ndim"):
            kernel.append(f"const __grid_constant__ int {name}_ndim")
            function.append(f"const int& {name}_ndim")
            arguments.append(f"{name}_ndim")
    for name, dtype in zip(special.output_names, special.output_dtypes, strict=True):
        kind = TYPES[dtype.name]
        kind = f"atomic<{kind}>" if atomic else kind
        kernel.append(f"{kind}* {name}")
        function.append(f"{kind}* {name}")
        arguments.append(name)
    for name in checked(body, special):
        kernel.append(f"const __grid_constant__ Bounds {bounds_name(name)}")
        function.append(f"const Bounds& {bounds_name(name)}")
        arguments.append(bounds_name(name))
    kernel.append(f"const __grid_constant__ ::ulonglong3 {GRID}")
    return function, kernel, arguments


def checked(body: CustomBody, special: BodySpecialisation) -> list[str]:
    """The inputs whose elements the body reads by index."""
    named = zip(special.input_names, special.inputs, strict=True)
    return [name for name, item in named if item.shape and reads(body.source, name)]


def _template_parameter(value: TemplateValue) -> str:
    if isinstance(value.value, DType):
        return f"typename {value.name}"
    return f"{'bool' if isinstance(value.value, bool) else 'int'} {value.name}"


def _template_argument(value: TemplateValue) -> str:
    if isinstance(value.value, DType):
        return TYPES[value.value.name]
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    return str(value.value)
