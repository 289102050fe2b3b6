"""Public modules and names that are imported at their first use, each name with its module; and the error for unknown names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

from .diagnostics import at_user_line, shown
from .errors import UnknownName

MODULES = ("jax", "library", "random", "symmetric", "testing", "torch", "tuning")  # public modules

LATE: dict[str, str] = {
    **dict.fromkeys(("AccRef", "Array", "Ref"), "kernel_dsl.ops.handles"),  # which attaches their methods
    "BarrierRef": "kernel_dsl.ops.barrier",
    "Layout": "kernel_dsl.layouts",  # which names the known ones
    **dict.fromkeys(("BlockSpec", "Element", "squeezed"), "kernel_dsl.block_specs"),
    "emit_pipeline": "kernel_dsl.pipelines",
    **dict.fromkeys(("PipelinePipeline", "emit_pipeline_warp_specialized"), "kernel_dsl.warp_specialized"),
    "Graph": "kernel_dsl.graphs",
    "CompileError": "kernel_dsl.runtime.custom.nvrtc",
    "cuda_kernel": "kernel_dsl.runtime.custom.source",
    "metal_kernel": "kernel_dsl.runtime.custom.metal.metal",
    "precompiled_cuda_kernel": "kernel_dsl.runtime.custom.image",
    "bench": "kernel_dsl.runtime.measure.bench",
    "load_compiled": "kernel_dsl.runtime.build.aot",
    "warm": "kernel_dsl.ahead",
    "tune": "kernel_dsl.tuned",
    **dict.fromkeys(("HazardError", "HazardWarning"), "kernel_dsl.runtime.interpreter.checks.hazards"),
    **dict.fromkeys(("DeviceError", "LaunchError", "LoadError", "OutOfMemoryError"), "kernel_dsl.runtime.errors"),
    "HazardKind": "kernel_dsl.runtime.interpreter.checks.kinds",
}


def unknown(name: str, names: Sequence[str], module: str = "kernel_dsl") -> AttributeError:
    """The error for `kd.name` or `kd.library.name`, which is none of the module's public `names`: it shows close ones."""
    asker = sys._getframe(2).f_code.co_filename  # pyright: ignore[reportPrivateUsage]
    # Python and pytest ask for special names, and `from kernel_dsl import name` asks before it looks for a module
    if name.startswith("_") or asker.startswith("<frozen importlib"):
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
    from difflib import get_close_matches

    from .other_names import WORDS

    near = get_close_matches(name, names, 3)
    prefix = module.replace("kernel_dsl", "kd")
    if name == "inline":
        hint = "call functions from the body without a decorator: kernel-dsl traces them in place"
    elif name in WORDS:
        hint = WORDS[name]
    elif near:
        hint = f"did you mean {', '.join(f'`{prefix}.{x}`' for x in near)}?"
    else:
        hint = f"`{prefix}.__all__` and docs/reference.md list all names"
    return cast("AttributeError", at_user_line(UnknownName(owner=f"`{module}`", name=shown(name), hint=hint)))
