"""Attention's gradients for changing batches and lengths: kernels for the first sizes, then one set of kernels for all
sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .attention_backward_order import MOST_SPLITS, AttentionBackwardConfig
from .attention_opened import opened, scored_opened
from .attention_problem import ScoredProblem
from .attention_sizes import AttentionProblem
from .first_sizes import FirstSizes

_first = FirstSizes()


def plain_opened(p: AttentionProblem, config: AttentionBackwardConfig, multiprocessors: int) -> AttentionProblem | None:
    """The problem with Dims if it came with other sizes before. None for the first sizes, and if no kernel takes any
    sizes.

    Earlier calls may have had another configuration; then kernels for any sizes are compiled for this one, once.
    """
    kind = replace(p, batch=0, queries=0, keys=0), multiprocessors
    if config.splits > MOST_SPLITS:
        return None
    return opened(p) if _first.comes_again(kind, (p.batch, p.queries, p.keys)) else None


def general_of(p: ScoredProblem, *how: Any) -> ScoredProblem | None:
    """As `plain_opened`, for a problem with options. `how`: everything besides the problem that decides the kernels."""
    return scored_opened(p, *how, first=_first)
