"""IR to PTX. The language and llvmlite are all it knows; devices it has never heard of."""

if __name__ != "kernel_dsl.lowering":
    from kernel_dsl.rooms import give_way

    give_way(__name__, __file__)
else:
    from .module import CallSpec, Lowered, compile_kernel, to_llvm
    from .passes.check_barriers import check_waits
    from .pipeline import PASSES, run_passes

    __all__ = ["PASSES", "CallSpec", "Lowered", "check_waits", "compile_kernel", "run_passes", "to_llvm"]
