"""Finished kernels as plain functions. Imported at the first use of `kd.library`."""

from __future__ import annotations

from .attention import attention
from .attention_kernel import AttentionConfig
from .matmul import matmul
from .persistent_matmul import MatmulConfig

__all__ = ["AttentionConfig", "MatmulConfig", "attention", "matmul"]
