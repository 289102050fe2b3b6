"""Attention's configurations: the space of all, an estimate for each, and the look-up of tuned ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel_dsl.tuning_file import brief, written

from ..tuned_choices import ATTENTION, look_up
from .problem import ScoredProblem, ragged_tiles
from .scored_config import bytes_of, scored_config
from .sizes import ROWS, SMEM_BYTES, AttentionConfig, default_config

MADS, EXPONENTIALS, L2_BYTES = 2048, 16, 60  # rates of a multiprocessor in a clock
STEP, TILE = 120, 1500  # clocks of a step and of a tile beside their arithmetic: barriers, first loads, the last store
BLOCKS = (48, 64, 80, 96, 112, 128, 160)
TRUSTED = 0.97  # the factor that prefers `default_config`, which was measured, to coarse estimates


def key_of(p: ScoredProblem) -> str | None:
    """The text of a problem; None if scores have a caller's functions."""
    return None if p.score.has_functions else brief(p)


def chosen(p: ScoredProblem) -> AttentionConfig:
    """The configuration without tuned results."""
    return scored_config(p) if p.plain is None else default_config(p.plain)


def clocks(p: ScoredProblem, t: AttentionConfig, blocks: int) -> float:
    """A coarse estimate of the kernel's clocks on `blocks` multiprocessors."""
    tile = ROWS * t.consumers
    tiles = (ragged_tiles(p, tile) if p.ragged else -(-p.queries // tile) * p.batch) * p.heads
    steps = -(-p.keys // t.block_kv) * (0.5 if p.score.causal else 1.0) + (0.5 if p.score.causal else 0.0)
    scores = tile * t.block_kv
    products = scores * (p.dim + p.v_dim) / MADS
    softmax = scores / EXPONENTIALS
    # one consumer waits for its own products; several fill each other's gaps, with turns completely
    together = max(products, softmax) + min(products, softmax) * (
        1.0 if t.consumers == 1 else 0.3 if not t.turns else 0.25
    )
    together *= 1.0 if not t.turns or p.v_dim <= 64 else 1.03  # waiting for a turn takes time if products are long
    loads = t.block_kv * (p.dim + p.v_dim) * 2 / L2_BYTES
    step = max(together, loads) + STEP * (2.0 if t.stages == 1 else 1.0)
    return -(-tiles // blocks) * (steps * step + TILE)


def space(p: ScoredProblem, blocks: int) -> list[tuple[float, AttentionConfig]]:
    """(clocks, configuration) of all that fit in SMEM; `chosen` of them comes first."""
    default = chosen(p)
    listed = [
        AttentionConfig(consumers, block, stages, turns)
        for consumers in (1, 2, 3)
        for block in BLOCKS
        for stages in (2, 3, 4)
        for turns in (False, True)
        if consumers > 1 or not turns
    ]
    fit = [t for t in listed if bytes_of(p, t) <= SMEM_BYTES and t != default]
    timed = [(clocks(p, t, blocks), t) for t in fit]
    own = min([clocks(p, default, blocks), *(time for time, _ in timed)]) * TRUSTED
    return [(own, default), *timed]


def tuned_config(p: ScoredProblem, blocks: int) -> AttentionConfig | None:
    """The fastest configuration for a problem; None if it was not tuned."""

    def known() -> dict[str, AttentionConfig]:
        return {written(t): t for _, t in space(p, blocks)}

    return look_up(ATTENTION, lambda: key_of(p), known)


@dataclass(frozen=True)
class AttentionTrial:
    """Attention with one configuration. `structs`: those of q, k and v."""

    kernel: Any
    structs: tuple[Any, Any, Any]

    def stages(self, target: str | None) -> Any:
        return self.kernel.lower(*self.structs, target=target)

    def __call__(self, *args: Any, out: Any = None) -> Any:
        return self.kernel(*args, out=out)
