"""Attention with every option and its gradients, in float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernel_dsl as kd


@dataclass
class Reference:
    """What a call gives: the output, the logarithms of sums, and gradients by name where `dout` was given, with that of
    the logarithms if `dlse` was, too.

    `sinks_size`: what the gradients of sinks are a sum of, all of one sign; errors are parts of it. `sizes`: the same of the
    gradients of q, k and v: their greatest magnitude, and the root of the sum of the squares of what they are sums of. Where terms
    cancel, the second is the greater. `terms`: the magnitudes of what gradients of scores are sums of.
    """

    out: Any
    lse: Any
    grads: dict[str, Any]
    sinks_size: float = 0.0
    sizes: dict[str, float] = field(default_factory=dict)
    terms: Any = None


def seen(q: int, k: int, causal: Any, window: int | None) -> Any:
    """Which of `q` queries see which of `k` keys."""
    i, j = np.arange(q)[:, None], np.arange(k)[None]
    at = i + (k - q if causal == "bottom_right" else 0)
    mask = np.broadcast_to(j <= at if causal else True, (q, k))
    if window is not None:
        mask = mask & (at - j < window)
        if not causal:
            mask = mask & (j - at < window)
    return mask


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: Any = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: Any = None,
    bias: Any = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    dout: Any = None,
    dlse: Any = None,
) -> Reference:
    """q (batch, heads, queries, dim), k and v (batch, kv_heads, keys, ...), of any dtype."""
    (B, H, Q, D), (G, K) = q.shape, k.shape[1:3]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    keys, values = (np.repeat(x, H // G, 1) for x in (k, v))
    scale = D**-0.5 if scale is None else scale
    b, h = np.arange(B)[:, None, None, None], np.arange(H)[:, None, None]
    i, j = np.arange(Q)[:, None], np.arange(K)[None]
    x = np.einsum("bhqd,bhkd->bhqk", q, keys) * scale
    slope = np.ones_like(x)
    if softcap is not None:
        x = np.tanh(x / softcap)
        slope, x = 1 - x * x, x * softcap
    if bias is not None:
        x = x + np.asarray(bias, np.float64)
    after = np.ones_like(x)
    if score_mod is not None:
        step = 1e-5
        with np.errstate(invalid="ignore"):  # a score of -inf has any derivative
            after = (score_mod(x + step, b, h, i, j) - score_mod(x - step, b, h, i, j)) / (2 * step)
        after = np.where(np.isfinite(after), after, 0.0)
        x = score_mod(x, b, h, i, j) + np.zeros_like(x)
    mask = seen(Q, K, causal, window)
    if mask_mod is not None:
        mask = mask & mask_mod(b, h, i, j)
    x = np.where(mask, x, -np.inf)
    with np.errstate(invalid="ignore"):  # of NaN in the arrays
        lse = np.logaddexp.reduce(x, axis=-1) if K else np.full((B, H, Q), -np.inf)
        if sinks is not None:
            lse = np.logaddexp(lse, np.asarray(sinks, np.float64)[:, None])
        weights = np.where(np.isneginf(x), 0.0, np.exp(x - lse[..., None]))
    out = weights @ values
    if dout is None:
        return Reference(out, lse, {})
    dout = np.asarray(dout, np.float64)
    dlse = np.where(np.isneginf(lse), 0.0, 0.0 if dlse is None else dlse)
    delta = (dout * out).sum(-1) - dlse
    ds = weights * (np.einsum("bhqd,bhkd->bhqk", dout, values) - delta[..., None]) * after
    row = np.sqrt(((dout * out) ** 2).sum(-1))[..., None]  # an error of a row's sum is that of all of its scores
    scale_of = np.sqrt(np.einsum("bhqd,bhkd->bhqk", dout**2, values**2)) + row + np.abs(dlse)[..., None]
    terms = weights * scale_of * np.abs(after)
    grads, size = {}, 0.0
    if sinks is not None:
        sink = np.asarray(sinks, np.float64)[:, None]
        with np.errstate(invalid="ignore"):
            own = np.where(np.isneginf(sink), 0.0, np.exp(sink - lse))
        grads["sinks"] = -(own * delta).sum((0, 2))
        size = float((own * (np.abs(dout * out).sum(-1) + np.abs(dlse))).sum((0, 2)).max())
    if bias is not None:
        grads["bias"] = summed(ds, np.shape(bias))
    ds, after = ds * slope * scale, np.abs(after) * slope * scale
    grads["q"] = ds @ keys
    squares = {"q": (terms * slope * scale) ** 2 @ keys**2 + (row * ((weights * after) @ np.abs(keys))) ** 2}
    for name, left, right in (("k", ds, q), ("v", weights, dout)):
        x = np.einsum("bhqk,bhqd->bhkd", left, right)
        grads[name] = x.reshape(B, G, H // G, K, x.shape[-1]).sum(2)
        left = terms * slope * scale if name == "k" else weights
        y = np.einsum("bhqk,bhqd->bhkd", left**2, right**2)
        squares[name] = y.reshape(B, G, H // G, K, x.shape[-1]).sum(2)
    sizes = {name: float(np.abs(grads[name]).max(initial=0) + np.sqrt(x.max(initial=0))) for name, x in squares.items()}
    return Reference(out, lse, grads, size, sizes, terms)


def plain(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Output and log-sum-exp in float64, without options."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[3] ** -0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights / total, v), (top + np.log(total))[..., 0]


def summed(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` summed over what an array of that shape is broadcast along."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


# --- functions of scores, for NumPy and for traced values -----------------------------------------


def alibi(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A slope for each head."""
    return x - (i - j) * ((h + 1) * 0.0625)


def squashed(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """No linear function, of the batch, too."""
    return x * x * 0.25 - x * (b + 1) * 0.5


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Of 37 tokens each."""
    return divided(i, 37) == divided(j, 37)


def by_head(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Head h sees all but the first 20 h keys, and query 5 sees none."""
    return (j >= 20 * h) & (i != 5)


def divided(x: Any, by: int) -> Any:
    return x // by if isinstance(x, np.ndarray) else kd.div(x, by)
