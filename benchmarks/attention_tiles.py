"""The pairs of queries and keys in the tiles that kernels of attention compute, of masks that hide some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernel_dsl.library import AttentionBackwardConfig, AttentionConfig
from kernel_dsl.library.attention_forward.attention import FAST
from kernel_dsl.library.attention_forward.linear import is_linear
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.scored_config import listed, paged_config, scored_config
from kernel_dsl.library.attention_forward.sizes import ROWS
from kernel_dsl.library.attention_forward.sizes import default_config as plain_forward
from kernel_dsl.library.attention_gradients.attention_backward import default_config as plain_backward
from kernel_dsl.library.attention_gradients.scored import scored_backward_config
from kernel_dsl.library.attention_gradients.scored_sizes import keys_of

Tile = tuple[int, int]  # queries, keys


def tile_of(q: Any, k: Any, v: Any, options: dict[str, Any], backward: bool, config: Any = None) -> Tile:
    """The tile that the kernel of a call skips or computes as a whole, by `config` or as chosen."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    given = AttentionOptions(**{"layout": "bhsd"} | options).apart(q)
    p = problem_of(q, k, v, given, False)
    plain = p.plain if p.layout == "bhsd" or not backward else None  # gradients of "bshd" run the kernel with options
    if plain is not None and plain.dim in FAST:
        chosen = config or (plain_backward(plain, multiprocessors) if backward else plain_forward(plain))
    else:
        linear = is_linear(p, given.captured)
        if backward:
            chosen = config or scored_backward_config(p, multiprocessors, False, linear)
        else:
            chosen = config or scored_config(replace(p, guarded=False), linear)
            chosen = paged_config(p, chosen)
    if isinstance(chosen, AttentionBackwardConfig):
        return chosen.block_q, keys_of(p)
    assert isinstance(chosen, AttentionConfig)
    # without a list, each consumer skips keys that none of its queries sees
    alone = plain is None and not listed(p)
    return ROWS * (1 if alone else chosen.consumers), chosen.block_kv


def pairs_in_tiles(seen: Any, tile: Tile) -> float:
    """The pairs in the tiles of a mask (queries, keys) that hold a visible pair."""
    rows, columns = tile
    queries, keys = seen.shape
    whole = torch.nn.functional.pad(seen, (0, -keys % columns, 0, -queries % rows))
    some = whole.reshape(-(-queries // rows), rows, -(-keys // columns), columns).any(3).any(1)
    return float(some.sum()) * rows * columns
