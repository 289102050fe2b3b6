"""The gradients of flash attention without options on Hopper: one kernel up to a head dimension of 128, one beyond.

A producer warpgroup loads, and two consumers compute. docs/attention.md explains each part.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from kernel_dsl.kernel import identified

from ..attention_forward.sizes import ROWS, AttentionProblem
from .consumers import narrow_consumers, wide_consumers
from .order import EIGHT, KEYS, AttentionBackwardConfig
from .walk import Walk

FREE = 208  # registers for accumulators and left operands, out of a consumer's 240


@cache
def backward_kernel(problem: AttentionProblem, config: AttentionBackwardConfig, multiprocessors: int) -> Any:
    """The kernel `(q, k, v, dout, stats) -> (dk, dv, dq_sum)` for head dimensions of 64 and 128.

    stats: float32 (batch, heads, 2, padded queries), the result of `stats_kernel`; dq_sum: float32, the gradient of the
    queries, not scaled yet: (batch x heads, padded queries / 8, dim, 8) in memory.
    """
    dim = problem.dim
    walk = Walk(problem, config, multiprocessors, KEYS, config.block_q // EIGHT, dim, dim == KEYS)
    made = walk.kernel(partial(narrow_consumers, dim=dim, free=FREE), name="attention_backward")
    return identified(made, problem, config, multiprocessors)


@cache
def wide_kernel(problem: AttentionProblem, config: AttentionBackwardConfig, multiprocessors: int) -> Any:
    """The kernel `(q, k, v, dout, stats) -> (dk, dv, dq_sum)` for head dimensions of 192 and 256; `block_q` is 64.

    stats as above; dq_sum: (batch x heads, padded queries / 64, dim / 8, 64, 8) in memory.
    """
    dim = problem.dim
    walk = Walk(problem, config, multiprocessors, ROWS, dim // EIGHT, config.block_q, False)
    made = walk.kernel(partial(wide_consumers, dim=dim), name="attention_backward_wide")
    return identified(made, problem, config, multiprocessors)
