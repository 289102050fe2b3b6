"""Hand-made `CompiledKernel`s for the runtime's tests: no compiler is involved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    Param,
    PointerParam,
    ScalarParam,
    SourceLine,
    StrideParam,
    Workspace,
)
from kernel_dsl.dtypes import DType, float32, int32

SOURCE = SourceLine("kernels.py", 12, "body")


def scale_ptx(entry: str = "scale", params: int = 3) -> str:
    """out[i] = s * x[i] for 32 float32: parameters x, out, s (and further 64-bit ones, unused)."""
    extra = "".join(f",\n  .param .u64 p{i}" for i in range(3, params))
    return f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry {entry}(
  .param .u64 p0,
  .param .u64 p1,
  .param .f32 p2{extra}
)
{{
  .reg .b32 %r<3>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  ld.param.f32 %f1, [p2];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  ld.global.f32 %f2, [%rd4];
  mul.rn.f32 %f3, %f2, %f1;
  st.global.f32 [%rd5], %f3;
  ret;
}}
"""


def scale(
    shape: tuple[int, ...] = (32,),
    dtype: DType = float32,
    *,
    launch: LaunchAttributes | None = None,
    fill: Any = None,
    alias: int | None = None,
    overlaps: tuple[tuple[int, int], ...] = (),
    contiguous: bool = True,
    strides: Sequence[Param] = (),
    workspaces: tuple[Workspace, ...] = (),
    alignment: int = 4,
    writes_input: bool = False,
) -> CompiledKernel:
    """The kernel `scale(x, s) -> out`, with one array in, one out."""
    params: list[Param] = [PointerParam(0), PointerParam(1), ScalarParam(0, float32), *strides]
    params += [PointerParam(2 + i) for i in range(len(workspaces))]
    return CompiledKernel(
        name="scale",
        entry="scale",
        ptx=scale_ptx(params=len(params)),
        target="sm_90a",
        params=tuple(params),
        arrays=(
            ArrayAssumption(shape, dtype, contiguous, alignment, writes_input, "x_ref"),
            ArrayAssumption(shape, dtype, contiguous, alignment, True, "o_ref"),
        ),
        inputs=1,
        outputs=(OutputSpec(shape, dtype, fill, alias),),
        output_tree=0,
        launch=launch or LaunchAttributes((1, 1, 1), (32, 1, 1)),
        workspaces=workspaces,
        source=SOURCE,
        overlaps=overlaps,
    )


STRIDES = (StrideParam(0, 0), StrideParam(1, 0))
__all__ = ["SOURCE", "STRIDES", "int32", "scale", "scale_ptx"]
