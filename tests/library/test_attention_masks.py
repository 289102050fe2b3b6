"""Masks that depend on the batch or the head in any of Python's ways: the lists of blocks know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.blocks import depends_on
from kernel_dsl.library.attention_forward.problem import ScoredProblem
from kernel_dsl.library.attention_forward.score import Score
from tests.hopper.helpers import random

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

# masks of a place x, which is the batch or the head, of queries i and of keys j
ONE_PLACE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "equal": lambda x, i, j: (x == 0) & (j >= 0),
    "unequal": lambda x, i, j: (x != 1) & (j >= 0),
    "equal, from the right": lambda x, i, j: (0 == x) & (j >= 0),  # noqa: SIM300
    "less": lambda x, i, j: (x < 1) & (j >= 0),
    "product": lambda x, i, j: j * (1 - x) > x - 1,
    "where": lambda x, i, j: kd.where(x == 0, j >= 0, j < 0),
    "negated": lambda x, i, j: ~(x != 0) & (j >= 0),
}
# (a mask of both places, whether it reads the batch, whether it reads the head)
BOTH: list[tuple[Any, bool, bool]] = [
    (lambda b, h, i, j: (h == 0) | (j <= i), False, True),
    (lambda b, h, i, j: (b != 1) & (j <= i), True, False),
    (lambda b, h, i, j: kd.where(h > b, j <= i, j > i), True, True),
    (lambda b, h, i, j: j <= i + 0 * h, False, True),
    (lambda b, h, i, j: (j <= i) & kd.where(kd.max(j) > 0, True, b == h), True, True),
    (lambda b, h, i, j: j <= i, False, False),
    (lambda b, h, i, j: kd.div(i, 100) == kd.div(j, 100), False, False),
    (lambda b, h, i, j: (j <= i) if h is not None and isinstance(b, kd.Array) else j > i, False, False),
]


def dependence(mask: Any) -> tuple[bool, bool]:
    p = ScoredProblem(1, 1, 1, 1, 1, 64, 64, kd.float16, kd.float16, 1.0, Score(mask_mod=mask))
    return depends_on(p, [])


@pytest.mark.parametrize("name", ONE_PLACE)
def test_the_batch_or_the_head(name: str) -> None:
    mask = ONE_PLACE[name]
    assert dependence(lambda b, h, i, j: mask(h, i, j)) == (False, True)
    assert dependence(lambda b, h, i, j: mask(b, i, j)) == (True, False)
    assert dependence(lambda b, h, i, j: mask(b, i, j) & mask(h, i, j)) == (True, True)


@pytest.mark.parametrize("case", BOTH, ids=lambda case: str(BOTH.index(case)))
def test_what_masks_read(case: Any) -> None:
    """A list of blocks is shared by the heads and sequences that a mask can't tell apart, and by no others."""
    mask, *reads = case
    assert dependence(mask) == tuple(reads)


@pytest.mark.parametrize("place", ["batch", "head"])
@pytest.mark.parametrize("name", ["equal", "unequal", "where"])
@pytest.mark.sampled(20)
def test_several_blocks(name: str, place: str, interpret: Any, rng: Any) -> None:
    """Only the first batch, or head, sees keys: the others have zeros, and so have their gradients."""
    mask = ONE_PLACE[name]
    q, k, v, dout = (random(rng, (2, 2, 256, 64), kd.float16) for _ in range(4))
    options: dict[str, Any] = {"mask_mod": lambda b, h, i, j: mask(b if place == "batch" else h, i, j)}
    out, lse = kd.library.attention(q, k, v, return_lse=True, interpret=interpret, **options)
    grads = kd.library.attention_backward(dout, q, k, v, out, lse, interpret=interpret, **options)
    for x in (out, *grads):
        seen, unseen = (x[0], x[1]) if place == "batch" else (x[:, 0], x[:, 1])
        assert seen.any() and not unseen.any()
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    first = np.s_[0] if place == "batch" else np.s_[:, 0]
    np.testing.assert_allclose(out[first].astype(np.float64), wanted[first], atol=4e-3)
