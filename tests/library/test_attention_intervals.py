"""Lists of the blocks that masks keep, by intervals where these decide, equal those of the masks; their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig
from kernel_dsl.library.attention_forward import intervals as attention_intervals
from kernel_dsl.library.attention_forward.blocks import blocks_kernel, order_kernel
from kernel_dsl.library.attention_forward.intervals import decided
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_gradients.scored_walk import ScoredWalk

QUERIES, KEYS = 400, 330
RNG = np.random.default_rng(7)
DOCUMENTS = np.sort(RNG.integers(0, 6, QUERIES)).astype(np.int32)
SHUFFLED = RNG.permutation(DOCUMENTS).astype(np.int32)
FLAGS = DOCUMENTS % 2 == 0
LIMITS = np.array([2**31 - 1, -(2**31), 5, -7] * 100, np.int32)
EITHER = RNG.integers(0, 2, (QUERIES, KEYS)).astype(np.int32)
INTS = np.arange(QUERIES, dtype=np.int32)
where: Callable[..., Any] = kd.where

# masks of queries i and keys j, as the kernel traces them and as NumPy computes them
MASKS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "documents": (lambda i, j: DOCUMENTS[i] == DOCUMENTS[j],) * 2,
    "causal documents": (lambda i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (j <= i),) * 2,
    "shuffled": (lambda i, j: SHUFFLED[i] == DOCUMENTS[j],) * 2,
    "unequal": (lambda i, j: (DOCUMENTS[i] != DOCUMENTS[j]) | (i < 40),) * 2,
    "window": (lambda i, j: (i - j < 70) & (j - i < 30),) * 2,
    "negated": (lambda i, j: ~(i - j >= 70) & ~(DOCUMENTS[j] > 3),) * 2,
    "minus": (lambda i, j: -(i - j) > -50,) * 2,
    "flags": (lambda i, j: FLAGS[i] | (j < 100),) * 2,
    "select": (
        lambda i, j: where(DOCUMENTS[i] < 3, j <= i, DOCUMENTS[i] == DOCUMENTS[j]),
        lambda i, j: np.where(DOCUMENTS[i] < 3, j <= i, DOCUMENTS[i] == DOCUMENTS[j]),
    ),
    "select of numbers": (
        lambda i, j: where(j <= i, DOCUMENTS[i], 2) == where(FLAGS[j], DOCUMENTS[j], 3),
        lambda i, j: np.where(j <= i, DOCUMENTS[i], 2) == np.where(FLAGS[j], DOCUMENTS[j], 3),
    ),
    "largest": (
        lambda i, j: kd.maximum(i - j, j - i) <= kd.minimum(i + 0 * j, 90),
        lambda i, j: np.maximum(i - j, j - i) <= np.minimum(i + 0 * j, 90),
    ),
    "unsigned": (
        lambda i, j: (i - j).astype(kd.uint32) < 60,
        lambda i, j: (i - j).astype(np.uint32) < 60,
    ),
    "wraps": (lambda i, j: LIMITS[i] - LIMITS[j] > 0,) * 2,
    "narrowed": (
        lambda i, j: (i - j).astype(kd.int8) > 0,
        lambda i, j: (i - j).astype(np.int8) > 0,
    ),
    "remainders": (lambda i, j: (i - j) % 7 == 0,) * 2,
    "pairs": (lambda i, j: EITHER[i, j] > 0,) * 2,
    "none": (lambda i, j: (j < 0) & (i >= 0),) * 2,
    "all": (lambda i, j: (j >= 0) & (i >= 0),) * 2,
}


def expected(seen: Any, tile: int, other: int) -> Any:
    """As `blocks_kernel` says it: 0 without a pair, 3 with all, else 2."""
    made = np.zeros((-(-seen.shape[0] // tile), -(-seen.shape[1] // other)), np.int32)
    for t in range(made.shape[0]):
        for o in range(made.shape[1]):
            rows = seen[t * tile : (t + 1) * tile]
            part = rows[:, o * other : (o + 1) * other]
            every = part.all() and part.shape[1] == other
            made[t, o] = 3 if every else 2 if part.any() else 0
    return made


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.sampled(2)
def test_lists_equal_the_mask(name: str, by_key: bool, monkeypatch: Any) -> None:
    """And intervals decide all but what depends on single pairs."""
    traced, plain = MASKS[name]
    answers: list[Any] = []

    def spied(*args: Any) -> Any:
        answers.append(decided(*args))
        return answers[-1]

    monkeypatch.setattr(attention_intervals, "decided", spied)
    q, k = (np.zeros((1, 1, n, 64), ml_dtypes.bfloat16) for n in (QUERIES, KEYS))
    options = AttentionOptions("bhsd", mask_mod=lambda b, h, i, j: traced(i, j)).apart(q)
    problem = problem_of(q, k, k, options, False)
    tile, other = (64, 48) if not by_key else (48, 64)
    kernel = blocks_kernel(problem, tile, other, (False, False), by_key)
    made = np.asarray(kernel(q, *options.captured, interpret=True))[0, 0]
    assert answers and all((answer is None) == (name in ("remainders", "pairs")) for answer in answers)
    seen = plain(np.arange(QUERIES)[:, None], np.arange(KEYS)[None]) & np.ones((QUERIES, KEYS), bool)
    if by_key:  # keys beyond the last are seen by no query
        whole = expected(seen, 64, 48)
        assert ((made > 0) == (whole > 0).T).all()
        assert (made[:-1, :-1] == whole[:-1, :-1].T).all()
    else:
        assert (made == expected(seen, tile, other)).all()


def test_the_order_begins_with_long_lists() -> None:
    """Of 128 neighbours each, with equal ones in their order; the last neighbours may be fewer."""
    counts = RNG.integers(0, 9, (2, 1, 300)).astype(np.int32)
    made = np.asarray(order_kernel()(counts, interpret=True))
    for batch in range(2):
        for first in range(0, 300, 128):
            part = counts[batch, 0, first : first + 128]
            expected = first + np.argsort(-part, kind="stable")
            assert (made[batch, 0, first : first + 128] == expected).all()


def test_heads_of_gradients_go_together() -> None:
    """As many as blocks run at a time, so that the last of these are short; with a long head each alone."""

    def together(length: int, kv_heads: int, batch: int = 1) -> int:
        q, k = (kd.ShapeDtypeStruct((batch, h, length, 128), kd.bfloat16) for h in (4 * kv_heads, kv_heads))
        options = AttentionOptions("bhsd", mask_mod=lambda b, h, i, j: j <= i + 3).apart(q)
        problem = problem_of(q, k, k, options, False)
        return ScoredWalk(problem, AttentionBackwardConfig(64), 132, True).together

    assert [together(8192, 8), together(16384, 8), together(4096, 8), together(1024, 4)] == [2, 1, 4, 4]
    assert together(1024, 4, batch=8) == 16
