"""IR to PTX. The language and llvmlite are all it knows; devices it has never heard of."""

from .module import CallSpec, Lowered, compile_kernel, to_llvm
from .passes.check_barriers import check_waits
from .pipeline import PASSES, run_passes

__all__ = ["PASSES", "CallSpec", "Lowered", "check_waits", "compile_kernel", "run_passes", "to_llvm"]
