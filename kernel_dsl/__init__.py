"""A kernel language for NVIDIA GPUs in plain Python: `import kernel_dsl as kd`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import kinds as kinds
from .accumulator import ACC
from .batching import vmap
from .boundary import public
from .check import check
from .diagnostics import Error
from .dims import Dim, specialise
from .dtypes import (
    bfloat16,
    bool_,
    complex64,
    float4_e2m1fn,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .interpret_params import InterpretParams
from .kernel import Kernel as Kernel
from .kernel_decorator import kernel
from .late import LATE, MODULES, unknown
from .memory import GMEM, REGS, SMEM, Barrier, ClusterBarrier, RefUnion, ShapeDtypeStruct
from .mesh import Mesh
from .options import CompilerParams
from .quotient import cdiv
from .transforms import SwizzleTransform, TilingTransform, Transform, find_swizzle
from .variables import Variable
from .version import __version__ as __version__

if TYPE_CHECKING:
    from kernel_dsl import jax as jax
    from kernel_dsl import library as library
    from kernel_dsl import random as random
    from kernel_dsl import symmetric as symmetric
    from kernel_dsl import testing as testing
    from kernel_dsl import torch as torch
    from kernel_dsl import tuning as tuning
    from kernel_dsl.ahead import warm
    from kernel_dsl.block_specs import BlockSpec, Element, squeezed
    from kernel_dsl.graphs import Graph
    from kernel_dsl.layout import Layout
    from kernel_dsl.pipelines import emit_pipeline
    from kernel_dsl.runtime.build.aot import load_compiled
    from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
    from kernel_dsl.runtime.custom.metal.metal import metal_kernel
    from kernel_dsl.runtime.custom.nvrtc import CompileError
    from kernel_dsl.runtime.custom.source import cuda_kernel
    from kernel_dsl.runtime.errors import DeviceError, LaunchError, LoadError, OutOfMemoryError
    from kernel_dsl.runtime.interpreter.checks.hazards import HazardError, HazardWarning
    from kernel_dsl.runtime.interpreter.checks.kinds import HazardKind
    from kernel_dsl.runtime.measure.bench import bench
    from kernel_dsl.tuned import tune
    from kernel_dsl.warp_specialized import PipelinePipeline, emit_pipeline_warp_specialized

    from .accumulator import AccRef as AccRef
    from .ops.arith import (
        abs,
        absolute,
        add,
        bitwise_and,
        bitwise_invert,
        bitwise_left_shift,
        bitwise_not,
        bitwise_or,
        bitwise_right_shift,
        bitwise_xor,
        conj,
        conjugate,
        div,
        divide,
        floor_divide,
        fma,
        fma_contraction,
        invert,
        left_shift,
        mod,
        mulhi,
        multiply,
        negative,
        positive,
        rem,
        remainder,
        right_shift,
        subtract,
        true_divide,
    )
    from .ops.associative import associative_scan
    from .ops.atomic import (
        atomic_add,
        atomic_and,
        atomic_cas,
        atomic_max,
        atomic_min,
        atomic_or,
        atomic_xchg,
        atomic_xor,
    )
    from .ops.barrier import BarrierRef as BarrierRef
    from .ops.barrier import barrier_arrive, barrier_arrive_and_wait, barrier_test, barrier_wait
    from .ops.bits import (
        bitwise_count,
        clz,
        frexp,
        ldexp,
        modf,
        nextafter,
        population_count,
        shift_right_logical,
        signbit,
        spacing,
    )
    from .ops.branches import cond, switch, when
    from .ops.broadcast import broadcast_to
    from .ops.cast import astype, bitcast_convert_type, convert_element_type
    from .ops.cluster import async_store_smem, cluster_ref
    from .ops.compare import (
        equal,
        fmax,
        fmin,
        greater,
        greater_equal,
        less,
        less_equal,
        maximum,
        minimum,
        not_equal,
        select,
        where,
    )
    from .ops.control import fori_loop, loop, while_loop
    from .ops.copy import OOBFillMode, async_prefetch, copy_gmem_to_smem, copy_smem_to_gmem
    from .ops.copy_waits import (
        commit_gmem,
        commit_smem,
        commit_smem_to_gmem_group,
        wait_gmem_to_smem,
        wait_smem_to_gmem,
    )
    from .ops.create import arange, broadcasted_iota, full, full_like, iota, ones, ones_like, zeros, zeros_like
    from .ops.debug import debug_check, debug_print, named_scope, print_layout
    from .ops.descriptor import make_tensor_descriptor
    from .ops.index import axis_index, axis_size, ds, multiple_of, num_programs, program_id
    from .ops.inline import inline_ptx
    from .ops.join import concatenate, stack
    from .ops.logic import clip, logical_and, logical_not, logical_or, logical_xor
    from .ops.lookup import searchsorted, take_along_axis
    from .ops.loops import NDLoopInfo, nd_loop, planar_snake
    from .ops.math import (
        acos,
        acosh,
        arccos,
        arccosh,
        arcsin,
        arcsinh,
        arctan,
        arctan2,
        arctanh,
        asin,
        asinh,
        atan,
        atan2,
        atanh,
        cbrt,
        cos,
        cosh,
        erf,
        erf_inv,
        erfc,
        exp,
        exp2,
        exp10,
        expm1,
        float_power,
        hypot,
        log,
        log1p,
        log2,
        log10,
        logaddexp,
        logaddexp2,
        logistic,
        rsqrt,
        sigmoid,
        sin,
        sinh,
        sqrt,
        tan,
        tanh,
    )
    from .ops.matrix import layout_cast, set_max_registers, wgmma, wgmma_accumulator_load, wgmma_wait
    from .ops.multimem import multimem_load_reduce, multimem_store
    from .ops.numeric import (
        RoundingMethod,
        ceil,
        copysign,
        deg2rad,
        degrees,
        divmod,
        fabs,
        floor,
        fmod,
        gcd,
        heaviside,
        integer_pow,
        isfinite,
        isinf,
        isnan,
        isneginf,
        isposinf,
        lcm,
        nan_to_num,
        pow,
        power,
        rad2deg,
        radians,
        reciprocal,
        relu,
        rint,
        round,
        sign,
        sinc,
        square,
        trunc,
    )
    from .ops.product import dot, matmul, mma
    from .ops.reduce import all, any, argmax, argmin, max, mean, min, prod, sum, var
    from .ops.ref import load, store
    from .ops.remote import remote_ref
    from .ops.remote_copy import async_copy, make_async_remote_copy
    from .ops.scan import cummax, cummin, cumprod, cumsum
    from .ops.scheduling import dynamic_scheduling_loop
    from .ops.scope import run_scoped, run_state
    from .ops.semaphore import (
        SemaphoreType,
        get_global,
        semaphore_read,
        semaphore_signal,
        semaphore_signal_multicast,
        semaphore_wait,
    )
    from .ops.shape import expand_dims, flip, pad, reshape, split, squeeze, swapaxes, transpose
    from .ops.sorting import argsort, sort, top_k
    from .ops.threads import griddepcontrol_launch_dependents, griddepcontrol_wait, optimization_barrier, warp_map
    from .refs import Ref as Ref
    from .values import Array as Array

__all__ = [
    "ACC", "GMEM", "REGS", "SMEM", "Barrier", "BlockSpec", "ClusterBarrier", "CompileError", "CompilerParams",
    "DeviceError", "Dim", "Element", "Error", "Graph", "HazardError", "HazardKind", "HazardWarning", "InterpretParams",
    "LaunchError", "Layout", "LoadError", "Mesh", "NDLoopInfo", "OOBFillMode", "OutOfMemoryError", "PipelinePipeline",
    "RefUnion", "RoundingMethod", "SemaphoreType", "ShapeDtypeStruct", "SwizzleTransform", "TilingTransform",
    "Transform", "Variable", "abs", "absolute", "acos", "acosh", "add", "all", "any", "arange", "arccos", "arccosh",
    "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "asin", "asinh",
    "associative_scan", "astype", "async_copy", "async_prefetch", "async_store_smem", "atan", "atan2", "atanh",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
    "axis_index", "axis_size", "barrier_arrive", "barrier_arrive_and_wait", "barrier_test", "barrier_wait", "bench",
    "bfloat16", "bitcast_convert_type", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool_", "broadcast_to", "broadcasted_iota",
    "cbrt", "cdiv", "ceil", "check", "clip", "cluster_ref", "clz", "commit_gmem", "commit_smem",
    "commit_smem_to_gmem_group", "complex64", "concatenate", "cond", "conj", "conjugate", "convert_element_type",
    "copy_gmem_to_smem", "copy_smem_to_gmem", "copysign", "cos", "cosh", "cuda_kernel", "cummax", "cummin", "cumprod",
    "cumsum", "debug_check", "debug_print", "deg2rad", "degrees", "div", "divide", "divmod", "dot", "ds",
    "dynamic_scheduling_loop", "emit_pipeline", "emit_pipeline_warp_specialized", "equal", "erf", "erf_inv", "erfc",
    "exp", "exp2", "exp10", "expand_dims", "expm1", "fabs", "find_swizzle", "flip", "float4_e2m1fn", "float8_e4m3fn",
    "float8_e5m2", "float8_e8m0fnu", "float16", "float32", "float64", "float_power", "floor", "floor_divide", "fma",
    "fma_contraction", "fmax", "fmin", "fmod", "fori_loop", "frexp", "full", "full_like", "gcd", "get_global",
    "greater", "greater_equal", "griddepcontrol_launch_dependents", "griddepcontrol_wait", "heaviside", "hypot",
    "inline_ptx", "int4", "int8", "int16", "int32", "int64", "integer_pow", "invert", "iota", "isfinite", "isinf",
    "isnan", "isneginf", "isposinf", "kernel", "layout_cast", "lcm", "ldexp", "left_shift", "less", "less_equal",
    "load", "load_compiled", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logistic", "loop", "make_async_remote_copy", "make_tensor_descriptor", "matmul",
    "max", "maximum", "mean", "metal_kernel", "min", "minimum", "mma", "mod", "modf", "mulhi", "multimem_load_reduce",
    "multimem_store", "multiple_of", "multiply", "named_scope", "nan_to_num", "nd_loop", "negative", "nextafter",
    "not_equal", "num_programs", "ones", "ones_like", "optimization_barrier", "pad", "planar_snake", "population_count",
    "positive", "pow", "power", "precompiled_cuda_kernel", "print_layout", "prod", "program_id", "rad2deg", "radians",
    "reciprocal", "relu", "rem", "remainder", "remote_ref", "reshape", "right_shift", "rint", "round", "rsqrt",
    "run_scoped", "run_state", "searchsorted", "select", "semaphore_read", "semaphore_signal",
    "semaphore_signal_multicast", "semaphore_wait", "set_max_registers", "shift_right_logical", "sigmoid", "sign",
    "signbit", "sin", "sinc", "sinh", "sort", "spacing", "specialise", "split", "sqrt", "square", "squeeze", "squeezed",
    "stack", "store", "subtract", "sum", "swapaxes", "switch", "take_along_axis", "tan", "tanh", "top_k", "transpose",
    "true_divide", "trunc", "tune", "uint4", "uint8", "uint16", "uint32", "uint64", "var", "vmap", "wait_gmem_to_smem",
    "wait_smem_to_gmem", "warm", "warp_map", "wgmma", "wgmma_accumulator_load", "wgmma_wait", "when", "where",
    "while_loop", "zeros", "zeros_like"
]  # fmt: skip

for _name in __all__:
    if _name in globals():
        globals()[_name] = public(globals()[_name], _name, __name__)


def __getattr__(name: str) -> Any:
    """Names that are imported at their first use: all operations at once, and what `late.py` lists."""
    if name in MODULES:
        return import_module(f"kernel_dsl.{name}")
    module = LATE.get(name)
    if module is not None:
        globals()[name] = public(getattr(import_module(module), name), name, __name__)
    elif name in __all__:
        globals().update(import_module("kernel_dsl.ops").OPERATIONS)
    else:
        raise unknown(name, [*__all__, *MODULES])
    return globals()[name]


def __dir__() -> list[str]:
    """The public names, for completion: also those that are imported at their first use, and no module of ours."""
    return sorted({*__all__, *MODULES, *(name for name in globals() if name.startswith("__"))})
