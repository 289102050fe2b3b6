"""Public modules and names that are imported at their first use, each name with its module."""

from __future__ import annotations

MODULES = ("jax", "library", "symmetric", "testing", "torch", "tuning")  # public ones

LATE: dict[str, str] = {
    **dict.fromkeys(("BlockSpec", "Element", "emit_pipeline", "squeezed"), "kernel_dsl.pipelines"),
    **dict.fromkeys(("PipelinePipeline", "emit_pipeline_warp_specialized"), "kernel_dsl.warp_specialized"),
    "Graph": "kernel_dsl.runtime.graph",
    "CompileError": "kernel_dsl.runtime.custom.nvrtc",
    "cuda_kernel": "kernel_dsl.runtime.custom.source",
    "metal_kernel": "kernel_dsl.runtime.custom.metal.metal",
    "precompiled_cuda_kernel": "kernel_dsl.runtime.custom.image",
    "bench": "kernel_dsl.runtime.measure.bench",
    "load_compiled": "kernel_dsl.runtime.build.aot",
    "warm": "kernel_dsl.ahead",
    "tune": "kernel_dsl.tuned",
    **dict.fromkeys(("HazardError", "HazardWarning"), "kernel_dsl.runtime.interpreter.checks.hazards"),
    "HazardKind": "kernel_dsl.runtime.interpreter.checks.kinds",
}
