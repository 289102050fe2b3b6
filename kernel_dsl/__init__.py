"""A kernel language for NVIDIA GPUs in plain Python: `import kernel_dsl as kd`."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from .accumulator import ACC
from .boundary import public
from .diagnostics import Error, at_user_line, shown
from .dtypes import (
    bfloat16,
    bool_,
    complex64,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .errors import UnknownName
from .interpret_params import InterpretParams
from .kernel import kernel
from .layout import Layout
from .memory import GMEM, REGS, SMEM, Barrier, ClusterBarrier, RefUnion, ShapeDtypeStruct
from .ops import *  # noqa: F403
from .ops import __all__ as _op_names
from .options import CompilerParams
from .pipelines import BlockSpec, emit_pipeline
from .transforms import SwizzleTransform, TilingTransform, Transform, find_swizzle
from .variables import Variable
from .warp_specialized import PipelinePipeline, emit_pipeline_warp_specialized

if TYPE_CHECKING:
    from runtime.aot import load_compiled
    from runtime.graph import Graph
    from runtime.image import precompiled_cuda_kernel
    from runtime.interpreter.hazards import HazardError, HazardWarning
    from runtime.interpreter.kinds import HazardKind
    from runtime.metal import metal_kernel
    from runtime.nvrtc import CompileError
    from runtime.source import cuda_kernel

_LATE = {
    "Graph": "runtime.graph",
    "CompileError": "runtime.nvrtc",
    "cuda_kernel": "runtime.source",
    "metal_kernel": "runtime.metal",
    "precompiled_cuda_kernel": "runtime.image",
    "load_compiled": "runtime.aot",
    "HazardError": "runtime.interpreter.hazards",
    "HazardKind": "runtime.interpreter.kinds",
    "HazardWarning": "runtime.interpreter.hazards",
}

__all__ = [
    "ACC",
    "GMEM",
    "REGS",
    "SMEM",
    "Barrier",
    "BlockSpec",
    "ClusterBarrier",
    "CompileError",
    "CompilerParams",
    "Error",
    "Graph",
    "HazardError",
    "HazardKind",
    "HazardWarning",
    "InterpretParams",
    "Layout",
    "PipelinePipeline",
    "RefUnion",
    "ShapeDtypeStruct",
    "SwizzleTransform",
    "TilingTransform",
    "Transform",
    "Variable",
    "bfloat16",
    "bool_",
    "complex64",
    "cuda_kernel",
    "emit_pipeline",
    "emit_pipeline_warp_specialized",
    "find_swizzle",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "kernel",
    "load_compiled",
    "metal_kernel",
    "precompiled_cuda_kernel",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
__all__ += _op_names  # noqa: PLE0605 - a list too  # pyright: ignore[reportUnsupportedDunderAll]

for _name in set(__all__) - set(_LATE):
    globals()[_name] = public(globals()[_name], _name)


def __getattr__(name: str) -> Any:
    """Names that bring the runtime in, found at first use."""
    if name == "library":
        return import_module("kernel_dsl.library")
    module = _LATE.get(name)
    if module is None:
        raise _unknown(name)
    value = public(getattr(import_module(module), name))
    globals()[name] = value
    return value


def _unknown(name: str) -> AttributeError:
    if name.startswith("__"):  # what Python looks for
        return AttributeError(f"module {__name__!r} has no attribute {name!r}")
    near = get_close_matches(name, [*__all__, "library"], 3)
    hint = (
        f"did you mean {', '.join(f'`kd.{x}`' for x in near)}?"
        if near
        else "`kd.__all__` and docs/reference.md list what it has"
    )
    return cast("AttributeError", at_user_line(UnknownName(name=shown(name), hint=hint)))
