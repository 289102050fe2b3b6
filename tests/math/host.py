"""Runs the LLVM text of `lowering.math` on the host, in vectorised loops, beside references of
higher precision.

The text is the one that NVPTX gets; on x86-64 with FMA every operation in it rounds the same.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from kernel_dsl.lowering.math import FUNCTIONS, definitions

NUMPY = {"float": np.float32, "double": np.float64, "i32": np.int32, "i64": np.int64}


@cache
def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library = ctypes.util.find_library("m")
    if library:
        llvm.load_library_permanently(library)
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


_engines: list[Any] = []  # an engine owns the code that the function pointers point into


def compile_host(text: str, entry: str) -> int:
    """The address of `entry` in the compiled module `text`."""
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options).getModulePassManager()
    passes.run(module, llvm.create_pass_builder(machine, options))
    engine = llvm.create_mcjit_compiler(module, _machine_copy())
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(entry)


def _machine_copy() -> llvm.TargetMachine:
    """An engine takes its machine over, so each gets its own."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )


def loop_text(symbol: str, types: list[str], result: str, stored: str | None = None) -> str:
    """`void loop(out, in..., n)` that applies a scalar function element by element."""
    pointers = ", ".join(f"ptr noalias %p{i}" for i in range(len(types)))
    loads = "\n".join(
        f"  %a{i} = getelementptr {t}, ptr %p{i}, i64 %i\n  %x{i} = load {t}, ptr %a{i}" for i, t in enumerate(types)
    )
    operands = ", ".join(f"{t} %x{i}" for i, t in enumerate(types))
    return f"""
define void @loop(ptr noalias %out, {pointers}, i64 %n) {{
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
{loads}
  %y = call {result} @{symbol}({operands})
  %o = getelementptr {result}, ptr %out, i64 %i
  store {result} %y, ptr %o
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}}
"""


def _wrap(address: int, count: int, dtype: Any) -> Callable[..., np.ndarray]:
    prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * (count + 1)), ctypes.c_int64)
    loop = prototype(address)

    def apply(*arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        out = np.empty(arrays[0].shape, dtype) if out is None else out
        if out.size:
            loop(out.ctypes.data, *(a.ctypes.data for a in arrays), out.size)
        return out

    return apply


@cache
def host_function(key: str) -> Callable[..., np.ndarray]:
    """The function `key` ("exp.f32") of FUNCTIONS, over arrays of its dtype."""
    function = FUNCTIONS[key]
    types = list(function.parameters)
    text = loop_text(function.symbol, types, function.dtype) + definitions([key])
    address = compile_host(text, "loop")
    inner = _wrap(address, len(types), NUMPY[function.dtype])

    def apply(*arrays: Any) -> np.ndarray:
        wanted = [NUMPY[t] for t in types]
        typed = (np.asarray(a, t) for a, t in zip(arrays, wanted, strict=True))
        return inner(*np.broadcast_arrays(*typed))

    return apply


@cache
def libm(name: str, arity: int = 1, *, wide: bool = False) -> Callable[..., np.ndarray]:
    """The C library's `name` over float64 arrays, or over 80-bit `np.longdouble` ones (`wide`)."""
    type_ = "x86_fp80" if wide else "double"
    symbol = name + "l" if wide else name
    parameters = ", ".join([type_] * arity)
    text = loop_text(symbol, [type_] * arity, type_)
    text += f"declare {type_} @{symbol}({parameters}) nounwind\n"
    dtype = np.longdouble if wide else np.float64
    inner = _wrap(compile_host(text, "loop"), arity, dtype)
    return lambda *arrays: inner(*np.broadcast_arrays(*(np.asarray(a, dtype) for a in arrays)))


_ERRORS = """
define internal double @error(float %y, double %given) alwaysinline {
  %inf = fcmp oeq float %y, 0x7FF0000000000000
  %ninf = fcmp oeq float %y, 0xFFF0000000000000
  %wide = fpext float %y to double
  %w1 = select i1 %inf, double 0x47F0000000000000, double %wide
  %w = select i1 %ninf, double 0xC7F0000000000000, double %w1
  %over = fcmp ogt double %given, 0x47F0000000000000
  %under = fcmp olt double %given, 0xC7F0000000000000
  %r1 = select i1 %over, double 0x47F0000000000000, double %given
  %ref = select i1 %under, double 0xC7F0000000000000, double %r1
  %bits = bitcast double %ref to i64
  %field = lshr i64 %bits, 52
  %biased = and i64 %field, 2047
  %small = icmp ult i64 %biased, 897
  %e1 = select i1 %small, i64 897, i64 %biased
  %large = icmp ugt i64 %e1, 1150
  %e = select i1 %large, i64 1150, i64 %e1
  %inverse = sub i64 2069, %e
  %shifted = shl i64 %inverse, 52
  %scale = bitcast i64 %shifted to double
  %difference = fsub double %w, %ref
  %distance = call double @llvm.fabs.f64(double %difference)
  %ulps = fmul double %distance, %scale
  %ynan = fcmp uno float %y, %y
  %rnan = fcmp uno double %given, %given
  %both = and i1 %ynan, %rnan
  %either = or i1 %ynan, %rnan
  %u1 = select i1 %either, double 0x7FF0000000000000, double %ulps
  %u2 = select i1 %both, double 0.0, double %u1
  %yzero = fcmp oeq float %y, 0.0
  %rzero = fcmp oeq double %given, 0.0
  %zeros = and i1 %yzero, %rzero
  %ybits = bitcast float %y to i32
  %ysign = icmp slt i32 %ybits, 0
  %rsign = icmp slt i64 %bits, 0
  %differ = xor i1 %ysign, %rsign
  %bad = and i1 %zeros, %differ
  %u3 = select i1 %bad, double 0x7FF0000000000000, double %u2
  ret double %u3
}
define void @loop(ptr noalias %out, ptr noalias %a, ptr noalias %b, i64 %n) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr double, ptr %b, i64 %i
  %y = load float, ptr %pa
  %r = load double, ptr %pb
  %u = call double @error(float %y, double %r)
  %po = getelementptr double, ptr %out, i64 %i
  store double %u, ptr %po
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %exit
exit:
  ret void
}
"""


@cache
def _error_loop() -> Callable[..., np.ndarray]:
    return _wrap(compile_host(_ERRORS, "loop"), 2, np.float64)


def errors_single(result: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Errors of float32 results in ulp of the float64 reference; inf where a NaN or a zero's sign
    is wrong.

    An ulp below the smallest normal is 2^-149; an infinite result counts as 2^128.
    """
    return _error_loop()(result.astype(np.float32), reference.astype(np.float64))


def errors_double(result: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Errors of float64 results in ulp of the 80-bit reference; inf where a NaN or a zero's sign is
    wrong.
    """
    reference = np.asarray(reference, np.longdouble)
    top = np.ldexp(np.longdouble(1), 1024)
    with np.errstate(all="ignore"):
        wide = np.clip(result.astype(np.longdouble), -top, top)
        exact = np.clip(reference, -top, top)
        exponent = np.clip(np.frexp(exact)[1] - 1, -1022, 1023)
        error = np.abs(wide - exact) * np.ldexp(np.longdouble(1), 52 - exponent)
    error = np.where(np.isnan(result) | np.isnan(reference), np.inf, error)
    error = np.where(np.isnan(result) & np.isnan(reference), 0, error)
    zeros = (result == 0) & (reference == 0)
    return np.where(zeros & (np.signbit(result) != np.signbit(reference)), np.inf, error).astype(np.float64)
