"""The cross-entropy of a linear layer and its gradients in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Expected(NamedTuple):
    """What a call gives: losses of rows, their reduction, logarithms of sums, and gradients; and `sizes`, the greatest sum of
    magnitudes that an element of each gradient is made of, which its error is told by.
    """

    rows: Any
    loss: Any
    lse: Any
    dx: Any
    dweight: Any
    dbias: Any
    sizes: tuple[float, float, float]


def expected(
    x: Any, weight: Any, targets: Any, bias: Any = None, ignore: int = -100, smoothing: float = 0.0, reduction: str = "mean",
    dloss: Any = 1.0,
) -> Expected:  # fmt: skip
    """All of a call."""
    x, weight = (a.astype(np.float64) for a in (x, weight))
    logits = x @ weight.T + (0.0 if bias is None else bias.astype(np.float64))
    top = logits.max(axis=1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    counts = targets != ignore
    number = np.where(counts, targets, 0).astype(int)
    each = np.arange(len(targets))
    rows = lse - (1 - smoothing) * logits[each, number] - smoothing * logits.mean(axis=1)
    rows = np.where(counts, rows, 0.0)
    count = counts.sum()
    loss = (
        rows if reduction == "none" else rows.sum() if reduction == "sum" else rows.sum() / count if count else np.nan
    )
    weights = np.exp(logits - lse[:, None])
    wanted = np.full(logits.shape, smoothing / logits.shape[1])
    wanted[each, number] += 1 - smoothing
    factor = np.broadcast_to(np.asarray(dloss, np.float64), counts.shape) / (
        max(count, 1) if reduction == "mean" else 1
    )
    factor = np.where(counts, factor, 0.0)[:, None]
    slope, parts = (weights - wanted) * factor, (weights + wanted) * np.abs(factor)
    sizes = [(parts @ np.abs(weight)), parts.T @ np.abs(x), parts.sum(axis=0)]
    one, two, three = (float(size.max(initial=0.0)) or 1.0 for size in sizes)
    return Expected(rows, loss, lse, slope @ weight, slope.T @ x, slope.sum(axis=0), (one, two, three))
