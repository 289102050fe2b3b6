"""Finished kernels as plain functions. The first use of `kd.library` imports them."""

from __future__ import annotations

from kernel_dsl.unseen import seen, tell_torch

from .all_to_all import all_to_all
from .attention import attention
from .attention_backward import attention_backward
from .attention_backward_order import AttentionBackwardConfig
from .attention_kernel import AttentionConfig
from .collectives import all_gather, all_reduce, reduce_scatter
from .conv import conv2d, conv2d_dgrad, conv2d_wgrad
from .cross_entropy import (
    combine_backward,
    linear_cross_entropy,
    linear_cross_entropy_backward,
    linear_cross_entropy_combine,
    partials_backward,
)
from .decode import decode_attention
from .decode_mla import mla_decode
from .differentiable import FUNCTIONS
from .experts import expert_combine, expert_dispatch
from .grouped import grouped_matmul
from .grouped_wgrad import grouped_matmul_wgrad
from .int4 import PackedInt4, pack_int4
from .matmul import matmul
from .mxfp4 import PackedMxfp4, pack_mxfp4
from .persistent_matmul import MatmulConfig
from .ring_attention import ring_attention
from .ring_attention_backward import ring_attention_backward
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
    "sparse_compress",
    "sparse_decompress",
    "sparse_matmul",
]

seen(attention, conv2d, grouped_matmul, linear_cross_entropy, linear_cross_entropy_combine, matmul)
tell_torch()
FUNCTIONS.update(
    attention=attention,
    attention_backward=attention_backward,
    conv2d=conv2d,
    conv2d_dgrad=conv2d_dgrad,
    conv2d_wgrad=conv2d_wgrad,
    gated_with_sums=matmul.with_sums,
    grouped_matmul=grouped_matmul,
    grouped_matmul_wgrad=grouped_matmul_wgrad,
    linear_cross_entropy=linear_cross_entropy,
    linear_cross_entropy_backward=linear_cross_entropy_backward,
    linear_cross_entropy_combine=linear_cross_entropy_combine,
    linear_cross_entropy_combine_backward=combine_backward,
    linear_cross_entropy_partials_backward=partials_backward,
    matmul=matmul,
    ring_attention=ring_attention,
    ring_attention_backward=ring_attention_backward,
)
