"""The C header of an exported kernel."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.launch_plan import LaunchPlan

from .host_entries import HostArgument, c_names, c_type

_HEADER = """\
// {name}: a GPU kernel, compiled for {target}. Made by kernel-dsl: don't edit.
//
{table}
//
// Arrays are row-major unless a line says otherwise; NULL strides mean row-major. Their memory is on the GPU of the current
// context (a thread without one gets the primary context of the first array's GPU). A call issues the kernel to `stream`
// and does not wait for it. Any thread may call. The driver, libcuda.so.1, is loaded at the first call and needs no link flag;
// with a C library older than glibc 2.34 link -ldl.
//
// Returns 0; a CUresult of the driver; or -1 if an argument does not fit, -2 if there is no driver.
// {name}_error() is the error of the calling thread's last call, until its next call; "" if there was none.
#ifndef KERNEL_DSL_{name}_H
#define KERNEL_DSL_{name}_H

#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define KERNEL_DSL_DLPACK
#endif
#endif
#if !defined(KERNEL_DSL_DLPACK) && !defined(DLPACK_DLPACK_H_)
#define KERNEL_DSL_DLPACK
typedef struct {{
  int32_t device_type;  // 2: GPU, 13: managed memory
  int32_t device_id;
}} DLDevice;
typedef struct {{
  uint8_t code;  // 0: int, 1: unsigned int, 2: float, 4: bfloat, 5: complex, 6: bool, 10, 12, 14: float8_e4m3fn, _e5m2, _e8m0fnu
  uint8_t bits;
  uint16_t lanes;
}} DLDataType;
typedef struct {{
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;  // in elements
  uint64_t byte_offset;
}} DLTensor;
#endif

#ifdef __cplusplus
extern "C" {{
#endif
#if !defined(__cuda_cuda_h__) && !defined(KERNEL_DSL_CUSTREAM)  // before C11 a type is defined once
#define KERNEL_DSL_CUSTREAM
typedef struct CUstream_st *CUstream;
#endif

int {name}({parameters});
const char *{name}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def header(name: str, plan: LaunchPlan, target: str, arguments: Sequence[HostArgument]) -> str:
    """The header's text: a description of each argument, and the declarations."""
    names = c_names(arguments)
    rows: list[str] = []
    parameters = ["CUstream stream"]
    for argument, called in zip(arguments, names, strict=True):
        if argument.array is None:
            rows.append(f"//   {called}: {argument.dtype}, by value")
            parameters.append(f"{c_type(argument.dtype)} {called}")
            continue
        array = plan.arrays[argument.array]
        role = "in" if argument.array < plan.inputs else "out"
        if role == "in" and array.written:
            role = "in, written"
        free = "" if array.contiguous else ", any strides"
        shape = ", ".join(map(str, array.shape))
        rows.append(f"//   {called}: {array.dtype}[{shape}], {role}, at a multiple of {array.alignment} bytes{free}")
        parameters.append(f"const DLTensor *{called}")
    return _HEADER.format(name=name, target=target, table="\n".join(rows), parameters=", ".join(parameters))
