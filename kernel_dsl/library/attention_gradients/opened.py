"""Attention's gradients for changing batches and lengths: kernels for the first sizes, then one set of kernels for all
sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..attention_forward.opened import opened, scored_opened
from ..attention_forward.problem import ScoredProblem
from ..attention_forward.sizes import AttentionProblem
from ..first_sizes import FirstSizes, dim_of, is_open, most_of
from .order import MOST_SPLITS, AttentionBackwardConfig, one_block
from .scored_sizes import keys_of, stores_queries

_first = FirstSizes()


def plain_opened(
    p: AttentionProblem, config: AttentionBackwardConfig, multiprocessors: int, keys: int
) -> AttentionProblem | None:
    """The problem with Dims if it came with other sizes before. None for the first sizes, and if no kernel takes any
    sizes. If a block of `keys` has all keys, the Dim's maximum says so.

    Earlier calls may have had another configuration; then kernels for any sizes are compiled for this one, once.
    """
    kind = replace(p, batch=0, queries=0, keys=0), multiprocessors
    if config.splits > MOST_SPLITS:
        return None
    general = opened(p) if _first.comes_again(kind, (p.batch, p.queries, p.keys)) else None
    return general if general is None or not one_block(p, keys) else replace(general, keys=dim_of("keys", keys))


def general_of(p: ScoredProblem, *how: Any) -> ScoredProblem | None:
    """As `plain_opened`, for a problem with options. `how`: everything besides the problem that decides the kernels, first
    of all whether they are the general ones.
    """
    alone = not how[0] and stores_queries(p)
    return scored_opened(p, *how, first=_first, most_keys=keys_of(p) if alone else 0)


def of_any_keys(p: AttentionProblem) -> AttentionProblem:
    """The problem of the kernels that do not depend on the keys: one for all."""
    return replace(p, keys=dim_of("keys", most_of(p.queries), 1)) if is_open(p.keys) else p
