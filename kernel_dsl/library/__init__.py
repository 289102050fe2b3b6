"""Finished kernels as plain functions.

The first use of a function imports its module, and what a launch needs: the function's first launch imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernel_dsl.late import unknown
from kernel_dsl.loading import import_launches
from kernel_dsl.unseen import in_graphs, tell_torch

if TYPE_CHECKING:
    from .attention_forward.attention import attention
    from .attention_forward.sizes import AttentionConfig
    from .attention_gradients.attention_backward import attention_backward
    from .attention_gradients.order import AttentionBackwardConfig
    from .collectives.all_to_all import all_to_all
    from .collectives.experts import expert_combine, expert_dispatch
    from .collectives.reductions import all_gather, all_reduce, reduce_scatter
    from .convolutions.conv2d import conv2d, conv2d_dgrad, conv2d_wgrad
    from .decoding.decode_attention import decode_attention
    from .decoding.mla_decode import mla_decode
    from .grouped.grouped_matmul import grouped_matmul
    from .grouped.grouped_matmul_wgrad import grouped_matmul_wgrad
    from .losses.linear_cross_entropy import (
        linear_cross_entropy,
        linear_cross_entropy_backward,
        linear_cross_entropy_combine,
    )
    from .mesh_products.tensor_parallel import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
    from .norms import layer_norm, rms_norm
    from .products.int4 import PackedInt4, pack_int4
    from .products.matmul import matmul
    from .products.matmul_config import MatmulConfig
    from .products.mxfp4 import PackedMxfp4, pack_mxfp4
    from .products.sparse import SparseMatrix, sparse_compress, sparse_decompress
    from .products.sparse_matmul import sparse_matmul
    from .ring.ring_attention import ring_attention
    from .ring.ring_attention_backward import ring_attention_backward
    from .rotary import rope

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

# the rooms, with the modules and the public names in them
_ROOMS = {
    "": {"norms": ("layer_norm", "rms_norm"), "rotary": ("rope",)},
    "attention_forward": {"attention": ("attention",), "sizes": ("AttentionConfig",)},
    "attention_gradients": {"attention_backward": ("attention_backward",), "order": ("AttentionBackwardConfig",)},
    "collectives": {
        "all_to_all": ("all_to_all",),
        "experts": ("expert_combine", "expert_dispatch"),
        "reductions": ("all_gather", "all_reduce", "reduce_scatter"),
    },
    "convolutions": {"conv2d": ("conv2d", "conv2d_dgrad", "conv2d_wgrad")},
    "decoding": {"decode_attention": ("decode_attention",), "mla_decode": ("mla_decode",)},
    "grouped": {"grouped_matmul": ("grouped_matmul",), "grouped_matmul_wgrad": ("grouped_matmul_wgrad",)},
    "losses": {
        "linear_cross_entropy": (
            "linear_cross_entropy",
            "linear_cross_entropy_backward",
            "linear_cross_entropy_combine",
        ),
    },
    "mesh_products": {"tensor_parallel": ("all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter")},
    "products": {
        "int4": ("PackedInt4", "pack_int4"),
        "matmul": ("matmul",),
        "matmul_config": ("MatmulConfig",),
        "mxfp4": ("PackedMxfp4", "pack_mxfp4"),
        "sparse": ("SparseMatrix", "sparse_compress", "sparse_decompress"),
        "sparse_matmul": ("sparse_matmul",),
    },
    "ring": {"ring_attention": ("ring_attention",), "ring_attention_backward": ("ring_attention_backward",)},
}
_PLACES = {
    name: ".".join((__name__, *filter(None, (room, module))))
    for room, modules in _ROOMS.items()
    for module, names in modules.items()
    for name in names
}
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
    if name not in _PLACES:
        raise unknown(name, __all__, __name__)
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    import_launches()
    if name in _IN_GRAPHS:
        in_graphs(name, found)
    tell_torch()
    return found


def __dir__() -> list[str]:
    return sorted({*_PLACES, *(name for name in globals() if name.startswith("__"))})
