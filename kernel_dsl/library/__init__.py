"""Finished kernels as plain functions.

The first use of a function imports its module, and what a launch needs: the function's first launch imports nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernel_dsl.late import unknown
from kernel_dsl.loading import import_launches
from kernel_dsl.unseen import in_graphs, tell_torch

if TYPE_CHECKING:
    from .all_to_all import all_to_all
    from .attention import attention
    from .attention_backward import attention_backward
    from .attention_backward_order import AttentionBackwardConfig
    from .attention_sizes import AttentionConfig
    from .collectives import all_gather, all_reduce, reduce_scatter
    from .conv import conv2d, conv2d_dgrad, conv2d_wgrad
    from .cross_entropy import linear_cross_entropy, linear_cross_entropy_backward, linear_cross_entropy_combine
    from .decode import decode_attention
    from .decode_mla import mla_decode
    from .experts import expert_combine, expert_dispatch
    from .grouped import grouped_matmul
    from .grouped_wgrad import grouped_matmul_wgrad
    from .int4 import PackedInt4, pack_int4
    from .matmul import matmul
    from .matmul_config import MatmulConfig
    from .mxfp4 import PackedMxfp4, pack_mxfp4
    from .norms import layer_norm, rms_norm
    from .ring_attention import ring_attention
    from .ring_attention_backward import ring_attention_backward
    from .rope import rope
    from .sparse import SparseMatrix, sparse_compress, sparse_decompress
    from .sparse_matmul import sparse_matmul
    from .tensor_parallel import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter

__all__ = [
    "AttentionBackwardConfig",
    "AttentionConfig",
    "MatmulConfig",
    "PackedInt4",
    "PackedMxfp4",
    "SparseMatrix",
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_to_all",
    "attention",
    "attention_backward",
    "conv2d",
    "conv2d_dgrad",
    "conv2d_wgrad",
    "decode_attention",
    "expert_combine",
    "expert_dispatch",
    "grouped_matmul",
    "grouped_matmul_wgrad",
    "layer_norm",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_combine",
    "matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "mla_decode",
    "pack_int4",
    "pack_mxfp4",
    "reduce_scatter",
    "ring_attention",
    "ring_attention_backward",
    "rms_norm",
    "rope",
    "sparse_compress",
    "sparse_decompress",
    "sparse_matmul",
]

# the modules of the names that another module than one of their own name defines
_PLACES = {
    "AttentionBackwardConfig": "attention_backward_order",
    "AttentionConfig": "attention_sizes",
    "MatmulConfig": "matmul_config",
    "PackedInt4": "int4",
    "PackedMxfp4": "mxfp4",
    "SparseMatrix": "sparse",
    **dict.fromkeys(("all_gather", "all_reduce", "reduce_scatter"), "collectives"),
    **dict.fromkeys(("conv2d", "conv2d_dgrad", "conv2d_wgrad"), "conv"),
    "decode_attention": "decode",
    **dict.fromkeys(("expert_combine", "expert_dispatch"), "experts"),
    "grouped_matmul": "grouped",
    "grouped_matmul_wgrad": "grouped_wgrad",
    "linear_cross_entropy": "cross_entropy",
    "linear_cross_entropy_backward": "cross_entropy",
    "linear_cross_entropy_combine": "cross_entropy",
    **dict.fromkeys(("all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"), "tensor_parallel"),
    **dict.fromkeys(("layer_norm", "rms_norm"), "norms"),
    "mla_decode": "decode_mla",
    "pack_int4": "int4",
    "pack_mxfp4": "mxfp4",
    **dict.fromkeys(("sparse_compress", "sparse_decompress"), "sparse"),
}
_PUBLIC = frozenset((*__all__, *_PLACES))
_IN_GRAPHS = (  # of torch.compile
    "attention",
    "conv2d",
    "grouped_matmul",
    "layer_norm",
    "linear_cross_entropy",
    "linear_cross_entropy_combine",
    "matmul",
    "rms_norm",
    "rope",
)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise unknown(name, __all__, __name__)
    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, name)}"), name)
    import_launches()
    return _enter(name, found)


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *(name for name in globals() if name.startswith("__"))})


def _enter(name: str, found: Any) -> Any:
    if name in _IN_GRAPHS and globals().get(name) is not found:
        in_graphs(name, found)
    tell_torch()
    globals()[name] = found
    return found


class _Library(ModuleType):
    """Keeps `library.matmul` the function: Python enters the module of this name in its place when it is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PUBLIC and isinstance(value, ModuleType):
            _enter(name, getattr(value, name))
        else:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library
