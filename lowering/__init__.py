"""IR to PTX. It imports the language and llvmlite, and nothing of the runtime."""

if __name__ != "kernel_dsl.lowering":
    from kernel_dsl.rooms import give_way

    give_way(__name__, __file__)
else:
    from .job import CallSpec, Lowered
    from .llvm import library_ptx
    from .pipeline import STEPS, check_for_gpu, compile_kernel, run_passes, to_llvm

    __all__ = [
        "STEPS",
        "CallSpec",
        "Lowered",
        "check_for_gpu",
        "compile_kernel",
        "library_ptx",
        "run_passes",
        "to_llvm",
    ]
