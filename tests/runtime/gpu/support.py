"""Kernels in PTX for the tests on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    PointerParam,
    TensorMapParam,
)
from kernel_dsl.dtypes import float32
from kernel_dsl.runtime.devices import driver

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.available(), reason=driver.available().reason),
]


def needs_hopper() -> None:
    """Skip where clusters and TMA are missing."""
    from kernel_dsl.runtime.devices.devices import cuda_device
    from kernel_dsl.target import Feature

    if not cuda_device().target.supports(Feature.TMA):
        pytest.skip("needs clusters and TMA")


# out[i] = nctaid of the cluster that block i is in, through the last byte of dynamic SMEM.
CLUSTER_PTX = """.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry sizes(.param .u64 po, .param .u32 bytes)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [po];
  ld.param.u32 %r5, [bytes];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %cluster_nctaid.x;
  mov.u32 %r3, smem;
  add.u32 %r3, %r3, %r5;
  st.shared.u32 [%r3+-4], %r2;
  ld.shared.u32 %r4, [%r3+-4];
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r4;
  ret;
}
"""

# Copies the (8, 32) tile at row 8, column 16 of x through SMEM to out[256].
TMA_PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 po)
{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<6>;
  .reg .f32 %f<2>;
  .shared .align 128 .b8 tile_smem[1024];
  .shared .align 8 .b64 bar;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, bar;
  mov.u32 %r3, tile_smem;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra WAIT;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r2], 1024;
  mov.b64 %rd1, map;
  cvta.param.u64 %rd2, %rd1;
  mov.u32 %r4, 16;
  mov.u32 %r5, 8;
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd2,
  {%r4, %r5}], [%r2];
WAIT:
  bar.sync 0;
SPIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
  @!%p2 bra SPIN;
  shl.b32 %r6, %r1, 2;
  add.u32 %r7, %r3, %r6;
  ld.shared.f32 %f1, [%r7];
  ld.param.u64 %rd3, [po];
  mul.wide.u32 %rd4, %r1, 4;
  add.s64 %rd3, %rd3, %rd4;
  st.global.f32 [%rd3], %f1;
  ret;
}
"""


def tile_kernel(rows: int, columns: int) -> CompiledKernel:
    """`tile(x) -> out`: x is (rows, columns) float32, out the 256 floats of one box."""
    return CompiledKernel(
        name="tile",
        entry="tile",
        ptx=TMA_PTX,
        target="sm_90",
        params=(TensorMapParam(0, float32, (8, 32)), PointerParam(1)),
        arrays=(
            ArrayAssumption((rows, columns), float32, False, 16, False, "x"),
            ArrayAssumption((256,), float32, True, 4, True, "out"),
        ),
        inputs=1,
        outputs=(OutputSpec((256,), float32),),
        output_tree=0,
        launch=LaunchAttributes((1, 1, 1), (256, 1, 1)),
    )


# Writes to address 64.
FAULT_PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p0, .param .u64 p1, .param .f32 p2)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  mov.u64 %rd1, 64;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


def old(ptx: str) -> str:
    """The same PTX for any GPU that is supported."""
    return ptx.replace(".target sm_90a", ".target sm_80")


def any_gpu(kernel: Any) -> Any:
    """The kernel with PTX for any GPU that is supported."""
    import dataclasses

    return dataclasses.replace(kernel, ptx=old(kernel.ptx), target="sm_80")
